"""Captures in an object store: found, read in ranges, in as many splits as local ones, and the same rows; a directory
of tables there is swapped as anywhere else."""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from object_store import BUCKET, KEY, SECRET, Store, object_store
from pyarrow import fs, parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from test_source import CAPTURES, GOOD, Packet, accounts, expected_packets, exploded, rows

import pipeline
from benchmarks.generate import generate
from codec.compiler.limits import LIMITS
from pipeline.output.location import Location, OutputError, location
from pipeline.output.swap import staged
from udfs.source import splits
from udfs.source.capture_bytes import FETCH_BYTES, CaptureFile
from udfs.source.paths import PathError, resolve
from udfs.source.sources import TcpRunsReader

LOSS = CAPTURES / "091_loss.pcap"
KNOWN = ("frames",)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with object_store() as server:
        server.put(GOOD, LOSS, folder="captures")
        yield server


def packets_at(uri: str, **sizes: int) -> list[Packet]:
    """The packets of captures, without the name of the file."""
    runs = rows(TcpRunsReader, Path("unused"), paths=f'["{uri}"]', **sizes)
    assert [account["error"] for account in accounts(runs) if account["error"]] == []
    return [packet[1:] for packet in exploded(runs)]  # type: ignore[misc]


def packets_of(path: Path) -> list[Packet]:
    return [packet[1:] for packet in expected_packets(path)]  # type: ignore[misc]


# ---- captures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
@pytest.mark.parametrize("pattern", ["captures", "captures/*.pcap", "**"])
def test_captures_are_found_under_both_names_of_the_store(store: Store, scheme: str, pattern: str) -> None:
    found = resolve([store.uri(pattern, scheme)])
    assert {(file.name, file.size) for file in found} >= {
        (f"s3://{BUCKET}/captures/{path.name}", path.stat().st_size) for path in (GOOD, LOSS)
    }


def test_where_and_who_may_come_from_the_environment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    assert packets_at(f"s3a://{BUCKET}/captures/{LOSS.name}") == packets_of(LOSS)


def test_an_error_is_one_line_without_the_key(store: Store) -> None:
    masked = f"s3://{BUCKET}/x"
    for uri, problem in {
        store.uri("x"): f"{masked}: no such file or directory",
        store.uri("x", "s3a"): f"{masked}: no such file or directory",
        store.uri("x").replace(f"@{BUCKET}/", "@nowhere/"): "s3://nowhere/x: no such file or directory",
        store.uri("x", "s3a") + "&region=a b": f"{masked}: Cannot parse URI: '{masked}' due to syntax error at .*",
        store.uri("x", "s3a").replace(
            SECRET, f"a/{SECRET}"
        ): f"{masked}: Cannot parse URI: '{masked}' due to .* '/' .*",
    }.items():
        with pytest.raises(PathError) as error:
            resolve([uri])
        assert re.fullmatch(problem, str(error.value))
        assert SECRET not in str(error.value)
        assert KEY not in str(error.value)


