"""What RabbitMQ says of dead-lettered messages: why, where and how often, and where they were published to.

A list of deaths, the newest first, and of the first one where and why. That is in the headers, and for 1.0 since
version 4 in the message annotations, with the route of every message (its documentation, Dead Letter Exchanges).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from udfs.arrow.fields import Values, counted, elements, fields, inside, texts, values_of
from udfs.arrow.rows import picked, truth_of

FIRST_DEATH = ("exchange", "queue", "reason")
DEATH = {"reason": "string", "queue": "string", "exchange": "string", "count": "bigint"}
OF_FIRST_DEATH = {f"x-first-death-{name}": "string" for name in FIRST_DEATH}
IN_ANNOTATIONS = {"x-exchange": "string", "x-routing-key": "string", **OF_FIRST_DEATH}
MOST_DEATHS = 1 << 18  # read at a time


class Told(NamedTuple):
    """Columns of what a broker told of messages. `exchange`, `routing_key`: where they were published to; `died`: of
    the first death, by name of FIRST_DEATH; `deaths` int64: how many; `dead` bool: the message was dead-lettered, so
    that it was published to `died_exchange`, `died_routing_key`, the exchange null where that is not told in full."""

    exchange: pa.Array
    routing_key: pa.Array
    died: dict[str, pa.Array]
    deaths: NDArray[np.int64]
    dead: pa.Array
    died_exchange: pa.Array
    died_routing_key: pa.Array


class Deaths(NamedTuple):
    """By message: how many deaths are listed (`count` of all added up), whether, and of the first one the exchange and
    the routing key that it was published with."""

    total: NDArray[np.int64]
    listed: NDArray[np.bool_]
    exchange: pa.Array
    routing_key: pa.Array


def told(headers: pa.StructArray, properties: pa.StructArray) -> Told:
    """What these say; of a message that is not a delivery they are null."""
    in_headers, annotations = values_of(headers), inside(values_of(properties), "message_annotations")
    of_headers, annotated = fields(in_headers, OF_FIRST_DEATH), fields(annotations, IN_ANNOTATIONS)
    died = {
        name: pc.coalesce(of_headers[f"x-first-death-{name}"], annotated[f"x-first-death-{name}"])
        for name in FIRST_DEATH
    }
    first, other = (
        deaths(inside(values, name), died) for values, name in ((in_headers, "x-death"), (annotations, "x-opt-deaths"))
    )
    of_headers_listed = pa.array(first.listed)
    exchange = pc.if_else(of_headers_listed, first.exchange, other.exchange)
    routing_key = pc.if_else(of_headers_listed, first.routing_key, other.routing_key)
    direct = pc.if_else(pc.equal(died["exchange"], ""), died["exchange"], pa.scalar(None, pa.string()))
    in_full = exchange.is_valid()
    return Told(
        annotated["x-exchange"],
        annotated["x-routing-key"],
        died,
        np.where(first.listed, first.total, other.total),
        pc.or_(in_full, died["queue"].is_valid()),
        pc.if_else(in_full, exchange, direct),
        # On the default exchange the routing key is the queue's name.
        pc.if_else(in_full, routing_key, died["queue"]),
    )


def deaths(lists: Values, died: Mapping[str, pa.Array]) -> Deaths:
    """What lists of deaths say, and which of them was the first, as `died` (of the first death) tells it."""
    counts = counted(lists)
    cuts = np.flatnonzero(np.diff(np.cumsum(counts) // MOST_DEATHS)) + 1
    parts = []
    for begin, end in pairwise([0, *cuts.tolist(), len(counts)]):
        of_part = {name: of.slice(begin, end - begin) for name, of in died.items()}
        parts.append(_deaths(lists.slice(begin, end), counts[begin:end], of_part))
    total, listed, exchange, routing_key = zip(*parts, strict=True)
    return Deaths(
        np.concatenate(total), np.concatenate(listed), pa.concat_arrays(exchange), pa.concat_arrays(routing_key)
    )


def _deaths(lists: Values, counts: NDArray[np.int64], died: Mapping[str, pa.Array]) -> Deaths:
    each = elements(lists, counts)
    of_each = fields(each, DEATH)
    row = np.repeat(np.arange(len(counts)), counts)
    total = np.zeros(len(counts), np.int64)
    np.add.at(total, row, of_each["count"].fill_null(1).to_numpy())
    # The one in the first queue for the first reason, else the last in the list; the last assignment holds.
    same = pc.and_(*(pc.equal(of_each[name], picked(died[name], row)) for name in ("queue", "reason")))
    at = np.flatnonzero(truth_of(same))[::-1]
    first = np.where(counts > 0, np.cumsum(counts) - 1, -1)
    first[row[at]] = at
    keys = _first_texts(inside(each, "routing-keys"))
    return Deaths(total, lists.stops > lists.starts, picked(of_each["exchange"], first), picked(keys, first))


def _first_texts(lists: Values) -> pa.Array:
    """The first text of each list."""
    counts = counted(lists)
    return picked(texts(elements(lists, counts)), np.where(counts > 0, np.cumsum(counts) - counts, -1))
