"""The states of many connections' channels as plain arrays (`codec.conversation.stored`), and one pass over the methods
of such connections.

Numbers of texts in them belong to the caller (`texts_of`, `with_texts`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.conversation.channels.history import end_connection, follow
from codec.conversation.channels.links import LINK_CHANNEL_SHIFT, LINK_KEY, TYPE_KEY
from codec.conversation.channels.state import (
    DECLARED,
    DIALOGUE,
    DIALOGUES,
    EPOCH,
    LINK,
    LINKS,
    NONE,
    PENDING,
    PENDINGS,
    REQUEST,
    REQUESTS,
    SLOT,
    STARTED,
    TOUCHED,
)
from codec.conversation.stored import Integers, Stored
from codec.hashes.keyed import empty, put

NUMBERS = np.dtype("i8")
NO_FRAME = np.iinfo(np.int64).max
CELLS = 16  # of `State.numbers`
PARTS = {
    "numbers": NUMBERS, "touched": NUMBERS, "slots": SLOT, "keys": NUMBERS, "values": NUMBERS, "dialogues": DIALOGUE,
    "requests": REQUEST, "links": LINK, "pendings": PENDING, "declared": NUMBERS,
}  # fmt: skip
# What one row may add to a part.
GROWTH = {"touched": 1, "slots": 1, "keys": 2, "values": 2} | dict.fromkeys(list(PARTS)[5:], 1)
(
    OF_NUMBERS, OF_TOUCHED, OF_SLOTS, OF_KEYS, OF_VALUES, OF_DIALOGUES, OF_REQUESTS, OF_LINKS, OF_PENDINGS, OF_DECLARED,
) = range(len(PARTS))  # fmt: skip
_TEXT_FIELDS = (
    ("slots", "close_text"), ("slots", "declared"), ("requests", "queue"), ("requests", "queue_type"), ("links", "tag"),
    ("links", "queue"), ("links", "queue_type"),
)  # fmt: skip
TEXT_PARTS = (*(part for part, _ in _TEXT_FIELDS), "declared", "keys", "values")
_TAG = (1 << LINK_CHANNEL_SHIFT) - 1


class Records(NamedTuple):
    """The parts of connections, and where each connection begins in them: `ends` int64 (connections + 1, parts)."""

    numbers: np.ndarray
    touched: np.ndarray
    slots: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    dialogues: np.ndarray
    requests: np.ndarray
    links: np.ndarray
    pendings: np.ndarray
    declared: np.ndarray
    ends: np.ndarray


def records_of(stored: Stored) -> Records:
    """For kernels."""
    return Records(**{name: _viewed(part) for name, part in stored.parts.items()}, ends=stored.ends())


def room_for(stored: Stored, rows: int) -> Records:
    """Records that take the connections of `stored` after `rows` more rows."""
    sizes = {name: len(part) + GROWTH.get(name, 0) * rows for name, part in stored.parts.items()}
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


def texts_of(stored: Stored) -> list[NDArray[Any]]:
    """Numbers of texts in the parts TEXT_PARTS, where they are above 0."""
    parts = stored.parts
    keys, values = parts["keys"], parts["values"]
    return [
        *(parts[part][field] for part, field in _TEXT_FIELDS),
        parts["declared"],
        np.where(keys >= LINK_KEY, keys & _TAG, 0),
        np.where(keys >= TYPE_KEY, values, 0),
    ]


def with_texts(stored: Stored, texts: list[Integers]) -> Stored:
    """The same with other numbers of texts."""
    parts = {name: part.copy() for name, part in stored.parts.items()}
    for (part, field), numbers in zip(_TEXT_FIELDS, texts[: len(_TEXT_FIELDS)], strict=True):
        parts[part][field] = numbers
    declared, tags, types = texts[len(_TEXT_FIELDS) :]
    keys, values = parts["keys"], parts["values"]
    parts |= {
        "declared": declared,
        "values": np.where(keys >= TYPE_KEY, types, values),
        "keys": np.where(keys >= LINK_KEY, keys & ~_TAG | tags, keys),
    }
    return Stored(stored.ids, parts, stored.counts)


@kernel
def _load(s, r, j):
    """Make connection `j` of the records the one at hand."""
    numbers, first, last = s.numbers, r.ends[j], r.ends[j + 1]
    epoch = numbers[EPOCH] + 1
    empty(s.found_by)
    if first[OF_NUMBERS] == last[OF_NUMBERS]:
        numbers[STARTED] = 0
        return
    for i in range(CELLS):
        numbers[i] = r.numbers[first[OF_NUMBERS] + i]
    numbers[EPOCH] = epoch
    for i in range(numbers[TOUCHED]):
        channel = r.touched[first[OF_TOUCHED] + i]
        s.touched[i] = channel
        s.slots[channel] = r.slots[first[OF_SLOTS] + i]
        s.slots[channel].epoch = epoch
    for i in range(last[OF_KEYS] - first[OF_KEYS]):
        put(s.found_by, r.keys[first[OF_KEYS] + i], r.values[first[OF_VALUES] + i])
    for i in range(numbers[DIALOGUES]):
        s.dialogues[i] = r.dialogues[first[OF_DIALOGUES] + i]
    for i in range(numbers[REQUESTS]):
        s.requests[i] = r.requests[first[OF_REQUESTS] + i]
    for i in range(numbers[LINKS]):
        s.links[i] = r.links[first[OF_LINKS] + i]
    for i in range(numbers[PENDINGS]):
        s.pendings[i] = r.pendings[first[OF_PENDINGS] + i]
    for i in range(numbers[DECLARED]):
        s.declared[i] = r.declared[first[OF_DECLARED] + i]


@kernel
def _save(s, r, j):
    """Write the connection at hand as connection `j` of the records, behind those before."""
    numbers, first, last, table = s.numbers, r.ends[j], r.ends[j + 1], s.found_by
    for part in range(len(first)):
        last[part] = first[part]
    if not numbers[STARTED]:
        return
    for i in range(CELLS):
        r.numbers[first[OF_NUMBERS] + i] = numbers[i]
    for i in range(numbers[TOUCHED]):
        r.touched[first[OF_TOUCHED] + i] = s.touched[i]
        r.slots[first[OF_SLOTS] + i] = s.slots[s.touched[i]]
    at = 0
    for i in range(len(table.keys)):
        if table.epochs[i] == table.used[1]:
            r.keys[first[OF_KEYS] + at] = table.keys[i]
            r.values[first[OF_VALUES] + at] = table.values[i]
            at += 1
    for i in range(numbers[DIALOGUES]):
        r.dialogues[first[OF_DIALOGUES] + i] = s.dialogues[i]
    for i in range(numbers[REQUESTS]):
        r.requests[first[OF_REQUESTS] + i] = s.requests[i]
    for i in range(numbers[LINKS]):
        r.links[first[OF_LINKS] + i] = s.links[i]
    for i in range(numbers[PENDINGS]):
        r.pendings[first[OF_PENDINGS] + i] = s.pendings[i]
    for i in range(numbers[DECLARED]):
        r.declared[first[OF_DECLARED] + i] = s.declared[i]
    last[OF_NUMBERS] += CELLS
    last[OF_TOUCHED] += numbers[TOUCHED]
    last[OF_SLOTS] += numbers[TOUCHED]
    last[OF_KEYS] += at
    last[OF_VALUES] += at
    last[OF_DIALOGUES] += numbers[DIALOGUES]
    last[OF_REQUESTS] += numbers[REQUESTS]
    last[OF_LINKS] += numbers[LINKS]
    last[OF_PENDINGS] += numbers[PENDINGS]
    last[OF_DECLARED] += numbers[DECLARED]


@kernel
def follow_connections(s, roles, rows, ends, before, after, out):
    """Take `rows`, connection by connection: connection j, whose state is in `before`, has those up to `ends[j]`; its
    state goes to `after`. Without `ends` they are rows of one connection after the other, which go on with the one at
    hand; each of them ends where the next one begins."""
    if len(ends) == 0:
        follow(s, roles, rows, 0, len(rows.frame_no), out)
        return
    first = 0
    for j in range(len(ends)):
        _load(s, before, j)
        follow(s, roles, rows, first, ends[j], out)
        _save(s, after, j)
        first = ends[j]
    s.numbers[STARTED] = 0


@kernel
def end_connections(s, records, out):
    """The connections of the records have no more rows, nor has the one at hand."""
    end_connection(s, out)
    for j in range(len(records.ends) - 1):
        _load(s, records, j)
        end_connection(s, out)
    s.numbers[STARTED] = 0


@kernel
def _earliest(s, pending, frame_no):
    while pending != NONE:
        frame_no = min(frame_no, s.pendings[pending].frame_no)
        pending = s.pendings[pending].next
    return frame_no


@kernel
def _waiting_from(s):
    """The first frame that settles something in a transaction that has not ended; NO_FRAME where there is none."""
    frame_no = NO_FRAME
    for i in range(s.numbers[TOUCHED]):
        frame_no = _earliest(s, s.slots[s.touched[i]].tx_head, frame_no)
    for i in range(s.numbers[DIALOGUES]):
        request = s.dialogues[i].head
        while request != NONE:
            frame_no = _earliest(s, s.requests[request].tx_head, frame_no)
            request = s.requests[request].next
    return frame_no


@kernel
def _open_requests(s, frames, n):
    for i in range(s.numbers[DIALOGUES]):
        request = s.dialogues[i].head
        while request != NONE:
            frames[n] = s.requests[request].frame_no
            n += 1
            request = s.requests[request].next
    return n


@kernel
def what_waits(s, records, until, frames, ends):
    """Of each connection of the records, or without any of the one at hand: `until`, the first frame that settles
    something in a transaction that has not ended, from which on nothing is certain (NO_FRAME: there is none);
    in `frames`, which has room for all, up to `ends`, the frames of requests that may still be answered."""
    n = 0
    if len(records.ends) == 1:
        until[0] = _waiting_from(s)
        ends[0] = _open_requests(s, frames, 0)
        return
    for j in range(len(records.ends) - 1):
        _load(s, records, j)
        until[j] = NO_FRAME
        if s.numbers[STARTED]:
            until[j] = _waiting_from(s)
            n = _open_requests(s, frames, n)
        ends[j] = n
    s.numbers[STARTED] = 0


@kernel
def save_connection(s, records):
    """Write the connection at hand, which stays, as the only one of the records."""
    _save(s, records, 0)


@kernel
def load_connection(s, records):
    """The reverse."""
    _load(s, records, 0)
