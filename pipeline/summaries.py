"""Summaries of the tables, as lazy DataFrames: `latency`, `rates`, `backlog`, `consumers`.

pipeline.latency(tables, by=["queue"]).show()
pipeline.rates(tables, every="10 seconds", by=["exchange"]).show()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.tables.shape import timestamp

if TYPE_CHECKING:
    from pipeline import Tables

OF_PUBLISH = ("confirm_latency_ns", "rpc_latency_ns")
OF_PAIR = ("broker_latency_ns", "ack_latency_ns", "total_latency_ns")
PERCENTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "p999_ns": 0.999}
# percentile_approx is off by at most one rank in so many.
ACCURACY = 10_000
LINK = ("connection_id", "channel", "channel_life", "link")
RATES = ("published", "published_bytes", "delivered", "delivered_bytes")
DELIVERIES = ("deliver", "get")


def latency(tables: Tables, by: Sequence[str] = ()) -> DataFrame:
    """How long messages took: `by`, `measure` ('confirm' 'broker' 'ack' 'total' 'rpc'), `count`, and in ns `p50_ns`,
    `p90_ns`, `p99_ns`, `p999_ns`, `max_ns`.

    `by`: columns of table message_flows, or of table connections (then of the publishing connection, and where there
    is none, of the delivering one). A confirm or a reply counts once for each publish, however many queues its message
    came to. Percentiles are exact up to one rank in 10,000. Raises ValueError for any other column.
    """
    rows = measured(tables, by)
    percentiles = F.percentile_approx("ns", list(PERCENTILES.values()), ACCURACY)
    return (
        rows.groupBy(*by, "measure")
        .agg(F.count("ns").alias("count"), percentiles.alias("at"), F.max("ns").alias("max_ns"))
        .select(
            *by,
            F.regexp_replace("measure", "_latency_ns$", "").alias("measure"),
            "count",
            *(F.col("at")[place].alias(name) for place, name in enumerate(PERCENTILES)),
            "max_ns",
        )
        .orderBy(*by, "measure")
    )


def measured(tables: Tables, by: Sequence[str] = ()) -> DataFrame:
    """What `latency` summarises, a row each: `by`, `ts_ns` (of the publish; without one, of the delivery), `measure`
    (a column name of message_flows) and `ns`."""
    flows = _with_columns(
        tables.message_flows, by, tables, F.coalesce("publish_connection_id", "deliver_connection_id")
    ).withColumn("ts_ns", F.coalesce("publish_ts_ns", "deliver_ts_ns"))
    once = Window.partitionBy("publish_connection_id", "publish_frame_no").orderBy("deliver_ts_ns", "flow_id")
    needs_once = flows.filter(F.coalesce(*OF_PUBLISH).isNotNull() & F.col("publish_frame_no").isNotNull())
    keys = (*by, "ts_ns")
    per_publish = needs_once.withColumn("nth", F.row_number().over(once)).filter("nth = 1").select(*keys, *OF_PUBLISH)
    per_pair = flows.select(*keys, *OF_PAIR)
    return _long(per_publish, keys, OF_PUBLISH).unionByName(_long(per_pair, keys, OF_PAIR))


def rates(tables: Tables, every: str = "1 second", by: Sequence[str] = ()) -> DataFrame:
    """Messages and body bytes by time: `ts` (begin of the interval), `by`, and RATES. An interval in which nothing was
    sent has no row.

    `every`: an interval as Spark writes it ('1 second', '5 minutes'). `by`: columns of table messages or of table
    connections. Raises ValueError for any other column.
    """
    rows = _with_columns(tables.messages, by, tables, F.col("connection_id"))
    published, delivered = F.col("operation") == "publish", F.col("operation").isin(*DELIVERIES)
    size = F.coalesce("body_size", "body_seen", F.lit(0))
    measures = [
        measure
        for is_one in (published, delivered)
        for measure in (F.count(F.when(is_one, 1)), F.sum(F.when(is_one, size).otherwise(0)))
    ]
    return (
        rows.filter(published | delivered)
        .groupBy(F.window("ts", every).alias("interval"), *by)
        .agg(*(measure.alias(name) for name, measure in zip(RATES, measures, strict=True)))
        .select(F.col("interval.start").alias("ts"), *by, *RATES)
        .orderBy("ts", *by)
    )


def backlog(tables: Tables) -> DataFrame:
    """Deliveries that wait for their acknowledgement, by consumer: a row whenever the number changes.

    `connection_id`, `channel`, `channel_life`, `link`, `queue`, `ts`, `ts_ns`, `outstanding` (after that moment),
    `until_ns` (when it changes again; null for the last row). What was open at the end stays outstanding.
    """
    waits = F.col("operation").isin(*DELIVERIES) & ~F.col("outcome").eqNullSafe("presettled")
    message = tables.messages.filter(waits).select(
        *LINK, F.coalesce("queue", "address").alias("queue"), "ts_ns", "settled_ts_ns"
    )
    changes = message.select(
        *LINK,
        "queue",
        F.explode(
            F.array(
                F.struct(F.col("ts_ns"), F.lit(1).alias("change")),
                F.struct(F.col("settled_ts_ns").alias("ts_ns"), F.lit(-1).alias("change")),
            )
        ).alias("event"),
    ).select(*LINK, "queue", "event.*")
    in_time = Window.partitionBy(*LINK).orderBy("ts_ns")
    return (
        changes.filter(F.col("ts_ns").isNotNull())
        .groupBy(*LINK, "ts_ns")
        .agg(F.max("queue").alias("queue"), F.sum("change").alias("change"))
        .withColumn("outstanding", F.sum("change").over(in_time))
        .withColumn("until_ns", F.lead("ts_ns").over(in_time))
        .select(*LINK, "queue", timestamp("ts_ns").alias("ts"), "ts_ns", "outstanding", "until_ns")
    )


def consumers(tables: Tables) -> DataFrame:
    """What each consumer did: `connection_id`, `channel`, `channel_life`, `link`, `queue`, `deliveries`, `settled`,
    `settle_p50_ns`, `settle_p99_ns`, `settle_max_ns` (delivery to settlement), `most_outstanding`, `prefetch_count` (of
    the channel, 0: no limit), `exhausted_ns` (time during which the prefetch was used up; null without a limit)."""
    rows = tables.messages.filter(F.col("operation").isin(*DELIVERIES))
    percentile = {"settle_p50_ns": 0.5, "settle_p99_ns": 0.99}
    done = rows.groupBy(*LINK).agg(
        F.max(F.coalesce("queue", "address")).alias("queue"),
        F.count("*").alias("deliveries"),
        F.count("settled_ts_ns").alias("settled"),
        *(F.percentile_approx("settle_latency_ns", at, ACCURACY).alias(name) for name, at in percentile.items()),
        F.max("settle_latency_ns").alias("settle_max_ns"),
    )
    channel = ("connection_id", "channel", "channel_life")
    limits = tables.channels.select(*channel, "prefetch_count")
    at_limit = (F.col("prefetch_count") > 0) & (F.col("outstanding") >= F.col("prefetch_count"))
    held = (
        backlog(tables)
        .join(limits, list(channel), "left")
        .groupBy(*LINK)
        .agg(
            F.max("outstanding").alias("most_outstanding"),
            F.sum(F.when(at_limit, F.col("until_ns") - F.col("ts_ns")).otherwise(0)).alias("at_limit_ns"),
        )
    )
    joined = done.join(limits, list(channel), "left").join(held, list(LINK), "left")
    return joined.withColumn("most_outstanding", F.coalesce("most_outstanding", F.lit(0))).select(
        *done.columns,
        "most_outstanding",
        "prefetch_count",
        F.when(F.col("prefetch_count") > 0, F.coalesce("at_limit_ns", F.lit(0))).alias("exhausted_ns"),
    )


def _long(rows: DataFrame, by: Sequence[str], measures: Sequence[str]) -> DataFrame:
    """A row (by, `measure`, `ns`) for each measure that is known."""
    return rows.unpivot(list(by), list(measures), "measure", "ns").filter(F.col("ns").isNotNull())


def _with_columns(rows: DataFrame, by: Sequence[str], tables: Tables, connection: Column) -> DataFrame:
    """`rows` with those columns of `by` that only table connections has."""
    missing = [name for name in by if name not in rows.columns]
    for name in missing:
        if name not in tables.connections.columns:
            raise ValueError(f"no column {name!r} to group by; expected one of {', '.join(sorted(set(rows.columns)))}")
    if not missing:
        return rows
    of_connection = tables.connections.select(F.col("connection_id").alias("of_connection"), *missing)
    return rows.join(of_connection, connection == F.col("of_connection"), "left").drop("of_connection")
