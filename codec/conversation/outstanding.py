"""Which messages of connections are final while these go on, and what has to be kept in mind for the others.

    outcome = concluded(events, goes_on, until, over)
    outcome.settled      what became of messages, final
    outcome.events       what later events need

A message is final once it is settled, once its channel incarnation or its connection is over, or once its transaction
has ended. Up to the first frame of a transaction that is still open everything is certain; what is said from there on
waits. Memory and cost follow what is outstanding and what was said since the last time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.conversation.channels.state import EVENT, NONE, TRANSACTED, UNKNOWN
from codec.conversation.settled import settled_at_once
from codec.conversation.settlement import ROLLED_BACK, Settled
from codec.conversation.stored import numbered, places

Integers = NDArray[np.int64]
LEDGERS = 4  # of a channel incarnation
NOTHING = np.zeros(0, EVENT)


class Frames(NamedTuple):
    """Frames of connections: int64 (n,) each."""

    connection: Integers
    frame_no: Integers

    @classmethod
    def of(cls, *frames: Frames) -> Frames:
        """All of these, each once, by connection and in order."""
        if not frames:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        connection, frame_no = (np.concatenate(columns) for columns in zip(*frames, strict=True))
        order = np.lexsort([frame_no, connection])
        connection, frame_no = connection[order], frame_no[order]
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(connection) != 0) | (np.diff(frame_no) != 0)
        return cls(connection[first], frame_no[first])

    def among(self, connection: Integers, frame_no: Integers) -> NDArray[np.bool_]:
        """Which of other frames are among these."""
        if not len(self.frame_no) or not len(frame_no):
            return np.zeros(len(frame_no), bool)
        number = numbered(np.concatenate([self.connection, connection]), np.concatenate([self.frame_no, frame_no]))
        known = np.zeros(int(number.max()) + 1, bool)
        known[number[: len(self.frame_no)]] = True
        return known[number[len(self.frame_no) :]]

    def without(self, other: Frames) -> Frames:
        """Those that are not among others."""
        rest = ~other.among(*self)
        return Frames(self.connection[rest], self.frame_no[rest])

    def surplus(self, most: int) -> Frames:
        """Of each connection, whose frames are in order, all but the last so many."""
        end = np.searchsorted(self.connection, self.connection, "right")
        given_up = end - np.arange(len(end)) > most
        return Frames(self.connection[given_up], self.frame_no[given_up])


class Concluded(NamedTuple):
    """`settled`: what became of messages, finally; `events`: those of messages that are outstanding; `outstanding`:
    their frames."""

    settled: Settled
    events: NDArray[Any]
    outstanding: Frames


def concluded(
    events: NDArray[Any], goes_on: Integers, until: Integers, over: tuple[Integers, Integers] | None = None
) -> Concluded:
    """`events` (EVENT) of connections, of which `goes_on` (in order) have not ended: there, what is said before frame
    `until` of each is certain. Ledgers `over` (connections and ledgers) get no more events."""
    place = places(goes_on, events["connection"])
    goes = _open(events["connection"], events["ledger"], place, over)
    later = goes & (events["frame_no"] >= np.append(until, 0)[place])
    later_events = events[later]
    if later.any():
        events, goes = events[~later], goes[~later]
    settled = settled_at_once(events)
    if not goes.any():
        return Concluded(settled, later_events, _frames(later_events))
    waits = _open(settled.connection, settled.ledger, places(goes_on, settled.connection), over)
    waits &= (settled.settled_frame_no < 0) & (settled.ledger % LEDGERS != TRANSACTED)
    final = Settled(*(column[~waits] for column in settled))
    events = events[goes]
    rest = np.concatenate([events[_needed(events, final)], later_events])
    return Concluded(final, rest, _frames(rest))


def _open(
    connection: Integers, ledger: Integers, place: Integers, over: tuple[Integers, Integers] | None
) -> NDArray[np.bool_]:
    """Which ledgers may get more events."""
    goes = place >= 0
    if over is not None and len(over[0]):
        goes &= ~Frames(*over).among(np.ascontiguousarray(connection), np.ascontiguousarray(ledger))
    return goes


def oldest_given_up(found: Concluded, given_up: Frames) -> Concluded:
    """The same without the messages of connections before the last one that is given up: nothing more will be known of
    them."""
    ends = np.append(np.flatnonzero(np.diff(given_up.connection)), len(given_up.connection) - 1)
    place = places(given_up.connection[ends], found.events["connection"])
    last = np.append(given_up.frame_no[ends], -1)[place]
    gone_at = (found.events["opens"] == 1) & (found.events["frame_no"] <= last)
    gone, events = found.events[gone_at], found.events[~gone_at]
    columns = {name: np.zeros(len(gone), np.int64) for name in Settled._fields}
    columns |= {name: np.ascontiguousarray(gone[name]) for name in ("connection", "ledger", "frame_no")}
    columns |= {"outcome": np.full(len(gone), UNKNOWN), "settled_frame_no": np.full(len(gone), NONE)}
    settled = Settled(*(np.concatenate([getattr(found.settled, name), columns[name]]) for name in Settled._fields))
    return Concluded(settled, events, _frames(events))


def _frames(events: NDArray[Any]) -> Frames:
    opens = events[events["opens"] == 1]
    return Frames.of(Frames(opens["connection"], opens["frame_no"]))


def _needed(events: NDArray[Any], final: Settled) -> NDArray[np.bool_]:
    """Which events later ones need: openings of messages that are not final, and what was noted on them."""
    opens = events["opens"] == 1
    over = Frames(
        numbered(
            np.concatenate([events["connection"], final.connection]), np.concatenate([events["ledger"], final.ledger])
        ),
        np.concatenate([events["frame_no"], final.frame_no]),
    )
    ledger, count = over.connection[: len(events)], len(events)
    ended = Frames(over.connection[count:], over.frame_no[count:]).among(ledger, over.frame_no[:count])
    waits: NDArray[np.bool_] = opens & ~ended
    notes = ~opens & ((events["final"] == 0) | (events["transaction"] == ROLLED_BACK))
    if not notes.any():
        return waits
    ids = np.unique(events["first"][waits])  # ids of messages as ranks, so that one number names ledger and id
    keys = np.sort(ledger[waits] * (len(ids) + 1) + np.searchsorted(ids, events["first"][waits]))
    begins = ledger[notes] * (len(ids) + 1)
    low = np.searchsorted(keys, begins + np.searchsorted(ids, events["first"][notes], "left"), "left")
    high = np.searchsorted(keys, begins + np.searchsorted(ids, events["last"][notes], "right"), "left")
    needed: NDArray[np.bool_] = waits.copy()
    needed[np.flatnonzero(notes)[high > low]] = True
    return needed
