"""Links of AMQP 1.0: which attach of one side belongs to which of the other, and which link a handle stands for.

A link is known by its name and direction, and each side gives it a handle of its own for as long as it is attached; the
handle is free after the detach (1.0 core specification, 2.6.1 to 2.6.6). Attaches of one name are answered in the order
in which they were sent. Nothing is joined across a loss: after it, a handle is bound again by the next attach.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.tables.roles import looked_up, named
from pipeline.tables.session_roles import (
    COORDINATOR,
    DEFAULT_RCV_SETTLE_MODE,
    DEFAULT_SND_SETTLE_MODE,
    RCV_SETTLE_MODES,
    SND_SETTLE_MODES,
    outcome_of,
)
from pipeline.tables.sessions import SESSION

# An attach among those of its name and direction; other rows have no `attaching`.
SAME_LINK = (*SESSION, "attaching")


def with_links(rows: DataFrame) -> DataFrame:
    """Rows of sessions with `link` (null: its attach is not known) on those with a handle, and `delivery`, the latest
    first transfer on the handle (frame_no, delivery_id)."""
    own_losses = F.when(F.col("sender") == "client", F.col("client_losses")).otherwise(F.col("server_losses"))
    on_handle = Window.partitionBy(*SESSION, "sender", "handle").orderBy("frame_no")
    before = on_handle.rowsBetween(Window.unboundedPreceding, -1)
    first = named(["transfer"]) & (F.col("content_frame_no") == F.col("frame_no"))
    # What ends the binding of a handle: an attach that cannot be read may be one, too.
    loosens = named(["detach"]) | (named(["attach"]) & F.col("link").isNull())
    bound = F.struct("frame_no", "link", F.col("own_losses").alias("losses"))
    valid = (F.col("bound.frame_no") > F.coalesce("loosened", F.lit(0))) & (
        F.col("bound.losses") == F.col("own_losses")
    )
    return (
        _joined(rows)
        .withColumns({"own_losses": own_losses, "handle": F.col("said.handle")})
        .withColumns(
            {
                "bound": F.last(F.when(F.col("link").isNotNull(), bound), True).over(on_handle),
                "loosened": F.max(F.when(loosens, F.col("frame_no"))).over(before),
                "delivery": F.last(F.when(first, F.struct("frame_no", "said.delivery_id")), True).over(on_handle),
            }
        )
        .withColumn("link", F.when(F.col("handle").isNotNull() & valid, F.col("bound.link")))
        .drop("bound", "loosened")
    )


def _joined(rows: DataFrame) -> DataFrame:
    """`link` on each attach, the same for both sides of a link."""
    is_attach = named(["attach"]) & F.col("said.name").isNotNull() & F.col("said.handle").isNotNull()
    as_receiver = F.col("said.role")
    kind = F.when((F.col("sender") == "client") == as_receiver, "receiver").otherwise("sender")
    epoch = F.col("client_losses") + F.col("server_losses")
    attaching = F.when(
        is_attach & as_receiver.isNotNull(), F.struct(epoch.alias("epoch"), kind.alias("kind"), F.col("said.name"))
    )
    in_order = Window.partitionBy(*SAME_LINK).orderBy("frame_no")
    # Whoever attaches first asks; where the capture began, or lost bytes, inside of the session, that is the client:
    # the first attach seen may be an answer.
    from_the_beginning = F.col("opened_losses").eqNullSafe(F.col("attaching.epoch"))
    asker = F.when(from_the_beginning, F.first("sender").over(in_order)).otherwise("client")
    asks = F.col("sender") == F.col("asker")
    unasked = F.greatest(F.lit(0), -F.min("open").over(in_order))
    place = F.when(asks, F.sum(asks.cast("bigint")).over(in_order)).when(
        F.col("unasked") == F.lag("unasked", 1, 0).over(in_order),
        F.sum((~asks).cast("bigint")).over(in_order) - F.col("unasked"),
    )
    of_pair = Window.partitionBy(*SAME_LINK, "place").orderBy("frame_no")
    attach = F.struct("frame_no", "sender", "said")
    other = F.coalesce(F.lead("mine").over(of_pair), F.lag("mine").over(of_pair))
    return (
        rows.withColumn("attaching", attaching)
        .withColumn("asker", asker)
        .withColumn("open", F.sum(F.when(asks, 1).otherwise(-1)).over(in_order))
        .withColumn("unasked", unasked)
        .withColumn("place", place)
        .withColumn("mine", F.when(F.col("attaching").isNotNull(), attach))
        .withColumn("other", F.when(F.col("place").isNotNull(), other))
        .withColumn("kind", F.col("attaching.kind"))
        .withColumn("link", F.when(F.col("mine").isNotNull(), _link()))
        .drop("attaching", "asker", "open", "unasked", "place", "mine", "other", "kind")
    )


def _link() -> Column:
    """What both attaches say of a link; of each thing, what the side says that decides it, else what the other says."""
    client, server = (
        F.when(F.col("mine.sender") == side, F.col("mine")).otherwise(F.col("other")) for side in ("client", "server")
    )
    sends = F.col("kind") == "sender"
    source_side = F.when(sends, client).otherwise(server)  # decides on the source, and how it settles
    target_side = F.when(sends, server).otherwise(client)
    modes = {
        "snd_settle_mode": (SND_SETTLE_MODES, DEFAULT_SND_SETTLE_MODE, source_side, target_side),
        "rcv_settle_mode": (RCV_SETTLE_MODES, DEFAULT_RCV_SETTLE_MODE, target_side, source_side),
    }

    def mode(name: str) -> Column:
        names, default, decides, else_says = modes[name]
        number = F.when(decides.isNotNull(), F.coalesce(decides["said"][name], F.lit(-1)))
        number = F.coalesce(number, else_says["said"][name], F.lit(-1)).cast("string")
        return looked_up({**names, "-1": default}, number).alias(name)

    # The far end's word on its own terminus: a dynamic node has its address from there.
    address = F.when(
        sends, F.coalesce(server["said"]["target"]["address"], client["said"]["target"]["address"])
    ).otherwise(F.coalesce(server["said"]["source"]["address"], client["said"]["source"]["address"]))
    distribution_mode = F.coalesce(
        source_side["said"]["source"]["distribution_mode"], target_side["said"]["source"]["distribution_mode"]
    )
    default_outcome = F.coalesce(source_side["said"]["source"], target_side["said"]["source"])["default_outcome"][
        "type"
    ]
    receiver = F.when(sends, F.lit("server")).otherwise(F.lit("client"))
    return F.struct(
        F.least(F.col("mine.frame_no"), F.coalesce("other.frame_no", "mine.frame_no")).alias("link_id"),
        F.col("kind"),
        F.col("said.name").alias("name"),
        F.coalesce(client["said"]["handle"], server["said"]["handle"]).alias("handle"),
        address.alias("address"),
        distribution_mode.alias("distribution_mode"),
        mode("snd_settle_mode"),
        mode("rcv_settle_mode"),
        source_side["said"]["initial_delivery_count"].alias("initial_delivery_count"),
        receiver.alias("receiver"),
        outcome_of(default_outcome, receiver).alias("default_outcome"),
        F.coalesce(client["said"]["target"]["type"] == COORDINATOR, F.lit(False)).alias("coordinator"),
    )
