"""One TCP connection: captured segments in, rows of frames out.

Theory of operation. `run` takes segments one by one in capture order. A segment is first placed (`take`: handshake,
acknowledgements, retransmissions, reordering), then both directions are drained: bytes in order go to the framing, which
consumes whole frames at once; holes are declared when they are certain. A direction is in one of six modes:

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
from codec.amqp.classic_frames import MODE_CHANGED, ROWS_FULL, TAKEN
from codec.amqp.connection import (
    CONNECTION,
    END_FIN,
    END_NONE,
    END_RST,
    SPANS,
    Spans,
    close_span,
    extend_span,
    gap_span,
    matches_magic,
    new_spans,
    plausible_header,
    protocol_header,
    release_spans,
    span_row,
    tail_row,
)
from codec.amqp.contents import Contents, new_contents
from codec.amqp.deliveries import Deliveries, new_deliveries
from codec.amqp.detect import ACCEPT, REJECT, UNDECIDED, tls_record
from codec.amqp.framing import ASSUMED_VERSION, find_frames, forget, next_frame, tear, torn_row
from codec.amqp.tables import ClassicTables
from codec.amqp.tables_1_0 import WireTables, described_tables
from codec.amqp.versions import (
    FOREIGN_SPAN,
    SEGMENTED,
    SKIPPED,
    TLS_SPAN,
    UNKNOWN_FAMILY,
    Headers,
)
from codec.kernel import kernel
from codec.limits import LIMITS
from codec.net.reassembly import (
    CONNECTION_ENDS,
    DIRECTION,
    DONE,
    FOREIGN,
    FRAMES,
    HISTORY,
    INSIDE,
    LOST,
    NEED_ROWS,
    OUT_OF_WINDOW,
    START,
    TLS,
    Stream,
    anchor,
    count_conflicts,
    declare_missing,
    deliver,
    drop_first_piece,
    hold,
    hold_room,
    hole_ahead,
    make_room,
    new_stream,
    offset_of,
    swallow,
)
from codec.net.segments import ACK, FIN, RST, SYN

DETECT_BYTES = LIMITS.detect_bytes
HELLO_BYTES = 4096

PLACE, DRAIN, DRAIN_PEER, ENDING = range(4)


class State(NamedTuple):
    """Everything about the connection at hand. `connection`: one CONNECTION record; `directions`: two DIRECTION records;
    `hello` uint8 (2, HELLO_BYTES): how each direction of a TLS stream begins."""

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
    )


@kernel
def begins_anew(d, peer, g):
    """Is this SYN the first packet of another connection on the same addresses and ports? (RFC 9293 section 3.4.3)"""
    if not g.flags & SYN or not (d.packets or peer.packets):
        return False
    if d.anchored:
        if d.syn and (int(g.seq) + 1 + int(d.next) - int(d.seq)) % (1 << 32) == 0:
            return False  # the same SYN again
        if d.syn or d.payload_bytes > 0 or d.missing_bytes > 0:
            return True
    if g.flags & ACK:
        return False
    return bool(peer.anchored and (peer.payload_bytes > 0 or peer.fin or peer.rst) and not peer.syn)


@kernel
def note_flags(c, d, peer, direction, g):
    """Handshake, end and acknowledgement of one segment."""
    ts = int(g.ts_ns)
    if g.flags & SYN:
        if not d.anchored:
            anchor(d, (int(g.seq) + 1) % (1 << 32))
        d.syn = 1
        if g.flags & ACK:
            if c.synack_ns < 0:
                c.synack_ns = ts
            if c.client < 0:
                c.client = 1 - direction
                c.known_by = R.BY_SYN
        else:
            if c.syn_ns < 0:
                c.syn_ns = ts
            if c.client < 0:
                c.client = direction
                c.known_by = R.BY_SYN
    elif g.flags & ACK and c.rtt_ns < 0 and c.syn_ns >= 0 and c.synack_ns >= 0 and direction == c.client:
        c.rtt_ns = max(0, ts - int(c.syn_ns))
    if g.flags & ACK and peer.anchored:
        acked = offset_of(peer, int(g.ack))
        if abs(acked - int(peer.next)) < OUT_OF_WINDOW:
            peer.acked = max(int(peer.acked), acked)
    if g.flags & RST:
        d.rst = 1
        if c.tcp_end == END_NONE:
            c.tcp_end = END_RST
            c.tcp_end_by = direction
    elif g.flags & FIN:
        d.fin = 1
        if c.tcp_end == END_NONE:
            c.tcp_end = END_FIN
            c.tcp_end_by = direction


@kernel
def take(c, d, peer, direction, s, g, payload):
    """Place one segment: NEED_* with nothing changed, or DONE."""
    size = int(g.cap_len)
    code = make_room(d, s, size, 1)
    if code != DONE:
        return code
    code = hold_room(d, s, size)
    if code != DONE:
        return code
    ts = int(g.ts_ns)
    c.arrival += 1
    c.now_ns = g.order_ns
    d.packets += 1
    c.last_ns = max(int(c.last_ns), ts)
    c.last_packet = g.packet_no
    c.last_file = g.file
    note_flags(c, d, peer, direction, g)
    first = (int(g.seq) + (1 if g.flags & SYN else 0)) % (1 << 32)
    if g.wire_len > 0:
        if not d.anchored:
            if g.flags & RST:
                return DONE
            anchor(d, first)
        start = offset_of(d, first)
        if abs(start - int(d.next)) >= OUT_OF_WINDOW:
            d.window_limit = 1
            return DONE
        place(c, d, s, g, payload, start)
    if g.flags & FIN and d.anchored and d.fin_at < 0:
        fin_at = offset_of(d, first) + int(g.wire_len)
        if fin_at >= d.next - 1 and fin_at - d.next < OUT_OF_WINDOW:
            d.fin_at = fin_at
    return DONE


@kernel
def place(c, d, s, g, payload, start):
    """The payload of `g` has stream offset `start`: deliver it, hold it, or count it as a copy."""
    ts = int(g.ts_ns)
    size, wire = int(g.cap_len), int(g.wire_len)
    at = int(g.payload_at)
    cut = wire - size
    if start + wire <= d.next and wire <= 1 and start + 1 == d.next:
        return  # keep-alive: one old octet, whatever its value (RFC 9293 section 3.8.4)
    if d.last_data_ns >= 0:
        d.max_silence_ns = max(int(d.max_silence_ns), ts - int(d.last_data_ns))
    d.last_data_ns = max(int(d.last_data_ns), ts)
    if start < d.next:
        old = min(start + wire, int(d.next)) - start
        d.retransmitted_bytes += old
        if d.mode != TLS and d.mode != FOREIGN:
            count_conflicts(d, s, payload, at, start, min(old, size))
        if start + wire <= d.next:
            return
        at += min(old, size)
        size = max(0, size - old)
        cut = wire - old - size
        start = int(d.next)
    if start < d.highest and start + size > d.next:
        d.out_of_order += 1
    d.highest = max(int(d.highest), start + size)
    waiting = d.piece_end > d.piece_from
    if start == d.next and (not waiting or s.pieces[d.piece_from].start >= start + size):
        if size > 0:
            bring(d, s, payload, at, size, int(c.arrival), int(g.packet_no), ts, int(g.file))
        if cut > 0:
            d.cut_end = max(int(d.cut_end), start + size + cut)
    else:
        hold(d, s, payload, at, start, size, cut, int(c.arrival), int(g.packet_no), ts, int(g.file))


@kernel
def bring(d, s, source, at, size, arrival, packet_no, ts, file):
    """Bytes in order: to the framing, or counted when nobody reads this direction."""
    if d.mode == TLS or d.mode == FOREIGN:
        if d.span_from < 0:
            d.span_from = d.next
            d.span_first_packet = packet_no
            d.span_first_ns = ts
        d.span_packet = packet_no
        d.span_ns = ts
        d.span_file = file
        if d.mode == TLS:
            d.tls_bytes += size
        else:
            d.foreign_bytes += size
        swallow(d, size)
    else:
        deliver(d, s, source, at, size, arrival, packet_no, ts, file)


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
            size = int(piece.size) - old
            if size > 0:
                code = make_room(d, s, size, 1)
                if code != DONE:
                    return code
                at = int(piece.pool_at) + old
                bring(
                    d, s, s.pool, at, size, int(piece.arrival), int(piece.packet_no), int(piece.ts_ns), int(piece.file)
                )
            if piece.cut > 0:
                d.cut_end = max(int(d.cut_end), int(piece.start) + int(piece.size) + int(piece.cut))
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
        if spans.count[direction] + 2 >= SPANS:
            become_foreign(d, s, spans, direction, FOREIGN)
        declare_missing(d, gap)
        d.pos = d.end
        return
    if d.mode == FRAMES:
        if d.end > d.pos and tear(state, c, d, s):
            extend_span(d, s, int(d.next))
        else:
            d.mode = LOST
    if d.mode == INSIDE:
        gap_span(rows, c, direction, d, s, spans, gap, False)
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
    d.scanned = d.next


@kernel
def become_foreign(d, s, spans, direction, mode):
    """Nobody will read this direction: what is buffered, and the spans that waited, are counted with the rest."""
    for i in range(int(spans.count[direction])):
        span = spans.waiting[direction][i]
        if not span.gap:
            if mode == TLS:
                d.tls_bytes += span.size
            else:
                d.foreign_bytes += span.size
    if spans.count[direction] > 0 and d.span_from < 0:
        first = spans.waiting[direction][0]
        d.span_from = first.from_
        d.span_first_packet = first.first_packet
        d.span_first_ns = first.first_ns
        d.span_packet = first.packet
        d.span_ns = first.ns
        d.span_file = first.file
    spans.count[direction] = 0
    size = int(d.end) - int(d.pos)
    extend_span(d, s, int(d.next))
    if mode == TLS:
        d.tls_bytes += size
    else:
        d.foreign_bytes += size
    d.mode = mode
    d.pos = d.end
    d.kept = d.end


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
            if c.family == UNKNOWN_FAMILY or c.family == SEGMENTED:
                if c.family == UNKNOWN_FAMILY and tls_record(s.bytes, int(d.pos), int(d.end), ended) == UNDECIDED:
                    return DONE
                is_tls = tls_record(s.bytes, int(d.pos), int(d.end), ended) == ACCEPT
                become_foreign(d, s, state.spans, direction, TLS if is_tls else FOREIGN)
                continue
            taken = TAKEN
            while taken == TAKEN and not R.rows_full(rows):
                taken = next_frame(state, c, d, direction, s)
                if d.pos < d.end and s.bytes[d.pos] == 0x41:
                    break  # perhaps a protocol header
            if taken == ROWS_FULL:
                return NEED_ROWS
            if taken == MODE_CHANGED:
                d.scanned = int(d.next) - (int(d.end) - int(d.pos))
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
def keep_hello(state, direction):
    """Keep the first bytes of a TLS stream: its hello names the server and the TLS version."""
    d = state.directions[direction]
    s = state.streams[direction]
    size = min(int(d.end) - int(d.pos), HELLO_BYTES)
    for i in range(size):
        state.hello[direction, i] = s.bytes[d.pos + i]
    d.hello = size


@kernel
def search(state, direction):
    """LOST: look for the next boundary. True when there is one (FRAMES from `pos`) or all bytes are ruled out."""
    c = state.connection[0]
    d = state.directions[direction]
    ended = d.final != 0
    s = state.streams[direction]
    here = int(d.next) - (int(d.end) - int(d.pos))
    skip = max(0, int(d.scanned) - here)
    verdict, at, _ = find_frames(state, c, s.bytes, int(d.pos) + skip, int(d.end), ended)
    found = here + at - int(d.pos)
    d.scanned = found
    extend_span(d, s, found)
    if verdict != ACCEPT:
        return ended
    close_span(state.rows, c, direction, d, state.spans, SKIPPED, found)
    d.mode = FRAMES
    return True


@kernel
def recognise(state, direction):
    """START: decide what this direction is. False: not yet, more bytes may tell."""
    c = state.connection[0]
    d = state.directions[direction]
    s = state.streams[direction]
    spans = state.spans
    ended = d.final != 0
    p, end = int(d.pos), int(d.end)
    from_start = d.syn != 0 and d.holes == 0 and d.payload_bytes == end - p
    if matches_magic(s.bytes, p, end) > 0:
        if end - p < 8:
            if not ended:
                return False
        elif plausible_header(s.bytes, p):
            enter(state, direction, FRAMES)
            return True
    tls = tls_record(s.bytes, p, end, ended)
    if tls == UNDECIDED:
        return False
    if tls == ACCEPT and c.family == UNKNOWN_FAMILY:
        if from_start and (s.bytes[p] == 22 or s.bytes[p] == 21) or tls_chain(s.bytes, p, end, ended):
            keep_hello(state, direction)
            become_foreign(d, s, spans, direction, TLS)
            return True
    if c.family != UNKNOWN_FAMILY:
        enter(state, direction, FRAMES if from_start else LOST)
        return True
    peer = state.directions[1 - direction]
    if from_start and (direction == c.client or peer.mode == FOREIGN or peer.mode == TLS):
        become_foreign(d, s, spans, direction, FOREIGN)
        return True
    here = int(d.next) - (end - p)
    skip = max(0, int(d.scanned) - here)
    verdict, at, family = find_frames(state, c, s.bytes, p + skip, end, ended)
    d.scanned = here + at - p
    if verdict == ACCEPT:
        c.family = family
        c.version = ASSUMED_VERSION[family]
        c.version_known = 0
        enter(state, direction, LOST)
        return True
    if end - p > DETECT_BYTES:
        become_foreign(d, s, spans, direction, FOREIGN)
        return True
    return False


@kernel
def tls_chain(buf, p, end, ended):
    """In the middle of a stream one TLS record header is weak evidence: does another follow?"""
    size = 5 + ((int(buf[p + 3]) << 8) | int(buf[p + 4]))
    return p + size == end or tls_record(buf, p + size, end, ended) == ACCEPT


@kernel
def enter(state, direction, mode):
    """The stream is AMQP: the spans that waited become rows, framing begins in `mode`."""
    c = state.connection[0]
    d = state.directions[direction]
    release_spans(state.rows, c, direction, d, state.spans)
    d.mode = mode
    d.scanned = 0


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
    if d.mode == START and (d.end > d.pos or spans.count[direction] > 0):
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
        span.size = d.tls_bytes if d.mode == TLS else d.foreign_bytes
        span.first_packet = d.span_first_packet
        span.first_ns = d.span_first_ns
        span.packet = d.span_packet
        span.ns = d.span_ns
        span.file = d.span_file
        span_row(rows, c, direction, TLS_SPAN if d.mode == TLS else FOREIGN_SPAN, span)
        d.span_from = -1
    if d.last_data_ns >= 0:
        d.max_silence_ns = max(int(d.max_silence_ns), int(c.last_ns) - int(d.last_data_ns))


@kernel
def run(state, segments, payload, i):
    """Take `segments[i:]` (SEGMENT records of one flow, their bytes in `payload`): (code, index of the current segment)."""
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
        if c.phase == DRAIN:
            code = drain(state, direction)
            if code != DONE:
                return code, i, direction
            c.phase = DRAIN_PEER
        if c.phase == DRAIN_PEER:
            code = drain(state, 1 - direction)
            if code != DONE:
                return code, i, 1 - direction
            c.phase = PLACE
        i += 1
    return DONE, i, -1


__all__ = ["HISTORY", "REJECT", "State", "end_connection", "new_state", "run"]
