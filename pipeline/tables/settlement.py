"""Settlement: what became of each message, and when.

On one life of a channel the messages of one side are settled by methods of the other: of one tag, of all tags up to one
(`multiple`), or of everything outstanding. A settlement of many is brought to its effective tag, the highest it covers
among the tags so far; then a message is settled by the earliest of (a) settlements of its own tag, (b) settlements of
many whose effective tag is not below its own. Over rows sorted by falling tag (b) is a running minimum and (a) one over
equal tags: n log n also with a million messages outstanding.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.tables.roles import OUTSIDE_TRANSACTIONS, SETTLEMENTS, SETTLES_ALL, named, other
from pipeline.tables.timeline import LIFE


def settled(timeline: DataFrame) -> DataFrame:
    """`timeline` with, on messages, `tag`, `outcome`, `settled_ts_ns`, `transaction`; acknowledgements are gone."""
    rows = (
        timeline.withColumn("settles", _outcome_of_method())
        .withColumn("many", F.col("settles").isNotNull() & (F.coalesce("multiple", F.lit(False)) | named(SETTLES_ALL)))
        .withColumn("side", F.when(F.col("settles").isNotNull(), other("sender")).otherwise(F.col("sender")))
        .withColumn("tag", _tag())
    )
    return _with_outcome(_with_settlement(rows)).filter(F.col("settles").isNull()).drop("settles", "many", "side", "end")


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
    confirming = F.col("side") == "client"
    so_far = F.when(confirming, F.col("confirm_tag")).otherwise(F.col("highest_tag"))
    whole = named(SETTLES_ALL) | (F.col("delivery_tag") == 0)
    effective = F.when(whole, so_far).otherwise(F.least(so_far, "delivery_tag"))
    counted = F.when(F.col("confirm_tag_sure"), F.col("confirm_tag"))
    return (
        F.when(F.col("many"), F.when(so_far.isNotNull(), effective))
        .when(F.col("operation") == "publish", counted)
        .otherwise(F.col("delivery_tag"))
    )


def _with_settlement(rows: DataFrame) -> DataFrame:
    """`settlement` struct (frame_no, ts_ns, outcome, transaction) of each row's tag, and `undone`: one was rolled back."""
    by_tag = Window.partitionBy(*LIFE, "side").orderBy(F.desc("tag"))
    up_to_here = by_tag.rangeBetween(Window.unboundedPreceding, Window.currentRow)
    same_tag = by_tag.rangeBetween(Window.currentRow, Window.currentRow)
    settles, many = F.col("settles").isNotNull(), F.col("many")
    in_transaction = (F.col("mode") == "tx") & ~named(OUTSIDE_TRANSACTIONS)
    effective = settles & (~in_transaction | F.coalesce(F.col("end.result") == "committed", F.lit(False)))
    undone = settles & in_transaction & F.coalesce(F.col("end.result") == "rolled-back", F.lit(False))
    settlement = F.struct(
        "frame_no",
        F.when(in_transaction, F.col("end.ts_ns")).otherwise(F.col("ts_ns")).alias("ts_ns"),
        F.col("settles").alias("outcome"),
        F.when(in_transaction, F.col("end.result")).alias("transaction"),
    )
    return rows.withColumns(
        {
            "settlement": F.least(
                F.min(F.when(effective & ~many, settlement)).over(same_tag),
                F.min(F.when(effective & many, settlement)).over(up_to_here),
            ),
            "undone": F.coalesce(
                F.max(F.when(undone & ~many, F.col("frame_no"))).over(same_tag),
                F.max(F.when(undone & many, F.col("frame_no"))).over(up_to_here),
            ),
        }
    )


def _with_outcome(rows: DataFrame) -> DataFrame:
    message, sent = F.col("operation").isNotNull(), F.col("operation") == "publish"
    answered = message & F.col("tag").isNotNull() & (F.col("settlement.frame_no") > F.col("frame_no"))
    answered = F.coalesce(answered, F.lit(False))
    needs_no_answer = F.when(F.col("operation") == "deliver", F.col("link_no_ack")).otherwise(F.col("request.no_ack"))
    unanswered = F.when(_answer_may_be_lost(), "unknown").otherwise("unsettled")
    delivery = (
        F.when(needs_no_answer, "presettled")
        .when(answered, F.col("settlement.outcome"))
        .when(needs_no_answer.isNull(), "unknown")
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
        .withColumn("transaction", F.when(sent, F.col("end.result")).when(message, of_delivery))
        .drop("settlement", "undone")
    )


def _answer_may_be_lost() -> Column:
    """True when, after the row and before its channel closed, frames of the settling side may be missing."""
    later = [
        F.coalesce(f"{side}_losses_at_close", f"{side}_losses_in_all") > F.col(f"{side}_losses")
        for side in ("server", "client")
    ]
    return F.when(F.col("sender") == "client", later[0]).otherwise(later[1])
