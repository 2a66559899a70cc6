"""The order of both directions, as the peers saw it: nobody acknowledges what has not arrived.

A capture may show an answer before what it answers: two interfaces, two sniffers or two queues of a network card saw
the directions, or clocks differ. Acknowledgement numbers tell (RFC 9293, section 3.4): bytes that a segment
acknowledges were sent before it. So each mark of a direction says what its packet *needs*: the stream offset of the
peer that it acknowledged. The framing reads a direction only up to `ready`, before the first mark that needs bytes of
the peer which the framing does not have yet. Only this waits: segments are counted, placed and compared as they come.

A wait is over when the bytes are there, or are known to be missing; when both directions wait for each other (one of
the packets is a copy, sent again: the later one); and at the bounds of `Limits.ack_*`: then the capture's order holds.
A direction whose peer was not seen does not wait at all. Each mark is passed once: the cost is linear.

What a bound ends is noted on the frames of both sides: `early` says up to where the peer's bytes were read too late.
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
    """Stream offset of the peer up to which acknowledgement number `ack` says that its bytes arrived; 0: not known."""
    if peer.anchored:
        offset = offset_of(peer, ack)
        return offset if abs(offset - int(peer.next)) < OUT_OF_WINDOW else 0
    if peer.promised >= 0:
        offset = (int(ack) - int(peer.promised)) % WRAP
        return offset if offset < HALF // 2 else 0
    return 0


@inlined
def _read(peer):
    """What an acknowledgement may count of the peer: its bytes that are ready, and its FIN behind them."""
    return int(peer.ready) + (1 if peer.fin_at >= 0 and peer.ready >= peer.fin_at else 0)


@kernel
def waits(d, s, peer):
    """Whether bytes of `d` that are there in order wait for the peer's."""
    if d.gate == d.mark_end or d.mode == TLS or d.mode == FOREIGN:
        return False
    needs = s.marks[d.gate].needs
    return needs > _read(peer) and needs > d.waived


@kernel
def release(d, s, peer):
    """Let the framing read what waits no longer; how many bytes of `d` go on waiting."""
    while d.gate < d.mark_end and not waits(d, s, peer):
        d.ready = s.marks[d.gate].end
        d.gate += 1
    if d.gate == d.mark_end:
        d.ready = d.next
    return int(d.next) - int(d.ready)


@kernel
def give_up(c, d, s, peer, other):
    """Both directions wait, or one does: whether one of them stops waiting for the bytes that it needs next. `s`,
    `other`: the streams of `d` and `peer`."""
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
    """What waits in `d` is read without what it waits for; at the end of a connection that is missing, not late."""
    d.waived = s.marks[d.gate].needs
    if not c.over:
        d.early = max(int(d.early), int(d.waived))


@inlined
def _before(d, s, peer, other):
    """Whether what waits in `d` came before what waits in its peer."""
    return s.marks[d.gate].since_arrival < other.marks[peer.gate].since_arrival


@kernel
def _too_long(c, d, s):
    """Whether what `d` waits for will not come, or has been waited for long enough."""
    m = s.marks[d.gate]
    return bool(
        c.over
        or c.arrival - m.since_arrival >= ACK_SEGMENTS
        or c.now_ns - m.since_ns >= ACK_NS
        or d.next - d.ready > ACK_BYTES
    )
