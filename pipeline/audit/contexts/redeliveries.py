"""Context 'redeliveries': deliveries that can only be a message which the same queue had delivered before.

The same message id and the same octets out of one queue, after an earlier delivery went back to it: given back by the
consumer, or left unsettled on a channel that is closed by now. Equal messages do exist, so whatever could be a second
one is left out: what was published in between, what more publishes explain, what was dead-lettered, what has no id and
no publish in the capture. A stream keeps its messages, and whoever reads it again gets them anew: queues that were
declared as streams, or read from an offset, are left out.

    earlier_frame, earlier_connection   the delivery that went back
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import LIFE
from pipeline.audit.contexts.traffic import KINDS
from pipeline.audit.detector import Sql

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

BROKER = ("server_ip", "server_port", "vhost")
# What shows that a queue is a stream: a word of the client, and the argument in it.
STREAMS: Sql = (
    "name = 'queue.declare' AND try_variant_get(arguments, '$.arguments[\"x-queue-type\"]', 'string') = 'stream' OR "
    "name = 'basic.consume' AND try_variant_get(arguments, '$.arguments[\"x-stream-offset\"]', 'variant') IS NOT NULL"
)
FINGERPRINT = (*BROKER, "body_sha256", "message_id", "correlation_id", "timestamp")


def redeliveries(sources: Sources) -> DataFrame | None:
    """Context 'redeliveries'."""
    if not sources.traffic["went_back"]:
        return None
    tables = sources.tables
    brokers = tables.connections.select("connection_id", "version", *BROKER)
    channels = tables.channels.select(*LIFE, (F.unix_micros("closed_ts") * 1000).alias("closed_ns"))
    rows = (
        tables.messages.filter("body_sha256 IS NOT NULL AND operation IN ('publish', 'deliver', 'get')")
        .select(
            *LIFE, "first_frame_no", "ts_ns", "operation", "queue", "redelivered", "outcome", "settled_ts_ns",
            "headers", "body_sha256", "message_id", "correlation_id", "timestamp",
        )
        .join(brokers, "connection_id")
    )  # fmt: skip
    streams = sources.control_methods.filter(STREAMS).join(brokers, "connection_id").select(*BROKER, "queue").distinct()
    same_queue = reduce(and_, (rows[name].eqNullSafe(streams[name]) for name in (*BROKER, "queue")))
    rows = rows.join(streams, same_queue, "left_anti")
    went_back = F.expr(KINDS["went_back"])
    # Few messages go back as a rule: only what equals one of these is put in order.
    candidates = rows.filter(went_back).select(_key().alias("key")).distinct()
    ends = F.least("closed_ns", "c.close.ts_ns", F.expr("CASE WHEN c.tcp_end != 'none' THEN c.last_ns END"))
    back_ns = F.when(F.col("outcome") == "requeued", F.col("settled_ts_ns")).when(F.col("outcome") == "unsettled", ends)
    near = (
        rows.withColumn("key", _key())
        .join(candidates, "key", "left_semi")
        .join(channels, list(LIFE), "left")
        .join(sources.of_connection.select("connection_id", "c"), "connection_id", "left")
        .withColumn("back_ns", F.when(went_back, back_ns))
    )
    return _judged(near).filter("unflagged")


def _key() -> Column:
    return F.xxhash64(*FINGERPRINT)


def _judged(rows: DataFrame) -> DataFrame:
    """`unflagged`: true on deliveries that are a message of before; with the delivery that went back."""
    of_message = Window.partitionBy("key").orderBy("ts_ns", "connection_id", "first_frame_no")
    of_queue = Window.partitionBy("key", "queue").orderBy("ts_ns", "connection_id", "first_frame_no")
    before, so_far = (of_queue.rowsBetween(Window.unboundedPreceding, end) for end in (-1, 0))
    delivery = F.col("operation") != "publish"
    fresh = delivery & ~F.coalesce("redelivered", F.lit(False))
    earlier = F.when(delivery, F.struct("back_ns", "first_frame_no", "connection_id", "ts_ns"))
    published = F.when(~delivery, F.col("ts_ns"))
    return (
        rows.withColumns(
            {
                "earlier": F.last(earlier, ignorenulls=True).over(before),
                "first_deliveries": F.count(F.when(fresh, 1)).over(so_far),
                "publishes": F.count(published).over(of_message),
                "last_published_ns": F.max(published).over(of_message),
            }
        )
        .withColumn(
            "unflagged",
            fresh
            & F.col("queue").isNotNull()
            & (F.col("earlier.back_ns") <= F.col("ts_ns"))
            & F.expr("try_variant_get(headers, '$[\"x-death\"]', 'variant') IS NULL")
            & F.expr("try_variant_get(headers, '$[\"x-stream-offset\"]', 'variant') IS NULL")
            & F.expr("publishes = 0 AND message_id IS NOT NULL OR publishes > 0 AND first_deliveries > publishes")
            & F.expr("coalesce(last_published_ns < earlier.ts_ns, true)"),
        )
        .withColumns(
            {
                "frame_no": F.col("first_frame_no"),
                "earlier_frame": F.col("earlier.first_frame_no"),
                "earlier_connection": F.col("earlier.connection_id"),
            }
        )
    )
