"""Table frames: the decoded rows that are frames or spans of bytes."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import FRAMES
from pipeline.tables.shape import shaped


def frames(decoded: DataFrame) -> DataFrame:
    """Decoded rows -> table frames."""
    return shaped(decoded.filter(F.col("kind") == "frame"), FRAMES, checked=True)
