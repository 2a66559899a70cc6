"""Where a cut reads the tables: Parquet files without an engine, or DataFrames through Spark.

Most cuts ask for the rows of a few connections. Arrow has them before Spark would have started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from codec.errors import WirehareError
from pipeline.schemas import TABLES

if TYPE_CHECKING:
    from pipeline import Tables
    from pipeline.output.swap import Place

LISTED = 1000  # so many keys are a condition for Spark, more of them a join


class TablesError(WirehareError):
    """The tables do not have what is needed; the message is one line that says what is missing."""


class Rows(Protocol):
    """Reads some columns of the rows that have one of `keys`: a table whose columns are columns of `table` too."""

    def __call__(self, table: str, columns: Sequence[str], keys: pa.Table | None = None) -> pa.Table: ...


def written(directory: Place, uri: str | None = None) -> Rows:
    """Rows of the tables that `wirehare decode` has written into `directory`, or of the lake there; `uri`: as it was
    named."""
    from pipeline.lake import reading
    from pipeline.lake.place import is_lake

    lake = is_lake(directory)

    def rows(table: str, columns: Sequence[str], keys: pa.Table | None = None) -> pa.Table:
        try:
            return found(table, columns, keys)
        except (OSError, pa.ArrowInvalid) as error:
            raise TablesError(
                f"{directory.shown}: table {table} cannot be read; expected a directory that `wirehare decode` has "
                "written"
            ) from error

    def found(table: str, columns: Sequence[str], keys: pa.Table | None) -> pa.Table:
        of_lake = lake and table in TABLES
        dataset = (
            reading.dataset(directory, uri or directory.uri, table) if of_lake else directory.child(table).dataset()
        )
        if dataset is None or not dataset.schema.names:  # a table without a file
            raise TablesError(f"{directory.shown}: table {table} is empty")
        first = None if keys is None else pc.field(keys.column_names[0]).isin(keys.column(0).unique())
        wanted = list(dict.fromkeys([*columns, *(keys.column_names if keys is not None else ())]))
        missing = [name for name in wanted if name not in dataset.schema.names]
        if missing:
            raise TablesError(f"{directory.shown}: table {table} has no column {missing[0]}; is it one of ours?")
        return _among(dataset.to_table(columns=wanted, filter=first), keys).select(list(columns))

    return rows


def lazy(tables: Tables) -> Rows:
    """Rows of DataFrames: of `pipeline.decode`, or of `pipeline.load`."""

    def rows(table: str, columns: Sequence[str], keys: pa.Table | None = None) -> pa.Table:
        from pyspark.sql import functions as F

        frame = getattr(tables, table)
        if keys is not None and len(keys.column_names) == 1 and len(keys) <= LISTED:
            frame = frame.where(F.col(keys.column_names[0]).isin(keys.column(0).to_pylist()))
        elif keys is not None:
            few = frame.sparkSession.createDataFrame(keys)
            frame = frame.join(F.broadcast(few), keys.column_names, "left_semi")
        found: pa.Table = frame.select(*columns).toArrow()
        return found

    return rows


def keyed(rows: pa.Table, keys: pa.Table | None) -> pa.Table:
    """The `rows` that have one of `keys`."""
    if keys is None:
        return rows
    first = keys.column_names[0]
    return _among(rows.filter(pc.is_in(rows[first], keys.column(0).cast(rows.schema.field(first).type).unique())), keys)


def _among(rows: pa.Table, keys: pa.Table | None) -> pa.Table:
    """The `rows` whose values occur in `keys` together."""
    if keys is None or len(keys.column_names) == 1:
        return rows
    names = keys.column_names
    places = rows.select(names).append_column("row", pa.array(range(len(rows)), pa.int64()))
    cast = keys.cast(pa.schema([rows.schema.field(name) for name in names]))
    kept = places.join(cast, keys=names, join_type="left semi")["row"]
    return rows.take(kept.combine_chunks().sort()) if len(kept) else rows.slice(0, 0)
