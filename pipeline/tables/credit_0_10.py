"""Credit of subscriptions of AMQP 0-10: for how long the server was not allowed to send anything.

A subscription begins in window mode and with nothing. message.flow adds messages, or octets (the payloads of header and
body frames), 2^32-1 for no limit, and every transfer uses up both; in window mode a transfer gives back what it used
when the client completes it. message.stop and message.set-flow-mode set both to zero, and what was sent before gives
nothing back after that. (0-10 specification, class message: subscribe, set-flow-mode, flow, stop.)
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.tables.ledgers import no_events, opening, ranges, settling
from pipeline.tables.roles import named, other
from pipeline.tables.session_roles import (
    CANCELS,
    CLOSES_SESSION,
    COMPLETES_COMMANDS,
    CREDIT_UNITS,
    GRANTS_CREDIT,
    NO_LIMIT,
    TRANSFERS_0_10,
    WINDOW_MODE,
    ZEROES_CREDIT,
)
from pipeline.tables.sessions import SESSION
from pipeline.tables.settlement import settle

SUBSCRIPTION = (*SESSION, "subscription_id")
TRANSFER = ("connection_id", "frame_no")
HEADER_AND_BODY = ("header", "body")  # frames whose payloads count as octets
# What changes the credit of a subscription; `sent_frame_no`: of what is given back, the transfer that used it.
CHANGE = "struct<frame_no: bigint, ts_ns: bigint, messages: bigint, octets: bigint, sent_frame_no: bigint>"


def without_credit(placed: DataFrame, frames: DataFrame) -> DataFrame:
    """`placed_commands` (read several times) and `frames` -> (*SUBSCRIPTION, `no_credit_ns`): time in which the server
    had no credit, to the end of the subscription or its session, or to the last command of that; null where bytes of
    either side are missing in between."""
    in_order = Window.partitionBy(*SUBSCRIPTION).orderBy("frame_no")
    ends = placed.groupBy(*SESSION).agg(
        F.coalesce(F.min(F.when(named(CLOSES_SESSION), F.col("ts_ns"))), F.max("ts_ns")).alias("end_ns"),
        F.max(_losses()).alias("losses_in_all"),
    )
    nothing_left = F.greatest(*(F.col(unit) <= 0 for unit in CREDIT_UNITS.values()))
    over = F.max(named(CANCELS)).over(in_order)
    until = F.coalesce(F.lead("ts_ns").over(in_order), F.greatest("end_ns", "ts_ns"))
    return (
        _balanced(_changes(placed, frames))
        .join(ends, list(SESSION))
        .withColumn("until_ns", F.when(over, F.col("ts_ns")).otherwise(until))
        .groupBy(*SUBSCRIPTION)
        .agg(
            F.try_sum(F.when(nothing_left, F.col("until_ns") - F.col("ts_ns")).otherwise(0)).alias("no_credit_ns"),
            (F.max("losses_in_all") > F.min("losses")).alias("lossy"),
        )
        .withColumn("no_credit_ns", F.when(~F.col("lossy"), F.col("no_credit_ns")))
        .drop("lossy")
    )


def _losses() -> Column:
    return F.col("client_losses") + F.col("server_losses")


def _changes(placed: DataFrame, frames: DataFrame) -> DataFrame:
    """The commands about subscriptions, the transfers over them and their completions, each with its CHANGE."""
    octets = (
        frames.filter((F.col("version") == "0-10") & F.col("frame_type").isin(*HEADER_AND_BODY))
        .groupBy("connection_id", F.col("content_frame_no").alias("frame_no"))
        .agg(F.sum("payload_size").alias("used"))
    )
    completed = settle(_completions(placed)).select(*TRANSFER, "settled_frame_no", "settled_ts_ns")
    granted = {
        name: F.when(named(GRANTS_CREDIT) & (F.col("credited.unit") == unit), F.col("credited.value"))
        for unit, name in CREDIT_UNITS.items()
    }
    sent, nothing = named(TRANSFERS_0_10), F.lit(None)
    messages, used = F.lit(1), F.coalesce("used", F.lit(0))
    own = F.struct(
        "frame_no",
        "ts_ns",
        F.when(sent, -messages).otherwise(granted["messages"]),
        F.when(sent, -used).otherwise(granted["octets"]),
        nothing,
    )
    back = F.struct("settled_frame_no", "settled_ts_ns", messages, used, "frame_no")
    return (
        placed.filter("subscription is not null")
        .withColumn("credited", F.struct("said.unit", "said.value"))
        .join(octets, list(TRANSFER), "left")
        .join(completed, list(TRANSFER), "left")
        .select(
            *SESSION,
            F.col("subscription.subscription_id").alias("subscription_id"),
            "name",
            F.col("said.flow_mode").alias("flow_mode"),
            _losses().alias("losses"),
            F.inline(
                F.when(F.col("settled_frame_no").isNull(), F.array(own.cast(CHANGE))).otherwise(
                    F.array(own.cast(CHANGE), back.cast(CHANGE))
                )
            ),
        )
    )


def _completions(placed: DataFrame) -> DataFrame:
    """What the server sent over subscriptions, and which commands the client completed, as `settle` reads it."""
    completes = named(COMPLETES_COMMANDS) & (F.col("sender") == "client")
    sent = named(TRANSFERS_0_10) & F.col("subscription").isNotNull()
    each = F.flatten(F.transform("said.commands", lambda s: ranges(s["lower"], s["upper"])))
    done = F.transform(
        each, lambda one: settling(other("sender"), one["first"], one["last"], F.lit("completed"), F.lit(True))
    )
    happens = F.when(sent, F.array(opening(F.col("sender"), F.col("said.command_id")))).when(completes, done)
    return (
        placed.filter(sent | completes)
        .select("connection_id", "frame_no", "ts_ns", F.inline(F.coalesce(happens, no_events())))
        .filter("first is not null")
        .withColumns({"effective_ts_ns": F.lit(None).cast("bigint"), "transaction": F.lit(None).cast("string")})
    )


def _balanced(rows: DataFrame) -> DataFrame:
    """Changes with what was left of each unit after them; NO_LIMIT for no limit.

    A balance is never below zero: what was sent before a stop had come to the server is not owed.
    """
    in_order = Window.partitionBy(*SUBSCRIPTION).orderBy("frame_no")
    zeroed = F.max(F.when(named(ZEROES_CREDIT), F.col("frame_no"))).over(in_order)
    by_window = F.coalesce(F.last("flow_mode", ignorenulls=True).over(in_order), F.lit(WINDOW_MODE)) == WINDOW_MODE
    counts = F.col("sent_frame_no").isNull() | (F.col("by_window") & (F.col("sent_frame_no") > F.col("zeroed")))
    since = Window.partitionBy(*SUBSCRIPTION, "zeroed").orderBy("frame_no")
    sums, left = {}, {}
    for unit in CREDIT_UNITS.values():
        sums[f"{unit}_sum"] = F.sum(F.when(counts, F.coalesce(unit, F.lit(0))).otherwise(0)).over(since)
        sums[f"{unit}_limitless"] = F.max(F.col(unit) == NO_LIMIT).over(since)
        owed = F.least(F.min(f"{unit}_sum").over(since), F.lit(0))
        left[unit] = F.when(F.col(f"{unit}_limitless"), NO_LIMIT).otherwise(F.col(f"{unit}_sum") - owed)
    rows = rows.withColumns({"zeroed": F.coalesce(zeroed, F.lit(0)), "by_window": by_window})
    return rows.withColumns(sums).withColumns(left)
