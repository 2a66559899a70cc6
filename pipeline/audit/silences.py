"""Context 'silences': the longest stretches without octets of one side, beside the heartbeat interval agreed on.

One row a second in which a side sent, with the silence before it; and one for the silence up to the end of the
connection. Intervals are whole seconds, so that what happens within one second does not matter. Silence counts after
tune-ok and before a close.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pipeline.audit.contexts import Sources


def silences(sources: Sources) -> DataFrame:
    """Columns: connection_id, version, sender, heartbeat_s, silence_ns, frame_no and ts_ns of its end."""
    agreed = sources.connections.filter("heartbeat_s > 0 AND c.tune_ok IS NOT NULL").select(
        "connection_id",
        "version",
        "heartbeat_s",
        F.col("ts_ns").alias("last_ns"),
        F.col("c.tune_ok.ts_ns").alias("tuned_ns"),
        F.col("c.close.ts_ns").alias("close_ns"),
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
    return seconds.withColumns(
        {
            "frame_no": F.coalesce(F.lead("frame_no").over(in_order), "last_frame"),
            "silence_ns": F.when(counts, ends - starts),
            "ts_ns": ends,
        }
    )
