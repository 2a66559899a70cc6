"""Tracks the sessions of many connections: loads the state of each, follows its performatives, saves its state."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.conversation.session_lookup import SECOND_NS
from codec.conversation.session_state import (
    ATTACHED,
    BEGUN,
    BRANCH,
    CELLS,
    COUNT,
    DELIVERY,
    DESTINATION,
    FIRST,
    FLUSH,
    HANDLE,
    KIND_SHIFT,
    KINDS,
    NAMED,
    NONE,
    OF_LINK,
    RESULT,
    SESSION_SHIFT,
    SIDE_SHIFT,
    SLOT_FIELDS,
    STARTED,
    SUBSCRIPTION,
    TAG,
    TRANSACTION,
    UNOPENED,
    WAITING,
    SessionRecords,
    growth,
    is_old_tag,
)
from codec.conversation.session_tracker import follow
from codec.conversation.states import (
    NUMBERS,
    ConnectionStates,
    Integers,
    Layout,
    Parts,
    absolute,
    new_indices,
    owners,
)
from codec.hashes.maps import KEY, SLOTS, VALUE, clear, has_entry, put

PARTS = {"numbers": NUMBERS, "keys": NUMBERS, "values": NUMBERS, **KINDS}
(
    OF_NUMBERS, OF_KEYS, OF_VALUES, OF_SESSIONS, OF_LINKS, OF_BINDINGS, OF_ATTACHINGS, OF_MESSAGES, OF_EVENTS,
    OF_TX_ENDS, OF_CHANGES, OF_REFUSALS,
) = range(len(PARTS))  # fmt: skip
TEXT_FIELDS = tuple(
    (part, field)
    for part, fields in (
        ("sessions", ("name", "condition", "description", "branch", "tx_key")),
        ("links", ("name", "queue", "client_address", "server_address", "client_filters", "server_filters", "condition",
                   "description")),
        ("messages", ("key",)),
        ("events", ("key", "error", "info")),
        ("tx_ends", ("key",)),
    )
    for field in fields
)  # fmt: skip
_TEXT = (1 << SIDE_SHIFT) - 1  # of a key


class Records(
    namedtuple(
        "Records",
        "numbers keys values sessions links bindings attachings messages events tx_ends changes refusals ends",
    )
):
    """The parts of connections, and where each connection begins in them: `ends` int64 (connections + 1, parts)."""


def records_of_all(states: ConnectionStates) -> SessionRecords:
    """The records of all connections, with indices that count within all records."""
    parts = {name: states.parts[name] for name in SessionRecords._fields}
    for part, field, of, factor in SLOT_FIELDS:
        if part not in parts:
            continue
        counts = states.counts[of]
        if parts[part] is states.parts[part]:
            parts[part] = parts[part].copy()
        slots = parts[part][field]
        begins = np.repeat((np.cumsum(counts) - counts) * factor, states.counts[part])
        parts[part][field] = np.where(slots != NONE, slots + begins, slots)
    return SessionRecords(**parts)


def _texts_in(parts: Parts) -> list[Integers]:
    keys = parts["keys"]  # transactions without a name have a number below 0
    return [np.where(_of_text(keys), keys & _TEXT, 0)]


def _with_texts(parts: Parts, texts: Sequence[Integers]) -> Parts:
    keys = parts["keys"]
    return {"keys": np.where(_of_text(keys), keys & ~_TEXT | texts[0], keys)}


def _of_text(keys: Integers) -> NDArray[np.bool_]:
    """Which keys contain the number of a text."""
    found: NDArray[np.bool_] = np.isin(keys >> KIND_SHIFT, (DESTINATION, ATTACHED, NAMED, BRANCH, TRANSACTION))
    return found


@kernel
def _load_pool(pool, part, first, last):
    for i in range(last - first):
        pool.rows[i] = part[first + i]
    pool.cells[COUNT] = last - first
    pool.cells[FIRST] = 0


@kernel
def _save_pool(pool, part, first, last, of):
    for i in range(pool.cells[COUNT]):
        part[first[of] + i] = pool.rows[i]
    last[of] = first[of] + pool.cells[COUNT]
    pool.cells[COUNT] = 0


@kernel
def load_connection(s, r, j):
    """Make connection `j` of the records the current one; there are no records of others."""
    first, last = r.ends[j], r.ends[j + 1]
    clear(s.found_by)
    s.numbers[STARTED] = 0
    for i in range(last[OF_NUMBERS] - first[OF_NUMBERS]):
        s.numbers[i] = r.numbers[first[OF_NUMBERS] + i]
    for i in range(last[OF_KEYS] - first[OF_KEYS]):
        put(s.found_by, r.keys[first[OF_KEYS] + i], r.values[first[OF_VALUES] + i])
    _load_pool(s.sessions, r.sessions, first[OF_SESSIONS], last[OF_SESSIONS])
    _load_pool(s.links, r.links, first[OF_LINKS], last[OF_LINKS])
    _load_pool(s.bindings, r.bindings, first[OF_BINDINGS], last[OF_BINDINGS])
    _load_pool(s.attachings, r.attachings, first[OF_ATTACHINGS], last[OF_ATTACHINGS])
    _load_pool(s.messages, r.messages, first[OF_MESSAGES], last[OF_MESSAGES])
    _load_pool(s.events, r.events, first[OF_EVENTS], last[OF_EVENTS])
    _load_pool(s.tx_ends, r.tx_ends, first[OF_TX_ENDS], last[OF_TX_ENDS])
    _load_pool(s.changes, r.changes, first[OF_CHANGES], last[OF_CHANGES])
    _load_pool(s.refusals, r.refusals, first[OF_REFUSALS], last[OF_REFUSALS])


@kernel
def save_connection(s, r, j):
    """Write the current connection as connection `j` of the records, behind those before."""
    first, last, table = r.ends[j], r.ends[j + 1], s.found_by
    at = 0
    if s.numbers[STARTED]:
        for i in range(CELLS):
            r.numbers[first[OF_NUMBERS] + i] = s.numbers[i]
        for i in range(table.used[SLOTS], 2 * table.used[SLOTS]):
            if has_entry(table, i) and not is_old_tag(table, i):
                r.keys[first[OF_KEYS] + at] = table.entries[i, KEY]
                r.values[first[OF_VALUES] + at] = table.entries[i, VALUE]
                at += 1
    last[OF_NUMBERS] = first[OF_NUMBERS] + (CELLS if s.numbers[STARTED] else 0)
    last[OF_KEYS] = first[OF_KEYS] + at
    last[OF_VALUES] = first[OF_VALUES] + at
    _save_pool(s.sessions, r.sessions, first, last, OF_SESSIONS)
    _save_pool(s.links, r.links, first, last, OF_LINKS)
    _save_pool(s.bindings, r.bindings, first, last, OF_BINDINGS)
    _save_pool(s.attachings, r.attachings, first, last, OF_ATTACHINGS)
    _save_pool(s.messages, r.messages, first, last, OF_MESSAGES)
    _save_pool(s.events, r.events, first, last, OF_EVENTS)
    _save_pool(s.tx_ends, r.tx_ends, first, last, OF_TX_ENDS)
    _save_pool(s.changes, r.changes, first, last, OF_CHANGES)
    _save_pool(s.refusals, r.refusals, first, last, OF_REFUSALS)


@kernel
def follow_connections(s, roles, rows, ends, before, after):
    """Follow `rows`, connection by connection: connection j has those up to `ends[j]`; its state is read from `before`
    and written to `after`. Without `ends`, the rows continue the current connection, and each connection ends where the
    next one begins."""
    if len(ends) == 0:
        follow(s, roles, rows, 0, len(rows.frame_no))
        return
    first = 0
    for j in range(len(ends)):
        load_connection(s, before, j)
        follow(s, roles, rows, first, ends[j])
        save_connection(s, after, j)
        first = ends[j]
    s.numbers[STARTED] = 0


LAYOUT = Layout(
    PARTS, Records, CELLS, growth, load_connection, save_connection, TEXT_FIELDS, ("keys",), _texts_in, _with_texts
)


# Sessions and links that no later frame can change, and states without them.
#
# A frame finds its session by a channel number, or by the name of a session that may go on, and its link by a handle or
# name of that session. So a session is over once no number leads to it, and a link once it is detached, or its cancel
# is completed, and no handle or name leads to it. Sessions and links that other records name stay.


Truths = NDArray[np.bool_]
_SESSIONS = (1 << (KIND_SHIFT - SESSION_SHIFT)) - 1
# What keys lead to, and whether they contain the slot of a session.
_LEADS = ((BEGUN, "sessions", False), (WAITING, "sessions", False),
          (UNOPENED, "sessions", False), (NAMED, "sessions", False),
          (HANDLE, "bindings", True), (DESTINATION, "bindings", True), (ATTACHED, "attachings", True))  # fmt: skip
_OF_SESSION = (DELIVERY, FLUSH, BRANCH, RESULT)  # keys that contain a session, and lead to no record
_TO_LINK = (DELIVERY, FLUSH, TRANSACTION)  # whose values contain a link


class Droppable(NamedTuple):
    """By record of the states: whether it can be dropped. `keys`: with their values."""

    sessions: Truths
    links: Truths
    bindings: Truths
    attachings: Truths
    keys: Truths


def droppable_in(states: ConnectionStates, used: Integers) -> Droppable:
    """What is over in `states`; `used`: indices within all links of those that something else names."""
    parts, keys, values = states.parts, states.parts["keys"], states.parts["values"]
    kind, owner = keys >> KIND_SHIFT, owners(states, "keys")
    current, session_of = _none(states, "sessions"), (keys >> SESSION_SHIFT) & _SESSIONS
    dropped = {name: _none(states, name) for name in ("bindings", "attachings", "keys")}
    for each, part in (lead[:2] for lead in _LEADS if not lead[2]):
        which = kind == each
        at = absolute(states, part, owner[which], values[which])
        current[at] |= (each != NAMED) | _may_resume(parts["sessions"][at], owner[which], states)
        dropped["keys"][which] = ~current[at]
    attachings = parts["attachings"]
    for each, part in (lead[:2] for lead in _LEADS if lead[2]):
        which = np.flatnonzero(kind == each)
        session = absolute(states, "sessions", owner[which], session_of[which])
        at = absolute(states, part, owner[which], values[which])
        over = ~current[session]
        if each == ATTACHED:  # the next attach of this name would find what a new record has
            opened = parts["sessions"]["opened_losses"][session]
            detached = (attachings["ends"][at] == 0) & (attachings["head"][at] == NONE)
            over |= detached & (attachings["epoch"][at] == opened)
        elif each == DESTINATION:
            over |= (parts["bindings"]["link"][at] == NONE) & (parts["bindings"]["unknown"][at] == NONE)
        dropped[part][at] = over
        dropped["keys"][which] = over
    for of_session in (np.isin(kind, _OF_SESSION), kind == TAG):
        which = np.flatnonzero(of_session)
        dropped["keys"][which] = ~current[absolute(states, "sessions", owner[which], _named_session(states, which))]
    # Transactions on control links of sessions that are over were rolled back.
    which = np.flatnonzero((kind == TRANSACTION) & (values & OF_LINK > 0))
    at = absolute(states, "links", owner[which], (values[which] & OF_LINK) - 1)
    dropped["keys"][which] = ~current[_sessions_of(states)[at]]
    named = {"sessions": current.copy(), "links": _none(states, "links")}
    named["links"][used] = True
    which = np.isin(kind, _TO_LINK) & ~dropped["keys"] & (values & OF_LINK > 0)
    named["links"][absolute(states, "links", owner[which], (values[which] & OF_LINK) - 1)] = True
    for part, field, of, factor in SLOT_FIELDS:
        records = parts[part][~dropped[part]] if part in dropped else parts[part]
        own = owners(states, part)[~dropped[part]] if part in dropped else owners(states, part)
        slots = records[field]
        there = slots != NONE
        if of == part or part == "sessions":  # chains of links
            session = np.arange(len(records)) if part == "sessions" else _sessions_of(states)
            there &= current[session]
        if part != "links" or field == "next":
            named[of][absolute(states, of, own[there], slots[there] // factor)] = True
    links = parts["links"]
    session = _sessions_of(states)
    named["sessions"][session[named["links"]]] = True
    closed = (links["closing_ns"] != NONE) & ((links["kind"] != SUBSCRIPTION) | (links["over"] == 1))
    over = ~named["links"] & (closed | ~named["sessions"][session])
    return Droppable(~named["sessions"], over, dropped["bindings"], dropped["attachings"], dropped["keys"])


def drop(states: ConnectionStates, ended: Droppable) -> ConnectionStates:
    """The states without what is over."""
    parts = dict(states.parts)
    new_slot = {name: new_indices(states, name, dropped) for name, dropped in ended._asdict().items()}
    for part, field, of, factor in SLOT_FIELDS:
        slots = parts[part][field]
        parts[part] = parts[part].copy()
        at = absolute(states, of, owners(states, part), np.maximum(slots, 0) // factor)
        new = np.append(new_slot[of], 0)[at] * factor + slots % factor
        parts[part][field] = np.where(slots == NONE, NONE, new)
    keys, values = parts["keys"].copy(), parts["values"].copy()
    kind, owner = keys >> KIND_SHIFT, owners(states, "keys")
    for each, part, of_session in _LEADS:
        which = kind == each
        values[which] = new_slot[part][absolute(states, part, owner[which], values[which])]
        if of_session:
            session = (keys[which] >> SESSION_SHIFT) & _SESSIONS
            new = new_slot["sessions"][absolute(states, "sessions", owner[which], session)]
            keys[which] += (new - session) << SESSION_SHIFT
    stays = ~ended.keys
    for which in (np.isin(kind, _OF_SESSION) & stays, (kind == TAG) & stays):
        session = _named_session(states, np.flatnonzero(which))
        new = new_slot["sessions"][absolute(states, "sessions", owner[which], session)]
        numbers = values if (kind[which] == TAG).all() else keys
        numbers[which] += (new - session) << SESSION_SHIFT
    which = np.isin(kind, _TO_LINK) & stays & (values & OF_LINK > 0)
    at = (values[which] & OF_LINK) - 1
    values[which] += new_slot["links"][absolute(states, "links", owner[which], at)] - at
    parts["keys"], parts["values"] = keys, values
    found = ConnectionStates(states.ids, parts, states.counts)
    for name, dropped in (*ended._asdict().items(), ("values", ended.keys)):
        found = found.filtered(name, ~dropped)
    return found


def _named_session(states: ConnectionStates, which: Integers) -> Integers:
    """The session in these keys of `_OF_SESSION`, or, of TAG, in the key of the delivery."""
    keys, values = states.parts["keys"][which], states.parts["values"][which]
    found: Integers = (np.where(keys >> KIND_SHIFT == TAG, values, keys) >> SESSION_SHIFT) & _SESSIONS
    return found


def _may_resume(sessions: NDArray[np.void], owner: Integers, states: ConnectionStates) -> Truths:
    """Which sessions of these connections are detached, and have not expired so far."""
    now = np.zeros(len(states.ids), np.int64)
    np.maximum.at(now, owners(states, "sessions"), states.parts["sessions"]["last_ns"])
    expire_ns = sessions["closed_ns"] + sessions["timeout_s"] * SECOND_NS
    preserved = (sessions["closed_ns"] != NONE) & (sessions["failed"] == 0) & (sessions["timeout_s"] > 0)
    found: Truths = preserved & (expire_ns >= now[owner])
    return found


def _sessions_of(states: ConnectionStates) -> Integers:
    """The session of each link."""
    return absolute(states, "sessions", owners(states, "links"), states.parts["links"]["session"])


def _none(states: ConnectionStates, part: str) -> Truths:
    return np.zeros(len(states.parts[part]), bool)
