"""Frames of AMQP 0-10 and 1.0 in; sessions, links, and what their messages are and became, out: in one pass.

    sessions = Sessions(losses)
    states = sessions.feed(frames)       # messages that begin in them, for `udfs.conversation.contents`
    ended = sessions.ended(goes_on)      # rows of tables channels and links, and what became of messages

Nothing is held but connections that go on. Cost per batch, not per row: the kernels of `codec.conversation` do the
rest, and know no method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation import carried
from codec.conversation.carried import ended_of, follow_connections, load_connection, save_connection
from codec.conversation.outstanding import Frames
from codec.conversation.sessions import semantics
from codec.conversation.sessions.credit import Changes, idle_times
from codec.conversation.sessions.outcomes import Outcomes, Places, about, concluded, still_needed
from codec.conversation.sessions.pools import COUNT as COUNT_CELL
from codec.conversation.sessions.pools import kept
from codec.conversation.sessions.semantics import compiled_roles, names_with
from codec.conversation.sessions.state import (
    CLIENT,
    COMPLETIONS,
    CONNECTION,
    EVENT,
    HIDDEN_CLIENT,
    HIDDEN_SERVER,
    KINDS,
    LEDGERS,
    NO_LIMIT,
    NONE,
    SENDER,
    SERVER,
    STARTED,
    SUBSCRIPTION,
    TRANSACTIONS,
    Ended,
    Rows,
    at_hand,
    new_state,
    taken,
    with_room,
)
from codec.conversation.sessions.tracker import end_connection
from codec.conversation.settlement import Settled
from codec.conversation.stored import Stored, spread
from codec.packing import Reader, Writer
from codec.sides import SIDES
from udfs.arrow.numbers import MOST_TEXTS, Numbers
from udfs.arrow.octets import hexed
from udfs.arrow.rows import Index, connections_of, elapsed, fixed, is_among, is_there, numbers_of, picked, places_where
from udfs.arrow.types import TIMESTAMP
from udfs.conversation.performatives import Chosen, performatives
from udfs.conversation.stored import put_records, put_stored, take_stored, with_other_numbers

Integers = NDArray[np.int64]
COUNT = np.dtype([(name, "i8") for name in ("connection", "session", "sender", "outcome", "count")])
COMPLETED = np.dtype([(name, "i8") for name in Settled._fields])
OCTETS = np.dtype([(name, "i8") for name in ("connection", "frame_no", "size")])
OCTETS_OF_FRAMES = {"connection": "connection_id", "frame_no": "content_frame_no", "size": "payload_size"}
NO_NUMBERS = fixed(np.zeros(0, np.int64))
_SIDES = pa.array(SIDES)
_TEXTS = {
    name: pa.array([None, *words], pa.string())
    for name, words in (
        ("outcomes", semantics.OUTCOMES), ("transactions", semantics.TRANSACTIONS), ("kinds", semantics.LINK_KINDS),
        ("modes", semantics.MODES),
    )
}  # fmt: skip


@dataclass(frozen=True)
class EndedSessions:
    """Of connections that have ended: rows by column of tables `channels` and `links`; `messages`: by connection and
    first frame, what became of each; `replies` to commands, as `udfs.conversation.history` has them."""

    channels: pa.Table
    links: pa.Table
    messages: pa.Table
    replies: pa.Table


class Sessions:
    """Follows connections. `losses` as for `udfs.conversation.performatives.Chosen`; `keep` as for
    `udfs.conversation.history.Follower`."""

    def __init__(self, losses: tuple[tuple[str, str, str | None], ...], keep: bool = False) -> None:
        self._chosen, self._texts = Chosen(losses), Numbers([""])
        self._roles, self._state = compiled_roles(), new_state()
        self._stored = Stored.empty(carried.PARTS) if keep else None
        # Of connections that go on: how many messages, by session, sender and outcome; which transfers over
        # subscriptions were settled early; the octets of credit that contents use up.
        self._counts = np.zeros(0, COUNT)
        self._completed = np.zeros(0, COMPLETED)
        self._octets = [np.zeros(0, OCTETS)]

    def feed(self, frames: pa.RecordBatch) -> pa.Table | None:
        """Take the next frames, those of a connection together and in order -> the messages that begin in them."""
        states = None
        found = performatives(frames, self._chosen, self._texts)
        if found is not None:
            rows, said = found.rows()
            self._add_octets(frames)
            begun = self._follow(rows) if self._stored is None else self._follow_stored(self._stored, rows)
            if len(begun.messages):
                states = self._states(begun, said, found.frames)
        numbers = self._state.numbers
        if frames.num_rows and numbers[STARTED] and numbers[CONNECTION] != frames["connection_id"][-1].as_py():
            end_connection(self._state)
        return states

    def _follow(self, rows: Rows) -> Ended:
        """Take rows -> the records, of messages those that begin."""
        self._state = with_room(self._state, len(rows.frame_no), len(rows.range_first))
        before = int(self._state.messages.cells[COUNT_CELL])
        nothing = carried.records_of(Stored.empty(carried.PARTS))
        follow_connections(self._state, self._roles, rows, NO_NUMBERS, nothing, nothing)
        records = at_hand(self._state)
        return records._replace(messages=records.messages[before:])

    def _follow_stored(self, stored: Stored, rows: Rows) -> Ended:
        """The same where connections go on."""
        sizes = len(rows.frame_no), len(rows.range_first)
        ids, ends = connections_of(rows.connection_id)
        before = stored.of(ids)
        self._state = with_room(self._state, carried.largest(before) + sizes[0], sizes[1])
        room = carried.room_for(before, *sizes)
        follow_connections(self._state, self._roles, rows, ends, carried.records_of(before), room)
        after = carried.stored_from(ids, room)
        self._stored = Stored.joined([stored.without(ids), after])
        known, count = before.counts["messages"], after.counts["messages"]
        records = ended_of(after)
        return records._replace(messages=records.messages[spread(np.cumsum(count) - count + known, count - known)])

    def finish(self) -> None:
        """There are no more frames."""
        end_connection(self._state)

    def ended(self, goes_on: Integers) -> EndedSessions | None:
        """What there is of connections that have ended, of all but `goes_on`; None if there is nothing."""
        records = self._ended(goes_on)
        if not len(records.sessions):
            return None
        octets = self._octets_of(records, goes_on)
        outcomes = concluded(records)
        begins = SessionPlaces(records.sessions)
        outcomes = outcomes._replace(completed=joined_settled(begins.settled(self._completed), outcomes.completed))
        counts = _counted(records, outcomes, records.messages["command"] == 0)
        begins.add(self._counts, counts)
        self._counts = self._counts[np.isin(self._counts["connection"], goes_on)]
        self._completed = self._completed[np.isin(self._completed["connection"], goes_on)]
        return EndedSessions(
            _channels(records, counts, self._texts),
            _links(records, outcomes, octets, self._texts),
            _messages(records, outcomes, self._texts),
            _replies(records, outcomes),
        )

    def _ended(self, goes_on: Integers) -> Ended:
        if self._stored is None:
            return taken(self._state)
        over = self._stored.without(goes_on)
        self._stored = self._stored.at(np.flatnonzero(np.isin(self._stored.ids, goes_on)))
        records = ended_of(over)
        there = np.flatnonzero(over.counts["numbers"] > 0)
        numbers = over.at(there).parts["numbers"].reshape(-1, carried.CELLS)
        for field, cell in (("client_hidden", HIDDEN_CLIENT), ("server_hidden", HIDDEN_SERVER)):
            records.sessions[field] = np.repeat(numbers[:, cell], over.counts["sessions"][there])
        return records

    @property
    def event_bytes(self) -> int:
        """Of the events that are kept."""
        events = self._state.events.cells[COUNT_CELL] if self._stored is None else len(self._stored.parts["events"])
        return int(events) * EVENT.itemsize

    def _open(self) -> tuple[Ended, Integers]:
        """The records of connections that go on; which of these have transactions."""
        if self._stored is None:
            numbers = self._state.numbers
            ids = numbers[CONNECTION : CONNECTION + 1]
            return at_hand(self._state), ids[:1] if numbers[TRANSACTIONS] else ids[:0]
        there = self._stored.counts["numbers"] > 0
        numbers = self._stored.parts["numbers"].reshape(-1, carried.CELLS)
        return ended_of(self._stored), self._stored.ids[there][numbers[:, TRANSACTIONS] > 0]

    def _keep(self, name: str, chosen: NDArray[np.bool_]) -> None:
        """Only the chosen records of connections that go on."""
        if self._stored is None:
            kept(getattr(self._state, name), chosen)
        else:
            self._stored = self._stored.kept(name, chosen)

    def settled_early(self) -> tuple[pa.Table | None, Frames, Frames]:
        """What became of messages of connections that go on, as in `EndedSessions`, of those for which nothing that is
        said later changes that; frames of the other messages, and of commands that may still be answered. To be called
        when nothing is left of connections that have ended. In a connection with transactions all messages wait for its
        end."""
        records, transactional = self._open()
        messages = records.messages
        command = messages["command"] == 1
        waits = np.isin(messages["connection"], transactional)
        if waits.all():
            return None, _frames(messages[~command]), _frames(messages[command])
        outcomes = concluded(records)
        final = outcomes.final & _links_are_known(records) & ~waits
        outcomes = outcomes._replace(final=final)
        self._add_counts(records, outcomes, final)
        own = ~np.isin(outcomes.completed.connection, transactional)
        completed = Settled(*(column[own] for column in outcomes.completed))
        found = _messages(records, outcomes, self._texts).filter(pa.array(final))
        waiting, commands = _frames(messages[~final & ~command]), _frames(messages[command])
        needed = still_needed(records, outcomes) | np.isin(records.events["connection"], transactional)
        self._completed = np.concatenate([self._completed, SessionPlaces(records.sessions).apart(completed)])
        self._keep("messages", ~final)
        self._keep("events", needed)
        return found, waiting, commands

    def give_up(self, frames: Frames) -> pa.Table | None:
        """Nothing more will be known of these messages: what is known of them, as in `EndedSessions`. Of those that are
        not settled the outcome is not known."""
        records = self._open()[0]
        gone = frames.among(records.messages["connection"], records.messages["frame_no"])
        if not gone.any():
            return None
        unsettled, unknown = (semantics.OUTCOMES.index(name) + 1 for name in ("unsettled", "unknown"))
        outcomes = concluded(records)
        outcomes = outcomes._replace(outcome=np.where(outcomes.outcome == unsettled, unknown, outcomes.outcome))
        self._add_counts(records, outcomes, gone)
        found = _messages(records, outcomes, self._texts).filter(pa.array(gone))
        events = records.events
        given_up = frames.among(events["connection"], events["frame_no"])
        self._keep("events", about(events, (events["opens"] == 1) & ~given_up))
        self._keep("messages", ~gone)
        return found

    def _add_counts(self, records: Ended, outcomes: Outcomes, chosen: NDArray[np.bool_]) -> None:
        """Count the chosen messages of connections that go on."""
        begins, counts = SessionPlaces(records.sessions), _counted(records, outcomes, chosen)
        begins.add(self._counts, counts)
        self._counts = begins.counts(counts)

    def put(self, ids: Integers, writer: Writer) -> None:
        """Write what is known of these connections, which stay; there is none that has ended."""
        assert self._stored is not None
        put_stored(self._stored.of(ids), carried, self._texts, writer)
        for records in (self._counts, self._completed, np.concatenate(self._octets)):
            put_records(records, ids, writer)

    def take(self, ids: Integers, reader: Reader) -> None:
        """What `put` wrote of connections of which nothing is known."""
        assert self._stored is not None
        self._stored = Stored.joined([self._stored, take_stored(ids, carried, self._texts, reader)])
        counts, completed, octets = (reader.take_counted(kind)[0] for kind in (COUNT, COMPLETED, OCTETS))
        self._counts = np.concatenate([self._counts, counts])
        self._completed = np.concatenate([self._completed, completed])
        self._octets.append(octets)

    def forget_texts(self, most: int = MOST_TEXTS) -> None:
        """Texts that only connections before had are forgotten, where there are more than `most`."""
        if len(self._texts.texts) <= most:
            return
        stored, texts, self._texts = self._stored, self._texts, Numbers([""])
        if stored is not None:
            self._stored = with_other_numbers(stored, carried, texts, self._texts)
            return
        none = Stored.empty(carried.PARTS).of(self._state.numbers[CONNECTION : CONNECTION + 1].copy())
        used = [int(getattr(self._state, name).cells[COUNT_CELL]) for name in KINDS]
        room = carried.room_for(none, max(*used, int(self._state.found_by.used[0])), 0)
        save_connection(self._state, room)
        stored = with_other_numbers(carried.stored_from(none.ids, room), carried, texts, self._texts)
        load_connection(self._state, carried.records_of(stored))

    def _states(self, begun: Ended, said: dict[str, pa.Array], frames: pa.RecordBatch) -> pa.Table:
        messages = begun.messages[begun.messages["command"] == 0]
        sessions = begun.sessions[messages["session"]]
        link = np.where(messages["link"] == NONE, 0, messages["link"])
        rows = pa.array(messages["row"])
        of_links = {}
        for field in ("name", "queue"):
            numbers = begun.links[link][field] if len(begun.links) else np.zeros(len(link))
            of_links[field] = self._texts.column(np.where(messages["link"] == NONE, 0, numbers).astype(np.int64))
        own = {
            name: said[name].take(rows)
            for name in ("destination", "delivery_tag", "message_format", "resume", "acquire_mode")
        }
        to_destination = pa.array(is_among(frames["name"], *names_with("on_destination"))).take(rows)
        by_client = pa.array(messages["sender"] == CLIENT)
        nothing, no_truth = pa.scalar(None, pa.string()), pa.scalar(None, pa.bool_())
        return pa.table(
            {
                "connection_id": messages["connection"],
                "frame_no": messages["frame_no"],
                "version": frames["version"].cast(pa.string()).take(rows),
                "channel": sessions["channel"],
                "channel_life": sessions["life"],
                "operation": _OPERATIONS.take(pa.array(messages["sender"])),
                "exchange": pc.if_else(
                    pc.and_(to_destination, by_client), pc.fill_null(own["destination"], ""), nothing
                ),
                "queue": of_links["queue"],
                "link": pc.if_else(
                    to_destination, pc.if_else(by_client, nothing, own["destination"]), of_links["name"]
                ),
                "browsed": pc.if_else(by_client, no_truth, pc.equal(own["acquire_mode"], semantics.NOT_ACQUIRED)),
                "delivery_tag_hex": hexed(own["delivery_tag"]),
                "delivery_id": pa.array(messages["number"], mask=messages["number"] == NONE),
                "message_format": own["message_format"],
                "resumed": pc.if_else(to_destination, pa.scalar(None, pa.bool_()), pc.fill_null(own["resume"], False)),
            }
        )  # fmt: skip

    def _add_octets(self, frames: pa.RecordBatch) -> None:
        """How many octets of credit messages use up."""
        counts = is_among(frames["version"], *semantics.COUNTS_OCTETS) & is_among(
            frames["frame_type"], *semantics.OCTETS_OF
        )
        counts &= is_there(frames["content_frame_no"]) & is_there(frames["payload_size"])
        if counts.any():
            at = places_where(counts)
            octets = np.zeros(len(at), OCTETS)
            for field, name in OCTETS_OF_FRAMES.items():
                octets[field] = numbers_of(frames[name].take(at))
            self._octets.append(octets)

    def _octets_of(self, records: Ended, goes_on: Integers) -> Integers:
        """Octets that each change of credit uses up; those of connections that go on are kept."""
        used = np.zeros(len(records.changes), np.int64)
        octets = np.concatenate(self._octets)
        self._octets = [octets[np.isin(octets["connection"], goes_on)]]
        at = Index(records.changes["connection"], records.changes["frame_no"]).find(
            octets["connection"], octets["frame_no"]
        )
        np.add.at(used, at[at >= 0], octets["size"][at >= 0])
        return used


COUNTS = (len(SIDES), len(semantics.OUTCOMES) + 1)
_OPERATIONS = pa.array(semantics.OPERATIONS)
_TEXT, _NUMBER, _TRUTH = pa.string(), pa.int64(), pa.bool_()
# Messages that begin, as `feed` gives them.
STATES = pa.schema(
    [
        ("connection_id", _NUMBER), ("frame_no", _NUMBER), ("version", _TEXT), ("channel", _NUMBER),
        ("channel_life", _NUMBER), ("operation", _TEXT), ("exchange", _TEXT), ("queue", _TEXT), ("link", _TEXT),
        ("browsed", _TRUTH), ("delivery_tag_hex", _TEXT), ("delivery_id", _NUMBER), ("message_format", _NUMBER),
        ("resumed", _TRUTH),
    ]
)  # fmt: skip
# `EndedSessions.messages`.
ENDED_MESSAGES = pa.schema(
    [
        ("connection_id", _NUMBER), ("first_frame_no", _NUMBER), ("address", _TEXT), ("browsed", _TRUTH),
        ("outcome", _TEXT), ("settled_ts_ns", _NUMBER), ("settled_frame_no", _NUMBER), ("transaction", _TEXT),
    ]
)  # fmt: skip


class SessionPlaces:
    """The sessions of a connection are numbered from its first one on where it goes on, and from the first one of all
    where its records are looked at."""

    def __init__(self, sessions: NDArray[np.void]) -> None:
        self._sessions = sessions
        self._ids, self._first = np.unique(sessions["connection"], return_index=True)

    def _begins(self, connections: Integers) -> Integers:
        found: Integers = self._first[np.searchsorted(self._ids, connections)]
        return found

    def settled(self, completed: NDArray[np.void]) -> Settled:
        """COMPLETED of these connections, as of all."""
        own = completed[np.isin(completed["connection"], self._ids)]
        columns = {name: np.ascontiguousarray(own[name]) for name in Settled._fields}
        columns["ledger"] = columns["ledger"] + self._begins(own["connection"]) * LEDGERS
        return Settled(**columns)

    def apart(self, settled: Settled) -> NDArray[np.void]:
        """The reverse."""
        completed = np.zeros(len(settled.connection), COMPLETED)
        for name, column in settled._asdict().items():
            completed[name] = column
        completed["ledger"] -= self._begins(settled.connection) * LEDGERS
        return completed

    def add(self, more: NDArray[np.void], counts: Integers) -> None:
        """Add COUNT of these connections to `counts`, by session of all, sender and outcome."""
        own = more[np.isin(more["connection"], self._ids)]
        at = self._begins(own["connection"]) + own["session"], own["sender"], own["outcome"]
        np.add.at(counts, at, own["count"])

    def counts(self, counts: Integers) -> NDArray[np.void]:
        """COUNT of these connections."""
        session, sender, outcome = np.nonzero(counts)
        found = np.zeros(len(session), COUNT)
        found["connection"] = self._sessions["connection"][session]
        found["session"] = session - self._begins(found["connection"])
        found["sender"], found["outcome"], found["count"] = sender, outcome, counts[session, sender, outcome]
        return found


def joined_settled(first: Settled, then: Settled) -> Settled:
    """The messages of both."""
    return Settled(*(np.concatenate(columns) for columns in zip(first, then, strict=True)))


def _frames(messages: NDArray[np.void]) -> Frames:
    return Frames(np.ascontiguousarray(messages["connection"]), np.ascontiguousarray(messages["frame_no"]))


def _known(values: Integers) -> pa.Array:
    return pa.array(values, mask=values == NONE)


def _timestamp(values: Integers) -> pa.Array:
    return pa.array(np.where(values == NONE, 0, values) // 1000, mask=values == NONE).cast(TIMESTAMP)


def _words(kind: str, numbers: Integers) -> pa.Array:
    return _TEXTS[kind].take(pa.array(numbers))


def _error_texts(records: NDArray[np.void], texts: Numbers) -> pa.Array:
    """Condition and description, as far as they are there; null where neither is."""
    condition, description = (texts.column(records[name]) for name in ("condition", "description"))
    text = pc.coalesce(pc.binary_join_element_wise(condition, description, ": "), condition, description)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _links_are_known(records: Ended) -> NDArray[np.bool_]:
    """Of messages: whether nothing more is said of their link that is shown of them."""
    links, at = records.links, records.messages["link"]
    known = (links["known"] == 0) | (links["kind"] == SUBSCRIPTION)
    known |= (links["client_attached"] == 1) & (links["server_attached"] == 1)
    found: NDArray[np.bool_] = (at == NONE) | np.append(known, True)[at]
    return found


def _counted(records: Ended, outcomes: Outcomes, chosen: NDArray[np.bool_]) -> Integers:
    """How many of the chosen messages there are by session, sender and outcome."""
    counts = np.zeros((len(records.sessions), *COUNTS), np.int64)
    messages = records.messages[chosen]
    np.add.at(counts, (messages["session"], messages["sender"], outcomes.outcome[chosen]), 1)
    return counts


def _channels(records: Ended, counts: Integers, texts: Numbers) -> pa.Table:
    sessions = records.sessions

    def count(side: int, names: tuple[str, ...]) -> pa.Array:
        numbers = [semantics.OUTCOMES.index(name) + 1 for name in names]
        return pa.array(counts[:, side, numbers].sum(axis=1))

    code = np.where(sessions["reason_code"] != NONE, sessions["reason_code"], sessions["detach_code"])
    columns = {
        "connection_id": pa.array(sessions["connection"]),
        "channel": pa.array(sessions["channel"]),
        "channel_life": pa.array(sessions["life"]),
        "session_name": texts.column(sessions["name"]),
        "remote_channel": _known(sessions["remote_channel"]),
        "opened_ts": _timestamp(sessions["opened_ns"]),
        "closed_ts": _timestamp(sessions["closed_ns"]),
        "close_initiator": _SIDES.take(_known(sessions["close_sender"])),
        "close_code": _known(code),
        "close_text": _error_texts(sessions, texts),
        "mode": pc.fill_null(_words("modes", sessions["mode"]), "none"),
        "incoming_window": _known(sessions["incoming_window"]),
        "outgoing_window": _known(sessions["outgoing_window"]),
        "published": count(CLIENT, semantics.OUTCOMES),
        "delivered": count(SERVER, semantics.OUTCOMES),
        "unsettled": pc.add(count(CLIENT, ("unsettled",)), count(SERVER, ("unsettled",))),
        **{name: count(SIDES.index(side), names) for name, (side, names) in semantics.COUNTED.items()},
    }
    return pa.table(columns).filter(pa.array(sessions["listed"] == 1))


def _messages(records: Ended, outcomes: Outcomes, texts: Numbers) -> pa.Table:
    """What became of messages, and what is known of their links in the end."""
    messages, links = records.messages, records.links
    address, browsed = np.zeros(len(messages), np.int64), np.full(len(messages), NONE)
    on_link = messages["link"] != NONE
    at = messages["link"][on_link]
    address[on_link] = _first(links, "server", "client")[at]
    # The side that sends decides on the source.
    browsed[on_link] = _of_sender(links, "copies")[at]
    browsed[messages["sender"] == CLIENT] = NONE
    return pa.table(
        {
            "connection_id": messages["connection"],
            "first_frame_no": messages["frame_no"],
            "address": texts.column(address),
            "browsed": pa.array(browsed == 1, mask=browsed == NONE),
            "outcome": _words("outcomes", outcomes.outcome),
            "settled_ts_ns": _known(outcomes.settled_ns),
            "settled_frame_no": _known(outcomes.settled_frame_no),
            "transaction": _words("transactions", outcomes.transaction),
        }
    )


def _replies(records: Ended, outcomes: Outcomes) -> pa.Table:
    """Commands to transaction coordinators that were answered."""
    answered = outcomes.reply_frame_no != NONE
    messages = records.messages[answered]
    times = messages["ts_ns"], outcomes.reply_ns[answered]
    return pa.table(
        {
            "connection_id": messages["connection"],
            "frame_no": messages["frame_no"],
            "reply_frame_no": outcomes.reply_frame_no[answered],
            "reply_name": pa.repeat(semantics.ANSWERS_COMMAND, len(messages)),
            "reply_latency_ns": elapsed(*(pa.array(np.ascontiguousarray(ns)) for ns in times)),
        }
    )


def _of_sender(links: NDArray[np.void], name: str, unknown: int = NONE) -> Integers:
    """What the side that sends over a link says of its source, else what the other one asks for."""
    sends = links["kind"] == SENDER
    own, other = (np.where(sends, links[f"{a}_{name}"], links[f"{b}_{name}"]) for a, b in (SIDES, SIDES[::-1]))
    said: Integers = np.where(own != unknown, own, other)
    return said


def _one_of(words: tuple[str, ...], numbers: Integers) -> pa.Array:
    """The words by number; null where there is none of that number."""
    return pa.array(words).take(pa.array(numbers, mask=~np.isin(numbers, range(len(words)))))


def _first(links: NDArray[np.void], one: str, other: str) -> Integers:
    """What a side says of the address, else what the other one says: the far end of a client's link is the server's,
    which knows where a dynamic node is."""
    addresses: Integers = np.where(links[f"{one}_address"] > 0, links[f"{one}_address"], links[f"{other}_address"])
    return addresses


def _links(records: Ended, outcomes: Outcomes, octets: Integers, texts: Numbers) -> pa.Table:
    links = records.links
    session = records.sessions[links["session"]]
    of_1_0, known = links["kind"] != SUBSCRIPTION, links["known"] == 1
    closed_ns = np.where(links["closing_ns"] != NONE, links["closing_ns"], session["closed_ns"])
    snd_mode, rcv_mode = _modes(links)
    snd_mode = pc.if_else(pa.array(of_1_0 & known), snd_mode, pa.scalar(None, pa.string()))
    rcv_mode = pc.if_else(pa.array(of_1_0 & known), rcv_mode, pa.scalar(None, pa.string()))
    no_ack = pc.if_else(
        pa.array(of_1_0), pc.equal(snd_mode, "settled"), pa.array(links["no_ack"] == 1, mask=links["no_ack"] == NONE)
    )
    # Without a detach a link of 1.0 ends as its session does.
    failing = np.where(links["closing_ns"] == NONE, session["failed"], links["failed"]) == 1
    by_session = pa.array(links["closing_ns"] == NONE)
    error = pc.if_else(by_session, _error_texts(session, texts), _error_texts(links, texts))
    no_credit_ns = np.where(of_1_0, _starved(links, session, closed_ns), _idle(records, outcomes, octets))
    flow_mode = np.where(
        ~of_1_0 & known & (links["flow_mode"] == NONE), semantics.DEFAULT_FLOW_MODE, links["flow_mode"]
    )
    credit = np.where(links["unlimited"] == 1, NO_LIMIT, links["credit"])
    credit = np.where(~of_1_0 & known & (credit == NONE), 0, credit)
    credit = np.where(of_1_0 & (links["initial_count"] == NONE), NONE, credit)
    handle = np.where(links["client_handle"] != NONE, links["client_handle"], links["server_handle"])
    address = np.where(of_1_0, _first(links, "server", "client"), 0)
    columns = {
        "connection_id": pa.array(links["connection"]),
        "channel": pa.array(session["channel"]),
        "channel_life": pa.array(session["life"]),
        "kind": _words("kinds", links["kind"]),
        "name": texts.column(links["name"]),
        "handle": _known(handle),
        "address": texts.column(address),
        "queue": texts.column(links["queue"]),
        "snd_settle_mode": snd_mode,
        "rcv_settle_mode": rcv_mode,
        "acquire_mode": _one_of(semantics.ACQUIRE_MODES, links["acquire_mode"]),
        "distribution_mode": _one_of(semantics.DISTRIBUTION_MODES, _of_sender(links, "copies")),
        "filters": texts.column(_of_sender(links, "filters", unknown=0)),
        "no_ack": no_ack,
        "exclusive": pa.array(links["exclusive"] == 1, mask=links["exclusive"] == NONE),
        "opened_ts": _timestamp(links["opened_ns"]),
        "closed_ts": _timestamp(closed_ns),
        "error": pc.if_else(pa.array(failing & of_1_0), error, pa.scalar(None, pa.string())),
        "flow_mode": _one_of(semantics.FLOW_MODES, flow_mode),
        "credit": _known(credit),
        "transfers": pa.array(links["transfers"]),
        "no_credit_ns": _known(no_credit_ns),
    }
    refused = np.isin(_commands(links["session"], links["command_id"]), _refused(records))
    refused &= links["command_id"] != NONE
    listed = (known & ~refused) | (links["transfers"] > 0)
    return pa.table(columns).filter(pa.array(listed))


def _modes(links: NDArray[np.void]) -> tuple[pa.Array, pa.Array]:
    """How the sender and the receiver of each link settle: as the side says that decides it, else as the other says."""
    client_sends = links["kind"] == SENDER
    found = []
    for name, modes, default, client_decides in (
        ("snd_mode", semantics.SND_SETTLE_MODES, semantics.DEFAULT_SND_SETTLE_MODE, client_sends),
        ("rcv_mode", semantics.RCV_SETTLE_MODES, semantics.DEFAULT_RCV_SETTLE_MODE, ~client_sends),
    ):
        decides = np.where(client_decides, links["client_attached"], links["server_attached"]) == 1
        own = np.where(client_decides, links[f"client_{name}"], links[f"server_{name}"])
        others = np.where(client_decides, links[f"server_{name}"], links[f"client_{name}"])
        mode = np.where(decides, own, others)
        mode = np.where(mode == NONE, default, mode)
        found.append(pa.array(modes).take(pa.array(mode, mask=~np.isin(mode, range(len(modes))))))
    return found[0], found[1]


def _starved(links: NDArray[np.void], session: NDArray[np.void], closed_ns: Integers) -> Integers:
    """Time in which the sender of a link of 1.0 had no credit; NONE where bytes are missing."""
    unknown_count = links["initial_count"] == NONE
    waited = np.where(unknown_count, links["last_ns"] - links["opened_ns"], links["starved_ns"])
    until = np.where(closed_ns != NONE, closed_ns, session["last_listed_ns"])
    rest = np.where((links["starves"] == 1) | unknown_count, np.maximum(until - links["last_ns"], 0), 0)
    whole = (links["known"] == 1) & (links["losses"] == session["listed_losses"])
    starved: Integers = np.where(whole, waited + rest, NONE)
    return starved


def _idle(records: Ended, outcomes: Outcomes, octets: Integers) -> Integers:
    """Time in which there was no credit for a subscription; NONE where bytes are missing."""
    changes, completed = records.changes, outcomes.completed
    found = np.full(len(records.links), NONE)
    if not len(changes):
        return found
    sent = changes["sent"] == 1
    used = np.where(sent, octets, 0)
    end = Places(completed.ledger, completed.frame_no).find(
        changes["session"] * LEDGERS + COMPLETIONS + SERVER, changes["frame_no"]
    )
    back = sent & (end != NONE)
    end = end[back]
    session = records.sessions[changes["session"]]
    until_ns = np.where(session["closed_ns"] != NONE, session["closed_ns"], session["last_ns"])
    nothing = np.zeros(len(end), np.int64)
    columns = {
        "link": (changes["link"], changes["link"][back]),
        "frame_no": (changes["frame_no"], completed.settled_frame_no[end]),
        "ts_ns": (changes["ts_ns"], completed.settled_ns[end]),
        "messages": (changes["messages"], nothing + 1),
        "octets": (np.where(sent, -used, changes["octets"]), used[back]),
        "sent_frame_no": (np.full(len(changes), NONE), changes["frame_no"][back]),
        "zeroes": (changes["zeroes"], nothing),
        "flow_mode": (changes["flow_mode"], nothing + NONE),
        "cancels": (changes["cancels"], nothing),
        "until_ns": (until_ns, until_ns[back]),
    }
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    order = np.lexsort([whole["frame_no"], whole["link"]])
    idle = np.zeros(len(found), np.int64)
    idle_times(Changes(*(fixed(whole[name][order]) for name in Changes._fields)), idle)
    # A subscription begins with its first change.
    first = np.full(len(found), np.iinfo(np.int64).max)
    np.minimum.at(first, changes["link"], changes["losses"])
    own = np.isin(np.arange(len(found)), changes["link"]) & (
        records.sessions["losses"][records.links["session"]] <= first
    )
    return np.where(own, idle, NONE)


def _commands(sessions: Integers, commands: Integers) -> Integers:
    named: Integers = (sessions << 33) + commands
    return named


def _refused(records: Ended) -> Integers:
    """Commands that an exception names."""
    return _commands(records.refusals["session"], records.refusals["command_id"])


def with_ends(rows: pa.RecordBatch, ends: pa.Table) -> pa.RecordBatch:
    """Rows of table messages with what became of them, where `ends` (`EndedSessions.messages`) tells."""
    index = Index(numbers_of(ends["connection_id"]), numbers_of(ends["first_frame_no"]))
    at = index.find(numbers_of(rows["connection_id"]), numbers_of(rows["first_frame_no"]))
    if not (at >= 0).any():
        return rows
    became = {name: picked(ends[name], at) for name in ends.column_names[2:]}
    became["settle_latency_ns"] = elapsed(rows["ts_ns"], became["settled_ts_ns"])
    known = pa.array(at >= 0)
    # A link without an address leaves that to each message.
    for name in ("address", "browsed"):
        became[name] = pc.coalesce(became[name], rows[name])
    columns = [
        pc.if_else(known, became[name].cast(rows.schema.field(name).type), rows[name]) if name in became else rows[name]
        for name in rows.schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
