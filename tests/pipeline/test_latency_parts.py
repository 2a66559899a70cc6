"""The parts of a message's latency: connections written by hand, with the times at which their packets are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import rule_support
from classic_frames import body, header, method
from encode_0_10 import content, segment
from encode_0_10 import header as header_0_10
from link_connections import accepted, begun, flow, receiver_link, sender_link, transfer
from rule_connections import opened_1_0, send_0_10, session_0_10
from rule_support import Case, Connection, write_cases

import pipeline
from codec.pairing.intervals import Times as Intervals
from pipeline.run.local_processes import LocalProcesses
from udfs.pairing import stalled_messages as stalls

V = "0-9-1"
PARTS = (
    "send_ns", "network_ns", "confirm_wait_ns", "queue_blocked_ns", "queue_ready_ns", "redelivery_ns", "delivery_ns",
    "consumer_ns", "ack_held_ns",
)  # fmt: skip
CONTENT = b"twelve bytes"
Row = dict[str, Any]


class Times:
    """When the packets of a message were sent, ns."""

    begun = published = confirmed = consuming = delivered = complete = again = settled = 0


def sent(connection: Connection, sender: str, name: str, apart: float, **arguments: Any) -> tuple[int, int]:
    """A message in two packets that are so far apart, seconds: when the first and the second were sent."""
    data = method(V, name, 1, **arguments) + header(V, "basic", len(CONTENT), 1) + body(CONTENT, 1)
    first = connection.now
    connection.data(sender, data[:20]).wait(apart)
    second = connection.now
    connection.data(sender, data[20:])
    return first, second


def published(times: Times, confirm_after: float | None, at: float = 0, apart: float = 0.03) -> Connection:
    connection = Connection(V, client=2, at=at).handshake().open()
    if confirm_after is not None:
        connection.asks("confirm.select")
    arguments = {"exchange": "", "routing_key": "q"}
    times.begun, times.published = sent(connection, "client", "basic.publish", apart, **arguments)
    if confirm_after is not None:
        connection.wait(confirm_after)
        times.confirmed = connection.now
        connection.server("basic.ack", delivery_tag=1)
    return connection


def consumed(times: Times, begins: float, work: float, client: int = 3, again: float | None = None) -> Connection:
    """A consumer that comes at `begins`, seconds, and gets the message 5 ms later, in two packets 7 ms apart."""
    connection = Connection(V, client=client, at=begins).handshake().open()
    times.consuming = connection.now
    connection.asks("basic.consume", 1, {"consumer_tag": "c"}, queue="q", consumer_tag="c").wait(0.005)
    arguments = {"consumer_tag": "c", "exchange": "", "routing_key": "q"}
    times.delivered, times.complete = sent(connection, "server", "basic.deliver", 0.007, delivery_tag=1, **arguments)
    if again is not None:
        connection.wait(again).client("basic.nack", delivery_tag=1, multiple=False, requeue=True)
        times.again, times.complete = sent(
            connection, "server", "basic.deliver", 0.007, delivery_tag=2, redelivered=True, **arguments
        )
    connection.wait(work)
    times.settled = connection.now
    return connection.client("basic.ack", delivery_tag=2 if again is not None else 1)


def flows(folder: Path, *connections: Connection) -> list[Row]:
    write_cases(folder / "a.pcap", [Case("", V, connections, [])])
    with LocalProcesses(1) as here:
        pipeline.write(here, str(folder / "a.pcap"), str(folder / "tables"))
    rows: list[Row] = pq.read_table(folder / "tables" / "message_flows").to_pylist()
    return rows


def parts(row: Row) -> tuple[int | None, ...]:
    assert row["total_latency_ns"] == sum(row[name] or 0 for name in PARTS)
    return tuple(row[name] for name in PARTS)


def microseconds(ns: int) -> int:
    """Times of consumers are microseconds."""
    return ns // 1000 * 1000


def test_parts_of_a_message_that_waits_for_a_consumer(tmp_path: Path) -> None:
    times = Times()
    (row,) = flows(tmp_path, published(times, confirm_after=0.02), consumed(times, begins=0.5, work=0.04))
    blocked = microseconds(times.consuming) - times.confirmed
    assert parts(row) == (
        times.published - times.begun, 0, times.confirmed - times.published, blocked,
        times.delivered - microseconds(times.consuming), 0, times.complete - times.delivered,
        times.settled - times.complete, None,
    )  # fmt: skip
    assert blocked > 300_000_000


def test_the_broker_has_the_time_until_the_delivery_where_nothing_is_confirmed(tmp_path: Path) -> None:
    times = Times()
    (row,) = flows(tmp_path, published(times, confirm_after=None), consumed(times, begins=0.5, work=0.04))
    came = microseconds(times.consuming)
    assert parts(row)[2:5] == (None, came - times.published, times.delivered - came)


def test_redelivery_is_a_part_of_its_own(tmp_path: Path) -> None:
    times = Times()
    (row,) = flows(tmp_path, published(times, confirm_after=0.02), consumed(times, begins=0.5, work=0.04, again=0.1))
    assert row["redeliveries"] == 1
    assert parts(row)[5:8] == (
        times.again - times.delivered,
        times.complete - times.again,
        times.settled - times.complete,
    )


class Speaker:
    """What one version says: a connection to publish on or to consume with, a message, and an acknowledgement.

    `window`: how many messages the consumer takes at once, None: any number."""

    def __init__(self, version: str) -> None:
        self.version = version

    def publisher(self, **options: Any) -> Connection:
        match self.version:
            case "1.0":
                return sender_link(begun(opened_1_0(Connection("1.0", **options))))
            case "0-10":
                return session_0_10(**options)
        return Connection(V, **options).handshake().open()

    def consumer(self, window: int | None = None, **options: Any) -> Connection:
        match self.version:
            case "1.0":
                return receiver_link(begun(opened_1_0(Connection("1.0", **options))), credit=window or 50)
            case "0-10":
                connection = session_0_10(**options)
                subscription = {"queue": "q", "destination": "d", "accept_mode": 0, "acquire_mode": 0}
                send_0_10(connection, "client", "message.subscribe", **subscription)
                for unit, value in ((0, window or 0xFFFFFFFF), (1, 0xFFFFFFFF)):
                    send_0_10(connection, "client", "message.flow", destination="d", unit=unit, value=value)
                return connection
        return Connection(V, **options).handshake().open().consume(prefetch=window or 0)

    def message(self, sender: str, number: int, delivery: int = 0) -> bytes:
        """Message `number`; `delivery`: how many its consumer got before it."""
        text = b"message %d" % number
        match self.version:
            case "1.0":
                blank = Connection("1.0", syn=False)
                handle = 0 if sender == "client" else 1
                transfer(
                    blank,
                    sender,
                    handle,
                    delivery if handle else number,
                    payload=b"\x00\x53\x75\xa0" + bytes([len(text)]) + text,
                )
                return b"".join(packet.data for packet in blank.packets)
            case "0-10":
                options = "" if sender == "client" else "d"
                command = segment("message.transfer", {"destination": options, "accept-mode": 0, "acquire-mode": 0})
                about = ("message.delivery-properties", {"routing-key": "q"})
                return b"".join(content(command, header_0_10(about), body=text))
        arguments: dict[str, str | int]
        if sender == "client":
            name, arguments = "basic.publish", {"exchange": "", "routing_key": "q"}
        else:
            name, arguments = "basic.deliver", {"consumer_tag": "c", "delivery_tag": delivery + 1, "routing_key": "q"}
        return method(V, name, 1, **{"exchange": "", **arguments}) + header(V, "basic", len(text), 1) + body(text, 1)

    def acknowledge(self, connection: Connection, number: int, more: bool = False) -> None:
        """`more`: the consumer can take another one after it."""
        match self.version:
            case "1.0":
                accepted(connection, "client", True, number)
                if more:
                    flow(connection, "client", 1, 1, delivery_count=number + 1)
            case "0-10":
                send_0_10(connection, "client", "message.accept", transfers=[(number, number)])
                if more:
                    send_0_10(connection, "client", "message.flow", destination="d", unit=0, value=1)
            case _:
                connection.client("basic.ack", delivery_tag=number + 1)


VERSIONS = ("0-9-1", "0-10", "1.0")
MS = 1_000_000


def is_about(row: Row, **expected_ms: int) -> None:
    """These parts are so long, within 5 % or 1 ms; the others are nothing."""
    found = parts(row)
    for name, ns in zip(PARTS, found, strict=True):
        wanted = expected_ms.get(name, 0) * MS
        assert abs((ns or 0) - wanted) <= max(MS, 0.05 * wanted), (name, dict(zip(PARTS, found, strict=True)))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet takes 10 us."""
    monkeypatch.setattr(rule_support, "STEP_NS", 10_000)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("window", [65535, 0])
