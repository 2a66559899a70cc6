"""The broker and virtual host of each connection, and those at which message-ids repeat.

Servers that give the same name of their broker, by any of their connections, are one broker; a server that gives none
is one by its address and port.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.names import SIDES
from udfs.arrow.arrays import (
    combine_chunks,
    concat_ws,
    is_one_of,
    to_int64,
    to_mask,
)
from udfs.arrow.fields import hashed
from udfs.conversation.roles import DELIVERIES, RABBITMQ
from udfs.pairing.hash_partitions import whole_keys
from udfs.pairing.schemas import BROKERS, CONNECTION_COLUMNS, REPEATED
from udfs.workers.worker_config import FACT

# Connections that were captured several times on their way to the broker: on both sides of a NAT, or of a proxy.


Integers = NDArray[np.int64]

NAT_US = 50_000  # at most from one side of a NAT to the other, microseconds
PROXY_US = 1_000_000  # and of a proxy, which makes a connection of its own
RANDOM = np.uint64(1 << 16)  # sequence numbers begin below it once in 65,536 times

# Columns of table connections; a proxy passes these frames and names on.
PASSED_ON = (
    "version", "vhost", "user", "client_name", "client_frames", "server_frames", "messages_published",
    "messages_delivered",
)  # fmt: skip


def legs_of(rows: Mapping[str, pa.Array]) -> Integers:
    """How many others of these connections (`udfs.pairing.schemas.CONNECTION_COLUMNS`) are the same one nearer to the
    broker. The side whose packets come later is nearer."""
    legs = _of_translations(rows)
    nearer = _of_proxies(rows)
    relayed = np.flatnonzero(nearer >= 0)
    # Those nearest to the broker first.
    for each in relayed[np.argsort(-_times(rows, "opened_ts")[relayed], kind="stable")]:
        legs[each] += 1 + legs[nearer[each]]
    return legs


def _of_translations(rows: Mapping[str, pa.Array]) -> Integers:
    """The same for NATs alone, which leave sequence numbers, packets and bytes, and are fast. Numbers that other
    connections have as well are not random, and say nothing. Neither are those that begin low (captures that were made
    by a program), unless the client's port is the same, and one of the addresses, and no third connection has these."""
    legs = np.zeros(len(rows["connection_id"]), np.int64)
    known = np.flatnonzero(rows["tcp_origin"].is_valid().to_numpy(zero_copy_only=False))
    if len(np.unique(to_int64(rows["tcp_origin"])[known])) == len(known):
        return legs
    counts = [f"{side}_{name}" for side in SIDES for name in ("packets", "bytes")]
    origins = to_int64(rows["tcp_origin"])[known].view(np.uint64)
    low = (origins >> np.uint64(32) < RANDOM) | (origins & np.uint64(0xFFFFFFFF) < RANDOM)
    copied = ["tcp_origin", *counts]
    stream = np.where(low, _hashed(rows, [*copied, "client_port"])[known], _hashed(rows, copied)[known])
    ends, clients, servers = (
        _hashed(rows, names)[known]
        for names in (("client_ip", "server_ip"), ("client_ip",), ("server_ip", "server_port"))
    )
    opened_us, closed_us = (_times(rows, name)[known] for name in ("opened_ts", "closed_ts"))
    order = np.lexsort([to_int64(rows["connection_id"])[known], opened_us, stream, origins])
    stream, ends, origins, later_us = stream[order], ends[order], origins[order], np.diff(opened_us[order])
    same = (stream[1:] == stream[:-1]) & (ends[1:] != ends[:-1])
    same &= (later_us > 0) & (later_us <= NAT_US) & (np.abs(np.diff(closed_us[order])) <= NAT_US)
    elsewhere = (origins[1:] == origins[:-1]) & ~same
    one_end = (np.diff(clients[order]) == 0) | (np.diff(servers[order]) == 0)
    _, of_port, alike = np.unique(
        _hashed(rows, ("tcp_origin", "client_port"))[known][order], return_inverse=True, return_counts=True
    )
    one_end &= alike[of_port][1:] == 2
    same &= np.where(low[order][1:], one_end, ~np.isin(origins[1:], origins[1:][elsewhere]))
    indices = np.arange(len(order))
    last = np.where(np.append(same, False), len(order), indices)  # of the connections that follow each other
    legs[known[order]] = np.minimum.accumulate(last[::-1])[::-1] - indices
    return legs


