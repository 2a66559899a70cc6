"""Compact the small files of past days, drop old days.

Both are safe beside a running ingest, which only adds files to days, and beside readers: files that were replaced or
dropped are deleted an hour later.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from pipeline.lake.files import rows_of, write_file
from pipeline.lake.layout import LakeFile, LakeTable
from pipeline.lake.log import Log
from pipeline.schemas import TABLES

FILE_BYTES = 256 << 20  # of a compacted file, about
SMALL_BYTES = 64 << 20  # larger files stay as they are
RETENTION_HOURS = 1  # readers may still read removed files
GROWING_DAYS = 2  # a capture may still grow
COMPACTED = "joined"  # prefix of folders


@dataclass(frozen=True)
class FileCounts:
    """Numbers of files removed from the tables, added to them, and deleted from the file system."""

    removed: int = 0
    added: int = 0
    deleted: int = 0

    def __add__(self, other: FileCounts) -> FileCounts:
        return FileCounts(self.removed + other.removed, self.added + other.added, self.deleted + other.deleted)


def newest_day(log: Log) -> date | None:
    """The latest day that has rows; days in the future come from wrong clocks."""
    latest = datetime.now(UTC).date() + timedelta(days=1)
    return max((file.day for file in log.files("captures") if file.day and file.day <= latest), default=None)


def compact(log: Log) -> FileCounts:
    """Compact small files of the days before the newest one, day by day."""
    newest = newest_day(log)
    done = FileCounts()
    if newest is None:
        return done
    for name in TABLES:
        # An ingest replaces the row of a capture that grew.
        before = newest - timedelta(days=GROWING_DAYS if name == "captures" else 0)
        days: dict[date, list[LakeFile]] = defaultdict(list)
        for file in log.files(name):
            if file.day and file.day < before and not file.open and file.size < SMALL_BYTES:
                days[file.day].append(file)
        for day, files in sorted(days.items()):
            for some in _groups(files):
                done += _compact(log, log.tables[name], day, some)
        done += FileCounts(deleted=log.vacuum(name, RETENTION_HOURS))
    return done


def expire(log: Log, days: int) -> FileCounts:
    """Drop the days more than `days` before the newest one."""
    newest = newest_day(log)
    done = FileCounts()
    if newest is None:
        return done
    oldest = newest - timedelta(days=days)
    for name in TABLES:
        gone = [file for file in log.files(name) if file.day and file.day < oldest and not file.open]
        if gone:
            log.commit(name, None, [], gone)
        done += FileCounts(removed=len(gone), deleted=log.vacuum(name, RETENTION_HOURS))
    return done


def _groups(files: Iterable[LakeFile]) -> Iterable[list[LakeFile]]:
    """Files in groups of about FILE_BYTES, at least two in each."""
    some, size = list[LakeFile](), 0
    for file in sorted(files, key=lambda each: each.path):
        some.append(file)
        size += file.size
        if size >= FILE_BYTES:
            yield some
            some, size = [], 0
    if len(some) > 1:
        yield some


def _compact(log: Log, table: LakeTable, day: date, files: list[LakeFile]) -> FileCounts:
    """Replace these files of a day with one."""
    if len(files) < 2:
        return FileCounts()
    rows = rows_of(log.root, table.name, files)
    added = write_file(log.root, table, f"{COMPACTED}-{secrets.token_hex(4)}", rows, day=day)
    if not added:
        return FileCounts()
    try:
        log.commit(table.name, None, added, files, same_rows=True)
    except BaseException:
        log.root.files.delete_file(f"{log.root.path}/{table.name}/{added[0].path}")
        raise
    return FileCounts(removed=len(files), added=1)
