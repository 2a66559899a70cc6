"""Wirehare in a notebook: one import for all that a person needs there.

    import wirehare

    spark = wirehare.session()
    tables = wirehare.decode(spark, "captures/*.pcapng")
    tables.messages.groupBy("outcome").count().show()
    wirehare.plots.ladder(tables)

`session()` gives a Spark session, `decode` and `load` the tables, `plots` pictures of them; `findings`, `latency`,
`rates`, `heartbeats`, `backlog` and `consumers` evaluate them, `explain` says why a connection ended or messages wait,
`diff` what changed between two captures, `cut` writes packets. `write` decodes to files, with a session or, without
Spark, with `LocalProcesses()`; `ingest` appends to a lake. `register` adds the SQL functions to a session. Importing
this module starts nothing and takes no time: each name is imported when it is first used.
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
    from pipeline.run.processes import LocalProcesses as LocalProcesses
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
    "LocalProcesses": ("pipeline.run.processes", "LocalProcesses"),
    "register": ("udfs", "register"),
    "WirehareError": ("codec.errors", "WirehareError"),
}
PACKAGES = ("codec", "udfs", "pipeline")  # those of ours that are imported, here and by Spark's workers
__all__ = list(HOMES)


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
    current directory first, and a notebook may well lie beside a `pipeline.py`."""
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
