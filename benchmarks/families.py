"""The same conversation in three families: messages of a publisher, deliveries to a consumer, settlements of both.

`streams(family, message_bytes)` gives what client and server say as bytes: an opening, then rounds that are repeated.
0-9-1 is encoded by pika (benchmarks/traffic.py), messages and performatives of 1.0 by qpid-proton; 0-10 is laid out
here by hand from its specification (transport; class message), as no encoder of it is still maintained.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from proton import Data, Described, Message, symbol, uint, ulong

from benchmarks.packets import stream_of
from benchmarks.traffic import opening, units
from benchmarks.units import CLIENT, SERVER

FAMILIES = ("0-9-1", "0-10", "1.0")
Streams = tuple[tuple[bytes, bytes], tuple[bytes, bytes]]  # (opening of the client, of the server), (a round of each)


def streams(family: str, message_bytes: int) -> Streams:
    """What the two sides say: once, and again and again."""
    return {"0-9-1": _classic, "0-10": _segmented, "1.0": _described}[family](message_bytes)


def _classic(message_bytes: int) -> Streams:
    steps = opening()
    client, server = units(np.random.default_rng(1), 16, message_bytes)
    said = [b"".join(data for side, data in steps if side == who) for who in (CLIENT, SERVER)]
    order = np.arange(len(client))
    rounds = [stream_of(side, order, 0, 0)[0].tobytes() for side in (client, server)]
    return (said[0], said[1]), (rounds[0], rounds[1])


# ---- 0-10: frame header of 12 octets; first and last segment and frame in the four low bits of the first ------------


def frame(flags: int, kind: int, track: int, payload: bytes) -> bytes:
    return struct.pack(">BBHBBHI", flags, kind, 12 + len(payload), 0, track, 0, 0) + payload


def command(klass: int, code: int, flags: int, body: bytes) -> bytes:
    """A command alone; its header struct is empty, `flags` are the packing flags of its arguments."""
    return frame(15, 1, 1, bytes([klass, code, 1, 0]) + struct.pack("<H", flags) + body)


def str8(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def struct32(klass: int, code: int, flags: int, body: bytes) -> bytes:
    inside = bytes([klass, code]) + struct.pack("<H", flags) + body
    return struct.pack(">I", len(inside)) + inside


def _transfer(destination: bytes, message_bytes: int) -> bytes:
    """message.transfer (4.1) with delivery-properties (4.1), message-properties (4.3), and a body."""
    method = bytes([4, 1, 1, 0]) + struct.pack("<H", 1 | 2 | 4) + str8(destination) + b"\x01\x00"
    delivery = struct32(4, 1, 0x0008 | 0x0010 | 0x0100 | 0x0200, b"\x04\x02" + str8(b"orders") + str8(b"orders.eu"))
    entries = [(b"tenant", b"acme"), (b"trace", b"9f86d081")]
    table = b"".join(str8(key) + b"\x95" + struct.pack(">H", len(value)) + value for key, value in entries)
    table = struct.pack(">I", len(entries)) + table
    headers = struct.pack(">I", len(table)) + table
    message = struct.pack(">Q", message_bytes) + bytes(range(16)) + str8(b"application/json") + headers
    properties = struct32(4, 3, 0x0001 | 0x0002 | 0x0010 | 0x0100, message)
    return frame(11, 1, 1, method) + frame(3, 2, 1, delivery + properties) + frame(7, 3, 1, b"x" * message_bytes)


def _segmented(message_bytes: int) -> Streams:
    header = b"AMQP\1\1\0\x0a"
    ids = struct.pack(">HII", 8, 0, 63)  # a sequence set of one range
    publish, deliver = _transfer(b"orders", message_bytes), _transfer(b"consumer-1", message_bytes)
    accept = command(4, 2, 1, ids)
    completed = frame(15, 0, 0, bytes([2, 10]) + struct.pack("<H", 1) + ids)
    client = b"".join(publish + (accept if i % 4 == 0 else b"") for i in range(16))
    server = b"".join((completed if i % 4 == 0 else b"") + deliver for i in range(16))
    return (header, header), (client, server)


# ---- 1.0: frame header of 8 octets; performatives are described lists -----------------------------------------------


def performative(code: int, fields: list[Any], payload: bytes = b"") -> bytes:
    data = Data()
    data.put_object(Described(ulong(code), fields))
    body = bytes(data.encode()) + payload
    return struct.pack(">IBBH", 8 + len(body), 2, 0, 0) + body


def _described(message_bytes: int) -> Streams:
    header = b"AMQP\0\1\0\0"
    first = header + performative(0x10, ["container", "host", uint(65536)])
    message = Message(
        id="m-00000001",
        address="orders",
        subject="orders.eu.01",
        content_type=symbol("application/json"),
        durable=True,
        properties={"tenant": "acme", "trace": "9f86d081"},
        body=b"x" * message_bytes,
    ).encode()

    def transfer(handle: int) -> bytes:
        return performative(0x14, [uint(handle), uint(7), b"\0\0\0\7", uint(0), False, False], message)

    accepted = Described(ulong(0x24), [])
    disposition = performative(0x15, [True, uint(0), uint(3), True, accepted])
    flow = performative(0x13, [uint(1), uint(100), uint(1), uint(100), uint(0), uint(1), uint(100), uint(0), False])
    side = b"".join(transfer(0) + (disposition if i % 4 == 0 else flow if i % 4 == 1 else b"") for i in range(16))
    return (first, first), (side, side)
