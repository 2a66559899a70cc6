"""DataFrames of tables: exactly the columns and types of the schema, and `toArrow` with VARIANT columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa


def shaped(rows: DataFrame, schema: StructType) -> DataFrame:
    """The columns of `schema`, in order, with its types; a column that `rows` lacks is null."""
    present = set(rows.columns)
    columns = []
    for column in schema.fields:
        value = f"`{column.name}`" if column.name in present else "NULL"
        value = f"CAST({value} AS {column.dataType.simpleString()})"
        found = F.expr(value)
        if isinstance(column.dataType, StructType):  # in SQL its fields lose their comments
            found = found.cast(column.dataType)
        columns.append(found.alias(column.name, metadata=column.metadata))
    return rows.select(*columns)


def empty(spark: SparkSession, schema: StructType) -> DataFrame:
    """A DataFrame without rows that Spark optimizes away; for an empty list it would start tasks with Python
    workers."""
    nulls = [F.lit(None).cast(column.dataType).alias(column.name, metadata=column.metadata) for column in schema.fields]
    return spark.range(1).where("false").select(*nulls)


def timestamp(nanoseconds: str) -> Column:
    """Column of nanoseconds since 1970 -> TIMESTAMP, microseconds, rounded down."""
    return F.expr(f"timestamp_micros({nanoseconds} div 1000)")


def to_arrow(rows: DataFrame) -> pa.Table:
    """All of `rows` as a pyarrow.Table. A VARIANT is a struct of its `value` and `metadata`, as in Parquet files.

    Replaces `rows.toArrow()`, which raises ArrowInvalid if a VARIANT is null (pyspark 4.1 to 4.3, pyarrow 26). Such
    columns are converted in Python workers.
    """
    from udfs.arrow.types import as_structs, as_variants, struct_schema, variant_columns

    columns = variant_columns(rows.schema)
    if not columns:
        return type(rows).toArrow(rows)
    plain = rows.mapInArrow(as_structs, struct_schema(rows.schema))
    return as_variants(plain.toArrow(), columns)


def with_to_arrow(rows: DataFrame) -> DataFrame:
    """`rows` with `to_arrow` as their method `toArrow`; DataFrames derived from them have pyspark's."""
    rows.__dict__["toArrow"] = lambda: to_arrow(rows)
    return rows
