"""Attacks on time and memory: four times the bytes may take four times the time, in every framing and in TCP.

Times are those of the processor, the best of several runs: other work on the machine can slow any of them.
"""

from __future__ import annotations

import struct
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable
from types import FrameType
from typing import Any

import numba
import numpy as np
import pika.frame
import pika.spec
import pytest
import test_websocket as websocket
from encode_1_0 import frame
from fuzz import PARTS
from growth import assert_linear
from pika_frames import method
from test_amqp_1_0_streams import CLOSE, sections_of
from tls_forged import Forged
from tls_peers import Peers, wire_of
from wire import CLIENT, FLOW, SERVER, Wire, give_up, take_facts

from codec.amqp.decoder import CarriedStates, Decoder
from codec.compiler.limits import LIMITS
from codec.layers.stack import Layers
from codec.layers.tls_handshake import KeyLog
from codec.memory import as_records, readonly
from codec.net.layers import FLOW_BYTES, SEGMENT
from udfs.decode.flow_order import Files

CLASSIC_HEADER, SEGMENTED_HEADER, DESCRIBED_HEADER = b"AMQP\0\0\x09\x01", b"AMQP\x01\x01\0\x0a", b"AMQP\0\1\0\0"
ACK = method(pika.spec.Basic.Ack(7))
FRAME_OVERHEAD = 8
LOST = b"\x77" * 20  # no frame begins here
STEPS = (1, 4)
CONNECTIONS = 100 if numba.config.DISABLE_JIT else 400


def decoded(wire: Wire, decoder: Decoder | None = None) -> tuple[float, int, dict[str, Any]]:
    """(seconds of the processor, rows, facts); no byte is lost."""
    decoder = decoder or Decoder()
    segments, payload = np.array(wire.segments, SEGMENT), np.frombuffer(wire.payload or b"\0", np.uint8)
    started, rows = time.process_time(), 0
    for batches in (decoder.feed(FLOW, segments, payload), decoder.finish()):
        rows += sum(len(batch.cells) for batch in batches)
    spent = time.process_time() - started
    (facts,) = take_facts(decoder)
    side = facts.facts["client"]
    assert side["payload_bytes"] == sum(side[part] for part in PARTS)
    return spent, rows, facts.facts


def in_segments(wire: Wire, data: bytes, size: int) -> Wire:
    for start in range(0, len(data), size):
        wire.add(CLIENT, data[start : start + size])
    return wire


# ---- feigned frames that share one long table, or one long sequence of sections -------------------------------------


def shared_table(count: int) -> bytes:
    """`count` content headers, each inside the first entry of the table of the one before, so that all their tables
    end together; one byte too much before the end byte makes none of them a frame."""
    fixed = 7 + 14 + 4  # frame header; class, weight, size, flags; length of the table
    entry = b"\x01aS" + struct.pack(">I", fixed)
    total = count * (len(entry) + fixed)
    parts = []
    for number in range(count):
        at = number * (len(entry) + fixed) + len(entry)
        parts.append(entry + struct.pack(">BHI", 2, 1, total + 1 - (at + 7)))
        parts.append(struct.pack(">HHQHI", 60, 0, 5, 0x2000, total - (at + fixed)))
    return b"".join(parts) + b"\0\xce"


def shared_sections(count: int) -> bytes:
    """The same in 0-10: header segments whose sections, each with the next frame header inside a str8, go on to the
    same end, where one byte is too much. A frame has at most 64 KB."""
    inside = 12
    # struct32 delivery-properties (class 4, code 1): flags 0x0200, routing-key, a str8
    section = struct.pack(">IBBHB", 5 + inside, 4, 1, 0x0002, inside)
    each = len(section) + inside
    group = 65535 // each - 1
    parts = []
    for number in range(count):
        remaining = group - number % group
        size = 12 + (remaining - 1) * each + 1
        parts.append(section + struct.pack(">BBHBBHI", 3, 2, size, 0, 1, 1, 0))
        if remaining == 1:
            parts.append(b"\0")
    return b"".join(parts)


