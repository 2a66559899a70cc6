"""Runs in, files of decoded rows out: what `mapInArrow` calls where the rows are not wanted in Spark, but in tables.

A worker writes the rows itself (`udfs.parquet`); Spark only learns which files there are. A task that is tried again
writes files of other names, and those of the first try are in nobody's list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs

from udfs.decode import decode_runs
from udfs.parquet import ParquetFiles
from udfs.schemas import FRAMES

ARROW_WRITTEN = pa.schema([("folder", pa.string()), ("file", pa.string()), ("rows", pa.int64())])
WRITTEN = "folder string, file string, rows bigint"


@dataclass(frozen=True)
class WriteDecoded:
    """The function for `mapInArrow` over sorted runs -> WRITTEN. Rows of a kind go to a folder `kind=...` in
    `directory` of a file system that all workers reach; `payload` as for `decode_runs`."""

    filesystem: fs.FileSystem
    directory: str
    payload: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files: dict[str, ParquetFiles] = {}
        for rows in decode_runs(self.payload)(batches):
            if not rows.num_rows:
                continue
            folder = f"kind={rows['kind'][0].as_py()}"
            if folder not in files:
                files[folder] = ParquetFiles(self.filesystem, f"{self.directory}/{folder}", FRAMES)
            files[folder].write(rows.drop_columns(["kind"]))
        written = [(folder, *file.close()) for folder, file in files.items()]
        if written:
            columns = [list(column) for column in zip(*written, strict=True)]
            yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=ARROW_WRITTEN)
