"""What became of the messages of connections that have ended, and of their transactions.

What is said inside a transaction takes effect when its end was done, and never when that failed; what a client says
counts from when it asked for the end, as if it were said there. Both versions name transactions and use a name again
once a transaction is over, so the end of one is the next end of its name. (1.0 core specification, 4.3; 0-10
specification, classes tx, dtx.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.conversation.sessions.state import (
    ABORTED,
    COMPLETIONS,
    CONFIRMED,
    LEDGERS,
    NACKED,
    NONE,
    PRESETTLED,
    REJECTED,
    SERVER,
    UNKNOWN,
    UNSETTLED,
    Ended,
)
from codec.conversation.settled import settled_at_once
from codec.conversation.settlement import NO_RESULT, ROLLED_BACK, Settled

Integers = NDArray[np.int64]
FRAME_BITS = 38
KEY_BITS = 34  # keys of transactions are below 2**33, above -2**33


class Outcomes(NamedTuple):
    """By message, int64 (n,): `outcome` a number of semantics.OUTCOMES; `settled_ns`, `settled_frame_no` -1 where it is
    not known when; `transaction` of codec.conversation.settlement; `reply_frame_no`, `reply_ns` of commands that were
    answered, else -1; `final`: whether nothing that is said later changes that. `completed`: what became of the
    transfers over subscriptions."""

    outcome: Integers
    settled_ns: Integers
    settled_frame_no: Integers
    transaction: Integers
    reply_frame_no: Integers
    reply_ns: Integers
    final: NDArray[np.bool_]
    completed: Settled


class Ends(NamedTuple):
    """Ends of transactions that were asked for, by `place` (transaction and frame), int64 (n,); `result` NONE where
    there is no answer."""

    place: Integers
    ended_ns: Integers
    asked_ns: Integers
    result: Integers


class Places:
    """Finds frames of ledgers among given ones."""

    def __init__(self, ledgers: Integers, frames: Integers) -> None:
        keys = (ledgers << FRAME_BITS) | frames
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def find(self, ledgers: Integers, frames: Integers) -> Integers:
        """Where each is among the given ones; -1 where it is not."""
        if not len(self._keys):
            return np.full(len(frames), NONE)
        keys = (ledgers << FRAME_BITS) | frames
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        found: Integers = np.where(self._keys[at] == keys, self._order[at], NONE)
        return found


def concluded(records: Ended) -> Outcomes:
    """What became of the messages."""
    messages, events = records.messages, records.events
    transactions = _Transactions(records)
    end = transactions.following(events["connection"], events["key"], events["frame_no"])
    takes_effect = (events["waits"] == 0) | (events["key"] == 0) | (end != NONE)
    columns = {name: np.ascontiguousarray(events[name][takes_effect]) for name in _OF_EVENTS}
    end = end[takes_effect]
    columns["effective_ns"] = np.where(end != NONE, _picked(transactions.ends.asked_ns, end), columns["effective_ns"])
    columns["transaction"] = np.where(end != NONE, _picked(transactions.ends.result, end), NO_RESULT)
    settled = settled_at_once(columns)
    of_completions = settled.ledger % LEDGERS >= COMPLETIONS
    completed = Settled(*(column[of_completions] for column in settled))
    end = transactions.following(messages["connection"], messages["key"], messages["frame_no"])
    ends = Ends(NO_PLACES, *(_picked(column, end) for column in transactions.ends[1:]))
    at = Places(settled.ledger, settled.frame_no).find(
        messages["session"] * LEDGERS + messages["sender"], messages["frame_no"]
    )
    return _of_messages(records, settled, at, ends, end != NONE)._replace(completed=completed)


_OF_EVENTS = ("connection", "ledger", "frame_no", "opens", "first", "last", "outcome", "final", "effective_ns")
NO_PLACES = np.zeros(0, np.int64)


def _picked(values: Integers, at: Integers) -> Integers:
    """The values at these places; NONE where that is NONE."""
    if not len(values):
        return np.full(len(at), NONE)
    found: Integers = np.where(at == NONE, NONE, values[at])
    return found


class _Transactions:
    """The transactions of connections, and how they ended."""

    def __init__(self, records: Ended) -> None:
        self._connections = np.unique(records.sessions["connection"])
        asks, events = records.asks, records.events
        answers = np.isin(events["ledger"], asks["ledger"]) if len(asks) else np.zeros(len(events), bool)
        columns = {name: np.ascontiguousarray(events[name][answers]) for name in _OF_EVENTS}
        columns["transaction"] = np.full(int(answers.sum()), NO_RESULT)
        settled = settled_at_once(columns) if len(asks) else None
        if settled is None:
            self.ends = Ends(NO_PLACES, NO_PLACES, NO_PLACES, NO_PLACES)
            self._names = NO_PLACES
            return
        at = Places(settled.ledger, settled.frame_no).find(asks["ledger"], asks["frame_no"])
        answer = np.where(at == NONE, 0, _picked(settled.outcome, at))
        when = np.where(_picked(settled.settled_frame_no, at) < 0, NONE, _picked(settled.settled_ns, at))
        done = asks["key"] != 0
        asks, answer = asks[done], answer[done]
        names = self._named(asks["connection"], asks["key"])
        self._names = np.unique(names)
        places = (np.searchsorted(self._names, names) << FRAME_BITS) | asks["frame_no"]
        order = np.argsort(places)
        result = np.where(answer == CONFIRMED, asks["result"], ROLLED_BACK)
        result = np.where(np.isin(answer, (CONFIRMED, REJECTED, NACKED)), result, NONE)
        self.ends = Ends(places[order], when[done][order], asks["ts_ns"][order], result[order])

    def following(self, connections: Integers, keys: Integers, frames: Integers) -> Integers:
        """The next end of each transaction, at a frame or behind it, as a place of `ends`; NONE where there is none, or
        it was not answered: the name may be used again behind it."""
        if not len(self._names):
            return np.full(len(keys), NONE)
        names = self._named(connections, keys)
        name = np.minimum(np.searchsorted(self._names, names), len(self._names) - 1)
        at = np.searchsorted(self.ends.place, (name << FRAME_BITS) | frames)
        last = np.minimum(at, len(self.ends.place) - 1)
        known = (keys != 0) & (self._names[name] == names) & (at < len(self.ends.place))
        known &= (self.ends.place[last] >> FRAME_BITS == name) & (self.ends.result[last] != NONE)
        found: Integers = np.where(known, at, NONE)
        return found

    def _named(self, connections: Integers, keys: Integers) -> Integers:
        named: Integers = (np.searchsorted(self._connections, connections) << KEY_BITS) + keys + (1 << (KEY_BITS - 1))
        return named


def _of_messages(
    records: Ended, settled: Settled, at: Integers, ends: Ends, ended: NDArray[np.bool_]
) -> Outcomes:  # fmt: skip
    """`at`: where each message is in `settled`; `ends` of the transactions that messages are in."""
    messages = records.messages
    said = np.where(at == NONE, 0, _picked(settled.outcome, at))
    frame_no = _picked(settled.settled_frame_no, at)
    was_settled = frame_no >= 0
    given = np.where((said == 0) & was_settled, _default_outcomes(records), said)
    in_transaction = messages["key"] != 0
    # One that was only confirmed in a transaction whose end was not seen.
    stands = (given != 0) & ~(in_transaction & ~ended & (given == CONFIRMED))
    no_answer = _unanswered(records)
    outcome = np.where(stands, given, no_answer)
    # What needs no accept is settled as it is sent. That a publish was completed, sooner or later, tells when.
    delivered = messages["sender"] == SERVER
    refused = ~delivered & stands & (given != CONFIRMED)
    outcome = np.where((messages["needs_no_accept"] == 1) & ~refused, PRESETTLED, outcome)
    outcome = np.where(delivered & (messages["readable"] == 0), UNKNOWN, outcome)
    # When something presettled was settled says nothing: it was when it was sent.
    told = stands & was_settled & (said != PRESETTLED)
    # The disposition that settles a command to a coordinator is its reply.
    answered = (messages["command"] == 1) & was_settled & ~np.isin(said, (PRESETTLED, ABORTED))
    settled_ns = np.maximum(_picked(settled.settled_ns, at), ends.ended_ns)
    result = np.where(at == NONE, NO_RESULT, _picked(settled.transaction, at))
    # Another accept may have followed the one that was undone, in a transaction of its own.
    result = np.where(delivered & ~stands & (outcome == UNKNOWN), NO_RESULT, result)
    return Outcomes(
        outcome,
        np.where(told, settled_ns, NONE),
        np.where(told, frame_no, NONE),
        np.where(ended, ends.result, result),
        np.where(answered, frame_no, NONE),
        np.where(answered, _picked(settled.settled_ns, at), NONE),
        (messages["command"] == 0) & (was_settled | (delivered & (messages["needs_no_accept"] == 1))),
        settled,
    )


def still_needed(records: Ended, outcomes: Outcomes) -> NDArray[np.bool_]:
    """Which events say something of messages that are not final, in a connection without transactions: what opens
    them, what was noted of them, and what settled those whose links are not known yet."""
    events = records.events
    opens, ledger = events["opens"] == 1, events["ledger"]
    messages = records.messages[~outcomes.final]
    own = (messages["session"] * LEDGERS + messages["sender"], messages["frame_no"])
    waits = Places(*own).find(ledger, events["frame_no"]) != NONE
    waits |= (ledger % LEDGERS >= COMPLETIONS) & (
        Places(outcomes.completed.ledger, outcomes.completed.frame_no).find(ledger, events["frame_no"]) == NONE
    )
    return about(events, waits & opens)


def about(events: NDArray[np.void], waits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which events say something of those messages whose openings are marked in `waits`: these, and what was noted of
    them."""
    opens, ledger = events["opens"] == 1, events["ledger"]
    ids = np.sort((ledger[waits] << KEY_BITS) | events["first"][waits])
    first = np.searchsorted(ids, (ledger << KEY_BITS) | events["first"], "left")
    last = np.searchsorted(ids, (ledger << KEY_BITS) | events["last"], "right")
    needed: NDArray[np.bool_] = waits | (~opens & (last > first))
    return needed


