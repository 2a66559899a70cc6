"""Settlement: what became of each message, and when.

On one life of a channel the messages of one side are settled by methods of the other: of one tag, of all tags up to one
(`multiple`), or of everything outstanding. A settlement of many is brought to its effective tag, the highest it covers
among the tags so far; then a message is settled by the earliest of (a) settlements of its own tag, (b) settlements of
many whose effective tag is not below its own. Over rows sorted by falling tag (b) is a running minimum, and (a) stands
right before the message: n log n also with a million messages outstanding.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.tables.roles import OUTSIDE_TRANSACTIONS, SETTLEMENTS, SETTLES_ALL, named, other
from pipeline.tables.timeline import LIFE

WORKING_COLUMNS = (
    "settles",
    "many",
    "side",
    "end",
    "confirm_tag",
    "confirm_tag_sure",
    "highest_tag",
    "delivery_tag",
    "multiple",
)
NO_LONGER_NEEDED = ("requeue", "settlement", "undone", "client_losses_later", "server_losses_later")


def settled(timeline: DataFrame) -> DataFrame:
    """`timeline` with, on messages, `tag`, `outcome`, `settled_ts_ns`, `transaction`; acknowledgements are gone."""
    rows = (
        timeline.withColumn("settles", _outcome_of_method())
        .withColumn("many", F.col("settles").isNotNull() & (F.coalesce("multiple", F.lit(False)) | named(SETTLES_ALL)))
        .withColumn("side", F.when(F.col("settles").isNotNull(), other("sender")).otherwise(F.col("sender")))
        .withColumn("tag", _tag())
        .withColumns(_effects())
    )
    messages = _with_settlement(rows).filter(F.col("settles").isNull()).drop(*WORKING_COLUMNS)
    return _with_outcome(messages).drop(*NO_LONGER_NEEDED)


def _outcome_of_method() -> Column:
    """Outcome that the row's method gives to messages; null when it settles nothing."""

    def case(chain: Column | None, rule: tuple[tuple[str, str, bool | None], str]) -> Column:
        (method, sender, requeue), outcome = rule
        applies = (F.col("name") == method) & (F.col("sender") == sender)
        if requeue is not None:
            applies &= F.col("requeue") == requeue
        return F.when(applies, outcome) if chain is None else chain.when(applies, outcome)

    chain = reduce(case, SETTLEMENTS.items(), None)
    assert chain is not None
    return chain


def _tag() -> Column:
    """Tag of a message, or (effective) tag of a settlement."""
    so_far = F.when(F.col("side") == "client", F.col("confirm_tag")).otherwise(F.col("highest_tag"))
    whole = named(SETTLES_ALL) | (F.col("delivery_tag") == 0)
    effective = F.when(whole, so_far).otherwise(F.least(so_far, "delivery_tag"))
    counted = F.when(F.col("confirm_tag_sure"), F.col("confirm_tag"))
    return (
        F.when(F.col("many"), F.when(so_far.isNotNull(), effective))
        .when(F.col("operation") == "publish", counted)
        .otherwise(F.col("delivery_tag"))
    )


def _effects() -> dict[str, Column]:
    """On settlements: `one` or `many_`, the settlement it makes, and `undone`, that it was rolled back.

    `end` becomes the result of the transaction that a publish is in.
    """
    settles = F.col("settles").isNotNull()
    in_transaction = (F.col("mode") == "tx") & ~named(OUTSIDE_TRANSACTIONS)
    effective = settles & (~in_transaction | F.coalesce(F.col("end.result") == "committed", F.lit(False)))
    undone = settles & in_transaction & F.coalesce(F.col("end.result") == "rolled-back", F.lit(False))
    settlement = F.struct(
        "frame_no",
        F.when(in_transaction, F.col("end.ts_ns")).otherwise(F.col("ts_ns")).alias("ts_ns"),
        F.col("settles").alias("outcome"),
        F.when(in_transaction, F.col("end.result")).alias("transaction"),
    )
    of_one = F.struct("tag", settlement.alias("settlement"))
    return {
        "one": F.when(effective & ~F.col("many"), of_one),
        "every": F.when(effective & F.col("many"), settlement),
        "one_undone": F.when(undone & ~F.col("many"), F.struct("tag", "frame_no")),
        "every_undone": F.when(undone & F.col("many"), F.col("frame_no")),
        "transaction": F.when(F.col("operation") == "publish", F.col("end.result")),
    }


def _with_settlement(rows: DataFrame) -> DataFrame:
    """Of each message's tag: `settlement` (frame_no, ts_ns, outcome, transaction); `undone`: one was rolled back.

    Among equal tags the settlements come first, the earliest of them last: right before the messages.
    """
    message = F.col("settles").isNull()
    by_tag = (
        Window.partitionBy(*LIFE, "side")
        .orderBy(F.desc("tag"), message, F.desc("frame_no"))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    windows = {
        "one": F.last("one", ignorenulls=True).over(by_tag),
        "every": F.min("every").over(by_tag),
        "one_undone": F.last("one_undone", ignorenulls=True).over(by_tag),
        "every_undone": F.max("every_undone").over(by_tag),
    }
    of_tag = {name: F.col(f"{name}.tag") == F.col("tag") for name in ("one", "one_undone")}
    return (
        rows.withColumns(windows)
        .withColumn("settlement", F.least(F.when(of_tag["one"], F.col("one.settlement")), "every"))
        .withColumn("undone", F.coalesce(F.when(of_tag["one_undone"], F.col("one_undone.frame_no")), "every_undone"))
        .drop(*windows)
    )


def _with_outcome(rows: DataFrame) -> DataFrame:
    message, sent = F.col("operation").isNotNull(), F.col("operation") == "publish"
    answered = F.col("tag").isNotNull() & (F.col("settlement.frame_no") > F.col("frame_no"))
    answered = message & F.coalesce(answered, F.lit(False))
    # An answer may be missing where, later and before the channel closed, frames of the settling side may be.
    lost = F.when(F.col("sender") == "client", F.col("server_losses_later")).otherwise(F.col("client_losses_later"))
    unanswered = F.when(lost, "unknown").otherwise("unsettled")
    delivery = (
        F.when(F.col("no_ack"), "presettled")
        .when(answered, F.col("settlement.outcome"))
        .when(F.col("no_ack").isNull(), "unknown")
        .otherwise(unanswered)
    )
    publish = (
        F.when((F.col("mode") != "confirm") | F.col("tag").isNull(), "unknown")
        .when(answered, F.col("settlement.outcome"))
        .otherwise(unanswered)
    )
    outcome = F.when(sent, publish).when(F.col("operation") == "return", "presettled").otherwise(delivery)
    by_answer = answered & ~F.col("outcome").isin("presettled", "unknown")
    undone = F.when(F.col("undone") > F.col("frame_no"), "rolled-back")
    of_delivery = F.when(by_answer, F.col("settlement.transaction")).otherwise(undone)
    return (
        rows.withColumn("outcome", F.when(message, outcome))
        .withColumn("settled_ts_ns", F.when(by_answer, F.col("settlement.ts_ns")))
        .withColumn("transaction", F.when(sent, F.col("transaction")).when(message, of_delivery))
    )
