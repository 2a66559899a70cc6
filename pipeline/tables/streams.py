"""Table streams: the byte ledger, two rows a connection."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.schemas import STREAMS
from pipeline.tables.facts import facts
from pipeline.tables.shape import shaped


def streams(decoded: DataFrame) -> DataFrame:
    """Decoded rows -> table streams."""
    sides = [F.struct(F.lit(side).alias("sender"), f"{side}.*") for side in ("client", "server")]
    return shaped(facts(decoded).select("connection_id", F.inline(F.array(*sides))), STREAMS)
