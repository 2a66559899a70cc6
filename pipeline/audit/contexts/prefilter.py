"""Rows that no rule can be about: nearly all of a capture. They are left out once, before anything is put in order.

A frame is plain when it carries a message, or settles one, as it should: whole, without a note, said by the right side,
no larger than agreed, between connection.open-ok and the first word of an end. What rules on methods remember of a
channel does not change while only messages pass; so a method that carries or settles a message is plain in the
longest stretch of its channel between two methods that steer the channel, when the channel is open there, without
flow control and transactions, and its arguments are such as no rule asks about.

Plain methods are counted (`passing`), the others of their names are looked at one by one (`odd_passing`).

A new rule in context 'frames' or 'events' about rows that are plain by now has to be let in here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.constants import NEVER, one_of
from pipeline.audit.contexts.traffic import KINDS
from pipeline.audit.detector import Sql
from pipeline.tables.roles import CLASSIC_VERSIONS, METHOD_FRAMES, SPANS

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

LONG = 1000  # frames: shorter stretches are not worth a row of `stretches`
# Methods that carry or settle messages -> who says them. A server settles with confirms only, an extension of 0-9-1.
SENT_BY: dict[str, Sql] = {
    "basic.publish": "sender = 'client'",
    "basic.deliver": "sender = 'server'",
    "basic.get-ok": "sender = 'server'",
    "basic.ack": "(sender = 'client' OR version = '0-9-1')",
    "basic.reject": "sender = 'client'",
}
# The same of the other versions: many, and no rule is about a single one of them.
MOVES = (
    "message.transfer", "message.accept", "session.completed", "session.known-completed", "transfer", "disposition",
    "flow",
)  # fmt: skip
# Methods after which a channel may carry something else than before.
STEERS: Sql = "name LIKE 'channel.%' OR name IN ('confirm.select', 'tx.select')"
LONGEST_NAME = 127  # octets
ODD_OCTETS: Sql = "'[^a-zA-Z0-9_.:-]'"  # in a name
# Column exchange and delivery_tag of table methods.
ODD_ARGUMENTS: Sql = (
    f"coalesce(delivery_tag = 0 OR octet_length(exchange) > {LONGEST_NAME} OR exchange RLIKE {ODD_OCTETS}, false)"
)
# Tickets are of these versions only; they stand in `arguments`, which takes long to read.
HAVE_TICKETS = ("0-8", "0-9")
NO_TICKET: Sql = (
    "({} AND exists(array(try_variant_get(arguments, '$.ticket', 'int')), ticket -> coalesce(ticket = 0, false)))"
)
CLASSIC: Sql = one_of("version", CLASSIC_VERSIONS)
# Methods on channels other than that of the connection.
ON_CHANNEL: Sql = f"{CLASSIC} AND {one_of('frame_type', METHOD_FRAMES)} AND NOT channel <=> 0"
BY_THE_RIGHT_SIDE: Sql = " OR ".join(f"name = '{name}' AND {sender}" for name, sender in SENT_BY.items())
WHOLE: Sql = f"status = 'ok' AND coalesce(size(notes), 0) = 0 AND NOT {one_of('frame_type', SPANS)}"

# What is known of a channel behind each method that steers it.
SO_FAR: dict[str, Sql] = {
    "life": "count(CASE WHEN name = 'channel.open' THEN 1 END)",
    "was": "last(CASE WHEN name IN ('channel.open', 'channel.close', 'channel.close-ok') THEN name END, true)",
    "odd": "count(CASE WHEN name LIKE 'channel.flow%' OR name = 'tx.select' THEN 1 END)",
    "confirmed": "max(CASE WHEN name = 'confirm.select' THEN frame_no END)",
    "opened": "max(CASE WHEN name = 'channel.open' THEN frame_no END)",
}
STRETCH = ("from_frame", "until_frame", "life", "confirms")
TALLIED = ("connection_id", "channel", "version", "calm_life", "sender", "name", "class_id", "method_id")


def judged_frames(sources: Sources) -> DataFrame:
    """`sources.frames` with `odd_frame`: frame_no of one that is not plain in context 'frames', else null."""
    rows = sources.frames.join(F.broadcast(sources.agreed), "connection_id", "left")
    # Of 0-10 and 1.0 rules ask only about what is not whole or too large, about redirects, and about empty frames
    # outside of open and close.
    other = (
        f"NOT {CLASSIC} AND error IS NULL AND CASE version "
        "WHEN '1.0' THEN frame_type != 'empty' OR coalesce(frame_no > opened, false) AND frame_no < ended "
        "ELSE size <= largest AND frame_no < until END"
    )
    plain_frame = f"{WHOLE} AND ({_carries(sources)} OR {other})"
    odd = F.expr(f"CASE WHEN NOT coalesce({plain_frame}, false) THEN frame_no END")
    return rows.withColumn("odd_frame", odd).drop("since", "until", "largest", "last_channel", "opened", "ended")


def odd_frames(sources: Sources) -> DataFrame:
    """The rows of `sources.frames` that are not plain in context 'frames'."""
    return judged_frames(sources).filter("odd_frame IS NOT NULL").drop("odd_frame")


def passing(sources: Sources) -> DataFrame:
    """Methods on channels that carry or settle messages, counted: columns TALLIED, and `odd_frame`, of one that is not
    plain its frame_no, else null. `calm_life` as of `in_stretches`. Keys are all that is text: Spark counts by sorting
    where it has to keep a text beside."""
    odd = F.when(~F.expr(_plain(sources)), F.col("frame_no"))
    return (
        _passing(sources)
        .groupBy(*TALLIED, odd.alias("odd_frame"))
        .agg(
            F.count("*").alias("times"),
            F.min("frame_no").alias("first_frame"),
            F.max("frame_no").alias("last_frame"),
            F.min("ts_ns").alias("first_ns"),
        )
    )


def odd_passing(sources: Sources) -> DataFrame:
    """Those of them that are not plain, one by one, with `arguments`."""
    return _passing(sources).filter(f"NOT {_plain(sources)}")


def _passing(sources: Sources) -> DataFrame:
    rows = sources.methods.filter(ON_CHANNEL).filter(F.col("name").isin(list(SENT_BY)))
    known = in_stretches(rows, sources).join(
        F.broadcast(sources.agreed.select("connection_id", "last_channel")), "connection_id", "left"
    )
    if not sources.traffic["immediate"]:
        return known.withColumn("immediate", F.lit(None).cast("boolean"))
    immediate = sources.tables.messages.filter(KINDS["immediate"]).select(
        "connection_id", F.col("first_frame_no").alias("frame_no"), "immediate"
    )
    return known.join(immediate, ["connection_id", "frame_no"], "left")


def _plain(sources: Sources) -> Sql:
    """True on a method that passes and that rules on methods need not look at, else false."""
    conditions = [
        "calm_life IS NOT NULL",
        "(sender = 'client' OR name != 'basic.ack' OR confirms)",
        "channel <= last_channel",
        "status = 'ok'",
        f"NOT {ODD_ARGUMENTS}",
        "NOT coalesce(immediate, false)",
    ]
    if sources.versions & {*HAVE_TICKETS}:
        conditions.append(f"NOT {NO_TICKET.format(one_of('version', HAVE_TICKETS))}")
    return f"coalesce({' AND '.join(conditions)}, false)"


def in_stretches(frames: DataFrame, sources: Sources) -> DataFrame:
    """`frames` with `calm_life`, of a method that carries or settles a message in the stretch of its channel the life
    of the channel, else null; and `confirms`, whether publishes are confirmed there."""
    inside = (
        f"{CLASSIC} AND ({BY_THE_RIGHT_SIDE}) AND "
        "(frame_no > from_frame AND frame_no < until_frame OR late AND from_frame IS NULL)"
    )
    channels = frames.join(F.broadcast(sources.stretches), ["connection_id", "channel"], "left")
    return (
        _with_late(channels, sources)
        .withColumns(
            {
                "calm_life": F.when(F.expr(inside), F.coalesce("life", F.lit(0))),
                "confirms": F.coalesce("confirms", "late"),
            }
        )
        .drop("from_frame", "until_frame", "life", "late")
    )


def _with_late(rows: DataFrame, sources: Sources) -> DataFrame:
    """`rows` with `late`: true where the capture begins in the middle of their connection, else null."""
    late = sources.connections.filter("NOT start").select("connection_id", F.lit(True).alias("late"))
    return rows.join(F.broadcast(late), "connection_id", "left")


def agreed(sources: Sources) -> DataFrame:
    """What was agreed on, by connection: messages pass behind frame `since` and before `until`, in frames no larger
    than `largest` on channels up to `last_channel`."""
    unnegotiated = sources.parameters.get("HS-11", {}).get("minimum_bytes", 0)
    ends = F.least(*(F.col(f"c.{name}.frame_no") for name in ("client_close", "server_close", "close_ok", "redirect")))
    return sources.tables.connections.join(sources.firsts, "connection_id", "left").select(
        "connection_id",
        F.coalesce("c.open_ok.frame_no", F.when(F.expr("c.open IS NULL AND c.tune_ok IS NULL"), 0)).alias("since"),
        F.coalesce(ends, F.lit(NEVER)).alias("until"),
        F.when(F.col("c.tune_ok").isNull(), unnegotiated)
        .otherwise(F.coalesce(F.nullif(F.col("frame_max"), F.lit(0)), F.lit(NEVER)))
        .alias("largest"),
        F.coalesce(F.nullif(F.col("channel_max"), F.lit(0)), F.lit(NEVER)).alias("last_channel"),
        F.greatest("c.client_open.frame_no", "c.server_open.frame_no").alias("opened"),
        F.coalesce(F.least("c.client_end.frame_no", "c.server_end.frame_no"), F.lit(NEVER)).alias("ended"),
    )


def _carries(sources: Sources) -> Sql:
    """A frame that carries or settles a message, or a part of one, as agreed."""
    largest_body = sources.parameters.get("CT-17", {}).get("limit_bytes", 0)
    return (
        f"({CLASSIC} AND channel > 0 AND frame_no > since AND frame_no < until AND size <= largest AND "
        f"(frame_type = 'body' AND payload_size > 0 OR frame_type = 'header' AND body_size <= {largest_body} OR "
        f"frame_type = 'method' AND ({BY_THE_RIGHT_SIDE})))"
    )


def stretches(sources: Sources) -> DataFrame:
    """The longest stretch of each channel in which nothing steers it and messages may pass, where it is LONG:
    connection_id, channel; behind `from_frame` and before `until_frame`; `life`, how often the channel was opened;
    `confirms`.

    Where the capture begins in the middle of a connection, what comes before the first steering method is such a
    stretch, of which rules know that they know nothing; a channel that is not named is never steered.
    """
    steering = sources.control_methods.filter(f"({STEERS}) AND {CLASSIC} AND frame_type = 'method' AND channel > 0")
    own = Window.partitionBy("connection_id", "channel").orderBy("frame_no")
    so_far = own.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    place = ("connection_id", "channel")
    measured = _with_late(steering, sources).select(
        *place,
        "late",
        F.col("frame_no").alias("from_frame"),
        F.coalesce(F.lead("frame_no").over(own), F.lit(NEVER)).alias("until_frame"),
        F.lag("frame_no").over(own).isNull().alias("first"),
        *(F.expr(value).over(so_far).alias(name) for name, value in SO_FAR.items()),
    )
    calm = F.expr(f"was = 'channel.open' AND odd = 0 AND until_frame - from_frame > {LONG}")
    behind = F.struct(
        (F.col("until_frame") - F.col("from_frame")).alias("length"),
        *STRETCH[:-1],
        F.expr("coalesce(confirmed > opened, false)").alias("confirms"),
    )
    unknown = F.struct(
        (F.col("from_frame") + 1).alias("length"),
        F.lit(-1).cast("bigint").alias("from_frame"),
        F.col("from_frame").alias("until_frame"),
        F.lit(0).cast("bigint").alias("life"),
        F.lit(True).alias("confirms"),
    )
    longest = F.max(F.greatest(F.when(calm, behind), F.when(F.col("first") & F.col("late"), unknown)))
    return (
        measured.groupBy(*place)
        .agg(longest.alias("longest"))
        .filter("longest IS NOT NULL")
        .select(*place, "longest.*")
        .drop("length")
    )
