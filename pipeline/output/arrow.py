"""Rows of Spark as an Arrow table, VARIANT columns included: `to_arrow(rows)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    import pyarrow as pa


def to_arrow(rows: DataFrame) -> pa.Table:
    """All of `rows` as a pyarrow.Table. A VARIANT is a struct of its `value` and `metadata`, as in Parquet files.

    Replaces `rows.toArrow()`, which raises ArrowInvalid if a VARIANT is null (pyspark 4.1 to 4.3, pyarrow 26). Such
    columns are converted in Python workers.
    """
    from udfs.arrow.variants import as_structs, as_variants, plain_schema, variant_columns

    columns = variant_columns(rows.schema)
    if not columns:
        return type(rows).toArrow(rows)
    plain = rows.mapInArrow(as_structs, plain_schema(rows.schema))
    return as_variants(plain.toArrow(), columns)


def with_to_arrow(rows: DataFrame) -> DataFrame:
    """`rows` with `to_arrow` as their method `toArrow`; DataFrames derived from them have pyspark's."""
    rows.__dict__["toArrow"] = lambda: to_arrow(rows)
    return rows
