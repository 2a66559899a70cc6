"""Contexts of rules from practice: what RabbitMQ 4 refuses, and habits that cost.

upgrades   one row a method that declares a queue or sets a prefetch count, or an attach, on a connection to RabbitMQ:
           what of it later releases refuse (`mode`, `queue_version`, `locator`, `mirrored`, `address` ...)
requeued   one row a connection and quorum queue without a delivery limit of its own: messages given back (`messages`)
habits     one row a connection with what it and others like it do: `shots`, connections of the same application and
           host that sent one message and nothing else; `products` of the same user; `singles`, channels of the
           connection that sent one message and nothing else; `leaked`, channels that were opened, hardly used and
           never closed; `large`, messages published with more than the limit of PR-09, and the `largest`.
           `first_shot`, `first_of_user`: the first such
repeats    one row a declaration or binding that a connection makes again and again: `times`, and of the first of
           them frame_no and ts_ns
returning  one row a message that is delivered from one queue again and again (`pipeline.audit.contexts.returning`)
unrouted   one row a connection and route: `messages` published without 'mandatory' after the broker returned a
           mandatory one, and before anything was declared or bound that could change it
timed_out  one row a channel that the broker closed because an acknowledgement took too long: the delivery that waited
           longest, and `acked_frame`, its acknowledgement on the wire
tokens     one row a token put to the node $cbs (1.0) that ran out while its connection went on, with no other for it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import LIFE, channel_methods
from pipeline.audit.contexts.materialized import kept_if_any

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

RABBITMQ = "RabbitMQ"  # as the broker names itself
# Name -> its path in the arguments, and its type.
ARGUMENTS = {
    "passive": ("$.passive", "boolean"),
    "durable": ("$.durable", "boolean"),
    "exclusive": ("$.exclusive", "boolean"),
    "global": ("$.global", "boolean"),
    "prefetch_count": ("$.prefetch_count", "int"),
    "mode": ('$.arguments["x-queue-mode"]', "string"),
    "queue_version": ('$.arguments["x-queue-version"]', "string"),
    "locator": ('$.arguments["x-queue-master-locator"]', "string"),
    "mirrored": ('$.arguments["x-ha-policy"]', "string"),
    "role": ("$.role", "boolean"),
    "source": ("$.source.address", "string"),
    "target": ("$.target.address", "string"),
}
DECLARES = ("queue.declare", "exchange.declare", "queue.bind")
# What may bring messages of a route to a queue that came to none before.
ROUTES = ("queue.declare", "queue.bind", "exchange.bind", "exchange.declare")
BROKER = ("server_ip", "server_port", "vhost")
QUORUM = (
    "name = 'queue.declare' AND try_variant_get(arguments, '$.arguments[\"x-queue-type\"]', 'string') = 'quorum' AND "
    "try_variant_get(arguments, '$.arguments[\"x-delivery-limit\"]', 'variant') IS NULL"
)
# What RabbitMQ writes into channel.close with 406.
TIMED_OUT = (
    "name = 'channel.close' AND sender = 'server' AND said.reply_code = 406 AND "
    "said.reply_text LIKE '%delivery acknowledgement on channel%timed out%'"
)
SETTLES = ("basic.ack", "basic.nack", "basic.reject")
CBS = "$cbs"  # the node that takes tokens (AMQP Claims-based Security, section 3)


def upgrades(sources: Sources) -> DataFrame | None:
    """Context 'upgrades'."""
    if not any(sources.said[name] for name in ("queue.declare", "basic.qos", "attach")):
        return None
    values = (
        F.expr(f"try_variant_get(arguments, '{path}', '{kind}')").alias(name)
        for name, (path, kind) in ARGUMENTS.items()
    )
    rows = sources.control_methods.filter(
        "sender = 'client' AND name IN ('queue.declare', 'basic.qos', 'attach')"
    ).select("connection_id", "version", "frame_no", "ts_ns", "channel", "name", "queue", *values)
    # A receiver names its source, a sender its target.
    address = F.when(F.col("role"), F.col("source")).otherwise(F.col("target"))
    return rows.join(_to_rabbitmq(sources), "connection_id").withColumn("address", address)


def _to_rabbitmq(sources: Sources) -> DataFrame:
    """Connections to RabbitMQ, with the broker."""
    own = sources.connections.filter(F.col("server_product") == RABBITMQ)
    return own.select("connection_id", "server_version", *BROKER)


def requeued(sources: Sources) -> DataFrame | None:
    """Context 'requeued'."""
    if not sources.traffic["requeued"]:
        return None
    brokers = _to_rabbitmq(sources)
    declared = sources.control_methods.filter(QUORUM).join(brokers, "connection_id").select(*BROKER, "queue").distinct()
    return (
        sources.tables.messages.filter("outcome = 'requeued' AND queue IS NOT NULL")
        .groupBy("connection_id", "queue")
        .agg(
            F.count("*").alias("messages"),
            F.min(F.struct(F.col("settled_frame_no").alias("frame_no"), F.col("settled_ts_ns").alias("ts_ns"))).alias(
                "first"
            ),
        )
        .select("connection_id", "queue", "messages", "first.*", F.lit("0-9-1").alias("version"))
        .join(brokers, "connection_id")
        .join(F.broadcast(declared), [*BROKER, "queue"])
    )


def habits(sources: Sources) -> DataFrame:
    """Context 'habits'."""
    lives = sources.tallied.groupBy(*LIFE).agg(
        F.count_if(F.expr("operation = 'publish' AND first_frame = last_frame")).alias("published_once"),
        F.count("*").alias("kinds"),
        F.min("first_frame").alias("first_frame"),
        F.sum("large").alias("large"),
        F.min("first_large").alias("first_large"),
        F.max("largest").alias("largest"),
    )
    single = F.expr("published_once = 1 AND kinds = 1")
    of_lives = lives.groupBy("connection_id").agg(
        F.count_if(single).alias("singles"),
        F.min(F.when(single, F.col("first_frame"))).alias("first_single"),
        F.sum("large").alias("large"),
        F.min("first_large").alias("first_large"),
        F.max("largest").alias("largest"),
    )
    consumers = sources.tables.links.select(*LIFE).distinct()
    leaked = (
        sources.tables.channels.filter(
            "opened_ts IS NOT NULL AND closed_ts IS NULL AND published <= 1 AND delivered <= 1"
        )
        .join(consumers, list(LIFE), "left_anti")
        .groupBy("connection_id")
        .agg(F.count("*").alias("leaked"))
    )
    rows = sources.connections.filter("content = 'amqp'").select(
        "connection_id", "version", "ts_ns", "first_frame", "opened_ns", "client_ip", "client_name", "client_product",
        "user", "messages_published", "messages_delivered", "closed_ts", *BROKER,
    )  # fmt: skip
    of_client = Window.partitionBy("client_ip", "client_name", *BROKER)
    of_user = Window.partitionBy("user", *BROKER)
    order = ("opened_ns", "connection_id")
    shot = F.expr("messages_published = 1 AND messages_delivered = 0")
    known = rows.join(of_lives, "connection_id", "left").join(leaked, "connection_id", "left")
    return known.withColumns(
        {
            "shots": F.count_if(shot).over(of_client),
            "first_shot": F.row_number().over(of_client.orderBy(*order)) == 1,
            "products": F.sort_array(F.collect_set("client_product").over(of_user)),
            "first_of_user": F.row_number().over(of_user.orderBy(*order)) == 1,
        }
    )


def repeats(sources: Sources) -> DataFrame | None:
    """Context 'repeats'."""
    if not any(sources.said[name] for name in DECLARES):
        return None
    active = F.expr("NOT coalesce(try_variant_get(arguments, '$.passive', 'boolean'), false)")
    named = F.expr("coalesce(queue, '') != '' OR name != 'queue.declare'")
    return (
        sources.control_methods.filter(F.col("name").isin(*DECLARES) & active & named)
        .groupBy("connection_id", "version", "name", "queue", "exchange")
        .agg(F.count("*").alias("times"), F.min("frame_no").alias("frame_no"), F.min("ts_ns").alias("ts_ns"))
    )


def unrouted(sources: Sources) -> DataFrame | None:
    """Context 'unrouted'."""
    if not sources.traffic["returned"]:
        return None
    brokers = sources.connections.select("connection_id", "version", *BROKER)
    route = [*BROKER, "exchange", "routing_key"]
    published = sources.tables.messages.filter("operation = 'publish'").join(brokers, "connection_id")
    returned = (
        published.filter("mandatory AND returned_frame_no IS NOT NULL")
        .groupBy(*route)
        .agg(F.min("ts_ns").alias("returned_ns"))
    )
    changes = sources.control_methods.filter(F.col("name").isin(*ROUTES)).join(brokers, "connection_id")
    later = changes.select(*BROKER, F.col("ts_ns").alias("changed_ns"))
    until = (
        returned.join(later, list(BROKER), "left")
        .groupBy(*route, "returned_ns")
        .agg(F.min(F.when(F.col("changed_ns") > F.col("returned_ns"), F.col("changed_ns"))).alias("changed_ns"))
    )
    return (
        published.filter("NOT mandatory")
        .join(F.broadcast(until), route)
        .filter("ts_ns > returned_ns AND (changed_ns IS NULL OR ts_ns < changed_ns)")
        .groupBy("connection_id", "version", "exchange", "routing_key")
        .agg(
            F.count("*").alias("messages"), F.min("first_frame_no").alias("frame_no"), F.min("ts_ns").alias("ts_ns")
        )
    )  # fmt: skip


def timed_out(sources: Sources) -> DataFrame | None:
    """Context 'timed_out'."""
    if not sources.said["channel.close"]:
        return None
    text = F.expr("try_variant_get(arguments, '$', 'struct<reply_code int, reply_text string>')")
    closes = kept_if_any(
        channel_methods(sources, {"said": text}, ["channel.close"])
        .filter(TIMED_OUT)
        .select(*LIFE, "version", "frame_no", "ts_ns", "said.reply_text")
    )
    if closes is None:
        return None
    waited = (
        sources.tables.messages.filter("operation IN ('deliver', 'get') AND outcome != 'presettled'")
        .select(*LIFE, "first_frame_no", "delivery_tag", "queue", "settled_frame_no", F.col("ts_ns").alias("since_ns"))
        .join(F.broadcast(closes.select(*LIFE, "frame_no")), list(LIFE))
        .filter("settled_frame_no IS NULL OR settled_frame_no > frame_no")
        .groupBy(*LIFE)
        .agg(F.min(F.struct("first_frame_no", "delivery_tag", "queue", "since_ns")).alias("of"))
    )
    # The broker reads no acknowledgement on a channel that it has closed: nothing is settled by one.
    settled = (
        sources.tables.methods.filter(F.col("name").isin(*SETTLES) & (F.col("sender") == "client"))
        .select("connection_id", "channel", F.col("frame_no").alias("acked_frame"), F.col("delivery_tag").alias("tag"))
        .join(F.broadcast(closes.select(*LIFE, "frame_no").join(waited, list(LIFE))), ["connection_id", "channel"])
        .filter("acked_frame > of.first_frame_no AND tag = of.delivery_tag")
        .groupBy(*LIFE)
        .agg(F.min("acked_frame").alias("acked_frame"))
    )
    rows = closes.join(waited, list(LIFE), "left").join(settled, list(LIFE), "left")
    return rows.select("*", F.col("frame_no").alias("content_frame_no"))


def tokens(sources: Sources) -> DataFrame | None:
    """Context 'tokens'."""
    if "1.0" not in sources.versions:
        return None
    nodes = kept_if_any(sources.tables.links.filter(F.col("address") == CBS).select("connection_id").distinct())
    if nodes is None:
        return None

    def said(name: str, kind: str = "string") -> Column:
        return F.expr(f"try_variant_get(headers, '$.{name}', '{kind}')")

    of_name = Window.partitionBy("connection_id", "audience").orderBy("frame_no")
    ends = sources.connections.select("connection_id", "version", F.col("ts_ns").alias("last_ns"))
    return (
        sources.tables.messages.filter(f"operation = 'publish' AND address = '{CBS}'")
        .filter(said("operation") == "put-token")
        .select(
            "connection_id", "ts_ns", F.col("first_frame_no").alias("frame_no"), said("name").alias("audience"),
            (F.unix_micros(said("expiration", "timestamp")) * 1000).alias("expires_ns"),
        )
        .withColumn("renewed_ns", F.lead("ts_ns").over(of_name))
        .join(ends, "connection_id")
        .filter("expires_ns < coalesce(renewed_ns, last_ns)")
    )  # fmt: skip
