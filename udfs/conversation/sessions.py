"""Tracks the sessions of 0-10 and 1.0: frames in; messages, channels, links and outcomes out.

    tracker = SessionTracker()
    begun = tracker.feed(frames)            # messages that begin in them, for `udfs.conversation.messages`
    ended = tracker.ended(open_ids)         # channels, links and outcomes of connections that have ended

Python works per batch, the kernels of `codec.conversation.session_tracker` per row; neither names a method.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.conversation import oddities
from codec.conversation import session_state as semantics
from codec.conversation.session_batches import LAYOUT, drop, droppable_in, follow_connections, records_of_all
from codec.conversation.session_lookup import request_cell
from codec.conversation.session_outcomes import Outcomes, events_about, outcomes_of, still_needed
from codec.conversation.session_state import (
    CELLS,
    CLIENT,
    CLOSE_FRAME,
    CLOSING,
    CONNECTION,
    HIDDEN_CLIENT,
    HIDDEN_SERVER,
    KINDS,
    LOST_NS,
    MAPS,
    NONE,
    SERVER,
    STARTED,
    Rows,
    SessionRecords,
    compiled_roles,
    current_records,
    new_state,
    retain,
    take_ended,
    take_replies,
    take_stalls,
    with_room,
)
from codec.conversation.session_state import COUNT as COUNT_CELL
from codec.conversation.session_tracker import end_connection
from codec.conversation.settlement import Frames, Settled
from codec.conversation.states import expand_ranges
from codec.conversation.unanswered import owed_at_end, unfinished
from codec.stalls import LINK, new_rows
from udfs.arrow.arrays import concat_rows
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.performatives import performatives
from udfs.conversation.session_rows import (
    COUNTS,
    ByteCounts,
    Credits,
    begun_messages,
    channel_rows,
    command_replies,
    counted,
    link_rows,
    link_stalls,
    links_are_known,
    message_outcomes,
    missing_fields,
    oddity_rows,
    request_replies,
    waiting_at_end,
    waiting_requests,
    with_links,
)
from udfs.conversation.tracker_states import (
    COMPLETED,
    COUNT,
    ConnectionRecords,
    SessionOffsets,
    Tracker,
    joined_settled,
)
from udfs.decode.stall_rows import stall_rows

Integers = NDArray[np.int64]
FEW_SLOTS = 1 << 10


class SessionTables(NamedTuple):
    """Rows that are final, None for no rows: columns of tables `channels` and `links`; `messages`: their outcomes, by
    connection and first frame; `replies` to requests, as REPLIES of `udfs.conversation.channels`."""

    channels: pa.Table | None = None
    links: pa.Table | None = None
    messages: pa.Table | None = None
    replies: pa.Table | None = None

    def merged_with(self, other: SessionTables) -> SessionTables:
        return SessionTables(*(concat_rows(mine, theirs) for mine, theirs in zip(self, other, strict=True)))


class Final(NamedTuple):
    """`tables`: what is final of open connections, with replies to other requests than commands of all connections.
    `waiting` are the frames of messages that wait for their outcome. Two kinds of frames may still be answered:
    `commands` of 0-10, which may be many, and other `requests`, of which each connection, session and link has only a
    few."""

    tables: SessionTables
    waiting: Frames
    commands: Frames
    requests: Frames


class SessionTracker(Tracker):
    """Follows connections. `keep` as of `udfs.conversation.channels.ChannelTracker`."""

    def __init__(self, keep: bool = False) -> None:
        self._roles = compiled_roles()
        # Of open connections: counts of messages by session, sender and outcome; transfers over subscriptions that
        # were completed; bytes of credit that messages used.
        self._counts, self._completed = ConnectionRecords(COUNT), ConnectionRecords(COMPLETED)
        self._bytes, self._credits = ByteCounts(), Credits()
        records = (self._counts, self._completed, self._bytes, self._credits.uses, self._credits.known)
        super().__init__(LAYOUT, new_state(), keep, records)
        self._slots_left = 0  # `_slot_count()` when ended ones were last looked for
        self._replies: list[NDArray[np.void]] = []  # since the last `final`
        self._stalls: list[Integers] = []  # rows of `codec.stalls`, since `take_stalls`
        self._oddities: list[Integers] = []  # rows of `codec.conversation.oddities`, since `take_oddities`
        self._waiting: list[Frames] = []  # requests that waited at the end of their connections, since `take_waiting`

    def feed(self, frames: FrameBatch) -> pa.Table | None:
        """Follow the next frames, those of a connection together and in order -> the messages that begin in them."""
        messages = None
        found = performatives(frames, self._texts)
        self._bytes.add_frames(frames)
        if found is not None:
            begun = self._follow(found.rows())
            self._oddities += [oddities.take(self._state.odd), missing_fields(found)]
            if len(begun.messages):
                messages = begun_messages(begun, found, self._texts)
        numbers = self._state.numbers
        if len(frames) and numbers[STARTED] and numbers[CONNECTION] != frames.cells("connection_id")[-1]:
            end_connection(self._state)
        return messages

    def _follow(self, rows: Rows) -> SessionRecords:
        """Follow rows -> the records, of messages only those that begin in them."""
        sizes = len(rows.frame_no), len(rows.range_first)
        ids, ends, before, room = self._load(rows.connection_id, *sizes)
        self._state = with_room(self._state, before.largest() + sizes[0], sizes[1])
        first = int(self._state.messages.cells[COUNT_CELL])
        follow_connections(self._state, self._roles, rows, ends, LAYOUT.records_of(before), room)
        after = self._store(ids, room)
        self._replies.append(take_replies(self._state))
        self._stalls.append(take_stalls(self._state))
        if self._states is None:
            records = current_records(self._state)
            return records._replace(messages=records.messages[first:])
        known, count = before.counts["messages"], after.counts["messages"]
        records = records_of_all(after)
        return records._replace(
            messages=records.messages[expand_ranges(np.cumsum(count) - count + known, count - known)]
        )

    def finish(self) -> None:
        """End all connections: there are no more frames."""
        end_connection(self._state)

    def ended(self, open_ids: Integers) -> SessionTables:
        """Remove and return the rows of connections that have ended, all but `open_ids`."""
        records = self._ended(open_ids)
        if not len(records.sessions):
            return SessionTables()
        data, _ = self._bytes.by_change(records.changes)
        outcomes = outcomes_of(records)
        begins = SessionOffsets(records.sessions)
        completed = joined_settled(begins.settled(self._completed), outcomes.completed)
        self._credits.apply(records, completed, data, ended=True)
        idle_ns = self._credits.idle_times(records)
        self._end_stalls(records, np.ones(len(records.links), bool))
        self._oddities += [owed_at_end(records), unfinished(records, np.ones(len(records.links), bool))]
        self._waiting.append(waiting_at_end(records))
        self._credits.drop(records.sessions)
        counts = counted(records, outcomes, records.messages["command"] == 0)
        begins.add(self._counts, counts)
        for of_open in (self._counts, self._completed, self._bytes):
            of_open.only(open_ids)
        return SessionTables(
            channel_rows(records, counts, self._texts),
            link_rows(records, idle_ns, self._texts),
            message_outcomes(records, outcomes, self._texts),
            command_replies(records, outcomes, np.ones(len(records.messages), bool)),
        )

    def _ended(self, open_ids: Integers) -> SessionRecords:
        if self._states is None:
            return take_ended(self._state)
        over = self._states.without(open_ids)
        self._states = self._states.at(np.flatnonzero(np.isin(self._states.ids, open_ids)))
        records = records_of_all(over)
        there = np.flatnonzero(over.counts["numbers"] > 0)
        numbers = over.at(there).parts["numbers"].reshape(-1, CELLS)
        for field, cell in (("client_hidden", HIDDEN_CLIENT), ("server_hidden", HIDDEN_SERVER)):
            records.sessions[field] = np.repeat(numbers[:, cell], over.counts["sessions"][there])
        records.sessions["lost_ns"] = np.repeat(numbers[:, LOST_NS], over.counts["sessions"][there])
        closed = np.repeat(numbers[:, CLOSE_FRAME], over.counts["sessions"][there])
        records.sessions["left_frame"] = np.maximum(records.sessions["left_frame"], closed)
        return records

    @property
    def record_bytes(self) -> int:
        """About the size of the records of open connections."""
        records = [self._open_count(name) * KINDS[name].itemsize for name in ("events", "sessions", "links")]
        return sum(records)

    def _open_count(self, name: str) -> int:
        """How many records of a kind open connections have."""
        if self._states is not None:
            return len(self._states.parts[name])
        return int(getattr(self._state, name).cells[COUNT_CELL])

    def _open(self) -> SessionRecords:
        """The records of open connections."""
        return current_records(self._state) if self._states is None else records_of_all(self._states)

    def _keep(self, name: str, mask: NDArray[np.bool_]) -> None:
        """Keep only the chosen records of open connections."""
        if self._states is None:
            retain(getattr(self._state, name), mask)
        else:
            self._states = self._states.filtered(name, mask)

    def final(self) -> Final:
        """Remove and return what is final of open connections. To be called after `ended`."""
        records = self._open()
        if not len(records.sessions):
            requests = waiting_requests(records, self._numbers())
            return Final(SessionTables(replies=self._take_replies()), Frames.of(), Frames.of(), requests)
        messages = records.messages
        outcomes = outcomes_of(records)
        command = messages["command"] == 1
        final = outcomes.final & (links_are_known(records) | command)
        # Nothing answers a command of a session that both sides have ended, and that does not go on.
        sessions = records.sessions[messages["session"]]
        over = (sessions["close_client_hidden"] != NONE) & (sessions["close_server_hidden"] != NONE)
        over &= (sessions["waiting"][:, [request_cell(CLOSING, side) for side in (CLIENT, SERVER)]] == 0).all(axis=1)
        final |= command & over & ((sessions["timeout_s"] <= 0) | (sessions["failed"] == 1))
        outcomes = outcomes._replace(final=final)
        needed = still_needed(records, outcomes)
        final = ~needed.messages
        self._add_counts(records, outcomes, final & ~command)
        self._apply_credit(records, outcomes.completed)
        found = message_outcomes(records, outcomes, self._texts).filter(pa.array(final & ~command))
        replies = concat_rows(self._take_replies(), command_replies(records, outcomes, final))
        on_link = messages["link"] != NONE
        waiting, commands = _frames(messages[~final & ~command]), _frames(messages[~final & command & ~on_link])
        of_coordinators = _frames(messages[~final & command & on_link])
        requests = Frames.of(of_coordinators, waiting_requests(records, self._numbers()))
        self._keep("messages", ~final)
        for name, which in (("events", needed.events), ("tx_ends", needed.tx_ends)):
            self._keep(name, which)
        return Final(SessionTables(*self._pop_ended(), found, replies), waiting, commands, requests)

    def _take_replies(self) -> pa.Table | None:
        """Remove and return the replies to other requests than commands."""
        replies, self._replies = [request_replies(rows) for rows in self._replies if len(rows)], []
        return pa.concat_tables(replies) if replies else None

    def _numbers(self) -> Integers:
        """`State.numbers` of open connections (n, CELLS)."""
        if self._states is None:
            return self._state.numbers[None] if self._state.numbers[STARTED] else np.zeros((0, CELLS), np.int64)
        return self._states.parts["numbers"].reshape(-1, CELLS)

    def _apply_credit(self, records: SessionRecords, completed: Settled) -> None:
        """Apply changes of credit of open connections; `completed`: more completed transfers."""
        begins = SessionOffsets(records.sessions)
        completed = joined_settled(begins.settled(self._completed), completed)
        data, at = self._bytes.by_change(records.changes)
        applied, over = self._credits.apply(records, completed, data)
        self._end_stalls(records, np.zeros(len(records.links), bool))
        self._bytes.keep((at >= 0) & ~np.append(applied, False)[at])
        self._completed.replace(begins.completed(Settled(*(column[~over] for column in completed))))
        self._keep("changes", ~applied)

    def _pop_ended(self) -> tuple[pa.Table | None, pa.Table | None]:
        """Remove sessions and links that no later frame can change -> their rows of tables channels and links. Without
        `keep` the state is copied for that, so only where the records have doubled."""
        if self._states is None and self._slot_count() <= max(FEW_SLOTS, 2 * self._slots_left):
            return None, None
        states = self._take_states()
        records = records_of_all(states)
        ended = droppable_in(states, self._credits.used(records))
        if not (ended.sessions.any() or ended.links.any()):
            self._put_states(states)
            self._slots_left = self._slot_count()
            return None, None
        self._end_stalls(records, ended.links)
        lost = states.parts["numbers"].reshape(-1, CELLS)[:, LOST_NS]
        records.sessions["lost_ns"] = np.repeat(lost, states.counts["sessions"][states.counts["numbers"] > 0])
        self._oddities.append(unfinished(records, ended.links))
        begins, counts = SessionOffsets(records.sessions), np.zeros((len(records.sessions), *COUNTS), np.int64)
        begins.add(self._counts, counts)
        channels = records._replace(sessions=records.sessions[ended.sessions])
        links, idle_ns = records._replace(links=records.links[ended.links]), self._credits.idle_times(records)
        rows = (
            channel_rows(channels, counts[ended.sessions], self._texts),
            link_rows(links, idle_ns[ended.links], self._texts),
        )
        self._credits.renumber(records, ended.sessions, ended.links)
        completed = begins.settled(self._completed)
        states = drop(states, ended)
        begins = SessionOffsets(states.parts["sessions"])
        self._counts.replace(begins.counts(counts[~ended.sessions]))
        index = np.cumsum(~ended.sessions) - 1
        map_no = index[completed.map_no // MAPS] * MAPS + completed.map_no % MAPS
        self._completed.replace(begins.completed(completed._replace(map_no=map_no)))
        self._put_states(states)
        self._slots_left = self._slot_count()
        return rows

    def _end_stalls(self, records: SessionRecords, over: NDArray[np.bool_]) -> None:
        """Take the stalls of subscriptions, and the last ones of links that are `over`."""
        last = link_stalls(records)
        rows = np.concatenate([self._credits.take_stalls(records, over), last[over[last[:, LINK]]]])
        self._stalls.append(with_links(rows, records))

    def take_oddities(self) -> pa.RecordBatch | None:
        """Remove and return oddities (`codec.tables.ODDITY`), if there are any: those of the rows so far, and of
        connections and links that have ended."""
        rows, self._oddities = [each for each in self._oddities if len(each)], []
        if not rows:
            return None
        found = np.concatenate(rows)
        return oddity_rows(found, self._texts.column(found[:, oddities.MISSING]))

    def take_waiting(self) -> Frames:
        """Remove and return the requests of sessions and links that waited at the end of their connections."""
        found, self._waiting = Frames.of(*self._waiting), []
        return found

    def take_stalls(self) -> pa.RecordBatch:
        """Remove and return stalls (`codec.tables.STALL`): those of the rows so far, and of links that have ended."""
        rows, self._stalls = np.concatenate([new_rows(0), *self._stalls]), []
        return stall_rows(rows, links=self._texts.column(rows[:, LINK]))

    def _slot_count(self) -> int:
        """How many sessions and links open connections have."""
        return self._open_count("sessions") + self._open_count("links")

    def give_up(self, frames: Frames) -> pa.Table | None:
        """Remove these messages and commands -> the messages as in `SessionTables`; the outcome of those not settled is
        unknown. Commands that end a transaction still end it."""
        records = self._open()
        removed = frames.among(records.messages["connection"], records.messages["frame_no"])
        if not removed.any():
            return None
        unsettled, unknown = (semantics.OUTCOMES.index(name) + 1 for name in ("unsettled", "unknown"))
        outcomes = outcomes_of(records)
        outcomes = outcomes._replace(outcome=np.where(outcomes.outcome == unsettled, unknown, outcomes.outcome))
        messages = removed & (records.messages["command"] == 0)
        self._add_counts(records, outcomes, messages)
        found = message_outcomes(records, outcomes, self._texts).filter(pa.array(messages))
        events = records.events
        given_up = frames.without(_frames(records.tx_ends)).among(events["connection"], events["frame_no"])
        self._keep("events", events_about(events, (events["opens"] == 1) & ~given_up))
        self._keep("messages", ~removed)
        return found

    def _add_counts(self, records: SessionRecords, outcomes: Outcomes, mask: NDArray[np.bool_]) -> None:
        """Count the chosen messages of open connections."""
        begins, counts = SessionOffsets(records.sessions), counted(records, outcomes, mask)
        begins.add(self._counts, counts)
        self._counts.replace(begins.counts(counts))

    def _record_count(self) -> int:
        return max(
            *(int(getattr(self._state, name).cells[COUNT_CELL]) for name in KINDS), int(self._state.found_by.used[0])
        )


def _frames(messages: NDArray[np.void]) -> Frames:
    return Frames(np.ascontiguousarray(messages["connection"]), np.ascontiguousarray(messages["frame_no"]))
