"""Settlement: which event settles which message of an unsettled map, for all versions of AMQP.

An unsettled map has the messages of one side that are outstanding: each is added under an id, and events settle ranges
of ids. Messages are stored by position, in *runs* of rising ids. Usually there is one run, to which messages are
appended; an id below the last one begins a new run, and a run is merged with the one before it once it is half as long,
so that there are at most some forty. Within a run

- the ends of a range of ids are found by bisection;
- `after` leads from a settled position to one that may be outstanding (union-find), so that ranges that are named again
  (`multiple` from the beginning) cost nothing again;
- notes on a range (an outcome without settlement, a settlement that was rolled back) go to the few nodes of a segment
  tree that cover the range, as numbers that rise with time. A note moves down to both children before anything below it
  changes, so the first note on the way from the root is the newest one. Each node also has the oldest mark of the
  outstanding messages below it, so that an event finds those that it settles without a look at those that it does not:
  what a transaction has settled is spared by a recover, what its sender has settled is held.

An event costs at most the square of a logarithm, a message a logarithm, whatever events leave outstanding. Memory: 24
bytes for each position, 88 with notes; positions of settled messages are reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.hashes.maps import Pairs
from codec.memory import as_kernel_array

# Of the transaction that an event is in. RESTORED: the rollback itself; until then what the transaction has settled is
# not outstanding for events that spare it.
NO_RESULT, COMMITTED, ROLLED_BACK, RESTORED = range(4)
SPARES = 2  # `final` of such an event
# The first outcomes, in all versions. The last two only the sender of a 1.0 delivery gives: no other event settles it
# then.
UNSETTLED, UNKNOWN, PRESETTLED, ABORTED = range(1, 5)
# Rows of `UnsettledMap.latest`: of each node the note and the mark for all below it; the oldest mark of the outstanding
# messages below it (NOBODY: there are none), and that of those whose sender has not settled them.
NOTED, UNDONE, OLDEST, OLDEST_OPEN = range(4)
NOBODY = (1 << 63) - 1
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
    position itself while outstanding). `latest` int64 (4, 2 * capacity, or 0 without notes): a segment tree; node 1 is
    its root, the nodes from `capacity` on are positions. `runs` int64 (MOST_RUNS,): where each begins. `scratch` int64
    (4, capacity)."""

    ids: np.ndarray
    frames: np.ndarray
    after: np.ndarray
    latest: np.ndarray
    runs: np.ndarray
    scratch: np.ndarray
    state: np.ndarray


