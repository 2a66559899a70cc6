"""Rows of `codec.stalls` as Arrow rows (`codec.tables.STALL`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec import stalls as S
from codec.names import SIDES
from codec.tables import STALL
from udfs.arrow.arrays import codes_of, combine_chunks
from udfs.arrow.types import arrow_schema, nullable

# Capture files as numbers, which kernels and states have instead of their names: a hash of the name, so that it is the
# same in each process.


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
    names = combine_chunks(column)
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


ARROW_STALLS = arrow_schema(STALL)
Integers = NDArray[np.int64]


def stall_rows(rows: Integers, files: Sequence[str] | None = None, links: pa.Array | None = None) -> pa.RecordBatch:
    """Rows of `codec.stalls` (n, CELLS) as STALL. `files`: capture files by number; None: numbers are those of
    `udfs.decode.stall_rows`. `links`: names of the links of these rows."""
    file = np.ascontiguousarray(rows[:, S.FILE])
    columns = {
        "connection_id": pa.array(np.ascontiguousarray(rows[:, S.CONNECTION])),
        "channel": _cells(rows, S.CHANNEL),
        "channel_incarnation": _cells(rows, S.INCARNATION),
        "link": pa.nulls(len(rows), pa.string()) if links is None else links,
        "kind": pa.array(S.KINDS).take(pa.array(rows[:, S.KIND])),
        "side": pa.array(SIDES).take(pa.array(rows[:, S.SIDE])),
        "from_ns": pa.array(np.ascontiguousarray(rows[:, S.FROM])),
        "until_ns": _cells(rows, S.UNTIL),
        "stall_ns": pa.array(np.ascontiguousarray(rows[:, S.LASTED])),
        "resumed": pa.array(rows[:, S.RESUMED] == 1),
        "bytes": _cells(rows, S.BYTES),
        "frame_no": _cells(rows, S.FRAME),
        "packet_no": _cells(rows, S.PACKET),
        "capture_file": names_of(file) if files is None else pa.array(files, pa.string()).take(nullable(file)),
        "since_ns": _cells(rows, S.SINCE),
    }
    return stall_batch(columns)


def stall_batch(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """STALL of some columns; the others are null."""
    count = len(columns["connection_id"])
    arrays = [
        combine_chunks(columns[field.name]).cast(field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in ARROW_STALLS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_STALLS)


def _cells(rows: Integers, cell: int) -> pa.Array:
    return nullable(np.ascontiguousarray(rows[:, cell]))
