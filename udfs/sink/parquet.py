"""Parquet files as Python workers write them: the same files as Spark would, for a tenth of its processor time.

    files = ParquetFiles(filesystem, "tables/frames", FRAMES)
    files.write(batch)
    name, rows = files.close()

Arrow columns stay columns; Spark would convert them to rows and back. Spark, DuckDB, pyarrow and polars read these
files as they read Spark's: VARIANT is annotated, and the footer has the schema of the table.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from codec.tables import INT, LONG, VARIANT, ListOf, MapOf, Table, Type
from udfs.arrow.arrays import codes_of, combine_chunks
from udfs.arrow.types import ddl
from udfs.workers.process_setup import private

# The footer of a Parquet file: adds the annotation of VARIANT columns, which pyarrow does not write.
#
# A footer is a Thrift structure in the compact protocol (parquet-format, Parquet.thrift: FileMetaData, SchemaElement,
# LogicalType; Thrift, "Thrift compact protocol encoding"). Only the list of schema elements is parsed; the annotation
# is inserted at the end of an element, everything else is unchanged.


# Wire types of the compact protocol.
STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)
VARINTS = (I16, I32, I64)
SCHEMA = 2  # field of FileMetaData
NAME, CHILDREN, LOGICAL_TYPE = 4, 5, 10  # fields of SchemaElement
# LogicalType { 16: VariantType { 1: specification version 1 } }, each closed by STOP. A field number more than 15 above
# the one before is written out (zigzag: 16 is 32).
VARIANT_ANNOTATION = bytes([STRUCT, 32, 1 << 4 | BYTE, 1, STOP, STOP])


class Walk:
    """A position in a footer."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def binary(self) -> bytes:
        size = self.varint()
        self.at += size
        return self.data[self.at - size : self.at]

    def field(self, last: int) -> tuple[int, int]:
        """(number, wire type) of the next field of a struct, after number `last`; type STOP at its end."""
        head = self.byte()
        kind, step = head & 15, head >> 4
        if kind == STOP:
            return last, STOP
        if step:
            return last + step, kind
        number = self.varint()
        return number >> 1 ^ -(number & 1), kind

    def items(self) -> tuple[int, int]:
        """(size, wire type) of a list or set."""
        head = self.byte()
        size = head >> 4
        return (self.varint() if size == 15 else size), head & 15

    def skip(self, kind: int, within: bool = False) -> None:
        """Skip a value; booleans take a byte only `within` a list."""
        if kind in VARINTS:
            self.varint()
        elif kind == BYTE or (kind in (TRUE, FALSE) and within):
            self.at += 1
        elif kind == DOUBLE:
            self.at += 8
        elif kind == BINARY:
            self.binary()
        elif kind in (LIST, SET):
            size, item = self.items()
            for _ in range(size):
                self.skip(item, within=True)
        elif kind == MAP:
            size = self.varint()
            kinds = self.byte() if size else 0
            for _ in range(size):
                self.skip(kinds >> 4, within=True)
                self.skip(kinds & 15, within=True)
        elif kind == STRUCT:
            number = 0
            while (field := self.field(number))[1] != STOP:
                number = field[0]
                self.skip(field[1])
        elif kind not in (TRUE, FALSE):
            raise ValueError(f"no wire type {kind} in a Parquet footer")


def with_variants(footer: bytes, columns: Collection[str]) -> bytes:
    """`footer` (FileMetaData) with the named groups annotated as VARIANT. Raises ValueError if one is missing."""
    walk = Walk(footer)
    number, kind = walk.field(0)
    while number != SCHEMA and kind != STOP:
        walk.skip(kind)
        number, kind = walk.field(number)
    pieces, done, left = [], 0, set(columns)
    for _ in range(walk.items()[0]):
        last, name = 0, ""
        while (field := walk.field(last))[1] != STOP:
            last = field[0]
            if last == NAME:
                name = walk.binary().decode()
            else:
                walk.skip(field[1])
            if last == CHILDREN and name in left:
                left.remove(name)
                pieces += [footer[done : walk.at], bytes([(LOGICAL_TYPE - CHILDREN) << 4 | STRUCT]), VARIANT_ANNOTATION]
                done = walk.at
    if left:
        raise ValueError(f"no group {', '.join(sorted(left))} in this Parquet footer")
    return b"".join([*pieces, footer[done:]])


COMPRESSION = "zstd"  # a third smaller than snappy here, in the same time
BUFFER_BYTES = 1 << 20
# Spark reads the schema of a table from here.
SCHEMA_KEY = "org.apache.spark.sql.parquet.row.metadata"
# Row groups are as large as the memory of a worker allows, because readers skip whole groups.
GROUP_BYTES = 32 << 20
GROUP_ROWS = 1 << 20
BATCH_VALUES = 1 << 14  # encoded at a time
MAGIC = b"PAR1"
# The files that a worker has written.
ARROW_WRITTEN = pa.schema([("folder", pa.string()), ("file", pa.string()), ("rows", pa.int64())])
WRITTEN = ddl(ARROW_WRITTEN)


