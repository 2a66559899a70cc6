"""Transactions of connections and their ends, from the records of connections.

Names of transactions are reused, so a transaction ends at the next end of its name (1.0 core specification, 4.3; 0-10
specification, classes tx, dtx).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.conversation.sessions.events import FRAME_BITS, KEY_BITS, picked, places_in, settled_by
from codec.conversation.sessions.state import ACKED, CONFIRMED, MAPS, NACKED, NONE, REJECTED, REPORTS, SessionRecords
from codec.conversation.settlement import COMMITTED, NO_RESULT, ROLLED_BACK, UNKNOWN
from codec.conversation.states import numbered

Integers = NDArray[np.int64]
NO_PLACES = np.zeros(0, np.int64)


class TransactionEnds(NamedTuple):
    """Requests to end transactions, by `place` (transaction and frame), int64 (n,); `result` and `ended_ns` NONE
    without an answer; `final`: NONE if later frames may change it; `client_hidden`: losses of the client before each.
    `by`, `declared`: places in `SessionRecords.tx_ends` of what ends the transaction, and, if that is the end of its
    control link or session, of its declaration, else NONE."""

    place: Integers
    ended_ns: Integers
    asked_ns: Integers
    result: Integers
    final: Integers
    client_hidden: Integers
    by: Integers
    declared: Integers


class Transactions:
    """The transactions of connections and their ends. By record of `tx_ends`: `commands`, the place of the message that
    declared it, else NONE; `open`, whether it is a request without a final answer, or was declared and not ended."""

    def __init__(self, records: SessionRecords) -> None:
        tx_ends = records.tx_ends
        self._connections = np.unique(records.sessions["connection"])
        self._names = self.commands = NO_PLACES
        self.open = np.zeros(len(tx_ends), bool)
        self.ends = TransactionEnds(*[NO_PLACES] * len(TransactionEnds._fields))
        if not len(tx_ends):
            return
        events = records.events[np.isin(records.events["map_no"], tx_ends["map_no"])]
        self.commands = _declaring(records, events)
        requests = np.flatnonzero(tx_ends["result"] != NO_RESULT)
        asked = tx_ends[requests]
        answer, when = _answers(asked, events, events["opens"] == 0)
        # A command of 0-10 may be completed before its result arrives: then the result counts.
        reports, on_branch = events["waits"] == REPORTS, asked["on_branch"] == 1
        decided, decided_ns = _answers(asked, events, reports & np.isin(events["outcome"], (UNKNOWN, NACKED, ACKED)))
        decided *= on_branch
        answer, when = np.where(decided == 0, answer, decided), np.where(decided == 0, when, decided_ns)
        result = np.select([answer == CONFIRMED, answer == ACKED], [asked["result"], COMMITTED], ROLLED_BACK)
        result = np.where(np.isin(answer, (CONFIRMED, REJECTED, NACKED, ACKED)), result, NONE)
        # The result of a command on a branch is its last answer; an exception ends its session, not the branch.
        reported = _answers(asked, events, reports)[1]
        refused, refused_ns = _answers(asked, events, ~reports & (events["outcome"] == NACKED))
        fails = on_branch & (refused == NACKED)
        final = np.where(on_branch, np.where(fails, refused_ns, reported), when)
        self.open[requests] = final == NONE
        names = self._named(tx_ends["connection"], tx_ends["key"])
        self._names = np.unique(names[tx_ends["key"] != 0])
        frames = (np.searchsorted(self._names, names) << FRAME_BITS) | tx_ends["frame_no"]
        declared, closing = self._closed(records, requests, frames)
        of, by = np.concatenate([requests, declared]), np.concatenate([requests, closing])
        done = (tx_ends["key"][of] != 0) & ~np.append(fails, np.zeros(len(closing), bool))
        places = (frames[of] >> FRAME_BITS << FRAME_BITS) | tx_ends["frame_no"][by]
        order = np.flatnonzero(done)[np.argsort(places[done])]
        self.ends = TransactionEnds(
            places[order], np.concatenate([when, tx_ends["ts_ns"][closing]])[order], tx_ends["ts_ns"][by][order],
            np.concatenate([result, np.full(len(closing), ROLLED_BACK)])[order],
            np.concatenate([final, tx_ends["ts_ns"][closing]])[order], tx_ends["client_hidden"][by][order], by[order],
            np.concatenate([np.full(len(requests), NONE), declared])[order],
        )  # fmt: skip

    def following(self, records: NDArray[np.void]) -> Integers:
        """The next end of the transaction of each record, as a place of `ends`; NONE if there is none, no answer to it,
        or an earlier one may have been lost: the name may be reused after it."""
        at = self._next(records)
        known = (at != NONE) & (picked(self.ends.result, at) != NONE)
        known &= picked(self.ends.client_hidden, at) == records["client_hidden"]
        found: Integers = np.where(known, at, NONE)
        return found

    def undecided(self, records: NDArray[np.void]) -> NDArray[np.bool_]:
        """The records whose transaction has ended, and nothing will tell how."""
        at = self._next(records)
        found: NDArray[np.bool_] = (picked(self.ends.final, at) != NONE) & (self.following(records) == NONE)
        return found

    def ending(self, records: NDArray[np.void]) -> NDArray[np.bool_]:
        """Which of `tx_ends` tell how the transactions of these records end."""
        at = self._next(records)
        found = np.zeros(len(self.open) + 1, bool)
        for places in (self.ends.by, self.ends.declared):
            found[picked(places, at)] = True
        return found[:-1]

    def _next(self, records: NDArray[np.void]) -> Integers:
        """The next end of the transaction of each record, answered or not."""
        if not len(self.ends.place):
            return np.full(len(records), NONE)
        keys = records["key"]
        names = self._named(records["connection"], keys)
        name = np.minimum(np.searchsorted(self._names, names), len(self._names) - 1)
        at = np.searchsorted(self.ends.place, (name << FRAME_BITS) | records["frame_no"])
        last = np.minimum(at, len(self.ends.place) - 1)
        known = (keys != 0) & (self._names[name] == names) & (at < len(self.ends.place))
        found: Integers = np.where(known & (self.ends.place[last] >> FRAME_BITS == name), at, NONE)
        return found

    def _named(self, connections: Integers, keys: Integers) -> Integers:
        named: Integers = (np.searchsorted(self._connections, connections) << KEY_BITS) + keys + (1 << (KEY_BITS - 1))
        return named

    def _closed(self, records: SessionRecords, requests: Integers, frames: Integers) -> tuple[Integers, Integers]:
        """The declarations of transactions that end with their control links, or sessions, and what closes each link,
        its session or its connection first. `frames`: transaction and frame of each record."""
        tx_ends = records.tx_ends
        of_session = tx_ends["number"] == NONE
        begun = (self.commands != NONE) | of_session
        declared = np.flatnonzero(begun & (tx_ends["result"] == NO_RESULT) & (tx_ends["key"] != 0))
        closings = np.flatnonzero((tx_ends["result"] == NO_RESULT) & (tx_ends["key"] == 0))
        link, connection = picked(records.messages["link"], self.commands[declared]), tx_ends["connection"]
        begun_in = np.where(of_session[declared], tx_ends["map_no"][declared] // MAPS, NONE)
        begun_in = np.where(link == NONE, begun_in, picked(records.links["session"], link))
        closes, session = tx_ends["link"][closings], tx_ends["map_no"][closings] // MAPS
        never = len(tx_ends)
        at = np.full(len(declared), never)
        for which, owners, own in (
            (closes != NONE, closes, link),
            ((closes == NONE) & (session != NONE), session, begun_in),
            (session == NONE, *(np.searchsorted(self._connections, connection[of]) for of in (closings, declared))),
        ):
            known = np.append(closings[which], never)
            keys = (owners[which] << FRAME_BITS) | tx_ends["frame_no"][closings[which]]
            order = np.append(np.argsort(keys), len(keys))
            place = np.searchsorted(np.sort(keys), (own << FRAME_BITS) | tx_ends["frame_no"][declared])
            first = known[order[place]]
            same = np.append(owners[which], NONE)[order[place]] == own
            at = np.minimum(at, np.where(same, first, never))
        # One whose end was requested before is not ended by its link.
        asked = np.sort(frames[requests])
        place = np.searchsorted(asked, frames[declared])
        request = np.append(asked, NONE)[place]
        discharged = request >> FRAME_BITS == frames[declared] >> FRAME_BITS
        closed_at = np.append(tx_ends["frame_no"], (1 << FRAME_BITS) - 1)[at]
        discharged &= (request & ((1 << FRAME_BITS) - 1)) < closed_at
        self.open[declared] = ~discharged & (at == never)
        ends = ~discharged & (at < never)
        return declared[ends], at[ends]


def _declaring(records: SessionRecords, events: NDArray[np.void]) -> Integers:
    """The message of the command that each declaration answers: the latest one with its number that was not settled
    before; NONE for other records."""
    messages, tx_ends = records.messages, records.tx_ends
    commands = np.flatnonzero((messages["command"] == 1) & (messages["link"] != NONE) & (messages["number"] != NONE))
    own = messages[commands]
    maps = own["session"] * MAPS + own["sender"]
    settled = settled_by(events, events["opens"] == 0)
    until = picked(settled.settled_frame_no, places_in(settled, maps, own["frame_no"]))
    number = numbered(np.concatenate([maps, tx_ends["map_no"]]), np.concatenate([own["number"], tx_ends["number"]]))
    keys = (number << FRAME_BITS) | np.concatenate([own["frame_no"], tx_ends["frame_no"]])
    order = np.argsort(keys[: len(own)])
    place = np.searchsorted(keys[: len(own)][order], keys[len(own) :], "right") - 1
    at = np.append(order, NONE)[place]  # NONE, which is -1, is the last one
    answered = (
        (at != NONE) & (tx_ends["number"] != NONE) & (np.append(number[: len(own)], NONE)[at] == number[len(own) :])
    )
    answered &= (picked(until, at) == NONE) | (picked(until, at) >= tx_ends["frame_no"])
    found: Integers = np.where(answered, np.append(commands, NONE)[at], NONE)
    return found


def _answers(
    tx_ends: NDArray[np.void], events: NDArray[np.void], chosen: NDArray[np.bool_]
) -> tuple[Integers, Integers]:
    """The outcome that the chosen events give each request to end a transaction, 0 for none, and when."""
    settled = settled_by(events, chosen)
    at = places_in(settled, tx_ends["map_no"], tx_ends["frame_no"])
    when = np.where(picked(settled.settled_frame_no, at) < 0, NONE, picked(settled.settled_ns, at))
    return np.where(at == NONE, 0, picked(settled.outcome, at)), when
