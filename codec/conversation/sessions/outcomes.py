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
    ACKED,
    COMPLETIONS,
    CONFIRMED,
    MAPS,
    NACKED,
    NONE,
    REJECTED,
    REPORTS,
    SERVER,
    SessionRecords,
)
from codec.conversation.settled import settled_at_once
from codec.conversation.settlement import (
    ABORTED,
    COMMITTED,
    NO_RESULT,
    PRESETTLED,
    ROLLED_BACK,
    UNKNOWN,
    UNSETTLED,
    Settled,
)
from codec.conversation.states import numbered

Integers = NDArray[np.int64]
FRAME_BITS = 38
KEY_BITS = 34  # keys of transactions are below 2**33, above -2**33


class Outcomes(NamedTuple):
    """By message, int64 (n,): `outcome`, of semantics.OUTCOMES; `settled_ns`, `settled_frame_no`, -1 if unknown;
    `transaction`, of codec.conversation.settlement; `reply_frame_no`, `reply_ns` of answered commands, else -1;
    `final`: no later frame changes them. `completed`: completions of transfers over subscriptions. `transactions`:
    those of all connections."""

    outcome: Integers
    settled_ns: Integers
    settled_frame_no: Integers
    transaction: Integers
    reply_frame_no: Integers
    reply_ns: Integers
    final: NDArray[np.bool_]
    completed: Settled
    transactions: Transactions


class TransactionEnds(NamedTuple):
    """Requests to end transactions, by `place` (transaction and frame), int64 (n,); `result` and `ended_ns` NONE
    without an answer; `final`: no later frame changes it, else NONE; `client_hidden`: losses of the client before each.
    `by`, `declared`: places in `SessionRecords.tx_ends` of what ends it, and of the declaration of one that its control
    link ends, else NONE."""

    place: Integers
    ended_ns: Integers
    asked_ns: Integers
    result: Integers
    final: Integers
    client_hidden: Integers
    by: Integers
    declared: Integers


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
    transactions = Transactions(records)
    end = transactions.following(events)
    waits = (events["waits"] == 1) & (events["key"] != 0)
    takes_effect = ~waits | (end != NONE)
    unanswered = waits & (_picked(transactions.ends.final, end) == NONE)
    columns = {name: np.ascontiguousarray(events[name][takes_effect]) for name in _OF_EVENTS}
    end = end[takes_effect]
    columns["effective_ns"] = np.where(end != NONE, _picked(transactions.ends.asked_ns, end), columns["effective_ns"])
    columns["transaction"] = np.where(end != NONE, _picked(transactions.ends.result, end), NO_RESULT)
    settled = settled_at_once(columns)
    of_completions = settled.map_no % MAPS >= COMPLETIONS
    completed = Settled(*(column[of_completions] for column in settled))
    end = transactions.following(messages)
    ends = TransactionEnds(NO_PLACES, *(_picked(column, end) for column in transactions.ends[1:]))
    own = messages["session"] * MAPS + messages["sender"], messages["frame_no"]
    at = Places(settled.map_no, settled.frame_no).find(*own)
    pending = [
        Places(unended.map_no, unended.frame_no).find(*own) != NONE
        for unended in (_settled_by(events, chosen) for chosen in (~takes_effect, unanswered))
    ]
    return _of_messages(records, settled, at, ends, end != NONE, pending, transactions)._replace(completed=completed)


def _settled_by(events: NDArray[np.void], chosen: NDArray[np.bool_]) -> Settled:
    """The messages that the chosen events would settle or note."""
    some = chosen | ((events["opens"] == 1) & bool(chosen.any()))
    columns = {name: np.ascontiguousarray(events[name][some]) for name in _OF_EVENTS}
    columns["transaction"] = np.full(int(some.sum()), NO_RESULT)
    return settled_at_once(columns)


_OF_EVENTS = ("connection", "map_no", "frame_no", "opens", "first", "last", "outcome", "final", "effective_ns")
NO_PLACES = np.zeros(0, np.int64)