def feigned_tables(count: int) -> Wire:
    tune_ok = pika.frame.Method(0, pika.spec.Connection.TuneOk(0, 2**24, 0)).marshal()
    return in_segments(Wire(), CLASSIC_HEADER + tune_ok + LOST + shared_table(2000 * count), 1448)


def feigned_tables_of_no_version(count: int) -> Wire:
    return in_segments(Wire(syn=False), LOST + shared_table(2000 * count), 1448)


def feigned_sections(count: int) -> Wire:
    return in_segments(Wire(), SEGMENTED_HEADER + LOST + shared_sections(4000 * count), 1448)


def feigned_sizes(data: bytes, header: bytes) -> Callable[[int], Wire]:
    """Nothing but beginnings of frames that claim a large size."""

    def wire(count: int) -> Wire:
        return in_segments(Wire(), header + LOST + data * (20_000 * count), 1448)

    return wire


def wrong_end_bytes(count: int) -> Wire:
    """Each frame claims all that follows, and its end byte is wrong; a real one stands behind each header."""
    each, parts = 7 + len(ACK), []
    for number in range(2000 * count):
        parts.append(struct.pack(">BHI", 3, 1, (2000 * count - number) * each - 7) + ACK)
    return in_segments(Wire(), CLASSIC_HEADER + b"".join(parts) + bytes(8), 1448)


# ---- streams that nobody vouches for --------------------------------------------------------------------------------


def a_body_at_first(size: int) -> Callable[[int], Wire]:
    """A stream without protocol header: its first bytes may begin a body of nearly 1 MiB, the rest is text."""

    def wire(count: int) -> Wire:
        return in_segments(Wire(syn=False), struct.pack(">BHI", 3, 1, 0xFFF00) + b"text" * (25 * size * count), size)

    return wire


def a_table_at_first(count: int) -> Wire:
    """The same behind a complete method with a long table, which each segment might have judged again."""
    table = b"\x01at\x01" * 20_000
    declare = struct.pack(">HHH", 50, 10, 0) + b"\x01q\0" + struct.pack(">I", len(table)) + table
    method = struct.pack(">BHI", 1, 1, len(declare)) + declare + b"\xce"
    return in_segments(Wire(syn=False), method + struct.pack(">BHI", 3, 1, 0xFFF00) + b"text" * (5000 * count), 10)


# ---- TCP ------------------------------------------------------------------------------------------------------------


def backwards(count: int) -> Wire:
    """Segments of one byte, in groups of 1000 from the last to the first."""
    wire = Wire()
    data, size, first = CLASSIC_HEADER + ACK * (200 * count), 1000, wire.seq[CLIENT]
    for start in range(0, len(data), size):
        part = data[start : start + size]
        for at in range(len(part) - 1, -1, -1):
            wire.seq[CLIENT] = first + start + at
            wire.add(CLIENT, part[at : at + 1])
        wire.seq[CLIENT] = first + start + len(part)
    return wire


def holes(count: int) -> Wire:
    """Every second segment is missing and acknowledged."""
    wire = Wire()
    wire.add(CLIENT, CLASSIC_HEADER)
    for _ in range(1000 * count):
        wire.add(CLIENT, ACK)
        wire.lose(CLIENT, 50)
    return wire


def one_direction(count: int) -> Wire:
    """Only the client's packets, each of which acknowledges more of the server's bytes."""
    wire = Wire()
    wire.add(CLIENT, CLASSIC_HEADER)
    for _ in range(2000 * count):
        wire.seq[SERVER] += 50
        wire.add(CLIENT, ACK)
    return wire


def old_copies(count: int) -> Wire:
    """64 KB again and again, each time other bytes."""
    wire = Wire()
    wire.add(CLIENT, CLASSIC_HEADER + struct.pack(">BHI", 3, 1, 1 << 20) + bytes(60_000))
    for number in range(40 * count):
        wire.seq[CLIENT] -= 60_000
        wire.add(CLIENT, bytes([number % 256]) * 60_000)
    return wire


