"""Finds what events of unsettled maps settle, by map and frame."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.conversation.sessions.state import NONE
from codec.conversation.settled import settled_at_once
from codec.conversation.settlement import NO_RESULT, Settled
from codec.hashes.pairs import Pairs

Integers = NDArray[np.int64]
FRAME_BITS = 38
KEY_BITS = 34  # keys of transactions are below 2**33, above -2**33
OF_EVENTS = ("connection", "map_no", "frame_no", "opens", "first", "last", "outcome", "final", "effective_ns")


def frame_keys(maps: Integers, frames: Integers) -> Integers:
    """A number for each frame in an unsettled map."""
    return (maps << FRAME_BITS) | frames


def places_in(settled: Settled, maps: Integers, frames: Integers) -> Integers:
    """The place of each frame in an unsettled map among `settled`; NONE if it is not there."""
    return Pairs(settled.map_no, settled.frame_no).find(maps, frames)


def picked(values: Integers, at: Integers) -> Integers:
    """The values at these places; NONE where the place is NONE."""
    if not len(values):
        return np.full(len(at), NONE)
    found: Integers = np.where(at == NONE, NONE, values[at])
    return found


def settled_by(events: NDArray[np.void], chosen: NDArray[np.bool_], final: bool = False) -> Settled:
    """The messages that the chosen events would settle or note; with `final` each event settles."""
    some = chosen | ((events["opens"] == 1) & bool(chosen.any()))
    columns = {name: np.ascontiguousarray(events[name][some]) for name in OF_EVENTS}
    if final:
        columns["final"] = 1 - columns["opens"]
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
