"""Rows that are computed now, and small ones told as such."""

from __future__ import annotations

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

FEW = 10_000  # rows
# Values in a filter that files are asked by, and the setting that has Spark ask them for each: by default it asks for
# ten, and for whatever lies between the least and the greatest of more.
ASKED = 200
ASKING = {"spark.sql.parquet.pushdown.inFilterThreshold": str(ASKED)}


def kept(rows: DataFrame) -> DataFrame:
    """`rows`, computed at once and once, in memory and on the executors' disks.

    Few of them are put into one partition, and sent to whatever is joined with them: Spark's plan for rows that are
    computed does not know how few they are, and would partition them anew for each window, grouping and join.
    """
    return counted(rows)[0]


def kept_if_any(rows: DataFrame) -> DataFrame | None:
    """The same; None where there are none, so that nothing has to be planned for them."""
    standing, number = counted(rows)
    return standing if number else None


def counted(rows: DataFrame) -> tuple[DataFrame, int]:
    """`kept` rows, and how many there are, counted on their way: a query for it would take as long to plan. A client of
    Spark Connect does not learn what was seen on the way, and has to ask."""
    seen = Observation()
    standing = rows.observe(seen, F.count(F.lit(1)).alias("rows")).localCheckpoint()
    number = int(seen.get["rows"]) if isinstance(rows, ClassicFrame) else standing.count()
    return (standing if number > FEW else F.broadcast(standing.coalesce(1))), number


def few(keys: DataFrame, column: str) -> list[int] | None:
    """The values of a column of kept rows; None where they are more than ASKED."""
    values = [row[0] for row in keys.select(column).distinct().limit(ASKED + 1).collect()]
    return values if len(values) <= ASKED else None


def near(rows: DataFrame, column: str, values: list[int] | None) -> DataFrame:
    """`rows` with one of these values in the column, so that files need not be read where they have none; all rows
    where the values are not known to be few."""
    return rows if values is None else rows.filter(F.col(column).isin(values))
