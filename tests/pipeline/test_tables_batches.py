"""Rows of tables do not depend on where batches of frames end, nor on how long rows wait for what becomes of them.

That they are right is tested with scripts (`test_tables_*`) and with captures.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import golden
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import test_tables_channels
import test_tables_messages
import test_tables_methods
import test_tables_settlement
from decoder_rows import TableRows, as_arrow, in_order
from decoding import decode_table, in_flow_order, runs
from tables_support import STEP, Script

from codec.compiler.limits import LIMITS, Limits
from codec.tables import TABLES, WORKER_TABLES, families
from pipeline.tables.decoding import config
from udfs.arrow.types import (
    ColumnError,
    arrow_schema,
    to_schema,
)
from udfs.conversation import tracker_states as states
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.messages import Contents
from udfs.tables import conversation

MODULES = (test_tables_channels, test_tables_messages, test_tables_methods, test_tables_settlement)
VERSIONS = {"0-8", "0-9", "0-9-1"}
# Captures with sessions: links, transactions, credit, messages in many frames, of which several go on at a time.
WITH_SESSIONS = ("010_lowlevel_methods", "010_dtx", "10_qpidd_transactions", "10_rabbitmq_multi_frame_transfer")
# How many rows workers have at a time, and how many bytes may wait: nothing, everything; captures are too many for 1.
# Where everything waits, batches are put together again, wherever they have ended.
SLOW = [(1, None, False), (3, 0, False)]
SIZES = [
    (3, None, False), (1, 0, False), (50, 0, True), (50, None, True),
    *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in SLOW),
]  # fmt: skip


@cache
def decoded(with_captures: bool) -> pa.Table:
    """The rows of scripts; of all captures of the classic family, and of some with sessions: connection after
    connection, frames in order, facts behind them."""
    scripts = enumerate((script for module in MODULES for script in module.SCRIPTS.values()), start=1)
    by_hand = as_arrow([row for number, script in scripts for row in script.rows(number)])
    if not with_captures:
        return in_order(by_hand)
    captures = [
        capture
        for name, capture in golden.captures().items()
        if set(capture.versions) <= VERSIONS or name.partition(".")[0] in WITH_SESSIONS
    ]
    paths = sorted({path for capture in captures for path in capture.paths})
    captured = decode_table(in_flow_order(runs(paths)))
    return in_order(pa.concat_tables([by_hand, captured]))


def ids_in_batches(size: int, with_captures: bool) -> dict[str, list[str]]:
    """Rows of tables as text, of batches of `size` rows."""
    found = {name: list[str]() for name in WORKER_TABLES}
    rows = TableRows(config(payload=True))
    for table, batch in rows.rows(iter(decoded(with_captures).to_batches(max_chunksize=size))):
        found[table] += map(str, batch.to_pylist())
    return {name: sorted(texts) for name, texts in found.items()}


@cache
def at_once(with_captures: bool) -> dict[str, list[str]]:
    return ids_in_batches(decoded(with_captures).num_rows, with_captures)


@pytest.mark.parametrize(("size", "waiting_bytes", "with_captures"), SIZES)
def test_rows_are_the_same(
    size: int, waiting_bytes: int | None, with_captures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = at_once(with_captures)
    empty = {name for name, rows in expected.items() if not rows}
    # Scripts have no packets, nor a millisecond, and are of the classic family.
    assert empty <= ({"stalls"} if with_captures else {"stalls", "oddities"})
    if not with_captures:
        monkeypatch.setattr(conversation, "MEMORY_BYTES", 0)  # all that waits is in files
    if waiting_bytes is not None:
        monkeypatch.setattr(conversation, "WAITING_BYTES", waiting_bytes)
    assert ids_in_batches(size, with_captures) == expected


def test_texts_of_earlier_connections_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the current connection stay."""
    expected = at_once(False)
    monkeypatch.setattr(states, "MOST_TEXTS", 1)
    monkeypatch.setattr(conversation, "WAITING_BYTES", 0)
    assert ids_in_batches(7, False) == expected


def outstanding(count: int) -> Script:
    """So many publishes that are never confirmed, then one that is."""
    script = Script().open().asks("confirm.select")
    for _ in range(count):
        script.publish()
    return script.ack(count, by="server")


def twins() -> dict[str, pa.Table]:
    """Connections that say the same, one after the other: by a script, and of captures with sessions."""
    by_hand = outstanding(9)
    found = {"0-9-1": as_arrow([*by_hand.rows(1), *by_hand.rows(2)])}
    of_captures = decoded(True).filter(pc.is_in(pc.field("version"), pa.array(["0-10", "1.0"])))
    for version in ("0-10", "1.0"):
        own = of_captures.filter(pc.field("version") == version)
        counts = pc.value_counts(own["connection_id"]).to_pylist()
        longest = max((each for each in counts if each["counts"] <= 400), key=lambda each: each["counts"])["values"]
        rows = decoded(True).filter(pc.field("connection_id") == longest)
        at = rows.schema.get_field_index("connection_id")
        other = rows.set_column(at, rows.schema.field(at), pa.repeat(longest ^ 1, len(rows)))
        found[version] = pa.concat_tables([rows, other])
    return {name: rows.combine_chunks() for name, rows in found.items()}


def in_batches(*batches: pa.Table) -> dict[str, list[str]]:
    found = {name: list[str]() for name in WORKER_TABLES}
    pieces = (batch for table in batches for batch in table.to_batches())
    for table, rows in TableRows(config()).rows(pieces):
        found[table] += map(str, rows.to_pylist())
    return {name: sorted(texts) for name, texts in found.items()}


