"""The broker and virtual host of each connection, and those at which message-ids repeat.

Servers that give the same name of their broker, by any of their connections, are one broker; a server that gives none
is one by its address and port.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from udfs.arrow.hashing import hashed
from udfs.arrow.rows import in_one, in_one_text, numbers_of, one_of, truth_of
from udfs.config import FACT
from udfs.pairing.hash_partitions import whole_keys
from udfs.pairing.legs import legs_of
from udfs.pairing.schemas import BROKERS, CONNECTION_COLUMNS, REPEATED
from udfs.roles import DELIVERIES, RABBITMQ

# RabbitMQ's own name for a node that no other machine can reach: many brokers have it, none has several addresses.
NO_NAME = "@localhost"
MOST_FACTS = 32  # of a stream, the earliest ones
WHOLE = re.compile(r"-?[0-9]{1,18}|[1-4][0-9]{18}")

# Only connections with AMQP have messages; one that lost bytes may have, and makes its broker `lossy`. Bytes of another
# protocol from the SYN on are not lost.
_AMQP_FROM_SYN = pc.field("version").is_valid() | (pc.coalesce(pc.field("sides_known_by"), pc.scalar("")) != "syn")
_LOST = (pc.field("missing_bytes") > 0) | (pc.field("undecoded_bytes") > 0) & _AMQP_FROM_SYN
MAY_HAVE_MESSAGES = pc.field("version").is_valid() | _LOST

NAMED_VHOST = "vhost:"  # RabbitMQ: prefix of a virtual host in the hostname of a 1.0 open
IDS = pa.schema({"key": pa.int64(), "broker": pa.string(), "vhost": pa.string()})


def brokers_of(connections: pa.Table, streams: pa.Table | None = None) -> pa.Table:
    """CONNECTION_COLUMNS and queues that are streams (`udfs.conversation.methods.STREAMS`) -> BROKERS, a row for each
    connection that may have messages."""
    connections = connections.filter(MAY_HAVE_MESSAGES)
    rows = {name: in_one(connections[name]) for name in CONNECTION_COLUMNS}
    other = pc.and_(rows["version"].is_null(), pc.equal(rows["sides_known_by"], "syn").fill_null(False))
    undecoded = pc.if_else(other, 0, rows["undecoded_bytes"].fill_null(0))
    lost = pc.greater(pc.add(rows["missing_bytes"].fill_null(0), undecoded), 0)
    # In 1.0 other brokers than RabbitMQ have hostnames, which are names of one broker; RabbitMQ alone has the prefix.
    is_1_0, product = pc.equal(rows["version"], "1.0").fill_null(False), rows["server_product"]
    is_hostname = pc.and_(is_1_0, pc.not_equal(product, RABBITMQ).fill_null(True))
    named = pc.starts_with(rows["vhost"], NAMED_VHOST).fill_null(False)
    of_host = pc.if_else(named, pc.utf8_slice_codeunits(rows["vhost"], len(NAMED_VHOST)), None)
    vhost = pc.if_else(is_hostname, of_host, rows["vhost"])
    vhost = pc.if_else(pc.not_equal(vhost, "").fill_null(False), vhost, "/")
    port = rows["server_port"].cast(pa.string())
    server = in_one_text([rows["server_ip"], port], ":").fill_null("")
    named = _apart(_named(server, rows["broker_name"]), legs_of(rows))
    _, broker = np.unique(hashed(named, vhost), return_inverse=True)
    lossy = np.bincount(broker, truth_of(lost)) > 0
    columns = [
        rows["connection_id"], rows["version"], server, named, vhost, pa.array(lossy[broker]),
        pa.nulls(len(server), pa.bool_()), _streams(streams, rows["connection_id"], broker),
    ]  # fmt: skip
    return pa.Table.from_arrays(columns, schema=BROKERS)


def _named(servers: pa.Array, names: pa.Array) -> pa.Array:
    """The name of the broker of each of `servers`: the first of those that it gives, or itself."""
    given = pc.and_(pc.not_equal(names, ""), pc.invert(pc.ends_with(names, NO_NAME))).fill_null(False)
    known = pa.table({"server": servers.filter(given), "name": names.filter(given)})
    known = known.group_by("server").aggregate([("name", "min")])
    found = in_one(known["name_min"]).take(pc.index_in(servers, in_one(known["server"])))
    return pc.coalesce(found, servers)


def _apart(names: pa.Array, legs: NDArray[np.int64]) -> pa.Array:
    """Names of brokers, others for connections that are copies: their messages are paired among each other."""
    texts = pa.array([None, *(f" leg {leg}" for leg in range(1, int(legs.max(initial=0)) + 1))], pa.string())
    copied = pc.binary_join_element_wise(names, texts.take(pa.array(legs)), "")
    return pc.coalesce(copied, names)


def _streams(streams: pa.Table | None, connections: pa.Array, broker: np.ndarray) -> pa.Array:
    """For each connection, entries of STREAMS for the streams of its broker, each followed by a newline; null: none."""
    if streams is None or not streams.num_rows:
        return pa.nulls(len(connections), pa.string())
    queues = streams.group_by(["connection_id", "queue"]).aggregate([])
    places = pc.index_in(queues["connection_id"], connections)
    known: dict[int, set[str]] = {}
    facts: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for place, text in zip(places.to_pylist(), queues["queue"].to_pylist(), strict=True):
        if place is not None and text is not None:
            number, (queue, fact) = int(broker[place]), stream_entry(text)
            if fact is None:
                known.setdefault(number, set()).add(queue)
            else:
                facts.setdefault((number, queue), []).append(fact)
    numbers = sorted(known)
    texts = [
        "".join(
            f"{queue}\n" + "".join(f"{queue}{FACT}{at_ns}{FACT}{count}\n" for at_ns, count in kept)
            for queue in sorted(known[number])
            for kept in [sorted(facts.get((number, queue), ()))[:MOST_FACTS]]
        )
        for number in numbers
    ]
    return pa.array(texts, pa.string()).take(pc.index_in(pa.array(broker), pa.array(numbers, pa.int64())))


def stream_entry(text: str) -> tuple[str, tuple[int, int] | None]:
    """An entry of STREAMS: the name of a queue, and the time and number of a fact about it."""
    queue, *fact = text.rsplit(FACT, 2)
    if len(fact) != 2 or not all(map(WHOLE.fullmatch, fact)):  # a queue may have any name
        return text, None
    return queue, (int(fact[0]), int(fact[1]))


def make_brokers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow` over a single partition: CONNECTION_COLUMNS and `queue` -> BROKERS. A row with a
    queue names a stream, the others are connections."""
    rows_of_partition = list(batches)
    if rows_of_partition:
        rows = pa.Table.from_batches(rows_of_partition)
        is_stream = rows["queue"].is_valid()
        streams = rows.filter(is_stream).select(["connection_id", "queue"])
        yield from brokers_of(rows.filter(pc.invert(is_stream)), streams).combine_chunks().to_batches()


