"""An ingest that dies at any point, a full disk, clocks that jump: the lake is that of an undisturbed ingest."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import golden
import pytest
from lake_support import stored
from lake_work import LocalWork, moved_in_time, records, rotated
from test_lake_batches import SECOND, UNSETTLED, captures, compared, in_lake, in_one, ingest

from pipeline.lake import house, journal
from pipeline.lake.ingesting import Ingest
from pipeline.lake.layout import lake_tables
from pipeline.lake.log import Log
from pipeline.lake.place import existing
from udfs.sink.lake import WriteBatch
from udfs.sink.parquet import ParquetFiles

SESSION = golden.captures()["091_tx.pcap"].paths[0]


class Killed(BaseException):
    """The process ends here."""


def dies(at: int = 0, found: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Calls `found` so many times, then dies."""
    left = [at]

    def dying(*arguments: Any, **named: Any) -> Any:
        if not left[0]:
            raise Killed
        left[0] -= 1
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
    "all committed": (journal, "_tidy", dies()),
    "before old states are deleted": (journal, "_delete", dies()),
}


@pytest.mark.parametrize("point", POINTS)
def test_an_ingest_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path: Path, point: str) -> None:
    pieces, lake = list(rotated(SESSION, tmp_path / "captures", 3)), tmp_path / "lake"
    ingest(lake, pieces[:1])
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(journal, "discard", lambda *_: None)  # who is killed does not clean up
        patches.setattr(*POINTS[point])
        with pytest.raises(Killed):
            ingest(lake, pieces[:2])
    ingest(lake, pieces)
    compared(in_lake(lake), in_one(pieces))


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
    compared(in_lake(lake), in_one(pieces))


def test_a_capture_of_the_future_makes_no_other_late_and_no_day_old(tmp_path: Path) -> None:
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
    mine, theirs = in_one(pieces), in_one([future])
    compared(in_lake(lake), {name: mine[name] + theirs[name] for name in mine})
    newest = house.newest_day(Log(existing(str(lake))))
    assert newest is not None
    assert date(2020, 1, 1) < newest <= datetime.now(UTC).date(), "days are counted back from here"


def test_a_clock_that_jumps_takes_no_capture_twice(tmp_path: Path) -> None:
    pieces, lake, now = list(rotated(SESSION, tmp_path / "captures", 2)), tmp_path / "lake", time.time_ns()
    os.utime(pieces[1], ns=(now + 3600 * SECOND, now + 3600 * SECOND))  # changed in an hour from now
    with Ingest.into(str(lake), LocalWork, replace(UNSETTLED, settle_ns=30 * SECOND)) as ingesting:
        taken = []
        for jump in (0, -7200, 10 * 365 * 86400, 0):
            ingesting.clock = lambda jump=jump: now + 60 * SECOND + jump * SECOND  # type: ignore[misc]
            taken += [batch["files"] for batch in ingesting.batches([str(path) for path in pieces])]
    assert taken == [2]
    assert len(captures(lake)) == 2
