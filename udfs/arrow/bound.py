"""Columns bound to the schema of their table by name: one that is missing or unknown raises."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

from codec.errors import WirehareError
from udfs.arrow.types import nulls


class ColumnError(WirehareError, ValueError):
    """Columns that are not those of their table."""


def bound(columns: Mapping[str, pa.Array], schema: pa.Schema, absent: Collection[str] = ()) -> pa.RecordBatch:
    """`columns` in the order and of the types of `schema`; those `absent` are null. Dictionaries of texts stay."""
    known, twice = set(columns) | set(absent), set(columns) & set(absent)
    if known != set(schema.names) or twice:
        missing, unknown = sorted(set(schema.names) - known), sorted(known - set(schema.names))
        raise ColumnError(f"columns missing: {missing}, not in the table: {unknown}, not absent: {sorted(twice)}")
    count = len(next(iter(columns.values())))
    arrays = [
        _of_type(columns[field.name], field.type) if field.name in columns else nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


def _of_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type == kind or (pa.types.is_dictionary(column.type) and column.type.value_type == kind):
        return column
    return column.cast(kind)