def ids_of(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Messages (ID_COLUMNS) of lossy brokers (BROKER_COLUMNS) -> IDS: those not marked as redelivered, by message-id
    and source."""
    delivered = one_of(rows["operation"], DELIVERIES)
    unmarked = pc.and_(rows["lossy"], pc.invert(rows["redelivered"].fill_null(False)))
    has_id = pc.not_equal(rows["message_id"], "").fill_null(False)
    chosen = pc.and_(pc.and_(unmarked, has_id), pc.or_(delivered, pc.equal(rows["operation"], "publish")))
    rows, delivered = rows.filter(chosen), delivered.filter(chosen)
    source = pc.coalesce(rows["queue"], rows["address"], rows["link"].cast(pa.string()), "")
    key = hashed(rows["broker"], rows["vhost"], rows["message_id"], pc.if_else(delivered, source, None))
    yield pa.RecordBatch.from_arrays([pa.array(key), rows["broker"], rows["vhost"]], schema=IDS)


def repeated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow`: PARTITIONED IDS, sorted by bucket -> REPEATED, brokers at which an id occurs twice
    (not distinct)."""
    for rows in whole_keys(batches, IDS):
        order = np.argsort(numbers_of(rows["key"]))
        keys = numbers_of(rows["key"])[order]
        twice = order[1:][keys[1:] == keys[:-1]]
        found = rows.take(pa.array(twice)).group_by(["broker", "vhost"]).aggregate([])
        yield from found.select(REPEATED.names).combine_chunks().to_batches()


def with_repeats(brokers: pa.Table, repeats: pa.Table) -> pa.Table:
    """BROKERS with `ids_repeat` set for REPEATED."""
    here = np.isin(hashed(*_names(brokers)), hashed(*_names(repeats)))
    return brokers.set_column(BROKERS.names.index("ids_repeat"), "ids_repeat", pa.array(here))


def _names(rows: pa.Table) -> list[pa.Array]:
    return [in_one(rows[name]) for name in REPEATED.names]
