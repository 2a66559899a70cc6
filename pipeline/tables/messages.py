"""Table messages: one row each time a message crossed the wire.

A message's head (its method, with what became of it), its return, its content header and its bodies are rows with one
key; one grouping puts them together. No join of large tables.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import MESSAGES
from pipeline.tables.events import hot_arguments
from pipeline.tables.returns import returned
from pipeline.tables.shape import shaped, timestamp

# Out of the settled timeline, out of the frame of the method, out of that method's arguments.
STATE = ("channel_life", "operation", "queue", "link", "tag", "outcome", "settled_ts_ns", "transaction")
METHOD = ("channel", "sender", "packet_no", "ts_ns")
ARGUMENTS = ("exchange", "routing_key", "redelivered", "mandatory", "immediate")
# Property -> type in the table; read from the VARIANT in one pass.
PROPERTIES = {
    "delivery_mode": "int",
    "priority": "int",
    "expiration": "string",
    "message_id": "string",
    "correlation_id": "string",
    "reply_to": "string",
    "content_type": "string",
    "content_encoding": "string",
    "type": "string",
    "user_id": "string",
    "app_id": "string",
    "timestamp": "timestamp",
    "headers": "variant",
}
PERSISTENT = 2  # delivery mode (0-9-1 specification, class basic, property delivery-mode)
KEY = ("connection_id", "content_frame_no")


def messages(settled: DataFrame, frames: DataFrame, *, payload: bool = False) -> DataFrame:
    """`settled` timeline and `frames` -> table messages; `payload` brings column `body`."""
    states = settled.filter(F.col("operation").isNotNull()).select(
        "connection_id", F.col("frame_no").alias("content_frame_no"), F.struct(*STATE).alias("state")
    )
    rows = _contents(frames, payload)
    for part in (states, returned(frames)):
        rows = rows.unionByName(part, allowMissingColumns=True)
    return shaped(_described(_assembled(rows, payload), payload), MESSAGES)


def _contents(frames: DataFrame, payload: bool) -> DataFrame:
    """The methods with content in `frames`, their headers and bodies; all by the frame_no of the method."""
    is_method = F.col("content_frame_no") == F.col("frame_no")
    is_header = ~is_method & (F.col("body_size").isNotNull() | F.col("properties").isNotNull())
    method = F.struct(*METHOD, hot_arguments(ARGUMENTS).alias("argument"))
    kept = ("frame_no", "body_sha256", *(("payload",) if payload else ()))
    return frames.filter(F.col("content_frame_no").isNotNull()).select(
        *KEY,
        *kept,
        F.when(is_method, method).alias("method"),
        F.when(is_header, F.struct("properties", "body_size")).alias("header"),
        F.when(~is_method & ~is_header, F.col("payload_size")).alias("body_bytes"),
    )


def _assembled(rows: DataFrame, payload: bool) -> DataFrame:
    body = F.expr("listagg(payload) within group (order by frame_no)") if payload else F.lit(None).cast("binary")
    return (
        rows.groupBy(*KEY)
        .agg(
            *(F.any_value(part, True).alias(part) for part in ("state", "method", "header")),
            F.max("frame_no").alias("last_frame_no"),
            F.sum("body_bytes").alias("body_seen"),
            F.max("body_sha256").alias("body_sha256"),
            F.max("returned_ts_ns").alias("returned_ts_ns"),
            body.alias("body"),
        )
        .filter(F.col("method").isNotNull() & F.col("state").isNotNull())
        .select("*", "state.*", "method.*", "method.argument.*", "header.*")
        .drop("state", "method", "header")
    )


def _described(rows: DataFrame, payload: bool) -> DataFrame:
    """Properties in columns; an empty body is no null."""
    complete = F.col("body_sha256").isNotNull()
    fields = ", ".join(f"{name} {data_type}" for name, data_type in PROPERTIES.items())
    property_values = F.expr(f"try_variant_get(properties, '$', 'struct<{fields}>')")
    was_returned = F.col("returned_ts_ns").isNotNull()
    seen_header = F.col("body_size").isNotNull()
    settled_ts_ns: Column = F.coalesce("returned_ts_ns", "settled_ts_ns")
    return (
        rows.withColumn("property", property_values)
        .select("*", "property.*")
        .withColumns(
            {
                "first_frame_no": F.col("content_frame_no"),
                "delivery_tag": F.col("tag"),
                "ts": timestamp("ts_ns"),
                "durable": F.when(seen_header, F.coalesce(F.col("delivery_mode") == PERSISTENT, F.lit(False))),
                "ttl_ms": F.expr("try_cast(expiration as bigint)"),
                "body_seen": F.coalesce("body_seen", F.lit(0)),
                "complete": complete,
                "body": F.coalesce("body", F.when(complete & F.lit(payload), F.lit(b""))),
                "outcome": F.when(was_returned, "returned").otherwise(F.col("outcome")),
                "settled_ts_ns": settled_ts_ns,
                "settle_latency_ns": settled_ts_ns - F.col("ts_ns"),
            }
        )
    )
