"""What addresses of 1.0 name, for each broker as data.

RabbitMQ has '/exchanges/EXCHANGE/KEY' and '/queues/QUEUE' (percent-encoded), before version 4 '/exchange/EXCHANGE/KEY',
'/queue/QUEUE', '/amq/queue/QUEUE', '/topic/KEY' (its documentation, AMQP 1.0, addresses). ActiveMQ has 'queue://QUEUE'
and 'topic://TOPIC', and 'temp-queue://', 'temp-topic://' of a connection. Artemis separates the queue of an address by
'::', Service Bus the subscription of a topic by '/Subscriptions/' and dead letters by '/$DeadLetterQueue', Event Hubs
what reads a hub, and its parts, by '/ConsumerGroups/' and '/Partitions/'. Any other address is a name; only the broker
knows whether it is that of a queue.

Importing this loads no kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from udfs.arrow.fields import to_utf8_escaped

# (kind, pattern, exchange or None for the first group, groups of the routing key and of the queue, whether it is
# percent-encoded, whether it is of RabbitMQ, which alone has exchanges)
ADDRESS_FORMS = tuple(
    (kind, re.compile(pattern, re.DOTALL), exchange, *groups)  # each is read in time linear in the address
    for kind, pattern, exchange, *groups in (
        ("exchange", rb"/exchanges/([^/]+)/?(.*)", None, 2, None, True, True),
        ("exchange", rb"/exchange/([^/]+)/?(.*)", None, 2, None, False, True),
        ("exchange", rb"/topic/(.*)", b"amq.topic", 1, None, False, True),
        ("queue", rb"/queues/(.*)", b"", 1, 1, True, True),
        ("queue", rb"/(?:amq/)?queue/(.*)", b"", 1, 1, False, True),
        ("queue", rb"queue://(.*)", b"", 1, 1, False, False),
        ("exchange", rb"(topic://)(.*)", None, 2, None, False, False),
        ("queue", rb"temp-queue://(.*)", b"", 1, 1, False, False),
        ("exchange", rb"(temp-topic://)(.*)", None, 2, None, False, False),
        ("name", rb"(.+)::(.*)", b"", 1, 2, False, False),
        ("name", rb"(?i)(.+)/subscriptions/.*", b"", 1, 0, False, False),
        ("name", rb"(?i)(.+)/\$deadletterqueue\Z", b"", 1, 0, False, False),
        ("name", rb"(?i)([^/]+)/(?:consumergroups|partitions)/.*", b"", 1, 0, False, False),
    )
)
# Addresses of queues of dead letters -> the queue whose letters these are, or None for any. ActiveMQ: its own queue
# for each (with the prefix of its configuration) or a shared one; Artemis: a shared one.
DEAD_LETTER_FORMS = tuple(
    (re.compile(pattern, re.DOTALL), group)
    for pattern, group in (
        (rb"(?:queue://)?DLQ\.(.+)", 1),
        (rb"(?:queue://)?ActiveMQ\.DLQ\.(?:Queue|Topic)\.(.+)", 1),
        (rb"(?:queue://)?ActiveMQ\.DLQ\Z", None),
        (rb"DLQ(?:::DLQ)?\Z", None),
    )
)
# Paths of RabbitMQ's management over AMQP (percent-encoded) -> groups of the exchange, the queue and the routing key.
MANAGED_FORMS = tuple(
    (re.compile(pattern, re.DOTALL), *groups)
    for pattern, *groups in (
        (rb"/queues/([^/?]+)(?:/messages)?\Z", None, 1, None),
        (rb"/exchanges/([^/?]+)\Z", 1, None, None),
        (rb"/bindings/src=([^;]*);dstq=([^;]*);key=([^;]*);args=[^;]*\Z", 1, 2, 3),
        (rb"/bindings/src=([^;]*);dste=[^;]*;key=([^;]*);args=[^;]*\Z", 1, None, 2),
    )
)
# Service Bus: dead letters of a queue or subscription, and the header that says why.
HAS_DEAD_LETTERS, DEAD_LETTER_REASON = r"(?i)/\$deadletterqueue$", "DeadLetterReason"
SERVES = r"(^|/)\$(management|cbs)$|^/management$"  # nodes that serve requests: Azure and Qpid, RabbitMQ
INVALID_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Node(NamedTuple):
    """What an address names: `kind` 'exchange' 'queue' 'name'; the route of what is published there; the `queue` from
    which it is delivered, None where each reader has its own. `has_form`: the address has one of ADDRESS_FORMS;
    `routes`: the route has the names of the broker."""

    kind: str
    exchange: bytes
    routing_key: bytes
    queue: bytes | None
    has_form: bool = False
    routes: bool = False


def node(address: bytes) -> Node:
    for kind, pattern, exchange, key, queue, encoded, routes in ADDRESS_FORMS:
        found = pattern.match(address)
        if found:
            named = _part(found[1], encoded) if exchange is None else exchange
            read = None if queue is None else _part(found[queue], encoded)
            return Node(kind, named, _part(found[key], encoded), read, True, routes)
    return Node("name", b"", address, address)


def nodes(addresses: pa.Array) -> tuple[pa.Array, ...]:
    """Kind, exchange, routing key and queue (strings) of the `Node` of each address; null without one. Each distinct
    address is read once."""
    encoded, known = _distinct(addresses)
    kinds = pa.array([each.kind for each in known], pa.string())
    return tuple(
        column.take(encoded)
        for column in (kinds, *_texts((each.exchange, each.routing_key, each.queue) for each in known))
    )


def named_by(addresses: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """What addresses name in the words of their broker: exchange and routing key that they publish to, and the queue
    that they are delivered from; null where only the broker knows."""
    encoded, known = _distinct(addresses)
    parts = (
        (
            each.exchange if each.routes else None,
            each.routing_key if each.routes or each.kind == "exchange" else None,
            each.queue if each.has_form else None,
        )
        for each in known
    )
    exchange, routing_key, queue = (column.take(encoded) for column in _texts(parts))
    return exchange, routing_key, queue


def managed_by(paths: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """What paths of management requests name: exchange, queue and routing key; null where they do not."""
    encoded = paths.dictionary_encode()
    parts = list[tuple[bytes | None, ...]]()
    for path in encoded.dictionary.cast(pa.binary()).to_pylist():
        found = ((pattern.match(path), groups) for pattern, *groups in MANAGED_FORMS)
        match, groups = next(((match, groups) for match, groups in found if match), (None, [None] * 3))
        parts.append(tuple(_part(match[group], True) if match and group else None for group in groups))
    exchange, queue, routing_key = (column.take(encoded.indices) for column in _texts(parts))
    return exchange, queue, routing_key


def _distinct(addresses: pa.Array) -> tuple[pa.Array, list[Node]]:
    """The index of each address among the distinct ones, and what these name."""
    encoded = addresses if pa.types.is_dictionary(addresses.type) else addresses.dictionary_encode()
    return encoded.indices, [node(address) for address in encoded.dictionary.cast(pa.binary()).to_pylist()]


def _texts(parts: Iterable[tuple[bytes | None, ...]]) -> list[pa.Array]:
    """Three columns of strings."""
    columns = zip(*parts, strict=True)
    return [to_utf8_escaped(pa.array(column, pa.binary())) for column in columns] or [pa.nulls(0, pa.string())] * 3


def dead_letters_of(addresses: pa.Array) -> tuple[pa.Array, pa.BooleanArray]:
    """Of addresses of queues of dead letters: the queue whose letters these are, null elsewhere; whether they may be
    those of any queue."""
    encoded = addresses.dictionary_encode()
    names, any_of = list[bytes | None](), list[bool]()
    for address in encoded.dictionary.cast(pa.binary()).to_pylist():
        found = ((pattern.match(address), group) for pattern, group in DEAD_LETTER_FORMS)
        match, group = next(((match, group) for match, group in found if match), (None, None))
        names.append(match[group] if match and group else None)
        any_of.append(match is not None and group is None)
    return (
        to_utf8_escaped(pa.array(names, pa.binary())).take(encoded.indices),
        pa.array(any_of, pa.bool_()).take(encoded.indices),
    )


def _part(data: bytes, encoded: bool) -> bytes:
    """A part of an address, percent-decoded unless its encoding is invalid."""
    return unquote_to_bytes(data) if encoded and not INVALID_ESCAPE.search(data) else data
