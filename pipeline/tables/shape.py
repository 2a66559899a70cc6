"""The last step of every table: exactly its schema's columns, cast to their types."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType


def shaped(rows: DataFrame, schema: StructType) -> DataFrame:
    """The columns of `schema`, in order, of its types; a column that `rows` does not have is null."""
    present = set(rows.columns)
    columns = []
    for column in schema.fields:
        value = F.col(column.name) if column.name in present else F.lit(None)
        columns.append(value.cast(column.dataType).alias(column.name, metadata=column.metadata))
    return rows.select(*columns)


def elapsed(since: Column, until: Column) -> Column:
    """Nanoseconds between two moments; null where the later one was captured first: how long it took is not known."""
    return F.when(until >= since, until - since)


def timestamp(nanoseconds: str) -> Column:
    """Column of nanoseconds since 1970 -> TIMESTAMP, microseconds, rounded down."""
    return F.expr(f"timestamp_micros({nanoseconds} div 1000)")
