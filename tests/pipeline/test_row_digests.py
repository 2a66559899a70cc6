"""The rows of all tables, and the findings, of every capture are those of the digests in `row_digests.SHIPPED`.

Another digest is no error if the bytes make the new row right. `python -m tests.support.row_digests` shows which rows
differ, and writes the digests anew.

WIREHARE_CAPTURES, a list of directories, and WIREHARE_DIGESTS, a file that the command has made of them, have other
captures checked as well, with the mark slow.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import decoding
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import row_digests
from pyspark.sql import SparkSession
from row_digests import FINDINGS, SHIPPED, Digests

import pipeline
from codec.tables import TABLES
from pipeline.lake.log import Log
from pipeline.lake.opening import open_lake
from pipeline.tables.decoding import config, secret_files
from udfs.tables import ACCOUNTS, tables_of

CAPTURES = row_digests.captures([row_digests.CAPTURES])
SHIPPED_DIGESTS: dict[str, Digests] = json.loads(SHIPPED.read_text())
# Of each family; TLS, loss, nanoseconds of a big-endian pcapng, several connections of one broker.
SOME = (
    "091_confirms_and_return.pcap", "091_loss.pcap", "091_tls13_dsb.pcapng", "010_dtx.pcap",
    "10_qpidd_transactions.pcap",
)  # fmt: skip
SOME_OR_SLOW = [*SOME, *(pytest.param(name, marks=pytest.mark.slow) for name in CAPTURES if name not in SOME)]
PIECES, FOREVER_S = 3, 3e9  # captures are of several years


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories with the tables of captures that were decoded with the bytes of bodies."""
    directories: dict[str, Path] = {}
    folder = tmp_path_factory.mktemp("decoded")
    for name, path in CAPTURES.items():
        directories[name] = folder / name
        row_digests.write_tables(path, directories[name], payload=True)
    return directories


def of_tables(digests: Digests, payload: bool, tables: tuple[str, ...] = tuple(TABLES)) -> Digests:
    """Digests without findings, those of some tables."""
    return {table: text for table, text in row_digests.expected(digests, payload).items() if table in tables}


def test_every_capture_has_digests() -> None:
    assert CAPTURES.keys() == SHIPPED_DIGESTS.keys() - {""}


@pytest.mark.parametrize("name", CAPTURES)
def test_rows_of_a_capture(decoded: dict[str, Path], name: str) -> None:
    rows = row_digests.tables_in(decoded[name], CAPTURES[name].parent)
    assert row_digests.digests(rows) == of_tables(SHIPPED_DIGESTS[name], payload=True)


PARTS = (
    "send_ns", "network_ns", "confirm_wait_ns", "queue_blocked_ns", "queue_ready_ns", "redelivery_ns", "delivery_ns",
    "consumer_ns", "ack_held_ns",
)  # fmt: skip


def test_parts_of_latency_add_up_in_every_flow(decoded: dict[str, Path]) -> None:
    for directory in decoded.values():
        for row in pq.read_table(directory / "message_flows", columns=["total_latency_ns", *PARTS]).to_pylist():
            total, *parts = row.values()
            known = [part for part in parts if part is not None]
            assert total == (sum(known) if known else None), row
            assert all(part >= 0 for part in known), row


def test_findings_of_all_captures(decoded: dict[str, Path]) -> None:
    found = row_digests.findings_of(decoded, CAPTURES, row_digests.find_here)
    assert {name: row_digests.digests({FINDINGS: rows}) for name, rows in found.items()} == {
        name: {FINDINGS: digests[FINDINGS]} if FINDINGS in digests else {} for name, digests in SHIPPED_DIGESTS.items()
    }


@pytest.mark.parametrize("name", CAPTURES)
def test_rows_of_a_capture_without_the_bytes_of_bodies(name: str) -> None:
    """Those tables that workers make."""
    path = CAPTURES[name]
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    runs = decoding.in_flow_order(decoding.runs([file for file in files if file.name.endswith(row_digests.ENDINGS)]))
    secrets = secret_files([str(path)], row_digests.key_logs(path))
    parts: dict[str, list[pa.Table]] = {}
    for table, _, rows in tables_of(runs.to_batches(), config(payload=False), secrets=secrets):
        if table != ACCOUNTS:
            parts.setdefault(table, []).append(pa.Table.from_batches([rows]))
    found = {table: row_digests.as_json(each, path.parent) for table, each in parts.items()}
    workers = tuple(config().schemas)
    assert row_digests.digests(found) == of_tables(SHIPPED_DIGESTS[name], False, workers)


@pytest.mark.parametrize("name", SOME_OR_SLOW)
def test_rows_of_a_capture_through_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    row_digests.write_tables(CAPTURES[name], tmp_path / "tables", True, spark)
    rows = row_digests.tables_in(tmp_path / "tables", CAPTURES[name].parent)
    assert row_digests.digests(rows) == of_tables(SHIPPED_DIGESTS[name], payload=True)


@pytest.mark.slow
def test_findings_of_all_captures_through_spark(spark: SparkSession, decoded: dict[str, Path]) -> None:
    found = row_digests.findings_of(decoded, CAPTURES, row_digests.find_on_spark(spark))
    assert {name: row_digests.digests({FINDINGS: rows}) for name, rows in found.items()} == {
        name: {FINDINGS: digests[FINDINGS]} if FINDINGS in digests else {} for name, digests in SHIPPED_DIGESTS.items()
    }


@pytest.mark.parametrize("name", SOME_OR_SLOW)
def test_rows_of_a_capture_that_grows_while_it_is_ingested(tmp_path: Path, name: str) -> None:
    """Its first third, its first two thirds, all of it: cut in the middle of a packet."""
    path, captures, lake = CAPTURES[name], tmp_path / "captures", str(tmp_path / "lake")
    captures.mkdir()
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for piece in range(1, PIECES + 1):
        for file in files:
            data = file.read_bytes()
            (captures / file.name).write_bytes(data[: len(data) * piece // PIECES])
        pipeline.ingest(
            no_session, str(captures), lake, payload=True, keylog=row_digests.key_logs(path), settle=0,
            pair_within=FOREVER_S, forget_after=FOREVER_S, late_after=FOREVER_S, carry_secrets=True,
        )  # fmt: skip
    log = Log(open_lake(lake))
    rows = {
        table: row_digests.as_json(
            [
                pq.read_table(f"{log.root.path}/{table}/{file.path}", partitioning=None, columns=columns)
                for file in log.files(table)
            ],
            captures,
        )
        for table, columns in ((table, schema.names) for table, schema in TABLES.items())
        if list(log.files(table))
    }
    assert row_digests.digests(rows) == of_tables(SHIPPED_DIGESTS[name], payload=True)


def no_session() -> SparkSession:
    raise AssertionError("Spark was begun")


@pytest.mark.slow
def test_rows_and_findings_of_other_captures(capsys: pytest.CaptureFixture[str]) -> None:
    directories = [path for path in os.environ.get("WIREHARE_CAPTURES", "").split(os.pathsep) if os.path.isdir(path)]
    file = Path(os.environ.get("WIREHARE_DIGESTS", ""))
    if not directories or not file.is_file():
        pytest.skip("needs WIREHARE_CAPTURES and WIREHARE_DIGESTS")
    assert row_digests.check(file, row_digests.captures(directories), None, 12, True) == 0, capsys.readouterr().out
