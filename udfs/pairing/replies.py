"""Latencies of RPC: from a request (a publish with reply-to) to the delivery of its reply.

A reply has the correlation-id of its request, or else its message-id, and is delivered from the reply-to of the
request. The next such delivery counts, since ids may be used again. Two kinds of replies come over the connection of
the request, whatever the reply-to: direct replies of RabbitMQ, and those of 1.0 nodes that serve requests themselves,
whose reply-to is only a name for the link of the requester (AMQP Management 1.0, AMQP Claims-based Security 1.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.arrow.arrays import concat_ws, is_one_of, to_int64
from udfs.arrow.fields import hashed
from udfs.arrow.types import cast_to
from udfs.conversation.addresses import SERVES
from udfs.conversation.roles import DELIVERIES
from udfs.pairing.flows import RPC_REPLY, TO_PAIR
from udfs.pairing.hash_partitions import HashPartitioner, whole_keys
from udfs.pairing.pairable import DIRECT_REPLY, identities_of, pairing_keys
from udfs.pairing.schemas import KEY_COLUMNS

# Requests and replies. `key`: a hash of correlation-id and reply-to; `of_request`, `identity`: of the request,
# its pairing key and its `udfs.pairing.pairable.identities_of`.
RPC_ROWS = pa.schema(
    {
        "key": pa.int64(),
        "at_ns": pa.int64(),
        "is_reply": pa.int64(),
        "of_request": pa.int64(),
        "identity": pa.int64(),
    }
)


def requests_and_replies(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Messages (REPLY_COLUMNS) with their broker -> RPC_ROWS."""
    is_request = pc.and_(pc.equal(rows["operation"], "publish"), rows["reply_to"].is_valid())
    replies = pc.and_(is_one_of(rows["operation"], DELIVERIES), rows["correlation_id"].is_valid())
    yield _requests(rows.filter(is_request))
    yield from _replies(rows.filter(replies))


def _requests(rows: pa.RecordBatch) -> pa.RecordBatch:
    correlation = pc.coalesce(rows["correlation_id"], rows["message_id"])
    rows, correlation = rows.filter(correlation.is_valid()), correlation.drop_null()
    served = pc.match_substring_regex(rows["address"], SERVES).fill_null(False)
    over_it = pc.or_(served, pc.starts_with(rows["reply_to"], DIRECT_REPLY))
    address = pc.if_else(over_it, _over_connection(rows), rows["reply_to"])
    return cast_to(
        {
            "key": _key(rows, correlation, address),
            "at_ns": pc.coalesce(rows["first_ts_ns"], rows["ts_ns"]),
            "is_reply": _numbers(0, rows),
            "of_request": pairing_keys({name: rows[name] for name in (*KEY_COLUMNS, "broker", "vhost")}),
            "identity": pa.array(identities_of(rows)),
        },
        RPC_ROWS,
    )


def _replies(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A row for each value of reply-to that a reply may answer."""
    route = concat_ws([rows["exchange"], rows["routing_key"]], "/").fill_null("")
    addresses = [rows["queue"], rows["address"], rows["routing_key"], route]
    over_it = pc.equal(rows["version"], "1.0").fill_null(False)
    for address in addresses:
        over_it = pc.or_(over_it, pc.starts_with(address, DIRECT_REPLY).fill_null(False))
    for address in (*addresses, pc.if_else(over_it, _over_connection(rows), None)):
        there = address.is_valid()
        of, address = rows.filter(there), address.drop_null()
        key, at_ns = _key(of, of["correlation_id"], address), pc.coalesce(of["last_ts_ns"], of["ts_ns"])
        yield cast_to({"key": key, "at_ns": at_ns, "is_reply": _numbers(1, of)}, RPC_ROWS)


@dataclass(frozen=True)
class PairReplies:
    """The function for `mapInArrow`: PARTITIONED RPC_ROWS, sorted by bucket -> requests that have a reply, as
    PARTITIONED rows of `udfs.pairing.flows.TO_PAIR`."""

    partitioner: HashPartitioner

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.partitioner(map(_replied, whole_keys(batches, RPC_ROWS)))


def _replied(rows: pa.Table) -> pa.RecordBatch:
    key, at_ns, is_reply = (to_int64(rows[name]) for name in ("key", "at_ns", "is_reply"))
    order = np.lexsort((is_reply, at_ns, key))
    key, at_ns, is_reply = key[order], at_ns[order], is_reply[order]
    indices = np.where(is_reply == 1, np.arange(len(key)), len(key) - 1)
    following = np.minimum.accumulate(indices[::-1])[::-1]  # the next reply, if any
    found = np.flatnonzero((is_reply == 0) & (is_reply[following] == 1) & (key[following] == key))
    requests = rows.take(pa.array(order[found]))
    return cast_to(
        {
            "key": requests["of_request"],
            "side": _numbers(RPC_REPLY, requests),
            "identity": requests["identity"],
            "rpc_latency_ns": pa.array(at_ns[following[found]] - at_ns[found]),
        },
        TO_PAIR,
    )


def _key(rows: pa.RecordBatch, correlation: pa.Array, address: pa.Array) -> pa.Array:
    return pa.array(hashed(rows["broker"], rows["vhost"], correlation, address))


def _over_connection(rows: pa.RecordBatch) -> pa.Array:
    """The address of replies that come over the connection of their request."""
    return pc.binary_join_element_wise(DIRECT_REPLY, rows["connection_id"].cast(pa.string()), "\0")


def _numbers(number: int, rows: pa.RecordBatch | pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows)
