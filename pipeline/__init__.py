"""Captures in, tables out: `decode` for notebooks, `from_decoded` and `load` for rows already written.

    tables = pipeline.decode(spark, "captures/*.pcapng")
    tables.connections.show()

Everything is lazy but `findings`, which looks when it is called. Works on classic Spark and over Spark Connect.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline import views
from pipeline.audit import findings
from pipeline.cutting import cut
from pipeline.decoding import decoded
from pipeline.derivation import Derivation
from pipeline.heartbeats import heartbeats
from pipeline.parts import Followed
from pipeline.schemas import TABLES
from pipeline.summaries import backlog, consumers, latency, rates
from pipeline.tables.flows import message_flows

__all__ = [
    "TABLES", "Tables", "backlog", "consumers", "cut", "decode", "decoded", "findings", "from_decoded", "heartbeats",
    "latency", "load", "rates", "views",
]  # fmt: skip


@dataclass(frozen=True)
class Tables:
    """The tables as lazy DataFrames, each with the columns of `pipeline.schemas.TABLES`."""

    captures: DataFrame
    frames: DataFrame
    streams: DataFrame
    connections: DataFrame
    channels: DataFrame
    links: DataFrame
    methods: DataFrame
    messages: DataFrame
    message_flows: DataFrame
    persisted: tuple[DataFrame, ...] = field(default=(), repr=False)

    def items(self) -> Iterator[tuple[str, DataFrame]]:
        """(name, table) in the order of TABLES."""
        return ((name, getattr(self, name)) for name in TABLES)

    def having(self, **tables: DataFrame) -> Tables:
        """The same with these tables in the place of its own."""
        other = copy(self)
        other.__dict__.update(tables)
        return other

    def release(self) -> None:
        """Drop the rows that Spark kept; the tables can still be used, and are then computed anew."""
        # The last first: rows that are made of dropped ones are planned anew by Spark, for seconds.
        for rows in reversed(self.persisted):
            rows.unpersist()


class Planned(Tables):
    """Tables that are planned when they are first asked for, which takes Spark seconds for some of them.

    `decoded`: rows that are kept, if they are.
    """

    _parts: Followed
    _derived: Derivation
    _decoded: Sequence[DataFrame]

    def __init__(self, parts: Followed, derived: Derivation, decoded: Sequence[DataFrame] = ()) -> None:
        self.__dict__.update(_parts=parts, _derived=derived, _decoded=decoded)

    def __getattr__(self, name: str) -> DataFrame:
        if name not in TABLES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        rows: DataFrame = self.__dict__.setdefault(name, self._derived.whole(name))
        return rows

    def __repr__(self) -> str:
        """Their names: nothing is planned to be shown."""
        return f"Tables({', '.join(TABLES)})"

    @property
    def persisted(self) -> tuple[DataFrame, ...]:  # type: ignore[override]
        return (*self._decoded, *self._parts.kept)


def from_decoded(decoded: DataFrame, *, payload: bool = False, versions: Collection[str] | None = None) -> Tables:
    """The tables of decoded rows (`udfs.schemas.DECODED`); `payload` fills column `body` of messages.

    `decoded` is read several times: it should come from files, or be persisted. Channels, links and messages share
    rows that are kept once they are computed (`Tables.release` drops them). `versions`: those that occur, where the
    caller knows; the others are not planned for, which saves seconds.
    """
    return _planned(decoded, (), payload, versions)


def _planned(decoded: DataFrame, kept: Sequence[DataFrame], payload: bool, versions: Collection[str] | None) -> Tables:
    parts = Followed(decoded, payload=payload, versions=versions)
    return Planned(parts, Derivation(parts, payload=payload), kept)


def decode(
    spark: SparkSession, paths: str | Sequence[str], *, versions: Collection[str] | None = None, **choices: Any
) -> Tables:
    """The tables of captures, for notebooks; `versions` as for `from_decoded`, `choices` as for `decoded`.

    Lazy: the first action decodes, and Spark keeps the decoded rows (memory, then disk) for the others until
    `Tables.release`. What only runs once, or over more than the disk holds, writes `decoded` rows to files instead.
    """
    rows = decoded(spark, paths, **choices).persist(StorageLevel.MEMORY_AND_DISK)
    return _planned(rows, [rows], choices.get("payload", False), versions)


def load(spark: SparkSession, directory: str) -> Tables:
    """The tables that a job has written under `directory`, one folder each; one that was not written is empty, but for
    message_flows, which are made of messages and connections.

    A relative path is a directory of this process, wherever Spark was started, if there is such a one.
    """
    if os.path.isdir(directory) and not os.path.isabs(directory):
        directory = f"file://{os.path.abspath(directory)}"
    read = {name: _read(spark, f"{directory.rstrip('/')}/{name}", schema) for name, schema in TABLES.items()}
    found = {name: table or spark.createDataFrame([], TABLES[name]) for name, table in read.items()}
    if read["message_flows"] is None and read["messages"] and read["connections"]:
        found["message_flows"] = message_flows(found["messages"], found["connections"])
    return Tables(**found, persisted=())


def _read(spark: SparkSession, folder: str, schema: StructType) -> DataFrame | None:
    try:
        # The schema is ours: Spark need not open files to learn it, which takes it a job for each table.
        return spark.read.schema(schema).parquet(folder).select(*schema.names)
    except AnalysisException as missing:
        if missing.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
