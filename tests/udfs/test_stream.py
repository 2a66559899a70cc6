"""The stream of captures (udfs/source/packets.py): each packet once, whatever becomes of the query and the captures."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import golden
import independent_tcp
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles

import udfs
from codec.tables import PACKETS
from udfs.arrow.spark_schemas import spark_schema
from udfs.source.options import OptionError, parse_options
from udfs.source.packets import READ, Offset, PcapSource, PcapStreamReader

CAPTURES = [golden.CAPTURES / f"091_rotated_{number}.pcap" for number in (1, 2, 3)]
NOW = 2_000_000_000  # seconds
HOUR = 3600


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three captures that changed three, two and one hours ago."""
    monkeypatch.setattr("time.time_ns", lambda: NOW * 1_000_000_000)
    for number, capture in enumerate(CAPTURES):
        shutil.copy(capture, tmp_path)
        os.utime(tmp_path / capture.name, (NOW, NOW - (3 - number) * HOUR))
    return tmp_path


def reader(directory: Path, **options: str) -> PcapStreamReader:
    return PcapStreamReader(parse_options({"path": str(directory), **options}), PACKETS.names)


def names(offset: Offset) -> list[str]:
    return sorted(Path(name).name for name in offset[READ])


def packets(stream: PcapStreamReader, start: Offset, end: Offset) -> list[tuple[str, int]]:
    batches = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
    return sorted((Path(row["capture_file"]).name, row["packet_no"]) for b in batches for row in b.to_pylist())


def expected(*captures: Path) -> list[tuple[str, int]]:
    return [(each.name, no) for each in captures for no, _ in enumerate(independent_tcp.records(each), start=1)]


def test_a_batch_has_the_oldest_captures_up_to_its_limit(directory: Path) -> None:
    stream = reader(directory)
    start = stream.initialOffset()
    one = stream.latestOffset(start, ReadMaxFiles(1))
    assert names(one) == ["091_rotated_1.pcap"]
    assert packets(stream, start, one) == expected(CAPTURES[0])
    sizes = [capture.stat().st_size for capture in CAPTURES]
    two = stream.latestOffset(start, ReadMaxBytes(sizes[0] + sizes[1]))
    assert names(two) == ["091_rotated_1.pcap", "091_rotated_2.pcap"]
    assert names(stream.latestOffset(start, ReadMaxBytes(1))) == names(one)  # else it would never get on
    everything = stream.latestOffset(one, ReadAllAvailable())
    assert packets(stream, one, everything) == expected(*CAPTURES[1:])
    assert stream.latestOffset(everything, ReadAllAvailable()) == everything
    assert stream.partitions(everything, everything) == []


def test_limits_come_from_options(directory: Path) -> None:
    assert reader(directory).getDefaultReadLimit() == ReadAllAvailable()
    assert reader(directory, maxFilesPerTrigger="2").getDefaultReadLimit() == ReadMaxFiles(2)
    assert reader(directory, maxBytesPerTrigger="5").getDefaultReadLimit() == ReadMaxBytes(5)
    for wrong in ({"settle": "soon"}, {"maxFilesPerTrigger": "0"}, {"maxBytesPerTrigger": "1m"}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            reader(directory, **wrong)


def test_a_capture_that_is_being_written_is_left_for_later(directory: Path) -> None:
    growing = directory / CAPTURES[2].name
    os.utime(growing, (NOW, NOW - 29))
    stream = reader(directory)
    first = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert names(first) == ["091_rotated_1.pcap", "091_rotated_2.pcap"]
    os.utime(growing, (NOW, NOW - 30))
    then = stream.latestOffset(first, ReadAllAvailable())
    assert packets(stream, first, then) == expected(CAPTURES[2])


def test_a_capture_with_an_older_time_that_comes_late_is_read(directory: Path) -> None:
    """As `cp -p` makes it: neither times nor names say what was read."""
    late = directory / CAPTURES[0].name
    late.rename(directory.parent / "late")
    stream = reader(directory)
    first = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    (directory.parent / "late").rename(late)
    then = stream.latestOffset(first, ReadAllAvailable())
    assert packets(stream, first, then) == expected(CAPTURES[0])


def test_captures_that_are_removed_leave_the_offset_and_are_no_failure(directory: Path) -> None:
    stream = reader(directory)
    start = stream.initialOffset()
    two = stream.latestOffset(start, ReadMaxFiles(2))
    (directory / CAPTURES[0].name).unlink()
    assert names(stream.latestOffset(two, ReadAllAvailable())) == ["091_rotated_2.pcap", "091_rotated_3.pcap"]
    rows = [r for part in stream.partitions(start, two) for b in stream.read(part) for r in b.to_pylist()]
    assert ["removed before it was read" in (row["error"] or "") for row in rows if row["packet_no"] is None] == [True]
    shutil.rmtree(directory)
    assert stream.latestOffset(two, ReadAllAvailable()) == two  # out of reach: nothing is forgotten


def test_a_query_reads_each_packet_once_also_when_it_is_started_again(spark: SparkSession, tmp_path: Path) -> None:
    udfs.register(spark)
    (tmp_path / "in").mkdir()

    def run() -> None:
        stream = spark.readStream.format("pcap").options(settle="0", maxFilesPerTrigger="2").load(str(tmp_path / "in"))
        query = (
            stream.select("capture_file", "packet_no")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()

    for capture in CAPTURES:
        shutil.copy(capture, tmp_path / "in")
        run()
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((Path(row.capture_file).name, row.packet_no) for row in found) == expected(*CAPTURES)


def test_the_data_source_gives_the_stream(directory: Path) -> None:
    assert isinstance(PcapSource({"path": str(directory)}).streamReader(spark_schema(PACKETS)), PcapStreamReader)
