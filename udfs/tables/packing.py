"""Arrow tables of many connections as parts of their states (`codec.packing`): column by column, for all connections at
once.

    save_table(table, schema, ids, writer)       # rows by their column `connection_id`
    table = restore_table(schema, reader)
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation.states import places
from codec.packing import Reader, Writer
from udfs.arrow.fields import heap_of
from udfs.arrow.rows import in_one, is_there, numbers_of
from udfs.conversation.states import LENGTHS, OCTETS, sums

Integers = NDArray[np.int64]
TRUTH = np.dtype("u1")
KEY = "connection_id"


def digest(layout: Any) -> bytes:
    """A digest of all that the meaning of the parts depends on."""
    return hashlib.sha256(json.dumps(layout, default=repr).encode()).digest()[:8]


def save_table(table: pa.Table | None, schema: pa.Schema, ids: Integers, writer: Writer) -> None:
    """Write the rows of these connections; `schema`: that of the table without dictionary encoding."""
    if table is None or not table.num_rows:
        writer.put(np.zeros(len(ids), LENGTHS), np.ones(len(ids), np.int64))
        return
    place = places(ids, numbers_of(table[KEY]))
    order = np.argsort(place, kind="stable")
    order = order[np.count_nonzero(place < 0) :]
    counts = np.bincount(place[order], minlength=len(ids)).astype(np.int64)
    writer.put(counts.astype(LENGTHS), np.ones(len(ids), np.int64))
    if len(order):
        rows = table.select(schema.names).take(pa.array(order))
        for field in schema:
            column = in_one(rows[field.name])
            _put(column if column.type == field.type else column.cast(field.type), counts, writer)


def restore_table(schema: pa.Schema, reader: Reader) -> pa.Table:
    """What `save_table` wrote."""
    counts = reader.take(LENGTHS, np.ones(reader.connections, np.int64)).astype(np.int64)
    if not counts.any():
        return schema.empty_table()
    return pa.table([_take(field, counts, reader) for field in schema], schema=schema)


def _put(column: pa.Array, counts: Integers, writer: Writer) -> None:
    kind = column.type
    writer.put(is_there(column).astype(TRUTH), counts)
    if pa.types.is_struct(kind):
        for part in column.flatten():
            _put(part, counts, writer)
    elif pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(LENGTHS)
        writer.put(lengths, counts)
        _put(column.flatten(), sums(lengths, counts), writer)
    elif _is_octets(kind):
        heap = heap_of(column)
        lengths = np.diff(heap.ends).astype(LENGTHS)
        writer.put(lengths, counts)
        writer.put(heap.octets[heap.ends[0] : heap.ends[-1]], sums(lengths, counts))
    else:
        values = column.view(pa.int64()) if pa.types.is_timestamp(kind) else column
        values = values.fill_null(False if pa.types.is_boolean(kind) else 0)
        writer.put(values.to_numpy(zero_copy_only=False).astype(_fixed(kind), copy=False), counts)


def _take(field: pa.Field, counts: Integers, reader: Reader) -> pa.Array:
    kind, there = field.type, reader.take(TRUTH, counts).astype(bool)
    mask = None if there.all() else pa.array(~there)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_take(part, counts, reader) for part in kind], fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        lengths = reader.take(LENGTHS, counts)
        items = _take(kind.value_field, sums(lengths, counts), reader)
        ends = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
        return pa.ListArray.from_arrays(ends, items, type=kind, mask=mask)
    valid = pa.py_buffer(np.packbits(there, bitorder="little")) if mask is not None and field.nullable else None
    if _is_octets(kind):
        lengths = reader.take(LENGTHS, counts)
        octets = reader.take(OCTETS, sums(lengths, counts))
        ends = np.append(0, np.cumsum(lengths)).astype(np.int32)
        return pa.Array.from_buffers(kind, len(there), [valid, pa.py_buffer(ends), pa.py_buffer(octets)])
    values = reader.take(_fixed(kind), counts)
    if pa.types.is_boolean(kind):
        return pa.array(values.astype(bool), mask=~there)
    return pa.Array.from_buffers(kind, len(there), [valid, pa.py_buffer(values)])


def _is_octets(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _fixed(kind: pa.DataType) -> np.dtype[Any]:
    """How values of a type without a size of their own are written."""
    if pa.types.is_boolean(kind):
        return TRUTH
    return np.dtype(np.int64 if pa.types.is_timestamp(kind) else kind.to_pandas_dtype())
