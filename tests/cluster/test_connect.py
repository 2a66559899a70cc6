"""The jobs over Spark Connect on one core: the tables and findings of a classic session on two, row for row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from golden import CAPTURES
from pyspark.sql import SparkSession
from standalone_cluster import ROOT, fingerprints

from codec.tables import TABLES
from jobs.cli import main

# Confirms, returns, consumers: every table has rows.
SOME = ("091_confirms_and_return.pcap", "091_rpc_reply_to.pcap")


def over_connect(*words: str) -> None:
    """A command in a process of its own: one with a classic session cannot have the other kind."""
    ran = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *words],
        cwd=ROOT, env={**os.environ, "SPARK_REMOTE": "local[1]"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.cluster
def test_the_jobs_make_the_same_tables_and_findings_over_connect(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    decode = ["decode", *(str(CAPTURES / name) for name in SOME), "--output"]
    assert main([*decode, str(tmp_path / "classic")]) == 0
    over_connect(*decode, str(tmp_path / "connect"))
    expected = fingerprints(tmp_path / "classic")
    assert set(expected) == set(TABLES)
    assert all(rows for rows, _ in expected.values())
    assert fingerprints(tmp_path / "connect") == expected
    report, found = str(tmp_path / "audit.html"), [tmp_path / "classic.json", tmp_path / "connect.json"]
    audit = ["audit", str(tmp_path / "connect"), "--fail-on", "never", "--report", report, "--json"]
    assert main([*audit, str(found[0])]) == 0
    over_connect(*audit, str(found[1]))
    classic, connect = (json.loads(path.read_text())["findings"] for path in found)
    assert classic == connect != []
