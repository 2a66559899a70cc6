"""An ingest that is killed with SIGKILL at random moments and started again, or whose executors are: the lake of an
undisturbed one.

Run by `make cluster-test`; WIREHARE_KILLS says how often the ingest is killed (50).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import golden
import pytest
from lake_support import rows_of_lake, rows_of_table
from lake_work import rotated
from standalone_cluster import ROOT, Cluster, wait_for
from test_lake_batches import compared, decoded_at_once, in_lake

import pipeline
from benchmarks.processes import family
from codec.tables import TABLES
from pipeline.lake import journal
from pipeline.lake.log import Log
from pipeline.lake.opening import is_lake, open_lake
from pipeline.output.location import location
from pipeline.run.local_processes import LocalProcesses

pytestmark = pytest.mark.cluster

KILLS = int(os.environ.get("WIREHARE_KILLS", "50"))
PIECES = 20
AFTER_BATCHES = (0, 3)  # a kill comes in one of so many batches, as soon as it has begun to leave a trace ...
WITHIN_S = 1.0  # ... and at any moment within this time


def started(lake: Path, captures: Path) -> subprocess.Popen[bytes]:
    """An ingest of all captures, one a batch."""
    tests = ROOT / "tests" / "support"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), str(ROOT)])}
    command = [sys.executable, "-W", "ignore", str(tests / "lake_work.py"), str(lake), str(captures)]
    return subprocess.Popen(command, env=environment)


def last(lake: Path) -> int:
    """The last batch that is in the lake as a whole."""
    return Log(open_lake(str(lake))).batch("captures") if is_lake(location(str(lake))) else 0


def begun(lake: Path, batch: int) -> bool:
    """Whether this batch has written something."""
    return any((lake / name / f"{batch:08}").exists() for name in TABLES)


def reached(lake: Path, batch: int) -> bool:
    return begun(lake, batch) or last(lake) >= batch


def committed(lake: Path, batch: int, job: subprocess.Popen[bytes]) -> bool:
    """Whether a batch is in the lake, and no work on it remains; also when the ingest has ended."""
    return job.poll() is not None or (last(lake) == batch and journal.read(location(str(lake))) is None)


def test_killed_at_random_moments(tmp_path: Path) -> None:
    (capture,) = golden.captures()["091_tx.pcap"].paths
    pieces = list(rotated(capture, tmp_path / "captures", PIECES))
    lake, chance, torn = tmp_path / "lake", random.Random(22), 0
    for kill in range(KILLS):
        if last(lake) + AFTER_BATCHES[1] >= PIECES:  # too few remain: begin another one
            assert started(lake, tmp_path / "captures").wait() == 0
            lake.rename(tmp_path / f"lake-{kill}")
        target = last(lake) + 1 + chance.randrange(*AFTER_BATCHES)
        process = started(lake, tmp_path / "captures")
        wait_for(f"batch {target}", partial(reached, lake, target))
        time.sleep(chance.random() * WITHIN_S)
        process.send_signal(signal.SIGKILL)
        process.wait()
        torn += journal.read(location(str(lake))) is not None or begun(lake, last(lake) + 1)
    assert started(lake, tmp_path / "captures").wait() == 0
    expected = decoded_at_once(pieces)
    for each in sorted(tmp_path.glob("lake*")):
        compared(in_lake(each), expected)
    assert torn > KILLS // 10, "some were killed in the middle of a batch"


def test_executors_are_killed_while_they_work_on_a_batch(on_loopback: Cluster, capture: Path, tmp_path: Path) -> None:
    """Under spark-submit executors decode every batch, however little it is. In the second batch those are killed that
    work on a task, in the third one all are."""
    lake, captures, output = tmp_path / "lake", tmp_path / "captures", tmp_path / "out"
    pieces = list(rotated(capture, tmp_path / "pieces", 3))
    captures.mkdir()
    options = ("--lake", str(lake), "--every", "1s", "--settle", "0s")
    with on_loopback.submitted("jobs/ingest.py", lake, str(captures), *options) as job:
        for batch, piece in enumerate(pieces, 1):
            wait_for("the end of all tasks", lambda: not on_loopback.python_workers())
            piece.rename(captures / piece.name)
            if batch > 1:
                workers = wait_for(f"tasks of batch {batch}", on_loopback.python_workers)
                for executor in on_loopback.executors():
                    if batch > 2 or not set(workers).isdisjoint(family(executor)):
                        os.kill(executor, signal.SIGKILL)
                assert last(lake) == batch - 1, "it was not done when they were killed"
            wait_for(f"batch {batch}", partial(committed, lake, batch, job))
            log = on_loopback.log_of(lake).read_text()
            assert job.poll() is None, log[-2000:]
            assert min(log.count("Lost executor"), log.count("Lost task")) >= batch - 1
    pipeline.write(LocalProcesses(), sorted(map(str, captures.iterdir())), str(output))
    for name in TABLES:
        assert rows_of_lake(lake, name) == rows_of_table(name, (output / name).glob("*.parquet")), name
