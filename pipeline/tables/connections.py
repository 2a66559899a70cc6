"""Table connections: one row a TCP connection, of any protocol.

Transport facts come with the decoded rows; counts are one grouping of all frames; what the two sides said of themselves
comes from the few methods of the connection class.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.schemas import CONNECTIONS
from pipeline.tables.facts import facts
from pipeline.tables.roles import METHOD_FRAMES, OPERATIONS, REACHES_STAGE, SPANS, STAGES, looked_up, named
from pipeline.tables.shape import shaped, timestamp

SIDES = ("client", "server")
# Column -> (method that says it, path among its arguments, type).
SAID = {
    "vhost": ("connection.open", "virtual_host", "string"),
    "user": ("connection.start-ok", "user", "string"),
    "mechanism": ("connection.start-ok", "mechanism", "string"),
    "locale": ("connection.start-ok", "locale", "string"),
    "client_product": ("connection.start-ok", "client_properties.product", "string"),
    "client_version": ("connection.start-ok", "client_properties.version", "string"),
    "client_platform": ("connection.start-ok", "client_properties.platform", "string"),
    "client_properties": ("connection.start-ok", "client_properties", "variant"),
    "client_capabilities": ("connection.start-ok", "client_properties.capabilities", "variant"),
    "server_product": ("connection.start", "server_properties.product", "string"),
    "server_version": ("connection.start", "server_properties.version", "string"),
    "server_platform": ("connection.start", "server_properties.platform", "string"),
    "server_properties": ("connection.start", "server_properties", "variant"),
    "server_capabilities": ("connection.start", "server_properties.capabilities", "variant"),
    "channel_max": ("connection.tune-ok", "channel_max", "bigint"),
    "frame_max": ("connection.tune-ok", "frame_max", "bigint"),
    "heartbeat_s": ("connection.tune-ok", "heartbeat", "bigint"),
    "server_channel_max": ("connection.tune", "channel_max", "bigint"),
    "server_frame_max": ("connection.tune", "frame_max", "bigint"),
    "server_heartbeat_s": ("connection.tune", "heartbeat", "bigint"),
}
OPENED = "connection.open-ok"
CLOSES = "connection.close"
BLOCKS = {"connection.blocked": True, "connection.unblocked": False}
SPEAKS = tuple({method for method, _, _ in SAID.values()} | set(REACHES_STAGE))


def connections(decoded: DataFrame) -> DataFrame:
    """Decoded rows -> table connections."""
    known = facts(decoded)
    frames = decoded.filter(F.col("kind") == "frame")
    rows = known.select("*", *_of_sides())
    for part in (_counted(frames), _said(frames), _blocked(frames, known)):
        rows = rows.join(part, "connection_id", "left")
    return shaped(rows.withColumns(_concluded()), CONNECTIONS)


def _counted(frames: DataFrame) -> DataFrame:
    """Frames, methods, heartbeats by sender; messages; the stage reached by protocol headers."""
    is_frame, kind = ~F.col("frame_type").isin(list(SPANS)), F.col("frame_type")
    counted = {"frames": is_frame, "methods": kind.isin(list(METHOD_FRAMES)), "heartbeats": kind == "heartbeat"}
    by_side = [
        F.count(F.when(condition & (F.col("sender") == side), 1)).alias(f"{side}_{name}")
        for name, condition in counted.items()
        for side in SIDES
    ]
    operation = looked_up(OPERATIONS)
    return frames.groupBy("connection_id").agg(
        *by_side,
        F.count(F.when(operation == "publish", 1)).alias("messages_published"),
        F.count(F.when(operation.isin("deliver", "get"), 1)).alias("messages_delivered"),
        F.max(kind == "protocol-header").alias("header_seen"),
    )


def _said(frames: DataFrame) -> DataFrame:
    """Columns of SAID, the stage reached by methods, opening and closing; each as said first."""
    first = {
        name: F.any_value(
            F.when(F.col("name") == method, F.expr(f"try_variant_get(arguments, '$.{path}', '{kind}')")), True
        )
        for name, (method, path, kind) in SAID.items()
    }
    close = F.struct(
        "frame_no",
        "sender",
        F.expr("try_variant_get(arguments, '$.reply_code', 'int')").alias("code"),
        F.expr("try_variant_get(arguments, '$.reply_text', 'string')").alias("text"),
    )
    stage = F.array_position(F.array(*map(F.lit, STAGES)), looked_up(REACHES_STAGE))
    return (
        frames.filter(named(SPEAKS))
        .groupBy("connection_id")
        .agg(
            *(value.alias(name) for name, value in first.items()),
            F.max(stage).alias("stage"),
            F.min(F.when(F.col("name") == OPENED, F.col("ts_ns"))).alias("open_ns"),
            F.min(F.when(F.col("name") == CLOSES, close)).alias("close"),
        )
    )


def _blocked(frames: DataFrame, known: DataFrame) -> DataFrame:
    """`blocked_ns`: from a blocked to the next unblocked, or to the connection's last packet."""
    in_order = Window.partitionBy("connection_id").orderBy("frame_no")
    spans = (
        frames.filter(named(BLOCKS))
        .select(
            "connection_id", "frame_no", "ts_ns", F.col("name").isin([n for n, on in BLOCKS.items() if on]).alias("on")
        )
        .withColumn("until_ns", F.lead("ts_ns").over(in_order))
        .filter("on")
        .join(known.select("connection_id", "closed_ts_ns"), "connection_id", "left")
    )
    length = F.coalesce("until_ns", F.greatest("closed_ts_ns", "ts_ns")) - F.col("ts_ns")
    return spans.groupBy("connection_id").agg(F.sum(length).alias("blocked_ns"))


