"""What follows from the frames of connections, one after the other: their channels, links, requests and messages.

    conversation = Conversation(config)
    for table, rows in conversation.feed(frames, arguments): ...
    for table, rows in conversation.finish(): ...

Rows leave when nothing that is said later changes them: a message when it is settled, a request when it is answered,
else when their connection is over. In between, the connection at hand can be put down and taken up elsewhere:

    for table, rows in conversation.settle(): ...      # all that is final
    parts = conversation.put_down()
    Conversation(config).take_up(parts)

Memory follows what is outstanding, up to `Limits.outstanding_messages`; rows that wait are in a file when they are
many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.compiler.limits import LIMITS
from codec.conversation.channels.carried import NO_FRAME
from codec.conversation.channels.state import EVENT, LIFE
from codec.conversation.outstanding import concluded, oldest_given_up
from udfs.arrow.bound import bound
from udfs.arrow.rows import Index, joined, numbers_of, picked
from udfs.arrow.types import arrow_schema
from udfs.conversation.contents import Contents
from udfs.conversation.history import Follower, Records
from udfs.conversation.methods import REPLY
from udfs.conversation.sessions import EndedSessions, Sessions
from udfs.tables.channels import (
    NO_COUNTS,
    OF_SESSION_LINKS,
    OF_SESSIONS,
    channel_columns,
    counted,
    ledgers_of,
    link_columns,
)
from udfs.tables.config import Config
from udfs.tables.returned import Returns
from udfs.tables.settled import Known, changed, ends_of, unknown_ends
from udfs.tables.waiting import Waiting

Rows = Iterator[tuple[str, pa.RecordBatch]]
EVENT_BYTES = 32 << 20  # of one connection, above which it is worth while to look what is settled
ROW_BYTES = 32 << 20
# Columns that tables of sessions do not have.
NOT_OF_SESSIONS = {"channels": ("prefetch_count", "prefetch_size"), "links": ("queue_type",)}
NO_FRAMES = np.zeros(0, np.int64)
Integers = NDArray[np.int64]


class Conversation:
    """Follows connections; see the module's text. `waiting_bytes`: how much may wait before it is looked at."""

    def __init__(self, config: Config, waiting_bytes: int | None = None) -> None:
        self._config = config
        self._most_events, self._most_rows = (
            (EVENT_BYTES, ROW_BYTES) if waiting_bytes is None else (waiting_bytes, waiting_bytes)
        )
        self._follower, self._sessions = Follower(config.roles), Sessions(config.roles.said.losses)
        self._contents = [Contents(shown) for shown in config.messages]
        self._messages, self._requests = Waiting("first_frame_no"), Waiting("frame_no")
        self._returns = Returns()
        self._schemas = {name: arrow_schema(schema) for name, schema in config.schemas.items()}
        self._current: int | None = None
        self._forget()

    def _forget(self) -> None:
        """Nothing is known of any connection."""
        self._events = [np.zeros(0, EVENT)]
        self._lives = [np.zeros(0, LIFE)]  # incarnations that are over
        self._counts = NO_COUNTS
        self._known = Known()  # what became of messages that are not whole yet
        self._replies: pa.Table | None = None
        self._event_bytes = self._events_left = self._sessions_left = 0
        self.gave_up = set[int]()  # connections in which too much was outstanding, until their facts are known

    def feed(self, frames: pa.RecordBatch, arguments: Mapping[str, pa.Array]) -> Rows:
        """Take frames, those of a connection together and in order, at least one, and fields of
        their arguments -> table, rows."""
        methods, requests = self._config.methods.rows(frames, arguments)
        yield "methods", methods
        self._requests.add(requests)
        found = self._follower.feed(frames, arguments)
        own = self._follower.shown("message", found["message"]) if "message" in found else None
        of_sessions = self._sessions.feed(frames)
        messages = chain.from_iterable(
            contents.feed(frames, arguments, contents.states(own, of_sessions)) for contents in self._contents
        )
        last = frames["connection_id"][-1].as_py()
        yield from self._take(found, messages)
        if last != self._current or self._is_much():
            yield from self._concluded(last)

    def finish(self) -> Rows:
        """There are no more frames of the connection at hand."""
        self._sessions.finish()
        yield from self._take(self._follower.finish(), chain.from_iterable(each.finish() for each in self._contents))
        yield from self._concluded(None)

    def settle(self) -> Rows:
        """Rows that nothing which is said later will change."""
        if self._current is not None:
            yield from self._concluded(self._current)

    def put_down(self) -> dict[str, Any]:
        """What is known of the connection at hand, which stays; call `settle` before."""
        parts: dict[str, Any] = {
            "connection": self._current,
            "events": np.concatenate(self._events),
            "lives": np.concatenate(self._lives),
            "counts": self._counts,
            "returns": self._returns.items,
            "gave_up": self._current in self.gave_up,
        }
        tables = {"messages": self._messages.put_down(), "requests": self._requests.put_down(), **self._known._asdict()}
        tables["replies"] = self._replies
        parts |= {name: table for name, table in tables.items() if table is not None}
        for name, each in self._parts():
            parts |= {f"{name}.{part}": value for part, value in each.put_down().items()}
        return parts

    def take_up(self, parts: Mapping[str, Any]) -> None:
        """What was put down; there is no connection at hand."""
        self._current = parts["connection"]
        self._events, self._lives = [parts["events"]], [parts["lives"]]
        self._counts, self._returns.items = parts["counts"], parts["returns"]
        self._known = Known(*(parts.get(name) for name in Known._fields))
        self._replies = parts.get("replies")
        self.gave_up |= {parts["connection"]} if parts["gave_up"] else set()
        self._messages.take_up(parts.get("messages"))
        self._requests.take_up(parts.get("requests"))
        for name, each in self._parts():
            prefix = f"{name}."
            each.take_up({part.removeprefix(prefix): parts[part] for part in parts if part.startswith(prefix)})

    def _parts(self) -> Iterator[tuple[str, Any]]:
        yield "channels", self._follower
        yield "sessions", self._sessions
        yield from ((f"contents{number}", contents) for number, contents in enumerate(self._contents))

    def _take(self, found: Mapping[str, Records], messages: Iterator[pa.RecordBatch]) -> Rows:
        """What was found in frames."""
        for batch in messages:
            self._messages.add(batch)
            self._returns.add(batch)
        if "event" in found:
            self._events.append(found["event"])
            self._event_bytes += found["event"].nbytes
        if "life" in found:
            self._lives.append(found["life"])
        if "reply" in found:
            self._replies = joined(self._replies, self._follower.shown("reply", found["reply"]))
        if "link" in found:
            columns = link_columns(found["link"], self._follower)
            yield "links", bound(columns, self._schemas["links"], OF_SESSION_LINKS)

    def _is_much(self) -> bool:
        """Whether so much waits that it is worth while to look what is final."""
        return (
            self._messages.is_large(self._most_rows)
            or self._requests.is_large(self._most_rows)
            or self._event_bytes > max(self._most_events, self._events_left)
            or self._sessions.event_bytes > max(self._most_events, 2 * self._sessions_left)
        )

    def _concluded(self, goes_on: int | None) -> Rows:
        """All rows that are final: all connections but `goes_on` have ended."""
        of_sessions = self._sessions.ended()
        lives = np.concatenate(self._lives)
        over = ledgers_of(lives[lives["connection"] == goes_on]) if goes_on is not None else NO_FRAMES
        until = self._follower.certain_until() if goes_on is not None else NO_FRAME
        found = concluded(np.concatenate(self._events), goes_on, until, over)
        early, waiting, commands = None, NO_FRAMES, NO_FRAMES
        if goes_on is not None:
            early, waiting, commands = self._sessions.settled_early()
        outstanding = np.union1d(np.union1d(found.outstanding, waiting), self._returns.open_publishes(goes_on))
        given_up = outstanding[: -LIMITS.outstanding_messages]
        if len(given_up):
            found = oldest_given_up(found, int(given_up[-1]) + 1)
            early = joined(early, self._sessions.give_up(given_up))
            self._returns.give_up(goes_on, given_up)
            self.gave_up |= {goes_on} if goes_on is not None else set()
        self._counts = counted(self._counts, found.settled)
        self._events, self._event_bytes = [found.events], 0
        self._events_left, self._sessions_left = found.events.nbytes, self._sessions.event_bytes
        known = self._known.and_also(
            Known(
                ends_of(found.settled, self._follower.texts) if len(found.settled.frame_no) else None,
                joined(of_sessions and of_sessions.messages, early),
            )
        )
        begun = self._begun()
        first = int(begun[0]) if len(begun) else NO_FRAME
        returned = self._returns.concluded(goes_on, min(first, until), known.ends)
        unknown = unknown_ends(goes_on, given_up) if goes_on is not None and len(given_up) else None
        known = known.and_also(Known(ends=unknown, returned=returned))
        outstanding = np.union1d(np.union1d(found.outstanding, waiting), self._returns.open_publishes(goes_on))
        outstanding = outstanding[~np.isin(outstanding, given_up)]
        yield from (("messages", rows) for rows in self._messages.release(goes_on, outstanding, known.on))
        self._known = known.of(goes_on, np.union1d(outstanding, begun)) if goes_on is not None else Known()
        yield from self._answered(goes_on, commands, of_sessions)
        yield from self._channels(lives, of_sessions, goes_on)
        self._current = goes_on
        self._follower.forget_texts()
        self._sessions.forget_texts()

    def _begun(self) -> Integers:
        """Frames of messages that are not whole yet, in order."""
        return np.unique(np.concatenate([contents.begun for contents in self._contents]))

    def _answered(self, goes_on: int | None, commands: Integers, of_sessions: EndedSessions | None) -> Rows:
        """Requests with their replies, but for those that may still be answered."""
        replies = joined(self._replies, of_sessions and of_sessions.replies)
        may_be = np.union1d(self._follower.open_requests(), commands) if goes_on is not None else NO_FRAMES

        def answered(rows: pa.RecordBatch) -> pa.RecordBatch:
            return rows if replies is None else with_replies(rows, replies)

        yield from (("methods", rows) for rows in self._requests.release(goes_on, may_be, answered))
        self._replies = None

    def _channels(self, lives: Records, of_sessions: EndedSessions | None, goes_on: int | None) -> Rows:
        """Channels that are over."""
        if len(lives):
            columns = channel_columns(lives, self._counts, self._follower)
            yield "channels", bound(columns, self._schemas["channels"], OF_SESSIONS)
        self._lives = [lives[:0]]
        self._counts = self._counts[self._counts["connection"] == goes_on] if goes_on is not None else NO_COUNTS
        if of_sessions is not None:
            for table, rows in (("channels", of_sessions.channels), ("links", of_sessions.links)):
                columns = {name: rows[name] for name in rows.column_names}
                if rows.num_rows:
                    yield table, bound(columns, self._schemas[table], NOT_OF_SESSIONS[table])


def with_replies(rows: pa.RecordBatch, replies: pa.Table) -> pa.RecordBatch:
    """Rows of table methods with the replies to them."""
    index = Index(numbers_of(replies["connection_id"]), numbers_of(replies["frame_no"]))
    at = index.find(numbers_of(rows["connection_id"]), numbers_of(rows["frame_no"]))
    return changed(rows, {name: picked(replies[name], at) for name in REPLY})
