"""Arrow types of columns as Spark hands them over."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

METADATA = pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"})
VARIANT = pa.struct([pa.field("value", pa.binary(), nullable=False), METADATA])
TIMESTAMP = pa.timestamp("us", tz="UTC")

PLAIN: dict[type[DataType], pa.DataType] = {
    LongType: pa.int64(),
    IntegerType: pa.int32(),
    StringType: pa.string(),
    BooleanType: pa.bool_(),
    BinaryType: pa.binary(),
    TimestampType: TIMESTAMP,
    VariantType: VARIANT,
}


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type of a Spark type; of arrays, maps and structs of plain types, too. Raises KeyError for others."""
    if isinstance(kind, MapType):
        return pa.map_(arrow_type(kind.keyType), arrow_type(kind.valueType))
    if isinstance(kind, ArrayType):
        return pa.list_(arrow_type(kind.elementType))
    if isinstance(kind, StructType):
        return pa.struct([(field.name, arrow_type(field.dataType)) for field in kind.fields])
    return PLAIN[type(kind)]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a table."""
    return pa.schema([(field.name, arrow_type(field.dataType)) for field in schema.fields])


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """So many nulls; what is inside of a VARIANT is never null."""
    if kind != VARIANT:
        return pa.nulls(count, kind)
    children = [pa.repeat(pa.scalar(b"", pa.binary()), count)] * 2
    return pa.StructArray.from_arrays(children, fields=list(VARIANT), mask=pa.repeat(True, count))
