"""What held up messages, for the parts of their latency (`udfs.pairing.parts`): from tables stalls and links.

One task turns them into intervals, all of which each task that pairs messages needs: one row of
`udfs.pairing.flows.TO_PAIR`, in a file that each task reads once or, where it may not be written, in each bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.pairing.intervals import Times, united
from codec.tables import TABLES
from udfs.arrow.arrays import (
    Index,
    combine_chunks,
    is_one_of,
    is_valid,
    take_or_null,
    to_int64,
    to_mask,
)
from udfs.arrow.fields import hashed
from udfs.arrow.types import arrow_schema, cast_to
from udfs.conversation.addresses import nodes
from udfs.pairing.brokers import brokers_of
from udfs.pairing.flows import STALLED, TO_PAIR
from udfs.pairing.hash_partitions import EVERYWHERE, KEY
from udfs.pairing.pairable import link_names, queue_keys
from udfs.pairing.parts import BESIDE_NS, CLIENT_SENDS, SERVER_SENDS, network_keys
from udfs.pairing.schemas import ARROW_PARTITIONED, CONNECTION_COLUMNS, LINK_COLUMNS, STALL_COLUMNS

Integers = NDArray[np.int64]
NETWORK = ("zero-window", "retransmission", "nagle")
NO_DELIVERY = ("prefetch-full", "no-credit", "session-window", "channel-flow")  # of the server
# Links of a channel that a stall of the whole channel counts for, and pairs of a stall and a link: the longest stalls
# count. Product of both, a small capture could have more of them than fit into memory.
MOST_LINKS, MOST_PAIRS = 64, 1 << 20
ALWAYS, NEVER = 0, 1 << 62  # ns since 1970
MICROSECOND_NS = 1000


def stalled_rows(
    brokers: pa.Table, connections: pa.Table, links: pa.Table, stalls: pa.Table
) -> Iterator[pa.RecordBatch]:
    """BROKERS, and CONNECTION_COLUMNS, LINK_COLUMNS, STALL_COLUMNS of the tables -> PARTITIONED, at most one row."""
    network = _network(stalls.filter(is_one_of(stalls["kind"], NETWORK)))
    of_server = pc.and_(
        is_one_of(stalls["kind"], NO_DELIVERY), pc.equal(combine_chunks(stalls["side"]), "server").fill_null(False)
    )
    blocked = _blocked(brokers, connections, links, stalls.filter(of_server))
    if not (len(network[0]) or len(blocked[0])):
        return
    columns = [np.concatenate(parts) for parts in zip(network, blocked, strict=True)]
    listed = np.concatenate([[len(network[0])], *columns])
    row = cast_to(
        {
            KEY: pa.array([EVERYWHERE]),
            "side": pa.array([STALLED]),
            "shared": pa.ListArray.from_arrays(pa.array([0, len(listed)], pa.int32()), pa.array(listed)),
        },
        TO_PAIR,
    )
    yield pa.RecordBatch.from_arrays(
        [pa.array([0], pa.int32()), pa.array([row.serialize().to_pybytes()], pa.binary())], schema=ARROW_PARTITIONED
    )


@dataclass(frozen=True)
class ToEachBucket:
    """The function for `mapInArrow`: PARTITIONED rows, each in all buckets."""

    buckets: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket in range(self.buckets):
                here = pa.array(np.full(batch.num_rows, bucket), pa.int32())
                yield pa.RecordBatch.from_arrays([here, batch["rows"]], schema=ARROW_PARTITIONED)


def stalled_of_tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow` over a single partition: rows of connections, links and stalls, named in column
    `table` -> PARTITIONED."""
    found = list(batches)
    if not found:
        return
    rows = pa.Table.from_batches(found)
    kinds = {field.name: field.type for table in ("stalls", "links") for field in arrow_schema(TABLES[table])}
    for missing in {*LINK_COLUMNS, *STALL_COLUMNS} - {*rows.column_names}:  # no rows of these tables
        rows = rows.append_column(missing, pa.nulls(rows.num_rows, kinds[missing]))
    connections, links, stalls = (
        rows.filter(pc.equal(rows["table"], name)).select(columns)
        for name, columns in (
            ("connections", CONNECTION_COLUMNS), ("links", LINK_COLUMNS), ("stalls", STALL_COLUMNS)
        )
    )  # fmt: skip
    yield from stalled_rows(brokers_of(connections), connections, links, stalls)


def _network(stalls: pa.Table) -> Times:
    """Keys, begins and ends of the times in which TCP held up a side."""
    sender = np.where(to_mask(pc.equal(combine_chunks(stalls["side"]), "client")), CLIENT_SENDS, SERVER_SENDS)
    keys = network_keys(to_int64(stalls["connection_id"]), 0) | sender
    return united(keys, to_int64(stalls["from_ns"]), to_int64(stalls["until_ns"]), BESIDE_NS)


