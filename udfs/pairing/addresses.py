"""Addresses of AMQP 1.0 read as exchange and routing key, or as a queue.

RabbitMQ writes them as '/exchanges/EXCHANGE/KEY', '/queues/QUEUE' (percent-encoded), before version 4 as
'/exchange/EXCHANGE/KEY', '/queue/QUEUE', '/amq/queue/QUEUE', '/topic/KEY' (its documentation, AMQP 1.0, addresses).
Artemis separates the queue of an address by '::', Service Bus the subscription of a topic by '/Subscriptions/'. Any
other address is a name, of a queue or not: that only the broker knows.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from udfs.arrow.fields import texts_of

# (what it is, pattern, exchange or None for the first group, group of the routing key, percent-encoded)
FORMS = tuple(
    (kind, re.compile(pattern, re.DOTALL), exchange, group, encoded)  # each is read in time linear in the address
    for kind, pattern, exchange, group, encoded in (
        ("exchange", rb"/exchanges/([^/]+)/?(.*)", None, 2, True),
        ("exchange", rb"/exchange/([^/]+)/?(.*)", None, 2, False),
        ("exchange", rb"/topic/(.*)", b"amq.topic", 1, False),
        ("queue", rb"/queues/(.*)", b"", 1, True),
        ("queue", rb"/(?:amq/)?queue/(.*)", b"", 1, False),
        ("name", rb"(.+)::", b"", 1, False),
        ("name", rb"(?i)(.+)/subscriptions/", b"", 1, False),
    )
)
NO_OCTET = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Node(NamedTuple):
    """What an address names: `kind` 'exchange' 'queue' 'name'."""

    kind: str
    exchange: bytes
    routing_key: bytes


def node(address: bytes) -> Node:
    """Where messages go that are sent to an address."""
    for kind, pattern, exchange, group, encoded in FORMS:
        found = pattern.match(address)
        if found:
            named = _part(found[1], encoded) if exchange is None else exchange
            return Node(kind, named, _part(found[group], encoded))
    return Node("name", b"", address)


def nodes(addresses: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Kind, exchange and routing key (strings) of each address; null without one. Each distinct one is read once."""
    encoded = addresses.dictionary_encode()
    known = [node(address) for address in encoded.dictionary.cast(pa.binary()).to_pylist()]
    kinds = pa.array([each.kind for each in known], pa.string())
    exchanges, keys = (texts_of(pa.array([each[i] for each in known], pa.binary())) for i in (1, 2))
    return kinds.take(encoded.indices), exchanges.take(encoded.indices), keys.take(encoded.indices)


def _part(octets: bytes, encoded: bool) -> bytes:
    """A part of an address, decoded; as it stands where it is not encoded as it should be."""
    return unquote_to_bytes(octets) if encoded and not NO_OCTET.search(octets) else octets
