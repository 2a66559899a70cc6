"""Messages of streams: which publish each delivery is, by its offset (`codec.pairing.streams`).

Where some deliveries have offsets, publishes and these deliveries are shuffled by their exchange first, and what is
found goes to the messages by their pairing key, as replies do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.memory import as_kernel_array
from codec.pairing.engine import DELIVERY, NONE, PUBLISH
from codec.pairing.streams import UNDECIDED, Facts, StreamRows, stream_positions
from udfs.arrow.arrays import from_spark, is_one_of, to_int64
from udfs.arrow.fields import hashed
from udfs.arrow.types import cast_to
from udfs.conversation.methods import DELETED
from udfs.conversation.roles import REFUSED
from udfs.pairing.brokers import stream_entry
from udfs.pairing.flows import IN_STREAM, TO_PAIR
from udfs.pairing.hash_partitions import HashPartitioner, whole_keys
from udfs.pairing.pairable import each_text, filtered, identities_of, labels, pairing_keys, route_of, routed

FACT_ROW = 2  # side: no message, but at `first_ns` the stream had `offset` messages (DELETED: it was deleted)
Integers = NDArray[np.int64]
FOREVER = np.iinfo(np.int64).max
# Publishes, deliveries with an offset, and facts. `key`: a hash of what publishes go to; `content`: the pairing key;
# `identity` of a message.
STREAM_ROWS = pa.schema(
    {
        **dict.fromkeys(("key", "stream", "route", "content", "label", "first_ns", "last_ns", "offset"), pa.int64()),
        **dict.fromkeys(("identity", "connection_id", "frame_no"), pa.int64()),
        "side": pa.int8(),
    }
)


def stream_messages(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Messages with their broker (MESSAGE_COLUMNS, BROKER_COLUMNS) -> STREAM_ROWS."""
    rows = from_spark(rows)
    refused = pc.or_(is_one_of(rows["outcome"], REFUSED), pc.equal(rows["transaction"], "rolled-back").fill_null(False))
    published = pc.and_(pc.equal(rows["operation"], "publish"), pc.invert(refused))
    rows = filtered(rows, pc.or_(published, rows["queue_offset"].is_valid()))
    named = {name: rows[name] for name in rows.schema.names}
    found = routed(named)
    broker = (rows["broker"], rows["vhost"])
    default = pa.repeat("", rows.num_rows)
    exchange, routing_key = (
        pc.if_else(found.exchange.is_valid(), known, of_queue)
        for known, of_queue in ((found.exchange, default), (found.routing_key, found.named))
    )
    target = pc.if_else(pc.equal(exchange, ""), routing_key, pa.scalar(None, pa.string()))
    content = pairing_keys(named)
    label, _ = labels(named, found.family)
    columns = {
        "key": pa.array(hashed(*broker, exchange, target)),
        "stream": pc.if_else(found.delivered, pa.array(hashed(*broker, found.source)), 0),
        "route": pa.array(route_of(exchange, routing_key)),
        "content": content,
        "label": pa.array(hashed(content, pa.array(label))),
        "first_ns": pc.coalesce(rows["first_ts_ns"], rows["ts_ns"]),
        "last_ns": pc.coalesce(rows["last_ts_ns"], rows["ts_ns"]),
        "offset": rows["queue_offset"].fill_null(0),
        "identity": pa.array(identities_of(named)),
        "connection_id": rows["connection_id"],
        "frame_no": rows["first_frame_no"],
        "side": pc.if_else(found.delivered, DELIVERY, PUBLISH),
    }
    yield cast_to(columns, STREAM_ROWS)
    yield from _facts(rows["streams"], pc.if_else(found.delivered, found.source, None), columns)


def _facts(streams: pa.Array, sources: pa.Array, columns: dict[str, pa.Array]) -> Iterator[pa.RecordBatch]:
    """Rows with the facts that are known of the streams of deliveries, in each of their groups."""
    for text, here in each_text(streams):
        entries = [stream_entry(entry) for entry in text.split("\n")]
        known = pa.table(
            {
                "name": pa.array([name for name, fact in entries if fact], pa.string()),
                "first_ns": pa.array([fact[0] for _, fact in entries if fact], pa.int64()),
                "offset": pa.array([fact[1] for _, fact in entries if fact], pa.int64()),
            }
        )
        if not known.num_rows:
            continue
        mask = pc.and_(here, sources.is_valid())
        named = pa.table({"name": sources, "stream": columns["stream"], "key": columns["key"]}).filter(mask)
        found = named.group_by(["name", "stream", "key"]).aggregate([]).join(known, "name", join_type="inner")
        for batch in found.combine_chunks().to_batches():
            side = pa.repeat(FACT_ROW, batch.num_rows)
            yield cast_to(
                {"side": side, **{name: batch[name] for name in ("stream", "key", "first_ns", "offset")}}, STREAM_ROWS
            )


