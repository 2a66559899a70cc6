"""Reassembly of one direction (segments in any order to bytes in order and holes), and the order of both directions.

Rules (RFC 9293 section 3.4 for sequence arithmetic):

* A *stream offset* counts the bytes of a direction from its first one (the byte after the SYN, else the first byte
  captured). It includes missing bytes, so it never wraps and holes have exact lengths.
* The first captured copy of a byte wins. A later copy that differs is counted as a conflicting overlap, up to `HISTORY`
  bytes back.
* Later data waits (`codec.tcp.reassembly`) until the bytes before it arrive or are declared missing.
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

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS, REORDER_WINDOW
from codec.memory import as_records, copy_bytes
from codec.stalls import FIELDS, TCP_KINDS

# One direction of a TCP connection: its record, and the arrays with its bytes.
#
# Bytes in order are in `bytes[pos:end]` until the framing consumes them; `marks` have the packet of each byte. Later
# data waits in `pieces` (sorted, disjoint), its bytes in `pool`. A function that finds an array too small returns
# `NEED_*` with nothing changed: the caller enlarges the array and calls again.


DONE, NEED_BYTES, NEED_MARKS, NEED_PIECES, NEED_POOL, NEED_ROWS = range(6)
TOO_SMALL = {NEED_BYTES: "bytes", NEED_MARKS: "marks", NEED_PIECES: "pieces", NEED_POOL: "pool"}  # arrays of a `Stream`

# Modes of the framing of a direction (codec.framing.stream).
START, FRAMES, INSIDE, LOST, TLS, FOREIGN = range(6)

# Of a segment in the ring: stream offsets, time, packet, what tells it from a copy.
SENT_FIELDS = ("sent_start", "sent_end", "sent_ns", "sent_packet", "sent_id", "sent_file")
SENT = 16  # segments that are not acknowledged are known one by one

COUNTERS = (
    "packets", "payload_bytes", "retransmitted_bytes", "out_of_order", "missing_bytes", "conflicting_bytes",
    "last_data_ns", "max_silence_ns",
)  # fmt: skip
LEDGER = (  # bytes of the stream by their rows
    "frame_bytes", "skipped_bytes", "tls_bytes", "websocket_bytes", "decrypted_bytes", "foreign_bytes", "tail_bytes",
)  # fmt: skip
PARTIAL_FRAME = ("frame_size", "frame_type", "frame_channel", "frame_class", "frame_method", "frame_body_size")
DIRECTION = np.dtype(
    [
        ("anchored", "u1"),  # offset 0 is known
        *((name, "u1") for name in ("syn", "fin", "rst")),
        ("seq", "i8"),  # sequence number of the byte at `next`
        ("next", "i8"),  # stream offset of the next byte expected
        ("acked", "i8"),  # stream offset up to which the peer acknowledged
        ("hole_at", "i8"),  # stream offset of the hole that the peer acknowledged past, waiting for late copies
        ("hole_ns", "i8"),  # since when, in order_ns and
        ("hole_arrival", "i8"),  # in segments of the connection
        ("cut_end", "i8"),  # the snaplen cut off everything up to this stream offset
        ("lost_end", "i8"),  # bytes before this stream offset are missing although no snaplen cut them off (layers)
        ("highest", "i8"),  # stream offset after the furthest captured byte
        ("fin_at", "i8"),  # stream offset of the FIN, -1 unknown
        ("retained_from", "i8"),  # bytes[retained_from:pos] were consumed and remain for comparison with late copies
        ("pos", "i8"),  # bytes[pos:end] wait for the framing; bytes[end] will be the byte at `next`
        ("end", "i8"),
        ("latest_arrival", "i8"),  # the last packet to arrive of those with bytes since the last hole
        ("latest_packet_no", "i8"),
        ("latest_ns", "i8"),
        ("latest_file", "i4"),
        ("mark_from", "i8"),
        ("mark_end", "i8"),
        ("wait_from", "i8"),  # marks[wait_from:mark_end] wait for bytes that they acknowledge (codec.tcp.reassembly)
        ("ready", "i8"),  # stream offset up to which the framing may read
        ("waived", "i8"),  # stream offset of the peer: nothing waits any longer for its bytes before this
        ("early", "i8"),  # stream offset of the peer: bytes were read without its bytes before this
        ("expected_seq", "i8"),  # sequence number of offset 0 that the peer's SYN-ACK acknowledged, -1 unknown
        ("outside_ack", "i8"),  # the latest sequence number acknowledged outside of the window, -1 none
        # of a direction without captured bytes, by the acknowledgements of the peer
        ("unseen_seq", "i8"),  # the latest sequence number acknowledged, -1 none
        ("unseen_bytes", "i8"),  # bytes acknowledged since the first one
        ("piece_from", "i8"),  # pieces[piece_from:piece_end] wait, sorted by start, disjoint
        *((name, "i8") for name in ("piece_end", "pool_end", "pool_live")),
        # transport facts
        *((name, "i8") for name in COUNTERS),
        ("zero_window_ns", "i8"),  # time in which it announced a receive window of zero
        ("closed_window_ns", "i8"),  # when the receive window became zero, -1: it is open
        *((name, "i8", (TCP_KINDS,)) for name in FIELDS),  # `codec.stalls`, of what this side could not send
        # segments with data that are not acknowledged, as a ring: `sent_count` from `sent_at` on; the last one stands
        # for several if there are more
        *((name, "i8", (SENT,)) for name in SENT_FIELDS),
        ("sent_at", "i8"),
        ("sent_count", "i8"),
        ("sent_to", "i8"),  # stream offset after all data so far
        ("last_sent_packet", "i8"),  # the last packet with data: of `last_data_ns`
        ("last_sent_file", "i8"),
        ("last_sent_id", "i8"),
        ("last_sent_size", "i8"),
        ("largest_sent", "i8"),  # data of the largest segment
        ("all_acked_ns", "i8"),  # when an acknowledgement without data acknowledged all, -1: data came since
        ("ordered", "u1"),  # its segments come out of layers, not as they were captured
        ("limits", "i8"),  # reached, see codec.compiler.limits.REACHED
        # the byte ledger
        *((name, "i8") for name in LEDGER),
        ("outside_bytes", "i8"),  # beside the stream: payload of RST segments, and of those outside of any window
        # framing
        ("mode", "i8"),
        ("final", "u1"),  # a hole or the end follows the current bytes
        ("closed", "u1"),
        ("proxy_bytes", "i8"),  # of the header of the PROXY protocol at the start of the stream, 0 none
        ("preamble_bytes", "i8"),  # of another protocol, between that header and AMQP
        ("in_preamble", "u1"),  # LOST: nothing of AMQP was found yet
        ("header_version", "i8"),  # code of the last protocol header, 0: none, or of no version
        # of a direction that answers in a version of its own: what `connection` has of the other one meanwhile
        *((name, "i8") for name in ("kept_version", "kept_family", "kept_known", "kept_scoring")),
        ("scanned", "i8", 4),  # START, LOST, by family: none of its frames begins before this stream offset
        ("holes", "i8"),  # holes so far: framing after the first one may have lost the start
        ("frame_end", "i8"),  # INSIDE: stream offset at which the frame that lost bytes ends
        ("frame_seen", "i8"),  # INSIDE: captured bytes of it
        *((name, "i8") for name in PARTIAL_FRAME),
        ("frame_from", "i8"),  # stream offset of its first byte
        ("frame_stored", "i8"),  # number of its bytes in State.partial, all before the first missing byte
        # the open span: its first and last packet
        ("span_from", "i8"),  # stream offset, -1 none
        *((name, "i8") for name in ("span_first_packet", "span_first_ns", "span_packet", "span_ns")),
        ("span_file", "i4"),
        ("span_notes", "i8"),  # notes on the lost frame boundary (codec.protocol.rows)
        ("foreign_head", "i8"),  # the first four bytes of a foreign stream of a known protocol, plus 1; 0: none
        ("token_link", "i8"),  # key of the link to $cbs, plus 1; see codec.protocol.v1_0_contents
        ("tls_prefix", "i8"),  # number of stored bytes of the beginning of a TLS stream
    ],
    align=True,
)

MARK = np.dtype(
    [
        ("end", "i8"),  # stream offset after the bytes of this packet
        ("packet_no", "i8"),
        ("ts_ns", "i8"),
        ("ready_packet_no", "i8"),  # the packet that completed them and all bytes before them
        ("ready_ns", "i8"),
        ("needs", "i8"),  # stream offset of the peer that this packet acknowledged
        ("since_arrival", "i8"),  # when they were in order, in segments of the connection
        ("since_ns", "i8"),  # and in order_ns
        ("file", "i4"),
        ("ready_file", "i4"),
    ],
    align=True,
)
PIECE = np.dtype(
    [
        ("start", "i8"),
        ("length", "i8"),
        ("cut", "i8"),  # bytes after them that the snaplen cut off
        ("pool_at", "i8"),
        ("arrival", "i8"),
        ("packet_no", "i8"),
        ("ts_ns", "i8"),
        ("needs", "i8"),  # stream offset of the peer that its packet acknowledged
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
        as_records(np.zeros(marks, MARK)),
        as_records(np.zeros(pieces, PIECE)),
        np.zeros(pool, np.uint8),
    )


def enlarged(array: np.ndarray, factor: int = 2) -> np.ndarray:
    """A copy of `array` with `factor` times the room, the new part zero."""
    fresh = np.zeros((len(array) * factor, *array.shape[1:]), array.dtype)
    fresh[: len(array)] = array
    return fresh


def enlarge_stream(streams: tuple[Stream, Stream], code: int, direction: int) -> tuple[Stream, Stream]:
    """The streams with twice the room in the array that `code` (NEED_*) names: of one direction, of both when -1."""
    name = TOO_SMALL[code]
    first, second = (
        stream._replace(**{name: enlarged(getattr(stream, name))}) if direction in (-1, side) else stream
        for side, stream in enumerate(streams)
    )
    return first, second


# Out-of-order data, and when the hole before it is declared.
#
# `pieces` are sorted by stream offset and disjoint; their bytes are in `pool`. `Limits` bounds the reorder window:
# beyond it the hole is declared, and the connection has that limit. Cost: a binary search per piece, plus the pieces
# moved.


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


OUT_OF_WINDOW = 1 << 30  # a segment this far from what is expected belongs to no window (RFC 7323 section 2.3)
HALF, WRAP = 1 << 31, 1 << 32
HISTORY = LIMITS.copy_bytes
ACK_NS = LIMITS.ack_ns
ACK_SEGMENTS = LIMITS.ack_segments
ACK_BYTES = LIMITS.reorder_bytes


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
def assume_uncaptured_bytes(d):
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
