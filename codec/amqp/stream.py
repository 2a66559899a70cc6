"""One TCP connection: placed segments in, rows of frames out.

Theory of operation. After each segment both directions are drained. Bytes in order go to the framing, which consumes
whole frames; holes are declared when they are certain. Bytes wait while the other direction lacks bytes that their
packet acknowledged (`codec.tcp.reassembly`). A direction is in one of six modes:

    START    its protocol is not detected yet              -> FRAMES, LOST, TLS, FOREIGN
    FRAMES   `pos` is a frame boundary                     -> INSIDE (a hole), LOST (no frame here), TLS
    INSIDE   in a frame that lost bytes, its end is known  -> FRAMES, LOST
    LOST     the frame boundary is lost: find the next     -> FRAMES
    TLS, FOREIGN   bytes are counted but not decoded

Each step may stop for more room (codes `NEED_*`) and is called again; `State` has everything in between. It has one
connection at a time; `codec.amqp.connections.flows` begins and ends them. Cost: linear in the bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.amqp import notes as N
from codec.amqp import rows as R
from codec.amqp.classic.contents import Contents, new_contents
from codec.amqp.classic.frames import MODE_CHANGED, ROWS_FULL, TAKEN
from codec.amqp.classic.tables import ClassicTables
from codec.amqp.connections.begun import NO_CONNECTION, Begun, new_begun
from codec.amqp.connections.connection import (
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
from codec.amqp.connections.ended import Ended, new_ended
from codec.amqp.connections.transport import bring, open_window
from codec.amqp.detection import HELLO_BYTES, detect_direction, enter, save_hello, scan_from, search, set_unread
from codec.amqp.frame_search import ACCEPT, UNDECIDED, tls_record
from codec.amqp.framing import TORN_BYTES, begin_partial, forget, partial_row, take_frames
from codec.amqp.v0_10.assemblies import Assemblies, new_assemblies
from codec.amqp.v0_10.tables import V0_10Tables, v0_10_tables
from codec.amqp.v1_0.delivery_slots import Deliveries, new_deliveries
from codec.amqp.v1_0.tables import WireTables, v1_0_tables
from codec.amqp.versions import (
    BODY,
    FOREIGN_SPAN,
    SKIPPED,
    TLS_SPAN,
    UNKNOWN_FAMILY,
    Headers,
)
from codec.compiler.kernel import kernel
from codec.compiler.limits import ORDER_OF_SIDES, SEARCH
from codec.tcp.direction import (
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
from codec.tcp.pieces import drop_first_piece, hole_ahead
from codec.tcp.reassembly import declare_missing, give_up, make_room, release, waits


class State(NamedTuple):
    """The state of the current connection. `connection`: one CONNECTION record; `directions`: two DIRECTION records;
    `hello` uint8 (2, HELLO_BYTES): the beginning of each direction of a TLS stream; `torn` uint8 (2, TORN_BYTES): the
    beginning of the frame in each direction that lost bytes."""

    connection: np.ndarray
    directions: np.ndarray
    streams: tuple[Stream, Stream]
    spans: Spans
    contents: Contents
    rows: R.Rows
    hello: np.ndarray
    torn: np.ndarray
    headers: Headers
    classic: ClassicTables
    deliveries: Deliveries
    wire: WireTables
    assemblies: Assemblies
    v0_10: V0_10Tables
    begun: Begun
    ended: Ended


def new_state(rows: R.Rows, headers: Headers, tables: ClassicTables, keep_payload: bool = False) -> State:
    """A state without a connection."""
    connection = np.zeros(1, CONNECTION).view(np.recarray)
    connection["phase"] = NO_CONNECTION
    return State(
        connection,
        np.zeros(2, DIRECTION).view(np.recarray),
        (new_stream(), new_stream()),
        new_spans(),
        new_contents(),
        rows,
        np.zeros((2, HELLO_BYTES), np.uint8),
        np.zeros((2, TORN_BYTES), np.uint8),
        headers,
        tables,
        new_deliveries(),
        v1_0_tables()[0],
        new_assemblies(),
        v0_10_tables(),
        new_begun(keep_payload),
        new_ended(),
    )


@kernel
def has_more(d):
    """Whether `drain` has anything to do: bytes in order, later bytes, or a hole that is certain."""
    return d.pos < d.end or d.piece_end > d.piece_from or d.cut_end > d.next


@kernel
def drain(state, direction):
    """Consume the bytes in order, append later bytes that are now in order, declare holes that are certain."""
    c = state.connection[0]
    d = state.directions[direction]
    s = state.streams[direction]
    peer = state.directions[1 - direction]
    while True:
        code = consume_ready(state, direction, release(d, s, peer))
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
                arrival, packet_no, ts_ns, file = piece.arrival, piece.packet_no, piece.ts_ns, piece.file
                needs = int(piece.needs)
                bring(c, d, s, s.pool, at, size, int(arrival), int(packet_no), int(ts_ns), int(file), needs)
            if piece.cut > 0:
                d.cut_end = max(int(d.cut_end), int(piece.start) + int(piece.length) + int(piece.cut))
            drop_first_piece(d, s)
            continue
        gap = hole_ahead(d, s, c.over, int(c.now_ns), int(c.arrival))
        if gap == 0 or d.ready < d.next:
            return DONE
        d.final = 1  # for the bytes before the hole
        code = consume(state, direction)
        d.final = 0
        if code != DONE:
            return code
        if R.rows_full(state.rows):
            return NEED_ROWS
        skip_gap(state, c, d, s, direction, gap)


@kernel
def consume_ready(state, direction, waiting):
    """`consume`, without the last `waiting` bytes, which wait for the other direction."""
    d = state.directions[direction]
    peer = state.directions[1 - direction]
    first = int(state.rows.used[0])
    d.end -= waiting
    d.next -= waiting
    d.payload_bytes -= waiting
    code = consume(state, direction)
    d.end += waiting
    d.next += waiting
    d.payload_bytes += waiting
    if d.early > peer.ready or peer.early > 0:
        _note_order(state.rows.cells, first, int(state.rows.used[0]), direction, d, peer)
    return code


@kernel
def _note_order(cells, first, end, direction, d, peer):
    """Note rows of `direction` that were decoded before bytes of the peer that they acknowledge, or that are such
    bytes."""
    for i in range(first, end):
        if cells[i, R.DIRECTION] != direction:
            continue
        if d.early > peer.ready:
            cells[i, R.NOTES] |= N.PEER_LATE
        if cells[i, R.OFFSET] < peer.early:
            cells[i, R.NOTES] |= N.CAPTURED_LATE
            d.limits |= ORDER_OF_SIDES


@kernel
def skip_gap(state, c, d, s, direction, gap):
    """Declare the `gap` bytes at `next` missing, after the framing has consumed the bytes before them."""
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
            set_unread(d, s, spans, direction, FOREIGN)
        declare_missing(d, gap)
        d.pos = d.end
        return
    if d.mode == FRAMES:
        if d.end > d.pos and begin_partial(state, c, d, direction, s):
            extend_span(d, s, int(d.next))
        else:
            d.mode = LOST
    if d.mode == INSIDE:
        gap_span(rows, c, direction, d, s, spans, gap, False)
        if d.frame_type == BODY and hole_end <= d.frame_end:
            rows.cells[rows.used[0] - 1, R.CHANNEL] = d.frame_channel  # only content of this channel is lost
        if hole_end >= d.frame_end:
            partial_row(state, c, d, direction)
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
    """Decode the bytes of one direction into rows; `final`: a hole or the end of the stream follows them."""
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
            if not detect_direction(state, direction):
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
                set_unread(d, s, state.spans, direction, TLS if is_tls else FOREIGN)
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
                partial_row(state, c, d, direction)
        elif mode == LOST:
            if not search(state, direction):
                return DONE
        else:
            if mode == TLS and d.hello == 0:
                save_hello(state, direction)
            set_unread(d, s, state.spans, direction, mode)
    return DONE


@kernel
def end_connection(state):
    """End the connection: both directions stop waiting. Call again after NEED_*."""
    c = state.connection[0]
    c.over = 1
    again = True
    while again:
        for direction in range(2):
            if not is_drained(state.directions[direction]):
                code = drain(state, direction)
                if code != DONE:
                    return code
        again = has_waiting_bytes(state.directions) and can_continue(state)
    for direction in range(2):
        d = state.directions[direction]
        open_window(d, int(c.last_ns))
        if d.closed or (d.mode == START and d.last_data_ns < 0 and d.holes == 0):  # it sent no data
            continue
        s = state.streams[direction]
        if d.mode == START and c.family != UNKNOWN_FAMILY:
            enter(state, direction, LOST)  # its peer is AMQP
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
    """Append the last row of a direction: the rest of the buffer, or the only row of a stream that is not decoded."""
    rows, spans = state.rows, state.spans
    if d.mode == START and (d.end > d.pos or spans.number[direction] > 0):
        set_unread(d, s, spans, direction, FOREIGN)
    if d.mode == FRAMES:
        tail_row(rows, c, direction, d, s, spans)
    elif d.mode == INSIDE:
        partial_row(state, c, d, direction)
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
def is_drained(d):
    """Whether a direction of an ended connection is complete: nothing to drain, no missing bytes."""
    complete = d.anchored == 0 or (d.fin_at <= d.next and d.acked <= d.next)
    return complete and not has_more(d)


@kernel
def has_waiting_bytes(directions):
    """Whether bytes of one direction wait for the other direction."""
    first, second = directions[0], directions[1]
    return first.gate < first.mark_end or second.gate < second.mark_end


@kernel
def can_continue(state):
    """Whether bytes that waited for the other direction can be decoded now."""
    c, first, second = state.connection[0], state.directions[0], state.directions[1]
    a, b = state.streams[0], state.streams[1]
    if first.gate < first.mark_end and not waits(first, a, second):
        return True
    if second.gate < second.mark_end and not waits(second, b, first):
        return True
    return give_up(c, first, a, second, b)
