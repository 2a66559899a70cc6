"""Print the columns of the tables and what they mean."""

from __future__ import annotations

import argparse
import shutil
import textwrap

from codec.tables import ALL_TABLES, Column, Table
from jobs.terminal.running import OK, UsageError
from udfs.source.options import unknown

EPILOG = "Without TABLE, all tables.\n"

PAGE = """# Tables

For whoever queries the tables: every column with its unit and meaning. `wirehare schema --markdown` prints this page,
`wirehare schema TABLE` one table to the terminal. Types are Spark's, the files are Parquet. A null means that the
capture does not show the value.

Tables join on `connection_id`. The key of a channel is `connection_id`, `channel` and `channel_incarnation`, because
channel numbers are reused. The key of a frame is `connection_id` and `frame_no`, to which `first_frame_no`,
`settled_frame_no` and the other `*_frame_no` of the same connection refer. The key of a packet is `capture_file` and
`packet_no`, counted as in Wireshark.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", nargs="?", help="one table, such as messages")
    parser.add_argument("--markdown", action="store_true", help="as a page in Markdown (docs/tables.md)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.table is not None and arguments.table not in ALL_TABLES:
        raise UsageError(unknown("table", arguments.table, ALL_TABLES))
    wanted = [ALL_TABLES[arguments.table]] if arguments.table else ALL_TABLES.values()
    parts = [(table_markdown if arguments.markdown else table_text)(table) for table in wanted]
    print("\n\n".join([PAGE.rstrip(), *parts] if arguments.markdown and not arguments.table else parts))
    return OK


def table_text(table: Table) -> str:
    """One table: name, type and documentation of each column, wrapped to the terminal."""
    rows = [(column.name, str(column.type), column.doc) for column in table]
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
    return "\n".join([table.name, *lines])


def table_markdown(table: Table) -> str:
    """One table as a Markdown section: what a row stands for, then a line per column. Members follow their struct."""
    rows = [
        f"| `{path}` | `{column.type}` | {column.unit} | {escaped(column.doc)} |" for path, column in columns(table)
    ]
    head = [
        f"## {table.name}",
        "",
        textwrap.fill(f"One row for each {table.row}.", 120),
        "",
        "| column | type | unit | meaning |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def columns(table: Table, above: str = "") -> list[tuple[str, Column]]:
    """(path, column) in order, `tls` before `tls.mode`."""
    found = []
    for column in table:
        found.append((above + column.name, column))
        if isinstance(column.type, Table):
            found += columns(column.type, f"{above}{column.name}.")
    return found


def escaped(text: str) -> str:
    """Text for a Markdown table cell, with bars escaped."""
    return text.replace("|", "\\|")
