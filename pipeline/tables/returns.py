"""Returns: which publish a basic.return gives back.

The broker names no tag; it gives back the same exchange, routing key and body. A return belongs to the nearest earlier
publish of these that was mandatory or immediate and is not returned yet: brackets that close. Only such publishes and
the returns themselves are looked at, so this is cheap where nothing is returned.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.tables.timeline import LIFE


def returned(messages: DataFrame, frames: DataFrame) -> DataFrame:
    """Settled messages and `frames` -> (connection_id, content_frame_no, returned_ts_ns), one row a returned publish."""
    may_return = (F.col("operation") == "publish") & (F.col("mandatory") | F.col("immediate"))
    candidates = messages.filter(may_return | (F.col("operation") == "return")).select(
        *LIFE, F.col("frame_no").alias("content_frame_no"), "ts_ns", "operation", "exchange", "routing_key"
    )
    digests = frames.filter(F.col("body_sha256").isNotNull()).select("connection_id", "content_frame_no", "body_sha256")
    rows = candidates.join(digests, ["connection_id", "content_frame_no"], "left")
    same = (*LIFE, "exchange", "routing_key", "body_sha256")
    in_order = Window.partitionBy(*same).orderBy("content_frame_no")
    publishes = F.col("operation") == "publish"
    height = F.sum(F.when(publishes, 1).otherwise(-1)).over(in_order)
    # A return at the height its publish began closes it; below the lowest height so far there is no publish left.
    level = F.when(publishes, F.col("height")).otherwise(F.col("height") + 1)
    bracket = Window.partitionBy(*same, "level").orderBy("content_frame_no")
    return (
        rows.withColumn("height", height)
        .withColumn("level", level)
        .withColumn("closing", F.lead(F.struct("operation", "ts_ns")).over(bracket))
        .filter(publishes & (F.col("closing.operation") == "return"))
        .select("connection_id", "content_frame_no", F.col("closing.ts_ns").alias("returned_ts_ns"))
    )
