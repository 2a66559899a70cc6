"""Context 'rates': methods that are judged by how fast they follow each other, and what went before within a limit.

opened_before_ns  when, `limit_per_minute` of CH-11 openings ago, a channel of the connection was opened
got_before_ns     the same of CO-07 and basic.get on the row's channel
empty_share       of the gets on the channel so far, the share that found nothing
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import life

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

# Column -> the rule whose limit says how many rows back it looks.
LOOKS_BACK = {"opened_before_ns": "CH-11", "got_before_ns": "CO-07"}
RATED = ("channel.open", "basic.get")


def rates(sources: Sources) -> DataFrame | None:
    """Context 'rates'."""
    if max(sources.said[name] for name in RATED) <= min(_limits(sources).values(), default=0):
        return None
    polls = F.col("name") == "basic.get"
    in_order = Window.partitionBy("connection_id", "name", "on_channel").orderBy("frame_no")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    back = {name: F.lag("ts_ns", limit).over(in_order) for name, limit in _limits(sources).items()}
    nothing = {name: F.lit(None).cast("bigint") for name in LOOKS_BACK if name not in back}
    return (
        sources.control_methods.filter(F.col("name").isin(*RATED))
        .select("connection_id", "frame_no", "ts_ns", "version", "channel", "name", "reply_name")
        .withColumn("channel_life", life())
        .withColumn("on_channel", F.when(polls, F.col("channel")))
        .withColumns(
            {
                **back,
                **nothing,
                "empty_share": F.avg(F.col("reply_name").eqNullSafe("basic.get-empty").cast("int")).over(so_far),
            }
        )
    )


def _limits(sources: Sources) -> dict[str, int]:
    """By column how many rows back it looks."""
    return {
        name: int(sources.parameters[rule]["limit_per_minute"])
        for name, rule in LOOKS_BACK.items()
        if rule in sources.parameters
    }
