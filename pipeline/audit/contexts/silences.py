"""Context 'silences': how long each side sent nothing, compared with the negotiated heartbeat interval.

One row per second in which a side sent, with the silence before it, and one for the silence up to the end of the
connection. Intervals are whole seconds, so pauses within a second do not matter. Silence counts from tune-ok to a
close, without the time in which the other side's TCP receive window was closed: nothing could be sent then.

Context 'blocked': connection.blocked, unblocked and basic.publish on connections that were ever blocked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.detector import Sql

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

# A heartbeat interval was negotiated; in 1.0 each side announces the idle time-out for the other.
AGREED: Sql = (
    "heartbeat_s > 0 AND c.tune_ok IS NOT NULL OR coalesce(client_idle_timeout_ms, server_idle_timeout_ms) > 0 AND "
    "c.client_open IS NOT NULL AND c.server_open IS NOT NULL"
)


def silences(sources: Sources) -> DataFrame:
    """Columns: connection_id, version, sender, heartbeat_s, idle_ms, silence_ns, frame_no and ts_ns of its end."""
    agreed = sources.connections.filter(AGREED).select(
        "connection_id",
        "version",
        "heartbeat_s",
        F.col("ts_ns").alias("last_ns"),
        F.coalesce("c.tune_ok.ts_ns", F.greatest("c.client_open.ts_ns", "c.server_open.ts_ns")).alias("tuned_ns"),
        F.coalesce("c.close.ts_ns", F.least("c.client_end.ts_ns", "c.server_end.ts_ns")).alias("close_ns"),
        # What the other side announces is how long a side may be silent.
        F.col("server_idle_timeout_ms").alias("client_may_ms"),
        F.col("client_idle_timeout_ms").alias("server_may_ms"),
        F.col("server_zero_window_ns").alias("client_barred_ns"),
        F.col("client_zero_window_ns").alias("server_barred_ns"),
    )
    seconds = (
        sources.seconds.filter("sender IS NOT NULL AND to_ns IS NOT NULL")
        .groupBy("connection_id", "sender", "second")
        .agg(
            F.min("from_ns").alias("from_ns"),
            F.max("to_ns").alias("to_ns"),
            F.min("from_frame").alias("frame_no"),
            F.max("to_frame").alias("last_frame"),
        )
        .join(agreed, "connection_id")
    )
    in_order = Window.partitionBy("connection_id", "sender").orderBy("second")
    quiet_until = F.lead("from_ns").over(in_order)
    ends = F.coalesce(quiet_until, F.least("last_ns", "close_ns"))
    starts = F.greatest("to_ns", "tuned_ns")
    counts = F.coalesce(F.col("to_ns") < F.col("close_ns"), F.lit(True))
    by_client = F.col("sender") == "client"
    barred = F.when(by_client, F.col("client_barred_ns")).otherwise(F.col("server_barred_ns"))
    return seconds.withColumns(
        {
            "frame_no": F.coalesce(F.lead("frame_no").over(in_order), "last_frame"),
            "silence_ns": F.when(counts, ends - starts - F.coalesce(barred, F.lit(0))),
            "ts_ns": ends,
            "idle_ms": F.nullif(F.when(by_client, F.col("client_may_ms")).otherwise(F.col("server_may_ms")), F.lit(0)),
        }
    )


SWITCHES = ("connection.blocked", "connection.unblocked")


def blocked(sources: Sources) -> DataFrame | None:
    """Columns: connection_id, version, frame_no, ts_ns, name; `since`: struct(on, frame_no, ts_ns) of the last switch
    before; `unblocked_ns`: the next unblocked; tcp_rtt_ns and last_ns of the connection."""
    if not sources.method_counts[SWITCHES[0]]:
        return None
    own = sources.connections.filter("c.blocked IS NOT NULL").select(
        "connection_id", "tcp_rtt_ns", F.col("ts_ns").alias("last_ns")
    )
    rows = sources.tables.frames.filter(F.col("name").isin("basic.publish", *SWITCHES)).select(
        "connection_id", "version", "frame_no", "ts_ns", "name"
    )
    in_order = Window.partitionBy("connection_id").orderBy("frame_no")
    # Sorted backwards: Spark evaluates a window that reaches to the last row anew for each row.
    backwards = Window.partitionBy("connection_id").orderBy(F.desc("frame_no"))
    switch = F.struct((F.col("name") == SWITCHES[0]).alias("on"), "frame_no", "ts_ns")
    since = F.last(F.when(F.col("name").isin(*SWITCHES), switch), True)
    unblocked = F.min(F.when(F.col("name") == SWITCHES[1], F.col("ts_ns")))
    return rows.join(own, "connection_id").withColumns(
        {
            "since": since.over(in_order.rowsBetween(Window.unboundedPreceding, -1)),
            "unblocked_ns": unblocked.over(backwards.rowsBetween(Window.unboundedPreceding, -1)),
        }
    )
