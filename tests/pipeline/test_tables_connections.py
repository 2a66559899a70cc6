"""Tables connections, streams and captures: facts of the transport and of what the two sides sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from decoder_rows import as_arrow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tables_support import STEP, T0, Read, Script, at, tables_from

SERVER = {
    "product": "RabbitMQ",
    "version": "3.10.8",
    "platform": "Erlang/OTP 25.2.3",
    "capabilities": {"basic.nack": True},
}
CLIENT = {
    "product": "pika",
    "version": "1.4.4",
    "platform": "Python 3.11",
    "capabilities": {"connection.blocked": True},
}
MEASURES = {
    "packets": 5, "payload_bytes": 155, "frame_bytes": 100, "skipped_bytes": 20, "tls_bytes": 0, "foreign_bytes": 30,
    "tail_bytes": 5, "missing_bytes": 7, "retransmitted_bytes": 3, "out_of_order_segments": 1, "max_silence_ns": 900,
}  # fmt: skip


def greeted(until: str = "open") -> Script:
    """Protocol header 1, start 2, start-ok 3, tune 4, tune-ok 5, open 6, open-ok 7; cut off after stage `until`."""
    script = Script()
    script.frame("client", "protocol-header", arguments={"major": 0, "minor": 9, "revision": 1})
    if until == "header":
        return script
    script.server("connection.start", 0, server_properties=SERVER, mechanisms="PLAIN", locales="en_US")
    script.client("connection.start-ok", 0, client_properties=CLIENT, mechanism="PLAIN", locale="en_US", user="guest")
    if until == "start":
        return script
    script.server("connection.tune", 0, channel_max=2047, frame_max=131072, heartbeat=60)
    script.client("connection.tune-ok", 0, channel_max=100, frame_max=4096, heartbeat=10)
    script.client("connection.open", 0, virtual_host="/shop")
    if until == "tune":
        return script
    script.server("connection.open-ok", 0)
    return script


SCRIPTS = {
    "whole": greeted().facts(
        client_port=40000, server_ip="10.0.0.2", server_port=5672, community_id="1:abc", tcp_rtt_ns=300, tcp_end="fin",
        tcp_end_by="client", roles_from="syn", versions_offered=["client 0-9-1"], limits=[],
        conflicting_overlap_bytes=0, client=MEASURES, server={**MEASURES, "packets": 6, "max_silence_ns": 800},
    )
    .open().publish().get(1).frame("client", "heartbeat", 0)  # 8 to 17; get-ok: 14 15 16
    .asks("connection.close", 0, reply_code=200, reply_text="Normal shutdown"),  # 18
    "refused": greeted("start").closed(403, "ACCESS_REFUSED", 0),
    "blocked": greeted()
    .server("connection.blocked", 0, reason="low on memory")  # 8
    .server("connection.blocked", 0, reason="low on memory and disk")  # 9
    .frame("server", "heartbeat", 0).server("connection.unblocked", 0)  # 10 11
    .server("connection.blocked", 0, reason="low on memory"),  # 12; the last packet comes at 13
    "foreign": Script("").facts(content="foreign", syn_captured=False),
    "encrypted": Script()
    .facts(content="tls", tls={"mode": "implicit", "tls_version": "TLS 1.3", "sni": "mq.example", "alpn": None}),
    "header_then_tls": greeted("header")
    .facts(content="amqp", tls={"mode": "upgraded", "tls_version": "TLS 1.2", "sni": None, "alpn": None}),
    "stated_twice": greeted().client("connection.start-ok", 0, mechanism="EXTERNAL", user="other")
    .closed(320, "first", 0).client("connection.close", 0, reply_code=200, reply_text="second"),
    # The open of the server is complete, that of the client lost bytes: its limits are unknown.
    "opened_cut": Script("1.0")
    .frame("client", "amqp", 0, name="open", arguments={"container_id": "c"}, status="partial",
           error="bytes of these values are missing from the capture")
    .frame("server", "amqp", 0, name="open", arguments={"container_id": "s", "channel_max": 7}),
    **{f"until_{stage}": greeted(stage) for stage in ("header", "start", "tune", "open")},
}  # fmt: skip


def introduced(version: str = "0-9-1", **arguments: Any) -> Script:
    """A client that says only this of itself: in start-ok, in 1.0 in its open, which the server answers."""
    script = Script(version)
    if version != "1.0":
        script.client("connection.start-ok", 0, mechanism="PLAIN", **arguments)
        return script
    script.frame("client", "amqp", 0, name="open", arguments=arguments)
    script.frame("server", "amqp", 0, name="open", arguments={"container_id": "broker", "properties": CLIENT})
    return script


PROCESS = {"qpid.client_process": "billing", "product": "qpid"}
NAMED = {
    "by connection_name": (introduced(client_properties={**CLIENT, **PROCESS, "connection_name": "orders"}), "orders"),
    "by process": (introduced(client_properties={**PROCESS, "connection_name": ""}), "billing"),
    "by process, 0-10": (introduced("0-10", client_properties=PROCESS), "billing"),
    "by product and version": (introduced(client_properties=CLIENT), "pika 1.4.4"),
    "as py-amqp": (introduced(client_properties={"product": "py-amqp", "product_version": "5.4.2"}), "py-amqp 5.4.2"),
    "by product": (introduced(client_properties={"product": "own"}), "own"),
    "by container": (introduced("1.0", container_id="sensor-7", properties=PROCESS), "sensor-7"),
    "by connection_name, 1.0": (introduced("1.0", container_id="c", properties={"connection_name": "n"}), "n"),
    "by nothing": (introduced(client_properties={}), None),
}


@pytest.fixture(scope="module")
def read(spark: SparkSession) -> Read:
    return Read(spark, SCRIPTS | {name: script for name, (script, _) in NAMED.items()})


@pytest.mark.parametrize("name", NAMED)
def test_the_application_has_the_name_from_its_client_properties(read: Read, name: str) -> None:
    assert read.one("connections", name, "client_name") == (NAMED[name][1],)


def test_a_connection_has_both_addresses(read: Read) -> None:
    columns = (
        "client_ip", "client_port", "server_ip", "server_port", "community_id", "tcp_end", "tcp_end_by",
        "versions_offered",
    )  # fmt: skip
    expected = ("10.0.0.1", 40000, "10.0.0.2", 5672, "1:abc", "fin", "client", ["client 0-9-1"])
    assert read.one("connections", "whole", *columns) == expected


def test_a_connection_has_the_agreed_and_the_proposed_limits(read: Read) -> None:
    names = ("channel_max", "frame_max", "heartbeat_s")
    assert read.one("connections", "whole", *names) == (100, 4096, 10)
    assert read.one("connections", "whole", *(f"server_{name}" for name in names)) == (2047, 131072, 60)
    assert read.one("connections", "whole", *(f"client_{name}" for name in names)) == (100, 4096, 10)


def test_missing_fields_of_a_truncated_open_have_no_defaults(read: Read) -> None:
    """1.0 core specification, 2.7.1: max-frame-size defaults to 4294967295, channel-max to 65535."""
    names = ("container_id", "frame_max", "channel_max")
    assert read.one("connections", "opened_cut", *(f"client_{name}" for name in names)) == ("c", None, None)
    assert read.one("connections", "opened_cut", *(f"server_{name}" for name in names)) == ("s", 2**32 - 1, 7)


def test_a_connection_has_the_user_and_the_mechanism(read: Read) -> None:
    columns = (
        "vhost", "user", "mechanism", "locale", "client_product", "client_platform", "server_product", "server_version",
    )  # fmt: skip
    expected = ("/shop", "guest", "PLAIN", "en_US", "pika", "Python 3.11", "RabbitMQ", "3.10.8")
    assert read.one("connections", "whole", *columns) == expected


def test_capabilities_of_both_sides(read: Read) -> None:
    rows = read.tables.connections.filter("user = 'guest' and vhost = '/shop' and close_code = 200")
    (row,) = rows.select(F.to_json("capabilities"), F.expr("server_properties:platform::string")).collect()
    assert json.loads(row[0]) == {"client": CLIENT["capabilities"], "server": SERVER["capabilities"]}
    assert row[1] == "Erlang/OTP 25.2.3"


def test_times_of_a_connection(read: Read) -> None:
    times = read.one("connections", "whole", "opened_ts", "closed_ts", "handshake_ns", "tcp_rtt_ns")
    assert times == (at(0), at(20), 7 * STEP, 300)


def test_steps_of_the_handshake(read: Read) -> None:
    steps = ("start_latency_ns", "login_latency_ns", "open_latency_ns")
    assert read.one("connections", "whole", *steps) == (STEP, STEP, STEP)
    assert read.one("connections", "until_header", *steps) == (None, None, None)


def test_counts_by_sender(read: Read) -> None:
    kinds = ("frames", "methods", "heartbeats")
    # Client: start-ok, tune-ok, open, channel.open, publish + 2, get, heartbeat, close; a protocol header is not a
    # frame.
    assert read.one("connections", "whole", *(f"client_{kind}" for kind in kinds)) == (10, 7, 1)
    # Server: start, tune, open-ok, channel.open-ok, get-ok + 2, close-ok.
    assert read.one("connections", "whole", *(f"server_{kind}" for kind in kinds)) == (8, 6, 0)
    assert read.one("connections", "whole", "messages_published", "messages_delivered") == (1, 1)


def test_bytes_of_both_directions(read: Read) -> None:
    counts = ("client_packets", "server_packets", "client_bytes", "server_bytes")
    assert read.one("connections", "whole", *counts) == (5, 6, 155, 155)
    assert read.one("connections", "whole", "client_max_silence_ns", "server_max_silence_ns") == (900, 800)
    # Skipped, foreign and tail bytes: 2 * (20 + 30 + 5).
    together = ("retransmitted_bytes", "out_of_order_segments", "missing_bytes", "undecoded_bytes")
    assert read.one("connections", "whole", *together) == (6, 2, 14, 110)


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("foreign", "tcp"), ("until_header", "header"), ("until_start", "start"), ("until_tune", "tune"),
        ("until_open", "open"), ("refused", "closing"), ("whole", "closed"),
    ],
)  # fmt: skip
def test_state_is_the_furthest_stage_reached(read: Read, script: str, state: str) -> None:
    assert read.one("connections", script, "state") == (state,)


def test_what_is_stated_first_counts(read: Read) -> None:
    columns = ("user", "mechanism", "close_initiator", "close_code", "close_text")
    assert read.rows("connections", "stated_twice", *columns) == [("guest", "PLAIN", "server", 320, "first")]


def test_the_close_is_that_of_the_side_that_sent_it_first(read: Read) -> None:
    columns = ("close_initiator", "close_code", "close_text")
    assert read.one("connections", "refused", *columns) == ("server", 403, "ACCESS_REFUSED")
    assert read.one("connections", "whole", *columns) == ("client", 200, "Normal shutdown")
    assert read.one("connections", "until_open", *columns) == (None, None, None)


def test_blocked_time_runs_to_unblocked_or_to_the_end(read: Read) -> None:
    assert read.one("connections", "blocked", "blocked_ns") == ((11 - 8 + 13 - 12) * STEP,)
    assert read.one("connections", "whole", "blocked_ns") == (0,)


@pytest.mark.parametrize(
    ("script", "tls"),
    [
        ("whole", ("none", None, None, None)),
        ("encrypted", ("implicit", "mq.example", "TLS 1.3", None)),
        ("header_then_tls", ("upgraded", None, "TLS 1.2", None)),
    ],
)
def test_tls_of_a_connection(read: Read, script: str, tls: tuple[str | None, ...]) -> None:
    (found,) = read.one("connections", script, "tls")
    assert (found.mode, found.sni, found.tls_version, found.alpn) == tls


def test_connection_of_another_protocol_has_its_row(read: Read) -> None:
    assert read.one("connections", "foreign", "content", "client_frames", "handshake_ns") == ("foreign", 0, None)


def test_ledger_adds_up(read: Read) -> None:
    parts = ("frame_bytes", "skipped_bytes", "tls_bytes", "foreign_bytes", "tail_bytes")
    rows = read.rows("streams", "whole", "sender", "payload_bytes", *parts, "missing_bytes")
    assert sorted(rows) == [(side, 155, 100, 20, 0, 30, 5, 7) for side in ("client", "server")]
    assert all(sum(row[2:7]) == row[1] for row in rows)


def account(name: str, **more: object) -> dict[str, object]:
    facts = {"capture_file": name, "format": "pcap", "compression": None, "link_types": ["ETHERNET"], "byte_size": 1000,
             "packets": 10, "first_ts_ns": T0, "last_ts_ns": T0 + STEP, "snaplen": 65535,
             "dropped": None, "truncated": False,
             "error": None, "skipped": {}, **more}  # fmt: skip
    return {"kind": "capture", "arguments": facts}


def test_capture_is_the_sum_of_its_splits(spark: SparkSession) -> None:
    rows = as_arrow(
        [
            account("a", skipped={"udp": 2, "arp": 1}, dropped=4),
            account(
                "a", skipped={"udp": 3, "icmp": 1}, last_ts_ns=T0 + 5 * STEP, truncated=True, error="cut", dropped=4
            ),
            account("b", link_types=["RAW", "SLL"]),
        ],
    )
    found = {row.capture_file: row for row in tables_from(spark, rows).captures.collect()}
    a, b = found["a"], found["b"]
    assert a.skipped_packets == {"udp": 5, "arp": 1, "icmp": 1}
    assert (a.packets, a.byte_size, a.dropped, a.truncated, a.error) == (20, 1000, 4, True, "cut")
    assert (a.first_ts, a.last_ts) == (at(0), at(5))
    assert (b.packets, b.link_types, b.truncated, b.error, b.skipped_packets) == (10, ["RAW", "SLL"], False, None, {})
