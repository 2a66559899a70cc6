"""Table connections: one row a TCP connection, of any protocol.

Transport facts come with the decoded rows; frames are counted where they are decoded; what the two sides said of
themselves comes from the few methods of the connection class.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from codec.sides import SIDES
from pipeline.schemas import CONNECTIONS
from pipeline.tables.facts import facts
from pipeline.tables.methods import coordination
from pipeline.tables.roles import (
    BEAT_FRAMES,
    BEAT_METHODS,
    CLOSES_CONNECTION,
    DELIVERIES,
    HEADER,
    METHOD_FRAMES,
    OPENED,
    OPERATIONS,
    REACHED_BY_BOTH,
    REACHES_STAGE,
    SPANS,
    STAGES,
    TRANSFERS,
    looked_up,
    named,
)
from pipeline.tables.sayings import NAMES, SAID, SAYING_METHODS, first_said
from pipeline.tables.shape import elapsed, shaped, timestamp

if TYPE_CHECKING:
    from udfs.counting import Counts

CLOSE = {
    "code": "try_variant_get(arguments, '$.reply_code', 'int')",
    "text": "try_variant_get(arguments, '$.reply_text', 'string')",
    "error": "try_variant_get(arguments, '$.error', 'struct<condition string, description string>')",
}
AGREED = ("channel_max", "frame_max", "heartbeat_s")
BLOCKS = {"connection.blocked": True, "connection.unblocked": False}
# Steps of the handshake: (what begins it, what ends it), as (method, sender).
STEPS = {
    "start_latency_ns": ([(HEADER, "client")], [("connection.start", "server"), (HEADER, "server")]),
    "login_latency_ns": (
        [("connection.start-ok", "client"), ("sasl-init", "client")],
        [("connection.tune", "server"), ("sasl-outcome", "server")],
    ),
    "open_latency_ns": ([("connection.open", "client")], [("connection.open-ok", "server")]),
}
# Frames that say something of their connection, by name or else by type.
SPEAKS = (
    *SAYING_METHODS,
    *REACHES_STAGE,
    *REACHED_BY_BOTH,
    *BLOCKS,
    *{step for ends in STEPS.values() for end in ends for step, _ in end},
)


def speaks() -> Column:
    """True on the rows of `frames` that say something of their connection."""
    return F.coalesce("name", "frame_type").isin(*SPEAKS)


def frame_counts() -> Counts:
    """What workers count."""
    from udfs.counting import Counts

    published, delivered = (
        tuple(name for name, operation in OPERATIONS.items() if operation in chosen)
        for chosen in (("publish",), DELIVERIES)
    )
    beats = (*BEAT_FRAMES, *BEAT_METHODS)
    return Counts((*SPANS, HEADER), METHOD_FRAMES, beats, published, delivered, TRANSFERS, coordination())


def connections(decoded: DataFrame, said: DataFrame, counts: DataFrame) -> DataFrame:
    """Decoded rows, those of the frames that speak of their connection, and how many frames there are (parts SAID,
    FRAME_COUNTS) -> table connections."""
    known = facts(decoded)
    rows = known.select("*", *_of_sides())
    for part in (_counted(counts), _said(said), _blocked(said, known)):
        rows = rows.join(part, "connection_id", "left")
    return shaped(rows.withColumns(_concluded()), CONNECTIONS)


def _counted(counts: DataFrame) -> DataFrame:
    """Frames, methods, heartbeats by sender; messages; whether there is a protocol header."""
    sums = {name: F.sum(name) for name in counts.columns if name != "connection_id"}
    sums |= {f"messages_{name}": sums.pop(name) for name in ("published", "delivered")}
    sums["header_seen"] = sums.pop("headers") > 0
    return counts.groupBy("connection_id").agg(*(value.alias(name) for name, value in sums.items()))


def _said(frames: DataFrame) -> DataFrame:
    """Columns of SAID, the stage reached by methods, opening and closing; each as said first."""
    stage = F.array_position(F.array(*map(F.lit, STAGES)), looked_up(REACHES_STAGE))
    first = {
        f"{side}_{method}_ns": F.min(F.when((F.col("name") == method) & (F.col("sender") == side), F.col("ts_ns")))
        for method in REACHED_BY_BOTH
        for side in SIDES
    }
    close = F.struct("frame_no", "sender", *(F.expr(value).alias(name) for name, value in CLOSE.items()))
    said = (
        frames.withColumn("step", F.coalesce("name", "frame_type"))
        .groupBy("connection_id")
        .agg(
            *(first_said(saying).alias(name) for name, saying in SAID.items()),
            *(value.alias(name) for name, value in first.items()),
            *(elapsed(_first(since), _first(until)).alias(name) for name, (since, until) in STEPS.items()),
            F.max(stage).alias("stage"),
            F.min(F.when(named(OPENED), F.col("ts_ns"))).alias("open_ns"),
            F.min(F.when(named(CLOSES_CONNECTION), close)).alias("close"),
        )
    )
    # In 1.0 the later open opens the connection.
    opened = F.when(_by_both("open"), F.greatest(*(f"{side}_open_ns" for side in SIDES)))
    apart = F.when(_by_both("open"), F.abs(F.col("client_open_ns") - F.col("server_open_ns")))
    return said.withColumns(
        {
            "stage": F.greatest("stage", *_stages_by_both()),
            "open_ns": F.coalesce("open_ns", opened),
            "open_latency_ns": F.coalesce("open_latency_ns", apart),
        }
    )


def _first(moments: list[tuple[str, str]]) -> Column:
    """Aggregate: when the first of `moments` was."""
    is_one = reduce(Column.__or__, ((F.col("step") == step) & (F.col("sender") == side) for step, side in moments))
    return F.min(F.when(is_one, F.col("ts_ns")))


def _by_both(method: str) -> Column:
    """True when both sides have sent `method`."""
    return F.col(f"client_{method}_ns").isNotNull() & F.col(f"server_{method}_ns").isNotNull()


def _stages_by_both() -> list[Column]:
    return [F.when(_by_both(method), STAGES.index(stage) + 1) for method, stage in REACHED_BY_BOTH.items()]


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
    return spans.groupBy("connection_id").agg(F.try_sum(length).alias("blocked_ns"))


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
    condition = F.concat_ws(": ", "close.error.condition", "close.error.description")
    spoke = F.coalesce(*(f"{side}_capabilities" for side in SIDES)).isNotNull()
    return {
        **{name: F.coalesce(name, F.lit(0)) for name in counts},
        **{name: _agreed(name) for name in AGREED},
        "opened_ts": timestamp("opened_ts_ns"),
        "closed_ts": timestamp("closed_ts_ns"),
        "handshake_ns": F.when(F.col("syn_seen"), elapsed(F.col("opened_ts_ns"), F.col("open_ns"))),
        "state": F.element_at(stages, F.greatest(F.coalesce("stage", F.lit(1)), by_header).cast("int")),
        "tls": F.struct(
            mode.alias("mode"),
            F.col("tls.sni").alias("sni"),
            F.col("tls.version").alias("tls_version"),
            F.col("tls.alpn").alias("alpn"),
        ),
        "client_name": F.coalesce(*(F.nullif(F.concat_ws(" ", *name.split()), F.lit("")) for name in NAMES)),
        "capabilities": F.when(spoke, capabilities[0]),
        "close_initiator": F.col("close.sender"),
        "close_code": F.col("close.code"),
        "close_text": F.coalesce("close.text", F.nullif(condition, F.lit(""))),
    }


def _agreed(name: str) -> Column:
    """A limit: what tune-ok answers; in 1.0 each side states what it takes, and the smaller holds for both."""
    sides = [F.col(f"{side}_{name}") for side in SIDES]
    return F.when(~F.col("version").eqNullSafe("1.0"), sides[0]).when(_by_both("open"), F.least(*sides))
