"""Context 'messages': table messages, with frame_no and content_frame_no (the frame of its method), `version`, and its
connection (`c`).

Context 'numbers': deliveries with a delivery tag, and `highest_tag`: the highest tag before, in the same channel
incarnation.

Context 'waits': rows of context 'messages' that were settled late or never.

waited_ns    from the message to its settlement; without one, to the end of its channel or connection
outstanding  messages of its channel that are unsettled at the end

Context 'returned_publishes': publishes in confirm mode that the server returned, paired with equal publishes.

A basic.return has no delivery tag: which of several equal publishes it returns is a guess. Brokers return before they
confirm; so a return after all equal publishes are confirmed matches none of them, and is paired with the first one.

    all_confirmed_frame  frame that confirmed the last of the equal publishes of the channel; null: not all confirmed

Context 'redeliveries': deliveries that can only be a message which the same queue has delivered before.

They have the message id and the octets of an earlier delivery from the same queue that went back to it: the consumer
requeued it, or left it unsettled on a channel that has been closed since. Everything that could be another, equal
message is left out: messages published in between or explained by more publishes, dead-lettered ones, and those with
neither an id nor a publish in the capture. Streams deliver a message to every reader, so queues that were declared as
streams, or read from an offset, are left out, too.

    earlier_frame, earlier_connection   the delivery that went back

Context 'contents': messages with properties that rules read.

Context 'files': file.publish and file.deliver, with the methods before them on the channel that may have staged their
content.

Messages are counted by kind, once (`count_messages`): a context about a kind that does not occur is not planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import CHANNEL, MESSAGE_KINDS
from pipeline.audit.detector import Sql
from pipeline.tables.attributes import PERSISTENT

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Parameters, Sources

LIMITED = ("CF-04", "DL-13")  # rules with a limit on waiting; the lowest one selects the rows
# Kind -> condition on messages; contexts filter by the same conditions.
KINDS: dict[str, Sql] = {
    "immediate": "immediate AND operation = 'publish'",
    "settled": "settled_frame_no IS NOT NULL AND delivery_tag IS NOT NULL",
    "delivered": "operation IN ('deliver', 'get')",
    # Properties that rules read; `durable` is delivery mode 2.
    "special": "priority IS NOT NULL OR user_id IS NOT NULL OR expiration IS NOT NULL OR NOT durable",
    "returned": "operation = 'return'",
    "went_back": "outcome IN ('requeued', 'unsettled') AND queue IS NOT NULL",
    "redelivered": "redelivered AND operation IN ('deliver', 'get')",
    "requeued": "outcome = 'requeued'",
    "waited": "settle_latency_ns > {least_ns} OR outcome = 'unsettled'",
}


def kind_conditions(parameters: Parameters) -> Mapping[str, Sql]:
    """KINDS with the lowest limit of the LIMITED rules, ns."""
    limits = [parameters[rule]["limit_seconds"] for rule in LIMITED if rule in parameters]
    return {name: sql.format(least_ns=int(min(limits, default=0) * 10**9)) for name, sql in KINDS.items()}


def count_messages(messages: DataFrame, parameters: Parameters) -> DataFrame:
    """Messages counted by CHANNEL, `operation` and `link`: `first_frame` and `last_frame`; the number of each of
    MESSAGE_KINDS and of `large` publishes, with the frame of the first (`first_*`); the `largest`, bytes; the number of
    each kind (`kind_*`)."""
    limit = int(parameters.get("PR-09", {}).get("limit_bytes", 0))
    published = F.when(F.col("operation") == "publish", F.coalesce("body_size", "body_seen"))
    counts = {name: F.expr(sql) for name, sql in MESSAGE_KINDS.items()} | {"large": published > limit}
    return messages.groupBy(*CHANNEL, "operation", "link").agg(
        F.min("first_frame_no").alias("first_frame"),
        F.max("first_frame_no").alias("last_frame"),
        F.max(published).alias("largest"),
        *(F.count_if(is_one).alias(name) for name, is_one in counts.items()),
        *(F.min(F.when(is_one, F.col("first_frame_no"))).alias(f"first_{name}") for name, is_one in counts.items()),
        *(F.count_if(F.expr(sql)).alias(f"kind_{name}") for name, sql in kind_conditions(parameters).items()),
    )


def count_kinds(counts: DataFrame) -> Mapping[str, int]:
    """How many messages there are of each kind."""
    (row,) = counts.agg(*(F.expr(f"coalesce(sum(kind_{name}), 0)").alias(name) for name in KINDS)).collect()
    return row.asDict()


def messages(sources: Sources) -> DataFrame:
    """Context 'messages'."""
    versions = sources.tables.connections.select("connection_id", "version")
    return (
        sources.tables.messages.withColumns(
            {"frame_no": F.col("first_frame_no"), "content_frame_no": F.col("first_frame_no")}
        )
        .join(versions, "connection_id", "left")
        .join(sources.connection_facts, "connection_id", "left")
    )


def numbers(sources: Sources) -> DataFrame | None:
    """Context 'numbers'. Deliveries to a direct reply-to consumer have no delivery tags of their own."""
    if not sources.message_kind_counts["delivered"]:
        return None
    delivered = sources.tables.messages.filter(
        "operation IN ('deliver', 'get') AND delivery_tag > 0 "
        "AND coalesce(routing_key, '') NOT LIKE 'amq.rabbitmq.reply-to%'"
    ).select(
        *CHANNEL,
        F.col("first_frame_no").alias("frame_no"),
        F.col("first_frame_no").alias("content_frame_no"),
        "ts_ns",
        "delivery_tag",
    )
    earlier = Window.partitionBy(*CHANNEL).orderBy("frame_no").rowsBetween(Window.unboundedPreceding, -1)
    versions = sources.tables.connections.select("connection_id", "version")
    return delivered.withColumn("highest_tag", F.max("delivery_tag").over(earlier)).join(
        F.broadcast(versions), "connection_id"
    )


def waits(sources: Sources) -> DataFrame | None:
    """Context 'waits'."""
    if not sources.message_kind_counts["waited"]:
        return None
    channels = sources.tables.channels.select(
        *CHANNEL, (F.unix_micros("closed_ts") * 1000).alias("closed_ns"), F.col("unsettled").alias("outstanding")
    )
    until = F.least("closed_ns", "c.close.ts_ns", "c.last_ns")
    return (
        messages(sources)
        .filter(kind_conditions(sources.parameters)["waited"])
        .join(channels, list(CHANNEL), "left")
        .withColumn("waited_ns", F.coalesce("settle_latency_ns", until - F.col("ts_ns")))
    )


OF_KEY = ("exchange", "routing_key", "body_sha256")


def returned_publishes(sources: Sources) -> DataFrame | None:
    """Context 'returned_publishes'."""
    if not sources.message_kind_counts["returned"]:
        return None
    versions = sources.tables.connections.select("connection_id", "version")
    equal = Window.partitionBy(*CHANNEL, *OF_KEY)
    all_are = F.count("settled_frame_no").over(equal) == F.count("*").over(equal)
    confirmed = F.when(all_are, F.max("settled_frame_no").over(equal))
    in_doubt = "operation = 'publish' AND delivery_tag IS NOT NULL AND (mandatory OR immediate)"
    publishes = (
        sources.tables.messages.filter(in_doubt)
        .select(
            *CHANNEL, *OF_KEY, F.col("first_frame_no").alias("frame_no"), "ts_ns", "delivery_tag", "settled_frame_no",
            "returned_frame_no",
        )
        .withColumn("all_confirmed_frame", confirmed)
    )  # fmt: skip
    given_back = publishes.filter("returned_frame_no IS NOT NULL")
    returns = sources.tables.messages.filter(KINDS["returned"]).select(
        *CHANNEL, *OF_KEY, F.col("first_frame_no").alias("returned_frame_no")
    )
    alone = returns.join(
        given_back.select("connection_id", "returned_frame_no"), [*CHANNEL[:1], "returned_frame_no"], "anti"
    )
    in_turn = Window.partitionBy(*CHANNEL, *OF_KEY)
    late = (
        publishes.filter("returned_frame_no IS NULL")
        .drop("returned_frame_no")
        .withColumn("turn", F.row_number().over(in_turn.orderBy("frame_no")))
        .join(
            alone.withColumn("turn", F.row_number().over(in_turn.orderBy("returned_frame_no"))),
            [*CHANNEL, *OF_KEY, "turn"],
        )
    )
    return given_back.unionByName(late.select(given_back.columns)).join(versions, "connection_id", "left")


BROKER = ("server_ip", "server_port", "vhost")
# Methods of the client that show that a queue is a stream.
STREAMS: Sql = (
    "name = 'queue.declare' AND try_variant_get(arguments, '$.arguments[\"x-queue-type\"]', 'string') = 'stream' OR "
    "name = 'basic.consume' AND try_variant_get(arguments, '$.arguments[\"x-stream-offset\"]', 'variant') IS NOT NULL"
)
FINGERPRINT = (*BROKER, "body_sha256", "message_id", "correlation_id", "timestamp")


def redeliveries(sources: Sources) -> DataFrame | None:
    """Context 'redeliveries'."""
    if not sources.message_kind_counts["went_back"]:
        return None
    tables = sources.tables
    brokers = tables.connections.select("connection_id", "version", *BROKER)
    channels = tables.channels.select(*CHANNEL, (F.unix_micros("closed_ts") * 1000).alias("closed_ns"))
    rows = (
        tables.messages.filter("body_sha256 IS NOT NULL AND operation IN ('publish', 'deliver', 'get')")
        .select(
            *CHANNEL, "first_frame_no", "ts_ns", "operation", "queue", "redelivered", "outcome", "settled_ts_ns",
            "headers", "body_sha256", "message_id", "correlation_id", "timestamp",
        )
        .join(brokers, "connection_id")
    )  # fmt: skip
    streams = sources.control_methods.filter(STREAMS).join(brokers, "connection_id").select(*BROKER, "queue").distinct()
    same_queue = reduce(and_, (rows[name].eqNullSafe(streams[name]) for name in (*BROKER, "queue")))
    rows = rows.join(streams, same_queue, "left_anti")
    went_back = F.expr(KINDS["went_back"])
    # Few messages go back: only those, and messages equal to them, are sorted.
    candidates = rows.filter(went_back).select(_key().alias("key")).distinct()
    ends = F.least("closed_ns", "c.close.ts_ns", F.expr("CASE WHEN c.tcp_end != 'none' THEN c.last_ns END"))
    back_ns = F.when(F.col("outcome") == "requeued", F.col("settled_ts_ns")).when(F.col("outcome") == "unsettled", ends)
    near = (
        rows.withColumn("key", _key())
        .join(candidates, "key", "left_semi")
        .join(channels, list(CHANNEL), "left")
        .join(sources.connection_facts.select("connection_id", "c"), "connection_id", "left")
        .withColumn("back_ns", F.when(went_back, back_ns))
    )
    return _with_verdict(near).filter("unflagged")


def _key() -> Column:
    return F.xxhash64(*FINGERPRINT)


def _with_verdict(rows: DataFrame) -> DataFrame:
    """`unflagged`: true on redeliveries that are not marked as such; with the delivery that went back."""
    of_message = Window.partitionBy("key").orderBy("ts_ns", "connection_id", "first_frame_no")
    of_queue = Window.partitionBy("key", "queue").orderBy("ts_ns", "connection_id", "first_frame_no")
    before, so_far = (of_queue.rowsBetween(Window.unboundedPreceding, end) for end in (-1, 0))
    delivery = F.col("operation") != "publish"
    fresh = delivery & ~F.coalesce("redelivered", F.lit(False))
    earlier = F.when(delivery, F.struct("back_ns", "first_frame_no", "connection_id", "ts_ns"))
    published = F.when(~delivery, F.col("ts_ns"))
    return (
        rows.withColumns(
            {
                "earlier": F.last(earlier, ignorenulls=True).over(before),
                "first_deliveries": F.count(F.when(fresh, 1)).over(so_far),
                "publishes": F.count(published).over(of_message),
                "last_published_ns": F.max(published).over(of_message),
            }
        )
        .withColumn(
            "unflagged",
            fresh
            & F.col("queue").isNotNull()
            & (F.col("earlier.back_ns") <= F.col("ts_ns"))
            & F.expr("try_variant_get(headers, '$[\"x-death\"]', 'variant') IS NULL")
            & F.expr("try_variant_get(headers, '$[\"x-stream-offset\"]', 'variant') IS NULL")
            & F.expr("publishes = 0 AND message_id IS NOT NULL OR publishes > 0 AND first_deliveries > publishes")
            & F.expr("coalesce(last_published_ns < earlier.ts_ns, true)"),
        )
        .withColumns(
            {
                "frame_no": F.col("first_frame_no"),
                "earlier_frame": F.col("earlier.first_frame_no"),
                "earlier_connection": F.col("earlier.connection_id"),
            }
        )
    )


# Rows in which the staging of a content is searched: more staged contents on a channel do not occur.
STAGED_BEFORE = 1000
STAGES = ("file.open", "file.open-ok", "file.stage")
SENDS_STAGED = ("file.publish", "file.deliver")


def contents(sources: Sources) -> DataFrame | None:
    """Context 'contents': one row per message with properties that rules read."""
    if not sources.message_kind_counts["special"]:
        return None
    messages = sources.tables.messages.filter(KINDS["special"])
    # durable is delivery mode 2: only other messages need the properties
    delivery_mode = F.when(~F.col("durable"), F.expr("try_variant_get(properties, '$.delivery_mode', 'int')"))
    rows = messages.select(
        "connection_id", "channel", "channel_life", "sender", "operation", "ts_ns", "priority", "user_id", "expiration",
        F.col("first_frame_no").alias("frame_no"), F.col("first_frame_no").alias("content_frame_no"),
        delivery_mode.alias("delivery_mode"),
    )  # fmt: skip
    asked_about = F.col("delivery_mode") != PERSISTENT
    for name in ("priority", "user_id", "expiration"):
        asked_about |= F.col(name).isNotNull()
    of_connection = sources.connections.select("connection_id", "version", F.col("user").alias("login"))
    return rows.filter(asked_about).join(of_connection, "connection_id")


def files(sources: Sources) -> DataFrame | None:
    """Context 'files': one row a file.publish or file.deliver, with whether its content was staged before."""
    if not any(sources.method_counts[name] for name in SENDS_STAGED):
        return None
    before = Window.partitionBy("connection_id", "channel").orderBy("frame_no").rowsBetween(-STAGED_BEFORE, -1)
    step = F.struct("frame_no", "sender", "name", "args.identifier")
    rows = sources.control_methods.filter(F.col("name").isin(*STAGES, *SENDS_STAGED)).select(
        "connection_id", "channel", "version", "frame_no", "content_frame_no", "ts_ns", "sender", "name",
        F.expr("try_variant_get(arguments, '$', 'struct<identifier string>')").alias("args"),
    )  # fmt: skip
    return rows.withColumn("steps", F.collect_list(step).over(before)).filter(F.col("name").isin(*SENDS_STAGED))
