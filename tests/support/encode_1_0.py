"""AMQP 1.0 frames, performatives and sections, encoded by qpid-proton."""

from __future__ import annotations

from typing import Any

import proton

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ERROR, ACCEPTED, REJECTED, RELEASED, MODIFIED, SOURCE, TARGET = 0x1D, *range(0x24, 0x2A)
COORDINATOR, DECLARE, DISCHARGE, DECLARED, TRANSACTIONAL = range(0x30, 0x35)
MECHANISMS, INIT, CHALLENGE, RESPONSE, OUTCOME = range(0x40, 0x45)
DATA, VALUE = 0x75, 0x77
SASL = 1  # type of a frame


def encoded(thing: Any) -> bytes:
    """The octets of a value."""
    data = proton.Data()
    data.put_object(thing)
    octets: bytes = data.encode()
    return octets


def described(code: int, *fields: Any) -> Any:
    """A described list."""
    return proton.Described(proton.ulong(code), list(fields))


def performative(code: int, *fields: Any) -> bytes:
    return encoded(described(code, *fields))


def section(code: int, value: Any) -> bytes:
    """A section of a message: a described value."""
    return encoded(proton.Described(proton.ulong(code), value))


def data_section(body: bytes) -> bytes:
    return section(DATA, body)


def frame(body: bytes, channel: int = 0, kind: int = 0, doff: int = 2, extended: bytes = b"") -> bytes:
    size = 8 + len(extended) + len(body)
    return size.to_bytes(4, "big") + bytes([doff, kind]) + channel.to_bytes(2, "big") + extended + body
