"""Every table has exactly the columns and types that the schemas promise, and every column says what it is."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow.compute as pc
import pytest
from chispa.schema_comparer import assert_schema_equality
from pyspark.sql import SparkSession
from tables_support import Read, Script

import pipeline
from codec.tables import ALL_TABLES, PACKED
from pipeline.lake.layout import lake_tables
from pipeline.tables.dataframes import DecodedTables
from udfs.arrow.spark_schemas import TABLES, spark_schema
from udfs.sink.parquet import spark_json


@pytest.fixture(scope="module")
def read(spark: SparkSession) -> Read:
    return Read(spark, {"conversation": Script().open().publish(b"body")})


@pytest.mark.parametrize("name", TABLES)
def test_table_has_its_schema(read: Read, name: str) -> None:
    assert_schema_equality(getattr(read.tables, name).schema, TABLES[name], ignore_nullable=True)


def test_files_and_logs_have_the_schema_as_spark_writes_it() -> None:
    internal = [table.whole_schema for table in lake_tables().values()]
    for table in (*ALL_TABLES.values(), PACKED, *internal):
        assert spark_json(table) == spark_schema(table).json()


def test_tables_come_in_the_order_of_the_schemas(read: Read) -> None:
    assert [name for name, _ in read.tables.items()] == list(TABLES)


def test_frames_are_the_decoded_rows_of_that_kind(read: Read) -> None:
    columns = ["connection_id", "frame_no", "ts", "frame_type", "name", "body_size", "body_sha256"]
    key = [("connection_id", "ascending"), ("frame_no", "ascending")]
    expected = read.decoded.filter(pc.field("kind") == "frame").select(columns)
    found = read.tables.frames.select(columns).toArrow()
    assert found.sort_by(key).to_pylist() == expected.cast(found.schema).sort_by(key).to_pylist()


def test_a_table_is_planned_when_it_is_asked_for(spark: SparkSession) -> None:
    """And with it the cached rows, up to the release."""
    tables = DecodedTables(spark.createDataFrame([], spark_schema(PACKED)))
    links = tables.links
    assert tables.links is links
    before, _ = tables.persisted, tables.message_flows
    assert 0 < len(before) < len(tables.persisted)
    other = tables.having(messages=links)
    assert other.messages is other.links is links
    assert all(rows.storageLevel.useMemory for rows in tables.persisted)
    tables.release()
    assert not any(rows.storageLevel.useMemory for rows in tables.persisted)


def test_written_tables_are_read_back(
    read: Read, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a path relative to this process's directory, which is not the one in which Spark was started."""
    for name, table in read.tables.items():
        table.coalesce(1).write.parquet(f"{tmp_path}/{name}")
    monkeypatch.chdir(tmp_path.parent)
    loaded = pipeline.load(spark, f"{tmp_path.name}/")
    for name, table in loaded.items():
        assert_schema_equality(table.schema, TABLES[name], ignore_nullable=True)
    assert loaded.messages.select("operation", "body_size").collect() == [("publish", 4)]


def test_tables_below_partition_folders_are_read_with_their_columns(
    read: Read, spark: SparkSession, tmp_path: Path
) -> None:
    for folder in ("site=paris/date=2026-11-20", "site=paris/date=2026-11-21"):
        for name in ("messages", "connections"):
            getattr(read.tables, name).coalesce(1).write.parquet(f"{tmp_path}/{folder}/{name}")
    (tmp_path / "site=paris" / "notes.txt").write_text("whatever")
    loaded = pipeline.load(spark, str(tmp_path))
    assert loaded.messages.columns == [*TABLES["messages"].names, "site", "date"]
    rows = loaded.messages.select("site", "date", "operation", "body_size").orderBy("date").collect()
    assert rows == [("paris", datetime.date(2026, 11, day), "publish", 4) for day in (20, 21)]
    assert loaded.links.columns == [*TABLES["links"].names, "site", "date"]
    assert loaded.links.count() == 0


def test_where_there_are_no_tables_one_line_says_so(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "date=2026-11-20").mkdir()
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(pipeline.NoTables, match=rf"^{directory}: holds none of our tables; expected"):
            pipeline.load(spark, str(directory))


def test_in_an_empty_folder_spark_looks_for_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()
    monkeypatch.setattr("pipeline.explore.loading._read", lambda _, folder, *others: asked.append(folder))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(pipeline.NoTables):
        pipeline.load(spark, str(tmp_path))
    assert asked == []
