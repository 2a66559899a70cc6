"""Prefilter: nearly all frames are routine, and no rule can be about them. They are dropped before anything is sorted.

A frame is routine if it carries or settles a message correctly: complete, without notes, sent by the right side, no
larger than negotiated, between connection.open-ok and the first close. The state that rules keep of a channel does not
change while only messages pass. So a method that carries or settles a message is routine within the longest stretch of
its channel between two methods that change the state of the channel, provided that the channel is open there, without
flow control and transactions, and no rule reads its arguments. All other frames are unusual.

Routine methods are only counted (`transfer_counts`); unusual ones are read one by one (`unusual_transfers`).

A new rule in context 'frames' or 'events' about rows that are routine so far needs a change here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.contexts.messages import KINDS
from pipeline.audit.detector import NEVER, Sql, sql_in
from pipeline.tables.roles import CLASSIC_VERSIONS, METHOD_FRAMES, SPANS

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

LONG = 1000  # frames: shorter stretches are not worth a row of `stretches`
# Methods that carry or settle messages -> their sender. A server settles only with confirms, an extension of 0-9-1.
TRANSFER_SENDERS: dict[str, Sql] = {
    "basic.publish": "sender = 'client'",
    "basic.deliver": "sender = 'server'",
    "basic.get-ok": "sender = 'server'",
    "basic.ack": "(sender = 'client' OR version = '0-9-1')",
    "basic.reject": "sender = 'client'",
}
# The same for 0-10 and 1.0: there are many, and no rule is about a single one of them.
SESSION_TRANSFERS = (
    "message.transfer", "message.accept", "session.completed", "session.known-completed", "transfer", "disposition",
    "flow",
)  # fmt: skip
# Methods that change the state of a channel.
STEERS: Sql = "name LIKE 'channel.%' OR name IN ('confirm.select', 'tx.select')"
LONGEST_NAME = 127  # octets
ODD_OCTETS: Sql = "'[^a-zA-Z0-9_.:-]'"  # in a name
# Column exchange and delivery_tag of table methods.
ODD_ARGUMENTS: Sql = (
    f"coalesce(delivery_tag = 0 OR octet_length(exchange) > {LONGEST_NAME} OR exchange RLIKE {ODD_OCTETS}, false)"
)
# Only these versions have tickets. They are in `arguments`, which is slow to read.
HAVE_TICKETS = ("0-8", "0-9")
NO_TICKET: Sql = (
    "({} AND exists(array(try_variant_get(arguments, '$.ticket', 'int')), ticket -> coalesce(ticket = 0, false)))"
)
CLASSIC: Sql = sql_in("version", CLASSIC_VERSIONS)
# Methods on channels other than that of the connection.
ON_CHANNEL: Sql = f"{CLASSIC} AND {sql_in('frame_type', METHOD_FRAMES)} AND NOT channel <=> 0"
RIGHT_SENDER: Sql = " OR ".join(f"name = '{name}' AND {sender}" for name, sender in TRANSFER_SENDERS.items())
WHOLE: Sql = f"status = 'ok' AND coalesce(size(notes), 0) = 0 AND NOT {sql_in('frame_type', SPANS)}"

# State of a channel after each method in STEERS.
CHANNEL_STATE: dict[str, Sql] = {
    "life": "count(CASE WHEN name = 'channel.open' THEN 1 END)",
    "was": "last(CASE WHEN name IN ('channel.open', 'channel.close', 'channel.close-ok') THEN name END, true)",
    "odd": "count(CASE WHEN name LIKE 'channel.flow%' OR name = 'tx.select' THEN 1 END)",
    "confirmed": "max(CASE WHEN name = 'confirm.select' THEN frame_no END)",
    "opened": "max(CASE WHEN name = 'channel.open' THEN frame_no END)",
}
STRETCH = ("from_frame", "until_frame", "life", "confirms")
COUNT_KEYS = ("connection_id", "channel", "version", "stretch_life", "sender", "name", "class_id", "method_id")


def flagged_frames(sources: Sources) -> DataFrame:
    """`sources.frames` with `unusual_frame`: frame_no if the frame is unusual, else null."""
    rows = sources.frames.join(F.broadcast(sources.negotiated), "connection_id", "left")
    # Of 0-10 and 1.0 rules ask only about what is not whole or too large, about redirects, and about empty frames
    # outside of open and close.
    other = (
        f"NOT {CLASSIC} AND error IS NULL AND CASE version "
        "WHEN '1.0' THEN frame_type != 'empty' OR coalesce(frame_no > opened, false) AND frame_no < ended "
        "ELSE size <= largest AND frame_no < until END"
    )
    routine = f"{WHOLE} AND ({_carries(sources)} OR {other})"
    unusual = F.expr(f"CASE WHEN NOT coalesce({routine}, false) THEN frame_no END")
    return rows.withColumn("unusual_frame", unusual).drop(
        "since", "until", "largest", "last_channel", "opened", "ended"
    )


def unusual_frames(sources: Sources) -> DataFrame:
    """The unusual rows of `sources.frames`."""
    return flagged_frames(sources).filter("unusual_frame IS NOT NULL").drop("unusual_frame")


def transfer_counts(sources: Sources) -> DataFrame:
    """Counts of methods on channels that carry or settle messages, by COUNT_KEYS and `unusual_frame` (frame_no of an
    unusual method, else null). All texts are keys: with a text among the aggregates Spark would sort."""
    unusual = F.when(~F.expr(_is_routine(sources)), F.col("frame_no"))
    return (
        _transfers(sources)
        .groupBy(*COUNT_KEYS, unusual.alias("unusual_frame"))
        .agg(
            F.count("*").alias("times"),
            F.min("frame_no").alias("first_frame"),
            F.max("frame_no").alias("last_frame"),
            F.min("ts_ns").alias("first_ns"),
        )
    )


def unusual_transfers(sources: Sources) -> DataFrame:
    """The unusual ones of these methods, with `arguments`."""
    return _transfers(sources).filter(f"NOT {_is_routine(sources)}")


def _transfers(sources: Sources) -> DataFrame:
    rows = sources.methods.filter(ON_CHANNEL).filter(F.col("name").isin(list(TRANSFER_SENDERS)))
    known = with_stretches(rows, sources).join(
        F.broadcast(sources.negotiated.select("connection_id", "last_channel")), "connection_id", "left"
    )
    if not sources.message_kind_counts["immediate"]:
        return known.withColumn("immediate", F.lit(None).cast("boolean"))
    immediate = sources.tables.messages.filter(KINDS["immediate"]).select(
        "connection_id", F.col("first_frame_no").alias("frame_no"), "immediate"
    )
    return known.join(immediate, ["connection_id", "frame_no"], "left")


def _is_routine(sources: Sources) -> Sql:
    """True on a routine method that carries or settles a message, else false."""
    conditions = [
        "stretch_life IS NOT NULL",
        "(sender = 'client' OR name != 'basic.ack' OR confirms)",
        "channel <= last_channel",
        "status = 'ok'",
        f"NOT {ODD_ARGUMENTS}",
        "NOT coalesce(immediate, false)",
    ]
    if sources.versions & {*HAVE_TICKETS}:
        conditions.append(f"NOT {NO_TICKET.format(sql_in('version', HAVE_TICKETS))}")
    return f"coalesce({' AND '.join(conditions)}, false)"


def with_stretches(frames: DataFrame, sources: Sources) -> DataFrame:
    """`frames` with `stretch_life`: `channel_life` of a method that carries or settles a message within the stretch of
    its channel, else null; and `confirms`: whether publishes are confirmed there."""
    inside = (
        f"{CLASSIC} AND ({RIGHT_SENDER}) AND "
        "(frame_no > from_frame AND frame_no < until_frame OR midstream AND from_frame IS NULL)"
    )
    channels = frames.join(F.broadcast(sources.stretches), ["connection_id", "channel"], "left")
    return (
        _with_midstream(channels, sources)
        .withColumns(
            {
                "stretch_life": F.when(F.expr(inside), F.coalesce("life", F.lit(0))),
                "confirms": F.coalesce("confirms", "midstream"),
            }
        )
        .drop("from_frame", "until_frame", "life", "midstream")
    )


def _with_midstream(rows: DataFrame, sources: Sources) -> DataFrame:
    """`rows` with `midstream`: true where the capture begins in the middle of their connection, else null."""
    midstream = sources.connections.filter("NOT start").select("connection_id", F.lit(True).alias("midstream"))
    return rows.join(F.broadcast(midstream), "connection_id", "left")


def negotiated_limits(sources: Sources) -> DataFrame:
    """Negotiated limits by connection: messages pass after frame `since` and before `until`, in frames no larger than
    `largest`, on channels up to `last_channel`."""
    unnegotiated = sources.parameters.get("HS-11", {}).get("minimum_bytes", 0)
    ends = F.least(*(F.col(f"c.{name}.frame_no") for name in ("client_close", "server_close", "close_ok", "redirect")))
    return sources.tables.connections.join(sources.first_rows, "connection_id", "left").select(
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
    """True on a frame that carries or settles a message, or a part of one, within the negotiated limits."""
    largest_body = sources.parameters.get("CT-17", {}).get("limit_bytes", 0)
    return (
        f"({CLASSIC} AND channel > 0 AND frame_no > since AND frame_no < until AND size <= largest AND "
        f"(frame_type = 'body' AND payload_size > 0 OR frame_type = 'header' AND body_size <= {largest_body} OR "
        f"frame_type = 'method' AND ({RIGHT_SENDER})))"
    )


def stretches(sources: Sources) -> DataFrame:
    """The longest stretch of each channel without methods in STEERS in which messages may pass, if it is LONG:
    connection_id, channel; after `from_frame` and before `until_frame`; `life`: channel_life; `confirms`.

    Where the capture begins in the middle of a connection, what comes before the first steering method is such a
    stretch, of which rules know that they know nothing; a channel that is not named is never steered.
    """
    steering = sources.control_methods.filter(f"({STEERS}) AND {CLASSIC} AND frame_type = 'method' AND channel > 0")
    own = Window.partitionBy("connection_id", "channel").orderBy("frame_no")
    so_far = own.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    place = ("connection_id", "channel")
    measured = _with_midstream(steering, sources).select(
        *place,
        "midstream",
        F.col("frame_no").alias("from_frame"),
        F.coalesce(F.lead("frame_no").over(own), F.lit(NEVER)).alias("until_frame"),
        F.lag("frame_no").over(own).isNull().alias("first"),
        *(F.expr(value).over(so_far).alias(name) for name, value in CHANNEL_STATE.items()),
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
    longest = F.max(F.greatest(F.when(calm, behind), F.when(F.col("first") & F.col("midstream"), unknown)))
    return (
        measured.groupBy(*place)
        .agg(longest.alias("longest"))
        .filter("longest IS NOT NULL")
        .select(*place, "longest.*")
        .drop("length")
    )
