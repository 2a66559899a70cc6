"""A lake filled with Spark: its tables, message flows across batches among them, are those of one decode."""

from __future__ import annotations

import random
import time
from pathlib import Path

import deltalake
import duckdb
import golden
import polars
import pytest
from audit_support import only
from lake_work import moved_in_time, rotated
from pcap_files import records
from pyspark.sql import DataFrame, SparkSession

import pipeline
from jobs.cli import main
from jobs.terminal.running import OK, UNREADABLE
from pipeline import TABLES, Tables

BATCHES, FILES = 3, 24  # of each capture
GROUPS = ("CH", "SEC")  # of rules
FOREVER_S = 3e9  # captures are of several years
TODAYS = "091_declare_publish_consume_ack.pcap"
OTHERS = ("010_cpp_send_receive.pcap", "10_rabbitmq_proton_send_receive.pcap", "08_amqplib_session.pcap")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> list[list[Path]]:
    """By batch: publishes, and deliveries of their messages, in many captures, one of them of a few minutes ago."""
    folder = tmp_path_factory.mktemp("captures")
    (capture,) = golden.captures()[TODAYS].paths
    began = int.from_bytes(records(capture)[1][0][:4], "little")
    todays = moved_in_time(capture, folder / TODAYS, int(time.time()) - 600 - began)
    found: list[list[Path]] = [[] for _ in range(BATCHES)]
    for path in (todays, *(golden.captures()[name].paths[0] for name in OTHERS)):
        for index, piece in enumerate(rotated(path, folder / "rotated", FILES)):
            found[index * BATCHES // FILES].append(piece)
    return [random.Random(22).sample(batch, len(batch)) for batch in found]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, pieces: list[list[Path]], tmp_path_factory: pytest.TempPathFactory) -> str:
    lake, so_far = str(tmp_path_factory.mktemp("lake") / "lake"), list[str]()
    for number, batch in enumerate(pieces, 1):
        so_far += map(str, batch)
        batches = pipeline.ingest(
            spark, so_far, lake, settle=0, pair_within=FOREVER_S, forget_after=FOREVER_S, late_after=FOREVER_S
        )
        assert [(batch["batch"], batch["files"]) for batch in batches] == [(number, len(batch))]
    return lake


@pytest.fixture(scope="module")
def decoded(spark: SparkSession, pieces: list[list[Path]]) -> Tables:
    return pipeline.decode(spark, [str(path) for batch in pieces for path in batch])


def rows(table: DataFrame) -> list[str]:
    texts = table.selectExpr(*(f"to_json(struct({name})) AS {name}" for name in table.columns))
    return sorted(repr(row) for row in texts.collect())


@pytest.mark.parametrize("name", TABLES)
def test_a_lake_has_the_tables_of_one_decode(spark: SparkSession, lake: str, decoded: Tables, name: str) -> None:
    found = pipeline.load(spark, lake)
    assert rows(getattr(found, name)) == rows(getattr(decoded, name))


def test_flows_join_messages_of_several_batches(spark: SparkSession, lake: str) -> None:
    flows = pipeline.load(spark, lake).message_flows
    assert flows.filter("match != 'none'").count() > 0


def test_a_time_range_of_a_lake_is_selected(spark: SparkSession, lake: str, decoded: Tables) -> None:
    ends = decoded.frames.selectExpr("min(ts_ns) AS first", "max(ts_ns) AS last").first()
    assert ends is not None
    middle = (ends["first"] + ends["last"]) // 2
    later = pipeline.load(spark, lake, since=middle)
    assert rows(later.frames) == rows(decoded.frames.filter(f"ts_ns >= {middle}"))
    assert later.connections.count() == decoded.connections.filter(f"unix_micros(closed_ts) * 1000 >= {middle}").count()
    assert pipeline.load(spark, lake, until=ends["first"]).frames.count() == 0


def test_the_command_takes_what_is_new_and_names_what_is_damaged(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, broken = str(tmp_path / "lake"), tmp_path / "broken.pcap"
    broken.write_text("not a capture")
    first = next(rotated(golden.captures()[TODAYS].paths[0], tmp_path / "captures", 3))
    command = ["ingest", str(first), str(broken), "--lake", lake, "--once", "--settle", "0"]
    assert main(command) == UNREADABLE
    assert capsys.readouterr().out.startswith("Batch 1: 2 captures (")
    assert main(command) == OK
    assert capsys.readouterr().out == ""
    assert main(["lake", lake]) == OK
    assert "Batch 1. 1 connection open" in capsys.readouterr().out


def test_yesterday_and_today_are_audited(
    spark: SparkSession, lake: str, decoded: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, rules = tmp_path / "audit.html", only(tmp_path, *GROUPS)
    command = ["audit", lake, "--report", str(report), "--fail-on", "never", "--since", "yesterday"]
    command += ["--config", str(rules)]
    assert main(command) == OK, capsys.readouterr().err
    assert "<html" in report.read_text()
    mine = decoded.connections.filter("closed_ts >= date_sub(current_date(), 1)").select("connection_id")
    assert mine.count() == 1
    (todays,) = mine.collect()
    found = spark.read.parquet(f"{lake}/findings").select("rule_id", "connection_id", "frame_no")
    assert {row["connection_id"] for row in found.collect()} - {None} == {todays["connection_id"]}
    of_all = pipeline.findings(decoded, GROUPS).select("rule_id", "connection_id", "frame_no")
    known = f"connection_id = {todays['connection_id']}"
    assert {row["rule_id"] for row in found.collect()} >= {"CH-12", "SEC-01"}
    assert rows(found.filter(known)) == rows(of_all.filter(known))


def test_other_readers_count_the_same(spark: SparkSession, lake: str) -> None:
    """DuckDB by the list of files: its extension for Delta is not there without a network."""
    found = pipeline.load(spark, lake)
    messages = found.messages.selectExpr("count(*)", "sum(body_size)").first()
    flows = found.message_flows.selectExpr("count(*)", "sum(publish_ts_ns % 1000)").first()
    assert messages is not None
    assert flows is not None
    table = deltalake.DeltaTable(f"{lake}/messages")
    query = "SELECT count(*), sum(body_size) FROM read_parquet($files)"
    with duckdb.connect() as counting:
        assert counting.execute(query, {"files": table.file_uris()}).fetchone() == tuple(messages)
    sizes = table.to_pyarrow_dataset().to_table(columns=["body_size"])
    assert (len(sizes), sizes.to_pandas().body_size.sum()) == tuple(messages)
    assert (len(sizes), polars.DataFrame(sizes)["body_size"].sum()) == tuple(messages)
    scanned = polars.scan_delta(f"{lake}/message_flows").select("publish_ts_ns").collect()
    assert (len(scanned), (scanned["publish_ts_ns"] % 1000).sum()) == tuple(flows)
