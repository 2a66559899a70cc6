"""A lake after many batches has the rows of one decode of everything, in all versions, however captures are rotated."""

from __future__ import annotations

import gzip
import os
import random
import sys
import tarfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import decoding
import deltalake
import duckdb
import golden
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deployment import blocks
from lake_work import LocalWork, rotated
from pcap_files import records
from scapy.layers.inet import TCP
from scapy.utils import rdpcap

from codec.tables import TABLES
from jobs.cli import main
from jobs.ingest import line
from jobs.terminal.running import OK, UNREADABLE
from pipeline.lake.ingest_batches import OF_CONNECTIONS, Ingest
from pipeline.lake.lake_files import read_rows
from pipeline.lake.layout import Options
from pipeline.lake.log import Log
from pipeline.lake.opening import open_lake
from pipeline.tables.decoding import config
from udfs.decode.key_logs import SecretFiles
from udfs.tables import tables_of

# Of each version; encryption, lost packets, a connection seen from its middle, transactions.
CAPTURES = (
    "08_amqplib_session.pcap", "09_qpid_client.pcap", "091_tx.pcap", "091_loss.pcap", "091_tls12.pcap",
    "010_tx.pcap", "010_mid_stream.pcap", "10_qpidd_transactions.pcap", "10_rabbitmq_multi_frame_transfer.pcap",
)  # fmt: skip
UNSETTLED = Options(settle=0)
FILES, BATCHES = 60, 3
# Where a packet is depends on the file that it is in.
OF_FILES = ("capture_file", "packet_no", "first_packet_no")

Rows = dict[str, list[str]]
DECODED: dict[Any, Rows] = {}


def plain(rows: pa.Table, *without: str) -> list[str]:
    """Rows as texts, in an order, VARIANT by its bytes."""
    return sorted(map(str, rows.select([name for name in rows.column_names if name not in without]).to_pylist()))


def decoded_at_once(captures: Iterable[Path], secrets: SecretFiles | None = None) -> Rows:
    """The tables of one decode, made once for captures with the same bytes."""
    paths = [*captures]
    data = (OF_FILES, *(path.read_bytes() for path in paths))
    if secrets is None and data in DECODED:
        return DECODED[data]
    runs = decoding.in_flow_order(decoding.runs(paths)).combine_chunks().to_batches(max_chunksize=64)
    rows = {name: list[str]() for name in OF_CONNECTIONS}
    for table, _, batch in tables_of(iter(runs), config(True), secrets=secrets):
        if table in rows:
            rows[table] += plain(pa.Table.from_batches([batch]), *OF_FILES)
    if secrets is None:
        DECODED[data] = rows
    return rows


def in_lake(path: Path) -> Rows:
    """The tables of a lake as of its last batch."""
    return rows_in(Log(open_lake(str(path))))


def rows_in(log: Log) -> Rows:
    """The same of a lake anywhere."""
    batch = log.batch("captures")
    files = {name: log.files(name, batch) for name in OF_CONNECTIONS}
    return {name: plain(read_rows(log.root, name, files[name]), *OF_FILES) if files[name] else [] for name in files}


def ingest(lake: Path | str, captures: Iterable[Path], options: Options = UNSETTLED) -> list[dict[str, Any]]:
    with Ingest.into(str(lake), LocalWork, options) as ingesting:
        return list(ingesting.batches([str(path) for path in captures]))


def compared(found: Rows, expected: Rows) -> None:
    for name in OF_CONNECTIONS:
        assert sorted(found[name]) == sorted(expected[name]), name


@pytest.mark.parametrize("name", CAPTURES)
def test_many_batches_give_the_rows_of_one_decode(tmp_path: Path, name: str) -> None:
    """Up to 60 captures with names in no order, in a few batches of any size, each batch in any order."""
    (capture,) = golden.captures()[name].paths
    pieces = list(rotated(capture, tmp_path / "captures", min(FILES, len(records(capture)[1]))))
    lake, draw = tmp_path / "lake", random.Random(name)
    names = draw.sample(range(1000), len(pieces))
    pieces = [path.rename(path.with_name(f"{number}.pcap")) for path, number in zip(pieces, names, strict=True)]
    ends = [*sorted(draw.sample(range(1, len(pieces)), BATCHES - 1)), len(pieces)]
    for end in ends:
        (batch,) = ingest(lake, draw.sample(pieces[:end], end))
        assert batch["late_files"] == 0
    compared(in_lake(lake), decoded_at_once(pieces))


# ---- which captures are taken ---------------------------------------------------------------------------------------

