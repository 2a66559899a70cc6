"""Which delivery of a queue is an earlier one again: what was given back, in two heaps of `codec.pairing.state.Work`.

What is seen to go back to a queue goes to its old place. Of what nobody settled only the end of its delivery is known:
it comes behind, in the order of time.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.pairing.state import CLASSIC, FIRST_TURN, NOBODY, READY, TURNS, WAITING


@kernel
def given_back(rows, work, delivery):
    """The first delivery of the message that comes again as `delivery`, or NOBODY when that is new."""
    if work.state[READY] == 0:
        return NOBODY
    first = work.ready[0]
    unmarked = rows.family[delivery] != CLASSIC and rows.unmarked[first]
    if rows.again[delivery] or unmarked:
        _pop_ready(work)
        return first
    return NOBODY


@kernel
def wait(work, at_ns, row):
    """Put `row` among those that come back at `at_ns`."""
    at = work.state[WAITING]
    work.state[WAITING] += 1
    while at > 0:
        above = (at - 1) >> 1
        if work.back_at[above] < at_ns or (work.back_at[above] == at_ns and work.back_row[above] <= row):
            break
        work.back_at[at], work.back_row[at] = work.back_at[above], work.back_row[above]
        at = above
    work.back_at[at], work.back_row[at] = at_ns, row


@kernel
def _sooner(work, at, at_ns, row):
    """Whether the delivery in cell `at` of the heap goes back before `row`, which does at `at_ns`."""
    return work.back_at[at] < at_ns or (work.back_at[at] == at_ns and work.back_row[at] < row)


@kernel
def come_back(rows, pairs, work, now_ns):
    """Move to `ready` what may come again by now. What is seen to go back to a queue goes to its old place; of others
    only their end is known, so that they come in the order of time."""
    while work.state[WAITING] > 0 and work.back_at[0] <= now_ns:
        row = work.back_row[0]
        work.state[WAITING] -= 1
        n = work.state[WAITING]
        at_ns, moved, at = work.back_at[n], work.back_row[n], 0
        while True:
            below = 2 * at + 1
            if below >= n:
                break
            if below + 1 < n and _sooner(work, below + 1, work.back_at[below], work.back_row[below]):
                below += 1
            if not _sooner(work, below, at_ns, moved):
                break
            work.back_at[at], work.back_row[at] = work.back_at[below], work.back_row[below]
            at = below
        work.back_at[at], work.back_row[at] = at_ns, moved
        turn = row
        if not rows.surely[pairs.last[row]]:
            turn = FIRST_TURN + work.state[TURNS]
            work.state[TURNS] += 1
        _push_ready(work, row, turn)


@kernel
def _push_ready(work, row, turn):
    at = work.state[READY]
    work.state[READY] += 1
    while at > 0:
        above = (at - 1) >> 1
        if work.turn[above] <= turn:
            break
        work.ready[at], work.turn[at] = work.ready[above], work.turn[above]
        at = above
    work.ready[at], work.turn[at] = row, turn


@kernel
def _pop_ready(work):
    work.state[READY] -= 1
    n = work.state[READY]
    moved, turn, at = work.ready[n], work.turn[n], 0
    while True:
        below = 2 * at + 1
        if below >= n:
            break
        if below + 1 < n and work.turn[below + 1] < work.turn[below]:
            below += 1
        if turn <= work.turn[below]:
            break
        work.ready[at], work.turn[at] = work.ready[below], work.turn[below]
        at = below
    work.ready[at], work.turn[at] = moved, turn
