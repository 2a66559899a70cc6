"""IP fragments -> datagrams, in the order of a capture file's packets.

Rules (RFC 791 section 3.2, RFC 8200 section 4.5):

* Fragments of one datagram agree in version, addresses, identification, and protocol (IPv4), in any tunnel.
* The first copy of each eight bytes wins. A malformed fragment is ignored: it has no bytes, ends beyond 64 KB or beyond
  the last fragment, or is not the last one and its length is no multiple of eight.
* After a datagram is complete, further copies are ignored (for how long: `codec.net.datagrams`).
* Where the snaplen cut a fragment, the captured part of the datagram ends.

Cost: linear in the length of the fragments.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.cursor import octet, u16, u32
from codec.net import protocols as P
from codec.net.datagrams import KEY_SOURCE, KEY_TARGET, NONE, UNIT, datagram, expire, release

LONGEST = 65535  # of an IPv4 datagram, and of the payload of an IPv6 packet
DATAGRAM_BYTES = P.IPV6_BYTES + LONGEST


@kernel
def add_fragment(octets, used, state, buffers, packet_no):
    """Add the fragment at `state`, of packet `packet_no`, to its datagram.

    NEXT_LAYER: it completes the datagram, which is now at `octets[used:]` (the caller provides DATAGRAM_BYTES of room);
    `state` is at its IP header. Else a skip code.
    """
    at, end, version = state[P.AT], state[P.END], state[P.VERSION]
    if version == 4:
        place = u16(octets, at + 6, end)
        begin, more = (place & 0x1FFF) * UNIT, place & 0x2000
        protocol, identification = octet(octets, at + 9), u16(octets, at + 4, end)
        at += (octet(octets, at) & 0x0F) * 4
        longest = LONGEST - P.IPV4_BYTES
    else:
        place = u16(octets, at + 2, end)
        begin, more = place & 0xFFF8, place & 1
        protocol, identification = octet(octets, at), u32(octets, at + 4, end)
        at += UNIT
        longest = LONGEST
    stop = begin + state[P.WIRE_END] - at
    if stop <= begin or stop > longest or (more and (stop - begin) % UNIT != 0):
        return P.BAD_FRAGMENT
    expire(buffers, packet_no)
    number = datagram(octets, state, buffers, packet_no, identification, protocol if version == 4 else 0)
    if number == NONE:
        return P.FRAGMENT_LIMIT
    row = number % len(buffers.datagrams)
    datagrams = buffers.datagrams
    if datagrams["buffer"][row] == NONE:
        return P.FRAGMENT_COPY
    total = int(datagrams["total"][row])
    if total != NONE and (stop > total or (not more and stop != total)):
        return P.BAD_FRAGMENT
    if not more:
        if stop < datagrams["farthest"][row]:
            return P.BAD_FRAGMENT
        total = stop
        datagrams["total"][row] = total
    if begin == 0:
        datagrams["protocol"][row] = protocol
    datagrams["farthest"][row] = max(stop, int(datagrams["farthest"][row]))
    fresh = _fill(octets, at, begin, stop, begin + end - at, buffers, row)
    if total != NONE and datagrams["seen"][row] == (total + UNIT - 1) // UNIT:
        _complete(octets, used, state, buffers, row)
        return P.NEXT_LAYER
    if fresh == 0:
        return P.FRAGMENT_COPY
    return P.FRAGMENT if fresh == (stop - begin + UNIT - 1) // UNIT else P.FRAGMENT_OVERLAP


@kernel
def _fill(octets, at, begin, stop, captured, buffers, row):
    """Store bytes `begin` to `stop` of a datagram from `octets[at:]`, unless they are stored already; those before
    `captured` were captured. Returns the number of new units."""
    buffer = int(buffers.datagrams["buffer"][row])
    covered, bytes_of = buffers.covered[buffer], buffers.octets[buffer]
    fresh = 0
    unit, last = begin // UNIT, (stop + UNIT - 1) // UNIT
    while unit < last:
        after = unit
        while after < last and covered[after] == 0:
            covered[after] = 1
            after += 1
        if after > unit:
            fresh += after - unit
            to = min(after * UNIT, stop)
            there = max(unit * UNIT, min(to, captured))
            for j in range(unit * UNIT, there):
                bytes_of[j] = octets[at + j - begin]
            if there < to:
                buffers.datagrams["captured"][row] = min(there, int(buffers.datagrams["captured"][row]))
        unit = after + 1  # the unit at `after` was stored before
    buffers.datagrams["seen"][row] += fresh
    return fresh


@kernel
def _complete(octets, used, state, buffers, row):
    """Write the datagram at `used`, after an IP header without options."""
    total, protocol = int(buffers.datagrams["total"][row]), int(buffers.datagrams["protocol"][row])
    captured = min(total, int(buffers.datagrams["captured"][row]))
    version = state[P.VERSION]
    header, size = (P.IPV4_BYTES, 4) if version == 4 else (P.IPV6_BYTES, 16)
    for j in range(used, used + header):
        octets[j] = 0
    length, length_at, protocol_at, source_at = total, used + 4, used + 6, used + 8
    if version == 4:
        length, length_at, protocol_at, source_at = header + total, used + 2, used + 9, used + 12
    octets[used] = 0x45 if version == 4 else 0x60
    octets[length_at], octets[length_at + 1] = length >> 8, length & 0xFF
    octets[protocol_at] = protocol
    for j in range(size):
        octets[source_at + j] = buffers.keys[row, KEY_SOURCE + j]
        octets[source_at + size + j] = buffers.keys[row, KEY_TARGET + j]
    buffer = int(buffers.datagrams["buffer"][row])
    for j in range(captured):
        octets[used + header + j] = buffers.octets[buffer, j]
    release(buffers, row)
    state[P.AT] = used
    state[P.END] = used + header + captured
    state[P.WIRE_END] = used + header + total
    state[P.LAYER] = P.IPV4 if version == 4 else P.IPV6
