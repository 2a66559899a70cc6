"""What runs an ingest: commands, a nightly audit with its baseline, Kubernetes."""

from __future__ import annotations

import os
import re
import shlex
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
    found += re.findall(rf"{WIREHARE} (.*)$", (EXAMPLES / "crontab").read_text(), re.MULTILINE)
    assert len(found) == 4
    for line in found:
        parsed(line)
    for page in ("docs/lake.md", "docs/scheduling.md"):
        for line in re.findall(r"^wirehare (ingest .*)$", (ROOT / page).read_text(), re.MULTILINE):
            parsed(line)


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


def test_kubernetes_runs_existing_commands() -> None:
    texts = [(EXAMPLES / "kubernetes" / name).read_text() for name in ("cronjob.yaml", "sparkapplication.yaml")]
    lists = [re.findall(r'"([^"]*)"', line) for text in texts for line in re.findall(r"arg(?:s|uments): \[.*\]", text)]
    assert [words[0] for words in lists] == ["ingest", "s3a://amqp/captures"]
    command_line().arguments(lists[0])
    command_line().arguments(["ingest", *lists[1]])
    image = (EXAMPLES / "kubernetes" / "Dockerfile").read_text()
    assert "pip install --no-cache-dir '.[lake]'" in image
    assert "python3 -P -m udfs.warm" in image
