"""Small helpers for rows in Arrow: joined, picked, looked at as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Column = Any  # pa.Array or pa.ChunkedArray


def places_of(connections: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of rows of connections that follow each other: the how manieth connection each is of, from 0 on."""
    changes = np.diff(connections, prepend=connections[:1]) != 0
    places: NDArray[np.int64] = np.cumsum(changes)
    return places


def numbers_of(column: Column) -> NDArray[np.int64]:
    """A column of integers; null is 0."""
    numbers: NDArray[np.int64] = column.fill_null(0).to_numpy().astype(np.int64, copy=False)
    return numbers


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
    taken = in_one(column).take(pa.array(places, mask=places < 0))
    if not pa.types.is_struct(taken.type):
        return taken
    # Under a null the parts of a VARIANT are null by now, too, which they must not be.
    parts = [taken.field(i).fill_null(b"") for i in range(taken.type.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=list(taken.type), mask=taken.is_null())


def matched(
    connections: NDArray[np.int64],
    frames: NDArray[np.int64],
    of_connections: NDArray[np.int64],
    of_frames: NDArray[np.int64],
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """For each frame of a connection, whether it is among the second ones, and where; numbers of frames are not
    negative."""
    count = len(connections)
    if not count or not len(of_connections):
        return np.zeros(count, bool), np.zeros(count, np.int64)
    _, numbered = np.unique(np.concatenate([connections, of_connections]), return_inverse=True)
    highest = int(max(frames.max(), of_frames.max())) + 1
    wanted, there = numbered[:count] * highest + frames, numbered[count:] * highest + of_frames
    order = np.argsort(there, kind="stable")
    at = order[np.minimum(np.searchsorted(there, wanted, sorter=order), len(order) - 1)]
    return there[at] == wanted, at
