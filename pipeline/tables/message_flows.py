"""Table message_flows: each publish with the deliveries of its message, across connections and versions.

Messages are matched at their broker (and its virtual host) by a key: the message-id, or else a fingerprint
of correlation-id and body. They are shuffled by that key, which distributes the messages of a busy queue, and the
kernel behind `udfs.pairing.flows` pairs them queue by queue. Few messages are paired without Spark
(`pipeline.run.exchange`). What held them up (`udfs.pairing.stalled_messages`) goes to all of them.

Importing this loads kernels, which takes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from codec.tables import MESSAGE_FLOWS
from pipeline.output import parquet_tables as parquet
from pipeline.output.location import Location
from pipeline.run.exchange import (
    Local,
    OnSpark,
    Rows,
    Source,
)
from pipeline.run.local_processes import LocalProcesses
from udfs.pairing.brokers import (
    IDS,
    MAY_HAVE_MESSAGES,
    brokers_of,
    ids_of,
    make_brokers,
    repeated,
    with_repeats,
)
from udfs.pairing.flows import TO_PAIR, PairMessages, WriteFlows
from udfs.pairing.hash_partitions import HashPartitioner
from udfs.pairing.pairable import Partition, ReadMessages, messages_to_pair
from udfs.pairing.replies import RPC_ROWS, PairReplies, requests_and_replies
from udfs.pairing.schemas import (
    BROKER_COLUMNS,
    BROKERS_DDL,
    CONNECTION_COLUMNS,
    ID_COLUMNS,
    LINK_COLUMNS,
    MESSAGE_COLUMNS,
    PARTITIONED,
    REPEATED,
    REPEATED_DDL,
    REPLY_COLUMNS,
    STALL_COLUMNS,
)
from udfs.pairing.stalled_messages import ToEachBucket, stalled_of_tables, stalled_rows
from udfs.pairing.stream_messages import STREAM_ROWS, OrderInStreams, stream_messages
from udfs.sink.parquet import WRITTEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AnyRows = TypeVar("AnyRows", bound=Rows)

AT = ["broker", "vhost"]
BUCKETS = 8  # per partition of the shuffle, so that partitions have about the same size
SEVERAL = 8  # partitions, for which there are buckets if there is more than one, so that a bucket fits into memory
FOOTERS = 16  # read at a time
FILE = "part-0.parquet"


class Present(NamedTuple):
    """Whether messages may be requests, and deliveries from streams: a column that only these have is not null."""

    requests: bool
    streams: bool


def message_flows(
    messages: DataFrame,
    connections: DataFrame,
    streams: DataFrame | None = None,
    links: DataFrame | None = None,
    stalls: DataFrame | None = None,
) -> DataFrame:
    """Tables `messages` (columns MESSAGE_COLUMNS; read three times, four times if bytes are lost), `connections`,
    `streams` (`udfs.conversation.methods.STREAMS`), `links` and `stalls` -> table message_flows."""
    from pyspark.sql import functions as F

    inputs = connections.select(*CONNECTION_COLUMNS, F.lit(None).cast("string").alias("queue"))
    if streams is not None:
        inputs = inputs.unionByName(streams, allowMissingColumns=True)
    brokers = inputs.repartition(1).mapInArrow(make_brokers, BROKERS_DDL).drop("ids_repeat")
    buckets = _buckets(messages.sparkSession)

    def read(rows: DataFrame, partition: Partition) -> OnSpark:
        return OnSpark(rows.select(*partition.columns, *BROKER_COLUMNS)).then(partition, PARTITIONED)

    # Needed only where bytes are lost: elsewhere repeated ids are visible.
    of_lossy = messages.join(F.broadcast(brokers.filter("lossy")), "connection_id")
    ids = read(of_lossy.withColumn("ids_repeat", F.lit(None).cast("boolean")), _ids(buckets))
    repeats = ids.by_bucket().then(repeated, REPEATED_DDL).rows.distinct().withColumn("ids_repeat", F.lit(True))
    # Repeats are joined last: Spark would consider a join of joins too large to broadcast.
    rows = messages.join(brokers, "connection_id").join(F.broadcast(repeats), AT, "left")
    held_up = connections.select(*CONNECTION_COLUMNS, F.lit("connections").alias("table"))
    for name, table, columns in (("links", links, LINK_COLUMNS), ("stalls", stalls, STALL_COLUMNS)):
        if table is not None:
            own = table.select(*columns, F.lit(name).alias("table"))
            held_up = held_up.unionByName(own, allowMissingColumns=True)
    stalled = OnSpark(held_up.repartition(1).mapInArrow(stalled_of_tables, PARTITIONED))
    found = _to_pair(partial(read, rows), buckets, Present(requests=True, streams=True))
    found = found.with_rows(stalled.then(ToEachBucket(buckets), PARTITIONED)).by_bucket()
    return found.then(PairMessages(MESSAGE_FLOWS), MESSAGE_FLOWS).rows


def write_flows(
    spark: SparkSession | LocalProcesses, tables: Mapping[str, Location], streams: pa.Table | None, directory: Location
) -> set[str]:
    """Write the table into `directory`, which must not exist, from the `tables` FLOW_INPUTS; return the names of its
    files, perhaps none. Retried tasks may leave other files there. Workers read the messages from their files."""
    messages = tables["messages"]
    groups, present = row_groups(messages.files, [f"{messages.path}/{name}" for name in parquet.files(messages)])
    connections = parquet.read(tables["connections"], CONNECTION_COLUMNS, where=MAY_HAVE_MESSAGES)
    brokers = brokers_of(connections, streams)
    links, stalls = (
        parquet.read(tables[name], columns) for name, columns in (("links", LINK_COLUMNS), ("stalls", STALL_COLUMNS))
    )
    beside = directory.parent.child("brokers")
    beside.create()
    pairing = pair_messages(brokers, connections, links, stalls, beside)
    writer = WriteFlows(directory.files, directory.parent.path, directory.name, pairing)
    flows = paired(spark, groups, present, brokers, beside).then(writer, WRITTEN)
    return {row["file"] for row in flows.collected()}


def pair_messages(
    brokers: pa.Table, connections: pa.Table, links: pa.Table, stalls: pa.Table, beside: Location
) -> PairMessages:
    """What pairs messages, with what held them up (see `stalled_rows`) in a file in the directory `beside`."""
    stalled = list(stalled_rows(brokers, connections, links, stalls))
    if not stalled:
        return PairMessages(MESSAGE_FLOWS)
    path = f"{beside.path}/stalled-{FILE}"
    pq.write_table(pa.Table.from_batches(stalled), path, filesystem=beside.files, compression="lz4")
    return PairMessages(MESSAGE_FLOWS, beside.files, path)


def paired(
    spark: SparkSession | LocalProcesses,
    groups: Sequence[tuple[str, int]],
    present: Present,
    brokers: pa.Table,
    beside: Location,
) -> Rows:
    """Messages in these row groups, with their `brokers` (BROKERS), partitioned for `udfs.pairing.flows.PairMessages`.
    Data for the workers is written into the directory `beside`."""
    tasks, buckets = shares(spark, groups), _buckets(spark)

    def read(of: str, partition: Partition) -> Rows:
        return tasks.then(ReadMessages(beside.files, f"{beside.path}/{of}", partition), PARTITIONED)

    lossy = brokers.filter(brokers["lossy"])
    if lossy.num_rows:  # elsewhere repeated ids are visible
        pq.write_table(lossy, f"{beside.path}/lossy-{FILE}", filesystem=beside.files)
        repeats = read(f"lossy-{FILE}", _ids(buckets)).by_bucket().then(repeated, REPEATED_DDL).collected()
        brokers = with_repeats(brokers, pa.Table.from_pylist(repeats, REPEATED))
    pq.write_table(brokers, f"{beside.path}/{FILE}", filesystem=beside.files)
    return _to_pair(partial(read, FILE), buckets, present).by_bucket()


def row_groups(filesystem: fs.FileSystem, paths: Sequence[str]) -> tuple[list[tuple[str, int]], Present]:
    """Path and number of each row group of files with messages, the largest first; what may be among them."""
    with ThreadPoolExecutor(FOOTERS) as readers:
        footers = list(readers.map(partial(pq.read_metadata, filesystem=filesystem), paths))
    found = [
        (group.num_rows, path, at, Present(_has(group, "reply_to"), _has(group, "queue_offset")))
        for path, footer in zip(paths, footers, strict=True)
        for at, group in ((at, footer.row_group(at)) for at in range(footer.num_row_groups))
    ]
    present = [of_group for *_, of_group in found]
    return [(path, at) for _, path, at, _ in sorted(found, reverse=True)], Present(
        any(of_group.requests for of_group in present), any(of_group.streams for of_group in present)
    )


def _has(group: pq.RowGroupMetaData, name: str) -> bool:
    """Whether a column of a row group may have values other than null."""
    columns = (group.column(at) for at in range(group.num_columns))
    found = [column.statistics for column in columns if column.path_in_schema == name]
    return any(each is None or not each.has_null_count or bool(each.null_count < group.num_rows) for each in found)


def shares(spark: SparkSession | LocalProcesses, groups: Sequence[tuple[str, int]]) -> Rows:
    """Rows (file, row_group), distributed over tasks."""
    number = max(1, min(len(groups), _partitions(spark)))
    rows = pa.table(
        {
            "file": pa.array([path for path, _ in groups], pa.string()),
            "row_group": pa.array([at for _, at in groups], pa.int32()),
            "share": pa.array([turn % number for turn in range(len(groups))], pa.int32()),
        }
    )
    if isinstance(spark, LocalProcesses):
        of_shares = (rows.filter(pc.equal(rows["share"], share)).drop_columns("share") for share in range(number))
        return Local(spark, [Source(of_share.to_batches()) for of_share in of_shares])
    # Spark converts Arrow columns itself; a list would go through Python workers.
    return OnSpark(spark.createDataFrame(rows).repartitionById(number, "share").drop("share"))


def _partitions(spark: SparkSession | LocalProcesses) -> int:
    if isinstance(spark, LocalProcesses):
        return spark.number
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def _buckets(spark: SparkSession | LocalProcesses) -> int:
    partitions = _partitions(spark)
    return BUCKETS * (max(SEVERAL, partitions) if partitions > 1 else 1)


def _ids(buckets: int) -> Partition:
    return Partition(ID_COLUMNS, ids_of, HashPartitioner(IDS, buckets))


def _to_pair(read: Callable[[Partition], AnyRows], buckets: int, present: Present) -> AnyRows:
    """The input of `udfs.pairing.flows`: messages, replies if there are requests, and positions in streams."""
    partitioner = HashPartitioner(TO_PAIR, buckets)
    rows = read(Partition(MESSAGE_COLUMNS, messages_to_pair, partitioner))
    if present.requests:
        replies = read(Partition(REPLY_COLUMNS, requests_and_replies, HashPartitioner(RPC_ROWS, buckets)))
        rows = rows.with_rows(replies.by_bucket().then(PairReplies(partitioner), PARTITIONED))
    if present.streams:
        messages = read(Partition(MESSAGE_COLUMNS, stream_messages, HashPartitioner(STREAM_ROWS, buckets)))
        rows = rows.with_rows(messages.by_bucket().then(OrderInStreams(partitioner), PARTITIONED))
    return rows
