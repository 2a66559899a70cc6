"""One TCP connection: segments in order to rows of frames.

Theory of operation. After each segment both directions are drained: the framing consumes whole frames of the bytes in
order, and holes are declared when they are certain. Bytes wait while the other direction lacks bytes that their packet
acknowledged (`codec.tcp.reassembly`). A direction is in one of six modes:

    START    its protocol is not detected yet              -> FRAMES, LOST, TLS, FOREIGN
    FRAMES   `pos` is a frame boundary                     -> INSIDE (a hole), LOST (no frame here), TLS
    INSIDE   in a frame that lost bytes, its end is known  -> FRAMES, LOST
    LOST     the frame boundary is lost: find the next     -> FRAMES
    TLS, FOREIGN   bytes are counted but not decoded

Each step may stop for more room (codes `NEED_*`) and is called again; `State` has everything in between. It has one
connection at a time, which `codec.framing.stream` begins and ends. Cost: linear in the bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import ORDER_OF_SIDES, SEARCH
from codec.framing import connection as C
from codec.framing.classic_frames import DECODED, MODE_CHANGED, ROWS_FULL, Contents, new_contents, reset_contents
from codec.framing.connection import (
    NO_CONNECTION,
    begin_connection,
    begin_flow,
    own_version,
    record_end,
    same_flow,
)
from codec.framing.detection import (
    PARTIAL_BYTES,
    begin_partial,
    decode_frames,
    detect_direction,
    discard_incomplete,
    enter,
    only_content_missing,
    partial_row,
    save_tls_prefix,
    scan_from,
    search,
    stop_decoding,
)
from codec.framing.layered import begin_layers, end_layers, is_summary
from codec.framing.tcp_stalls import end_stalls, has_room
from codec.framing.transport import NO_PIECE, deliver_piece, open_window, opens_connection, take_segment
from codec.framing.v0_10_frames import Assemblies, new_assemblies
from codec.framing.v1_0_deliveries import Deliveries, new_deliveries, reset_deliveries
from codec.memory import as_records
from codec.net.layers import IN_LAYERS
from codec.protocol import rows as R
from codec.protocol.classic_tables import ClassicTables
from codec.protocol.frame_search import ACCEPT, UNDECIDED, tls_record
from codec.protocol.v0_10_tables import V0_10Tables, v0_10_tables
from codec.protocol.v1_0_tables import WireTables, v1_0_tables
from codec.protocol.versions import FOREIGN_SPAN, SKIPPED, TLS_SPAN, UNKNOWN_FAMILY, Headers
from codec.tcp import reassembly as D
from codec.tcp.reassembly import (
    DONE,
    NEED_ROWS,
    assume_uncaptured_bytes,
    declare_missing,
    hole_ahead,
    next_in_order,
    offset_of_pos,
    release,
    release_mark,
    stop_waiting,
    waits,
)


class State(NamedTuple):
    """The state of the current connection. `connection`: one CONNECTION record; `directions`: two DIRECTION records;
    `tls_prefix` uint8 (2, TLS_PREFIX_BYTES): the first bytes of each direction of a TLS stream; `partial` uint8 (2,
    PARTIAL_BYTES): the first bytes of the frame in each direction that lost bytes."""

    connection: np.ndarray
    directions: np.ndarray
    streams: tuple[D.Stream, D.Stream]
    spans: C.Spans
    contents: Contents
    rows: R.Rows
    tls_prefix: np.ndarray
    partial: np.ndarray
    headers: Headers
    classic: ClassicTables
    deliveries: Deliveries
    wire: WireTables
    assemblies: Assemblies
    v0_10: V0_10Tables
    openings: C.Openings
    ended: C.EndedRecords


def new_state(rows: R.Rows, headers: Headers, tables: ClassicTables, keep_payload: bool = False) -> State:
    """A state without a connection."""
    connection = as_records(np.zeros(1, C.CONNECTION_RECORD))
    connection["phase"] = C.NO_CONNECTION
    return State(
        connection,
        as_records(np.zeros(2, D.DIRECTION)),
        (D.new_stream(), D.new_stream()),
        C.new_spans(),
        new_contents(),
        rows,
        np.zeros((2, C.TLS_PREFIX_BYTES), np.uint8),
        np.zeros((2, PARTIAL_BYTES), np.uint8),
        headers,
        tables,
        new_deliveries(),
        v1_0_tables()[0],
        new_assemblies(),
        v0_10_tables(),
        C.new_openings(keep_payload),
        C.new_ended_records(),
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
        if c.in_turn:
            code = consume_in_turn(state)
            if code != D.DONE:
                return code
        code = consume_ready(state, direction, release(d, s, peer))
        if code != D.DONE:
            return code
        if c.in_turn:
            continue
        code = deliver_piece(c, d, s)
        if code == D.DONE:
            continue
        if code != NO_PIECE:
            return code
        gap = hole_ahead(d, s, c.ended, int(c.now_ns), int(c.arrival))
        if gap == 0 or d.ready < d.next:
            return D.DONE
        # Bytes that the peer sent before it acknowledged the hole are ordered first.
        peer.waived = max(int(peer.waived), int(d.next) + gap - 1)
        code = consume_ready(state, 1 - direction, release(peer, state.streams[1 - direction], d))
        if code != D.DONE:
            return code
        if c.in_turn:
            continue
        d.final = 1  # for the bytes before the hole
        code = consume(state, direction)
        d.final = 0
        if code != D.DONE:
            return code
        if c.in_turn:
            continue
        if R.rows_full(state.rows):
            return D.NEED_ROWS
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
def consume_in_turn(state):
    """The protocol has just been detected: consume the bytes that both directions have so far packet by packet, in the
    order of the capture."""
    directions = state.directions
    for side in range(2):
        d = directions[side]
        code = consume_ready(state, side, int(d.next) - int(d.ready))
        if code != D.DONE:
            return code
    while True:
        side = next_in_order(directions[0], state.streams[0], directions[1], state.streams[1])
        if side < 0:
            break
        d = directions[side]
        release_mark(d, state.streams[side])
        code = consume_ready(state, side, int(d.next) - int(d.ready))
        if code != D.DONE:
            return code
    state.connection[0].in_turn = 0
    return D.DONE


@kernel
def _note_order(cells, first, end, direction, d, peer):
    """Note rows of `direction` that were decoded before bytes of the peer that they acknowledge, or that are such
    bytes."""
    for i in range(first, end):
        if cells[i, R.DIRECTION] != direction:
            continue
        if d.early > peer.ready:
            cells[i, R.NOTES] |= R.PEER_LATE
        if cells[i, R.OFFSET] < peer.early:
            cells[i, R.NOTES] |= R.CAPTURED_LATE
            d.limits |= ORDER_OF_SIDES


@kernel
def skip_gap(state, c, d, s, direction, gap):
    """Declare the `gap` bytes at `next` missing, after the framing has consumed the bytes before them."""
    own_version(c, d, direction)
    _skip_gap(state, c, d, s, direction, gap)
    if c.answering:
        own_version(c, d, direction)


@kernel
def _skip_gap(state, c, d, s, direction, gap):
    rows, spans = state.rows, state.spans
    hole_end = int(d.next) + gap
    if d.mode == D.TLS or d.mode == D.FOREIGN:
        declare_missing(d, gap)
        return
    if d.mode == D.START:
        C.extend_span(d, s, int(d.next))
        C.close_span(rows, c, direction, d, spans, -1, int(d.next))
        C.gap_span(rows, c, direction, d, s, spans, gap, True)
        if spans.used[direction] >= C.SPANS:
            c.limits |= SEARCH
            stop_decoding(d, s, spans, direction, D.FOREIGN)
        declare_missing(d, gap)
        d.pos = d.end
        return
    if d.mode == D.FRAMES:
        if d.end > d.pos and begin_partial(state, c, d, direction, s):
            C.extend_span(d, s, int(d.next))
        else:
            d.mode = D.LOST
    if d.mode == D.INSIDE:
        C.gap_span(rows, c, direction, d, s, spans, gap, False)
        if hole_end <= d.frame_end and only_content_missing(state, c, d):
            rows.cells[rows.used[0] - 1, R.CHANNEL] = d.frame_channel
        if hole_end >= d.frame_end:
            partial_row(state, c, d, direction)
            if hole_end > d.frame_end:
                d.mode = D.LOST
    else:
        C.extend_span(d, s, int(d.next))
        C.close_span(rows, c, direction, d, spans, FOREIGN_SPAN if d.in_preamble else SKIPPED, int(d.next))
        C.gap_span(rows, c, direction, d, s, spans, gap, False)
    if d.mode == D.LOST:
        discard_incomplete(state, direction)
    declare_missing(d, gap)
    scan_from(d, int(d.next))


@kernel
def consume(state, direction):
    """Decode the bytes of one direction into rows; `final`: a hole or the end of the stream follows them."""
    c, d = state.connection[0], state.directions[direction]
    own_version(c, d, direction)
    code = _consume(state, direction)
    if c.answering:
        own_version(c, d, direction)
    return code


@kernel
def _consume(state, direction):
    c = state.connection[0]
    d = state.directions[direction]
    s = state.streams[direction]
    rows = state.rows
    ended = d.final != 0
    while d.pos < d.end:
        if R.rows_full(rows):
            return D.NEED_ROWS
        mode = int(d.mode)
        if mode == D.START:
            was_unknown = c.family == UNKNOWN_FAMILY
            if not detect_direction(state, direction) or (was_unknown and c.in_turn):
                return D.DONE
        elif mode == D.FRAMES:
            magic = C.matches_magic(s.bytes, int(d.pos), int(d.end))
            if magic == 4 and d.end - d.pos >= 8 and C.plausible_header(s.bytes, int(d.pos)):
                if not C.protocol_header(rows, c, direction, d, s, state.headers):
                    return D.NEED_ROWS
                if not c.answering:
                    own_version(c, d, direction)
                continue
            if magic > 0 and d.end - d.pos < 8 and not ended:
                return D.DONE
            if c.family == UNKNOWN_FAMILY:
                if tls_record(s.bytes, int(d.pos), int(d.end), ended) == UNDECIDED:
                    return D.DONE
                is_tls = tls_record(s.bytes, int(d.pos), int(d.end), ended) == ACCEPT
                stop_decoding(d, s, state.spans, direction, D.TLS if is_tls else D.FOREIGN)
                continue
            outcome = decode_frames(state, c, d, direction, s)
            if outcome == ROWS_FULL:
                return D.NEED_ROWS
            if outcome == MODE_CHANGED:
                scan_from(d, offset_of_pos(d))
                if d.mode == D.LOST:
                    discard_incomplete(state, direction)
            elif outcome != DECODED:
                return D.DONE
        elif mode == D.INSIDE:
            here = offset_of_pos(d)
            size = min(int(d.end) - int(d.pos), int(d.frame_end) - here)
            d.frame_seen += size
            C.extend_span(d, s, here + size)
            if here + size == d.frame_end:
                partial_row(state, c, d, direction)
        elif mode == D.LOST:
            if not search(state, direction):
                return D.DONE
        else:
            if mode == D.TLS and d.tls_prefix == 0:
                save_tls_prefix(state, direction)
            stop_decoding(d, s, state.spans, direction, mode)
    return D.DONE


@kernel
def end_connection(state):
    """End the connection: both directions stop waiting. Call again after NEED_*."""
    c = state.connection[0]
    first, second = state.directions[0], state.directions[1]
    if not has_room(state.rows):
        return D.NEED_ROWS
    c.ended = 1
    again = True
    while again:
        ready = int(first.ready) + int(second.ready)
        for direction in range(2):
            if not is_drained(state.directions[direction]):
                code = drain(state, direction)
                if code != D.DONE:
                    return code
        # Bytes of the first direction may have been read while the second one was drained.
        again = (has_waiting_bytes(state.directions) and can_continue(state)) or first.ready + second.ready != ready
        if not again and c.family != UNKNOWN_FAMILY:
            again = assume_uncaptured_bytes(first) or assume_uncaptured_bytes(second)
    for direction in range(2):
        d = state.directions[direction]
        open_window(d, int(c.last_ns))
        if d.closed or (d.mode == D.START and d.last_data_ns < 0 and d.holes == 0):  # it sent no data
            continue
        s = state.streams[direction]
        if d.mode == D.START and c.family != UNKNOWN_FAMILY:
            enter(state, direction, D.LOST)  # its peer is AMQP
        d.final = 1
        code = consume(state, direction)
        if code == D.DONE and c.in_turn:
            d.final = 0
            code = consume_in_turn(state)
            if code == D.DONE:
                d.final = 1
                code = consume(state, direction)
        if code != D.DONE:
            return code
        if R.rows_full(state.rows):
            return D.NEED_ROWS
        close_direction(state, c, d, s, direction)
        d.closed = 1
    if c.client < 0:
        R.resolve_likely(state.rows, c)
    end_stalls(c, first, second, 0, state.rows)
    end_stalls(c, second, first, 1, state.rows)
    return D.DONE


@kernel
def close_direction(state, c, d, s, direction):
    """Append the last row of a direction: the rest of the buffer, or the only row of a stream that is not decoded."""
    own_version(c, d, direction)
    _close_direction(state, c, d, s, direction)
    if c.answering:
        own_version(c, d, direction)


@kernel
def _close_direction(state, c, d, s, direction):
    rows, spans = state.rows, state.spans
    if d.mode == D.START and (d.end > d.pos or spans.used[direction] > 0):
        stop_decoding(d, s, spans, direction, D.FOREIGN)
    if d.mode == D.FRAMES:
        C.tail_row(rows, c, direction, d, s, spans)
    elif d.mode == D.INSIDE:
        partial_row(state, c, d, direction)
    elif d.mode == D.LOST:
        C.extend_span(d, s, int(d.next))
        C.close_span(rows, c, direction, d, spans, FOREIGN_SPAN if d.in_preamble else SKIPPED, int(d.next))
    elif d.span_from >= 0:
        span = spans.pending[direction][0]
        foreign = int(d.foreign_bytes) - int(d.proxy_bytes) - int(d.preamble_bytes)
        C.take_span(d, span, int(d.tls_bytes) if d.mode == D.TLS else foreign, 0)
        index = C.span_row(rows, c, direction, TLS_SPAN if d.mode == D.TLS else FOREIGN_SPAN, span)
        rows.cells[index][R.CODE] = d.foreign_head - 1
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
    return first.wait_from < first.mark_end or second.wait_from < second.mark_end


@kernel
def can_continue(state):
    """Whether bytes that waited for the other direction can be decoded now."""
    c, first, second = state.connection[0], state.directions[0], state.directions[1]
    a, b = state.streams[0], state.streams[1]
    if first.wait_from < first.mark_end and not waits(first, a, second):
        return True
    if second.wait_from < second.mark_end and not waits(second, b, first):
        return True
    return stop_waiting(c, first, a, second, b)


# Flows, one after the other: begins and ends their connections, and adds segments to them.
#
# `run` adds segments one by one in capture order (`codec.framing.transport`). After each it drains both
# directions, in turns where bytes of one wait for the other (`codec.tcp.reassembly`). It can stop
# anywhere for more room (codes `NEED_*`) and is called again with the same segment; `State` has everything in between.
# `State` has one connection at a time: the caller passes segments flow by flow. A connection ends when another one
# begins or the flow has no more segments; then `State.ended` has its records.


INSERT, DRAIN, DRAIN_PEER, ENDING = range(4)  # phases of the current segment; NO_CONNECTION is between two connections


@kernel
def end_current(state):
    """End the current connection and store its records; DONE or NEED_*."""
    code = end_connection(state)
    if code != DONE:
        return code
    if not record_end(state.ended, state.openings.flow, state.connection, state.directions, state.tls_prefix):
        return NEED_ROWS
    state.connection[0].phase = NO_CONNECTION
    return DONE


@kernel
def run(state, flows, ends, segments, payload, flow, i):
    """Add `segments[i:]` (SEGMENT records, flow by flow, their bytes in `payload`): (code, index of the current flow,
    of the current segment, direction that needs room or -1 for both). Flow f has key `flows[f]` and the segments before
    `ends[f]`; the first flow may continue the current one. In phase ENDING the current connection ends first."""
    c = state.connection[0]
    known = -1  # index of the flow that is known to be the current one
    while i < len(segments) or c.phase == ENDING:
        if c.phase == ENDING:
            code = end_current(state)
            if code != DONE:
                return code, flow, i, -1
            known = -1
            continue
        if i >= ends[flow]:
            flow += 1
            continue
        if flow != known and not same_flow(state.openings, flows[flow]):
            if c.phase == INSERT:
                c.phase = ENDING
                continue
            begin_flow(state.openings, flows[flow])
        known = flow
        g = segments[i]
        direction = int(np.int64(g.direction))
        d = state.directions[direction]
        peer = state.directions[1 - direction]
        if is_summary(g):
            end_layers(c, state.directions, g, payload)
            i += 1
            continue
        if c.phase == NO_CONNECTION:
            begin_connection(state.openings, state.connection, state.directions, g, int(state.rows.used[0]))
            for side in range(2):
                reset_contents(state.contents, side)
                reset_deliveries(state.deliveries, side)
                state.spans.used[side] = 0
            c.phase = INSERT
        if c.phase == INSERT:
            in_layers = g["flags"] & IN_LAYERS != 0
            if not (in_layers and c.in_layers) and opens_connection(d, peer, g):
                c.phase = ENDING
                continue
            if in_layers:
                begin_layers(c)
            code = take_segment(c, d, peer, direction, state.streams[direction], state.rows, g, payload)
            if code != DONE:
                return code, flow, i, direction
            c.phase = DRAIN
        while c.phase != INSERT:
            side = direction if c.phase == DRAIN else 1 - direction
            if has_more(state.directions[side]):
                code = drain(state, side)
                if code != DONE:
                    return code, flow, i, side
            if c.phase == DRAIN:
                c.phase = DRAIN_PEER
            elif has_waiting_bytes(state.directions) and can_continue(state):
                c.phase = DRAIN
            else:
                c.phase = INSERT
        i += 1
    return DONE, flow, i, -1
