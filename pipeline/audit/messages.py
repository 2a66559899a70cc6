"""Context 'messages': table messages, with frame_no and content_frame_no (the frame of the method that carries it),
`version`, and its connection (`c`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pipeline.audit.contexts import Sources


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
