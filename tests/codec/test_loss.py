"""Packets that a capture lacks: the decode is that of the complete capture without what they carried.

The oracle is the decode of the complete capture (which other tests compare with tshark) and a model of TCP that counts
bytes and knows no AMQP. With the bytes of some packets gone,

* gap rows are exactly the holes of the model, the ledger adds up, and every remaining byte is in exactly one row;
* every row of a complete frame is one of the complete decode, with the same values: no frame is invented;
* every frame whose bytes are all there is there. Only behind a hole that took a frame boundary may frames be missing
  (they are `skipped`), and only such as do not prove themselves, until one does: bodies, frames without body, pieces of
  segments; where no protocol header remains, also a single one before a stream is known to be AMQP;
* a frame that lost bytes, but not its beginning, is a `partial` row of its full size where the framing was in step;
* a content is joined as in the complete decode, or, where a frame of it is torn or a boundary in it was lost, has no
  digest; frames never join another content than theirs.

Lost with the packets are: the numbers of 0-10 commands after a lost boundary, the arguments of a segment that lost a
frame, the properties that the last transfer of a 1.0 delivery shows, the version that a protocol header named.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import encode_0_10 as encode
import numpy as np
import pika.frame
import pika.spec
import pytest
from fuzz import seeds
from loss import SPANS, Decoded, Flow, check_loss, decoded
from test_amqp_1_0_streams import CLOSE, FLOW_FRAME, OPEN, sections_of, transfer
from test_reassembly import FRAMES as CLASSIC_FRAMES
from wire import CLIENT, FLOW, SERVER, Wire

from codec.compiler.limits import LIMITS
from codec.net.layers import FIN, SEGMENT, SYN

LONG = 200  # packets; of longer connections every fifth is lost
STEP = 4  # every fourth of them in a test; the others are slow tests


# ---- the captures ---------------------------------------------------------------------------------------------------


@cache
def flows() -> list[tuple[Flow, Decoded]]:
    """The connections of the small captures, where the ports are not used again, and their complete decode."""
    found: list[tuple[Flow, Decoded]] = []
    for path, runs in seeds():
        by_key: dict[bytes, list[tuple[np.ndarray, bytes]]] = {}
        for key, segments, payload in runs:
            by_key.setdefault(key, []).append((segments, payload))
        for key, parts in by_key.items():
            moved, data = [], b""
            for segments, payload in parts:
                shifted = segments.copy()
                shifted["payload_at"] += len(data)
                moved.append(shifted)
                data += payload
            flow = Flow(path.name, key, np.concatenate(moved), np.frombuffer(data or b"\0", np.uint8))
            results = decoded(flow)
            if len(results) == 1 and any(f.kind not in SPANS for f in results[0].frames):
                found.append((flow, results[0]))
    return found


@pytest.mark.parametrize("first", [0, *(pytest.param(index, marks=pytest.mark.slow) for index in range(1, STEP))])
def test_every_packet_lost_in_turn(first: int) -> None:
    tried = 0
    for flow, lossless in flows():
        telling = np.flatnonzero((flow.segments["cap_len"] > 0) | (flow.segments["flags"] & (SYN | FIN) != 0))
        for at in telling[first :: STEP if len(telling) <= LONG else 5 * STEP]:
            keep = np.ones(len(flow.segments), bool)
            keep[at] = False
            try:
                check_loss(flow, lossless, keep)
            except AssertionError as error:
                raise AssertionError(f"{flow.name} without packet {flow.segments['packet_no'][at]}: {error}") from error
            tried += 1
    assert tried > 3000 // STEP


def test_runs_of_packets_lost() -> None:
    rng = random.Random(3)
    for flow, lossless in flows():
        for _ in range(8):
            keep = np.ones(len(flow.segments), bool)
            for _ in range(rng.randint(1, 3)):
                start = rng.randrange(3, max(4, len(keep)))  # the handshake stays
                keep[start : start + rng.choice((2, 3, 5, 20))] = False
            try:
                check_loss(flow, lossless, keep)
            except AssertionError as error:
                lost = flow.segments["packet_no"][~keep].tolist()
                raise AssertionError(f"{flow.name} without packets {lost}: {error}") from error


# ---- holes at every place -------------------------------------------------------------------------------------------


def content(number: int, size: int) -> list[bytes]:
    """A publish, its header and bodies of at most 90 bytes, as pika writes them."""
    bodies = [bytes([number]) * min(90, size - at) for at in range(0, size, 90)]
    return [
        *CLASSIC_FRAMES[1 + 3 * number :][:1],
        header(size),
        *(pika.frame.Body(1, body).marshal() for body in bodies),
    ]


def header(size: int) -> bytes:
    data: bytes = pika.frame.Header(1, size, pika.spec.BasicProperties(message_id="m")).marshal()
    return data


def classic() -> list[bytes]:
    return [CLASSIC_FRAMES[0], *content(0, 20), *content(1, 200), pika.frame.Heartbeat().marshal(), *content(2, 0)]


def segmented() -> list[bytes]:
    point = encode.one_frame("session.command-point", {"command-id": 0, "command-offset": 0}, 1)
    sync = encode.one_frame("execution.sync", {}, 1)
    return [b"AMQP\x01\x01\x00\x0a", point, *encode.message(b"a" * 120), sync, *encode.message(b"b" * 30), sync]


def described() -> list[bytes]:
    sections = sections_of(b"x" * 150)
    pieces = [transfer(0, sections[:80], 1, more=True), transfer(0, sections[80:], 1)]
    header = b"AMQP\x00\x01\x00\x00"
    return [
        header,
        OPEN,
        transfer(1, sections_of(b"y"), 0),
        *pieces,
        FLOW_FRAME,
        transfer(0, sections_of([1]), 2),
        CLOSE,
    ]


FAMILIES: list[Callable[[], list[bytes]]] = [classic, segmented, described]


def written(frames: list[bytes], cuts: list[int]) -> Flow:
    """`frames` from a client, one segment between each two of `cuts`; all is acknowledged in the end."""
    wire, data = Wire(), b"".join(frames)
    for start, stop in pairwise(sorted({0, *cuts, len(data)})):
        wire.add(CLIENT, data[start:stop])
    wire.add(SERVER, b"")
    segments = np.array(wire.segments, SEGMENT)
    return Flow("written", FLOW, segments, np.frombuffer(wire.payload, np.uint8))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hole_at_every_place(family: Callable[[], list[bytes]]) -> None:
    """Inside headers, methods, bodies, at boundaries, over several frames, to the very end."""
    frames = family()
    (lossless,) = decoded(written(frames, []))
    assert [f.size for f in lossless.frames] == [len(data) for data in frames]
    assert {f.status for f in lossless.frames} == {"ok"}
    total = sum(map(len, frames))
    for size in (1, 8, 60, 200):
        for start in range(8, total):
            flow = written(frames, [start, min(total, start + size)])
            keep = np.ones(len(flow.segments), bool)
            keep[3] = False
            try:
                check_loss(flow, lossless, keep)
            except AssertionError as error:
                raise AssertionError(f"{size} bytes lost at {start}: {error}") from error


@pytest.mark.parametrize("family", FAMILIES)
def test_two_holes(family: Callable[[], list[bytes]]) -> None:
    frames, rng = family(), random.Random(5)
    (lossless,) = decoded(written(frames, []))
    total = sum(map(len, frames))
    for _ in range(400):
        flow = written(frames, rng.sample(range(8, total), 4))
        keep = np.ones(len(flow.segments), bool)
        keep[[3, 5]] = False
        check_loss(flow, lossless, keep)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_hole_longer_than_the_reorder_window(family: Callable[[], list[bytes]], acknowledged: bool) -> None:
    """Declared by the acknowledgement, or else when the connection ends."""
    frames = family()
    lost = LIMITS.reorder_bytes + 5
    wire = Wire()
    wire.add(CLIENT, b"".join(frames))
    wire.seq[CLIENT] += lost
    wire.add(CLIENT, b"".join(frames[1:]))
    if acknowledged:
        wire.add(SERVER, b"")
    rows, facts = wire.rows()
    indices = [(row["offset"], row["size"]) for row in rows if row["frame_type"] not in SPANS]
    sizes = [len(data) for data in frames]
    ends = np.cumsum(sizes).tolist()
    first = list(zip([0, *ends], sizes, strict=False))
    assert indices == first + [(at + ends[-1] + lost - sizes[0], size) for at, size in first[1:]]
    assert [row["size"] for row in rows if row["frame_type"] == "gap"] == [lost]
    assert facts["client"]["missing_bytes"] == lost


@pytest.mark.parametrize("family", FAMILIES)
def test_too_many_waiting_segments_end_the_wait_for_missing_data(family: Callable[[], list[bytes]]) -> None:
    frames = family()
    wire = Wire()
    wire.add(CLIENT, frames[0])
    wire.seq[CLIENT] += 1000
    rest = b"".join(frames[1:])
    times = LIMITS.reorder_segments // len(rest) + 2
    for byte in rest * times:
        wire.add(CLIENT, bytes([byte]))
    late = len(wire.segments)
    wire.seq[CLIENT] -= 1000 + len(rest) * times
    wire.add(CLIENT, b"\x55" * 1000)  # too late
    rows, facts = wire.rows()
    assert late > LIMITS.reorder_segments
    assert facts["limits"] == ["reorder window"]
    assert [row["size"] for row in rows if row["frame_type"] == "gap"] == [1000]
    assert [row["size"] for row in rows if row["frame_type"] not in SPANS] == [
        len(frames[0]),
        *([len(data) for data in frames[1:]] * times),
    ]


# ---- what a loss must not hide --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_the_header_of_the_server_names_the_version_when_that_of_the_client_is_lost(
    family: Callable[[], list[bytes]],
) -> None:
    frames = family()
    wire = Wire()
    wire.lose(CLIENT, 8)
    wire.add(SERVER, b"".join(frames))
    wire.add(CLIENT, b"".join(frames[1:]))
    rows, _ = wire.rows()
    for sender in ("client", "server"):
        sizes = [row["size"] for row in rows if row["sender"] == sender and row["frame_type"] not in SPANS]
        assert sizes == [len(data) for data in frames[sender == "client" :]]
    assert len({row["version"] for row in rows if row["status"] == "ok"}) == 1


def test_the_header_of_the_server_names_no_version_that_the_client_did_not_ask_for() -> None:
    wire = Wire()
    wire.add(CLIENT, b"AMQP\x09\x09\x09\x09")
    wire.add(SERVER, b"AMQP\x00\x00\x09\x01")
    rows, facts = wire.rows()
    assert [(row["frame_type"], row["version"]) for row in rows] == [
        ("protocol-header", None),
        ("protocol-header", "0-9-1"),
    ]
    assert facts["versions_offered"] == ["client 9.9.9.9", "server 0-9-1"]


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_a_protocol_header_after_a_lost_boundary_is_found(cut: int) -> None:
    """AMQP 1.0: that of SASL, its frames (lost), that of AMQP, cut into segments anywhere."""
    wire = Wire()
    wire.add(CLIENT, b"AMQP\x03\x01\x00\x00")
    wire.lose(CLIENT, 40)
    data = b"\x55" * 10 + b"AMQP\x00\x01\x00\x00" + OPEN
    wire.add(CLIENT, data[: 10 + cut])
    wire.add(CLIENT, data[10 + cut :])
    rows, _ = wire.rows()
    assert [(row["frame_type"], row["size"]) for row in rows] == [
        ("protocol-header", 8),
        ("gap", 40),
        ("skipped", 10),
        ("protocol-header", 8),
        ("amqp", len(OPEN)),
    ]
