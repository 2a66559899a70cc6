"""Contexts of AMQP 0-10 and 1.0, whose channels are sessions.

'sequences', one row per oddity in the sequence of frames (`udfs.conversation.checks`):

    oddity             its name; observed, expected: numbers that show it; waited_ns: how long a reply took
    name               of the frame; condition, description: the error in it; asked: the command that it names
    link, address      of the link it is about; destination and queue of a subscription
    content_frame_no   the first frame of the link or message, else the frame itself

'handed_back', one row per link, direction and negative outcome: the number of messages, and the first with its error.
'session_messages', one row per message with properties that rules read.
'stolen_links', one row per attach of a link that its container has on another connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from codec.amqp.versions import fact_table
from pipeline.audit.contexts.channels import CHANNEL
from pipeline.audit.contexts.materialized import few_values, having_values
from pipeline.tables.roles import METHOD_FRAMES, SESSION_VERSIONS

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

ROUND_TRIP_NS = 10**9  # assumed if the capture does not show it
ERROR = "struct<condition string, description string>"
STATES_ERROR = (
    f"struct<error {ERROR}, state struct<error {ERROR}>, class_code int, command_code int, description string, "
    "text string>"
)
ATTACHES = (
    "struct<name string, role boolean, source struct<address string>, target struct<address string>, "
    "destination string, queue string>"
)
HANDED_BACK = ("rejected", "released", "modified")


def sequences(sources: Sources) -> DataFrame | None:
    """Context 'sequences'."""
    if not sources.versions & {*SESSION_VERSIONS}:
        return None
    # Imported here: it loads kernels, which captures of other versions do not need.
    from udfs.conversation.checks import ODD, OF_METHODS, odd_rows

    known = sources.connections.select(
        "connection_id",
        F.coalesce("tcp_rtt_ns", F.lit(ROUND_TRIP_NS)).alias("grace_ns"),
        F.col("ts_ns").alias("last_ns"),
        F.col("channel_max").alias("agreed_channel_max"),
    )
    methods = sources.methods.filter(
        F.col("version").isin(*SESSION_VERSIONS) & F.col("frame_type").isin(*METHOD_FRAMES)
    )
    rows = _with_discharges(sources, methods).join(F.broadcast(known), "connection_id").select(*OF_METHODS)
    in_order = rows.repartition("connection_id").sortWithinPartitions("connection_id", "frame_no")
    found = sources.materialize_if_any(in_order.mapInArrow(odd_rows, ODD))
    return None if found is None else _with_details(sources, found)


def _with_discharges(sources: Sources, methods: DataFrame) -> DataFrame:
    """`methods` with the transaction that a transfer discharges, from the body of its message."""
    if "1.0" not in sources.versions:
        return methods.withColumn("discharged", F.lit(None).cast("binary"))
    place = ["connection_id", "frame_no"]
    asked = sources.materialize(methods.filter("transaction_command = 'discharge'").select(*place))
    named = F.expr("try_variant_get(properties, '$.body.txn_id', 'binary')").alias("discharged")
    frames = having_values(sources.tables.frames, "frame_no", few_values(asked, "frame_no"))
    return methods.join(frames.join(asked, place, "left_semi").select(*place, named), place, "left")


def _with_details(sources: Sources, odd: DataFrame) -> DataFrame:
    """Oddities with the details of their frames."""
    place = ["connection_id", "frame_no"]
    error = F.expr(f"try_variant_get(arguments, '$', '{STATES_ERROR}')")
    frames = (
        having_values(sources.methods, "frame_no", few_values(odd, "frame_no"))
        .join(odd.select(*place).distinct(), place, "left_semi")
        .select(*place, "name", error.alias("args"))
        .select(
            *place,
            "name",
            F.coalesce("args.error.condition", "args.state.error.condition").alias("condition"),
            F.coalesce("args.error.description", "args.state.error.description", "args.description", "args.text").alias(
                "description"
            ),
            commands()[F.concat_ws(".", "args.class_code", "args.command_code")].alias("asked"),
        )
    )
    begun = odd.select("connection_id", F.col("about_frame_no").alias("frame_no")).filter("frame_no IS NOT NULL")
    numbers = few_values(begun, "frame_no")
    attached = F.expr(f"try_variant_get(arguments, '$', '{ATTACHES}')")
    # Of a link on which the client receives the node is the source, else the target.
    by_client = F.col("sender") == "client"
    links = (
        having_values(sources.methods, "frame_no", numbers)
        .join(begun.distinct(), place, "left_semi")
        .select(*place, "sender", attached.alias("of"))
        .select(
            "connection_id",
            F.col("frame_no").alias("about_frame_no"),
            F.coalesce("of.destination", "of.name").alias("link"),
            F.coalesce(
                "of.queue",
                F.when(by_client == F.col("of.role"), F.col("of.source.address")).otherwise(F.col("of.target.address")),
            ).alias("address"),
        )
    )
    # Oddities of deliveries get the link of the message.
    carried = (
        having_values(sources.tables.messages, "first_frame_no", numbers)
        .select("connection_id", F.col("first_frame_no").alias("about_frame_no"), "link", "address")
        .join(
            begun.withColumnRenamed("frame_no", "about_frame_no").distinct(),
            ["connection_id", "about_frame_no"],
            "left_semi",
        )
    )
    return (
        odd.join(frames, place, "left")
        .join(links.unionByName(carried), ["connection_id", "about_frame_no"], "left")
        .withColumn("content_frame_no", F.coalesce("about_frame_no", "frame_no"))
    )


def commands() -> Column:
    """Names of 0-10's commands by class code and code: '4.7' -> 'message.subscribe'."""
    named = (
        (f"{of_class['code']}.{entry['code']}", f"{of_class['name']}.{entry['name']}")
        for of_class in fact_table("0-10")["classes"]
        for entry in of_class.get("commands", ())
    )
    return F.create_map(*(F.lit(part) for pair in named for part in pair))


