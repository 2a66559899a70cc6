"""Final outcomes of messages while their connections are open, and the events that later outcomes need.

    found = final_messages(events, open_ids, until, over)
    found.settled      messages with their final outcome
    found.events       what later events need

A message is final once it is settled, once its channel incarnation or connection has ended, or once its transaction has
ended. From the first frame of an open transaction on, nothing is final. Memory and cost follow the number of
outstanding messages and of new events.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.conversation.channels.state import EVENT, NONE, TRANSACTED
from codec.conversation.settled import Frames, settled_at_once
from codec.conversation.settlement import ROLLED_BACK, UNKNOWN, Settled
from codec.conversation.states import numbered, places

Integers = NDArray[np.int64]
MAPS = 4  # unsettled maps of a channel incarnation
NOTHING = np.zeros(0, EVENT)


class FinalMessages(NamedTuple):
    """`settled`: messages with their final outcome; `events`: those of outstanding messages; `outstanding`: the frames
    of these."""

    settled: Settled
    events: NDArray[Any]
    outstanding: Frames


def final_messages(
    events: NDArray[Any], open_ids: Integers, until: Integers, over: tuple[Integers, Integers] | None = None
) -> FinalMessages:
    """Settle `events` (EVENT). Connections `open_ids` (sorted) are open: events before frame `until` of each are final.
    Maps `over` (connections, numbers of maps) get no more events."""
    place = places(open_ids, events["connection"])
    goes = _open(events["connection"], events["map_no"], place, over)
    later = goes & (events["frame_no"] >= np.append(until, 0)[place])
    later_events = events[later]
    if later.any():
        events, goes = events[~later], goes[~later]
    settled = settled_at_once(events)
    if not goes.any():
        return FinalMessages(settled, later_events, _frames(later_events))
    waits = _open(settled.connection, settled.map_no, places(open_ids, settled.connection), over)
    waits &= (settled.settled_frame_no < 0) & (settled.map_no % MAPS != TRANSACTED)
    final = Settled(*(column[~waits] for column in settled))
    events = events[goes]
    rest = np.concatenate([events[_needed(events, final)], later_events])
    return FinalMessages(final, rest, _frames(rest))


def _open(
    connection: Integers, map_no: Integers, place: Integers, over: tuple[Integers, Integers] | None
) -> NDArray[np.bool_]:
    """Which of these unsettled maps may get more events."""
    goes = place >= 0
    if over is not None and len(over[0]):
        goes &= ~Frames(*over).among(np.ascontiguousarray(connection), np.ascontiguousarray(map_no))
    return goes


def without_oldest(found: FinalMessages, given_up: Frames) -> FinalMessages:
    """The same, with the messages up to the last one that is given up of each connection: their outcome is unknown."""
    ends = np.append(np.flatnonzero(np.diff(given_up.connection)), len(given_up.connection) - 1)
    place = places(given_up.connection[ends], found.events["connection"])
    last = np.append(given_up.frame_no[ends], -1)[place]
    gone_at = (found.events["opens"] == 1) & (found.events["frame_no"] <= last)
    gone, events = found.events[gone_at], found.events[~gone_at]
    columns = {name: np.zeros(len(gone), np.int64) for name in Settled._fields}
    columns |= {name: np.ascontiguousarray(gone[name]) for name in ("connection", "map_no", "frame_no")}
    columns |= {"outcome": np.full(len(gone), UNKNOWN), "settled_frame_no": np.full(len(gone), NONE)}
    settled = Settled(*(np.concatenate([getattr(found.settled, name), columns[name]]) for name in Settled._fields))
    return FinalMessages(settled, events, _frames(events))


def _frames(events: NDArray[Any]) -> Frames:
    opens = events[events["opens"] == 1]
    return Frames.of(Frames(opens["connection"], opens["frame_no"]))


def _needed(events: NDArray[Any], final: Settled) -> NDArray[np.bool_]:
    """Which events later ones need: the openings of messages that are not final, and notes on these."""
    opens = events["opens"] == 1
    over = Frames(
        numbered(
            np.concatenate([events["connection"], final.connection]), np.concatenate([events["map_no"], final.map_no])
        ),
        np.concatenate([events["frame_no"], final.frame_no]),
    )
    map_no, count = over.connection[: len(events)], len(events)
    ended = Frames(over.connection[count:], over.frame_no[count:]).among(map_no, over.frame_no[:count])
    waits: NDArray[np.bool_] = opens & ~ended
    notes = ~opens & ((events["final"] == 0) | (events["transaction"] == ROLLED_BACK))
    if not notes.any():
        return waits
    ids = np.unique(events["first"][waits])  # ids as ranks, so that one number holds a map and an id
    keys = np.sort(map_no[waits] * (len(ids) + 1) + np.searchsorted(ids, events["first"][waits]))
    begins = map_no[notes] * (len(ids) + 1)
    low = np.searchsorted(keys, begins + np.searchsorted(ids, events["first"][notes], "left"), "left")
    high = np.searchsorted(keys, begins + np.searchsorted(ids, events["last"][notes], "right"), "left")
    needed: NDArray[np.bool_] = waits.copy()
    needed[np.flatnonzero(notes)[high > low]] = True
    return needed
