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
VIOLATIONS: dict[str, set[str]] = {
    "010_bad_frame.pcap": {"NEG-02"},  # a header with an unknown version
    "091_bad_protocol_header.pcap": {"NEG-01", "NEG-02"},  # HTTP GET; AMQP 9 9 9 9
    # 406 unknown delivery tag; 403 a name with amq.; 406 declared otherwise; 405 another connection's exclusive queue
    "091_channel_exceptions.pcap": {"DL-03", "NM-03", "NM-06", "NM-09"},
    # 504 channel that is not open; 505 body without method; 501 frame end, and what stands behind it is no frame;
    # 502 arguments that end too early; 540 a method that does not exist
    "091_connection_exceptions.pcap": {"CH-01", "CT-06", "FR-01", "FR-02", "FR-05", "FR-07"},
    "091_heartbeats.pcap": {"HB-01"},  # a client that stops answering
    "0x_all_protocol_headers.pcap": {"NEG-02"},  # 0 0 9 0 and 0 0 8 0
}


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
