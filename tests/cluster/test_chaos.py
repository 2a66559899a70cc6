"""Processes die while a capture is decoded: the tables are the same, or the old ones are unchanged.

Run by `make cluster-test`; expectations are the tables of an undisturbed run on one machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from commands import decode_with
from standalone_cluster import (
    ROOT,
    Cluster,
    Tables,
    decode_here,
    decoded,
    decoding,
    end,
    fingerprints,
    wait_for,
    working,
)

pytestmark = pytest.mark.cluster
# Who dies while captures are decoded leaves no mark on tables derived later: these show all that was decoded.
DECODED = ("captures", "connections", "frames", "streams")
SOME = ("--tables", ",".join(DECODED))


def old_tables(output: Path) -> dict[str, bytes]:
    """Something that stands where the output goes."""
    part = output / "frames" / "part-0.parquet"
    part.parent.mkdir(parents=True)
    part.write_text("old")
    return contents(output)


def only_decoded(tables: Tables) -> Tables:
    return {name: tables[name] for name in DECODED}


def contents(output: Path) -> dict[str, bytes]:
    return {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}


def test_a_cluster_makes_the_tables_that_one_machine_makes(
    on_loopback: Cluster, capture: Path, tmp_path: Path, expected: Tables
) -> None:
    with on_loopback.job(capture, tmp_path / "undisturbed") as job:
        both = wait_for("two executors", lambda: len(on_loopback.executors()) == 2 or job.poll() is not None)
        assert both
        assert job.wait() == 0
    assert fingerprints(tmp_path / "undisturbed") == expected


@pytest.mark.parametrize("victim", ["python_workers", "executors"])
def test_a_process_that_dies_while_decoding_changes_no_table(
    on_loopback: Cluster, capture: Path, tmp_path: Path, expected: Tables, victim: str
) -> None:
    output = tmp_path / victim
    with on_loopback.job(capture, output, *SOME) as job:
        wait_for("the decode", lambda: decoding(output) and on_loopback.python_workers())
        os.kill(wait_for(victim, getattr(on_loopback, victim))[0], signal.SIGKILL)
        assert not decoded(output)
        assert job.wait() == 0
    assert fingerprints(output) == only_decoded(expected)
    log = on_loopback.log_of(output).read_text()
    assert ("Lost task" if victim == "python_workers" else "Lost executor") in log


def test_a_python_worker_that_dies_on_a_laptop_changes_no_table(capture: Path, tmp_path: Path) -> None:
    """With Spark, which tries the task again."""
    undisturbed, output = tmp_path / "undisturbed", tmp_path / "laptop"
    subprocess.run(decode_here(capture, undisturbed, *SOME), cwd=ROOT, check=True, capture_output=True)
    command = decode_with("Spark", str(capture), "--output", str(output), *SOME)
    job = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        workers = wait_for("the decode", lambda: decoding(output) and working(job.pid))
        assert not decoded(output)
        os.kill(workers[0], signal.SIGKILL)
        assert job.wait() == 0
    finally:
        end(job)
    assert fingerprints(output) == fingerprints(undisturbed)


def test_a_driver_that_dies_while_writing_leaves_the_old_tables_and_the_next_run_succeeds(
    on_loopback: Cluster, capture: Path, tmp_path: Path, expected: Tables
) -> None:
    """It dies while Spark makes message_flows, the last table, which takes it seconds; the others are moved at once."""
    output = tmp_path / "driver"
    before = old_tables(output)
    with on_loopback.job(capture, output) as job:
        wait_for("the writing of tables", lambda: decoded(output) or job.poll() is not None)
        end(job)
    assert contents(output) == before
    assert decoding(output)  # the remains of the dead run
    wait_for("its executors to go", lambda: not on_loopback.executors())
    with on_loopback.job(capture, output, *SOME) as job:
        assert job.wait() == 0
    assert fingerprints(output) == only_decoded(expected)
    assert [path.name for path in tmp_path.iterdir()] == ["driver"]
