"""Links of AMQP 1.0 as rows of table links: one row from attach to detach."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.schemas import LINKS
from pipeline.tables.roles import named
from pipeline.tables.session_roles import CLOSES_SESSION, LINK_PERFORMATIVES, SERIAL
from pipeline.tables.sessions import SESSION
from pipeline.tables.shape import shaped, timestamp


def links_1_0(settled: DataFrame) -> DataFrame:
    """Settled rows of 1.0 -> rows of table links.

    Messages over a handle whose attach is not known make a row without a name.
    """
    losses = F.col("client_losses") + F.col("server_losses")
    unknown = F.when(F.col("on_link").isNull(), F.struct("sender", "handle", "own_losses"))
    closing = F.struct("frame_no", "ts_ns")
    error = F.when(F.col("said.error").isNotNull(), F.struct("frame_no", F.col("said.error").alias("error")))
    grants = named(["flow"]) & (F.col("sender") == F.col("on_link.receiver"))
    in_order = Window.partitionBy(*SESSION, "link_id").orderBy("frame_no")
    allowed = F.coalesce(F.last(F.when(grants, _since_attach("credited.link_credit")), True).over(in_order), F.lit(0))
    # What the sender gave up without a message (drain) stands in its own count (2.6.7).
    counts = (
        named(["flow"]) & (F.col("sender") != F.col("on_link.receiver")) & F.col("credited.delivery_count").isNotNull()
    )
    drained = F.last(F.when(counts, _since_attach() - F.col("moved")), True).over(in_order)
    rows = (
        settled.filter(named(LINK_PERFORMATIVES) & F.col("handle").isNotNull())
        .withColumn("link_id", F.col("on_link.link_id"))
        .withColumn("unknown", unknown)
        .withColumn("moved", F.count_if("delivers").over(in_order))
        .withColumn("left", allowed - F.col("moved") - F.coalesce(drained, F.lit(0)))
        .withColumn("until_ns", F.lead("ts_ns").over(in_order))
        .withColumn("starves", F.col("link_id").isNotNull() & (F.col("left") <= 0))
        .groupBy(*SESSION, "link_id", "unknown")
        .agg(
            F.any_value("on_link", True).alias("on_link"),
            F.min(F.when(named(["attach"]), F.col("ts_ns"))).alias("opened_ns"),
            F.min(F.when(named(["detach"]), closing)).alias("closing"),
            F.min(F.when(named(["detach"]), error)).alias("failing"),
            F.max(F.when(grants, _since_attach("credited.link_credit"))).alias("credit"),
            F.try_sum(F.when(F.col("starves"), F.col("until_ns") - F.col("ts_ns"))).alias("no_credit_ns"),
            F.max(F.when(F.col("starves") & F.col("until_ns").isNull(), F.col("ts_ns"))).alias("starved_ns"),
            F.min(losses).alias("losses"),
            F.count_if("delivers").alias("transfers"),
        )
        .filter(F.col("link_id").isNotNull() | (F.col("transfers") > 0))
    )
    closes = named(CLOSES_SESSION)
    ends = settled.groupBy(*SESSION).agg(
        F.min(F.when(closes, F.col("ts_ns"))).alias("session_closed_ns"),
        F.min(F.when(closes, error)).alias("session_failing"),
        F.max("ts_ns").alias("session_last_ns"),
        F.max(losses).alias("losses_in_all"),
    )
    # Without a detach the link ends as its session does.
    failing = F.when(F.col("closing").isNull(), F.col("session_failing.error")).otherwise(F.col("failing.error"))
    starved = F.coalesce("closed_ns", "session_last_ns") - F.col("starved_ns")
    kind = F.when(F.col("unknown.sender") == "client", "sender").otherwise("receiver")
    return shaped(
        rows.join(ends, list(SESSION), "left")
        .withColumn("closed_ns", F.coalesce("closing.ts_ns", "session_closed_ns"))
        .withColumn("failing", failing)
        .withColumns(
            {
                "channel": F.col("session_channel"),
                "kind": F.coalesce("on_link.kind", kind),
                "name": F.col("on_link.name"),
                "handle": F.coalesce("on_link.handle", "unknown.handle"),
                "address": F.col("on_link.address"),
                "snd_settle_mode": F.col("on_link.snd_settle_mode"),
                "rcv_settle_mode": F.col("on_link.rcv_settle_mode"),
                "no_ack": F.col("on_link.snd_settle_mode") == "settled",
                "opened_ts": timestamp("opened_ns"),
                "no_credit_ns": F.when(
                    F.col("link_id").isNotNull() & (F.col("losses") == F.col("losses_in_all")),
                    F.coalesce("no_credit_ns", F.lit(0)) + F.greatest(F.coalesce(starved, F.lit(0)), F.lit(0)),
                ),
                "closed_ts": timestamp("closed_ns"),
                "error": F.nullif(F.concat_ws(": ", "failing.condition", "failing.description"), F.lit("")),
            }
        ),
        LINKS,
    )


def _since_attach(ahead: str | None = None) -> Column:
    """Delivery-count of a flow, and the credit `ahead` of it, counted from the first message of the link (2.6.7)."""
    begin = F.col("on_link.initial_delivery_count")
    count = F.coalesce("credited.delivery_count", begin)
    return F.pmod((count if ahead is None else count + F.col(ahead)) - begin, F.lit(SERIAL))
