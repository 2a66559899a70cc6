"""Sessions of 0-10 and 1.0: which one a row belongs to, and table channels: one row a life of a session.

In 1.0 each side numbers its own channels: a begin without remote_channel opens a session, the begin that answers it
names the opener's number as its remote_channel. The row bears the opener's number. In 0-10 both directions share it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from codec.sides import SIDES
from pipeline.schemas import CHANNELS
from pipeline.tables.roles import LOSSES, named, other
from pipeline.tables.session_roles import (
    ACCEPTS_SESSION,
    ANNOUNCES_WINDOWS,
    CLOSES_SESSION,
    COUNTED,
    OPENS_SESSION,
    SAYS_WHY,
)
from pipeline.tables.shape import shaped, timestamp

SESSION = ("connection_id", "session_channel", "channel_life")
PLACE = ("connection_id", "frame_no", "sender", "ts_ns", "channel", "name", "content_frame_no")
# What every family states of a row, null where it does not apply.
SAID = """struct<remote_channel: int, name: string, code: int, incoming_window: bigint, outgoing_window: bigint,
    error: struct<condition: string, description: string>, mode: string>"""


def spoken(
    frames: DataFrame, version: str, names: tuple[str, ...], settles: tuple[str, ...], *values: Column
) -> DataFrame:
    """The rows of `frames` of `version` with one of `names`: their place, `values` out of their arguments and
    properties, and columns that count what may be missing so far.

    `client_losses`, `server_losses`: places across which nothing is paired; `client_hidden`, `server_hidden`: these,
    and frames torn by a loss that may have been one of `settles`; `*_in_all` of the connection.
    """
    lost = is_loss()
    torn = (F.col("status") != "ok") & F.coalesce(F.col("name").isin(list(settles)), F.col("arguments").isNull())
    hides = lost | F.coalesce(torn & ~F.col("frame_type").isin("gap", "skipped"), F.lit(False))
    of_version = (F.col("version") == version) | (F.col("version").isNull() & lost)
    so_far = Window.partitionBy("connection_id").orderBy("frame_no")
    in_all = so_far.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    counts = {
        f"{side}_{what}": F.sum(F.when((F.col("sender") == side) & F.col(what), 1).otherwise(0)).over(so_far)
        for side in SIDES
        for what in ("losses", "hidden")
    }
    counts |= {
        f"{side}_hidden_in_all": F.sum(F.when((F.col("sender") == side) & F.col("hidden"), 1).otherwise(0)).over(in_all)
        for side in SIDES
    }
    return (
        frames.filter(of_version & (named(names) | hides))
        .select(*PLACE, lost.alias("losses"), hides.alias("hidden"), *values)
        .withColumns(counts)
        .filter(named(names))
        .drop("losses", "hidden")
    )


def is_loss() -> Column:
    """True on rows of `frames` across which nothing may be paired (LOSSES)."""
    found = F.lit(False)
    for kind, column, value in LOSSES:
        said = F.col(column).isNotNull() if value is None else F.col(column) == value
        found |= F.coalesce((F.col("frame_type") == kind) & ~said, F.lit(False))
    return found


def in_sessions(rows: DataFrame, *, apart: bool) -> DataFrame:
    """`rows` (with `said`) and the session of each: `opener`, `opening`, `session_channel`, `channel_life`,
    `opened_losses` (of both sides, when it was opened). `apart`: each side numbers its own channels.

    A row whose session was opened before the capture stands under its own number.
    """
    if not apart:
        # Both directions share a number: who opened it does not tell sessions apart.
        nobody = F.lit(None).cast("string")
        columns = {"opening": named(OPENS_SESSION), "opener": nobody, "session_channel": F.col("channel")}
        return _with_lives(rows.withColumns(columns))
    own = Window.partitionBy("connection_id", "sender", "channel").orderBy("frame_no")
    answers = F.col("said.remote_channel").isNotNull()
    opener = F.when(answers, other("sender")).otherwise(F.col("sender"))
    begun = F.when(
        named(OPENS_SESSION),
        F.struct(opener.alias("opener"), F.coalesce("said.remote_channel", "channel").alias("channel")),
    )
    rows = (
        rows.withColumn("opening", named(OPENS_SESSION) & ~answers)
        .withColumn("begun", F.last(begun, ignorenulls=True).over(own))
        .withColumn("opener", F.coalesce("begun.opener", "sender"))
        .withColumn("session_channel", F.coalesce("begun.channel", "channel"))
        .drop("begun")
    )
    return _with_lives(rows)


def _with_lives(rows: DataFrame) -> DataFrame:
    """`channel_life`: how often the number was opened, by either side, when the row's session was."""
    number = Window.partitionBy("connection_id", "session_channel").orderBy("frame_no")
    of_opener = Window.partitionBy("connection_id", "session_channel", "opener").orderBy("frame_no")
    life = F.sum(F.col("opening").cast("bigint")).over(number)
    losses = (F.col("client_losses") + F.col("server_losses")).alias("losses")
    return (
        rows.withColumn("life", life)
        .withColumn("opened", F.last(F.when(F.col("opening"), F.struct("life", losses)), True).over(of_opener))
        .withColumn("channel_life", F.coalesce("opened.life", F.lit(0)))
        .withColumn("opened_losses", F.col("opened.losses"))
        .drop("life", "opened")
    )


