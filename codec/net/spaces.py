"""Tells live connections with the same addresses and ports apart by their address spaces.

An *address space* is what a packet was in below IP: capture interface, VLANs, tunnels (`codec.net.headers.enter_space`
hashes them). Two tenants of a network may use the same addresses and ports at the same time in two VLANs or VNIs. But
the space of a packet does not name its connection: a mirror port shows each packet in two VLANs, both directions of a
connection may have different tags, and a tunnel or an interface may change. So sequence numbers decide. The segments of
a flow key are in *groups* of spaces, most often in one:

* A packet in a space of a group belongs to it.
* A packet in a new space belongs to the first group whose sequence numbers and acknowledgements it continues or
  repeats; its space is one of that group from then on. A SYN must be the same SYN, a SYN-ACK must answer it.
* Any other packet begins a group.
* Where there are several groups, a packet that contradicts its own group and fits another one belongs to that: two
  connections may share the space of one direction. A SYN of another connection leaves its group this one space.

The positions of a group are in a GROUP record, which follows from the segments so far in their order alone. Cost:
linear in the segments; `Limits.address_spaces` bounds the groups of a flow key, and the spaces of a group.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel, njit
from codec.compiler.limits import LIMITS
from codec.memory import as_records
from codec.net.segments import ACK, FIN, RST, SYN

GROUPS = SPACES = LIMITS.address_spaces
WRAP, HALF = 1 << 32, 1 << 31
FAR = 1 << 30  # farther than any window (RFC 7323, section 2.3)
WIDEST = 1 << 28  # of the positions that a group remembers
NEAR = 1 << 16  # packets in a new space may be so far from those before: the largest window without scaling
UNKNOWN = -1

# By direction: sequence number of its SYN; the first and the last position seen, in bytes or acknowledged.
GROUP = np.dtype(
    [("spaces", "u4", SPACES), ("count", "i8"), ("syn", "i8", 2), ("low", "i8", 2), ("next", "i8", 2)], align=True
)


def new_groups() -> np.ndarray:
    """Room for the groups of one flow key."""
    return as_records(np.zeros(GROUPS, GROUP))


@njit
def assign_groups(ends, segments, groups, used, group_of, counts):
    """Fill in `group_of` (int64): for each of `segments` (SEGMENT), flow key by flow key in their order, the index of
    its group; and `counts` (int64), the groups of each flow key, whose segments end at `ends`. The first flow key has
    `used[0]` groups already; afterwards `groups` has those of the last one."""
    begin = 0
    for flow in range(len(ends)):
        if flow > 0:
            used[0] = 0
        for i in range(begin, ends[flow]):
            g = segments[i]
            group = _group_of(groups, used, g)
            _update(groups[group], g)
            group_of[i] = group
        begin = ends[flow]
        counts[flow] = used[0]


@kernel
def _group_of(groups, used, g):
    """The index of the group of a segment, which is begun if there is none."""
    count, space = int(used[0]), int(g.space)
    own = UNKNOWN
    for i in range(count):
        if own == UNKNOWN and _has(groups[i], space):
            own = i
    if own != UNKNOWN and (count == 1 or _agrees(groups[own], g)):
        return own
    for i in range(count):
        if i != own and _agrees(groups[i], g):
            if own == UNKNOWN:
                _add(groups[i], space)
            return i
    if own != UNKNOWN:
        return own
    if count == GROUPS:
        return GROUPS - 1
    _clear(groups[count])
    _add(groups[count], space)
    used[0] = count + 1
    return count


@kernel
def _has(group, space):
    for i in range(group.count):
        if group.spaces[i] == space:
            return True
    return False


@kernel
def _clear(group):
    """No space, no position."""
    group.count = 0
    for side in range(2):
        group.syn[side] = UNKNOWN
        group.low[side] = UNKNOWN
        group.next[side] = UNKNOWN


@kernel
def _add(group, space):
    """Add a space; without room its packets are judged one by one."""
    if group.count < SPACES:
        group.spaces[group.count] = space
        group.count += 1


@kernel
def _from(begin, position):
    """How far `position` is after `begin`, both sequence numbers; negative: before it."""
    return (int(position) - int(begin) + HALF) % WRAP - HALF


@kernel
def _near(group, side, position):
    """Whether a position of this direction, which is known, continues or repeats those seen."""
    before = 1 if group.syn[side] != UNKNOWN else NEAR  # a keep-alive may be one byte before the first
    return _from(group.low[side], position) >= -before and _from(group.next[side], position) <= NEAR


@kernel
def _agrees(group, g):
    """Whether a segment may be of the connection of a group."""
    side = int(np.int64(g.direction))
    peer = 1 - side
    flags, seq, ack = int(g["flags"]), int(g.seq), int(g.ack)
    if flags & SYN:
        if group.syn[side] != UNKNOWN:
            if group.syn[side] != seq:
                return False
        elif group.next[side] != UNKNOWN and _from(group.low[side], seq) != -1:
            return False
        inside = _from(group.low[peer], ack) >= 0 and _from(group.next[peer], ack) <= 0
        return flags & ACK == 0 or group.next[peer] == UNKNOWN or inside
    if group.next[side] != UNKNOWN and not _near(group, side, seq):
        return False
    return flags & ACK == 0 or flags & RST != 0 or group.next[peer] == UNKNOWN or _near(group, peer, ack)


@kernel
def _update(group, g):
    """Add the positions of a segment to its group."""
    side = int(np.int64(g.direction))
    flags, seq = int(g["flags"]), int(g.seq)
    if flags & RST:
        return
    first = (seq + 1) % WRAP if flags & SYN else seq
    end = (first + int(g.wire_len) + (1 if flags & FIN else 0)) % WRAP
    if flags & SYN and group.syn[side] != seq:
        if not _agrees(group, g):  # another connection
            _clear(group)
            _add(group, int(g.space))
        group.syn[side] = seq
        group.low[side] = first
        if group.next[side] == UNKNOWN:
            group.next[side] = end
    _extend(group, side, first, end)
    if flags & ACK:
        _extend(group, 1 - side, int(g.ack), int(g.ack))


@kernel
def _extend(group, side, begin, end):
    """The bytes of a direction from `begin` to `end` were seen, or acknowledged."""
    if group.next[side] == UNKNOWN:
        group.low[side] = begin
        group.next[side] = end
        return
    after, before = _from(group.next[side], end), _from(begin, group.low[side])
    if abs(after) >= FAR and abs(before) >= FAR:
        group.low[side] = begin
        group.next[side] = end
        return
    if 0 < after < FAR:
        group.next[side] = end
    if 0 < before < FAR and group.syn[side] == UNKNOWN:
        group.low[side] = begin
    if _from(group.low[side], group.next[side]) > WIDEST:
        group.low[side] = (group.next[side] - WIDEST) % WRAP