SECOND = 10**9
SESSION = golden.captures()["091_tx.pcap"].paths[0]


@pytest.fixture
def pieces(tmp_path: Path) -> list[Path]:
    return list(rotated(SESSION, tmp_path / "captures", 3))


def files(batches: list[dict[str, Any]]) -> list[int]:
    return [batch["files"] for batch in batches]


def captures(lake: Path) -> dict[str, dict[str, Any]]:
    """Rows of table captures by file name."""
    log = Log(open_lake(str(lake)))
    rows = read_rows(log.root, "captures", log.files("captures")).to_pylist()
    found = {row["capture_file"].rpartition("/")[2]: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_a_capture_is_taken_once(tmp_path: Path, pieces: list[Path]) -> None:
    lake = tmp_path / "lake"
    assert files(ingest(lake, pieces)) == [3]
    assert ingest(lake, pieces) == []
    assert {name: row["batch"] for name, row in captures(lake).items()} == {path.name: 1 for path in pieces}


def test_captures_of_a_batch_are_taken_by_their_times_whatever_their_names(tmp_path: Path, pieces: list[Path]) -> None:
    renamed = [path.rename(path.with_name(f"{9 - number}.pcap")) for number, path in enumerate(pieces)]
    ingest(tmp_path / "lake", renamed)
    compared(in_lake(tmp_path / "lake"), decoded_at_once(renamed))


def test_a_backlog_is_taken_in_several_batches(tmp_path: Path, pieces: list[Path]) -> None:
    options = replace(UNSETTLED, batch_bytes=1)
    assert files(ingest(tmp_path / "lake", reversed(pieces), options)) == [1, 1, 1]
    compared(in_lake(tmp_path / "lake"), decoded_at_once(pieces))


def test_a_capture_that_is_being_written_is_taken_later(tmp_path: Path, pieces: list[Path]) -> None:
    lake, now = tmp_path / "lake", time.time()
    for path, seconds in zip(pieces, (300, 300, 1), strict=True):
        os.utime(path, (now - seconds, now - seconds))
    options = replace(UNSETTLED, settle=30)
    assert files(ingest(lake, pieces, options)) == [2]
    os.utime(pieces[2], (now - 31, now - 31))
    assert files(ingest(lake, pieces, options)) == [1]
    compared(in_lake(lake), decoded_at_once(pieces))


def test_a_capture_that_grew_is_read_on_from_where_reading_ended(tmp_path: Path) -> None:
    growing, lake = tmp_path / "growing.pcap", tmp_path / "lake"
    header, packets = records(SESSION)
    some = len(packets) // 3
    # in the middle of a packet; then a few packets more; then all
    for data in (
        b"".join([header, *packets[:some], packets[some][:20]]),
        b"".join([header, *packets[: 2 * some]]),
        b"".join([header, *packets]),
    ):
        growing.write_bytes(data)
        assert files(ingest(lake, [growing])) == [1]
    compared(in_lake(lake), decoded_at_once([growing]))
    (row,) = captures(lake).values()
    assert (row["packets"], row["truncated"], row["batch"]) == (len(packets), False, 3)


@pytest.mark.parametrize("rename", ["other.pcap", "other.pcap.gz"])
def test_a_capture_under_a_second_name_is_skipped(tmp_path: Path, pieces: list[Path], rename: str) -> None:
    lake, copy = tmp_path / "lake", tmp_path / rename
    ingest(lake, pieces)
    data = pieces[0].read_bytes()
    copy.write_bytes(gzip.compress(data) if rename.endswith("gz") else data)
    with Ingest.into(str(lake), LocalWork, UNSETTLED) as ingesting:
        assert list(ingesting.batches([str(path) for path in (*pieces, copy)])) == []
        assert ingesting.copies == [(copy.as_uri(), pieces[0].as_uri())]
    assert sorted(captures(lake)) == sorted(path.name for path in pieces)


def test_a_ring_buffer_file_that_is_overwritten_is_a_new_capture(tmp_path: Path, pieces: list[Path]) -> None:
    lake, ring = tmp_path / "lake", tmp_path / "ring.pcap"
    for piece in pieces:
        ring.write_bytes(piece.read_bytes())
        assert files(ingest(lake, [ring])) == [1]
    compared(in_lake(lake), decoded_at_once(pieces))


def test_a_late_capture_is_decoded_separately(tmp_path: Path, pieces: list[Path]) -> None:
    lake, options = tmp_path / "lake", replace(UNSETTLED, late_after=0)
    for arrived in ([pieces[0], pieces[2]], [pieces[1]]):
        ingest(lake, arrived, options)
    assert {name: row["late"] for name, row in captures(lake).items()} == {
        pieces[0].name: False, pieces[1].name: True, pieces[2].name: False,
    }  # fmt: skip
    in_time, late = decoded_at_once([pieces[0], pieces[2]]), decoded_at_once([pieces[1]])
    compared(in_lake(lake), {name: in_time[name] + late[name] for name in in_time})


def test_a_broken_capture_is_a_row_and_the_others_are_decoded(tmp_path: Path, pieces: list[Path]) -> None:
    lake, broken = tmp_path / "lake", tmp_path / "broken.pcap"
    broken.write_text("not a capture")
    (batch,) = ingest(lake, [*pieces, broken])
    assert (batch["files"], batch["damaged_files"]) == (4, 1)
    assert "expected the magic number of pcap" in captures(lake)["broken.pcap"]["error"]
    compared(in_lake(lake), decoded_at_once(pieces))


def test_others_may_read_the_tables_but_not_the_states(tmp_path: Path, pieces: list[Path]) -> None:
    before = os.umask(0o022)
    try:
        ingest(tmp_path / "lake", pieces)
    finally:
        os.umask(before)

    folders = {name: (tmp_path / "lake" / name) for name in ("frames", "states", "_wirehare")}
    modes = {name: folder.stat().st_mode & 0o777 for name, folder in folders.items()}
    assert modes == {"frames": 0o755, "states": 0o700, "_wirehare": 0o755}
    assert {file.stat().st_mode & 0o777 for file in folders["frames"].rglob("*.parquet")} == {0o644}


# ---- connections that go on -----------------------------------------------------------------------------------------


def test_the_state_of_a_connection_is_dropped_after_a_long_silence(tmp_path: Path, pieces: list[Path]) -> None:
    lake, later = tmp_path / "lake", tmp_path / "later.pcap"
    ingest(lake, pieces[:1])
    (other,) = golden.captures()["10_qpidd_transactions.pcap"].paths
    header, packets = records(other)
    later.write_bytes(header + b"".join(packets[:3]))
    (batch,) = ingest(lake, [later], replace(UNSETTLED, forget_after=0))
    assert batch["forgotten_connections"] == 1
    log = Log(open_lake(str(lake)))
    final = [file for file in log.files("connections") if not file.open]
    (row,) = read_rows(log.root, "connections", final, ["tcp_end", "version"]).to_pylist()
    assert row == {"tcp_end": "expired", "version": "0-9-1"}


def test_the_oldest_states_are_dropped_when_all_states_are_too_large(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    found = []
    for name in ("091_tx.pcap", "010_tx.pcap", "10_qpidd_transactions.pcap"):
        (capture,) = golden.captures()[name].paths
        found.append(next(rotated(capture, tmp_path / name, 2)))
    found.sort(key=lambda path: records(path)[1][0][:4][::-1])  # by their times
    options = replace(UNSETTLED, forget_after=10**9, state_bytes=1)
    (batch,) = ingest(lake, found[:2], options)
    assert (batch["open_connections"], batch["forgotten_connections"]) == (2, 0), "they have packets in this batch"
    (batch,) = ingest(lake, found, options)
    assert (batch["open_connections"], batch["forgotten_connections"]) == (1, 2)


@pytest.mark.parametrize("name", ["091_tx.pcap", "010_tx.pcap"])  # ended by FIN and RST, by FIN of both sides
def test_a_connection_that_tcp_has_ended_is_not_open(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    (capture,) = golden.captures()[name].paths
    flags = [packet[TCP].flags for packet in rdpcap(str(capture))]
    assert sum("F" in each or "R" in each for each in flags) == 2
    (batch,) = ingest(lake, [capture])
    assert batch["open_connections"] == 0
    assert "1 packet, 1 frame, 0 connections open;" in line({**batch, "packets": 1, "frames": 1})
    assert main(["lake", str(lake)]) == OK
    text = capsys.readouterr().out
    assert "Batch 1. 0 connections open, 1 ended by TCP (late copies of packets may still arrive); states" in text


def test_states_that_cannot_be_read_are_reported_and_connections_go_on(tmp_path: Path, pieces: list[Path]) -> None:
    lake = tmp_path / "lake"
    ingest(lake, pieces[:1])
    before = in_lake(lake)
    log = Log(open_lake(str(lake)))
    (states,) = log.files("states")
    damaged = tmp_path / "lake/states" / states.path
    rows = pq.read_table(damaged)
    at = rows.schema.get_field_index("octets")
    pq.write_table(rows.set_column(at, "octets", pa.array([b"of another release"] * len(rows), pa.binary())), damaged)
    (batch,) = ingest(lake, pieces[1:])
    assert batch["unread_states"] == 1
    rest = decoded_at_once(pieces[1:])
    compared(in_lake(lake), {name: before[name] + rest[name] for name in before})


# ---- readers without Spark ------------------------------------------------------------------------------------------


def test_packets_are_cut_out_while_the_captures_are_there(
    tmp_path: Path, pieces: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    lake, cut = tmp_path / "lake", tmp_path / "one.pcapng"
    for end in (1, 2, 3):
        ingest(lake, pieces[:end])
    log = Log(open_lake(str(lake)))
    columns = ["connection_id", "client_packets", "server_packets"]
    row = read_rows(log.root, "connections", log.files("connections"), columns).to_pylist()[0]
    command = ["cut", str(lake), "--connection", str(row["connection_id"]), "-o", str(cut), "--overwrite"]
    assert main(command) == OK, capsys.readouterr().err
    assert len(rdpcap(str(cut))) == row["client_packets"] + row["server_packets"]
    pieces[1].unlink()
    assert main(command) == UNREADABLE
    assert pieces[1].name in capsys.readouterr().err


@pytest.mark.parametrize("captures", [2, 3], ids=["with open rows", "all"])
def test_other_readers_count_the_same(
    tmp_path: Path, pieces: list[Path], monkeypatch: pytest.MonkeyPatch, captures: int
) -> None:
    lake = tmp_path / "lake"
    for end in range(1, captures + 1):
        ingest(lake, pieces[:end])
    log = Log(open_lake(str(lake)))
    sizes = read_rows(log.root, "messages", log.files("messages"), ["body_size"])["body_size"].to_pylist()
    expected = (len(sizes), sum(size or 0 for size in sizes))
    assert expected[0]
    table = deltalake.DeltaTable(lake / "messages")
    query = "SELECT count(*), sum(body_size) FROM read_parquet($files)"
    with duckdb.connect() as counting:
        assert counting.execute(query, {"files": table.file_uris()}).fetchall() == [expected]
    found = table.to_pyarrow_dataset().to_table(columns=["body_size"])
    assert (len(found), found.to_pandas().body_size.sum()) == expected
    assert (len(found), polars.DataFrame(found)["body_size"].sum()) == expected
    streams = read_rows(log.root, "streams", log.files("streams"), ["packets"])["packets"].to_pylist()
    scanned = polars.scan_delta(f"{lake}/streams").select("packets").collect()["packets"]
    assert (len(scanned), scanned.sum()) == (len(streams), sum(streams))
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "lake.md").read_text()
    exec(compile(blocks(page, "python")[1], "lake.md", "exec"), {})


# ---- lakes of older releases ----------------------------------------------------------------------------------------


def test_the_first_lake_is_read_and_gets_the_columns_that_it_lacks(
    tmp_path: Path, pieces: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is a lake of two batches, which the first release with lakes has filled with the first two pieces."""
    with tarfile.open(Path(__file__).parents[1] / "captures" / "lake-of-layout-1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    lake = tmp_path / "lake"
    log = Log(open_lake(str(lake)))
    of_then = {field.name for name in OF_CONNECTIONS if log.exists(name) for field in log.latest(name).schema().fields}
    columns = [column for table in OF_CONNECTIONS if log.exists(table) for column in TABLES[table]]
    since = {column.name for column in columns if not {column.name, column.formerly} & of_then}
    assert "zero_window_ns" in since
    assert "channel_incarnation" not in since
    monkeypatch.setattr(sys.modules[__name__], "OF_FILES", (*OF_FILES, *since))
    before, names = in_lake(lake), ("batch", "packets", "ahead_files")
    assert [len(before[name]) for name in OF_CONNECTIONS] == [
        len(decoded_at_once(pieces[:2])[name]) for name in OF_CONNECTIONS
    ]
    assert "ahead_files" not in {field.name for field in log.latest("batches").schema().fields}
    (batch,) = ingest(lake, pieces)
    assert (batch["batch"], batch["files"]) == (3, 1)
    if batch["unread_states"]:  # then the connection goes on as one that began in its middle
        rest = decoded_at_once(pieces[2:])
        compared(in_lake(lake), {name: before[name] + rest[name] for name in before})
    else:
        compared(in_lake(lake), decoded_at_once(pieces))
    rows = deltalake.DeltaTable(lake / "batches").to_pyarrow_dataset().to_table(columns=list(names)).to_pylist()
    assert sorted(tuple(row[name] for name in names) for row in rows) == [(1, 16, None), (2, 17, None), (3, 17, 0)]
