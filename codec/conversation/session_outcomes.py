"""Outcomes of messages, from the records of connections.

A settlement inside a transaction takes effect if the transaction ends successfully; one by the client counts from its
request to end it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.conversation.session_state import (
    ACKED,
    ALL_LISTED,
    BY_SENDER,
    COMPLETIONS,
    CONFIRMED,
    DTX,
    LISTED,
    MAPS,
    NACKED,
    NONE,
    REJECTED,
    REPORTS,
    SERVER,
    SessionRecords,
)
from codec.conversation.settlement import (
    ABORTED,
    COMMITTED,
    NO_RESULT,
    PRESETTLED,
    ROLLED_BACK,
    UNKNOWN,
    UNSETTLED,
    Settled,
    settled_at_once,
)
from codec.conversation.states import find_ids, group_ids
from codec.hashes.maps import Pairs

# Finds what events of unsettled maps settle, by map and frame.


Integers = NDArray[np.int64]
FRAME_BITS = 38
KEY_BITS = 34  # keys of transactions are below 2**33, above -2**33
OF_EVENTS = ("connection", "map_no", "frame_no", "opens", "first", "last", "outcome", "final", "effective_ns")


def frame_keys(maps: Integers, frames: Integers) -> Integers:
    """A number for each frame in an unsettled map."""
    return (maps << FRAME_BITS) | frames


def rows_in(settled: Settled, maps: Integers, frames: Integers) -> Integers:
    """The index of each frame in an unsettled map among `settled`; NONE if it is not there."""
    return Pairs(settled.map_no, settled.frame_no).find(maps, frames)


def take_or_none(values: Integers, at: Integers) -> Integers:
    """The values at these indices; NONE where the index is NONE."""
    if not len(values):
        return np.full(len(at), NONE)
    found: Integers = np.where(at == NONE, NONE, values[at])
    return found


def settled_by(events: NDArray[np.void], mask: NDArray[np.bool_], final: bool = False) -> Settled:
    """The messages that the chosen events would settle or note; with `final` each event settles."""
    some = mask | ((events["opens"] == 1) & bool(mask.any()))
    columns = {name: np.ascontiguousarray(events[name][some]) for name in OF_EVENTS}
    if final:
        columns["final"] = 1 - columns["opens"]
    columns["transaction"] = np.full(int(some.sum()), NO_RESULT)
    return settled_at_once(columns)


def events_about(events: NDArray[np.void], waits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which events concern the messages whose openings are marked in `waits`: these, and notes on them."""
    opens, map_no = events["opens"] == 1, events["map_no"]
    ids = np.sort((map_no[waits] << KEY_BITS) | events["first"][waits])
    first = np.searchsorted(ids, (map_no << KEY_BITS) | events["first"], "left")
    last = np.searchsorted(ids, (map_no << KEY_BITS) | events["last"], "right")
    needed: NDArray[np.bool_] = waits | (~opens & (last > first))
    return needed


# Transactions of connections and their ends, from the records of connections.
#
# Names of transactions are reused, so a transaction ends at the next end of its name (1.0 core specification, 4.3; 0-10
# specification, classes tx, dtx).


NO_ROWS = np.zeros(0, np.int64)


class TransactionEnds(NamedTuple):
    """Requests to end transactions, by `key` (transaction and frame), int64 (n,); `result` and `ended_ns` NONE
    without an answer; `final`: NONE if later frames may change it; `client_hidden`: losses of the client before each.
    `by`, `declared`: indices in `SessionRecords.tx_ends` of what ends the transaction, and, if that is the end of its
    control link or session, of its declaration, else NONE."""

    key: Integers
    ended_ns: Integers
    asked_ns: Integers
    result: Integers
    final: Integers
    client_hidden: Integers
    by: Integers
    declared: Integers