def _of_sides() -> list[Column]:
    """The measures of both directions, each beside the other or added up."""
    apart = {"packets": "packets", "bytes": "payload_bytes", "max_silence_ns": "max_silence_ns"}
    columns = [F.col(f"{side}.{field}").alias(f"{side}_{name}") for side in SIDES for name, field in apart.items()]
    together = {
        "retransmitted_bytes": ("retransmitted_bytes",),
        "out_of_order_segments": ("out_of_order_segments",),
        "missing_bytes": ("missing_bytes",),
        "undecoded_bytes": ("skipped_bytes", "foreign_bytes", "tail_bytes"),
    }
    for name, fields in together.items():
        parts = [F.coalesce(f"{side}.{field}", F.lit(0)) for side in SIDES for field in fields]
        columns.append(reduce(Column.__add__, parts).alias(name))
    return columns


def _concluded() -> dict[str, Column]:
    stages = F.array(*map(F.lit, STAGES))
    by_header = F.when(F.col("header_seen"), F.array_position(stages, F.lit("header"))).otherwise(1)
    mode = (
        F.when(F.coalesce(F.col("content") != "tls", F.lit(True)) & F.col("tls").isNull(), "none")
        .when(F.col("header_seen"), "upgraded")
        .otherwise("implicit")
    )
    counts = [f"{side}_{name}" for side in SIDES for name in ("frames", "methods", "heartbeats")]
    counts += ["messages_published", "messages_delivered", "blocked_ns"]
    capabilities = [F.to_variant_object(F.struct(*(F.col(f"{side}_capabilities").alias(side) for side in SIDES)))]
    spoke = F.coalesce(*(f"{side}_capabilities" for side in SIDES)).isNotNull()
    return {
        **{name: F.coalesce(name, F.lit(0)) for name in counts},
        **{f"client_{name}": F.col(name) for name in ("channel_max", "frame_max", "heartbeat_s")},
        "opened_ts": timestamp("opened_ts_ns"),
        "closed_ts": timestamp("closed_ts_ns"),
        "handshake_ns": F.when(F.col("syn_seen"), F.col("open_ns") - F.col("opened_ts_ns")),
        "state": F.element_at(stages, F.greatest(F.coalesce("stage", F.lit(1)), by_header).cast("int")),
        "tls": F.struct(
            mode.alias("mode"),
            F.col("tls.sni").alias("sni"),
            F.col("tls.version").alias("tls_version"),
            F.col("tls.alpn").alias("alpn"),
        ),
        "capabilities": F.when(spoke, capabilities[0]),
        "close_initiator": F.col("close.sender"),
        "close_code": F.col("close.code"),
        "close_text": F.col("close.text"),
    }
