"""TLS decrypted: connections made by OpenSSL, the AMQP in them that of captures whose frames tshark named."""

from __future__ import annotations

import gzip
import json
import ssl
from functools import cache
from typing import Any

import decoding
import golden
import pyarrow as pa
import pytest
from decoder_rows import decode_runs
from expected import expected
from tls_peers import NOT_AFTER, Peers, Sent, wire_of
from wire import CLIENT, SERVER, Wire

from codec.layers.stack import Layers
from codec.layers.tls_handshake import KeyLog
from udfs.decode.key_logs import SecretFiles

AMQP = "091_declare_publish_consume_ack.pcap"
AMQP_10 = "10_rabbitmq_proton_send_receive.pcap"
RECORDED = ["091_tls12.pcap", "091_tls13.pcap", "091_tls12_dsb.pcapng", "091_tls13_dsb.pcapng"]
PARTS = ("frame_bytes", "skipped_bytes", "tls_bytes", "websocket_bytes", "foreign_bytes", "tail_bytes")
Frames = list[tuple[int, int, int]]  # direction, size, index of the payload that completed it


@cache
def conversation(name: str = AMQP) -> tuple[tuple[Sent, ...], Frames]:
    """The payloads of both peers of a capture in turn, and its frames in order."""
    connection = max(expected(name), key=lambda each: len(each.frames))
    halves = connection.captured.halves.values()
    packets = sorted({packet.no: packet for half in halves for packet in half.arrival if packet}.items())
    index = {number: at for at, (number, _) in enumerate(packets)}
    payloads = tuple(
        (CLIENT if packet.source == connection.client else SERVER, packet.payload) for _, packet in packets
    )
    frames = [
        (CLIENT if frame.sender == connection.client else SERVER, frame.size, index[frame.packet.no])
        for frame in connection.frames
    ]
    return payloads, frames


def decoded(peers: Peers, flights: list[Sent], size: int = 1400) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return wire_of(flights, size).rows(Layers(KeyLog(peers.key_log)))


