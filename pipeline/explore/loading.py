"""The tables of captures, or those that were written to a directory or a lake, as lazy DataFrames."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from codec.errors import WirehareError
from codec.tables import TABLES, Table
from pipeline.lake import lake_tables as reading
from pipeline.lake.lake_tables import Span
from pipeline.output.location import OutputError, escape_glob, location
from pipeline.run.session import ONE_PARTITION_BYTES
from pipeline.tables.dataframes import (
    DecodedTables,
    Tables,
    empty,
    stream_queues,
    with_to_arrow,
)
from pipeline.tables.decoding import PacketFilter, Time, packed
from udfs.arrow.spark_schemas import read_files, spark_schema
from udfs.source.capture_bytes import public_uri
from udfs.source.options import suggesting

PARTITION_LEVELS = 3  # of folders name=value above tables, as in tables/site=paris/date=2026-11-20/frames


@suggesting
def decode(
    spark: SparkSession,
    paths: str | Sequence[str],
    *,
    payload: bool = False,
    ports: int | Sequence[int] | None = None,
    hosts: str | Sequence[str] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    split_bytes: int | None = None,
    keylog: str | Sequence[str] | None = None,
) -> Tables:
    """The tables of captures, for notebooks.

    Lazy: the first action decodes, all tables in one pass, and Spark caches their rows (memory, then disk) until
    `Tables.release`. If they exceed the disk, or are used again later, `write` them to files instead.

    paths
        Captures: pcap or pcapng files (also .gz .zst .lz4), directories of them, glob patterns, URIs. Relative paths
        are under the working directory of this process. A capture that cannot be read is a row of `captures` with its
        error.
    payload
        Include message bodies (frames.payload, messages.body): much larger.
    ports, hosts
        Only connections with one of these ports, and with one of these IP addresses, on either side.
    since, until
        Only packets from `since` on and before `until`: '2026-01-31T08:00' (UTC unless it says otherwise), a datetime,
        or nanoseconds since 1970-01-01 UTC.
    split_bytes
        Uncompressed captures above this size are read in several splits; the rows are the same.
    keylog
        Key logs with the secrets of TLS connections, as SSLKEYLOGFILE makes them (see docs/tls.md). Secrets in the
        captures themselves (Decryption Secrets Blocks of pcapng) are found without it.
    """
    packet_filter = PacketFilter(
        ports=ports, hosts=hosts, since=since, until=until, split_bytes=split_bytes, keylog=keylog
    )
    return DecodedTables(packed(spark, paths, payload=payload, **packet_filter))


class NoTables(WirehareError, ValueError):
    """There are no tables to load; the message is one line that says where they were expected."""


@suggesting
def load(spark: SparkSession, directory: str, *, since: Time | None = None, until: Time | None = None) -> Tables:
    """The tables that a job has written under `directory`, one folder each, or those of a lake as of its last batch. A
    table that was not written is empty; only message_flows are then derived from messages and connections.

    since, until
        Only rows of this time: frames, methods and messages from `since` on and before `until`, and the connections,
        channels and links that were open then. Of a lake, files of other days are not read.

    If `directory` has no tables, but has partition folders with tables (`tables/date=2026-11-20/frames`, up to
    PARTITION_LEVELS deep), these are loaded as one, with the columns of the partitions. Raises NoTables if there are
    none. A relative path is under the working directory of this process, if it exists there.
    """
    span = Span.of(since, until)
    if reading.at(directory):
        of_lake, byte_size = reading.tables(spark, directory, span)
        return _arrowed(of_lake, byte_size)
    named, base = directory, directory.rstrip("/")
    if os.path.isdir(directory):
        base = base if os.path.isabs(directory) else f"file://{os.path.abspath(directory)}"
        directory = escape_glob(base)
    # Looking here first is fast: Spark would look for each table at each level. But on a cluster an absolute path may
    # belong to another file system than that of this machine.
    here = not os.path.isabs(named) or str(spark.conf.get("spark.master", "")).startswith("local")
    local = here and os.path.isdir(named)
    for level in range(PARTITION_LEVELS + 1) if not local or _has_folders(named) else ():
        below = f"{directory.rstrip('/')}/{'*=*/' * level}"
        options = {"basePath": base} if level else {}
        read = {name: _read(spark, f"{below}{name}", table, options) for name, table in TABLES.items()}
        if any(table is not None for table in read.values()):
            break
    else:
        raise NoTables(
            f"{public_uri(named)}: holds none of our tables; expected a directory that `wirehare decode` has written, "
            "or one of such directories named like date=2026-11-20"
        )
    by_folder = next(rows.schema.fields[len(TABLES[name].names) :] for name, rows in read.items() if rows is not None)
    missing = {name: StructType([*spark_schema(table).fields, *by_folder]) for name, table in TABLES.items()}
    found = {name: table or empty(spark, missing[name]) for name, table in read.items()}
    if read["message_flows"] is None and read["messages"] and read["connections"]:
        from pipeline.tables.message_flows import message_flows  # not above: it loads kernels

        streams = stream_queues(found["methods"]) if read["methods"] else None
        found["message_flows"] = message_flows(
            found["messages"], found["connections"], streams, found["links"], found["stalls"]
        )
    loaded = _arrowed(reading.within(found, span), _byte_size(named))
    return loaded if by_folder or span.bounded else replace(loaded, directory=base)


def _has_folders(directory: str) -> bool:
    """Whether a local directory has folders of tables, or of partitions."""
    with os.scandir(directory) as entries:
        return any(entry.name in TABLES or "=" in entry.name for entry in entries)


def _arrowed(tables: Mapping[str, DataFrame], byte_size: int | None) -> Tables:
    """Loaded tables. Small ones have one partition: more of them would be more tasks for every query."""
    small = byte_size is not None and byte_size < ONE_PARTITION_BYTES
    found = {name: with_to_arrow(rows.coalesce(1) if small else rows) for name, rows in tables.items()}
    return Tables(**found, persisted=(), directory=None, byte_size=byte_size)


def _byte_size(directory: str) -> int | None:
    """Bytes of the tables in a directory; None if it has none itself, or Arrow cannot reach it, as Spark can."""
    try:
        root = location(directory)
        return sum(root.child(name).byte_size() for name in TABLES) or None
    except (OSError, OutputError):
        return None


def _read(spark: SparkSession, folder: str, table: Table, options: Mapping[str, str]) -> DataFrame | None:
    """A table, with the columns of partition folders at the end; None if the folder does not exist."""
    try:
        return read_files(spark.read.options(**options), table, [folder])
    except AnalysisException as missing:
        if missing.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
