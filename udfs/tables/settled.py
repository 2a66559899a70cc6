"""Outcomes of messages as columns, by connection and first frame; returns, and publishes that may still be returned, of
open connections (`codec.conversation.channel_outcomes`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation.channel_outcomes import (
    CONFIRM,
    MAPS,
    NUMBERED,
    OPEN,
    PENDING,
    PUBLISH,
    PUBLISHES,
    RETURN,
    RETURNED,
    ROUTED,
    matched,
)
from codec.conversation.channel_state import RECEIVED
from codec.conversation.settlement import NO_RESULT, UNKNOWN, Frames, Settled
from codec.conversation.states import blank, find_ids, group_ids
from codec.memory import as_kernel_array
from codec.tables import MESSAGES
from udfs.arrow.arrays import (
    Index,
    concat_rows,
    elapsed,
    indices_where,
    is_one_of,
    take_or_null,
    to_int64,
    to_mask,
    with_columns,
)
from udfs.arrow.fields import hashed
from udfs.arrow.types import Numbers, cast_to
from udfs.conversation.addresses import SERVES, named_by
from udfs.conversation.properties import HTTP_METHODS
from udfs.conversation.tracker_states import ConnectionRecords

MANAGEMENT = tuple(name for name in MESSAGES.names if name.startswith("management_"))
Integers = NDArray[np.int64]
ENDS = pa.schema(
    [
        ("connection_id", pa.int64()),
        ("first_frame_no", pa.int64()),
        ("outcome", pa.string()),
        ("settled_ts_ns", pa.int64()),
        ("settled_frame_no", pa.int64()),
        ("handled_ts_ns", pa.int64()),
        ("transaction", pa.string()),
    ]
)
RETURNS = pa.schema(
    [("connection_id", pa.int64()), ("first_frame_no", pa.int64()), ("ts_ns", pa.int64()), ("frame_no", pa.int64())]
)


def ends_of(settled: Settled, texts: Mapping[str, Numbers]) -> pa.Table:
    """ENDS of messages that the settlement engine has settled, noted or marked."""
    is_open = (settled.settled_frame_no < 0) | (settled.outcome == UNKNOWN)
    # After an acknowledgement that was rolled back another one may have followed, in a transaction of its own.
    of_delivery = settled.map_no % MAPS == RECEIVED
    transaction = np.where(of_delivery & (settled.outcome == UNKNOWN), NO_RESULT, settled.transaction)
    columns = {
        "connection_id": pa.array(settled.connection),
        "first_frame_no": pa.array(settled.frame_no),
        "outcome": texts["outcomes"].column(settled.outcome),
        "settled_ts_ns": pa.array(settled.settled_ns, mask=is_open),
        "settled_frame_no": pa.array(settled.settled_frame_no, mask=is_open),
        "handled_ts_ns": pa.nulls(len(settled.frame_no), pa.int64()),
        "transaction": texts["transactions"].column(transaction),
    }
    return pa.table(columns, schema=ENDS)


def unknown_ends(frames: Frames) -> pa.Table:
    """ENDS of messages that are given up, by their first frames."""
    count = len(frames.frame_no)
    columns = {
        "connection_id": pa.array(frames.connection),
        "first_frame_no": pa.array(frames.frame_no),
        "outcome": pa.repeat("unknown", count),
    }
    return pa.Table.from_batches([cast_to(columns, ENDS)])


class PendingOutcomes(NamedTuple):
    """Outcomes of messages whose rows are not written yet: ENDS of the classic family, OUTCOMES of sessions
    (`udfs.conversation.session_rows`), RETURNS. None for no rows."""

    ends: pa.Table | None = None
    of_sessions: pa.Table | None = None
    returned: pa.Table | None = None

    def merged_with(self, other: PendingOutcomes) -> PendingOutcomes:
        return PendingOutcomes(*(concat_rows(mine, theirs) for mine, theirs in zip(self, other, strict=True)))

    def of(self, frames: Frames) -> PendingOutcomes:
        """Only messages that begin at these frames."""

        def matching(table: pa.Table) -> pa.Table | None:
            found = frames.among(to_int64(table["connection_id"]), to_int64(table["first_frame_no"]))
            rows = table.filter(pa.array(found))
            return rows.combine_chunks() if rows.num_rows else None

        return PendingOutcomes(*(table and matching(table) for table in self))

    def outcomes(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """The function that gives rows of table messages their outcomes. Each table is indexed once."""
        steps = zip((_settled, _of_sessions, _returned), self, strict=True)
        known = [
            (step, table.combine_chunks(), Index.of(table, "first_frame_no"))
            for step, table in steps
            if table is not None
        ]

        def on(rows: pa.RecordBatch) -> pa.RecordBatch:
            frames = to_int64(rows["connection_id"]), to_int64(rows["first_frame_no"])
            for step, table, index in known:
                rows = step(rows, table, index.find(*frames))
            return rows

        return on


def _settled(rows: pa.RecordBatch, ends: pa.Table, at: Integers) -> pa.RecordBatch:
    settled_ns = take_or_null(ends["settled_ts_ns"], at)
    return with_columns(
        rows,
        {
            "outcome": pc.coalesce(take_or_null(ends["outcome"], at), rows["outcome"]),
            "settled_ts_ns": settled_ns,
            "settle_latency_ns": elapsed(rows["ts_ns"], settled_ns),
            "settled_frame_no": take_or_null(ends["settled_frame_no"], at),
            "handled_ts_ns": take_or_null(ends["handled_ts_ns"], at),
            "transaction": take_or_null(ends["transaction"], at),
        },
    )


def _of_sessions(rows: pa.RecordBatch, ends: pa.Table, at: Integers) -> pa.RecordBatch:
    if not (at >= 0).any():
        return rows
    outcomes = {name: take_or_null(ends[name], at) for name in ends.column_names[2:]}
    outcomes["settle_latency_ns"] = elapsed(rows["ts_ns"], outcomes["settled_ts_ns"])
    known = pa.array(at >= 0)
    topic = outcomes.pop("topic")
    # Over a link without an address each message has its own.
    for name in ("address", "browsed"):
        outcomes[name] = pc.coalesce(outcomes[name], rows[name])
    published = pc.equal(rows["operation"].cast(pa.string()), "publish")
    exchange, routing_key, queue = named_by(outcomes["address"])
    nothing = pa.scalar(None, pa.string())
    of_address = {
        "exchange": pc.if_else(published, exchange, nothing),
        "routing_key": pc.coalesce(pc.if_else(pc.or_(published, topic.is_valid()), routing_key, nothing), topic),
        "queue": pc.if_else(published, nothing, queue),
    }
    if any(rows[name].null_count < rows.num_rows for name in MANAGEMENT):
        managed = _managed(rows, outcomes["address"], published)
        for name in MANAGEMENT:
            outcomes[name] = pc.if_else(managed, rows[name], pa.scalar(None, rows.schema.field(name).type))
    outcomes |= {name: pc.coalesce(rows[name].cast(pa.string()), column) for name, column in of_address.items()}
    columns = {name: column.cast(rows.schema.field(name).type) for name, column in outcomes.items()}
    if not (at >= 0).all():
        columns = {name: pc.if_else(known, column, rows[name]) for name, column in columns.items()}
    return with_columns(rows, columns)


def _managed(rows: pa.RecordBatch, address: pa.Array, published: pa.BooleanArray) -> pa.BooleanArray:
    """Which messages are requests to a management node or its replies."""
    served = pc.match_substring_regex(address, SERVES).fill_null(False)
    # Replies of a node may come from a dynamic one; the address of a link may be missing in the capture.
    by_http = is_one_of(rows["management_operation"], HTTP_METHODS)
    elsewhere = pc.or_(rows["management_text"].is_valid(), address.is_null())
    return pc.or_(pc.or_(served, by_http), pc.and_(pc.invert(published), elsewhere))


def _returned(rows: pa.RecordBatch, returned: pa.Table, at: Integers) -> pa.RecordBatch:
    if not (at >= 0).any():
        return rows
    was, frame_no = pa.array(at >= 0), take_or_null(returned["frame_no"], at)
    outcome = pc.if_else(was, pc.if_else(frame_no.is_valid(), "returned", "unknown"), rows["outcome"])
    settled_ns = pc.if_else(was, take_or_null(returned["ts_ns"], at), rows["settled_ts_ns"])
    return with_columns(
        rows,
        {
            "outcome": outcome,
            "settled_ts_ns": settled_ns,
            "settle_latency_ns": elapsed(rows["ts_ns"], settled_ns),
            "settled_frame_no": pc.if_else(pc.and_(was, frame_no.is_null()), None, rows["settled_frame_no"]),
            "returned_frame_no": frame_no,
        },
    )


# `key`: exchange, routing key and body on a channel. `publish`: of a CONFIRM its publish; else the key without body.
ITEM = blank("connection key frame_no kind publish ts_ns").dtype
OF_KEY = ("channel", "exchange", "routing_key", "body_sha256")
OF_ITEMS = ("connection_id", "first_frame_no", "ts_ns", "outcome", *OF_KEY)


class Returns:
    """Takes complete messages, and finds the publishes that were returned."""

    def __init__(self) -> None:
        self.items = ConnectionRecords(ITEM)

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows of table messages."""
        returns = to_mask(pc.equal(rows["operation"], "return"))
        asked = pc.or_(rows["mandatory"].fill_null(False), rows["immediate"].fill_null(False))
        publishes = to_mask(pc.equal(rows["operation"], "publish")) & to_mask(asked)
        if not (returns | publishes).any():
            return
        own = rows.select(OF_ITEMS).take(indices_where(returns | publishes))
        items = np.zeros(own.num_rows, ITEM)
        items["connection"], items["frame_no"] = to_int64(own["connection_id"]), to_int64(own["first_frame_no"])
        items["key"] = hashed(*(own[name] for name in OF_KEY))
        no_body = pa.nulls(own.num_rows, own["body_sha256"].type)
        items["publish"] = hashed(*(own[name] for name in OF_KEY[:-1]), no_body)
        numbered = to_mask(pc.equal(own["outcome"], "unsettled"))
        items["kind"] = np.where(returns[returns | publishes], RETURN, np.where(numbered, NUMBERED, PUBLISH))
        items["ts_ns"] = to_int64(own["ts_ns"])
        self.items.add(items)

    def concluded(self, open_ids: Integers, until: Integers, confirmed: pa.Table | None) -> pa.Table | None:
        """RETURNS of final publishes, without frame of those that may have been returned; None if there are none. Of
        open connections only messages before frame `until` are complete. `confirmed`: ENDS of messages, those that were
        settled among them."""
        items = self.items.all()
        if not len(items):
            return None
        if not (items["kind"] == RETURN).any() and confirmed is None:
            self.items.only(open_ids)
            return None
        items = np.concatenate([items, _confirms(items, confirmed)])
        index = find_ids(open_ids, items["connection"])
        is_later = (index >= 0) & (items["frame_no"] >= np.append(until, 0)[index])
        later = items[is_later & (items["kind"] != CONFIRM)]
        items = items[~is_later]
        order = np.lexsort([items[name] for name in ("publish", "kind", "frame_no", "key", "connection")])
        items = items[order]
        changes = np.ones(len(items), bool)
        changes[1:] = (items["key"][1:] != items["key"][:-1]) | (items["connection"][1:] != items["connection"][:-1])
        keys = np.cumsum(changes)
        over = (~np.isin(items["connection"], open_ids)).astype(np.int64)
        fate, partner = matched(
            as_kernel_array(items["kind"]),
            as_kernel_array(keys),
            as_kernel_array(_publish_of(items)),
            as_kernel_array(over),
        )
        stays = np.isin(fate, (OPEN, PENDING)) & (items["kind"] != CONFIRM) & (over == 0)
        stray = (items["kind"] == RETURN) & (fate == ROUTED)
        is_publish = np.isin(items["kind"], PUBLISHES)
        waits = stray & np.isin(items["publish"], items["publish"][stays & is_publish]) & (over == 0)
        self.items.replace(np.concatenate([items[stays], _latest(items[waits]), later]))
        found = np.flatnonzero(is_publish & ((fate == RETURNED) | (fate == ROUTED) & _doubtful(items, stray)))
        if not len(found):
            return None
        by, certain = items[partner[found]], fate[found] == RETURNED
        columns = [pa.array(np.ascontiguousarray(items[name][found])) for name in ("connection", "frame_no")]
        columns += [pa.array(np.ascontiguousarray(by[name]), mask=~certain) for name in ("ts_ns", "frame_no")]
        return pa.table(columns, schema=RETURNS)

    def open_publishes(self, open_ids: Integers) -> Frames:
        """Frames of publishes of these connections that may still be returned."""
        own = self.items.of(open_ids)
        if not len(own):
            return Frames.of()
        own = own[np.isin(own["kind"], PUBLISHES)]
        return Frames(own["connection"], own["frame_no"])

    def give_up(self, frames: Frames) -> None:
        """Drop these publishes."""
        items = self.items.all()
        self.items.keep(~frames.among(items["connection"], items["frame_no"]))


