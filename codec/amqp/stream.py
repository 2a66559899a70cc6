"""One TCP connection: captured segments in, rows of frames out.

Theory of operation. `run` takes segments one by one in capture order. A segment is first placed (`take`: handshake,
acknowledgements, retransmissions, reordering), then both directions are drained: bytes in order go to the framing,
which consumes whole frames at once; holes are declared when they are certain. A direction is in one of six modes:

    START    nothing recognised yet                    -> FRAMES, LOST, TLS, FOREIGN
    FRAMES   `pos` is a frame boundary                 -> INSIDE (a hole), LOST (no frame here), TLS
    INSIDE   in a frame that lost bytes, its end known -> FRAMES, LOST
    LOST     the boundary is lost: search the next     -> FRAMES
    TLS, FOREIGN   bytes are counted, nobody reads them

`run` can stop anywhere for more room (codes `NEED_*`) or because a new connection begins on the same flow
(`CONNECTION_ENDS`), and is called again with the same segment; `State` carries everything in between. It holds one
connection: the caller brings segments flow by flow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.amqp import rows as R
from codec.amqp.assemblies import Assemblies, new_assemblies
from codec.amqp.classic_frames import MODE_CHANGED, ROWS_FULL, TAKEN
from codec.amqp.connection import (
    CONNECTION,
    SPANS,
    Spans,
    close_span,
    extend_span,
    gap_span,
    matches_magic,
    new_spans,
    plausible_header,
    protocol_header,
    span_row,
    tail_row,
)
from codec.amqp.contents import Contents, new_contents
from codec.amqp.delivery_slots import Deliveries, new_deliveries
from codec.amqp.detect import ACCEPT, UNDECIDED, tls_record
from codec.amqp.framing import forget, take_frames, tear, torn_row
from codec.amqp.recognition import HELLO_BYTES, become_foreign, enter, keep_hello, recognise, scan_from, search
from codec.amqp.tables import ClassicTables
from codec.amqp.tables_0_10 import SegmentedTables, segmented_tables
from codec.amqp.tables_1_0 import WireTables, described_tables
from codec.amqp.transport import begins_anew, bring, take
from codec.amqp.versions import (
    BODY,
    FOREIGN_SPAN,
    SKIPPED,
    TLS_SPAN,
    UNKNOWN_FAMILY,
    Headers,
)
from codec.kernel import kernel
from codec.limits import SEARCH
from codec.net.direction import (
    CONNECTION_ENDS,
    DIRECTION,
    DONE,
    FOREIGN,
    FRAMES,
    INSIDE,
    LOST,
    NEED_ROWS,
    START,
    TLS,
    Stream,
    new_stream,
)
from codec.net.pieces import drop_first_piece, hole_ahead
from codec.net.reassembly import declare_missing, make_room

PLACE, DRAIN, DRAIN_PEER, ENDING = range(4)


class State(NamedTuple):
    """Everything about the connection at hand. `connection`: one CONNECTION record; `directions`: two DIRECTION
    records; `hello` uint8 (2, HELLO_BYTES): how each direction of a TLS stream begins."""

    connection: np.ndarray
    directions: np.ndarray
    streams: tuple[Stream, Stream]
    spans: Spans
    contents: Contents
    rows: R.Rows
    hello: np.ndarray
    headers: Headers
    tables: ClassicTables
    deliveries: Deliveries
    wire: WireTables
    assemblies: Assemblies
    segmented: SegmentedTables


def new_state(rows: R.Rows, headers: Headers, tables: ClassicTables) -> State:
    """A state without a connection; `codec.amqp.decoder` opens and closes connections on it."""
    return State(
        np.zeros(1, CONNECTION).view(np.recarray),
        np.zeros(2, DIRECTION).view(np.recarray),
        (new_stream(), new_stream()),
        new_spans(),
        new_contents(),
        rows,
        np.zeros((2, HELLO_BYTES), np.uint8),
        headers,
        tables,
        new_deliveries(),
        described_tables()[0],
        new_assemblies(),
        segmented_tables(),
    )


@kernel
def has_more(d):
    """Whether there is anything to `drain`: bytes in order, bytes that wait, or a hole that is certain."""
    return d.pos < d.end or d.piece_end > d.piece_from or d.cut_end > d.next


@kernel
def drain(state, direction):
    """Let the framing consume what is in order, bring in what waited for it, declare holes that are certain."""
    c = state.connection[0]
    d = state.directions[direction]
    s = state.streams[direction]
    while True:
        code = consume(state, direction)
        if code != DONE:
            return code
        if d.piece_end > d.piece_from and s.pieces[d.piece_from].start <= d.next:
            piece = s.pieces[d.piece_from]
            old = int(d.next) - int(piece.start)
            size = int(piece.length) - old
            if size > 0:
                code = make_room(d, s, size, 1)
                if code != DONE:
                    return code
                at = int(piece.pool_at) + old
                bring(
                    d, s, s.pool, at, size, int(piece.arrival), int(piece.packet_no), int(piece.ts_ns), int(piece.file)
                )
            if piece.cut > 0:
                d.cut_end = max(int(d.cut_end), int(piece.start) + int(piece.length) + int(piece.cut))
            drop_first_piece(d, s)
            continue
        gap = hole_ahead(d, s, c.over, int(c.now_ns), int(c.arrival))
        if gap == 0:
            return DONE
        d.final = 1  # for the bytes before the hole
        code = consume(state, direction)
        d.final = 0
        if code != DONE:
            return code
        if R.rows_full(state.rows):
            return NEED_ROWS
        step_over(state, c, d, s, direction, gap)


@kernel
def step_over(state, c, d, s, direction, gap):
    """`gap` bytes are missing at `next`, and the framing has consumed what it could before them."""
    rows, spans = state.rows, state.spans
    hole_end = int(d.next) + gap
    if d.mode == TLS or d.mode == FOREIGN:
        declare_missing(d, gap)
        return
    if d.mode == START:
        extend_span(d, s, int(d.next))
        close_span(rows, c, direction, d, spans, -1, int(d.next))
        gap_span(rows, c, direction, d, s, spans, gap, True)
        if spans.number[direction] >= SPANS:
            c.limits |= SEARCH
            become_foreign(d, s, spans, direction, FOREIGN)
        declare_missing(d, gap)
        d.pos = d.end
        return
    if d.mode == FRAMES:
        if d.end > d.pos and tear(state, c, d, direction, s):
            extend_span(d, s, int(d.next))
        else:
            d.mode = LOST
    if d.mode == INSIDE:
        gap_span(rows, c, direction, d, s, spans, gap, False)
        if d.frame_type == BODY and hole_end <= d.frame_end:
            rows.cells[rows.used[0] - 1, R.CHANNEL] = d.frame_channel  # nothing but content of this channel is lost
        if hole_end >= d.frame_end:
            torn_row(state, c, d, direction)
            if hole_end > d.frame_end:
                d.mode = LOST
    else:
        extend_span(d, s, int(d.next))
        close_span(rows, c, direction, d, spans, SKIPPED, int(d.next))
        gap_span(rows, c, direction, d, s, spans, gap, False)
    if d.mode == LOST:
        forget(state, direction)
    declare_missing(d, gap)
    scan_from(d, int(d.next))


@kernel
def consume(state, direction):
    """Framing of one direction as far as its bytes reach; `final` says that a hole or the end follows them."""
    c = state.connection[0]
    d = state.directions[direction]
    s = state.streams[direction]
    rows = state.rows
    ended = d.final != 0
    while d.pos < d.end:
        if R.rows_full(rows):
            return NEED_ROWS
        mode = int(d.mode)
        if mode == START:
            if not recognise(state, direction):
                return DONE
        elif mode == FRAMES:
            magic = matches_magic(s.bytes, int(d.pos), int(d.end))
            if magic == 4 and d.end - d.pos >= 8 and plausible_header(s.bytes, int(d.pos)):
                if not protocol_header(rows, c, direction, d, s, state.headers):
                    return NEED_ROWS
                continue
            if magic > 0 and d.end - d.pos < 8 and not ended:
                return DONE
            if c.family == UNKNOWN_FAMILY:
                if tls_record(s.bytes, int(d.pos), int(d.end), ended) == UNDECIDED:
                    return DONE
                is_tls = tls_record(s.bytes, int(d.pos), int(d.end), ended) == ACCEPT
                become_foreign(d, s, state.spans, direction, TLS if is_tls else FOREIGN)
                continue
            taken = take_frames(state, c, d, direction, s)
            if taken == ROWS_FULL:
                return NEED_ROWS
            if taken == MODE_CHANGED:
                scan_from(d, int(d.next) - (int(d.end) - int(d.pos)))
                if d.mode == LOST:
                    forget(state, direction)
            elif taken != TAKEN:
                return DONE
        elif mode == INSIDE:
            size = min(int(d.end) - int(d.pos), int(d.frame_end) - (int(d.next) - (int(d.end) - int(d.pos))))
            d.frame_seen += size
            extend_span(d, s, int(d.next) - (int(d.end) - int(d.pos)) + size)
            if int(d.next) - (int(d.end) - int(d.pos)) == d.frame_end:
                torn_row(state, c, d, direction)
        elif mode == LOST:
            if not search(state, direction):
                return DONE
        else:
            if mode == TLS and d.hello == 0:
                keep_hello(state, direction)
            become_foreign(d, s, state.spans, direction, mode)
    return DONE


@kernel
def end_connection(state):
    """No more segments: both directions give up waiting. Can be called again after NEED_*."""
    c = state.connection[0]
    c.over = 1
    for direction in range(2):
        code = drain(state, direction)
        if code != DONE:
            return code
    for direction in range(2):
        d = state.directions[direction]
        if d.closed:
            continue
        s = state.streams[direction]
        if d.mode == START and c.family != UNKNOWN_FAMILY:
            enter(state, direction, LOST)  # its peer turned out to be AMQP
        d.final = 1
        code = consume(state, direction)
        if code != DONE:
            return code
        if R.rows_full(state.rows):
            return NEED_ROWS
        close_direction(state, c, d, s, direction)
        d.closed = 1
    if c.client < 0:
        R.resolve_senders(state.rows, c, int(c.port_client), R.BY_PORT)
    return DONE


@kernel
def close_direction(state, c, d, s, direction):
    """The last row of a direction: what is left in the buffer, or the one row of a stream nobody read."""
    rows, spans = state.rows, state.spans
    if d.mode == START and (d.end > d.pos or spans.number[direction] > 0):
        become_foreign(d, s, spans, direction, FOREIGN)
    if d.mode == FRAMES:
        tail_row(rows, c, direction, d, s, spans)
    elif d.mode == INSIDE:
        torn_row(state, c, d, direction)
    elif d.mode == LOST:
        extend_span(d, s, int(d.next))
        close_span(rows, c, direction, d, spans, SKIPPED, int(d.next))
    elif d.span_from >= 0:
        span = spans.waiting[direction][0]
        span.from_ = d.span_from
        span.length = d.tls_bytes if d.mode == TLS else d.foreign_bytes
        span.first_packet = d.span_first_packet
        span.first_ns = d.span_first_ns
        span.packet = d.span_packet
        span.ns = d.span_ns
        span.file = d.span_file
        span.notes = 0
        index = span_row(rows, c, direction, TLS_SPAN if d.mode == TLS else FOREIGN_SPAN, span)
        rows.cells[index][R.CODE] = d.foreign_head - 1
        d.span_from = -1
    if d.last_data_ns >= 0:
        d.max_silence_ns = max(int(d.max_silence_ns), int(c.last_ns) - int(d.last_data_ns))


@kernel
def run(state, segments, payload, i):
    """Take `segments[i:]` (SEGMENT records of one flow, their bytes in `payload`): (code, index of the current
    segment)."""
    c = state.connection[0]
    while i < len(segments):
        g = segments[i]
        direction = int(np.int64(g.direction))
        d = state.directions[direction]
        peer = state.directions[1 - direction]
        if c.phase == PLACE:
            if begins_anew(d, peer, g):
                c.phase = ENDING
            else:
                code = take(c, d, peer, direction, state.streams[direction], g, payload)
                if code != DONE:
                    return code, i, direction
                c.phase = DRAIN
        if c.phase == ENDING:
            code = end_connection(state)
            return (CONNECTION_ENDS if code == DONE else code), i, -1
        while c.phase != PLACE:
            side = direction if c.phase == DRAIN else 1 - direction
            if has_more(state.directions[side]):
                code = drain(state, side)
                if code != DONE:
                    return code, i, side
            c.phase = DRAIN_PEER if c.phase == DRAIN else PLACE
        i += 1
    return DONE, i, -1