def test_a_publish_that_tcp_holds_up_waits_for_the_network(version: str, window: int, tmp_path: Path) -> None:
    """Its second packet waits for the acknowledgement of the first one (Nagle's algorithm), or for the window."""
    speaker = Speaker(version)
    publisher, data = speaker.publisher(client=2), speaker.message("client", 0)
    publisher.data("client", data[:20])
    if not window:
        publisher.packet("server", window=0)
    publisher.wait(0.1).packet("server").data("client", data[20:])
    consumer = speaker.consumer(client=3)
    consumer.now = publisher.packets[-1].ns
    publisher.packet("server")
    consumer.data("server", speaker.message("server", 0)).wait(0.03)
    speaker.acknowledge(consumer, 0)
    (row,) = flows(tmp_path, publisher, consumer)
    is_about(row, network_ns=100, consumer_ns=30)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_delivery_that_waits_for_the_window_of_its_consumer_waits_for_the_network(
    version: str, tmp_path: Path
) -> None:
    speaker = Speaker(version)
    publisher, consumer = speaker.publisher(client=2), speaker.consumer(client=3)
    consumer.now = publisher.now
    consumer.packet("client", window=0)
    publisher.wait(0.01).data("client", speaker.message("client", 0)).packet("server")
    consumer.wait(0.1).packet("client").data("server", speaker.message("server", 0)).wait(0.03)
    speaker.acknowledge(consumer, 0)
    (row,) = flows(tmp_path, publisher, consumer)
    is_about(row, network_ns=90, consumer_ns=30)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("second", [1, None])
