"""What workers call through `mapInArrow` to write the rows of runs into files.

    WriteTables(...)       the tables of one decode, a folder each
    WriteBatch(...)        a batch of a lake: by table, by whether rows may still change, and by day
    EndConnections(...)    the same for connections that end without a run

Spark receives only the list of files (WRITTEN). A task that is tried again writes files of other names; readers go by
the list, and for a lake by its log, so files that a failed task leaves do no harm."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from codec.tables import Table
from udfs.arrow.types import ddl
from udfs.conversation.methods import STREAMS, streams_of
from udfs.decode.key_logs import SecretFiles
from udfs.sink import parquet
from udfs.sink.parquet import FileOptions, write_folders
from udfs.source.lake_states import StateFiles, States, folder
from udfs.tables import tables_of
from udfs.workers.worker_config import (
    ACCOUNT_ROWS,
    ACCOUNTS,
    STATES,
    STREAM_QUEUES,
    Config,
)

CONNECTION = "connection_id"
# Results of workers: written files, and notes, whose `folder` is ACCOUNT (JSON of the account of a split), UNREAD (a
# connection whose state this release cannot read: its id) or STREAM_QUEUES (JSON of a queue: its connection and name).
ACCOUNT, UNREAD = "account", "unread"
ARROW_WRITTEN = parquet.ARROW_WRITTEN.append(pa.field("note", pa.string()))
WRITTEN = ddl(ARROW_WRITTEN)
EXPIRED = "expired"  # connections.tcp_end

Parts = Iterator[tuple[str, pa.RecordBatch]]


@dataclass(frozen=True)
class WriteTables:
    """The function for `mapInArrow` over sorted runs -> WRITTEN of `udfs.sink.parquet`. Files go to folders in
    `directory` of a file system that all workers reach: one for each of `tables`, one for the accounts of captures.
    `streams`: find stream queues, too. `secrets`: where TLS secrets are."""

    filesystem: fs.FileSystem
    directory: str
    config: Config
    tables: Collection[str]
    streams: bool
    secrets: SecretFiles | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write_folders(self.filesystem, self.directory, self._rows(batches), self._schema)

    def _rows(self, runs: Iterator[pa.RecordBatch]) -> Parts:
        for table, _, rows in tables_of(runs, self.config, secrets=self.secrets):
            if table == ACCOUNTS or table in self.tables:
                yield table, rows
            if self.streams and table == "methods":
                yield STREAM_QUEUES, streams_of(rows)

    def _schema(self, folder: str) -> Table:
        return {ACCOUNTS: ACCOUNT_ROWS, STREAM_QUEUES: STREAMS, **self.config.schemas}[folder]


@dataclass(frozen=True)
class LakeFolders:
    """The folders of a batch below `root` of a file system that all workers reach. By table, `days`: the column with
    the day of a row; `schemas`: the columns of files; `options`: of files."""

    filesystem: fs.FileSystem
    root: str
    batch: int
    days: Mapping[str, str | None]
    schemas: Mapping[str, Table]
    options: Mapping[str, FileOptions]

    def write(self, parts: Parts) -> Iterator[pa.RecordBatch]:
        """(folder, rows) -> WRITTEN, when all are written."""
        written_files = write_folders(
            self.filesystem,
            self.root,
            parts,
            lambda path: self.schemas[path.partition("/")[0]],
            lambda path: self.options[path.partition("/")[0]],
        )
        for written in written_files:
            yield written.append_column("note", pa.nulls(written.num_rows, pa.string()))

    def by_day(self, table: str, rows: pa.RecordBatch, day_of: pa.Array) -> Parts:
        """Final rows by day (date32; null: no day)."""
        for day in pc.unique(day_of).to_pylist():
            mask = pc.equal(day_of, pa.scalar(day, pa.date32())) if day else day_of.is_null()
            yield f"{table}/{folder(self.batch, open_rows=False, day=day)}", rows.filter(mask)

    def open_rows(self, table: str, rows: pa.RecordBatch) -> Parts:
        """Rows that may still change."""
        yield f"{table}/{folder(self.batch, open_rows=True, day=None)}", rows

    def split(self, table: str, rows: pa.RecordBatch, is_open: pa.BooleanArray, day_of: pa.Array) -> Parts:
        """Rows that may still change, and final rows by day."""
        if is_open.true_count:
            yield from self.open_rows(table, rows.filter(is_open))
        final = pc.invert(is_open)
        yield from self.by_day(table, rows.filter(final), day_of.filter(final))

    def whole(self, table: str) -> str:
        """The folder of a table that is not partitioned."""
        return f"{table}/{str(self.batch).zfill(8)}"


@dataclass(frozen=True)
class WriteBatch:
    """The function for `mapInArrow`: runs (TCP_RUNS) in order -> WRITTEN. `states`: of their flows.

    `keep_open`: connections may continue in the next batch; otherwise all are closed. `lost`: connections without a FIN
    or RST are marked as expired. `secrets`, `carry_secrets`: as for `udfs.tables.tables_of`.
    """

    folders: LakeFolders
    config: Config
    states: StateFiles
    keep_open: bool = True
    lost: bool = False
    secrets: SecretFiles | None = None
    carry_secrets: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        notes: list[tuple[str, str]] = []
        yield from self.folders.write(self._parts(batches, notes))
        if notes:
            folders, texts = zip(*notes, strict=True)
            none = pa.nulls(len(notes), pa.string())
            arrays = [pa.array(folders), none, pa.nulls(len(notes), pa.int64()), pa.array(texts)]
            yield pa.RecordBatch.from_arrays(arrays, schema=ARROW_WRITTEN)

    def _parts(self, batches: Iterator[pa.RecordBatch], notes: list[tuple[str, str]]) -> Parts:
        carried, days = States(self.states), DayAssigner(self.folders)
        for part in tables_of(
            _with_accounts(batches, notes), self.config, carried, self.keep_open, self.secrets, self.carry_secrets
        ):
            rows = part.rows
            if part.table == "methods":
                queues = streams_of(rows).to_pylist()
                notes += [(STREAM_QUEUES, json.dumps([row["connection_id"], row["queue"]])) for row in queues]
            if part.table == ACCOUNTS:
                continue
            if part.table == STATES:
                unread = rows.filter(rows["error"].is_valid())
                notes += [(UNREAD, str(carried.connection(flow))) for flow in unread["flow"].to_pylist()]
                known = rows.filter(rows["error"].is_null())
                if known.num_rows:
                    sizes = pc.binary_length(known["octets"]).cast(pa.int64())
                    yield self.folders.whole(STATES), known.drop_columns(["error"]).append_column("size", sizes)
            elif part.still_open:
                yield from self.folders.open_rows(part.table, rows)
            else:
                if self.lost and part.table == "connections":
                    rows = _mark_lost(rows)
                yield from days.add(part.table, rows)
        yield from days.rest()


@dataclass(frozen=True)
class EndConnections:
    """The function for `mapInArrow` over one row a task, its number -> WRITTEN. The tasks divide the connections of
    `writer.states`, which they close (`keep_open` is false)."""

    writer: WriteBatch
    tasks: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        states = self.writer.states
        for number in [number for batch in batches for number in batch.column(0).to_pylist()]:
            mine = frozenset(sorted(states.only or ())[number :: self.tasks])
            yield from replace(self.writer, states=replace(states, only=mine))(iter(()))


class DayAssigner:
    """Assigns final rows to their day; rows without a time to that of their connection."""

    def __init__(self, folders: LakeFolders) -> None:
        self._folders = folders
        self._of_connections: dict[int, date | None] = {}
        self._waiting: list[tuple[str, pa.RecordBatch]] = []

    def add(self, table: str, rows: pa.RecordBatch) -> Parts:
        """Rows of a table by day; rows without a time are retained until `rest`."""
        name = self._folders.days[table]
        day_of = rows[name].cast(pa.date32()) if name else pa.nulls(rows.num_rows, pa.date32())
        if table == "connections":
            self._of_connections.update(zip(rows[CONNECTION].to_pylist(), day_of.to_pylist(), strict=True))
        waits = day_of.is_null()
        if pc.any(waits).as_py():
            self._waiting.append((table, rows.filter(waits)))
            known = pc.invert(waits)
            rows, day_of = rows.filter(known), day_of.filter(known)
        yield from self._folders.by_day(table, rows, day_of)

    def rest(self) -> Parts:
        """The retained rows, when all connections are known."""
        for table, rows in self._waiting:
            days = [self._of_connections.get(number) for number in rows[CONNECTION].to_pylist()]
            yield from self._folders.by_day(table, rows, pa.array(days, pa.date32()))


def _with_accounts(runs: Iterable[pa.RecordBatch], notes: list[tuple[str, str]]) -> Iterator[pa.RecordBatch]:
    """The runs; appends the accounts of splits among them to `notes`."""
    for batch in runs:
        notes += [(ACCOUNT, account) for account in batch["account"].drop_null().to_pylist()]
        yield batch


def _mark_lost(connections: pa.RecordBatch) -> pa.RecordBatch:
    """Marks connections without an end as expired."""
    at = connections.schema.get_field_index("tcp_end")
    ended = connections.column(at).cast(pa.string())
    column = pc.if_else(pc.equal(ended, "none"), EXPIRED, ended)
    return connections.set_column(at, connections.schema.field(at).with_type(pa.string()), column)
