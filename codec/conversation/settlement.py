"""Settlement: which event settles which message of a ledger, for every version of AMQP.

A ledger is the set of messages that one side has outstanding: they open under an id, and events settle ranges of ids.
Open messages lie by position, in *runs* of rising ids. As a rule there is one run and a new message is appended to it;
an id below the last one begins a run of its own, and a run is merged with the one before it once it is half as long,
so that there are never more than some forty. Within a run

- the ends of a range of ids are found by bisection;
- `after` leads from a position that is settled to one that may not be (union-find): what a range names again costs
  nothing again, however often `multiple` goes back to the beginning;
- notes on a range (an outcome without settlement, a rollback) go to the few nodes of a segment tree that make up the
  range, as numbers that rise with time: what holds for a message is the newest on its way to the root. Nodes are never
  cleared; what was written before a message came to its place does not count for it.

Each event costs the square of a logarithm at most, and each message a logarithm, whatever is outstanding. Memory: 32
bytes for each position, 64 with notes; positions of settled messages are reused.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel

NO_RESULT, COMMITTED, ROLLED_BACK = range(3)  # of the transaction that an event is in
NOTED, UNDONE = range(2)  # rows of `Ledger.latest`
CONNECTION, NUMBER, COUNT, RUNS, OUTSTANDING, TIME = range(6)  # cells of `Ledger.state`
IDS, FRAMES, NOTE, MARK = range(4)  # rows of `Ledger.scratch`
MOST_RUNS = 64  # each is at least half as long as all behind it
FIRST_CAPACITY = 1 << 14
# A note is its time, the outcome and the transaction in one number.
TIME_SHIFT, OUTCOME_SHIFT, TRANSACTION_MASK = 24, 2, 3
OUTCOME_MASK = (1 << (TIME_SHIFT - OUTCOME_SHIFT)) - 1


class Events(NamedTuple):
    """Columns int64 (n,) in the order of connection, ledger, frame_no, openings first. `opens`, `final`: 0 or 1;
    `outcome`: a number above 0, 0 for none; `effective_ns`: when a settlement takes effect."""

    connection: np.ndarray
    ledger: np.ndarray
    frame_no: np.ndarray
    opens: np.ndarray
    first: np.ndarray
    last: np.ndarray
    outcome: np.ndarray
    final: np.ndarray
    effective_ns: np.ndarray
    transaction: np.ndarray


class Settled(NamedTuple):
    """Columns int64 (n,), one row a message that was settled, noted or marked; `settled_frame_no` -1 where it is not
    settled, and `settled_ns` without meaning."""

    connection: np.ndarray
    ledger: np.ndarray
    frame_no: np.ndarray
    outcome: np.ndarray
    settled_ns: np.ndarray
    settled_frame_no: np.ndarray
    transaction: np.ndarray


class Ledger(NamedTuple):
    """The ledger at hand. By position, int64 (capacity,): `ids`, `frames` (frame_no of the message), `after` (itself
    while outstanding), `placed` (time at which it came here). `latest` int64 (2, 2 * capacity, or 0 until there are
    notes): segment trees of notes and of marks. `runs` int64 (MOST_RUNS,): where each begins. `scratch` int64 (4,
    capacity)."""

    ids: np.ndarray
    frames: np.ndarray
    after: np.ndarray
    placed: np.ndarray
    latest: np.ndarray
    runs: np.ndarray
    scratch: np.ndarray
    state: np.ndarray


def new_ledger(capacity: int = FIRST_CAPACITY, with_notes: bool = False) -> Ledger:
    """An empty ledger; `capacity` is a power of two."""
    ids, frames, after, placed = (np.zeros(capacity, np.int64) for _ in range(4))
    latest = np.zeros((2, 2 * capacity if with_notes else 0), np.int64)
    runs, scratch = np.zeros(MOST_RUNS, np.int64), np.empty((4, capacity), np.int64)
    return Ledger(ids, frames, after, placed, latest, runs, scratch, np.zeros(6, np.int64))


def with_room(ledger: Ledger, openings: int, notes: bool) -> Ledger:
    """`ledger`, or a larger one in its state, with room for so many more messages, and for notes where there are."""
    capacity = len(ledger.ids)
    if int(ledger.state[COUNT]) + openings > capacity:
        compact(ledger)
        # At least half is free afterwards, so that positions are moved a bounded number of times.
        while 2 * (int(ledger.state[COUNT]) + openings) > capacity:
            capacity *= 2
    notes = notes or ledger.latest.shape[1] > 0
    if capacity == len(ledger.ids) and notes == (ledger.latest.shape[1] > 0):
        return ledger
    larger, count = new_ledger(capacity, notes), int(ledger.state[COUNT])
    for name in ("ids", "frames", "after", "placed"):
        getattr(larger, name)[:count] = getattr(ledger, name)[:count]
    if ledger.latest.shape[1]:  # it is larger: all was brought to the front, and notes to the leaves
        leaves = len(ledger.ids)
        larger.latest[:, capacity : capacity + count] = ledger.latest[:, leaves : leaves + count]
    larger.runs[:] = ledger.runs
    larger.state[:] = ledger.state
    return larger


def new_settled(rows: int) -> Settled:
    """Room for `rows` results; memory is touched only where it is used."""
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
def _newest(ledger, kind, at):
    """The note of `kind` that holds for the message at position `at`; 0 for none."""
    if ledger.latest.shape[1] == 0:
        return 0
    tree = ledger.latest[kind]
    node = at + len(ledger.ids)
    own = tree[node]
    above = 0
    node >>= 1
    while node > 0:
        above = max(above, tree[node])
        node >>= 1
    if above >> TIME_SHIFT > ledger.placed[at]:
        return max(above, own)
    return own


@kernel
def _note(ledger, kind, first, last, outcome, transaction):
    """Note an outcome on all that is outstanding with an id of `first`..`last`."""
    state = ledger.state
    state[TIME] += 1
    value = (state[TIME] << TIME_SHIFT) | (outcome << OUTCOME_SHIFT) | transaction
    tree = ledger.latest[kind]
    end = state[COUNT]
    for run in range(state[RUNS] - 1, -1, -1):
        low = _lower_bound(ledger.ids, ledger.runs[run], end, first) + len(ledger.ids)
        high = _upper_bound(ledger.ids, ledger.runs[run], end, last) + len(ledger.ids)
        while low < high:
            if low & 1:
                tree[low] = value
                low += 1
            if high & 1:
                high -= 1
                tree[high] = value
            low >>= 1
            high >>= 1
        end = ledger.runs[run]


@kernel
def _place(ledger, at, message_id, frame_no, note, mark):
    """Put an outstanding message and what is noted on it at position `at`."""
    ledger.ids[at] = message_id
    ledger.frames[at] = frame_no
    ledger.after[at] = at
    ledger.placed[at] = ledger.state[TIME]
    if ledger.latest.shape[1]:
        ledger.latest[NOTED, at + len(ledger.ids)] = note
        ledger.latest[UNDONE, at + len(ledger.ids)] = mark


@kernel
def _merge(ledger, first, second, end):
    """Merge the runs `first`..`second`..`end` into one from `first` on, without what is settled; returns its end."""
    ids, after, scratch = ledger.ids, ledger.after, ledger.scratch
    i, j, kept = first, second, 0
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
        scratch[IDS, kept] = ids[at]
        scratch[FRAMES, kept] = ledger.frames[at]
        scratch[NOTE, kept] = _newest(ledger, NOTED, at)
        scratch[MARK, kept] = _newest(ledger, UNDONE, at)
        kept += 1
    for k in range(kept):
        _place(ledger, first + k, scratch[IDS, k], scratch[FRAMES, k], scratch[NOTE, k], scratch[MARK, k])
    return first + kept


@kernel
def compact(ledger):
    """Bring all that is outstanding to the front, as one run."""
    state, runs = ledger.state, ledger.runs
    while state[RUNS] > 1:
        second = runs[state[RUNS] - 1]
        state[RUNS] -= 1
        state[COUNT] = _merge(ledger, runs[state[RUNS] - 1], second, state[COUNT])
    state[COUNT] = _merge(ledger, 0, 0, state[COUNT])


@kernel
def _open(ledger, message_id, frame_no):
    state, runs = ledger.state, ledger.runs
    if state[OUTSTANDING] == 0:
        state[COUNT] = 0
        state[RUNS] = 1
    if state[COUNT] > runs[state[RUNS] - 1] and message_id < ledger.ids[state[COUNT] - 1]:
        while state[RUNS] > 1:
            before, last = runs[state[RUNS] - 2], runs[state[RUNS] - 1]
            if last - before > 2 * (state[COUNT] - last):
                break
            state[COUNT] = _merge(ledger, before, last, state[COUNT])
            state[RUNS] -= 1
        runs[state[RUNS]] = state[COUNT]
        state[RUNS] += 1
    _place(ledger, state[COUNT], message_id, frame_no, 0, 0)
    state[COUNT] += 1
    state[OUTSTANDING] += 1


@kernel
def _write(ledger, at, rows, n, outcome, settled_ns, settled_frame_no, transaction):
    """Row `n`: the message at position `at`. What the event leaves open is as noted before."""
    if outcome == 0:
        note = _newest(ledger, NOTED, at)
        outcome = (note >> OUTCOME_SHIFT) & OUTCOME_MASK
        if transaction == NO_RESULT:
            transaction = note & TRANSACTION_MASK
        mark = _newest(ledger, UNDONE, at)
        if settled_frame_no < 0 and mark > 0 and (mark > note or transaction == NO_RESULT):
            transaction = ROLLED_BACK
    rows.connection[n] = ledger.state[CONNECTION]
    rows.ledger[n] = ledger.state[NUMBER]
    rows.frame_no[n] = ledger.frames[at]
    rows.outcome[n] = outcome
    rows.settled_ns[n] = settled_ns
    rows.settled_frame_no[n] = settled_frame_no
    rows.transaction[n] = transaction


@kernel
def _settle(ledger, events, e, rows, n):
    """Settle all that is outstanding in the range of event `e`; returns the number of rows."""
    state, after = ledger.state, ledger.after
    end = state[COUNT]
    for run in range(state[RUNS] - 1, -1, -1):
        at = _lower_bound(ledger.ids, ledger.runs[run], end, events.first[e])
        at = _outstanding_from(after, at, end)
        while at < end and ledger.ids[at] <= events.last[e]:
            _write(
                ledger, at, rows, n, events.outcome[e], events.effective_ns[e], events.frame_no[e],
                events.transaction[e],
            )  # fmt: skip
            n += 1
            after[at] = at + 1
            state[OUTSTANDING] -= 1
            at = _outstanding_from(after, at + 1, end)
        end = ledger.runs[run]
    return n


@kernel
def end_ledger(ledger, rows, n):
    """What is outstanding with a note or a mark goes to `rows`; the ledger is empty then. Returns their number."""
    state = ledger.state
    if ledger.latest.shape[1]:
        at = _outstanding_from(ledger.after, 0, state[COUNT])
        while at < state[COUNT]:
            if _newest(ledger, NOTED, at) or _newest(ledger, UNDONE, at):
                _write(ledger, at, rows, n, 0, 0, -1, NO_RESULT)
                n += 1
            at = _outstanding_from(ledger.after, at + 1, state[COUNT])
    state[OUTSTANDING] = 0
    state[COUNT] = 0
    state[RUNS] = 1
    return n


@kernel
def settle(ledger, events, rows):
    """Apply `events` to `ledger`, or to the ledgers that follow it; returns the number of results in `rows`.

    `ledger` has room for all openings, and for notes where there are any (`with_room`); `rows` for every message that
    is outstanding and every opening.
    """
    n = 0
    state = ledger.state
    for e in range(len(events.frame_no)):
        if state[CONNECTION] != events.connection[e] or state[NUMBER] != events.ledger[e] or state[RUNS] == 0:
            n = end_ledger(ledger, rows, n)
            state[CONNECTION] = events.connection[e]
            state[NUMBER] = events.ledger[e]
        first, last, transaction = events.first[e], events.last[e], events.transaction[e]
        if events.opens[e]:
            _open(ledger, first, events.frame_no[e])
        elif transaction == ROLLED_BACK:
            _note(ledger, UNDONE, first, last, 0, transaction)
        elif events.final[e]:
            n = _settle(ledger, events, e, rows, n)
        elif events.outcome[e]:
            _note(ledger, NOTED, first, last, events.outcome[e], transaction)
    return n
