"""Context 'settlements': each ack, nack and reject, and what it names.

    sender        who says it: of the client it is about deliveries, of the server about publishes
    delivery_tag, multiple
    named         the message of that number which the channel carried last before it: frame_no, presettled, and
                  settled_frame_no (null: nobody has settled it)
    elsewhere     another life or channel of the connection on which a message of that number is outstanding
    hits          whether it settled anything; only of those with `multiple`
    confirms, in_transaction  mode of the channel by then

Which messages a settlement hit is what the settlement engine says (`settled_frame_no` of messages); here is only looked
up what it left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.audit.constants import NEVER
from pipeline.audit.contexts.channels import LIFE, OF_METHOD, life
from pipeline.audit.contexts.materialized import few, kept, kept_if_any, near
from pipeline.audit.contexts.prefilter import ON_CHANNEL
from pipeline.tables.roles import SETTLEMENTS, SETTLES_ALL

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

SETTLES = tuple(dict.fromkeys(name for name, _, _ in SETTLEMENTS if name not in SETTLES_ALL))
CONFIRMS, TRANSACTS = "confirm.select", "tx.select"
SAID = "struct<delivery_tag bigint, multiple boolean>"
# Where more messages than these were settled, stretches of frames in which every settlement hit are left out first.
MANY = 10_000
STRETCH = 4096  # frames


def settlements(sources: Sources) -> DataFrame | None:
    """Context 'settlements'. Without those that settle the message they name: what is left is put in order, so it is
    computed at once, rather than once for each of its uses."""
    messages = sources.tables.messages.filter(F.col("delivery_tag").isNotNull())
    hit = messages.filter("settled_frame_no IS NOT NULL").select(
        "connection_id", F.col("settled_frame_no").alias("frame_no"), "delivery_tag"
    )
    left = _left(sources, hit)
    if left is None:
        return None
    said = kept(_said(sources, left))
    numbers = ["connection_id", "sender", "delivery_tag"]
    named = _named(messages).join(said.select(*numbers).distinct(), numbers, "left_semi")
    rows = said.unionByName(named, allowMissingColumns=True)
    # First what needs the fewest keys: rows that lie together by these do so by more of them.
    known = rows.withColumn("open_elsewhere", _open_elsewhere()).withColumn("named", _last_named())
    here = F.struct("channel", "channel_life")
    elsewhere = (F.col("open_elsewhere.until") > F.col("frame_no")) & (F.col("open_elsewhere.place") != here)
    by_frame = ["connection_id", "frame_no"]
    several = (
        hit.select(*by_frame)
        .join(said.filter("multiple").select(*by_frame), by_frame, "left_semi")
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


def _left(sources: Sources, hit: DataFrame) -> DataFrame | None:
    """The settlements that did not settle the message they name: connection_id, frame_no."""
    place = ["connection_id", "frame_no", "delivery_tag"]
    rows = sources.methods.filter(ON_CHANNEL).filter(F.col("name").isin(list(SETTLES))).select(*place)
    if sources.traffic["settled"] > MANY:
        stretches = kept_if_any(_unequal(rows, hit))
        if stretches is None:
            return None
        rows, hit = (
            side.withColumn("stretch", _stretch())
            .join(stretches, ["connection_id", "stretch"], "left_semi")
            .drop("stretch")
            for side in (rows, hit)
        )
    return kept_if_any(rows.join(hit, place, "left_anti").select("connection_id", "frame_no"))


def _unequal(said: DataFrame, hit: DataFrame) -> DataFrame:
    """Stretches of frames whose settlements are not exactly those that messages were settled by: connection_id and
    `stretch`. By sums over both sides, which are equal by chance once in 2^64 times (who chooses tags for it can make
    them so): to join them takes ten times as long."""
    sides = (rows.withColumn("side", F.lit(side)) for rows, side in ((said, 1), (hit, -1)))
    one, other = (rows.select("connection_id", "frame_no", "delivery_tag", "side") for rows in sides)
    sums = (
        one.unionAll(other)
        .groupBy("connection_id", _stretch().alias("stretch"))
        .agg(F.bit_xor(F.xxhash64("frame_no", "delivery_tag")).alias("differ"), F.sum("side").alias("more"))
    )
    return sums.filter("differ != 0 OR more != 0").select("connection_id", "stretch")


def _stretch() -> Column:
    return F.expr(f"frame_no DIV {STRETCH}")


def _said(sources: Sources, left: DataFrame) -> DataFrame:
    """These settlements with their tags, and which mode the channel is in by then."""
    so_far = Window.partitionBy("connection_id", "channel", "channel_life").orderBy("frame_no")

    def selected(mode: str) -> Column:
        return F.count(F.when(F.col("name") == mode, 1)).over(so_far) > 0

    said = F.expr(f"try_variant_get(arguments, '$', '{SAID}')")
    settling = near(sources.methods, "frame_no", few(left, "frame_no")).join(
        left, ["connection_id", "frame_no"], "left_semi"
    )
    modes = sources.control_methods.filter(ON_CHANNEL).filter(F.col("name").isin("channel.open", CONFIRMS, TRANSACTS))
    rows = settling.select(*OF_METHOD, "arguments").unionAll(modes.select(*OF_METHOD, "arguments"))
    return (
        rows.select(*OF_METHOD, said.alias("said"))
        .withColumn("channel_life", life())
        .withColumns({"confirms": selected(CONFIRMS), "in_transaction": selected(TRANSACTS)})
        .filter(F.col("name").isin(list(SETTLES)) & F.col("said.delivery_tag").isNotNull())
        .select(
            *LIFE, "frame_no", "ts_ns", "version", "sender", "name", "confirms", "in_transaction", "said.delivery_tag",
            F.coalesce("said.multiple", F.lit(False)).alias("multiple"),
        )
    )  # fmt: skip


def _named(messages: DataFrame) -> DataFrame:
    """Messages under the side that is to settle them."""
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
    """The message of the row's number that stays outstanding longest among those before it, on any channel."""
    of_number = Window.partitionBy("connection_id", "sender", "delivery_tag").orderBy("frame_no")
    until = F.when(F.col("message.presettled"), 0).otherwise(F.coalesce("message.settled_frame_no", F.lit(NEVER)))
    place = F.struct("channel", "channel_life").alias("place")
    return F.max(F.when(F.col("message").isNotNull(), F.struct(until.alias("until"), place))).over(of_number)
