"""How many messages are outstanding over time: +1 when one is delivered, -1 when it is settled.

Context 'pile_ups', one row a life of a channel or session, of any version:

    peak           most messages outstanding at a time
    frame_no, ts_ns  the delivery with which there were more than the limit of DL-12, null where there never were

Context 'prefetched', one row a delivery to a consumer with a prefetch limit:

    outstanding    messages that its consumer has then, or (`shared`) all consumers of the channel, itself included
    allowed        the most that a basic.qos in force allowed

A settlement counts before a delivery of the same packet. Which of the limits set on a channel holds for a consumer
is read in its favour: the one in force when it was begun, or any that was set later, whichever is the highest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import LIFE, channel_methods
from pipeline.audit.contexts.materialized import kept_if_any

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

UNLIMITED = (1 << 31) - 1
SAID = "struct<prefetch_count int, `global` boolean, consumer_tag string, no_ack boolean, no_wait boolean>"
LIMITS = ("basic.qos", "basic.consume", "basic.consume-ok", "tx.select")


def pile_ups(sources: Sources) -> DataFrame | None:
    """Context 'pile_ups'."""
    return sources.piles


def piles(sources: Sources) -> DataFrame | None:
    """The rows of context 'pile_ups', which 'prefetched' asks as well."""
    if not sources.traffic["delivered"]:
        return None
    limit = sources.parameters.get("DL-12", {}).get("limit", UNLIMITED)
    messages = sources.tables.messages.filter(F.col("operation").isin("deliver", "get") & _waits_for_somebody())
    moves = _moves(messages.select(*LIFE, "first_frame_no", "ts_ns", "settled_ts_ns"))
    over_time = Window.partitionBy(*LIFE).orderBy("at_ns", "change", "frame_no")
    counted = moves.withColumn("outstanding", F.sum("change").over(_so_far(over_time)))
    above = F.when(F.col("outstanding") > limit, F.struct("at_ns", "frame_no"))
    versions = sources.tables.connections.select("connection_id", "version")
    return (
        counted.groupBy(*LIFE)
        .agg(F.max("outstanding").alias("peak"), F.min(above).alias("first"))
        .select(*LIFE, "peak", F.col("first.frame_no").alias("frame_no"), F.col("first.at_ns").alias("ts_ns"))
        .join(versions, "connection_id", "left")
    )


def prefetched(sources: Sources) -> DataFrame | None:
    """Context 'prefetched'. Only of lives on which more was outstanding at a time than a consumer is allowed."""
    if sources.piles is None or not sources.said["basic.qos"]:
        return None
    limits = kept_if_any(
        _limits(sources).join(sources.piles.select(*LIFE, "peak"), list(LIFE)).filter("peak > allowed")
    )
    if limits is None:
        return None
    delivered = sources.tables.messages.filter((F.col("operation") == "deliver") & _waits_for_somebody()).select(
        *LIFE, F.col("link").alias("consumer_tag"), "first_frame_no", "ts_ns", "settled_ts_ns", "delivery_tag"
    )
    limited = delivered.join(limits.drop("peak"), [*LIFE, "consumer_tag"])
    group = F.when(~F.col("shared"), F.col("consumer_tag"))
    over_time = Window.partitionBy(*LIFE, "group").orderBy("at_ns", "change", "frame_no")
    return (
        _moves(limited.withColumn("group", group))
        .withColumn("outstanding", F.sum("change").over(_so_far(over_time)))
        .filter("change > 0")
        .withColumn("ts_ns", F.col("at_ns"))
    )


def _waits_for_somebody() -> Column:
    """Messages that are to be settled: where that is not known, those that were."""
    unknown = (F.col("outcome") == "unknown") & F.col("settled_ts_ns").isNull()
    return (F.col("outcome") != "presettled") & ~unknown


def _moves(messages: DataFrame) -> DataFrame:
    """Each message as its delivery and, where it was settled, its settlement: `at_ns`, `change`, `frame_no`."""
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
    """Consumers with a limit: LIFE, consumer_tag, `allowed`, `shared` (by all consumers of the channel).

    Not those whose tag was used twice on the channel, nor of transactions: when the broker counts what these settle is
    not said anywhere.
    """
    in_order = Window.partitionBy(*LIFE).orderBy("frame_no")
    whole = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    later = _so_far(Window.partitionBy(*LIFE).orderBy(F.desc("frame_no")))
    count = F.col("said.prefetch_count")
    qos = F.when(F.col("name") == "basic.qos", F.when(count > 0, count).otherwise(UNLIMITED))
    begun = (
        channel_methods(sources, {"said": F.expr(f"try_variant_get(arguments, '$', '{SAID}')")}, LIMITS)
        .withColumn("qos", qos)
        .withColumns(
            {
                "in_force": F.last("qos", ignorenulls=True).over(in_order),
                "shared": F.last(F.when(F.col("qos").isNotNull(), F.col("said.global")), ignorenulls=True).over(
                    in_order
                ),
                "later": F.max("qos").over(later),
                "transactions": F.max(F.col("name") == "tx.select").over(whole),
            }
        )
        .filter("name IN ('basic.consume', 'basic.consume-ok') AND coalesce(said.consumer_tag, '') != ''")
    )
    asked = F.count(F.when(F.col("name") == "basic.consume", 1))
    return (
        begun.groupBy(*LIFE, F.col("said.consumer_tag").alias("consumer_tag"))
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
        .select(*LIFE, "consumer_tag", "version", "allowed", "shared")
    )
