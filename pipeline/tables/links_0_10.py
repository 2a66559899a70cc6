"""Subscriptions of AMQP 0-10 as rows of table links: one row from message.subscribe to its end."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import LINKS
from pipeline.tables.credit_0_10 import SUBSCRIPTION
from pipeline.tables.roles import looked_up, named
from pipeline.tables.session_roles import (
    CANCELS,
    CLOSES_SESSION,
    CREDIT_IN_MESSAGES,
    DEFAULT_FLOW_MODE,
    FLOW_MODES,
    GRANTS_CREDIT,
    NO_LIMIT,
    SETS_FLOW_MODE,
    SUBSCRIBES,
)
from pipeline.tables.sessions import SESSION
from pipeline.tables.shape import shaped, timestamp


def links_0_10(settled: DataFrame, credit: DataFrame) -> DataFrame:
    """Settled rows of 0-10 and `credit_0_10.without_credit` -> rows of table links.

    Deliveries to a destination whose subscription is not known make a row of it. A subscription that was refused is
    none: an exception ends its session.
    """
    grants = named(GRANTS_CREDIT) & (F.col("credited.unit") == CREDIT_IN_MESSAGES)
    mode = looked_up(FLOW_MODES, F.col("credited.flow_mode").cast("string"))
    cancelled = F.struct("frame_no", "ts_ns")
    rows = (
        settled.filter(F.col("destination").isNotNull())
        .withColumn("subscription_id", F.col("subscription.subscription_id"))
        .withColumn("losses", F.when(F.col("subscription_id").isNull(), F.col("client_losses")))
        .groupBy(*SESSION, "destination", "subscription_id", "losses")
        .agg(
            F.any_value("subscription", True).alias("subscription"),
            F.min(F.when(named(SUBSCRIBES), F.col("ts_ns"))).alias("opened_ns"),
            F.min(F.when(named(CANCELS), cancelled)).alias("cancel"),
            F.max_by(mode, F.when(named(SETS_FLOW_MODE), F.col("frame_no"))).alias("flow_mode"),
            F.sum(F.when(grants, F.col("credited.value"))).alias("granted"),
            F.max(F.when(grants, F.col("credited.value") == NO_LIMIT)).alias("unlimited"),
            F.count("operation").alias("transfers"),
        )
        .filter(F.col("subscription_id").isNotNull() | (F.col("transfers") > 0))
    )
    ends = settled.groupBy(*SESSION).agg(
        F.min(F.when(named(CLOSES_SESSION), F.col("ts_ns"))).alias("session_closed_ns"),
        F.collect_set(F.when(named(["execution.exception"]), F.col("delivery_id"))).alias("refused"),
    )
    refused = F.coalesce(F.array_contains("refused", F.col("subscription.command_id")), F.lit(False))
    known = F.col("subscription_id").isNotNull()
    return shaped(
        rows.join(ends, list(SESSION), "left")
        .join(credit, list(SUBSCRIPTION), "left")
        .filter(~refused | (F.col("transfers") > 0))
        .withColumn("closed_ns", F.coalesce("cancel.ts_ns", "session_closed_ns"))
        .withColumns(
            {
                "channel": F.col("session_channel"),
                "kind": F.lit("subscription"),
                "name": F.col("destination"),
                "queue": F.col("subscription.queue"),
                "no_ack": F.col("subscription.no_ack"),
                "exclusive": F.col("subscription.exclusive"),
                "opened_ts": timestamp("opened_ns"),
                "closed_ts": timestamp("closed_ns"),
                "flow_mode": F.coalesce("flow_mode", F.when(known, DEFAULT_FLOW_MODE)),
                "credit": F.when(F.col("unlimited"), NO_LIMIT).otherwise(
                    F.coalesce("granted", F.when(known, F.lit(0)))
                ),
            }
        ),
        LINKS,
    )
