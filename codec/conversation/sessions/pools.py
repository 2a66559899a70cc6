"""Growing pools of records: those of connections that have ended first, then those of the connection at hand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel

COUNT, FIRST = range(2)  # cells: how many records there are; the first one of the connection at hand


class Pool(NamedTuple):
    """`rows`: a record array with room for more than there are; `cells` int64 (2,)."""

    rows: np.ndarray
    cells: np.ndarray


def new_pool(kind: np.dtype) -> Pool:
    """A pool without records."""
    return Pool(np.zeros(0, kind).view(np.recarray), np.zeros(2, np.int64))


def longer(pool: Pool, more: int) -> Pool:
    """`pool` with room for so many more records."""
    used = int(pool.cells[COUNT])
    if used + more <= len(pool.rows):
        return pool
    rows = np.zeros(2 * used + more, pool.rows.dtype)
    rows[:used] = pool.rows[:used]
    return Pool(rows.view(np.recarray), pool.cells)


def ended(pool: Pool) -> np.ndarray:
    """The records of connections that have ended, which are forgotten."""
    first, count = int(pool.cells[FIRST]), int(pool.cells[COUNT])
    records = np.array(pool.rows[:first])
    if first:
        pool.rows[: count - first] = pool.rows[first:count].copy()
    pool.cells[:] = count - first, 0
    return records


def kept(pool: Pool, chosen: np.ndarray) -> None:
    """Only the `chosen` records of the connection at hand are kept; there are none of others."""
    count = int(pool.cells[COUNT])
    rows = pool.rows[:count][chosen]
    pool.rows[: len(rows)] = rows
    pool.cells[COUNT] = len(rows)


@kernel
def new_record(pool):
    """The place of a new record, whose fields are as another one may have left them."""
    at = pool.cells[COUNT]
    pool.cells[COUNT] += 1
    return at
