"""Print the columns of the tables and what they mean."""

from __future__ import annotations

import argparse
import shutil
import textwrap

from jobs.cli import OK, USAGE
from jobs.console import complain

EPILOG = "With no TABLE, all of them.\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", nargs="?", help="one table, such as messages")


def run(arguments: argparse.Namespace) -> int:
    """Print the schemas; the exit code."""
    from pipeline.schemas import TABLES

    if arguments.table is not None and arguments.table not in TABLES:
        complain(f"wirehare schema: no table {arguments.table!r}; expected one of {', '.join(TABLES)}")
        return USAGE
    wanted = [arguments.table] if arguments.table else list(TABLES)
    print("\n\n".join(described(name) for name in wanted))
    return OK


def described(name: str) -> str:
    """One table: a line a column with its name, its type and its documentation, wrapped to the terminal."""
    from pipeline.schemas import TABLES

    rows = [
        (field.name, field.dataType.simpleString(), str(field.metadata.get("comment", "")))
        for field in TABLES[name].fields
    ]
    types = [kind if len(kind) <= 20 else f"{kind[:17]}..." for _, kind, _ in rows]
    names = max(len(column) for column, _, _ in rows)
    left = 2 + names + 2 + max(map(len, types)) + 2
    width = max(shutil.get_terminal_size((120, 24)).columns, left + 40)
    lines = [
        textwrap.fill(
            documentation,
            width,
            initial_indent=f"  {column:<{names}}  {kind:<{left - names - 6}}  ",
            subsequent_indent=" " * left,
        )
        for (column, _, documentation), kind in zip(rows, types, strict=True)
    ]
    return "\n".join([name, *lines])
