"""Keeping a lake in order: small files of days that are over joined, old days dropped.

Both are safe beside an ingest and beside readers. Files of days are never touched by an ingest but to add some; what is
replaced or dropped stays for an hour, for those who read it now.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from pipeline.lake.files import Writer, moved
from pipeline.lake.layout import LakeFile, LakeTable
from pipeline.lake.log import Log
from pipeline.schemas import TABLES

FILE_BYTES = 256 << 20  # of a joined file, about
SMALL_BYTES = 64 << 20  # larger files stay as they are
KEPT_HOURS = 1  # of what readers may still read
GROWING_DAYS = 2  # no capture grows for so long
JOINED = "joined"


@dataclass(frozen=True)
class Done:
    """What was done to the tables: how many files were taken away, how many were added, how many were deleted."""

    removed: int = 0
    added: int = 0
    deleted: int = 0

    def __add__(self, other: Done) -> Done:
        return Done(self.removed + other.removed, self.added + other.added, self.deleted + other.deleted)


def newest_day(log: Log) -> date | None:
    """The latest day that has rows; days that are still to come are those of wrong clocks."""
    latest = datetime.now(UTC).date() + timedelta(days=1)
    return max((file.day for file in log.files("captures") if file.day and file.day <= latest), default=None)


def compact(log: Log) -> Done:
    """Join small files of the days before the newest one, day by day."""
    newest = newest_day(log)
    done = Done()
    if newest is None:
        return done
    for name in TABLES:
        # The row of a capture that still grows is replaced.
        before = newest - timedelta(days=GROWING_DAYS if name == "captures" else 0)
        days: dict[date, list[LakeFile]] = defaultdict(list)
        for file in log.files(name):
            if file.day and file.day < before and not file.open and file.size < SMALL_BYTES:
                days[file.day].append(file)
        for day, files in sorted(days.items()):
            for some in _joined(files):
                done += _join(log, log.tables[name], day, some)
        done += Done(deleted=log.vacuum(name, KEPT_HOURS))
    return done


def expire(log: Log, days: int) -> Done:
    """Drop the days that lie more than so many `days` before the newest one."""
    newest = newest_day(log)
    done = Done()
    if newest is None:
        return done
    oldest = newest - timedelta(days=days)
    for name in TABLES:
        gone = [file for file in log.files(name) if file.day and file.day < oldest and not file.open]
        if gone:
            log.commit(name, None, [], gone)
        done += Done(removed=len(gone), deleted=log.vacuum(name, KEPT_HOURS))
    return done


def _joined(files: Iterable[LakeFile]) -> Iterable[list[LakeFile]]:
    """Files in groups of about FILE_BYTES, of two at least."""
    some, size = list[LakeFile](), 0
    for file in sorted(files, key=lambda each: each.path):
        some.append(file)
        size += file.size
        if size >= FILE_BYTES:
            yield some
            some, size = [], 0
    if len(some) > 1:
        yield some


def _join(log: Log, table: LakeTable, day: date, files: list[LakeFile]) -> Done:
    """Put the rows of these files of a day into one."""
    if len(files) < 2:
        return Done()
    writer = Writer(log.root, table, f"{JOINED}-{secrets.token_hex(4)}", day=day)
    moved(log.root, table, files, writer)
    file = writer.close()
    if file is None:
        return Done()
    try:
        log.commit(table.name, None, [file], files, same_rows=True)
    except BaseException:
        log.root.files.delete_file(f"{log.root.path}/{table.name}/{file.path}")
        raise
    return Done(removed=len(files), added=1)
