"""Dialogues: which reply belongs to which request.

Requests of one dialogue (a request name with its reply names, `roles.dialogue_of`) by one asker on one life of a
channel are answered in order. So the n-th answer that can have a request belongs to the n-th request. An answer that
comes while no request is open (its request was not captured) belongs to none. Nothing is paired across a loss: each
loss of the connection begins a new epoch. Only sorts and running windows: n log n.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from pipeline.tables.roles import OPENS_CHANNEL, dialogue_of, looked_up, named, other, replies

DIALOGUE = ("connection_id", "channel", "channel_life", "epoch", "dialogue", "asker")

# What a row knows of its partner.
PARTNER = ("frame_no", "ts_ns", "name", "consumer_tag", "queue", "no_ack")


def in_order(*keys: str) -> WindowSpec:
    """The rows of `keys` in the order of their frames."""
    return Window.partitionBy(*keys).orderBy("frame_no")


def channel_life() -> Column:
    """How often the channel number was opened so far; 0 before the first captured opening."""
    return F.sum(named(OPENS_CHANNEL).cast("bigint")).over(in_order("connection_id", "channel"))


def is_sync() -> Column:
    """True on requests and replies."""
    return named(dialogue_of())


def dialogues(events: DataFrame) -> DataFrame:
    """The requests and replies of `events`, each with struct `reply` or `request` (of PARTNER) where it has one."""
    requests = replies()
    answers = [name for name in dialogue_of() if name not in requests]
    asks = named(requests) & ~F.coalesce(F.col("no_wait"), F.lit(False))
    placed = (
        events.filter(is_sync() | F.col("loss"))
        .withColumn("epoch", F.sum(F.col("loss").cast("bigint")).over(in_order("connection_id")))
        .filter(~F.col("loss"))
        .withColumn("channel_life", channel_life())
        .withColumn("dialogue", looked_up(dialogue_of()))
        .withColumn("asks", asks)
        .withColumn("answers", named(answers))
        .withColumn("asker", F.when(F.col("answers"), other("sender")).otherwise(F.col("sender")))
    )
    return _paired(_with_place(placed))


def _with_place(rows: DataFrame) -> DataFrame:
    """Column `place`: which request of its dialogue a row is, or answers; null when it neither asks nor has a request.

    `open` counts requests minus answers; each new minimum below zero is an answer without request.
    """
    so_far = in_order(*DIALOGUE)
    step = F.when(F.col("asks"), 1).when(F.col("answers"), -1).otherwise(0)
    asked = F.sum(F.col("asks").cast("bigint")).over(so_far)
    answered = F.sum(F.col("answers").cast("bigint")).over(so_far)
    orphans = F.greatest(F.lit(0), -F.min("open").over(so_far))
    return (
        rows.withColumn("open", F.sum(step).over(so_far))
        .withColumn("orphans", orphans)
        .withColumn("earlier_orphans", F.lag("orphans", 1, 0).over(so_far))
        .withColumn("asked", asked)
        .withColumn("answered", answered)
        .withColumn(
            "place",
            F.when(F.col("asks"), F.col("asked")).when(
                F.col("answers") & (F.col("orphans") == F.col("earlier_orphans")), F.col("answered") - F.col("orphans")
            ),
        )
        .drop("open", "orphans", "earlier_orphans", "asked", "answered")
    )


def _paired(rows: DataFrame) -> DataFrame:
    pair = in_order(*DIALOGUE, "place")
    partner = F.struct(*PARTNER)
    has_place = F.col("place").isNotNull()
    return (
        rows.withColumn("reply", F.when(has_place & F.col("asks"), F.lead(partner).over(pair)))
        .withColumn("request", F.when(has_place & F.col("answers"), F.lag(partner).over(pair)))
        .drop("epoch", "dialogue", "asks", "answers", "asker", "place", "channel_life")
    )
