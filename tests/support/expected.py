"""What the `frames` table must hold for a shipped capture, worked out from its bytes and the goldens.

The independent reader (independent_tcp.py) says which bytes were captured, and where the frames lie in the complete
capture that a damaged one was made from; tshark's goldens say what is in them. A frame is expected of a capture when
every byte of it is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import golden
import independent_tcp as tcp
from golden import Capture, Endpoint, GoldenFrame

# Protocol headers: class 1, instance 1, major, minor up to 0-10 (1 1 9 1 is what py-amqplib sends for 0-8); 0, major,
# minor, revision in 0-9-1 (section 4.2.2); id, major, minor, revision in 1.0 (part 2 section 2.2).
HEADERS = {
    b"AMQP\x01\x01\x08\x00": "0-8",
    b"AMQP\x01\x01\x09\x01": "0-8",
    b"AMQP\x01\x01\x00\x09": "0-9",
    b"AMQP\x00\x00\x09\x01": "0-9-1",
    b"AMQP\x01\x01\x00\x0a": "0-10",
    b"AMQP\x00\x01\x00\x00": "1.0",
    b"AMQP\x02\x01\x00\x00": "1.0",
    b"AMQP\x03\x01\x00\x00": "1.0",
}

# tshark reads 0-8 by the tables of 0-9-1. In the 0-8 document connection.close is method 60 of class 10 (reply-code
# short, reply-text shortstr, class-id short, method-id short) and close-ok is method 61; 0-9 renumbered them to 50 and
# 51, and RabbitMQ uses 60 and 61 for connection.blocked (reason shortstr) and unblocked.
REFUSED = b"FRAME_ERROR - cannot decode <<0,0,4,113,112,46,113,2,113,116,0,0,0,0,0>>"
SETTLED: dict[tuple[str | None, bytes], tuple[str, dict[str, Any]]] = {
    ("0-8", bytes.fromhex("000a003c 0000 00 0000 0000")): (
        "connection.close",
        {"reply_code": 0, "reply_text": "", "class_id": 0, "method_id": 0},
    ),
    ("0-8", bytes.fromhex("000a003c 00c8 03 627965 0000 0000")): (
        "connection.close",
        {"reply_code": 200, "reply_text": "bye", "class_id": 0, "method_id": 0},
    ),
    ("0-8", bytes.fromhex("000a003c 01f5 48") + REFUSED + bytes.fromhex("003c 0014")): (
        "connection.close",
        {"reply_code": 501, "reply_text": REFUSED.decode(), "class_id": 60, "method_id": 20},
    ),
    ("0-8", bytes.fromhex("000a003d")): ("connection.close-ok", {}),
}


@dataclass(frozen=True)
class ExpectedFrame:
    """A frame at `offset` of this capture's stream. `view` is tshark's view of it (None for protocol headers)."""

    sender: Endpoint
    offset: int
    size: int
    kind: int | str
    channel: int | None
    class_id: int | None
    method_id: int | None
    content: bytes
    view: GoldenFrame | None
    first_packet: tcp.Packet
    packet: tcp.Packet


@dataclass(frozen=True)
class ExpectedConnection:
    """One TCP connection of a capture: its bytes, its frames in stream order, and which protocol it speaks.

    Plain framing of a side that breaks the rules ends at `stops[sender]`. tshark goes on there, because it does not
    look at the end byte: `unframed` is what it shows then.
    """

    client: Endpoint
    server: Endpoint
    captured: tcp.Connection
    frames: tuple[ExpectedFrame, ...]
    unframed: tuple[GoldenFrame, ...]
    stops: dict[Endpoint, int]
    content: str  # 'amqp' 'tls' 'foreign' 'none', as in the facts of a connection
    version: str | None  # by the protocol header of the client

    def half(self, side: str) -> tcp.Half:
        return self.captured.halves[self.client if side == "client" else self.server]

    def side(self, sender: Endpoint) -> str:
        return "client" if sender == self.client else "server"


@cache
def captured(name: str) -> tuple[tcp.Connection, ...]:
    return tuple(tcp.connections(tcp.packets(golden.captures()[name].paths)))


def is_complete(capture: Capture) -> bool:
    """No byte of any stream is missing, from the first SYN on."""
    return all(connection.complete for connection in captured(capture.file))


def frames_in_tshark(capture: Capture) -> dict[tuple[int, Endpoint], list[GoldenFrame]]:
    """tshark's frames by (place of the connection, sender), in stream order; none where it had to decrypt them."""
    streams: dict[tuple[int, Endpoint], list[GoldenFrame]] = {}
    for frame in golden.golden_frames(capture.file):
        streams.setdefault((frame.stream, frame.sender), []).append(frame)
    return streams


