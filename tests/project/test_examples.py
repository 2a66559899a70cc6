"""The examples: units that systemd accepts, a crontab, a DAG, settings."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.audit import config

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_settings_are_valid() -> None:
    read = config.read(EXAMPLES / "audit.toml")
    assert [(one.rule, one.user) for one in read.exceptions] == [("SEC-01", "sensor")]
    assert list(read.disabled) == ["SEC-08", "SEC-09"]


def test_a_crontab_has_fields_a_user_and_existing_programs() -> None:
    lines = [line for line in (EXAMPLES / "crontab").read_text().splitlines() if line and not line.startswith("#")]
    jobs = [line for line in lines if not re.match(r"\w+=", line)]
    assert len(jobs) == 4
    for job in jobs:
        assert re.fullmatch(r"(?:[\d*/]+ ){5}wirehare /opt/wirehare/\S+.*", job), job
    (script,) = re.findall(r"/opt/wirehare/(examples/\S+)", "\n".join(jobs))
    assert os.access(EXAMPLES.parent / script, os.X_OK)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in EXAMPLES.glob("*.service"):
        # what they start is not installed here
        (tmp_path / unit.name).write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text()))
    units = sorted(tmp_path.iterdir())
    assert len(units) == 2
    checked = subprocess.run(
        ["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, check=False
    )
    assert [line for line in checked.stderr.splitlines() if "wirehare" in line] == []


def test_a_dag_submits_existing_jobs() -> None:
    jobs = ["jobs/ingest.py", "jobs/audit.py"]
    tree = ast.parse((EXAMPLES / "airflow_dag.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    submits = [call for call in calls if getattr(call.func, "id", "") == "SparkSubmitOperator"]
    named = [{word.arg: ast.unparse(word.value) for word in call.keywords} for call in submits]
    assert [words["application"].strip("'") for words in named] == [f"/opt/wirehare/{job}" for job in jobs]
    assert all((EXAMPLES.parent / job).exists() for job in jobs)


def test_airflow_takes_the_dag() -> None:
    processing = pytest.importorskip("airflow.dag_processing.dagbag", reason="Airflow 3 is not here")
    bag = processing.DagBag(str(EXAMPLES))
    assert bag.import_errors == {}
    assert {name: dag.task_ids for name, dag in bag.dags.items()} == {
        "wirehare_ingest": ["ingest"],
        "wirehare_lake_audit": ["audit"],
    }
