"""Transactions of 0-10 and 1.0: how the transaction of a message, or of what is said of it, ended.

Both families name transactions (here as text, `transaction_key`) and use a name again once a transaction is over, so
the end of one is the next end of its name.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.tables.settlement import LEDGER, settle


def takes_effect(outcome: Column) -> Column:
    """The outcome of a publish; null for one that was only confirmed in a transaction whose end was not seen."""
    waits = F.col("transaction_key").isNotNull() & F.col("end").isNull()
    return F.when(~(waits & outcome.eqNullSafe("confirmed")), outcome)


def unanswered() -> Column:
    """What is said of a message that has no outcome: in a transaction, its end may be missing as well as the answer."""
    ends_later = F.col("transaction_key").isNotNull() & (F.col("client_hidden_in_all") > F.col("client_hidden"))
    return F.when(F.col("answer_hidden") | ends_later, "unknown").otherwise("unsettled")


def with_ends(rows: DataFrame, asked: DataFrame, events: DataFrame, end: Column) -> DataFrame:
    """`rows` with `end` (ts_ns, asked_ts_ns, result) of their `transaction_key`; null where it has none, or none that
    was seen. What a client says in a transaction counts from when it asked for the end, as if it were said there; what
    the server says of a publish, from when that was done.

    `asked` (connection_id, ledger, frame_no) are the messages or commands of `rows` that end a transaction, they open
    in `events`; `end` is what one does once its `answer` was given at `answered_ts_ns`. Only the ledgers of those that
    ask are looked at for answers.
    """
    ledgers = F.broadcast(asked.select(*LEDGER).distinct())
    untimed = {"effective_ts_ns": F.lit(None).cast("bigint"), "transaction": F.lit(None).cast("string")}
    answers = settle(events.join(ledgers, list(LEDGER), "left_semi").withColumns(untimed)).select(
        "connection_id", "frame_no", F.col("outcome").alias("answer"), F.col("settled_ts_ns").alias("answered_ts_ns")
    )
    ending = answers.join(F.broadcast(asked.drop("ledger")), ["connection_id", "frame_no"], "left_semi")
    # From the end on: Spark evaluates a frame that reaches to the last row anew for each row.
    later = (
        Window.partitionBy("connection_id", "transaction_key")
        .orderBy(F.desc("frame_no"))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    following = F.when(F.col("transaction_key").isNotNull(), F.last("end", ignorenulls=True).over(later))
    return (
        rows.join(F.broadcast(ending), ["connection_id", "frame_no"], "left")
        .withColumn("end", end)
        .withColumn("end", following)
        .drop("answer", "answered_ts_ns")
    )
