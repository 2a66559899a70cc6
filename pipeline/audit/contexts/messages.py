"""Context 'messages': table messages, with frame_no and content_frame_no (the frame of the method that carries it),
`version`, and its connection (`c`).

Context 'numbers': deliveries with a number of their own, and `highest_tag`, the highest before it on the same life of
the channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import LIFE

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources


def messages(sources: Sources) -> DataFrame:
    """Context 'messages'."""
    versions = sources.tables.connections.select("connection_id", "version")
    return (
        sources.tables.messages.withColumns(
            {"frame_no": F.col("first_frame_no"), "content_frame_no": F.col("first_frame_no")}
        )
        .join(versions, "connection_id", "left")
        .join(sources.of_connection, "connection_id", "left")
    )


def numbers(sources: Sources) -> DataFrame | None:
    """Context 'numbers'. Deliveries to a direct reply-to consumer have no numbers of their own."""
    if not sources.traffic["delivered"]:
        return None
    delivered = sources.tables.messages.filter(
        "operation IN ('deliver', 'get') AND delivery_tag > 0 "
        "AND coalesce(routing_key, '') NOT LIKE 'amq.rabbitmq.reply-to%'"
    ).select(
        *LIFE,
        F.col("first_frame_no").alias("frame_no"),
        F.col("first_frame_no").alias("content_frame_no"),
        "ts_ns",
        "delivery_tag",
    )
    earlier = Window.partitionBy(*LIFE).orderBy("frame_no").rowsBetween(Window.unboundedPreceding, -1)
    versions = sources.tables.connections.select("connection_id", "version")
    return delivered.withColumn("highest_tag", F.max("delivery_tag").over(earlier)).join(
        F.broadcast(versions), "connection_id"
    )
