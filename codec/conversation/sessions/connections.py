"""Tracks the sessions of many connections: loads the state of each, follows its performatives, saves its state."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.conversation.sessions.sessions import ATTACHED, DESTINATION, KIND_SHIFT, NAMED, SIDE_SHIFT
from codec.conversation.sessions.state import (
    CELLS,
    COUNT,
    FIRST,
    KINDS,
    NONE,
    PLACES,
    STARTED,
    SessionRecords,
    growth,
)
from codec.conversation.sessions.tracker import follow
from codec.conversation.states import NUMBERS, ConnectionStates, Integers, Layout, Parts
from codec.hashes.keyed import empty, put

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
    """The records of all connections, with places that count within all records."""
    parts = {name: states.parts[name] for name in SessionRecords._fields}
    for part, field, of, factor in PLACES:
        if part not in parts:
            continue
        counts = states.counts[of]
        if parts[part] is states.parts[part]:
            parts[part] = parts[part].copy()
        places = parts[part][field]
        begins = np.repeat((np.cumsum(counts) - counts) * factor, states.counts[part])
        parts[part][field] = np.where(places != NONE, places + begins, places)
    return SessionRecords(**parts)


def _texts_in(parts: Parts) -> list[Integers]:
    keys = parts["keys"]  # transactions without a name have a number below 0
    return [np.where(_of_text(keys), keys & _TEXT, 0)]


def _with_texts(parts: Parts, texts: Sequence[Integers]) -> Parts:
    keys = parts["keys"]
    return {"keys": np.where(_of_text(keys), keys & ~_TEXT | texts[0], keys)}


def _of_text(keys: Integers) -> NDArray[np.bool_]:
    """Which keys contain the number of a text."""
    found: NDArray[np.bool_] = np.isin(keys >> KIND_SHIFT, (DESTINATION, ATTACHED, NAMED))
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
    empty(s.found_by)
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
        for i in range(len(table.keys)):
            if table.epochs[i] == table.used[1]:
                r.keys[first[OF_KEYS] + at] = table.keys[i]
                r.values[first[OF_VALUES] + at] = table.values[i]
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
