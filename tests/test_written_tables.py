"""The two ways to the tables that workers make: written as they decode, and as rows of Spark out of decoded rows.

Both run the same code, in other batches and orders of connections, and hand over other connections to Spark. That its
tables are right is tested with scripts (`test_tables_*`) and with captures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import test_tables_channels
import test_tables_messages
import test_tables_methods
import test_tables_settlement
from decoding import decode_table, in_flow_order, runs
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tables_support import STEP, Script, decoded_rows

import pipeline
from pipeline.decoding import Written, writer
from pipeline.derivation import Derivation
from pipeline.output import place
from pipeline.tables.messages import shown_messages
from pipeline.tables.roles import HOT_ARGUMENTS
from udfs import messages
from udfs.contents import Contents
from udfs.fields import fields
from udfs.frame_rows import ARROW_DECODED
from udfs.parquet import ParquetFiles
from udfs.schemas import DECODED

MODULES = (test_tables_channels, test_tables_messages, test_tables_methods, test_tables_settlement)
VERSIONS = {"0-8", "0-9", "0-9-1"}
# Captures with sessions: links, transactions, credit, messages in many frames, of which several go on at a time.
WITH_SESSIONS = ("010_lowlevel_methods", "010_dtx", "10_qpidd_transactions", "10_rabbitmq_multi_frame_transfer")
MADE_IN_PART = ("channels", "links", "methods", "messages")  # by workers
# How many rows workers have at a time, and how many bytes of messages they hold: nothing, everything.
SIZES = {"row by row": (1, None), "three by three, nothing held": (3, 0), "all at once": (1 << 20, None)}


def scripts() -> Iterator[tuple[str, Script]]:
    """All scripts of other tests whose making needs nothing."""
    for module in MODULES:
        for name, made in vars(module).items():
            if getattr(made, "__module__", "") == module.__name__ and made.__annotations__ == {"return": "Script"}:
                yield f"{module.__name__}.{name}", made()


def from_captures() -> pa.Table:
    """The decoded rows of all captures of the classic family, and of some with sessions, payloads included."""
    captures = [
        capture
        for name, capture in golden.captures().items()
        if set(capture.versions) <= VERSIONS or name.partition(".")[0] in WITH_SESSIONS
    ]
    return decode_table(in_flow_order(runs(sorted({path for capture in captures for path in capture.paths}))))


@pytest.fixture(scope="module")
def places(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Directories with decoded rows."""
    by_hand, captured = (str(tmp_path_factory.mktemp(name) / "rows") for name in ("by_hand", "captured"))
    rows = [row for number, (_, script) in enumerate(scripts(), start=1) for row in script.rows(number)]
    decoded_rows(spark, rows).write.parquet(by_hand)
    files = ParquetFiles(fs.LocalFileSystem(), captured, DECODED)
    for batch in from_captures().to_batches():
        files.write(batch)
    files.close()
    return [by_hand, captured]


def rows_of(table: DataFrame) -> list[str]:
    """The rows as text, sorted; VARIANT as JSON."""
    variants = [field.name for field in table.schema.fields if field.dataType.typeName() == "variant"]
    plain = table.withColumns({name: F.to_json(name) for name in variants})
    return sorted(str(tuple(row)) for row in plain.collect())


@pytest.fixture(scope="module")
def derived(spark: SparkSession, places: list[str]) -> dict[str, list[str]]:
    tables = pipeline.from_decoded(spark.read.schema(DECODED).parquet(*places), payload=True)
    found = {name: rows_of(getattr(tables, name)) for name in MADE_IN_PART}
    tables.release()
    return found


def batches(places: list[str], size: int) -> Iterator[pa.RecordBatch]:
    """As the decoder gives them: connection after connection, frames in order, one kind in a batch."""
    rows = pa.concat_tables(pq.read_table(each).cast(ARROW_DECODED) for each in places)
    rows = rows.sort_by([(name, "ascending") for name in ("connection_id", "frame_no")]).combine_chunks()
    for kind in ("frame", "connection"):
        yield from rows.filter(pc.equal(rows["kind"], kind)).combine_chunks().to_batches(max_chunksize=size)


