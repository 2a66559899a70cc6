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

from codec.compiler.kernel import kernel
from codec.conversation.channel_state import EVENT, NONE, TRANSACTED
from codec.conversation.settlement import ROLLED_BACK, UNKNOWN, Frames, Settled, settled_at_once
from codec.conversation.states import find_ids, group_ids

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
    slot = find_ids(open_ids, events["connection"])
    goes = _open(events["connection"], events["map_no"], slot, over)
    later = goes & (events["frame_no"] >= np.append(until, 0)[slot])
    later_events = events[later]
    if later.any():
        events, goes = events[~later], goes[~later]
    settled = settled_at_once(events)
    if not goes.any():
        return FinalMessages(settled, later_events, _frames(later_events))
    waits = _open(settled.connection, settled.map_no, find_ids(open_ids, settled.connection), over)
    waits &= (settled.settled_frame_no < 0) & (settled.map_no % MAPS != TRANSACTED)
    final = Settled(*(column[~waits] for column in settled))
    events = events[goes]
    rest = np.concatenate([events[_needed(events, final)], later_events])
    return FinalMessages(final, rest, _frames(rest))


def _open(
    connection: Integers, map_no: Integers, slot: Integers, over: tuple[Integers, Integers] | None
) -> NDArray[np.bool_]:
    """Which of these unsettled maps may get more events."""
    goes = slot >= 0
    if over is not None and len(over[0]):
        goes &= ~Frames(*over).among(np.ascontiguousarray(connection), np.ascontiguousarray(map_no))
    return goes


def without_oldest(found: FinalMessages, given_up: Frames) -> FinalMessages:
    """The same, with the messages up to the last one that is given up of each connection: their outcome is unknown."""
    ends = np.append(np.flatnonzero(np.diff(given_up.connection)), len(given_up.connection) - 1)
    slot = find_ids(given_up.connection[ends], found.events["connection"])
    last = np.append(given_up.frame_no[ends], -1)[slot]
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
        group_ids(
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


# Pairs each basic.return with the publish that it returns.
#
# A return has no tag; it repeats exchange, routing key and body of the publish. With these three (a key) there may be
# several publishes that were not returned yet.
#
# - In confirm mode the broker confirms a publish that it returns right after the return. So a return belongs to the
# first
#   publish of its key that is confirmed after it (https://www.rabbitmq.com/docs/confirms: basic.return is sent before
#   basic.ack), the oldest of several that one acknowledgement confirms.
# - Otherwise it belongs to the nearest earlier one, like a closing bracket. Once no publish of the key is open, the
#   brackets show which publishes were returned; the broker returns them in their order.


PUBLISH, RETURN, CONFIRM, NUMBERED = range(4)  # NUMBERED: a publish that may be confirmed
PUBLISHES = (PUBLISH, NUMBERED)
# Fate of a publish: it may still be returned, it was not, it was. A return that waits for a confirm is OPEN, too.
OPEN, ROUTED, RETURNED = range(3)
PENDING = 3  # of a publish or return whose bracket is closed, while others of the key are open


@kernel
def match(kinds, keys, publish, over, fate, partner, links):
    """Rows by key and frame: `kinds`; `keys`; `publish`: the row that a CONFIRM confirms, else -1; `over`: 1 if the key
    gets no more rows. Fills `fate` and, of returned publishes, `partner`: the row of the return. `links` int64
    (2, rows): scratch, the open publish below each, and the returns that wait for a confirm, from `low` to `high`."""
    n = len(kinds)
    below, waiting = links[0], links[1]
    top, numbered, count, first, low, high = NONE, 0, 0, 0, 0, 0
    for i in range(n):
        fate[i], partner[i] = OPEN, NONE
        if i == 0 or keys[i] != keys[i - 1]:
            top, numbered, count, first, low, high = NONE, 0, 0, i, 0, 0
        if kinds[i] == PUBLISH:
            below[i], top = top, i
            count += 1
        elif kinds[i] == NUMBERED:
            numbered += 1
            count += 1
        elif kinds[i] == RETURN and numbered > 0:
            waiting[high] = i
            high += 1
        elif kinds[i] == RETURN:
            fate[i] = ROUTED if top == NONE else PENDING
            if top != NONE:
                fate[top], top = PENDING, below[top]
                count -= 1
        else:
            fate[i] = ROUTED
            at = publish[i]
            if at != NONE and kinds[at] == NUMBERED and fate[at] == OPEN:
                fate[at] = ROUTED
                numbered -= 1
                count -= 1
                # The oldest return after the publish, if it is the oldest or the newest that waits.
                if low < high and waiting[low] > at:
                    partner[at] = waiting[low]
                    low += 1
                elif low < high and waiting[high - 1] > at:
                    high -= 1
                    partner[at] = waiting[high]
                if partner[at] != NONE:
                    fate[at], fate[partner[at]] = RETURNED, RETURNED
        last = i + 1 == n or keys[i + 1] != keys[i]
        if count == 0 or (last and over[i]):
            _close(kinds, fate, partner, below, first, i + 1)
            top, first, low, high = NONE, i + 1, 0, 0


@kernel
def _close(kinds, fate, partner, below, first, end):
    """No publish in these rows will be confirmed any more: close the brackets of returns that waited, and pair the
    returned publishes with the returns, in order."""
    top = NONE
    for i in range(first, end):
        if fate[i] == OPEN and kinds[i] != RETURN:
            below[i], top = top, i
        elif fate[i] == OPEN:
            fate[i] = ROUTED if top == NONE else PENDING
            if top != NONE:
                fate[top], top = PENDING, below[top]
    at = first
    for i in range(first, end):
        if fate[i] == OPEN:
            fate[i] = ROUTED
        if kinds[i] != RETURN or fate[i] != PENDING:
            continue
        while kinds[at] == RETURN or fate[at] != PENDING:
            at += 1
        fate[at], partner[at], fate[i] = RETURNED, i, RETURNED
        at += 1


def matched(kinds: Integers, keys: Integers, publish: Integers, over: Integers) -> tuple[Integers, Integers]:
    """(fate, partner) by row, as `match` fills them."""
    fate, partner = np.zeros((2, len(kinds)), np.int64)
    match(kinds, keys, publish, over, fate, partner, np.zeros((2, len(kinds)), np.int64))
    return fate, partner
