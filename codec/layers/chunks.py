"""Input and output of layers: chunks of both directions, of bytes or holes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import HANDSHAKE, LIMITS
from codec.framing.connection import CONNECTION_RECORD, new_openings
from codec.framing.stream import DRAIN, DRAIN_PEER, INSERT, can_continue, has_more, has_waiting_bytes, is_drained
from codec.framing.transport import (
    NO_PIECE,
    deliver_piece,
    open_window,
    opens_connection,
    take_segment,
)
from codec.memory import as_records, copy_bytes
from codec.net.layers import (
    ACK,
    IS_LATE,
    IS_LOST,
    PEER_IS_LATE,
    SEGMENT,
)
from codec.protocol import rows as R
from codec.tcp.reassembly import (
    DIRECTION,
    DONE,
    NEED_ROWS,
    WRAP,
    Stream,
    declare_missing,
    hole_ahead,
    new_stream,
    offset_of,
    offset_of_pos,
    release,
)

CHUNK_COST, HOLE_COST = 16, 64  # bytes that a chunk and a hole count beside their own in the bound of waiting bytes

Content = bytes | bytearray | memoryview | int  # bytes, or a hole: the negative of its size


class Chunks(NamedTuple):
    """Chunks in the order in which they became readable; int64 columns. `event`: the TCP event that completed it;
    `direction`; `begin`, `size`: its bytes in `bytes` (uint8); a negative size is a hole of so many bytes."""

    event: np.ndarray
    direction: np.ndarray
    begin: np.ndarray
    size: np.ndarray
    data: np.ndarray

    def part(self, begin: int, end: int) -> Chunks:
        """Chunks `begin` to `end`."""
        return Chunks._make([*(column[begin:end] for column in self[:4]), self.data])

    def contents(self) -> list[tuple[int, bytes | int]]:
        """(direction, bytes, or the negative size of a hole) of each."""
        columns = (self.direction.tolist(), self.begin.tolist(), self.size.tolist())
        return [
            (direction, self.data[at : at + size].tobytes() if size >= 0 else size)
            for direction, at, size in zip(*columns, strict=True)
        ]

    def copied(self) -> Chunks:
        """A copy with its own bytes, end to end."""
        parts = [
            self.data[at : at + size]
            for at, size in zip(self.begin.tolist(), self.size.tolist(), strict=True)
            if size > 0
        ]
        sizes = np.maximum(self.size, 0)
        data = np.concatenate([np.zeros(0, np.uint8), *parts])
        return Chunks(self.event.copy(), self.direction.copy(), np.cumsum(sizes) - sizes, self.size.copy(), data)

    @classmethod
    def hole(cls, event: int, direction: int, size: int) -> Chunks:
        """A hole of `size` bytes."""
        return cls._make([*np.array([[event], [direction], [0], [-size]]), np.zeros(0, np.uint8)])


NO_CHUNKS = Chunks._make([*np.zeros((4, 0), np.int64), np.zeros(0, np.uint8)])


class Output:
    """Collects chunks; `bytes` has room for those of all."""

    def __init__(self, room: int) -> None:
        self.data = np.empty(room, np.uint8)
        self.view = self.data.data
        self.used = 0
        self._rows: list[np.ndarray] = []
        self._last: list[tuple[int, int, int, int]] = []

    def add(self, event: int, direction: int, content: Content) -> None:
        """Add a chunk; a negative number is a hole."""
        size = content if isinstance(content, int) else len(content)
        if not isinstance(content, int):
            self.view[self.used : self.used + size] = content
        if size:
            self._last.append((event, direction, self.used, size))
        self.used += max(size, 0)

    def add_columns(self, event: np.ndarray, direction: np.ndarray, begin: np.ndarray, size: np.ndarray) -> None:
        """Add chunks whose bytes are in `bytes` already; the caller advances `used`."""
        self._flush()
        self._rows.append(np.array([event, direction, begin, size]))

    def _flush(self) -> None:
        if self._last:
            self._rows.append(np.array(self._last, np.int64).T)
            self._last = []

    def chunks(self) -> Chunks:
        """All of them."""
        self._flush()
        columns = np.concatenate([np.zeros((4, 0), np.int64), *self._rows], axis=1)
        return Chunks._make([*columns, self.data])


def concat_chunks(*parts: Chunks) -> Chunks:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part.data) for part in parts[:-1])]).tolist()
    moved = [part._replace(begin=part.begin + at) for part, at in zip(parts, before, strict=True)]
    return Chunks._make(np.concatenate(column) for column in zip(*moved, strict=True))


class Layer(ABC):
    """Chunks to chunks of their contents. `client`: direction of the client; `output_bytes`: bytes of output, by
    direction; `reason`: why it stopped; `limits`: bits of those reached (codec.compiler.limits); `event`: the current
    one; `stopped_at`: the event of the last call at which both directions stopped."""

    sides: tuple[Any, Any]  # the state of each direction, with `stopped` and `pending`
    accepted = False  # both sides agreed on this layer, so that bytes without output are its own

    def __init__(self, client: int) -> None:
        self.client = client
        self.output_bytes = [0, 0]
        self.reason: str | None = None
        self.limits = 0
        self.event = self.stopped_at = -1

    @abstractmethod
    def read(self, chunks: Chunks) -> Chunks:
        """Read the next chunks of both directions."""

    def why_unread(self) -> str | None:
        """Why it was not read, or not to the end."""
        return self.reason or None

    def owed(self, direction: int) -> int:
        """Missing bytes of a direction for which the output has no hole, although their contents are lost."""
        return 0

    def expansion(self, direction: int) -> int:
        """How many bytes longer the output is than what it was made of."""
        return 0

    def give_up(self, answered: bool) -> None:  # noqa: B027
        """The connection ends before the first output. `answered`: packets of the server were captured."""

    def stop_reading(self, reason: str, side: Any = None) -> None:
        """Stop reading this side, or both."""
        self.reason = self.reason or reason
        for each in self.sides if side is None else (side,):
            each.stopped, each.pending = True, bytearray()
        if self.stopped:
            self.stopped_at = self.event

    @property
    def stopped(self) -> bool:
        """Whether both sides have stopped."""
        return all(side.stopped for side in self.sides)


@dataclass
class Attempt:
    """A layer, and its input without output so far. `passes`: it is none, its input passes unchanged."""

    layer: Layer
    waiting: list[Chunks] | None = field(default_factory=list)  # None: it had output, or passes
    cost: int = 0  # of what waits
    passes: bool = False

    def read(self, chunks: Chunks) -> Chunks:
        """Chunks through the layer."""
        if self.passes:
            return chunks
        if self.waiting is None:
            return self.layer.read(chunks)
        count = len(chunks.event)
        cost = self.cost + np.cumsum(np.where(chunks.size < 0, HOLE_COST, chunks.size + CHUNK_COST))
        last = min(int(np.searchsorted(cost, LIMITS.layer_bytes, "right")), count - 1)
        found = self.layer.read(chunks.part(0, last + 1))
        if len(found.event):
            self.waiting = None
            return found if last == count - 1 else concat_chunks(found, self.layer.read(chunks.part(last + 1, count)))
        if count and cost[last] > LIMITS.layer_bytes:
            self.layer.limits |= HANDSHAKE
        elif not self.layer.stopped:
            if count:
                self.waiting.append(chunks.copied())
                self.cost = int(cost[-1])
            return found
        return self.passed(chunks)

    def passed(self, chunks: Chunks) -> Chunks:
        """What waits and `chunks`, unchanged; so is all that follows."""
        before, self.waiting, self.passes = self.waiting or [], None, True
        return concat_chunks(*before, chunks)


# TCP segments to the same connection in order: without retransmissions, with holes marked.
#
# The rules are those of the decoder (`codec.framing.transport`, `codec.tcp`): which copy of a byte counts,
# when a hole is certain, which direction waits for the other. The output is SEGMENT records. For each segment:
#
# * what it completed: bytes (`cap_len` of them, end to end in `bytes`) or a hole (`wire_len` bytes, none captured),
# with
#   the flags PEER_IS_LATE and IS_LATE if the order of both directions is unknown;
# * then a record without payload, with its flags. `ack` is 1 if it acknowledges the FIN of the other direction.
#
# Sequence numbers of the output are those of the stream. `Tcp` has the state between two calls.


NEW_CONNECTION = -1  # another connection begins with this segment
EVENTS = 1 << 13
BUFFER_BYTES = 1 << 20
# Bytes that were read and are compared with late copies: fewer than of a connection without layers, since they are
# part of its saved state, and a copy that differs fails to decrypt.
HISTORY = 8 * 1024


class Tcp(NamedTuple):
    """`connection`: CONNECTION (1,); `directions`: DIRECTION (2,); `out`: SEGMENT (EVENTS,); `bytes` uint8: their
    bytes; `used` int64 (2,): records and bytes in them. `rows` stay empty. One connection after the other uses the same
    arrays, some 2 MB."""

    connection: np.ndarray
    directions: np.ndarray
    streams: tuple[Stream, Stream]
    rows: R.Rows
    out: np.ndarray
    data: np.ndarray
    used: np.ndarray


def new_tcp() -> Tcp:
    """Arrays for a connection, and a new connection in them."""
    directions = as_records(np.zeros(2, DIRECTION))
    tcp = Tcp(
        as_records(np.zeros(1, CONNECTION_RECORD)),
        directions,
        (new_stream(1 << 16), new_stream(1 << 16)),
        R.new_rows(1, 1, 1),
        as_records(np.zeros(EVENTS, SEGMENT)),
        np.zeros(BUFFER_BYTES, np.uint8),
        np.zeros(2, np.int64),
    )
    return begin_anew(tcp)


def begin_anew(tcp: Tcp) -> Tcp:
    """The same arrays with a new connection."""
    connection, direction = blank_records()
    tcp.connection[0] = connection[0]
    tcp.directions[:] = direction[0]
    tcp.used[:] = 0
    return tcp


@cache
def blank_records() -> tuple[np.ndarray, np.ndarray]:
    """Records of a connection, and of a direction, of which nothing is known."""
    openings = new_openings(False)
    connection = as_records(openings.connection.copy())
    connection["phase"] = INSERT
    return connection, openings.direction.copy()


@kernel
def _full(t):
    """Whether there is no room for one more event of one byte."""
    return t.used[0] + 2 > len(t.out) or t.used[1] == len(t.data)


@kernel
def _event(t, direction, ts_ns, packet_no, file, seq, ack, wire_len, cap_len, flags):
    """Append an event, whose bytes are at the end of `bytes` already."""
    n = int(t.used[0])
    e = t.out[n]
    e.order_ns = t.connection[0].now_ns
    e.ts_ns = ts_ns
    e.packet_no = packet_no
    e.payload_at = t.used[1]
    e.seq = seq
    e.ack = ack
    e.wire_len = wire_len
    e.cap_len = cap_len
    e.file = file
    e.window = 1  # open: zero windows are counted here
    e["flags"] = flags
    e.direction = direction
    t.used[0] = n + 1
    t.used[1] += cap_len


@kernel
def _output(t, direction, waiting):
    """Output bytes in order as events, except the last `waiting` ones: DONE, or NEED_ROWS if there is no room."""
    d, s = t.directions[direction], t.streams[direction]
    peer = t.directions[1 - direction]
    stop = int(d.next) - waiting
    at = offset_of_pos(d)
    while at < stop:
        if _full(t):
            return NEED_ROWS
        i = int(d.mark_from)
        while i + 1 < d.mark_end and s.marks[i].end <= at:
            i += 1
        d.mark_from = i
        m = s.marks[i]
        size = min(int(m.end), stop) - at
        if size > len(t.data) - t.used[1]:  # the bytes of a packet stay together, whatever else waits for output
            if t.used[1] > 0:
                return NEED_ROWS
            size = len(t.data)
        copy_bytes(t.data, int(t.used[1]), s.bytes, int(d.pos), int(d.pos) + size)
        seq = (int(d.seq) - (int(d.next) - at)) % WRAP
        flags = ACK | (PEER_IS_LATE if d.early > peer.ready else 0) | (IS_LATE if at < peer.early else 0)
        _event(t, direction, int(m.ready_ns), int(m.ready_packet_no), int(m.ready_file), seq, 0, size, size, flags)
        d.pos += size
        at += size
    d.retained_from = max(int(d.retained_from), int(d.pos) - HISTORY)
    return DONE


@kernel
def _drain(t, direction):
    """Output bytes in order, add later bytes that are now in order, declare holes that are certain."""
    c = t.connection[0]
    d, s = t.directions[direction], t.streams[direction]
    peer = t.directions[1 - direction]
    while True:
        code = _output(t, direction, release(d, s, peer))
        if code != DONE:
            return code
        code = deliver_piece(c, d, s)
        if code == DONE:
            continue
        if code != NO_PIECE:
            return code
        gap = hole_ahead(d, s, c.ended, int(c.now_ns), int(c.arrival))
        if gap == 0 or d.ready < d.next:
            return DONE
        if _full(t):
            return NEED_ROWS
        flags = ACK if d.cut_end > d.next else ACK | IS_LOST
        _event(t, direction, int(c.last_ns), int(c.last_packet), int(c.last_file), int(d.seq), 0, gap, 0, flags)
        declare_missing(d, gap)


@kernel
def order(t, segments, payload, i):
    """Take `segments[i:]` of one connection, in capture order: (code, index of the current segment, direction that
    needs room). NEED_ROWS: `out` is full. NEW_CONNECTION: another one begins with this segment."""
    c = t.connection[0]
    while i < len(segments):
        g = segments[i]
        direction = int(np.int64(g.direction))
        d = t.directions[direction]
        peer = t.directions[1 - direction]
        if c.phase == INSERT:
            if opens_connection(d, peer, g):
                return NEW_CONNECTION, i, direction
            t.rows.stall_count[0] = 0  # the decoder has none of connections in layers
            code = take_segment(c, d, peer, direction, t.streams[direction], t.rows, g, payload)
            if code != DONE:
                return code, i, direction
            c.phase = DRAIN
        while c.phase != INSERT:
            side = direction if c.phase == DRAIN else 1 - direction
            if has_more(t.directions[side]):
                code = _drain(t, side)
                if code != DONE:
                    return code, i, side
            if c.phase == DRAIN:
                c.phase = DRAIN_PEER
            elif has_waiting_bytes(t.directions) and can_continue(t):
                c.phase = DRAIN
            else:
                if _full(t):
                    return NEED_ROWS, i, direction
                beyond = 1 if g["flags"] & ACK and peer.anchored and offset_of(peer, int(g.ack)) == peer.next + 1 else 0
                _event(
                    t, direction, int(g.ts_ns), int(g.packet_no), int(g.file), int(g.seq), beyond, 0, 0, int(g["flags"])
                )
                c.phase = INSERT
        i += 1
    return DONE, i, 0


@kernel
def end_order(t):
    """No more segments: both directions output all that waits. Returns (code, direction that needs room)."""
    c = t.connection[0]
    c.ended = 1
    again = True
    while again:
        for direction in range(2):
            if not is_drained(t.directions[direction]):
                code = _drain(t, direction)
                if code != DONE:
                    return code, direction
        again = has_waiting_bytes(t.directions) and can_continue(t)
    for direction in range(2):
        open_window(t.directions[direction], int(c.last_ns))
    return DONE, 0
