"""Rows of tables from decoded rows: the function that `mapInArrow` calls on these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from udfs.arrow.rows import with_parts
from udfs.arrow.types import arrow_schema
from udfs.schemas import Config
from udfs.tables import Tables


@dataclass(frozen=True)
class TableRows:
    """The function over DECODED rows, by connection, frames in their order and facts behind them -> rows of `schema`: a
    struct for each of `tables`, one of which is not null. `waiting_bytes` as for `Conversation`.

    A class of this module, not a nested function: that would travel to the workers with the kernels it names, and they
    would be compiled anew there.
    """

    config: Config
    tables: tuple[str, ...]
    waiting_bytes: int | None = None

    @property
    def schema(self) -> StructType:
        """One column a table."""
        return StructType([StructField(table, self.config.schemas[table]) for table in self.tables])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kinds = {table: arrow_schema(self.config.schemas[table]) for table in self.tables}
        schema = pa.schema([(table, pa.struct(list(kind))) for table, kind in kinds.items()])
        for table, rows in self.rows(batches):
            if table in kinds and rows.num_rows:
                values = [rows[column.name].cast(column.type) for column in kinds[table]]
                own = pa.StructArray.from_arrays(values, fields=list(kinds[table]))
                columns = [own if name == table else pa.nulls(len(own), schema.field(name).type) for name in kinds]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Table, rows."""
        tables = Tables(self.config, self.waiting_bytes)
        for batch in batches:
            rows = with_parts(batch)
            yield from tables.feed(rows.filter(pc.equal(rows["kind"], "frame")))
            yield from tables.end(rows.filter(pc.equal(rows["kind"], "connection")))
        yield from tables.finish()
