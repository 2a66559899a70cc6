"""Table message_flows: each publish with the deliveries of its message, across connections and versions.

Messages meet at their broker (server endpoint and virtual host) under a key: the message-id, or else a fingerprint of
correlation-id and body. They are shuffled by that key, so that the messages of one busy queue are spread, and the
kernel behind `udfs.pairing` pairs them queue by queue.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pipeline import parquet
from pipeline.output import Place
from pipeline.schemas import MESSAGE_FLOWS
from pipeline.tables.replies import answered
from pipeline.tables.roles import DELIVERIES

if TYPE_CHECKING:
    from udfs.dealing import Deal
    from udfs.pairable import Rules

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
    "body_sha256", "outcome", "settled_ts_ns", "transaction",
)  # fmt: skip


def message_flows(messages: DataFrame, connections: DataFrame, streams: DataFrame | None = None) -> DataFrame:
    """Tables `messages` (OF_MESSAGES are enough; read four times, and where bytes are lost once more), `connections`,
    and queues that are `streams` (`udfs.streams.STREAMS`) -> table message_flows."""
    # Here, not above, as in the following: the kernels take a second to load, and tables written need none.
    from udfs.dealing import DEALT
    from udfs.pairable import DealMessages
    from udfs.pairing import PairMessages

    brokers = _brokers(connections, streams)
    deal = _deal(messages)
    # Repeats are joined last: of a join of joins Spark would think that it is too large to be sent to the messages.
    rows = messages.join(brokers, "connection_id").join(F.broadcast(_repeats(messages, brokers)), AT, "left")
    dealt = rows.mapInArrow(DealMessages(_rules(), deal), DEALT)
    return _by_bucket(dealt, messages, brokers, deal).mapInArrow(PairMessages(MESSAGE_FLOWS), MESSAGE_FLOWS)


def write_flows(
    messages: DataFrame, connections: DataFrame, streams: DataFrame | None, files: Collection[str], source: Place,
    directory: Place,
) -> set[str]:  # fmt: skip
    """Write the table into `directory`, which must not exist; the names of its files, which may be none. Others may be
    there, from tasks that were tried again. `messages` are those in these `files` of `source`: workers read them."""
    from udfs.dealing import DEALT
    from udfs.pairable import DealMessages, ReadMessages
    from udfs.pairing import PairMessages, WriteFlows
    from udfs.parquet import WRITTEN

    brokers_at = directory.parent.child("brokers")
    known = _brokers(connections, streams)
    parquet.write(known.join(F.broadcast(_repeats(messages, known)), AT, "left"), brokers_at.uri)
    brokers = messages.sparkSession.read.parquet(brokers_at.pattern)
    deal = _deal(messages)
    reader = ReadMessages(
        source.files,
        tuple(f"{brokers_at.path}/{name}" for name in parquet.files(brokers_at)),
        DealMessages(_rules(), deal),
    )
    tasks = shares(messages.sparkSession, row_groups(source, files))
    writer = WriteFlows(directory.files, directory.parent.path, directory.name, PairMessages(MESSAGE_FLOWS))
    dealt = _by_bucket(tasks.mapInArrow(reader, DEALT), messages, brokers, deal)
    return set(parquet.listed(dealt.mapInArrow(writer, WRITTEN)).get(directory.name, ()))


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
    """Rows (file, row_group), dealt out to as many tasks as a shuffle has."""
    number = max(1, min(len(groups), _partitions(spark)))
    rows = [(path, at, turn % number) for turn, (path, at) in enumerate(groups)]
    dealt = spark.createDataFrame(rows, "file string, row_group int, share int").repartitionById(number, "share")
    return dealt.drop("share")


def _partitions(spark: SparkSession) -> int:
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def _rules() -> Rules:
    from udfs.pairable import Rules

    return Rules(DELIVERIES, REFUSED, GIVEN_BACK, WITHOUT_MARK)


def _deal(messages: DataFrame) -> Deal:
    from udfs.dealing import Deal
    from udfs.pairing import KEY, TO_PAIR

    return Deal(TO_PAIR, KEY, BUCKETS * _partitions(messages.sparkSession))


def _by_bucket(dealt: DataFrame, messages: DataFrame, brokers: DataFrame, deal: Deal) -> DataFrame:
    """What `udfs.pairing` reads: `dealt` messages, and answers to requests."""
    from udfs.dealing import DEALT
    from udfs.pairable import DealAnswers

    answers = answered(messages, brokers).mapInArrow(DealAnswers(_rules(), deal), DEALT)
    return dealt.unionByName(answers).repartition("bucket").sortWithinPartitions("bucket")


def _brokers(connections: DataFrame, streams: DataFrame | None) -> DataFrame:
    """By connection: version, its broker (AT), whether bytes of that broker are lost, names of its `streams`."""
    hostname = F.when(F.col("vhost").startswith(NAMED_VHOST), F.expr(f"substr(vhost, {len(NAMED_VHOST) + 1})"))
    vhost = F.when(F.col("version") == "1.0", hostname).otherwise(F.col("vhost"))
    lost = F.coalesce("missing_bytes", F.lit(0)) + F.coalesce("undecoded_bytes", F.lit(0)) > 0
    # Not by a join: Spark would take its rows for too many to be broadcast to the messages.
    brokers = connections.select(
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
