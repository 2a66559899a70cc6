"""Every text of every version that is not UTF-8: through decoder and columns, and once through all commands and the
readers of other libraries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import odd_texts
import pandas  # type: ignore[import-untyped]
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from night import IS_ODD, ODD_WIRES, WIRES, of_odd, one_after_the_other
from pyspark.sql import SparkSession
from pyspark.sql.variant_utils import VariantUtils
from test_text import INVALID
from wire import Wire

import pipeline
from jobs.cli import main
from jobs.terminal.running import UNREADABLE
from udfs.arrow.fields import fields
from udfs.conversation.roles import HOT_ARGUMENTS

ESCAPED = {escaped for _, escaped in INVALID.values()}


def texts(value: Any) -> Iterator[str]:
    """All texts inside of a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inside in value.items():
            yield key
            yield from texts(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from texts(inside)


@pytest.mark.parametrize("version", odd_texts.VERSIONS)
@pytest.mark.parametrize("kind", INVALID)
def test_every_field_is_shown_escaped(version: str, kind: str) -> None:
    data, escaped = INVALID[kind]
    rows, _ = odd_texts.wire_of(version, lambda: data).rows()
    assert {row["frame_type"] for row in rows}.isdisjoint({"gap", "skipped", "foreign"})
    bearing = 0
    for row in rows:
        found = [text for part in ("arguments", "properties") for text in texts(row[part])]
        assert all(text == text.encode().decode() for text in found)  # no surrogates either
        odd = [text for text in found if text == escaped or (escaped.startswith(text) and "\\" in text)]
        bearing += len(odd)
        assert not odd or (row["status"] == "malformed" and "not-utf8" in row["notes"]), row
    assert bearing > {"0-10": 80, "1.0": 60}.get(version, 100)


def test_columns_of_arguments_are_valid() -> None:
    """Also of bytes that VARIANT holds as BINARY."""
    wire = odd_texts.wire_of("0-9-1", one_after_the_other())
    for table in frames_of(wire):
        strings = {name: kind for name, kind in HOT_ARGUMENTS.items() if kind == "string"}
        columns = fields(table["arguments"], {**strings, "client_properties": "variant", "mechanisms": "string"})
        for name, column in columns.items():
            column.validate(full=True)
            if name in strings:
                assert set(column.drop_null().to_pylist()) <= ESCAPED


def frames_of(wire: Wire) -> Iterator[pa.RecordBatch]:
    import numpy as np
    from wire import FLOW

    from codec.amqp.decoder import Decoder
    from codec.net.layers import SEGMENT
    from udfs.decode.frame_rows import frame_rows

    decoder = Decoder()
    payload = np.frombuffer(bytearray(wire.payload), np.uint8)
    for batches in (decoder.feed(FLOW, np.array(wire.segments, SEGMENT), payload), decoder.finish()):
        for batch in batches:
            yield frame_rows(batch, ["a.pcap"], True)


# ---- all commands, all readers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables(night: Path) -> Path:
    return night / "tables"


def files(tables: Path) -> dict[str, list[Path]]:
    return {part.name: sorted(part.glob("**/*.parquet")) for part in sorted(tables.iterdir()) if part.is_dir()}


def sql(query: str) -> list[tuple[Any, ...]]:
    """What DuckDB reads."""
    found = duckdb.sql(query)
    assert found is not None
    return found.fetchall()


def validate(column: pa.Array | pa.ChunkedArray) -> None:
    """All texts in a column, however deep, are UTF-8; VARIANT is decoded by Spark's own reader."""
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if pa.types.is_string(chunk.type):
            chunk.cast(pa.binary()).cast(pa.string()).validate(full=True)
        elif pa.types.is_struct(chunk.type):
            names = {field.name for field in chunk.type}
            if names == {"value", "metadata"}:
                for value in chunk.to_pylist():
                    if value is not None:
                        VariantUtils.to_python(value["value"], value["metadata"])
            else:
                for i in range(chunk.type.num_fields):
                    validate(chunk.field(i))
        elif pa.types.is_list(chunk.type):
            validate(chunk.values)


def test_no_file_holds_a_text_that_is_not_utf8(tables: Path) -> None:
    seen = 0
    for name, paths in files(tables).items():
        for path in paths:
            table = of_odd(pq.ParquetFile(path).read(), tables.parent)
            for column in table.column_names:
                validate(table[column])
            seen += table.num_rows
            pandas.read_parquet(path)
            # polars knows no VARIANT in a footer; pyarrow hands it on as a struct
            has_variant = any(pa.types.is_struct(field.type) and field.type.num_fields == 2 for field in table.schema)
            polars.read_parquet(path, use_pyarrow=has_variant)
        if paths:
            sql(f"SELECT * FROM read_parquet({[str(path) for path in paths]})")
        assert name.startswith("_") or paths, name
    assert seen > 1000


def test_names_of_connections_are_escaped(tables: Path) -> None:
    columns = 'version, vhost, "user", client_product, close_text'
    rows = sql(f"SELECT {columns} FROM read_parquet('{tables}/connections/*.parquet') WHERE {IS_ODD}")
    assert len(rows) == ODD_WIRES
    # 1.0 closes with a condition and a description
    known = ESCAPED | {escaped.replace("\0", "") for escaped in ESCAPED}
    for version, *names, close_text in rows:
        assert {name for name in names if name is not None} <= known, (version, names)
        assert set(names) != {None}
        assert any(escaped in close_text for escaped in ESCAPED)


def test_the_audit_names_them(tables: Path) -> None:
    found = json.loads((tables.parent / "audit.json").read_text())
    assert "FR-11" in json.dumps(found)
    versions = sql(
        f"SELECT DISTINCT version FROM read_parquet('{tables}/findings/*.parquet') JOIN "
        f"read_parquet('{tables}/connections/*.parquet') USING (connection_id) WHERE rule_id = 'FR-11' AND {IS_ODD}"
    )
    assert {version for (version,) in versions} == set(odd_texts.VERSIONS)
    page = (tables.parent / "audit.html").read_text("utf-8")
    assert "not UTF-8" in page
    # Lists of words are bytes in the classic family: escaped like any text, and nothing is replaced.
    assert "\ufffd" not in page + json.dumps(found, ensure_ascii=False)


def test_notebooks_and_cut_read_them(spark: SparkSession, tables: Path, tmp_path: Path) -> None:
    loaded = pipeline.load(spark, str(tables))
    assert loaded.connections.filter(IS_ODD).count() == ODD_WIRES
    for row in loaded.connections.select("vhost", "user", "client_product").collect():
        assert all(value is None or isinstance(value, str) for value in row)
    pipeline.decode(spark, str(tables.parent / "captures" / WIRES)).connections.collect()
    cut = ["cut", str(tables), "--finding", "FR-11", "-o", str(tmp_path / "cut.pcapng"), "--redact"]
    assert main(cut) == UNREADABLE  # other captures are damaged
