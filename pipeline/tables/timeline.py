"""Timeline: what happens on each life of each channel, in order, and what each message is a part of.

Rows: messages, acknowledgements, and all requests and replies; each with the life of its channel, the mode it is in,
its transaction, the consumer it came from, and for publishes in confirm mode the number the broker counts. One
exchange by connection, then sorts and running windows: n log n, whatever is outstanding.
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
    OPENS_CHANNEL,
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


def _with_losses(rows: DataFrame) -> DataFrame:
    """`client_losses`, `server_losses` so far, `*_in_all` of the connection: where what a side sent may be missing."""
    so_far = in_order("connection_id")
    in_all = so_far.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    lost = {side: (F.col("loss") & (F.col("sender") == side)).cast("int") for side in ("client", "server")}
    counts = {f"{side}_losses": F.sum(value).over(so_far) for side, value in lost.items()}
    counts |= {f"{side}_losses_in_all": F.sum(value).over(in_all) for side, value in lost.items()}
    return rows.withColumns(counts).filter(~F.col("loss")).drop("loss", "no_wait")


def _noted(condition: Column, *values: Column | str) -> Column:
    """A struct of `values` on rows that meet `condition`; null elsewhere."""
    return F.when(condition, F.struct(*values))


def _with_modes(rows: DataFrame) -> DataFrame:
    """`channel_life`, `operation`, `mode`, `declared_queue`, and what `_with_ends` adds, as of each row.

    All windows run over (connection, channel) so that one sort serves them; what was noted before the channel was
    opened anew is dropped again.
    """
    channel = in_order("connection_id", "channel")
    mode = looked_up(MODES)
    queue = F.coalesce("reply.queue", F.nullif(F.col("queue"), F.lit("")))
    notes = {
        "select": _noted(mode.isNotNull(), "frame_no", mode.alias("mode")),
        "declared": _noted(named(DECLARES_QUEUE) & queue.isNotNull(), "frame_no", queue.alias("queue")),
    }
    rows = rows.withColumn("operation", looked_up(OPERATIONS)).withColumns(
        {
            "channel_life": channel_life(),
            "opened_at": F.max(F.when(named(OPENS_CHANNEL), F.col("frame_no"))).over(channel),
            "published": F.count(F.when(F.col("operation") == "publish", 1)).over(channel),
            **{name: F.last(note, ignorenulls=True).over(channel) for name, note in notes.items()},
        }
    )

    def of_this_life(state: str, value: str) -> Column:
        return F.when(F.col(f"{state}.frame_no") >= F.coalesce("opened_at", F.lit(0)), F.col(f"{state}.{value}"))

    rows = rows.withColumns(
        {
            "mode": F.coalesce(of_this_life("select", "mode"), F.lit("none")),
            "declared_queue": of_this_life("declared", "queue"),
        }
    ).drop("opened_at", "select", "declared")
    return _with_ends(rows)


def _with_ends(rows: DataFrame) -> DataFrame:
    """What needs the life of the channel: `confirm_tag` that the broker counts, `highest_tag` delivered (not the last:
    direct replies all have tag 1), and what comes later in the same life: `end` of the transaction, losses."""
    mode = looked_up(MODES)
    # Of repeated selects the first counts: in a maximum it is the one with the highest negative frame_no.
    order = (-F.col("frame_no")).alias("order")
    select = _noted(mode == "confirm", "channel_life", order, "published", "client_losses")
    end = _noted(named(TRANSACTION_ENDS), "channel_life", "ts_ns", _transaction_result().alias("result"))
    close = _noted(named(CLOSES_CHANNEL), "channel_life", "client_losses", "server_losses")
    delivery = _noted(F.col("operation").isin("deliver", "get"), "channel_life", "delivery_tag")
    channel = in_order("connection_id", "channel")
    following = "over (partition by connection_id, channel order by frame_no)"
    rows = rows.withColumns({"end": end, "close": close}).withColumns(
        {
            "confirm": F.max(select).over(channel),
            "highest": F.max(delivery).over(channel),
            "end": F.expr(f"lead(end, 1) ignore nulls {following}"),
            "close": F.expr(f"lead(close, 1) ignore nulls {following}"),
        }
    )

    def of_this_life(state: str) -> Column:
        return F.col(f"{state}.channel_life") == F.col("channel_life")

    confirming = of_this_life("confirm") & (F.col("mode") == "confirm")
    losses = {
        f"{side}_losses_later": F.coalesce(
            F.when(of_this_life("close"), F.col(f"close.{side}_losses")), f"{side}_losses_in_all"
        )
        > F.col(f"{side}_losses")
        for side in ("client", "server")
    }
    return rows.withColumns(
        {
            "confirm_tag": F.when(confirming, F.col("published") - F.col("confirm.published")),
            "highest_tag": F.when(of_this_life("highest"), F.col("highest.delivery_tag")),
            "confirm_tag_sure": F.col("client_losses") == F.col("confirm.client_losses"),
            "end": F.when(of_this_life("end") & (F.col("mode") == "tx"), F.struct("end.ts_ns", "end.result")),
            **losses,
        }
    ).drop(
        "confirm",
        "highest",
        "close",
        "published",
        "client_losses",
        "server_losses",
        "client_losses_in_all",
        "server_losses_in_all",
    )


def _transaction_result() -> Column:
    """Of the request that ends a transaction: how it ended, if the broker said that it did."""
    return F.when(F.col("reply").isNotNull(), looked_up(TRANSACTION_ENDS))


def _with_links(rows: DataFrame) -> DataFrame:
    """`link` (tag as the server knows it), `link_no` (times it was opened); `queue` and `no_ack` of deliveries."""
    link_life = in_order(*LIFE, "link")
    opens, delivers = named(OPENS_LINK), F.col("operation") == "deliver"
    takes_part = opens | named(CLOSES_LINK) | F.coalesce(delivers, F.lit(False))
    tag = F.coalesce(F.nullif(F.col("consumer_tag"), F.lit("")), F.col("reply.consumer_tag"))
    meant = F.coalesce("request.queue", "queue")
    queue = F.when(meant == "", F.col("declared_queue")).otherwise(meant)
    rows = rows.withColumns(
        {"link": F.when(takes_part, tag), "queue": queue, "no_ack": F.coalesce("request.no_ack", "no_ack")}
    ).drop("consumer_tag", "declared_queue", "request")
    opened = F.last(F.when(opens, F.struct("queue", "no_ack")), ignorenulls=True).over(link_life)
    rows = rows.withColumns(
        {"opened": opened, "link_no": F.when(takes_part, F.sum(opens.cast("bigint")).over(link_life))}
    )
    return rows.withColumns(
        {name: F.when(delivers, F.col(f"opened.{name}")).otherwise(F.col(name)) for name in ("queue", "no_ack")}
    ).drop("opened")
