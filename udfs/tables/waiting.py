"""Rows that wait until nothing that is said later changes them: in memory while they are few, then in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.arrow.rows import joined, numbers_of
from udfs.arrow.spool import Spool

Integers = NDArray[np.int64]
MEMORY_BYTES = 32 << 20


class Waiting:
    """Rows of one table, each known by its connection and the frame in column `frame`."""

    def __init__(self, frame: str) -> None:
        self._frame = frame
        self._rows = Spool(MEMORY_BYTES)
        self.bytes = 0  # of those that came since the last `release`
        self.left = 0  # of those that stayed then

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows."""
        if rows.num_rows:
            self._rows.add(rows)
            self.bytes += rows.nbytes

    def is_large(self, most: int) -> bool:
        """Whether so many came that it is worth while to look at all."""
        return self.bytes > max(most, self.left)

    def release(
        self, goes_on: int | None, outstanding: Integers, ended: Callable[[pa.RecordBatch], pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """All rows, as `ended` makes them, but those of connection `goes_on` whose frames are `outstanding`, which is
        in order."""
        rows, self._rows = self._rows, Spool(MEMORY_BYTES)
        self.bytes = self.left = 0
        for batch in rows.drain():
            stays = np.zeros(batch.num_rows, bool)
            if goes_on is not None and len(outstanding):
                frames = numbers_of(batch[self._frame])
                at = np.minimum(np.searchsorted(outstanding, frames), len(outstanding) - 1)
                stays = (outstanding[at] == frames) & (numbers_of(batch["connection_id"]) == goes_on)
            if stays.any():
                kept = batch.filter(pa.array(stays))
                self._rows.add(kept)
                self.left += kept.nbytes
                batch = batch.filter(pa.array(~stays))
            if batch.num_rows:
                yield ended(batch)

    def put_down(self) -> pa.Table | None:
        """The rows that wait; they still do."""
        table = None
        batches = list(self._rows.drain())
        for batch in batches:
            self._rows.add(batch)
            table = joined(table, batch)
        return table

    def take_up(self, rows: pa.Table | None) -> None:
        """Rows that were put down."""
        for batch in rows.combine_chunks().to_batches() if rows is not None else ():
            self.add(batch)
