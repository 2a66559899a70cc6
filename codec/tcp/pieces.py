"""Out-of-order data, and when the hole before it is declared.

`pieces` are sorted by stream offset and disjoint; their bytes are in `pool`. `Limits` bounds the reorder window: beyond
it the hole is declared, and the connection has that limit. Cost: a binary search per piece, plus the pieces moved.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS, REORDER_WINDOW
from codec.tcp.direction import DONE, NEED_PIECES, NEED_POOL
from codec.variant.writer import copy_bytes

REORDER_BYTES = LIMITS.reorder_bytes
REORDER_SEGMENTS = LIMITS.reorder_segments
REORDER_NS = LIMITS.reorder_ns
REORDER_PATIENCE = LIMITS.reorder_patience


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
def piece_room(d, s, size):
    """DONE when `size` bytes fit (they may be split once for each piece that they overlap)."""
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
def _insert_piece(d, s, index, start, size, cut, source, at, arrival, packet_no, ts_ns, file, needs):
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
    p.needs = needs
    copy_bytes(s.pool, int(d.pool_end), source, at, at + size)
    d.pool_end += size
    d.pool_live += size
    d.piece_end += 1


@kernel
def store_piece(d, s, source, at, start, size, cut, arrival, packet_no, ts_ns, file, needs):
    """Store out-of-order bytes; parts that are stored already are duplicates (`piece_room` returned DONE).

    `source[at:at+size]` has stream offset `start`; `cut` more bytes followed on the wire and were not captured.
    """
    index = _first_piece_after(d, s, start)
    if size == 0:
        if cut > 0:
            _insert_piece(d, s, index, start, 0, cut, source, at, arrival, packet_no, ts_ns, file, needs)
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
                d, s, index, here, stop - here, tail, source, at + here - start, arrival, packet_no, ts_ns, file, needs
            )
            index += 1
            here = stop


@kernel
def drop_first_piece(d, s):
    """Remove the first waiting piece: it was delivered."""
    d.pool_live -= s.pieces[d.piece_from].length
    d.piece_from += 1
    if d.piece_from == d.piece_end:
        d.piece_from = 0
        d.piece_end = 0
        d.pool_end = 0
        d.pool_live = 0


@kernel
def hole_ahead(d, s, ended, now_ns, arrival):
    """The number of bytes that are certainly missing at `next`; 0 when they may still arrive.

    `ended`: the connection has ended, so nothing more can arrive. An acknowledgement past the hole proves that the peer
    received the bytes; they are awaited a moment longer, because captures of several queues or interfaces swap
    neighbouring packets. Bytes that the snaplen cut off are missing when the peer acknowledged them or later data came.
    """
    waiting = int(d.piece_end) - int(d.piece_from)
    if d.cut_end > d.next:
        if waiting == 0 and not ended and d.acked < d.cut_end:
            return 0  # the bytes may be retransmitted in smaller segments
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
            if d.hole_at != d.next:
                d.hole_at = d.next
                d.hole_ns = now_ns
                d.hole_arrival = arrival
            if now_ns - d.hole_ns >= REORDER_NS or arrival - d.hole_arrival >= REORDER_PATIENCE:
                return gap
        # the pool is only reused when no piece waits, so its end counts as well
        if d.pool_live > REORDER_BYTES or d.pool_end > 4 * REORDER_BYTES or waiting > REORDER_SEGMENTS:
            d.limits |= REORDER_WINDOW
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
