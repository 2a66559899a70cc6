"""Settlement: which event settles which message of an unsettled map, for all versions of AMQP.

An unsettled map has the messages of one side that are outstanding: each is added under an id, and events settle ranges
of ids. Messages are stored by position, in *runs* of rising ids. Usually there is one run, to which messages are
appended; an id below the last one begins a new run, and a run is merged with the one before it once it is half as long,
so that there are at most some forty. Within a run

- the ends of a range of ids are found by bisection;
- `after` leads from a settled position to one that may be outstanding (union-find), so that ranges that are named again
  (`multiple` from the beginning) cost nothing again;
- notes on a range (an outcome without settlement, a settlement that was rolled back) go to the few nodes of a segment
  tree that cover the range, as numbers that rise with time: the newest note on the way to the root holds for a message.
  Nodes are never cleared; notes older than the message at a position do not count for it.

An event costs at most the square of a logarithm, a message a logarithm. Memory: 32 bytes for each position, 64 with
notes; positions of settled messages are reused.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel

# Of the transaction that an event is in. RESTORED: the rollback itself; until then what the transaction has settled is
# not outstanding for events that spare it.
NO_RESULT, COMMITTED, ROLLED_BACK, RESTORED = range(4)
SPARES = 2  # `final` of such an event
# The first outcomes, in all versions. The last two only the sender of a 1.0 delivery gives: no other event settles it
# then.
UNSETTLED, UNKNOWN, PRESETTLED, ABORTED = range(1, 5)
NOTED, UNDONE = range(2)  # rows of `UnsettledMap.latest`
CONNECTION, NUMBER, COUNT, RUNS, OUTSTANDING, TIME, RESTORED_AT = range(7)  # cells of `UnsettledMap.state`
IDS, FRAMES, NOTE, MARK = range(4)  # rows of `UnsettledMap.scratch`
MOST_RUNS = 64  # each is at least half as long as all behind it
FIRST_CAPACITY = 1 << 14
# A note is its time, the outcome and the transaction in one number.
TIME_SHIFT, OUTCOME_SHIFT, TRANSACTION_MASK = 24, 2, 3
OUTCOME_MASK = (1 << (TIME_SHIFT - OUTCOME_SHIFT)) - 1


class Events(NamedTuple):
    """Columns int64 (n,) by connection, map_no, frame_no, openings first. `opens`: 0 or 1; `final`: 0, 1,
    SPARES; `outcome`: a number above 0, 0 for none; `effective_ns`: when a settlement takes effect."""

    connection: np.ndarray
    map_no: np.ndarray
    frame_no: np.ndarray
    opens: np.ndarray
    first: np.ndarray
    last: np.ndarray
    outcome: np.ndarray
    final: np.ndarray
    effective_ns: np.ndarray
    transaction: np.ndarray


class Settled(NamedTuple):
    """Columns int64 (n,), a row for each message that was settled, noted or marked; if it was not settled,
    `settled_frame_no` is -1 and `settled_ns` has no meaning."""

    connection: np.ndarray
    map_no: np.ndarray
    frame_no: np.ndarray
    outcome: np.ndarray
    settled_ns: np.ndarray
    settled_frame_no: np.ndarray
    transaction: np.ndarray


class UnsettledMap(NamedTuple):
    """The current unsettled map. By position, int64 (capacity,): `ids`, `frames` (frame_no), `after` (the
    position itself while outstanding), `placed` (time at which the message was put here). `latest` int64 (2, 2 *
    capacity, or 0 without notes): segment trees of notes and of marks. `runs` int64 (MOST_RUNS,): where each begins.
    `scratch` int64 (4, capacity)."""

    ids: np.ndarray
    frames: np.ndarray
    after: np.ndarray
    placed: np.ndarray
    latest: np.ndarray
    runs: np.ndarray
    scratch: np.ndarray
    state: np.ndarray


def new_map(capacity: int = FIRST_CAPACITY, with_notes: bool = False) -> UnsettledMap:
    """An empty map; `capacity` is a power of two."""
    ids, frames, after, placed = (np.zeros(capacity, np.int64) for _ in range(4))
    latest = np.zeros((2, 2 * capacity if with_notes else 0), np.int64)
    runs, scratch = np.zeros(MOST_RUNS, np.int64), np.empty((4, capacity), np.int64)
    return UnsettledMap(ids, frames, after, placed, latest, runs, scratch, np.zeros(7, np.int64))


def with_room(unsettled: UnsettledMap, openings: int, notes: bool) -> UnsettledMap:
    """`unsettled`, or a larger copy, with room for so many more messages, and for notes if there are any."""
    capacity = len(unsettled.ids)
    if int(unsettled.state[COUNT]) + openings > capacity:
        compact(unsettled)
        # At least half is free afterwards, so that positions are moved a bounded number of times.
        while 2 * (int(unsettled.state[COUNT]) + openings) > capacity:
            capacity *= 2
    notes = notes or unsettled.latest.shape[1] > 0
    if capacity == len(unsettled.ids) and notes == (unsettled.latest.shape[1] > 0):
        return unsettled
    larger, count = new_map(capacity, notes), int(unsettled.state[COUNT])
    for name in ("ids", "frames", "after", "placed"):
        getattr(larger, name)[:count] = getattr(unsettled, name)[:count]
    if unsettled.latest.shape[1]:  # `compact` moved all messages to the front and notes to the leaves
        leaves = len(unsettled.ids)
        larger.latest[:, capacity : capacity + count] = unsettled.latest[:, leaves : leaves + count]
    larger.runs[:] = unsettled.runs
    larger.state[:] = unsettled.state
    return larger


def new_settled(rows: int) -> Settled:
    """Room for `rows` results."""
    return Settled(*(np.empty(rows, np.int64) for _ in Settled._fields))


@kernel
def _lower_bound(ids, start, end, value):
    """The first position of the run `start`..`end` whose id is not below `value`."""
    while start < end:
        middle = (start + end) >> 1
        if ids[middle] < value:
            start = middle + 1
        else:
            end = middle
    return start


@kernel
def _upper_bound(ids, start, end, value):
    """The first position of the run `start`..`end` whose id is above `value`."""
    while start < end:
        middle = (start + end) >> 1
        if ids[middle] <= value:
            start = middle + 1
        else:
            end = middle
    return start


@kernel
def _outstanding_from(after, at, end):
    """The first outstanding position from `at` on; `end` or more when the run has none."""
    while at < end and after[at] != at:
        step = after[at]
        if step < end:
            after[at] = after[step]
        at = step
    return at


@kernel
def _newest(unsettled, kind, at):
    """The newest note of `kind` for the message at position `at`; 0 if none."""
    if unsettled.latest.shape[1] == 0:
        return 0
    tree = unsettled.latest[kind]
    node = at + len(unsettled.ids)
    own = tree[node]
    above = 0
    node >>= 1
    while node > 0:
        above = max(above, tree[node])
        node >>= 1
    if above >> TIME_SHIFT > unsettled.placed[at]:
        return max(above, own)
    return own


@kernel
def _note(unsettled, kind, first, last, outcome, transaction):
    """Note an outcome on all that is outstanding with an id of `first`..`last`."""
    state = unsettled.state
    state[TIME] += 1
    value = (state[TIME] << TIME_SHIFT) | (outcome << OUTCOME_SHIFT) | transaction
    tree = unsettled.latest[kind]
    end = state[COUNT]
    for run in range(state[RUNS] - 1, -1, -1):
        low = _lower_bound(unsettled.ids, unsettled.runs[run], end, first) + len(unsettled.ids)
        high = _upper_bound(unsettled.ids, unsettled.runs[run], end, last) + len(unsettled.ids)
        while low < high:
            if low & 1:
                tree[low] = value
                low += 1
            if high & 1:
                high -= 1
                tree[high] = value
            low >>= 1
            high >>= 1
        end = unsettled.runs[run]


@kernel
def _place(unsettled, at, message_id, frame_no, note, mark):
    """Put an outstanding message and its notes at position `at`."""
    unsettled.ids[at] = message_id
    unsettled.frames[at] = frame_no
    unsettled.after[at] = at
    unsettled.placed[at] = unsettled.state[TIME]
    if unsettled.latest.shape[1]:
        unsettled.latest[NOTED, at + len(unsettled.ids)] = note
        unsettled.latest[UNDONE, at + len(unsettled.ids)] = mark


@kernel
def _merge(unsettled, first, second, end):
    """Merge the outstanding messages of the runs `first`..`second`..`end` into one at `first`; returns its end."""
    ids, after, scratch = unsettled.ids, unsettled.after, unsettled.scratch
    i, j, merged = first, second, 0
    while True:
        i = _outstanding_from(after, i, second)
        j = _outstanding_from(after, j, end)
        if i < second and (j >= end or ids[i] <= ids[j]):
            at = i
            i += 1
        elif j < end:
            at = j
            j += 1
        else:
            break
        scratch[IDS, merged] = ids[at]
        scratch[FRAMES, merged] = unsettled.frames[at]
        scratch[NOTE, merged] = _newest(unsettled, NOTED, at)
        scratch[MARK, merged] = _newest(unsettled, UNDONE, at)
        merged += 1
    for k in range(merged):
        _place(unsettled, first + k, scratch[IDS, k], scratch[FRAMES, k], scratch[NOTE, k], scratch[MARK, k])
    return first + merged


@kernel
def compact(unsettled):
    """Move all outstanding messages to the front, as one run."""
    state, runs = unsettled.state, unsettled.runs
    while state[RUNS] > 1:
        second = runs[state[RUNS] - 1]
        state[RUNS] -= 1
        state[COUNT] = _merge(unsettled, runs[state[RUNS] - 1], second, state[COUNT])
    state[COUNT] = _merge(unsettled, 0, 0, state[COUNT])


@kernel
def _open(unsettled, message_id, frame_no):
    state, runs = unsettled.state, unsettled.runs
    if state[OUTSTANDING] == 0:
        state[COUNT] = 0
        state[RUNS] = 1
    if state[COUNT] > runs[state[RUNS] - 1] and message_id < unsettled.ids[state[COUNT] - 1]:
        while state[RUNS] > 1:
            before, last = runs[state[RUNS] - 2], runs[state[RUNS] - 1]
            if last - before > 2 * (state[COUNT] - last):
                break
            state[COUNT] = _merge(unsettled, before, last, state[COUNT])
            state[RUNS] -= 1
        runs[state[RUNS]] = state[COUNT]
        state[RUNS] += 1
    _place(unsettled, state[COUNT], message_id, frame_no, 0, 0)
    state[COUNT] += 1
    state[OUTSTANDING] += 1


@kernel
def _write(unsettled, at, rows, n, outcome, settled_ns, settled_frame_no, transaction):
    """Write row `n`: the message at position `at`. Without an outcome of the event, the notes count; an event that
    states again what is noted leaves it in its transaction."""
    note = _newest(unsettled, NOTED, at)
    noted = (note >> OUTCOME_SHIFT) & OUTCOME_MASK
    if transaction == NO_RESULT and (outcome == 0 or outcome == noted):
        transaction = note & TRANSACTION_MASK
    if outcome == 0:
        outcome = noted
        mark = _newest(unsettled, UNDONE, at)
        if settled_frame_no < 0 and mark > 0 and (mark > note or transaction == NO_RESULT):
            transaction = ROLLED_BACK
    rows.connection[n] = unsettled.state[CONNECTION]
    rows.map_no[n] = unsettled.state[NUMBER]
    rows.frame_no[n] = unsettled.frames[at]
    rows.outcome[n] = outcome
    rows.settled_ns[n] = settled_ns
    rows.settled_frame_no[n] = settled_frame_no
    rows.transaction[n] = transaction


@kernel
def _settle(unsettled, events, e, rows, n):
    """Settle the outstanding messages in the range of event `e`; returns the number of rows."""
    state, after = unsettled.state, unsettled.after
    spares = events.final[e] == SPARES
    by_sender = events.outcome[e] == PRESETTLED or events.outcome[e] == ABORTED
    end = state[COUNT]
    for run in range(state[RUNS] - 1, -1, -1):
        at = _lower_bound(unsettled.ids, unsettled.runs[run], end, events.first[e])
        at = _outstanding_from(after, at, end)
        while at < end and unsettled.ids[at] <= events.last[e]:
            spared = spares and _newest(unsettled, UNDONE, at) >> TIME_SHIFT > state[RESTORED_AT]
            held = not by_sender and (_newest(unsettled, NOTED, at) >> OUTCOME_SHIFT) & OUTCOME_MASK == PRESETTLED
            if not (spared or held):
                _write(
                    unsettled, at, rows, n, events.outcome[e], events.effective_ns[e], events.frame_no[e],
                    events.transaction[e],
                )  # fmt: skip
                n += 1
                after[at] = at + 1
                state[OUTSTANDING] -= 1
            at = _outstanding_from(after, at + 1, end)
        end = unsettled.runs[run]
    return n


@kernel
def end_map(unsettled, rows, n):
    """Write outstanding messages with a note to `rows`, and empty the map; returns the number of rows."""
    state = unsettled.state
    if unsettled.latest.shape[1]:
        at = _outstanding_from(unsettled.after, 0, state[COUNT])
        while at < state[COUNT]:
            if _newest(unsettled, NOTED, at) or _newest(unsettled, UNDONE, at):
                _write(unsettled, at, rows, n, 0, 0, -1, NO_RESULT)
                n += 1
            at = _outstanding_from(unsettled.after, at + 1, state[COUNT])
    state[OUTSTANDING] = 0
    state[COUNT] = 0
    state[RUNS] = 1
    return n


@kernel
def settle(unsettled, events, rows):
    """Apply `events` to the current map and those after it; returns the number of results in `rows`.

    `unsettled` has room for all openings, and for notes if there are any (`with_room`); `rows` for all outstanding
    messages and openings.
    """
    n = 0
    state = unsettled.state
    for e in range(len(events.frame_no)):
        if state[CONNECTION] != events.connection[e] or state[NUMBER] != events.map_no[e] or state[RUNS] == 0:
            n = end_map(unsettled, rows, n)
            state[CONNECTION] = events.connection[e]
            state[NUMBER] = events.map_no[e]
        first, last, transaction = events.first[e], events.last[e], events.transaction[e]
        if events.opens[e]:
            _open(unsettled, first, events.frame_no[e])
        elif transaction == RESTORED:
            state[RESTORED_AT] = state[TIME]
        elif transaction == ROLLED_BACK:
            _note(unsettled, UNDONE, first, last, 0, transaction)
        elif events.final[e]:
            n = _settle(unsettled, events, e, rows, n)
        elif events.outcome[e]:
            _note(unsettled, NOTED, first, last, events.outcome[e], transaction)
    return n
