"""Context 'waits': rows of context 'messages' that somebody waited for: settled late, or not until the end.

waited_ns    from the message to what settled it; where nobody has, to the end of its channel or connection
outstanding  messages of its channel that nobody has settled at the end
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import LIFE
from pipeline.audit.contexts.messages import messages
from pipeline.audit.contexts.traffic import kinds

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources


def waits(sources: Sources) -> DataFrame | None:
    """Context 'waits'."""
    if not sources.traffic["waited"]:
        return None
    channels = sources.tables.channels.select(
        *LIFE, (F.unix_micros("closed_ts") * 1000).alias("closed_ns"), F.col("unsettled").alias("outstanding")
    )
    until = F.least("closed_ns", "c.close.ts_ns", "c.last_ns")
    return (
        messages(sources)
        .filter(kinds(sources.parameters)["waited"])
        .join(channels, list(LIFE), "left")
        .withColumn("waited_ns", F.coalesce("settle_latency_ns", until - F.col("ts_ns")))
    )
