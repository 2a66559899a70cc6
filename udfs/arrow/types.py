"""Arrow types of columns, batches with the columns of a schema, binary columns, and VARIANT columns.

Spark returns a null VARIANT as a null struct with null children, although it declares them as never null; pyarrow will
not cast that, not even to its own type (`DataFrame.toArrow` does). So `as_structs` makes Spark return ordinary structs
of the same bytes, and `as_variants` makes VARIANT of them again, with empty bytes where a struct is null.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec import tables
from codec.errors import WirehareError
from codec.tables import ListOf, MapOf, Table, Type

METADATA = pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"})
VARIANT = pa.struct([pa.field("value", pa.binary(), nullable=False), METADATA])
TIMESTAMP = pa.timestamp("us", tz="UTC")

ARROW_TYPES: dict[str, pa.DataType] = {
    tables.LONG: pa.int64(),
    tables.INT: pa.int32(),
    tables.STRING: pa.string(),
    tables.BOOLEAN: pa.bool_(),
    tables.BINARY: pa.binary(),
    tables.TIMESTAMP: TIMESTAMP,
    tables.DATE: pa.date32(),
    tables.VARIANT: VARIANT,
}
PARTS = ("value", "metadata")  # of a VARIANT


def arrow_type(kind: Type) -> pa.DataType:
    """The Arrow type of a type of columns."""
    if isinstance(kind, MapOf):
        return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
    if isinstance(kind, ListOf):
        return pa.list_(arrow_type(kind.element))
    if isinstance(kind, Table):
        return pa.struct([(column.name, arrow_type(column.type)) for column in kind])
    return ARROW_TYPES[kind]


def arrow_schema(table: Table) -> pa.Schema:
    return pa.schema([(column.name, arrow_type(column.type)) for column in table])


def ddl(schema: pa.Schema) -> str:
    """The schema as Spark writes one, of columns with simple types."""
    names = {arrow: kind for kind, arrow in ARROW_TYPES.items()}
    return ", ".join(f"{field.name} {names[field.type]}" for field in schema)


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """`count` nulls; the children of a VARIANT are never null."""
    if kind != VARIANT:
        return pa.nulls(count, kind)
    children = [pa.repeat(pa.scalar(b"", pa.binary()), count)] * 2
    return pa.StructArray.from_arrays(children, fields=list(VARIANT), mask=pa.repeat(True, count))


class ColumnError(WirehareError, ValueError):
    """Columns that are not those of their table."""


def bound(columns: Mapping[str, pa.Array], schema: pa.Schema, absent: Collection[str] = ()) -> pa.RecordBatch:
    """`columns` in the order and of the types of `schema`; those `absent` are null. Dictionary-encoded texts stay so.

    Raises ColumnError for a missing or unknown column.
    """
    known, twice = set(columns) | set(absent), set(columns) & set(absent)
    if known != set(schema.names) or twice:
        missing, unknown = sorted(set(schema.names) - known), sorted(known - set(schema.names))
        raise ColumnError(f"columns missing: {missing}, not in the table: {unknown}, not absent: {sorted(twice)}")
    typed = {field.name: of_type(columns[field.name], field.type) for field in schema if field.name in columns}
    return padded(typed, schema)


def binary_column(
    octets: Any,
    offsets: NDArray[np.signedinteger],
    valid: NDArray[np.bool_] | None = None,
    kind: pa.DataType | None = None,
) -> pa.Array:
    """A BINARY column (or one of `kind`) over the buffer `octets`, which is not copied: row i has the octets from
    `offsets[i]` to `offsets[i + 1]`; null where not `valid`."""
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [mask, pa.py_buffer(offsets.astype(np.int32, copy=False)), pa.py_buffer(octets)]
    return pa.Array.from_buffers(kind or pa.binary(), len(offsets) - 1, buffers)


def padded(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """`columns` in the order of `schema`; the others are null."""
    count = len(next(iter(columns.values())))
    arrays = [columns[field.name] if field.name in columns else nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


def typed(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """`columns` in the order and exactly of the types of `schema`; the others are null."""
    kinds = {field.name: field.type for field in schema}
    own = {name: of_type(columns[name], kind, False) for name, kind in kinds.items() if name in columns}
    return pa.RecordBatch.from_arrays(padded(own, schema).columns, schema=schema)


def of_type(column: pa.Array, kind: pa.DataType, or_encoded: bool = True) -> pa.Array:
    """The column as of type `kind`; `or_encoded`: dictionary-encoded texts may stay so."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type == kind or (or_encoded and pa.types.is_dictionary(column.type) and column.type.value_type == kind):
        return column
    return with_parts(column) if kind == VARIANT else column.cast(kind)


def with_parts(column: pa.StructArray) -> pa.StructArray:
    """A VARIANT column without null children, which Spark makes where a VARIANT is null."""
    parts = [column.field(part.name).fill_null(b"") for part in VARIANT]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=column.is_null())


def variants(octets: Sequence[tuple[bytes, bytes]]) -> pa.StructArray:
    """A VARIANT column of values and metadata, as `codec.variant.encode` gives them; null where the value is empty."""
    parts = [pa.array([each[at] for each in octets], pa.binary()) for at in (0, 1)]
    mask = pa.array([not value for value, _ in octets], pa.bool_())
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=mask)


def variant_columns(table: Table) -> list[int]:
    return [at for at, column in enumerate(table) if column.type == tables.VARIANT]


def as_structs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: VARIANT columns as structs whose fields may be null."""
    for batch in batches:
        columns = [_as_struct(array) if _is_variant(array.type) else array for array in batch.columns]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def as_variants(table: pa.Table, columns: list[int]) -> pa.Table:
    """Structs of value and metadata in these columns -> VARIANT."""
    for at in columns:
        chunks = [with_parts(chunk) for chunk in table.column(at).chunks]
        field = pa.field(table.schema.names[at], VARIANT)
        table = table.set_column(at, field, pa.chunked_array(chunks, VARIANT))
    return table


def _is_variant(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind) or kind.num_fields != len(PARTS):
        return False
    return any((kind.field(at).metadata or {}).get(b"variant") == b"true" for at in range(kind.num_fields))


def _as_struct(array: pa.StructArray) -> pa.StructArray:
    children = [array.field(name) for name in PARTS]
    return pa.StructArray.from_arrays(children, names=PARTS, mask=array.is_null())
