"""AMQP over WebSocket, bare and inside TLS: frames as RFC 6455 lays them out, written here by hand."""

from __future__ import annotations

import random
import struct
import time
import zlib
from collections.abc import Iterable
from itertools import cycle
from typing import Any

import numba
import numpy as np
import pika.frame
import pytest
from mutations import mutated_segments
from test_tls import PARTS, all_frames, conversation, sent
from tls_peers import Peers, Sent, wire_of
from wire import CLIENT, FLOW, SERVER, Wire, give_up, take_facts

from codec.amqp.decoder import Decoder
from codec.compiler.limits import LIMITS
from codec.layers.stack import Layers
from codec.layers.tls_handshake import KeyLog
from codec.layers.websocket import Inflater
from codec.net.layers import ACK

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


def frame(way: int, data: bytes, opcode: int = BINARY, final: bool = True, rsv: int = 0) -> bytes:
    """One frame; those of the client are masked."""
    masked = 0x80 if way == CLIENT else 0
    if len(data) < 126:
        length = bytes([masked | len(data)])
    elif len(data) < 1 << 16:
        length = bytes([masked | 126]) + struct.pack(">H", len(data))
    else:
        length = bytes([masked | 127]) + struct.pack(">Q", len(data))
    head = bytes([(FIN if final else 0) | rsv | opcode]) + length
    if not masked:
        return head + data
    return head + MASK + bytes(byte ^ key for byte, key in zip(data, cycle(MASK), strict=False))


def upgraded(sent: tuple[Sent, ...], answer: bytes = ANSWER) -> list[Sent]:
    """A message for each piece sent; control frames between them, some messages in fragments."""
    flights = [(CLIENT, REQUEST), (SERVER, answer + b"\r\n")]
    for number, (way, data) in enumerate(sent):
        if number % 7 == 3:
            flights.append((1 - way, frame(1 - way, b"alive", PING)))
            flights.append((way, frame(way, b"alive", PONG)))
        if number % 3 == 1 and len(data) > 2:
            middle = len(data) // 2
            flights.append((way, frame(way, data[:middle], final=False)))
            flights.append((way, frame(way, data[middle:], 0)))
        else:
            flights.append((way, frame(way, data)))
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
        data = sum(len(data) for direction, data in flights if direction == way)
        plain = sum(len(data) for direction, data in conversation(name)[0] if direction == way)
        assert (facts[side]["payload_bytes"], facts[side]["websocket_bytes"]) == (data, data - plain)


def test_a_frame_has_the_packet_that_completed_it() -> None:
    sent, frames = conversation()
    rows, _ = wire_of(
        [(CLIENT, REQUEST), (SERVER, ANSWER + b"\r\n"), *((w, frame(w, o)) for w, o in sent)], 1 << 16
    ).rows(Layers())
    assert sorted(row["packet"] for row in rows) == sorted(index + 5 for _, _, index in frames)


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


def test_compressed_frames_that_were_not_agreed_on_are_not_read() -> None:
    sent = conversation()[0]
    flights = [(CLIENT, REQUEST), (SERVER, ANSWER + b"\r\n"), *((w, frame(w, o, rsv=0x40)) for w, o in sent)]
    rows, facts = wire_of(flights).rows(Layers())
    assert (facts["transport"], facts["undecoded_reason"]) == ("websocket", "no frame of WebSocket")
    assert not [row for row in rows if row["frame_type"] == "method"]
    assert_ledger(facts)


# ---- requests without an upgrade ------------------------------------------------------------------------------------

PROXY_LINE = b"PROXY TCP4 192.0.2.1 192.0.2.2 40000 5672\r\n"
AMQP_091 = b"AMQP\0\0\x09\x01"


