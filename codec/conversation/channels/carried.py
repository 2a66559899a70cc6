"""What is known of the channels of one connection as plain arrays: put down by one process, taken up by another.

    parts = put_down(state)                         # arrays with numbers of texts, which belong to the caller
    parts = renumbered(parts, numbers)
    state = taken_up(new_state(), parts)

Records keep their places. `waiting_from` tells how far settlements are certain, `open_requests`
which requests may still be answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
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
    State,
    with_room,
)
from codec.hashes.keyed import Keyed, empty, refill
from codec.hashes.keyed import with_room as keyed_with_room

Parts = dict[str, NDArray[Any]]
NUMBERS = np.dtype("i8")
ARRAYS = {
    "numbers": NUMBERS, "touched": NUMBERS, "slots": SLOT, "keys": NUMBERS, "values": NUMBERS, "dialogues": DIALOGUE,
    "requests": REQUEST, "links": LINK, "pendings": PENDING, "declared": NUMBERS,
}  # fmt: skip
# Fields that hold numbers of texts, where they are above 0.
TEXTS = {
    "slots": ("close_text", "declared"),
    "requests": ("queue", "queue_type"),
    "links": ("tag", "queue", "queue_type"),
}
_TAG = (1 << LINK_CHANNEL_SHIFT) - 1
NO_FRAME = np.iinfo(np.int64).max
_POOLS = {"dialogues": DIALOGUES, "requests": REQUESTS, "links": LINKS, "pendings": PENDINGS, "declared": DECLARED}


def put_down(state: State) -> Parts:
    """The arrays (ARRAYS) of the connection at hand; no rows in them where there is none."""
    numbers, table = state.numbers, state.found_by
    if not numbers[STARTED]:
        return {name: np.zeros(0, kind) for name, kind in ARRAYS.items()}
    touched = state.touched[: numbers[TOUCHED]].copy()
    known = np.flatnonzero(table.epochs == table.used[1])
    pools = {name: np.array(getattr(state, name)[: numbers[cell]]) for name, cell in _POOLS.items()}
    return {
        "numbers": numbers.copy(),
        "touched": touched,
        "slots": np.array(state.slots[touched]),
        "keys": table.keys[known],
        "values": table.values[known],
        **pools,
    }


def taken_up(state: State, parts: Parts) -> State:
    """`state`, which has no connection at hand, with that of `parts`."""
    if not len(parts["numbers"]):
        return state
    epoch = int(state.numbers[EPOCH]) + 1
    state.numbers[:] = 0
    state = with_room(state, max(len(array) for array in parts.values()))
    state.numbers[:] = parts["numbers"]
    state.numbers[EPOCH] = epoch
    state.touched[: len(parts["touched"])] = parts["touched"]
    state.slots[parts["touched"]] = parts["slots"]
    state.slots["epoch"][parts["touched"]] = epoch
    for name in _POOLS:
        getattr(state, name)[: len(parts[name])] = parts[name]
    return state._replace(found_by=with_entries(state.found_by, parts["keys"], parts["values"]))


def with_entries(table: Keyed, keys: NDArray[np.int64], values: NDArray[np.int64]) -> Keyed:
    """`table`, in which nothing but these entries is found."""
    empty(table)
    table = keyed_with_room(table, len(keys))
    refill(table, Keyed(np.ones(len(keys), np.int64), keys.copy(), values.copy(), np.array([len(keys), 1])))
    return table


def texts_in(parts: Parts) -> NDArray[np.int64]:
    """Numbers of the texts that occur, each once."""
    found = [parts[name][field] for name, fields in TEXTS.items() for field in fields]
    found += [
        parts["declared"],
        parts["keys"][parts["keys"] >= LINK_KEY] & _TAG,
        parts["values"][parts["keys"] >= TYPE_KEY],
    ]
    numbers: NDArray[np.int64] = np.unique(np.concatenate(found))
    return numbers[numbers > 0]


def renumbered(parts: Parts, places: Mapping[int, int]) -> Parts:
    """The same with other numbers of texts."""
    parts = {name: array.copy() for name, array in parts.items()}
    for name, fields in TEXTS.items():
        for field in fields:
            parts[name][field] = replaced(parts[name][field], places)
    parts["declared"] = replaced(parts["declared"], places)
    of_link, of_type = parts["keys"] >= LINK_KEY, parts["keys"] >= TYPE_KEY
    keys = parts["keys"][of_link]
    parts["keys"][of_link] = keys & ~_TAG | replaced(keys & _TAG, places)
    parts["values"][of_type] = replaced(parts["values"][of_type], places)
    return parts


def replaced(numbers: NDArray[np.int64], places: Mapping[int, int]) -> NDArray[np.int64]:
    """Those above 0 replaced."""
    distinct, at = np.unique(numbers, return_inverse=True)
    found: NDArray[np.int64] = np.array([places[n] if n > 0 else n for n in distinct.tolist()], np.int64)[at]
    return found


@kernel
def _earliest(s, pending, frame_no):
    while pending != NONE:
        frame_no = min(frame_no, s.pendings[pending].frame_no)
        pending = s.pendings[pending].next
    return frame_no


@kernel
def waiting_from(s):
    """The first frame that settles something in a transaction that has not ended: what is said from there on is not
    certain. NO_FRAME where there is none."""
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
def open_requests(s, frames):
    """The frames of requests that may still be answered, into `frames`, which has room for all; how many there are."""
    n = 0
    for i in range(s.numbers[DIALOGUES]):
        request = s.dialogues[i].head
        while request != NONE:
            frames[n] = s.requests[request].frame_no
            n += 1
            request = s.requests[request].next
    return n
