"""The header of the PROXY protocol (HAProxy, "The PROXY protocol", versions 1 and 2).

A load balancer sends it before the first byte of its client, so that the server learns the client's address. RabbitMQ
reads it with `proxy_protocol = true`.
"""

from __future__ import annotations

from ipaddress import ip_address

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.cursor import begins, byte_at, u16
from codec.net.identity import IPV4_MAPPED

NO_HEADER, INCOMPLETE = 0, -1
TEXT = tuple(b"PROXY ")  # section 2.1: one line
TEXT_BYTES = 107  # of the longest line, with its CR LF
SIGNATURE = tuple(b"\r\n\r\n\0\r\nQUIT\n")  # section 2.2: binary
FIXED_BYTES = 16  # signature, version and command, family, length of the rest
VERSION_2 = 2
PROXIED = {0x11: 4, 0x21: 16}  # address family and transport: TCP over IPv4, over IPv6; bytes of an address
COMMAND_PROXY = 1
STORED_BYTES = TEXT_BYTES + 1  # of a header, with both addresses
CR, LF = 0x0D, 0x0A


@kernel
def proxy_header(buf, p, end):
    """Size of the header at `p`; INCOMPLETE: it may end after `end`; NO_HEADER."""
    if begins(buf, p, end, TEXT):
        for at in range(p + len(TEXT), min(end, p + TEXT_BYTES)):
            if byte_at(buf, at) == LF:
                return at + 1 - p if byte_at(buf, at - 1) == CR else NO_HEADER
        return INCOMPLETE if end - p < TEXT_BYTES else NO_HEADER
    if not begins(buf, p, end, SIGNATURE):
        return NO_HEADER
    if end - p < FIXED_BYTES:
        return INCOMPLETE
    size = FIXED_BYTES + u16(buf, p + FIXED_BYTES - 2, end)
    if byte_at(buf, p + len(SIGNATURE)) >> 4 != VERSION_2:
        return NO_HEADER
    return size if size <= end - p else INCOMPLETE


def without_addresses(size: int) -> NDArray[np.uint8]:
    """A header of `size` bytes of which the receiver ignores all but the length: version 1 with family UNKNOWN (section
    2.1), or version 2 with command LOCAL (section 2.2) if it is longer than a line."""
    if size <= TEXT_BYTES:
        data = b"PROXY UNKNOWN".ljust(size - 2, b" ") + b"\r\n"
    else:
        data = bytes(SIGNATURE) + bytes([VERSION_2 << 4, 0]) + (size - FIXED_BYTES).to_bytes(2, "big")
        data = data.ljust(size, bytes(1))
    return np.frombuffer(data, np.uint8)


def proxied_ends(header: bytes) -> tuple[bytes, bytes] | None:
    """The ends of the connection that a header speaks of, the client's first: each 16 bytes of an address (IPv4
    mapped) and two of a port. None: the load balancer's own connection, another transport, or no valid addresses."""
    if header.startswith(bytes(TEXT)):
        return _of_line(header.partition(b"\r\n")[0])
    if len(header) < FIXED_BYTES or header[12] != VERSION_2 << 4 | COMMAND_PROXY:
        return None
    width, addresses = PROXIED.get(header[13], 0), header[FIXED_BYTES:]
    if not width or len(addresses) < 2 * width + 4 or int.from_bytes(header[14:16], "big") < 2 * width + 4:
        return None
    prefix, ports = IPV4_MAPPED if width == 4 else b"", addresses[2 * width : 2 * width + 4]
    return prefix + addresses[:width] + ports[:2], prefix + addresses[width : 2 * width] + ports[2:]


def _of_line(line: bytes) -> tuple[bytes, bytes] | None:
    """PROXY TCP4 or TCP6, address of the client, address that it connected to, port of the client, that port (section
    2.1)."""
    words = line.decode("latin-1").split(" ")
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        return None
    try:
        addresses = [ip_address(word) for word in words[2:4]]
        ports = [int(word).to_bytes(2, "big") for word in words[4:]]
    except (ValueError, OverflowError):
        return None
    if not all(each.version == int(words[1][3]) for each in addresses) or not all(map(str.isdigit, words[4:])):
        return None
    prefix = IPV4_MAPPED if words[1] == "TCP4" else b""
    client, other = (prefix + each.packed + port for each, port in zip(addresses, ports, strict=True))
    return client, other
