"""Which frames the state of channels, links and messages is computed from, and their arguments."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

from pipeline.tables.roles import HOT_ARGUMENTS, METHOD_FRAMES, OPERATIONS, SETTLEMENTS, dialogue_of, named


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


def has_a_say() -> Column:
    """True on the rows of `frames` that the state of the classic family depends on, and on some more."""
    method = F.col("frame_type").isin(list(METHOD_FRAMES)) & named(stateful())
    return method | F.col("frame_type").isin("gap", "skipped")
