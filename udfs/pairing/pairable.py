"""Messages made ready to be paired: rows of `udfs.pairing.flows.TO_PAIR`, partitioned by their key.

Messages meet at their broker (server endpoint and virtual host) under a key: the message-id, or else a hash of
correlation-id and body. Where a message was published to, where it was delivered from, and what its headers say, are
hashes as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyarrow import parquet as pq

from codec.pairing.state import CLASSIC, DELIVERY, EXACT, NAMED, PLAIN, PUBLISH, V0_10_FAMILY, V1_0_FAMILY
from udfs.arrow.rows import Index, numbers_of, one_of, picked, truth_of, with_parts
from udfs.arrow.types import VARIANT
from udfs.pairing.addresses import nodes
from udfs.pairing.columns import BROKERS, OF_BROKERS, OF_PAIRS
from udfs.pairing.dead_lettering import told
from udfs.pairing.flows import TO_PAIR
from udfs.pairing.hash_partitions import HashPartitioner, one_batch
from udfs.pairing.hashes import hashed
from udfs.pairing.labels import labels

FAMILIES = {"0-10": V0_10_FAMILY, "1.0": V1_0_FAMILY}
BATCH_ROWS, BATCH_BYTES, FEW_ROWS = 1 << 16, 32 << 20, 1 << 10
BY_ID, BY_BODY, ALONE, ROUTE, PLACE, BODY = range(6)  # what a hash is of; LABEL and COMMON are 6 and 7


@dataclass(frozen=True)
class Rules:
    """`deliveries`: operations; outcomes: `refused` of what never came to a queue, `given_back` of what goes back to
    one, `unmarked`: that which comes again and need not say so; `rolled_back`: a transaction."""

    deliveries: tuple[str, ...]
    refused: tuple[str, ...]
    given_back: tuple[str, ...]
    unmarked: str
    rolled_back: str = "rolled-back"

    def keys(self, rows: Mapping[str, pa.Array]) -> pa.Array:
        """What a message (columns OF_KEY, server, vhost) has in common with those that may be the same."""
        delivered = one_of(rows["operation"], self.deliveries)
        rolled_back = pc.equal(rows["transaction"], self.rolled_back).fill_null(False)
        refused = pc.or_(one_of(rows["outcome"], self.refused), rolled_back)
        broker = (rows["server"], rows["vhost"])
        by_body = (rows["correlation_id"], rows["body_size"], rows["body_sha256"])
        alone = pa.array(_identities(rows))
        cases = (
            (pc.and_(pc.invert(delivered), refused), alone),
            (_not_empty(rows["message_id"]), hashed(*broker, rows["message_id"], seed=BY_ID)),
            (rows["body_sha256"].is_valid(), hashed(*broker, *by_body, seed=BY_BODY)),
        )
        keys = alone
        for case, values in reversed(cases):
            keys = pc.if_else(case, pa.array(values), keys)
        return keys

    def pairable(self, rows: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Columns OF_PAIRS and OF_BROKERS -> those of TO_PAIR, but for answers."""
        delivered = one_of(rows["operation"], self.deliveries)
        of_broker = told(_where(delivered, rows["headers"]), _where(delivered, rows["properties"]))
        at_kind, at_exchange, at_key = nodes(rows["address"])
        source = pc.coalesce(rows["queue"], pc.if_else(pc.not_equal(at_kind, "exchange"), at_key, None))
        if pc.and_(delivered, source.is_null()).true_count:
            source = pc.coalesce(source, _links(rows))
        origins = (
            (of_broker.dead, of_broker.died_exchange, of_broker.died_routing_key),
            (rows["exchange"].is_valid(), rows["exchange"], rows["routing_key"]),
            (of_broker.exchange.is_valid(), of_broker.exchange, of_broker.routing_key),
            (pc.invert(delivered), at_exchange, at_key),
        )
        exchange = routing_key = pa.nulls(len(delivered), pa.string())
        for known, its_exchange, its_key in reversed(origins):
            exchange = pc.if_else(known, its_exchange, exchange)
            routing_key = pc.if_else(known, pc.coalesce(its_key, ""), routing_key)
        route = hashed(exchange, routing_key, seed=ROUTE)
        route = np.where(exchange.is_valid().to_numpy(zero_copy_only=False), route, 0)
        nothing = pa.repeat("", len(delivered))
        own_route = hashed(nothing, source, seed=ROUTE)
        # What stays in its queue is there for each reader anew.
        copied = truth_of(pc.or_(rows["browsed"].fill_null(False), _of_streams(rows["streams"], source)))
        reader = pa.nulls(len(delivered), pa.string())
        if copied.any():
            reader = pc.if_else(pa.array(copied), _links(rows), reader)
        died = (pa.array(of_broker.deaths), of_broker.died["queue"])
        place = hashed(source, pa.array(route), *died, reader, seed=PLACE)
        to_exchange = pc.if_else(pc.equal(at_kind, "exchange"), NAMED, PLAIN)
        addressed = pc.if_else(pc.equal(at_kind, "queue"), EXACT, to_exchange)
        by_exchange = pc.if_else(pc.equal(rows["exchange"], ""), EXACT, NAMED)
        by_id = _not_empty(rows["message_id"])
        until_ns = pc.coalesce(rows["last_ts_ns"], rows["ts_ns"])
        back = one_of(rows["outcome"], self.given_back)
        back_ns = pc.if_else(pc.and_(delivered, back), pc.coalesce(rows["settled_ts_ns"], until_ns), -1)
        dead = truth_of(of_broker.dead)
        delivery = truth_of(delivered)
        family = _families(rows["version"])
        label, common = labels(rows, family)
        return {
            "key": self.keys(rows),
            "side": pc.if_else(delivered, DELIVERY, PUBLISH),
            "place": pa.array(np.where(delivery, place, 0)),
            "route": pa.array(route),
            # The queue of a dead-lettered message is not the one that it was published to.
            "own_route": pa.array(np.where(delivery & ~dead, own_route, 0)),
            "kind": pc.coalesce(by_exchange, addressed, PLAIN),
            "digest": pc.if_else(rows["body_sha256"].is_valid(), pa.array(hashed(rows["body_sha256"], seed=BODY)), 0),
            "family": family,
            "from_ns": pc.coalesce(rows["first_ts_ns"], rows["ts_ns"]),
            "until_ns": until_ns,
            "again": pc.and_(pc.coalesce(rows["redelivered"], False), pa.array(~copied)),
            "back_ns": pc.if_else(pa.array(copied), -1, back_ns),
            "surely": rows["settled_ts_ns"].is_valid(),
            "unmarked": pc.equal(rows["outcome"], self.unmarked).fill_null(False),
            "label": pa.array(label),
            "common": pa.array(common),
            "identity": pa.array(_identities(rows)),
            "connection_id": rows["connection_id"],
            "frame_no": rows["first_frame_no"],
            **{name: rows[name] for name in ("version", "server", "vhost", "exchange", "routing_key", "address")},
            **{name: rows[name] for name in ("queue", "outcome", "transaction", "trace_id", "span_id")},
            "settled_ns": rows["settled_ts_ns"],
            "dead_lettered": of_broker.died["reason"],
            "by_id": by_id,
            # A message-id tells what it belongs to although bytes are lost, unless ids are used again.
            "lossy": pc.and_(rows["lossy"], pc.or_(pc.coalesce(rows["ids_repeat"], False), pc.invert(by_id))),
        }

    def wanted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Publishes and deliveries."""
        return _filtered(rows, one_of(rows["operation"], ("publish", *self.deliveries)))


@dataclass(frozen=True)
class PartitionMessages:
    """The function for `mapInArrow`: messages with their broker (OF_PAIRS, OF_BROKERS) ->
    PARTITIONED (`udfs.pairing.columns`)."""

    rules: Rules
    partitioner: HashPartitioner
    columns = OF_PAIRS

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.partitioner(filled(self.rules.pairable(_columns(self._wanted(batch)))) for batch in batches)

    def _wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self.rules.wanted(with_parts(batch))


class Partition(Protocol):
    """A function for `mapInArrow`: messages, these `columns` of them, with their broker -> PARTITIONED."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True)
