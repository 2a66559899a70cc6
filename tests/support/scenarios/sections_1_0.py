"""Messages of 1.0 by qpid-proton, as RabbitMQ 3 and 4 deliver them."""

from __future__ import annotations

from typing import Any

import proton

from scenarios.script import Event


def sections_of(event: Event, annotates: bool) -> bytes:
    """The message as it stands in the transfers: header, annotations, properties, application properties, data."""
    message = event.message
    assert message is not None
    encoded: Any = proton.Message(body=message.body, inferred=True, durable=True)
    encoded.delivery_count = event.deliveries
    if message.message_id is not None:
        encoded.id = message.message_id
    if message.correlation_id is not None:
        encoded.correlation_id = message.correlation_id
    if message.reply_to is not None:
        encoded.reply_to = message.reply_to
    told: dict[Any, Any] = {}
    if event.deaths:
        first = event.deaths[-1]
        told = {
            "x-first-death-exchange": first.exchange,
            "x-first-death-queue": first.queue,
            "x-first-death-reason": first.reason,
        }
    if annotates and event.kind != "publish":
        told |= {"x-exchange": event.exchange, "x-routing-key": event.routing_key}
        encoded.annotations = {proton.symbol(key): value for key, value in told.items()}
    elif told:
        encoded.properties = told
    octets: bytes = encoded.encode()
    return octets
