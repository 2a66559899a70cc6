"""Parquet files of a lake, written and read on the driver: few rows, or rows that are only copied.

Decoded rows are written by Spark's workers (`udfs.sink.writers`), in files of the same kind.

Compacting the small files of past days and dropping old days are safe beside a running ingest, which only adds files to
days, and beside readers: files that were replaced or dropped are deleted an hour later.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from codec.net.layers import FLOW_BYTES
from codec.tables import TABLES, Table, with_former
from pipeline.lake.confinement import OTHERS_WRITE, check_files, content_of, create_directory, damaged, delete_file
from pipeline.lake.layout import STATES, LakeFile, LakeTable, lake_tables
from pipeline.lake.log import Log
from pipeline.output.location import PRIVATE, Location
from udfs.arrow.former import current_rows, present_columns
from udfs.arrow.types import arrow_schema, cast_to
from udfs.sink.parquet import ParquetFiles
from udfs.source.lake_states import (
    STATE,
    StateFiles,
    States,
    folder,
)

# Types that every release wrote alike.
SIMPLE = {pa.int64(), pa.int32(), pa.bool_(), pa.string(), pa.binary()}.__contains__
READ_ROWS = 1 << 16  # per batch
READ_STATES = 256  # per batch: a state may have megabytes


def write_file(
    root: Location,
    table: LakeTable,
    batch: int | str,
    rows: Iterable[pa.RecordBatch],
    *,
    open_rows: bool = False,
    day: date | None = None,
) -> list[LakeFile]:
    """Write rows of a table into one file of a batch; a missing column is null. Returns the file for the log; without
    rows there is none."""
    location, partition = root.child(table.name), (open_rows, day) if table.partitioned else (None, None)
    inside = folder(batch, open_rows=open_rows, day=day) if table.partitioned else str(batch).zfill(8)
    create_directory(root, f"{table.name}/{inside.partition('/')[0]}", PRIVATE)
    file = ParquetFiles(root.files, f"{location.path}/{inside}", table.schema, table.options)
    for some in rows:
        file.write(cast_to(dict(zip(some.schema.names, some.columns, strict=True)), arrow_schema(table.schema)))
    name, written = file.close()
    return [lake_file(location, f"{inside}/{name}", written, *partition)] if written else []


def lake_file(location: Location, path: str, rows: int, open_rows: bool | None, day: date | None) -> LakeFile:
    """The entry of a file of the table at `location`; its size is looked up."""
    return LakeFile(path, location.files.get_file_info(f"{location.path}/{path}").size, rows, open_rows, day)


def read_rows(root: Location, name: str, files: Iterable[LakeFile], columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of some files of a table. One of `columns` that files of an older release lack is null; if there is no
    file, it has type null."""
    tables = [
        pa.Table.from_batches(batches) for file in files if (batches := list(_batches(root, name, file, columns)))
    ]
    whole = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
    for column in columns or ():
        if column not in whole.column_names:
            whole = whole.append_column(column, pa.nulls(len(whole)))
    return whole