@pytest.mark.parametrize("size", SIZES)
def test_both_ways_lead_to_the_same_rows(
    spark: SparkSession,
    places: list[str],
    derived: dict[str, list[str]],
    tmp_path: Path,
    size: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, held = SIZES[size]
    if count == 1:
        monkeypatch.setattr(messages, "MEMORY_BYTES", 0)  # all that waits is in files
    directory = place(str(tmp_path / "written"))
    directory.create()
    files = writer(directory, pipeline.TABLES, payload=True, waiting_bytes=held)
    written: list[dict[str, Any]] = [
        row for batch in files.write(batches(places, count)) for row in batch.to_pylist() if row["rows"]
    ]
    folders = {row["folder"]: {row["file"]: row["rows"]} for row in written}
    counts = {row["folder"]: row["rows"] for row in written}
    assert (counts["open"] > counts["messages"]) == (held == 0)
    assert folders["open"]  # connections in which something was returned, if nothing else
    found = Derivation(Written(spark, directory, folders))
    for name, expected in derived.items():
        assert rows_of(found.whole(name)) == expected


def test_rows_left_are_those_that_workers_did_not_finish(tmp_path: Path, spark: SparkSession) -> None:
    files = {"decoded/kind=frame": 1000, "methods": 500, "messages": 100, "decoded/kind=connection": 2}
    files |= {"requests": 7, "said": 5}
    written = Written(spark, place(str(tmp_path)), {folder: {"a": rows} for folder, rows in files.items()})
    assert written.rows_left() == 14
    assert written.rows_left("messages") == 114


def long_body(batches: int, rows: int = 1000) -> Iterator[pa.RecordBatch]:
    """A publish of a body that never ends."""
    script = Script().open()
    script.publish(b"x")
    method, header, body = script.rows(1)[2:5]
    header["body_size"] = 1 << 60
    arrays = {
        field.name: pa.array([row.get(field.name) for row in (method, header)], field.type)
        for field in ARROW_DECODED
        if field.name not in ("arguments", "properties", "ts")
    }
    nothing = {name: pa.array([None] * 2, ARROW_DECODED.field(name).type) for name in ("arguments", "properties", "ts")}
    yield pa.RecordBatch.from_pydict({**arrays, **nothing}, schema=ARROW_DECODED)
    for number in range(batches):
        frames = [{**body, "frame_no": 5 + number * rows + i, "body_sha256": None} for i in range(rows)]
        columns = {
            field.name: pa.array([None if field.name in nothing else row.get(field.name) for row in frames], field.type)
            for field in ARROW_DECODED
        }
        yield pa.RecordBatch.from_pydict(columns, schema=ARROW_DECODED)


def test_a_body_that_never_ends_is_summed_up(tmp_path: Path) -> None:
    files = writer(place(str(tmp_path)), {"messages"})
    written = {row["folder"]: row["file"] for batch in files.write(long_body(50)) for row in batch.to_pylist()}
    (message,) = pq.read_table(tmp_path / "messages" / written["messages"]).to_pylist()
    assert (message["body_seen"], message["last_frame_no"], message["complete"]) == (50_000, 50_004, False)
    assert message["last_ts_ns"] == message["ts_ns"] + 2 * STEP


def test_what_waits_of_a_body_does_not_grow() -> None:
    contents = Contents(shown_messages(payload=False)[0])
    seen = []
    for batch in long_body(20):
        list(contents.feed(batch, fields(batch["arguments"], HOT_ARGUMENTS), None))
        del batch
        seen.append(pa.total_allocated_bytes())
    assert max(seen[5:]) < seen[1] + 100_000
