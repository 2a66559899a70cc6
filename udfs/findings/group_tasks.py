"""Groups in tasks of Spark: a task reads the files of its group, or the rows of all tables come to it; answers go back
to the driver.

Tables have different columns, but a shuffle has one schema: batches travel as streams of Arrow (PACKED).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from codec.tables import BINARY, INT, LONG, STRING, table_of
from udfs.arrow.types import as_structs, as_variants, variant_columns
from udfs.findings.evaluation import TASK_BYTES, Question, Resources, answer, parquet_file, paths_of
from udfs.findings.program import Program
from udfs.sink.parquet import ParquetFiles

# Rows in transit: `data` is a stream of Arrow with some rows of the table or answer `name`; tables have a `group_no`.
PACKED = table_of(
    "packed", ("group_no", INT, "group of connections"), ("name", STRING, "table"), ("data", BINARY, "some rows")
)
# Files of tables, each in a group, and the connections whose rows a file has.
FILES = table_of(
    "files", ("group_no", INT, "group of connections"), ("name", STRING, "table"), ("path", STRING, "file")
)
CONNECTIONS = table_of("connections_of_files", ("path", STRING, "file"), ("connection_id", LONG, "TCP connection"))


def pack(name: str, rows: pa.Table | pa.RecordBatch, group: int = 0) -> pa.RecordBatch:
    """A row of PACKED."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write(rows)
    data = pa.array([sink.getvalue().to_pybytes()], pa.binary())
    return pa.RecordBatch.from_arrays([pa.array([group], pa.int32()), pa.array([name]), data], names=PACKED.names)


def unpacked(data: pa.Buffer) -> pa.Table:
    """The rows of a stream of Arrow."""
    return pa.ipc.open_stream(data).read_all()


@dataclass(frozen=True)
class PackRows:
    """Rows of table `name` -> PACKED, for `mapInArrow`. A connection is in one of `groups`."""

    name: str
    groups: int = 1

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in as_structs(batches):
            if self.groups == 1 or "connection_id" not in batch.schema.names:
                yield pack(self.name, batch)
                continue
            group = batch["connection_id"].to_numpy(zero_copy_only=False) % self.groups
            for number in np.unique(group).tolist():
                yield pack(self.name, batch.filter(pa.array(group == number)), number)


@dataclass(frozen=True)
class AnswerRows:
    """PACKED rows of all tables of a group -> PACKED rows of its answer, for `mapInArrow` on one partition."""

    program: Program
    question: Question

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schemas = self.program.schemas
        with tempfile.TemporaryDirectory(prefix="findings-") as directory:
            files: dict[str, ParquetFiles] = {}
            for batch in batches:
                for name, data in zip(batch["name"].to_pylist(), batch["data"], strict=True):
                    if name not in files:
                        files[name] = parquet_file(f"{directory}/{name}", schemas[name])
                    rows = unpacked(data.as_buffer())
                    for each in as_variants(rows, variant_columns(schemas[name])).to_batches():
                        files[name].write(each)
            paths = {name: paths_of(file, f"{directory}/{name}", schemas[name]) for name, file in files.items()}
            resources = Resources(None, TASK_BYTES, directory)
            for name, rows in answer(paths, self.program, self.question, resources).items():
                yield pack(name, rows)


@dataclass(frozen=True)
class ReadConnections:
    """FILES -> CONNECTIONS, for `mapInArrow`."""

    system: pyarrow.fs.FileSystem

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch["path"].to_pylist():
                yield pa.record_batch(self._connections(path), names=CONNECTIONS.names)

    def _connections(self, path: str) -> list[pa.Array]:
        with pq.ParquetFile(path, filesystem=self.system, pre_buffer=False) as file:
            if "connection_id" not in file.schema_arrow.names:
                return [pa.array([], pa.string()), pa.array([], pa.int64())]
            found = pa.array([], pa.int64())
            for batch in file.iter_batches(columns=["connection_id"], use_threads=False):
                found = pc.unique(pa.concat_arrays([found, pc.unique(batch["connection_id"])]))
        return [pa.repeat(pa.scalar(path), len(found)), found]


@dataclass(frozen=True)
class AnswerFiles:
    """FILES of a group -> PACKED rows of its answer, for `mapInArrow` on one partition. Files of another file system
    than that of the worker's machine are copied until it has answered."""

    program: Program
    question: Question
    system: pyarrow.fs.FileSystem

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with tempfile.TemporaryDirectory(prefix="findings-") as directory:
            files: dict[str, list[str]] = {}
            for row in (row for batch in batches for row in batch.to_pylist()):
                files.setdefault(row["name"], []).append(row["path"])
            if not files:
                return
            if not isinstance(self.system, pyarrow.fs.LocalFileSystem):
                files = {name: self._copied(paths, f"{directory}/{name}") for name, paths in files.items()}
            resources = Resources(None, TASK_BYTES, directory)
            for name, rows in answer(files, self.program, self.question, resources).items():
                yield pack(name, rows)

    def _copied(self, paths: list[str], start: str) -> list[str]:
        targets = [f"{start}-{number}.parquet" for number in range(len(paths))]
        for path, target in zip(paths, targets, strict=True):
            pyarrow.fs.copy_files(path, target, self.system, pyarrow.fs.LocalFileSystem())
        return targets


def unpacked_findings(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """PACKED rows of findings -> these, for `mapInArrow`."""
    for batch in batches:
        for data in batch["data"]:
            yield from unpacked(data.as_buffer()).to_batches()
