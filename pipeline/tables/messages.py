"""Table messages: one row each time a message crossed the wire.

Those of the classic family are put together by workers (`shown_messages`); what became of some is `concluded` here. In
the session families a message's head (its method, with what became of it), its header and its bodies are rows with one
key; one grouping puts them together. No join of large tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import MESSAGES
from pipeline.tables.properties import (
    CLASSIC,
    PERSISTENT,
    PLAIN_PROPERTIES,
    PROPERTIES,
    by_family,
    with_properties,
)
from pipeline.tables.returns import KEY as MESSAGE
from pipeline.tables.returns import returned
from pipeline.tables.roles import SESSION_VERSIONS
from pipeline.tables.shape import shaped, timestamp

if TYPE_CHECKING:
    from udfs.contents import Shown

# Out of the state of sessions, out of the frame of the method.
STATE = {
    "channel": "int",
    "channel_life": "bigint",
    "operation": "string",
    "exchange": "string",
    "queue": "string",
    "address": "string",
    "link": "string",
    "tag": "bigint",
    "delivery_tag_hex": "string",
    "delivery_id": "bigint",
    "message_format": "bigint",
    "resumed": "boolean",
    "browsed": "boolean",
    "outcome": "string",
    "settled_ts_ns": "bigint",
    "settled_frame_no": "bigint",
    "transaction": "string",
}
METHOD = ("version", "sender", "packet_no", "ts_ns", "first_ts_ns")
KEY = ("connection_id", "content_frame_no")
BODY_FRAMES = ("body", "oob-body")


def messages(states: Mapping[str, DataFrame], frames: DataFrame, *, payload: bool = False) -> DataFrame:
    """`states` of messages by session family (as in `properties`) and `frames` -> table messages; `payload` brings
    column `body`."""
    rows = _contents(frames.filter(F.col("version").isin(*SESSION_VERSIONS)), payload)
    for state in states.values():
        rows = rows.unionByName(_state(state), allowMissingColumns=True)
    assembled = with_properties(_assembled(rows, payload), states)
    return shaped(_described(assembled, payload), MESSAGES)


def concluded(rows: DataFrame, settled: DataFrame) -> DataFrame:
    """Rows of the table without what became of them, all of their connections -> the same with it, out of SETTLED."""
    end = F.struct("outcome", "settled_ts_ns", "settled_frame_no", "transaction").alias("end")
    ends = settled.select("connection_id", F.col("frame_no").alias("first_frame_no"), end)
    known = rows.drop("returned_frame_no").join(ends.join(returned(rows), list(MESSAGE), "full"), list(MESSAGE), "left")
    settled_ts_ns: Column = F.coalesce("returned_ts_ns", "end.settled_ts_ns")
    was_returned = F.col("returned_ts_ns").isNotNull()
    return shaped(
        known.withColumns(
            {
                "outcome": F.when(was_returned, "returned").otherwise(F.coalesce("end.outcome", "outcome")),
                "transaction": F.col("end.transaction"),
                "settled_ts_ns": settled_ts_ns,
                "settle_latency_ns": settled_ts_ns - F.col("ts_ns"),
                "settled_frame_no": F.col("end.settled_frame_no"),
            }
        ),
        MESSAGES,
    )


def shown_messages(payload: bool) -> Shown:
    """How workers make the table out of the frames of the classic family."""
    from udfs.contents import Shown

    wanted = (*PLAIN_PROPERTIES, "reply_to", "delivery_mode")
    plain = {name: PROPERTIES[name][1][CLASSIC][1:] for name in wanted}
    return Shown(MESSAGES, SESSION_VERSIONS, BODY_FRAMES, plain, PERSISTENT, payload)


def _state(messages: DataFrame) -> DataFrame:
    """What the state of sessions tells of each message; a column that a family does not have is null."""
    present = set(messages.columns)
    values = [(F.col(name) if name in present else F.lit(None)).cast(kind).alias(name) for name, kind in STATE.items()]
    return messages.filter(F.col("operation").isNotNull()).select(
        "connection_id", F.col("frame_no").alias("content_frame_no"), F.struct(*values).alias("state")
    )


def _contents(frames: DataFrame, payload: bool) -> DataFrame:
    """The methods with content in `frames`, their headers and bodies; all by the frame_no of the method.

    In 1.0 a transfer carries all of them, and the last of a delivery what a header says.
    """
    is_method = F.col("content_frame_no") == F.col("frame_no")
    is_header = F.col("body_size").isNotNull() | F.col("properties").isNotNull()
    kept = ("frame_no", "body_sha256", *(("payload",) if payload else ()))
    return frames.filter(F.col("content_frame_no").isNotNull()).select(
        *KEY,
        *kept,
        F.col("ts_ns").alias("last_ts_ns"),
        F.when(is_method, F.struct(*METHOD)).alias("method"),
        F.when(is_header, F.struct("properties", "body_size")).alias("header"),
        F.when(F.col("frame_type").isin(*BODY_FRAMES), F.col("payload_size")).alias("body_bytes"),
    )


def _assembled(rows: DataFrame, payload: bool) -> DataFrame:
    body = F.expr("listagg(payload) within group (order by frame_no)") if payload else F.lit(None).cast("binary")
    return (
        rows.groupBy(*KEY)
        .agg(
            *(F.any_value(part, True).alias(part) for part in ("state", "method", "header")),
            F.max("frame_no").alias("last_frame_no"),
            F.max("last_ts_ns").alias("last_ts_ns"),
            F.sum("body_bytes").alias("body_bytes"),
            F.max("body_sha256").alias("body_sha256"),
            body.alias("body"),
        )
        .filter(F.col("method").isNotNull() & F.col("state").isNotNull())
        .select("*", "method.*", "header.*")
    )


def _described(rows: DataFrame, payload: bool) -> DataFrame:
    """Properties in columns; an empty body is no null."""
    complete = F.col("body_sha256").isNotNull()
    # 0-10 may state a size.
    seen = F.coalesce("body_bytes", F.when(complete, F.coalesce("body_size", F.lit(0))), F.lit(0))
    return rows.withColumns(
        {
            **{name: F.col(f"state.{name}") for name in STATE},
            **{name: F.col(f"property.{name}") for name in PLAIN_PROPERTIES},
            **by_family(),
            "first_frame_no": F.col("content_frame_no"),
            "delivery_tag": F.col("state.tag"),
            "ts": timestamp("ts_ns"),
            "body_size": F.coalesce("body_size", "property.content_length", F.when(complete, seen)),
            "body_seen": seen,
            "complete": complete,
            "body": F.coalesce("body", F.when(complete & F.lit(payload), F.lit(b""))),
            "settle_latency_ns": F.col("state.settled_ts_ns") - F.col("ts_ns"),
        }
    )