def new_map(capacity: int = FIRST_CAPACITY, with_notes: bool = False) -> UnsettledMap:
    """An empty map; `capacity` is a power of two."""
    ids, frames, after = (np.zeros(capacity, np.int64) for _ in range(3))
    latest = np.zeros((4, 2 * capacity if with_notes else 0), np.int64)
    latest[OLDEST:] = NOBODY
    runs, scratch = np.zeros(MOST_RUNS, np.int64), np.empty((4, capacity), np.int64)
    return UnsettledMap(ids, frames, after, latest, runs, scratch, np.zeros(7, np.int64))


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
    for name in ("ids", "frames", "after"):
        getattr(larger, name)[:count] = getattr(unsettled, name)[:count]
    if unsettled.latest.shape[1]:  # `compact` moved all messages to the front and notes to the leaves
        leaves = len(unsettled.ids)
        larger.latest[:, capacity : capacity + count] = unsettled.latest[:, leaves : leaves + count]
    elif notes:
        is_open = larger.after[:count] == np.arange(count)
        larger.latest[OLDEST:, capacity : capacity + count] = np.where(is_open, 0, NOBODY)
    known, width = larger.latest[OLDEST:], larger.latest.shape[1] // 2
    while width > 1:
        known[:, width // 2 : width] = np.minimum(known[:, width : 2 * width : 2], known[:, width + 1 : 2 * width : 2])
        width //= 2
    larger.runs[:] = unsettled.runs
    larger.state[:] = unsettled.state
    return larger


def new_settled(rows: int) -> Settled:
    """Room for `rows` results."""
    return Settled(*(np.empty(rows, np.int64) for _ in Settled._fields))


@kernel
def _is_before(events, i, j):
    """Whether event `i` may stand before event `j` of the same map."""
    if events.frame_no[i] != events.frame_no[j]:
        return events.frame_no[i] < events.frame_no[j]
    if events.opens[i] != events.opens[j]:
        return events.opens[i] > events.opens[j]
    if events.first[i] != events.first[j]:
        return events.first[i] < events.first[j]
    if events.last[i] != events.last[j]:
        return events.last[i] < events.last[j]
    if events.final[i] != events.final[j]:
        return events.final[i] < events.final[j]
    return events.outcome[i] <= events.outcome[j]


@kernel
def are_in_order(events):
    """Whether events, those of a map together, are in the order that `settle` needs: by frame, openings first."""
    for e in range(1, len(events.frame_no)):
        alike = events.connection[e] == events.connection[e - 1] and events.map_no[e] == events.map_no[e - 1]
        if alike and not _is_before(events, e - 1, e):
            return False
    return True


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
def _note_node(tree, node, note, mark):
    """A note and a mark, 0 for none, for all that is outstanding below a node."""
    if mark:
        tree[UNDONE, node] = mark
        if tree[OLDEST, node] != NOBODY:
            tree[OLDEST, node] = mark
        if tree[OLDEST_OPEN, node] != NOBODY:
            tree[OLDEST_OPEN, node] = mark
    if note:
        tree[NOTED, node] = note
        tree[OLDEST_OPEN, node] = NOBODY if _is_held(note) else tree[OLDEST, node]


@kernel
def _is_held(note):
    """Whether only the sender settles a message with this note: it has settled the first of several transfers."""
    return (note >> OUTCOME_SHIFT) & OUTCOME_MASK == PRESETTLED


@kernel
def _push(tree, node):
    """Move the note and the mark of a node to its children."""
    note, mark = tree[NOTED, node], tree[UNDONE, node]
    if note or mark:
        _note_node(tree, 2 * node, note, mark)
        _note_node(tree, 2 * node + 1, note, mark)
        tree[NOTED, node] = 0
        tree[UNDONE, node] = 0


@kernel
def _push_above(tree, node):
    """Move the notes of all nodes above this one down, from the root on."""
    height = 0
    while node >> (height + 1):
        height += 1
    while height:
        _push(tree, node >> height)
        height -= 1


@kernel
def _combine_node(tree, node):
    """What a node without notes knows from its children."""
    tree[OLDEST, node] = min(tree[OLDEST, 2 * node], tree[OLDEST, 2 * node + 1])
    tree[OLDEST_OPEN, node] = min(tree[OLDEST_OPEN, 2 * node], tree[OLDEST_OPEN, 2 * node + 1])


@kernel
def _combine_above(tree, node):
    """The same of all nodes above this one; those that have just been noted know more."""
    node >>= 1
    while node:
        if not (tree[NOTED, node] or tree[UNDONE, node]):
            _combine_node(tree, node)
        node >>= 1


@kernel
def _combine(unsettled, first, end):
    """Let all nodes above the positions `first`..`end`, which were put there anew, know them."""
    tree = unsettled.latest
    low, high = (first + len(unsettled.ids)) >> 1, (end - 1 + len(unsettled.ids)) >> 1
    while low and first < end:
        for node in range(low, high + 1):
            tree[NOTED, node] = 0
            tree[UNDONE, node] = 0
            _combine_node(tree, node)
        low >>= 1
        high >>= 1


@kernel
def _newest(unsettled, kind, at):
    """The newest note of `kind` for the message at position `at`; 0 if none."""
    found = 0
    if unsettled.latest.shape[1]:
        node = at + len(unsettled.ids)
        while node:
            found = max(found, unsettled.latest[kind, node])
            node >>= 1
    return found


@kernel
def _next_below(unsettled, kind, limit, at, end):
    """The first position from `at` on whose mark is below `limit`, of the outstanding messages (`kind` OLDEST) or of
    those that nobody holds (OLDEST_OPEN); `end` or more when the run has none."""
    tree, leaves = unsettled.latest, len(unsettled.ids)
    if at >= end:
        return end
    node = at + leaves
    _push_above(tree, node)
    while tree[kind, node] >= limit:
        while node & 1:  # the last of its parent
            node >>= 1
        if node == 0:
            return end
        node += 1
    while node < leaves:
        _push(tree, node)
        node *= 2
        if tree[kind, node] >= limit:
            node += 1
    return node - leaves


@kernel
def _note(unsettled, kind, first, last, outcome, transaction):
    """Note an outcome on all that is outstanding with an id of `first`..`last`."""
    state, tree, leaves = unsettled.state, unsettled.latest, len(unsettled.ids)
    state[TIME] += 1
    value = (state[TIME] << TIME_SHIFT) | (outcome << OUTCOME_SHIFT) | transaction
    note = value if kind == NOTED else 0
    mark = value - note
    end = state[COUNT]
    for run in range(state[RUNS] - 1, -1, -1):
        low = _lower_bound(unsettled.ids, unsettled.runs[run], end, first) + leaves
        high = _upper_bound(unsettled.ids, unsettled.runs[run], end, last) + leaves
        if low < high:
            begin, until = low, high - 1
            _push_above(tree, begin)
            _push_above(tree, until)
            while low < high:
                if low & 1:
                    _note_node(tree, low, note, mark)
                    low += 1
                if high & 1:
                    high -= 1
                    _note_node(tree, high, note, mark)
                low >>= 1
                high >>= 1
            _combine_above(tree, begin)
            _combine_above(tree, until)
        end = unsettled.runs[run]


@kernel
def _slot(unsettled, at, message_id, frame_no, note, mark):
    """Put an outstanding message and its notes at position `at`; `_combine` follows."""
    unsettled.ids[at] = message_id
    unsettled.frames[at] = frame_no
    unsettled.after[at] = at
    if unsettled.latest.shape[1]:
        tree, leaf = unsettled.latest, at + len(unsettled.ids)
        tree[NOTED, leaf] = note
        tree[UNDONE, leaf] = mark
        tree[OLDEST, leaf] = mark
        tree[OLDEST_OPEN, leaf] = NOBODY if _is_held(note) else mark


@kernel
def _remove(tree, leaf):
    """The message at a leaf is no longer outstanding; nodes above it have no notes."""
    tree[OLDEST, leaf] = NOBODY
    tree[OLDEST_OPEN, leaf] = NOBODY


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
    with_notes = unsettled.latest.shape[1] > 0 and first < end
    if with_notes:
        _push_above(unsettled.latest, first + len(ids))
        _push_above(unsettled.latest, end - 1 + len(ids))
    for k in range(merged):
        _slot(unsettled, first + k, scratch[IDS, k], scratch[FRAMES, k], scratch[NOTE, k], scratch[MARK, k])
    if with_notes:
        for at in range(first + merged, end):
            _remove(unsettled.latest, at + len(ids))
        _combine(unsettled, first, end)
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
    if unsettled.latest.shape[1]:
        _push_above(unsettled.latest, state[COUNT] + len(unsettled.ids))
    _slot(unsettled, state[COUNT], message_id, frame_no, 0, 0)
    if unsettled.latest.shape[1]:
        _combine_above(unsettled.latest, state[COUNT] + len(unsettled.ids))
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
    state, after, tree, leaves = unsettled.state, unsettled.after, unsettled.latest, len(unsettled.ids)
    by_sender = events.outcome[e] == PRESETTLED or events.outcome[e] == ABORTED
    kind = OLDEST if by_sender else OLDEST_OPEN
    # Marks of a later time than the last rollback are of the transaction that goes on.
    limit = (state[RESTORED_AT] + 1) << TIME_SHIFT if events.final[e] == SPARES else NOBODY
    end = state[COUNT]
    for run in range(state[RUNS] - 1, -1, -1):
        at = _lower_bound(unsettled.ids, unsettled.runs[run], end, events.first[e])
        while True:
            at = _next_below(unsettled, kind, limit, at, end) if tree.shape[1] else _outstanding_from(after, at, end)
            if at >= end or unsettled.ids[at] > events.last[e]:
                break
            _write(
                unsettled, at, rows, n, events.outcome[e], events.effective_ns[e], events.frame_no[e],
                events.transaction[e],
            )  # fmt: skip
            n += 1
            after[at] = at + 1
            state[OUTSTANDING] -= 1
            if tree.shape[1]:
                _remove(tree, at + leaves)
                _combine_above(tree, at + leaves)
            at += 1
        end = unsettled.runs[run]
    return n


@kernel
def end_map(unsettled, rows, n):
    """Write outstanding messages with a note to `rows`, and empty the map; returns the number of rows."""
    state, count = unsettled.state, unsettled.state[COUNT]
    if unsettled.latest.shape[1] and count:
        at = _outstanding_from(unsettled.after, 0, count)
        while at < count:
            if _newest(unsettled, NOTED, at) or _newest(unsettled, UNDONE, at):
                _write(unsettled, at, rows, n, 0, 0, -1, NO_RESULT)
                n += 1
            at = _outstanding_from(unsettled.after, at + 1, count)
        for at in range(count):
            _remove(unsettled.latest, at + len(unsettled.ids))
        _combine(unsettled, 0, count)
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


# Settles all messages of some connections at once (`codec.conversation.settlement`); sets of messages by frame.


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
    return Events(*(as_kernel_array(columns[name][order]) for name in Events._fields))


def has_notes(events: Events) -> bool:
    """Whether some events note an outcome or a rollback without settling."""
    undone = events.transaction == ROLLED_BACK
    return bool(np.any((events.opens == 0) & (undone | (events.final == 0))))
