"""Tables of a lake as DataFrames: Spark reads the files that the logs name.

All tables are read as of the same batch, the last one that was committed as a whole, however many commits of the next
batch are there already. Files that a later batch replaces stay for an hour (`pipeline.lake.log.CONFIGURATION`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.lake.layout import NS, LakeFile
from pipeline.lake.log import Log
from pipeline.lake.place import existing, is_lake
from pipeline.output.swap import OutputError, Place, escape_glob, place
from pipeline.schemas import TABLES

# When rows begin and end, as ns or TIMESTAMP columns: a row is wanted if it lasts into the time that is asked for.
LASTS = {
    "captures": ("first_ts", "last_ts"),
    "frames": ("ts_ns", "ts_ns"),
    "connections": ("opened_ts", "closed_ts"),
    "channels": ("opened_ts", "closed_ts"),
    "links": ("opened_ts", "closed_ts"),
    "methods": ("ts_ns", "ts_ns"),
    "messages": ("ts_ns", "ts_ns"),
}


@dataclass(frozen=True)
class Span:
    """From `since_ns` on and before `until_ns`, ns since 1970-01-01 UTC; None: without a bound."""

    since_ns: int | None = None
    until_ns: int | None = None

    @classmethod
    def of(cls, since: Any, until: Any) -> Span:
        """As people name times (`udfs.source.options.parse_time`); None: without a bound. Raises OptionError."""
        from udfs.source.options import parse_time  # not above: it loads kernels

        given = {"since": since, "until": until}
        known = {f"{name}_ns": parse_time(str(time), name) for name, time in given.items() if time is not None}
        return cls(**known)

    @property
    def bounded(self) -> bool:
        """Whether it is less than all times."""
        return self.since_ns is not None or self.until_ns is not None

    def holds(self, name: str, file: LakeFile) -> bool:
        """Whether rows of this file may lie in it. Rows are filed under the day of their end (`DAY_OF`)."""
        if file.open or file.day is None:
            return True
        if self.since_ns is not None and file.day < day_of(self.since_ns):
            return False
        # What ends later may have begun in time, but for what has one time.
        begins, ends = LASTS.get(name, ("", "end"))
        return begins != ends or self.until_ns is None or file.day <= day_of(self.until_ns - 1)


def day_of(ns: int) -> date:
    """The day in UTC."""
    return datetime.fromtimestamp(ns // NS, UTC).date()


def at(directory: str) -> bool:
    """Whether a lake is there."""
    try:
        return is_lake(place(directory))
    except OutputError:
        return False


def tables(spark: SparkSession, directory: str, span: Span) -> Mapping[str, DataFrame]:
    """All tables of a lake as of its last batch, with the columns of `pipeline.schemas.TABLES`. Raises LakeError."""
    log = Log(existing(directory), directory)
    batch = log.batch("captures")
    return within({name: _table(spark, log, name, batch, span) for name in TABLES}, span)


def named_files(directory: str, span: Span) -> Iterator[LakeFile]:
    """The files of all tables of a lake, as of its last batch, that may have rows in this time."""
    log = Log(existing(directory), directory)
    batch = log.batch("captures")
    for name in TABLES if batch else ():
        yield from (file for file in log.files(name, batch) if span.holds(name, file))


def dataset(root: Place, directory: str, name: str) -> pa.dataset.Dataset | None:
    """A table of a lake, as of its last batch, for Arrow; None if it has no file."""
    log = Log(root, directory)
    paths = [f"{root.path}/{name}/{file.path}" for file in log.files(name, log.batch("captures"))]
    return pa.dataset.dataset(paths, filesystem=root.files, format="parquet") if paths else None


def _table(spark: SparkSession, log: Log, name: str, batch: int, span: Span) -> DataFrame:
    files = [file for file in (log.files(name, batch) if batch else ()) if span.holds(name, file)]
    if not files:
        return spark.createDataFrame([], TABLES[name])
    folder = log.root.child(name)
    paths = [escape_glob(f"{folder.uri}/{file.path}") for file in files]
    # The schema is ours; columns that files of an older release do not have are null.
    return spark.read.schema(TABLES[name]).option("recursiveFileLookup", "true").parquet(*paths)


def within(found: Mapping[str, DataFrame], span: Span) -> Mapping[str, DataFrame]:
    """Of all tables the rows that last into this time."""
    if not span.bounded:
        return found
    chosen = {name: found[name].filter(_within(_ns(begins), _ns(ends), span)) for name, (begins, ends) in LASTS.items()}
    connections = F.broadcast(chosen["connections"].select("connection_id"))
    at = F.coalesce("publish_ts_ns", "deliver_ts_ns")
    chosen["streams"] = found["streams"].join(connections, "connection_id", "left_semi")
    chosen["message_flows"] = found["message_flows"].filter(_within(at, at, span))
    return {name: chosen[name] for name in found}


def _within(begins: Column, ends: Column, span: Span) -> Column:
    """What has no end goes on."""
    since = F.lit(True) if span.since_ns is None else F.coalesce(ends >= span.since_ns, F.lit(True))
    return since if span.until_ns is None else since & F.coalesce(begins < span.until_ns, F.lit(True))


def _ns(name: str) -> Column:
    return F.col(name) if name.endswith("_ns") else F.unix_micros(name) * 1000