ATTACKS: dict[str, Callable[[int], Wire]] = {
    "tables, classic": feigned_tables,
    "tables, no version": feigned_tables_of_no_version,
    "sections, 0-10": feigned_sections,
    "sizes, classic": feigned_sizes(struct.pack(">BHI", 3, 1, 0xFFF00), CLASSIC_HEADER),
    "methods, classic": feigned_sizes(struct.pack(">BHIHH", 1, 1, 0xFFF00, 50, 10), CLASSIC_HEADER),
    "sizes, 0-10": feigned_sizes(struct.pack(">BBHBBHI", 3, 3, 0xFFF0, 0, 1, 1, 0), SEGMENTED_HEADER),
    "sizes, 1.0": feigned_sizes(struct.pack(">IBBH", 0xFFF00, 2, 0, 1) + b"\0\x53\x14\xc0", DESCRIBED_HEADER),
    "end bytes": wrong_end_bytes,
    "body at first, small segments": a_body_at_first(100),
    "body at first, large segments": a_body_at_first(1448),
    "table at first": a_table_at_first,
    "backwards": backwards,
    "holes": holes,
    "one direction": one_direction,
    "old copies": old_copies,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_time_is_linear(attack: str) -> None:
    decoder = Decoder()
    wires = {count: ATTACKS[attack](count) for count in STEPS}
    decoded(wires[STEPS[0]], decoder)  # compiles, and touches the memory
    assert_linear(lambda count: min(decoded(wires[count], decoder)[0] for _ in range(3)), STEPS)


# What bodies are made of: bytes of each kind make other places look like the beginning of a frame.
BODIES = {
    "random": np.random.default_rng(1).bytes(1 << 20),
    "zeros": bytes(1 << 20),
    "text": b'{"id": 12345, "name": "abc"}\n' * 36_000,
    "small integers": np.random.default_rng(2).integers(1, 1000, 1 << 18).astype(">i4").tobytes(),
    "small integers, little-endian": np.random.default_rng(3).integers(1, 1000, 1 << 18).astype("<i4").tobytes(),
}


@pytest.mark.parametrize("header", [CLASSIC_HEADER, SEGMENTED_HEADER, DESCRIBED_HEADER], ids=["0-9-1", "0-10", "1.0"])
@pytest.mark.parametrize("kind", BODIES)
def test_a_search_for_frames_has_a_bounded_cost_per_byte(header: bytes, kind: str) -> None:
    """No more than four times what it costs to compress random bytes."""
    decoder, wire = Decoder(), in_segments(Wire(), header + LOST + BODIES[kind], 1448)
    searched = min(decoded(wire, decoder)[0] for _ in range(3))
    assert searched < 4 * min(compressed(BODIES["random"]) for _ in range(3))


def compressed(data: bytes) -> float:
    """Seconds of the processor for compressing these bytes."""
    started = time.process_time()
    zlib.compress(data)
    return time.process_time() - started


def test_the_false_frames_are_one_byte_away_from_frames() -> None:
    """With the byte too much taken away, the first of them is found: all of its table, all of its sections."""
    data = shared_table(50)
    size = int.from_bytes(data[10:14], "big")  # behind the beginning of an entry, frame type and channel
    sound = data[7:10] + (size - 1).to_bytes(4, "big") + data[14:-2] + b"\xce"
    _, rows, facts = decoded(in_segments(Wire(), CLASSIC_HEADER + LOST + sound, 1448))
    assert (rows, facts["client"]["frame_bytes"]) == (3, 8 + len(sound))
    group = 65535 // 21 - 1
    data = shared_sections(group)
    size = int.from_bytes(data[11:13], "big")  # behind the beginning of a section, flags and segment type
    sound = data[9:11] + (size - 1).to_bytes(2, "big") + data[13:-1]
    _, rows, facts = decoded(in_segments(Wire(), SEGMENTED_HEADER + LOST + sound, 1448))
    assert (rows, facts["client"]["frame_bytes"]) == (3, 8 + len(sound))


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_more_open_deliveries_than_the_limit() -> None:
    """Each on its own link and never finished: deliveries above the limit are not joined, and the limit is named."""
    incomplete, data = sections_of(b"abc")[:-1], []
    for handle in range(LIMITS.open_deliveries + 1):
        # transfer: handle, delivery id and tag, format, settled, more
        fields = b"\x70" + handle.to_bytes(4, "big") + b"\x43\xa0\x01t\x40\x40\x41"
        data.append(frame(b"\0\x53\x14\xc0" + bytes([len(fields) + 1, 6]) + fields + incomplete))
    _, rows, facts = decoded(in_segments(Wire(), DESCRIBED_HEADER + b"".join(data) + CLOSE, 50_000))
    assert rows == 1 + len(data) + 1
    assert facts["limits"] == ["open deliveries"]
    assert facts["client"]["frame_bytes"] == facts["client"]["payload_bytes"]


def test_waiting_bytes_of_a_direction_are_bounded() -> None:
    """A frame of 16 MiB that never ends, and as much data behind a hole that nobody acknowledges."""
    decoder, wire = Decoder(), Wire()
    # Where these begin to be read, frames are found at once.
    megabyte = 10 * pika.frame.Body(1, bytes(100_000 - FRAME_OVERHEAD)).marshal()
    wire.add(CLIENT, CLASSIC_HEADER + struct.pack(">BHI", 3, 1, LIMITS.frame_bytes - 8))
    for _ in range(20):
        wire.add(CLIENT, megabyte)
    wire.add(SERVER, b"\0")
    wire.seq[SERVER] += 10
    for _ in range(20):
        wire.add(SERVER, megabyte)
    _, _, facts = decoded(wire, decoder)
    for stream in decoder.state.streams:
        assert sum(array.nbytes for array in stream) < 6 * LIMITS.frame_bytes
    assert "reorder window" in facts["limits"]


# ---- layers: WebSocket and TLS --------------------------------------------------------------------------------------

ASKS = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"
AGREES = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
PING = b"\x89\x80\0\0\0\0"  # of the client, without payload; its mask is zero
HELLO = bytes.fromhex("16 0301 0200 01 0001fc 0303") + bytes(32 + 100)
NO_SECRETS = KeyLog(b"CLIENT_RANDOM " + b"ab" * 32 + b" " + b"cd" * 48)


UPGRADED = [(CLIENT, ASKS), (SERVER, AGREES), (CLIENT, PING)]


def upgraded(count: int) -> Wire:
    wire = Wire()
    wire.add(CLIENT, ASKS)
    wire.add(SERVER, AGREES)
    return wire


def requests_apart(count: int) -> Wire:
    """Segments of four bytes, each of which might begin a request, with holes between them."""
    wire = Wire(syn=False)
    for _ in range(count):
        wire.add(CLIENT, b"GET ")
        wire.seq[CLIENT] += 100
    return wire


def requests_in_turn(count: int) -> Wire:
    """Requests that ask for nothing, on one connection."""
    return in_segments(Wire(), b"GET / HTTP/1.1\r\n\r\n" * count, 18)


def hellos(count: int) -> Wire:
    return in_segments(Wire(), HELLO * count, len(HELLO))


def pings(count: int) -> Wire:
    return in_segments(upgraded(count), PING * count, len(PING))


def single_bytes(count: int) -> Wire:
    return in_segments(upgraded(count), b"\x82\xfe\xff\xff" + bytes(4) + bytes(count), 1)


def frames_with_holes(count: int) -> Wire:
    wire = upgraded(count)
    for _ in range(count):
        wire.add(CLIENT, b"\x82\x84\0\0\0\0AMQP")
        wire.lose(CLIENT, 3)
    return wire


def heads_after_a_hole(count: int) -> Wire:
    """Each byte may begin a frame; those of the first half claim a size that is not there."""
    wire = upgraded(count)
    wire.add(CLIENT, b"\x82\xff")
    wire.lose(CLIENT, 10)
    give_up(wire, CLIENT)
    return in_segments(wire, b"\x82\xfe" * (50 * count) + b"\x82" * (100 * count), 200)


LAYERS: dict[str, Callable[[int], Wire]] = {
    "requests apart": requests_apart,
    "requests in turn": requests_in_turn,
    "hellos": hellos,
    "pings": pings,
    "single bytes": single_bytes,
    "frames with holes": frames_with_holes,
    "heads after a hole": heads_after_a_hole,
}


def calls_in_layers(wires: list[Wire], log: KeyLog = NO_SECRETS, of: str = "/codec/layers/") -> int:
    """How many functions of the layers Python calls for these connections, all at once; `of`: those in which files."""
    calls = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and of in frame.f_code.co_filename

    layers = Layers(log)
    keys, parts, data = [], [], bytearray()
    for number, wire in enumerate(wires):
        keys.append((FLOW[:-2] + number.to_bytes(2, "big")).ljust(FLOW_BYTES, b"\0"))
        parts.append(np.array(wire.segments, SEGMENT))
        parts[-1]["payload_at"] += len(data)
        data += wire.payload
    segments, payload = as_records(np.concatenate(parts)), np.frombuffer(data, np.uint8)
    flows = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, FLOW_BYTES)
    ends = np.cumsum([len(part) for part in parts])
    sys.setprofile(count)
    try:
        found = [*layers.feed(flows, ends, readonly(segments), readonly(payload)), *layers.finish()]
    finally:
        sys.setprofile(None)
    assert sum(len(part.segments) for part in found) >= len(segments)
    return calls


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="interpreted kernels are functions of Python")
@pytest.mark.parametrize("attack", LAYERS)
def test_python_does_nothing_for_each_segment_of_a_layer(attack: str) -> None:
    calls_in_layers([LAYERS[attack](2)])
    few, many = (calls_in_layers([LAYERS[attack](count)]) for count in (100, 3000))
    assert many <= 3 * few, "batches, not segments"


