"""AMQP wire captures to tables, and answers from them: the public API, for notebooks and programs.

    import wirehare

    spark = wirehare.session()
    tables = wirehare.decode(spark, "captures/*.pcapng")
    tables.messages.groupBy("outcome").count().show()

    session()                       start Spark, or take the session that runs
    decode(spark, captures)         the tables of captures, as lazy DataFrames
    load(spark, directory)          the tables that `wirehare decode` has written, or those of a lake
    write(spark, captures, out)     decode into Parquet files; with `LocalProcesses()` for `spark`, without Spark
    ingest(spark, captures, lake)   append new captures to a lake
    findings(tables)                the rules of the protocol and of good practice that connections break
    latency(tables), rates, heartbeats, backlog, consumers    summaries of tables
    explain(directory, subject)     why a connection ended, why messages wait, what became of a message
    diff(before, after)             what changed between two directories of tables
    plots.ladder(tables) ...        pictures: `help(wirehare.plots)`
    views.otel(tables) ...          tables with the names of OpenTelemetry, Elastic Common Schema and Zeek
    cut(tables, file)               the packets of some rows, for Wireshark
    register(spark)                 add the SQL functions and the data source `pcap` to a session
    to_arrow(rows)                  rows as a pyarrow.Table, also with VARIANT columns

`help(wirehare.decode)` and so on has the options. `TABLES` has the schema of each table. Errors are `WirehareError`s.
Each name is imported when it is first used; `import wirehare` starts nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codec.errors import WirehareError as WirehareError
    from pipeline import TABLES as TABLES
    from pipeline import NoTables as NoTables
    from pipeline import Tables as Tables
    from pipeline import backlog as backlog
    from pipeline import consumers as consumers
    from pipeline import cut as cut
    from pipeline import decode as decode
    from pipeline import findings as findings
    from pipeline import heartbeats as heartbeats
    from pipeline import ingest as ingest
    from pipeline import latency as latency
    from pipeline import load as load
    from pipeline import plots as plots
    from pipeline import rates as rates
    from pipeline import to_arrow as to_arrow
    from pipeline import write as write
    from pipeline.diff import diff as diff
    from pipeline.explain import explain as explain
    from pipeline.run.local_processes import LocalProcesses as LocalProcesses
    from pipeline.run.session import session as session
    from udfs import register as register

# Name -> the module that it is imported from; a module itself has an empty name there.
FROM_PIPELINE = (
    "TABLES", "NoTables", "Tables", "backlog", "consumers", "cut", "decode", "findings", "heartbeats", "ingest",
    "latency", "load", "rates", "to_arrow", "write",
)  # fmt: skip
HOMES = {
    **{name: ("pipeline", name) for name in FROM_PIPELINE},
    "plots": ("pipeline.plots", ""),
    "views": ("pipeline.explore.views", ""),
    "diff": ("pipeline.diff", "diff"),
    "explain": ("pipeline.explain", "explain"),
    "session": ("pipeline.run.session", "session"),
    "LocalProcesses": ("pipeline.run.local_processes", "LocalProcesses"),
    "register": ("udfs", "register"),
    "WirehareError": ("codec.errors", "WirehareError"),
}
PACKAGES = ("codec", "udfs", "pipeline")  # those of ours that are imported, here and by Spark's workers
# Classes would fill the first screens of `help(wirehare)`.
__all__ = [name for name in HOMES if name == "TABLES" or not name[0].isupper()]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        hint = ""
        if not name.startswith("_"):  # asked for by tools
            from udfs.source.options import meant

            hint = meant(name, HOMES)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name, obj=None)
    home, inside = HOMES[name]
    module = importlib.import_module(home)
    found = globals()[name] = getattr(module, inside) if inside else module
    return found


def __dir__() -> list[str]:
    return sorted(HOMES)


def require_ours() -> None:
    """Raise ImportError, which names the file, where another module hides one of our packages: Python looks into the
    current directory first, and a notebook may sit next to a `pipeline.py`."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name in PACKAGES:
        found = location(name)
        if found is not None and os.path.realpath(found) != os.path.realpath(os.path.join(here, name, "__init__.py")):
            raise ImportError(
                f"{found} hides the package {name!r} of wirehare, which is needed: rename it, or work in another "
                "directory",
                name=name,
                path=found,
            )


def location(name: str) -> str | None:
    """The file that `import name` gives, or has given; None if there is none."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    spec = importlib.util.find_spec(name)
    return None if spec is None else spec.origin


require_ours()
