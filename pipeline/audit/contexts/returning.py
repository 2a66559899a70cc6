"""Context 'returning': messages that are delivered from one queue again and again.

One row a message, at its last delivery:

    redeliveries  deliveries marked as such
    quick         of these, those that came within the time of PR-11 after the message was given back, which was given
                  back within that time after it was delivered: nobody can have worked on it
    frame_no      the first redelivery

A message is known by its id, or by its octets where it has none; equal messages do exist, so of these as many fresh
deliveries are taken off as came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

PLACE = ("server_ip", "server_port", "vhost", "of_queue")
MS_NS = 10**6


def returning(sources: Sources) -> DataFrame | None:
    """Context 'returning'."""
    if not sources.traffic["redelivered"]:
        return None
    within_ns = int(sources.parameters.get("PR-11", {}).get("within_ms", 0) * MS_NS)
    brokers = sources.connections.select("connection_id", "version", *PLACE[:3])
    known = F.coalesce("message_id", F.concat_ws(" ", "body_sha256", "correlation_id"))
    rows = (
        sources.tables.messages.filter("operation IN ('deliver', 'get') AND NOT coalesce(browsed, false)")
        .select(
            "connection_id", "first_frame_no", "ts_ns", "settled_ts_ns", "outcome", "redelivered", "message_id",
            F.coalesce("queue", "address").alias("of_queue"), known.alias("known"),
        )
        .filter("known IS NOT NULL AND of_queue IS NOT NULL")
    )  # fmt: skip
    # Few messages come again: only what may be one of these is put in order.
    again = rows.filter("redelivered").select("of_queue", "known").distinct()
    near = rows.join(again, ["of_queue", "known"], "left_semi").join(brokers, "connection_id")
    in_time = Window.partitionBy(*PLACE, "known").orderBy("ts_ns", "connection_id", "first_frame_no")
    before = F.lag(F.struct("ts_ns", "outcome", "settled_ts_ns")).over(in_time)
    at_once = (
        "redelivered AND before.outcome IN ('requeued', 'released', 'modified') AND "
        f"before.settled_ts_ns - before.ts_ns < {within_ns} AND ts_ns - before.settled_ts_ns < {within_ns}"
    )
    place = F.struct("ts_ns", "connection_id", F.col("first_frame_no").alias("frame_no"), "version")
    return (
        near.withColumn("before", before)
        .withColumn("quick", F.expr(at_once))
        .groupBy(*PLACE, "known")
        .agg(
            F.count_if("redelivered").alias("redeliveries"),
            F.count_if("quick").alias("quick"),
            F.count_if(~F.col("redelivered")).alias("fresh"),
            F.any_value("message_id").alias("message_id"),
            F.min(F.when(F.col("redelivered"), place)).alias("first"),
        )
        .withColumn(
            "redeliveries", F.when(F.col("message_id").isNull(), F.col("redeliveries") - F.col("fresh") + 1).otherwise(
                F.col("redeliveries")
            )
        )
        .select(F.col("of_queue").alias("queue"), "message_id", "redeliveries", "quick", "first.*")
    )  # fmt: skip