def _of_proxies(rows: Mapping[str, pa.Array]) -> Integers:
    """For each connection to a proxy, the one that the proxy made for it: its client is where the other one ends, or
    its PROXY header names the other's client; it has as many frames and messages, and both begin and end at about the
    same time. -1 for others."""
    number = len(rows["connection_id"])
    nearer = np.full(number, -1, np.int64)
    opened_us, closed_us = _times(rows, "opened_ts"), _times(rows, "closed_ts")
    passed_on = _hashed(rows, PASSED_ON)
    handshake_us = to_int64(rows["handshake_ns"].fill_null(0)) // 1000
    carried = to_int64(pc.add(rows["messages_published"], rows["messages_delivered"]).fill_null(0)) > 0
    clients = _hashed(rows, ("client_ip",))
    named = rows["proxied_client_ip"].is_valid().to_numpy(zero_copy_only=False)
    for there, here, of_proxy in (
        (("server_ip",), ("client_ip",), carried),
        (("client_ip", "client_port"), ("proxied_client_ip", "proxied_client_port"), carried & named),
    ):
        to, by_proxy = np.flatnonzero(carried), np.flatnonzero(of_proxy)
        index = np.concatenate([to, by_proxy])
        keys = np.concatenate([_hashed(rows, there)[to], _hashed(rows, here)[by_proxy]])
        is_by_proxy = np.repeat([False, True], [len(to), len(by_proxy)])
        order = np.lexsort([is_by_proxy, opened_us[index], passed_on[index], keys])
        index, keys, is_by_proxy = index[order], keys[order], is_by_proxy[order]
        # The next connection that a proxy made after each one.
        at = np.where(is_by_proxy, np.arange(len(order)), len(order))
        at = np.minimum.accumulate(at[::-1])[::-1]
        found = np.append(index, -1)[at]
        same = (found >= 0) & (np.append(keys, 0)[at] == keys) & (passed_on[found] == passed_on[index]) & ~is_by_proxy
        later_us = opened_us[found] - opened_us[index]
        same &= (later_us >= 0) & (later_us <= PROXY_US) & (np.abs(closed_us[found] - closed_us[index]) <= PROXY_US)
        # The client hears the broker's open-ok after the proxy did.
        same &= (handshake_us[index] == 0) | (later_us + handshake_us[found] <= handshake_us[index])
        same &= (clients[found] != clients[index]) & (found != index)
        nearer[index[same]] = found[same]
    return nearer


def _hashed(rows: Mapping[str, pa.Array], names: Sequence[str]) -> Integers:
    return hashed(*(rows[name] for name in names))


def _times(rows: Mapping[str, pa.Array], name: str) -> Integers:
    """Microseconds."""
    found: Integers = to_int64(rows[name].cast(pa.int64()))
    return found


# RabbitMQ's own name for a node that no other machine can reach: many brokers have it, none has several addresses.
NO_NAME = "@localhost"
MOST_FACTS = 32  # of a stream, the earliest ones
WHOLE = re.compile(r"-?[0-9]{1,18}|[1-4][0-9]{18}")

# Only connections with AMQP have messages; one that lost bytes may have, and makes its broker `lossy`. Bytes of another
# protocol from the SYN on are not lost.
_AMQP_FROM_SYN = pc.field("version").is_valid() | (pc.coalesce(pc.field("roles_from"), pc.scalar("")) != "syn")
_LOST = (pc.field("missing_bytes") > 0) | (pc.field("undecoded_bytes") > 0) & _AMQP_FROM_SYN
MAY_HAVE_MESSAGES = pc.field("version").is_valid() | _LOST

