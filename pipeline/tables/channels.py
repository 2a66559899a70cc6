"""Table channels: one row a life of a channel number, from opening to closing."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import CHANNELS
from pipeline.tables.roles import CLOSES_CHANNEL, MODES, OPENS_CHANNEL, SETS_PREFETCH, looked_up, named
from pipeline.tables.shape import shaped, timestamp
from pipeline.tables.timeline import LIFE

COUNTED_OPERATIONS = {"published": ["publish"], "delivered": ["deliver", "get"], "returned": ["return"]}
COUNTED_OUTCOMES = ("confirmed", "nacked", "acked", "rejected", "requeued", "unsettled")


def channels(settled: DataFrame) -> DataFrame:
    """`settled` timeline -> table channels."""
    earliest = F.struct("frame_no", "ts_ns", "sender", "details.reply_code", "details.reply_text")
    modes = F.struct("frame_no", looked_up(MODES).alias("mode"))
    prefetch = F.struct("frame_no", "details.prefetch_count", "details.prefetch_size")
    counts = {name: _count(F.col("operation").isin(values)) for name, values in COUNTED_OPERATIONS.items()}
    counts |= {name: _count(F.col("outcome") == name) for name in COUNTED_OUTCOMES}
    rows = (
        settled.filter(~F.col("on_connection"))
        .groupBy(*LIFE)
        .agg(
            F.min(F.when(named(OPENS_CHANNEL), F.col("ts_ns"))).alias("opened_ns"),
            F.min(F.when(named(CLOSES_CHANNEL), earliest)).alias("close"),
            F.max(F.when(looked_up(MODES).isNotNull(), modes)).alias("select"),
            F.max(F.when(named(SETS_PREFETCH), prefetch)).alias("prefetch"),
            *(count.alias(name) for name, count in counts.items()),
        )
    )
    return shaped(
        rows.withColumns(
            {
                "opened_ts": timestamp("opened_ns"),
                "closed_ts": timestamp("close.ts_ns"),
                "close_initiator": F.col("close.sender"),
                "close_code": F.col("close.reply_code"),
                "close_text": F.col("close.reply_text"),
                "mode": F.coalesce("select.mode", F.lit("none")),
                "prefetch_count": F.col("prefetch.prefetch_count"),
                "prefetch_size": F.col("prefetch.prefetch_size"),
            }
        ),
        CHANNELS,
    )


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, 1))
