"""One direction of a TCP connection: segments in any order in, bytes in order and holes out.

Rules (RFC 9293 section 3.4 for sequence arithmetic):

* A *stream offset* counts the bytes of a direction from its first one (the byte after the SYN, else the first byte
  captured); it includes bytes that are missing, so it never wraps and holes have exact lengths.
* The first captured copy of a byte wins. A later copy that differs is counted as a conflicting overlap, as far back as
  `HISTORY` bytes.
* Later data waits in `pieces` (sorted, disjoint, payload in `pool`) until what is before it arrives, or is declared
  missing: because the peer acknowledged past it, because the snaplen cut it off, because a limit is reached, or because
  the connection ended.
* In-order bytes stand in `bytes[pos:end]` until the framing consumes them; `marks` say which packet brought which byte.

Every function works on plain arrays and records, returns codes, and changes nothing when it reports that an array is
too small (`NEED_*`): the caller enlarges that array and calls again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.kernel import kernel
from codec.limits import LIMITS
from codec.variant.writer import copy_bytes

DONE, NEED_BYTES, NEED_MARKS, NEED_PIECES, NEED_POOL, NEED_ROWS, CONNECTION_ENDS = range(7)

OUT_OF_WINDOW = 1 << 30  # a segment this far from what is expected belongs to no window (RFC 7323 section 2.3)
HALF, WRAP = 1 << 31, 1 << 32
HISTORY = LIMITS.copy_bytes
REORDER_BYTES = LIMITS.reorder_bytes
REORDER_SEGMENTS = LIMITS.reorder_segments
REORDER_NS = LIMITS.reorder_ns
REORDER_PATIENCE = LIMITS.reorder_patience

# What the framing makes of the bytes of a direction (codec.amqp.stream).
START, FRAMES, INSIDE, LOST, TLS, FOREIGN = range(6)

DIRECTION = np.dtype(
    [
        ("anchored", "u1"),  # offset 0 is known
        ("syn", "u1"),
        ("fin", "u1"),
        ("rst", "u1"),
        ("seq", "i8"),  # sequence number of the byte at `next`
        ("next", "i8"),  # stream offset of the next byte expected
        ("acked", "i8"),  # stream offset up to which the peer acknowledged
        ("doubt_at", "i8"),  # stream offset of the hole that the peer acknowledged past, waiting for late copies
        ("doubt_ns", "i8"),  # since when, in order_ns and
        ("doubt_arrival", "i8"),  # in segments of the connection
        ("cut_end", "i8"),  # the snaplen cut off everything up to this stream offset
        ("highest", "i8"),  # stream offset after the furthest byte seen
        ("fin_at", "i8"),  # stream offset of the FIN, -1 unknown
        ("kept", "i8"),  # bytes[kept:pos] were consumed and are kept to compare late copies with
        ("pos", "i8"),  # bytes[pos:end] wait for the framing; bytes[end] will be the byte at `next`
        ("end", "i8"),
        ("latest_arrival", "i8"),  # of the packets that brought the bytes since the last hole: the last one to arrive
        ("latest_packet_no", "i8"),
        ("latest_ns", "i8"),
        ("latest_file", "i4"),
        ("mark_from", "i8"),
        ("mark_end", "i8"),
        ("piece_from", "i8"),  # pieces[piece_from:piece_end] wait, sorted by start, disjoint
        ("piece_end", "i8"),
        ("pool_end", "i8"),
        ("pool_live", "i8"),
        # transport facts
        ("packets", "i8"),
        ("payload_bytes", "i8"),
        ("retransmitted_bytes", "i8"),
        ("out_of_order", "i8"),
        ("missing_bytes", "i8"),
        ("conflicting_bytes", "i8"),
        ("last_data_ns", "i8"),
        ("max_silence_ns", "i8"),
        ("reorder_limit", "u1"),
        ("window_limit", "u1"),
        # the byte ledger
        ("frame_bytes", "i8"),
        ("skipped_bytes", "i8"),
        ("tls_bytes", "i8"),
        ("foreign_bytes", "i8"),
        ("tail_bytes", "i8"),
        # framing
        ("mode", "i8"),
        ("final", "u1"),  # a hole or the end follows the bytes at hand
        ("closed", "u1"),
        ("scanned", "i8", 4),  # START, LOST, by family: none of its frames begins before this stream offset
        ("holes", "i8"),  # holes so far: framing after the first one may have lost the start
        ("frame_end", "i8"),  # INSIDE: stream offset at which the frame that lost bytes ends
        ("frame_seen", "i8"),  # INSIDE: bytes of it seen
        ("frame_size", "i8"),
        ("frame_type", "i8"),
        ("frame_channel", "i8"),
        ("frame_class", "i8"),
        ("frame_method", "i8"),
        ("frame_body_size", "i8"),
        ("frame_from", "i8"),  # stream offset of its first byte
        # the span that is being skipped, swallowed or missing: its first and last packet
        ("span_from", "i8"),  # stream offset, -1 none
        ("span_first_packet", "i8"),
        ("span_first_ns", "i8"),
        ("span_packet", "i8"),
        ("span_ns", "i8"),
        ("span_file", "i4"),
        ("span_notes", "i8"),  # what is noted where a frame boundary was lost (codec.amqp.notes)
        ("foreign_head", "i8"),  # the first four octets of a foreign stream, plus 1; 0: not known
        ("hello", "i8"),  # bytes of the start of a TLS stream kept
    ],
    align=True,
)

MARK = np.dtype(
    [
        ("end", "i8"),  # stream offset after the bytes that this packet brought
        ("packet_no", "i8"),
        ("ts_ns", "i8"),
        ("ready_packet_no", "i8"),  # the packet with which they, and all before them, were there in order
        ("ready_ns", "i8"),
        ("file", "i4"),
        ("ready_file", "i4"),
    ],
    align=True,
)
PIECE = np.dtype(
    [
        ("start", "i8"),
        ("length", "i8"),
        ("cut", "i8"),  # bytes that followed on the wire and the snaplen cut off
        ("pool_at", "i8"),
        ("arrival", "i8"),
        ("packet_no", "i8"),
        ("ts_ns", "i8"),
        ("file", "i4"),
    ],
    align=True,
)


class Stream(NamedTuple):
    """The arrays of one direction. `bytes`, `pool`: uint8; `marks`: MARK; `pieces`: PIECE records."""

    bytes: np.ndarray
    marks: np.ndarray
    pieces: np.ndarray
    pool: np.ndarray


def new_stream(size: int = 1 << 18, marks: int = 1 << 12, pieces: int = 64, pool: int = 1 << 16) -> Stream:
    """Arrays for one direction: `size` and `pool` in bytes, `marks` and `pieces` in records."""
    return Stream(
        np.zeros(size, np.uint8),
        np.zeros(marks, MARK).view(np.recarray),
        np.zeros(pieces, PIECE).view(np.recarray),
        np.zeros(pool, np.uint8),
    )


@kernel
def anchor(d, seq):
    """Fix stream offset 0 of direction `d` at sequence number `seq`."""
    d.anchored = 1
    d.seq = seq
    d.next = 0
    d.acked = -1


@kernel
def offset_of(d, seq):
    """Stream offset of sequence number `seq`: the one nearest to what is expected next."""
    ahead = (int(seq) - int(d.seq)) % WRAP
    if ahead >= HALF:
        ahead -= WRAP
    return int(d.next) + ahead


@kernel
def make_room(d, s, size, marks):
    """Move what is still needed to the front of `bytes` and `marks`; DONE when `size` bytes and `marks` marks fit."""
    if d.end + size > len(s.bytes):
        keep = max(int(d.kept), int(d.pos) - HISTORY)
        n = int(d.end) - keep
        if n + size > len(s.bytes) * 3 // 4:  # moving more than is gained costs more than growing
            return NEED_BYTES
        for i in range(n):
            s.bytes[i] = s.bytes[keep + i]
        d.kept = 0
        d.pos -= keep
        d.end = n
    if d.mark_end + marks > len(s.marks):
        at = int(d.next) - (int(d.end) - int(d.pos))
        first = int(d.mark_from)
        while first + 1 < d.mark_end and s.marks[first].end <= at:
            first += 1
        n = int(d.mark_end) - first
        if n + marks > len(s.marks) or first < len(s.marks) // 2:
            return NEED_MARKS
        for i in range(n):
            s.marks[i] = s.marks[first + i]
        d.mark_from = 0
        d.mark_end = n
    return DONE


@kernel
def deliver(d, s, source, at, size, arrival, packet_no, ts_ns, file):
    """Append `source[at:at+size]` as the next bytes in order (`make_room` said DONE)."""
    end = int(d.end)
    copy_bytes(s.bytes, end, source, at, at + size)
    d.end = end + size
    d.next += size
    d.seq = (int(d.seq) + size) % WRAP
    d.payload_bytes += size
    m = s.marks[d.mark_end]
    m.end = d.next
    m.packet_no = packet_no
    m.ts_ns = ts_ns
    m.file = file
    if arrival > d.latest_arrival:
        d.latest_arrival = arrival
        d.latest_packet_no = packet_no
        d.latest_ns = ts_ns
        d.latest_file = file
    m.ready_packet_no = d.latest_packet_no
    m.ready_ns = d.latest_ns
    m.ready_file = d.latest_file
    d.mark_end += 1


@kernel
def swallow(d, size):
    """Count `size` bytes in order that nobody will read (a foreign or encrypted stream)."""
    d.next += size
    d.seq = (int(d.seq) + size) % WRAP
    d.payload_bytes += size


@kernel
def declare_missing(d, size):
    """The next `size` bytes are not in the capture. What was consumed before cannot be compared across the hole."""
    d.next += size
    d.seq = (int(d.seq) + size) % WRAP
    d.missing_bytes += size
    d.holes += 1
    d.latest_arrival = -1
    d.kept = d.end


@kernel
def count_conflicts(d, s, source, at, start, size):
    """Compare a late copy of `[start, start+size)` with the bytes still kept."""
    kept_from = int(d.next) - (int(d.end) - max(int(d.kept), int(d.pos) - HISTORY))
    for i in range(size):
        offset = start + i
        if kept_from <= offset < d.next and s.bytes[int(d.end) - (int(d.next) - offset)] != source[at + i]:
            d.conflicting_bytes += 1


@kernel
def _first_piece_after(d, s, start):
    """Index of the first waiting piece that begins at or after stream offset `start` (binary search)."""
    low, high = int(d.piece_from), int(d.piece_end)
    while low < high:
        middle = (low + high) // 2
        if s.pieces[middle].start < start:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def hold_room(d, s, size):
    """DONE when bytes of `size` can be held (they may be split once per piece they straddle)."""
    waiting = int(d.piece_end) - int(d.piece_from)
    if d.piece_end + waiting + 2 > len(s.pieces):
        if 2 * waiting + 2 > len(s.pieces) // 2:
            return NEED_PIECES
        for i in range(waiting):
            s.pieces[i] = s.pieces[d.piece_from + i]
        d.piece_from = 0
        d.piece_end = waiting
    return NEED_POOL if d.pool_end + size > len(s.pool) else DONE


@kernel
def _insert_piece(d, s, index, start, size, cut, source, at, arrival, packet_no, ts_ns, file):
    for i in range(int(d.piece_end), index, -1):
        s.pieces[i] = s.pieces[i - 1]
    p = s.pieces[index]
    p.start = start
    p.length = size
    p.cut = cut
    p.pool_at = d.pool_end
    p.arrival = arrival
    p.packet_no = packet_no
    p.ts_ns = ts_ns
    p.file = file
    copy_bytes(s.pool, int(d.pool_end), source, at, at + size)
    d.pool_end += size
    d.pool_live += size
    d.piece_end += 1


@kernel
def hold(d, s, source, at, start, size, cut, arrival, packet_no, ts_ns, file):
    """Keep bytes that came before their turn; parts that wait already are duplicates (`hold_room` said DONE).

    `source[at:at+size]` has stream offset `start`; `cut` more bytes followed on the wire and were not captured.
    """
    index = _first_piece_after(d, s, start)
    if size == 0:
        if cut > 0:
            _insert_piece(d, s, index, start, 0, cut, source, at, arrival, packet_no, ts_ns, file)
        return
    if index > d.piece_from and s.pieces[index - 1].start + s.pieces[index - 1].length > start:
        index -= 1
    end = start + size
    here = start
    while here < end:
        if index < d.piece_end and s.pieces[index].start <= here:
            p = s.pieces[index]
            stop = min(end, int(p.start) + int(p.length))
            for i in range(stop - here):
                if s.pool[int(p.pool_at) + here - int(p.start) + i] != source[at + here - start + i]:
                    d.conflicting_bytes += 1
            d.retransmitted_bytes += max(0, stop - here)
            here = max(here, stop)
            index += 1
        else:
            stop = end
            if index < d.piece_end and s.pieces[index].start < end:
                stop = int(s.pieces[index].start)
            tail = cut if stop == end else 0
            _insert_piece(
                d, s, index, here, stop - here, tail, source, at + here - start, arrival, packet_no, ts_ns, file
            )
            index += 1
            here = stop


@kernel
def drop_first_piece(d, s):
    """Forget the first waiting piece: it was delivered."""
    d.pool_live -= s.pieces[d.piece_from].length
    d.piece_from += 1
    if d.piece_from == d.piece_end:
        d.piece_from = 0
        d.piece_end = 0
        d.pool_end = 0
        d.pool_live = 0


@kernel
def hole_ahead(d, s, ended, now_ns, arrival):
    """Bytes now known to be missing before the next byte in order; 0 when there may still be hope.

    `ended`: the connection is over, nothing more can arrive. An acknowledgement past the hole proves that the peer
    got the bytes; they are still awaited for a moment, because captures of several queues or interfaces swap
    neighbours.
    """
    waiting = int(d.piece_end) - int(d.piece_from)
    if d.cut_end > d.next:
        gap = int(d.cut_end) - int(d.next)
        if waiting > 0:
            gap = min(gap, int(s.pieces[d.piece_from].start) - int(d.next))
        return max(gap, 0)
    if waiting > 0:
        first = int(s.pieces[d.piece_from].start)
        gap = first - int(d.next)
        if gap <= 0:
            return 0
        if ended:
            return gap
        if d.acked >= first:
            if d.doubt_at != d.next:
                d.doubt_at = d.next
                d.doubt_ns = now_ns
                d.doubt_arrival = arrival
            if now_ns - d.doubt_ns >= REORDER_NS or arrival - d.doubt_arrival >= REORDER_PATIENCE:
                return gap
        # room in the pool is only won back when nothing waits: its end counts as well
        if d.pool_live > REORDER_BYTES or d.pool_end > 4 * REORDER_BYTES or waiting > REORDER_SEGMENTS:
            d.reorder_limit = 1
            return gap
        return 0
    if ended and d.anchored:
        if d.fin_at >= 0:
            return max(0, int(d.fin_at) - int(d.next))
        # one unexplained number at the end is an acknowledged FIN or keep-alive, not a byte
        gap = int(d.acked) - int(d.next)
        if gap > 1:
            return gap
    return 0