class Transactions:
    """The transactions of connections and their ends. By record of `tx_ends`: `commands`, the slot of the message that
    declared it, else NONE; `open`, whether it is a request without a final answer, or was declared and not ended."""

    def __init__(self, records: SessionRecords) -> None:
        tx_ends = records.tx_ends
        self._connections = np.unique(records.sessions["connection"])
        self._names = self.commands = NO_ROWS
        self.open = np.zeros(len(tx_ends), bool)
        self.ends = TransactionEnds(*[NO_ROWS] * len(TransactionEnds._fields))
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
        indices = (frames[of] >> FRAME_BITS << FRAME_BITS) | tx_ends["frame_no"][by]
        order = np.flatnonzero(done)[np.argsort(indices[done])]
        self.ends = TransactionEnds(
            indices[order], np.concatenate([when, tx_ends["ts_ns"][closing]])[order], tx_ends["ts_ns"][by][order],
            np.concatenate([result, np.full(len(closing), ROLLED_BACK)])[order],
            np.concatenate([final, tx_ends["ts_ns"][closing]])[order], tx_ends["client_hidden"][by][order], by[order],
            np.concatenate([np.full(len(requests), NONE), declared])[order],
        )  # fmt: skip

    def following(self, records: NDArray[np.void]) -> Integers:
        """The next end of the transaction of each record, as a index of `ends`; NONE if there is none, no answer to it,
        or an earlier one may have been lost: the name may be reused after it."""
        at = self._next(records)
        known = (at != NONE) & (take_or_none(self.ends.result, at) != NONE)
        known &= take_or_none(self.ends.client_hidden, at) == records["client_hidden"]
        found: Integers = np.where(known, at, NONE)
        return found

    def undecided(self, records: NDArray[np.void]) -> NDArray[np.bool_]:
        """The records whose transaction has ended, and nothing will tell how."""
        at = self._next(records)
        found: NDArray[np.bool_] = (take_or_none(self.ends.final, at) != NONE) & (self.following(records) == NONE)
        return found

    def ending(self, records: NDArray[np.void]) -> NDArray[np.bool_]:
        """Which of `tx_ends` tell how the transactions of these records end."""
        at = self._next(records)
        found = np.zeros(len(self.open) + 1, bool)
        for indices in (self.ends.by, self.ends.declared):
            found[take_or_none(indices, at)] = True
        return found[:-1]

    def _next(self, records: NDArray[np.void]) -> Integers:
        """The next end of the transaction of each record, answered or not."""
        if not len(self.ends.key):
            return np.full(len(records), NONE)
        keys = records["key"]
        names = self._named(records["connection"], keys)
        name = np.minimum(np.searchsorted(self._names, names), len(self._names) - 1)
        at = np.searchsorted(self.ends.key, (name << FRAME_BITS) | records["frame_no"])
        last = np.minimum(at, len(self.ends.key) - 1)
        known = (keys != 0) & (self._names[name] == names) & (at < len(self.ends.key))
        found: Integers = np.where(known & (self.ends.key[last] >> FRAME_BITS == name), at, NONE)
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
        link, connection = take_or_none(records.messages["link"], self.commands[declared]), tx_ends["connection"]
        begun_in = np.where(of_session[declared], tx_ends["map_no"][declared] // MAPS, NONE)
        begun_in = np.where(link == NONE, begun_in, take_or_none(records.links["session"], link))
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
            index = np.searchsorted(np.sort(keys), (own << FRAME_BITS) | tx_ends["frame_no"][declared])
            first = known[order[index]]
            same = np.append(owners[which], NONE)[order[index]] == own
            at = np.minimum(at, np.where(same, first, never))
        # One whose end was requested before is not ended by its link.
        asked = np.sort(frames[requests])
        index = np.searchsorted(asked, frames[declared])
        request = np.append(asked, NONE)[index]
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
    until = take_or_none(settled.settled_frame_no, rows_in(settled, maps, own["frame_no"]))
    number = group_ids(np.concatenate([maps, tx_ends["map_no"]]), np.concatenate([own["number"], tx_ends["number"]]))
    keys = (number << FRAME_BITS) | np.concatenate([own["frame_no"], tx_ends["frame_no"]])
    order = np.argsort(keys[: len(own)])
    index = np.searchsorted(keys[: len(own)][order], keys[len(own) :], "right") - 1
    at = np.append(order, NONE)[index]  # NONE, which is -1, is the last one
    answered = (
        (at != NONE) & (tx_ends["number"] != NONE) & (np.append(number[: len(own)], NONE)[at] == number[len(own) :])
    )
    answered &= (take_or_none(until, at) == NONE) | (take_or_none(until, at) >= tx_ends["frame_no"])
    found: Integers = np.where(answered, np.append(commands, NONE)[at], NONE)
    return found


def _answers(tx_ends: NDArray[np.void], events: NDArray[np.void], mask: NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """The outcome that the chosen events give each request to end a transaction, 0 for none, and when."""
    settled = settled_by(events, mask)
    at = rows_in(settled, tx_ends["map_no"], tx_ends["frame_no"])
    when = np.where(take_or_none(settled.settled_frame_no, at) < 0, NONE, take_or_none(settled.settled_ns, at))
    return np.where(at == NONE, 0, take_or_none(settled.outcome, at)), when


# Deliveries that the unsettled map of a later attach leaves out.
#
# An attach that resumes a link lists the deliveries that its side considers unsettled. If it does not say that the map
# is incomplete, what is left out is settled there, or has never come there (1.0 core specification, part 2, 2.6.13):
# unless its outcome was stated before, nothing tells it. A link that was closed is not resumed.


class _Deliveries(NamedTuple):
    """Deliveries, and the entries of maps, of links by name, link and frame: int64 (n,) each. `message`: of the
    message; `name`: number of the link's name; `is_entry`: bool; `number`: of an entry the map that it is in, of a
    delivery the last map before it could be in one; `last`: the last map of its name. `maps` (m,): indices of maps, by
    number from 1 on."""

    message: Integers
    name: Integers
    is_entry: NDArray[np.bool_]
    number: Integers
    last: Integers
    maps: Integers


def left_out(records: SessionRecords) -> Integers:
    """By message: the slot of the next complete map, of either side, without it; NONE if there is none.

    A delivery is to be in all maps that follow it, which are numbered in order. Its entries are, too: the first number
    without an entry is that of the map that leaves it out.
    """
    messages = records.messages
    found = np.full(len(messages), NONE)
    if not (messages["resumes"] == ALL_LISTED).any():
        return found
    rows = _numbered(records)
    own = messages[rows.message]
    group = group_ids(rows.name, own["tag"])
    order = np.lexsort([own["frame_no"], ~rows.is_entry, own["link"], group])
    own, group, is_entry, number = own[order], group[order], rows.is_entry[order], rows.number[order]
    ends = _are_last(group)
    # The number before that of the next entry; that of the last map where the group ends.
    until = np.where(ends, rows.last[order], np.append((number - is_entry)[1:], 0)[: len(own)])
    missing = until > number
    stops = missing | ends | np.append(own["resumes"][1:] == 0, True)[: len(own)]
    at = np.minimum.accumulate(np.where(stops, np.arange(len(own)), len(own))[::-1])[::-1]
    leaves = ~is_entry & missing[at] & (records.links["closed"][own["link"]] == 0)
    found[rows.message[order][leaves]] = rows.maps[number[at[leaves]]]
    return found


def _numbered(records: SessionRecords) -> _Deliveries:
    """The deliveries and the entries of complete maps, which are numbered."""
    messages, links = records.messages, records.links
    index = np.flatnonzero((messages["link"] != NONE) & ((messages["tag"] != 0) | (messages["resumes"] == ALL_LISTED)))
    index = index[links["known"][messages["link"][index]] == 1]
    own = messages[index]
    link = links[own["link"]]
    name = group_ids(own["connection"], link["name"], link["kind"])
    order = np.lexsort([-own["resumes"], own["frame_no"], own["link"], name])  # a map, then its entries
    index, own, name = index[order], own[order], name[order]
    is_map, is_entry = own["resumes"] == ALL_LISTED, own["resumes"] == LISTED
    count = np.cumsum(is_map)
    # What is sent after an attach is only in the maps of later attaches, whichever side they come from.
    number = np.where(is_entry, count, _at_end(count, own["link"]))
    maps = np.flatnonzero(is_map)
    of_map = own[maps[number - 1]]
    stray = is_entry & ((of_map["frame_no"] != own["frame_no"]) | (of_map["link"] != own["link"]))  # incomplete maps
    rows = np.flatnonzero(~is_map & ~stray)
    return _Deliveries(index[rows], name[rows], is_entry[rows], number[rows], _at_end(count, name)[rows], index[maps])


def _are_last(groups: Integers) -> NDArray[np.bool_]:
    """Which rows are the last of their group."""
    return np.append(groups[1:] != groups[:-1], True)[: len(groups)]


def _at_end(values: Integers, groups: Integers) -> Integers:
    """The last value of each group, for all its rows."""
    ends = np.flatnonzero(_are_last(groups))
    found: Integers = np.repeat(values[ends], np.diff(ends, prepend=-1))
    return found


def lists_of(records: SessionRecords, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which records are entries of the chosen maps: bool (messages,)."""
    messages = records.messages
    frames = frame_keys(messages["session"], messages["frame_no"])
    maps = mask & (messages["resumes"] == ALL_LISTED)
    entries: NDArray[np.bool_] = (messages["resumes"] == LISTED) & np.isin(frames, frames[maps])
    return entries


class Outcomes(NamedTuple):
    """By message, int64 (n,): `outcome`, of semantics.OUTCOMES; `error`, `info`: its texts, 0 for none; `settled_ns`,
    `settled_frame_no`, -1 if unknown; `transaction`, of codec.conversation.settlement; `reply_frame_no`, `reply_ns` of
    answered commands, else -1; `final`: no later frame changes them. `then` (3, n): of messages that are not final by
    themselves, indices of later ones with the same tag, or NONE: the next one that was settled or is another delivery,
    the next one that states an outcome, and the next complete map of unsettled deliveries that leaves it out.
    `completed`: completions of transfers over subscriptions. `transactions`: those of all connections."""

    outcome: Integers
    error: Integers
    info: Integers
    settled_ns: Integers
    settled_frame_no: Integers
    transaction: Integers
    reply_frame_no: Integers
    reply_ns: Integers
    final: NDArray[np.bool_]
    then: Integers
    completed: Settled
    transactions: Transactions


def outcomes_of(records: SessionRecords) -> Outcomes:
    """The outcomes of all messages."""
    messages, events = records.messages, records.events
    transactions = Transactions(records)
    end = transactions.following(events)
    waits = (events["waits"] == 1) & (events["key"] != 0)
    takes_effect = ~waits | (end != NONE)
    unanswered = waits & (take_or_none(transactions.ends.final, end) == NONE)
    undecided = waits & (transactions.undecided(events) | _left(records, events["map_no"] // MAPS, events["frame_no"]))
    columns = {name: np.ascontiguousarray(events[name][takes_effect]) for name in OF_EVENTS}
    end = end[takes_effect]
    columns["effective_ns"] = np.where(
        end != NONE, take_or_none(transactions.ends.asked_ns, end), columns["effective_ns"]
    )
    columns["transaction"] = np.where(end != NONE, take_or_none(transactions.ends.result, end), NO_RESULT)
    columns["waits"] = np.ascontiguousarray(events["waits"][takes_effect])
    settled = _settled(columns, events)
    own = messages["session"] * MAPS + messages["sender"], messages["frame_no"]
    at = rows_in(settled, *own)
    by, then = _resumed(records, take_or_none(settled.settled_frame_no, at) >= 0)
    then = np.vstack([then, left_out(records)])
    more = _resumptions(messages, settled, at, by, then[1])
    if len(more["frame_no"]):
        settled = _settled({name: np.append(columns[name], column) for name, column in more.items()}, events)
        at = rows_in(settled, *own)
    of_completions = settled.map_no % MAPS >= COMPLETIONS
    completed = Settled(*(column[of_completions] for column in settled))
    end = transactions.following(messages)
    ends = TransactionEnds(NO_ROWS, *(take_or_none(column, end) for column in transactions.ends[1:]))
    pending = [
        (rows_in(settled_by(events, mask), *own) != NONE)[by]
        for mask in (~takes_effect, unanswered, undecided & ~takes_effect)
    ]
    found = _of_messages(records, settled, at, ends, end != NONE, pending, then, transactions)
    then = np.where(found.final & (by == np.arange(len(by))), NONE, then)
    return found._replace(then=then, completed=completed)


def _settled(columns: dict[str, Integers], events: NDArray[np.void]) -> Settled:
    """What events settle and note: `columns` of those that take effect, with their `waits`; `events`: all of them.

    The receiver decides the outcome of a delivery, with two exceptions. A sender that has said `settled`, in any of the
    transfers, awaits none; it may still abort the delivery (1.0 core specification, 2.6.12, 2.7.5). And a broker that
    waits no longer takes a delivery back: it states the outcome of what it has sent itself. What the receiver states
    then has no effect. Where it was earlier, the broker settles otherwise than the receiver wants: it is refused.
    """
    opens, outcome = columns["opens"] == 1, columns["outcome"]
    by_broker = columns["waits"] == BY_SENDER
    by_sender = ~opens & np.isin(outcome, (PRESETTLED, ABORTED))
    in_parts = by_sender & (outcome == PRESETTLED) & (columns["final"] == 0)
    if not (by_broker.any() or in_parts.any()):
        return settled_at_once(columns)
    by_sender &= bool(in_parts.any())
    of_receiver = columns | {"outcome": np.where(by_broker, 0, outcome)}
    settled = settled_at_once(_selected(of_receiver, ~by_sender))
    if by_broker.any():
        declared = (events["waits"] != BY_SENDER) & ((events["outcome"] != 0) | (events["final"] != 0))
        first = settled_by(events, declared & ~np.isin(events["outcome"], (PRESETTLED, ABORTED)), final=True)
        for final in (0, 1):
            some = _selected(columns, opens | (by_broker & (columns["final"] == final)))
            settled = _taken_back(settled, settled_at_once(some | {"final": 1 - some["opens"]}), first)
    if in_parts.any():
        own = _selected(columns, opens | by_sender)
        began = settled_at_once(own | {"final": 1 - own["opens"]})
        settled = _overruled(settled, settled_at_once(own), began)
    return settled


def _selected(columns: dict[str, Integers], mask: NDArray[np.bool_]) -> dict[str, Integers]:
    return {name: column[mask] for name, column in columns.items()}


def _taken_back(settled: Settled, by_broker: Settled, first: Settled) -> Settled:
    """`settled`, with what the broker has stated of its own deliveries; `first`: what their receiver stated first."""
    frame_no = by_broker.settled_frame_no
    own = rows_in(settled, by_broker.map_no, by_broker.frame_no)
    earliest = take_or_none(first.settled_frame_no, rows_in(first, by_broker.map_no, by_broker.frame_no))
    ends = take_or_none(settled.settled_frame_no, own)  # before the broker, or by it, or later
    unasked = ((earliest == NONE) | (earliest > frame_no)) & ((ends < 0) | (ends >= frame_no))
    wanted = take_or_none(settled.outcome, own)
    refuses = ~unasked & (ends == frame_no) & (wanted != by_broker.outcome)
    outcome = np.where(refuses & (by_broker.outcome == REJECTED), UNKNOWN, by_broker.outcome)
    return _replaced(settled, by_broker._replace(outcome=outcome), unasked | refuses)


def _overruled(settled: Settled, by_sender: Settled, began: Settled) -> Settled:
    """`settled`, with what their senders have settled or aborted, from when they `began` to do so."""
    own = take_or_none(settled.settled_frame_no, rows_in(settled, by_sender.map_no, by_sender.frame_no))
    since = take_or_none(began.settled_frame_no, rows_in(began, by_sender.map_no, by_sender.frame_no))
    return _replaced(settled, by_sender, (own < 0) | (since <= own))


def _replaced(settled: Settled, others: Settled, mask: NDArray[np.bool_]) -> Settled:
    """`settled`, with the chosen ones of `others` in place of what is there of the same messages."""
    others = Settled(*(column[mask] for column in others))
    rest = rows_in(others, settled.map_no, settled.frame_no) == NONE
    return Settled(*(np.concatenate([column[rest], more]) for column, more in zip(settled, others, strict=True)))


def _of_messages(
    records: SessionRecords, settled: Settled, at: Integers, ends: TransactionEnds, ended: NDArray[np.bool_],
    pending: list[NDArray[np.bool_]], then: Integers, transactions: Transactions,
) -> Outcomes:  # fmt: skip
    """`at`: index of each message in `settled`; `ends`: of the transactions of messages; `pending`: which of them were
    settled in a transaction without a known end, without a final one, or in one that ends unseen."""
    messages, (waits, unanswered, undecided) = records.messages, pending
    frame_no = take_or_none(settled.settled_frame_no, at)
    was_settled = frame_no >= 0
    declared = np.where(at == NONE, 0, take_or_none(settled.outcome, at))
    declared = np.where((declared == 0) & ~was_settled, _declared_outcomes(messages, then[1]), declared)
    given = np.where((declared == 0) & was_settled, _default_outcomes(records), declared)
    in_transaction = messages["key"] != 0
    # A confirm in a transaction whose end was not captured is no outcome.
    stands = (given != 0) & ~(in_transaction & ~ended & (given == CONFIRMED))
    own_end = transactions.undecided(messages)
    undecided = (
        undecided | own_end | in_transaction & ~ended & _left(records, messages["session"], messages["frame_no"])
    )
    no_answer = np.where((then[2] != NONE) | undecided, UNKNOWN, _without_outcome(records, waits))
    outcome = np.where(stands, given, no_answer)
    # A transfer that needs no accept is settled when it is sent; of a publish, its completion has the time.
    delivered = messages["sender"] == SERVER
    refused = ~delivered & stands & (given != CONFIRMED)
    outcome = np.where((messages["needs_no_accept"] == 1) & ~refused, PRESETTLED, outcome)
    outcome = np.where(delivered & (messages["readable"] == 0), UNKNOWN, outcome)
    # Presettled messages have no time of settlement.
    known = stands & was_settled & (declared != PRESETTLED)
    # The disposition that settles a command to a coordinator is its reply.
    answered = (messages["command"] == 1) & was_settled & ~np.isin(declared, (PRESETTLED, ABORTED))
    answered &= frame_no != messages["frame_no"]  # a request that nothing answers ends in its own frame
    settled_ns = np.maximum(take_or_none(settled.settled_ns, at), ends.ended_ns)
    result = np.where(at == NONE, NO_RESULT, take_or_none(settled.transaction, at))
    # After a rolled-back accept another one may have followed, in a transaction of its own.
    result = np.where(delivered & ~stands & (outcome == UNKNOWN), NO_RESULT, result)
    # A transaction of its own does not change the reply to a command.
    final = (
        was_settled
        | (messages["resumes"] >= LISTED)
        | (delivered & (messages["needs_no_accept"] == 1) & (messages["command"] == 0))
    )
    final &= (messages["key"] == 0) | (messages["command"] == 1) | (ends.final != NONE) | own_end
    final &= ~(waits | unanswered)
    error, info = _texts(records, outcome, frame_no)
    return Outcomes(
        outcome,
        error,
        info,
        np.where(known, settled_ns, NONE),
        np.where(known, frame_no, NONE),
        np.where(ended, ends.result, result),
        np.where(answered, frame_no, NONE),
        np.where(answered, take_or_none(settled.settled_ns, at), NONE),
        final,
        then,
        settled,
        transactions,
    )


def _texts(records: SessionRecords, outcome: Integers, frame_no: Integers) -> list[Integers]:
    """By message, the error and the info of its outcome, 0 for none: as its settlement in frame `frame_no` states them,
    else as what stated the outcome before."""
    messages, events = records.messages, records.events
    some = (events["opens"] == 0) & ((events["error"] != 0) | (events["info"] != 0))
    if not some.any():
        return [np.zeros(len(messages), np.int64)] * 2
    declared, maps = events[some], messages["session"] * MAPS + messages["sender"]
    first = settled_by(events, some, final=True)
    first_no = take_or_none(first.settled_frame_no, rows_in(first, maps, messages["frame_no"]))
    by, before = (
        find_ids(frame_keys(declared["map_no"], declared["frame_no"]), np.where(no < 0, NONE, frame_keys(maps, no)))
        for no in (frame_no, first_no)
    )
    agrees = [(at != NONE) & (declared["outcome"][at] == outcome) for at in (by, before)]
    agrees[0] |= (by != NONE) & (declared["waits"][by] == BY_SENDER)
    found = []
    for name in ("error", "info"):
        newer, older = (np.where(own, declared[name][at], 0) for own, at in zip(agrees, (by, before), strict=True))
        found.append(np.where(newer != 0, newer, older))
    return found


def _resumed(records: SessionRecords, was_settled: NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """By message: the one that tells how it was settled, which is itself or the first one after it that was settled and
    resumes it, on a later attach of its link (1.0 core specification, 2.6.13); `then` of `Outcomes`."""
    messages, links = records.messages, records.links
    by, then = np.arange(len(messages)), np.full((2, len(messages)), NONE)
    tagged = (messages["tag"] != 0) & (messages["link"] != NONE)
    tagged &= np.isin(messages["tag"], messages["tag"][tagged & ~was_settled])
    indices = np.flatnonzero(tagged)
    own, link = messages[indices], links[messages["link"][indices]]
    key = group_ids(own["connection"], link["known"], link["name"], link["kind"], own["sender"], own["tag"])
    order = np.lexsort([own["frame_no"], key])
    indices, key, known = indices[order], key[order], link["known"][order] == 1
    fresh, declared = own["resumes"][order] == 0, own["stated_outcome"][order] != 0
    for found, tells in ((then[0], was_settled[indices]), (then[1], declared)):
        ends = np.append(np.where(tells | fresh, np.arange(len(indices)), len(indices)), len(indices))
        following = np.minimum.accumulate(ends[::-1])[::-1][1:]
        there = known & (np.append(key, NONE)[following] == key)
        found[indices[there]] = indices[following[there]]
    resumed = (then[0] != NONE) & ~was_settled & (messages["resumes"][then[0]] != 0)
    by[resumed] = then[0][resumed]
    return by, then


def _resumptions(
    messages: NDArray[np.void], settled: Settled, at: Integers, by: Integers, told: Integers
) -> dict[str, Integers]:
    """Events that settle messages as those that resume them were settled (`by`). A transfer that resumes a delivery as
    settled states its outcome, if no attach before has done so (`told`)."""
    which = np.flatnonzero((by != np.arange(len(by))) & (messages["number"] != NONE))
    own, end = messages[which], Settled(*(column[at[by[which]]] for column in settled))
    earlier = messages["frame_no"][told[which]] <= end.settled_frame_no
    outcome = np.where(end.outcome == PRESETTLED, _declared_outcomes(messages, told)[which] * earlier, end.outcome)
    nothing = np.zeros(len(which), np.int64)
    return {
        "connection": own["connection"], "map_no": own["session"] * MAPS + own["sender"],
        "frame_no": end.settled_frame_no, "opens": nothing, "first": own["number"], "last": own["number"],
        "outcome": outcome, "final": nothing + 1, "effective_ns": end.settled_ns, "transaction": end.transaction,
        "waits": nothing,
    }  # fmt: skip


def _declared_outcomes(messages: NDArray[np.void], told: Integers) -> Integers:
    """The outcome that the messages at these indices state if they resume; 0 for none."""
    found: Integers = np.where((told != NONE) & (messages["resumes"][told] != 0), messages["stated_outcome"][told], 0)
    return found


class NeededRecords(NamedTuple):
    """Which records later outcomes need: bool (n,) each."""

    messages: NDArray[np.bool_]
    events: NDArray[np.bool_]
    tx_ends: NDArray[np.bool_]


def still_needed(records: SessionRecords, outcomes: Outcomes) -> NeededRecords:
    """What later outcomes need: messages that are not final, and those that decide them; transactions without an end,
    and those that other needed records name; of all these the openings, and events about them; settlements of messages
    whose links are not known yet."""
    events, transactions = records.events, outcomes.transactions
    map_no, opens = events["map_no"], events["opens"] == 1
    own_map = records.messages["session"] * MAPS + records.messages["sender"]
    completing = opens & (map_no % MAPS >= COMPLETIONS)
    completing &= rows_in(outcomes.completed, map_no, events["frame_no"]) == NONE
    messages, ends = ~outcomes.final, transactions.open
    more = messages.copy()
    while more.any():  # one that ends the use of a tag may have been resumed itself
        known = messages.copy()
        for then in outcomes.then:
            messages[then[more & (then != NONE)]] = True
        more = messages & ~known
    while True:
        messages[transactions.commands[ends][transactions.commands[ends] != NONE]] = True
        open_maps = np.concatenate([own_map[messages], records.tx_ends["map_no"][ends]])
        open_frames = np.concatenate([records.messages["frame_no"][messages], records.tx_ends["frame_no"][ends]])
        at = find_ids(frame_keys(open_maps, open_frames), frame_keys(map_no, events["frame_no"]))
        waits = completing | opens & (at != NONE)
        needed = events_about(events, waits)
        contents = messages & (records.messages["command"] == 0)
        more = ends | transactions.ending(records.messages[contents]) | transactions.ending(events[needed])
        if (more == ends).all():
            return NeededRecords(messages | lists_of(records, messages), needed, ends)
        ends = more


def _left(records: SessionRecords, sessions: Integers, frames: Integers) -> NDArray[np.bool_]:
    """Where the branch that a session was in at a frame was left later. A branch outlives its session, and any
    connection may end it (0-10 specification, class dtx)."""
    own = {name: records.sessions[name][sessions] for name in ("mode", "left_frame", "close_frame")}
    left: NDArray[np.bool_] = (own["mode"] == DTX) & (np.maximum(own["left_frame"], own["close_frame"]) > frames)
    return left


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
