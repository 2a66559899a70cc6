"""Context 'incarnations': one row per channel incarnation of the classic family, with its methods and messages.

An incarnation lasts from an open of a channel number to the next open; `channel_life` numbers them.

    methods       array of (sender, name, class_id, method_id, times, first_frame, last_frame), by method and sender
    close         the first channel.close: sender, frame_no, ts_ns and its arguments
    close_ok_ns   time of its channel.close-ok
    ended         the channel or its connection was closed
    until_ns      end of the incarnation, or of the capture of its connection
    open_channels incarnations that are open when their connection ends
    unsettled, refused, redelivered, delivered, persistent: messages; `first_*`: frame of the first of them

Context 'rates': methods with a limit on their rate.

opened_before_ns  time of the channel.open on this connection that is `limit_per_minute` of CH-11 opens before this one
got_before_ns     the same for basic.get on this channel and CO-07
empty_share       share of the gets on the channel so far that were answered with get-empty

Context 'tags': methods that name a consumer tag, with the previous method that named it.

    consumer_tag
    tag_was      the previous basic.consume, consume-ok, cancel or cancel-ok with this tag in this channel incarnation:
                 name, sender, frame_no
    tag_was_anywhere  the same on any channel of the connection, with channel and channel_life

Deliveries are rows as well, except those to a consumer that was started before and not cancelled before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from codec.sides import SIDES
from pipeline.audit.contexts.materialized import materialize_if_any
from pipeline.audit.detector import NEVER, sql_in
from pipeline.tables.roles import CONNECTION_CHANNEL

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

CHANNEL = ("connection_id", "channel", "channel_life")
CLOSE_ARGUMENTS = "struct<reply_code int, reply_text string, class_id int, method_id int>"
METHOD_COLUMNS = (
    "connection_id", "channel", "frame_no", "ts_ns", "version", "sender", "name", "class_id", "method_id",
    "content_frame_no",
)  # fmt: skip
COUNTED_METHOD = ("sender", "name", "class_id", "method_id", "times", "first_frame", "last_frame")
# Kind of message -> condition on table messages.
MESSAGE_KINDS = {
    "delivered": "operation IN ('deliver', 'get')",
    "unsettled": "operation IN ('deliver', 'get') AND outcome = 'unsettled'",
    "refused": "operation IN ('deliver', 'get') AND outcome IN ('rejected', 'requeued')",
    "redelivered": "operation IN ('deliver', 'get') AND redelivered",
    "persistent": "operation = 'publish' AND durable",
}


def channel_methods(sources: Sources, values: Mapping[str, Column], names: Iterable[str] = ()) -> DataFrame:
    """Unusual methods of the classic family on channels: METHOD_COLUMNS, `channel_life` as in the tables, and `values`
    computed from the other columns. `names`: only these methods, and channel.open."""
    rows = sources.unusual_methods
    if rows is None:
        rows = sources.control_methods.limit(0).withColumn("stretch_life", F.lit(None).cast("bigint"))
    if names:
        rows = rows.filter(F.col("name").isin(["channel.open", *names]))
    # Project before sorting: arguments are wide.
    chosen = rows.select(*METHOD_COLUMNS, *(value.alias(name) for name, value in values.items()))
    return chosen.withColumn("channel_life", channel_life())


def channel_life() -> Column:
    """Column `channel_life`: how often the channel of a row was opened so far."""
    so_far = Window.partitionBy("connection_id", "channel").orderBy("frame_no")
    opens = F.when(F.col("name") == "channel.open", 1)
    return F.count(opens).over(so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow))


def incarnations(sources: Sources) -> DataFrame:
    """Context 'incarnations'."""
    # Nearly all methods lie in stretches with a known incarnation: only the others need sorting.
    calm = sources.transfer_counts.filter("stretch_life IS NOT NULL").withColumn("channel_life", F.col("stretch_life"))
    others = channel_methods(sources, {"stretch_life": F.col("stretch_life")}).filter("stretch_life IS NULL")
    tallies = calm.select(*CHANNEL, "version", *COUNTED_METHOD, "first_ns").unionByName(
        others.select(
            *CHANNEL, "version", *COUNTED_METHOD[:4], F.lit(1).cast("bigint").alias("times"),
            F.col("frame_no").alias("first_frame"), F.col("frame_no").alias("last_frame"),
            F.col("ts_ns").alias("first_ns"),
        )
    ).groupBy(*CHANNEL, "version", *COUNTED_METHOD[:4]).agg(
        F.sum("times").alias("times"),
        F.min("first_frame").alias("first_frame"),
        F.max("last_frame").alias("last_frame"),
        F.min("first_ns").alias("first_ns"),
    )  # fmt: skip
    answers = F.col("name") == "channel.close-ok"
    counted = tallies.groupBy(*CHANNEL).agg(
        F.any_value("version").alias("version"),
        F.collect_list(F.struct(*COUNTED_METHOD)).alias("methods"),
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
        counted.join(_closes(sources), list(CHANNEL), "left")
        .join(_messages(sources.message_counts), list(CHANNEL), "left")
        .join(sources.connection_facts, "connection_id", "left")
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
    """The first channel.close of each incarnation. Read separately: arguments are slow to read."""
    args = F.expr(f"try_variant_get(arguments, '$', '{CLOSE_ARGUMENTS}')")
    closes = channel_methods(sources, {"args": args}, ["channel.close"]).filter("name = 'channel.close'")
    return closes.groupBy(*CHANNEL).agg(F.min(F.struct("frame_no", "ts_ns", "sender", "args.*")).alias("close"))


def _messages(counts: DataFrame) -> DataFrame:
    """Messages of each kind in MESSAGE_KINDS by incarnation: their number, and the frame of the first."""
    return counts.groupBy(*CHANNEL).agg(
        *(F.sum(name).alias(name) for name in MESSAGE_KINDS),
        *(F.min(f"first_{name}").alias(f"first_{name}") for name in MESSAGE_KINDS),
    )


# Column -> the rule whose limit is its offset in rows.
LOOKS_BACK = {"opened_before_ns": "CH-11", "got_before_ns": "CO-07"}
RATED = ("channel.open", "basic.get")


def rates(sources: Sources) -> DataFrame | None:
    """Context 'rates'."""
    if max(sources.method_counts[name] for name in RATED) <= min(_limits(sources).values(), default=0):
        return None
    polls = F.col("name") == "basic.get"
    in_order = Window.partitionBy("connection_id", "name", "on_channel").orderBy("frame_no")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    back = {name: F.lag("ts_ns", limit).over(in_order) for name, limit in _limits(sources).items()}
    nothing = {name: F.lit(None).cast("bigint") for name in LOOKS_BACK if name not in back}
    return (
        sources.control_methods.filter(F.col("name").isin(*RATED))
        .select("connection_id", "frame_no", "ts_ns", "version", "channel", "name", "reply_name")
        .withColumn("channel_life", channel_life())
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
    """Column -> its offset in rows."""
    return {
        name: int(sources.parameters[rule]["limit_per_minute"])
        for name, rule in LOOKS_BACK.items()
        if rule in sources.parameters
    }


BEGINS = ("basic.consume", "basic.consume-ok")
CONSUMER_METHODS = (*BEGINS, "basic.cancel", "basic.cancel-ok")


def tags(sources: Sources) -> DataFrame:
    """Context 'tags'."""
    tag = F.expr("try_variant_get(arguments, '$.consumer_tag', 'string')")
    tagged = channel_methods(sources, {"consumer_tag": tag}, CONSUMER_METHODS).filter(
        "consumer_tag != '' AND name != 'channel.open'"
    )
    delivered = _deliveries_of_tags(sources, tagged)
    rows = tagged if delivered is None else tagged.unionByName(delivered, allowMissingColumns=True)
    statement = F.when(
        F.col("name").isin(list(CONSUMER_METHODS)), F.struct("name", "sender", "frame_no", "channel", "channel_life")
    )
    return rows.withColumns(
        {
            "tag_was": _last_before(statement, *CHANNEL, "consumer_tag"),
            "tag_was_anywhere": _last_before(statement, "connection_id", "consumer_tag"),
        }
    ).join(sources.connection_facts, "connection_id", "left")


def _deliveries_of_tags(sources: Sources, tagged: DataFrame) -> DataFrame | None:
    """Deliveries, from table messages, which has their tags as a column."""
    frame_no = F.col("first_frame_no")
    begins = F.col("name").isin(*BEGINS)
    consumers = tagged.groupBy(*CHANNEL, F.col("consumer_tag").alias("link")).agg(
        F.min(F.when(begins, F.col("frame_no"))).alias("begun"),
        F.coalesce(F.min(F.when(~begins, F.col("frame_no"))), F.lit(NEVER)).alias("cancelled"),
    )
    versions = sources.tables.connections.select("connection_id", "version")
    # Most consumers get all of their deliveries between start and cancel.
    odd = materialize_if_any(
        sources.message_counts.filter("operation = 'deliver' AND link != ''")
        .join(versions, "connection_id")
        .filter(sql_in("version", CONNECTION_CHANNEL))
        .join(consumers, [*CHANNEL, "link"], "left")
        .filter("NOT coalesce(first_frame > begun AND last_frame < cancelled, false)")
        .select(*CHANNEL, "link", "version", "begun", "cancelled")
    )
    if odd is None:
        return None
    return (
        sources.tables.messages.filter("operation = 'deliver'")
        .join(odd, [*CHANNEL, "link"])
        .filter("NOT coalesce(first_frame_no > begun AND first_frame_no < cancelled, false)")
        .select(
            *CHANNEL, frame_no.alias("frame_no"), frame_no.alias("content_frame_no"), "ts_ns", "version",
            F.lit("server").alias("sender"), F.lit("basic.deliver").alias("name"), F.col("link").alias("consumer_tag"),
        )
    )  # fmt: skip


def _last_before(value: Column, *partition: str) -> Column:
    rows = Window.partitionBy(*partition).orderBy("frame_no").rowsBetween(Window.unboundedPreceding, -1)
    return F.last(value, ignorenulls=True).over(rows)
