"""Input, output and scratch memory of pairing, and the queue of redeliveries (rules: `codec.pairing.engine`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.hashes.keyed import Keyed

PUBLISH, DELIVERY = 0, 1  # sides
EXACT, NAMED, PLAIN = range(3)  # the route of a publish: a queue, a named exchange, an address of either kind
CLASSIC, V0_10_FAMILY, V1_0_FAMILY = range(3)  # families of versions; the body of the last is hashed by sections
NOBODY = -1


class Rows(NamedTuple):
    """Columns int64 (n,), sorted by `key`, `side`, `place`, time. `place`: number of the queue of a delivery (with its
    route); `route`: number of exchange and routing key, 0 unknown; `own_route`: that of the queue's name on the default
    exchange; `kind`: EXACT ... of a publish; `digest`: of the body, 0 unknown; `family`: CLASSIC ...; `from_ns`,
    `until_ns`: when it began and was complete; `again`: 1: marked as redelivered; `back_ns`: time from
    which it may be redelivered, -1: never; `surely` 1: its return to the queue was seen; `unmarked`: 1: a redelivery of
    it need not be marked; `label`, `common`: hashes of its headers (no number is both), 0 unknown."""

    key: np.ndarray
    side: np.ndarray
    place: np.ndarray
    route: np.ndarray
    own_route: np.ndarray
    kind: np.ndarray
    digest: np.ndarray
    family: np.ndarray
    from_ns: np.ndarray
    until_ns: np.ndarray
    again: np.ndarray
    back_ns: np.ndarray
    surely: np.ndarray
    unmarked: np.ndarray
    label: np.ndarray
    common: np.ndarray


class Pairs(NamedTuple):
    """Columns int64 (n,), numbers of rows. Of a delivery: `first`, the first one of the same message on its queue
    (usually itself). Of a first delivery: `publish` or NOBODY, `last` delivery, `repeats` after the first, `doubt` 1
    if another publish would fit as well, `tier` of the match. Of a publish: `taken`, 1 if it has a delivery."""

    first: np.ndarray
    publish: np.ndarray
    last: np.ndarray
    repeats: np.ndarray
    doubt: np.ndarray
    taken: np.ndarray
    tier: np.ndarray


class Work(NamedTuple):
    """Scratch. `heads`: the first publish of each list, by its number (`_list`); `claimed`: labels of a queue's
    deliveries. int64 (LISTS, n): `chains`, the next publish of the same list. int64 (n,): `stamp` (place that was last
    paired with a publish), `used` (label by which a delivery is paired), `order` (deliveries of a queue by that),
    `back_at`, `back_row` (heap of returned deliveries, by the time from which they may be redelivered), `ready`, `turn`
    (heap of those that may be redelivered now, by their turn). `state` int64 (8,): FRONT ..."""

    heads: Keyed
    claimed: Keyed
    chains: np.ndarray
    stamp: np.ndarray
    used: np.ndarray
    order: np.ndarray
    back_at: np.ndarray
    back_row: np.ndarray
    ready: np.ndarray
    turn: np.ndarray
    state: np.ndarray


FRONT, CHAIN, STAMP, WAITING, READY, TURNS, CLAIMS, SINGLE = range(8)  # cells of Work.state
# Lists of publishes: of one route or one kind, all of them, or those of a label, or of a common label.
BY_ROUTE, BY_KIND = range(2)
ANY, LABEL, COMMON = range(3)
LISTS = 6
FIRST_TURN = 1 << 40  # of deliveries whose return was not seen: after all others, in the order of time


@kernel
def given_back(rows, work, delivery):
    """The first delivery of the message that `delivery` redelivers, or NOBODY if it is new."""
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
    """Add `row` to those that return to the queue at `at_ns`."""
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
    """Whether the delivery in cell `at` of the heap returns before `row`, which returns at `at_ns`."""
    return work.back_at[at] < at_ns or (work.back_at[at] == at_ns and work.back_row[at] < row)


@kernel
def come_back(rows, pairs, work, now_ns):
    """Move to `ready` what may be redelivered by now. A message whose return was seen keeps its place in the queue; of
    others only the end of the delivery is known, so they follow in the order of time."""
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
