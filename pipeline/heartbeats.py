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
# The interval holds from here on, of 1.0 when both sides have announced theirs, and up to the first close.
AGREED = "max(CASE WHEN name IN ('connection.tune-ok', 'open') THEN ts_ns END)"
CLOSED = "min(CASE WHEN name IN ('connection.close', 'close') THEN ts_ns END)"


def heartbeats(tables: Tables) -> DataFrame:
    """How each side of a connection with heartbeats kept them, a row a side: `connection_id`, `sender`, `interval_ns`
    agreed on (of 1.0 the idle time-out that the other side announced), `heartbeats` sent, `longest_ns` without a frame
    and when that began (`longest_ts_ns`), and how many silences were longer than the interval (`late`), or than two of
    them (`overdue`: the other side may close, 0-9-1 section 4.2.7).

    A side's silence lasts from the end of a frame to the begin of its next one (any octet is a sign of life), or to the
    last packet of the connection. It counts from the agreement on until a side closes.
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
    """Times in which one side sent no frame, half an interval agreed on or longer: `connection_id`, `sender`, `client`,
    `ts_ns` (begin), `end_ns`, `ns`, `limit_ns`; from its last frame also to the last packet of the connection."""
    kept = _measured(frames, connections).filter("limit_ns > 0 AND ns >= limit_ns / 2")
    return kept.select("connection_id", "sender", "client", "ts_ns", "end_ns", "ns", "limit_ns")


def _measured(frames: DataFrame, connections: DataFrame) -> DataFrame:
    """The silence after each row of `frames`, which are all of their connections."""
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
        # Outside of the time that counts, and where the last packet's time was cut to microseconds, it is none.
        .withColumn("end_ns", F.greatest("end_ns", "ts_ns"))
        .withColumn("ns", F.col("end_ns") - F.col("ts_ns"))
    )
