"""Captures in, tables out, and what is made of tables: the API of notebooks, which the jobs call as well.

    tables = pipeline.decode(spark, "captures/*.pcapng")
    tables.connections.show()

The public names:

    decode, load, Tables    the tables of captures, or those in a directory or a lake, as lazy DataFrames
    write, ingest           decode captures to a directory of Parquet files, or append them to a lake
    findings                what breaks the protocol, is insecure or obsolete
    latency, rates, heartbeats, backlog, consumers    summaries of tables
    views                   tables with the names of OpenTelemetry, Elastic Common Schema and Zeek
    cut                     write the packets of some rows, for Wireshark
    to_arrow, TABLES        rows as a pyarrow.Table; the schema of each table
    NoTables                the error of `load`, a `codec.errors.WirehareError`

Everything that returns a DataFrame is lazy except `findings`, which searches when it is called. Works on classic Spark
and over Spark Connect. `diagnosis` says what a machine or capture lacks; `class_archive` lets the JVM start sooner.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.audit import findings as findings
    from pipeline.explore import views
    from pipeline.explore.loading import NoTables as NoTables
    from pipeline.explore.loading import decode as decode
    from pipeline.explore.loading import load as load
    from pipeline.explore.summaries import backlog as backlog
    from pipeline.explore.summaries import consumers as consumers
    from pipeline.explore.summaries import heartbeats as heartbeats
    from pipeline.explore.summaries import latency as latency
    from pipeline.explore.summaries import rates as rates
    from pipeline.extract import cut as cut
    from pipeline.lake import ingest as ingest
    from pipeline.tables.dataframes import Tables as Tables
    from pipeline.tables.dataframes import to_arrow as to_arrow
    from pipeline.tables.write_tables import write as write
    from udfs.arrow.spark_schemas import TABLES as TABLES

# Name -> the module that it is imported from when it is first used: a command that needs no Spark loads none of it.
HOMES = {
    **dict.fromkeys(("NoTables", "decode", "load"), "pipeline.explore.loading"),
    **dict.fromkeys(("Tables", "to_arrow"), "pipeline.tables.dataframes"),
    **dict.fromkeys(("backlog", "consumers", "heartbeats", "latency", "rates"), "pipeline.explore.summaries"),
    "TABLES": "udfs.arrow.spark_schemas",
    "cut": "pipeline.extract",
    "findings": "pipeline.audit",
    "ingest": "pipeline.lake",
    "write": "pipeline.tables.write_tables",
}
__all__ = [*HOMES, "views"]


def __getattr__(name: str) -> Any:
    if name == "views":
        return importlib.import_module("pipeline.explore.views")
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=None)
    found = globals()[name] = getattr(importlib.import_module(HOMES[name]), name)
    return found
