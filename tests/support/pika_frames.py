"""Frames of 0-9-1 by pika."""

from __future__ import annotations

import pika.frame
import pika.spec


def method(call: pika.amqp_object.Method, channel: int = 1) -> bytes:
    data: bytes = pika.frame.Method(channel, call).marshal()
    return data


def content(call: pika.amqp_object.Method) -> bytes:
    """A method with the header of an empty body."""
    header: bytes = pika.frame.Header(1, 0, pika.spec.BasicProperties()).marshal()
    return method(call) + header


PUBLISH = content(pika.spec.Basic.Publish(exchange="e", routing_key="k"))
