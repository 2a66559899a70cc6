"""Short connections that may have layers, many at once: their TCP in order.

A connection whose segments are all there, and few, needs no state between two calls. `order_short` puts it in order
behind those before it, in the same arrays, as `codec.layers.connection` would do on its own; `codec.layers.stack`
then reads the layers of all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.layers.chunks import (
    EVENTS,
    NEW_CONNECTION,
    Tcp,
    blank_records,
    end_order,
    new_tcp,
    order,
)
from codec.memory import as_records, readonly
from codec.net.layers import (
    ACK,
    IS_LOST,
    SEGMENT,
    SYN,
)
from codec.tcp.reassembly import DONE, NEED_ROWS, WRAP, anchor

SHORT_SEGMENTS = 512  # a connection of more is read on its own, which then costs little for each of them
SHORT_CONNECTIONS = 1024  # read at once
NOT_SHORT, NO_ROOM = -1, -2
# Columns of `rows`: the flow; the first segment and the one after the last; what it is, the size of a header of the
# PROXY protocol before it; reasons decided so far; its events, and where those of its first segment and those before
# its end stop; its chunks; its bytes, where those of chunks begin at 0.
ROW = (
    FLOW, AT, AFTER, WHAT, HEADER, DECIDED, EVENTS_FROM, FIRST_TO, FED_TO, EVENTS_TO, CHUNKS_FROM, CHUNKS_TO,
    BYTES_FROM, BYTES_TO,
) = range(14)  # fmt: skip
# Fields of DIRECTION in `wire`.
WIRE = (
    "packets", "payload_bytes", "retransmitted_bytes", "out_of_order", "conflicting_bytes", "outside_bytes",
    "zero_window_ns", "limits", "max_silence_ns",
)  # fmt: skip
BASE, OUTPUT, CAPTURED, MISSING, SEGMENTS = TOTALS = tuple(
    range(5)
)  # rows of `totals`, see `codec.layers.connection.merge`
NO_BASE = -1


class Short(NamedTuple):
    """`tcp`: of one connection after the other, its output of all; `blank`: records of a new one; `first`: its first
    segment, and the same to read; `rows` int64 (n, ROW); `wire` int64 (n, 2, WIRE): fields of both directions at the
    end; `totals` int64 (n, TOTALS, 2); `openings` int64 (n, ...): those of `next_candidate` at the first segment;
    `chunks` int64 (EVENTS,) each: event, direction, begin, size; `used` int64 (2,): rows, chunks."""

    tcp: Tcp
    blank: tuple[np.ndarray, np.ndarray]
    first: tuple[np.ndarray, np.ndarray]
    rows: np.ndarray
    wire: np.ndarray
    totals: np.ndarray
    openings: np.ndarray
    chunks: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
    used: np.ndarray


def new_short(openings: np.ndarray) -> Short:
    """Arrays for connections that begin as `openings` says."""
    first, count = as_records(np.zeros(1, SEGMENT)), SHORT_CONNECTIONS
    return Short(
        new_tcp(),
        blank_records(),
        (first, readonly(first)),
        np.empty((count, len(ROW)), np.int64),
        np.empty((count, 2, len(WIRE)), np.int64),
        np.empty((count, len(TOTALS), 2), np.int64),
        np.empty((count, *openings.shape), np.int64),
        (
            np.empty(EVENTS, np.int64),
            np.empty(EVENTS, np.int64),
            np.empty(EVENTS, np.int64),
            np.empty(EVENTS, np.int64),
        ),
        np.zeros(2, np.int64),
    )


def clear(short: Short) -> None:
    """No connections."""
    short.used[:] = 0
    short.tcp.used[:] = 0


@kernel
def first_of(g):
    """See `codec.net.layers.first_octet`."""
    return (int(g.seq) + (1 if g["flags"] & SYN else 0)) % WRAP


@kernel
def _begin(s, segments, i, header):
    """Begin a connection at segment `i`, after `header` bytes of it."""
    t, totals = s.tcp, s.totals[s.used[0]]
    t.connection[0] = s.blank[0][0]
    for side in range(2):
        t.directions[side] = s.blank[1][0]
        totals[BASE, side] = NO_BASE
        for k in range(BASE + 1, len(TOTALS)):
            totals[k, side] = 0
    s.first[0][0] = segments[i]
    g = s.first[0][0]
    direction = int(g.direction)
    if header > 0:
        is_syn = g["flags"] & SYN != 0
        g.seq = (first_of(g) + header) % WRAP
        g.payload_at += header
        g.cap_len -= header
        g.wire_len -= header
        g["flags"] &= ~SYN & 0xFFFF
        t.directions[direction].syn = 1 if is_syn else 0
        totals[SEGMENTS, direction] = 1
    seq = first_of(g)
    anchor(t.directions[direction], seq)
    totals[BASE, direction] = seq
    if g["flags"] & ACK:
        anchor(t.directions[1 - direction], int(g.ack))
        totals[BASE, 1 - direction] = int(g.ack)


@kernel
def _last_event(t):
    """The event that bytes belong to which are missing at the end; it is not in `t.used`."""
    c, e = t.connection[0], t.out[t.used[0]]
    e.order_ns = c.now_ns
    e.ts_ns = c.last_ns
    e.packet_no = c.last_packet
    e.payload_at = 0
    e.seq = 0
    e.ack = 0
    e.wire_len = 1
    e.cap_len = 0
    e.file = c.last_file
    e.window = 1
    e["flags"] = ACK | IS_LOST
    e.direction = 0


@kernel
def _note(s, events_from, bytes_from):
    """Write the chunks and the counters of the connection."""
    t, k, count = s.tcp, int(s.used[0]), int(s.used[1])
    for at in range(events_from, int(t.used[0])):
        e = t.out[at]
        if e.wire_len == 0:
            continue
        s.chunks[0][count] = at - events_from
        s.chunks[1][count] = e.direction
        s.chunks[2][count] = int(e.payload_at) - bytes_from
        s.chunks[3][count] = int(np.int64(e.cap_len)) if e.cap_len > 0 else -int(np.int64(e.wire_len))
        count += 1
    s.used[1] = count
    for side in range(2):
        d, wire = t.directions[side], s.wire[k, side]
        wire[0], wire[1], wire[2] = d.packets, d.payload_bytes, d.retransmitted_bytes
        wire[3], wire[4], wire[5] = d.out_of_order, d.conflicting_bytes, d.outside_bytes
        wire[6], wire[7], wire[8] = d.zero_window_ns, d.limits, d.max_silence_ns


@kernel
def order_short(s, segments, payload, i, end, complete, header, begins_at):
    """TCP of the connection that begins at segment `i` in order, as row `s.used[0]`: the index after its last segment.
    NOT_SHORT: it is longer, or may be; NO_ROOM: another call has room for it. `end`: of the flow; `complete`: no more
    segments of it follow; `begins_at`: the sequence number after the SYN of the client, if it is the same connection
    only with that; 0: unknown. `s.used` is not advanced."""
    t = s.tcp
    events, data = int(t.used[0]), int(t.used[1])
    if s.used[0] == len(s.rows) or events + 2 > len(t.out):
        return NO_ROOM
    row, stop, after = s.rows[s.used[0]], min(end, i + 1 + SHORT_SEGMENTS), NOT_SHORT
    _begin(s, segments, i, header)
    code, _, _ = order(t, s.first[1], payload, 0)
    row[EVENTS_FROM], row[FIRST_TO] = events, t.used[0]
    if code == DONE:
        code, at, _ = order(t, segments[i + 1 : stop], payload, 0)
        row[FED_TO] = t.used[0]
        if code == DONE and stop == end and complete:
            after = end
        elif code == NEW_CONNECTION and begins_at > 0:
            g = segments[i + 1 + at]
            if g.direction == segments[i].direction and g["flags"] & ACK == 0 and (int(g.seq) + 1) % WRAP != begins_at:
                after = i + 1 + at
    if after != NOT_SHORT:
        code, _ = end_order(t)
        if code == DONE and t.used[0] < len(t.out):
            _last_event(t)
            row[EVENTS_TO], row[CHUNKS_FROM] = t.used[0], s.used[1]
            _note(s, events, data)
            row[CHUNKS_TO], row[BYTES_FROM], row[BYTES_TO] = s.used[1], data, t.used[1]
            t.used[0] += 1
            return after
    t.used[0] = events
    t.used[1] = data
    no_room = code == NEED_ROWS or (code == DONE and after != NOT_SHORT)
    return NO_ROOM if no_room and s.used[0] > 0 else NOT_SHORT
