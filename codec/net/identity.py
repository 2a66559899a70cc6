"""Identifiers of flows and connections, which do not depend on the machine, time or partitioning of a decode.

`connection_number` is BLAKE2b (RFC 7693, 8 bytes of digest) of a flow and its connection's first packet. `name_flows`
writes Community IDs (version 1 of the Corelight specification): SHA-1 (FIPS 180-4) in base64. The input is always
shorter than one block; hashlib would need a call from Python for each connection.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel, njit
from codec.compiler.limits import LIMITS
from codec.memory import as_records, readonly
from codec.net.layers import (
    ACK,
    FIN,
    FLOW_KEY_BYTES,
    RST,
    SYN,
)

IPPROTO_TCP = 6
NAME_BYTES = 30  # "1:" and the 28 characters of 20 bytes
IP_BYTES, PORT_BYTES = 16, 2
IPV4_MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address (RFC 4291 section 2.5.5.2)
MAPPED_BYTES = len(IPV4_MAPPED)

# RFC 7693 section 2.6 and 2.7.
BLAKE_IV = np.array(
    [
        0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
        0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
    ],
    np.uint64,
)  # fmt: skip
SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
    ],
    np.int64,
)
BLAKE_ROUNDS = 12
DIGEST_BYTES = 8
COLUMNS = np.array(
    [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15], [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13],
     [3, 4, 9, 14]],
    np.int64,
)  # fmt: skip

SHA_IV = np.array([0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0], np.uint32)
SHA_ROUND = np.array([0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6], np.uint32)
BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


class Scratch(NamedTuple):
    """`words` uint64 (32,): working memory of BLAKE2b; `bytes` uint8 (64,): its input."""

    words: np.ndarray
    data: np.ndarray


def new_scratch() -> Scratch:
    """Room for `connection_number`."""
    return Scratch(np.zeros(32, np.uint64), np.zeros(64, np.uint8))


@kernel
def _put(data, at, number, size):
    """Write a number in network order: the offset after it."""
    for i in range(size):
        data[at + i] = (number >> (8 * (size - 1 - i))) & 0xFF
    return at + size


@kernel
def _rotated(x, n):
    return np.uint64((x >> np.uint64(n)) | (x << np.uint64(64 - n)))


@kernel
def _mix(words, of, x, y):
    """Function G of BLAKE2b (RFC 7693 section 3.1)."""
    a, b, c, d = of[0], of[1], of[2], of[3]
    words[a] = np.uint64(np.uint64(words[a] + words[b]) + x)
    words[d] = _rotated(words[d] ^ words[a], 32)
    words[c] = np.uint64(words[c] + words[d])
    words[b] = _rotated(words[b] ^ words[c], 24)
    words[a] = np.uint64(np.uint64(words[a] + words[b]) + y)
    words[d] = _rotated(words[d] ^ words[a], 16)
    words[c] = np.uint64(words[c] + words[d])
    words[b] = _rotated(words[b] ^ words[c], 63)


@kernel
def connection_number(flow, ts_ns, seq, times, scratch):
    """Non-negative int64 from the flow key (uint8), capture time and sequence number of the first packet, and (when not
    0) the number of earlier connections of the flow that began with such a packet."""
    words, data = scratch.words, scratch.data
    data[:] = 0
    for i in range(FLOW_KEY_BYTES):
        data[i] = flow[i]
    size = _put(data, _put(data, FLOW_KEY_BYTES, ts_ns, 8), seq, 4)
    if times:
        size = _put(data, size, times, 4)
    for i in range(8):
        words[i] = words[8 + i] = BLAKE_IV[i]
        word = np.uint64(0)
        for j in range(8):
            word |= np.uint64(np.uint64(data[8 * i + j]) << np.uint64(8 * j))
        words[16 + i] = word
        words[24 + i] = np.uint64(0)
    start = np.uint64(BLAKE_IV[0] ^ np.uint64(0x01010000 | DIGEST_BYTES))
    words[0] = start
    words[12] = np.uint64(words[12] ^ np.uint64(size))
    words[14] = np.uint64(~words[14])  # the last block
    for i in range(BLAKE_ROUNDS):
        order = SIGMA[i % len(SIGMA)]
        for j in range(8):
            _mix(words, COLUMNS[j], words[16 + order[2 * j]], words[16 + order[2 * j + 1]])
    digest = np.uint64(start ^ words[0] ^ words[8])
    number = np.uint64(0)
    for _ in range(DIGEST_BYTES):  # the bytes of the digest, in network order
        number = np.uint64(np.uint64(number << np.uint64(8)) | (digest & np.uint64(0xFF)))
        digest = np.uint64(digest >> np.uint64(8))
    return np.int64(number >> np.uint64(1))


@kernel
def _turned(x, n):
    return np.uint32((x << np.uint32(n)) | (x >> np.uint32(32 - n)))


@kernel
def _sha1(words, digest):
    """One block, the first 16 of the 80 `words` (uint32), into `digest` (uint32 (5,))."""
    for i in range(16, 80):
        words[i] = _turned(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1)
    a, b, c, d, e = SHA_IV[0], SHA_IV[1], SHA_IV[2], SHA_IV[3], SHA_IV[4]
    for i in range(80):
        part = i // 20
        if part == 0:
            mixed = np.uint32(d ^ (b & (c ^ d)))
        elif part == 2:
            mixed = np.uint32((b & c) | (d & (b | c)))
        else:
            mixed = np.uint32(b ^ c ^ d)
        total = np.uint32(np.uint32(_turned(a, 5) + mixed) + np.uint32(e + SHA_ROUND[part]))
        e = d
        d = c
        c = _turned(b, 30)
        b = a
        a = np.uint32(total + words[i])
    digest[0] = np.uint32(SHA_IV[0] + a)
    digest[1] = np.uint32(SHA_IV[1] + b)
    digest[2] = np.uint32(SHA_IV[2] + c)
    digest[3] = np.uint32(SHA_IV[3] + d)
    digest[4] = np.uint32(SHA_IV[4] + e)


@kernel
def _ends(flow, data):
    """Write the addresses of a flow to the input, the low endpoint first: the offset after them."""
    skip = MAPPED_BYTES
    for i in range(MAPPED_BYTES):
        expected = 0xFF if i >= 10 else 0
        if flow[i] != expected or flow[IP_BYTES + i] != expected:
            skip = 0
    at = 2
    for i in range(skip, 2 * IP_BYTES):
        if i % IP_BYTES >= skip:
            data[at] = flow[i]
            at += 1
    return at


@njit
def _name_flows(flows, seed, protocol, data, words, digest, out):
    for row in range(len(flows)):
        flow = flows[row]
        data[:] = 0
        _put(data, 0, seed, 2)
        at = _ends(flow, data)
        data[at] = protocol
        at += 2
        for i in range(2 * PORT_BYTES):
            data[at + i] = flow[2 * IP_BYTES + i]
        at += 2 * PORT_BYTES
        data[at] = 0x80
        _put(data, 62, 8 * at, 2)
        for i in range(16):
            word = 0
            for j in range(4):
                word = (word << 8) | int(data[4 * i + j])
            words[i] = word
        _sha1(words, digest)
        for i in range(20):
            data[i] = (int(digest[i // 4]) >> (8 * (3 - i % 4))) & 0xFF
        data[20] = 0
        out[row, 0] = 0x31
        out[row, 1] = 0x3A
        for i in range(7):
            three = (int(data[3 * i]) << 16) | (int(data[3 * i + 1]) << 8) | int(data[3 * i + 2])
            for j in range(4):
                out[row, 2 + 4 * i + j] = BASE64[(three >> (6 * (3 - j))) & 0x3F]
        out[row, NAME_BYTES - 1] = 0x3D


def flow_key(one: bytes, other: bytes) -> bytes:
    """The key of the flow between two ends, each 16 bytes of an address (IPv4 mapped) and two of a port."""
    low, high = sorted((one, other))
    return low[:IP_BYTES] + high[:IP_BYTES] + low[IP_BYTES:] + high[IP_BYTES:]


def name_flows(flows: NDArray[np.uint8], seed: int = 0, protocol: int = IPPROTO_TCP) -> NDArray[np.uint8]:
    """Community IDs of flow keys, uint8 (n, 36), of TCP or another protocol with ports: ASCII, uint8 (n, 30)."""
    out = np.empty((len(flows), NAME_BYTES), np.uint8)
    scratch = np.zeros(64, np.uint8), np.zeros(80, np.uint32), np.zeros(5, np.uint32)
    _name_flows(readonly(np.ascontiguousarray(flows)), seed, protocol, *scratch, out)
    return out


# Tells live connections with the same addresses and ports apart by their address spaces.
#
# An *address space* is what a packet was in below IP: capture interface, VLANs, tunnels
# (`codec.net.headers.enter_space` hashes them). Two tenants of a network may use the same addresses and ports at the
# same time in two VLANs or VNIs. But the space of a packet does not name its connection: a mirror port shows each
# packet in two VLANs, both directions of a connection may have different tags, and a tunnel or an interface may change.
# So sequence numbers decide. The segments of a flow key are in *groups* of spaces, most often in one:
#
# * A packet in a space of a group belongs to it.
# * A packet in a new space belongs to the first group whose sequence numbers and acknowledgements it continues or
#   repeats; its space is one of that group from then on. A SYN must be the same SYN, a SYN-ACK must answer it.
# * Any other packet begins a group.
# * Where there are several groups, a packet that contradicts its own group and fits another one belongs to that: two
#   connections may share the space of one direction. A SYN of another connection leaves its group this one space.
#
# The positions of a group are in a GROUP record, which follows from the segments so far in their order alone. Cost:
# linear in the segments; `Limits.address_spaces` bounds the groups of a flow key, and the spaces of a group.


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