def _versions(sources: Sources) -> DataFrame:
    return F.broadcast(
        sources.connections.filter(F.col("version").isin(*SESSION_VERSIONS)).select(
            "connection_id", "version", F.col("user").alias("login")
        )
    )


def handed_back(sources: Sources) -> DataFrame | None:
    """Context 'handed_back'."""
    if not sources.versions & {*SESSION_VERSIONS}:
        return None
    by = [*CHANNEL, "version", "operation", "link", "address", "outcome"]
    first = F.min(F.struct(F.col("settled_frame_no").alias("frame_no"), "settled_ts_ns", "first_frame_no"))
    found = sources.materialize_if_any(
        sources.tables.messages.filter(F.col("outcome").isin(*HANDED_BACK))
        .join(_versions(sources), "connection_id")
        .groupBy(*by)
        .agg(first.alias("first"), F.count("*").alias("messages"))
        .select(
            *by, "messages", "first.frame_no", F.col("first.settled_ts_ns").alias("ts_ns"),
            F.col("first.first_frame_no").alias("content_frame_no"),
        )
    )  # fmt: skip
    if found is None:
        return None
    place = ["connection_id", "frame_no"]
    error = F.expr(f"try_variant_get(arguments, '$.state.error', '{ERROR}')")
    errors = (
        having_values(sources.methods, "frame_no", few_values(found, "frame_no"))
        .join(found.select(*place).distinct(), place, "left_semi")
        .select(*place, error.alias("error"))
    )
    return found.join(errors, place, "left")


def session_messages(sources: Sources) -> DataFrame | None:
    """Context 'session_messages'."""
    if not sources.versions & {*SESSION_VERSIONS}:
        return None
    asked_about = "priority > 9 OR ttl_ms = 0 OR redelivered OR user_id IS NOT NULL"
    if "0-10" in sources.versions:
        asked_about = "complete"  # of each the length is compared
    lengths = {
        name: F.expr(f"try_variant_get(properties, '$.{of}.{name}', 'bigint')")
        for of, name in (("message_properties", "content_length"), ("header", "delivery_count"))
    }
    times = {
        to: F.expr(f"try_variant_get(properties, '$.delivery_properties.{name}', 'timestamp')")
        for name, to in (("expiration", "expires"), ("timestamp", "stamped"))
    }
    frame_no = F.col("first_frame_no")
    return (
        sources.tables.messages.filter(asked_about)
        .join(_versions(sources), "connection_id")
        .select(
            *CHANNEL, "version", "login", "sender", "operation", "ts_ns", "priority", "ttl_ms", "user_id", "link",
            "address", "body_seen", "complete", frame_no.alias("frame_no"), frame_no.alias("content_frame_no"),
            *(value.alias(name) for name, value in (lengths | times).items()),
        )
    )  # fmt: skip


def stolen_links(sources: Sources) -> DataFrame | None:
    """Context 'stolen_links'."""
    if "1.0" not in sources.versions:
        return None
    whose = sources.connections.filter("version = '1.0'").select(
        "connection_id",
        "version",
        "server_ip",
        "client_container_id",
        "server_container_id",
        F.col("closed_ts").alias("ended_ts"),
    )
    links = (
        sources.tables.links.filter("opened_ts IS NOT NULL AND name IS NOT NULL")
        .join(F.broadcast(whose), "connection_id")
        .filter("client_container_id IS NOT NULL AND server_container_id IS NOT NULL")
        .withColumn("until_ts", F.coalesce("closed_ts", "ended_ts"))
    )
    attaches = (
        sources.control_methods.filter("version = '1.0' AND name = 'attach'")
        .select(
            "connection_id",
            F.expr("try_variant_get(arguments, '$.name', 'string')").alias("name"),
            F.col("ts").alias("opened_ts"),
            "frame_no",
            "ts_ns",
        )
        .groupBy("connection_id", "name", "opened_ts")
        .agg(F.min("frame_no").alias("frame_no"), F.min("ts_ns").alias("ts_ns"))
    )
    same = Window.partitionBy("server_ip", "client_container_id", "server_container_id", "kind", "name").orderBy(
        "opened_ts"
    )
    until = F.max(F.struct("until_ts", F.col("connection_id").alias("of")))
    return (
        links.withColumn("earlier", until.over(same.rowsBetween(Window.unboundedPreceding, -1)))
        .filter("earlier.until_ts > opened_ts AND earlier.of != connection_id")
        .join(attaches, ["connection_id", "name", "opened_ts"])
    )
