"""What runs an ingest: units that systemd accepts, a crontab, a nightly audit with its baseline, a DAG, Kubernetes."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs.cli import command_line

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
WIREHARE = "/opt/wirehare/.venv/bin/wirehare"
STAND_IN = '#!/usr/bin/env bash\necho "$@" >> "$CALLS"\nexit "${CODE:-0}"\n'


def parsed(line: str) -> None:
    """Fails unless the command line takes these words."""
    command_line().arguments(shlex.split(line))


def test_commands_of_the_examples_are_commands() -> None:
    unit = (EXAMPLES / "wirehare-ingest.service").read_text()
    found = re.findall(rf"^ExecStart={WIREHARE} (.*)$", unit, re.MULTILINE)
    found += re.findall(rf"{WIREHARE} (.*)$", (EXAMPLES / "crontab-lake").read_text(), re.MULTILINE)
    assert len(found) == 4
    for line in found:
        parsed(line)
    for page in ("docs/lake.md", "docs/scheduling.md"):
        for line in re.findall(r"^wirehare (ingest .*)$", (ROOT / page).read_text(), re.MULTILINE):
            parsed(line)


def test_the_crontab_has_fields_a_user_and_programs_that_are_there() -> None:
    lines = [line for line in (EXAMPLES / "crontab-lake").read_text().splitlines() if line and line[0] != "#"]
    jobs = [line for line in lines if not re.match(r"\w+=", line)]
    for job in jobs:
        assert re.fullmatch(r"(?:[\d*/]+ ){5}wirehare /opt/wirehare/\S+ .*", job), job
    (script,) = re.findall(r"/opt/wirehare/(examples/\S+)", "\n".join(jobs))
    assert os.access(ROOT / script, os.X_OK)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for name in ("wirehare-capture.service", "wirehare-ingest.service"):
        text = (EXAMPLES / name).read_text().replace(WIREHARE, "/bin/true").replace("/usr/bin/tcpdump", "/bin/true")
        (tmp_path / name).write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert [line for line in checked.stderr.splitlines() if "wirehare" in line] == []


@pytest.mark.parametrize("code", [0, 1, 4])
def test_yesterday_is_audited_with_the_day_before_as_the_baseline(tmp_path: Path, code: int) -> None:
    stand_in, calls, reports = tmp_path / "wirehare", tmp_path / "calls", tmp_path / "reports"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    reports.mkdir()
    yesterday, before = ((datetime.now(UTC) - timedelta(days=days)).date().isoformat() for days in (1, 2))
    for day in ("2026-01-01", before, yesterday):
        (reports / f"{day}.json").touch()
    environment = os.environ | {"WIREHARE": str(stand_in), "CALLS": str(calls), "CODE": str(code)}
    ran = subprocess.run([EXAMPLES / "audit-lake.sh", "lake", str(reports)], env=environment, check=False)
    assert ran.returncode == code
    (call,) = calls.read_text().splitlines()
    assert call.startswith("audit lake --since yesterday --until today")
    assert call.endswith(f"--baseline {reports}/{before}.json")


def test_the_dag_submits_jobs_that_are_there() -> None:
    tree = ast.parse((EXAMPLES / "airflow_lake_dag.py").read_text())
    words = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "application"]
    jobs = [ast.unparse(word.value).strip("'").removeprefix("/opt/wirehare/") for word in words]
    assert jobs == ["jobs/ingest.py", "jobs/audit.py"]
    assert all((ROOT / job).exists() for job in jobs)


def test_kubernetes_runs_commands_that_are_there() -> None:
    texts = [(EXAMPLES / "kubernetes" / name).read_text() for name in ("cronjob.yaml", "sparkapplication.yaml")]
    lists = [re.findall(r'"([^"]*)"', line) for text in texts for line in re.findall(r"arg(?:s|uments): \[.*\]", text)]
    assert [words[0] for words in lists] == ["ingest", "s3a://amqp/captures"]
    command_line().arguments(lists[0])
    command_line().arguments(["ingest", *lists[1]])
    image = (EXAMPLES / "kubernetes" / "Dockerfile").read_text()
    assert "pip install --no-cache-dir '.[lake]'" in image
    assert "python3 -P -m udfs.warm" in image
