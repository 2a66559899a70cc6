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

from pipeline.audit.lives import channel_methods
from pipeline.tables.roles import SETTLEMENTS, SETTLES_ALL

if TYPE_CHECKING:
    from pipeline.audit.contexts import Sources

SETTLES = tuple(dict.fromkeys(name for name, _, _ in SETTLEMENTS if name not in SETTLES_ALL))
CONFIRMS, TRANSACTS = "confirm.select", "tx.select"
SAID = "struct<delivery_tag bigint, multiple boolean>"
NEVER = (1 << 63) - 1


def settlements(sources: Sources) -> DataFrame:
    """Context 'settlements'."""
    messages = sources.tables.messages.filter(F.col("delivery_tag").isNotNull())
    rows = _said(sources).unionByName(_named(messages), allowMissingColumns=True)
    known = rows.withColumns({"named": _last_named(), "open_elsewhere": _open_elsewhere()}).filter("name IS NOT NULL")
    here = F.struct("channel", "channel_life")
    elsewhere = (F.col("open_elsewhere.until") > F.col("frame_no")) & (F.col("open_elsewhere.place") != here)
    hit = messages.filter("settled_frame_no IS NOT NULL").select(
        "connection_id", F.col("settled_frame_no").alias("frame_no"), F.lit(True).alias("hits")
    )
    several = known.filter("multiple").join(hit.distinct(), ["connection_id", "frame_no"], "left")
    single = known.filter("NOT multiple").withColumn("hits", F.lit(None).cast("boolean"))
    return (
        several.withColumn("hits", F.coalesce("hits", F.lit(False)))
        .unionByName(single)
        .withColumn("elsewhere", F.when(elsewhere, F.col("open_elsewhere.place")))
        .drop("open_elsewhere", "message")
    )


def _said(sources: Sources) -> DataFrame:
    """The settlements with their tags, and whether the channel is in confirm mode by then."""
    so_far = Window.partitionBy("connection_id", "channel", "channel_life").orderBy("frame_no")

    said = F.expr(f"try_variant_get(arguments, '$', '{SAID}')")

    def selected(mode: str) -> Column:
        return F.count(F.when(F.col("name") == mode, 1)).over(so_far) > 0

    return (
        channel_methods(sources, {"said": said}, [*SETTLES, CONFIRMS, TRANSACTS])
        .withColumns({"confirms": selected(CONFIRMS), "in_transaction": selected(TRANSACTS)})
        .filter(F.col("name").isin(list(SETTLES)))
        .select(
            "connection_id",
            "channel",
            "channel_life",
            "frame_no",
            "ts_ns",
            "version",
            "sender",
            "name",
            "confirms",
            "in_transaction",
            "said.delivery_tag",
            F.coalesce("said.multiple", F.lit(False)).alias("multiple"),
        )
        .filter("delivery_tag IS NOT NULL")
    )


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
