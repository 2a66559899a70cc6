"""Print the columns of the tables and what they mean."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from typing import TYPE_CHECKING

from jobs.running import OK, UsageError
from udfs.source.suggestions import unknown

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

EPILOG = "Without TABLE, all tables.\n"

# Units by the end of a column's name; the first that fits. Only numbers have one.
UNITS = (
    (re.compile(r"(^|_)ts_ns$"), "ns since 1970-01-01 UTC"),
    (re.compile(r"_ns$"), "ns"),
    (re.compile(r"_ms$"), "ms"),
    (re.compile(r"_s$"), "s"),
    (re.compile(r"(_bytes|_size|_len|^size|^snaplen|frame_max|^body_seen)$"), "bytes"),
)

PAGE = """# Tables

Every column of every table; `wirehare schema --markdown` prints this page, `wirehare schema TABLE` one table to the
terminal. Types are Spark's, the files are Parquet. A null means that the capture does not show the value.

Tables join on `connection_id`. The key of a channel is `connection_id`, `channel` and `channel_life`, because channel
numbers are reused. The key of a frame is `connection_id` and `frame_no`, to which `first_frame_no`,
`settled_frame_no` and the other `*_frame_no` of the same connection refer. The key of a packet is `capture_file` and
`packet_no`, counted as in Wireshark.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", nargs="?", help="one table, such as messages")
    parser.add_argument("--markdown", action="store_true", help="as a page in Markdown (docs/tables.md)")


def run(arguments: argparse.Namespace) -> int:
    schemas = all_schemas()
    if arguments.table is not None and arguments.table not in schemas:
        raise UsageError(unknown("table", arguments.table, schemas))
    wanted = [arguments.table] if arguments.table else list(schemas)
    parts = [(table_markdown if arguments.markdown else table_text)(name, schemas[name]) for name in wanted]
    print("\n\n".join([PAGE.rstrip(), *parts] if arguments.markdown and not arguments.table else parts))
    return OK


def all_schemas() -> dict[str, StructType]:
    """Schemas by name: the tables that jobs write, then those that exist only in a Spark session."""
    from pipeline.schemas import FINDINGS, TABLES
    from udfs.schemas import PACKETS

    return {**TABLES, "findings": FINDINGS, "packets": PACKETS}


def meaning(column: StructField) -> str:
    return str(column.metadata.get("comment", ""))


def table_text(name: str, schema: StructType) -> str:
    """One table: name, type and documentation of each column, wrapped to the terminal."""
    rows = [(column.name, column.dataType.simpleString(), meaning(column)) for column in schema.fields]
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


def table_markdown(name: str, schema: StructType) -> str:
    """One table as a Markdown section: what a row stands for, then a line per column. Members follow their struct."""
    from pipeline.schemas import ROWS

    rows = [
        f"| `{path}` | `{column.dataType.simpleString()}` | {unit(column)} | {escaped(meaning(column))} |"
        for path, column in columns(schema)
    ]
    head = [
        f"## {name}",
        "",
        textwrap.fill(f"One row for each {ROWS[name]}.", 120),
        "",
        "| column | type | unit | meaning |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def columns(schema: StructType, above: str = "") -> list[tuple[str, StructField]]:
    """(path, column) in order, `tls` before `tls.mode`."""
    from pyspark.sql.types import StructType

    found = []
    for column in schema.fields:
        found.append((above + column.name, column))
        if isinstance(column.dataType, StructType):
            found += columns(column.dataType, f"{above}{column.name}.")
    return found


def unit(column: StructField) -> str:
    """The unit of a column, from its name; '' for counts and for columns that are not numbers."""
    from pyspark.sql.types import LongType

    if not isinstance(column.dataType, LongType):
        return ""
    return next((name for end, name in UNITS if end.search(column.name)), "")


def escaped(text: str) -> str:
    """Text for a Markdown table cell, with bars escaped."""
    return text.replace("|", "\\|")