def content_of(connection: tcp.Connection, any_in_tshark: bool) -> str:
    halves = list(connection.halves.values())
    starts = [bytes(half.data[:8]) for half in halves]
    if any(start[:2] == b"\x16\x03" for start in starts):
        return "tls"
    if any_in_tshark or any(start in HEADERS for start in starts):
        return "amqp"
    return "foreign" if connection.payload_bytes else "none"


@cache
def expected(name: str) -> tuple[ExpectedConnection, ...]:
    """The connections of a capture in the order of their first packets."""
    capture = golden.captures()[name]
    source = capture.origin if is_complete(capture) or capture.made_from is None else capture.made_from
    origin = golden.captures()[source]
    in_tshark = frames_in_tshark(origin)
    found = []
    for index, (here, there) in enumerate(zip(captured(name), captured(source), strict=True)):
        views = {end: in_tshark.get((index, end), []) for end in there.halves}
        content = content_of(there, any(views.values()))
        frames: list[ExpectedFrame] = []
        unframed: list[GoldenFrame] = []
        stops: dict[Endpoint, int] = {}
        client = there.client
        assert client is not None
        version = HEADERS.get(bytes(there.halves[client].data[:8]))
        if content == "amqp" and version in (None, *golden.CLASSIC):
            for sender, half in here.halves.items():
                plain, _rest = tcp.plain_frames(there.halves[sender])
                stops[sender] = plain[-1].offset + plain[-1].size if plain else 0
                frames += intact_frames(half, there.halves[sender], plain, views[sender])
                unframed += views[sender][sum(frame.kind != "AMQP" for frame in plain) :]
        server = next(end for end in there.halves if end != client)
        found.append(ExpectedConnection(client, server, here, tuple(frames), tuple(unframed), stops, content, version))
    return tuple(found)


def shift_between(half: tcp.Half, origin: tcp.Half) -> int:
    """What to add to an offset of the origin's stream: a capture that begins mid-stream counts from its first byte."""
    assert half.base is not None
    assert origin.base is not None
    return 0 if half.syn else (origin.base - half.base + 2**31) % 2**32 - 2**31


def intact_frames(
    half: tcp.Half, origin: tcp.Half, plain: list[tcp.Frame], golden_frames: list[GoldenFrame]
) -> list[ExpectedFrame]:
    """The frames of `origin` whose every byte is in `half`, placed in the stream of `half`."""
    if half.base is None:
        return []
    shift = shift_between(half, origin)
    complete = completed(half)
    views = iter(golden_frames)
    found = []
    for frame in plain:
        view = None if frame.kind == "AMQP" else next(views, None)
        start = frame.offset + shift
        stop = start + frame.size
        if start < 0 or stop > len(half.arrival) or None in half.arrival[start:stop]:
            continue
        first, last = half.arrival[start], complete[stop - 1]
        assert first is not None
        assert last is not None
        found.append(
            ExpectedFrame(
                frame.sender,
                start,
                frame.size,
                frame.kind,
                frame.channel,
                frame.class_id,
                frame.method_id,
                frame.payload,
                view,
                first,
                last,
            )
        )
    return found


def completed(half: tcp.Half) -> list[tcp.Packet | None]:
    """For each captured byte the packet with which everything since the last hole had arrived."""
    found: list[tcp.Packet | None] = []
    stretch: list[tcp.Packet | None] = []
    for packet in [*half.arrival, None]:
        if packet is not None:
            stretch.append(packet)
        else:
            found += [*tcp.completing_packets(stretch), None]
            stretch = []
    return found[:-1]
