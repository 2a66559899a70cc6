"""Table messages: one row each time a message crossed the wire.

A message's head (its method, with what became of it), its return, its content header and its bodies are rows with one
key; one grouping puts them together. No join of large tables.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import MESSAGES
from pipeline.tables.returns import returned
from pipeline.tables.shape import shaped, timestamp

HEAD = (
    "channel",
    "channel_life",
    "sender",
    "operation",
    "packet_no",
    "ts_ns",
    "exchange",
    "routing_key",
    "queue",
    "link",
    "delivery_tag",
    "redelivered",
    "mandatory",
    "immediate",
    "outcome",
    "settled_ts_ns",
    "transaction",
)
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
    heads = settled.filter(F.col("operation").isNotNull())
    head_rows = _heads(heads).select("connection_id", "content_frame_no", F.struct(*HEAD).alias("head"))
    rows = head_rows.unionByName(_contents(frames, payload), allowMissingColumns=True).unionByName(
        returned(heads, frames), allowMissingColumns=True
    )
    return shaped(_described(_assembled(rows, payload), payload), MESSAGES)


def _heads(heads: DataFrame) -> DataFrame:
    """Columns of HEAD: the queue a delivery came from, and the tag the broker counts for a publish."""
    got = F.col("request.queue")
    queue = F.when(F.col("operation") == "deliver", F.col("link_queue")).when(
        F.col("operation") == "get", F.when(got == "", F.col("declared_queue")).otherwise(got)
    )
    return heads.withColumns(
        {"queue": queue, "delivery_tag": F.col("tag"), "content_frame_no": F.col("frame_no")},
    )


def _contents(frames: DataFrame, payload: bool) -> DataFrame:
    """Content headers and bodies of `frames`, by the frame_no of their method."""
    kept = ["frame_no", "payload_size", "body_sha256", *(["payload"] if payload else [])]
    is_header = F.col("body_size").isNotNull() | F.col("properties").isNotNull()
    carries_content = F.col("content_frame_no").isNotNull() & (F.col("content_frame_no") != F.col("frame_no"))
    return frames.filter(carries_content).select(
        *KEY,
        *kept,
        F.when(is_header, F.struct("properties", "body_size")).alias("header"),
    )


def _assembled(rows: DataFrame, payload: bool) -> DataFrame:
    in_body = F.when(F.col("header").isNull(), F.col("payload_size"))
    body = F.expr("listagg(payload) within group (order by frame_no)") if payload else F.lit(None).cast("binary")
    return (
        rows.groupBy(*KEY)
        .agg(
            F.any_value("head", True).alias("head"),
            F.any_value("header", True).alias("header"),
            F.max("frame_no").alias("last_content_frame_no"),
            F.sum(in_body).alias("body_seen"),
            F.max("body_sha256").alias("body_sha256"),
            F.max("returned_ts_ns").alias("returned_ts_ns"),
            body.alias("body"),
        )
        .filter(F.col("head").isNotNull())
        .select("*", "head.*", "header.*")
        .drop("head", "header")
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
                "last_frame_no": F.coalesce("last_content_frame_no", "content_frame_no"),
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
