"""Groups in tasks of Spark: rows of all tables come to the task of their group, answers go back to the driver.

Tables have different columns, but a shuffle has one schema: batches travel as streams of Arrow (PACKED).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from codec.tables import BINARY, INT, STRING, table_of
from udfs.arrow.types import as_structs, as_variants, variant_columns
from udfs.findings.evaluation import TASK_BYTES, Question, Resources, answer, parquet_file, paths_of
from udfs.findings.program import Program
from udfs.sink.parquet import ParquetFiles

# Rows in transit: `octets` is a stream of Arrow with some rows of the table or answer `name`; tables have a `group_no`.
PACKED = table_of(
    "packed", ("group_no", INT, "group of connections"), ("name", STRING, "table"), ("octets", BINARY, "some rows")
)


def pack(name: str, rows: pa.Table | pa.RecordBatch, group: int = 0) -> pa.RecordBatch:
    """A row of PACKED."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write(rows)
    octets = pa.array([sink.getvalue().to_pybytes()], pa.binary())
    return pa.RecordBatch.from_arrays([pa.array([group], pa.int32()), pa.array([name]), octets], names=PACKED.names)


def unpacked(octets: pa.Buffer) -> pa.Table:
    """The rows of a stream of Arrow."""
    return pa.ipc.open_stream(octets).read_all()


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
                for name, octets in zip(batch["name"].to_pylist(), batch["octets"], strict=True):
                    if name not in files:
                        files[name] = parquet_file(f"{directory}/{name}", schemas[name])
                    rows = unpacked(octets.as_buffer())
                    for each in as_variants(rows, variant_columns(schemas[name])).to_batches():
                        files[name].write(each)
            paths = {name: paths_of(file, f"{directory}/{name}", schemas[name]) for name, file in files.items()}
            resources = Resources(None, TASK_BYTES, directory)
            for name, rows in answer(paths, self.program, self.question, resources).items():
                yield pack(name, rows)


def unpacked_findings(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """PACKED rows of findings -> these, for `mapInArrow`."""
    for batch in batches:
        for octets in batch["octets"]:
            yield from unpacked(octets.as_buffer()).to_batches()
