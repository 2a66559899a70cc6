"""CT: contents (a method, its header and its bodies), and their properties.

The decoder tracks contents on each channel and direction, and resets where a frame boundary is lost. It adds a note to
a frame that does not fit the frames before it (codec.amqp.classic.contents).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.contexts.arguments import CHANNEL_ARGUMENTS, arguments_struct
from pipeline.audit.contexts.message_counts import KINDS
from pipeline.audit.detector import Detector, Sql
from pipeline.audit.detectors.framing import has_note
from pipeline.tables.properties import PERSISTENT

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

HEADERS: Sql = "frame_type IN ('header', 'oob-header')"
STARTS_CONTENT: Sql = "content_frame_no = frame_no"
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
        arguments_struct(CHANNEL_ARGUMENTS).alias("args"),
    )  # fmt: skip
    return rows.withColumn("steps", F.collect_list(step).over(before)).filter(F.col("name").isin(*SENDS_STAGED))


# An open of the same identifier by the same side, then the other's open-ok, then the stage.
STAGED: Sql = (
    "exists(filter(steps, o -> o.name = 'file.open' AND o.sender = sender AND o.identifier = args.identifier), o -> "
    "exists(filter(steps, k -> k.name = 'file.open-ok' AND k.sender != sender AND k.frame_no > o.frame_no), k -> "
    "exists(steps, s -> s.name = 'file.stage' AND s.sender = sender AND s.frame_no > k.frame_no)))"
)
CONTEXTS = {"contents": contents, "files": files}


def on_contents(rule: str, note: str, of: Sql = "true", **evidence: Sql) -> Detector:
    """What the decoder notes about a frame of a content breaks the rule."""
    shown = {**evidence, "frame_type": "frame_type", "name": "name"}
    return Detector(rule, "frames", when=f"{of} AND {has_note(note)}", evidence=shown, offender="sender")


DETECTORS = (
    on_contents("CT-01", "header-missing", observed="frame_type", expected="'header'"),
    on_contents("CT-02", "class-differs", observed="class_id", expected="'the class of the method before'"),
    on_contents("CT-03", "weight", observed="'not zero'", expected="0"),
    on_contents("CT-04", "body-long", observed="'more body than declared'", last_body="payload_size"),
    on_contents("CT-05", "body-short", observed="frame_type", expected="'body'"),
    on_contents("CT-06", "content-alone", observed="frame_type", expected="'method with content'"),
    Detector(
        "CT-07",
        "frames",
        when="frame_type IN ('header', 'body') AND channel = 0",
        evidence={"observed": "channel", "frame_type": "frame_type"},
        offender="sender",
    ),
    on_contents("CT-08", "undefined-flags", HEADERS, expected="'flags of properties of the class'"),
    Detector(
        "CT-09",
        "frames",
        when=f"{HEADERS} AND {has_note('fields-short', 'octets-left')}",
        evidence={
            "observed": f"CASE WHEN {has_note('octets-left')} THEN 'octets left' ELSE 'octets missing' END",
            "size": "size",
            "name": "name",
        },
        offender="sender",
    ),
    Detector(
        "CT-10",
        "frames",
        when=f"frame_type = 'body' AND (payload_size = 0 AND status = 'ok' OR {has_note('body-of-nothing')})",
        evidence={"observed": "payload_size"},
        offender="sender",
    ),
    Detector(
        "CT-11",
        "frames",
        when=f"{STARTS_CONTENT} AND frame_type = 'method' AND {has_note('header-missing', 'body-short')}",
        evidence={"observed": "name", "expected": "'the rest of the content before'"},
        offender="sender",
    ),
    Detector(
        "CT-12",
        "contents",
        when="delivery_mode NOT IN (1, 2) OR priority > 9",
        evidence={"delivery_mode": "delivery_mode", "priority": "priority"},
        offender="sender",
    ),
    Detector(
        "CT-13",
        "contents",
        when="operation = 'publish' AND user_id != login",
        evidence={"observed": "user_id", "expected": "login"},
    ),
    Detector(
        "CT-14",
        "contents",
        when="operation = 'publish' AND NOT expiration RLIKE '^[0-9]+$'",
        evidence={"observed": "expiration", "expected": "'decimal digits'"},
    ),
    Detector(
        "CT-15",
        "events",
        when="name = 'basic.return'",
        evidence={
            "observed": "args.reply_code",
            "text": "args.reply_text",
            "exchange": "args.exchange",
            "routing_key": "args.routing_key",
        },
    ),
    on_contents("CT-16", "reserved-set", HEADERS, observed="'cluster-id'"),
    Detector(
        "CT-17",
        "frames",
        # a size that no LONG holds is null
        when=f"{HEADERS} AND (body_size > {{limit_bytes}} OR body_size IS NULL AND status = 'ok')",
        evidence={"observed": "coalesce(CAST(body_size AS STRING), '2^63 or more')", "expected": "{limit_bytes}"},
        offender="sender",
    ),
    Detector(
        "CT-18",
        "files",
        when=f"NOT {STAGED}",
        evidence={"observed": "name", "identifier": "args.identifier", "expected": "'file.open, open-ok, stage'"},
        offender="sender",
    ),
    Detector(
        "CT-19",
        "events",
        when="name LIKE 'file.%' OR name LIKE 'stream.%'",
        evidence={"observed": "name"},
        offender="sender",
    ),
)
