"""What is known of the sessions of one connection as plain arrays: put down by one process, taken up by another.

Records keep their places; numbers of texts belong to the caller, who renumbers them (`texts_in`, `renumbered`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codec.conversation.channels.carried import NUMBERS, Parts, replaced, with_entries
from codec.conversation.sessions.pools import COUNT, Pool, longer
from codec.conversation.sessions.sessions import ATTACHED, DESTINATION, KIND_SHIFT, SIDE_SHIFT
from codec.conversation.sessions.state import KINDS, STARTED, State

ARRAYS = {"numbers": NUMBERS, "keys": NUMBERS, "values": NUMBERS, **KINDS}
# Fields that hold numbers of texts, where they are above 0; transactions that have no name are below.
TEXTS = {
    "sessions": ("name", "condition", "description", "branch", "tx_key"),
    "links": (
        "name",
        "queue",
        "client_address",
        "server_address",
        "client_filters",
        "server_filters",
        "condition",
        "description",
    ),
    "messages": ("key",),
    "events": ("key",),
    "asks": ("key",),
}
_TEXT = (1 << SIDE_SHIFT) - 1  # of a key


def put_down(state: State) -> Parts:
    """The arrays (ARRAYS) of the connection at hand; there are records of no other. No rows in them where there is no
    connection."""
    if not state.numbers[STARTED]:
        return {name: np.zeros(0, kind) for name, kind in ARRAYS.items()}
    table = state.found_by
    known = np.flatnonzero(table.epochs == table.used[1])
    pools: dict[str, Pool] = {name: getattr(state, name) for name in KINDS}
    return {
        "numbers": state.numbers.copy(),
        "keys": table.keys[known],
        "values": table.values[known],
        **{name: np.array(pool.rows[: pool.cells[COUNT]]) for name, pool in pools.items()},
    }


def taken_up(state: State, parts: Parts) -> State:
    """`state`, which has no records, with those of `parts`."""
    if not len(parts["numbers"]):
        return state
    pools: dict[str, Any] = {name: longer(getattr(state, name), len(parts[name])) for name in KINDS}
    for name, pool in pools.items():
        pool.cells[:] = 0
        pool.rows[: len(parts[name])] = parts[name]
        pool.cells[COUNT] = len(parts[name])
    state.numbers[:] = parts["numbers"]
    return state._replace(found_by=with_entries(state.found_by, parts["keys"], parts["values"]), **pools)


def _of_text(keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which keys hold the number of a text."""
    found: NDArray[np.bool_] = np.isin(keys >> KIND_SHIFT, (DESTINATION, ATTACHED))
    return found


def texts_in(parts: Parts) -> NDArray[np.int64]:
    """Numbers of the texts that occur, each once."""
    found = [parts[name][field] for name, fields in TEXTS.items() for field in fields]
    found.append(parts["keys"][_of_text(parts["keys"])] & _TEXT)
    numbers: NDArray[np.int64] = np.unique(np.concatenate(found))
    return numbers[numbers > 0]


def renumbered(parts: Parts, places: Mapping[int, int]) -> Parts:
    """The same with other numbers of texts."""
    parts = {name: array.copy() for name, array in parts.items()}
    for name, fields in TEXTS.items():
        for field in fields:
            parts[name][field] = replaced(parts[name][field], places)
    own = _of_text(parts["keys"])
    keys = parts["keys"][own]
    parts["keys"][own] = keys & ~_TEXT | replaced(keys & _TEXT, places)
    return parts