def rows_of(
    root: Location, name: str, files: Iterable[LakeFile], wanted: Callable[[pa.RecordBatch], pa.Array] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of some files of a table, those for which `wanted` is true, batch by batch."""
    for file in files:
        for rows in _batches(root, name, file, None):
            matching = rows if wanted is None else rows.filter(wanted(rows))
            if matching.num_rows:
                yield matching


def _batches(root: Location, name: str, file: LakeFile, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    table = root.child(name)
    check_files(table, [file.path])
    location = table.child(file.path)
    with content_of(location), pq.ParquetFile(root.files.open_input_file(location.path)) as source:
        schema = lake_tables()[name].schema
        _require_types(location, source.schema_arrow, schema)
        present = None if columns is None else present_columns(schema, columns, source.schema_arrow.names)
        for rows in source.iter_batches(READ_ROWS, columns=present):
            yield current_rows(rows, schema)


def _require_types(location: Location, found: pa.Schema, table: Table) -> None:
    """Raise DamagedLakeError if the columns of a file are of other types than those of its table."""
    for field in arrow_schema(with_former(table)):
        if field.name in found.names and SIMPLE(field.type):
            kind = found.field(field.name).type
            if pa.types.is_dictionary(kind):
                kind = kind.value_type
            if kind != field.type:
                raise damaged(location, f"has column {field.name} of type {kind}; expected {field.type}")


def states_in_flow_order(root: Location, files: Sequence[LakeFile], without: pa.Array) -> Iterator[pa.RecordBatch]:
    """The states in these files, except of the connections `without`, in the order of flows, in which tasks read them
    (`udfs.source.lake_states`)."""
    rows = read_rows(root, "states", files, [name for name in STATES.names if name != STATE])
    if not rows.num_rows:
        return
    rows = rows.filter(pc.invert(pc.is_in(rows["connection_id"], without))).sort_by("flow").combine_chunks()
    states = States(StateFiles(root.files, tuple(f"{root.path}/states/{file.path}" for file in files)))
    for batch in rows.to_batches(max_chunksize=READ_STATES):
        data = [states[flow.ljust(FLOW_BYTES, b"\0")] for flow in batch["flow"].to_pylist()]
        yield batch.append_column(STATE, pa.array(data, pa.binary()))


FILE_BYTES = 256 << 20  # of a compacted file, about
SMALL_BYTES = 64 << 20  # larger files stay as they are
RETENTION_HOURS = 1  # readers may still read removed files
GROWING_DAYS = 2  # a capture may still grow
COMPACTED = "joined"  # prefix of folders


@dataclass(frozen=True)
class FileCounts:
    """Numbers of files removed from the tables, added to them, and deleted from the file system."""

    removed: int = 0
    added: int = 0
    deleted: int = 0

    def __add__(self, other: FileCounts) -> FileCounts:
        return FileCounts(self.removed + other.removed, self.added + other.added, self.deleted + other.deleted)


def newest_day(log: Log) -> date | None:
    """The latest day that has rows; days in the future come from wrong clocks."""
    latest = datetime.now(UTC).date() + timedelta(days=1)
    return max((file.day for file in log.files("captures") if file.day and file.day <= latest), default=None)


def compact(log: Log) -> FileCounts:
    """Compact small files of the days before the newest one, day by day."""
    newest = newest_day(log)
    done = FileCounts()
    if newest is None:
        return done
    for name in TABLES:
        log.create(name)
        # An ingest replaces the row of a capture that grew.
        before = newest - timedelta(days=GROWING_DAYS if name == "captures" else 0)
        days: dict[date, list[LakeFile]] = defaultdict(list)
        for file in log.files(name):
            if file.day and file.day < before and not file.open and file.size < SMALL_BYTES:
                days[file.day].append(file)
        for day, files in sorted(days.items()):
            for some in _groups(files):
                done += _compact(log, log.tables[name], day, some)
        done += FileCounts(deleted=log.vacuum(name, RETENTION_HOURS))
    return done


def expire(log: Log, days: int) -> FileCounts:
    """Drop the days more than `days` before the newest one."""
    newest = newest_day(log)
    done = FileCounts()
    if newest is None:
        return done
    oldest = newest - timedelta(days=days)
    for name in TABLES:
        gone = [file for file in log.files(name) if file.day and file.day < oldest and not file.open]
        if gone:
            log.commit(name, None, [], gone)
        done += FileCounts(removed=len(gone), deleted=log.vacuum(name, RETENTION_HOURS))
    return done


def _groups(files: Iterable[LakeFile]) -> Iterable[list[LakeFile]]:
    """Files in groups of about FILE_BYTES, at least two in each."""
    some, size = list[LakeFile](), 0
    for file in sorted(files, key=lambda each: each.path):
        some.append(file)
        size += file.size
        if size >= FILE_BYTES:
            yield some
            some, size = [], 0
    if len(some) > 1:
        yield some


def _compact(log: Log, table: LakeTable, day: date, files: list[LakeFile]) -> FileCounts:
    rows = rows_of(log.root, table.name, files)
    (added,) = write_file(log.root, table, f"{COMPACTED}-{secrets.token_hex(4)}", rows, day=day)
    log.root.child(table.name).child(added.path.partition("/")[0]).publish(OTHERS_WRITE)
    try:
        log.commit(table.name, None, [added], files, same_rows=True)
    except BaseException:
        delete_file(log.root, f"{table.name}/{added.path}")
        raise
    return FileCounts(removed=len(files), added=1)
