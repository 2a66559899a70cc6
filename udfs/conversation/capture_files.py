"""Capture files as numbers, which kernels and states have instead of their names: a hash of the name, so that it is the
same in each process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.arrow.rows import codes_of, in_one

HASH_BYTES = 8
_NAMES: dict[int, str] = {}
_NUMBERS: dict[str, int] = {}


def number_of(name: str) -> int:
    """The number of a capture file, not below 0."""
    found = _NUMBERS.get(name)
    if found is None:
        digest = hashlib.sha256(name.encode()).digest()[:HASH_BYTES]
        found = _NUMBERS[name] = int.from_bytes(digest, "big") >> 1
        _NAMES[found] = name
    return found


def numbers_of_files(column: pa.Array) -> NDArray[np.int64]:
    """The number of each name; -1 for null."""
    names = in_one(column)
    encoded = names if pa.types.is_dictionary(names.type) else names.dictionary_encode()
    known = np.array([*map(number_of, encoded.dictionary.to_pylist()), -1], np.int64)
    found: NDArray[np.int64] = known.take(codes_of(encoded), mode="wrap")
    return found


def names_of(numbers: NDArray[np.int64]) -> pa.StringArray:
    """The name that each number stands for; null for -1."""
    distinct, index = np.unique(numbers, return_inverse=True)
    return pa.array([_NAMES.get(number) for number in distinct.tolist()], pa.string()).take(pa.array(index))


def remember(names: Iterable[str]) -> None:
    """Know the numbers of these files."""
    for name in names:
        number_of(name)
