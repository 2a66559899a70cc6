"""Partitions of a lake's tables, and the folders that their files are in. No kernel is needed to import this."""

from __future__ import annotations

from datetime import date

OPEN, DAY = "open", "day"
NO_DAY = "__HIVE_DEFAULT_PARTITION__"  # readers that take partitions from paths know it


def folder(batch: int | str, *, open_rows: bool, day: date | None) -> str:
    """Where a batch, or who joins files, writes the rows of a partition of a table."""
    return f"{str(batch).zfill(8)}/{OPEN}={str(open_rows).lower()}/{DAY}={day.isoformat() if day else NO_DAY}"


def partition_of(path: str) -> tuple[bool, date | None]:
    """The partition that `folder` names: open, day."""
    parts = dict(part.split("=", 1) for part in path.split("/") if "=" in part)
    return parts[OPEN] == "true", None if parts[DAY] == NO_DAY else date.fromisoformat(parts[DAY])
