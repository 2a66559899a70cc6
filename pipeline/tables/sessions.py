"""Sessions of 0-10 and 1.0 as rows of table channels: one row a life of a session's channel number.

In 1.0 each side numbers its own channels: a begin without remote_channel opens a session, the begin that answers it
names the opener's number as its remote_channel. The row bears the opener's number. In 0-10 both directions share it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.schemas import CHANNELS
from pipeline.tables.roles import MODES, SESSION_VERSIONS, TRANSFERS, looked_up, named, other
from pipeline.tables.shape import shaped, timestamp

OPENS = ("begin", "session.attach")
ACCEPTS = ("begin", "session.attached")
CLOSES = ("end", "session.detach", "session.detached")
ANNOUNCES = ("begin", "flow")
SPEAKS = tuple({*OPENS, *ACCEPTS, *CLOSES, *ANNOUNCES, *MODES, *TRANSFERS})
ARGUMENTS = """struct<remote_channel int, name string, code int, incoming_window bigint, outgoing_window bigint,
    error struct<condition string, description string>>"""
SESSION = ("connection_id", "session_channel", "channel_life")


def sessions(frames: DataFrame) -> DataFrame:
    """`frames` -> rows of table channels, of connections whose channels are sessions."""
    rows = frames.filter(F.col("version").isin(list(SESSION_VERSIONS)) & named(SPEAKS)).select(
        "connection_id",
        "frame_no",
        "sender",
        "ts_ns",
        "channel",
        "name",
        F.coalesce("content_frame_no", "frame_no").alias("content_frame_no"),
        (F.col("version") == "1.0").alias("apart"),
        F.expr(f"try_variant_get(arguments, '$', '{ARGUMENTS}')").alias("said"),
    )
    return shaped(_described(_lives(_placed(rows)).groupBy(*SESSION).agg(*_measures())), CHANNELS)


def _placed(rows: DataFrame) -> DataFrame:
    """`opener` and `session_channel`, the number at the opener, of each row; as the latest opening of its number says.

    A row whose session was opened before the capture stands for itself.
    """
    own = Window.partitionBy("connection_id", "sender", "channel").orderBy("frame_no")
    answers = F.col("said.remote_channel").isNotNull()
    opener = F.when(answers, other("sender")).otherwise(F.col("sender"))
    begun = F.when(
        named(OPENS), F.struct(opener.alias("opener"), F.coalesce("said.remote_channel", "channel").alias("channel"))
    )
    # Where both directions share a number, who opened it does not tell sessions apart.
    return (
        rows.withColumn("begun", F.last(begun, ignorenulls=True).over(own))
        .withColumn("opening", named(OPENS) & ~answers)
        .withColumn("opener", F.when(F.col("apart"), F.coalesce("begun.opener", "sender")))
        .withColumn("session_channel", F.when(F.col("apart"), F.col("begun.channel")))
        .withColumn("session_channel", F.coalesce("session_channel", "channel"))
    )


def _lives(rows: DataFrame) -> DataFrame:
    """`channel_life`: how often the number was opened, by either side, when the row's session was."""
    number = Window.partitionBy("connection_id", "session_channel").orderBy("frame_no")
    of_opener = Window.partitionBy("connection_id", "session_channel", "opener").orderBy("frame_no")
    opened = F.when(F.col("opening"), F.sum(F.col("opening").cast("bigint")).over(number))
    return rows.withColumn("opened", opened).withColumn(
        "channel_life", F.coalesce(F.last("opened", ignorenulls=True).over(of_opener), F.lit(0))
    )


def _measures() -> list[Column]:
    starts = F.col("content_frame_no") == F.col("frame_no")
    moves = named(TRANSFERS) & starts
    windows = F.struct("frame_no", "said.incoming_window", "said.outgoing_window")
    announced = named(ANNOUNCES) & (F.col("sender") == F.col("opener"))
    accepted = named(ACCEPTS) & ~F.col("opening")
    return [
        F.min(F.when(F.col("opening"), F.col("ts_ns"))).alias("opened_ns"),
        F.any_value(F.when(F.col("opening"), F.col("said.name")), True).alias("session_name"),
        F.any_value(F.when(accepted & F.col("apart"), F.col("channel")), True).alias("remote_channel"),
        F.min(F.when(named(CLOSES), F.struct("frame_no", "ts_ns", "sender", "said.error"))).alias("close"),
        F.any_value(F.when(named(CLOSES), F.col("said.code")), True).alias("close_code"),
        F.max(F.when(announced, windows)).alias("windows"),
        F.any_value(looked_up(MODES), True).alias("selected"),
        F.count(F.when(moves & (F.col("sender") == "client"), 1)).alias("published"),
        F.count(F.when(moves & (F.col("sender") == "server"), 1)).alias("delivered"),
    ]


def _described(rows: DataFrame) -> DataFrame:
    reason = F.concat_ws(": ", "close.error.condition", "close.error.description")
    return rows.withColumns(
        {
            "channel": F.col("session_channel"),
            "opened_ts": timestamp("opened_ns"),
            "closed_ts": timestamp("close.ts_ns"),
            "close_initiator": F.col("close.sender"),
            "close_text": F.nullif(reason, F.lit("")),
            "incoming_window": F.col("windows.incoming_window"),
            "outgoing_window": F.col("windows.outgoing_window"),
            "mode": F.coalesce("selected", F.lit("none")),
        }
    )
