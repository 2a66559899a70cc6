"""Outstanding messages over time: +1 when one is delivered, -1 when it is settled.

Context 'outstanding_peaks', one row per incarnation of a channel or session, of any version:

    peak           maximum of outstanding messages
    frame_no, ts_ns  the first delivery that exceeds the limit of DL-12; null if none does

Context 'prefetched', one row per delivery to a consumer with a prefetch limit:

    outstanding    messages outstanding at its consumer, or (`shared`) at all consumers of the channel, itself included
    allowed        the prefetch limit

A settlement counts before a delivery in the same packet. If several limits were set on a channel, the highest applies
of the one in force when the consumer started and all later ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import CHANNEL, channel_methods
from pipeline.audit.contexts.materialized import materialize_if_any

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

UNLIMITED = (1 << 31) - 1
QOS_ARGUMENTS = "struct<prefetch_count int, `global` boolean, consumer_tag string, no_ack boolean, no_wait boolean>"
LIMITS = ("basic.qos", "basic.consume", "basic.consume-ok", "tx.select")


def compute_peaks(sources: Sources) -> DataFrame | None:
    """The rows of context 'outstanding_peaks', which 'prefetched' reads as well."""
    if not sources.message_kind_counts["delivered"]:
        return None
    limit = sources.parameters.get("DL-12", {}).get("limit", UNLIMITED)
    messages = sources.tables.messages.filter(F.col("operation").isin("deliver", "get") & _waits_for_somebody())
    moves = _moves(messages.select(*CHANNEL, "first_frame_no", "ts_ns", "settled_ts_ns"))
    over_time = Window.partitionBy(*CHANNEL).orderBy("at_ns", "change", "frame_no")
    counted = moves.withColumn("outstanding", F.sum("change").over(_so_far(over_time)))
    above = F.when(F.col("outstanding") > limit, F.struct("at_ns", "frame_no"))
    versions = sources.tables.connections.select("connection_id", "version")
    return (
        counted.groupBy(*CHANNEL)
        .agg(F.max("outstanding").alias("peak"), F.min(above).alias("first"))
        .select(*CHANNEL, "peak", F.col("first.frame_no").alias("frame_no"), F.col("first.at_ns").alias("ts_ns"))
        .join(versions, "connection_id", "left")
    )


def prefetched(sources: Sources) -> DataFrame | None:
    """Context 'prefetched': only incarnations whose peak exceeds the limit of a consumer."""
    if sources.outstanding_peaks is None or not sources.method_counts["basic.qos"]:
        return None
    limits = materialize_if_any(
        _limits(sources)
        .join(sources.outstanding_peaks.select(*CHANNEL, "peak"), list(CHANNEL))
        .filter("peak > allowed")
    )
    if limits is None:
        return None
    delivered = sources.tables.messages.filter((F.col("operation") == "deliver") & _waits_for_somebody()).select(
        *CHANNEL, F.col("link").alias("consumer_tag"), "first_frame_no", "ts_ns", "settled_ts_ns", "delivery_tag"
    )
    limited = delivered.join(limits.drop("peak"), [*CHANNEL, "consumer_tag"])
    group = F.when(~F.col("shared"), F.col("consumer_tag"))
    over_time = Window.partitionBy(*CHANNEL, "group").orderBy("at_ns", "change", "frame_no")
    return (
        _moves(limited.withColumn("group", group))
        .withColumn("outstanding", F.sum("change").over(_so_far(over_time)))
        .filter("change > 0")
        .withColumn("ts_ns", F.col("at_ns"))
    )


def _waits_for_somebody() -> Column:
    """Messages that need a settlement; if that is not known, those that were settled."""
    unknown = (F.col("outcome") == "unknown") & F.col("settled_ts_ns").isNull()
    return (F.col("outcome") != "presettled") & ~unknown


def _moves(messages: DataFrame) -> DataFrame:
    """A row per delivery and a row per settlement: `at_ns`, `change`, `frame_no`."""
    delivery = F.struct(F.col("ts_ns").alias("at_ns"), F.lit(1).alias("change"))
    settlement = F.struct(F.col("settled_ts_ns").alias("at_ns"), F.lit(-1).alias("change"))
    both = F.when(F.col("settled_ts_ns").isNull(), F.array(delivery)).otherwise(F.array(delivery, settlement))
    return (
        messages.withColumnRenamed("first_frame_no", "frame_no")
        .select("*", F.inline(both))
        .drop("ts_ns", "settled_ts_ns")
    )


def _so_far(window: WindowSpec) -> WindowSpec:
    return window.rowsBetween(Window.unboundedPreceding, Window.currentRow)


def _limits(sources: Sources) -> DataFrame:
    """Consumers with a limit: CHANNEL, consumer_tag, `allowed`, `shared` (by all consumers of the channel).

    Left out: consumers whose tag was used twice on the channel, and transactional channels, because it is not
    specified when the broker counts a settlement in a transaction.
    """
    in_order = Window.partitionBy(*CHANNEL).orderBy("frame_no")
    whole = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    later = _so_far(Window.partitionBy(*CHANNEL).orderBy(F.desc("frame_no")))
    count = F.col("args.prefetch_count")
    qos = F.when(F.col("name") == "basic.qos", F.when(count > 0, count).otherwise(UNLIMITED))
    begun = (
        channel_methods(sources, {"args": F.expr(f"try_variant_get(arguments, '$', '{QOS_ARGUMENTS}')")}, LIMITS)
        .withColumn("qos", qos)
        .withColumns(
            {
                "in_force": F.last("qos", ignorenulls=True).over(in_order),
                "shared": F.last(F.when(F.col("qos").isNotNull(), F.col("args.global")), ignorenulls=True).over(
                    in_order
                ),
                "later": F.max("qos").over(later),
                "transactions": F.max(F.col("name") == "tx.select").over(whole),
            }
        )
        .filter("name IN ('basic.consume', 'basic.consume-ok') AND coalesce(args.consumer_tag, '') != ''")
    )
    asked = F.count(F.when(F.col("name") == "basic.consume", 1))
    return (
        begun.groupBy(*CHANNEL, F.col("args.consumer_tag").alias("consumer_tag"))
        .agg(
            F.any_value("version").alias("version"),
            F.max(F.greatest("in_force", "later")).alias("allowed"),
            F.min(F.col("in_force").isNotNull()).alias("ever"),
            F.max(F.coalesce("shared", F.lit(False))).alias("shared"),
            F.max("transactions").alias("transactions"),
            asked.alias("asked"),
            F.count("*").alias("rows"),
        )
        .filter(f"ever AND allowed < {UNLIMITED} AND NOT transactions AND asked <= 1 AND rows <= 2")
        .select(*CHANNEL, "consumer_tag", "version", "allowed", "shared")
    )
