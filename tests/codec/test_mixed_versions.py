"""Captures of several versions read together give the rows that each gives by itself."""

from __future__ import annotations

import golden
import pyarrow as pa
import pytest
from decoding import Row, decode_table, in_flow_order, rows_of, runs

TOGETHER = [
    "091_tx.pcap",
    "010_tx.pcap",
    "10_rabbitmq_settle_modes.pcap",
    "091_tls12.pcap",
    "10_rhea_peer_to_peer.pcap",
]


def frames(table: pa.Table) -> list[Row]:
    rows = [row for row in rows_of(decode_table(in_flow_order(table))) if row["kind"] == "frame"]
    return sorted(rows, key=lambda row: (row["connection_id"], row["frame_no"]))


@pytest.fixture(scope="module")
def tables() -> list[pa.Table]:
    return [runs([golden.CAPTURES / name]) for name in TOGETHER]


def test_versions_do_not_disturb_each_other(tables: list[pa.Table]) -> None:
    apart = [row for table in tables for row in frames(table)]
    together = frames(pa.concat_tables(tables))
    assert {row["version"] for row in together} == {"0-9-1", "0-10", "1.0", None}
    assert together == sorted(apart, key=lambda row: (row["connection_id"], row["frame_no"]))


def test_nothing_is_malformed_in_clean_captures(tables: list[pa.Table]) -> None:
    """The manifest calls none of these damaged, and tshark decodes them all."""
    assert {row["status"] for table in tables for row in frames(table)} == {"ok"}
