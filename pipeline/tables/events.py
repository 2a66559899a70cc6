"""Events: the narrow rows that the state of channels, links and messages is computed from.

One row a method, with the arguments that matter in plain columns, and one row a loss: a place where frames of a
sender may be missing. No shuffle; an argument object is read once, or not at all where no state depends on what it
says. `sender` is true for the server.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.tables.roles import (
    CONNECTION_CHANNEL,
    HOT_ARGUMENTS,
    METHOD_FRAMES,
    OPERATIONS,
    SETTLEMENTS,
    SPEAKS_DETAILS,
    dialogue_of,
    looked_up,
    named,
)

SAYS_NOTHING = tuple(name for name, operation in OPERATIONS.items() if operation in ("publish", "return"))
STATE = ("consumer_tag", "queue", "delivery_tag", "multiple", "requeue", "no_wait", "no_ack")
DETAILS = ("exclusive", "prefetch_count", "prefetch_size", "reply_code", "reply_text")


def hot_arguments(names: Iterable[str] = tuple(HOT_ARGUMENTS)) -> Column:
    """Struct of the named HOT_ARGUMENTS out of VARIANT `arguments`, in one pass; a value of another type is null."""
    fields = ", ".join(f"{name} {HOT_ARGUMENTS[name]}" for name in names)
    return F.expr(f"try_variant_get(arguments, '$', 'struct<{fields}>')")


def is_loss() -> Column:
    """True on rows of `frames` across which nothing may be paired.

    A gap that lies inside a frame names the frame's channel: framing went on behind it and no frame is missing. The
    bytes of an unfinished last frame ('skipped', 'partial') have nothing behind them.
    """
    lost_boundary = (F.col("frame_type") == "gap") & F.col("channel").isNull()
    unframed = (F.col("frame_type") == "skipped") & (F.col("status") != "partial")
    return lost_boundary | unframed


def stateful() -> list[str]:
    """The methods that the state of channels, links and messages depends on."""
    return sorted({*dialogue_of(), *OPERATIONS, *(method for method, _, _ in SETTLEMENTS)})


def events(frames: DataFrame) -> DataFrame:
    """Rows of `frames` (or decoded rows of kind 'frame') -> events."""
    on_connection = looked_up(CONNECTION_CHANNEL, "version").cast("int")
    method = F.col("frame_type").isin(list(METHOD_FRAMES)) & named(stateful()) & F.col("channel").isNotNull()
    return (
        frames.filter(method | is_loss())
        .select(
            "connection_id",
            "frame_no",
            "ts_ns",
            "channel",
            (F.col("sender") == "server").alias("sender"),
            "name",
            is_loss().alias("loss"),
            F.coalesce(F.col("channel") == on_connection, F.lit(False)).alias("on_connection"),
            F.when(~named(SAYS_NOTHING), hot_arguments(STATE)).alias("state"),
            F.when(named(SPEAKS_DETAILS), hot_arguments(DETAILS)).alias("details"),
        )
        .select("*", "state.*", "details.*")
        .drop("state", "details")
    )
