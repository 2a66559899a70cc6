"""Parquet files of Python workers: what Spark and DuckDB read from them, and the marks in their footers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

from codec import tables
from codec.tables import LONG, STRINGS, table_of
from pipeline.output.location import location
from pipeline.tables.decoding import decode_into
from udfs.arrow.spark_schemas import spark_schema
from udfs.arrow.types import TIMESTAMP, VARIANT
from udfs.sink.parquet import GROUP_ROWS, ParquetFiles, with_variants, write_folders

TABLE = table_of(
    "rows",
    ("frame_no", LONG, "a number"),
    ("ts", tables.TIMESTAMP),
    ("arguments", tables.VARIANT),
    ("notes", STRINGS),
    ("properties", tables.VARIANT),
)
# VARIANT of {"a": 7} by hand (parquet-format, VariantEncoding.md): dictionary of one key; object of one field, int8.
METADATA = bytes([0b00000001, 1, 0, 1]) + b"a"
VALUE = bytes([0b00000010, 1, 0, 0, 2, 3 << 2, 7])
CAPTURE = Path(__file__).parents[1] / "captures" / "091_confirms_and_return.pcap"


def batch(count: int) -> pa.RecordBatch:
    data = [pa.array([value] * count, pa.binary()) for value in (VALUE, METADATA)]
    absent = pa.array([row % 2 == 1 for row in range(count)], pa.bool_())
    variant = pa.StructArray.from_arrays(data, fields=list(VARIANT), mask=absent)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(count), pa.int64()),
            pa.array([1_000_000] * count, TIMESTAMP),
            variant,
            pa.array([["x", "y"], None] * (count // 2), pa.list_(pa.string())),
            pa.array([None] * count, VARIANT),
        ],
        names=TABLE.names,
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "with space" / "50%20"
    files = ParquetFiles(fs.LocalFileSystem(), str(path), TABLE)
    for _ in range(3):
        files.write(batch(4))
    files.write(batch(0))
    name, rows = files.close()
    assert [name] == [file.name for file in path.iterdir()]
    assert rows == 12
    return path


def test_spark_reads_the_schema_and_the_rows(spark: SparkSession, directory: Path) -> None:
    table = spark.read.parquet(str(directory))
    assert table.schema == spark_schema(TABLE)
    rows = table.selectExpr("*", "variant_get(arguments, '$.a', 'int') AS a").sort("frame_no").collect()
    assert [row.a for row in rows] == ([7] * 3 + [None] * 3) * 2
    assert [row.notes for row in rows if row.a == 7] == [["x", "y"]] * 6
    assert [row.frame_no for row in rows] == sorted([*range(4)] * 3)


def test_duckdb_reads_variants(directory: Path) -> None:
    asked = f"SELECT typeof(arguments), arguments::JSON FROM '{directory}/*.parquet'"
    with duckdb.connect() as connection:
        found = connection.execute(asked).fetchall()
    assert {kind for kind, _ in found} == {"VARIANT"}
    assert [text for _, text in found if text is not None] == ['{"a":7}'] * 6


def test_the_size_of_row_groups_is_bounded(tmp_path: Path) -> None:
    schema = table_of("rows", ("frame_no", LONG))
    files = ParquetFiles(fs.LocalFileSystem(), str(tmp_path), schema)
    half = pa.RecordBatch.from_arrays([pa.array(range(GROUP_ROWS // 2))], names=["frame_no"])
    for _ in range(3):
        files.write(half)
    name, _ = files.close()
    metadata = pq.ParquetFile(tmp_path / name).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [GROUP_ROWS, GROUP_ROWS // 2]


def test_without_rows_no_file_is_written(tmp_path: Path) -> None:
    files = ParquetFiles(fs.LocalFileSystem(), str(tmp_path / "none"), TABLE)
    assert files.close()[1] == 0
    assert not (tmp_path / "none").exists()


def test_a_footer_with_any_field_is_read() -> None:
    """Hand-made Thrift: version 1, a key of every wire type before the schema, one group `v` with two children."""
    others = (
        *[0x11, 0x12, 0x13, 5, 0x14, 2, 0x16, 0x80, 1, 0x17, *range(8), 0x18, 2, 65, 66],  # truths, numbers
        *[0x19, 0x25, 2, 4, 0x1A, 0x21, 1, 2, 0x1B, 1, 0x85, 1, 65, 2, 0x1C, 0x15, 2, 0],  # containers
    )
    group = bytes([0x48, 1, ord("v"), 0x15, 4])  # fields 4 (name) and 5 (two children)
    list_of_one = bytes([0x1C])
    # Field 1 is a struct that holds all the others, field 2 the list.
    before, after = bytes([0x1C, *others]) + b"\0" + bytes([0x19]) + list_of_one + group, b"\0" + bytes([0x16, 8, 0])
    mark = bytes([0x5C, 0x0C, 0x20, 0x13, 1, 0, 0])
    assert with_variants(before + after, ["v"]) == before + mark + after


def test_a_missing_column_is_refused(directory: Path) -> None:
    data = next(directory.iterdir()).read_bytes()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    with pytest.raises(ValueError, match="no group payload"):
        with_variants(footer, ["arguments", "payload"])


def test_a_late_task_does_not_recreate_the_scratch_directory(tmp_path: Path) -> None:
    """When the run is over, what it wrote aside has been removed, and would be there for ever."""
    rows = pa.record_batch({"frame_no": pa.array([1], pa.int64())})
    schema = table_of("rows", ("frame_no", LONG))

    def write(directory: Path, then: Callable[[], object] = lambda: None) -> list[pa.RecordBatch]:
        def parts() -> Iterator[tuple[str, pa.RecordBatch]]:
            yield "history/link", rows
            then()

        return list(write_folders(fs.LocalFileSystem(), str(directory), parts(), lambda _: schema))

    assert write(tmp_path)[0]["rows"].to_pylist() == [1]
    gone = tmp_path / "gone"
    with pytest.raises(FileNotFoundError, match="has been removed"):
        write(gone)
    gone.mkdir()
    with pytest.raises(FileNotFoundError, match="has been removed"):
        write(gone, then=gone.rmdir)
    assert not gone.exists()


def test_files_of_retried_tasks_are_ignored(spark: SparkSession, tmp_path: Path) -> None:
    """A file that no successful task names, as one leaves that was stopped, or came in after another."""
    scratch = tmp_path / "scratch"
    written = decode_into(spark, [str(CAPTURE)], location(str(scratch)), ["frames"])
    (file,) = (scratch / "frames").glob("*.parquet")
    shutil.copy(file, file.with_name("part-0.zstd.parquet"))
    file.with_name("part-1.zstd.parquet").write_bytes(b"PAR1")
    rows = written.part("frames", "frame_no")
    assert rows is not None
    assert rows.num_rows == written.rows("frames") == pq.ParquetFile(file).metadata.num_rows
    assert written.move("frames", location(str(tmp_path / "frames")))
    assert [each.name for each in (tmp_path / "frames").iterdir()] == [file.name]
    assert not written.move("messages", location(str(tmp_path / "messages")))
