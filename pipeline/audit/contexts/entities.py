"""Context 'entities': methods of clients that name an exchange or a queue, by broker, in the order of time.

    kind, entity   'exchange' or 'queue', and its name; the server's name if a queue was declared without one
    given          the server made up the name
    declared       flags of a declaration: type, durable, exclusive, auto_delete, passive, and its `table` of arguments
    accepted       the server accepted it, or was not asked for a reply; 0-10: it did not raise an exception
    answered_ns    time of the reply
    was            the last accepted declaration (not passive) or deletion before it: `deleted`, and of a declaration
                   frame_no, connection_id, answered_ns, until_ns (end of that connection), `declared`
    seen           number of earlier declarations and successful uses of the entity
    broker_loss_ns time from which bytes of any connection to the broker are missing, which may have changed an entity
    sole           the last accepted exclusive consumer of the queue before it, and until when it existed

The order in which a broker processes two connections is unknown, unless it replied on one before the request on the
other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import channel_life
from pipeline.audit.detector import NEVER

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

DECLARES = {"exchange.declare": "exchange", "queue.declare": "queue"}
DELETES = {"exchange.delete": "exchange", "queue.delete": "queue"}
ASKS = ("queue.query", "exchange.bound", "exchange.query")  # and change nothing, nor are they refused
CONSUMES = "basic.consume"
BITS = ("durable", "exclusive", "auto_delete", "passive")
FLAGS = f"struct<type string, {', '.join(f'{name} boolean' for name in BITS)}>"
BROKER = ("server_ip", "server_port", "vhost")


def entities(sources: Sources) -> DataFrame:
    """Context 'entities'."""
    rows = _declarations_and_uses(sources).join(_brokers(sources), "connection_id")
    in_order = Window.partitionBy(*BROKER, "kind", "entity").orderBy("ts_ns", "connection_id", "frame_no")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    who = ("frame_no", "connection_id", "answered_ns")
    deletes, declares = (
        F.col("name").isin(list(DELETES)),
        F.col("name").isin(list(DECLARES)) & ~F.col("declared.passive"),
    )
    changes = F.col("accepted") & (deletes | declares)
    change = F.when(changes, F.struct(deletes.alias("deleted"), *who, "until_ns", "declared", "table"))
    sole = F.when(
        F.col("accepted") & F.col("alone"),
        F.struct(*who, F.coalesce(F.col("closed_us") * 1000, "until_ns").alias("until_ns")),
    )
    return rows.withColumns(
        {
            "was": F.last(change, ignorenulls=True).over(before),
            "seen": F.count(F.when(F.col("accepted") & ~deletes, 1)).over(before),
            "sole": F.last(sole, ignorenulls=True).over(before),
        }
    )


def _brokers(sources: Sources) -> DataFrame:
    """The broker of a connection, and when the connection ended: its close, or the end of its TCP connection."""
    end = F.expr("coalesce(c.close.ts_ns, CASE WHEN tcp_end != 'none' THEN ts_ns END)")
    lost = F.min("loss_from_ns").over(Window.partitionBy(*BROKER))
    return sources.connections.filter("vhost IS NOT NULL").select(
        "connection_id",
        *BROKER,
        F.coalesce(end, F.lit(NEVER)).alias("until_ns"),
        F.coalesce(lost, F.lit(NEVER)).alias("broker_loss_ns"),
    )


def _declarations_and_uses(sources: Sources) -> DataFrame:
    """Methods of clients that name an exchange to declare or delete, or a queue."""
    methods = sources.control_methods
    kind = F.when(F.col("name").isin("exchange.declare", "exchange.delete"), "exchange").when(
        F.col("queue").isNotNull() & ~F.col("name").isin(list(ASKS)), "queue"
    )
    alone = (F.col("name") == CONSUMES) & F.expr("try_variant_get(arguments, '$.exclusive', 'boolean')")
    rows = (
        methods.filter("sender = 'client'")
        .withColumn("kind", kind)
        .filter("kind IS NOT NULL OR name = 'channel.open'")
        .withColumn("channel_life", channel_life())
        .filter("kind IS NOT NULL")
        .select(
            "connection_id", "channel", "channel_life", "frame_no", "ts_ns", "ts", "version", "name", "kind",
            "reply_frame_no", "reply_name", _accepted().alias("accepted"),
            (F.col("ts_ns") + F.coalesce("reply_latency_ns", F.lit(0))).alias("answered_ns"),
            F.when(F.col("kind") == "exchange", F.col("exchange")).otherwise(F.col("queue")).alias("entity"),
            F.when(F.col("name").isin(list(DECLARES)), _flags()).alias("declared"), _table().alias("table"),
            F.coalesce(alone, F.lit(False)).alias("alone"),
        )
    )  # fmt: skip
    return _exclusive_until(_with_given_names(rows, methods), sources).filter("entity != ''")


def _accepted() -> Column:
    """The server replied with an -ok method, or no reply was requested, or the version has none."""
    no_wait = F.expr("coalesce(try_variant_get(arguments, '$.no_wait', 'boolean'), false)")
    return F.coalesce(F.col("reply_name").endswith("-ok"), no_wait | (F.col("version") == "0-10"))


def _flags() -> Column:
    flags = F.expr(f"try_variant_get(arguments, '$', '{FLAGS}')")
    return F.struct(*(F.coalesce(flags[name], F.lit(False)).alias(name) for name in BITS), flags["type"].alias("type"))


def _table() -> Column:
    """The arguments table as JSON with sorted keys, '{}' if there is none."""
    declares = F.col("name").isin(list(DECLARES))
    return F.when(
        declares, F.coalesce(F.expr("to_json(try_variant_get(arguments, '$.arguments', 'variant'))"), F.lit("{}"))
    )


def _with_given_names(rows: DataFrame, methods: DataFrame) -> DataFrame:
    """A queue that was declared without a name gets the name in the reply."""
    given = methods.filter("name = 'queue.declare-ok' AND sender = 'server'").select(
        "connection_id", F.col("frame_no").alias("reply_frame_no"), F.col("queue").alias("name_given")
    )
    nameless = F.when((F.col("name") == "queue.declare") & (F.col("entity") == ""), F.col("reply_frame_no"))
    named = rows.filter(nameless.isNull()).withColumn("name_given", F.lit(None).cast("string"))
    renamed = rows.filter(nameless.isNotNull()).join(given, ["connection_id", "reply_frame_no"], "left")
    return named.unionByName(renamed).withColumns(
        {"entity": F.coalesce("name_given", "entity"), "given": F.col("name_given").isNotNull()}
    )


def _exclusive_until(rows: DataFrame, sources: Sources) -> DataFrame:
    """When an exclusive consumer ended: when it was cancelled, or its channel or connection was closed."""
    place = ("connection_id", "channel", "channel_life", "ts")
    ends = (
        sources.tables.links.filter("exclusive")
        .select(*place[:3], F.col("opened_ts").alias("ts"), F.unix_micros("closed_ts").alias("closed_us"))
        .groupBy(*place)
        .agg(F.min("closed_us").alias("closed_us"))
        .withColumn("alone", F.lit(True))
    )
    return rows.join(ends, [*place, "alone"], "left")