def _default_outcomes(records: Ended) -> Integers:
    """What a settlement without a state gives to each message: the default outcome of the source of its link, which the
    side that sends decides."""
    links = records.links
    if not len(links):
        return np.full(len(records.messages), UNKNOWN)
    sends = links["kind"] == 1
    sides = [np.where(sends, links[f"client_{name}"], links[f"server_{name}"]) for name in ("has_source", "default")]
    others = np.where(sends, links["server_default"], links["client_default"])
    default = np.where(sides[0] == 1, sides[1], others)
    default = np.where((default == 0) | (links["known"] == 0), UNKNOWN, default)
    at = records.messages["link"]
    found: Integers = np.where(at == NONE, UNKNOWN, default[at])
    return found


def _unanswered(records: Ended) -> Integers:
    """What is said of a message that has no outcome: whether the answer, or the end of its transaction, may be missing,
    later and before its session ended, or was captured before the message."""
    messages = records.messages
    session = records.sessions[messages["session"]]
    closes_later = session["close_frame"] >= messages["frame_no"]
    missing = {}
    for side in ("client", "server"):
        at_end = np.where(closes_later, session[f"close_{side}_hidden"], session[f"{side}_hidden"])
        missing[side] = at_end > messages[f"{side}_hidden"]
    hidden = np.where(messages["sender"] == SERVER, missing["client"], missing["server"])
    ends_later = (messages["key"] != 0) & (session["client_hidden"] > messages["client_hidden"])
    found: Integers = np.where(
        hidden | ends_later | (messages["number"] == NONE) | (messages["named"] == 1), UNKNOWN, UNSETTLED
    )
    return found
