"""An ingest that dies at any point, a full disk, clocks that jump: the lake is that of an undisturbed ingest."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import golden
import pytest
from lake_support import stored
from lake_work import LocalWork, moved_in_time, rotated
from pcap_files import records
from test_lake_batches import SECOND, UNSETTLED, Rows, captures, compared, decoded_at_once, in_lake, ingest

from pipeline.lake import journal
from pipeline.lake import lake_files as files
from pipeline.lake.ingest_batches import Ingest
from pipeline.lake.layout import lake_tables
from pipeline.lake.log import Log
from pipeline.lake.opening import open_lake
from udfs.sink.parquet import ParquetFiles
from udfs.sink.writers import WriteBatch

TS_NS = re.compile(r"'ts_ns': (\d+)")
SESSION = golden.captures()["091_tx.pcap"].paths[0]


class Killed(BaseException):
    """The process ends here."""


def dies(at: int = 0, found: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Calls `found` so many times, then dies."""
    remaining = [at]

    def dying(*arguments: Any, **named: Any) -> Any:
        if not remaining[0]:
            raise Killed
        remaining[0] -= 1
        assert found is not None
        return found(*arguments, **named)

    return dying


# Where an ingest dies, in the order of what it does.
POINTS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "before decoding": (LocalWork, "decode", dies()),
    "one task is done": (WriteBatch, "__call__", dies(1, WriteBatch.__call__)),
    "all tasks are done": (LocalWork, "flows", dies()),
    "before the journal": (journal, "sink", dies()),
    "with the journal": (Log, "commit", dies()),
    "half committed": (Log, "commit", dies(len(lake_tables()) // 2, Log.commit)),
    "all but captures": (Log, "commit", dies(len(lake_tables()) - 1, Log.commit)),
    "all committed": (journal, "_clean", dies()),
    "before old states are deleted": (journal, "_delete", dies()),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path, Rows]:
    """A capture in three pieces, a lake that has the first, and the rows of all."""
    folder = tmp_path_factory.mktemp("begun")
    pieces = list(rotated(SESSION, folder / "captures", 3))
    ingest(folder / "lake", pieces[:1])
    return pieces, folder / "lake", decoded_at_once(pieces)


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_ingest_resumes_with_the_same_rows(
    begun: tuple[list[Path], Path, Rows], tmp_path: Path, point: str
) -> None:
    pieces, of_first, expected = begun
    lake = tmp_path / "lake"
    copytree(of_first, lake)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(journal, "discard", lambda *_: None)  # who is killed does not clean up
        patches.setattr(*POINTS[point])
        with pytest.raises(Killed):
            ingest(lake, pieces[:2])
    ingest(lake, pieces)
    compared(in_lake(lake), expected)


def test_a_full_disk_leaves_the_last_batch_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, lake = list(rotated(SESSION, tmp_path / "captures", 2)), tmp_path / "lake"
    ingest(lake, pieces[:1])
    there, before = stored(lake, "frames"), in_lake(lake)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patches:
        patches.setattr(ParquetFiles, "_open", full)
        with pytest.raises(OSError, match="No space left on device"):
            ingest(lake, pieces)
    assert stored(lake, "frames") == there
    compared(in_lake(lake), before)
    ingest(lake, pieces)
    compared(in_lake(lake), decoded_at_once(pieces))


def in_days(lake: Path, pieces: list[Path], keep: Callable[[Log], files.FileCounts]) -> files.FileCounts:
    """Four batches: two of a day, one of each day after it. Before each commit of a table, another process runs
    maintenance; what was done."""
    for days, piece in enumerate(pieces[2:], 1):
        moved_in_time(piece, piece, days * 86400)
    commit, done = Log.commit, files.FileCounts()

    def committing(log: Log, name: str, batch: int | None, *arguments: Any, **named: Any) -> None:
        nonlocal done
        if batch is not None:
            done += keep(Log(open_lake(str(lake))))
        commit(log, name, batch, *arguments, **named)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(Log, "commit", committing)
        for end in range(1, len(pieces) + 1):
            ingest(lake, pieces[:end])
    return done


def test_days_that_are_over_are_joined_while_batches_are_committed(tmp_path: Path) -> None:
    pieces, lake = list(rotated(SESSION, tmp_path / "captures", 4)), tmp_path / "lake"
    done = in_days(lake, pieces, files.compact)
    assert done.removed >= 2 * done.added > 0
    compared(in_lake(lake), decoded_at_once(pieces))


def test_old_days_are_dropped_while_batches_are_committed(tmp_path: Path) -> None:
    """In the commits of the last batch, the day of the one before is the newest."""
    pieces, lake = list(rotated(SESSION, tmp_path / "captures", 4)), tmp_path / "lake"
    assert in_days(lake, pieces, partial(files.expire, days=0)).removed
    began = int.from_bytes(records(pieces[2])[1][0][:4], "little") // 86400 * 86400
    retained = [row for row in decoded_at_once(pieces)["frames"] if int(TS_NS.search(row)[1]) >= began * SECOND]  # type: ignore[index]
    assert 0 < len(retained) < len(decoded_at_once(pieces)["frames"])
    assert in_lake(lake)["frames"] == sorted(retained)


def test_a_capture_dated_in_the_future_makes_no_capture_late_and_no_day_old(tmp_path: Path) -> None:
    """Its clock is wrong: it is taken, and what comes with the right time is taken as ever."""
    pieces, lake = list(rotated(SESSION, tmp_path / "captures", 2)), tmp_path / "lake"
    (other,) = golden.captures()["10_qpidd_transactions.pcap"].paths
    began = int.from_bytes(records(other)[1][0][:4], "little")
    future = moved_in_time(other, tmp_path / "future.pcap", int(time.time()) + 10 * 365 * 86400 - began)
    ingest(lake, pieces[:1])
    (batch,) = ingest(lake, [future])
    assert (batch["ahead_files"], batch["late_files"]) == (1, 0)
    (batch,) = ingest(lake, pieces)
    assert (batch["ahead_files"], batch["late_files"], batch["forgotten_connections"]) == (0, 0, 0)
    mine, theirs = decoded_at_once(pieces), decoded_at_once([future])
    compared(in_lake(lake), {name: mine[name] + theirs[name] for name in mine})
    newest = files.newest_day(Log(open_lake(str(lake))))
    assert newest is not None
    assert date(2020, 1, 1) < newest <= datetime.now(UTC).date(), "days are counted back from here"


def test_a_clock_that_jumps_takes_no_capture_twice(tmp_path: Path) -> None:
    pieces, lake, now = list(rotated(SESSION, tmp_path / "captures", 2)), tmp_path / "lake", time.time_ns()
    os.utime(pieces[1], ns=(now + 3600 * SECOND, now + 3600 * SECOND))  # changed in an hour from now
    with Ingest.into(str(lake), LocalWork, replace(UNSETTLED, settle=30)) as ingesting:
        used = []
        for jump in (0, -7200, 10 * 365 * 86400, 0):
            ingesting.clock = lambda jump=jump: now + 60 * SECOND + jump * SECOND  # type: ignore[misc]
            used += [batch["files"] for batch in ingesting.batches([str(path) for path in pieces])]
    assert used == [2]
    assert len(captures(lake)) == 2
