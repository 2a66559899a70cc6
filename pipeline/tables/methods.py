"""Table methods: the frames that say something, with what they say in plain columns and their replies."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import METHODS
from pipeline.tables.dialogues import dialogues
from pipeline.tables.events import hot_arguments
from pipeline.tables.roles import METHOD_FRAMES
from pipeline.tables.shape import shaped


def methods(frames: DataFrame, events: DataFrame) -> DataFrame:
    """`frames` and their `events` -> table methods."""
    spoken = frames.filter(F.col("frame_type").isin(list(METHOD_FRAMES)))
    answered = (
        dialogues(events)
        .filter(F.col("reply").isNotNull())
        .select(
            "connection_id",
            "frame_no",
            F.col("reply.frame_no").alias("reply_frame_no"),
            F.col("reply.name").alias("reply_name"),
            (F.col("reply.ts_ns") - F.col("ts_ns")).alias("reply_latency_ns"),
        )
    )
    rows = spoken.withColumn("hot", hot_arguments()).select("*", "hot.*")
    return shaped(rows.join(answered, ["connection_id", "frame_no"], "left"), METHODS)
