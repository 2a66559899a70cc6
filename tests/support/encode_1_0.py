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
# Fields of performatives in their order, and the types of those that are numbers (part 2, 2.7).
FIELDS = {
    BEGIN: "remote_channel:ushort next_outgoing_id:uint incoming_window:uint outgoing_window:uint handle_max:uint",
    ATTACH: "name handle:uint role snd_settle_mode:ubyte rcv_settle_mode:ubyte source target unsettled"
    " incomplete_unsettled initial_delivery_count:uint max_message_size:ulong",
    FLOW: "next_incoming_id:uint incoming_window:uint next_outgoing_id:uint outgoing_window:uint handle:uint"
    " delivery_count:uint link_credit:uint available:uint drain echo",
    TRANSFER: "handle:uint delivery_id:uint delivery_tag message_format:uint settled more rcv_settle_mode:ubyte state"
    " resume aborted",
    DISPOSITION: "role first:uint last:uint settled state",
    DETACH: "handle:uint closed error",
}


def encoded(thing: Any) -> bytes:
    """The bytes of a value."""
    data = proton.Data()
    data.put_object(thing)
    wire_bytes: bytes = data.encode()
    return wire_bytes


def described(code: int, *fields: Any) -> Any:
    """A described list."""
    return proton.Described(proton.ulong(code), list(fields))


def performative(code: int, *fields: Any) -> bytes:
    return encoded(described(code, *fields))


def fields_of(code: int, **given: Any) -> list[Any]:
    """The fields of a performative up to the last one that is given; None: null."""
    values = []
    for field in FIELDS[code].split():
        name, _, kind = field.partition(":")
        value = given.pop(name, None)
        values.append(value if value is None or not kind else getattr(proton, kind)(value))
    assert not given, given
    while values and values[-1] is None:
        values.pop()
    return values


def performative_frame(code: int, channel: int = 0, payload: bytes = b"", /, **given: Any) -> bytes:
    """A frame with a performative of these fields, and the payload behind it."""
    return frame(performative(code, *fields_of(code, **given)) + payload, channel)


def section(code: int, value: Any) -> bytes:
    """A section of a message: a described value."""
    return encoded(proton.Described(proton.ulong(code), value))


def data_section(body: bytes) -> bytes:
    return section(DATA, body)


def frame(body: bytes, channel: int = 0, kind: int = 0, doff: int = 2, extended: bytes = b"") -> bytes:
    size = 8 + len(extended) + len(body)
    return size.to_bytes(4, "big") + bytes([doff, kind]) + channel.to_bytes(2, "big") + extended + body
