"""VARIANT columns of Arrow tables, which an Arrow cast refuses where one of them is null.

Spark hands a null VARIANT out as a null struct whose children, declared as never null, are null too; pyarrow will not
cast that, not even to its own type (`DataFrame.toArrow` does). `as_structs` gives Spark plain structs of the same
bytes; `as_variants` makes VARIANT of them again, with empty bytes where a struct is null.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, DataType, StructField, StructType, VariantType

from udfs.arrow.types import VARIANT

PLAIN = StructType([StructField("value", BinaryType()), StructField("metadata", BinaryType())])


def plain_schema(schema: StructType) -> StructType:
    """The schema of what `as_structs` gives."""

    def plain(kind: DataType) -> DataType:
        return PLAIN if isinstance(kind, VariantType) else kind

    return StructType([StructField(field.name, plain(field.dataType), field.nullable) for field in schema.fields])


def variant_columns(schema: StructType) -> list[int]:
    """Which columns are VARIANT."""
    return [at for at, field in enumerate(schema.fields) if isinstance(field.dataType, VariantType)]


def as_structs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: VARIANT columns as structs whose fields may be null."""
    for batch in batches:
        columns = [_relabelled(array) if _is_variant(array.type) else array for array in batch.columns]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def as_variants(table: pa.Table, columns: list[int]) -> pa.Table:
    """Structs of value and metadata in these columns -> VARIANT."""
    for at in columns:
        chunks = [_filled(chunk) for chunk in table.column(at).chunks]
        field = pa.field(table.schema.names[at], VARIANT)
        table = table.set_column(at, field, pa.chunked_array(chunks, VARIANT))
    return table


def _is_variant(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind) or kind.num_fields != len(PLAIN):
        return False
    return any((kind.field(at).metadata or {}).get(b"variant") == b"true" for at in range(kind.num_fields))


def _relabelled(array: pa.StructArray) -> pa.StructArray:
    children = {array.type.field(at).name: array.field(at) for at in range(array.type.num_fields)}
    return pa.StructArray.from_arrays([children[name] for name in PLAIN.names], names=PLAIN.names, mask=array.is_null())


def _filled(array: pa.StructArray) -> pa.StructArray:
    children = [pc.fill_null(array.field(name), b"") for name in PLAIN.names]
    return pa.StructArray.from_arrays(children, fields=list(VARIANT), mask=array.is_null())