def _confirms(items: NDArray[np.void], confirmed: pa.Table | None) -> NDArray[np.void]:
    """Items of the confirms of some publishes."""
    if confirmed is None:
        return items[:0]
    settled = confirmed.filter(confirmed["settled_frame_no"].is_valid())
    publishes = items[np.isin(items["kind"], PUBLISHES)]
    index = Index(publishes["connection"], publishes["frame_no"])
    at = index.find(to_int64(settled["connection_id"]), to_int64(settled["first_frame_no"]))
    found: NDArray[np.void] = publishes[at[at >= 0]].copy()
    found["kind"], found["publish"] = CONFIRM, found["frame_no"]
    found["frame_no"] = to_int64(settled["settled_frame_no"])[at >= 0]
    return found


def _latest(strays: NDArray[np.void]) -> NDArray[np.void]:
    """Of these returns the last of each key without body, with a body and without: one is enough for `_doubtful`."""
    strays = strays[np.argsort(-strays["frame_no"])]
    alike = group_ids(strays["connection"], strays["publish"], strays["key"] == strays["publish"])
    return strays[np.unique(alike, return_index=True)[1]]


def _doubtful(items: NDArray[np.void], stray: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Publishes that a `stray` return, one without an equal publish, may have returned: it came before their confirm
    and differs by the body at most, as that of one of the two was not captured completely."""
    confirms, publish = items["kind"] == CONFIRM, _publish_of(items)
    group, span = group_ids(items["connection"], items["publish"]), int(items["frame_no"].max(initial=0)) + 1
    until = np.full(len(items), span - 1)
    until[publish[confirms & (publish >= 0)]] = items["frame_no"][confirms & (publish >= 0)]

    def between(returns: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether one of these lies between a publish and its confirm."""
        at = np.sort((group * span + items["frame_no"])[returns])
        first = np.searchsorted(at, group * span + items["frame_no"], "right")
        found: NDArray[np.bool_] = np.searchsorted(at, group * span + until, "right") > first
        return found

    no_body = items["key"] == items["publish"]
    doubtful: NDArray[np.bool_] = no_body & between(stray) | between(stray & no_body)
    return doubtful


def _publish_of(items: NDArray[np.void]) -> Integers:
    """The index of the publish of each confirm."""
    publishes, confirms = (np.flatnonzero(np.isin(items["kind"], kinds)) for kinds in (PUBLISHES, (CONFIRM,)))
    index = Index(items["connection"][publishes], items["frame_no"][publishes])
    found = index.find(items["connection"][confirms], items["publish"][confirms])
    at = np.full(len(items), -1)
    at[confirms] = np.append(publishes, -1)[found]
    return at
