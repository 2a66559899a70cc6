"""Finds segments that begin as a ClientHello or as an HTTP request: where a layer may begin."""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import inlined, kernel

HELLO_HEAD = 43  # octets of a record with a ClientHello up to the end of its random; no upgrade of HTTP is shorter
ANY = -1
HELLO = (0x16, 3, ANY, ANY, ANY, 1, ANY, ANY, ANY, 3)  # handshake record, version 3.x, ClientHello, version 3.x
REQUEST = (0x47, 0x45, 0x54, 0x20)  # "GET "


@inlined
def _begins(payload, at, size, pattern):
    """Whether the octets at `at`, as far as there are any, match `pattern`."""
    for i in range(min(size, len(pattern))):
        if pattern[i] != ANY and payload[at + i] != pattern[i]:
            return False
    return True


@kernel
def first_candidate(segments, payload, i):
    """Index of the first segment from `i` on that begins as a ClientHello or an HTTP request; -1: none does."""
    for j in range(i, len(segments)):
        g = segments[j]
        size, at = int(g.cap_len), int(g.payload_at)
        if size > 0 and (_begins(payload, at, size, HELLO) or _begins(payload, at, size, REQUEST)):
            return j
    return -1


def head_at(segments: np.ndarray, payload: np.ndarray, i: int) -> bytes:
    """The payload of segment `i`; if it is short, also that of those that continue it, up to HELLO_HEAD octets."""
    found, g = b"", segments[i]
    way, seq = int(g["direction"]), int(g["seq"])
    for other in segments[i : i + HELLO_HEAD * 4]:
        if len(found) >= HELLO_HEAD:
            break
        if int(other["direction"]) == way and int(other["seq"]) == (seq + len(found)) % (1 << 32):
            found += payload[int(other["payload_at"]) : int(other["payload_at"]) + int(other["cap_len"])].tobytes()
    return found
