"""A queue of batches: in memory up to a limit, beyond it in a temporary file."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterator
from typing import IO

import pyarrow as pa

# Where Spark lets its Python workers spill.
LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"


class Spool:
    """Stores batches of one schema; `drain` returns them in order. The last `most` bytes at most stay in memory."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._batches: deque[pa.RecordBatch] = deque()
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._bytes += batch.nbytes
        while self._bytes > self._most:
            self._spill(self._batches.popleft())

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Return and remove all batches."""
        file, writer, batches = self._file, self._writer, self._batches
        self._file, self._writer, self._batches, self._bytes = None, None, deque(), 0
        if file is not None and writer is not None:
            with file:
                writer.close()
                file.seek(0)
                yield from pa.ipc.open_stream(file)
        yield from batches

    def _spill(self, oldest: pa.RecordBatch) -> None:
        if self._writer is None:
            directory = os.environ.get(LOCAL_DIRECTORIES, "").split(",")[0]
            self._file = tempfile.TemporaryFile(  # noqa: SIM115  (closed by `drain`, or with the spool)
                dir=directory if os.path.isdir(directory) else None
            )
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer = pa.ipc.new_stream(self._file, oldest.schema, options=options)
        self._writer.write_batch(oldest)
        self._bytes -= oldest.nbytes
