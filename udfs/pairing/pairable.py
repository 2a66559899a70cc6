"""Prepares messages for pairing: rows of `udfs.pairing.flows.TO_PAIR`, partitioned by their key.

Messages are paired at their broker (and its virtual host) by a key: the message-id, or else a hash of
correlation-id and body. Where a message was published to, the queue it was delivered from, and its headers are hashes,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import fs
from pyarrow import parquet as pq

from codec.pairing.engine import (
    ANY_QUEUE,
    CLASSIC,
    DELIVERY,
    PERHAPS_ANY_QUEUE,
    PUBLISH,
    TO_ADDRESS,
    TO_EXCHANGE,
    TO_QUEUE,
    V0_10_FAMILY,
    V1_0_FAMILY,
)
from codec.variant.entries import (
    MOST_ENTRIES,
    NAME,
    PRIVATE,
    TEXT,
    VALUE,
    VALUE_HASH,
    WHOLE,
    list_entries,
    mix_entries,
    names_of,
)
from udfs.arrow.arrays import (
    Index,
    batch_groups,
    from_spark,
    is_one_of,
    is_valid,
    take_or_null,
    to_int64,
    to_mask,
)
from udfs.arrow.fields import Fields, Values, counted, elements, fields, hashed, in_one_number, inside, texts, values_of
from udfs.arrow.types import VARIANT, cast_to
from udfs.conversation.addresses import (
    DEAD_LETTER_REASON,
    HAS_DEAD_LETTERS,
    dead_letters_of,
    nodes,
)
from udfs.conversation.roles import (
    DELIVERIES,
    REDELIVERED_FLAG_OPTIONAL_AFTER,
    REFUSED_BY_QUEUE,
    REQUEUED,
    UNROUTED,
)
from udfs.pairing.flows import TO_PAIR, UNKNOWN
from udfs.pairing.hash_partitions import HashPartitioner, one_batch
from udfs.pairing.schemas import BROKER_COLUMNS, BROKERS

# Where messages were published to, as RabbitMQ's dead-lettering fields tell.
#
# Dead-lettering: the header x-death lists queues, reasons and counts, the newest first; x-first-death-* repeat the
# oldest. For 1.0, since version 4, both are message annotations, beside the route of every message (RabbitMQ's
# documentation, Dead Letter Exchanges).


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
    `dead_letter_reason` bool. What was dead-lettered was published to `original_exchange` (null if not recorded) with
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
        parts.append(_x_death(lists.rows_at(np.arange(begin, end)), counts[begin:end], of_part))
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
    same = pc.and_(*(pc.equal(of_each[name], take_or_null(first_death[name], row)) for name in ("queue", "reason")))
    at = np.flatnonzero(to_mask(same))[::-1]
    first = np.where(counts > 0, np.cumsum(counts) - 1, -1)
    first[row[at]] = at
    keys = _first_texts(inside(each, "routing-keys"))
    return XDeath(
        total, lists.stops > lists.starts, take_or_null(of_each["exchange"], first), take_or_null(keys, first)
    )


def _first_texts(lists: Values) -> pa.Array:
    counts = counted(lists)
    return take_or_null(texts(elements(lists, counts)), np.where(counts > 0, np.cumsum(counts) - counts, -1))


FAMILIES = {"0-10": V0_10_FAMILY, "1.0": V1_0_FAMILY}
ROLLED_BACK = "rolled-back"  # a state of transactions
FULL = "maxlen"  # RabbitMQ's reason for dead letters of a full queue
TOPIC = "topic://"  # the exchange of ActiveMQ's topics (`udfs.conversation.addresses`)
TEMPORARY = "^temp-(queue|topic)://"
# Columns of messages that files of earlier releases lack.
ADDED = {
    **dict.fromkeys(("queue_offset", "broker_ts_ns", "handled_ts_ns"), pa.int64()),
    **dict.fromkeys(("user_id", "expiration"), pa.string()),
    "batch_index": pa.int32(),
}
BATCH_ROWS, BATCH_BYTES, FEW_ROWS = 1 << 16, 32 << 20, 1 << 12


def pairing_keys(rows: Mapping[str, pa.Array]) -> pa.Array:
    """The pairing key of each message (columns KEY_COLUMNS, broker, vhost)."""
    delivered = is_one_of(rows["operation"], DELIVERIES)
    rolled_back = pc.equal(rows["transaction"], ROLLED_BACK).fill_null(False)
    unrouted = pc.or_(is_one_of(rows["outcome"], UNROUTED), rolled_back)
    broker = (rows["broker"], rows["vhost"])
    unique = pa.array(identities_of(rows))
    by_id = is_by_id(rows)
    keys = unique
    if by_id.false_count:
        by_body = (rows["correlation_id"], rows["body_size"], rows["body_sha256"])
        of_bodies = pa.array(hashed(*broker, *by_body, seed=BY_BODY))
        keys = pc.if_else(rows["body_sha256"].is_valid(), of_bodies, keys)
    keys = pc.if_else(by_id, pa.array(hashed(*broker, rows["message_id"], seed=BY_ID)), keys)
    return pc.if_else(pc.and_(pc.invert(delivered), unrouted), unique, keys)


class Routed(NamedTuple):
    """Messages with where they came from. `delivered`; `family`: CLASSIC ...; `broker`: what it added; `exchange`,
    `routing_key`: the route, null where it is unknown; `source`: what a delivery came from, `named`: the queue, if it
    is one; `address_kind`: of `udfs.conversation.addresses.Node`."""

    delivered: pa.BooleanArray
    family: pa.Array
    broker: BrokerFields
    exchange: pa.Array
    routing_key: pa.Array
    source: pa.Array
    named: pa.Array
    address_kind: pa.Array


def routed(rows: Mapping[str, pa.Array]) -> Routed:
    """Columns MESSAGE_COLUMNS and BROKER_COLUMNS -> their routes."""
    delivered = is_one_of(rows["operation"], DELIVERIES)
    family = _families(rows["version"])
    annotated = pc.and_(delivered, pc.equal(family, V1_0_FAMILY))
    broker = broker_fields(_where(delivered, rows["headers"]), _where(annotated, rows["properties"]))
    address_kind, address_exchange, address_key, address_queue = nodes(rows["address"])
    # A topic by the capabilities of its link, which its address does not show.
    topic = pc.and_(pc.equal(family, V1_0_FAMILY), pc.equal(rows["routing_key"], rows["address"]).fill_null(False))
    topic = pc.and_(topic, rows["exchange"].is_null())
    address_kind, address_exchange = (
        pc.if_else(topic, of_topic, of_address)
        for of_topic, of_address in (("exchange", address_kind), (TOPIC, address_exchange))
    )
    address_queue = pc.if_else(topic, pa.scalar(None, pa.string()), address_queue)
    queue = pc.if_else(rows["address"].is_valid(), pa.scalar(None, pa.string()), rows["queue"])
    named = pc.coalesce(queue, pc.if_else(address_queue.is_valid(), address_key, None))
    source = pc.coalesce(queue, address_queue)
    if pc.and_(delivered, source.is_null()).true_count:
        source = pc.coalesce(source, link_names(rows))
    destinations = (  # the first that is known
        (broker.dead_lettered, broker.original_exchange, broker.original_routing_key),
        (rows["exchange"].is_valid(), rows["exchange"], rows["routing_key"]),
        (broker.exchange.is_valid(), broker.exchange, broker.routing_key),
        (pc.invert(delivered), address_exchange, address_key),
    )
    exchange = routing_key = pa.nulls(len(delivered), pa.string())
    for known, to_exchange, to_key in reversed(destinations):
        exchange = pc.if_else(known, to_exchange, exchange)
        routing_key = pc.if_else(known, pc.coalesce(to_key, ""), routing_key)
    return Routed(delivered, family, broker, exchange, routing_key, source, pc.coalesce(named, source), address_kind)


def rows_to_pair(rows: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Columns MESSAGE_COLUMNS and BROKER_COLUMNS -> those of TO_PAIR, without RPC latencies."""
    delivered, family, broker, exchange, routing_key, source, named, address_kind = routed(rows)
    route = np.where(to_mask(exchange.is_valid()), route_of(exchange, routing_key), 0)
    queue_route = route_of(pa.repeat("", len(delivered)), named)
    # A message that stays in its queue (browsed, or in a stream) is delivered to each reader.
    of_stream = pc.or_(_of_streams(rows["streams"], source), rows["queue_offset"].is_valid())
    copied = to_mask(pc.or_(rows["browsed"].fill_null(False), of_stream))
    reader = pa.nulls(len(delivered), pa.string())
    if copied.any():
        reader = pc.if_else(pa.array(copied), link_names(rows), reader)
    x_death = (pa.array(broker.x_death_count), broker.first_death["queue"])
    source_hash = hashed(source, pa.array(route), *x_death, reader, seed=SOURCE)
    by_address = pc.if_else(pc.equal(address_kind, "exchange"), TO_EXCHANGE, TO_ADDRESS)
    by_address = pc.if_else(pc.equal(address_kind, "queue"), TO_QUEUE, by_address)
    by_exchange = pc.if_else(pc.equal(rows["exchange"], ""), TO_QUEUE, TO_EXCHANGE)
    by_id = is_by_id(rows)
    last_ns = pc.coalesce(rows["last_ts_ns"], rows["ts_ns"])
    again = pc.or_kleene(rows["redelivered"], broker.acquired_before)
    requeued = is_one_of(rows["outcome"], REQUEUED)
    requeued_ns = pc.if_else(pc.and_(delivered, requeued), pc.coalesce(rows["settled_ts_ns"], last_ns), -1)
    delivery = to_mask(delivered)
    label, common = labels(rows, family)
    dead_of, dead_of_any = dead_letters_of(_if(delivered, rows["address"]))
    origin = pc.if_else(dead_of.is_valid(), pa.array(route_of(pa.repeat("", len(delivered)), dead_of)), 0)
    origin = pc.if_else(dead_of_any.fill_null(False), pc.if_else(by_id, ANY_QUEUE, PERHAPS_ANY_QUEUE), origin)
    reason = pc.coalesce(broker.first_death["reason"], _reason(rows, delivered))
    return {
        "key": pairing_keys(rows),
        "side": pc.if_else(delivered, DELIVERY, PUBLISH),
        "source": pa.array(np.where(delivery, source_hash, 0)),
        "route": pa.array(route),
        # The queue of a dead-lettered message is not the one that it was published to.
        "queue_route": pa.array(np.where(delivery & ~to_mask(broker.dead_lettered), queue_route, 0)),
        "kind": pc.coalesce(by_exchange, by_address, TO_ADDRESS),
        "digest": pc.if_else(rows["body_sha256"].is_valid(), pa.array(hashed(rows["body_sha256"], seed=BODY)), 0),
        "family": family,
        "first_ns": pc.coalesce(rows["first_ts_ns"], rows["ts_ns"]),
        "last_ns": last_ns,
        "redelivered": pc.and_(pc.coalesce(again, False), pa.array(~copied)),
        "requeued_ns": pc.if_else(pa.array(copied), -1, requeued_ns),
        "requeue_seen": rows["settled_ts_ns"].is_valid(),
        "flag_optional": pc.equal(rows["outcome"], REDELIVERED_FLAG_OPTIONAL_AFTER).fill_null(False),
        "label": pa.array(label),
        "common": pa.array(common),
        "origin_route": origin,
        "refused": pc.if_else(delivered, _may_be_refused(broker), is_one_of(rows["outcome"], REFUSED_BY_QUEUE)),
        "shared": shared_entries(rows, family, by_id),
        "identity": pa.array(identities_of(rows)),
        "connection_id": rows["connection_id"],
        "frame_no": rows["first_frame_no"],
        "batch_index": rows["batch_index"],
        **{name: rows[name] for name in ("version", "server", "vhost", "exchange", "routing_key", "address")},
        **{name: rows[name] for name in ("queue", "outcome", "transaction", "trace_id", "span_id")},
        "settled_ns": rows["settled_ts_ns"],
        "handled_ns": rows["handled_ts_ns"],
        "taken_ns": rows["broker_ts_ns"],
        "queue_key": queue_keys(rows, source),
        "dead_letter_reason": reason,
        "by_id": by_id,
        # A message-id identifies a message although bytes are lost, unless ids repeat.
        "lossy": pc.and_(rows["lossy"], pc.or_(pc.coalesce(rows["ids_repeat"], False), pc.invert(by_id))),
    }


