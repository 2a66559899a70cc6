"""Small helpers for rows in Arrow: joined, picked, looked at as numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.amqp.notes import note_names
from codec.amqp.versions import E_MISSING_VALUES, ERRORS
from udfs.arrow.dictionaries import missing

Column = Any  # pa.Array or pa.ChunkedArray; texts may be coded as words of a dictionary
MOST_KNOWN = 1 << 10
_KNOWN_WORDS: dict[tuple[int, int, int, int, tuple[str, ...]], tuple[pa.StringArray, NDArray[np.bool_]]] = {}


def places_of(connections: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of rows of connections that follow each other: the 0-based ordinal of the connection that each row is of."""
    changes = np.diff(connections, prepend=connections[:1]) != 0
    places: NDArray[np.int64] = np.cumsum(changes)
    return places


def connections_of(connections: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of rows of connections that follow each other: the connections, and where the rows of each end; the latter
    `fixed`."""
    last = np.flatnonzero(np.append(np.diff(connections) != 0, True)) if len(connections) else np.zeros(0, np.int64)
    return connections[last], fixed(last + 1)


def numbers_of(column: Column) -> NDArray[np.int64]:
    """A column of integers; null is 0."""
    numbers: NDArray[np.int64] = _filled(column, 0).to_numpy().astype(np.int64, copy=False)
    return numbers


def fixed(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values, never writeable: kernels are compiled for one kind of array."""
    values = np.ascontiguousarray(values)
    values.flags.writeable = False
    return values


def integers(column: Column, null: int = 0) -> NDArray[np.int64]:
    """A column of numbers or booleans, null as `null`; `fixed`."""
    numbers = column if column.type == pa.int64() else column.cast(pa.int64())
    return fixed(_filled(in_one(numbers), null).to_numpy(zero_copy_only=False))


def elapsed(since: Column, until: Column) -> Column:
    """Nanoseconds between two moments; null where the later one was captured first: how long it took is not known."""
    time = pc.subtract(until, since)
    return pc.if_else(pc.greater_equal(time, 0), time, None)


def one_of(column: Column, values: Collection[str]) -> pa.BooleanArray:
    """True where a column of texts is one of `values`; null is none of them."""
    return pc.is_in(in_one(column), pa.array(values, pa.string()))


def is_among(column: Column, *values: str) -> NDArray[np.bool_]:
    """`one_of`, once by word where texts are coded as words."""
    texts = in_one(column)
    if not pa.types.is_dictionary(texts.type):
        return truth_of(one_of(texts, values))
    found: NDArray[np.bool_] = _words_among(texts.dictionary, values).take(codes_of(texts), mode="wrap")
    return found


def _words_among(dictionary: pa.StringArray, values: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which words of a dictionary are among `values`; the last one, which is null, is not. The decoder's dictionaries
    are always the same, so answers are remembered, with the dictionaries, by their address."""
    _, offsets, octets = dictionary.buffers()
    key = (offsets.address, octets.address if octets else 0, dictionary.offset, len(dictionary), values)
    known = _KNOWN_WORDS.get(key)
    if known is None:
        if len(_KNOWN_WORDS) >= MOST_KNOWN:
            _KNOWN_WORDS.clear()
        known = dictionary, np.append(truth_of(one_of(dictionary, values)), False)
        _KNOWN_WORDS[key] = known
    return known[1]


def numbered(column: Column, values: Collection[str]) -> NDArray[np.int64]:
    """Which of `values` each text is, from 1 on; 0 for none of them."""
    texts, known = in_one(column), pa.array(values, pa.string())
    if not pa.types.is_dictionary(texts.type):
        return integers(pc.add(pc.index_in(texts, known).cast(pa.int64()), 1))
    words = np.append(integers(pc.add(pc.index_in(texts.dictionary, known).cast(pa.int64()), 1)), 0)
    found: NDArray[np.int64] = words.take(codes_of(texts), mode="wrap")
    return found


def is_noted(notes: Column, note: int) -> NDArray[np.bool_]:
    """Which rows have a note (of codec.amqp.notes) among their names."""
    lists = in_one(notes)
    found = np.zeros(len(lists), bool)
    if lists.null_count < len(lists):
        names = note_names(note) or []
        found[numbers_of(pc.list_parent_indices(lists))[is_among(pc.list_flatten(lists), *names)]] = True
    return found


def codes_of(texts: pa.DictionaryArray) -> NDArray[np.int32]:
    """Which word each text is; -1 for null."""
    codes: NDArray[np.int32] = _filled(texts.indices, -1).to_numpy()
    return codes


def _filled(column: Column, value: int) -> Column:
    """The column, null as `value`."""
    return column.fill_null(value) if column.null_count else column


def is_there(column: Column) -> NDArray[np.bool_]:
    """Where a column is not null."""
    there = in_one(column)
    return truth_of(there.is_valid()) if there.null_count else np.ones(len(there), bool)


def places_where(marks: NDArray[np.bool_]) -> pa.Int64Array:
    """The places that are marked: for `take`, which is faster than `filter`."""
    return pa.array(np.flatnonzero(marks))


def truth_of(marks: pa.BooleanArray) -> NDArray[np.bool_]:
    """A column of truth values; null is not true."""
    truth: NDArray[np.bool_] = _filled(marks, False).to_numpy(zero_copy_only=False)
    return truth


def in_one(column: Column) -> pa.Array:
    """A column in one piece."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def joined(first: pa.Table | None, then: pa.Table | pa.RecordBatch | None) -> pa.Table | None:
    """The rows of both."""
    tables = [
        pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
        for part in (first, then)
        if part is not None
    ]
    return pa.concat_tables(tables) if tables else None


def picked(column: Column, places: NDArray[np.int64]) -> pa.Array:
    """The values at `places`; null where that is negative."""
    return _with_parts(in_one(column).take(pa.array(places, mask=missing(places))))


def with_parts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as Spark hands them over -> the same, VARIANT columns as all here expect them."""
    columns = [_with_parts(column) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _with_parts(column: pa.Array) -> pa.Array:
    """Under a null the parts of a VARIANT may be null, too, which they must not be."""
    if not pa.types.is_struct(column.type):
        return column
    if not column.null_count:
        return column
    parts = [column.field(i).fill_null(b"") for i in range(column.type.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=list(column.type), mask=column.is_null())


class Index:
    """Finds frames of connections among given ones; numbers of frames are not negative."""

    def __init__(self, connections: NDArray[np.int64], frames: NDArray[np.int64]) -> None:
        self._connections = np.unique(connections)
        self._most = int(frames.max()) + 1 if len(frames) else 1
        keys = self._keys(connections, frames)
        self._order = np.argsort(keys, kind="stable")
        self._keys_in_order = keys[self._order]

    def find(self, connections: NDArray[np.int64], frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each frame of a connection is among the given ones; -1 where it is not."""
        if not len(self._order):
            return np.full(len(frames), -1)
        keys = self._keys(connections, frames)
        place = np.minimum(np.searchsorted(self._keys_in_order, keys), len(self._order) - 1)
        found: NDArray[np.int64] = np.where(self._keys_in_order[place] == keys, self._order[place], -1)
        return found

    def _keys(self, connections: NDArray[np.int64], frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """A number for each frame, negative where none of the given ones can be it."""
        if not len(self._connections):
            return np.full(len(frames), -1)
        place = np.minimum(np.searchsorted(self._connections, connections), len(self._connections) - 1)
        known = (self._connections[place] == connections) & (frames < self._most)
        keys: NDArray[np.int64] = np.where(known, place * self._most + frames, -1)
        return keys


def values_cut(frames: pa.RecordBatch) -> NDArray[np.bool_]:
    """Which frames (with `status`, `error`) lost bytes of their arguments, so that those which are there say little:
    the range of an acknowledgement may be missing, or that there is one."""
    cut: NDArray[np.bool_] = is_among(frames["status"], "partial")
    if cut.any():
        cut &= is_among(frames["error"], str(ERRORS[E_MISSING_VALUES]))
    return cut
