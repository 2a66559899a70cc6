"""Table captures, of decoded rows."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import CAPTURES
from udfs.source.captures import MakeCaptures


def captures(decoded: DataFrame) -> DataFrame:
    """Decoded rows -> table captures."""
    accounts = decoded.filter(F.col("kind") == "capture").select(F.to_json("arguments"))
    return accounts.repartition(1).mapInArrow(MakeCaptures(CAPTURES), CAPTURES)
