"""What the 0-10 and 1.0 connections of a benchmark capture say: like the 0-9-1 ones, a publisher that is told of every
message, and a consumer of the same messages that accepts each of them, on one session.

0-10 is laid out by hand from its specification (classes connection, session, message), 1.0 is encoded by qpid-proton.
A body lies in one frame.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from proton import Data, Described, Message, symbol, ubyte, uint, ulong, ushort

from benchmarks.patches import Counter, Text
from benchmarks.units import (
    CLIENT,
    IN_MESSAGE_ID,
    MESSAGE_ID,
    SERVER,
    Script,
    Step,
    Unit,
    body_of,
    marker,
    numbered,
    sizes,
    unit,
)

BODY_MAX = 60_000  # frames of 0-10 hold 65,535 bytes, those of the 1.0 talk 65,536


def bodies(rng: np.random.Generator, message_bytes: int) -> list[tuple[bytes, dict[bytes, Counter | Text]]]:
    """The bodies of the units, and what differs in them. Raises ValueError where one does not fit into a frame."""
    if max(sizes(message_bytes)) > BODY_MAX:
        raise ValueError(f"bodies of {message_bytes} bytes: at most {BODY_MAX // 2} in 0-10 and 1.0")
    return [(body, dict(kinds)) for body, kinds in (body_of(rng, size) for size in sizes(message_bytes))]


# ---- 0-10: frame header of 12 octets; first and last segment and frame in the four low bits of the first ------------

# The client's commands: 0 subscribe, 1 and 2 flow, then a transfer and an accept for each message. The server's: one
# transfer for each message.
BEFORE_TRANSFERS = 3
CREDIT_MESSAGES, CREDIT_BYTES, UNLIMITED = 0, 1, 0xFFFFFFFF
COMPLETED, ACCEPTED, ACCEPTED_LAST = marker(0, 4), marker(1, 4), marker(2, 4)
HEADER_0_10 = b"AMQP\1\1\0\x0a"


def frame(flags: int, kind: int, track: int, payload: bytes) -> bytes:
    return struct.pack(">BBHBBHI", flags, kind, 12 + len(payload), 0, track, 0, 0) + payload


def command(klass: int, code: int, flags: int, body: bytes) -> bytes:
    """A command alone; its header struct is empty, `flags` are the packing flags of its arguments."""
    return frame(15, 1, 1, bytes([klass, code, 1, 0]) + struct.pack("<H", flags) + body)


def control(klass: int, code: int, flags: int, body: bytes) -> bytes:
    """A control alone in its frame, on track 0; `flags` are the packing flags of its arguments."""
    return frame(15, 0, 0, bytes([klass, code]) + struct.pack("<H", flags) + body)


def str8(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def struct32(klass: int, code: int, flags: int, body: bytes) -> bytes:
    inside = bytes([klass, code]) + struct.pack("<H", flags) + body
    return struct.pack(">I", len(inside)) + inside


def ranges(first: bytes, last: bytes) -> bytes:
    """A sequence-set of one range."""
    return struct.pack(">H", 8) + first + last


CONNECTION_OCTETS, MESSAGE_OCTETS = marker(5, 4), marker(6, 4)
# A message-id of 16 octets, of which eight differ.
UUID = b"\xbe\x7c\x40\x11\x8a\x00\x4b\x5c" + CONNECTION_OCTETS + MESSAGE_OCTETS
IN_UUID = {CONNECTION_OCTETS: Counter(of_connection=True), MESSAGE_OCTETS: Counter()}


def transfer(destination: bytes, key: bytes, body: bytes) -> bytes:
    """message.transfer, explicit accept, with delivery-properties, message-properties and a body."""
    method = bytes([4, 1, 1, 0]) + struct.pack("<H", 0x0001 | 0x0002 | 0x0004) + str8(destination) + b"\x00\x00"
    delivery = struct32(4, 1, 0x0008 | 0x0010 | 0x0100 | 0x0200, b"\x04\x02" + str8(b"orders") + str8(key))
    entries = [(b"tenant", b"acme"), (b"trace", b"9f86d081")]
    table = b"".join(str8(name) + b"\x95" + struct.pack(">H", len(value)) + value for name, value in entries)
    table = struct.pack(">I", len(entries)) + table
    headers = struct.pack(">I", len(table)) + table
    message = struct.pack(">Q", len(body)) + UUID + str8(b"application/json") + headers
    properties = struct32(4, 3, 0x0001 | 0x0002 | 0x0010 | 0x0100, message)
    return frame(11, 1, 1, method) + frame(3, 2, 1, delivery + properties) + frame(7, 3, 1, body)


def units_0_10(rng: np.random.Generator, burst: int, message_bytes: int) -> tuple[list[Unit], list[Unit]]:
    """What client and server send for a message, in 16 sizes around `message_bytes`."""
    client, server = [], []
    for number, (body, in_body) in enumerate(bodies(rng, message_bytes)):
        key = b"orders.eu.%02d" % number
        accept = command(4, 2, 1, ranges(ACCEPTED, ACCEPTED_LAST))
        of_accept = {ACCEPTED: Counter(-burst), ACCEPTED_LAST: Counter(-burst)}
        client.append(unit(transfer(b"orders", key, body) + accept, {**of_accept, **IN_UUID, **in_body}))
        completed = control(2, 10, 1, ranges(bytes(4), COMPLETED))
        of_completed = {COMPLETED: Counter(BEFORE_TRANSFERS, stride=2)}
        server.append(unit(completed + transfer(b"c1", key, body), {**of_completed, **IN_UUID, **in_body}))
    return client, server


def opening_0_10() -> list[Step]:
    """Up to the credit for the consumer."""
    empty_map = struct.pack(">II", 4, 0)
    word = b"\x95" + struct.pack(">H", 4) + b"qpid"
    product = struct.pack(">I", 4 + 8 + len(word)) + struct.pack(">I", 1) + str8(b"product") + word
    mechanisms = struct.pack(">IBI", 11, 0x95, 1) + struct.pack(">H", 4) + b"ANON"
    locales = struct.pack(">IBI", 12, 0x95, 1) + struct.pack(">H", 5) + b"en_US"
    name = struct.pack(">H", 7) + b"bench-1"
    start_ok = product + str8(b"ANON") + struct.pack(">I", 0) + str8(b"en_US")
    credits = [struct.pack(">BI", unit, UNLIMITED) for unit in (CREDIT_MESSAGES, CREDIT_BYTES)]
    return [
        (CLIENT, HEADER_0_10),
        (SERVER, HEADER_0_10 + control(1, 1, 7, product + mechanisms + locales)),
        (CLIENT, control(1, 2, 15, start_ok)),
        (SERVER, control(1, 5, 15, struct.pack(">HHHH", 255, 65535, 0, 120))),
        (CLIENT, control(1, 6, 7, struct.pack(">HHH", 255, 65535, 60)) + control(1, 7, 1, str8(b"/"))),
        (SERVER, control(1, 8, 0, b"")),
        (CLIENT, control(2, 1, 1, name) + control(2, 7, 3, struct.pack(">IQ", 0, 0))),
        (SERVER, control(2, 2, 1, name) + control(2, 7, 3, struct.pack(">IQ", 0, 0))),
        (CLIENT, command(4, 7, 15 | 128, str8(b"bench") + str8(b"c1") + b"\x00\x00" + empty_map)),
        *((CLIENT, command(4, 10, 7, str8(b"c1") + credit)) for credit in credits),
    ]


def closing_0_10(messages: int) -> list[Step]:
    """The last acceptance (of all) and a clean end."""
    all_of_them = ranges(bytes(4), struct.pack(">I", max(0, messages - 1)))
    name = struct.pack(">H", 7) + b"bench-1"
    return [
        (CLIENT, command(4, 2, 1, all_of_them)),
        (CLIENT, control(2, 3, 1, name)),
        (SERVER, control(2, 4, 3, name + b"\x00")),
        (CLIENT, control(1, 11, 3, struct.pack(">H", 200) + str8(b"bye"))),
        (SERVER, control(1, 12, 0, b"")),
    ]


# ---- 1.0: frame header of 8 octets; performatives are described lists -----------------------------------------------

HEADER_1_0 = b"AMQP\0\1\0\0"
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, END, CLOSE = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x18
SOURCE, TARGET, ACCEPT = 0x28, 0x29, 0x24
TO_BROKER, TO_CLIENT = uint(0), uint(1)  # handles, the same on both sides
SENDER, RECEIVER = False, True
DELIVERY, SETTLED, TAG = marker(0, 4), marker(1, 4), marker(2, 8)
CREDIT = uint(1_000_000_000)


def described(code: int, fields: list[Any]) -> Described:
    return Described(ulong(code), fields)


def performative(code: int, fields: list[Any], payload: bytes = b"") -> bytes:
    data = Data()
    data.put_object(described(code, fields))
    body = bytes(data.encode()) + payload
    return struct.pack(">IBBH", 8 + len(body), 2, 0, 0) + body


def attach(name: str, handle: uint, role: bool, address: str) -> bytes:
    """A link of unsettled deliveries."""
    ends = [described(SOURCE, [address]), described(TARGET, [address])]
    return performative(ATTACH, [name, handle, role, ubyte(0), ubyte(0), *ends, None, None, uint(0)])


def flow(handle: uint) -> bytes:
    return performative(FLOW, [uint(0), uint(2048), uint(0), uint(2048), handle, uint(0), CREDIT])


def units_1_0(rng: np.random.Generator, burst: int, message_bytes: int) -> tuple[list[Unit], list[Unit]]:
    """What client and server send for a message, in 16 sizes around `message_bytes`."""
    client, server = [], []
    for number, (body, in_body) in enumerate(bodies(rng, message_bytes)):
        message = Message(
            id=MESSAGE_ID.decode(),
            address="orders",
            subject=f"orders.eu.{number:02d}",
            content_type=symbol("application/json"),
            durable=True,
            properties={"tenant": "acme", "trace": "9f86d081"},
            body=body,
        ).encode()
        sent = [uint(numbered(DELIVERY)), TAG, uint(0), False, False]
        in_transfer = {DELIVERY: Counter(), TAG: Counter(), **IN_MESSAGE_ID, **in_body}
        accepted = [uint(numbered(SETTLED)), None, True, described(ACCEPT, [])]
        to_broker = performative(TRANSFER, [TO_BROKER, *sent], message)
        to_client = performative(TRANSFER, [TO_CLIENT, *sent], message)
        of_client = performative(DISPOSITION, [RECEIVER, *accepted])
        client.append(unit(to_broker + of_client, {SETTLED: Counter(-burst), **in_transfer}))
        server.append(unit(of_client + to_client, {SETTLED: Counter(), **in_transfer}))
    return client, server


def opening_1_0() -> list[Step]:
    """Up to the credit of both links."""
    opens = [
        performative(OPEN, [name, "bench", uint(65536), ushort(255), uint(120_000)]) for name in ("client", "broker")
    ]
    begins = [performative(BEGIN, [channel, uint(0), uint(2048), uint(2048)]) for channel in (None, ushort(0))]
    return [
        (CLIENT, HEADER_1_0 + opens[CLIENT]),
        (SERVER, HEADER_1_0 + opens[SERVER]),
        (CLIENT, begins[CLIENT]),
        (SERVER, begins[SERVER]),
        (CLIENT, attach("to-broker", TO_BROKER, SENDER, "orders") + attach("to-client", TO_CLIENT, RECEIVER, "orders")),
        (
            SERVER,
            attach("to-broker", TO_BROKER, RECEIVER, "orders") + attach("to-client", TO_CLIENT, SENDER, "orders"),
        ),
        (SERVER, flow(TO_BROKER)),
        (CLIENT, flow(TO_CLIENT)),
    ]


def closing_1_0(messages: int) -> list[Step]:
    """The last acceptance (of all) and a clean end."""
    all_of_them = [RECEIVER, uint(0), uint(max(0, messages - 1)), True, described(ACCEPT, [])]
    return [
        (CLIENT, performative(DISPOSITION, list(all_of_them))),
        *((side, performative(code, [])) for code in (END, CLOSE) for side in (CLIENT, SERVER)),
    ]


SEGMENTED_TALK = Script(opening_0_10, units_0_10, closing_0_10)
DESCRIBED_TALK = Script(opening_1_0, units_1_0, closing_1_0)
