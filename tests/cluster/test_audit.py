"""Findings on a cluster: both executors look for them, they are those of one machine, and nobody's death changes them.

Run by `make cluster-test`.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from audit_support import counted
from golden import CAPTURES
from standalone_cluster import ROOT, Cluster, cluster, decode_here, end, wait_for

from benchmarks.eventlog import events, settings
from codec.tables import TABLES
from pipeline.audit import findings_in

pytestmark = pytest.mark.cluster
APPLICATION = "tests/cluster/audit.py"
BROKEN = ("091_channel_exceptions.pcap", "010_exceptions.pcap", "10_rabbitmq_link_errors.pcap")  # they break rules


@pytest.fixture(scope="module")
def tables(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    for name in BROKEN:
        (folder / name).symlink_to(CAPTURES / name)
    (folder / capture.name).symlink_to(capture)
    subprocess.run(decode_here(folder, folder / "tables"), cwd=ROOT, check=True, capture_output=True)
    return folder / "tables"


@pytest.fixture(scope="module")
def found(tables: Path) -> Counter[str]:
    """The findings as one process of this machine finds them."""
    rows = counted(findings_in({name: sorted(map(str, (tables / name).glob("*.parquet"))) for name in TABLES}))
    assert rows.total() > 100
    return rows


def seconds_by_executor(log: Path) -> list[Counter[str]]:
    """Of each stage with several tasks the seconds that they ran in each executor."""
    found: dict[int, Counter[str]] = defaultdict(Counter)
    tasks = Counter[int]()
    for kind, event in events(log):
        if kind == "SparkListenerTaskEnd" and event.get("Task Metrics"):
            seconds = event["Task Metrics"]["Executor Run Time"] / 1000
            found[event["Stage ID"]][event["Task Info"]["Executor ID"]] += seconds
            tasks[event["Stage ID"]] += 1
    return [seconds for stage, seconds in found.items() if tasks[stage] > 1]


def test_both_executors_look_for_the_findings_of_one_machine(
    on_loopback: Cluster, tables: Path, found: Counter[str], tmp_path: Path
) -> None:
    file, log = tmp_path / "findings.parquet", tmp_path / "log"
    with on_loopback.submitted(APPLICATION, file, str(tables), str(file), options=settings(log)) as job:
        assert job.wait() == 0
    assert counted(pq.read_table(file)) == found
    longest = max(seconds_by_executor(log), key=Counter.total)
    assert sorted(longest) == ["0", "1"]
    assert min(longest.values()) > 0.2 * longest.total()


@pytest.mark.parametrize("victim", ["python_workers", "executors"])
def test_a_process_that_dies_while_looking_changes_no_finding(
    on_loopback: Cluster, tables: Path, found: Counter[str], tmp_path: Path, victim: str
) -> None:
    file = tmp_path / f"{victim}.parquet"
    with on_loopback.submitted(APPLICATION, file, str(tables), str(file)) as job:
        wait_for("the audit", on_loopback.python_workers)
        os.kill(wait_for(victim, getattr(on_loopback, victim))[0], signal.SIGKILL)
        assert not file.exists()
        assert job.wait() == 0
    assert counted(pq.read_table(file)) == found
    log = on_loopback.log_of(file).read_text()
    assert ("Lost task" if victim == "python_workers" else "Lost executor") in log


def test_a_worker_that_is_lost_while_it_looks_changes_no_finding(
    tables: Path, found: Counter[str], tmp_path: Path
) -> None:
    """With its executors, their Python workers, and what they have answered so far."""
    file = tmp_path / "findings.parquet"
    with cluster(tmp_path, {"PYTHONPATH": str(ROOT)}) as own:
        with own.submitted(APPLICATION, file, str(tables), str(file)) as job:
            wait_for("the audit", own.python_workers)
            end(own.daemons[0])
            assert not file.exists()
            assert job.wait() == 0
        assert "Lost executor" in own.log_of(file).read_text()
    assert counted(pq.read_table(file)) == found