class ReadMessages:
    """The function for `mapInArrow`: rows (file, row_group) -> PARTITIONED (`udfs.pairing.columns`): the
    messages of these row groups of files of a file system that all workers reach, with their brokers, which are in the
    file `brokers` (BROKERS). That is looked through once a task, and what is held of it is what its messages need."""

    filesystem: fs.FileSystem
    brokers: str
    partition: Partition

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.partition(self._read(list(batches)))

    def _read(self, groups: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not groups:
            return
        of_groups = (rows["connection_id"] for rows in messages_in(self.filesystem, groups, ["connection_id"]))
        connections = pa.chunked_array([ids.unique() for ids in of_groups], pa.int64()).unique()
        known = self._brokers_of(connections)
        index = Index(numbers_of(known["connection_id"]), np.zeros(known.num_rows, np.int64))
        for rows in messages_in(self.filesystem, groups, self.partition.columns):
            ids = numbers_of(rows["connection_id"])
            at = index.find(ids, np.zeros(len(ids), np.int64))
            found = _filtered(rows, pa.array(at >= 0))
            of_brokers = [picked(known[name], at[at >= 0]) for name in OF_BROKERS]
            yield pa.RecordBatch.from_arrays([*found.columns, *of_brokers], names=[*found.schema.names, *OF_BROKERS])

    def _brokers_of(self, connections: pa.Array) -> pa.Table:
        with pq.ParquetFile(self.brokers, filesystem=self.filesystem) as file:
            found = [rows.filter(pc.is_in(rows["connection_id"], connections)) for rows in file.iter_batches()]
        return pa.Table.from_batches(found, BROKERS).combine_chunks()


def messages_in(
    filesystem: fs.FileSystem, groups: Iterable[pa.RecordBatch], columns: Iterable[str]
) -> Iterator[pa.RecordBatch]:
    """Columns of table messages in these row groups (rows file, row_group): batches of BATCH_ROWS, or less where they
    are more than BATCH_BYTES: a text of 1.0 may be long, and is in its file once."""
    for path, group in ((row["file"], row["row_group"]) for batch in groups for row in batch.to_pylist()):
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            held, size = list[pa.RecordBatch](), 0
            for few in file.iter_batches(FEW_ROWS, row_groups=[group], columns=list(columns)):
                held.append(few)
                size += few.nbytes
                if len(held) * FEW_ROWS >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield one_batch(held)
                    held, size = [], 0
            if held:
                yield one_batch(held)


def filled(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Rows of TO_PAIR, null where nothing is said."""
    rows = len(columns["key"])
    values = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows, field.type)
        for field in TO_PAIR
    ]
    return pa.RecordBatch.from_arrays(values, schema=TO_PAIR)


def _filtered(rows: pa.RecordBatch, chosen: pa.BooleanArray) -> pa.RecordBatch:
    """The chosen rows, which are all as a rule."""
    return rows if chosen.true_count == rows.num_rows else rows.filter(chosen)


def _columns(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    return {name: rows[name] for name in rows.schema.names}


def _identities(rows: Mapping[str, pa.Array]) -> np.ndarray:
    """64 bits that tell a message from all others."""
    return hashed(rows["connection_id"], rows["first_frame_no"], seed=ALONE)


def _families(versions: pa.Array) -> pa.Array:
    found = pa.repeat(pa.scalar(CLASSIC), len(versions))
    for version, family in FAMILIES.items():
        found = pc.if_else(pc.equal(versions, version).fill_null(False), family, found)
    return found


def _not_empty(text: pa.Array) -> pa.Array:
    return pc.not_equal(text, "").fill_null(False)


def _of_streams(streams: pa.Array, queues: pa.Array) -> pa.BooleanArray:
    """Whether each of `queues` is among the streams of its broker."""
    found = pa.repeat(pa.scalar(False), len(queues))
    for known in streams.unique().drop_null():
        here = pc.equal(streams, known).fill_null(False)
        found = pc.or_(found, pc.and_(here, one_of(queues, known.as_py().splitlines())))
    return found


def _links(rows: Mapping[str, pa.Array]) -> pa.Array:
    """A name for the link of each message."""
    parts = (rows[name].cast(pa.string()) for name in ("connection_id", "channel", "link"))
    return pc.binary_join_element_wise("link", *parts, "\0", null_handling="skip")


def _where(chosen: pa.Array, column: pa.StructArray) -> pa.StructArray:
    """A VARIANT column, null but where `chosen`."""
    parts = [column.field(part.name) for part in VARIANT]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=pc.or_(pc.invert(chosen), column.is_null()))
