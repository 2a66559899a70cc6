"""Messages in, flows out: rows of table message_flows, for Spark or straight into files.

Input: the rows of TO_PAIR as `udfs.pairing.hash_partitions` hands them on, partitioned by KEY: publishes, deliveries,
and answers to requests, each under the key of its request. Cost per batch, not per message: the kernel does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import fs
from pyspark.sql.types import StructType

from codec.pairing.engine import pairs_of
from codec.pairing.state import ANY, DELIVERY, NOBODY, PUBLISH, Pairs, Rows
from udfs.arrow.rows import Index, elapsed, fixed, integers, picked
from udfs.arrow.types import arrow_schema
from udfs.pairing.hash_partitions import whole_keys
from udfs.sink.parquet import write_folders

ANSWER = 2  # side of what is not a message: a request (connection_id, frame_no) was answered after `rpc_latency_ns`
# What is shown of messages, and what says how surely they belong together. `identity`: 64 bits that tell a message from
# all others.
CARRIED = {
    "identity": pa.int64(),
    "connection_id": pa.int64(),
    "frame_no": pa.int64(),
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
    "dead_lettered": pa.string(),
    "trace_id": pa.string(),
    "span_id": pa.string(),
    "by_id": pa.bool_(),
    "lossy": pa.bool_(),
    "rpc_latency_ns": pa.int64(),
}


KEY = "key"
TO_PAIR = pa.schema([*((name, pa.int64()) for name in Rows._fields), *CARRIED.items()])


@dataclass(frozen=True)
class PairMessages:
    """The function for `mapInArrow`: partitioned messages, sorted by bucket -> rows of `schema`, that of table
    message_flows."""

    schema: StructType

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self.schema)
        for rows in whole_keys(batches, TO_PAIR, KEY):
            shown = _flows(rows)
            yield pa.RecordBatch.from_arrays([shown[column.name].cast(column.type) for column in schema], schema=schema)


@dataclass(frozen=True)
class WriteFlows:
    """The function for `mapInArrow`: partitioned messages, sorted by bucket -> WRITTEN (`udfs.sink.parquet`), the
    flows in files
    of `folder` in `directory`."""

    filesystem: fs.FileSystem
    directory: str
    folder: str
    pairing: PairMessages

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        flows = ((self.folder, rows) for rows in self.pairing(batches))
        return write_folders(self.filesystem, self.directory, flows, lambda _: self.pairing.schema)


def _flows(rows: pa.Table) -> dict[str, pa.Array]:
    """The flows of whole groups: a pair of a publish and its deliveries, or a message without another."""
    is_answer = integers(rows["side"]) == ANSWER
    messages = Messages(rows, np.flatnonzero(~is_answer))
    columns = messages.columns
    pairs = pairs_of(columns)
    firsts = np.flatnonzero((columns.side == DELIVERY) & (pairs.first == np.arange(len(pairs.first))))
    alone = np.flatnonzero((columns.side == PUBLISH) & (pairs.taken == 0))
    return _shown(messages, pairs, firsts, alone) | {
        "rpc_latency_ns": _answers(rows.filter(pa.array(is_answer)), messages, _with(pairs.publish[firsts], alone))
    }


class Messages:
    """Those of `rows` at `places`, in the order of pairing; `columns` of them for the kernel."""

    def __init__(self, rows: pa.Table, places: NDArray[np.int64]) -> None:
        self._rows = rows
        columns = Rows(*(integers(rows[name])[places] for name in Rows._fields))
        time = np.where(columns.side == DELIVERY, columns.from_ns, columns.until_ns)
        named = (integers(rows[name])[places] for name in ("frame_no", "connection_id"))
        order = np.lexsort((*named, time, columns.place, columns.side, columns.key))
        self._places = places[order]
        self.columns = Rows(*(fixed(column[order]) for column in columns))

    def at(self, places: NDArray[np.int64]) -> Callable[[str], pa.Array]:
        """Gives the columns of the messages at `places` of the order; null where NOBODY is."""
        there = np.where(places == NOBODY, -1, self._places[places])
        return lambda name: picked(self._rows[name], there)

    def numbers(self, name: str) -> NDArray[np.int64]:
        """A column of numbers."""
        return integers(self._rows[name])[self._places]


def _with(of_deliveries: NDArray[np.int64], alone: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each flow, in their order: those with deliveries, then those of publishes alone."""
    return np.concatenate([of_deliveries, alone])