NAMED_VHOST = "vhost:"  # RabbitMQ: prefix of a virtual host in the hostname of a 1.0 open
IDS = pa.schema({"key": pa.int64(), "broker": pa.string(), "vhost": pa.string()})


def brokers_of(connections: pa.Table, streams: pa.Table | None = None) -> pa.Table:
    """CONNECTION_COLUMNS and queues that are streams (`udfs.conversation.methods.STREAMS`) -> BROKERS, a row for each
    connection that may have messages."""
    connections = connections.filter(MAY_HAVE_MESSAGES)
    rows = {name: combine_chunks(connections[name]) for name in CONNECTION_COLUMNS}
    other = pc.and_(rows["version"].is_null(), pc.equal(rows["roles_from"], "syn").fill_null(False))
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
    server = concat_ws([rows["server_ip"], port], ":").fill_null("")
    named = _apart(_named(server, rows["broker_name"]), legs_of(rows))
    _, broker = np.unique(hashed(named, vhost), return_inverse=True)
    lossy = np.bincount(broker, to_mask(lost)) > 0
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
    found = combine_chunks(known["name_min"]).take(pc.index_in(servers, combine_chunks(known["server"])))
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
    indices = pc.index_in(queues["connection_id"], connections)
    known: dict[int, set[str]] = {}
    facts: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for index, text in zip(indices.to_pylist(), queues["queue"].to_pylist(), strict=True):
        if index is not None and text is not None:
            number, (queue, fact) = int(broker[index]), stream_entry(text)
            if fact is None:
                known.setdefault(number, set()).add(queue)
            else:
                facts.setdefault((number, queue), []).append(fact)
    numbers = sorted(known)
    texts = [
        "".join(
            f"{queue}\n" + "".join(f"{queue}{FACT}{at_ns}{FACT}{count}\n" for at_ns, count in first_facts)
            for queue in sorted(known[number])
            for first_facts in [sorted(facts.get((number, queue), ()))[:MOST_FACTS]]
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
    delivered = is_one_of(rows["operation"], DELIVERIES)
    unmarked = pc.and_(rows["lossy"], pc.invert(rows["redelivered"].fill_null(False)))
    has_id = pc.not_equal(rows["message_id"], "").fill_null(False)
    mask = pc.and_(pc.and_(unmarked, has_id), pc.or_(delivered, pc.equal(rows["operation"], "publish")))
    rows, delivered = rows.filter(mask), delivered.filter(mask)
    source = pc.coalesce(rows["queue"], rows["address"], rows["link"].cast(pa.string()), "")
    key = hashed(rows["broker"], rows["vhost"], rows["message_id"], pc.if_else(delivered, source, None))
    yield pa.RecordBatch.from_arrays([pa.array(key), rows["broker"], rows["vhost"]], schema=IDS)


def repeated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow`: PARTITIONED IDS, sorted by bucket -> REPEATED, brokers at which an id occurs twice
    (not distinct)."""
    for rows in whole_keys(batches, IDS):
        order = np.argsort(to_int64(rows["key"]))
        keys = to_int64(rows["key"])[order]
        twice = order[1:][keys[1:] == keys[:-1]]
        found = rows.take(pa.array(twice)).group_by(["broker", "vhost"]).aggregate([])
        yield from found.select(REPEATED.names).combine_chunks().to_batches()


def with_repeats(brokers: pa.Table, repeats: pa.Table) -> pa.Table:
    """BROKERS with `ids_repeat` set for REPEATED."""
    here = np.isin(hashed(*_names(brokers)), hashed(*_names(repeats)))
    return brokers.set_column(BROKERS.names.index("ids_repeat"), "ids_repeat", pa.array(here))


def _names(rows: pa.Table) -> list[pa.Array]:
    return [combine_chunks(rows[name]) for name in REPEATED.names]
