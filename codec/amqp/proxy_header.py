"""The header of the PROXY protocol (HAProxy, "The PROXY protocol", versions 1 and 2).

A load balancer sends it before the first byte of its client, so that the server learns the client's address. RabbitMQ
reads it with `proxy_protocol = true`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.cursor import begins, octet, u16

NO_HEADER, INCOMPLETE = 0, -1
TEXT = tuple(b"PROXY ")  # section 2.1: one line
TEXT_BYTES = 107  # of the longest line, with its CR LF
SIGNATURE = tuple(b"\r\n\r\n\0\r\nQUIT\n")  # section 2.2: binary
FIXED_BYTES = 16  # signature, version and command, family, length of the rest
VERSION_2 = 2
CR, LF = 0x0D, 0x0A


@kernel
def proxy_header(buf, p, end):
    """Size of the header at `p`; INCOMPLETE: it may end after `end`; NO_HEADER."""
    if begins(buf, p, end, TEXT):
        for at in range(p + len(TEXT), min(end, p + TEXT_BYTES)):
            if octet(buf, at) == LF:
                return at + 1 - p if octet(buf, at - 1) == CR else NO_HEADER
        return INCOMPLETE if end - p < TEXT_BYTES else NO_HEADER
    if not begins(buf, p, end, SIGNATURE):
        return NO_HEADER
    if end - p < FIXED_BYTES:
        return INCOMPLETE
    size = FIXED_BYTES + u16(buf, p + FIXED_BYTES - 2, end)
    if octet(buf, p + len(SIGNATURE)) >> 4 != VERSION_2:
        return NO_HEADER
    return size if size <= end - p else INCOMPLETE


def without_addresses(size: int) -> NDArray[np.uint8]:
    """A header of `size` bytes of which the receiver ignores all but the length: version 1 with family UNKNOWN (section
    2.1), or version 2 with command LOCAL (section 2.2) if it is longer than a line."""
    if size <= TEXT_BYTES:
        octets = b"PROXY UNKNOWN".ljust(size - 2, b" ") + b"\r\n"
    else:
        octets = bytes(SIGNATURE) + bytes([VERSION_2 << 4, 0]) + (size - FIXED_BYTES).to_bytes(2, "big")
        octets = octets.ljust(size, bytes(1))
    return np.frombuffer(octets, np.uint8)
