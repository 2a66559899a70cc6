"""Context 'request_reply': one row per synchronous request and one per reply, classic family.

    asks           the row is a request that waits for a reply
    reply_ns       time of its reply
    open_until     of the earlier requests of the same side in this channel incarnation: frame of the last reply to
                   them, NEVER if one has no reply; null: there are none
    next_close_ns  time at which the channel was closed after this row
    replies        the row is a reply
    paired         it is the reply to a request that waited
    no_wait_before the last request of its group (methods that share replies) had no-wait set
    overtaken      the next row of the group is a request without a reply

Packets may have been captured out of order: a reply before its request is taken as the reply to an unanswered request
right after it, which then asks for nothing.

Table methods has the frame of the reply in the row of the request; a mark row is inserted before each such reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from codec.amqp.classic.tables import CLASSIC_VERSIONS, methods
from pipeline.audit.detector import NEVER, Sql, sql_in
from pipeline.tables.roles import request_groups

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

MARK, ROW = 0, 1  # places of rows with the same frame_no


def requests() -> dict[str, set[str]]:
    """Methods that have a reply, by version."""
    return {version: {m.name for m in methods(version) if m.replies} for version in CLASSIC_VERSIONS}


def replies() -> dict[str, set[str]]:
    """Methods that are only replies, by version."""
    return {version: {m.name for m in methods(version) if m.reply_to and not m.replies} for version in CLASSIC_VERSIONS}


def name_in_version(names: dict[str, set[str]], versions: set[str]) -> Sql:
    """True on rows whose name is one of `names` of their version, for `versions`."""
    cases = (
        f"WHEN '{version}' THEN {sql_in('name', sorted(names[version]))}" for version in names if version in versions
    )
    return f"coalesce(CASE version {' '.join(cases)} ELSE false END, false)"


def group_of(names: set[str]) -> Sql:
    """The dialogue of each of these methods, by name."""
    cases = (f"WHEN '{name}' THEN '{dialogue}'" for name, dialogue in request_groups().items() if name in names)
    return f"CASE name {' '.join(cases)} ELSE NULL END"


def request_reply(sources: Sources) -> DataFrame | None:
    """Context 'request_reply'."""
    versions = sources.versions & {*CLASSIC_VERSIONS}
    if not versions:
        return None
    asked, answer = (name_in_version(names, versions) for names in (requests(), replies()))
    dialogue = group_of({*sources.method_counts, "basic.get-ok"})
    no_wait = F.expr("coalesce(try_variant_get(arguments, '$.no_wait', 'boolean'), false)")
    methods = (
        _requests_and_replies(sources).withColumns({"asked": F.expr(asked), "replies": F.expr(answer)})
        .filter(F.col("asked") | F.col("replies"))
        .select(
            "connection_id", "channel", "version", "frame_no", "ts_ns", "sender", "name", "replies", "reply_frame_no",
            (F.col("ts_ns") + F.col("reply_latency_ns")).alias("reply_ns"), F.lit(ROW).alias("place"),
            F.when(F.col("asked"), no_wait).alias("no_wait"), F.expr(dialogue).alias("dialogue"),
        )
    )  # fmt: skip
    marks = F.transform(
        F.array_compact(F.array("reply_frame_no")),
        lambda frame: F.struct(frame.alias("frame_no"), F.lit(MARK).alias("place")),
    )
    own = F.struct("frame_no", "place")
    rows = (
        methods.withColumn("at", F.explode(F.concat(F.array(own), marks)))
        .withColumns({"frame_no": F.col("at.frame_no"), "place": F.col("at.place")})
        .drop("at")
        .withColumns({"asks": F.expr(f"place = {ROW} AND NOT coalesce(no_wait, true)")})
    )
    return _followed(rows).filter(F.col("place") == ROW).join(sources.connection_facts, "connection_id", "left")


def _requests_and_replies(sources: Sources) -> DataFrame:
    """Requests and replies; of the methods that carry messages only basic.get-ok."""
    if not sources.method_counts["basic.get"]:
        return sources.control_methods
    got = sources.methods.filter(F.col("name") == "basic.get-ok")
    return sources.control_methods.unionByName(got.select(*sources.control_methods.columns))


def _followed(rows: DataFrame) -> DataFrame:
    """`rows` with columns computed from the rows before and after them on their channel."""
    channel = Window.partitionBy("connection_id", "channel").orderBy("frame_no", "place")
    dialogue = Window.partitionBy("connection_id", "channel", "dialogue").orderBy("frame_no", "place")
    # Sorted backwards: Spark evaluates a window that reaches to the last row anew for each row.
    backwards = Window.partitionBy("connection_id", "channel").orderBy(F.desc("frame_no"), F.desc("place"))
    before = (Window.unboundedPreceding, -1)
    opens = F.when((F.col("name") == "channel.open") & (F.col("place") == ROW), 1)
    closes = F.when(F.col("name").isin("channel.close", "connection.close"), F.col("ts_ns"))
    lonely = F.col("asks") & F.col("reply_frame_no").isNull()
    is_row = F.col("place") == ROW
    rows = rows.withColumns(
        {
            "paired": F.lag(F.col("place") == MARK).over(dialogue),
            "overtaken": F.lead(is_row & lonely).over(dialogue),
        }
    )
    answered_early = F.lag(is_row & F.col("replies") & ~F.coalesce("paired", F.lit(False))).over(dialogue)
    rows = rows.withColumn("asks", F.col("asks") & ~(lonely & F.coalesce(answered_early, F.lit(False))))
    latest = {
        sender: F.max(
            F.when(
                F.col("asks") & (F.col("sender") == sender),
                F.struct("channel_life", F.coalesce("reply_frame_no", F.lit(NEVER)).alias("until")),
            )
        ).over(channel.rowsBetween(*before))
        for sender in ("client", "server")
    }
    latest_own = F.col("latest")[F.col("sender")]
    last_request = F.last(F.when(F.col("no_wait").isNotNull() & (F.col("place") == ROW), F.col("no_wait")), True)
    return (
        rows.withColumn("channel_life", F.count(opens).over(channel))
        .withColumn("next_close_ns", F.min(closes).over(backwards.rowsBetween(*before)))
        .withColumn("latest", F.create_map(*(part for s, value in latest.items() for part in (F.lit(s), value))))
        .withColumns(
            {
                "open_until": F.when(latest_own["channel_life"] == F.col("channel_life"), latest_own["until"]),
                "no_wait_before": last_request.over(dialogue.rowsBetween(*before)),
            }
        )
    )
