"""A lake filled by this process: its tables, message flows across batches among them, are those of one decode."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, NoReturn

import golden
import pyarrow.parquet as pq
import pytest
from audit_support import counted
from lake_support import rows_of_lake, rows_of_table
from lake_work import moved_in_time, rotated
from pcap_files import records
from pyspark.sql import SparkSession

import pipeline
from pipeline import TABLES
from pipeline.audit import findings_in
from pipeline.explore.duckdb_tables import files_here
from pipeline.lake.lake_tables import Span
from pipeline.lake.log import Log
from pipeline.lake.opening import open_lake
from pipeline.output.location import location
from pipeline.run.local_processes import LocalProcesses

BATCHES, FOREVER_S = 6, 3e9  # captures are of several years
# Of each version; a stream, requests and replies, a transaction, exceptions, bytes that are lost.
NAMES = (
    "091_rpc_reply_to.pcap", "091_confirms_and_return.pcap", "091_tx.pcap", "08_amqplib_session.pcap",
    "09_qpid_client.pcap", "010_cpp_send_receive.pcap", "10_qpidd_rpc_dynamic_node.pcap",
    "091_channel_exceptions.pcap", "010_exceptions.pcap", "10_rabbitmq_link_errors.pcap",
    "10_rabbitmq_proton_send_receive.pcap",
)  # fmt: skip
LOSSY = "091_many_channels.pcap"


def no_session() -> NoReturn:
    raise AssertionError("Spark was begun")


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Captures of each batch; of one connection some are missing."""
    folder = tmp_path_factory.mktemp("captures")
    found: list[list[str]] = [[] for _ in range(BATCHES)]
    for name in (*NAMES, LOSSY):
        for batch, piece in zip(found, rotated(golden.captures()[name].paths[0], folder, BATCHES), strict=True):
            batch.append(str(piece))
    found[BATCHES // 2].pop()
    return found


@pytest.fixture(scope="module")
def lake(batches: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> Log:
    lake = str(tmp_path_factory.mktemp("lake") / "lake")
    for number, batch in enumerate(batches, 1):
        used = pipeline.ingest(
            no_session, batch, lake, settle=0, pair_within=FOREVER_S, forget_after=FOREVER_S, late_after=FOREVER_S
        )
        assert [row["batch"] for row in used] == [number]
    return Log(open_lake(lake))


@pytest.fixture(scope="module")
def decoded(batches: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("decoded") / "out"
    pipeline.write(LocalProcesses(), [name for batch in batches for name in batch], str(output))
    return output


@pytest.mark.parametrize("name", TABLES)
def test_a_lake_has_the_tables_of_one_decode(lake: Log, decoded: Path, name: str) -> None:
    found = rows_of_lake(Path(lake.root.path), name)
    assert found == rows_of_table(name, (decoded / name).glob("*.parquet"))
    assert found


def test_flows_join_messages_of_several_batches(lake: Log, decoded: Path) -> None:
    """Else the test above says little."""
    flows = [row for file in (decoded / "message_flows").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    messages = [(file.path[:8], file) for file in lake.files("messages")]
    batch_of = {
        (row["connection_id"], row["first_frame_no"]): batch
        for batch, file in messages
        for row in pq.read_table(f"{lake.root.path}/messages/{file.path}").to_pylist()
    }
    pairs = [
        [batch_of[row[f"{side}_connection_id"], row[f"{side}_frame_no"]] for side in ("publish", "deliver")]
        for row in flows
        if row["match"] != "none"
    ]
    assert any(publish != deliver for publish, deliver in pairs)
    assert any(row["rpc_latency_ns"] is not None for row in flows)


def test_findings_are_those_of_one_decode(lake: Log, decoded: Path, spark: SparkSession) -> None:
    """In this process, whole and in groups, and on Spark; rows of most connections came in several batches."""
    directory = lake.root.path
    found = counted(findings_in({name: [str(file) for file in (decoded / name).glob("*.parquet")] for name in TABLES}))
    rules = {json.loads(row)["rule_id"] for row in found}
    assert {"CH-09", "T10-52", "L10-40", "SEC-01"} <= rules
    with files_here(location(directory), directory, Span()) as files:
        assert all(len({Path(path).name[:8] for path in files[name]}) > 1 for name in ("frames", "methods", "messages"))
        assert counted(findings_in(files)) == found
        assert counted(findings_in(files, most_bytes=0)) == found
    assert counted(pipeline.findings(pipeline.load(spark, directory)).toArrow()) == found


@pytest.mark.parametrize(("apart_s", "paired"), [(50, True), (70, False)])
def test_messages_are_paired_within_a_time(tmp_path: Path, apart_s: int, paired: bool) -> None:
    """Three batches: up to a publish, then other connections so much later, then the delivery and the rest."""
    capture, other = (golden.captures()[name].paths[0] for name in (NAMES[0], NAMES[-1]))
    lake = str(tmp_path / "lake")
    pipeline.write(LocalProcesses(), str(capture), str(tmp_path / "out"))
    flows = [row for row in rows_in(tmp_path / "out" / "message_flows") if row["match"] != "none"]
    published_us = min(row["publish_ts_ns"] for row in flows) // 1000
    (flow,) = (row for row in flows if row["publish_ts_ns"] // 1000 == published_us)
    header, packets = records(capture)
    before = sum(stamp_of(packet) <= published_us for packet in packets)
    assert stamp_of(packets[before]) * 1000 <= flow["deliver_ts_ns"]
    first, middle, last = (tmp_path / f"{name}.pcap" for name in ("first", "middle", "last"))
    first.write_bytes(header + b"".join(packets[:before]))
    moved_in_time(other, middle, published_us // 10**6 + apart_s - int.from_bytes(records(other)[1][0][:4], "little"))
    moved_in_time(capture, last, apart_s + 1)
    last.write_bytes(header + b"".join(records(last)[1][before:]))
    for path in (first, middle, last):
        pipeline.ingest(
            no_session, str(path), lake, settle=0, pair_within=60, forget_after=FOREVER_S, late_after=FOREVER_S
        )
    found = rows_in(*(Path(lake, "message_flows", file.path) for file in Log(open_lake(lake)).files("message_flows")))
    frame = (flow["publish_connection_id"], flow["publish_frame_no"])
    (same,) = (row for row in found if (row["publish_connection_id"], row["publish_frame_no"]) == frame)
    assert (same["match"], same["deliver_frame_no"]) == (
        (flow["match"], flow["deliver_frame_no"]) if paired else ("none", None)
    )


def rows_in(*locations: Path) -> list[dict[str, Any]]:
    """Rows of files, or of those in directories."""
    return [row for location in locations for row in pq.read_table(location).to_pylist()]


def stamp_of(packet: bytes) -> int:
    """Microseconds since 1970 UTC, of a capture that has these."""
    seconds, micros = struct.unpack_from("<II", packet)
    return int(seconds) * 10**6 + int(micros)


def test_only_files_named_in_the_log_remain_of_a_batch(lake: Log) -> None:
    for name in ("pairing", "brokers", "states", "taken"):
        there = {
            str(path.relative_to(f"{lake.root.path}/{name}")) for path in Path(lake.root.path, name).rglob("*.parquet")
        }
        assert {path for path in there if not path.startswith("_")} == {file.path for file in lake.files(name)}
