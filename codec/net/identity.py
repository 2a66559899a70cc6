"""Identifiers of flows and connections, which do not depend on the machine, time or partitioning of a decode.

`connection_number` is BLAKE2b (RFC 7693, 8 octets of digest) of a flow and its connection's first packet. `name_flows`
writes Community IDs (version 1 of the Corelight specification): SHA-1 (FIPS 180-4) in base64. The input is always
shorter than one block; hashlib would need a call from Python for each connection.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import interpreted, kernel, njit
from codec.memory import readonly
from codec.net.segments import FLOW_KEY_BYTES

if interpreted():  # additions wrap by design; compiled code does so silently
    np.seterr(over="ignore")

IPPROTO_TCP = 6
NAME_BYTES = 30  # "1:" and the 28 characters of 20 octets
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
    """`words` uint64 (32,): working memory of BLAKE2b; `octets` uint8 (64,): its input."""

    words: np.ndarray
    octets: np.ndarray


def new_scratch() -> Scratch:
    """Room for `connection_number`."""
    return Scratch(np.zeros(32, np.uint64), np.zeros(64, np.uint8))


@kernel
def _put(octets, at, number, size):
    """Write a number in network order: the offset after it."""
    for i in range(size):
        octets[at + i] = (number >> (8 * (size - 1 - i))) & 0xFF
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
    words, octets = scratch.words, scratch.octets
    octets[:] = 0
    for i in range(FLOW_KEY_BYTES):
        octets[i] = flow[i]
    size = _put(octets, _put(octets, FLOW_KEY_BYTES, ts_ns, 8), seq, 4)
    if times:
        size = _put(octets, size, times, 4)
    for i in range(8):
        words[i] = words[8 + i] = BLAKE_IV[i]
        word = np.uint64(0)
        for j in range(8):
            word |= np.uint64(np.uint64(octets[8 * i + j]) << np.uint64(8 * j))
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
    for _ in range(DIGEST_BYTES):  # the octets of the digest, in network order
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
            chosen = np.uint32(d ^ (b & (c ^ d)))
        elif part == 2:
            chosen = np.uint32((b & c) | (d & (b | c)))
        else:
            chosen = np.uint32(b ^ c ^ d)
        total = np.uint32(np.uint32(_turned(a, 5) + chosen) + np.uint32(e + SHA_ROUND[part]))
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
def _ends(flow, octets):
    """Write the addresses of a flow to the input, the low endpoint first: the offset after them."""
    skip = MAPPED_BYTES
    for i in range(MAPPED_BYTES):
        expected = 0xFF if i >= 10 else 0
        if flow[i] != expected or flow[IP_BYTES + i] != expected:
            skip = 0
    at = 2
    for i in range(skip, 2 * IP_BYTES):
        if i % IP_BYTES >= skip:
            octets[at] = flow[i]
            at += 1
    return at


@njit
def _name_flows(flows, seed, protocol, octets, words, digest, out):
    for row in range(len(flows)):
        flow = flows[row]
        octets[:] = 0
        _put(octets, 0, seed, 2)
        at = _ends(flow, octets)
        octets[at] = protocol
        at += 2
        for i in range(2 * PORT_BYTES):
            octets[at + i] = flow[2 * IP_BYTES + i]
        at += 2 * PORT_BYTES
        octets[at] = 0x80
        _put(octets, 62, 8 * at, 2)
        for i in range(16):
            word = 0
            for j in range(4):
                word = (word << 8) | int(octets[4 * i + j])
            words[i] = word
        _sha1(words, digest)
        for i in range(20):
            octets[i] = (int(digest[i // 4]) >> (8 * (3 - i % 4))) & 0xFF
        octets[20] = 0
        out[row, 0] = 0x31
        out[row, 1] = 0x3A
        for i in range(7):
            three = (int(octets[3 * i]) << 16) | (int(octets[3 * i + 1]) << 8) | int(octets[3 * i + 2])
            for j in range(4):
                out[row, 2 + 4 * i + j] = BASE64[(three >> (6 * (3 - j))) & 0x3F]
        out[row, NAME_BYTES - 1] = 0x3D


def flow_key(one: bytes, other: bytes) -> bytes:
    """The key of the flow between two ends, each 16 octets of an address (IPv4 mapped) and two of a port."""
    low, high = sorted((one, other))
    return low[:IP_BYTES] + high[:IP_BYTES] + low[IP_BYTES:] + high[IP_BYTES:]


def name_flows(flows: NDArray[np.uint8], seed: int = 0, protocol: int = IPPROTO_TCP) -> NDArray[np.uint8]:
    """Community IDs of flow keys, uint8 (n, 36), of TCP or another protocol with ports: ASCII, uint8 (n, 30)."""
    out = np.empty((len(flows), NAME_BYTES), np.uint8)
    scratch = np.zeros(64, np.uint8), np.zeros(80, np.uint32), np.zeros(5, np.uint32)
    _name_flows(readonly(np.ascontiguousarray(flows)), seed, protocol, *scratch, out)
    return out
