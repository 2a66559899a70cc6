"""Rows that are computed now, and small ones told as such."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

FEW = 10_000  # rows


def kept(rows: DataFrame) -> DataFrame:
    """`rows`, computed at once and once, in memory and on the executors' disks.

    Few of them are put into one partition, and sent to whatever is joined with them: Spark's plan for rows that are
    computed does not know how few they are, and would deal them out anew for each window, grouping and join.
    """
    return counted(rows)[0]


def kept_if_any(rows: DataFrame) -> DataFrame | None:
    """The same; None where there are none, so that nothing has to be planned for them."""
    standing, number = counted(rows)
    return standing if number else None


def counted(rows: DataFrame) -> tuple[DataFrame, int]:
    """`kept` rows, and how many there are."""
    standing = rows.localCheckpoint()
    number = standing.count()
    return (standing if number > FEW else F.broadcast(standing.coalesce(1))), number