@pytest.mark.parametrize("size", [1, 50, 1400])  # of segments
@pytest.mark.parametrize("proxy", [b"", PROXY_LINE], ids=["bare", "proxy"])
@pytest.mark.parametrize(
    ("request_head", "answer", "reason", "server_row"),
    [
        (REQUEST, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "upgrade refused", "foreign"),
        (REQUEST, AMQP_091, "upgrade refused", "protocol-header"),
        (REQUEST, b"SSH-2.0-OpenSSH_9.6\r\n", "upgrade refused", "foreign"),
        (REQUEST, b"HTTP/1.1 101 Switching", "upgrade not finished", "foreign"),
        (REQUEST, b"", "upgrade not answered", None),
        (REQUEST[:-2], b"", "upgrade not finished", None),
        (REQUEST[:-2], AMQP_091, "upgrade refused", "protocol-header"),
        (REQUEST.replace(b"Upgrade: websocket\r\n", b""), b"HTTP/1.1 200 OK\r\n\r\n", None, "foreign"),
        (b"GET / HTTP/1.0\r\nUpgrade: websocket\r\n\r\n", b"", None, None),
    ],
    ids=["403", "amqp", "ssh", "half an answer", "silence", "half a request", "amqp, half", "no upgrade", "HTTP/1.0"],
)
def test_a_request_without_upgrade_is_a_row_of_each_side(
    request_head: bytes, answer: bytes, reason: str | None, server_row: str | None, proxy: bytes, size: int
) -> None:
    flights = [(CLIENT, proxy + request_head), *([(SERVER, answer)] if answer else [])]
    wire = wire_of(flights, size)
    wire.add(SERVER, b"")
    rows, facts = wire.rows(Layers())
    assert facts["undecoded_reason"] == reason
    assert facts["transport"] == "tcp"
    client = [row for row in rows if row["sender"] == "client"]
    assert [row["frame_type"] for row in client] == ["foreign"] * (2 if proxy and len(client) == 2 else 1)
    assert sum(row["size"] for row in client) == len(proxy + request_head)
    assert [(row["frame_type"], row["size"]) for row in rows if row["sender"] == "server"] == (
        [(server_row, len(answer))] if server_row else []
    )
    assert_ledger(facts)
    without, _ = wire.rows()  # a decoder without layers reads the same bytes, from the same packets
    assert [(row["sender"], row["size"], row["packet"]) for row in rows] == [
        (row["sender"], row["size"], row["packet"]) for row in without
    ]


def test_a_request_that_crosses_the_greeting_of_the_server() -> None:
    """The request acknowledges nothing of what the server had sent by then. No byte is lost or was sent again."""
    greeting, wire = b"220 mail.example\r\n", Wire()
    wire.add(SERVER, greeting)
    wire.seq[SERVER] -= len(greeting)
    wire.add(CLIENT, REQUEST)
    wire.seq[SERVER] += len(greeting)
    wire.add(CLIENT, b"")
    rows, facts = wire.rows(Layers())
    assert [(row["sender"], row["size"]) for row in rows] == [("server", len(greeting)), ("client", len(REQUEST))]
    counted = ("payload_bytes", "retransmitted_bytes", "missing_bytes")
    assert [facts["server"][name] for name in counted] == [len(greeting), 0, 0]
    assert_ledger(facts)


def test_text_that_looks_like_a_request_within_amqp_is_no_upgrade() -> None:
    """A segment in the middle of a body begins with a request for WebSocket: AMQP is read on."""
    sent = conversation()[0]
    body = pika.frame.Body(1, b"x" * 100 + REQUEST).marshal()
    middle = len(sent) // 2
    flights = [*sent[:middle], (CLIENT, body[:107]), (CLIENT, body[107:]), *sent[middle:]]
    with_layers, facts = wire_of(flights).rows(Layers())
    without, same = wire_of(flights).rows()
    assert (with_layers, facts) == (without, same)


# ---- many connections -----------------------------------------------------------------------------------------------

