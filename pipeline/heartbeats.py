"""Heartbeats and silence: what each side sent, against the interval agreed on.

pipeline.heartbeats(tables).filter("overdue > 0").show()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pipeline import Tables

# The interval agreed on, ns: of 0-9-1 and 0-10 the same for both; of 1.0 the time-out that the other side announced.
LIMIT = (
    "coalesce(nullif(heartbeat_s, 0) * 1000000000, "
    "if(sender = 'client', server_idle_timeout_ms, client_idle_timeout_ms) * 1000000)"
)
BEATS = "frame_type IN ('heartbeat', 'empty') OR name = 'connection.heartbeat'"


def heartbeats(tables: Tables) -> DataFrame:
    """How each side of a connection with heartbeats kept them, a row a side: `connection_id`, `sender`, `interval_ns`
    agreed on (of 1.0 the idle time-out that the other side announced), `heartbeats` sent, `longest_ns` without a frame
    and when that began (`longest_ts_ns`), and how many silences were longer than the interval (`late`), or than two of
    them (`overdue`: the other side may close, 0-9-1 section 4.2.7).

    A side's silence lasts from the end of a frame to the end of its next one, or to the last packet of the connection.
    """
    rows = tables.frames.filter("frame_type != 'gap'")
    sent = rows.groupBy("connection_id", "sender").agg(F.count(F.when(F.expr(BEATS), 1)).alias("heartbeats"))
    longest = F.max(F.struct("ns", (-F.col("ts_ns")).alias("before_ns")))
    found = (
        _measured(rows, tables.connections)
        .filter("limit_ns > 0")
        .groupBy("connection_id", "sender")
        .agg(
            F.first("limit_ns").alias("interval_ns"),
            longest["ns"].alias("longest_ns"),
            (-longest["before_ns"]).alias("longest_ts_ns"),
            F.count(F.when(F.expr("ns > limit_ns"), 1)).alias("late"),
            F.count(F.when(F.expr("ns > 2 * limit_ns"), 1)).alias("overdue"),
        )
    )
    order = ("connection_id", "sender", "interval_ns", "heartbeats", "longest_ns", "longest_ts_ns", "late", "overdue")
    return found.join(sent, ["connection_id", "sender"]).select(*order)


def silences(frames: DataFrame, connections: DataFrame) -> DataFrame:
    """Times in which one side sent no frame, half an interval agreed on or longer: `connection_id`, `sender`, `client`,
    `ts_ns` (begin), `end_ns`, `ns`, `limit_ns`; from its last frame also to the last packet of the connection."""
    kept = _measured(frames.filter("frame_type != 'gap'"), connections).filter("limit_ns > 0 AND ns * 2 >= limit_ns")
    return kept.select("connection_id", "sender", "client", "ts_ns", "end_ns", "ns", "limit_ns")


def _measured(rows: DataFrame, connections: DataFrame) -> DataFrame:
    """The silence after each row of frames."""
    facts = connections.select(
        "connection_id", F.concat_ws(":", "client_ip", "client_port").alias("client"), "heartbeat_s",
        "server_idle_timeout_ms", "client_idle_timeout_ms", (F.unix_micros("closed_ts") * 1000).alias("last_ns"),
    )  # fmt: skip
    own = Window.partitionBy("connection_id", "sender").orderBy("frame_no")
    following = F.lead("ts_ns").over(own).alias("next_ns")
    followed = rows.select("connection_id", "sender", "ts_ns", following)
    known = followed.join(facts, "connection_id").withColumn("end_ns", F.coalesce("next_ns", F.col("last_ns")))
    return known.withColumn("ns", F.col("end_ns") - F.col("ts_ns")).withColumn("limit_ns", F.expr(LIMIT))
