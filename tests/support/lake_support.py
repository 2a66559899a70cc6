"""A lake whose rows are numbers: frames with only `connection_id`, put there without decoding anything; rows of tables
as texts that can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

from codec.tables import TABLES as SCHEMAS
from pipeline.lake import journal
from pipeline.lake.journal import Change
from pipeline.lake.lake_files import read_rows, write_file
from pipeline.lake.layout import LakeFile
from pipeline.lake.log import Log
from pipeline.lake.opening import open_lake, open_or_create_lake

TABLES = ("frames", "messages")


def new_lake(path: Path) -> Log:
    """A lake without a batch."""
    log = Log(open_or_create_lake(str(path)))
    for name in log.tables:
        log.create(name)
    return log


def opened(path: Path) -> Log:
    """The lake, as another process sees it."""
    return Log(open_lake(str(path)))


def changes(log: Log, batch: int, final: Iterable[int], still_open: Iterable[int], day: date) -> dict[str, Change]:
    """Files of a batch with these rows in frames and messages, and what they replace."""
    return {
        name: Change(
            [_file(log, name, batch, final, False, day), _file(log, name, batch, still_open, True, None)],
            [file for file in log.files(name) if file.open],
        )
        for name in TABLES
    }


def commit(log: Log, batch: int, final: Iterable[int], still_open: Iterable[int], day: date) -> None:
    """A batch that adds `final` rows and replaces those that are open."""
    journal.commit(log, batch, changes(log, batch, [*final], [*still_open], day))


def numbers(log: Log, name: str, batch: int | None = None) -> list[int]:
    """The rows of a table."""
    rows = read_rows(log.root, name, log.files(name, batch), ["connection_id"])
    return sorted(rows["connection_id"].to_pylist()) if rows.num_columns else []


def rows_of_table(name: str, files: Iterable[object]) -> list[str]:
    """The rows in files of a table, by the columns that a decode gives it, in an order."""
    columns = SCHEMAS[name].names
    return sorted(str([row[column] for column in columns]) for file in files for row in pq.read_table(file).to_pylist())


def rows_of_lake(path: Path, name: str) -> list[str]:
    """The same of a table of a lake."""
    return rows_of_table(name, [path / name / file.path for file in opened(path).files(name)])


def stored(path: Path, name: str) -> set[str]:
    """Paths of all Parquet files of a table, whether the log names them or not."""
    return {
        str(file.relative_to(path / name)) for file in (path / name).rglob("*.parquet") if "_delta" not in str(file)
    }


def _file(log: Log, name: str, batch: int, rows: Iterable[int], open_rows: bool, day: date | None) -> LakeFile:
    batch_of_rows = pa.RecordBatch.from_arrays([pa.array(rows, pa.int64())], names=["connection_id"])
    (file,) = write_file(log.root, log.tables[name], batch, [batch_of_rows], open_rows=open_rows, day=day)
    return file
