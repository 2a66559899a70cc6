"""Where messages were published to, as RabbitMQ's dead-lettering fields tell.

Dead-lettering: the header x-death lists queues, reasons and counts, the newest first; x-first-death-* repeat the
oldest. For 1.0, since version 4, both are message annotations, beside the route of every message (RabbitMQ's
documentation, Dead Letter Exchanges).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from udfs.arrow.fields import Fields, Values, counted, elements, fields, inside, texts, values_of
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
