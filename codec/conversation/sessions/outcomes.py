"""Outcomes of messages, from the records of connections.

A settlement inside a transaction takes effect if the transaction ends successfully; one by the client counts from its
request to end it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.conversation.sessions.events import OF_EVENTS, events_about, frame_keys, picked, places_in, settled_by
from codec.conversation.sessions.state import (
    BY_SENDER,
    COMPLETIONS,
    CONFIRMED,
    DTX,
    LISTED,
    MAPS,
    NONE,
    REJECTED,
    SERVER,
    SessionRecords,
)
from codec.conversation.sessions.transactions import NO_PLACES, TransactionEnds, Transactions
from codec.conversation.sessions.unsettled import left_out, lists_of
from codec.conversation.settled import settled_at_once
from codec.conversation.settlement import ABORTED, NO_RESULT, PRESETTLED, UNKNOWN, UNSETTLED, Settled
from codec.conversation.states import numbered, places

Integers = NDArray[np.int64]


class Outcomes(NamedTuple):
    """By message, int64 (n,): `outcome`, of semantics.OUTCOMES; `error`, `info`: its texts, 0 for none; `settled_ns`,
    `settled_frame_no`, -1 if unknown; `transaction`, of codec.conversation.settlement; `reply_frame_no`, `reply_ns` of
    answered commands, else -1; `final`: no later frame changes them. `then` (3, n): of messages that are not final by
    themselves, places of later ones with the same tag, or NONE: the next one that was settled or is another delivery,
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
    unanswered = waits & (picked(transactions.ends.final, end) == NONE)
    undecided = waits & (transactions.undecided(events) | _left(records, events["map_no"] // MAPS, events["frame_no"]))
    columns = {name: np.ascontiguousarray(events[name][takes_effect]) for name in OF_EVENTS}
    end = end[takes_effect]
    columns["effective_ns"] = np.where(end != NONE, picked(transactions.ends.asked_ns, end), columns["effective_ns"])
    columns["transaction"] = np.where(end != NONE, picked(transactions.ends.result, end), NO_RESULT)
    columns["waits"] = np.ascontiguousarray(events["waits"][takes_effect])
    settled = _settled(columns, events)
    own = messages["session"] * MAPS + messages["sender"], messages["frame_no"]
    at = places_in(settled, *own)
    by, then = _resumed(records, picked(settled.settled_frame_no, at) >= 0)
    then = np.vstack([then, left_out(records)])
    more = _resumptions(messages, settled, at, by, then[1])
    if len(more["frame_no"]):
        settled = _settled({name: np.append(columns[name], column) for name, column in more.items()}, events)
        at = places_in(settled, *own)
    of_completions = settled.map_no % MAPS >= COMPLETIONS
    completed = Settled(*(column[of_completions] for column in settled))
    end = transactions.following(messages)
    ends = TransactionEnds(NO_PLACES, *(picked(column, end) for column in transactions.ends[1:]))
    pending = [
        (places_in(settled_by(events, chosen), *own) != NONE)[by]
        for chosen in (~takes_effect, unanswered, undecided & ~takes_effect)
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
    settled = settled_at_once(_chosen(of_receiver, ~by_sender))
    if by_broker.any():
        stated = (events["waits"] != BY_SENDER) & ((events["outcome"] != 0) | (events["final"] != 0))
        first = settled_by(events, stated & ~np.isin(events["outcome"], (PRESETTLED, ABORTED)), final=True)
        for final in (0, 1):
            some = _chosen(columns, opens | (by_broker & (columns["final"] == final)))
            settled = _taken_back(settled, settled_at_once(some | {"final": 1 - some["opens"]}), first)
    if in_parts.any():
        own = _chosen(columns, opens | by_sender)
        began = settled_at_once(own | {"final": 1 - own["opens"]})
        settled = _overruled(settled, settled_at_once(own), began)
    return settled


def _chosen(columns: dict[str, Integers], chosen: NDArray[np.bool_]) -> dict[str, Integers]:
    return {name: column[chosen] for name, column in columns.items()}


def _taken_back(settled: Settled, by_broker: Settled, first: Settled) -> Settled:
    """`settled`, with what the broker has stated of its own deliveries; `first`: what their receiver stated first."""
    frame_no = by_broker.settled_frame_no
    own = places_in(settled, by_broker.map_no, by_broker.frame_no)
    earliest = picked(first.settled_frame_no, places_in(first, by_broker.map_no, by_broker.frame_no))
    ends = picked(settled.settled_frame_no, own)  # before the broker, or by it, or later
    unasked = ((earliest == NONE) | (earliest > frame_no)) & ((ends < 0) | (ends >= frame_no))
    wanted = picked(settled.outcome, own)
    refuses = ~unasked & (ends == frame_no) & (wanted != by_broker.outcome)
    outcome = np.where(refuses & (by_broker.outcome == REJECTED), UNKNOWN, by_broker.outcome)
    return _replaced(settled, by_broker._replace(outcome=outcome), unasked | refuses)


def _overruled(settled: Settled, by_sender: Settled, began: Settled) -> Settled:
    """`settled`, with what their senders have settled or aborted, from when they `began` to do so."""
    own = picked(settled.settled_frame_no, places_in(settled, by_sender.map_no, by_sender.frame_no))
    since = picked(began.settled_frame_no, places_in(began, by_sender.map_no, by_sender.frame_no))
    return _replaced(settled, by_sender, (own < 0) | (since <= own))


def _replaced(settled: Settled, others: Settled, chosen: NDArray[np.bool_]) -> Settled:
    """`settled`, with the chosen ones of `others` in place of what is there of the same messages."""
    others = Settled(*(column[chosen] for column in others))
    rest = places_in(others, settled.map_no, settled.frame_no) == NONE
    return Settled(*(np.concatenate([column[rest], more]) for column, more in zip(settled, others, strict=True)))


def _of_messages(
    records: SessionRecords, settled: Settled, at: Integers, ends: TransactionEnds, ended: NDArray[np.bool_],
    pending: list[NDArray[np.bool_]], then: Integers, transactions: Transactions,
) -> Outcomes:  # fmt: skip
    """`at`: place of each message in `settled`; `ends`: of the transactions of messages; `pending`: which of them were
    settled in a transaction without a known end, without a final one, or in one that ends unseen."""
    messages, (waits, unanswered, undecided) = records.messages, pending
    frame_no = picked(settled.settled_frame_no, at)
    was_settled = frame_no >= 0
    stated = np.where(at == NONE, 0, picked(settled.outcome, at))
    stated = np.where((stated == 0) & ~was_settled, _told(messages, then[1]), stated)
    given = np.where((stated == 0) & was_settled, _default_outcomes(records), stated)
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
    known = stands & was_settled & (stated != PRESETTLED)
    # The disposition that settles a command to a coordinator is its reply.
    answered = (messages["command"] == 1) & was_settled & ~np.isin(stated, (PRESETTLED, ABORTED))
    answered &= frame_no != messages["frame_no"]  # a request that nothing answers ends in its own frame
    settled_ns = np.maximum(picked(settled.settled_ns, at), ends.ended_ns)
    result = np.where(at == NONE, NO_RESULT, picked(settled.transaction, at))
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
        np.where(answered, picked(settled.settled_ns, at), NONE),
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
    stated, maps = events[some], messages["session"] * MAPS + messages["sender"]
    first = settled_by(events, some, final=True)
    first_no = picked(first.settled_frame_no, places_in(first, maps, messages["frame_no"]))
    by, before = (
        places(frame_keys(stated["map_no"], stated["frame_no"]), np.where(no < 0, NONE, frame_keys(maps, no)))
        for no in (frame_no, first_no)
    )
    agrees = [(at != NONE) & (stated["outcome"][at] == outcome) for at in (by, before)]
    agrees[0] |= (by != NONE) & (stated["waits"][by] == BY_SENDER)
    found = []
    for name in ("error", "info"):
        newer, older = (np.where(own, stated[name][at], 0) for own, at in zip(agrees, (by, before), strict=True))
        found.append(np.where(newer != 0, newer, older))
    return found


def _resumed(records: SessionRecords, was_settled: NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """By message: the one that tells how it was settled, which is itself or the first one after it that was settled and
    resumes it, on a later attach of its link (1.0 core specification, 2.6.13); `then` of `Outcomes`."""
    messages, links = records.messages, records.links
    by, then = np.arange(len(messages)), np.full((2, len(messages)), NONE)
    tagged = (messages["tag"] != 0) & (messages["link"] != NONE)
    tagged &= np.isin(messages["tag"], messages["tag"][tagged & ~was_settled])
    places = np.flatnonzero(tagged)
    own, link = messages[places], links[messages["link"][places]]
    key = numbered(own["connection"], link["known"], link["name"], link["kind"], own["sender"], own["tag"])
    order = np.lexsort([own["frame_no"], key])
    places, key, known = places[order], key[order], link["known"][order] == 1
    fresh, stated = own["resumes"][order] == 0, own["stated"][order] != 0
    for found, tells in ((then[0], was_settled[places]), (then[1], stated)):
        ends = np.append(np.where(tells | fresh, np.arange(len(places)), len(places)), len(places))
        following = np.minimum.accumulate(ends[::-1])[::-1][1:]
        there = known & (np.append(key, NONE)[following] == key)
        found[places[there]] = places[following[there]]
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
    outcome = np.where(end.outcome == PRESETTLED, _told(messages, told)[which] * earlier, end.outcome)
    nothing = np.zeros(len(which), np.int64)
    return {
        "connection": own["connection"], "map_no": own["session"] * MAPS + own["sender"],
        "frame_no": end.settled_frame_no, "opens": nothing, "first": own["number"], "last": own["number"],
        "outcome": outcome, "final": nothing + 1, "effective_ns": end.settled_ns, "transaction": end.transaction,
        "waits": nothing,
    }  # fmt: skip


def _told(messages: NDArray[np.void], told: Integers) -> Integers:
    """The outcome that the messages at these places state if they resume; 0 for none."""
    found: Integers = np.where((told != NONE) & (messages["resumes"][told] != 0), messages["stated"][told], 0)
    return found


class Needed(NamedTuple):
    """Which records later outcomes need: bool (n,) each."""

    messages: NDArray[np.bool_]
    events: NDArray[np.bool_]
    tx_ends: NDArray[np.bool_]


def still_needed(records: SessionRecords, outcomes: Outcomes) -> Needed:
    """What later outcomes need: messages that are not final, and those that decide them; transactions without an end,
    and those that other needed records name; of all these the openings, and events about them; settlements of messages
    whose links are not known yet."""
    events, transactions = records.events, outcomes.transactions
    map_no, opens = events["map_no"], events["opens"] == 1
    own_map = records.messages["session"] * MAPS + records.messages["sender"]
    completing = opens & (map_no % MAPS >= COMPLETIONS)
    completing &= places_in(outcomes.completed, map_no, events["frame_no"]) == NONE
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
        at = places(frame_keys(open_maps, open_frames), frame_keys(map_no, events["frame_no"]))
        waits = completing | opens & (at != NONE)
        needed = events_about(events, waits)
        contents = messages & (records.messages["command"] == 0)
        more = ends | transactions.ending(records.messages[contents]) | transactions.ending(events[needed])
        if (more == ends).all():
            return Needed(messages | lists_of(records, messages), needed, ends)
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
