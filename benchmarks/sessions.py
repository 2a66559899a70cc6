"""0-10 and 1.0 connections of a benchmark capture: like the 0-9-1 ones, a publisher whose messages are accepted, and a
consumer of the same messages that accepts each, on one session.

0-10 is encoded by the encoder of the tests, 1.0 by qpid-proton. A body is in one frame.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import encode_1_0
import numpy as np
from encode_0_10 import FIRST_FRAME, FIRST_SEGMENT, LAST_FRAME, LAST_SEGMENT, frame, header, one_frame, segment
from encode_1_0 import (
    ATTACH,
    BEGIN,
    CLOSE,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    SOURCE,
    TARGET,
    TRANSFER,
    described,
    performative,
)
from proton import Message, symbol, ubyte, uint, ushort

from benchmarks.templates import (
    CLIENT,
    IN_MESSAGE_ID,
    MESSAGE_ID,
    SERVER,
    Counter,
    Script,
    Step,
    Text,
    Unit,
    body_of,
    marker,
    marker_value,
    sizes,
    unit,
)

BODY_MAX = 60_000  # frames of 0-10 hold 65,535 bytes, those of 1.0 here 65,536


def bodies(rng: np.random.Generator, message_bytes: int) -> list[tuple[bytes, dict[bytes, Counter | Text]]]:
    """The bodies of the units, and their patches. Raises ValueError if one does not fit into a frame."""
    if max(sizes(message_bytes)) > BODY_MAX:
        raise ValueError(f"bodies of {message_bytes} bytes: at most {BODY_MAX // 2} in 0-10 and 1.0")
    return [(body, dict(kinds)) for body, kinds in (body_of(rng, size) for size in sizes(message_bytes))]


# ---- 0-10 -----------------------------------------------------------------------------------------------------------

# The client's commands: 0 subscribe, 1 and 2 flow, then a transfer and an accept for each message. The server's: one
# transfer for each message.
BEFORE_TRANSFERS = 3
CREDIT_MESSAGES, CREDIT_BYTES, UNLIMITED = 0, 1, 0xFFFFFFFF
COMPLETED, ACCEPTED, ACCEPTED_LAST = marker(0, 4), marker(1, 4), marker(2, 4)
HEADER_0_10 = b"AMQP\1\1\0\x0a"
CONNECTION_BYTES, MESSAGE_BYTES = marker(5, 4), marker(6, 4)
# A message-id of 16 bytes, of which eight differ.
MESSAGE_UUID = UUID(bytes=b"\xbe\x7c\x40\x11\x8a\x00\x4b\x5c" + CONNECTION_BYTES + MESSAGE_BYTES)
IN_UUID = {CONNECTION_BYTES: Counter(of_connection=True), MESSAGE_BYTES: Counter()}
TABLE = {"tenant": ("str16", "acme"), "trace": ("str16", "9f86d081")}


def transfer(destination: str, key: str, body: bytes) -> bytes:
    """message.transfer, explicit accept, with delivery-properties, message-properties and a body."""
    method = {"destination": destination, "accept-mode": 0, "acquire-mode": 0}
    delivery = {"priority": 4, "delivery-mode": 2, "exchange": "orders", "routing-key": key}
    message = {"content-length": len(body), "message-id": MESSAGE_UUID, "content-type": "application/json"}
    sections = (
        ("message.delivery-properties", delivery),
        ("message.message-properties", {**message, "application-headers": TABLE}),
    )
    ends = FIRST_FRAME | LAST_FRAME
    return (
        frame(1, segment("message.transfer", method), flags=FIRST_SEGMENT | ends)
        + frame(2, header(*sections), flags=ends)
        + frame(3, body, flags=LAST_SEGMENT | ends)
    )


def units_0_10(rng: np.random.Generator, burst: int, message_bytes: int) -> tuple[list[Unit], list[Unit]]:
    """What client and server send for a message, in 16 sizes around `message_bytes`."""
    client, first, server = [], [], []
    accept = one_frame("message.accept", {"transfers": [(marker_value(ACCEPTED), marker_value(ACCEPTED_LAST))]})
    # in the place of an acceptance: commands are counted
    more = one_frame("message.flow", {"destination": "c1", "unit": CREDIT_MESSAGES, "value": UNLIMITED})
    in_accept = {ACCEPTED: Counter(-burst), ACCEPTED_LAST: Counter(-burst)}
    completed = one_frame("session.completed", {"commands": [(0, marker_value(COMPLETED))]})
    in_completed = {COMPLETED: Counter(BEFORE_TRANSFERS, stride=2)}
    for number, (body, in_body) in enumerate(bodies(rng, message_bytes)):
        key = f"orders.eu.{number:02d}"
        first.append(unit(transfer("orders", key, body) + more, {**IN_UUID, **in_body}))
        client.append(unit(transfer("orders", key, body) + accept, {**in_accept, **IN_UUID, **in_body}))
        server.append(unit(completed + transfer("c1", key, body), {**in_completed, **IN_UUID, **in_body}))
    return client + first, server


def opening_0_10() -> list[Step]:
    """Up to the credit for the consumer."""
    product, name = {"product": ("str16", "qpid")}, {"name": b"bench-1"}
    point = one_frame("session.command-point", {"command-id": 0, "command-offset": 0})
    start = {"server-properties": product, "mechanisms": ("str16", ["ANON"]), "locales": ("str16", ["en_US"])}
    start_ok = {"client-properties": product, "mechanism": "ANON", "response": b"", "locale": "en_US"}
    limits = {"channel-max": 255, "max-frame-size": 65535}
    tune_ok = one_frame("connection.tune-ok", {**limits, "heartbeat": 60})
    subscribe = {"queue": "bench", "destination": "c1", "accept-mode": 0, "acquire-mode": 0, "arguments": {}}
    credits = [{"destination": "c1", "unit": unit, "value": UNLIMITED} for unit in (CREDIT_MESSAGES, CREDIT_BYTES)]
    return [
        (CLIENT, HEADER_0_10),
        (SERVER, HEADER_0_10 + one_frame("connection.start", start)),
        (CLIENT, one_frame("connection.start-ok", start_ok)),
        (SERVER, one_frame("connection.tune", {**limits, "heartbeat-min": 0, "heartbeat-max": 120})),
        (CLIENT, tune_ok + one_frame("connection.open", {"virtual-host": "/"})),
        (SERVER, one_frame("connection.open-ok", {})),
        (CLIENT, one_frame("session.attach", name) + point),
        (SERVER, one_frame("session.attached", name) + point),
        (CLIENT, one_frame("message.subscribe", subscribe)),
        *((CLIENT, one_frame("message.flow", credit)) for credit in credits),
    ]


def closing_0_10(messages: int, burst: int) -> list[Step]:
    """The last acceptance (of the last burst) and a clean end."""
    name = {"name": b"bench-1"}
    return [
        (CLIENT, one_frame("message.accept", {"transfers": [(max(0, messages - burst), max(0, messages - 1))]})),
        (CLIENT, one_frame("session.detach", name)),
        (SERVER, one_frame("session.detached", {**name, "code": 0})),
        (CLIENT, one_frame("connection.close", {"reply-code": 200, "reply-text": "bye"})),
        (SERVER, one_frame("connection.close-ok", {})),
    ]


# ---- 1.0 ------------------------------------------------------------------------------------------------------------

HEADER_1_0 = b"AMQP\0\1\0\0"
TO_BROKER, TO_CLIENT = uint(0), uint(1)  # handles, the same on both sides
SENDER, RECEIVER = False, True
DELIVERY, SETTLED, TAG = marker(0, 4), marker(1, 4), marker(2, 8)
CREDIT = uint(1_000_000_000)
WINDOW = uint(0x7FFFFFFF)  # transfers: more than a session has, since no flow renews it


def framed(code: int, fields: list[Any], payload: bytes = b"") -> bytes:
    """A performative in a frame."""
    return encode_1_0.frame(performative(code, *fields) + payload)


def attach(name: str, handle: uint, role: bool, address: str) -> bytes:
    """A link of unsettled deliveries."""
    ends = [described(SOURCE, address), described(TARGET, address)]
    return framed(ATTACH, [name, handle, role, ubyte(0), ubyte(0), *ends, None, None, uint(0)])


def flow(handle: uint) -> bytes:
    return framed(FLOW, [uint(0), WINDOW, uint(0), WINDOW, handle, uint(0), CREDIT])


def units_1_0(rng: np.random.Generator, burst: int, message_bytes: int) -> tuple[list[Unit], list[Unit]]:
    """What client and server send for a message, in 16 sizes around `message_bytes`."""
    client, first, server = [], [], []
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
        sent = [uint(marker_value(DELIVERY)), TAG, uint(0), False, False]
        in_transfer = {DELIVERY: Counter(), TAG: Counter(), **IN_MESSAGE_ID, **in_body}
        accepted = [uint(marker_value(SETTLED)), None, True, described(encode_1_0.ACCEPTED)]
        to_broker = framed(TRANSFER, [TO_BROKER, *sent], message)
        to_client = framed(TRANSFER, [TO_CLIENT, *sent], message)
        of_client = framed(DISPOSITION, [RECEIVER, *accepted])
        first.append(unit(to_broker, in_transfer))
        client.append(unit(to_broker + of_client, {SETTLED: Counter(-burst), **in_transfer}))
        server.append(unit(of_client + to_client, {SETTLED: Counter(), **in_transfer}))
    return client + first, server


def opening_1_0() -> list[Step]:
    """Up to the credit of both links."""
    opens = [framed(OPEN, [name, "bench", uint(65536), ushort(255), uint(120_000)]) for name in ("client", "broker")]
    begins = [framed(BEGIN, [channel, uint(0), WINDOW, WINDOW]) for channel in (None, ushort(0))]
    return [
        (CLIENT, HEADER_1_0 + opens[CLIENT]),
        (SERVER, HEADER_1_0 + opens[SERVER]),
        (CLIENT, begins[CLIENT]),
        (SERVER, begins[SERVER]),
        (CLIENT, attach("to-broker", TO_BROKER, SENDER, "orders") + attach("to-client", TO_CLIENT, RECEIVER, "orders")),
        (SERVER, attach("to-broker", TO_BROKER, RECEIVER, "orders") + attach("to-client", TO_CLIENT, SENDER, "orders")),
        (SERVER, flow(TO_BROKER)),
        (CLIENT, flow(TO_CLIENT)),
    ]


def closing_1_0(messages: int, burst: int) -> list[Step]:
    """The last acceptance (of the last burst) and a clean end."""
    remaining = [
        RECEIVER,
        uint(max(0, messages - burst)),
        uint(max(0, messages - 1)),
        True,
        described(encode_1_0.ACCEPTED),
    ]
    return [
        (CLIENT, framed(DISPOSITION, list(remaining))),
        *((side, framed(code, [])) for code in (END, CLOSE) for side in (CLIENT, SERVER)),
    ]


SCRIPT_0_10 = Script(opening_0_10, units_0_10, closing_0_10)
SCRIPT_1_0 = Script(opening_1_0, units_1_0, closing_1_0)
