"""Tracks the channels of many connections: loads the state of each, follows its methods, saves its state."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence

import numpy as np

from codec.compiler.kernel import kernel
from codec.conversation import channel_state as S
from codec.conversation.channel_state import DECLARED, NONE, TYPED
from codec.conversation.channel_tracker import (
    LINK_CHANNEL_SHIFT,
    LINK_KEY,
    QUEUE_TYPES,
    TYPE_KEY,
    TYPE_SHIFT,
    TYPE_TEXT,
    end_connection,
    follow,
)
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

NO_FRAME = np.iinfo(np.int64).max
CELLS = S.CELLS  # of `State.numbers`
PARTS = {
    "numbers": NUMBERS, "touched": NUMBERS, "slots": S.SLOT, "keys": NUMBERS, "values": NUMBERS,
    "request_queues": S.REQUEST_QUEUE, "requests": S.REQUEST, "links": S.LINK, "pendings": S.PENDING,
    "declared": NUMBERS, "unacked": S.UNACKED_DELIVERY,
}  # fmt: skip
# What a row may add to a part.
GROWTH = {"touched": 1, "slots": 1, "keys": 2, "values": 2} | dict.fromkeys(list(PARTS)[5:], 1)
(
    OF_NUMBERS, OF_TOUCHED, OF_SLOTS, OF_KEYS, OF_VALUES, OF_REQUEST_QUEUES, OF_REQUESTS, OF_LINKS, OF_PENDINGS,
    OF_DECLARED, OF_UNACKED,
) = range(len(PARTS))  # fmt: skip
TEXT_FIELDS = (
    ("slots", "close_text"), ("slots", "declared"), ("requests", "queue"), ("requests", "queue_type"), ("links", "tag"),
    ("links", "queue"), ("links", "queue_type"),
)  # fmt: skip
_TAG = (1 << LINK_CHANNEL_SHIFT) - 1


class Records(
    namedtuple(
        "Records", "numbers touched slots keys values request_queues requests links pendings declared unacked ends"
    )
):
    """The parts of connections, and where each connection begins in them: `ends` int64 (connections + 1, parts)."""


def _texts_in(parts: Parts) -> list[Integers]:
    keys, values = parts["keys"], parts["values"]
    return [
        parts["declared"],
        np.where(keys >= LINK_KEY, keys & _TAG, 0),
        np.where(keys >= TYPE_KEY, values & TYPE_TEXT, 0),
    ]


def _with_texts(parts: Parts, texts: Sequence[Integers]) -> Parts:
    (declared, tags, types), keys, values = texts, parts["keys"], parts["values"]
    return {
        "declared": declared,
        "values": np.where(keys >= TYPE_KEY, values & ~TYPE_TEXT | types, values),
        "keys": np.where(keys >= LINK_KEY, keys & ~_TAG | tags, keys),
    }


@kernel
def _load(items, part, first, count):
    for i in range(count):
        items[i] = part[first + i]


@kernel
def _save(items, part, ends, of, count):
    for i in range(count):
        part[ends[of] + i] = items[i]
    ends[of] += count


@kernel
def load_connection(s, r, j):
    """Make connection `j` of the records the current one."""
    numbers, first, last = s.numbers, r.ends[j], r.ends[j + 1]
    epoch = numbers[S.EPOCH] + 1
    clear(s.found_by)
    if first[OF_NUMBERS] == last[OF_NUMBERS]:
        numbers[S.STARTED] = 0
        return
    _load(numbers, r.numbers, first[OF_NUMBERS], CELLS)
    numbers[S.EPOCH] = epoch
    _load(s.touched, r.touched, first[OF_TOUCHED], numbers[S.TOUCHED])
    for i in range(numbers[S.TOUCHED]):
        channel = s.touched[i]
        s.slots[channel] = r.slots[first[OF_SLOTS] + i]
        s.slots[channel].epoch = epoch
    for i in range(last[OF_KEYS] - first[OF_KEYS]):
        put(s.found_by, r.keys[first[OF_KEYS] + i], r.values[first[OF_VALUES] + i])
    _load(s.request_queues, r.request_queues, first[OF_REQUEST_QUEUES], numbers[S.REQUEST_QUEUES])
    _load(s.requests, r.requests, first[OF_REQUESTS], numbers[S.REQUESTS])
    _load(s.links, r.links, first[OF_LINKS], numbers[S.LINKS])
    _load(s.pendings, r.pendings, first[OF_PENDINGS], numbers[S.PENDINGS])
    _load(s.declared, r.declared, first[OF_DECLARED], numbers[S.DECLARED])
    _load(s.unacked, r.unacked, first[OF_UNACKED], numbers[S.UNACKED])


@kernel
def save_connection(s, r, j):
    """Write the current connection as connection `j` of the records, behind those before."""
    numbers, ends, table = s.numbers, r.ends[j + 1], s.found_by
    for part in range(len(ends)):
        ends[part] = r.ends[j, part]
    if not numbers[S.STARTED]:
        return
    _save(numbers, r.numbers, ends, OF_NUMBERS, CELLS)
    _save(s.touched, r.touched, ends, OF_TOUCHED, numbers[S.TOUCHED])
    for i in range(numbers[S.TOUCHED]):
        r.slots[ends[OF_SLOTS] + i] = s.slots[s.touched[i]]
    ends[OF_SLOTS] += numbers[S.TOUCHED]
    for i in range(table.used[SLOTS], 2 * table.used[SLOTS]):
        if has_entry(table, i):
            r.keys[ends[OF_KEYS]] = table.entries[i, KEY]
            r.values[ends[OF_VALUES]] = table.entries[i, VALUE]
            ends[OF_KEYS] += 1
            ends[OF_VALUES] += 1
    _save(s.request_queues, r.request_queues, ends, OF_REQUEST_QUEUES, numbers[S.REQUEST_QUEUES])
    _save(s.requests, r.requests, ends, OF_REQUESTS, numbers[S.REQUESTS])
    _save(s.links, r.links, ends, OF_LINKS, numbers[S.LINKS])
    _save(s.pendings, r.pendings, ends, OF_PENDINGS, numbers[S.PENDINGS])
    _save(s.declared, r.declared, ends, OF_DECLARED, numbers[S.DECLARED])
    _save(s.unacked, r.unacked, ends, OF_UNACKED, numbers[S.UNACKED])


@kernel
def follow_connections(s, roles, rows, ends, before, after, out):
    """Follow `rows`, connection by connection: connection j has those up to `ends[j]`; its state is read from `before`
    and written to `after`. Without `ends`, the rows continue the current connection, and each connection ends where the
    next one begins."""
    if len(ends) == 0:
        follow(s, roles, rows, 0, len(rows.frame_no), out)
        return
    first = 0
    for j in range(len(ends)):
        load_connection(s, before, j)
        follow(s, roles, rows, first, ends[j], out)
        save_connection(s, after, j)
        first = ends[j]
    s.numbers[S.STARTED] = 0


@kernel
def end_connections(s, records, out):
    """End the connections of the records and the current one: they have no more rows."""
    end_connection(s, out)
    for j in range(len(records.ends) - 1):
        load_connection(s, records, j)
        end_connection(s, out)
    s.numbers[S.STARTED] = 0


@kernel
def _earliest(s, pending, frame_no):
    while pending != S.NONE:
        frame_no = min(frame_no, s.pendings[pending].frame_no)
        pending = s.pendings[pending].next
    return frame_no


@kernel
def _first_unresolved(s):
    """The first frame that settles something in an open transaction; NO_FRAME if there is none."""
    frame_no = NO_FRAME
    for i in range(s.numbers[S.TOUCHED]):
        frame_no = _earliest(s, s.slots[s.touched[i]].tx_head, frame_no)
    for i in range(s.numbers[S.REQUEST_QUEUES]):
        request = s.request_queues[i].head
        while request != S.NONE:
            frame_no = _earliest(s, s.requests[request].tx_head, frame_no)
            request = s.requests[request].next
    return frame_no


@kernel
def _open_requests(s, frames, n):
    for i in range(s.numbers[S.REQUEST_QUEUES]):
        request = s.request_queues[i].head
        while request != S.NONE:
            frames[n] = s.requests[request].frame_no
            n += 1
            request = s.requests[request].next
    return n


@kernel
def pending_requests(s, records, until, frames, ends):
    """For each connection of the records, or for the current one if there are none: `until`, the first frame that
    settles something in an open transaction, from which on outcomes are open (NO_FRAME: none); `frames`, up to `ends`,
    those of requests that may still be answered."""
    n = 0
    if len(records.ends) == 1:
        until[0] = _first_unresolved(s)
        ends[0] = _open_requests(s, frames, 0)
        return
    for j in range(len(records.ends) - 1):
        load_connection(s, records, j)
        until[j] = NO_FRAME
        if s.numbers[S.STARTED]:
            until[j] = _first_unresolved(s)
            n = _open_requests(s, frames, n)
        ends[j] = n
    s.numbers[S.STARTED] = 0


LAYOUT = Layout(
    PARTS, Records, CELLS, lambda part, rows, _: GROWTH.get(part, 0) * rows, load_connection, save_connection,
    TEXT_FIELDS, ("declared", "keys", "values"), _texts_in, _with_texts,
)  # fmt: skip


# States without what no later row can name: queues declared without a name that nothing refers to any more, and types
# of queues that were declared too long ago.


# Fields that hold the slot of a declared name: as it is, or below 0 (`links.declare_queue`).
_PLAIN = (("requests", "declares"),)
_NEGATIVE = (("slots", "declared"), ("links", "queue"))


def without_unnamed(states: ConnectionStates) -> ConnectionStates:
    """The states without it."""
    parts, there = dict(states.parts), states.counts["numbers"] > 0
    numbers = parts["numbers"].reshape(-1, CELLS).copy()
    typed = np.zeros(len(states.ids), np.int64)
    typed[there] = numbers[:, TYPED]
    keys, values = parts["keys"], parts["values"]
    known = (keys < TYPE_KEY) | (typed[owners(states, "keys")] - (values >> TYPE_SHIFT) < QUEUE_TYPES)
    named, slots = np.zeros(len(parts["declared"]), bool), {}
    for part, field in (*_PLAIN, *_NEGATIVE):
        found = parts[part][field]
        own = found if (part, field) in _PLAIN else np.where(found < 0, -found - 1, NONE)
        at = np.flatnonzero(own != NONE)
        slots[part, field] = at, absolute(states, "declared", owners(states, part)[at], own[at])
        named[slots[part, field][1]] = True
    new_slot = new_indices(states, "declared", ~named)
    for (part, field), (at, of) in slots.items():
        parts[part] = parts[part].copy()
        parts[part][field][at] = new_slot[of] if (part, field) in _PLAIN else -new_slot[of] - 1
    found_by = ConnectionStates(states.ids, parts, states.counts)
    for name, mask in (("declared", named), ("keys", known), ("values", known)):
        found_by = found_by.filtered(name, mask)
    numbers[:, DECLARED] = found_by.counts["declared"][there]
    return ConnectionStates(states.ids, {**found_by.parts, "numbers": numbers.reshape(-1)}, found_by.counts)
