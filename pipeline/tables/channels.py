"""Table channels: one row a life of a channel number, from opening to closing."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import CHANNELS
from pipeline.tables.shape import shaped, timestamp

TRANSACTED = 2  # ledger of publishes in transactions, whose outcomes are not counted
LIFE = ("connection_id", "channel", "channel_life")
COUNTED_OUTCOMES = ("confirmed", "nacked", "acked", "rejected", "requeued")


def ended(settled: DataFrame) -> DataFrame:
    """SETTLED -> how many messages of a ledger have which outcome (`udfs.parts.ENDED`)."""
    return (
        settled.filter(F.col("outcome").isNotNull())
        .groupBy("connection_id", "ledger", "outcome")
        .agg(F.count("*").alias("count_all"))
    )


def channels(lives: DataFrame, ended: DataFrame) -> DataFrame:
    """Lives of channels out of the history, and what became of their messages (`ended`) -> table channels."""
    # Lives of one channel by what their ledgers are numbered with (codec.channel_results, ledger_of).
    channel, life = F.shiftright("ledger", 42), F.shiftright("ledger", 2).bitwiseAND((1 << 40) - 1)
    counts = (
        ended.filter(F.col("ledger").bitwiseAND(3) != TRANSACTED)
        .groupBy("connection_id", channel.alias("channel"), life.alias("channel_life"))
        .agg(
            *(F.sum(F.when(F.col("outcome") == name, F.col("count_all"))).alias(name) for name in COUNTED_OUTCOMES),
            F.sum("count_all").alias("ended"),
        )
    )
    zero = F.lit(0)
    return shaped(
        lives.join(counts, list(LIFE), "left").withColumns(
            {
                "opened_ts": timestamp("opened_ns"),
                "closed_ts": timestamp("closed_ns"),
                "mode": F.coalesce("mode", F.lit("none")),
                **{name: F.coalesce(name, zero) for name in COUNTED_OUTCOMES},
                "unsettled": F.col("opened") - F.coalesce("ended", zero),
            }
        ),
        CHANNELS,
    )