@dataclass(frozen=True)
class OrderInStreams:
    """The function for `mapInArrow`: PARTITIONED STREAM_ROWS, sorted by bucket -> deliveries whose publish is decided,
    as PARTITIONED rows of `udfs.pairing.flows.TO_PAIR`: `identity` is that of the publish, 0 for none; `flag_optional`:
    1 if that is ambiguous."""

    partitioner: HashPartitioner

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.partitioner(map(_in_streams, whole_keys(batches, STREAM_ROWS)))


def _in_streams(rows: pa.Table) -> pa.RecordBatch:
    columns = {name: to_int64(rows[name]) for name in STREAM_ROWS.names}
    is_fact = columns["side"] == FACT_ROW
    facts = _facts_of(*(columns[name][is_fact] for name in ("stream", "first_ns", "offset")))
    own = {name: column[~is_fact] for name, column in columns.items()}
    delivered = own["side"] == DELIVERY
    lives = _lives(facts, own["stream"], own["first_ns"])
    of_deliveries = {**dict(zip(("since_ns", "until_ns"), lives, strict=True)), "offset": own["offset"]}
    own |= {name: np.where(delivered, column, 0) for name, column in of_deliveries.items()}
    content = np.where(delivered, own["content"], 0)
    order = np.lexsort(
        (
            own["frame_no"], own["connection_id"], own["last_ns"], content, own["offset"], own["since_ns"],
            own["stream"], own["side"], own["key"],
        )
    )  # fmt: skip
    own = {name: as_kernel_array(column[order]) for name, column in own.items()}
    names = {name: name for name in StreamRows._fields} | {"group": "key"}
    publish, ambiguous = stream_positions(StreamRows(**{name: own[of] for name, of in names.items()}), facts)
    decided = np.flatnonzero((own["side"] == DELIVERY) & (publish != UNDECIDED))
    identity = np.where(publish[decided] == NONE, 0, own["identity"][publish[decided]])
    found = {"key": own["content"], "connection_id": own["connection_id"], "frame_no": own["frame_no"]}
    return cast_to(
        {
            **{name: pa.array(column[decided]) for name, column in found.items()},
            "side": pa.repeat(IN_STREAM, len(decided)),
            "identity": pa.array(identity),
            "flag_optional": pa.array(ambiguous[decided]),
        },
        TO_PAIR,
    )


def _facts_of(stream: Integers, at_ns: Integers, count: Integers) -> Facts:
    """Facts in their order, each once."""
    order = np.lexsort((count, at_ns, stream))
    stream, at_ns, count = stream[order], at_ns[order], count[order]
    again = np.zeros(len(order), bool)
    again[1:] = (np.diff(stream) == 0) & (np.diff(at_ns) == 0) & (np.diff(count) == 0)
    stream, at_ns, count = stream[~again], at_ns[~again], count[~again]
    # The largest count so far of each life of a stream: ranks of counts, after those of earlier lives.
    life = np.cumsum((np.diff(stream, prepend=stream[:1] - 1) != 0) | (count == DELETED))
    counts, rank = np.unique(count, return_inverse=True)
    most = counts[np.maximum.accumulate(life * (len(counts) + 1) + rank) % (len(counts) + 1)] if len(count) else count
    return Facts(*map(as_kernel_array, (stream, at_ns, count, most)))


def _lives(facts: Facts, stream: Integers, at_ns: Integers) -> tuple[Integers, Integers]:
    """When the streams were deleted before and after these times: -1 and FOREVER where that is not known."""
    ends = np.flatnonzero(facts.had == DELETED)
    of, times = facts.stream[ends], facts.at_ns[ends]
    # Both sorted together: a deletion is after what came at the same time.
    order = np.lexsort((np.repeat([0, 1], [len(stream), len(of)]), np.append(at_ns, times), np.append(stream, of)))
    is_end = order >= len(stream)
    position, number = np.empty(len(order), np.int64), np.cumsum(is_end)
    position[order] = number
    before = position[: len(stream)]  # how many deletions, of any stream before in the order
    bounded, bounded_ns = np.concatenate([[-1], of, [-1]]), np.concatenate([[-1], times, [-1]])
    known = (before > 0) & (bounded[before] == stream)
    later = (before < len(of)) & (bounded[before + 1] == stream)
    return np.where(known, bounded_ns[before], -1), np.where(later, bounded_ns[before + 1], FOREVER)
