"""Parquet files of a lake, written and read on the driver: few rows, or rows that only move.

What a batch decodes is written by Spark's workers (`udfs.sink.lake`), in files of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from pipeline.lake.layout import LakeFile, LakeTable
from pipeline.output.swap import Place
from udfs.arrow.types import VARIANT, arrow_schema, nulls
from udfs.sink.parquet import ParquetFiles
from udfs.source.partitions import folder

READ_ROWS = 1 << 16  # at a time


class Writer:
    """Writes rows of a table into one file of a batch; `close` gives it, None where there were no rows."""

    def __init__(
        self, root: Place, table: LakeTable, batch: int | str, *, open_rows: bool = False, day: date | None = None
    ) -> None:
        self._place, self._table = root.child(table.name), table
        self._partition = (open_rows, day) if table.partitioned else (None, None)
        self._folder = folder(batch, open_rows=open_rows, day=day) if table.partitioned else str(batch).zfill(8)
        directory = f"{self._place.path}/{self._folder}"
        self._file = ParquetFiles(root.files, directory, table.schema, table.options)

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows; a column that they do not have is null."""
        self._file.write(shaped(rows, self._table.schema))

    def close(self) -> LakeFile | None:
        """The file, as the log names it."""
        name, rows = self._file.close()
        return listed(self._place, f"{self._folder}/{name}", rows, *self._partition) if rows else None


def listed(place: Place, path: str, rows: int, open_rows: bool | None, day: date | None) -> LakeFile:
    """A file of the table at `place`, with its size."""
    return LakeFile(path, place.files.get_file_info(f"{place.path}/{path}").size, rows, open_rows, day)


def rows_of(root: Place, name: str, files: Iterable[LakeFile], columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of some files of a table; no column where there is no file. One of `columns` that the files do not have,
    as an older release wrote them, is null."""
    tables = [
        pa.Table.from_batches(batches) for file in files if (batches := list(_batches(root, name, file, columns)))
    ]
    if not tables:
        return pa.table({})
    whole = pa.concat_tables(tables, promote_options="default")
    for column in columns or ():
        if column not in whole.column_names:
            whole = whole.append_column(column, pa.nulls(len(whole)))
    return whole


def moved(
    root: Place,
    table: LakeTable,
    files: Iterable[LakeFile],
    writer: Writer,
    wanted: Callable[[pa.RecordBatch], pa.Array] | None = None,
) -> None:
    """Write the rows of files again, those for which `wanted` is true; a batch at a time."""
    for file in files:
        for rows in _batches(root, table.name, file, None):
            chosen = rows if wanted is None else rows.filter(wanted(rows))
            if chosen.num_rows:
                writer.write(chosen)


def shaped(rows: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    """Rows as a file of this schema has them."""
    target = arrow_schema(schema)
    columns = [
        _column(rows[field.name], field.type) if field.name in rows.schema.names else nulls(rows.num_rows, field.type)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == VARIANT:
        parts = [column.field(part.name).fill_null(b"") for part in VARIANT]
        return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=column.is_null())
    return column if column.type == kind else column.cast(kind)


def _batches(root: Place, name: str, file: LakeFile, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(root.files.open_input_file(f"{root.path}/{name}/{file.path}")) as source:
        there = None if columns is None else [column for column in columns if column in source.schema_arrow.names]
        yield from source.iter_batches(READ_ROWS, columns=there)