def _answers(answers: pa.Table, messages: Messages, publishes: NDArray[np.int64]) -> pa.Array:
    """How long each of the `publishes` waited for its answer; null without one."""
    answered, asked = (
        [number(name) for name in ("connection_id", "frame_no")]
        for number in (lambda name: integers(answers[name]), messages.numbers)
    )
    of_messages = Index(*answered).find(*asked)
    return picked(answers["rpc_latency_ns"], np.where(publishes == NOBODY, -1, of_messages[publishes]))


def _shown(
    messages: Messages, pairs: Pairs, firsts: NDArray[np.int64], alone: NDArray[np.int64]
) -> dict[str, pa.Array]:
    """The columns of the flows with deliveries, of which `firsts` are the first, and of publishes `alone`."""
    nobody = np.full(len(alone), NOBODY)
    publishes = _with(pairs.publish[firsts], alone)
    publish, first, last, either = (
        messages.at(places)
        for places in (publishes, _with(firsts, nobody), _with(pairs.last[firsts], nobody), _with(firsts, alone))
    )
    delivered = np.arange(len(publishes)) < len(firsts)
    paired = pa.array(delivered & (publishes != NOBODY))
    doubt = pc.or_(pa.array(_with(pairs.doubt[firsts], nobody) == 1), either("lossy"))
    # Other headers than those of its only publish: their key is the same, but is it the same message?
    same_family = pc.equal(publish("family"), first("family"))
    relabelled = pc.and_(pa.array(_with(pairs.tier[firsts], nobody) == ANY), pc.invert(either("by_id")))
    doubt = pc.or_(doubt, pc.and_(relabelled, same_family))
    confirmed = pc.not_equal(publish("outcome"), "returned")
    last_complete, publish_complete = last("until_ns"), publish("until_ns")
    presettled = pc.equal(last("outcome"), "presettled")
    over = pc.coalesce(last("settled_ns"), pc.if_else(presettled, last_complete, None))
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
        "publish_ts_ns": publish_complete,
        "confirm_latency_ns": elapsed(publish_complete, pc.if_else(confirmed, publish("settled_ns"), None)),
        "exchange": pc.coalesce(publish("exchange"), first("exchange")),
        "routing_key": pc.coalesce(publish("routing_key"), first("routing_key")),
        "address": pc.coalesce(first("address"), publish("address")),
        "queue": first("queue"),
        "deliver_connection_id": first("connection_id"),
        "deliver_frame_no": first("frame_no"),
        "deliver_ts_ns": first("from_ns"),
        "broker_latency_ns": elapsed(publish_complete, first("from_ns")),
        "ack_latency_ns": elapsed(last_complete, last("settled_ns")),
        "total_latency_ns": elapsed(publish("from_ns"), over),
        "redeliveries": pa.array(_with(pairs.repeats[firsts], nobody), mask=~delivered),
        "outcome": pc.coalesce(last("outcome"), publish("outcome")),
        "transaction": publish("transaction"),
        "dead_lettered": first("dead_lettered"),
        "match": pc.if_else(paired, pc.if_else(either("by_id"), "message-id", "fingerprint"), "none"),
        "ambiguous": pc.if_else(paired, doubt, None),
    }


def _flow_ids(publish: pa.Array, delivery: pa.Array) -> pa.Array:
    """One number of 63 bits for two messages, of which one may be null."""
    sides = [np.asarray(side.fill_null(0)).astype(np.uint64) for side in (publish, delivery)]
    turned = sides[1] << np.uint64(1) | sides[1] >> np.uint64(63)
    return pa.array(((sides[0] ^ turned) >> np.uint64(1)).astype(np.int64))
