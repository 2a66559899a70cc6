"""Hashes of rows over Arrow columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.hashes.rows import mix_numbers, mix_texts, new_lanes
from codec.memory import fixed
from udfs.arrow.fields import heap_of
from udfs.arrow.rows import numbers_of


def hashed(*columns: pa.Array, seed: int = 0) -> NDArray[np.int64]:
    """A hash of each row over all columns (texts, integers; null is a value)."""
    lanes = new_lanes(len(columns[0]), seed)
    for column in columns:
        present = np.ascontiguousarray(column.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)
        if pa.types.is_integer(column.type):
            mix_numbers(fixed(numbers_of(column)), present, lanes)
        else:
            heap = heap_of(column)
            mix_texts(heap.octets, heap.ends, present, lanes)
    columns_mixed = np.full(len(lanes), len(columns))
    mix_numbers(fixed(columns_mixed), np.ones(len(lanes), np.uint8), lanes)  # mixes in the last column
    return in_one_number(lanes)


def in_one_number(lanes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The two 32-bit halves of each hash (n, 2) as one number."""
    low, high = lanes.T.astype(np.uint64)
    whole: NDArray[np.int64] = (high << np.uint64(32) | low).view(np.int64)
    return whole
