"""Outcomes of messages as columns, by connection and first frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation.channels.outcomes import MAPS
from codec.conversation.channels.state import RECEIVED, UNKNOWN
from codec.conversation.settled import Frames
from codec.conversation.settlement import NO_RESULT, Settled
from udfs.arrow.dictionaries import Numbers
from udfs.arrow.rows import Index, elapsed, joined, numbers_of, picked
from udfs.conversation.session_rows import with_outcomes

Integers = NDArray[np.int64]
ENDS = pa.schema(
    [
        ("connection_id", pa.int64()),
        ("first_frame_no", pa.int64()),
        ("outcome", pa.string()),
        ("settled_ts_ns", pa.int64()),
        ("settled_frame_no", pa.int64()),
        ("transaction", pa.string()),
    ]
)
RETURNED = pa.schema(
    [("connection_id", pa.int64()), ("first_frame_no", pa.int64()), ("ts_ns", pa.int64()), ("frame_no", pa.int64())]
)


def ends_of(settled: Settled, texts: Mapping[str, Numbers]) -> pa.Table:
    """ENDS of messages that the settlement engine has settled, noted or marked."""
    is_open = (settled.settled_frame_no < 0) | (settled.outcome == UNKNOWN)
    # After an acknowledgement that was rolled back another one may have followed, in a transaction of its own.
    of_delivery = settled.map_no % MAPS == RECEIVED
    transaction = np.where(of_delivery & (settled.outcome == UNKNOWN), NO_RESULT, settled.transaction)
    columns = {
        "connection_id": pa.array(settled.connection),
        "first_frame_no": pa.array(settled.frame_no),
        "outcome": texts["outcomes"].column(settled.outcome),
        "settled_ts_ns": pa.array(settled.settled_ns, mask=is_open),
        "settled_frame_no": pa.array(settled.settled_frame_no, mask=is_open),
        "transaction": texts["transactions"].column(transaction),
    }
    return pa.table([columns[name] for name in ENDS.names], schema=ENDS)


def unknown_ends(frames: Frames) -> pa.Table:
    """ENDS of messages that are given up, by their first frames."""
    count = len(frames.frame_no)
    columns = {
        "connection_id": pa.array(frames.connection),
        "first_frame_no": pa.array(frames.frame_no),
        "outcome": pa.repeat("unknown", count),
    }
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in ENDS]
    return pa.table(arrays, schema=ENDS)


class Known(NamedTuple):
    """What became of messages: ENDS, of classic versions; of sessions, as in
    `udfs.conversation.sessions.EndedSessions`; RETURNED.
    Each is None where there is nothing."""

    ends: pa.Table | None = None
    of_sessions: pa.Table | None = None
    returned: pa.Table | None = None

    def and_also(self, other: Known) -> Known:
        """The union with `other`."""
        return Known(*(joined(mine, theirs) for mine, theirs in zip(self, other, strict=True)))

    def of(self, frames: Frames) -> Known:
        """Only messages that begin at these frames."""

        def chosen(table: pa.Table) -> pa.Table | None:
            found = frames.among(numbers_of(table["connection_id"]), numbers_of(table["first_frame_no"]))
            rows = table.filter(pa.array(found))
            return rows.combine_chunks() if rows.num_rows else None

        return Known(*(table and chosen(table) for table in self))

    def outcomes(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """The function that gives rows of table messages their outcomes. Each table is indexed once."""
        steps = zip((_settled, with_outcomes, _returned), self, strict=True)
        known = [(step, *_indexed(table)) for step, table in steps if table is not None]

        def on(rows: pa.RecordBatch) -> pa.RecordBatch:
            frames = numbers_of(rows["connection_id"]), numbers_of(rows["first_frame_no"])
            for step, table, index in known:
                rows = step(rows, table, index.find(*frames))
            return rows

        return on


def _indexed(table: pa.Table) -> tuple[pa.Table, Index]:
    return table.combine_chunks(), Index(numbers_of(table["connection_id"]), numbers_of(table["first_frame_no"]))


def _settled(rows: pa.RecordBatch, ends: pa.Table, at: Integers) -> pa.RecordBatch:
    settled_ns = picked(ends["settled_ts_ns"], at)
    return changed(
        rows,
        {
            "outcome": pc.coalesce(picked(ends["outcome"], at), rows["outcome"]),
            "settled_ts_ns": settled_ns,
            "settle_latency_ns": elapsed(rows["ts_ns"], settled_ns),
            "settled_frame_no": picked(ends["settled_frame_no"], at),
            "transaction": picked(ends["transaction"], at),
        },
    )


def _returned(rows: pa.RecordBatch, returned: pa.Table, at: Integers) -> pa.RecordBatch:
    if not (at >= 0).any():
        return rows
    was = pa.array(at >= 0)
    settled_ns = pc.if_else(was, picked(returned["ts_ns"], at), rows["settled_ts_ns"])
    return changed(
        rows,
        {
            "outcome": pc.if_else(was, "returned", rows["outcome"]),
            "settled_ts_ns": settled_ns,
            "settle_latency_ns": elapsed(rows["ts_ns"], settled_ns),
            "returned_frame_no": picked(returned["frame_no"], at),
        },
    )


def changed(rows: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """The rows with these columns replaced."""
    arrays = [columns.get(name, rows[name]) for name in rows.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)
