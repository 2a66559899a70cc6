"""Captures that are missing, empty, cut, damaged or compressed: rows that say so, and everything before the damage."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from independent_tcp import pcap_records
from pcap_files import records
from test_capture_pcapng import section
from test_source import CAPTURES, GOOD, accounts, expected_packets, exploded, rows

from udfs.source.options import parse_options
from udfs.source.packets import PcapReader
from udfs.source.paths import PathError
from udfs.source.sources import TcpRunsReader


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.pcap", b"", "the file is empty"),
        ("text.pcap", b"This is no capture", "the text 'This is no captu'"),
        ("cut_header.pcap", GOOD.read_bytes()[:20], "inside the pcap header of 24 bytes"),
        ("cut_section.pcapng", section("<")[:16], "inside the section header"),
        ("not_really.pcap.gz", b"\x1f\x8bnonsense", "the gzip data is damaged or cut short after 0 bytes"),
    ],
)
def test_unreadable_capture_is_a_row_beside_the_good_ones(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    bad = tmp_path / name
    bad.write_bytes(data)
    runs = rows(TcpRunsReader, bad, GOOD)
    assert exploded(runs) == expected_packets(GOOD)
    by_file = {account["capture_file"]: account for account in accounts(runs)}
    error = by_file[bad.as_uri()]["error"]
    assert error.startswith(bad.as_uri() + ": ")
    assert message in error
    assert "\n" not in error
    assert by_file[GOOD.as_uri()]["error"] is None
    errors = [row for row in rows(PcapReader, bad, GOOD) if row["error"]]
    assert [(row["capture_file"], row["error"], row["packet_no"]) for row in errors] == [(bad.as_uri(), error, None)]


def test_missing_file_beside_a_good_one_is_a_row(tmp_path: Path) -> None:
    missing = tmp_path / "gone.pcap"
    found = {account["capture_file"]: account for account in accounts(rows(TcpRunsReader, missing, GOOD))}
    assert found[missing.as_uri()]["error"] == f"{missing.as_uri()}: no such file or directory"
    assert found[missing.as_uri()]["byte_size"] == -1
    assert found[GOOD.as_uri()]["error"] is None


def test_file_that_goes_away_between_planning_and_reading_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "short-lived.pcap"
    path.write_bytes(GOOD.read_bytes())
    reader = TcpRunsReader(parse_options({"path": str(path)}))
    (partition,) = reader.partitions()
    path.unlink()
    (batch,) = reader.read(partition)
    assert accounts(batch.to_pylist())[0]["error"] == f"{path.as_uri()}: no such file or directory"


def test_no_capture_at_all_is_an_error_on_the_driver(tmp_path: Path) -> None:
    with pytest.raises(PathError, match="nowhere: no such file or directory"):
        rows(TcpRunsReader, tmp_path / "nowhere")
    with pytest.raises(PathError, match="no path given"):
        TcpRunsReader(parse_options({})).partitions()


@pytest.mark.parametrize("split_bytes", [10**9, 1000])
def test_corrupt_record_keeps_what_came_before(tmp_path: Path, split_bytes: int) -> None:
    data = bytearray(GOOD.read_bytes())
    undamaged = expected_packets(GOOD)
    header, packets = records(GOOD)
    at = len(header + b"".join(packets[:10]))
    data[at + 8 : at + 12] = b"\xff\xff\xff\x7f"  # the captured length of the eleventh record
    bad = tmp_path / "corrupt.pcap"
    bad.write_bytes(data)
    runs = rows(TcpRunsReader, bad, splitBytes=split_bytes)
    assert [packet[1:] for packet in exploded(runs)] == [packet[1:] for packet in undamaged[:10]]
    errors = [account["error"] for account in accounts(runs) if account["error"]]
    assert len(errors) == 1
    assert f"the record at byte {at} claims" in errors[0]


def test_cut_gzip_gives_everything_before_the_cut(tmp_path: Path) -> None:
    compressed = (CAPTURES / "091_gzip.pcap.gz").read_bytes()
    cut = tmp_path / "cut.pcap.gz"
    cut.write_bytes(compressed[: len(compressed) * 2 // 3])
    with gzip.open(cut) as stream, pytest.raises(EOFError):
        plain = b""
        while True:
            plain += stream.read(1)  # everything that Python's own decoder gets out of it
    (account,) = accounts(rows(TcpRunsReader, cut))
    assert 0 < account["packets"] == len([*pcap_records(plain)]) < 519
    assert f"the gzip data is damaged or cut short after {len(plain)} bytes" in account["error"]


@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
def test_compression_is_known_by_content_not_by_name(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "plain-name.pcap"
    with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), compression) as out:
        out.write(GOOD.read_bytes())
    runs = rows(TcpRunsReader, path, splitBytes=100)
    assert [packet[1:] for packet in exploded(runs)] == [packet[1:] for packet in expected_packets(GOOD)]
    (account,) = accounts(runs)
    assert (account["compression"], account["byte_size"]) == (compression, path.stat().st_size)


def test_zstd_may_begin_with_a_skippable_frame(tmp_path: Path) -> None:
    """pzstd writes the compressed size of each frame in front of it: RFC 8878, section 3.1.2, magic 0x184D2A50."""
    path = tmp_path / "parallel.pcap.zst"
    data, parts = GOOD.read_bytes(), []
    for part in (data[:1000], data[1000:]):
        compressed = pa.compress(part, "zstd", asbytes=True)
        parts += [struct.pack("<III", 0x184D2A50, 4, len(compressed)), compressed]
    path.write_bytes(b"".join(parts))
    runs = rows(TcpRunsReader, path)
    assert [packet[1:] for packet in exploded(runs)] == [packet[1:] for packet in expected_packets(GOOD)]
    (account,) = accounts(runs)
    assert (account["compression"], account["error"]) == ("zstd", None)