class Stored(NamedTuple):
    """Paths in a file of columns whose values are nearly unique: a dictionary would be filled for every page group and
    then discarded, integers are delta-encoded instead; of those whose statistics would not help: each row group has all
    senders, sizes and digests, and the bytes of a VARIANT have no order; of those that are compressed already."""

    unique: frozenset[str]
    without_statistics: frozenset[str]
    uncompressed: frozenset[str]

    @classmethod
    def of(cls, table: Table) -> Stored:
        """A VARIANT is two binary columns in the file."""
        return cls(
            frozenset(_values(each.name, each.type)[0] for each in table if not each.dictionary),
            frozenset(path for each in table if not each.statistics for path in _values(each.name, each.type)),
            frozenset(path for each in table if not each.compressed for path in _values(each.name, each.type)),
        )


def _values(name: str, kind: Type) -> tuple[str, ...]:
    return (f"{name}.value", f"{name}.metadata") if kind == VARIANT else (name,)


def spark_json(table: Table) -> str:
    """The schema of a table as Spark writes one into files and logs."""
    return json.dumps(_spark_type(table), separators=(",", ":"), sort_keys=True)


def _spark_type(kind: Type) -> object:
    if isinstance(kind, ListOf):
        return {"type": "array", "elementType": _spark_type(kind.element), "containsNull": True}
    if isinstance(kind, MapOf):
        key, value = _spark_type(kind.key), _spark_type(kind.value)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if isinstance(kind, Table):
        fields = [
            {
                "name": each.name, "type": _spark_type(each.type), "nullable": True,
                "metadata": {"comment": each.doc} if each.doc else {},
            }
            for each in kind
        ]  # fmt: skip
        return {"type": "struct", "fields": fields}
    return {LONG: "long", INT: "integer"}.get(kind, kind)


class VariantFooterFile:
    """An output file in whose footer the VARIANT columns are annotated. Writes after `begin_footer` are the footer:
    they are buffered until `close`."""

    closed = False

    def __init__(self, stream: pa.NativeFile, variants: list[str]) -> None:
        self._stream, self._variants = stream, variants
        self._footer: list[bytes] | None = None
        self._written = 0
        self._failed = False

    def write(self, data: bytes) -> int:
        if self._footer is not None:
            self._footer.append(data)
        elif not self._failed:  # the buffer before this file writes its rest again when it is destroyed
            self._failed = True
            self._stream.write(data)
            self._failed = False
        self._written += len(data)
        return len(data)

    def begin_footer(self) -> None:
        """Buffer the following writes: they are the footer."""
        self._footer = []

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        pass

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Write the footer; raises ValueError if it is not the end of a Parquet file. Without a footer, the file was
        abandoned and is only closed."""
        if self.closed:
            return
        self.closed = True
        if self._footer is None:
            with suppress(OSError):
                self._stream.close()
            return
        end = b"".join(self._footer)
        size = int.from_bytes(end[-8:-4], "little")
        if end[-4:] != MAGIC or size > len(end) - 8:
            raise ValueError("the file does not end like a Parquet file")
        footer = with_variants(end[-8 - size : -8], self._variants)
        self._stream.write(end[: -8 - size] + footer + len(footer).to_bytes(4, "little") + MAGIC)
        self._stream.close()


@dataclass(frozen=True)
class FileOptions:
    """How a file is written. `owners_only`: a local file gets mode 600. `group_bytes`: size of row groups."""

    owners_only: bool = False
    group_bytes: int = GROUP_BYTES


USUAL = FileOptions()


class ParquetFiles:
    """A Parquet file in `directory`/`folder` of a file system, created with its first row; so are the directories. If
    there is a `folder`, a local `directory` must exist."""

    def __init__(
        self,
        filesystem: fs.FileSystem,
        directory: str,
        schema: Table,
        options: FileOptions = USUAL,
        folder: str = "",
    ) -> None:
        self.name, self.rows = f"part-{uuid.uuid4().hex}.zstd.parquet", 0
        self._filesystem, self._directory, self._folder = filesystem, directory, folder
        self._table, self._options = schema, options
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = self._count = 0
        self._columns: pa.Schema | None = None  # those of the first rows
        self._writer: pq.ParquetWriter | None = None
        self._file: VariantFooterFile | None = None
        self._buffer: pa.BufferedOutputStream | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows with the columns of the schema; a row group is written when it is full."""
        if not batch.num_rows:
            return
        if self._columns is None:
            self._columns = batch.schema
        # rows read from states are not dictionary-encoded
        self._waiting.append(batch if batch.schema == self._columns else batch.cast(self._columns))
        self._bytes += batch.nbytes
        self._count += batch.num_rows
        if self._bytes >= self._options.group_bytes or self._count >= GROUP_ROWS:
            self._flush()

    def close(self, empty: pa.Schema | None = None) -> tuple[str, int]:
        """Name and number of rows of the file. Without rows there is no file, or one with the columns `empty`."""
        self._flush()
        if self._writer is None and empty is not None:
            self._open(empty)
        if self._writer is not None and self._file is not None and self._buffer is not None:
            self._buffer.flush()
            self._file.begin_footer()
            self._writer.close()
            self._buffer.flush()
            self._file.close()
        return self.name, self.rows

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = without_unused_texts(pa.Table.from_batches(self._waiting))
        writer = self._writer or self._open(rows.schema)
        writer.write_table(rows, row_group_size=GROUP_ROWS)
        self.rows += self._count
        self._waiting = []
        self._bytes = self._count = 0

    def _make_directory(self) -> str:
        """Its path. Raises FileNotFoundError if a local `directory` was removed: a late task must not make it again."""
        path = self._directory
        if not self._folder or not isinstance(self._filesystem, fs.LocalFileSystem):
            path = f"{path}/{self._folder}".rstrip("/")
            self._filesystem.create_dir(path, recursive=True)
            return path
        if not os.path.isdir(path):  # the run is over
            raise FileNotFoundError(f"{path}: has been removed")
        for name in self._folder.split("/"):
            path = f"{path}/{name}"
            self._filesystem.create_dir(path, recursive=False)  # it may be removed at any time
        return path

    def _open(self, schema: pa.Schema) -> pq.ParquetWriter:
        with private():
            path = f"{self._make_directory()}/{self.name}"
            if self._options.owners_only and isinstance(self._filesystem, fs.LocalFileSystem):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            stream = self._filesystem.open_output_stream(path)
        variants = [column.name for column in self._table if column.type == VARIANT]
        self._file = VariantFooterFile(stream, variants)
        stored = Stored.of(self._table)
        leaves = [path for field in schema for path in _leaves(field)]
        integers = [field.name for field in schema if _is_integer(field.type)]
        # pyarrow writes each page by itself.
        self._buffer = pa.BufferedOutputStream(pa.PythonFile(self._file, mode="w"), BUFFER_BYTES)
        self._writer = pq.ParquetWriter(
            self._buffer,
            schema,
            compression={path: "none" if path in stored.uncompressed else COMPRESSION for path in leaves},
            use_dictionary=[path for path in leaves if path not in stored.unique],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in integers if name in stored.unique},
            write_statistics=[path for path in leaves if path not in stored.without_statistics],
            write_batch_size=BATCH_VALUES,
            store_schema=False,
        )
        self._writer.add_key_value_metadata({SCHEMA_KEY: spark_json(self._table)})
        return self._writer


