"""Findings over all shipped captures: no violation in honest traffic, the expected ones where the manifest says that
somebody misbehaved."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import golden
import pytest
from captured_rows import capture_of, write_rows
from pyspark.sql import SparkSession

import pipeline
from pipeline.schemas import DECODED

# Capture -> rules that it violates, by what the manifest says it shows.
VIOLATIONS: dict[str, set[str]] = {}


@pytest.fixture(scope="module")
def violated(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Rules that each capture violates."""
    folder: Path = tmp_path_factory.mktemp("captures")
    numbers = write_rows(folder / "decoded")
    tables = pipeline.from_decoded(spark.read.schema(DECODED).parquet(str(folder / "decoded")))
    for name, table in tables.items():
        table.write.parquet(str(folder / name))
    tables.release()
    found = defaultdict(set)
    rows = pipeline.findings(pipeline.load(spark, str(folder))).filter("severity = 'violation'")
    for row in rows.select("connection_id", "rule_id").collect():
        found[capture_of(row.connection_id, numbers)].add(row.rule_id)
    return dict(found)


@pytest.mark.parametrize("name", golden.captures())
def test_violations_of_a_capture(violated: dict[str, set[str]], name: str) -> None:
    assert violated.get(name, set()) == VIOLATIONS.get(name, set())