PROXY_V2 = bytes.fromhex("0d0a0d0a000d0a515549540a 2111 000c c0000201 c0000202 0400 1628")
CONNECT = b"CONNECT mq:5672 HTTP/1.1\r\n\r\n"
SHORT: dict[str, tuple[tuple[int, bytes], ...]] = {
    "nothing": (),
    "a byte": ((CLIENT, b"x"),),
    "request": ((CLIENT, ASKS),),
    "half a request": ((CLIENT, ASKS[:-2]),),
    "request, refused": ((CLIENT, ASKS), (SERVER, b"HTTP/1.1 404 No\r\n\r\n")),
    "request, alert of TLS": ((CLIENT, ASKS), (SERVER, bytes.fromhex("15 0303 0002 0228"))),
    "request, no frame": ((CLIENT, ASKS), (CLIENT, b"GET / HTTP/1.1\r\n\r\n")),
    "request behind PROXY": ((CLIENT, b"PROXY UNKNOWN\r\n" + ASKS),),
    "PROXY": ((CLIENT, PROXY_V2), (CLIENT, CLASSIC_HEADER)),
    "CONNECT": ((CLIENT, CONNECT), (SERVER, b"HTTP/1.1 200 OK\r\n\r\n"), (CLIENT, CLASSIC_HEADER)),
    "SOCKS": ((CLIENT, b"\5\1\0"), (SERVER, b"\5\0"), (CLIENT, CLASSIC_HEADER)),
    "hello": ((CLIENT, HELLO), (SERVER, bytes.fromhex("15 0303 0002 0228"))),
    "hello in segments": tuple((CLIENT, HELLO[at : at + 10]) for at in range(0, len(HELLO), 10)),
    "record": ((CLIENT, bytes.fromhex("17 0303 0010") + bytes(16)),),
}


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="interpreted kernels are functions of Python")
@pytest.mark.parametrize("syn", [True, False])
@pytest.mark.parametrize("kind", SHORT)
def test_python_does_nothing_for_each_short_connection_without_layers(kind: str, syn: bool) -> None:
    def wires(count: int) -> list[Wire]:
        found = [Wire(syn) for _ in range(count)]
        for wire in found:
            for way, data in SHORT[kind] or ((CLIENT, b""),):
                wire.add(way, data)
        return found

    calls_in_layers(wires(2))
    few, many = (calls_in_layers(wires(count)) for count in (100, 3000))
    assert many <= few + 50, "kernels read all connections at once"


