"""Where messages were published to, as addresses of 1.0 and RabbitMQ's dead-lettering fields tell.

Addresses: RabbitMQ has '/exchanges/EXCHANGE/KEY' and '/queues/QUEUE' (percent-encoded), before version 4
'/exchange/EXCHANGE/KEY', '/queue/QUEUE', '/amq/queue/QUEUE', '/topic/KEY' (its documentation, AMQP 1.0, addresses).
ActiveMQ has 'queue://QUEUE' and 'topic://TOPIC', and 'temp-queue://', 'temp-topic://' of a connection. Artemis
separates the queue of an address by '::', Service Bus the subscription of a topic by '/Subscriptions/' and dead letters
by '/$DeadLetterQueue', Event Hubs what reads a hub, and its parts, by '/ConsumerGroups/' and '/Partitions/'. Any other
address is a name; only the broker knows whether it is that of a queue.

Dead-lettering: the header x-death lists queues, reasons and counts, the newest first; x-first-death-* repeat the
oldest. For 1.0, since version 4, both are message annotations, beside the route of every message (RabbitMQ's
documentation, Dead Letter Exchanges).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from udfs.arrow.fields import Fields, Values, counted, elements, fields, inside, texts, texts_of, values_of
from udfs.arrow.rows import picked, truth_of

FIRST_DEATH = ("exchange", "queue", "reason")
X_DEATH = {"reason": "string", "queue": "string", "exchange": "string", "count": "bigint"}
FIRST_DEATH_FIELDS = {f"x-first-death-{name}": "string" for name in FIRST_DEATH}
ANNOTATION_FIELDS = {"x-exchange": "string", "x-routing-key": "string", **FIRST_DEATH_FIELDS}
DIRECT_REPLY = "amq.rabbitmq.reply-to"  # RabbitMQ: replies to this pseudo-queue come over the same channel
SECTIONS = ("header", "message_annotations")
MAX_ENTRIES = 1 << 18  # read at a time


class BrokerFields(NamedTuple):
    """Columns that the broker added to deliveries. `acquired_before` bool: 1.0: it may have been delivered before
    (first-acquirer false, which is all that RabbitMQ says of a message that was released). `exchange`, `routing_key`:
    the route, from annotations of 1.0; `first_death`: by name of FIRST_DEATH; `x_death_count` int64: of all entries;
    `dead_lettered` bool. What was dead-lettered was published to `original_exchange` (null if not recorded) with
    `original_routing_key`."""

    acquired_before: pa.Array
    exchange: pa.Array
    routing_key: pa.Array
    first_death: dict[str, pa.Array]
    x_death_count: NDArray[np.int64]
    dead_lettered: pa.Array
    original_exchange: pa.Array
    original_routing_key: pa.Array


class XDeath(NamedTuple):
    """Lists x-death, by message: `total` of their counts; `listed`: whether there is one; `exchange` and `routing_key`
    of the first death."""

    total: NDArray[np.int64]
    listed: NDArray[np.bool_]
    exchange: pa.Array
    routing_key: pa.Array


def broker_fields(headers: pa.StructArray, properties: pa.StructArray) -> BrokerFields:
    """Columns of `headers` and `properties` (VARIANT); those of messages that are no deliveries are null."""
    in_headers, sections = values_of(headers), Fields(values_of(properties), {}, SECTIONS)
    header, annotations = map(sections.inside, SECTIONS)
    first_acquirer = fields(header, {"first_acquirer": "boolean"})["first_acquirer"]
    of_headers, annotated = fields(in_headers, FIRST_DEATH_FIELDS), fields(annotations, ANNOTATION_FIELDS)
    first_death = {
        name: pc.coalesce(of_headers[f"x-first-death-{name}"], annotated[f"x-first-death-{name}"])
        for name in FIRST_DEATH
    }
    first, other = (
        x_death(inside(values, name), first_death)
        for values, name in ((in_headers, "x-death"), (annotations, "x-opt-deaths"))
    )
    in_headers_list = pa.array(first.listed)
    exchange = pc.if_else(in_headers_list, first.exchange, other.exchange)
    routing_key = pc.if_else(in_headers_list, first.routing_key, other.routing_key)
    direct = pc.if_else(pc.equal(first_death["exchange"], ""), first_death["exchange"], pa.scalar(None, pa.string()))
    in_full = exchange.is_valid()
    return BrokerFields(
        pc.invert(first_acquirer),
        annotated["x-exchange"],
        annotated["x-routing-key"],
        first_death,
        np.where(first.listed, first.total, other.total),
        pc.or_(in_full, first_death["queue"].is_valid()),
        pc.if_else(in_full, exchange, direct),
        # On the default exchange the routing key is the queue's name.
        pc.if_else(in_full, routing_key, first_death["queue"]),
    )


def x_death(lists: Values, first_death: Mapping[str, pa.Array]) -> XDeath:
    """Read lists x-death; `first_death` names the entry that was the first."""
    counts = counted(lists)
    cuts = np.flatnonzero(np.diff(np.cumsum(counts) // MAX_ENTRIES)) + 1
    parts = []
    for begin, end in pairwise([0, *cuts.tolist(), len(counts)]):
        of_part = {name: of.slice(begin, end - begin) for name, of in first_death.items()}
        parts.append(_x_death(lists.taken(np.arange(begin, end)), counts[begin:end], of_part))
    total, listed, exchange, routing_key = zip(*parts, strict=True)
    return XDeath(
        np.concatenate(total), np.concatenate(listed), pa.concat_arrays(exchange), pa.concat_arrays(routing_key)
    )


def _x_death(lists: Values, counts: NDArray[np.int64], first_death: Mapping[str, pa.Array]) -> XDeath:
    each = elements(lists, counts)
    of_each = fields(each, X_DEATH)
    row = np.repeat(np.arange(len(counts)), counts)
    total = np.zeros(len(counts), np.int64)
    np.add.at(total, row, of_each["count"].fill_null(1).to_numpy())
    # The entry with the queue and reason of x-first-death, else the last one; of several the first, assigned last.
    same = pc.and_(*(pc.equal(of_each[name], picked(first_death[name], row)) for name in ("queue", "reason")))
    at = np.flatnonzero(truth_of(same))[::-1]
    first = np.where(counts > 0, np.cumsum(counts) - 1, -1)
    first[row[at]] = at
    keys = _first_texts(inside(each, "routing-keys"))
    return XDeath(total, lists.stops > lists.starts, picked(of_each["exchange"], first), picked(keys, first))


def _first_texts(lists: Values) -> pa.Array:
    counts = counted(lists)
    return picked(texts(elements(lists, counts)), np.where(counts > 0, np.cumsum(counts) - counts, -1))


# (kind, pattern, exchange or None for the first group, groups of the routing key and of the queue, percent-encoded)
ADDRESS_FORMS = tuple(
    (kind, re.compile(pattern, re.DOTALL), exchange, *groups)  # each is read in time linear in the address
    for kind, pattern, exchange, *groups in (
        ("exchange", rb"/exchanges/([^/]+)/?(.*)", None, 2, None, True),
        ("exchange", rb"/exchange/([^/]+)/?(.*)", None, 2, None, False),
        ("exchange", rb"/topic/(.*)", b"amq.topic", 1, None, False),
        ("queue", rb"/queues/(.*)", b"", 1, 1, True),
        ("queue", rb"/(?:amq/)?queue/(.*)", b"", 1, 1, False),
        ("queue", rb"queue://(.*)", b"", 1, 1, False),
        ("exchange", rb"(topic://)(.*)", None, 2, None, False),
        ("queue", rb"temp-queue://(.*)", b"", 1, 1, False),
        ("exchange", rb"(temp-topic://)(.*)", None, 2, None, False),
        ("name", rb"(.+)::(.*)", b"", 1, 2, False),
        ("name", rb"(?i)(.+)/subscriptions/.*", b"", 1, 0, False),
        ("name", rb"(?i)(.+)/\$deadletterqueue\Z", b"", 1, 0, False),
        ("name", rb"(?i)([^/]+)/(?:consumergroups|partitions)/.*", b"", 1, 0, False),
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
# Service Bus: dead letters of a queue or subscription, and the header that says why.
HAS_DEAD_LETTERS, DEAD_LETTER_REASON = r"(?i)/\$deadletterqueue$", "DeadLetterReason"
INVALID_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Node(NamedTuple):
    """What an address names: `kind` 'exchange' 'queue' 'name'; the route of what is published there; the `queue` from
    which it is delivered, None where each reader has its own."""

    kind: str
    exchange: bytes
    routing_key: bytes
    queue: bytes | None


def node(address: bytes) -> Node:
    for kind, pattern, exchange, key, queue, encoded in ADDRESS_FORMS:
        found = pattern.match(address)
        if found:
            named = _part(found[1], encoded) if exchange is None else exchange
            read = None if queue is None else _part(found[queue], encoded)
            return Node(kind, named, _part(found[key], encoded), read)
    return Node("name", b"", address, address)


def nodes(addresses: pa.Array) -> tuple[pa.Array, ...]:
    """The fields of `Node` (strings) of each address; null without one. Each distinct address is read once."""
    encoded = addresses.dictionary_encode()
    known = [node(address) for address in encoded.dictionary.cast(pa.binary()).to_pylist()]
    kinds = pa.array([each.kind for each in known], pa.string())
    others = (texts_of(pa.array([each[i] for each in known], pa.binary())) for i in (1, 2, 3))
    return tuple(column.take(encoded.indices) for column in (kinds, *others))


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
        texts_of(pa.array(names, pa.binary())).take(encoded.indices),
        pa.array(any_of, pa.bool_()).take(encoded.indices),
    )


def _part(octets: bytes, encoded: bool) -> bytes:
    """A part of an address, percent-decoded unless its encoding is invalid."""
    return unquote_to_bytes(octets) if encoded and not INVALID_ESCAPE.search(octets) else octets
