"""Runs in, files out: what `mapInArrow` calls where decoded rows are not wanted in Spark, but in tables.

A worker writes the rows itself (`udfs.parquet`), and beside them what follows from the frames of one connection; Spark
only learns which files there are. A task that is tried again writes files of other names; who reads them goes by the
list, not by what is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs
from pyspark.sql.types import StructType

from udfs.counting import COUNTED, Counts
from udfs.decode import decode_runs
from udfs.fields import fields
from udfs.methods import Methods
from udfs.parquet import write_folders
from udfs.parts import FRAME_COUNTS, METHODS, REQUESTS, SAID, STREAM_QUEUES, Parts
from udfs.past import Past, Recipe
from udfs.rows import is_among, is_there, places_where
from udfs.schemas import DECODED, FRAMES, columns
from udfs.streams import STREAMS, Streams

# Folders of decoded rows by kind; all other parts have their own name.
DECODED_OF = {kind: f"decoded/kind={kind}" for kind in ("frame", "connection", "capture")}
# Their columns; what is not among them is null.
OF_KIND = {
    "frame": FRAMES,
    "connection": columns(DECODED, "connection_id", "ts", "ts_ns", "version", "version_known", "facts"),
    "capture": columns(DECODED, "capture_file", "arguments"),
}


@dataclass(frozen=True)
class WriteTables:
    """The function for `mapInArrow` over sorted runs -> WRITTEN (`udfs.parquet`). Files go to folders in `directory` of
    a file system that all workers reach; `payload` as for `decode_runs`; `arguments`: what is read of those of methods,
    by name and type; `said`: frames of part SAID, by name or else by type; `counts`, `methods`, `past`, `streams`:
    None where these files are not wanted."""

    filesystem: fs.FileSystem
    directory: str
    payload: bool
    arguments: dict[str, str]
    said: tuple[str, ...]
    counts: Counts | None
    methods: Methods | None
    past: Recipe | None
    streams: Streams | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.write(decode_runs(self.payload, coded=True)(batches))

    def write(self, decoded: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decoded rows, batches of one kind each, connection after connection -> WRITTEN."""
        return write_folders(self.filesystem, self.directory, self._rows(decoded), self._schema)

    def _rows(self, decoded: Iterator[pa.RecordBatch]) -> Parts:
        """Folder, rows for it."""
        past = self.past and Past(self.past)
        for rows in decoded:
            if not rows.num_rows:
                continue
            kind = rows["kind"][0].as_py()
            rows = rows.select(OF_KIND[kind].names)
            yield DECODED_OF[kind], rows
            if kind != "frame":
                continue
            if self.said:
                said = self._says(rows)
                if len(said):
                    yield SAID, rows.take(said)
            if self.counts:
                yield FRAME_COUNTS, self.counts.of(rows)
            if self.streams:
                yield STREAM_QUEUES, self.streams.of(rows)
            if not (self.methods or past):
                continue
            arguments = fields(rows["arguments"], self.arguments)
            if self.methods:
                yield from zip((METHODS, REQUESTS), self.methods.rows(rows, arguments), strict=True)
            if past:
                yield from past.feed(rows, arguments)
        if past:
            yield from past.finish()

    def _says(self, rows: pa.RecordBatch) -> pa.Int64Array:
        """Where the rows of part SAID are."""
        named, of_type = is_among(rows["name"], *self.said), is_among(rows["frame_type"], *self.said)
        return places_where(named | (of_type & ~is_there(rows["name"])))

    def _schema(self, folder: str) -> StructType:
        known = self.past.schemas if self.past else {}
        if self.methods:
            known |= dict.fromkeys((METHODS, REQUESTS), self.methods.schema)
        known |= {DECODED_OF[kind]: schema for kind, schema in OF_KIND.items()}
        return (known | {FRAME_COUNTS: COUNTED, STREAM_QUEUES: STREAMS}).get(folder, FRAMES)
