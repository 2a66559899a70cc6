"""Reassembly of one direction (segments in any order to bytes in order and holes), and the order of both directions.

Rules (RFC 9293 section 3.4 for sequence arithmetic):

* A *stream offset* counts the bytes of a direction from its first one (the byte after the SYN, else the first byte
  captured). It includes missing bytes, so it never wraps and holes have exact lengths.
* The first captured copy of a byte wins. A later copy that differs is counted as a conflicting overlap, up to `HISTORY`
  bytes back.
* Later data waits (`codec.tcp.pieces`) until the bytes before it arrive or are declared missing.
* A segment that is outside of any window is not part of the stream, unless the peer has acknowledged bytes there: then
  the capture lacks more than a window, for example a whole file of a ring. Of such a hole the length is known modulo
  2^32, and one of 3 GiB or more looks like old copies.

Order of both directions: a capture may have a reply before its request, when several interfaces, sniffers or queues of
a network card captured them, or clocks differ. Bytes that a segment acknowledges were sent before it. So each mark of a
direction has the stream offset of the peer that its packet acknowledged (`needs`), and the framing reads a direction
only up to `ready`: before the first mark that needs bytes of the peer which the framing does not have yet. Only the
framing waits: segments are counted, placed and compared as they arrive.

A wait ends when the bytes arrive or are declared missing; when both directions wait for each other (then the later
packet is a retransmission); and at the bounds of `Limits.ack_*`, where the order of the capture applies. A direction
without captured peer does not wait. When a bound ends a wait, the frames of both sides have a note: `early` is the
offset up to which the peer's bytes were read too late. Cost: linear in the bytes.
"""

from __future__ import annotations

from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.tcp.direction import DONE, FOREIGN, NEED_BYTES, NEED_MARKS, TLS
from codec.variant.writer import copy_bytes

OUT_OF_WINDOW = 1 << 30  # a segment this far from what is expected belongs to no window (RFC 7323 section 2.3)
HALF, WRAP = 1 << 31, 1 << 32
HISTORY = LIMITS.copy_bytes
ACK_NS = LIMITS.ack_ns
ACK_SEGMENTS = LIMITS.ack_segments
ACK_BYTES = REORDER_BYTES = LIMITS.reorder_bytes
REORDER_NS = LIMITS.reorder_ns


@kernel
def anchor(d, seq):
    """Fix stream offset 0 of direction `d` at sequence number `seq`."""
    d.anchored = 1
    d.seq = seq
    d.next = 0
    d.acked = -1


@kernel
def anchor_at_first(d, first):
    """Fix stream offset 0 at the first captured byte, or before it, at the bytes that the peer acknowledged while none
    was captured: these are missing."""
    begins = (int(d.unseen_seq) - int(d.unseen_bytes)) % WRAP
    if d.unseen_bytes == 0 or (first - begins) % WRAP >= OUT_OF_WINDOW:
        anchor(d, first)
    else:
        anchor(d, begins)
        d.acked = d.unseen_bytes


@kernel
def offset_of(d, seq):
    """Stream offset of sequence number `seq`: the one nearest to the next expected byte."""
    ahead = (int(seq) - int(d.seq)) % WRAP
    if ahead >= HALF:
        ahead -= WRAP
    return int(d.next) + ahead


@kernel
def acknowledged_near(d, seq):
    """Whether the last acknowledgement outside of the window was near `seq`, which is outside as well."""
    return bool(d.outside_ack >= 0 and (int(seq) - int(d.outside_ack) + REORDER_BYTES) % WRAP <= 2 * REORDER_BYTES)


@kernel
def skip_to(c, d, seq):
    """The stream offset of `seq`, which is outside of the window; all bytes before it are missing."""
    start = int(d.next) + (int(seq) - int(d.seq)) % WRAP
    d.acked = max(int(d.acked), start)
    d.hole_at = d.next
    d.hole_ns = c.now_ns - REORDER_NS
    return start


@kernel
def offset_of_pos(d):
    """Stream offset of `pos`, the next byte for the framing."""
    return int(d.next) - (int(d.end) - int(d.pos))


@kernel
def make_room(d, s, size, marks):
    """Move bytes and marks in use to the front of their arrays; DONE when `size` bytes and `marks` marks fit."""
    if d.end + size > len(s.bytes):
        keep = max(int(d.retained_from), int(d.pos) - HISTORY)
        n = int(d.end) - keep
        if n + size > len(s.bytes) * 3 // 4:  # moving more than the room gained costs more than growing
            return NEED_BYTES
        copy_bytes(s.bytes, 0, s.bytes, keep, keep + n)
        d.retained_from = 0
        d.pos -= keep
        d.end = n
    if d.mark_end + marks > len(s.marks):
        at = offset_of_pos(d)
        first = int(d.mark_from)
        while first + 1 < d.mark_end and s.marks[first].end <= at:
            first += 1
        n = int(d.mark_end) - first
        if n + marks > len(s.marks) or first < len(s.marks) // 2:
            return NEED_MARKS
        for i in range(n):
            s.marks[i] = s.marks[first + i]
        d.wait_from -= first
        d.mark_from = 0
        d.mark_end = n
    return DONE


@kernel
def deliver(d, s, source, at, size, arrival, packet_no, ts_ns, file, needs):
    """Append `source[at:at+size]` as the next bytes in order (`make_room` returned DONE); returns their mark."""
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
    m.needs = needs
    d.mark_end += 1
    return m


@kernel
def skip_unread(d, size):
    """Count `size` bytes in order that are not decoded (a foreign or encrypted stream)."""
    d.next += size
    d.ready = d.next
    d.seq = (int(d.seq) + size) % WRAP
    d.payload_bytes += size


