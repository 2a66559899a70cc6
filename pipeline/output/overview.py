"""Overview of the tables: a line for a REPL, an HTML table for a notebook. Plans and computes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.schemas import ROWS, TABLES
from udfs.source.files import public_uri

if TYPE_CHECKING:
    from pipeline.output.place import Place

MOST_FILES = 100  # of a table, to read their footers for row counts


def line(directory: str | None) -> str:
    """The tables in a line, with row counts if the files in `directory` provide them."""
    counts = rows_of(directory)
    if not any(count is not None for count in counts.values()):
        return f"Tables({', '.join(TABLES)})"
    shown = ", ".join(name if count is None else f"{name}: {count:,}" for name, count in counts.items())
    return f"Tables({shown} rows)"


def page(directory: str | None) -> str:
    """The tables in HTML."""
    from markupsafe import Markup

    counts = rows_of(directory)
    line = Markup(
        "<tr><th style='text-align:left'>{}</th><td>{}</td>"
        "<td style='text-align:left'><details><summary>{}</summary>{}</details></td>"
        "<td style='text-align:left'>{}</td></tr>"
    )
    lines = Markup("").join(
        line.format(
            name,
            "" if counts[name] is None else f"{counts[name]:,}",
            f"{len(schema.names)} columns",
            ", ".join(schema.names),
            ROWS[name],
        )
        for name, schema in TABLES.items()
    )
    rows = "rows are counted by Spark: tables.messages.count()" if directory is None else public_uri(directory)
    return str(
        Markup(
            "<table><caption>{}</caption><thead><tr><th style='text-align:left'>table</th><th>rows</th>"
            "<th style='text-align:left'>columns</th><th style='text-align:left'>one row for each</th></tr></thead>"
            "<tbody>{}</tbody></table>"
        ).format(rows, lines)
    )


def rows_of(directory: str | None) -> dict[str, int | None]:
    """The number of rows of each table; None if unknown."""
    from pipeline.output.place import OutputError, place

    try:
        where = None if directory is None else place(directory)
    except OutputError:  # Spark may reach stores that Arrow does not
        where = None
    return {name: None if where is None else rows_in(where.child(name)) for name in TABLES}


def rows_in(folder: Place) -> int | None:
    """The number of rows in the Parquet files of a folder, from their footers; None for no files or too many."""
    try:
        files = folder.dataset()
        return int(files.count_rows()) if 0 < len(files.files) <= MOST_FILES else None
    except (OSError, ValueError):  # missing or foreign files: a repr must not fail
        return None