def _blocked(brokers: pa.Table, connections: pa.Table, links: pa.Table, stalls: pa.Table) -> Times:
    """Keys, begins and ends of the times in which no consumer of a queue could take a message."""
    links = links.filter(pc.not_equal(combine_chunks(links["kind"]), "sender").fill_null(False))
    ids = to_int64(links["connection_id"])
    broker = _found(brokers, ids)
    links, ids, broker = links.filter(pa.array(broker >= 0)), ids[broker >= 0], broker[broker >= 0]
    if not links.num_rows:
        return united(ids, ids, ids)
    own: dict[str, Any] = {name: combine_chunks(links[name]) for name in LINK_COLUMNS}
    of_connections = _found(connections, ids)
    has_ended = is_one_of(take_or_null(connections["tcp_end"], of_connections), ("fin", "rst"))
    ended_us = pc.if_else(has_ended, take_or_null(connections["closed_ts"], of_connections), None)
    closed_us = pc.coalesce(own["closed_ts"], ended_us)
    own |= {name: take_or_null(brokers[name], broker) for name in ("broker", "vhost")}
    own |= {"link": own["name"], "operation": pa.repeat("deliver", links.num_rows)}
    _, _, _, of_address = nodes(own["address"])
    queue = pc.if_else(own["address"].is_valid(), pa.scalar(None, pa.string()), own["queue"])
    source = pc.coalesce(queue, of_address, link_names(own))
    queues, queue_of = np.unique(to_int64(queue_keys(own, source)), return_inverse=True)
    # A consumer: a link by its name, and the queue it was attached to, perhaps several times.
    channel = hashed(own["connection_id"], own["channel"], own["channel_incarnation"])
    link = hashed(pa.array(channel), own["name"])
    _, first, consumer = np.unique(hashed(pa.array(link), pa.array(queue_of)), return_index=True, return_inverse=True)
    opened_us = to_int64(own["opened_ts"].cast(pa.int64()), ALWAYS)
    closed = to_int64(closed_us.cast(pa.int64()), NEVER // MICROSECOND_NS)
    detached = _outside(*united(consumer, opened_us * MICROSECOND_NS, closed * MICROSECOND_NS))
    of_stalls = (stalls["connection_id"], stalls["channel"], stalls["channel_incarnation"])
    stalled_channel = hashed(*(combine_chunks(column) for column in of_stalls))
    stalled_link = hashed(pa.array(stalled_channel), combine_chunks(stalls["link"]))
    of_link = is_valid(stalls["link"])
    unable = [detached]
    for keys, wanted, mask in ((link, stalled_link, of_link), (channel, stalled_channel, ~of_link)):
        from_ns, until_ns = (to_int64(stalls[name])[mask] for name in ("from_ns", "until_ns"))
        at, whose = _matches(keys[first], Times(wanted[mask], from_ns, until_ns))
        unable.append(Times(whose, from_ns[at], until_ns[at]))
    consumer, from_ns, until_ns = map(np.concatenate, zip(*unable, strict=True))
    return _all_of_group(queues, queue_of[first], united(consumer, from_ns, until_ns))


def _found(table: pa.Table, ids: Integers) -> Integers:
    """The row of each connection, -1 for none."""
    known = to_int64(table["connection_id"])
    return Index(known, np.zeros_like(known)).find(ids, np.zeros_like(ids))


def _outside(keys: Integers, from_ns: Integers, until_ns: Integers) -> Times:
    """The times outside of disjoint intervals of each key, sorted by key and time."""
    is_first = np.diff(keys, prepend=-1) != 0
    is_last = np.append(is_first[1:], True)
    before = np.where(is_first, ALWAYS, np.append(0, until_ns[:-1]))
    keys = np.append(keys, keys[is_last])
    from_ns, until_ns = np.append(before, until_ns[is_last]), np.append(from_ns, np.full(is_last.sum(), NEVER))
    some = from_ns < until_ns
    return Times(keys[some], from_ns[some], until_ns[some])


def _matches(keys: Integers, stalls: Times) -> tuple[Integers, Integers]:
    """Pairs (index in `stalls`, index in `keys`) of equal keys: for each stall at most MOST_LINKS, and MOST_PAIRS."""
    order = np.argsort(keys, kind="stable")
    first, end = (np.searchsorted(keys[order], stalls.keys, side) for side in ("left", "right"))
    counts = np.minimum(end - first, MOST_LINKS)
    if counts.sum() > MOST_PAIRS:
        longest = np.lexsort((stalls.keys, stalls.from_ns, stalls.from_ns - stalls.until_ns))
        counts[longest[np.cumsum(counts[longest]) > MOST_PAIRS]] = 0
    at = np.repeat(np.arange(len(counts)), counts)
    turn = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    return at, order[first[at] + turn]


def _all_of_group(groups: Integers, group_of: Integers, times: Times) -> Times:
    """The times in which all members of a group have an interval; those of a member are disjoint. `group_of`: the index
    of each member's group."""
    sizes = np.bincount(group_of, minlength=len(groups))
    group = np.tile(group_of[times.keys], 2)
    at_ns, change = np.append(times.from_ns, times.until_ns), np.repeat([1, -1], len(times.keys))
    order = np.lexsort((at_ns, group))
    group, at_ns, having = group[order], at_ns[order], np.cumsum(change[order])
    together = np.flatnonzero((having[:-1] == sizes[group[:-1]]) & (group[1:] == group[:-1]) & (at_ns[1:] > at_ns[:-1]))
    return united(groups[group[together]], at_ns[together], at_ns[together + 1])
