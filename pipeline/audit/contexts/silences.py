"""Context 'silences': the longest stretches without octets of one side, beside the heartbeat interval agreed on.

One row a second in which a side sent, with the silence before it; and one for the silence up to the end of the
connection. Intervals are whole seconds, so that what happens within one second does not matter. Silence counts after
tune-ok and before a close; the time in which the other side had closed its TCP receive window does not: nothing could
be sent then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.detector import Sql

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

# Both sides agreed on how long a side may be silent; in 1.0 each says that for the other.
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
