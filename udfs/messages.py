"""Messages and what became of them, made where their frames are decoded.

    messages = Messages(follower, sessions, [Contents(shown), ...])
    for part, rows in messages.feed(frames, arguments, found): ...

What became of a message may be said much later. The messages of a connection wait for its end, in a file when they are
many, so that it is known in the order in which it was said. Where there is too much of that in the classic family, they
are handed over, as are those of connections in which the broker has returned some: Spark settles them, from the rows
`open` and the events. Where channels are sessions, `udfs.sessions` settles all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.channel_state import EVENT
from codec.settled import settled_at_once
from udfs.contents import Contents
from udfs.history import Follower, Records
from udfs.parts import CHANNELS, COUNTS, EVENTS, LINKS_OF_SESSIONS, MESSAGES, OPEN, REPLIES, Parts
from udfs.rows import Index, elapsed, joined, numbers_of, picked
from udfs.sessions import Sessions, with_ends
from udfs.settle import Numbers
from udfs.spool import Spool

WAITING_BYTES = 64 << 20  # events, of one connection: 800,000; settling them takes four times as much
MEMORY_BYTES = 32 << 20  # messages


class Messages:
    """Messages and events of the connection at hand, until it ends or, above `waiting_bytes` of events, is handed
    over."""

    def __init__(
        self, follower: Follower, sessions: Sessions, contents: Sequence[Contents], waiting_bytes: int = WAITING_BYTES
    ) -> None:
        self._follower, self._sessions, self._contents, self._most = follower, sessions, contents, waiting_bytes
        self._messages = Spool(MEMORY_BYTES)
        self._events: list[Records] = []
        self._count = 0  # of events
        self._current: int | None = None
        self._known: pa.Table | None = None  # what became of messages that are not whole yet
        # Connections that Spark settles: too large, or with something returned.
        self._handed_over: set[int] = set()

    def feed(self, frames: pa.RecordBatch, arguments: Mapping[str, pa.Array], found: Mapping[str, Records]) -> Parts:
        """Take frames, fields of their arguments, and what the follower has `found` in them -> part, rows."""
        own = self._follower.shown("message", found["message"]) if "message" in found else None
        of_sessions = self._sessions.feed(frames)
        messages = chain.from_iterable(
            contents.feed(frames, arguments, contents.states(own, of_sessions)) for contents in self._contents
        )
        yield from self._next(messages, found.get("event"), frames["connection_id"][-1].as_py())

    def finish(self, found: Mapping[str, Records]) -> Parts:
        """There are no more frames; `found`: the last that the follower had to say."""
        self._sessions.finish()
        messages = chain.from_iterable(contents.finish() for contents in self._contents)
        yield from self._next(messages, found.get("event"), None)

    def _next(self, messages: Iterator[pa.RecordBatch], events: Records | None, last: int | None) -> Parts:
        """All connections but `last` have ended."""
        for batch in messages:
            self._messages.add(batch)
            returned = pc.equal(batch["operation"], "return")
            self._handed_over.update(batch["connection_id"].filter(returned).to_pylist())
        if events is not None:
            self._add(events)
        if last != self._current:
            yield from self._ended(last)
        if last is not None and self._count * EVENT.itemsize > self._most:
            self._handed_over.add(last)
        early = self._sessions.settled_early(self._most) if last is not None else None
        if early is not None:
            yield from self._settled_early(early)
        if last in self._handed_over:
            yield from ((OPEN, batch) for batch in self._messages.drain())
            yield from self._given(self._taken())

    def _settled_early(self, ends: pa.Table) -> Parts:
        """Messages that wait for nothing more, as `ends` say."""
        known, waiting = joined(self._known, ends), self._messages
        self._messages = Spool(MEMORY_BYTES)
        assert known is not None
        left = np.ones(known.num_rows, bool)
        index = Index(numbers_of(known["connection_id"]), numbers_of(known["first_frame_no"]))
        for batch in waiting.drain():
            at = index.find(numbers_of(batch["connection_id"]), numbers_of(batch["first_frame_no"]))
            left[at[at >= 0]] = False
            rows, others = (batch.filter(pa.array(chosen)) for chosen in (at >= 0, at < 0))
            if rows.num_rows:
                yield MESSAGES, with_ends(rows, known)
            if others.num_rows:
                self._messages.add(others)
        self._known = known.filter(pa.array(left))

    def _add(self, events: Records) -> None:
        self._events.append(events)
        self._count += len(events)

    def _taken(self) -> Records:
        """All events that wait; none does then."""
        events = np.concatenate(self._events) if self._events else np.zeros(0, EVENT)
        self._events, self._count = [], 0
        return events

    def _given(self, events: Records) -> Parts:
        """To Spark."""
        if len(events):
            yield EVENTS, self._follower.shown("event", events)

    def _ended(self, last: int | None) -> Parts:
        """Settle what waits, but for connection `last`, which goes on."""
        events, waiting, self._current = self._taken(), self._messages, last
        self._messages = Spool(MEMORY_BYTES)
        if last is not None:
            self._add(events[events["connection"] == last])
            events = events[events["connection"] != last]
        given = np.array(sorted(self._handed_over), np.int64)
        theirs = np.isin(events["connection"], given)
        yield from self._given(events[theirs])
        ends, of_sessions = Ends(events[~theirs], self._follower.texts), self._sessions.ended()
        for batch in waiting.drain():
            connections = numbers_of(batch["connection_id"])
            goes_on, handed_over = connections == last, np.isin(connections, given)
            if goes_on.any():
                self._messages.add(batch.filter(pa.array(goes_on)))
            for part, chosen in ((OPEN, handed_over & ~goes_on), (MESSAGES, ~handed_over & ~goes_on)):
                rows = batch if chosen.all() else batch.filter(pa.array(chosen))
                if rows.num_rows and part == MESSAGES:
                    rows = ends.of(rows)
                    for known in (of_sessions and of_sessions.messages, self._known):
                        rows = with_ends(rows, known) if known is not None else rows
                if rows.num_rows:
                    yield part, rows
        yield from ((COUNTS, batch) for batch in ends.counts().to_batches())
        if of_sessions is not None:
            yield from ((CHANNELS, batch) for batch in of_sessions.channels.to_batches())
            yield from ((LINKS_OF_SESSIONS, batch) for batch in of_sessions.links.to_batches())
            yield from ((REPLIES, batch) for batch in of_sessions.replies.to_batches())
        self._handed_over &= {last}
        self._known = None


class Ends:
    """What became of the messages of connections that have ended."""

    def __init__(self, events: Records, texts: Mapping[str, Numbers]) -> None:
        self._settled = settled = settled_at_once(events)
        self._index = Index(settled.connection, settled.frame_no)
        is_open = settled.settled_frame_no < 0
        self._outcome = texts["outcomes"].column(settled.outcome)
        self._transaction = texts["transactions"].column(settled.transaction)
        self._settled_ns = pa.array(settled.settled_ns, mask=is_open)
        self._frame_no = pa.array(settled.settled_frame_no, mask=is_open)

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with what became of them."""
        at = self._index.find(numbers_of(rows["connection_id"]), numbers_of(rows["first_frame_no"]))
        settled_ns = picked(self._settled_ns, at)
        became = {
            "outcome": pc.coalesce(picked(self._outcome, at), rows["outcome"]),
            "settled_ts_ns": settled_ns,
            "settle_latency_ns": elapsed(rows["ts_ns"], settled_ns),
            "settled_frame_no": picked(self._frame_no, at),
            "transaction": picked(self._transaction, at),
        }
        return pa.RecordBatch.from_arrays(
            [became.get(name, rows[name]) for name in rows.schema.names], schema=rows.schema
        )

    def counts(self) -> pa.Table:
        """How many messages of a ledger have which outcome."""
        keys = {"connection_id": self._settled.connection, "ledger": self._settled.ledger, "outcome": self._outcome}
        known = pa.table(keys).filter(self._outcome.is_valid())
        return known.group_by(list(keys)).aggregate([([], "count_all")])
