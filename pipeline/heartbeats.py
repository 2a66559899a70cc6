"""Heartbeats and silence: what each side sent, compared with the negotiated interval.

pipeline.heartbeats(tables).filter("overdue > 0").show()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pipeline import Tables

# The negotiated interval, ns: in 0-9-1 and 0-10 the same for both sides; in 1.0 the time-out of the other side.
LIMIT = (
    "coalesce(nullif(heartbeat_s, 0) * 1000000000, "
    "if(sender = 'client', server_idle_timeout_ms, client_idle_timeout_ms) * 1000000)"
)
BEATS = "frame_type IN ('heartbeat', 'empty') OR name = 'connection.heartbeat'"
# The interval applies from tune-ok, in 1.0 from the second open, up to the first close.
AGREED = "max(CASE WHEN name IN ('connection.tune-ok', 'open') THEN ts_ns END)"
CLOSED = "min(CASE WHEN name IN ('connection.close', 'close') THEN ts_ns END)"


def heartbeats(tables: Tables) -> DataFrame:
    """The heartbeats of connections, one row per side: `connection_id`, `sender`, the negotiated `interval_ns` (in 1.0
    the idle time-out of the other side), `heartbeats` sent, the longest silence `longest_ns` and its start
    (`longest_ts_ns`), and the number of silences longer than the interval (`late`), and longer than two intervals
    (`overdue`: the other side may close, 0-9-1 section 4.2.7).

    A silence lasts from the end of a frame to the start of the next frame of the same side, or to the last packet of
    the connection. It counts from the negotiation to the first close.
    """
    longest = F.max(F.struct("ns", (-F.col("ts_ns")).alias("before_ns")))
    return (
        _measured(tables.frames, tables.connections)
        .filter("limit_ns > 0")
        .groupBy("connection_id", "sender")
        .agg(
            F.first("limit_ns").alias("interval_ns"),
            F.count_if("beat").alias("heartbeats"),
            longest["ns"].alias("longest_ns"),
            (-longest["before_ns"]).alias("longest_ts_ns"),
            F.count(F.when(F.expr("ns > limit_ns"), 1)).alias("late"),
            F.count(F.when(F.expr("ns > 2 * limit_ns"), 1)).alias("overdue"),
        )
    )


def silences(frames: DataFrame, connections: DataFrame) -> DataFrame:
    """Silences of half a negotiated interval or longer: `connection_id`, `sender`, `client`, `ts_ns` (start), `end_ns`,
    `ns`, `limit_ns`; including the one from the last frame of a side to the last packet of the connection."""
    long = _measured(frames, connections).filter("limit_ns > 0 AND ns >= limit_ns / 2")
    return long.select("connection_id", "sender", "client", "ts_ns", "end_ns", "ns", "limit_ns")


def _measured(frames: DataFrame, connections: DataFrame) -> DataFrame:
    """The silence after each row of `frames`, which must have all frames of their connections."""
    facts = connections.select(
        "connection_id", F.concat_ws(":", "client_ip", "client_port").alias("client"), "heartbeat_s",
        "server_idle_timeout_ms", "client_idle_timeout_ms", (F.unix_micros("closed_ts") * 1000).alias("last_ns"),
    )  # fmt: skip
    together = Window.partitionBy("connection_id")
    own = Window.partitionBy("connection_id", "sender").orderBy("frame_no")
    followed = (
        frames.filter("frame_type != 'gap'")
        .select(
            *("connection_id", "sender", "frame_no", "ts_ns", "first_ts_ns"),
            F.expr(f"coalesce({BEATS}, false)").alias("beat"),
            *(F.expr(sql).over(together).alias(name) for name, sql in (("agreed_ns", AGREED), ("until_ns", CLOSED))),
        )
        .withColumn("next_ns", F.lead("first_ts_ns").over(own))
    )
    begin = F.greatest("ts_ns", "agreed_ns").alias("ts_ns")
    end = F.least(F.coalesce("next_ns", F.col("last_ns")), "until_ns").alias("end_ns")
    return (
        followed.join(facts, "connection_id")
        .select("connection_id", "sender", "client", "beat", begin, end, F.expr(LIMIT).alias("limit_ns"))
        # Zero outside of the negotiated time, and where the last packet's time was truncated to microseconds.
        .withColumn("end_ns", F.greatest("end_ns", "ts_ns"))
        .withColumn("ns", F.col("end_ns") - F.col("ts_ns"))
    )
