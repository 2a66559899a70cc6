"""Finds what events of unsettled maps settle, by map and frame."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.conversation.sessions.state import NONE
from codec.conversation.settled import settled_at_once
from codec.conversation.settlement import NO_RESULT, Settled

Integers = NDArray[np.int64]
FRAME_BITS = 38
KEY_BITS = 34  # keys of transactions are below 2**33, above -2**33
OF_EVENTS = ("connection", "map_no", "frame_no", "opens", "first", "last", "outcome", "final", "effective_ns")


class Places:
    """An index of frames in unsettled maps."""

    def __init__(self, maps: Integers, frames: Integers) -> None:
        keys = (maps << FRAME_BITS) | frames
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def find(self, maps: Integers, frames: Integers) -> Integers:
        """The place of each in the index; -1 if it is not there."""
        if not len(self._keys):
            return np.full(len(frames), NONE)
        keys = (maps << FRAME_BITS) | frames
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        found: Integers = np.where(self._keys[at] == keys, self._order[at], NONE)
        return found


def picked(values: Integers, at: Integers) -> Integers:
    """The values at these places; NONE where the place is NONE."""
    if not len(values):
        return np.full(len(at), NONE)
    found: Integers = np.where(at == NONE, NONE, values[at])
    return found


def settled_by(events: NDArray[np.void], chosen: NDArray[np.bool_]) -> Settled:
    """The messages that the chosen events would settle or note."""
    some = chosen | ((events["opens"] == 1) & bool(chosen.any()))
    columns = {name: np.ascontiguousarray(events[name][some]) for name in OF_EVENTS}
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