@pytest.mark.parametrize("first", [0, *(pytest.param(index, marks=pytest.mark.slow) for index in (1, 2))])
def test_connections_with_equal_attributes_are_distinguished(first: int) -> None:
    """Numbers of frames, channels and messages are equal in both, and a batch may hold the end of the one and the
    beginning of the other."""
    for rows in twins().values():
        in_one_batch = in_batches(rows)
        assert len(in_one_batch["connections"]) == 2
        step = 1 + len(rows) // 60
        for cut in range(len(rows) // 2 + first * step, len(rows), 3 * step):
            assert in_batches(rows.slice(0, cut), rows.slice(cut)) == in_one_batch, cut


def test_above_the_limit_the_oldest_messages_are_written_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a limit says so."""
    monkeypatch.setattr(conversation, "LIMITS", Limits(outstanding_messages=3))
    rows = as_arrow(outstanding(9).rows(1))
    monkeypatch.setattr(conversation, "WAITING_BYTES", 0)
    parts = list(TableRows(config()).rows(iter(rows.to_batches(max_chunksize=3))))
    messages = [row for table, batch in parts if table == "messages" for row in batch.to_pylist()]
    messages.sort(key=lambda row: row["first_frame_no"])
    outcomes = [row["outcome"] for row in messages]
    unknown = outcomes.count("unknown")
    assert 3 <= unknown <= 6
    assert outcomes == ["unknown"] * unknown + ["unsettled"] * (8 - unknown) + ["confirmed"]
    (channel,) = (row for table, batch in parts if table == "channels" for row in batch.to_pylist())
    assert (channel["published"], channel["confirmed"], channel["unsettled"]) == (9, 1, 8 - unknown)
    (connection,) = (row for table, batch in parts if table == "connections" for row in batch.to_pylist())
    assert connection["limits"] == ["outstanding messages"]
    assert LIMITS.outstanding_messages >= 1_000_000


def test_table_connections_alone_has_all_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "LIMITS", Limits(outstanding_messages=3))
    monkeypatch.setattr(conversation, "WAITING_BYTES", 0)
    rows = as_arrow(outstanding(9).rows(1))
    parts = TableRows(config(tables=("connections",))).rows(iter(rows.to_batches(max_chunksize=3)))
    assert [row["limits"] for table, batch in parts if table == "connections" for row in batch.to_pylist()] == [
        ["outstanding messages"]
    ]


def given_back(count: int) -> Script:
    """So many publishes, which all come back when the last one was sent."""
    script = Script().open()
    for number in range(count):
        script.publish(b"%d" % number, mandatory=True)
    for number in range(count):
        script.returned(b"%d" % number, "q")
    return script


def test_what_is_outstanding_is_counted_by_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch holds all of one connection, in which much was outstanding, and the beginning of another."""
    monkeypatch.setattr(conversation, "LIMITS", Limits(outstanding_messages=3))
    complete, begun = as_arrow(given_back(5).rows(1)), as_arrow(Script().open().rows(2))
    frames = pa.concat_tables([complete, begun]).combine_chunks()
    found = TableRows(config()).rows(iter(frames.to_batches()))
    rows = [(table, row) for table, batch in found for row in batch.to_pylist()]
    outcomes = [row["outcome"] for table, row in rows if table == "messages" and row["operation"] == "publish"]
    assert outcomes == ["returned"] * 5
    assert [row["limits"] for table, row in rows if table == "connections"] == [None, None]


def test_a_column_that_is_missing_or_unknown_is_refused() -> None:
    schema, one = pa.schema([("a", pa.int64()), ("b", pa.string())]), pa.array([1])
    assert to_schema({"a": one}, schema, ["b"]).to_pylist() == [{"a": 1, "b": None}]
    for columns, absent, why in (
        ({"a": one}, [], r"missing: \['b'\]"),
        ({"a": one, "b": one, "c": one}, [], r"not in the table: \['c'\]"),
        ({"a": one, "b": one}, ["b"], r"not absent: \['b'\]"),
    ):
        with pytest.raises(ColumnError, match=why):
            to_schema(columns, schema, absent)


def long_body(batches: int, rows: int = 1000) -> Iterator[pa.RecordBatch]:
    """A publish of a body that never ends."""
    method, header, body = Script().open().publish(b"x").rows(1)[2:5]
    header["body_size"] = 1 << 60
    yield from as_arrow([method, header]).to_batches()
    for number in range(batches):
        frames = [{**body, "frame_no": 5 + number * rows + i, "body_sha256": None} for i in range(rows)]
        yield from as_arrow(frames).combine_chunks().to_batches()


def test_a_body_that_never_ends_is_summarized() -> None:
    parts = TableRows(config()).rows(long_body(20))
    (message,) = (row for table, batch in parts if table == "messages" for row in batch.to_pylist())
    assert (message["body_captured"], message["last_frame_no"], message["complete"]) == (20_000, 20_004, False)
    assert message["last_ts_ns"] == message["ts_ns"] + 2 * STEP


def test_memory_of_a_waiting_body_does_not_grow() -> None:
    contents = Contents(families()[0], arrow_schema(TABLES["messages"]), payload=False)
    seen = []
    for batch in long_body(20):
        goes_on = np.unique(batch["connection_id"].to_numpy())
        list(contents.feed(FrameBatch(batch), None, goes_on))
        del batch
        seen.append(pa.total_allocated_bytes())
    assert max(seen[5:]) < seen[1] + 100_000
