"""Stalls of TCP (`codec.stalls`): a direction could not send because the window of its peer was closed, because bytes
were lost until they were sent again, because a small segment waited for an acknowledgement, or it was silent.

A stall of a direction begins and ends with segments. Those that layers have made of their output (IN_LAYERS) are not
looked at.

Sent again: a segment with bytes that were captured before, unless it is the same packet, captured twice (`sent_id`, or
else how soon it came); and one that fills a hole, unless it was overtaken by others. The stall lasts from the first
transmission (of a hole: from the first segment after it) until then. Stalls that overlap are one: bytes that were lost
together are sent again one segment after the other.

Nagle's algorithm (RFC 9293, section 3.7.4) retains a small segment while data is not acknowledged: it is sent right
after an acknowledgement that was delayed, and that had nothing else to say.
"""

from __future__ import annotations

from codec import stalls
from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.net.layers import ACK, IN_LAYERS
from codec.protocol import rows as R
from codec.stalls import NAGLE, NONE, RETRANSMISSION, SILENCE, UNKNOWN_SIDE, ZERO_WINDOW, apart, begin, end
from codec.tcp.reassembly import SENT

OVERTAKEN_NS, DUPLICATE_NS, SILENCE_NS = LIMITS.overtaken_ns, LIMITS.duplicate_ns, LIMITS.silence_ns
NAGLE_NS, DELAYED_ACK_NS = LIMITS.nagle_ns, LIMITS.delayed_ack_ns
FULL_SIZE = 1220  # the least that a segment may hold on IPv6, whose links carry 1280 bytes: smaller ones are small
SEVERAL = 20 * NAGLE_NS  # segments of the ring become one within this time


@inlined
def has_room(rows):
    """Whether there is room for the stalls of one more step."""
    return rows.stall_count[0] + R.SPARE_STALLS <= len(rows.stalls)


@kernel
def write_stall(c, d, direction, rows, k):
    """Write stall `k` of a direction: it is over, or the connection ends."""
    n = stalls.write(rows.stalls, rows.stall_count, d, k, k, UNKNOWN_SIDE + direction, NONE)
    if n != NONE:
        rows.stalls[n, stalls.CONNECTION] = c.connection_id
        if c.client >= 0:
            rows.stalls[n, stalls.SIDE] = R.CLIENT if direction == c.client else R.SERVER


@kernel
def end_stalls(c, d, peer, direction, rows):
    """The connection ends: write the stalls of a direction."""
    for k in (ZERO_WINDOW, RETRANSMISSION, NAGLE):
        write_stall(c, d, direction, rows, k)
    silent = d.last_data_ns >= 0 and c.last_ns - d.last_data_ns >= SILENCE_NS
    if silent and not d.ordered and not peer.ordered:
        begin(d, SILENCE, int(d.last_data_ns), NONE, int(d.last_sent_packet), int(d.last_sent_file))
        write_stall(c, d, direction, rows, SILENCE)


@kernel
def window_closes(c, d, direction, rows, g):
    """Segment `g` of the peer of `d` closes its window."""
    if apart(d, ZERO_WINDOW, int(g.ts_ns)):
        write_stall(c, d, direction, rows, ZERO_WINDOW)
    begin(d, ZERO_WINDOW, int(g.ts_ns), NONE, int(g.packet_no), int(g.file))


@kernel
def window_opens(d, ts):
    """The peer of `d` opens its window."""
    end(d, ZERO_WINDOW, ts)


@kernel
def forget_acked(d):
    """Drop the segments of the ring that are acknowledged."""
    while d.sent_count > 0 and d.sent_end[d.sent_at] <= d.acked:
        d.sent_at = (d.sent_at + 1) % SENT
        d.sent_count -= 1


@inlined
def note_acknowledgement(d, peer, g):
    """Segment `g` of `d` may acknowledge all that the peer has sent."""
    if g.wire_len > 0:
        peer.all_acked_ns = NONE
    elif g["flags"] & (ACK | IN_LAYERS) == ACK and peer.all_acked_ns == NONE and peer.acked >= peer.sent_to > 0:
        peer.all_acked_ns = g.ts_ns