def with_hidden_answers(rows: DataFrame) -> DataFrame:
    """`answer_hidden`: what the other side said of a message may be missing, later and before the session ended.

    The end is the last of the closing frames: the other side may answer until it has sent its own.
    """
    # From the end on: Spark evaluates a frame that reaches to the last row anew for each row.
    backwards = Window.partitionBy(*SESSION).orderBy(F.desc("frame_no"))
    later = backwards.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    hidden = F.struct(*(f"{side}_hidden" for side in SIDES))
    end = F.first(F.when(named(CLOSES_SESSION), hidden), ignorenulls=True).over(later)

    def may_miss(side: str) -> Column:
        return F.coalesce(F.col(f"end.{side}_hidden"), F.col(f"{side}_hidden_in_all")) > F.col(f"{side}_hidden")

    missing = F.when(F.col("sender") == "client", may_miss("server")).otherwise(may_miss("client"))
    return rows.withColumn("end", end).withColumn("answer_hidden", missing).drop("end")


def sessions(settled: DataFrame) -> DataFrame:
    """Settled rows of sessions -> rows of table channels."""
    return shaped(_described(settled.groupBy(*SESSION).agg(*_measures())), CHANNELS)


def _measures() -> list[Column]:
    windows = F.struct("frame_no", "said.incoming_window", "said.outgoing_window")
    announced = named(ANNOUNCES_WINDOWS) & (F.col("sender") == F.col("opener"))
    accepted = named(ACCEPTS_SESSION) & ~F.col("opening")
    reason = F.struct("frame_no", "said.error", "said.code")
    counts = {
        "published": F.col("operation") == "publish",
        "delivered": F.col("operation") == "deliver",
        "unsettled": F.col("outcome") == "unsettled",
    }
    counts |= {
        name: (F.col("sender") == side) & F.col("outcome").isin(list(outcomes))
        for name, (side, outcomes) in COUNTED.items()
    }
    return [
        F.min(F.when(F.col("opening"), F.col("ts_ns"))).alias("opened_ns"),
        F.any_value(F.when(F.col("opening"), F.col("said.name")), True).alias("session_name"),
        F.any_value(F.when(accepted & F.col("opener").isNotNull(), F.col("own_channel")), True).alias("remote_channel"),
        F.min(F.when(named(CLOSES_SESSION), F.struct("frame_no", "ts_ns", "sender"))).alias("close"),
        F.any_value(F.when(named(CLOSES_SESSION), F.col("said.code")), True).alias("detach_code"),
        F.min(F.when(named(SAYS_WHY) & F.col("said.error").isNotNull(), reason)).alias("reason"),
        F.max(F.when(announced, windows)).alias("windows"),
        F.max_by("said.mode", F.when(F.col("said.mode").isNotNull(), F.col("frame_no"))).alias("selected"),
        *(F.count(F.when(condition, 1)).alias(name) for name, condition in counts.items()),
    ]


def _described(rows: DataFrame) -> DataFrame:
    text = F.concat_ws(": ", "reason.error.condition", "reason.error.description")
    return rows.withColumns(
        {
            "channel": F.col("session_channel"),
            "opened_ts": timestamp("opened_ns"),
            "closed_ts": timestamp("close.ts_ns"),
            "close_initiator": F.col("close.sender"),
            # What went wrong comes before the session is taken down for it.
            "close_code": F.coalesce("reason.code", "detach_code"),
            "close_text": F.nullif(text, F.lit("")),
            "incoming_window": F.col("windows.incoming_window"),
            "outgoing_window": F.col("windows.outgoing_window"),
            "mode": F.coalesce("selected", F.lit("none")),
        }
    )
