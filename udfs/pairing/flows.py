"""Pairs messages: rows of table message_flows, for Spark or written to files.

Input: rows of TO_PAIR, partitioned by KEY (`udfs.pairing.hash_partitions`): publishes, deliveries, and RPC latencies
with the key of their request. Python works per batch, the kernel per message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import fs
from pyarrow import parquet as pq

from codec.memory import as_kernel_array
from codec.pairing.engine import (
    ANY,
    DECIDED,
    DELIVERY,
    LABEL,
    NONE,
    PUBLISH,
    Pairs,
    Rows,
    pairs_of,
)
from codec.tables import Table
from udfs.arrow.arrays import (
    Index,
    combine_chunks,
    elapsed,
    take_or_null,
    to_int64,
    to_mask,
)
from udfs.arrow.types import arrow_schema, cast_to
from udfs.pairing.hash_partitions import whole_keys
from udfs.pairing.parts import Points, Stalled, parts_of, stalled_of
from udfs.sink.parquet import write_folders

# Sides that are no messages: the `rpc_latency_ns` of a request (connection_id, frame_no); the publish of a delivery
# from a stream (`udfs.pairing.stream_messages.OrderInStreams`); the times in which nothing was sent
# (`udfs.pairing.stalled_messages`).
RPC_REPLY, IN_STREAM, STALLED = 3, 4, 5
# Columns of messages that the kernel does not need. `identity`: a hash that identifies the message; `by_id`: its key is
# a message-id; `lossy`: bytes are lost, so that the match is not certain; `taken_ns`: when the broker took it, as it
# states; `queue_key`: which queue a delivery waited in.
CARRIED = {
    "identity": pa.int64(),
    "connection_id": pa.int64(),
    "frame_no": pa.int64(),
    "batch_index": pa.int32(),
    "version": pa.string(),
    "server": pa.string(),
    "vhost": pa.string(),
    "exchange": pa.string(),
    "routing_key": pa.string(),
    "address": pa.string(),
    "queue": pa.string(),
    "outcome": pa.string(),
    "transaction": pa.string(),
    "settled_ns": pa.int64(),
    "handled_ns": pa.int64(),
    "taken_ns": pa.int64(),
    "queue_key": pa.int64(),
    "dead_letter_reason": pa.string(),
    "trace_id": pa.string(),
    "span_id": pa.string(),
    "by_id": pa.bool_(),
    "lossy": pa.bool_(),
    "rpc_latency_ns": pa.int64(),
}
NEVER = np.iinfo(np.int64).max
UNKNOWN = "unknown"  # reason of dead letters
SMALL = ("side", "kind", "family", "redelivered", "requeue_seen", "flag_optional", "refused")
LISTED = ("shared", "shared_at", "shared_end")  # in TO_PAIR one column of lists
FOR_KERNEL = tuple(name for name in Rows._fields if name not in LISTED)
_PAIRED = {name: pa.int8() if name in SMALL else pa.int64() for name in FOR_KERNEL}
FLOWS_TOGETHER = 1 << 16
TO_PAIR = pa.schema([*_PAIRED.items(), (LISTED[0], pa.list_(pa.int64())), *CARRIED.items()])


@dataclass(frozen=True)
class PairMessages:
    """The function for `mapInArrow`: partitioned messages, sorted by bucket -> rows of `schema`, that of table
    message_flows. `stalled`: path of a file on `filesystem` with what held messages up
    (`udfs.pairing.stalled_messages`), which each task reads once; None: it is in each bucket, or there is none."""

    schema: Table
    filesystem: fs.FileSystem | None = None
    stalled: str | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema, of_all = arrow_schema(self.schema), None
        for rows in whole_keys(batches, TO_PAIR):
            if pc.min(rows["side"]).as_py() != STALLED:
                if self.stalled is not None and of_all is None:
                    of_all = stalled_of(self._stalled_row(self.stalled))
                stalled = of_all or stalled_of(rows.filter(pc.equal(rows["side"], STALLED)))
                yield from (cast_to(columns, schema) for columns in _flows(rows, stalled))

    def _stalled_row(self, path: str) -> pa.Table:
        with pq.ParquetFile(path, filesystem=self.filesystem) as file:
            (row,) = file.read()["rows"]
        return pa.Table.from_batches([pa.ipc.read_record_batch(row.as_buffer(), TO_PAIR)])


@dataclass(frozen=True)
class WriteFlows:
    """The function for `mapInArrow`: partitioned messages, sorted by bucket -> WRITTEN (`udfs.sink.parquet`): flows
    in files of `folder` in `directory`."""

    filesystem: fs.FileSystem
    directory: str
    folder: str
    pairing: PairMessages

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        flows = ((self.folder, rows) for rows in self.pairing(batches))
        return write_folders(self.filesystem, self.directory, flows, lambda _: self.pairing.schema)


def _flows(rows: pa.Table, stalled: Stalled) -> Iterator[dict[str, pa.Array]]:
    """The flows of all messages of some keys: a publish and a delivery, or one without the other. So many at a time
    that their columns need little memory beside that of the messages, all of which may have one key."""
    side = to_int64(rows["side"])
    messages = Messages(rows, np.flatnonzero(side <= DELIVERY), rows.filter(pa.array(side == IN_STREAM)))
    pairs, is_publish = messages.pairs, messages.is_publish
    firsts = np.flatnonzero(~is_publish & (pairs.first == np.arange(len(pairs.first))))
    unpaired = np.flatnonzero(is_publish & (pairs.paired == 0))
    publishes = np.concatenate([pairs.publish[firsts], unpaired])
    rpc_latencies = _rpc_latencies(rows.filter(pa.array(side == RPC_REPLY)), messages, publishes)
    firsts = np.concatenate([firsts, np.full(len(unpaired), NONE)])
    for at in range(0, len(publishes), FLOWS_TOGETHER):
        part = slice(at, at + FLOWS_TOGETHER)
        columns = _columns(messages, publishes[part], firsts[part], stalled)
        yield columns | {"rpc_latency_ns": rpc_latencies[part]}


class Messages:
    """The `rows` at `indices`, in the order that the kernel needs. `decided`: rows IN_STREAM."""

    def __init__(self, rows: pa.Table, indices: NDArray[np.int64], decided: pa.Table) -> None:
        self._rows = rows
        columns = {name: to_int64(rows[name])[indices] for name in FOR_KERNEL}
        of_decided = np.full(len(indices), NONE)
        if decided.num_rows:
            of_decided_rows, own = (
                [to_int64(table[name]) for name in ("connection_id", "frame_no")] for table in (decided, rows)
            )
            found = Index(*of_decided_rows).find(*(numbers[indices] for numbers in own))
            of_decided = np.where(columns["side"] == DELIVERY, found, NONE)
            columns["side"] = np.where(of_decided >= 0, DECIDED, columns["side"])
        time = np.where(columns["side"] == PUBLISH, columns["last_ns"], columns["first_ns"])
        named = (to_int64(rows[name])[indices] for name in ("frame_no", "connection_id"))
        order = np.lexsort((*named, time, columns["source"], columns["side"], columns["key"]))
        self._indices = indices[order]
        self.pairs, self.is_publish = self._paired(columns, order, decided, of_decided[order])

    def _paired(
        self, columns: dict[str, NDArray[np.int64]], order: NDArray[np.int64], decided: pa.Table,
        of_decided: NDArray[np.int64],
    ) -> tuple[Pairs, NDArray[np.bool_]]:  # fmt: skip
        """The pairs of all messages, and which of these are publishes. Empties `columns`."""
        lists = combine_chunks(self._rows[LISTED[0]])
        ends = to_int64(lists.offsets)
        listed = {LISTED[0]: to_int64(lists.values), LISTED[1]: ends[self._indices], LISTED[2]: ends[self._indices + 1]}
        rows = Rows(**{name: as_kernel_array(columns.pop(name)[order]) for name in FOR_KERNEL}, **listed)
        pairs, is_publish = pairs_of(rows), rows.side == PUBLISH
        at = np.flatnonzero(of_decided >= 0)
        if len(at):
            published = np.flatnonzero(is_publish)
            keys = Index(rows.key[published], self.numbers("identity")[published])
            found = keys.find(rows.key[at], to_int64(decided["identity"])[of_decided[at]])
            publish = np.where(found >= 0, np.append(published, NONE)[found], NONE)
            pairs.first[at] = pairs.last[at] = at
            pairs.publish[at], pairs.tier[at] = publish, LABEL
            pairs.ambiguous[at] = to_int64(decided["flag_optional"])[of_decided[at]]
            pairs.paired[publish[publish != NONE]] = 1
        return pairs, is_publish

    def at(self, indices: NDArray[np.int64]) -> Callable[[str], pa.Array]:
        """A function that picks a column of the messages at `indices` of that order; null where NONE is."""
        there = np.where(indices == NONE, -1, self._indices[indices])
        return lambda name: take_or_null(self._rows[name], there)

    def numbers(self, name: str) -> NDArray[np.int64]:
        return to_int64(self._rows[name])[self._indices]


def _rpc_latencies(replies: pa.Table, messages: Messages, publishes: NDArray[np.int64]) -> pa.Array:
    """How long each of the `publishes` waited for its reply; null without one."""
    replied, requested = to_int64(replies["identity"]), messages.numbers("identity")
    of_messages = Index(replied, np.zeros_like(replied)).find(requested, np.zeros_like(requested))
    return take_or_null(replies["rpc_latency_ns"], np.where(publishes == NONE, -1, of_messages[publishes]))


def _columns(
    messages: Messages, publishes: NDArray[np.int64], firsts: NDArray[np.int64], stalled: Stalled
) -> dict[str, pa.Array]:
    """The columns of flows of these `publishes` and first deliveries, one of which may be NONE."""
    pairs, delivered = messages.pairs, firsts != NONE
    lasts = np.where(delivered, pairs.last[firsts], NONE)
    publish, first, last, either = map(messages.at, (publishes, firsts, lasts, np.where(delivered, firsts, publishes)))
    paired = pa.array(delivered & (publishes != NONE))
    ambiguous = pc.or_(pa.array(delivered & (pairs.ambiguous[firsts] == 1)), either("lossy"))
    # The headers differ from those of its only publish, so that it may be another message with the same content.
    same_family = pc.equal(publish("family"), first("family"))
    relabelled = pc.and_(pa.array(delivered & (pairs.tier[firsts] == ANY)), pc.invert(either("by_id")))
    ambiguous = pc.or_(ambiguous, pc.and_(relabelled, same_family))
    confirmed = pc.not_equal(publish("outcome"), "returned")
    last_complete, publish_complete = last("last_ns"), publish("last_ns")
    presettled = pc.equal(last("outcome"), "presettled")
    # Published to one queue, delivered from the queue of its dead letters.
    own_route = pc.or_(pc.equal(first("origin_route"), 0), pc.equal(publish("route"), first("queue_route")))
    of_dead = pc.and_(paired, pc.invert(own_route.fill_null(True)))
    over = pc.coalesce(last("settled_ns"), pc.if_else(presettled, last_complete, None))
    total = elapsed(pc.coalesce(publish("first_ns"), first("taken_ns")), over)
    return {
        "flow_id": _flow_ids(publish("identity"), first("identity")),
        "version": pc.coalesce(publish("version"), first("version")),
        "deliver_version": first("version"),
        "server": either("server"),
        "vhost": either("vhost"),
        "trace_id": pc.coalesce(publish("trace_id"), first("trace_id")),
        "span_id": pc.if_else(publish("trace_id").is_valid(), publish("span_id"), first("span_id")),
        "publish_connection_id": publish("connection_id"),
        "publish_frame_no": publish("frame_no"),
        "publish_batch_index": publish("batch_index"),
        "publish_ts_ns": publish_complete,
        "confirm_latency_ns": elapsed(publish_complete, pc.if_else(confirmed, publish("settled_ns"), None)),
        "exchange": pc.coalesce(publish("exchange"), first("exchange")),
        "routing_key": pc.coalesce(publish("routing_key"), first("routing_key")),
        "address": pc.coalesce(first("address"), publish("address")),
        "queue": first("queue"),
        "deliver_connection_id": first("connection_id"),
        "deliver_frame_no": first("frame_no"),
        "deliver_batch_index": first("batch_index"),
        "deliver_ts_ns": first("first_ns"),
        "broker_latency_ns": elapsed(publish_complete, first("first_ns")),
        "ack_latency_ns": elapsed(last_complete, last("settled_ns")),
        "total_latency_ns": total,
        **_parts(publish, first, last, pc.if_else(confirmed, publish("settled_ns"), None), over, total, stalled),
        "redeliveries": pa.array(pairs.redeliveries[firsts], mask=~delivered),
        "outcome": pc.coalesce(last("outcome"), publish("outcome")),
        "transaction": publish("transaction"),
        "dead_letter_reason": pc.coalesce(first("dead_letter_reason"), pc.if_else(of_dead, UNKNOWN, None)),
        "match": pc.if_else(paired, pc.if_else(either("by_id"), "message-id", "fingerprint"), "none"),
        "ambiguous": pc.if_else(paired, ambiguous, None),
    }


ColumnOf = Callable[[str], pa.Array]


def _parts(
    publish: ColumnOf,
    first: ColumnOf,
    last: ColumnOf,
    confirmed_ns: pa.Array,
    over: pa.Array,
    total: pa.Array,
    stalled: Stalled,
) -> dict[str, pa.Array]:
    """The parts of the `total` of flows, which are `over` then; null where there is no total."""
    broker_ns = first("taken_ns")
    points = Points(
        begun_ns=to_int64(pc.coalesce(publish("first_ns"), broker_ns)),
        published_ns=to_int64(pc.coalesce(publish("last_ns"), broker_ns)),
        confirmed_ns=to_int64(confirmed_ns, NEVER),
        delivered_ns=to_int64(first("first_ns")),
        last_begun_ns=to_int64(last("first_ns")),
        last_complete_ns=to_int64(last("last_ns")),
        handled_ns=to_int64(last("handled_ns"), NEVER),
        settled_ns=to_int64(over),
        publish_connection=to_int64(publish("connection_id"), NONE),
        deliver_connection=to_int64(first("connection_id"), NONE),
        queue=to_int64(first("queue_key")),
    )
    parts, confirmed = parts_of(points, stalled)
    known = total.is_valid()
    are_null = dict.fromkeys(parts, pc.invert(known))
    are_null["send_ns"] = pc.or_(are_null["send_ns"], publish("first_ns").is_null())
    are_null["ack_held_ns"] = pc.or_(are_null["ack_held_ns"], last("handled_ns").is_null())
    are_null["confirm_wait_ns"] = pc.or_(are_null["confirm_wait_ns"], pa.array(~confirmed))
    return {name: pa.array(numbers, mask=to_mask(are_null[name])) for name, numbers in parts.items()}


def _flow_ids(publish: pa.Array, delivery: pa.Array) -> pa.Array:
    """63 bits that identify a pair of messages, one of which may be null."""
    sides = [np.asarray(side.fill_null(0)).astype(np.uint64) for side in (publish, delivery)]
    turned = sides[1] << np.uint64(1) | sides[1] >> np.uint64(63)
    return pa.array(((sides[0] ^ turned) >> np.uint64(1)).astype(np.int64))