def test_parts_of_a_capture_are_read_in_ranges_and_once(store: Store) -> None:
    """Once to cut it on the driver, once by the tasks; beyond that the first 64 KB only, in each part."""
    store.requests.clear()
    assert packets_at(store.uri(f"captures/{LOSS.name}"), splitBytes=100_000) == packets_of(LOSS)
    size = LOSS.stat().st_size
    parts = -(-size // 100_000)
    spans = store.spans(LOSS.name)
    heads = [span for span in spans if span in ((0, 16), (0, 65_536))]
    assert len(heads) <= 2 * (parts + 2)
    assert len(spans) - len(heads) <= 2 * (parts + 1)
    assert max(end - start for start, end in spans) <= 100_000
    assert size < sum(end - start for start, end in spans if (start, end) not in heads) < 2.1 * size


def test_the_driver_reads_a_capture_that_it_splits_block_by_block(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "LIMITS", replace(LIMITS, block_bytes=50_000))
    size, uri = LOSS.stat().st_size, store.uri(f"captures/{LOSS.name}")
    store.requests.clear()
    assert len(splits.cut(CaptureFile(uri, size), size - 1)) == 2
    spans = store.spans(LOSS.name)
    assert max(end - start for start, end in spans if start) <= 50_000
    # half of it in blocks, and the first 64 KB, which tell what kind of capture it is
    assert size // 2 <= sum(end - start for start, end in spans) < size // 2 + 65_536 + 1_000


def test_of_many_captures_only_a_large_one_is_read_to_cut_it(store: Store, tmp_path: Path) -> None:
    copies = [Path(shutil.copy(GOOD, tmp_path / f"{number:03}.pcap")) for number in range(70)]
    store.put(*copies, LOSS, folder="many")
    files = resolve([store.uri("many")])
    store.requests.clear()
    tasks = splits.plan(files, 2_500)  # of 70 captures of 2,792 bytes, and of one of 360,738
    parts = [split.file.name.rpartition("/")[2] for task in tasks for split in task]
    assert sorted(set(parts)) == [*(path.name for path in copies), LOSS.name]
    assert parts.count(LOSS.name) > 100
    assert all(parts.count(path.name) == 1 for path in copies)
    assert {request.path.rpartition("/")[2] for request in store.requests} == {LOSS.name}


def test_a_compressed_capture_is_fetched_in_large_pieces(store: Store, tmp_path: Path) -> None:
    generate(tmp_path / "traffic.pcap", 20_000_000)
    packed = tmp_path / "traffic.pcap.gz"
    packed.write_bytes(gzip.compress((tmp_path / "traffic.pcap").read_bytes(), 1))
    store.put(packed, folder="packed")
    store.requests.clear()
    expected = rows(TcpRunsReader, packed)
    runs = rows(TcpRunsReader, Path("unused"), paths=f'["{store.uri("packed/traffic.pcap.gz")}"]')
    assert [packet[1:] for packet in exploded(runs)] == [packet[1:] for packet in exploded(expected)]
    pieces = -(-packed.stat().st_size // FETCH_BYTES)
    assert len(store.spans(packed.name)) <= 1 + pieces


def anywhere(frame: DataFrame) -> list[str]:
    """Rows without where the capture was."""
    rest = F.struct(*(name for name in frame.columns if name not in ("capture_file", "arguments", "properties")))
    texts = F.regexp_replace(F.to_json(rest), '"capture_file":"[^"]*",', "")  # of the facts
    return sorted(row.text for row in frame.select(texts.alias("text")).collect())


def test_workers_of_spark_decode_from_the_store(spark: SparkSession, store: Store) -> None:
    local, remote = (
        pipeline.decode(spark, uri, split_bytes=100_000).frames
        for uri in (str(LOSS), store.uri(f"captures/{LOSS.name}"))
    )
    expected = anywhere(local)
    assert len(expected) > 100
    assert anywhere(remote) == expected


# ---- tables ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tables(store: Store, monkeypatch: pytest.MonkeyPatch) -> Location:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return location(f"s3a://{BUCKET}/tables/day")


def fill(stage: Location, rows: int) -> None:
    """A table, as Spark would write it."""
    stage.child("frames").create()
    parquet.write_table(pa.table({"n": range(rows)}), f"{stage.path}/frames/part-0.parquet", filesystem=stage.files)


def objects(tables: Location) -> dict[str, int]:
    """Everything beside and in the tables, with its size; directories count nothing."""
    listed = tables.files.get_file_info(fs.FileSelector(tables.parent.path, recursive=True))
    return {info.path.removeprefix(f"{tables.parent.path}/"): info.size for info in listed if info.size}


def test_tables_in_a_store_are_replaced_as_a_whole(tables: Location) -> None:
    for count, overwrite in ((3, False), (5, True)):
        with staged(tables.uri, known=KNOWN, overwrite=overwrite) as stage:
            assert stage.uri.startswith(f"s3a://{BUCKET}/tables/.wirehare-day-")  # as Spark wants it
            fill(stage, count)
        assert list(objects(tables)) == ["day/frames/part-0.parquet"]
        assert tables.child("frames").dataset().count_rows() == count


def test_a_failure_leaves_the_tables_of_the_store(tables: Location) -> None:
    before = objects(tables)
    with pytest.raises(ZeroDivisionError), staged(tables.uri, known=KNOWN, overwrite=True) as stage:
        fill(stage, 7)
        _ = 1 / 0
    assert objects(tables) == before
    with pytest.raises(OutputError, match="already holds tables"), staged(tables.uri, known=KNOWN):
        pytest.fail("the body must not run")
