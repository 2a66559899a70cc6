"""Reads the tables for a cut: Parquet files through Arrow, or DataFrames through Spark.

Most cuts need the rows of a few connections, which Arrow reads faster than Spark starts.
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

MOST_LISTED_KEYS = 1000  # up to this many keys become a filter in Spark, more become a join


class TablesError(WirehareError):
    """Tables or columns are missing; the message is one line that says which."""


class Rows(Protocol):
    """Reads some columns of the rows that have one of `keys`: a table whose columns are columns of `table` too."""

    def __call__(self, table: str, columns: Sequence[str], keys: pa.Table | None = None) -> pa.Table: ...


def from_files(directory: Place, uri: str | None = None) -> Rows:
    """Rows of the tables that `wirehare decode` has written into `directory`, or of the lake there; `uri`: as the user
    wrote it."""
    from pipeline.lake import reading
    from pipeline.lake.place import is_lake

    lake = is_lake(directory)

    def rows(table: str, columns: Sequence[str], keys: pa.Table | None = None) -> pa.Table:
        try:
            return found(table, columns, keys)
        except (OSError, pa.ArrowInvalid) as error:
            raise TablesError(
                f"{directory.display_name}: table {table} cannot be read; expected a directory that `wirehare decode` "
                "has written"
            ) from error

    def found(table: str, columns: Sequence[str], keys: pa.Table | None) -> pa.Table:
        of_lake = lake and table in TABLES
        dataset = (
            reading.dataset(directory, uri or directory.uri, table) if of_lake else directory.child(table).dataset()
        )
        if dataset is None or not dataset.schema.names:  # a table without a file
            raise TablesError(f"{directory.display_name}: table {table} is empty")
        first = None if keys is None else pc.field(keys.column_names[0]).isin(keys.column(0).unique())
        wanted = list(dict.fromkeys([*columns, *(keys.column_names if keys is not None else ())]))
        missing = [name for name in wanted if name not in dataset.schema.names]
        if missing:
            raise TablesError(f"{directory.display_name}: table {table} has no column {missing[0]}; is it one of ours?")
        return _semi_join(dataset.to_table(columns=wanted, filter=first), keys).select(list(columns))

    return rows


def from_dataframes(tables: Tables) -> Rows:
    """Rows of DataFrames, from `pipeline.decode` or `pipeline.load`."""

    def rows(table: str, columns: Sequence[str], keys: pa.Table | None = None) -> pa.Table:
        from pyspark.sql import functions as F

        frame = getattr(tables, table)
        if keys is not None and len(keys.column_names) == 1 and len(keys) <= MOST_LISTED_KEYS:
            frame = frame.where(F.col(keys.column_names[0]).isin(keys.column(0).to_pylist()))
        elif keys is not None:
            few = frame.sparkSession.createDataFrame(keys)
            frame = frame.join(F.broadcast(few), keys.column_names, "left_semi")
        found: pa.Table = frame.select(*columns).toArrow()
        return found

    return rows


def with_keys(rows: pa.Table, keys: pa.Table | None) -> pa.Table:
    """The `rows` that have one of `keys`."""
    if keys is None:
        return rows
    first = keys.column_names[0]
    return _semi_join(
        rows.filter(pc.is_in(rows[first], keys.column(0).cast(rows.schema.field(first).type).unique())), keys
    )


def _semi_join(rows: pa.Table, keys: pa.Table | None) -> pa.Table:
    """The `rows` whose values occur in `keys` together."""
    if keys is None or len(keys.column_names) == 1:
        return rows
    names = keys.column_names
    places = rows.select(names).append_column("row", pa.array(range(len(rows)), pa.int64()))
    cast = keys.cast(pa.schema([rows.schema.field(name) for name in names]))
    kept = places.join(cast, keys=names, join_type="left semi")["row"]
    return rows.take(kept.combine_chunks().sort()) if len(kept) else rows.slice(0, 0)
