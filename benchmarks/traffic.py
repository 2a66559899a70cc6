"""What the 0-9-1 connections of a benchmark capture say, encoded by pika: a publisher with confirms on a channel that
also consumes its own messages and acknowledges each of them."""

from __future__ import annotations

import numpy as np
from pika import frame, spec

from benchmarks.templates import (
    CLIENT,
    IN_MESSAGE_ID,
    MESSAGE_ID,
    SERVER,
    Counter,
    Script,
    Step,
    Unit,
    body_of,
    marker,
    marker_value,
    sizes,
    unit,
)

FRAME_MAX = 131072  # what both sides agree on; a frame has eight bytes beside its payload
BODY_MAX = FRAME_MAX - 8
ACKED, CONFIRMED, DELIVERED = (marker(number, 8) for number in range(3))


def method(channel: int, body: object) -> bytes:
    return bytes(frame.Method(channel, body).marshal())


def content(channel: int, opening: object, body: bytes, number: int) -> bytes:
    properties = spec.BasicProperties(
        content_type="application/json",
        delivery_mode=2,
        message_id=MESSAGE_ID.decode(),
        timestamp=1_700_000_000,
        headers={"tenant": "acme", "attempt": number % 5, "trace": f"{number * 2654435761 % 2**32:08x}"},
    )
    header = frame.Header(channel, len(body), properties).marshal()
    bodies = (frame.Body(channel, body[at : at + BODY_MAX]).marshal() for at in range(0, len(body), BODY_MAX))
    return method(channel, opening) + bytes(header) + b"".join(bodies)


def units(rng: np.random.Generator, burst: int, message_bytes: int) -> tuple[list[Unit], list[Unit]]:
    """What client and server send for a message, in 16 sizes around `message_bytes`."""
    client, first, server = [], [], []
    for number, size in enumerate(sizes(message_bytes)):
        body, in_body = body_of(rng, size)
        key = f"orders.eu.{number:02d}"
        published = content(1, spec.Basic.Publish(exchange="orders", routing_key=key), body, number)
        acked = published + method(1, spec.Basic.Ack(delivery_tag=marker_value(ACKED)))
        first.append(unit(published, {**IN_MESSAGE_ID, **in_body}))
        client.append(unit(acked, {ACKED: Counter(1 - burst), **IN_MESSAGE_ID, **in_body}))
        confirm = method(1, spec.Basic.Ack(delivery_tag=marker_value(CONFIRMED)))
        deliver = spec.Basic.Deliver("ctag1.bench", marker_value(DELIVERED), False, "orders", key)
        delivered = confirm + content(1, deliver, body, number)
        server.append(unit(delivered, {CONFIRMED: Counter(1), DELIVERED: Counter(1), **IN_MESSAGE_ID, **in_body}))
    return client + first, server


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
        (SERVER, 0, spec.Connection.Tune(2047, FRAME_MAX, 60)),
        (CLIENT, 0, spec.Connection.TuneOk(2047, FRAME_MAX, 60)),
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


def closing(messages: int, burst: int) -> list[Step]:
    """The last acknowledgement (all that remains) and a clean end."""
    return [
        (CLIENT, method(1, spec.Basic.Ack(delivery_tag=messages, multiple=True))),
        (CLIENT, method(1, spec.Channel.Close(200, "bye", 0, 0))),
        (SERVER, method(1, spec.Channel.CloseOk())),
        (CLIENT, method(0, spec.Connection.Close(200, "bye", 0, 0))),
        (SERVER, method(0, spec.Connection.CloseOk())),
    ]


CLASSIC_SCRIPT = Script(opening, units, closing)