@kernel
def declare_missing(d, size):
    """Declare the next `size` bytes missing. Late copies of bytes before the hole are no longer compared."""
    d.next += size
    d.seq = (int(d.seq) + size) % WRAP
    d.missing_bytes += size
    d.holes += 1
    d.latest_arrival = -1
    d.retained_from = d.end


@kernel
def count_conflicts(d, s, source, at, start, size):
    """Compare a late copy of `[start, start+size)` with the bytes still in the buffer."""
    compared_from = int(d.next) - (int(d.end) - max(int(d.retained_from), int(d.pos) - HISTORY))
    for i in range(size):
        offset = start + i
        if compared_from <= offset < d.next and s.bytes[int(d.end) - (int(d.next) - offset)] != source[at + i]:
            d.conflicting_bytes += 1


@kernel
def note_unseen(peer, ack):
    """No byte of the peer was captured: note how many bytes of it are acknowledged since the first acknowledgement."""
    more = (ack - int(peer.unseen_seq)) % WRAP if peer.unseen_seq >= 0 else 0
    if more < OUT_OF_WINDOW:
        peer.unseen_bytes += more
        peer.unseen_seq = ack


@kernel
def expect_unseen(d):
    """The connection has ended. If no byte of `d` was captured, those that its peer acknowledged are missing; returns
    whether there are any."""
    if d.anchored or d.unseen_bytes == 0:
        return False
    anchor_at_first(d, (int(d.unseen_seq) - int(d.unseen_bytes)) % WRAP)
    return True


@kernel
def acked_offset(peer, ack):
    """Stream offset of the peer up to which `ack` acknowledges; 0: unknown."""
    if peer.anchored:
        offset = offset_of(peer, ack)
        return offset if abs(offset - int(peer.next)) < OUT_OF_WINDOW else 0
    if peer.expected_seq >= 0:
        offset = (int(ack) - int(peer.expected_seq)) % WRAP
        return offset if offset < HALF // 2 else 0
    return 0


@inlined
def _read(peer):
    """The largest stream offset of the peer that needs no wait: its ready bytes, and the FIN after them."""
    return int(peer.ready) + (1 if peer.fin_at >= 0 and peer.ready >= peer.fin_at else 0)


@kernel
def waits(d, s, peer):
    """Whether bytes in order of `d` wait for bytes of the peer."""
    if d.wait_from == d.mark_end or d.mode == TLS or d.mode == FOREIGN:
        return False
    needs = s.marks[d.wait_from].needs
    return needs > _read(peer) and needs > d.waived


@kernel
def release(d, s, peer):
    """Release bytes that need not wait any longer to the framing; the number of bytes of `d` that still wait."""
    while d.wait_from < d.mark_end and not waits(d, s, peer):
        release_mark(d, s)
    if d.wait_from == d.mark_end:
        d.ready = d.next
    return int(d.next) - int(d.ready)


@kernel
def unread(d, s):
    """The framing reads the bytes in order that it has not consumed once more, mark by mark."""
    at = offset_of_pos(d)
    d.ready = at
    d.wait_from = d.mark_from
    while d.wait_from < d.mark_end and s.marks[d.wait_from].end <= at:
        d.wait_from += 1


@kernel
def next_in_order(first, a, second, b):
    """The direction (0: `first`, 1: `second`) with the earliest mark that is not released and need not wait; -1 none.
    `a`, `b`: their streams."""
    mine = first.wait_from < first.mark_end and not waits(first, a, second)
    theirs = second.wait_from < second.mark_end and not waits(second, b, first)
    if mine and theirs:
        return int(a.marks[first.wait_from].since_arrival > b.marks[second.wait_from].since_arrival)
    return 0 if mine else (1 if theirs else -1)


@kernel
def release_mark(d, s):
    """Release the bytes of the next mark to the framing."""
    d.ready = s.marks[d.wait_from].end
    d.wait_from += 1


@kernel
def stop_waiting(c, d, s, peer, other):
    """One or both directions wait: end the wait of one of them if it may end. Returns whether it did. `s`, `other`: the
    streams of `d` and `peer`."""
    mine, theirs = waits(d, s, peer), waits(peer, other, d)
    if mine and theirs:
        m, n = s.marks[d.wait_from], other.marks[peer.wait_from]
        if m.needs <= peer.next and n.needs <= d.next:
            if m.since_arrival > n.since_arrival:
                d.waived = m.needs
            else:
                peer.waived = n.needs
            return True
    if mine and _too_long(c, d, s) and not (theirs and c.ended and _before(peer, other, d, s)):
        _read_early(c, d, s)
        return True
    if theirs and _too_long(c, peer, other):
        _read_early(c, peer, other)
        return True
    return False


@inlined
def _read_early(c, d, s):
    """Read the waiting bytes of `d` without those that they need, which at the end of a connection are missing, not
    late."""
    d.waived = s.marks[d.wait_from].needs
    if not c.ended:
        d.early = max(int(d.early), int(d.waived))


@inlined
def _before(d, s, peer, other):
    """Whether the waiting bytes of `d` arrived before those of its peer."""
    return s.marks[d.wait_from].since_arrival < other.marks[peer.wait_from].since_arrival


@kernel
def _too_long(c, d, s):
    """Whether the bytes that `d` waits for cannot arrive, or the wait reached its bound."""
    m = s.marks[d.wait_from]
    return bool(
        c.ended
        or c.arrival - m.since_arrival >= ACK_SEGMENTS
        or c.now_ns - m.since_ns >= ACK_NS
        or d.next - d.ready > ACK_BYTES
    )
