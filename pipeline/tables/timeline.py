"""Timeline: what happens on each life of each channel, in order, and what each message is a part of.

Rows: messages, acknowledgements, and all requests and replies; each with the life of its channel, the mode it is in, its
transaction, the consumer it came from, and for publishes in confirm mode the number the broker counts. One exchange by
connection, then sorts and running windows: n log n, whatever is outstanding.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.tables.dialogues import channel_life, dialogues, in_order, is_sync
from pipeline.tables.roles import (
    CLOSES_CHANNEL,
    CLOSES_LINK,
    DECLARES_QUEUE,
    MODES,
    OPENS_LINK,
    OPERATIONS,
    SETTLEMENTS,
    TRANSACTION_ENDS,
    looked_up,
    named,
)

LIFE = ("connection_id", "channel", "channel_life")
SETTLES = tuple({method for method, _, _ in SETTLEMENTS})


def timeline(events: DataFrame) -> DataFrame:
    """`events` -> the rows of every channel with the columns that later steps read; losses are gone."""
    paired = dialogues(events)
    alone = events.filter((named((*OPERATIONS, *SETTLES)) & ~is_sync()) | F.col("loss"))
    rows = paired.unionByName(alone, allowMissingColumns=True)
    return _with_links(_with_modes(_with_losses(rows)))


def of_this_life(state: str) -> Column:
    """Struct column `state` if it was noted in the row's own life of the channel, else null."""
    return F.when(F.col(f"{state}.channel_life") == F.col("channel_life"), F.col(state))


def _with_losses(rows: DataFrame) -> DataFrame:
    """`client_losses`, `server_losses` so far, and `*_in_all` of the connection: where what a side sent may be missing."""
    everything = Window.partitionBy("connection_id")
    for side in ("client", "server"):
        lost = (F.col("loss") & (F.col("sender") == side)).cast("bigint")
        rows = rows.withColumn(f"{side}_losses", F.sum(lost).over(in_order("connection_id")))
        rows = rows.withColumn(f"{side}_losses_in_all", F.max(f"{side}_losses").over(everything))
    return rows.filter(~F.col("loss")).drop("loss")


def _noted(condition: Column, *values: Column | str) -> Column:
    """A struct of the row's life and `values` on rows that meet `condition`; null elsewhere."""
    return F.when(condition, F.struct("channel_life", *values))


def _latest(condition: Column, *values: Column | str) -> Column:
    return F.last(_noted(condition, *values), ignorenulls=True).over(in_order("connection_id", "channel"))


def _with_modes(rows: DataFrame) -> DataFrame:
    """`mode`, `confirm_tag`, `highest_tag`, `declared_queue` and the transaction's end, as of each row.

    All windows run over (connection, channel) so that one sort serves them; what was noted in an earlier life of the
    channel is dropped again (`of_this_life`).
    """
    mode = looked_up(MODES)
    published = F.col("operation") == "publish"
    delivered = F.col("operation").isin("deliver", "get")
    queue = F.coalesce("reply.queue", F.nullif(F.col("queue"), F.lit("")))
    # Of repeated selects the first counts: in a maximum it is the one with the highest negative frame_no.
    first_select = _noted(mode == "confirm", (-F.col("frame_no")).alias("order"), "published_so_far", "client_losses")
    ends = "(partition by connection_id, channel order by frame_no)"
    rows = (
        rows.withColumn("channel_life", channel_life())
        .withColumn("operation", looked_up(OPERATIONS))
        .withColumn("published_so_far", F.count(F.when(published, 1)).over(in_order("connection_id", "channel")))
        .withColumn("select", _latest(mode.isNotNull(), mode.alias("mode")))
        .withColumn("confirm", F.max(first_select).over(in_order("connection_id", "channel")))
        .withColumn("highest", F.max(_noted(delivered, "delivery_tag")).over(in_order("connection_id", "channel")))
        .withColumn("declared", _latest(named(DECLARES_QUEUE) & queue.isNotNull(), queue.alias("queue")))
        .withColumn("end", _noted(named(TRANSACTION_ENDS), "ts_ns", _transaction_result().alias("result")))
        .withColumn("end", F.expr(f"lead(end, 1) ignore nulls over {ends}"))
    )
    for state in ("select", "confirm", "highest", "declared", "end"):
        rows = rows.withColumn(state, of_this_life(state))
    return (
        rows.withColumn("mode", F.coalesce("select.mode", F.lit("none")))
        .withColumn("highest_tag", F.col("highest.delivery_tag"))
        .withColumn("declared_queue", F.col("declared.queue"))
        .withColumn("confirm_tag", F.col("published_so_far") - F.col("confirm.published_so_far"))
        .withColumn("confirm_tag_sure", F.col("client_losses") == F.col("confirm.client_losses"))
        .withColumn("end", F.when(F.col("mode") == "tx", F.col("end")))
        .drop("select", "confirm", "highest", "declared", "published_so_far")
    )


def _transaction_result() -> Column:
    """Of the request that ends a transaction: how it ended, if the broker said that it did."""
    return F.when(F.col("reply").isNotNull(), looked_up(TRANSACTION_ENDS))


def _with_links(rows: DataFrame) -> DataFrame:
    """`link` (tag as the server knows it), `link_no` (how often that tag was opened), `link_queue`, `link_no_ack`."""
    link_life = in_order(*LIFE, "link")
    opens = named(OPENS_LINK)
    takes_part = opens | named(CLOSES_LINK) | (F.col("operation") == "deliver")
    tag = F.coalesce(F.nullif(F.col("consumer_tag"), F.lit("")), F.col("reply.consumer_tag"))
    queue = F.when(F.col("queue") == "", F.col("declared_queue")).otherwise(F.col("queue"))
    opened = F.when(opens, F.struct(queue.alias("queue"), "no_ack"))
    in_life = Window.partitionBy(*LIFE)
    closed_with = {
        f"{side}_losses_at_close": F.max(F.when(named(CLOSES_CHANNEL), F.col(f"{side}_losses"))).over(in_life)
        for side in ("client", "server")
    }
    return (
        rows.withColumn("link", F.when(takes_part, tag))
        .withColumn("link_no", F.when(takes_part, F.sum(opens.cast("bigint")).over(link_life)))
        .withColumn("opened", F.last(opened, ignorenulls=True).over(link_life))
        .withColumn("link_queue", F.when(F.col("link").isNotNull(), F.col("opened.queue")))
        .withColumn("link_no_ack", F.when(F.col("link").isNotNull(), F.col("opened.no_ack")))
        .drop("opened")
        .withColumns(closed_with)
    )
