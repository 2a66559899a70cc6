"""What the tests of pages share: fenced blocks, and answers as they stand in a page."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def answers(page: str) -> list[tuple[str, str]]:
    """(SQL, table in Markdown below it), in order; the table is '' where none is shown."""
    return re.findall(r"^```sql\n(.*?)^```\n\n((?:\|[^\n]*\n)*)", page, re.MULTILINE | re.DOTALL)


def answer(rows: DataFrame) -> str:
    """The rows as a table in Markdown."""
    head = [" | ".join(rows.columns), "|".join(["---"] * len(rows.columns))]
    lines = [f"| {head[0]} |", f"|{head[1]}|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(cell, row))} |" for row in rows.collect())])


def cell(value: Any) -> str:
    """One value as a page shows it."""
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return str(value).replace("|", "\\|")
