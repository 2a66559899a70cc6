"""Spark's schemas of tables (`codec.tables`). Only what runs on Spark imports this: it imports pyspark."""

from __future__ import annotations

from functools import cache

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from codec import tables
from codec.tables import ListOf, MapOf, Table, Type

SPARK_TYPES: dict[str, DataType] = {
    tables.LONG: LongType(),
    tables.INT: IntegerType(),
    tables.STRING: StringType(),
    tables.BOOLEAN: BooleanType(),
    tables.BINARY: BinaryType(),
    tables.TIMESTAMP: TimestampType(),
    tables.DATE: DateType(),
    tables.VARIANT: VariantType(),
}
# Structs with the bytes of a VARIANT, which may be null.
STRUCT_OF_VARIANT = StructType([StructField("value", BinaryType()), StructField("metadata", BinaryType())])


def spark_type(kind: Type) -> DataType:
    """The Spark type of a type of columns."""
    if isinstance(kind, ListOf):
        return ArrayType(spark_type(kind.element))
    if isinstance(kind, MapOf):
        return MapType(spark_type(kind.key), spark_type(kind.value))
    return spark_schema(kind) if isinstance(kind, Table) else SPARK_TYPES[kind]


@cache
def spark_schema(table: Table) -> StructType:
    """The schema of a table: nullable columns, each with its documentation under the metadata key `comment`."""
    comments = [{"comment": each.doc} if each.doc else {} for each in table]
    return StructType(
        [
            StructField(each.name, spark_type(each.type), True, comment)
            for each, comment in zip(table, comments, strict=True)
        ]
    )


def variant_columns(schema: StructType) -> list[int]:
    return [at for at, field in enumerate(schema.fields) if isinstance(field.dataType, VariantType)]


def struct_schema(schema: StructType) -> StructType:
    """The schema of the rows of `udfs.arrow.types.as_structs`."""
    kinds = [STRUCT_OF_VARIANT if isinstance(field.dataType, VariantType) else field.dataType for field in schema]
    return StructType(
        [StructField(field.name, kind, field.nullable) for field, kind in zip(schema, kinds, strict=True)]
    )


TABLES = {name: spark_schema(table) for name, table in tables.TABLES.items()}
