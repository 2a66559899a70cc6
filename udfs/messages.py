"""Messages of the classic family and what became of them, made where their frames are decoded.

    messages = Messages(follower, Contents(shown))
    for folder, rows in messages.feed(frames, arguments, found): ...

What became of a message may be said much later. The messages of a connection wait for its end, so that it is known in
the order in which it was said. Where more than some bytes of them wait, they are handed over, as are those of
connections in which the broker has returned some: Spark settles them, from the rows `open` and the events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.channel_state import EVENT
from udfs.contents import Contents
from udfs.history import Follower, Records
from udfs.rows import in_one, matched, numbers_of, picked
from udfs.settle import settled_at_once

# Folders: messages as the table has them; those that Spark has to settle, and how; how many were settled how.
MESSAGES, OPEN, EVENTS, COUNTS = "messages", "open", "history/event", "counts"
WAITING_BYTES = 96 << 20
EVENT_BYTES = EVENT.itemsize

Parts = Iterator[tuple[str, pa.RecordBatch]]


class Messages:
    """Messages and events of the connection at hand, until it ends or, above `waiting_bytes`, is handed over."""

    def __init__(self, follower: Follower, contents: Contents, waiting_bytes: int = WAITING_BYTES) -> None:
        self._follower, self._contents, self._most = follower, contents, waiting_bytes
        self._messages: list[pa.RecordBatch] = []
        self._events: list[Records] = []
        self._bytes = 0
        self._current: int | None = None
        self._handed_over: set[int] = set()

    def feed(self, frames: pa.RecordBatch, arguments: Mapping[str, pa.Array], found: Mapping[str, Records]) -> Parts:
        """Take frames, fields of their arguments, and what the follower has `found` in them -> folder, rows."""
        states = self._follower.shown("message", found["message"]) if "message" in found else None
        messages = self._contents.feed(frames, arguments, states)
        yield from self._next(messages, found.get("event"), frames["connection_id"][-1].as_py())

    def finish(self, found: Mapping[str, Records]) -> Parts:
        """There are no more frames; `found`: the last that the follower had to say."""
        yield from self._next(self._contents.finish(), found.get("event"), None)

    def _next(self, messages: Iterator[pa.RecordBatch], events: Records | None, last: int | None) -> Parts:
        """All connections but `last` have ended."""
        for batch in messages:
            self._messages.append(batch)
            self._bytes += batch.nbytes
        if events is not None:
            self._events.append(events)
            self._bytes += EVENT_BYTES * len(events)
        if last != self._current:
            yield from self._ended(last)
        if last is not None and (self._bytes > self._most or last in self._handed_over):
            self._handed_over.add(last)
            yield from self._given(*self._taken())

    def _taken(self) -> tuple[pa.Table, Records]:
        """All that waits; nothing does then."""
        messages, events = self._messages, self._events
        self._messages, self._events, self._bytes = [], [], 0
        rows = pa.Table.from_batches(messages) if messages else pa.table({"connection_id": pa.array([], pa.int64())})
        return rows, np.concatenate(events) if events else np.zeros(0, EVENT)

    def _ended(self, last: int | None) -> Parts:
        """Settle what waits, but for connection `last`, which goes on."""
        rows, events = self._taken()
        connections = numbers_of(rows["connection_id"])
        if last is not None:
            self._messages = rows.filter(pa.array(connections == last)).to_batches()
            self._events = [events[events["connection"] == last]]
            self._bytes = sum(batch.nbytes for batch in self._messages) + EVENT_BYTES * len(self._events[0])
            rows, events = rows.filter(pa.array(connections != last)), events[events["connection"] != last]
            connections = connections[connections != last]
        self._current = last
        given = np.array(sorted(self._handed_over), np.int64)
        self._handed_over = set()
        if rows.num_rows:
            given = np.union1d(given, connections[pc.equal(rows["operation"], "return").to_numpy()])
        theirs, events_theirs = np.isin(connections, given), np.isin(events["connection"], given)
        yield from self._given(rows.filter(pa.array(theirs)), events[events_theirs])
        yield from self._settled(rows.filter(pa.array(~theirs)), events[~events_theirs])

    def _given(self, rows: pa.Table, events: Records) -> Parts:
        """To Spark."""
        yield from ((OPEN, batch) for batch in rows.to_batches())
        if len(events):
            yield EVENTS, self._follower.shown("event", events)

    def _settled(self, rows: pa.Table, events: Records) -> Parts:
        """Messages of connections that have ended, and what became of them."""
        settled, texts = settled_at_once(events), self._follower.texts
        outcome = texts["outcomes"].column(settled.outcome)
        if rows.num_rows:
            connections, frames = (numbers_of(rows[name]) for name in ("connection_id", "first_frame_no"))
            found, at = matched(connections, frames, settled.connection, settled.frame_no)
            at = np.where(found, at, -1)
            is_open = settled.settled_frame_no < 0
            settled_ns = picked(pa.array(settled.settled_ns, mask=is_open), at)
            became = {
                "outcome": pc.coalesce(picked(outcome, at), in_one(rows["outcome"])),
                "settled_ts_ns": settled_ns,
                "settle_latency_ns": pc.subtract(settled_ns, in_one(rows["ts_ns"])),
                "settled_frame_no": picked(pa.array(settled.settled_frame_no, mask=is_open), at),
                "transaction": picked(texts["transactions"].column(settled.transaction), at),
            }
            columns = [became.get(name, rows[name]) for name in rows.schema.names]
            yield from ((MESSAGES, batch) for batch in pa.Table.from_arrays(columns, schema=rows.schema).to_batches())
        ends = pa.table({"connection_id": settled.connection, "ledger": settled.ledger, "outcome": outcome})
        known = ends.filter(outcome.is_valid()).group_by(["connection_id", "ledger", "outcome"])
        yield from ((COUNTS, batch) for batch in known.aggregate([([], "count_all")]).to_batches())
