"""TCP segments to the same connection in order: without retransmissions, with holes marked.

The rules are those of the decoder (`codec.amqp.connections.transport`, `codec.tcp`): which copy of a byte counts, when
a hole is certain, which direction waits for the other. The output is SEGMENT records. For each segment:

* what it completed: bytes (`cap_len` of them, end to end in `octets`) or a hole (`wire_len` bytes, none captured), with
  the flags PEER_IS_LATE and IS_LATE if the order of both directions is unknown;
* then a record without payload, with its flags. `ack` is 1 if it acknowledges the FIN of the other direction.

Sequence numbers of the output are those of the stream. `Tcp` has the state between two calls.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from codec.amqp import rows as R
from codec.amqp.connections.connection import CONNECTION
from codec.amqp.connections.flows import DRAIN, DRAIN_PEER, PLACE
from codec.amqp.connections.lifecycle import new_openings
from codec.amqp.connections.transport import NO_PIECE, deliver_piece, open_window, opens_connection, take_segment
from codec.amqp.stream import can_continue, has_more, has_waiting_bytes, is_drained
from codec.compiler.kernel import kernel
from codec.memory import as_records
from codec.net.segments import ACK, IS_LATE, IS_LOST, PEER_IS_LATE, SEGMENT
from codec.tcp.direction import DIRECTION, DONE, NEED_ROWS, Stream, new_stream
from codec.tcp.pieces import hole_ahead
from codec.tcp.reassembly import WRAP, declare_missing, offset_of, offset_of_pos, release
from codec.variant.writer import copy_bytes

NEW_CONNECTION = -1  # another connection begins with this segment
EVENTS = 1 << 13
OCTETS = 1 << 20
# Bytes that were read and are compared with late copies: fewer than of a connection without layers, since they are
# part of its saved state, and a copy that differs fails to decrypt.
HISTORY = 8 * 1024


class Tcp(NamedTuple):
    """`connection`: CONNECTION (1,); `directions`: DIRECTION (2,); `out`: SEGMENT (EVENTS,); `octets` uint8: their
    bytes; `used` int64 (2,): records and bytes in them. `rows` stay empty. One connection after the other uses the same
    arrays, some 2 MB."""

    connection: np.ndarray
    directions: np.ndarray
    streams: tuple[Stream, Stream]
    rows: R.Rows
    out: np.ndarray
    octets: np.ndarray
    used: np.ndarray


def new_tcp() -> Tcp:
    """Arrays for a connection, and a new connection in them."""
    directions = as_records(np.zeros(2, DIRECTION))
    tcp = Tcp(
        as_records(np.zeros(1, CONNECTION)),
        directions,
        (new_stream(1 << 16), new_stream(1 << 16)),
        R.new_rows(1, 1, 1),
        as_records(np.zeros(EVENTS, SEGMENT)),
        np.zeros(OCTETS, np.uint8),
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
    connection["phase"] = PLACE
    return connection, openings.direction.copy()


@kernel
def _full(t):
    """Whether there is no room for one more event of one byte."""
    return t.used[0] + 2 > len(t.out) or t.used[1] == len(t.octets)


@kernel
def _event(t, direction, ts_ns, packet_no, file, seq, ack, wire_len, cap_len, flags):
    """Append an event, whose bytes are at the end of `octets` already."""
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
        if size > len(t.octets) - t.used[1]:  # the bytes of a packet stay together, whatever else waits for output
            if t.used[1] > 0:
                return NEED_ROWS
            size = len(t.octets)
        copy_bytes(t.octets, int(t.used[1]), s.bytes, int(d.pos), int(d.pos) + size)
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
        if c.phase == PLACE:
            if opens_connection(d, peer, g):
                return NEW_CONNECTION, i, direction
            t.rows.stall_count[0] = 0  # the decoder has none of connections in layers
            code = take_segment(c, d, peer, direction, t.streams[direction], t.rows, g, payload)
            if code != DONE:
                return code, i, direction
            c.phase = DRAIN
        while c.phase != PLACE:
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
                c.phase = PLACE
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