@kernel
def note_data(c, d, direction, rows, g, start):
    """Segment `g` has data from stream offset `start` on."""
    ts, size = int(g.ts_ns), int(g.wire_len)
    if size <= 1 and (start + 1 == d.next or start + 1 == d.cut_end):
        return  # a keep-alive
    if d.last_data_ns >= 0 and ts - d.last_data_ns >= SILENCE_NS:
        begin(d, SILENCE, int(d.last_data_ns), NONE, int(d.last_sent_packet), int(d.last_sent_file))
        end(d, SILENCE, ts)
        write_stall(c, d, direction, rows, SILENCE)
    if start < d.sent_to:
        _note_again(c, d, direction, rows, g, start)
        return
    is_small = size < max(FULL_SIZE, int(d.largest_sent))
    if is_small and d.all_acked_ns != NONE:
        _note_delayed(c, d, direction, rows, g)
    _append(d, g, start)
    d.all_acked_ns = NONE
    d.sent_to = start + size
    d.largest_sent = max(int(d.largest_sent), size)
    d.last_sent_packet, d.last_sent_file, d.last_sent_id, d.last_sent_size = g.packet_no, g.file, g.sent_id, size


@kernel
def _note_delayed(c, d, direction, rows, g):
    """A small segment follows an acknowledgement of all before it: it waited for it, if that was delayed."""
    ts = int(g.ts_ns)
    near = NAGLE_NS
    if c.rtt_ns >= 0 and c.syn_ns >= 0 and c.synack_ns >= 0:
        to_server = max(0, int(c.synack_ns) - int(c.syn_ns))
        near += max(0, int(c.rtt_ns) - to_server) if direction == c.client else to_server
    was_small = d.last_sent_size < max(FULL_SIZE, int(d.largest_sent))
    is_delayed = d.all_acked_ns - d.last_data_ns >= DELAYED_ACK_NS
    if was_small and is_delayed and ts - d.all_acked_ns <= near:
        if apart(d, NAGLE, int(d.last_data_ns)):
            write_stall(c, d, direction, rows, NAGLE)
        begin(d, NAGLE, int(d.last_data_ns), NONE, int(d.last_sent_packet), int(d.last_sent_file))
        end(d, NAGLE, ts)
        d.stall_bytes[NAGLE] += int(g.wire_len)


@kernel
def _append(d, g, start):
    """Add a segment with new data to the ring. A full ring has the last ones as one, or forgets the first one, if they
    are far apart."""
    ts = int(g.ts_ns)
    last = (d.sent_at + d.sent_count - 1) % SENT
    if d.sent_count == SENT:
        if ts - d.sent_ns[last] <= SEVERAL:
            d.sent_end[last] = start + int(g.wire_len)
            d.sent_id[last] = 0
            return
        d.sent_at = (d.sent_at + 1) % SENT
        d.sent_count -= 1
    at = (d.sent_at + d.sent_count) % SENT
    d.sent_count += 1
    d.sent_start[at], d.sent_end[at], d.sent_ns[at] = start, start + int(g.wire_len), ts
    d.sent_packet[at], d.sent_id[at], d.sent_file[at] = g.packet_no, g.sent_id, g.file


@kernel
def _note_again(c, d, direction, rows, g, start):
    """Segment `g` has data before the end of the stream so far: it was sent again, was overtaken, or is a copy."""
    ts, is_copy = int(g.ts_ns), True
    from_ns, packet, file, known_id = (
        int(d.last_data_ns),
        int(d.last_sent_packet),
        int(d.last_sent_file),
        d.last_sent_id,
    )
    for i in range(d.sent_count):
        at = (d.sent_at + i) % SENT
        if d.sent_end[at] > start:
            from_ns, packet, file = int(d.sent_ns[at]), int(d.sent_packet[at]), int(d.sent_file[at])
            known_id, is_copy = int(d.sent_id[at]), d.sent_start[at] <= start
            break
    if is_copy:
        unknown = g.sent_id == 0 or known_id == 0
        if (unknown and ts - from_ns < DUPLICATE_NS) or (not unknown and g.sent_id == known_id):
            return
    elif ts - from_ns < max(OVERTAKEN_NS, int(c.rtt_ns)):
        return
    if d.stall_from[RETRANSMISSION] != NONE and from_ns <= d.stall_until[RETRANSMISSION]:  # one after the other
        d.stall_ns[RETRANSMISSION] += max(0, ts - d.stall_until[RETRANSMISSION])
        d.stall_until[RETRANSMISSION] = max(ts, int(d.stall_until[RETRANSMISSION]))
    else:
        if apart(d, RETRANSMISSION, from_ns):
            write_stall(c, d, direction, rows, RETRANSMISSION)
        begin(d, RETRANSMISSION, from_ns, NONE, packet, file)
        end(d, RETRANSMISSION, ts)
    d.stall_bytes[RETRANSMISSION] += int(g.wire_len)
