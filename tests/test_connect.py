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

from jobs.cli import main
from pipeline.schemas import TABLES

# Confirms, returns, consumers: every table has rows.
SOME = ("091_confirms_and_return.pcap", "091_rpc_reply_to.pcap")


@pytest.mark.cluster
def test_the_job_makes_the_same_tables_over_connect(spark: SparkSession, tmp_path: Path) -> None:
    """In a process of its own: one with a classic session cannot have the other kind."""
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    decode = ["decode", *(str(CAPTURES / name) for name in SOME), "--output"]
    assert main([*decode, str(tmp_path / "classic")]) == 0
    ran = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *decode, str(tmp_path / "connect")],
        cwd=ROOT, env={**os.environ, "SPARK_REMOTE": "local[1]"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    expected = fingerprints(tmp_path / "classic")
    assert set(expected) == set(TABLES)
    assert all(rows for rows, _ in expected.values())
    assert fingerprints(tmp_path / "connect") == expected
    audit = ["audit", str(tmp_path / "connect"), "--fail-on", "never", "--json"]
    assert main([*audit, str(tmp_path / "classic.json")]) == 0
    ran = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *audit, str(tmp_path / "connect.json")],
        cwd=ROOT, env={**os.environ, "SPARK_REMOTE": "local[1]"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = [json.loads((tmp_path / name).read_text())["findings"] for name in ("classic.json", "connect.json")]
    assert found[0] == found[1] != []
