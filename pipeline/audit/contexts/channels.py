"""Context 'lives': one row a life of a channel of the classic family, and what was said in it by method and sender.

    methods       array of (sender, name, class_id, method_id, times, first_frame, last_frame), one a method and sender
    close         the first channel.close: sender, frame_no, ts_ns and its arguments
    close_ok_ns   when it was answered
    ended         the life is over: its channel was closed, or its connection
    until_ns      when the life ended, or the capture of its connection
    open_channels lives that are open when their connection ends
    unsettled, refused, redelivered, delivered, persistent: messages of the life; `first_*`: frame of the first of them

What passes is counted already (`plain.passing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from codec.sides import SIDES

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

LIFE = ("connection_id", "channel", "channel_life")
SAID_IN_CLOSE = "struct<reply_code int, reply_text string, class_id int, method_id int>"
OF_METHOD = (
    "connection_id", "channel", "frame_no", "ts_ns", "version", "sender", "name", "class_id", "method_id",
    "content_frame_no",
)  # fmt: skip
METHOD = ("sender", "name", "class_id", "method_id", "times", "first_frame", "last_frame")
# Kind of message -> which it is, in SQL over table messages.
COUNTED = {
    "delivered": "operation IN ('deliver', 'get')",
    "unsettled": "operation IN ('deliver', 'get') AND outcome = 'unsettled'",
    "refused": "operation IN ('deliver', 'get') AND outcome IN ('rejected', 'requeued')",
    "redelivered": "operation IN ('deliver', 'get') AND redelivered",
    "persistent": "operation = 'publish' AND durable",
}


def channel_methods(sources: Sources, values: Mapping[str, Column], names: Iterable[str] = ()) -> DataFrame:
    """Methods of the classic family on channels that are not plain: columns OF_METHOD of frames, `channel_life` as in
    the tables, and `values` out of what else is there. `names`: only these, and what opens a channel."""
    rows = sources.odd_methods
    if rows is None:
        rows = sources.control_methods.limit(0).withColumn("calm_life", F.lit(None).cast("bigint"))
    if names:
        rows = rows.filter(F.col("name").isin(["channel.open", *names]))
    # Before rows are put in order: arguments are wide.
    chosen = rows.select(*OF_METHOD, *(value.alias(name) for name, value in values.items()))
    return chosen.withColumn("channel_life", life())


def life() -> Column:
    """How often the channel of a row was opened so far."""
    so_far = Window.partitionBy("connection_id", "channel").orderBy("frame_no")
    opens = F.when(F.col("name") == "channel.open", 1)
    return F.count(opens).over(so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow))


def lives(sources: Sources) -> DataFrame:
    """Context 'lives'."""
    # Nearly all methods lie in stretches, whose life is known: only the others have to be put in order.
    calm = sources.passing.filter("calm_life IS NOT NULL").withColumn("channel_life", F.col("calm_life"))
    others = channel_methods(sources, {"calm_life": F.col("calm_life")}).filter("calm_life IS NULL")
    tallies = calm.select(*LIFE, "version", *METHOD, "first_ns").unionByName(
        others.select(
            *LIFE, "version", *METHOD[:4], F.lit(1).cast("bigint").alias("times"),
            F.col("frame_no").alias("first_frame"), F.col("frame_no").alias("last_frame"),
            F.col("ts_ns").alias("first_ns"),
        )
    ).groupBy(*LIFE, "version", *METHOD[:4]).agg(
        F.sum("times").alias("times"),
        F.min("first_frame").alias("first_frame"),
        F.max("last_frame").alias("last_frame"),
        F.min("first_ns").alias("first_ns"),
    )  # fmt: skip
    answers = F.col("name") == "channel.close-ok"
    spoken = tallies.groupBy(*LIFE).agg(
        F.any_value("version").alias("version"),
        F.collect_list(F.struct(*METHOD)).alias("methods"),
        *(
            F.min(F.when(answers & (F.col("sender") == side), F.col("first_ns"))).alias(f"{side}_ok_ns")
            for side in SIDES
        ),
        F.max("last_frame").alias("last_frame"),
    )
    answered = F.when(F.col("close.sender") == "client", F.col("server_ok_ns")).otherwise(F.col("client_ok_ns"))
    over = F.expr("c.close.frame_no IS NOT NULL OR coalesce(c.tcp_end, 'none') != 'none'")
    still_open = F.when(F.col("close").isNull(), 1)
    return (
        spoken.join(_closes(sources), list(LIFE), "left")
        .join(_messages(sources.tallied), list(LIFE), "left")
        .join(sources.of_connection, "connection_id", "left")
        .withColumns(
            {
                "close_ok_ns": answered,
                "connection_ended": over,
                "ended": over | F.col("close").isNotNull(),
                "until_ns": F.least("c.close.ts_ns", "c.last_ns"),
                "open_channels": F.count(still_open).over(Window.partitionBy("connection_id")),
            }
        )
    )


def _closes(sources: Sources) -> DataFrame:
    """The first channel.close of each life. Read by itself: whoever reads arguments reads those of all rows."""
    said = F.expr(f"try_variant_get(arguments, '$', '{SAID_IN_CLOSE}')")
    closes = channel_methods(sources, {"said": said}, ["channel.close"]).filter("name = 'channel.close'")
    return closes.groupBy(*LIFE).agg(F.min(F.struct("frame_no", "ts_ns", "sender", "said.*")).alias("close"))


def _messages(tallied: DataFrame) -> DataFrame:
    """Of each life, how many messages of each kind of COUNTED, and the frame of the first."""
    return tallied.groupBy(*LIFE).agg(
        *(F.sum(name).alias(name) for name in COUNTED),
        *(F.min(f"first_{name}").alias(f"first_{name}") for name in COUNTED),
    )


def times(*methods: str, sender: str | None = None) -> str:
    """SQL over 'lives': how often these methods were said, by `sender` where given."""
    return f"aggregate({_those(methods, sender)}, 0L, (sum, m) -> sum + m.times)"


def last(*methods: str, sender: str | None = None) -> str:
    """SQL over 'lives': the last frame with one of these methods; 0 for none."""
    return f"coalesce(array_max(transform({_those(methods, sender)}, m -> m.last_frame)), 0L)"


def _those(methods: Iterable[str], sender: str | None) -> str:
    names = ", ".join(f"'{name}'" for name in methods)
    by = f" AND m.sender = '{sender}'" if sender else ""
    return f"filter(methods, m -> m.name IN ({names}){by})"
