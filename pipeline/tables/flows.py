"""Table message_flows: each publish with the deliveries of its message, across connections and versions.

Messages meet at their broker (server endpoint and virtual host) under a key: the message-id, or else a fingerprint of
correlation-id and body. They are shuffled by that key, so that the messages of one busy queue are spread, and the
kernel behind `udfs.pairing.flows` pairs them queue by queue.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pipeline.output import parquet
from pipeline.output.swap import Place
from pipeline.schemas import MESSAGE_FLOWS
from pipeline.tables.replies import answered
from pipeline.tables.roles import DELIVERIES

if TYPE_CHECKING:
    from udfs.pairing.hash_partitions import HashPartitioner
    from udfs.pairing.pairable import Rules

# What never came to a queue, and what goes back to one.
REFUSED = ("returned", "nacked", "rejected", "released", "modified", "aborted")
GIVEN_BACK = ("requeued", "released", "modified", "unsettled", "unknown")
WITHOUT_MARK = "released"  # 0-10, 1.0: a message that comes again after this need not say so
NAMED_VHOST = "vhost:"  # RabbitMQ: so begins a host name of 1.0 that is a virtual host
AT = ["server", "vhost"]  # a broker: server endpoint and virtual host
BUCKETS = 8  # for each partition of the shuffle, so that these are about as large
FOOTERS = 16  # read at a time
# The columns of table messages that flows come from.
OF_MESSAGES = (
    "connection_id", "channel", "operation", "first_frame_no", "ts_ns", "first_ts_ns", "last_ts_ns", "exchange",
    "routing_key", "queue", "address", "link", "browsed", "redelivered", "priority", "message_id", "correlation_id",
    "reply_to", "content_type", "content_encoding", "type", "app_id", "headers", "properties", "body_size",
    "body_sha256", "outcome", "settled_ts_ns", "transaction", "trace_id", "span_id",
)  # fmt: skip


def message_flows(messages: DataFrame, connections: DataFrame, streams: DataFrame | None = None) -> DataFrame:
    """Tables `messages` (OF_MESSAGES are enough; read four times, and where bytes are lost once more), `connections`,
    and queues that are `streams` (`udfs.conversation.streams.STREAMS`) -> table message_flows."""
    # Here, not above, as in the following: the kernels take a second to load, and tables written need none.
    from udfs.pairing.flows import PairMessages
    from udfs.pairing.hash_partitions import PARTITIONED
    from udfs.pairing.pairable import PartitionMessages

    brokers = _brokers(connections, streams)
    partitioner = _partitioner(messages)
    # Repeats are joined last: of a join of joins Spark would think that it is too large to be sent to the messages.
    rows = messages.join(brokers, "connection_id").join(F.broadcast(_repeats(messages, brokers)), AT, "left")
    partitioned = rows.mapInArrow(PartitionMessages(_rules(), partitioner), PARTITIONED)
    return _by_bucket(partitioned, messages, brokers, partitioner).mapInArrow(
        PairMessages(MESSAGE_FLOWS), MESSAGE_FLOWS
    )


def write_flows(
    messages: DataFrame, connections: DataFrame, streams: DataFrame | None, files: Collection[str], source: Place,
    directory: Place,
) -> set[str]:  # fmt: skip
    """Write the table into `directory`, which must not exist; the names of its files, which may be none. Others may be
    there, from tasks that were tried again. `messages` are those in these `files` of `source`: workers read them."""
    from udfs.pairing.flows import PairMessages, WriteFlows
    from udfs.pairing.hash_partitions import PARTITIONED
    from udfs.pairing.pairable import PartitionMessages, ReadMessages
    from udfs.sink.parquet import WRITTEN

    brokers_at = directory.parent.child("brokers")
    known = _brokers(connections, streams)
    parquet.write(known.join(F.broadcast(_repeats(messages, known)), AT, "left"), brokers_at.uri)
    brokers = messages.sparkSession.read.parquet(brokers_at.pattern)
    partitioner = _partitioner(messages)
    reader = ReadMessages(
        source.files,
        tuple(f"{brokers_at.path}/{name}" for name in parquet.files(brokers_at)),
        PartitionMessages(_rules(), partitioner),
    )
    tasks = shares(messages.sparkSession, row_groups(source, files))
    writer = WriteFlows(directory.files, directory.parent.path, directory.name, PairMessages(MESSAGE_FLOWS))
    partitioned = _by_bucket(tasks.mapInArrow(reader, PARTITIONED), messages, brokers, partitioner)
    return set(parquet.listed(partitioned.mapInArrow(writer, WRITTEN)).get(directory.name, ()))


def row_groups(source: Place, files: Collection[str]) -> list[tuple[str, int]]:
    """Path and number of each row group of these files, the largest first."""
    paths = [f"{source.path}/{name}" for name in sorted(files)]
    with ThreadPoolExecutor(FOOTERS) as readers:
        footers = readers.map(partial(pyarrow.parquet.read_metadata, filesystem=source.files), paths)
        found = [
            (footer.row_group(at).num_rows, path, at)
            for path, footer in zip(paths, footers, strict=True)
            for at in range(footer.num_row_groups)
        ]
    return [(path, at) for _, path, at in sorted(found, reverse=True)]


def shares(spark: SparkSession, groups: list[tuple[str, int]]) -> DataFrame:
    """Rows (file, row_group), distributed over as many tasks as a shuffle has."""
    number = max(1, min(len(groups), _partitions(spark)))
    rows = pa.table(
        {
            "file": pa.array([path for path, _ in groups], pa.string()),
            "row_group": pa.array([at for _, at in groups], pa.int32()),
            "share": pa.array([turn % number for turn in range(len(groups))], pa.int32()),
        }
    )
    # Of Arrow's columns Spark makes rows itself, of a list in Python workers.
    return spark.createDataFrame(rows).repartitionById(number, "share").drop("share")


def _partitions(spark: SparkSession) -> int:
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def _rules() -> Rules:
    from udfs.pairing.pairable import Rules

    return Rules(DELIVERIES, REFUSED, GIVEN_BACK, WITHOUT_MARK)


def _partitioner(messages: DataFrame) -> HashPartitioner:
    from udfs.pairing.flows import KEY, TO_PAIR
    from udfs.pairing.hash_partitions import HashPartitioner

    return HashPartitioner(TO_PAIR, KEY, BUCKETS * _partitions(messages.sparkSession))


def _by_bucket(
    partitioned: DataFrame, messages: DataFrame, brokers: DataFrame, partitioner: HashPartitioner
) -> DataFrame:
    """What `udfs.pairing.flows` reads: `partitioned` messages, and answers to requests."""
    from udfs.pairing.hash_partitions import PARTITIONED
    from udfs.pairing.pairable import PartitionAnswers

    answers = answered(messages, brokers).mapInArrow(PartitionAnswers(_rules(), partitioner), PARTITIONED)
    return partitioned.unionByName(answers).repartition("bucket").sortWithinPartitions("bucket")


def _brokers(connections: DataFrame, streams: DataFrame | None) -> DataFrame:
    """By connection: version, its broker (AT), whether bytes of that broker are lost, names of its `streams`."""
    hostname = F.when(F.col("vhost").startswith(NAMED_VHOST), F.expr(f"substr(vhost, {len(NAMED_VHOST) + 1})"))
    vhost = F.when(F.col("version") == "1.0", hostname).otherwise(F.col("vhost"))
    lost = F.coalesce("missing_bytes", F.lit(0)) + F.coalesce("undecoded_bytes", F.lit(0)) > 0
    # Connections that did not speak AMQP have no messages. One that lost bytes may have, and counts for its broker.
    spoken = connections.filter(F.col("version").isNotNull() | lost)
    # Not by a join: Spark would take its rows for too many to be broadcast to the messages.
    brokers = spoken.select(
        "connection_id",
        "version",
        F.concat_ws(":", "server_ip", "server_port").alias("server"),
        F.when(vhost != "", vhost).otherwise(F.lit("/")).alias("vhost"),
        lost.alias("lossy"),
    ).withColumn("lossy", F.max("lossy").over(Window.partitionBy(*AT)))
    if streams is None:
        return brokers.withColumn("streams", F.lit(None).cast("string"))
    names = F.concat_ws("\n", F.sort_array(F.collect_set("queue")), F.lit(""))
    of_broker = streams.join(brokers.select("connection_id", *AT), "connection_id").groupBy(*AT)
    return brokers.join(F.broadcast(of_broker.agg(names.alias("streams"))), AT, "left")


def _repeats(messages: DataFrame, brokers: DataFrame) -> DataFrame:
    """Brokers (server, vhost, and `ids_repeat`, true) to which, or from one of whose queues, a message-id came more
    than once and unmarked. Asked where bytes are lost only: elsewhere what repeats is there to be seen, and nothing is
    read."""
    delivered = F.col("operation").isin(*DELIVERIES)
    said = messages.filter((delivered | (F.col("operation") == "publish")) & (F.col("message_id") != ""))
    return (
        said.filter(~F.coalesce("redelivered", F.lit(False)))
        .join(F.broadcast(brokers.filter("lossy").select("connection_id", "server", "vhost")), "connection_id")
        .groupBy("server", "vhost", "message_id", F.when(delivered, F.coalesce("queue", "address", "link", F.lit(""))))
        .count()
        .filter("count > 1")
        .select("server", "vhost", F.lit(True).alias("ids_repeat"))
        .distinct()
    )
