"""The states of many connections' sessions as plain arrays (`codec.conversation.stored`), and one pass over the
performatives, controls and commands of such connections.

Numbers of texts in them belong to the caller (`texts_of`, `with_texts`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.conversation.sessions.pools import COUNT, FIRST
from codec.conversation.sessions.sessions import ATTACHED, DESTINATION, KIND_SHIFT, SIDE_SHIFT
from codec.conversation.sessions.state import KINDS, LEDGERS, NONE, STARTED, Ended, growth
from codec.conversation.sessions.tracker import follow
from codec.conversation.stored import Integers, Stored
from codec.hashes.keyed import empty, put

NUMBERS = np.dtype("i8")
CELLS = 8  # of `State.numbers`
PARTS = {"numbers": NUMBERS, "keys": NUMBERS, "values": NUMBERS, **KINDS}
(
    OF_NUMBERS, OF_KEYS, OF_VALUES, OF_SESSIONS, OF_LINKS, OF_BINDINGS, OF_ATTACHINGS, OF_MESSAGES, OF_EVENTS, OF_ASKS,
    OF_CHANGES, OF_REFUSALS,
) = range(len(PARTS))  # fmt: skip
_TEXT_FIELDS = tuple(
    (part, field)
    for part, fields in (
        ("sessions", ("name", "condition", "description", "branch", "tx_key")),
        ("links", ("name", "queue", "client_address", "server_address", "client_filters", "server_filters", "condition",
                   "description")),
        ("messages", ("key",)),
        ("events", ("key",)),
        ("asks", ("key",)),
    )
    for field in fields
)  # fmt: skip
TEXT_PARTS = (*(part for part, _ in _TEXT_FIELDS), "keys")
_TEXT = (1 << SIDE_SHIFT) - 1  # of a key
# Fields that hold the place of a record: (part, field, part of the record, how many places each one takes).
PLACES = (
    ("messages", "session", "sessions", 1), ("messages", "link", "links", 1), ("links", "session", "sessions", 1),
    ("links", "next", "links", 1), ("events", "ledger", "sessions", LEDGERS), ("asks", "ledger", "sessions", LEDGERS),
    ("changes", "session", "sessions", 1), ("changes", "link", "links", 1), ("refusals", "session", "sessions", 1),
)  # fmt: skip


class Records(NamedTuple):
    """The parts of connections, and where each connection begins in them: `ends` int64 (connections + 1, parts)."""

    numbers: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    sessions: np.ndarray
    links: np.ndarray
    bindings: np.ndarray
    attachings: np.ndarray
    messages: np.ndarray
    events: np.ndarray
    asks: np.ndarray
    changes: np.ndarray
    refusals: np.ndarray
    ends: np.ndarray


def records_of(stored: Stored) -> Records:
    """For kernels."""
    return Records(**{name: _viewed(part) for name, part in stored.parts.items()}, ends=stored.ends())


def room_for(stored: Stored, rows: int, ranges: int) -> Records:
    """Records that take the connections of `stored` after so many more rows, with so many ranges."""
    sizes = {name: len(part) + growth(name, rows, ranges) for name, part in stored.parts.items()}
    sizes["numbers"] = CELLS * len(stored.ids)
    parts = {name: _viewed(np.empty(size, PARTS[name])) for name, size in sizes.items()}
    return Records(**parts, ends=np.zeros((len(stored.ids) + 1, len(PARTS)), np.int64))


def stored_from(ids: Integers, records: Records) -> Stored:
    """What `follow_connections` wrote."""
    counts = np.diff(records.ends, axis=0)
    parts = {name: getattr(records, name)[: records.ends[-1, i]].view(PARTS[name]) for i, name in enumerate(PARTS)}
    parts = {name: np.asarray(part) for name, part in parts.items()}
    return Stored(ids, parts, {name: np.ascontiguousarray(counts[:, i]) for i, name in enumerate(PARTS)})


def _viewed(part: NDArray[Any]) -> NDArray[Any]:
    return part.view(np.recarray) if part.dtype.names else part


def largest(stored: Stored) -> int:
    """The most items that a connection has of a part."""
    return max((int(counts.max()) for counts in stored.counts.values() if len(counts)), default=0)


def ended_of(stored: Stored) -> Ended:
    """The records of all connections, with places that count within all of them."""
    parts = {name: stored.parts[name] for name in Ended._fields}
    for part, field, of, factor in PLACES:
        counts = stored.counts[of]
        if parts[part] is stored.parts[part]:
            parts[part] = parts[part].copy()
        places = parts[part][field]
        begins = np.repeat((np.cumsum(counts) - counts) * factor, stored.counts[part])
        parts[part][field] = np.where(places != NONE, places + begins, places)
    return Ended(**parts)


def texts_of(stored: Stored) -> list[NDArray[Any]]:
    """Numbers of texts in the parts TEXT_PARTS, where they are above 0; transactions that have no name are below."""
    keys = stored.parts["keys"]
    return [*(stored.parts[part][field] for part, field in _TEXT_FIELDS), np.where(_of_text(keys), keys & _TEXT, 0)]


def with_texts(stored: Stored, texts: list[Integers]) -> Stored:
    """The same with other numbers of texts."""
    parts = {name: part.copy() for name, part in stored.parts.items()}
    for (part, field), numbers in zip(_TEXT_FIELDS, texts[:-1], strict=True):
        parts[part][field] = numbers
    keys = parts["keys"]
    parts["keys"] = np.where(_of_text(keys), keys & ~_TEXT | texts[-1], keys)
    return Stored(stored.ids, parts, stored.counts)


def _of_text(keys: Integers) -> NDArray[np.bool_]:
    """Which keys hold the number of a text."""
    found: NDArray[np.bool_] = np.isin(keys >> KIND_SHIFT, (DESTINATION, ATTACHED))
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
def _load(s, r, j):
    """Make connection `j` of the records the one at hand; there are no records of others."""
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
    _load_pool(s.asks, r.asks, first[OF_ASKS], last[OF_ASKS])
    _load_pool(s.changes, r.changes, first[OF_CHANGES], last[OF_CHANGES])
    _load_pool(s.refusals, r.refusals, first[OF_REFUSALS], last[OF_REFUSALS])


@kernel
def _save(s, r, j):
    """Write the connection at hand as connection `j` of the records, behind those before."""
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
    _save_pool(s.asks, r.asks, first, last, OF_ASKS)
    _save_pool(s.changes, r.changes, first, last, OF_CHANGES)
    _save_pool(s.refusals, r.refusals, first, last, OF_REFUSALS)


@kernel
def follow_connections(s, roles, rows, ends, before, after):
    """Take `rows`, connection by connection: connection j, whose state is in `before`, has those up to `ends[j]`; its
    state goes to `after`. Without `ends` they are rows of one connection after the other, which go on with the one at
    hand; each of them ends where the next one begins."""
    if len(ends) == 0:
        follow(s, roles, rows, 0, len(rows.frame_no))
        return
    first = 0
    for j in range(len(ends)):
        _load(s, before, j)
        follow(s, roles, rows, first, ends[j])
        _save(s, after, j)
        first = ends[j]
    s.numbers[STARTED] = 0


@kernel
def save_connection(s, records):
    """Write the connection at hand, of which nothing stays, as the only one of the records."""
    _save(s, records, 0)


@kernel
def load_connection(s, records):
    """The reverse."""
    _load(s, records, 0)