CONNECTIONS = 40 if numba.config.DISABLE_JIT else 400
ALERT_RECORD = bytes.fromhex("15 0303 0002 0228")
PROXIES = (b"", b"", b"", PROXY_LINE, bytes.fromhex("0d0a0d0a000d0a515549540a 20 00 0000"))
REQUEST_HEADS = (
    REQUEST, REQUEST, REQUEST, REQUEST[:-2], REQUEST[:60], b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n",
    b"GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a", REQUEST[:-2] + bytes(9) + b"\r\n\r\n",
    REQUEST[:-2] + b"Cookie: " + b"x" * LIMITS.upgrade_bytes,
)  # fmt: skip
ANSWERS = (
    b"", b"", b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 101 Switching", ANSWER + b"\r\n",
    b"HTTP/1.1 1012 No\r\n\r\n", ALERT_RECORD, b"SSH-2.0-OpenSSH_9.6\r\n", AMQP_091, b"\x82\x02ok",
)  # fmt: skip


def short_connection(rng: random.Random) -> tuple[np.ndarray, bytes]:
    """Segments and payload of a request, an answer, frames of both sides; often damaged."""
    client = (frame(CLIENT, b"alive", PING), frame(CLIENT, AMQP_091), b"\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"")
    flights = [(CLIENT, rng.choice(PROXIES) + rng.choice(REQUEST_HEADS)), (SERVER, rng.choice(ANSWERS))]
    flights += [(CLIENT, rng.choice(client)) for _ in range(rng.randrange(3))]
    flights += [(SERVER, rng.choice((*ANSWERS, frame(SERVER, AMQP_091)))) for _ in range(rng.randrange(2))]
    if rng.random() < 0.1:
        flights[0], flights[1] = flights[1], flights[0]
    wire, size = Wire(syn=rng.random() < 0.6), rng.choice((100, 1400, 60_000, 60_000))
    for way, data in flights:
        for at in range(0, len(data), size):
            wire.add(way, data[at : at + size], ACK | rng.choice((0, 0, 0, 0, 0, 0, 1, 4)))
    if rng.random() < 0.2:
        wire.lose(rng.choice((CLIENT, SERVER)), rng.choice((1, 30, 2000)))
    if rng.random() < 0.3:
        wire.add(SERVER, b"")
    segments, payload = wire.arrays()
    if rng.random() < 0.5 and len(segments):
        segments = mutated_segments(rng, segments)
    return segments, payload


def rows_and_facts(decoder: Decoder, batches: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Cells of all rows and the facts of all connections."""
    cells = [batch.cells.tolist() for batch in batches]
    return [row for some in cells for row in some], [list(each) for each in take_facts(decoder)]


@pytest.mark.parametrize("seed", range(4))
def test_short_connections_together_are_those_of_one_call_each(seed: int) -> None:
    """Requests that do not become WebSocket are read in one call for all connections; the last flow of a call is not,
    since it may go on."""
    rng = random.Random(seed)
    found = [short_connection(rng) for _ in range(CONNECTIONS)]
    found = [(segments, payload) for segments, payload in found if len(segments)]
    flows = [FLOW[:-2] + (1024 + number).to_bytes(2, "big") + bytes(4) for number in range(len(found))]
    apart, together = Decoder(layers=Layers()), Decoder(layers=Layers())
    batches: list[Any] = []
    for flow, (segments, payload) in zip(flows, found, strict=True):
        batches += apart.feed(flow, segments, np.frombuffer(bytearray(payload or b"\0"), np.uint8))
    expected = rows_and_facts(apart, [*batches, *apart.finish()])
    at, moved = 0, []
    for segments, payload in found:
        moved.append(segments.copy())
        moved[-1]["payload_at"] += at
        at += len(payload)
    data = np.frombuffer(bytearray(b"".join(payload for _, payload in found)), np.uint8)
    ends = np.cumsum([len(segments) for segments in moved])
    keys = np.frombuffer(b"".join(flows), np.uint8).reshape(len(flows), -1)
    batches = [*together.feed_flows(keys, ends, np.concatenate(moved), data), *together.finish()]
    assert rows_and_facts(together, batches) == expected
    reasons = {facts["undecoded_reason"] for _, facts in expected[1]}
    assert reasons >= {"upgrade refused", "upgrade not answered", "upgrade not finished", "upgrade not captured", None}


# ---- permessage-deflate (RFC 7692) ----------------------------------------------------------------------------------

DEFLATE = b"Sec-WebSocket-Extensions: permessage-deflate"
RSV1 = 0x40


class Compressor:
    """Messages of one direction, by section 7.2.1: a sync flush without its last four bytes."""

    def __init__(self, takeover: bool = True, bits: int = 15) -> None:
        self.takeover, self.bits = takeover, bits
        self.stream = zlib.compressobj(wbits=-bits)

    def message(self, data: bytes) -> bytes:
        if not self.takeover:
            self.stream = zlib.compressobj(wbits=-self.bits)
        found = self.stream.compress(data) + self.stream.flush(zlib.Z_SYNC_FLUSH)
        return found.removesuffix(b"\x00\x00\xff\xff")


def compressed(sent: tuple[Sent, ...], parameters: bytes = b"", takeover: bool = True, bits: int = 15) -> list[Sent]:
    """A compressed message for each piece sent, some in fragments, with control frames between these."""
    sides = {CLIENT: Compressor(takeover, bits), SERVER: Compressor(takeover, bits)}
    flights = [(CLIENT, REQUEST), (SERVER, ANSWER + DEFLATE + parameters + b"\r\n\r\n")]
    for number, (way, data) in enumerate(sent):
        if number % 5 == 4:
            flights.append((way, frame(way, data)))  # a message may be uncompressed
            continue
        message = sides[way].message(data)
        if number % 3 == 1 and len(message) > 2:
            flights.append((way, frame(way, message[:2], final=False, rsv=RSV1)))
            flights.append((way, frame(way, b"alive", PING)))
            flights.append((way, frame(way, message[2:-1], 0, final=False)))
            flights.append((way, frame(way, message[-1:], 0)))
        else:
            flights.append((way, frame(way, message, rsv=RSV1)))
    return flights


def test_the_compressed_hello_of_the_rfc() -> None:
    """RFC 7692, section 7.2.3.1, 7.2.3.2 (with context takeover), 7.2.3.4 (a final block)."""
    hello = Compressor()
    assert [hello.message(b"Hello").hex() for _ in range(2)] == ["f248cdc9c90700", "f200110000"]
    inflater = Inflater(False)
    for data in ("f248cdc9c90700", "f200110000", "f3 48 cd c9 c9 07 00 00", "f248cdc9c90700"):
        inflater.add(bytes.fromhex(data))
        assert inflater.end() == b"Hello"


@pytest.mark.parametrize("size", [1, 200, 1400])
@pytest.mark.parametrize(
    ("parameters", "takeover", "bits"),
    [
        (b"", True, 15),
        (b"; server_no_context_takeover; client_no_context_takeover", False, 15),
        (b"; server_max_window_bits=9; client_max_window_bits=9", True, 9),
        (b";client_max_window_bits = 10 , x-other", True, 10),
    ],
)
def test_compressed_messages_are_read(parameters: bytes, takeover: bool, bits: int, size: int) -> None:
    sent = conversation()[0]
    flights = compressed(sent, parameters, takeover, bits)
    rows, facts = wire_of(flights, size).rows(Layers())
    clear, _ = wire_of(sent).rows()
    assert [frame_of(row) for row in rows] == [frame_of(row) for row in clear]
    assert (facts["transport"], facts["content"], facts["undecoded_reason"]) == ("websocket", "amqp", None)
    assert_ledger(facts)


def test_context_takeover_of_one_side_only() -> None:
    """Whose messages are without it is said apart: a server's window must not be dropped with the client's."""
    sent = conversation()[0]
    sides = {CLIENT: Compressor(takeover=False), SERVER: Compressor()}
    flights = [(CLIENT, REQUEST), (SERVER, ANSWER + DEFLATE + b"; client_no_context_takeover\r\n\r\n")]
    flights += [(way, frame(way, sides[way].message(data), rsv=RSV1)) for way, data in sent]
    rows, facts = wire_of(flights).rows(Layers())
    assert [frame_of(row) for row in rows] == [frame_of(row) for row in wire_of(sent).rows()[0]]
    assert facts["undecoded_reason"] is None


def test_compressed_messages_inside_tls() -> None:
    peers = Peers()
    flights = peers.exchange(compressed(conversation()[0]))
    rows, facts = wire_of(flights).rows(Layers(KeyLog(peers.key_log)))
    assert sent(rows) == all_frames()
    assert (facts["transport"], facts["undecoded_reason"]) == ("websocket+tls", None)
    assert_ledger(facts)


@pytest.mark.parametrize("lost", range(6, 30, 5))
def test_after_a_hole_a_compressed_direction_is_not_read(lost: int) -> None:
    """Its frames before the hole are those of the whole conversation; the other direction is read to the end."""
    wire = wire_of(compressed(conversation()[0]), 100)
    way, size = wire.segments[lost + 2][11], wire.segments[lost + 2][7]
    rows, facts = wire.without({lost}).rows(Layers())
    side, other = ("client", "server") if way == CLIENT else ("server", "client")
    assert facts["undecoded_reason"] == "permessage-deflate"
    assert (facts[side]["missing_bytes"], facts[other]["missing_bytes"]) == (size, 0)
    assert [row["size"] for row in rows if row["frame_type"] == "gap"] == [size]
    whole = sent(rows_of_clear())
    read = [row for row in sent([row for row in rows if row["status"] == "ok"]) if row[0] == other]
    assert read == [row for row in whole if row[0] == other]
    assert_ledger(facts)


def rows_of_clear() -> list[dict[str, Any]]:
    return wire_of(conversation()[0]).rows()[0]


@pytest.mark.parametrize("messages", [1, 200])
def test_a_decompression_bomb_is_bounded(messages: int) -> None:
    """Zeros, in one message or many: what is inflated is bounded, and the limit is named."""
    flights = [(CLIENT, REQUEST), (SERVER, ANSWER + DEFLATE + b"\r\n\r\n")]
    zeros, bomb = Compressor(), []
    for _ in range(messages):
        bomb.append(zeros.message(bytes((64 << 20) // messages)))
        flights.append((CLIENT, frame(CLIENT, bomb[-1], rsv=RSV1)))
    started = time.process_time()
    _, facts = wire_of(flights, 60_000).rows(Layers())
    assert "inflated size" in facts["limits"]
    assert facts["undecoded_reason"] == "permessage-deflate"
    most = LIMITS.inflate_grace + LIMITS.inflate_ratio * sum(map(len, bomb))
    assert facts["client"]["payload_bytes"] - facts["client"]["websocket_bytes"] <= most
    assert time.process_time() - started < 20
    assert_ledger(facts)


@pytest.mark.parametrize("data", [b"\xff" * 40, b"\x05\xe0", b""])
def test_damaged_compression_stops_a_direction(data: bytes) -> None:
    sent = conversation()[0]
    flights = [*compressed(sent)[:6], (CLIENT, frame(CLIENT, data, rsv=RSV1)), *compressed(sent)[6:]]
    _, facts = wire_of(flights).rows(Layers())
    assert facts["undecoded_reason"] == ("permessage-deflate" if data else None)
    assert_ledger(facts)


# ---- missing bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", ["websocket", "tls"])
def test_bytes_missing_after_a_layer_stopped_are_a_gap(carrier: str) -> None:
    """Both directions stop, in the middle of the conversation; each loses bytes afterwards."""
    sent, log = conversation()[0], KeyLog()
    if carrier == "tls":
        peers = Peers()
        flights, first = peers.exchange(sent), 20
        log = KeyLog(peers.key_log)
        broken = b"\x17\x03\x03\x00\x20" + bytes(32)
    else:
        flights, first, broken = upgraded(sent), 20, b"\xff" * 32
    wire = wire_of([*flights[:first], (CLIENT, broken), (SERVER, broken), *flights[first : first + 2]], 1 << 16)
    for way, size in ((CLIENT, 300), (SERVER, 500), (CLIENT, 7)):
        wire.add(way, bytes(10))
        wire.lose(way, size)
        wire.add(way, bytes(10))
    for way in (CLIENT, SERVER):
        give_up(wire, way)
    rows, facts = wire.rows(Layers(log))
    gaps = [(row["sender"], row["size"]) for row in rows if row["frame_type"] == "gap"]
    assert sorted(gaps) == [("client", 307), ("server", 500)]
    assert (facts["client"]["missing_bytes"], facts["server"]["missing_bytes"]) == (307, 500)
    assert facts["content"] == "amqp"
    assert_ledger(facts)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["websocket", "compressed", "tls", "both"])
def test_missing_bytes_are_those_of_the_gaps(kind: str, seed: int) -> None:
    draw, sent, log = random.Random(f"{kind} {seed}"), conversation()[0], KeyLog()
    flights = list(sent)
    if kind != "tls":
        flights = compressed(sent) if kind == "compressed" else upgraded(sent)
    if kind in ("tls", "both"):
        peers = Peers()
        flights = peers.exchange(flights)
        log = KeyLog(peers.key_log)
    wire = wire_of(flights, draw.choice([60, 300, 1400]))
    count = len(wire.segments) - 2
    rows, facts = wire.without(set(draw.sample(range(count), 1 + count // 20))).rows(Layers(log))
    for side in ("client", "server"):
        own = [row for row in rows if row["sender"] == side]
        if not any(row["frame_type"] in ("foreign", "tls") for row in own):
            gaps = sum(row["size"] for row in own if row["frame_type"] == "gap")
            assert gaps == facts[side]["missing_bytes"], side
    assert_ledger(facts)


@pytest.mark.parametrize("carrier", ["websocket", "tls"])
def test_lost_bytes_were_not_cut_by_the_snap_length(carrier: str) -> None:
    sent, log = conversation()[0], KeyLog()
    flights = upgraded(sent)
    if carrier == "tls":
        peers = Peers()
        flights, log = peers.exchange(sent), KeyLog(peers.key_log)
    rows, _ = wire_of(flights, 1 << 16).without({30}).rows(Layers(log))
    assert [row["notes"] for row in rows if row["frame_type"] == "gap"] == [[]]


def test_bytes_that_the_snap_length_cut_off_a_websocket() -> None:
    whole, wire = wire_of(upgraded(conversation()[0]), 1 << 16), Wire()
    cut = next(number for number, segment in enumerate(whole.segments) if number > 20 and segment[7] > 20)  # no ping
    for number, segment in enumerate(whole.segments[2:], 2):
        at, size, way = segment[3], segment[7], segment[11]
        wire.add(way, bytes(whole.payload[at : at + size]), captured=size - 5 if number == cut else None)
    rows, facts = wire.rows(Layers())
    assert [(row["size"], row["notes"]) for row in rows if row["frame_type"] == "gap"] == [(5, ["snap-length"])]
    assert_ledger(facts)


@pytest.mark.parametrize("size", [200, 1400, 5000])
def test_frames_larger_than_a_segment_are_found_after_a_hole(size: int) -> None:
    """The search continues from one segment to the next."""
    body = pika.frame.Body(1, bytes(3000)).marshal()
    flights = [(CLIENT, REQUEST), (SERVER, ANSWER + b"\r\n"), (CLIENT, frame(CLIENT, AMQP_091))]
    flights += [(CLIENT, frame(CLIENT, body)) for _ in range(20)]
    wire = wire_of(flights, size)
    lost = 5  # a part of one of the first bodies
    rows, facts = wire.without({lost}).rows(Layers())
    assert len([row for row in rows if row["frame_type"] == "body" and row["status"] == "ok"]) >= 16
    assert_ledger(facts)


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
    rows, _ = wire_of([(CLIENT, head)], 1 << 16).rows(Layers())
    assert time.process_time() - started < 2
    assert [row["size"] for row in rows] in ([len(head)], [])
