"""The order of both directions as the peers saw it, from acknowledgement numbers.

A capture may have a reply before its request, when two interfaces, sniffers or queues of a network card captured the
directions, or clocks differ. Bytes that a segment acknowledges were sent before it (RFC 9293, section 3.4). So each
mark of a direction has the stream offset of the peer that its packet acknowledged (`needs`). The framing reads a
direction only up to `ready`: before the first mark that needs bytes of the peer that the framing does not have yet.
Only the framing waits: segments are counted, placed and compared as they arrive.

A wait ends when the bytes arrive, or are declared missing; when both directions wait for each other (then the later
packet is a retransmission); and at the bounds of `Limits.ack_*`, where the order of the capture applies. A direction
without captured peer does not wait. Cost: linear, since each mark is passed once.

When a bound ends a wait, the frames of both sides have a note: `early` is the offset up to which the peer's bytes were
read too late.
"""

from __future__ import annotations

from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.tcp.direction import FOREIGN, TLS
from codec.tcp.reassembly import HALF, OUT_OF_WINDOW, WRAP, offset_of

ACK_NS = LIMITS.ack_ns
ACK_SEGMENTS = LIMITS.ack_segments
ACK_BYTES = LIMITS.reorder_bytes


@kernel
def needed(peer, ack):
    """Stream offset of the peer that acknowledgement number `ack` acknowledges; 0: unknown."""
    if peer.anchored:
        offset = offset_of(peer, ack)
        return offset if abs(offset - int(peer.next)) < OUT_OF_WINDOW else 0
    if peer.promised >= 0:
        offset = (int(ack) - int(peer.promised)) % WRAP
        return offset if offset < HALF // 2 else 0
    return 0


@inlined
def _read(peer):
    """The peer's offset that an acknowledgement may have: of its bytes that are ready, and of the FIN after them."""
    return int(peer.ready) + (1 if peer.fin_at >= 0 and peer.ready >= peer.fin_at else 0)


@kernel
def waits(d, s, peer):
    """Whether bytes in order of `d` wait for bytes of the peer."""
    if d.gate == d.mark_end or d.mode == TLS or d.mode == FOREIGN:
        return False
    needs = s.marks[d.gate].needs
    return needs > _read(peer) and needs > d.waived


@kernel
def release(d, s, peer):
    """Release bytes that need not wait any longer to the framing; the number of bytes of `d` that still wait."""
    while d.gate < d.mark_end and not waits(d, s, peer):
        d.ready = s.marks[d.gate].end
        d.gate += 1
    if d.gate == d.mark_end:
        d.ready = d.next
    return int(d.next) - int(d.ready)


@kernel
def give_up(c, d, s, peer, other):
    """One or both directions wait: whether one of them stops waiting for the bytes that it needs next. `s`, `other`:
    the streams of `d` and `peer`."""
    mine, theirs = waits(d, s, peer), waits(peer, other, d)
    if mine and theirs:
        m, n = s.marks[d.gate], other.marks[peer.gate]
        if m.needs <= peer.next and n.needs <= d.next:
            if m.since_arrival > n.since_arrival:
                d.waived = m.needs
            else:
                peer.waived = n.needs
            return True
    if mine and _too_long(c, d, s) and not (theirs and c.over and _before(peer, other, d, s)):
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
    d.waived = s.marks[d.gate].needs
    if not c.over:
        d.early = max(int(d.early), int(d.waived))


@inlined
def _before(d, s, peer, other):
    """Whether the waiting bytes of `d` arrived before those of its peer."""
    return s.marks[d.gate].since_arrival < other.marks[peer.gate].since_arrival


@kernel
def _too_long(c, d, s):
    """Whether the bytes that `d` waits for cannot arrive, or the wait reached its bound."""
    m = s.marks[d.gate]
    return bool(
        c.over
        or c.arrival - m.since_arrival >= ACK_SEGMENTS
        or c.now_ns - m.since_ns >= ACK_NS
        or d.next - d.ready > ACK_BYTES
    )
