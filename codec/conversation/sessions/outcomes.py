"""Outcomes of messages and transactions, from the records of connections.

A settlement inside a transaction takes effect if the transaction ends successfully; one by the client counts from its
request to end it. Names of transactions are reused, so a transaction ends at the next end of its name (1.0 core
specification, 4.3; 0-10 specification, classes tx, dtx).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.conversation.sessions.state import (
    ABORTED,
    ACKED,
    COMPLETIONS,
    CONFIRMED,
    MAPS,
    NACKED,
    NEW_TX_END,
    NONE,
    PRESETTLED,
    REJECTED,
    SERVER,
    UNKNOWN,
    UNSETTLED,
    SessionRecords,
)
from codec.conversation.settled import settled_at_once
from codec.conversation.settlement import COMMITTED, NO_RESULT, ROLLED_BACK, Settled

Integers = NDArray[np.int64]
FRAME_BITS = 38
KEY_BITS = 34  # keys of transactions are below 2**33, above -2**33


class Outcomes(NamedTuple):
    """By message, int64 (n,): `outcome`, of semantics.OUTCOMES; `settled_ns`, `settled_frame_no`, -1 if unknown;
    `transaction`, of codec.conversation.settlement; `reply_frame_no`, `reply_ns` of answered commands, else -1;
    `final`: no later frame changes them. `completed`: completions of transfers over subscriptions."""

    outcome: Integers
    settled_ns: Integers
    settled_frame_no: Integers
    transaction: Integers
    reply_frame_no: Integers
    reply_ns: Integers
    final: NDArray[np.bool_]
    completed: Settled


class TransactionEnds(NamedTuple):
    """Requests to end transactions, by `place` (transaction and frame), int64 (n,); `result` NONE without an answer;
    `client_hidden`: losses of the client before each."""

    place: Integers
    ended_ns: Integers
    asked_ns: Integers
    result: Integers
    client_hidden: Integers


class Places:
    """An index of frames in unsettled maps."""

    def __init__(self, maps: Integers, frames: Integers) -> None:
        keys = (maps << FRAME_BITS) | frames
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def find(self, maps: Integers, frames: Integers) -> Integers:
        """The place of each in the index; -1 if it is not there."""
        if not len(self._keys):
            return np.full(len(frames), NONE)
        keys = (maps << FRAME_BITS) | frames
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        found: Integers = np.where(self._keys[at] == keys, self._order[at], NONE)
        return found


def outcomes_of(records: SessionRecords) -> Outcomes:
    """The outcomes of all messages."""
    messages, events = records.messages, records.events
    transactions = _Transactions(records)
    end = transactions.following(events)
    takes_effect = (events["waits"] == 0) | (events["key"] == 0) | (end != NONE)
    columns = {name: np.ascontiguousarray(events[name][takes_effect]) for name in _OF_EVENTS}
    end = end[takes_effect]
    columns["effective_ns"] = np.where(end != NONE, _picked(transactions.ends.asked_ns, end), columns["effective_ns"])
    columns["transaction"] = np.where(end != NONE, _picked(transactions.ends.result, end), NO_RESULT)
    settled = settled_at_once(columns)
    unended = _settled_by(events, ~takes_effect)
    of_completions = settled.map_no % MAPS >= COMPLETIONS
    completed = Settled(*(column[of_completions] for column in settled))
    end = transactions.following(messages)
    ends = TransactionEnds(NO_PLACES, *(_picked(column, end) for column in transactions.ends[1:]))
    own = messages["session"] * MAPS + messages["sender"], messages["frame_no"]
    at = Places(settled.map_no, settled.frame_no).find(*own)
    waits = Places(unended.map_no, unended.frame_no).find(*own) != NONE
    return _of_messages(records, settled, at, ends, end != NONE, waits)._replace(completed=completed)


def _settled_by(events: NDArray[np.void], chosen: NDArray[np.bool_]) -> Settled:
    """The messages that the chosen events would settle."""
    some = chosen | ((events["opens"] == 1) & bool(chosen.any()))
    columns = {name: np.ascontiguousarray(events[name][some]) for name in _OF_EVENTS}
    columns["transaction"] = np.full(int(some.sum()), NO_RESULT)
    return settled_at_once(columns)


_OF_EVENTS = ("connection", "map_no", "frame_no", "opens", "first", "last", "outcome", "final", "effective_ns")
NO_PLACES = np.zeros(0, np.int64)
NO_TX_ENDS: NDArray[np.void] = NEW_TX_END[:0]


def _picked(values: Integers, at: Integers) -> Integers:
    """The values at these places; NONE where the place is NONE."""
    if not len(values):
        return np.full(len(at), NONE)
    found: Integers = np.where(at == NONE, NONE, values[at])
    return found


class _Transactions:
    """The transactions of connections and their ends."""

    def __init__(self, records: SessionRecords) -> None:
        self._connections = np.unique(records.sessions["connection"])
        asked, closed = records.tx_ends[records.tx_ends["result"] != NO_RESULT], _closed_transactions(records)
        tx_ends = np.concatenate([asked, closed])
        if not len(tx_ends):
            self.ends = TransactionEnds(*[NO_PLACES] * len(TransactionEnds._fields))
            self._names = NO_PLACES
            return
        events = records.events[np.isin(records.events["map_no"], asked["map_no"])]
        answer, when = _answers(tx_ends, events, events["opens"] == 0)
        # A command of 0-10 may be completed before its result arrives: then the result counts.
        decided, decided_ns = _answers(tx_ends, events, np.isin(events["outcome"], (UNKNOWN, NACKED, ACKED)))
        answer, when = np.where(decided == 0, answer, decided), np.where(decided == 0, when, decided_ns)
        result = np.select([answer == CONFIRMED, answer == ACKED], [tx_ends["result"], COMMITTED], ROLLED_BACK)
        result = np.where(np.isin(answer, (CONFIRMED, REJECTED, NACKED, ACKED)), result, NONE)
        when[len(asked) :], result[len(asked) :] = closed["ts_ns"], ROLLED_BACK
        done = tx_ends["key"] != 0
        tx_ends = tx_ends[done]
        names = self._named(tx_ends["connection"], tx_ends["key"])
        self._names = np.unique(names)
        places = (np.searchsorted(self._names, names) << FRAME_BITS) | tx_ends["frame_no"]
        order = np.argsort(places)
        self.ends = TransactionEnds(
            places[order], when[done][order], tx_ends["ts_ns"][order], result[done][order],
            tx_ends["client_hidden"][order],
        )  # fmt: skip

    def following(self, records: NDArray[np.void]) -> Integers:
        """The next end of the transaction of each record, as a place of `ends`; NONE if there is none, no answer to it,
        or an earlier one may have been lost: the name may be reused after it."""
        if not len(self._names):
            return np.full(len(records), NONE)
        keys = records["key"]
        names = self._named(records["connection"], keys)
        name = np.minimum(np.searchsorted(self._names, names), len(self._names) - 1)
        at = np.searchsorted(self.ends.place, (name << FRAME_BITS) | records["frame_no"])
        last = np.minimum(at, len(self.ends.place) - 1)
        known = (keys != 0) & (self._names[name] == names) & (at < len(self.ends.place))
        known &= (self.ends.place[last] >> FRAME_BITS == name) & (self.ends.result[last] != NONE)
        known &= self.ends.client_hidden[last] == records["client_hidden"]
        found: Integers = np.where(known, at, NONE)
        return found

    def _named(self, connections: Integers, keys: Integers) -> Integers:
        named: Integers = (np.searchsorted(self._connections, connections) << KEY_BITS) + keys + (1 << (KEY_BITS - 1))
        return named


def _answers(
    tx_ends: NDArray[np.void], events: NDArray[np.void], chosen: NDArray[np.bool_]
) -> tuple[Integers, Integers]:
    """The outcome that the chosen events give each request to end a transaction, 0 for none, and when."""
    settled = _settled_by(events, chosen)
    at = Places(settled.map_no, settled.frame_no).find(tx_ends["map_no"], tx_ends["frame_no"])
    when = np.where(_picked(settled.settled_frame_no, at) < 0, NONE, _picked(settled.settled_ns, at))
    return np.where(at == NONE, 0, _picked(settled.outcome, at)), when


def _closed_transactions(records: SessionRecords) -> NDArray[np.void]:
    """The ends of transactions by the end of their control links: for each that was declared, what closed its link
    first, with the name of the transaction."""
    of_links = records.tx_ends[records.tx_ends["result"] == NO_RESULT]
    declared, closings = of_links[of_links["key"] != 0], of_links[of_links["key"] == 0]
    link, session, count = closings["link"], closings["map_no"] // MAPS, len(closings)
    if not len(declared) or not count:
        return NO_TX_ENDS
    at = np.full(len(declared), count)
    for closes, own in (
        (link, declared["link"]),
        (np.where(link == NONE, session, NONE), records.links["session"][declared["link"]]),
        (np.where(session == NONE, closings["connection"], NONE), declared["connection"]),
    ):
        known, first = np.unique(closes, return_index=True)
        place = np.minimum(np.searchsorted(known, own), len(known) - 1)
        at = np.minimum(at, np.where(known[place] == own, first[place], count))
    found: NDArray[np.void] = closings[at[at < count]]
    found["key"], found["map_no"] = declared["key"][at < count], NONE
    return found


def _of_messages(
    records: SessionRecords, settled: Settled, at: Integers, ends: TransactionEnds, ended: NDArray[np.bool_],
    waits: NDArray[np.bool_],
) -> Outcomes:  # fmt: skip
    """`at`: place of each message in `settled`; `ends`: of the transactions of messages; `waits`: which of them were
    settled in a transaction without a known end."""
    messages = records.messages
    stated = np.where(at == NONE, 0, _picked(settled.outcome, at))
    frame_no = _picked(settled.settled_frame_no, at)
    was_settled = frame_no >= 0
    given = np.where((stated == 0) & was_settled, _default_outcomes(records), stated)
    in_transaction = messages["key"] != 0
    # A confirm in a transaction whose end was not captured is no outcome.
    stands = (given != 0) & ~(in_transaction & ~ended & (given == CONFIRMED))
    no_answer = _without_outcome(records, waits)
    outcome = np.where(stands, given, no_answer)
    # A transfer that needs no accept is settled when it is sent; of a publish, its completion has the time.
    delivered = messages["sender"] == SERVER
    refused = ~delivered & stands & (given != CONFIRMED)
    outcome = np.where((messages["needs_no_accept"] == 1) & ~refused, PRESETTLED, outcome)
    outcome = np.where(delivered & (messages["readable"] == 0), UNKNOWN, outcome)
    # Presettled messages have no time of settlement.
    known = stands & was_settled & (stated != PRESETTLED)
    # The disposition that settles a command to a coordinator is its reply.
    answered = (messages["command"] == 1) & was_settled & ~np.isin(stated, (PRESETTLED, ABORTED))
    settled_ns = np.maximum(_picked(settled.settled_ns, at), ends.ended_ns)
    result = np.where(at == NONE, NO_RESULT, _picked(settled.transaction, at))
    # After a rolled-back accept another one may have followed, in a transaction of its own.
    result = np.where(delivered & ~stands & (outcome == UNKNOWN), NO_RESULT, result)
    return Outcomes(
        outcome,
        np.where(known, settled_ns, NONE),
        np.where(known, frame_no, NONE),
        np.where(ended, ends.result, result),
        np.where(answered, frame_no, NONE),
        np.where(answered, _picked(settled.settled_ns, at), NONE),
        (messages["command"] == 0) & (was_settled | (delivered & (messages["needs_no_accept"] == 1))),
        settled,
    )


def still_needed(records: SessionRecords, outcomes: Outcomes) -> NDArray[np.bool_]:
    """Which events later outcomes need, in connections without transactions: openings of messages that are not final,
    notes on them, and settlements of those whose links are not known yet."""
    events = records.events
    opens, map_no = events["opens"] == 1, events["map_no"]
    messages = records.messages[~outcomes.final]
    own = (messages["session"] * MAPS + messages["sender"], messages["frame_no"])
    waits = Places(*own).find(map_no, events["frame_no"]) != NONE
    waits |= (map_no % MAPS >= COMPLETIONS) & (
        Places(outcomes.completed.map_no, outcomes.completed.frame_no).find(map_no, events["frame_no"]) == NONE
    )
    return events_about(events, waits & opens)


def events_about(events: NDArray[np.void], waits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which events concern the messages whose openings are marked in `waits`: these, and notes on them."""
    opens, map_no = events["opens"] == 1, events["map_no"]
    ids = np.sort((map_no[waits] << KEY_BITS) | events["first"][waits])
    first = np.searchsorted(ids, (map_no << KEY_BITS) | events["first"], "left")
    last = np.searchsorted(ids, (map_no << KEY_BITS) | events["last"], "right")
    needed: NDArray[np.bool_] = waits | (~opens & (last > first))
    return needed