def without_unused_texts(rows: pa.Table) -> pa.Table:
    """The rows, with dictionaries that have only values that occur: readers skip row groups by them."""
    columns = [_without_unused(column) if pa.types.is_dictionary(column.type) else column for column in rows.columns]
    return pa.table(columns, names=rows.column_names)


def _without_unused(texts: pa.ChunkedArray) -> pa.DictionaryArray:
    column = combine_chunks(texts)
    codes = codes_of(column)
    used = np.zeros(len(column.dictionary) + 1, bool)  # the last one: null
    used[codes] = True
    if used[:-1].all():
        return column
    fresh = np.cumsum(used, dtype=np.int32) - 1
    fresh[-1] = -1
    codes = fresh.take(codes, mode="wrap")
    values = column.dictionary.take(pa.array(np.flatnonzero(used[:-1])))
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0 if used[-1] else None), values)


def write_folders(
    filesystem: fs.FileSystem,
    directory: str,
    parts: Iterator[tuple[str, pa.RecordBatch]],
    schema_of: Callable[[str], Table],
    options_of: Callable[[str], FileOptions] = lambda folder: USUAL,
) -> Iterator[pa.RecordBatch]:
    """Write `parts`, (folder, rows), into a file in each of these folders of `directory`; then WRITTEN. Raises
    FileNotFoundError if a local `directory` was removed: a late task must not create it again."""
    files: dict[str, ParquetFiles] = {}
    for folder, rows in parts:
        if folder not in files:
            files[folder] = ParquetFiles(filesystem, directory, schema_of(folder), options_of(folder), folder)
        files[folder].write(rows)
    written = [(folder, *file.close()) for folder, file in files.items()]
    if written:
        columns = [pa.array(column) for column in zip(*written, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=ARROW_WRITTEN)


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


def _leaves(field: pa.Field, above: str = "") -> Iterator[str]:
    """Paths of the columns of a field in the file."""
    path = above + field.name
    if pa.types.is_struct(field.type):
        for i in range(field.type.num_fields):
            yield from _leaves(field.type.field(i), path + ".")
    elif pa.types.is_list(field.type):
        yield from _leaves(pa.field("element", field.type.value_type), f"{path}.list.")
    else:
        yield path
