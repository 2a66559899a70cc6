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

KEY = ("connection_id", "frame_no")


def methods(frames: DataFrame, replies: Sequence[DataFrame]) -> DataFrame:
    """`frames` and the `replies` of the families' histories -> table methods."""
    spoken = frames.filter(F.col("frame_type").isin(list(METHOD_FRAMES)))
    link_name = F.when(named(NAMES_LINK), F.expr("try_variant_get(arguments, '$.name', 'string')"))
    # Only requests can have a reply: the others, most of them, are not moved.
    requests, others = (
        shaped(rows.withColumns({"hot": hot_arguments(), "link_name": link_name}).select("*", "hot.*"), METHODS)
        for rows in (spoken.filter(named(replies_of())), spoken.filter(~named(replies_of())))
    )
    return answered(requests, replies).unionByName(others)


def answered(requests: DataFrame, replies: Sequence[DataFrame]) -> DataFrame:
    """Rows of table methods with what the `replies` say of them."""
    if not replies:
        return requests
    known = reduce(DataFrame.unionByName, replies)
    asked = requests.drop(*(name for name in known.columns if name not in KEY))
    return shaped(asked.join(known, list(KEY), "left"), METHODS)
