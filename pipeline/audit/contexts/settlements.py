"""Context 'settlements': acks, nacks and rejects that did not settle the message that they name.

    sender        client: about a delivery; server: about a publish
    delivery_tag, multiple
    named         the last message with that tag on the channel before: frame_no, presettled, settled_frame_no (null:
                  not settled)
    elsewhere     another incarnation or channel of the connection where a message with that tag is outstanding
    hits          whether it settled anything; only if `multiple`
    confirms, in_transaction  mode of the channel at that time

The settlement engine decides which messages are settled (`settled_frame_no` of messages).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.contexts.channels import CHANNEL, METHOD_COLUMNS, channel_life
from pipeline.audit.contexts.materialized import few_values, having_values, materialize, materialize_if_any
from pipeline.audit.contexts.prefilter import ON_CHANNEL
from pipeline.audit.detector import NEVER
from pipeline.tables.roles import SETTLEMENTS, SETTLES_ALL

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

SETTLES = tuple(dict.fromkeys(name for name, _, _ in SETTLEMENTS if name not in SETTLES_ALL))
CONFIRMS, TRANSACTS = "confirm.select", "tx.select"
TAG_ARGUMENTS = "struct<delivery_tag bigint, multiple boolean>"
# With more settled messages than this, stretches of frames in which every settlement hits are dropped first.
MANY = 10_000
STRETCH = 4096  # frames


def settlements(sources: Sources) -> DataFrame | None:
    """Context 'settlements'. The result is sorted and used several times, so it is materialized."""
    messages = sources.tables.messages.filter(F.col("delivery_tag").isNotNull())
    hit = messages.filter("settled_frame_no IS NOT NULL").select(
        "connection_id", F.col("settled_frame_no").alias("frame_no"), "delivery_tag"
    )
    left = _unmatched(sources, hit)
    if left is None:
        return None
    tagged = materialize(_tagged(sources, left))
    numbers = ["connection_id", "sender", "delivery_tag"]
    named = _to_settle(messages).join(tagged.select(*numbers).distinct(), numbers, "left_semi")
    rows = tagged.unionByName(named, allowMissingColumns=True)
    # The window with the fewest keys first: its partitioning also serves the other.
    known = rows.withColumn("open_elsewhere", _open_elsewhere()).withColumn("named", _last_named())
    here = F.struct("channel", "channel_life")
    elsewhere = (F.col("open_elsewhere.until") > F.col("frame_no")) & (F.col("open_elsewhere.place") != here)
    by_frame = ["connection_id", "frame_no"]
    several = (
        hit.select(*by_frame)
        .join(tagged.filter("multiple").select(*by_frame), by_frame, "left_semi")
        .distinct()
        .withColumns({"multiple": F.lit(True), "hits": F.lit(True)})
    )
    return (
        known.filter("name IS NOT NULL")
        .join(several, ["connection_id", "frame_no", "multiple"], "left")
        .withColumn("hits", F.when(F.col("multiple"), F.coalesce("hits", F.lit(False))))
        .withColumn("elsewhere", F.when(elsewhere, F.col("open_elsewhere.place")))
        .drop("open_elsewhere", "message")
    )


def _unmatched(sources: Sources, hit: DataFrame) -> DataFrame | None:
    """Settlements that did not settle the message that they name: connection_id, frame_no."""
    place = ["connection_id", "frame_no", "delivery_tag"]
    rows = sources.methods.filter(ON_CHANNEL).filter(F.col("name").isin(list(SETTLES))).select(*place)
    if sources.message_kind_counts["settled"] > MANY:
        stretches = materialize_if_any(_unequal_stretches(rows, hit))
        if stretches is None:
            return None
        rows, hit = (
            side.withColumn("stretch", _stretch())
            .join(stretches, ["connection_id", "stretch"], "left_semi")
            .drop("stretch")
            for side in (rows, hit)
        )
    return materialize_if_any(rows.join(hit, place, "left_anti").select("connection_id", "frame_no"))


def _unequal_stretches(settlements: DataFrame, hit: DataFrame) -> DataFrame:
    """Stretches of frames where the settlements on the wire differ from those recorded in messages: connection_id and
    `stretch`. Compared by hash sums, which collide by chance once in 2^64 (or by intent); a join takes ten times as
    long."""
    sides = (rows.withColumn("side", F.lit(side)) for rows, side in ((settlements, 1), (hit, -1)))
    one, other = (rows.select("connection_id", "frame_no", "delivery_tag", "side") for rows in sides)
    sums = (
        one.unionAll(other)
        .groupBy("connection_id", _stretch().alias("stretch"))
        .agg(F.bit_xor(F.xxhash64("frame_no", "delivery_tag")).alias("differ"), F.sum("side").alias("more"))
    )
    return sums.filter("differ != 0 OR more != 0").select("connection_id", "stretch")


def _stretch() -> Column:
    return F.expr(f"frame_no DIV {STRETCH}")


def _tagged(sources: Sources, left: DataFrame) -> DataFrame:
    """These settlements with their tags, and the mode of the channel at that time."""
    so_far = Window.partitionBy("connection_id", "channel", "channel_life").orderBy("frame_no")

    def selected(mode: str) -> Column:
        return F.count(F.when(F.col("name") == mode, 1)).over(so_far) > 0

    args = F.expr(f"try_variant_get(arguments, '$', '{TAG_ARGUMENTS}')")
    settling = having_values(sources.methods, "frame_no", few_values(left, "frame_no")).join(
        left, ["connection_id", "frame_no"], "left_semi"
    )
    modes = sources.control_methods.filter(ON_CHANNEL).filter(F.col("name").isin("channel.open", CONFIRMS, TRANSACTS))
    rows = settling.select(*METHOD_COLUMNS, "arguments").unionAll(modes.select(*METHOD_COLUMNS, "arguments"))
    return (
        rows.select(*METHOD_COLUMNS, args.alias("args"))
        .withColumn("channel_life", channel_life())
        .withColumns({"confirms": selected(CONFIRMS), "in_transaction": selected(TRANSACTS)})
        .filter(F.col("name").isin(list(SETTLES)) & F.col("args.delivery_tag").isNotNull())
        .select(
            *CHANNEL, "frame_no", "ts_ns", "version", "sender", "name", "confirms", "in_transaction",
            "args.delivery_tag", F.coalesce("args.multiple", F.lit(False)).alias("multiple"),
        )
    )  # fmt: skip


def _to_settle(messages: DataFrame) -> DataFrame:
    """Messages, with the side that has to settle them as `sender`."""
    presettled = (F.col("outcome") == "presettled").alias("presettled")
    frame_no = F.col("first_frame_no").alias("frame_no")
    return messages.filter(F.col("operation").isin("publish", "deliver", "get")).select(
        "connection_id",
        "channel",
        "channel_life",
        frame_no,
        F.when(F.col("operation") == "publish", "server").otherwise("client").alias("sender"),
        "delivery_tag",
        F.struct(frame_no, presettled, "settled_frame_no").alias("message"),
    )


def _last_named() -> Column:
    own = Window.partitionBy("connection_id", "sender", "delivery_tag", "channel", "channel_life").orderBy("frame_no")
    return F.last("message", ignorenulls=True).over(own)


def _open_elsewhere() -> Column:
    """Of the earlier messages with the row's tag, on any channel, the one that stays outstanding longest."""
    of_number = Window.partitionBy("connection_id", "sender", "delivery_tag").orderBy("frame_no")
    until = F.when(F.col("message.presettled"), 0).otherwise(F.coalesce("message.settled_frame_no", F.lit(NEVER)))
    place = F.struct("channel", "channel_life").alias("place")
    return F.max(F.when(F.col("message").isNotNull(), F.struct(until.alias("until"), place))).over(of_number)
