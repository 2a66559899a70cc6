"""Adds a captured segment to its connection: handshake, acknowledgements, end, and the position of its bytes.

The payload of a RST is not part of the stream, as it may be the reason for the reset (RFC 9293, section 3.5.3). It is
counted as `outside_bytes`, like the payload of segments outside of any window.
"""

from __future__ import annotations

from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import STRAY_SEGMENT
from codec.framing.connection import END_FIN, END_NONE, END_RST
from codec.framing.tcp_stalls import (
    forget_acked,
    has_room,
    note_acknowledgement,
    note_data,
    window_closes,
    window_opens,
)
from codec.net.layers import (
    ACK,
    FIN,
    IN_LAYERS,
    IS_LATE,
    IS_LOST,
    PEER_IS_LATE,
    RST,
    SYN,
)
from codec.protocol import rows as R
from codec.tcp import reassembly as T
from codec.tcp.reassembly import (
    DONE,
    FOREIGN,
    NEED_ROWS,
    TLS,
    drop_first_piece,
    piece_room,
    store_piece,
)

FAR = 1 << 62  # a stream offset behind all others
NO_PIECE = -1


@kernel
def opens_connection(d, peer, g):
    """Whether this SYN opens another connection on the same addresses and ports (RFC 9293, section 3.4.3)."""
    if not g["flags"] & SYN or not (d.packets or peer.packets):
        return False
    begins = (int(g.seq) + 1) % T.WRAP
    if d.anchored:
        if (begins + int(d.next) - int(d.seq)) % T.WRAP == 0:
            return False  # a copy of the same SYN, or a late one: the known bytes begin after it
        if d.syn or d.payload_bytes > 0 or d.missing_bytes > 0:
            return True
    if g["flags"] & ACK:
        return bool(peer.anchored and not answers(peer, g))
    if d.expected_seq >= 0:
        return bool(begins != d.expected_seq)  # the SYN-ACK, which came first, answers another SYN
    return bool(peer.anchored and (peer.payload_bytes > 0 or peer.fin or peer.rst) and not peer.syn)


@kernel
def answers(peer, g):
    """Whether the SYN-ACK `g` answers the SYN of this peer: it acknowledges the SYN, alone or with its bytes (RFC 7413,
    section 3)."""
    acked = T.offset_of(peer, int(g.ack))
    return acked == 0 or (peer.syn != 0 and 0 < acked <= peer.highest)


@kernel
def note_flags(c, d, peer, direction, rows, g):
    """Apply the handshake, end and acknowledgement of a segment."""
    ts = int(g.ts_ns)
    if g["flags"] & SYN:
        if not d.anchored:
            T.anchor(d, (int(g.seq) + 1) % (1 << 32))
        d.syn = 1
        client = direction
        if g["flags"] & ACK:
            client = 1 - direction
            if c.synack_ns < 0:
                c.synack_ns = ts
            if not peer.anchored:
                peer.expected_seq = int(g.ack)
        elif c.syn_ns < 0:
            c.syn_ns = ts
        if c.client < 0:
            R.resolve_senders(rows, c, client, R.BY_SYN)
    elif g["flags"] & ACK and d.syn and not peer.anchored and peer.expected_seq < 0:
        peer.expected_seq = int(g.ack)  # the end of the handshake: the SYN-ACK was captured late, or not at all
    elif g["flags"] & ACK and c.rtt_ns < 0 and c.syn_ns >= 0 and c.synack_ns >= 0 and direction == c.client:
        c.rtt_ns = max(0, ts - int(c.syn_ns))
    if g["flags"] & ACK and peer.anchored:
        acked = T.offset_of(peer, int(g.ack))
        if abs(acked - int(peer.next)) < T.OUT_OF_WINDOW:
            peer.acked = max(int(peer.acked), acked)
            forget_acked(peer)
        else:
            peer.outside_ack = int(g.ack)
    elif g["flags"] & ACK and not g["flags"] & RST:
        T.note_unseen(peer, int(g.ack))
    if g["flags"] & RST:
        d.rst = 1
        if c.tcp_end == END_NONE:
            c.tcp_end = END_RST
            c.tcp_end_by = direction
            c.end_ack = int(g.ack) if g["flags"] & ACK else -1
    elif g["flags"] & FIN:
        d.fin = 1
        if c.tcp_end == END_NONE:
            c.tcp_end = END_FIN
            c.tcp_end_by = direction
            c.end_ack = int(g.ack) if g["flags"] & ACK else -1
        elif c.tcp_end_by != direction and c.end_ack == (int(g.seq) + int(g.wire_len) + 1) % T.WRAP:
            c.tcp_end = END_FIN  # the first captured end of the connection acknowledges this FIN
            c.tcp_end_by = direction
            c.end_ack = -1


@kernel
def note_window(c, d, peer, direction, rows, g):
    """Measure how long the sender of the segment announces a receive window of zero (RFC 9293, section 3.8.6). Windows
    of SYN and RST segments do not count."""
    if g["flags"] & (SYN | RST) or not g["flags"] & ACK:
        return
    if g.window == 0 and d.closed_window_ns < 0:
        d.closed_window_ns = g.ts_ns
        window_closes(c, peer, 1 - direction, rows, g)
    elif g.window > 0 and d.closed_window_ns >= 0:
        open_window(d, int(g.ts_ns))
        window_opens(peer, int(g.ts_ns))


