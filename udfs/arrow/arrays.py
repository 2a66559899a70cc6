"""Columns of Arrow rows as numpy arrays, and rows joined, picked and looked up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.hashes.maps import Pairs
from codec.memory import as_kernel_array
from udfs.arrow.types import TIMESTAMP, missing, nulls, without_null_children

Column = Any  # pa.Array or pa.ChunkedArray; texts may be dictionary-encoded
MOST_CACHED = 1 << 10
_CACHED_MATCHES: dict[tuple[int, int, int, int, tuple[str, ...]], tuple[pa.StringArray, NDArray[np.bool_]]] = {}


def connection_ordinals(connections: NDArray[np.int64]) -> NDArray[np.int64]:
    """The 0-based ordinal of the connection of each row; the rows of a connection are consecutive."""
    changes = np.diff(connections, prepend=connections[:1]) != 0
    indices: NDArray[np.int64] = np.cumsum(changes)
    return indices


def connections_of(connections: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The connections of rows, and where the rows of each end (`fixed`); the rows of a connection are consecutive."""
    last = np.flatnonzero(np.append(np.diff(connections) != 0, True)) if len(connections) else np.zeros(0, np.int64)
    return connections[last], as_kernel_array(last + 1)


def equal_runs(numbers: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Where each stretch of equal numbers begins and ends."""
    changes = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    return pairwise([0, *changes.tolist(), len(numbers)] if len(numbers) else [])


def batch_groups(
    batches: Iterable[pa.RecordBatch], most_bytes: int, most: int | None = None
) -> Iterator[list[pa.RecordBatch]]:
    """Batches in groups, each of which ends when it has so many bytes, or `most` batches."""
    group, size = list[pa.RecordBatch](), 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if size >= most_bytes or len(group) == most:
            yield group
            group, size = [], 0
    if group:
        yield group


def to_int64(column: Column, null: int = 0) -> NDArray[np.int64]:
    """A column of numbers or booleans, null as `null`; `fixed`."""
    numbers = column if column.type == pa.int64() else column.cast(pa.int64())
    return as_kernel_array(_filled(combine_chunks(numbers), null).to_numpy(zero_copy_only=False))


def elapsed(since: Column, until: Column) -> Column:
    """Nanoseconds between two times; null if the later one was captured first."""
    time = pc.subtract(until, since)
    return pc.if_else(pc.greater_equal(time, 0), time, None)


def is_one_of(column: Column, values: Collection[str]) -> pa.BooleanArray:
    """True where a text is one of `values`; false for null."""
    return pc.is_in(combine_chunks(column), pa.array(values, pa.string()))


def is_in(column: Column, *values: str) -> NDArray[np.bool_]:
    """`one_of`; once per distinct text if texts are dictionary-encoded."""
    texts = combine_chunks(column)
    if not pa.types.is_dictionary(texts.type):
        return to_mask(is_one_of(texts, values))
    found: NDArray[np.bool_] = _matches(texts.dictionary, values).take(codes_of(texts), mode="wrap")
    return found


def _matches(dictionary: pa.StringArray, values: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which texts of a dictionary are among `values`; the last entry, for null, is false. Results are cached by the
    address of the dictionary, which is retained: those of the decoder are always the same."""
    _, offsets, data = dictionary.buffers()
    key = (offsets.address, data.address if data else 0, dictionary.offset, len(dictionary), values)
    known = _CACHED_MATCHES.get(key)
    if known is None:
        if len(_CACHED_MATCHES) >= MOST_CACHED:
            _CACHED_MATCHES.clear()
        known = dictionary, np.append(to_mask(is_one_of(dictionary, values)), False)
        _CACHED_MATCHES[key] = known
    return known[1]


def index_in(column: Column, values: Collection[str]) -> NDArray[np.int64]:
    """The 1-based index of each text in `values`; 0 if it is not there."""
    texts, known = combine_chunks(column), pa.array(values, pa.string())
    if not pa.types.is_dictionary(texts.type):
        return to_int64(pc.index_in(texts, known), null=-1) + 1
    indices = np.append(to_int64(pc.index_in(texts.dictionary, known), null=-1), -1) + 1
    found: NDArray[np.int64] = indices.take(codes_of(texts), mode="wrap")
    return found


def codes_of(texts: pa.DictionaryArray) -> NDArray[np.int32]:
    """The dictionary index of each text; -1 for null."""
    codes: NDArray[np.int32] = _filled(texts.indices, -1).to_numpy()
    return codes


def _filled(column: Column, value: int) -> Column:
    return column.fill_null(value) if column.null_count else column


def is_valid(column: Column) -> NDArray[np.bool_]:
    """Where a column is not null."""
    there = combine_chunks(column)
    return to_mask(there.is_valid()) if there.null_count else np.ones(len(there), bool)


def with_columns(rows: pa.RecordBatch, columns: Mapping[str, Column]) -> pa.RecordBatch:
    """The rows with these columns replaced."""
    arrays = [columns.get(name, rows[name]) for name in rows.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def concat_ws(parts: Sequence[Column], between: str) -> Column:
    """The texts of each row that are not null, joined; null instead of ''. (Arrow's `null_handling="skip"` drops rows
    without any, which shifts the others.)"""
    text = parts[0]
    for part in parts[1:]:
        text = pc.coalesce(pc.binary_join_element_wise(text, part, between), text, part)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def timestamps(nanoseconds: pa.Array) -> pa.Array:
    """Nanoseconds since 1970-01-01 UTC as TIMESTAMP, microseconds, rounded down."""
    whole = np.floor_divide(nanoseconds.fill_null(0).to_numpy(zero_copy_only=False), 1000)
    return pa.array(whole, mask=nanoseconds.is_null().to_numpy(zero_copy_only=False)).cast(TIMESTAMP)


def indices_where(marks: NDArray[np.bool_]) -> pa.Int64Array:
    """Indices of the marked rows: for `take`, which is faster than `filter`."""
    return pa.array(np.flatnonzero(marks))


def to_mask(marks: pa.BooleanArray) -> NDArray[np.bool_]:
    """A column of booleans; null is false."""
    truth: NDArray[np.bool_] = _filled(marks, False).to_numpy(zero_copy_only=False)
    return truth


def combine_chunks(column: Column) -> pa.Array:
    """A column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def concat_rows(first: pa.Table | None, then: pa.Table | pa.RecordBatch | None) -> pa.Table | None:
    """The rows of both."""
    tables = [
        pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
        for part in (first, then)
        if part is not None
    ]
    return pa.concat_tables(tables) if tables else None


def take_or_null(column: Column, indices: NDArray[np.int64]) -> pa.Array:
    """The values at `indices`; null where that is negative."""
    return _whole(take(combine_chunks(column), pa.array(indices, mask=missing(indices))))


def take(column: pa.Array, indices: pa.Int64Array) -> pa.Array:
    """The values at `indices`. Half of the columns of most batches have only nulls, which Arrow takes one by one."""
    if column.null_count < len(column) or pa.types.is_dictionary(column.type):
        return column.take(indices)
    return nulls(len(indices), column.type)


def from_spark(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, without null children in VARIANT columns."""
    return pa.RecordBatch.from_arrays([_whole(column) for column in rows.columns], names=rows.schema.names)


def _whole(column: pa.Array) -> pa.Array:
    return without_null_children(column) if pa.types.is_struct(column.type) and column.null_count else column


class Index(Pairs):
    """Finds frames by (connection, frame number)."""

    @classmethod
    def of(cls, rows: pa.Table | pa.RecordBatch, frame: str = "frame_no") -> Index:
        """Of the frames that columns `connection_id` and `frame` name."""
        return cls(to_int64(rows["connection_id"]), to_int64(rows[frame]))
