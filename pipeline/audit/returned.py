"""Context 'returned': publishes in confirm mode that the server gave back, beside those that are equal to them.

A basic.return names no number; which of several equal publishes it gives back is a guess.

    all_confirmed_frame  frame that confirmed the last of the equal publishes of the channel; null: some never were
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.lives import LIFE
from pipeline.audit.traffic import KINDS

if TYPE_CHECKING:
    from pipeline.audit.contexts import Sources


def returned(sources: Sources) -> DataFrame | None:
    """Context 'returned'."""
    if not sources.traffic["returned"]:
        return None
    versions = sources.tables.connections.select("connection_id", "version")
    equal = Window.partitionBy(*LIFE, "exchange", "routing_key", "body_sha256")
    all_are = F.count("settled_frame_no").over(equal) == F.count("*").over(equal)
    confirmed = F.when(all_are, F.max("settled_frame_no").over(equal))
    in_doubt = "operation = 'publish' AND delivery_tag IS NOT NULL AND (mandatory OR immediate)"
    return (
        sources.tables.messages.filter(in_doubt)
        .select(
            *LIFE, F.col("first_frame_no").alias("frame_no"), "ts_ns", "exchange", "routing_key", "body_sha256",
            "delivery_tag", "settled_frame_no", "returned_frame_no",
        )
        .withColumn("all_confirmed_frame", confirmed)
        .filter(KINDS["returned"])
        .join(versions, "connection_id", "left")
    )  # fmt: skip
