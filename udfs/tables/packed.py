"""All tables in one pass of Spark: workers return batches of any table as bytes, and of these the rows of one table.

    packed = runs.mapInArrow(PackTables(config), spark_schema(PACKED))
    frames = packed.where("table = 'frames'").mapInArrow(UnpackTable(schema), spark_schema(schema))

Classes, not nested functions: those would travel to the workers with the kernels that they name, which would be
compiled anew there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from codec.tables import PACKED, Table
from udfs.arrow.types import arrow_schema, cast_column
from udfs.decode.key_logs import SecretFiles
from udfs.tables import tables_of
from udfs.workers.worker_config import Config

MOST_ROWS = 1 << 14  # in one row of PACKED


def packed(rows: pa.RecordBatch) -> bytes:
    """A stream of Arrow IPC."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue())


@dataclass(frozen=True)
class PackTables:
    """The function for `mapInArrow` over sorted runs -> PACKED. `secrets`: where TLS secrets are."""

    config: Config
    secrets: SecretFiles | None = None

    def __call__(self, runs: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(PACKED)
        for table, _, rows in tables_of(runs, self.config, secrets=self.secrets):
            for at in range(0, rows.num_rows, MOST_ROWS):
                columns = {"table": [table], "rows": [packed(rows.slice(at, MOST_ROWS))]}
                yield pa.RecordBatch.from_pydict(columns, schema)


@dataclass(frozen=True)
class UnpackTable:
    """The function for `mapInArrow` over rows of PACKED that are of one table -> the rows of this table."""

    schema: Table

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self.schema)
        for batch in batches:
            for value in batch["rows"]:
                for rows in pa.ipc.open_stream(value.as_buffer()):
                    columns = [cast_column(rows[field.name], field.type, False) for field in schema]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