def queue_keys(rows: Mapping[str, pa.Array], source: pa.Array) -> pa.Array:
    """A key of the queue of each delivery that a consumer waited for; null for others."""
    waited = pc.and_(pc.equal(rows["operation"], "deliver"), source.is_valid())
    return pc.if_else(waited, pa.array(hashed(rows["broker"], rows["vhost"], source, seed=QUEUE)), None)


def messages_to_pair(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Messages with their broker (MESSAGE_COLUMNS, BROKER_COLUMNS) -> TO_PAIR."""
    rows = from_spark(rows)
    rows = filtered(rows, is_one_of(rows["operation"], ("publish", *DELIVERIES)))
    yield cast_to(rows_to_pair({name: rows[name] for name in rows.schema.names}), TO_PAIR)


@dataclass(frozen=True)
class Partition:
    """The function for `mapInArrow`: messages, these `columns` of them, with their broker -> PARTITIONED
    (`udfs.pairing.schemas`): what `make` gives of each batch."""

    columns: tuple[str, ...]
    make: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]
    partitioner: HashPartitioner

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.partitioner(rows for batch in batches for rows in self.make(batch))


@dataclass(frozen=True)
class ReadMessages:
    """The function for `mapInArrow`: rows (file, row_group) -> PARTITIONED: reads these row groups of messages and adds
    the brokers of their connections, from the file `brokers` (BROKERS), which each task reads once. All workers reach
    the file system."""

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
        index = Index(to_int64(known["connection_id"]), np.zeros(known.num_rows, np.int64))
        texts = [known[name] for name in BROKER_COLUMNS]
        texts[-1] = texts[-1].combine_chunks().dictionary_encode()  # streams: long, the same in many rows
        for rows in messages_in(self.filesystem, groups, self.partition.columns):
            ids = to_int64(rows["connection_id"])
            at = index.find(ids, np.zeros(len(ids), np.int64))
            found = filtered(rows, pa.array(at >= 0))
            of_brokers = [take_or_null(column, at[at >= 0]) for column in texts]
            yield pa.RecordBatch.from_arrays(
                [*found.columns, *of_brokers], names=[*found.schema.names, *BROKER_COLUMNS]
            )

    def _brokers_of(self, connections: pa.Array) -> pa.Table:
        with pq.ParquetFile(self.brokers, filesystem=self.filesystem) as file:
            found = [rows.filter(pc.is_in(rows["connection_id"], connections)) for rows in file.iter_batches()]
        return pa.Table.from_batches(found, BROKERS).combine_chunks()


def messages_in(
    filesystem: fs.FileSystem, groups: Iterable[pa.RecordBatch], columns: Iterable[str]
) -> Iterator[pa.RecordBatch]:
    """Columns of table messages in these row groups (rows file, row_group): batches of BATCH_ROWS, or fewer
    if they take BATCH_BYTES (a file stores a long text once, a batch in each row)."""
    for path, group in ((row["file"], row["row_group"]) for batch in groups for row in batch.to_pylist()):
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            few = file.iter_batches(FEW_ROWS, row_groups=[group], columns=list(columns))
            for rows in map(one_batch, batch_groups(few, BATCH_BYTES, BATCH_ROWS // FEW_ROWS)):
                # A file of an older release may lack some.
                missing = [name for name in columns if name not in rows.schema.names]
                nothing = (pa.nulls(rows.num_rows, ADDED[name]) for name in missing)
                arrays, names = [*rows.columns, *nothing], [*rows.schema.names, *missing]
                yield pa.RecordBatch.from_arrays(arrays, names=names).select(list(columns))


def filtered(rows: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """The rows where `mask` is true; usually all, which needs no copy."""
    return rows if mask.true_count == rows.num_rows else rows.filter(mask)


def identities_of(rows: Mapping[str, pa.Array]) -> np.ndarray:
    """A hash that identifies each message."""
    names = ("connection_id", "first_frame_no")
    unique = hashed(*(rows[name] for name in names), seed=IDENTITY)
    if rows["batch_index"].null_count < len(unique):
        of_batch = hashed(*(rows[name] for name in (*names, "batch_index")), seed=IDENTITY)
        unique = np.where(is_valid(rows["batch_index"]), of_batch, unique)
    return unique


def _families(versions: pa.Array) -> pa.Array:
    found = pa.repeat(pa.scalar(CLASSIC), len(versions))
    for version, family in FAMILIES.items():
        found = pc.if_else(pc.equal(versions, version).fill_null(False), family, found)
    return found


def is_by_id(rows: Mapping[str, pa.Array]) -> pa.BooleanArray:
    """Whether the pairing key is the message-id. ActiveMQ gives what is sent to a temporary queue another one."""
    temporary = pc.match_substring_regex(rows["address"], TEMPORARY).fill_null(False)
    return pc.and_(pc.not_equal(rows["message_id"], "").fill_null(False), pc.invert(temporary))


def route_of(exchange: pa.Array, routing_key: pa.Array) -> np.ndarray:
    return hashed(exchange, routing_key, seed=ROUTE)


def _if(mask: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(mask, texts, pa.scalar(None, pa.string()))


def _may_be_refused(broker: BrokerFields) -> pa.BooleanArray:
    """Whether a full queue may have dead-lettered a message that it refused (RabbitMQ: overflow reject-publish-dlx)."""
    full = pc.equal(broker.first_death["reason"], FULL).fill_null(True)
    return pc.and_(broker.dead_lettered, full)


def _reason(rows: Mapping[str, pa.Array], delivered: pa.BooleanArray) -> pa.Array:
    """Why Service Bus dead-lettered messages; null where it did not."""
    dead = pc.and_(delivered, pc.match_substring_regex(rows["address"], HAS_DEAD_LETTERS).fill_null(False))
    if not dead.true_count:
        return pa.nulls(len(delivered), pa.string())
    reason = fields(_where(dead, rows["headers"]), {DEAD_LETTER_REASON: "string"})[DEAD_LETTER_REASON]
    return _if(dead, pc.coalesce(reason, UNKNOWN))


def _of_streams(streams: pa.Array, queues: pa.Array) -> pa.BooleanArray:
    """Whether each of `queues` is among the streams of its broker."""
    found = pa.repeat(pa.scalar(False), len(queues))
    for text, here in each_text(streams):
        found = pc.or_(found, pc.and_(here, is_one_of(queues, text.split("\n"))))
    return found


def each_text(texts: pa.Array) -> Iterator[tuple[str, pa.BooleanArray]]:
    """Each distinct text of a column, and which rows have it."""
    encoded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    for number in pc.unique(encoded.indices).drop_null().to_pylist():
        yield encoded.dictionary[number].as_py(), pc.equal(encoded.indices, number).fill_null(False)


def link_names(rows: Mapping[str, pa.Array]) -> pa.Array:
    """A name for the link of each message."""
    parts = (rows[name].cast(pa.string()) for name in ("connection_id", "channel", "link"))
    return pc.binary_join_element_wise("link", *parts, "\0", null_handling="skip")


def _where(mask: pa.Array, column: pa.StructArray) -> pa.StructArray:
    """A VARIANT column, null but where `mask`."""
    parts = [column.field(part.name) for part in VARIANT]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=pc.or_(pc.invert(mask), column.is_null()))


BY_ID, BY_BODY, IDENTITY, ROUTE, SOURCE, BODY, LABEL, COMMON, QUEUE = range(9)  # seeds: what a hash is of
# Headers that brokers and their plugins add, change or remove; '*': any ending. RabbitMQ (its documentation: Dead
# Letter Exchanges, Federation, Shovel, Sender-selected Distribution, Quorum Queues; plugins message-timestamp, delayed
# exchange), Qpid (federation, ring queues).
CHANGED_HEADERS = (
    "x-death", "x-first-death-*", "x-last-death-*", "x-received-from", "x-shovelled", "x-shovelled-*",
    "x-delivery-count", "x-acquired-count", "x-stream-*", "x-opt-*", "x-delay", "cc", "bcc", "timestamp_in_ms",
    "x-amqp-*", "x-qpid.*", "qpid.*",
)  # fmt: skip
# RabbitMQ makes these annotations when a message goes from 0-9-1 to 1.0, and headers the other way.
FAMILY_HEADERS = ("x-*",)
DEFAULT_PRIORITY = 4  # of 0-10 and 1.0; a broker may write it out
COMMON_PROPERTIES = ("content_type", "content_encoding")
FAMILY_PROPERTIES = ("type", "app_id")
# Properties that the deliveries of a message have like its publish, if both have them at all -> marks of their entries.
SHARED_PROPERTIES = {
    **dict.fromkeys((*COMMON_PROPERTIES, "user_id"), TEXT),
    **dict.fromkeys((*FAMILY_PROPERTIES, "reply_to", "expiration"), TEXT | PRIVATE),
    "priority": WHOLE,
}


def labels(rows: Mapping[str, pa.Array], family: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Two hashes of each message (columns COMMON_PROPERTIES, FAMILY_PROPERTIES, `priority`, `headers`): its label, of
    all that brokers preserve, and its common label, of what they preserve across families."""
    values = values_of(rows["headers"])
    all_, common = np.zeros((2, len(values.starts), 2), np.int64)
    mix_entries(*values, names_of(CHANGED_HEADERS), names_of(FAMILY_HEADERS), all_, common)
    default = pc.if_else(pc.equal(family, CLASSIC), pa.scalar(None, pa.int64()), DEFAULT_PRIORITY)
    priority = pc.coalesce(rows["priority"].cast(pa.int64()), default)
    common_properties = [rows[name] for name in COMMON_PROPERTIES]
    family_properties = [rows[name] for name in FAMILY_PROPERTIES]
    of_all, of_common = (pa.array(in_one_number(lanes)) for lanes in (all_, common))
    label = hashed(family.cast(pa.int64()), *common_properties, *family_properties, priority, of_all, seed=LABEL)
    return label, hashed(*common_properties, of_common, seed=COMMON)


def shared_entries(rows: Mapping[str, pa.Array], family: pa.Array, by_id: pa.BooleanArray) -> pa.ListArray:
    """Headers and SHARED_PROPERTIES of messages whose key is not their message-id (int64, as
    `codec.variant.entries.list_entries` has them); empty for others."""
    at = np.flatnonzero(~to_mask(by_id))
    lists, counts = np.zeros((len(at), MOST_ENTRIES), np.int64), np.zeros(len(at), np.int64)
    if len(at):
        values = values_of(rows["headers"]).rows_at(at)
        list_entries(*values, names_of(CHANGED_HEADERS), names_of(FAMILY_HEADERS), lists, counts)
    rows_of_entries = pa.array(at)
    of_properties = np.full((len(at), len(SHARED_PROPERTIES)), -1)
    for number, (name, marks) in enumerate(SHARED_PROPERTIES.items()):
        column = rows[name].take(rows_of_entries)
        there = column.is_valid()
        if name == "reply_to":  # RabbitMQ replaces it
            there = pc.and_(there, pc.invert(pc.starts_with(column, DIRECT_REPLY).fill_null(False)))
        value = hashed(column.cast(pa.int64()) if marks == WHOLE else column) & VALUE_HASH
        of_properties[:, number] = np.where(to_mask(there), number << NAME | value << VALUE | marks, -1)
    entries = np.concatenate([of_properties, lists], axis=1)
    listed = np.concatenate([of_properties >= 0, np.arange(MOST_ENTRIES) < counts[:, None]], axis=1)
    ends = np.zeros(len(by_id) + 1, np.int32)
    ends[at + 1] = np.count_nonzero(listed, axis=1)
    return pa.ListArray.from_arrays(pa.array(np.cumsum(ends, dtype=np.int32)), pa.array(entries[listed]))
