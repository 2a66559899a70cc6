"""Contexts of rules from practice: what RabbitMQ 4 refuses, and habits that cost.

upgrades   one row per queue.declare, basic.qos or attach on a connection to RabbitMQ, with the settings that later
           releases refuse (`mode`, `queue_version`, `locator`, `mirrored`, `address` ...)
requeued   one row per connection and quorum queue without a delivery limit of its own: number of requeued `messages`
habits     one row per connection: `shots`, connections of the same application and host that sent one message and
           nothing else; `products` of the same user; `singles`, channels of the connection that sent one message and
           nothing else; `leaked`, channels that were opened, hardly used and never closed; `large`, published messages
           above the limit of PR-09, and the `largest`. `first_shot`, `first_of_user`: the first such connection
repeats    one row per declaration or binding that a connection repeats: `times`, and frame_no and ts_ns of the first
requeue_loops  one row per message that is delivered from one queue again and again (see below)
unrouted   one row per connection and route: `messages` published without 'mandatory' after the broker returned a
           mandatory one, and before any declaration or binding that could change the route
timed_out  one row per channel that the broker closed because an acknowledgement took too long: the delivery that waited
           longest, and `acked_frame`, its acknowledgement on the wire
tokens     one row per token put to the node $cbs (1.0) that expired while its connection was open, and not renewed

Context 'requeue_loops': messages that are delivered from one queue again and again.

One row per message, at its last delivery:

    redeliveries  deliveries with the flag redelivered
    quick         of these, redeliveries within the time of PR-11 of a requeue that itself came within that time of its
                  delivery: no consumer can have worked on the message
    frame_no      the first redelivery

A message is identified by its id, else by its octets. Different messages may have equal octets, so first deliveries
are subtracted there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import CHANNEL, channel_methods
from pipeline.audit.contexts.materialized import materialize_if_any

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

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
# Methods that may give a route a queue.
ROUTES = ("queue.declare", "queue.bind", "exchange.bind", "exchange.declare")
BROKER = ("server_ip", "server_port", "vhost")
QUORUM = (
    "name = 'queue.declare' AND try_variant_get(arguments, '$.arguments[\"x-queue-type\"]', 'string') = 'quorum' AND "
    "try_variant_get(arguments, '$.arguments[\"x-delivery-limit\"]', 'variant') IS NULL"
)
# What RabbitMQ writes into channel.close with 406.
TIMED_OUT = (
    "name = 'channel.close' AND sender = 'server' AND args.reply_code = 406 AND "
    "args.reply_text LIKE '%delivery acknowledgement on channel%timed out%'"
)
SETTLES = ("basic.ack", "basic.nack", "basic.reject")
CBS = "$cbs"  # the node that takes tokens (AMQP Claims-based Security, section 3)


def upgrades(sources: Sources) -> DataFrame | None:
    """Context 'upgrades'."""
    if not any(sources.method_counts[name] for name in ("queue.declare", "basic.qos", "attach")):
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
    if not sources.message_kind_counts["requeued"]:
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
    incarnations = sources.message_counts.groupBy(*CHANNEL).agg(
        F.count_if(F.expr("operation = 'publish' AND first_frame = last_frame")).alias("published_once"),
        F.count("*").alias("kinds"),
        F.min("first_frame").alias("first_frame"),
        F.sum("large").alias("large"),
        F.min("first_large").alias("first_large"),
        F.max("largest").alias("largest"),
    )
    single = F.expr("published_once = 1 AND kinds = 1")
    of_incarnations = incarnations.groupBy("connection_id").agg(
        F.count_if(single).alias("singles"),
        F.min(F.when(single, F.col("first_frame"))).alias("first_single"),
        F.sum("large").alias("large"),
        F.min("first_large").alias("first_large"),
        F.max("largest").alias("largest"),
    )
    consumers = sources.tables.links.select(*CHANNEL).distinct()
    leaked = (
        sources.tables.channels.filter(
            "opened_ts IS NOT NULL AND closed_ts IS NULL AND published <= 1 AND delivered <= 1"
        )
        .join(consumers, list(CHANNEL), "left_anti")
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
    known = rows.join(of_incarnations, "connection_id", "left").join(leaked, "connection_id", "left")
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
    if not any(sources.method_counts[name] for name in DECLARES):
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
    if not sources.message_kind_counts["returned"]:
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
    if not sources.method_counts["channel.close"]:
        return None
    text = F.expr("try_variant_get(arguments, '$', 'struct<reply_code int, reply_text string>')")
    closes = materialize_if_any(
        channel_methods(sources, {"args": text}, ["channel.close"])
        .filter(TIMED_OUT)
        .select(*CHANNEL, "version", "frame_no", "ts_ns", "args.reply_text")
    )
    if closes is None:
        return None
    waited = (
        sources.tables.messages.filter("operation IN ('deliver', 'get') AND outcome != 'presettled'")
        .select(
            *CHANNEL,
            "first_frame_no",
            "delivery_tag",
            "queue",
            "settled_frame_no",
            F.col("ts_ns").alias("since_ns"),
        )
        .join(F.broadcast(closes.select(*CHANNEL, "frame_no")), list(CHANNEL))
        .filter("settled_frame_no IS NULL OR settled_frame_no > frame_no")
        .groupBy(*CHANNEL)
        .agg(F.min(F.struct("first_frame_no", "delivery_tag", "queue", "since_ns")).alias("of"))
    )
    # The broker ignores acknowledgements on a channel that it has closed: they settle nothing.
    settled = (
        sources.tables.methods.filter(F.col("name").isin(*SETTLES) & (F.col("sender") == "client"))
        .select("connection_id", "channel", F.col("frame_no").alias("acked_frame"), F.col("delivery_tag").alias("tag"))
        .join(
            F.broadcast(closes.select(*CHANNEL, "frame_no").join(waited, list(CHANNEL))),
            ["connection_id", "channel"],
        )
        .filter("acked_frame > of.first_frame_no AND tag = of.delivery_tag")
        .groupBy(*CHANNEL)
        .agg(F.min("acked_frame").alias("acked_frame"))
    )
    rows = closes.join(waited, list(CHANNEL), "left").join(settled, list(CHANNEL), "left")
    return rows.select("*", F.col("frame_no").alias("content_frame_no"))


def tokens(sources: Sources) -> DataFrame | None:
    """Context 'tokens'."""
    if "1.0" not in sources.versions:
        return None
    nodes = materialize_if_any(sources.tables.links.filter(F.col("address") == CBS).select("connection_id").distinct())
    if nodes is None:
        return None

    def header(name: str, kind: str = "string") -> Column:
        return F.expr(f"try_variant_get(headers, '$.{name}', '{kind}')")

    of_name = Window.partitionBy("connection_id", "audience").orderBy("frame_no")
    ends = sources.connections.select("connection_id", "version", F.col("ts_ns").alias("last_ns"))
    return (
        sources.tables.messages.filter(f"operation = 'publish' AND address = '{CBS}'")
        .filter(header("operation") == "put-token")
        .select(
            "connection_id", "ts_ns", F.col("first_frame_no").alias("frame_no"), header("name").alias("audience"),
            (F.unix_micros(header("expiration", "timestamp")) * 1000).alias("expires_ns"),
        )
        .withColumn("renewed_ns", F.lead("ts_ns").over(of_name))
        .join(ends, "connection_id")
        .filter("expires_ns < coalesce(renewed_ns, last_ns)")
    )  # fmt: skip


PLACE = ("server_ip", "server_port", "vhost", "of_queue")
MS_NS = 10**6


def requeue_loops(sources: Sources) -> DataFrame | None:
    """Context 'requeue_loops'."""
    if not sources.message_kind_counts["redelivered"]:
        return None
    within_ns = int(sources.parameters.get("PR-11", {}).get("within_ms", 0) * MS_NS)
    brokers = sources.connections.select("connection_id", "version", *PLACE[:3])
    known = F.coalesce("message_id", F.concat_ws(" ", "body_sha256", "correlation_id"))
    rows = (
        sources.tables.messages.filter("operation IN ('deliver', 'get') AND NOT coalesce(browsed, false)")
        .select(
            "connection_id", "first_frame_no", "ts_ns", "settled_ts_ns", "outcome", "redelivered", "message_id",
            F.coalesce("queue", "address").alias("of_queue"), known.alias("known"),
        )
        .filter("known IS NOT NULL AND of_queue IS NOT NULL")
    )  # fmt: skip
    # Few messages come again: only what may be one of these is put in order.
    again = rows.filter("redelivered").select("of_queue", "known").distinct()
    near = rows.join(again, ["of_queue", "known"], "left_semi").join(brokers, "connection_id")
    in_time = Window.partitionBy(*PLACE, "known").orderBy("ts_ns", "connection_id", "first_frame_no")
    before = F.lag(F.struct("ts_ns", "outcome", "settled_ts_ns")).over(in_time)
    at_once = (
        "redelivered AND before.outcome IN ('requeued', 'released', 'modified') AND "
        f"before.settled_ts_ns - before.ts_ns < {within_ns} AND ts_ns - before.settled_ts_ns < {within_ns}"
    )
    place = F.struct("ts_ns", "connection_id", F.col("first_frame_no").alias("frame_no"), "version")
    return (
        near.withColumn("before", before)
        .withColumn("quick", F.expr(at_once))
        .groupBy(*PLACE, "known")
        .agg(
            F.count_if("redelivered").alias("redeliveries"),
            F.count_if("quick").alias("quick"),
            F.count_if(~F.col("redelivered")).alias("fresh"),
            F.any_value("message_id").alias("message_id"),
            F.min(F.when(F.col("redelivered"), place)).alias("first"),
        )
        .withColumn(
            "redeliveries", F.when(F.col("message_id").isNull(), F.col("redeliveries") - F.col("fresh") + 1).otherwise(
                F.col("redeliveries")
            )
        )
        .select(F.col("of_queue").alias("queue"), "message_id", "redeliveries", "quick", "first.*")
    )  # fmt: skip
