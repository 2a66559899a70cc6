"""Requests and their replies (RPC): how long until a request was answered.

A reply bears the correlation-id of its request, or its message-id where that has none, and is delivered from where the
request asked for it; the next such delivery counts. Ids may be used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.arrow.rows import numbers_of, one_of
from udfs.pairing.brokers import joined
from udfs.pairing.columns import OF_KEY, OF_REPLIES
from udfs.pairing.flows import ANSWER
from udfs.pairing.hash_partitions import HashPartitioner, whole_keys
from udfs.pairing.hashes import hashed
from udfs.pairing.pairable import Rules, filled

DIRECT_REPLY = "amq.rabbitmq.reply-to"  # RabbitMQ: answers to this pseudo-queue come over the same channel
# By `key`, the correlation-id at a place: a request (`of_request`: its key among messages), or a reply at that time.
TO_ANSWER = pa.schema(
    {
        "key": pa.int64(),
        "at_ns": pa.int64(),
        "is_reply": pa.int64(),
        "of_request": pa.int64(),
        "connection_id": pa.int64(),
        "frame_no": pa.int64(),
    }
)


@dataclass(frozen=True)
class PartitionReplies:
    """The function for `mapInArrow`: messages (OF_REPLIES) with their broker -> PARTITIONED TO_ANSWER."""

    rules: Rules
    partitioner: HashPartitioner
    columns = OF_REPLIES

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.partitioner(part for batch in batches for part in self._parts(batch))

    def _parts(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        asks = pc.and_(pc.equal(rows["operation"], "publish"), rows["reply_to"].is_valid())
        replies = pc.and_(one_of(rows["operation"], self.rules.deliveries), rows["correlation_id"].is_valid())
        yield self._requests(rows.filter(asks))
        yield from self._replies(rows.filter(replies))

    def _requests(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        correlation = pc.coalesce(rows["correlation_id"], rows["message_id"])
        rows, correlation = rows.filter(correlation.is_valid()), correlation.drop_null()
        direct = pc.starts_with(rows["reply_to"], DIRECT_REPLY)
        place = pc.if_else(direct, _direct(rows), rows["reply_to"])
        return pa.RecordBatch.from_arrays(
            [
                _key(rows, correlation, place),
                pc.coalesce(rows["first_ts_ns"], rows["ts_ns"]),
                _numbers(0, rows),
                self.rules.keys({name: rows[name] for name in (*OF_KEY, "server", "vhost")}),
                rows["connection_id"],
                rows["first_frame_no"],
            ],
            schema=TO_ANSWER,
        )

    def _replies(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Each at every place that it may be asked for at."""
        route = joined(rows["exchange"], rows["routing_key"], "/")
        places = [rows["queue"], rows["address"], rows["routing_key"], route]
        directly = [pc.starts_with(place, DIRECT_REPLY).fill_null(False) for place in places]
        to_direct = pc.or_(pc.or_(directly[0], directly[1]), pc.or_(directly[2], directly[3]))
        for place in (*places, pc.if_else(to_direct, _direct(rows), None)):
            there = place.is_valid()
            of, place = rows.filter(there), place.drop_null()
            nobody = _numbers(0, of)
            at_ns = pc.coalesce(of["last_ts_ns"], of["ts_ns"])
            columns = [_key(of, of["correlation_id"], place), at_ns, _numbers(1, of), nobody, nobody, nobody]
            yield pa.RecordBatch.from_arrays(columns, schema=TO_ANSWER)


@dataclass(frozen=True)
class Answers:
    """The function for `mapInArrow`: PARTITIONED TO_ANSWER, sorted by bucket -> requests that were answered, as
    PARTITIONED rows of `udfs.pairing.flows.TO_PAIR`."""

    partitioner: HashPartitioner

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.partitioner(map(_answered, whole_keys(batches, TO_ANSWER, "key")))


def _answered(rows: pa.Table) -> pa.RecordBatch:
    key, at_ns, is_reply = (numbers_of(rows[name]) for name in ("key", "at_ns", "is_reply"))
    order = np.lexsort((is_reply, at_ns, key))
    key, at_ns, is_reply = key[order], at_ns[order], is_reply[order]
    places = np.where(is_reply == 1, np.arange(len(key)), len(key) - 1)
    following = np.minimum.accumulate(places[::-1])[::-1]  # the next reply, if there is one
    found = np.flatnonzero((is_reply == 0) & (is_reply[following] == 1) & (key[following] == key))
    requests = rows.take(pa.array(order[found]))
    return filled(
        {
            "key": requests["of_request"].combine_chunks(),
            "side": _numbers(ANSWER, requests),
            "connection_id": requests["connection_id"].combine_chunks(),
            "frame_no": requests["frame_no"].combine_chunks(),
            "rpc_latency_ns": pa.array(at_ns[following[found]] - at_ns[found]),
        }
    )


def _key(rows: pa.RecordBatch, correlation: pa.Array, place: pa.Array) -> pa.Array:
    return pa.array(hashed(rows["server"], rows["vhost"], correlation, place))


def _direct(rows: pa.RecordBatch) -> pa.Array:
    """Where direct replies to a connection arrive."""
    return pc.binary_join_element_wise(DIRECT_REPLY, rows["connection_id"].cast(pa.string()), "\0")


def _numbers(number: int, rows: pa.RecordBatch | pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows)
