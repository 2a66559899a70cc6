"""Settles all messages of some connections at once (`codec.conversation.settlement`); sets of messages by frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.conversation.settlement import (
    ROLLED_BACK,
    Events,
    Settled,
    are_in_order,
    end_map,
    new_map,
    new_settled,
    settle,
    with_room,
)
from codec.hashes.pairs import Pairs
from codec.memory import fixed

Integers = NDArray[np.int64]
# The order of events in an unsettled map (`settlement.are_in_order`).
ORDER = ("frame_no", "opens", "first", "last", "final", "outcome")


class Frames(NamedTuple):
    """A set of frames: int64 (n,) each."""

    connection: Integers
    frame_no: Integers

    @classmethod
    def of(cls, *frames: Frames) -> Frames:
        """The union, sorted."""
        if not frames:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        connection, frame_no = (np.concatenate(columns) for columns in zip(*frames, strict=True))
        order = np.lexsort([frame_no, connection])
        connection, frame_no = connection[order], frame_no[order]
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(connection) != 0) | (np.diff(frame_no) != 0)
        return cls(connection[first], frame_no[first])

    def among(self, connection: Integers, frame_no: Integers) -> NDArray[np.bool_]:
        """Which of these frames are in the set."""
        if not len(self.frame_no) or not len(frame_no):
            return np.zeros(len(frame_no), bool)
        found: NDArray[np.bool_] = Pairs(*self).find(connection, frame_no) >= 0
        return found

    def without(self, other: Frames) -> Frames:
        """The difference of two sets."""
        rest = ~other.among(*self)
        return Frames(self.connection[rest], self.frame_no[rest])

    def surplus(self, most: int) -> Frames:
        """All but the last `most` frames of each connection."""
        end = np.searchsorted(self.connection, self.connection, "right")
        given_up = end - np.arange(len(end)) > most
        return Frames(self.connection[given_up], self.frame_no[given_up])


def settled_at_once(columns: Mapping[str, NDArray[np.int64]] | NDArray[Any]) -> Settled:
    """The messages that all events of some connections (columns of `codec.conversation.settlement.Events`, in any
    order) settle or note; outcomes and transactions are numbers."""
    if not len(columns["opens"]):
        return new_settled(0)
    # Events of one map mostly follow one another in time already.
    maps = Pairs(columns["connection"], columns["map_no"])
    order = np.argsort(maps.numbers.astype(np.min_scalar_type(maps.count)), kind="stable")
    events = _in_order(columns, order)
    if not are_in_order(events):
        keys = [-columns[name] if name == "opens" else columns[name] for name in reversed(ORDER)]
        events = _in_order(columns, np.lexsort([*keys, maps.numbers]))
    openings = int(events.opens.sum())
    unsettled, rows = with_room(new_map(), openings, has_notes(events)), new_settled(openings)
    n = int(settle(unsettled, events, rows))
    n = int(end_map(unsettled, rows, n))
    return Settled(*(column[:n] for column in rows))


def _in_order(columns: Mapping[str, NDArray[np.int64]] | NDArray[Any], order: Integers) -> Events:
    return Events(*(fixed(columns[name][order]) for name in Events._fields))


def has_notes(events: Events) -> bool:
    """Whether some events note an outcome or a rollback without settling."""
    undone = events.transaction == ROLLED_BACK
    return bool(np.any((events.opens == 0) & (undone | (events.final == 0))))