def _picked(values: Integers, at: Integers) -> Integers:
    """The values at these places; NONE where the place is NONE."""
    if not len(values):
        return np.full(len(at), NONE)
    found: Integers = np.where(at == NONE, NONE, values[at])
    return found


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
        decided, decided_ns = _answers(asked, events, np.isin(events["outcome"], (UNKNOWN, NACKED, ACKED)))
        decided *= asked["on_branch"]
        answer, when = np.where(decided == 0, answer, decided), np.where(decided == 0, when, decided_ns)
        result = np.select([answer == CONFIRMED, answer == ACKED], [asked["result"], COMMITTED], ROLLED_BACK)
        result = np.where(np.isin(answer, (CONFIRMED, REJECTED, NACKED, ACKED)), result, NONE)
        # The result of a command on a branch is its last answer.
        reported = _answers(asked, events, events["waits"] == REPORTS)[1]
        final = np.where(asked["on_branch"] == 1, reported, when)
        self.open[requests] = final == NONE
        names = self._named(tx_ends["connection"], tx_ends["key"])
        self._names = np.unique(names[tx_ends["key"] != 0])
        frames = (np.searchsorted(self._names, names) << FRAME_BITS) | tx_ends["frame_no"]
        declared, closing = self._closed(records, requests, frames)
        of, by = np.concatenate([requests, declared]), np.concatenate([requests, closing])
        done = tx_ends["key"][of] != 0
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
        known = (at != NONE) & (_picked(self.ends.result, at) != NONE)
        known &= _picked(self.ends.client_hidden, at) == records["client_hidden"]
        found: Integers = np.where(known, at, NONE)
        return found

    def ending(self, records: NDArray[np.void]) -> NDArray[np.bool_]:
        """Which of `tx_ends` tell how the transactions of these records end."""
        at = self._next(records)
        found = np.zeros(len(self.open) + 1, bool)
        for places in (self.ends.by, self.ends.declared):
            found[_picked(places, at)] = True
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
        """The declarations of transactions that end with their control links, and what closes each link, its session or
        its connection first. `frames`: transaction and frame of each record."""
        tx_ends = records.tx_ends
        declared = np.flatnonzero((self.commands != NONE) & (tx_ends["result"] == NO_RESULT) & (tx_ends["key"] != 0))
        closings = np.flatnonzero((tx_ends["result"] == NO_RESULT) & (tx_ends["key"] == 0))
        link, connection = records.messages["link"][self.commands[declared]], tx_ends["connection"]
        closes, session = tx_ends["link"][closings], tx_ends["map_no"][closings] // MAPS
        never = len(tx_ends)
        at = np.full(len(declared), never)
        for which, owners, own in (
            (closes != NONE, closes, link),
            ((closes == NONE) & (session != NONE), session, records.links["session"][link]),
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
    settled = _settled_by(events, events["opens"] == 0)
    until = _picked(settled.settled_frame_no, Places(settled.map_no, settled.frame_no).find(maps, own["frame_no"]))
    number = numbered(np.concatenate([maps, tx_ends["map_no"]]), np.concatenate([own["number"], tx_ends["number"]]))
    keys = (number << FRAME_BITS) | np.concatenate([own["frame_no"], tx_ends["frame_no"]])
    order = np.argsort(keys[: len(own)])
    place = np.searchsorted(keys[: len(own)][order], keys[len(own) :], "right") - 1
    at = np.append(order, NONE)[place]  # NONE, which is -1, is the last one
    answered = (
        (at != NONE) & (tx_ends["number"] != NONE) & (np.append(number[: len(own)], NONE)[at] == number[len(own) :])
    )
    answered &= (_picked(until, at) == NONE) | (_picked(until, at) >= tx_ends["frame_no"])
    found: Integers = np.where(answered, np.append(commands, NONE)[at], NONE)
    return found


def _answers(
    tx_ends: NDArray[np.void], events: NDArray[np.void], chosen: NDArray[np.bool_]
) -> tuple[Integers, Integers]:
    """The outcome that the chosen events give each request to end a transaction, 0 for none, and when."""
    settled = _settled_by(events, chosen)
    at = Places(settled.map_no, settled.frame_no).find(tx_ends["map_no"], tx_ends["frame_no"])
    when = np.where(_picked(settled.settled_frame_no, at) < 0, NONE, _picked(settled.settled_ns, at))
    return np.where(at == NONE, 0, _picked(settled.outcome, at)), when


def _of_messages(
    records: SessionRecords, settled: Settled, at: Integers, ends: TransactionEnds, ended: NDArray[np.bool_],
    pending: list[NDArray[np.bool_]], transactions: Transactions,
) -> Outcomes:  # fmt: skip
    """`at`: place of each message in `settled`; `ends`: of the transactions of messages; `pending`: which of them were
    settled in a transaction without a known end, or without a final one."""
    messages, (waits, unanswered) = records.messages, pending
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
    # A transaction of its own does not change the reply to a command.
    final = was_settled | (delivered & (messages["needs_no_accept"] == 1) & (messages["command"] == 0))
    final &= (messages["key"] == 0) | (messages["command"] == 1) | (ends.final != NONE)
    return Outcomes(
        outcome,
        np.where(known, settled_ns, NONE),
        np.where(known, frame_no, NONE),
        np.where(ended, ends.result, result),
        np.where(answered, frame_no, NONE),
        np.where(answered, _picked(settled.settled_ns, at), NONE),
        final & ~(waits | unanswered),
        settled,
        transactions,
    )


class Needed(NamedTuple):
    """Which records later outcomes need: bool (n,) each."""

    messages: NDArray[np.bool_]
    events: NDArray[np.bool_]
    tx_ends: NDArray[np.bool_]


def still_needed(records: SessionRecords, outcomes: Outcomes) -> Needed:
    """What later outcomes need: messages that are not final; transactions without an end, and those that other needed
    records name; of all these the openings, and events about them; settlements of messages whose links are not known
    yet."""
    events, transactions = records.events, outcomes.transactions
    map_no, opens = events["map_no"], events["opens"] == 1
    own_map = records.messages["session"] * MAPS + records.messages["sender"]
    completing = opens & (map_no % MAPS >= COMPLETIONS)
    completing &= (
        Places(outcomes.completed.map_no, outcomes.completed.frame_no).find(map_no, events["frame_no"]) == NONE
    )
    messages, ends = ~outcomes.final, transactions.open
    while True:
        messages[transactions.commands[ends][transactions.commands[ends] != NONE]] = True
        open_maps = np.concatenate([own_map[messages], records.tx_ends["map_no"][ends]])
        open_frames = np.concatenate([records.messages["frame_no"][messages], records.tx_ends["frame_no"][ends]])
        waits = completing | opens & (Places(open_maps, open_frames).find(map_no, events["frame_no"]) != NONE)
        needed = events_about(events, waits)
        contents = messages & (records.messages["command"] == 0)
        more = ends | transactions.ending(records.messages[contents]) | transactions.ending(events[needed])
        if (more == ends).all():
            return Needed(messages, needed, ends)
        ends = more


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
