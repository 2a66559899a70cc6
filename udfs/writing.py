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
from pyspark.sql.types import LongType, StringType, StructField, StructType

from udfs.contents import Contents, Shown
from udfs.decode import decode_runs
from udfs.fields import fields
from udfs.history import Follower, MethodRoles, Records, schema_of
from udfs.messages import COUNTS, EVENTS, MESSAGES, OPEN, Messages, Parts
from udfs.methods import Methods
from udfs.parquet import ParquetFiles
from udfs.schemas import FRAMES

ARROW_WRITTEN = pa.schema([("folder", pa.string()), ("file", pa.string()), ("rows", pa.int64())])
WRITTEN = "folder string, file string, rows bigint"
# Folders: decoded rows by kind; methods that cannot have a reply; those that may; the history of channels by kind.
DECODED_OF = {kind: f"decoded/kind={kind}" for kind in ("frame", "connection", "capture")}
METHODS, REQUESTS = "methods", "requests"
HISTORY_OF = {kind: f"history/{kind}" for kind in ("life", "link", "reply")}
# Outcomes of the messages of a ledger that has been settled, and how many have each.
ENDED = StructType(
    [
        StructField("connection_id", LongType()),
        StructField("ledger", LongType()),
        StructField("outcome", StringType()),
        StructField("count_all", LongType()),
    ]
)


@dataclass(frozen=True)
class WriteTables:
    """The function for `mapInArrow` over sorted runs -> WRITTEN. Files go to FOLDERS in `directory` of a file system
    that all workers reach; `payload` as for `decode_runs`; `hot`: arguments that tables show, by name and type;
    `methods`, `history`: None where these files are not wanted; `waiting_bytes`: see `Messages`."""

    filesystem: fs.FileSystem
    directory: str
    payload: bool
    hot: dict[str, str]
    methods: Methods | None
    history: tuple[MethodRoles, Shown] | None
    waiting_bytes: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.write(decode_runs(self.payload)(batches))

    def write(self, decoded: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decoded rows, batches of one kind each, connection after connection -> WRITTEN."""
        files: dict[str, ParquetFiles] = {}
        for folder, rows in self._rows(decoded):
            if folder not in files:
                files[folder] = ParquetFiles(self.filesystem, f"{self.directory}/{folder}", self._schema(folder))
            files[folder].write(rows)
        written = [(folder, *file.close()) for folder, file in files.items()]
        if written:
            columns = [pa.array(column) for column in zip(*written, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=ARROW_WRITTEN)

    def _rows(self, decoded: Iterator[pa.RecordBatch]) -> Parts:
        """Folder, rows for it."""
        past = self.history and Past(*self.history, self.waiting_bytes)
        for rows in decoded:
            if not rows.num_rows:
                continue
            kind = rows["kind"][0].as_py()
            rows = rows.drop_columns(["kind"])
            yield DECODED_OF[kind], rows
            if kind != "frame" or not (self.methods or past):
                continue
            arguments = fields(rows["arguments"], self.hot)
            if self.methods:
                yield from zip((METHODS, REQUESTS), self.methods.rows(rows, arguments), strict=True)
            if past:
                yield from past.feed(rows, arguments)
        if past:
            yield from past.finish()

    def _schema(self, folder: str) -> StructType:
        schemas = {EVENTS: schema_of("event"), COUNTS: ENDED}
        schemas |= {of: schema_of(kind) for kind, of in HISTORY_OF.items()}
        if self.methods:
            schemas |= dict.fromkeys((METHODS, REQUESTS), self.methods.schema)
        if self.history:
            schemas |= dict.fromkeys((MESSAGES, OPEN), self.history[1].schema)
        return schemas.get(folder, FRAMES)


class Past:
    """The history of channels, and the messages that are made of it."""

    def __init__(self, roles: MethodRoles, shown: Shown, waiting_bytes: int) -> None:
        self._follower = Follower(roles)
        self._messages = Messages(self._follower, Contents(shown), waiting_bytes)

    def feed(self, frames: pa.RecordBatch, arguments: dict[str, pa.Array]) -> Parts:
        found = self._follower.feed(frames, arguments)
        yield from self._shown(found)
        yield from self._messages.feed(frames, arguments, found)

    def finish(self) -> Parts:
        found = self._follower.finish()
        yield from self._shown(found)
        yield from self._messages.finish(found)

    def _shown(self, found: dict[str, Records]) -> Parts:
        return ((HISTORY_OF[kind], self._follower.shown(kind, found[kind])) for kind in found if kind in HISTORY_OF)
