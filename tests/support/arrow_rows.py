"""Rows written by hand as a DataFrame, through Arrow: of a list Spark makes rows in Python workers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType, VariantType


def arrow_rows(
    spark: SparkSession, rows: Iterable[Mapping[str, Any]], schema: StructType, as_json: Sequence[str] = ()
) -> DataFrame:
    """`rows` with the columns of `schema`: null where a row does not name one; VARIANT, and the columns `as_json`, as
    what the JSON of the value makes of it."""
    kinds = {column.name: column.dataType for column in schema.fields}
    through_json = [name for name, kind in kinds.items() if kind == VariantType() or name in as_json]
    raw = StructType(
        [
            StructField(c.name, StringType()) if c.name in through_json else StructField(c.name, c.dataType)
            for c in schema
        ]
    )

    def value(row: Mapping[str, Any], name: str) -> Any:
        given = row.get(name)
        return json.dumps(given) if name in through_json and given is not None else given

    written = pa.Table.from_pylist(
        [{name: value(row, name) for name in kinds} for row in rows], to_arrow_schema(raw, timezone="UTC")
    )
    read = {
        name: F.parse_json(F.col(name))
        if kinds[name] == VariantType()
        else F.from_json(F.col(name), kinds[name].simpleString())
        for name in through_json
    }
    return spark.createDataFrame(written, raw).withColumns(read).select(*kinds)
