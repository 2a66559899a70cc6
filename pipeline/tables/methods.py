"""Table methods: the frames that say something, with what they say in plain columns and their replies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import METHODS
from pipeline.tables.events import hot_arguments
from pipeline.tables.roles import METHOD_FRAMES, NAMES_LINK, named
from pipeline.tables.roles import replies as replies_of
from pipeline.tables.shape import shaped


def methods(frames: DataFrame, replies: Sequence[DataFrame]) -> DataFrame:
    """`frames` and the `replies` of the families' histories -> table methods."""
    spoken = frames.filter(F.col("frame_type").isin(list(METHOD_FRAMES)))
    if not replies:
        return shaped(_with_arguments(spoken), METHODS)
    answered = reduce(DataFrame.unionByName, replies)
    # Only requests can have a reply: the others, most of them, are not moved.
    requests = spoken.filter(named(replies_of())).join(answered, ["connection_id", "frame_no"], "left")
    others = spoken.filter(~named(replies_of()))
    return shaped(_with_arguments(requests).unionByName(_with_arguments(others), allowMissingColumns=True), METHODS)


def _with_arguments(rows: DataFrame) -> DataFrame:
    link_name = F.when(named(NAMES_LINK), F.expr("try_variant_get(arguments, '$.name', 'string')"))
    return rows.withColumns({"hot": hot_arguments(), "link_name": link_name}).select("*", "hot.*")
