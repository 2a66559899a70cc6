"""Fields of a VARIANT column as Arrow columns: `fields(column, {"queue": "string", "delivery_tag": "bigint"})`.

A field of another type than asked for is null, as is one that is not there. Octets that are no UTF-8 are handed on in a
string as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.variant.reading import (
    NUMBER,
    TEXT,
    TIME,
    TRUTH,
    Fields,
    count_elements,
    gather,
    new_fields,
    new_seen,
    read_elements,
    read_fields,
    read_values,
)
from udfs.arrow import TIMESTAMP, VARIANT

INT32 = np.iinfo(np.int32)
MICROS = 1_000_000
LAST_SECOND = np.iinfo(np.int64).max // MICROS


class Heap(NamedTuple):
    """Values of a binary column: octets, and where each begins and the last one ends, int64 (n + 1,)."""

    octets: NDArray[np.uint8]
    ends: NDArray[np.int64]


def heap_of(column: pa.Array) -> Heap:
    """Buffers of a binary or string column; null is nothing."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    octets = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    octets.flags.writeable = False
    return Heap(octets, ends)


def fields(column: pa.StructArray, wanted: Mapping[str, str]) -> dict[str, pa.Array]:
    """The `wanted` fields, name -> 'string' 'bigint' 'int' 'boolean' 'timestamp' 'variant', of a VARIANT column."""
    value, metadata = heap_of(column.field("value")), heap_of(column.field("metadata"))
    names = [name.encode() for name in wanted]
    keys = np.frombuffer(b"".join(names), np.uint8)
    key_ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    found = new_fields([kind == "variant" for kind in wanted.values()], len(column))
    read_fields(
        value.octets, value.ends, metadata.octets, metadata.ends, _present(column), keys, key_ends, new_seen(), found
    )
    return {name: _column(kind, found, k, value, metadata) for k, (name, kind) in enumerate(wanted.items())}


def elements(column: pa.StructArray) -> tuple[pa.StructArray, NDArray[np.int64]]:
    """The elements of the arrays of a VARIANT column, row after row, and how many each row has."""
    value, metadata = heap_of(column.field("value")), heap_of(column.field("metadata"))
    counts = np.zeros(len(column), np.int64)
    count_elements(value.octets, value.ends, _present(column), counts)
    places, sizes = np.zeros((2, int(counts.sum())), np.int64)
    read_elements(value.octets, value.ends, counts, places, sizes)
    there = np.ones(len(places), bool)
    row = np.repeat(np.arange(len(column)), counts)
    whole = taken(value.octets, places, sizes, there, nulls=False)
    words = taken(metadata.octets, metadata.ends[:-1][row], np.diff(metadata.ends)[row], there, nulls=False)
    return pa.StructArray.from_arrays([whole, words], fields=list(VARIANT), mask=pa.array(sizes == 0)), counts


def texts(column: pa.StructArray) -> pa.Array:
    """The texts of a VARIANT column; null where a value is none."""
    value, metadata = heap_of(column.field("value")), heap_of(column.field("metadata"))
    found = new_fields([False], len(column))
    read_values(value.octets, value.ends, _present(column), found)
    return _column("string", found, 0, value, metadata)


def _present(column: pa.Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(column.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)


def _column(kind: str, found: Fields, k: int, value: Heap, metadata: Heap) -> pa.Array:
    kinds, numbers = found.kinds[k], found.numbers[k]
    if kind == "string":
        return taken(value.octets, numbers, found.sizes[k], kinds == TEXT).view(pa.string())
    if kind == "boolean":
        return pa.array(numbers == 1, mask=kinds != TRUTH)
    if kind == "timestamp":
        # A number is seconds: what no timestamp of the wire's kind can hold, but Spark's can.
        seconds = (kinds == NUMBER) & (numbers <= LAST_SECOND) & (numbers >= -LAST_SECOND)
        return pa.array(np.where(seconds, numbers * MICROS, numbers), mask=~seconds & (kinds != TIME)).cast(TIMESTAMP)
    if kind == "variant":
        at, size = (part[found.whole_of[k]] for part in (found.whole_at, found.whole_size))
        there = size > 0
        whole = taken(value.octets, at, size, there, nulls=False)
        words = taken(metadata.octets, metadata.ends[:-1], np.diff(metadata.ends), there, nulls=False)
        return pa.StructArray.from_arrays([whole, words], fields=list(VARIANT), mask=pa.array(~there))
    is_number = kinds == NUMBER
    if kind == "int":
        is_number = is_number & (numbers >= INT32.min) & (numbers <= INT32.max)
    return pa.array(numbers, mask=~is_number).cast(pa.int32() if kind == "int" else pa.int64(), safe=False)


def taken(
    octets: NDArray[np.uint8],
    places: NDArray[np.int64],
    sizes: NDArray[np.signedinteger],
    valid: NDArray[np.bool_],
    nulls: bool = True,
) -> pa.Array:
    """Binary column of the octets at `places`; null, or without `nulls` empty, where they are not `valid`."""
    sizes = np.where(valid, sizes.astype(np.int64, copy=False), 0)
    offsets = offsets_of(sizes)
    data = np.empty(int(offsets[-1]), np.uint8)
    gather(octets, np.ascontiguousarray(places), sizes, data)
    mask = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(pa.binary(), len(sizes), [mask, pa.py_buffer(offsets), pa.py_buffer(data)])


def offsets_of(sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Where values of these sizes begin, and the last one ends. Raises OverflowError above 2 GB."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    if ends[-1] > INT32.max:
        raise OverflowError(f"{ends[-1]} bytes are too many for one column of a batch")
    return ends.astype(np.int32)


def gathered(parts: pa.Array, sizes: NDArray[np.int64], valid: NDArray[np.bool_]) -> pa.Array:
    """Binary column whose values are `sizes` octets each of `parts` end to end; null where they are not `valid`."""
    heap = heap_of(parts)
    offsets = offsets_of(sizes)
    data = heap.octets[heap.ends[0] : heap.ends[-1]]
    mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [mask, pa.py_buffer(offsets), pa.py_buffer(data)])
