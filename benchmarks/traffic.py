"""What the connections of a benchmark capture say: frames of a realistic 0-9-1 talk, encoded by pika.

The messages are templates in 16 sizes (`units`), in which the delivery tags are patched later; handshake and end are
made frame by frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pika import frame, spec

Bytes = NDArray[np.uint8]
CLIENT, SERVER = 0, 1
Step = tuple[int, bytes]  # side, frame


@dataclass(frozen=True)
class Unit:
    """What one side sends for one message, as bytes in which some places are patched.

    tags: (offset, what is added to the message's number) of 8-byte delivery tags
    """

    data: Bytes
    tags: tuple[tuple[int, int], ...]


def method(channel: int, body: object) -> bytes:
    return bytes(frame.Method(channel, body).marshal())


def content(channel: int, opening: object, body: bytes, number: int) -> bytes:
    properties = spec.BasicProperties(
        content_type="application/json",
        delivery_mode=2,
        message_id=f"m-{number:08d}",
        timestamp=1_700_000_000,
        headers={"tenant": "acme", "attempt": number % 5, "trace": f"{number * 2654435761 % 2**32:08x}"},
    )
    header = frame.Header(channel, len(body), properties).marshal()
    return method(channel, opening) + bytes(header + frame.Body(channel, body).marshal())


def body_text(rng: np.random.Generator, size: int) -> bytes:
    letters = np.frombuffer(b'abcdefghijklmnopqrstuvwxyz0123456789 ":,{}', np.uint8)
    return letters[rng.integers(0, len(letters), size)].tobytes()


def ack_tag(unit: bytes) -> int:
    """Offset of the delivery tag of a basic.ack (or basic.nack) frame that ends the unit: tag 8, bits 1, end 1."""
    return len(unit) - 10


def units(rng: np.random.Generator, burst: int, message_bytes: int) -> tuple[list[Unit], list[Unit]]:
    """Templates of what client and server send for a message, in 16 sizes around `message_bytes`."""
    client, server = [], []
    for number, share in enumerate(np.linspace(0.1, 1.9, 16)):
        body = body_text(rng, max(1, int(message_bytes * share)))
        key = f"orders.eu.{number:02d}"
        published = content(1, spec.Basic.Publish(exchange="orders", routing_key=key), body, number)
        acked = published + method(1, spec.Basic.Ack(delivery_tag=1))
        client.append(Unit(np.frombuffer(acked, np.uint8), ((ack_tag(acked), 1 - burst),)))
        confirm = method(1, spec.Basic.Ack(delivery_tag=1))
        deliver = spec.Basic.Deliver("ctag1.bench", 1, False, "orders", key)
        delivered = confirm + content(1, deliver, body, number)
        tag = len(confirm) + 7 + 4 + 1 + len("ctag1.bench")  # frame header, class and method, consumer tag
        server.append(Unit(np.frombuffer(delivered, np.uint8), ((ack_tag(confirm), 1), (tag, 1))))
    return client, server


def opening() -> list[Step]:
    """(side, bytes) of the handshake up to basic.consume-ok."""
    properties = {
        "product": "RabbitMQ",
        "version": "3.10.8",
        "capabilities": {"publisher_confirms": True, "basic.nack": True},
    }
    client = {"product": "Pika Python Client Library", "version": "1.4.4", "capabilities": {"publisher_confirms": True}}
    start = spec.Connection.Start(0, 9, properties, "PLAIN AMQPLAIN", "en_US")
    steps: list[tuple[int, int, object]] = [
        (SERVER, 0, start),
        (CLIENT, 0, spec.Connection.StartOk(client, "PLAIN", "\0guest\0guest", "en_US")),
        (SERVER, 0, spec.Connection.Tune(2047, 131072, 60)),
        (CLIENT, 0, spec.Connection.TuneOk(2047, 131072, 60)),
        (CLIENT, 0, spec.Connection.Open("/")),
        (SERVER, 0, spec.Connection.OpenOk()),
        (CLIENT, 1, spec.Channel.Open()),
        (SERVER, 1, spec.Channel.OpenOk()),
        (CLIENT, 1, spec.Confirm.Select()),
        (SERVER, 1, spec.Confirm.SelectOk()),
        (CLIENT, 1, spec.Queue.Declare(queue="bench", durable=True, arguments={"x-max-length": 100000})),
        (SERVER, 1, spec.Queue.DeclareOk("bench", 0, 0)),
        (CLIENT, 1, spec.Basic.Qos(prefetch_count=100)),
        (SERVER, 1, spec.Basic.QosOk()),
        (CLIENT, 1, spec.Basic.Consume(queue="bench", consumer_tag="ctag1.bench")),
        (SERVER, 1, spec.Basic.ConsumeOk("ctag1.bench")),
    ]
    return [(CLIENT, b"AMQP\0\0\x09\x01"), *((side, method(channel, body)) for side, channel, body in steps)]


def closing(messages: int) -> list[Step]:
    """The last acknowledgement (all that is left) and a clean end."""
    return [
        (CLIENT, method(1, spec.Basic.Ack(delivery_tag=messages, multiple=True))),
        (CLIENT, method(1, spec.Channel.Close(200, "bye", 0, 0))),
        (SERVER, method(1, spec.Channel.CloseOk())),
        (CLIENT, method(0, spec.Connection.Close(200, "bye", 0, 0))),
        (SERVER, method(0, spec.Connection.CloseOk())),
    ]