def _default_outcomes(records: SessionRecords) -> Integers:
    """The outcome of each message if its settlement has no state: the default outcome of its link's source, as the
    sending side states it."""
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


def _without_outcome(records: SessionRecords, waits: NDArray[np.bool_]) -> Integers:
    """UNKNOWN or UNSETTLED for messages without an outcome: unknown if the settlement or the end of the transaction may
    have been lost before the session ended, or was captured before the message."""
    messages = records.messages
    names = ("close_frame", "client_hidden", "server_hidden", "close_client_hidden", "close_server_hidden")
    session = {name: records.sessions[name][messages["session"]] for name in names}
    closes_later = session["close_frame"] >= messages["frame_no"]
    missing = {}
    for side in ("client", "server"):
        at_close = session[f"close_{side}_hidden"]  # NONE: nothing of this side was captured
        at_end = np.where(closes_later & (at_close != NONE), at_close, session[f"{side}_hidden"])
        missing[side] = at_end > messages[f"{side}_hidden"]
    hidden = np.where(messages["sender"] == SERVER, missing["client"], missing["server"])
    ends_later = (messages["key"] != 0) & (session["client_hidden"] > messages["client_hidden"])
    ends_later |= waits & (missing["client"] | missing["server"])
    found: Integers = np.where(
        hidden | ends_later | (messages["number"] == NONE) | (messages["named"] == 1), UNKNOWN, UNSETTLED
    )
    return found