def short_tls(name: bytes) -> tuple[Wire, bytes]:
    """A connection of TLS 1.3, and its key log."""
    forged = Forged(name)
    return wire_of([*forged.opening(), (CLIENT, forged.client.record(CLASSIC_HEADER))]), b"".join(forged.lines())


# Calls of kernels for one connection, each of which costs some microseconds whatever it does: of WebSocket to read the
# heads of both sides, what follows, and three fields of the heads; of TLS to find its random, its records, and those
# that say nothing.
KERNEL_CALLS = {"upgrade": 6, "tls": 3}


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="interpreted kernels are functions of Python")
@pytest.mark.parametrize("kind", KERNEL_CALLS)
def test_few_kernels_are_called_for_each_short_connection_with_layers(kind: str) -> None:
    """Its TCP and its segments are made for many connections in one call; one of TLS alone took 15 calls."""
    forged = [short_tls(b"%d" % number) for number in range(400)]
    wires = [wire for wire, _ in forged] if kind == "tls" else [wire_of(UPGRADED) for _ in forged]
    log = KeyLog(b"".join(lines for _, lines in forged))
    calls_in_layers(wires[:2], log)
    few, many = (calls_in_layers(wires[:count], log, "/codec/compiler/kernel") for count in (100, 400))
    assert (many - few) / 300 <= KERNEL_CALLS[kind]


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="times of kernels")
@pytest.mark.parametrize("attack", LAYERS)
def test_the_time_of_a_layer_is_linear(attack: str) -> None:
    decoder = Decoder(layers=Layers(NO_SECRETS))
    wires = {count: LAYERS[attack](1000 * count) for count in STEPS}
    decoded(wires[STEPS[0]], decoder)
    assert_linear(lambda count: min(decoded(wires[count], decoder)[0] for _ in range(3)), STEPS)


