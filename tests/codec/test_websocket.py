"""AMQP over WebSocket, bare and inside TLS: frames as RFC 6455 lays them out, written here by hand."""

from __future__ import annotations

import struct
import time
from itertools import cycle
from typing import Any

import pytest
from test_tls import PARTS, all_frames, conversation, sent
from tls_peers import Peers, Sent, wire_of
from wire import CLIENT, SERVER

from codec.layers.stack import Layers
from codec.layers.tls.keylog import KeyLog
from codec.layers.websocket import is_upgrade

REQUEST = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: mq.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: amqp\r\n\r\n"
)
ANSWER = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: amqp\r\n"
)
FIN, TEXT, BINARY, CLOSE, PING, PONG = 0x80, 1, 2, 8, 9, 10
MASK = bytes.fromhex("37fa213d")  # as in the examples of RFC 6455, section 5.7


def frame(way: int, octets: bytes, opcode: int = BINARY, final: bool = True, rsv: int = 0) -> bytes:
    """One frame; those of the client are masked."""
    masked = 0x80 if way == CLIENT else 0
    if len(octets) < 126:
        length = bytes([masked | len(octets)])
    elif len(octets) < 1 << 16:
        length = bytes([masked | 126]) + struct.pack(">H", len(octets))
    else:
        length = bytes([masked | 127]) + struct.pack(">Q", len(octets))
    head = bytes([(FIN if final else 0) | rsv | opcode]) + length
    if not masked:
        return head + octets
    return head + MASK + bytes(octet ^ key for octet, key in zip(octets, cycle(MASK), strict=False))


def upgraded(sent: tuple[Sent, ...], answer: bytes = ANSWER) -> list[Sent]:
    """A message for each piece sent; control frames between them, some messages in fragments."""
    flights = [(CLIENT, REQUEST), (SERVER, answer + b"\r\n")]
    for number, (way, octets) in enumerate(sent):
        if number % 7 == 3:
            flights.append((1 - way, frame(1 - way, b"alive", PING)))
            flights.append((way, frame(way, b"alive", PONG)))
        if number % 3 == 1 and len(octets) > 2:
            middle = len(octets) // 2
            flights.append((way, frame(way, octets[:middle], final=False)))
            flights.append((way, frame(way, octets[middle:], 0)))
        else:
            flights.append((way, frame(way, octets)))
    return [*flights, (CLIENT, frame(CLIENT, b"\x03\xe8", CLOSE)), (SERVER, frame(SERVER, b"\x03\xe8", CLOSE))]


def frame_of(row: dict[str, Any]) -> list[Any]:
    return [row[name] for name in ("sender", "name", "size", "offset", "channel", "arguments", "properties", "digest")]


def assert_ledger(facts: dict[str, Any]) -> None:
    for side in ("client", "server"):
        assert facts[side]["payload_bytes"] == sum(facts[side][part] for part in PARTS)


def test_the_masked_hello_of_the_rfc() -> None:
    """RFC 6455, section 5.7: a single-frame masked text message, "Hello"."""
    assert frame(CLIENT, b"Hello", TEXT).hex() == "818537fa213d7f9f4d5158"


@pytest.mark.parametrize("size", [200, 1400])
@pytest.mark.parametrize(
    "name",
    ["091_declare_publish_consume_ack.pcap", "10_rabbitmq_proton_send_receive.pcap", "010_cpp_send_receive.pcap"],
)
def test_frames_over_websocket(name: str, size: int) -> None:
    flights = upgraded(conversation(name)[0])
    rows, facts = wire_of(flights, size).rows(Layers())
    clear, _ = wire_of(conversation(name)[0]).rows()  # whose frames other tests hold against tshark
    assert [frame_of(row) for row in rows] == [frame_of(row) for row in clear]
    assert (facts["transport"], facts["tls"], facts["content"]) == ("websocket", None, "amqp")
    assert_ledger(facts)
    for way, side in ((CLIENT, "client"), (SERVER, "server")):
        octets = sum(len(octets) for direction, octets in flights if direction == way)
        plain = sum(len(octets) for direction, octets in conversation(name)[0] if direction == way)
        assert (facts[side]["payload_bytes"], facts[side]["websocket_bytes"]) == (octets, octets - plain)


def test_a_frame_has_the_packet_that_completed_it() -> None:
    sent, frames = conversation()
    rows, _ = wire_of(
        [(CLIENT, REQUEST), (SERVER, ANSWER + b"\r\n"), *((w, frame(w, o)) for w, o in sent)], 1 << 16
    ).rows(Layers())
    assert sorted(row["packet"] for row in rows) == sorted(place + 5 for _, _, place in frames)


def test_an_upgrade_in_the_syn() -> None:
    rows, facts = wire_of(upgraded(conversation()[0]), fast_open=True).rows(Layers())
    assert sent(rows) == all_frames()
    assert (facts["transport"], facts["client"]["missing_bytes"]) == ("websocket", 0)
    assert_ledger(facts)


def test_websocket_inside_tls() -> None:
    peers = Peers()
    flights = peers.exchange(upgraded(conversation()[0]))
    rows, facts = wire_of(flights).rows(Layers(KeyLog(peers.key_log)))
    assert sent(rows) == all_frames()
    assert (facts["transport"], facts["tls"]["decrypted"]) == ("websocket+tls", True)
    assert_ledger(facts)
    assert facts["client"]["decrypted_bytes"] == facts["client"]["frame_bytes"] + facts["client"]["websocket_bytes"]


def test_a_compressed_stream_is_named_and_not_read() -> None:
    answer = ANSWER + b"Sec-WebSocket-Extensions: permessage-deflate\r\n"
    sent = conversation()[0]
    flights = [(CLIENT, REQUEST), (SERVER, answer + b"\r\n"), *((w, frame(w, o, rsv=0x40)) for w, o in sent)]
    layers = Layers()
    rows, facts = wire_of(flights).rows(layers)
    assert (facts["transport"], facts["unread_because"]) == ("websocket", "permessage-deflate")
    assert not [row for row in rows if row["frame_type"] == "method"]
    assert_ledger(facts)


def test_an_upgrade_that_is_refused_is_foreign() -> None:
    flights = [(CLIENT, REQUEST), (SERVER, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")]
    rows, facts = wire_of(flights).rows(Layers())
    assert [row["frame_type"] for row in rows] == ["foreign", "foreign"]
    assert (facts["content"], facts["transport"]) == ("foreign", "tcp")


@pytest.mark.parametrize("lost", [{12}, {12, 13}, {20, 31}])
def test_frames_after_a_hole_are_read_again(lost: set[int]) -> None:
    rows, facts = wire_of(upgraded(conversation()[0]), 1 << 16).without(lost).rows(Layers())
    names = [row["frame_type"] for row in rows if row["status"] == "ok"]
    assert len(names) >= len(all_frames()) - 4
    assert_ledger(facts)


@pytest.mark.parametrize("line", [b"a:" + b" " * 16_000 + b"\rx", b"a:" + b" \t" * 8_000 + b"\r\rx", b" :" * 8_000])
def test_blanks_in_a_head_of_http_cost_no_more_than_other_bytes(line: bytes) -> None:
    """A field whose value ends in blanks and a CR that no LF follows is none; its bytes are looked at once."""
    head = b"GET / HTTP/1.1\r\n" + line
    started = time.process_time()
    assert not is_upgrade(head + b"\r\n\r\n")
    rows, _ = wire_of([(CLIENT, head)], 1 << 16).rows(Layers())
    assert time.process_time() - started < 2
    assert [row["size"] for row in rows] in ([len(head)], [])