@kernel
def open_window(d, ts):
    """The window is open again, or the connection ends."""
    if d.closed_window_ns >= 0:
        d.zero_window_ns += max(0, ts - int(d.closed_window_ns))
        d.closed_window_ns = -1


@kernel
def take_segment(c, d, peer, direction, s, rows, g, payload):
    """Add one segment: DONE, or NEED_* with nothing changed."""
    size = int(g.cap_len)
    code = T.make_room(d, s, size, 1)
    if code != DONE:
        return code
    code = piece_room(d, s, size)
    if code != DONE:
        return code
    if not has_room(rows):
        return NEED_ROWS
    ts = int(g.ts_ns)
    c.arrival += 1
    c.now_ns = g.order_ns
    d.packets += 1
    c.last_ns = max(int(c.last_ns), ts)
    c.last_packet = g.packet_no
    c.last_file = g.file
    note_flags(c, d, peer, direction, rows, g)
    note_window(c, d, peer, direction, rows, g)
    note_acknowledgement(d, peer, g)
    first = (int(g.seq) + (1 if g["flags"] & SYN else 0)) % T.WRAP
    if g.wire_len > 0:
        if g["flags"] & RST:
            d.outside_bytes += size
            return DONE
        if not d.anchored:
            T.anchor_at_first(d, first)
        start = T.offset_of(d, first)
        if abs(start - int(d.next)) >= T.OUT_OF_WINDOW:
            if not T.acknowledged_near(d, first):
                d.limits |= STRAY_SEGMENT
                d.outside_bytes += size
                return DONE
            start = T.skip_to(c, d, first)
        note_order(d, peer, g)
        if g["flags"] & IN_LAYERS:
            d.ordered = 1
        else:
            note_data(c, d, direction, rows, g, start)
        needs = T.acked_offset(peer, int(g.ack)) if g["flags"] & ACK else 0
        insert_payload(c, d, s, g, payload, start, needs)
    if g["flags"] & FIN and d.anchored and d.fin_at < 0:
        fin_at = T.offset_of(d, first) + int(g.wire_len)
        if fin_at >= d.next - 1 and fin_at - d.next < T.OUT_OF_WINDOW:
            d.fin_at = fin_at
    return DONE


@inlined
def note_order(d, peer, g):
    """Segments that layers have ordered have flags instead of offsets of late bytes, which counted encrypted bytes."""
    if g["flags"] & PEER_IS_LATE:
        d.early = FAR
    elif d.early == FAR:
        d.early = 0
    if peer.early == FAR and not g["flags"] & IS_LATE:
        peer.early = 0


@kernel
def insert_payload(c, d, s, g, payload, start, needs):
    """The payload of `g` has stream offset `start`: deliver it, store it, or count it as a copy."""
    ts = int(g.ts_ns)
    size, wire = int(g.cap_len), int(g.wire_len)
    at = int(g.payload_at)
    cut = wire - size
    if wire <= 1 and (start + 1 == d.next or start + 1 == d.cut_end):
        return  # keep-alive: one old byte, whatever its value (RFC 9293 section 3.8.4)
    if d.last_data_ns >= 0:
        d.max_silence_ns = max(int(d.max_silence_ns), ts - int(d.last_data_ns))
    d.last_data_ns = max(int(d.last_data_ns), ts)
    if start < d.next:
        old = min(start + wire, int(d.next)) - start
        if g["flags"] & IS_LOST == 0:  # a hole of a layer is no packet
            d.retransmitted_bytes += old
        if d.mode != TLS and d.mode != FOREIGN:
            T.count_conflicts(d, s, payload, at, start, min(old, size))
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
            deliver_or_count(c, d, s, payload, at, size, int(c.arrival), int(g.packet_no), ts, int(g.file), needs)
        if cut > 0:
            d.cut_end = max(int(d.cut_end), start + size + cut)
            if g["flags"] & IS_LOST:
                d.lost_end = d.cut_end
    else:
        store_piece(d, s, payload, at, start, size, cut, int(c.arrival), int(g.packet_no), ts, int(g.file), needs)


@kernel
def deliver_or_count(c, d, s, source, at, size, arrival, packet_no, ts, file, needs):
    """Pass bytes in order to the framing, or count them when this direction is not decoded."""
    if (d.mode == TLS or d.mode == FOREIGN) and d.pos == d.end:
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
        T.skip_unread(d, size)
    else:
        mark = T.deliver(d, s, source, at, size, arrival, packet_no, ts, file, needs)
        mark.since_arrival = c.arrival
        mark.since_ns = c.now_ns


@kernel
def deliver_piece(c, d, s):
    """Deliver the first piece of out-of-order data if the bytes before it are there: DONE, NEED_* with nothing changed,
    or NO_PIECE."""
    if d.piece_end == d.piece_from or s.pieces[d.piece_from].start > d.next:
        return NO_PIECE
    piece = s.pieces[d.piece_from]
    old = int(d.next) - int(piece.start)
    size = int(piece.length) - old
    if size > 0:
        code = T.make_room(d, s, size, 1)
        if code != DONE:
            return code
        at, needs = int(piece.pool_at) + old, int(piece.needs)
        arrival, packet_no, ts_ns, file = piece.arrival, piece.packet_no, piece.ts_ns, piece.file
        deliver_or_count(c, d, s, s.pool, at, size, int(arrival), int(packet_no), int(ts_ns), int(file), needs)
    if piece.cut > 0:
        d.cut_end = max(int(d.cut_end), int(piece.start) + int(piece.length) + int(piece.cut))
    drop_first_piece(d, s)
    return DONE
