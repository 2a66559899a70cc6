"""Context 'tags': what is said of consumers by their tags, with what was said of the tag before.

    consumer_tag
    tag_was      the last of basic.consume, -ok, basic.cancel, -ok before it with this tag on this life of the channel:
                 name, sender, frame_no
    tag_was_anywhere  the same on any channel of the connection, with channel and channel_life

Deliveries are rows as well, but for those to a consumer that was begun before them and not cancelled before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.constants import NEVER, one_of
from pipeline.audit.contexts.channels import LIFE, channel_methods
from pipeline.audit.contexts.materialized import kept_if_any
from pipeline.tables.roles import CONNECTION_CHANNEL

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

BEGINS = ("basic.consume", "basic.consume-ok")
SPEAKS_OF_CONSUMERS = (*BEGINS, "basic.cancel", "basic.cancel-ok")


def tags(sources: Sources) -> DataFrame:
    """Context 'tags'."""
    tag = F.expr("try_variant_get(arguments, '$.consumer_tag', 'string')")
    spoken = channel_methods(sources, {"consumer_tag": tag}, SPEAKS_OF_CONSUMERS).filter(
        "consumer_tag != '' AND name != 'channel.open'"
    )
    delivered = _delivered(sources, spoken)
    rows = spoken if delivered is None else spoken.unionByName(delivered, allowMissingColumns=True)
    said = F.when(
        F.col("name").isin(list(SPEAKS_OF_CONSUMERS)), F.struct("name", "sender", "frame_no", "channel", "channel_life")
    )
    return rows.withColumns(
        {
            "tag_was": _before(said, *LIFE, "consumer_tag"),
            "tag_was_anywhere": _before(said, "connection_id", "consumer_tag"),
        }
    ).join(sources.of_connection, "connection_id", "left")


def _delivered(sources: Sources, spoken: DataFrame) -> DataFrame | None:
    """Deliveries, out of the messages: their tags stand in a column."""
    frame_no = F.col("first_frame_no")
    begins = F.col("name").isin(*BEGINS)
    consumers = spoken.groupBy(*LIFE, F.col("consumer_tag").alias("link")).agg(
        F.min(F.when(begins, F.col("frame_no"))).alias("begun"),
        F.coalesce(F.min(F.when(~begins, F.col("frame_no"))), F.lit(NEVER)).alias("cancelled"),
    )
    versions = sources.tables.connections.select("connection_id", "version")
    # Most consumers have all of their deliveries in time.
    odd = kept_if_any(
        sources.tallied.filter("operation = 'deliver' AND link != ''")
        .join(versions, "connection_id")
        .filter(one_of("version", CONNECTION_CHANNEL))
        .join(consumers, [*LIFE, "link"], "left")
        .filter("NOT coalesce(first_frame > begun AND last_frame < cancelled, false)")
        .select(*LIFE, "link", "version", "begun", "cancelled")
    )
    if odd is None:
        return None
    return (
        sources.tables.messages.filter("operation = 'deliver'")
        .join(odd, [*LIFE, "link"])
        .filter("NOT coalesce(first_frame_no > begun AND first_frame_no < cancelled, false)")
        .select(
            *LIFE, frame_no.alias("frame_no"), frame_no.alias("content_frame_no"), "ts_ns", "version",
            F.lit("server").alias("sender"), F.lit("basic.deliver").alias("name"), F.col("link").alias("consumer_tag"),
        )
    )  # fmt: skip


def _before(value: Column, *partition: str) -> Column:
    rows = Window.partitionBy(*partition).orderBy("frame_no").rowsBetween(Window.unboundedPreceding, -1)
    return F.last(value, ignorenulls=True).over(rows)
