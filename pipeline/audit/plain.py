"""Rows that no rule can be about: nearly all of a capture. Contexts leave them out before they put anything in order.

A frame is plain when it carries a message, or settles one, as it should: whole, without a note, said by the right side,
no larger than agreed, between connection.open-ok and the first word of an end. What rules on methods remember of a
channel does not change while only messages pass; so a method that carries or settles a message is plain in the
longest stretch of its channel between two methods that steer the channel, when the channel is open there, without
flow control and transactions, and its arguments are such as no rule asks about.

A new rule in context 'frames' or 'events' about rows that are plain by now has to be let in here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.constants import one_of
from pipeline.audit.detector import Sql
from pipeline.tables.roles import CLASSIC_VERSIONS, SPANS

if TYPE_CHECKING:
    from pipeline.audit.contexts import Sources

NEVER = (1 << 63) - 1
LONG = 1000  # frames: shorter stretches are not worth a row of `stretches`
# Methods that carry or settle messages -> who says them. A server settles with confirms only, an extension of 0-9-1.
SAID_BY: dict[str, Sql] = {
    "basic.publish": "sender = 'client'",
    "basic.deliver": "sender = 'server'",
    "basic.get-ok": "sender = 'server'",
    "basic.ack": "(sender = 'client' OR version = '0-9-1')",
    "basic.reject": "sender = 'client'",
}
# Methods after which a channel may carry something else than before.
STEERS: Sql = "name LIKE 'channel.%' OR name IN ('confirm.select', 'tx.select')"
LONGEST_NAME = 127  # octets
ODD_OCTETS: Sql = "'[^a-zA-Z0-9_.:-]'"  # in a name
ARGUMENTS = "struct<exchange string, immediate boolean, delivery_tag bigint, ticket int>"
ODD_ARGUMENTS: Sql = (
    "said.immediate OR said.delivery_tag = 0 OR (said.ticket = 0 AND version != '0-9-1') "
    f"OR octet_length(said.exchange) > {LONGEST_NAME} OR said.exchange RLIKE {ODD_OCTETS}"
)
CLASSIC: Sql = one_of("version", CLASSIC_VERSIONS)
BY_THE_RIGHT_SIDE: Sql = " OR ".join(f"name = '{name}' AND {sender}" for name, sender in SAID_BY.items())
WHOLE: Sql = f"status = 'ok' AND coalesce(size(notes), 0) = 0 AND NOT {one_of('frame_type', SPANS)}"

# What is known of a channel behind each method that steers it.
SO_FAR: dict[str, Sql] = {
    "life": "count(CASE WHEN name = 'channel.open' THEN 1 END)",
    "was": "last(CASE WHEN name IN ('channel.open', 'channel.close', 'channel.close-ok') THEN name END, true)",
    "odd": "count(CASE WHEN name LIKE 'channel.flow%' OR name = 'tx.select' THEN 1 END)",
    "confirmed": "max(CASE WHEN name = 'confirm.select' THEN frame_no END)",
    "opened": "max(CASE WHEN name = 'channel.open' THEN frame_no END)",
}
STRETCH = ("after", "before", "life", "confirms")


def unusual_frames(frames: DataFrame, sources: Sources) -> DataFrame:
    """The rows of narrow `frames` that are not plain."""
    largest = sources.parameters.get("CT-17", {}).get("limit_bytes", 0)
    unnegotiated = sources.parameters.get("HS-11", {}).get("minimum_bytes", 0)
    ends = F.least(*(F.col(f"c.{name}.frame_no") for name in ("client_close", "server_close", "close_ok", "redirect")))
    spans = sources.connections.select(
        "connection_id",
        F.coalesce("c.open_ok.frame_no", F.when(F.expr("c.open IS NULL AND c.tune_ok IS NULL"), 0)).alias("after"),
        F.coalesce(ends, F.lit(NEVER)).alias("before"),
        F.when(F.col("c.tune_ok").isNull(), unnegotiated)
        .otherwise(F.coalesce(F.nullif(F.col("frame_max"), F.lit(0)), F.lit(NEVER)))
        .alias("largest"),
    )
    carries = F.expr(
        f"{CLASSIC} AND channel > 0 AND frame_no > after AND frame_no < before AND size <= largest AND "
        f"(frame_type = 'body' AND payload_size > 0 OR frame_type = 'header' AND body_size <= {largest} OR "
        f"frame_type = 'method' AND ({BY_THE_RIGHT_SIDE}))"
    )
    # Of the other versions rules of this context ask only about what is not whole, and about redirects.
    other = F.expr(f"NOT {CLASSIC} AND (version = '1.0' OR coalesce(frame_no < before, false))")
    plain = F.expr(WHOLE) & (carries | other)
    return (
        frames.join(F.broadcast(spans), "connection_id", "left")
        .filter(~F.coalesce(plain, F.lit(False)))
        .drop("after", "before", "largest")
    )


def unusual_events(methods: DataFrame, sources: Sources) -> DataFrame:
    """The rows of `methods` on channels (columns of narrow frames, and `arguments`) that are not plain."""
    known = sources.connections.select("connection_id", F.col("channel_max").alias("last_channel"))
    expected = (
        "calm_life IS NOT NULL AND (sender = 'client' OR name != 'basic.ack' OR confirms) "
        "AND (coalesce(last_channel, 0) = 0 OR channel <= last_channel)"
    )
    # Read once, and only where all else is plain: an array of one, so that Spark does not read it for each condition.
    odd = f"exists(array(try_variant_get(arguments, '$', '{ARGUMENTS}')), said -> coalesce({ODD_ARGUMENTS}, false))"
    return (
        with_stretches(methods, sources)
        .join(F.broadcast(known), "connection_id", "left")
        .filter(f"NOT coalesce({expected} AND arguments IS NOT NULL AND NOT {odd}, false)")
        .drop("calm_life", "confirms", "last_channel")
    )


def with_stretches(methods: DataFrame, sources: Sources) -> DataFrame:
    """`methods` of channels with `calm_life`, the life of their channel where they carry or settle a message in its
    stretch, else null; and `confirms`, whether publishes are confirmed there."""
    late = sources.connections.filter("NOT start").select("connection_id", F.lit(True).alias("late"))
    inside = F.expr(
        f"{CLASSIC} AND ({BY_THE_RIGHT_SIDE}) AND (frame_no > after AND frame_no < before OR late AND after IS NULL)"
    )
    return (
        methods.join(F.broadcast(stretches(sources)), ["connection_id", "channel"], "left")
        .join(F.broadcast(late), "connection_id", "left")
        .withColumn("calm_life", F.when(inside, F.coalesce("life", F.lit(0))))
        .withColumn("confirms", F.coalesce("confirms", "late"))
        .drop("after", "before", "life", "late")
    )


def stretches(sources: Sources) -> DataFrame:
    """The longest stretch of each channel in which nothing steers it and messages may pass, where it is LONG:
    connection_id, channel; frames `after` and `before`; `life`, how often the channel was opened; `confirms`.

    Where the capture begins in the middle of a connection, what comes before the first steering method is such a
    stretch, of which rules know that they know nothing; a channel that is not named is never steered.
    """
    steering = sources.frames.filter(f"({STEERS}) AND {CLASSIC} AND frame_type = 'method' AND channel > 0")
    own = Window.partitionBy("connection_id", "channel").orderBy("frame_no")
    so_far = own.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    place = ("connection_id", "channel")
    measured = steering.select(
        *place,
        F.col("frame_no").alias("after"),
        F.coalesce(F.lead("frame_no").over(own), F.lit(NEVER)).alias("before"),
        *(F.expr(value).over(so_far).alias(name) for name, value in SO_FAR.items()),
    )
    calm = measured.filter(f"was = 'channel.open' AND odd = 0 AND before - after > {LONG}").select(
        *place, *STRETCH[:-1], F.expr("coalesce(confirmed > opened, false)").alias("confirms")
    )
    first = steering.groupBy(*place).agg(F.min("frame_no").alias("before"))
    unknown = first.join(F.broadcast(sources.connections.filter("NOT start")), "connection_id", "left_semi").select(
        *place, F.lit(-1).alias("after"), "before", F.lit(0).alias("life"), F.lit(True).alias("confirms")
    )
    length = (F.col("before") - F.col("after")).alias("length")
    longest = F.max(F.struct(length, *STRETCH)).alias("longest")
    return calm.unionByName(unknown).groupBy(*place).agg(longest).select(*place, "longest.*").drop("length")
