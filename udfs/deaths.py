"""What RabbitMQ says of dead-lettered messages: why, where and how often, and where they were published to.

A list of deaths, the newest first, and of the first one where and why. That is in the headers, and for 1.0 since
version 4 in the message annotations, with the route of every message (its documentation, Dead Letter Exchanges).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from udfs.arrow import VARIANT
from udfs.fields import elements, fields, texts
from udfs.rows import picked

FIRST_DEATH = ("exchange", "queue", "reason")
DEATH = {"reason": "string", "queue": "string", "exchange": "string", "routing-keys": "variant", "count": "bigint"}
OF_FIRST_DEATH = {f"x-first-death-{name}": "string" for name in FIRST_DEATH}
IN_HEADERS = {"x-death": "variant", **OF_FIRST_DEATH}
IN_ANNOTATIONS = {"x-exchange": "string", "x-routing-key": "string", "x-opt-deaths": "variant", **OF_FIRST_DEATH}


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


def told(headers: pa.StructArray, properties: pa.StructArray) -> Told:
    """What these say; of a message that is no delivery they are null."""
    of_headers = fields(headers, IN_HEADERS)
    annotations = fields(properties, {"message_annotations": "variant"})["message_annotations"]
    annotated = fields(annotations, IN_ANNOTATIONS)
    died = {
        name: pc.coalesce(of_headers[f"x-first-death-{name}"], annotated[f"x-first-death-{name}"])
        for name in FIRST_DEATH
    }
    listed = _either(of_headers["x-death"], annotated["x-opt-deaths"])
    all_deaths, counts = elements(listed)
    deaths = fields(all_deaths, DEATH)
    row = np.repeat(np.arange(len(listed)), counts)
    total = np.zeros(len(listed), np.int64)
    np.add.at(total, row, deaths["count"].fill_null(1).to_numpy())
    first = _first(deaths, died, row, counts)
    exchange = picked(deaths["exchange"], first)
    direct = pc.if_else(pc.equal(died["exchange"], ""), died["exchange"], pa.scalar(None, pa.string()))
    in_full = exchange.is_valid()
    return Told(
        annotated["x-exchange"],
        annotated["x-routing-key"],
        died,
        total,
        pc.or_(in_full, died["queue"].is_valid()),
        pc.if_else(in_full, exchange, direct),
        # On the default exchange the routing key is the queue's name.
        pc.if_else(in_full, picked(_first_keys(deaths["routing-keys"]), first), died["queue"]),
    )


def _either(one: pa.StructArray, other: pa.StructArray) -> pa.StructArray:
    """The one, or where it is null the other."""
    if other.null_count == len(other):
        return one
    parts = [pc.if_else(one.is_valid(), one.field(part.name), other.field(part.name)) for part in VARIANT]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=pc.and_(one.is_null(), other.is_null()))


def _first(
    deaths: dict[str, pa.Array], died: dict[str, pa.Array], row: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of each row, which death was its first: the one in the first queue for the first reason, else the last in the
    list; -1 for none."""
    same = pc.and_(*(pc.equal(deaths[name], picked(died[name], row)) for name in ("queue", "reason")))
    at = np.flatnonzero(same.fill_null(False).to_numpy(zero_copy_only=False))[::-1]
    ends = np.cumsum(counts)
    first: NDArray[np.int64] = np.where(counts > 0, ends - 1, -1)
    first[row[at]] = at  # the last assignment is the first death in the list
    return first


def _first_keys(routing_keys: pa.StructArray) -> pa.Array:
    """The first routing key of each list."""
    keys, counts = elements(routing_keys)
    return picked(texts(keys), np.where(counts > 0, np.cumsum(counts) - counts, -1))
