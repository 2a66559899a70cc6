"""Materialized intermediate results, marked as small for Spark's planner if they are."""

from __future__ import annotations

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

FEW = 10_000  # rows
# The most values in a pushed-down IN filter. By default Spark pushes down ten values; of more it pushes down only the
# range from the least to the greatest.
MOST_VALUES = 200
PUSH_DOWN_VALUES = {"spark.sql.parquet.pushdown.inFilterThreshold": str(MOST_VALUES)}


def materialize(rows: DataFrame) -> DataFrame:
    """`rows`, computed now and only once, stored in memory and on the executors' disks.

    A small result is coalesced into one partition and broadcast in joins: Spark's plan of a checkpoint does not know
    its size and would shuffle it for each window, aggregate and join.
    """
    return materialize_counted(rows)[0]


def materialize_if_any(rows: DataFrame) -> DataFrame | None:
    """The same; None if there are no rows, so that nothing is planned for them."""
    checkpoint, number = materialize_counted(rows)
    return checkpoint if number else None


def materialize_counted(rows: DataFrame) -> tuple[DataFrame, int]:
    """Materialized rows and their number, counted while they are computed: a query would take as long to plan. A client
    of Spark Connect does not receive that count and runs the query."""
    seen = Observation()
    checkpoint = rows.observe(seen, F.count(F.lit(1)).alias("rows")).localCheckpoint()
    number = int(seen.get["rows"]) if isinstance(rows, ClassicFrame) else checkpoint.count()
    return (checkpoint if number > FEW else F.broadcast(checkpoint.coalesce(1))), number


def few_values(keys: DataFrame, column: str) -> list[int] | None:
    """The distinct values of a column of materialized rows; None if they are more than MOST_VALUES."""
    values = [row[0] for row in keys.select(column).distinct().limit(MOST_VALUES + 1).collect()]
    return values if len(values) <= MOST_VALUES else None


def having_values(rows: DataFrame, column: str, values: list[int] | None) -> DataFrame:
    """`rows` with one of these values in the column, so that Spark can skip files; all rows if `values` is None."""
    return rows if values is None else rows.filter(F.col(column).isin(values))