def sent(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((row["sender"], row["size"]) for row in rows)


def all_frames(name: str = AMQP) -> list[tuple[str, int]]:
    return sorted(("client" if way == CLIENT else "server", size) for way, size, _ in conversation(name)[1])


def assert_complete(rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    """All frames are there, and the ledger holds."""
    assert sent(rows) == all_frames()
    assert {row["status"] for row in rows} == {"ok"}
    for side in ("client", "server"):
        ledger = facts[side]
        assert ledger["payload_bytes"] == sum(ledger[part] for part in PARTS)
        assert (
            ledger["frame_bytes"]
            == ledger["decrypted_bytes"]
            == sum(row["size"] for row in rows if row["sender"] == side)
        )


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_captures_give_the_frames_of_tshark(name: str) -> None:
    """tshark was given the same secrets: a key log beside the capture, or blocks in it."""
    path, golden_file = golden.CAPTURES / name, golden.CAPTURES / f"{name}.frames.jsonl.gz"
    log = path.with_suffix(".keylog.txt")
    files = SecretFiles((str(log),) if log.exists() else (), (str(path),))
    runs = decoding.in_flow_order(decoding.runs([path]))
    rows = decoding.rows_of(pa.Table.from_batches(decode_runs(True, secrets=files)(iter(runs.to_batches()))))
    found = [
        (row["packet_no"], row["size"])
        for row in rows
        if row["kind"] == "frame" and row["frame_type"] != "protocol-header"
    ]
    in_tshark = [json.loads(line) for line in gzip.decompress(golden_file.read_bytes()).splitlines()]
    assert found == [(frame["frame"], frame["size"]) for frame in in_tshark]
    (facts,) = (row["facts"] for row in rows if row["kind"] == "connection")
    assert facts["tls"]["server_certificate"]["issuer"] == "CN=corpus test CA"
    assert (facts["transport"], facts["tls"]["sni"], facts["tls"]["decrypted"]) == ("tls", "localhost", True)


def suites() -> list[tuple[ssl.TLSVersion, str, bool]]:
    """Every suite that OpenSSL can be asked for here: version, name, whether it needs an ECDSA key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("AES:CHACHA20:!PSK:!SRP:!DH:!aNULL:!DSS:@SECLEVEL=0")
    names = [
        cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] in ("TLSv1.2", "TLSv1.0", "SSLv3")
    ]
    return [(ssl.TLSVersion.TLSv1_2, name, "ECDSA" in name) for name in names]


@pytest.mark.parametrize(("version", "name", "curve"), suites(), ids=lambda value: str(value))
def test_suites_of_tls_1_2(version: ssl.TLSVersion, name: str, curve: bool) -> None:
    peers = Peers(version, f"{name}:@SECLEVEL=0", curve)
    rows, facts = decoded(peers, peers.exchange(conversation()[0]))
    assert_complete(rows, facts)
    assert facts["tls"]["tls_version"] == "TLS 1.2"


@pytest.mark.parametrize("size", [1, 7, 600, 1400, 100_000])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_records_over_segments(version: ssl.TLSVersion, size: int) -> None:
    peers = Peers(version)
    assert_complete(*decoded(peers, peers.exchange(conversation()[0]), size))


@pytest.mark.parametrize("size", [100, 1400, 100_000])  # of segments; the header is in one with a part of the hello
@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", bytes.fromhex("0d0a0d0a000d0a515549540a 20 00 0000")])
def test_a_header_of_the_proxy_protocol_in_the_segment_of_the_hello(header: bytes, size: int) -> None:
    peers = Peers()
    (way, hello), *others = peers.exchange(conversation()[0])
    assert way == CLIENT
    together, apart = (
        decoded(peers, [(CLIENT, header + hello), *others], size),
        decoded(peers, [(CLIENT, header), (CLIENT, hello), *others], size),
    )
    for rows, facts in (together, apart):
        assert sent(rows) == sorted([*all_frames(), ("client", len(header))])
        assert facts["proxy_bytes"] == len(header)
        ledger = facts["client"]
        assert ledger["payload_bytes"] == sum(ledger[part] for part in PARTS)
    packets = [-(-len(data) // size) for data in (header + hello, header, hello)]
    more = together[1]["client"]["packets"] - apart[1]["client"]["packets"]
    assert more == packets[0] - packets[1] - packets[2]


@pytest.mark.parametrize("header", [b"", b"PROXY UNKNOWN\r\n"])
def test_a_hello_in_the_syn(header: bytes) -> None:
    peers = Peers()
    (_, hello), *others = peers.exchange(conversation()[0])
    wire = wire_of([(CLIENT, header + hello), *others], fast_open=True)
    rows, facts = wire.rows(Layers(KeyLog(peers.key_log)))
    assert sent(rows) == sorted([*all_frames(), *([("client", len(header))] if header else [])])
    assert (facts["transport"], facts["client"]["missing_bytes"]) == ("tls", 0)
    for side in ("client", "server"):
        assert facts[side]["payload_bytes"] == sum(facts[side][part] for part in PARTS)


def test_a_frame_has_the_packet_that_completed_its_record() -> None:
    payloads, frames = conversation()
    peers = Peers()
    flights = peers.exchange(payloads)
    rows, _ = decoded(peers, flights, 1 << 16)
    first = next(at for at, (way, _) in enumerate(flights) if at > 3 and way == CLIENT)
    handshake = (
        len(flights) - len(payloads) - 1
    )  # what follows the handshake is one flight for each write, and the alert
    assert first >= 2
    packets = sorted(handshake + index + 3 for _, _, index in frames)  # SYN and SYN-ACK are the first two packets
    assert sorted(row["packet"] for row in rows) == packets


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_after_the_header_of_amqp(version: ssl.TLSVersion) -> None:
    """AMQP 1.0, part 5, section 5.2.1: both sides send the TLS header, then TLS, and in it the next header."""
    header = b"AMQP\x02\x01\x00\x00"
    peers = Peers(version)
    rows, facts = decoded(peers, [(CLIENT, header), (SERVER, header), *peers.exchange(conversation(AMQP_10)[0])])
    clear, _ = wire_of(conversation(AMQP_10)[0]).rows()
    names = ("sender", "name", "size", "channel", "arguments", "properties", "digest", "version")
    seen = [[row[name] for name in names] for row in rows]
    assert seen[2:] == [[row[name] for name in names] for row in clear]
    assert [row["frame_type"] for row in rows[:3]] == ["protocol-header"] * 3
    assert facts["tls"]["mode"] == "upgraded"
    for side in ("client", "server"):
        ledger = facts[side]
        assert ledger["payload_bytes"] == sum(ledger[part] for part in PARTS)
        assert ledger["frame_bytes"] == ledger["decrypted_bytes"] + 8


def test_certificates_of_both_sides() -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        peers = Peers(version, client_certificate=True)
        _, facts = decoded(peers, peers.exchange(conversation()[0]))
        for side in ("client", "server"):
            found = facts["tls"][f"{side}_certificate"]
            assert (found["subject"], found["issuer"]) == ("CN=mq.example", "CN=mq.example")
            assert found["not_after"].timestamp() == NOT_AFTER.timestamp()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_resumed_session_is_decrypted_and_marked(version: ssl.TLSVersion) -> None:
    peers = Peers(version)
    rows, facts = decoded(peers, peers.exchange(conversation()[0]))
    assert facts["tls"]["resumed"] is False
    peers.session = peers.resumable
    rows, facts = decoded(peers, peers.exchange(conversation()[0]))
    assert facts["tls"]["resumed"] is True
    assert_complete(rows, facts)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_without_secrets_a_connection_is_tls_with_the_reason(version: ssl.TLSVersion) -> None:
    peers = Peers(version)
    rows, facts = wire_of(peers.exchange(conversation()[0])).rows(Layers())
    assert [row["frame_type"] for row in rows] == ["tls", "tls"]
    assert (facts["tls"]["decrypted"], facts["undecoded_reason"]) == (False, "no secrets")
    assert (facts["content"], facts["transport"]) == ("tls", "tls")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_wrong_secrets_do_not_change_a_connection(version: ssl.TLSVersion) -> None:
    peers = Peers(version)
    flights = peers.exchange(conversation()[0])
    lines = [line.split() for line in peers.key_log.splitlines() if not line.startswith(b"#")]
    wrong = b"\n".join(b" ".join((label, random, bytes(reversed(secret)))) for label, random, secret in lines)
    rows, facts = wire_of(flights).rows(Layers(KeyLog(wrong)))
    plain, _ = wire_of(flights).rows(Layers())
    assert [(row["frame_type"], row["sender"], row["size"]) for row in rows] == [
        (row["frame_type"], row["sender"], row["size"]) for row in plain
    ]
    assert facts["undecoded_reason"] == "authentication failed"
    assert facts["content"] == "tls"


# ---- a connection that began before the capture -------------------------------------------------------------------


def without_beginning(flights: list[Sent], first: int) -> Wire:
    """The wire from flight `first` on."""
    wire = Wire(syn=False)
    for way, data in flights[first:]:
        wire.add(way, data)
    return wire


@pytest.mark.parametrize("first", [0, 7, 30])
def test_secrets_of_tls_1_3_are_found_by_trial(first: int) -> None:
    """Among those of other connections; the frames are those of the same packets in clear."""
    payloads = list(conversation()[0])
    peers, other = Peers(), Peers()
    flights = peers.exchange(payloads)
    other.exchange(payloads)
    handshake = len(flights) - len(payloads) - 1
    log = KeyLog(peers.key_log + other.key_log)
    rows, facts = without_beginning(flights, handshake + first).rows(Layers(log))
    clear, _ = without_beginning(payloads, first).rows()
    names = ("sender", "name", "size", "arguments", "digest", "packet", "frame_type")
    assert [[row[name] for name in names] for row in rows] == [[row[name] for name in names] for row in clear]
    assert len(rows) > 20
    tls = facts["tls"]
    assert (tls["decrypted"], tls["tls_version"], tls["cipher_suite"]) == (True, "TLS 1.3", "TLS_AES_256_GCM_SHA384")
    assert (facts["transport"], facts["undecoded_reason"], tls["sni"]) == ("tls", None, None)
    for side in ("client", "server"):
        assert facts[side]["payload_bytes"] == sum(facts[side][part] for part in PARTS)
        assert facts[side]["missing_bytes"] == 0


@pytest.mark.parametrize(
    ("version", "known"),
    [(ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, False)],
    ids=["TLS 1.2", "other secrets"],
)
def test_without_trials_the_rows_report_a_beginning_before_the_capture(version: ssl.TLSVersion, known: bool) -> None:
    peers, other = Peers(version), Peers()
    flights = peers.exchange(conversation()[0])
    other.exchange(conversation()[0])
    wire = without_beginning(flights, len(flights) - 30)
    rows, facts = wire.rows(Layers(KeyLog(peers.key_log if known else other.key_log)))
    assert [row["frame_type"] for row in rows] == ["tls", "tls"]
    assert (facts["undecoded_reason"], facts["tls"]["decrypted"]) == ("began before the capture", False)


# ---- loss ----------------------------------------------------------------------------------------------------------


LOSSY = [
    (ssl.TLSVersion.TLSv1_3, ""),
    (ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES128-GCM-SHA256"),
    (ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-CHACHA20-POLY1305"),
    (ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES128-SHA"),
]


@pytest.mark.parametrize(("version", "ciphers"), LOSSY)
@pytest.mark.parametrize("lost", [{20}, {20, 21, 22}, {15, 19, 30}, {25, 26, 27, 28, 29, 30, 31}])
def test_records_after_a_hole_are_decrypted_again(version: ssl.TLSVersion, ciphers: str, lost: set[int]) -> None:
    """Each write is a record and a segment: what no lost segment carries is decrypted."""
    payloads, frames = conversation()
    peers = Peers(version, ciphers)
    flights = peers.exchange(payloads)
    rows, facts = wire_of(flights, 1 << 16).without(lost).rows(Layers(KeyLog(peers.key_log)))
    handshake = len(flights) - len(payloads) - 1
    gone = {index - handshake for index in lost}
    remaining = sorted(
        ("client" if way == CLIENT else "server", size) for way, size, index in frames if index not in gone
    )
    seen = sorted((row["sender"], row["size"]) for row in rows if row["frame_type"] not in ("gap", "skipped"))
    assert seen == remaining
    for side in ("client", "server"):
        ledger = facts[side]
        assert ledger["payload_bytes"] == sum(ledger[part] for part in PARTS)
    assert facts["undecoded_reason"] is None


@pytest.mark.parametrize(("version", "ciphers"), LOSSY)
def test_a_hole_inside_a_record_loses_only_that_record(version: ssl.TLSVersion, ciphers: str) -> None:
    """Records of up to 1400 bytes in segments of 100: one lost segment is one lost record."""
    payloads, frames = conversation()
    peers = Peers(version, ciphers)
    flights = peers.exchange(payloads)
    indices = [at for at, (_, data) in enumerate(flights) for _ in range(0, len(data), 100)]
    handshake = len(flights) - len(payloads) - 1
    large = next(at for at, (_, data) in enumerate(flights) if at > handshake + 3 and len(data) > 150)
    wire = wire_of(flights, 100).without({indices.index(large) + 1})
    rows, _ = wire.rows(Layers(KeyLog(peers.key_log)))
    remaining = sorted(
        ("client" if way == CLIENT else "server", size) for way, size, index in frames if index != large - handshake
    )
    assert (
        sorted((row["sender"], row["size"]) for row in rows if row["frame_type"] not in ("gap", "skipped")) == remaining
    )
