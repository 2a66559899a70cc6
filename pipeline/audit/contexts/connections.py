"""Context 'connections': one row per connection.

Besides the columns of table connections:

    opened_ns, ts_ns    first and last packet, ns since 1970-01-01 UTC
    start, both         captured from its beginning; in both directions
    order               no segment was captured out of order: the capture shows which side sent first
    loss_from_ns        time from which bytes are missing; null: none
    asked, answered     first protocol header of the client, and of the server, as in versions_offered
    refused             the server answered with a protocol header of its own and did not go on
    failed_login        the login failed
    first_frame, client_min_frame, client_max_frame, client_framed ...   first and last row of each side, and its first
                        row that is a frame
    c                   the first row of each kind in FIRST_ROWS: struct(frame_no, ts_ns, sender, status, notes, code,
                        args, mechanisms, locales)

Context 'control': protocol headers and methods of the connection itself, with what came before them.

`earlier_header`: code of the last protocol header of the same sender; `framed`: the sender had sent frames;
`earlier_step`: name of the last step of the handshake, of either side; `closing`: a connection.close came before;
`far_close`: one by the other side.

Context 'captures': one row per capture, with the limits that it ran into before its packets belonged to a connection.

limits           names of these limits (SKIPPED, STOPPED)
packets_skipped  packets that were left out for them; null: none, reading stopped
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from codec.compiler.limits import LIMITS
from codec.net.protocols import FRAGMENT_LIMIT, SKIP_NAMES, TOO_DEEP, TOO_NESTED
from codec.sides import SIDES
from pipeline.audit.detector import Sql
from pipeline.tables.roles import KNOWN, SPANS
from pipeline.tables.shape import utf8

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

# Arguments of methods of class connection, context 'connections'.
CONNECTION_ARGUMENTS = {
    "version_major": "int",
    "version_minor": "int",
    "insist": "boolean",
    "reply_code": "int",
    "reply_text": "string",
    "code": "int",
    "hostname": "string",
    "heartbeat": "int",
    "heartbeat_min": "int",
    "heartbeat_max": "int",
}
CONNECTION_METHODS = (
    "start", "start-ok", "secure", "secure-ok", "tune", "tune-ok", "open", "open-ok", "redirect", "close", "close-ok",
    "blocked", "update-secret",
)  # fmt: skip
# First row of each kind in a connection: name -> condition on frames. 0-10 has the names of the classic family.
FIRST_ROWS = {
    **{name.replace("-", "_"): f"name = 'connection.{name}'" for name in CONNECTION_METHODS},
    "foreign": "frame_type = 'foreign' AND sender = 'client'",
    **{f"{side}_close": f"name = 'connection.close' AND sender = '{side}'" for side in SIDES},
    **{f"{side}_header": f"frame_type = 'protocol-header' AND sender = '{side}'" for side in SIDES},
    **{f"{side}_open": f"name = 'open' AND sender = '{side}'" for side in SIDES},
    **{f"{side}_end": f"name = 'close' AND sender = '{side}'" for side in SIDES},
    **{name.replace("-", "_"): f"name = '{name}'" for name in ("sasl-mechanisms", "sasl-init", "sasl-outcome")},
}
HEADER_TYPES = ("protocol-header", "foreign")  # types of frames
CONTROL = "name LIKE 'connection.%' OR name LIKE 'sasl-%' OR name IN ('open', 'close')"
SECOND_NS = 10**9
# Lists of strings: one string with blanks in the classic family, an array in the others.
LIST_ARGUMENTS = {"mechanisms": ("mechanisms", "sasl_server_mechanisms"), "locales": ("locales",)}
ROW = ("frame_no", "ts_ns", "sender", "status", "notes", "code", "args", *LIST_ARGUMENTS)
ACCESS_REFUSED = 403
CONNECTION_FORCED = 320  # sent by qpidd when a login fails


def arguments_struct(fields: Mapping[str, str]) -> Column:
    """Struct of these arguments (name -> type) from VARIANT `arguments`, in one pass; null: none, or another type."""
    return F.expr(f"try_variant_get(arguments, '$', 'struct<{', '.join(f'{n} {t}' for n, t in fields.items())}>')")


def list_arguments() -> dict[str, Column]:
    """Columns of LIST_ARGUMENTS: arrays of strings from VARIANT `arguments`."""

    def strings(path: str) -> list[Column]:
        texts = F.expr(f"try_variant_get(arguments, '$.{path}', 'array<string>')")
        one = F.expr(f"try_variant_get(arguments, '$.{path}', 'string')")
        return [texts, F.split(utf8(one), " ")] if path in LIST_ARGUMENTS else [texts]

    return {
        name: F.coalesce(*(column for path in paths for column in strings(path)))
        for name, paths in LIST_ARGUMENTS.items()
    }


def header_frames(frames: DataFrame) -> DataFrame:
    """Protocol headers, and frames of other protocols. One filter per type, so that Spark can skip pages by their
    minimum and maximum."""
    one, other = (frames.filter(F.col("frame_type") == kind) for kind in HEADER_TYPES)
    return one.unionAll(other)


def control_rows(header_frames: DataFrame, control_methods: DataFrame, columns: Sequence[str]) -> DataFrame:
    """`columns` of `header_frames` and of the connection methods in `control_methods`, with `args` and list
    arguments."""
    rows = header_frames.select(*columns, F.lit(None).cast("variant").alias("arguments")).unionAll(
        control_methods.filter(CONTROL).select(*columns, "arguments")
    )
    own = [value.alias(name) for name, value in list_arguments().items()]
    return rows.select(*columns, arguments_struct(CONNECTION_ARGUMENTS).alias("args"), *own)


def seconds(frames: DataFrame) -> DataFrame:
    """Frames with `unusual_frame` -> one row per connection, sender, version, second, unusual_frame: min_frame,
    max_frame, the first row that is a frame, the first gap, the time from which bytes are missing; of captured bytes
    from_ns, to_ns, from_frame, to_frame. A truncated frame counts as lost."""
    cut = (F.col("status") == "partial") & (F.col("frame_type") != "skipped")
    lost = (F.col("frame_type") == "gap") | cut | ((F.col("frame_type") == "skipped") & (F.col("status") != "partial"))
    is_frame = ~F.col("frame_type").isin("protocol-header", *SPANS)
    captured = F.col("frame_type") != "gap"
    measures = {
        "min_frame": F.min("frame_no"),
        "max_frame": F.max("frame_no"),
        "framed": F.min(F.when(is_frame, F.col("frame_no"))),
        "loss_frame": F.min(F.when(~captured, F.col("frame_no"))),
        "loss_from_ns": F.min(F.when(lost, F.col("first_ts_ns"))),
        "from_ns": F.min(F.when(captured, F.col("first_ts_ns"))),
        "to_ns": F.max(F.when(captured, F.col("ts_ns"))),
        "from_frame": F.min(F.when(captured, F.col("frame_no"))),
        "to_frame": F.max(F.when(captured, F.col("frame_no"))),
    }
    second = F.expr(f"ts_ns DIV {SECOND_NS}").alias("second")
    return frames.groupBy("connection_id", "sender", "version", second, "unusual_frame").agg(
        *(value.alias(name) for name, value in measures.items())
    )


def connection_rows(connections: DataFrame, seconds: DataFrame, first_rows: DataFrame) -> DataFrame:
    """Table connections, `seconds` and `first_rows` -> context 'connections'."""
    own = connections.withColumns(
        {
            "opened_ns": F.unix_micros("opened_ts") * 1000,
            "ts_ns": F.unix_micros("closed_ts") * 1000,
            **{name: F.expr(sql) for name, sql in KNOWN.items()},
            "asked": _offered("client"),
            "answered": _offered("server"),
        }
    )
    joined = own.join(_measured(seconds), "connection_id", "left").join(first_rows, "connection_id", "left")
    return joined.withColumns(
        {
            "version": F.coalesce("version", "answered"),
            "refused": F.expr("c.server_header IS NOT NULL AND c.start IS NULL AND c.server_open IS NULL"),
            "failed_login": F.expr(
                "c.start IS NOT NULL AND c.start_ok IS NOT NULL AND c.tune IS NULL AND "
                f"(c.server_close.args.reply_code = {ACCESS_REFUSED} OR "
                f"version = '0-10' AND c.server_close.args.reply_code = {CONNECTION_FORCED} OR "
                "c.close IS NULL AND tcp_end_by = 'server') "
                "OR c.sasl_outcome.args.code != 0"
            ),
            "frame_no": F.coalesce("c.start_ok.frame_no", "c.client_header.frame_no", "first_frame"),
        }
    )


def _offered(side: str) -> Column:
    """The version in the first protocol header of `side`."""
    return F.expr(f"try_element_at(split(try_element_at(filter(versions_offered, v -> v LIKE '{side} %'), 1), ' '), 2)")


def first_rows(control: DataFrame) -> DataFrame:
    """`control_rows` -> by connection_id `c`, the first row of each kind in FIRST_ROWS."""
    kinds = ", ".join(f"min(CASE WHEN {sql} THEN row END) AS {name}" for name, sql in FIRST_ROWS.items())
    rows = control.withColumn("row", F.struct(*ROW))
    return rows.groupBy("connection_id").agg(F.expr(f"struct({kinds})").alias("c"))


def _measured(seconds: DataFrame) -> DataFrame:
    """First and last rows of each side, and the time from which bytes are missing."""
    measures = {"first_frame": F.min("min_frame")} | {name: F.min(name) for name in ("loss_from_ns", "loss_frame")}
    for side in SIDES:
        own = F.col("sender") == side
        measures[f"{side}_min_frame"] = F.min(F.when(own, F.col("min_frame")))
        measures[f"{side}_max_frame"] = F.max(F.when(own, F.col("max_frame")))
        measures[f"{side}_framed"] = F.min(F.when(own, F.col("framed")))
    return seconds.groupBy("connection_id").agg(*(value.alias(name) for name, value in measures.items()))


STEPS = (
    "start", "start-ok", "secure", "secure-ok", "tune", "tune-ok", "open", "open-ok", "redirect",
)  # fmt: skip
CLOSE = "name = 'connection.close'"


def control(sources: Sources) -> DataFrame:
    """Rows of `sources.control` with those columns, and `c`."""
    every = Window.partitionBy("connection_id").orderBy("frame_no").rowsBetween(Window.unboundedPreceding, -1)
    own = Window.partitionBy("connection_id", "sender").orderBy("frame_no").rowsBetween(Window.unboundedPreceding, -1)
    is_header = F.col("frame_type") == "protocol-header"
    is_step = F.col("name").isin([f"connection.{step}" for step in STEPS])
    closed_by = {side: _any(f"{CLOSE} AND sender = '{side}'").over(every) for side in ("client", "server")}
    framed = F.expr("CASE sender WHEN 'client' THEN c.client_framed ELSE c.server_framed END")
    return (
        sources.control.withColumns(
            {
                "earlier_header": F.last(F.when(is_header, F.col("code")), True).over(own),
                "earlier_step": F.last(F.when(is_step, F.col("name")), True).over(every),
                "closing": F.coalesce(_any(CLOSE).over(every), F.lit(False)),
                "far_close": F.when(F.col("sender") == "client", closed_by["server"]).otherwise(closed_by["client"]),
            }
        )
        .join(sources.connection_facts, "connection_id", "left")
        .withColumn("framed", F.coalesce(framed < F.col("frame_no"), F.lit(False)))
    )


def _any(sql: str) -> Column:
    return F.max(F.expr(sql))


# Limit -> why packets were left out.
SKIPPED = {
    "packet headers": SKIP_NAMES[TOO_DEEP],
    "tunnels": SKIP_NAMES[TOO_NESTED],
    "fragments": SKIP_NAMES[FRAGMENT_LIMIT],
}
# Limit -> condition on `error`: reading stopped because of it. A record above the size limit is usually damage, which
# cannot be distinguished. Other errors are damage.
CLAIMED: Sql = r"CAST(nullif(regexp_extract(error, 'claims (more than|a length of) ([0-9]+)', 2), '') AS DECIMAL(38))"
STOPPED: dict[str, Sql] = {
    "record size": f"{CLAIMED} >= {LIMITS.record_bytes}",
    "expansion": "error LIKE '%expands more than % times%'",
}


def captures(sources: Sources) -> DataFrame:
    """Context 'captures'. `version` is null: a capture speaks none."""
    found = {name: f"skipped_packets['{reason}'] > 0" for name, reason in SKIPPED.items()} | STOPPED
    limits = ", ".join(f"CASE WHEN {reached} THEN '{name}' END" for name, reached in found.items())
    skipped = " + ".join(f"coalesce(skipped_packets['{reason}'], 0)" for reason in SKIPPED.values())
    return sources.tables.captures.select(
        "capture_file",
        "error",
        F.lit(None).cast("string").alias("version"),
        F.expr(f"array_compact(array({limits}))").alias("limits"),
        F.expr(f"nullif({skipped}, 0L)").alias("packets_skipped"),
    )