def test_a_message_is_blocked_while_none_of_two_consumers_can_take_it(
    version: str, second: int | None, tmp_path: Path
) -> None:
    """Both take one at a time and have one in hand, or the second takes any number. A break of a stall that is shorter
    than a quarter of it would be bridged (docs/limits.md)."""
    speaker = Speaker(version)
    publisher = speaker.publisher(client=2)
    consumers = [speaker.consumer(1, client=3), speaker.consumer(second, client=4)]
    for number, consumer in enumerate(consumers):
        publisher.data("client", speaker.message("client", number)).packet("server").wait(0.001)
        consumer.now = publisher.now
        consumer.data("server", speaker.message("server", number))
    publisher.wait(0.02).data("client", speaker.message("client", 2))
    consumers[0].now = publisher.packets[-1].ns
    publisher.packet("server")
    consumers[0].wait(0.1)
    speaker.acknowledge(consumers[0], 0, more=True)
    consumers[0].wait(0.06).data("server", speaker.message("server", 2, delivery=1)).wait(0.03)
    speaker.acknowledge(consumers[0], 1)
    consumers[1].wait(0.5).packet("client")
    rows = flows(tmp_path, publisher, *consumers)
    row = max(rows, key=lambda row: row["publish_ts_ns"])
    is_about(row, queue_blocked_ns=100 if second else 0, queue_ready_ns=60 if second else 160, consumer_ns=30)


def test_stalls_of_channels_with_many_links_are_bounded_and_the_longest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "MOST_PAIRS", 5)
    channel, other = 7, 8
    links = np.array([channel, channel, other])
    held_up = Intervals(
        np.array([channel, other, channel, channel]), np.array([0, 5, 10, 20]), np.array([3, 6, 19, 27])
    )
    at, whose = stalls._matches(links, held_up)
    assert sorted(zip(at.tolist(), whose.tolist(), strict=True)) == [(2, 0), (2, 1), (3, 0), (3, 1)]
