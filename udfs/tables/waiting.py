"""Rows that wait until they are final: in memory while they are few, then in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from codec.conversation.settled import Frames
from udfs.arrow.rows import numbers_of, places_where
from udfs.arrow.spool import Spool

# More than makes `udfs.tables.conversation` look for final rows: what is released soon need not be written.
MEMORY_BYTES = 48 << 20


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
        """Whether so many rows were added that final ones should be looked for."""
        return self.bytes > max(most, self.left)

    def release(
        self, outstanding: Frames, ended: Callable[[pa.RecordBatch], pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """All rows, as `ended` makes them, but those whose frames are `outstanding`."""
        rows, self._rows = self._rows, Spool(MEMORY_BYTES)
        self.bytes = self.left = 0
        for batch in rows.drain():
            stays = outstanding.among(numbers_of(batch["connection_id"]), numbers_of(batch[self._frame]))
            if stays.any():
                kept = batch.take(places_where(stays))
                self._rows.add(kept)
                self.left += kept.nbytes
                batch = batch.take(places_where(~stays))
            if batch.num_rows:
                yield ended(batch)

    def rows(self, schema: pa.Schema) -> pa.Table:
        """The waiting rows, which stay, in columns of `schema`: without dictionary encoding."""
        batches = list(self._rows.drain())
        for batch in batches:
            self._rows.add(batch)
        return pa.Table.from_batches([batch.select(schema.names).cast(schema) for batch in batches], schema)
