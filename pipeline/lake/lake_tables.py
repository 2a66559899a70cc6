"""Tables of a lake as DataFrames: Spark reads the files that the logs name.

All tables are read as of the last batch that is committed to all of them. Files that a later batch replaces are deleted
an hour later (`pipeline.lake.log.CONFIGURATION`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset

from codec.tables import DAY_OF, TABLES
from pipeline.lake.layout import NS, LakeFile
from pipeline.lake.log import Log
from pipeline.lake.opening import is_lake, open_lake
from pipeline.output.location import Location, OutputError, escape_glob, location

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Columns (ns or TIMESTAMP) with begin and end of rows, by DAY_OF: rows that overlap the time span are selected.
# Of tables without such columns, the rows of selected connections are.
SPANS = {
    "last_ts": ("first_ts", "last_ts"), "closed_ts": ("opened_ts", "closed_ts"), "until_ts": ("from_ns", "until_ns"),
    "ts": ("ts_ns", "ts_ns"),
}  # fmt: skip
TIME_COLUMNS = {name: SPANS[day] for name, day in DAY_OF.items() if day}


@dataclass(frozen=True)
class Span:
    """From `since_ns` on and before `until_ns`, ns since 1970-01-01 UTC; None: unbounded."""

    since_ns: int | None = None
    until_ns: int | None = None

    @classmethod
    def of(cls, since: Any, until: Any) -> Span:
        """The span between two times in any form that `udfs.source.options.parse_time` accepts. Raises OptionError."""
        from udfs.source.options import parse_time  # not above: it loads kernels

        given = {"since": since, "until": until}
        known = {f"{name}_ns": parse_time(str(time), name) for name, time in given.items() if time is not None}
        return cls(**known)

    @property
    def bounded(self) -> bool:
        return self.since_ns is not None or self.until_ns is not None

    def may_contain(self, name: str, file: LakeFile) -> bool:
        """Whether the file may have rows in it. Rows are in the day of their end (`DAY_OF`)."""
        if file.open or file.day is None:
            return True
        if self.since_ns is not None and file.day < day_of(self.since_ns):
            return False
        # Rows that end later may have begun before `until`, unless they have only one time.
        begins, ends = TIME_COLUMNS.get(name, ("", "end"))
        return begins != ends or self.until_ns is None or file.day <= day_of(self.until_ns - 1)


def day_of(ns: int) -> date:
    return datetime.fromtimestamp(ns // NS, UTC).date()


def at(directory: str) -> bool:
    try:
        return is_lake(location(directory))
    except OutputError:
        return False


def tables(spark: SparkSession, directory: str, span: Span) -> tuple[Mapping[str, DataFrame], int]:
    """All tables of a lake as of its last batch, with the columns of `codec.tables.TABLES`, and the bytes of their
    files. Raises LakeError."""
    root = open_lake(directory)
    files = files_of(Log(root, directory), span)
    return within({name: _table(spark, root, name, files[name]) for name in TABLES}, span), _bytes(files)


def byte_size(directory: str, span: Span) -> int:
    """Bytes of the files of a lake, as of its last batch, that may have rows in the time span. Raises LakeError."""
    return _bytes(files_of(Log(open_lake(directory), directory), span))


def _bytes(files: Mapping[str, Sequence[LakeFile]]) -> int:
    return sum(file.size for of_table in files.values() for file in of_table)


def files_of(log: Log, span: Span) -> dict[str, list[LakeFile]]:
    """By table: the files as of the last batch that may have rows in the time span."""
    batch = log.batch("captures")
    return {
        name: log.readable(
            name, (file for file in (log.files(name, batch) if batch else ()) if span.may_contain(name, file))
        )
        for name in TABLES
    }


def dataset(root: Location, directory: str, name: str) -> pa.dataset.Dataset | None:
    """A table of a lake, as of its last batch, as an Arrow dataset; None if it has no file."""
    log = Log(root, directory)
    paths = [f"{root.path}/{name}/{file.path}" for file in log.readable(name, log.files(name, log.batch("captures")))]
    return pa.dataset.dataset(paths, filesystem=root.files, format="parquet") if paths else None


def _table(spark: SparkSession, root: Location, name: str, files: Sequence[LakeFile]) -> DataFrame:
    from udfs.arrow.spark_schemas import read_files, spark_schema

    if not files:
        return spark.createDataFrame([], spark_schema(TABLES[name]))
    folder = root.child(name)
    paths = [escape_glob(f"{folder.uri}/{file.path}") for file in files]
    return read_files(spark.read.option("recursiveFileLookup", "true"), TABLES[name], paths)


def within(found: Mapping[str, DataFrame], span: Span) -> Mapping[str, DataFrame]:
    """The rows of all tables that overlap the time span."""
    if not span.bounded:
        return found
    overlapping = {
        name: found[name].filter(_within(_ns(begins), _ns(ends), span)) for name, (begins, ends) in TIME_COLUMNS.items()
    }
    from pyspark.sql import functions as F

    connections = F.broadcast(overlapping["connections"].select("connection_id"))
    at = F.coalesce("publish_ts_ns", "deliver_ts_ns")
    overlapping["message_flows"] = found["message_flows"].filter(_within(at, at, span))
    return {
        name: overlapping.get(name) or found[name].join(connections, "connection_id", "left_semi") for name in found
    }


def _within(begins: Column, ends: Column, span: Span) -> Column:
    """Rows without an end are still open."""
    from pyspark.sql import functions as F

    since = F.lit(True) if span.since_ns is None else F.coalesce(ends >= span.since_ns, F.lit(True))
    return since if span.until_ns is None else since & F.coalesce(begins < span.until_ns, F.lit(True))


def _ns(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(name) if name.endswith("_ns") else F.unix_micros(name) * 1000
