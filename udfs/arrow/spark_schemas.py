"""Spark's schemas of tables (`codec.tables`), and how it reads their files. Only what runs on Spark imports this: it
imports pyspark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

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
from codec.tables import Column, ListOf, MapOf, Table, Type, with_former
from udfs.arrow.former import current_expressions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader

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
    return StructType([StructField(each.name, spark_type(each.type), True, comment(each)) for each in table])


def comment(column: Column) -> dict[str, str]:
    """The metadata of a column."""
    return {"comment": column.doc} if column.doc else {}


def read_files(reader: DataFrameReader, table: Table, paths: Sequence[str]) -> DataFrame:
    """The rows of a table in files, perhaps of earlier releases; columns that a file lacks are null. Columns of folders
    (name=value) follow. With a given schema Spark need not open files to infer it, which takes a job."""
    from pyspark.sql import functions as F

    in_files, current = with_former(table), current_expressions(table, "spark")
    rows = reader.schema(spark_schema(in_files)).parquet(*paths)
    of_folders = [name for name in rows.columns if name not in in_files.names]
    own = (F.expr(current.get(name, f"`{name}`")).alias(name, metadata=comment(table[name])) for name in table.names)
    return rows.select(*own, *of_folders)


def variant_columns(schema: StructType) -> list[int]:
    return [at for at, field in enumerate(schema.fields) if isinstance(field.dataType, VariantType)]


def struct_schema(schema: StructType) -> StructType:
    """The schema of the rows of `udfs.arrow.types.as_structs`."""
    kinds = [STRUCT_OF_VARIANT if isinstance(field.dataType, VariantType) else field.dataType for field in schema]
    return StructType(
        [StructField(field.name, kind, field.nullable) for field, kind in zip(schema, kinds, strict=True)]
    )


TABLES = {name: spark_schema(table) for name, table in tables.TABLES.items()}
