"""Writes pcapng: one section, its interfaces, packets with comments.

Source: draft-ietf-opsawg-pcapng, sections 4.1 to 4.3, 4.7. Little-endian. An interface is described before its first
packet.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from codec.capture.pcapng import (
    BYTE_ORDER_MAGIC,
    END_OF_OPTIONS,
    ENHANCED_PACKET,
    IF_TSRESOL,
    INTERFACE,
    MICROSECONDS,
    SECTION,
)
from codec.capture.secrets import SECRETS_BLOCK, TLS_KEY_LOG
from pipeline.extract.originals import IF_DESCRIPTION, IF_NAME, Interface

COMMENT, APPLICATION = 1, 4
UNKNOWN_LENGTH = (1 << 64) - 1
LONGEST_OPTION = 0xFFFF
PIECE_BYTES = 1 << 18


class Sink(Protocol):
    """Takes bytes: an open file."""

    def write(self, data: bytes, /) -> object: ...


def option(code: int, value: bytes) -> bytes:
    """An option, padded to four bytes; too long values are truncated."""
    value = value[:LONGEST_OPTION]
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def block(kind: int, body: bytes) -> bytes:
    """A block with its length at both ends."""
    length = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + length + body + length


class Writer:
    """Writes packets to an open file, in the order of the calls. `close` flushes."""

    def __init__(self, sink: Sink, application: str) -> None:
        self._sink = sink
        self._interfaces: dict[Interface, int] = {}
        self._pieces = bytearray()
        options = option(APPLICATION, application.encode()) + option(END_OF_OPTIONS, b"")
        self._pieces += block(SECTION, struct.pack("<IHHQ", BYTE_ORDER_MAGIC, 1, 0, UNKNOWN_LENGTH) + options)

    def secrets(self, key_log: bytes) -> None:
        """Write a Decryption Secrets Block (section 4.7), before the packets that it is about."""
        head = struct.pack("<II", TLS_KEY_LOG, len(key_log))
        self._pieces += block(SECRETS_BLOCK, head + key_log + bytes(-len(key_log) % 4))

    def packet(
        self, interface: Interface, ts_ns: int, octets: memoryview, wire_len: int, comments: Sequence[str] = ()
    ) -> None:
        """Write a packet that was captured at `ts_ns` (ns since 1970) and had `wire_len` bytes on the wire."""
        number = self._interfaces.get(interface)
        if number is None:
            number = self._describe(interface)
        units = ts_ns // 10 ** (9 - interface.places)
        head = struct.pack("<IIIII", number, units >> 32, units & 0xFFFFFFFF, len(octets), wire_len)
        tail = bytes(-len(octets) % 4)
        if comments:
            tail += b"".join(option(COMMENT, text.encode()) for text in comments) + option(END_OF_OPTIONS, b"")
        length = struct.pack("<I", 12 + len(head) + len(octets) + len(tail))
        self._pieces += struct.pack("<I", ENHANCED_PACKET) + length + head
        self._pieces += octets
        self._pieces += tail + length
        if len(self._pieces) >= PIECE_BYTES:
            self.close()

    def _describe(self, interface: Interface) -> int:
        options = b"".join(
            option(code, value)
            for code, value in ((IF_NAME, interface.name), (IF_DESCRIPTION, interface.description))
            if value
        )
        if interface.places != MICROSECONDS:
            options += option(IF_TSRESOL, bytes([interface.places]))
        if options:
            options += option(END_OF_OPTIONS, b"")
        self._pieces += block(INTERFACE, struct.pack("<HHI", interface.link_type, 0, interface.snaplen) + options)
        self._interfaces[interface] = len(self._interfaces)
        return self._interfaces[interface]

    def close(self) -> None:
        """Write the buffered bytes."""
        self._sink.write(bytes(self._pieces))
        self._pieces.clear()
