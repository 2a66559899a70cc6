"""The examples: the nightly script under its lock, units that systemd accepts, a DAG, settings, a shared warehouse."""

from __future__ import annotations

import ast
import fcntl
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from audit_support import ROWS
from pyspark.sql import SparkSession
from tables_support import arrow_rows

from pipeline.audit import config
from udfs.arrow.spark_schemas import TABLES

EXAMPLES = Path(__file__).parents[2] / "examples"
# In place of `wirehare`: records how it was called, writes the requested output, ends with the given exit status.
STAND_IN = """#!/usr/bin/env bash
echo "$@" >> "$WIREHARE_ROOT/calls"
while (($#)); do
    case $1 in
        --output) mkdir -p "$2" ;;
        --report | --json) echo "{}" > "$2" ;;
        nightly) code=${NIGHTLY_CODE:-0} ;;
    esac
    shift
done
exit "$code"
"""


class Night:
    """The nightly script in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stand_in = root / "wirehare"
        self.stand_in.write_text(STAND_IN)
        self.stand_in.chmod(0o755)

    def run(self, *days: str, **environment: str) -> subprocess.CompletedProcess[str]:
        ours = {"WIREHARE_ROOT": str(self.root), "WIREHARE": str(self.stand_in)}
        return subprocess.run(
            [EXAMPLES / "audit-day.sh", *days],
            env=os.environ | ours | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        """The commands so far, without the root."""
        return (self.root / "calls").read_text().replace(f"{self.root}/", "").splitlines()


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path)


def test_a_day_is_decoded_and_audited(night: Night) -> None:
    assert night.run("2026-11-20").returncode == 0
    assert night.calls() == [
        (
            "nightly captures/2026-11-20 --output tables/date=2026-11-20 --overwrite "
            "--report reports/2026-11-20.html --json reports/2026-11-20.json --title AMQP audit of 2026-11-20"
        )
    ]


def test_yesterday_is_the_default(night: Night) -> None:
    yesterday = subprocess.run(["date", "-u", "-d", "yesterday", "+%F"], capture_output=True, text=True, check=True)
    night.run()
    assert f"captures/{yesterday.stdout.strip()} " in night.calls()[0]


def test_the_baseline_is_the_latest_audit_before_the_day(night: Night) -> None:
    for day in ("2026-11-17", "2026-11-19", "2026-11-22"):
        night.run(day)
    night.run("2026-11-20")
    night.run("2026-11-20")  # again: its own audit is not its baseline
    assert [call.partition("--baseline ")[2] for call in night.calls()] == [
        "",
        "reports/2026-11-17.json",
        "reports/2026-11-19.json",
        "reports/2026-11-19.json",
        "reports/2026-11-19.json",
    ]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4])
def test_the_exit_code_says_what_happened(night: Night, code: int) -> None:
    assert night.run("2026-11-20", NIGHTLY_CODE=str(code)).returncode == code


def test_a_second_run_at_the_same_time_is_refused(night: Night) -> None:
    with (night.root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = night.run("2026-11-20")
        assert second.returncode == 75
        assert "another run holds" in second.stderr
        assert not (night.root / "calls").exists()
    assert night.run("2026-11-20").returncode == 0


@pytest.mark.parametrize("day", ["yesterday", "../../etc", "2026-11-20; rm -rf /", ""])
def test_an_invalid_day_is_refused(night: Night, day: str) -> None:
    if day:
        assert night.run(day).returncode == 2
        assert not (night.root / "calls").exists()


def test_settings_next_to_the_script_are_used(night: Night) -> None:
    shutil.copy(EXAMPLES / "audit.toml", night.root)
    night.run("2026-11-20")
    assert "--config audit.toml" in night.calls()[0]


def test_the_example_settings_are_valid() -> None:
    read = config.read(EXAMPLES / "audit.toml")
    assert [(one.rule, one.user) for one in read.exceptions] == [("SEC-01", "sensor")]
    assert list(read.disabled) == ["SEC-08", "SEC-09"]


@pytest.mark.parametrize(("name", "number"), [("crontab", 1), ("crontab-lake", 4)])
def test_a_crontab_has_fields_a_user_and_existing_programs(name: str, number: int) -> None:
    lines = [line for line in (EXAMPLES / name).read_text().splitlines() if line and not line.startswith("#")]
    jobs = [line for line in lines if not re.match(r"\w+=", line)]
    assert len(jobs) == number
    for job in jobs:
        assert re.fullmatch(r"(?:[\d*/]+ ){5}wirehare /opt/wirehare/\S+.*", job), job
    (script,) = re.findall(r"/opt/wirehare/(examples/\S+)", "\n".join(jobs))
    assert os.access(EXAMPLES.parent / script, os.X_OK)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in [*EXAMPLES.glob("*.service"), *EXAMPLES.glob("*.timer")]:
        # what they start is not installed here
        (tmp_path / unit.name).write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text()))
    units = sorted(tmp_path.iterdir())
    assert len(units) == 4
    checked = subprocess.run(
        ["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, check=False
    )
    assert [line for line in checked.stderr.splitlines() if "wirehare" in line] == []
    when = subprocess.run(
        ["systemd-analyze", "calendar", "*-*-* 02:15:00 UTC"], capture_output=True, text=True, check=False
    )
    assert when.returncode == 0


@pytest.mark.parametrize(("dag", "first"), [("airflow_dag", "decode"), ("airflow_lake_dag", "ingest")])
def test_a_dag_submits_existing_jobs(dag: str, first: str) -> None:
    jobs = [f"jobs/{name}.py" for name in (first, "audit")]
    tree = ast.parse((EXAMPLES / f"{dag}.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    submits = [call for call in calls if getattr(call.func, "id", "") == "SparkSubmitOperator"]
    named = [{word.arg: ast.unparse(word.value) for word in call.keywords} for call in submits]
    assert [words["application"].strip("'") for words in named] == [f"/opt/wirehare/{job}" for job in jobs]
    assert all((EXAMPLES.parent / job).exists() for job in jobs)


def test_airflow_takes_the_dag() -> None:
    processing = pytest.importorskip("airflow.dag_processing.dagbag", reason="Airflow 3 is not here")
    bag = processing.DagBag(str(EXAMPLES))
    assert bag.import_errors == {}
    assert bag.dags["wirehare_audit"].task_ids == ["decode", "audit"]


def test_a_day_that_is_shared_again_replaces_only_itself(spark: SparkSession, tmp_path: Path) -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        share = importlib.import_module("share_day").share
    finally:
        sys.path.remove(str(EXAMPLES))
    rows = ROWS["methods"]
    for day, of_day in (("2026-11-19", rows), ("2026-11-20", rows[:2])):
        arrow_rows(spark, of_day, TABLES["methods"]).coalesce(1).write.parquet(
            str(tmp_path / f"tables/date={day}/methods")
        )
        share(str(tmp_path / f"tables/date={day}"), day, str(tmp_path / "shared"), "methods")
    share(str(tmp_path / "tables/date=2026-11-20"), "2026-11-20", str(tmp_path / "shared"), "methods")
    shared = spark.read.parquet(str(tmp_path / "shared/methods")).groupBy("date").count()
    assert {str(row.date): row["count"] for row in shared.collect()} == {"2026-11-19": len(rows), "2026-11-20": 2}

    # A directory a day reads as one table too.
    days = spark.read.option("basePath", str(tmp_path / "tables")).parquet(str(tmp_path / "tables/date=*/methods"))
    assert {str(row.date) for row in days.select("date").distinct().collect()} == {"2026-11-19", "2026-11-20"}
