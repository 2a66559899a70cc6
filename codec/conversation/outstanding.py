"""Which messages of a connection are final while it goes on, and what has to be kept in mind for the others.

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

Integers = NDArray[np.int64]
LEDGERS = 4  # of a channel incarnation
NOTHING = np.zeros(0, EVENT)


class Concluded(NamedTuple):
    """`settled`: what became of messages, finally; `events`: those of messages that are outstanding; `outstanding`
    int64: their frames, in order."""

    settled: Settled
    events: NDArray[Any]
    outstanding: Integers


def concluded(events: NDArray[Any], goes_on: int | None, until: int, over: Integers) -> Concluded:
    """`events` (EVENT) of connections, of which `goes_on` has not ended: there, what is said before frame `until` is
    certain, and ledgers `over` get no more events."""
    open_still = np.zeros(len(events), bool) if goes_on is None else events["connection"] == goes_on
    if len(over):
        open_still &= ~np.isin(events["ledger"], over)
    later = open_still & (events["frame_no"] >= until)
    later_events = events[later]
    if later.any():
        events, open_still = events[~later], open_still[~later]
    settled = settled_at_once(events)
    if not open_still.any():
        return Concluded(settled, later_events, _frames(later_events))
    waits = settled.connection == goes_on
    if len(over):
        waits &= ~np.isin(settled.ledger, over)
    waits &= (settled.settled_frame_no < 0) & (settled.ledger % LEDGERS != TRANSACTED)
    final = Settled(*(column[~waits] for column in settled))
    events = events[open_still]
    own = final.connection == goes_on  # others have ledgers and frames of the same numbers
    needed = events[_needed(events, Settled(*(column[own] for column in final)))]
    rest = np.concatenate([needed, later_events])
    return Concluded(final, rest, _frames(rest))


def oldest_given_up(found: Concluded, first: int) -> Concluded:
    """The same without the messages before frame `first`: nothing more will be known of them."""
    given_up = (found.events["opens"] == 1) & (found.events["frame_no"] < first)
    gone, events = found.events[given_up], found.events[~given_up]
    columns = {name: np.zeros(len(gone), np.int64) for name in Settled._fields}
    columns |= {name: np.ascontiguousarray(gone[name]) for name in ("connection", "ledger", "frame_no")}
    columns |= {"outcome": np.full(len(gone), UNKNOWN), "settled_frame_no": np.full(len(gone), NONE)}
    settled = Settled(*(np.concatenate([getattr(found.settled, name), columns[name]]) for name in Settled._fields))
    return Concluded(settled, events, _frames(events))


def _frames(events: NDArray[Any]) -> Integers:
    frames: Integers = np.unique(events["frame_no"][events["opens"] == 1])
    return frames


def _needed(events: NDArray[Any], final: Settled) -> NDArray[np.bool_]:
    """Which events of one connection later ones need: openings of messages that are not final, and what was noted on
    them."""
    opens = events["opens"] == 1
    ledgers, ledger = np.unique(events["ledger"], return_inverse=True)
    at = np.searchsorted(ledgers, final.ledger)
    known = (at < len(ledgers)) & (ledgers[np.minimum(at, len(ledgers) - 1)] == final.ledger)
    over = np.isin(_key(ledger, events["frame_no"]), _key(at[known], final.frame_no[known]))
    waits: NDArray[np.bool_] = opens & ~over
    notes = ~opens & ((events["final"] == 0) | (events["transaction"] == ROLLED_BACK))
    if not notes.any():
        return waits
    needed: NDArray[np.bool_] = waits.copy()
    ids = events["first"][waits]
    order = np.lexsort([ids, ledger[waits]])
    ids, of_ledger = ids[order], ledger[waits][order]
    begins = np.searchsorted(of_ledger, np.arange(len(ledgers) + 1))
    for place in np.flatnonzero(np.diff(begins)).tolist():  # ledgers, not messages
        own = np.flatnonzero(notes & (ledger == place))
        those = ids[begins[place] : begins[place + 1]]
        low = np.searchsorted(those, events["first"][own], "left")
        high = np.searchsorted(those, events["last"][own], "right")
        needed[own[high > low]] = True
    return needed


def _key(ledger: Integers, frame_no: Integers) -> Integers:
    return (ledger << 40) | frame_no
