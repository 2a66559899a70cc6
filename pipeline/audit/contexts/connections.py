"""Context 'connections': one row a connection, with what rules have to know of it.

Beside the columns of the table connections:

    opened_ns, ts_ns    first and last packet, ns since 1970-01-01 UTC
    start, both         captured from its beginning; in both directions
    order               no segment was captured after a later one: which side spoke first is as the capture has it
    loss_from_ns        since when bytes are missing; null: never
    asked, answered     first protocol header of the client, and of the server, as versions_offered tells them
    refused             the server answered with a header of its own instead of going on
    failed_login        the login failed
    first_frame, client_min_frame, client_max_frame, client_framed ...   first and last row of each side, and the first
                        that is a frame
    c                   the first row of each kind in FIRSTS: struct(frame_no, ts_ns, sender, status, notes, code, said,
                        mechanisms, locales)
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from codec.sides import SIDES
from pipeline.audit.contexts.arguments import SAID_OF_CONNECTION, said
from pipeline.tables.roles import KNOWN, SPANS
from pipeline.tables.shape import utf8

CONNECTION_METHODS = (
    "start", "start-ok", "secure", "secure-ok", "tune", "tune-ok", "open", "open-ok", "redirect", "close", "close-ok",
    "blocked", "update-secret",
)  # fmt: skip
# First row of each kind in a connection: name -> SQL over frames. 0-10 has the names of the classic family.
FIRSTS = {
    **{name.replace("-", "_"): f"name = 'connection.{name}'" for name in CONNECTION_METHODS},
    "foreign": "frame_type = 'foreign' AND sender = 'client'",
    **{f"{side}_close": f"name = 'connection.close' AND sender = '{side}'" for side in SIDES},
    **{f"{side}_header": f"frame_type = 'protocol-header' AND sender = '{side}'" for side in SIDES},
    **{f"{side}_open": f"name = 'open' AND sender = '{side}'" for side in SIDES},
    **{f"{side}_end": f"name = 'close' AND sender = '{side}'" for side in SIDES},
    **{name.replace("-", "_"): f"name = '{name}'" for name in ("sasl-mechanisms", "sasl-init", "sasl-outcome")},
}
HEADS = ("protocol-header", "foreign")  # types of frames
CONTROL = "name LIKE 'connection.%' OR name LIKE 'sasl-%' OR name IN ('open', 'close')"
SECOND_NS = 10**9
# Lists of words: one string in the classic family, an array elsewhere.
LISTS = {"mechanisms": ("mechanisms", "sasl_server_mechanisms"), "locales": ("locales",)}
ROW = ("frame_no", "ts_ns", "sender", "status", "notes", "code", "said", *LISTS)
ACCESS_REFUSED = 403
CONNECTION_FORCED = 320  # what qpidd says when a login fails


def lists() -> dict[str, Column]:
    """Columns of LISTS: arrays of strings out of VARIANT `arguments`."""

    def words(path: str) -> list[Column]:
        texts = F.expr(f"try_variant_get(arguments, '$.{path}', 'array<string>')")
        one = F.expr(f"try_variant_get(arguments, '$.{path}', 'string')")
        return [texts, F.split(utf8(one), " ")] if path in LISTS else [texts]

    return {name: F.coalesce(*(column for path in paths for column in words(path))) for name, paths in LISTS.items()}


def heads(frames: DataFrame) -> DataFrame:
    """Protocol headers, and frames of other protocols. One type after the other: by minima and maxima of pages Spark
    then knows of most that they have none."""
    one, other = (frames.filter(F.col("frame_type") == kind) for kind in HEADS)
    return one.unionAll(other)


def words(heads: DataFrame, control_methods: DataFrame, columns: Sequence[str]) -> DataFrame:
    """`columns` of `heads` and of what of `control_methods` is about connections, with arguments as `said` and
    lists."""
    spoken = heads.select(*columns, F.lit(None).cast("variant").alias("arguments")).unionAll(
        control_methods.filter(CONTROL).select(*columns, "arguments")
    )
    own = [value.alias(name) for name, value in lists().items()]
    return spoken.select(*columns, said(SAID_OF_CONNECTION).alias("said"), *own)


def seconds(frames: DataFrame) -> DataFrame:
    """Narrow frames with `odd_frame` -> one row a connection, sender, version, second, odd_frame: first and last frame
    (of frames, spans and gaps), the first that is a frame, the first gap, since when bytes are missing; and of what was
    captured from_ns, to_ns, from_frame, to_frame. A frame that is cut is as good as lost."""
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
    return frames.groupBy("connection_id", "sender", "version", second, "odd_frame").agg(
        *(value.alias(name) for name, value in measures.items())
    )


def facts(connections: DataFrame, seconds: DataFrame, firsts: DataFrame) -> DataFrame:
    """Table connections, what was sent second by second, and `firsts` -> context 'connections'."""
    own = connections.withColumns(
        {
            "opened_ns": F.unix_micros("opened_ts") * 1000,
            "ts_ns": F.unix_micros("closed_ts") * 1000,
            **{name: F.expr(sql) for name, sql in KNOWN.items()},
            "asked": _offered("client"),
            "answered": _offered("server"),
        }
    )
    joined = own.join(_measured(seconds), "connection_id", "left").join(firsts, "connection_id", "left")
    return joined.withColumns(
        {
            "version": F.coalesce("version", "answered"),
            "refused": F.expr("c.server_header IS NOT NULL AND c.start IS NULL AND c.server_open IS NULL"),
            "failed_login": F.expr(
                "c.start IS NOT NULL AND c.start_ok IS NOT NULL AND c.tune IS NULL AND "
                f"(c.server_close.said.reply_code = {ACCESS_REFUSED} OR "
                f"version = '0-10' AND c.server_close.said.reply_code = {CONNECTION_FORCED} OR "
                "c.close IS NULL AND tcp_end_by = 'server') "
                "OR c.sasl_outcome.said.code != 0"
            ),
            "frame_no": F.coalesce("c.start_ok.frame_no", "c.client_header.frame_no", "first_frame"),
        }
    )


def _offered(side: str) -> Column:
    """What the first protocol header of `side` says."""
    return F.expr(f"try_element_at(split(try_element_at(filter(versions_offered, v -> v LIKE '{side} %'), 1), ' '), 2)")


def firsts(control: DataFrame) -> DataFrame:
    """`words` -> by connection_id `c`, the first row of each kind in FIRSTS."""
    kinds = ", ".join(f"min(CASE WHEN {sql} THEN row END) AS {name}" for name, sql in FIRSTS.items())
    rows = control.withColumn("row", F.struct(*ROW))
    return rows.groupBy("connection_id").agg(F.expr(f"struct({kinds})").alias("c"))


def _measured(seconds: DataFrame) -> DataFrame:
    """First and last rows of each side, and since when bytes are missing."""
    measures = {"first_frame": F.min("min_frame")} | {name: F.min(name) for name in ("loss_from_ns", "loss_frame")}
    for side in SIDES:
        own = F.col("sender") == side
        measures[f"{side}_min_frame"] = F.min(F.when(own, F.col("min_frame")))
        measures[f"{side}_max_frame"] = F.max(F.when(own, F.col("max_frame")))
        measures[f"{side}_framed"] = F.min(F.when(own, F.col("framed")))
    return seconds.groupBy("connection_id").agg(*(value.alias(name) for name, value in measures.items()))