def tls_flights() -> tuple[list[tuple[int, bytes]], KeyLog]:
    peers = Peers()
    return peers.exchange([(CLIENT, CLASSIC_HEADER)]), KeyLog(peers.key_log)


@pytest.mark.parametrize("kind", ["request", "upgrade", "tls"])
def test_a_connection_with_layers_that_has_ended_needs_little_memory(kind: str) -> None:
    """Only what its row says is retained until the row is made; one connection after the other uses the same arrays."""
    flights, log = (UPGRADED, KeyLog())
    if kind == "tls":
        flights, log = tls_flights()
    wire = wire_of(flights[:1] if kind == "request" else flights)
    segments, data = wire.arrays()
    payload = np.frombuffer(bytearray(data), np.uint8)
    decoder = Decoder(layers=Layers(log))

    def feed(first: int, count: int) -> None:
        for number in range(first, first + count):
            for _ in decoder.feed(FLOW[:-6] + number.to_bytes(2, "big") + FLOW[-4:], segments, payload):
                pass

    feed(0, 3)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    feed(3, CONNECTIONS)
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < CONNECTIONS * 20_000
    assert peak - before < CONNECTIONS * 20_000 + (16 << 20)
    for _ in decoder.finish():
        pass
    assert len(take_facts(decoder)) == CONNECTIONS + 3


@pytest.mark.parametrize("kind", ["websocket", "compressed", "tls"])
def test_the_saved_state_of_a_layer_is_small(kind: str) -> None:
    """After much traffic that does not repeat, when nothing is incomplete."""
    bodies = [pika.frame.Body(1, np.random.default_rng(number).bytes(15_000)).marshal() for number in range(40)]
    sent, log = [(CLIENT, CLASSIC_HEADER), *((way, body) for body in bodies for way in (CLIENT, SERVER))], KeyLog()
    if kind == "tls":
        peers = Peers()
        flights = peers.exchange(sent)[:-1]
        log = KeyLog(peers.key_log)
    else:
        flights = websocket.upgraded(tuple(sent))[:-2] if kind == "websocket" else websocket.compressed(tuple(sent))
    carried = CarriedStates((), Files())
    carried.files.number("a.pcap")
    decoder = Decoder(carried=carried, layers=Layers(log, carry=True))
    segments, data = wire_of(flights).arrays()
    for batches in (decoder.feed(FLOW, segments, np.frombuffer(bytearray(data), np.uint8)), decoder.finish()):
        for _ in batches:
            pass
    ((_, state),) = carried.states.items()
    assert state.layers is not None
    size = len(state.to_bytes())
    assert size < (64 << 10) + (2 * 44 << 10 if kind == "compressed" else 0)  # two windows of 32 KB, as text
