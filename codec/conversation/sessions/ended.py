"""Sessions and links that no later frame can change, and states without them.

A frame finds its session by a channel number, or by the name of a session that may go on, and its link by a handle or
name of that session. So a session is over once no number leads to it, and a link once it is detached, or its cancel is
completed, and no handle or name leads to it. Sessions and links that other records name stay.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.conversation.sessions.sessions import (
    ATTACHED,
    BEGUN,
    DESTINATION,
    HANDLE,
    KIND_SHIFT,
    NAMED,
    SECOND_NS,
    SESSION_SHIFT,
    UNOPENED,
    WAITING,
)
from codec.conversation.sessions.state import NONE, PLACES, SUBSCRIPTION
from codec.conversation.states import ConnectionStates, absolute, new_places, owners

Integers = NDArray[np.int64]
Truths = NDArray[np.bool_]
_SESSIONS = (1 << (KIND_SHIFT - SESSION_SHIFT)) - 1
# What keys lead to, and whether they contain the place of a session.
_LEADS = ((BEGUN, "sessions", False), (WAITING, "sessions", False),
          (UNOPENED, "sessions", False), (NAMED, "sessions", False),
          (HANDLE, "bindings", True), (DESTINATION, "bindings", True), (ATTACHED, "attachings", True))  # fmt: skip


class Ended(NamedTuple):
    """By record of the states: whether it can be dropped. `keys`: with their values."""

    sessions: Truths
    links: Truths
    bindings: Truths
    attachings: Truths
    keys: Truths


def ended_in(states: ConnectionStates, used: Integers) -> Ended:
    """What is over in `states`; `used`: places within all links of those that something else names."""
    parts, keys, values = states.parts, states.parts["keys"], states.parts["values"]
    kind, owner = keys >> KIND_SHIFT, owners(states, "keys")
    current, session_of = _none(states, "sessions"), (keys >> SESSION_SHIFT) & _SESSIONS
    dropped = {name: _none(states, name) for name in ("bindings", "attachings", "keys")}
    for each, part in (lead[:2] for lead in _LEADS if not lead[2]):
        which = kind == each
        at = absolute(states, part, owner[which], values[which])
        current[at] |= (each != NAMED) | _may_go_on(parts["sessions"][at], owner[which], states)
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
    named = {"sessions": current.copy(), "links": _none(states, "links")}
    named["links"][used] = True
    for part, field, of, factor in PLACES:
        records = parts[part][~dropped[part]] if part in dropped else parts[part]
        own = owners(states, part)[~dropped[part]] if part in dropped else owners(states, part)
        places = records[field]
        there = places != NONE
        if of == part or part == "sessions":  # chains of links
            session = np.arange(len(records)) if part == "sessions" else _sessions_of(states)
            there &= current[session]
        if part != "links" or field == "next":
            named[of][absolute(states, of, own[there], places[there] // factor)] = True
    links = parts["links"]
    session = _sessions_of(states)
    named["sessions"][session[named["links"]]] = True
    closed = (links["closing_ns"] != NONE) & ((links["kind"] != SUBSCRIPTION) | (links["over"] == 1))
    over = ~named["links"] & (closed | ~named["sessions"][session])
    return Ended(~named["sessions"], over, dropped["bindings"], dropped["attachings"], dropped["keys"])


def without(states: ConnectionStates, ended: Ended) -> ConnectionStates:
    """The states without what is over."""
    parts = dict(states.parts)
    new_place = {name: new_places(states, name, dropped) for name, dropped in ended._asdict().items()}
    for part, field, of, factor in PLACES:
        places = parts[part][field]
        parts[part] = parts[part].copy()
        at = absolute(states, of, owners(states, part), np.maximum(places, 0) // factor)
        new = np.append(new_place[of], 0)[at] * factor + places % factor
        parts[part][field] = np.where(places == NONE, NONE, new)
    keys, values = parts["keys"].copy(), parts["values"].copy()
    kind, owner = keys >> KIND_SHIFT, owners(states, "keys")
    for each, part, of_session in _LEADS:
        which = kind == each
        values[which] = new_place[part][absolute(states, part, owner[which], values[which])]
        if of_session:
            session = (keys[which] >> SESSION_SHIFT) & _SESSIONS
            new = new_place["sessions"][absolute(states, "sessions", owner[which], session)]
            keys[which] += (new - session) << SESSION_SHIFT
    parts["keys"], parts["values"] = keys, values
    found = ConnectionStates(states.ids, parts, states.counts)
    for name, dropped in (*ended._asdict().items(), ("values", ended.keys)):
        found = found.filtered(name, ~dropped)
    return found


def _may_go_on(sessions: NDArray[np.void], owner: Integers, states: ConnectionStates) -> Truths:
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
