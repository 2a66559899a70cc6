"""Pairing: which delivery is of which publish, for messages that have a key in common.

Rows come in groups of one key (an identifier, or a fingerprint of the content), in each first the publishes in the
order of time, then the deliveries, queue by queue, in the order of time. A queue hands out first what came first: the
n-th publish that can have reached the queue goes with its n-th first delivery, unless the publish began only after the
delivery was over. A delivery that follows one of the same queue which was given back is that message again.

A publish may have reached a queue when both name the same route (exchange and routing key). Where a delivery does not
tell its route, the queue's own name on the default exchange counts, else any named exchange, and at last an address of
which nothing is known (this one *loosely*).

Each row costs a logarithm at most (of what was given back and not delivered anew), and `Limits.pairing_probes` looks
at publishes that another row was given or whose content differs. Memory: 64 bytes a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.kernel import kernel
from codec.keyed import ABSENT, Keyed, empty, found, new_keyed, put, with_room
from codec.limits import LIMITS

PUBLISH, DELIVERY = 0, 1  # sides
EXACT, NAMED, PLAIN = range(3)  # what a publish's route says: a queue, a named exchange, an address of either kind
CLASSIC, SEGMENTED, DESCRIBED = range(3)  # families of versions; the body of the last is hashed by sections
NOBODY = -1
PROBES = LIMITS.pairing_probes


class Rows(NamedTuple):
    """Columns int64 (n,), sorted by `key`, `side`, `place`, time. `place`: number of the queue of a delivery (with its
    route); `route`: number of exchange and routing key, 0 unknown; `own_route`: that of the queue's name on the default
    exchange; `kind`: EXACT ... of a publish; `digest`: of the body, 0 unknown; `family`: CLASSIC ...; `from_ns`,
    `until_ns`: when it began and was complete; `again`: 1 the server says that it was delivered before; `back_ns`: from
    when on it may be delivered again, -1 never; `unmarked`: 1: when delivered again it need not say so."""

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
    unmarked: np.ndarray


class Pairs(NamedTuple):
    """Columns int64 (n,), numbers of rows. Of a delivery: `first`, the first one of the same message on its queue
    (itself, as a rule). Of a first delivery: `publish` or NOBODY, `last` delivery, `repeats` after the first, `doubt` 1
    where another publish would fit as well. Of a publish: `taken`, 1 when it has a delivery."""

    first: np.ndarray
    publish: np.ndarray
    last: np.ndarray
    repeats: np.ndarray
    doubt: np.ndarray
    taken: np.ndarray


class Work(NamedTuple):
    """Scratch. `routes`: the first publish of each route. int64 (n,): `same_route`, `same_kind` (the next publish of
    the same), `stamp` (the place that was last given it), `back_at`, `back_row` (heap of deliveries given back, by the
    time from which they may come again), `ready` (heap of those that may). `heads` int64 (3,): the first publish of
    each kind; `state` int64 (5,): FRONT ..."""

    routes: Keyed
    same_route: np.ndarray
    same_kind: np.ndarray
    stamp: np.ndarray
    back_at: np.ndarray
    back_row: np.ndarray
    ready: np.ndarray
    heads: np.ndarray
    state: np.ndarray


FRONT, BY_KIND, STAMP, WAITING, READY = range(5)  # cells of Work.state


def pairs_of(rows: Rows) -> Pairs:
    """What belongs together in whole groups of rows."""
    n = len(rows.key)
    by_row = [np.zeros(n, np.int64) for _ in range(6)]
    work = Work._make([with_room(new_keyed(), n), *by_row, np.zeros(3, np.int64), np.zeros(5, np.int64)])
    pairs = Pairs(*(np.full(n, value, np.int64) for value in (NOBODY, NOBODY, NOBODY, 0, 0, 0)))
    pair(rows, pairs, work)
    return pairs


@kernel
def pair(rows, pairs, work):
    """Fill `pairs` for all groups of `rows`."""
    start, n = 0, len(rows.key)
    while start < n:
        end = start + 1
        while end < n and rows.key[end] == rows.key[start]:
            end += 1
        _group(rows, pairs, work, start, end)
        start = end


@kernel
def _group(rows, pairs, work, start, end):
    """The rows `start`..`end` of one key."""
    at = start
    while at < end and rows.side[at] == PUBLISH:
        at += 1
    empty(work.routes)
    work.heads[:] = NOBODY
    for publish in range(at - 1, start - 1, -1):
        route, kind = rows.route[publish], rows.kind[publish]
        work.same_route[publish] = found(work.routes, route)
        put(work.routes, route, publish)
        work.same_kind[publish] = work.heads[kind]
        work.heads[kind] = publish
    while at < end:
        stop = at + 1
        while stop < end and rows.place[stop] == rows.place[at]:
            stop += 1
        _queue(rows, pairs, work, at, stop)
        at = stop


@kernel
def _candidates(rows, work, delivery):
    """Set the list of publishes that can have reached the queue of `delivery`; 1 when they fit loosely only."""
    route = rows.route[delivery]
    head = found(work.routes, route if route != 0 else rows.own_route[delivery])
    work.state[BY_KIND] = 0
    work.state[FRONT] = head
    if head != ABSENT:
        return 0
    work.state[BY_KIND] = 1
    if route == 0 and work.heads[NAMED] != NOBODY:
        work.state[FRONT] = work.heads[NAMED]
        return 0
    work.state[FRONT] = work.heads[PLAIN]
    return 1


@kernel
def _next(work, publish):
    return work.same_kind[publish] if work.state[BY_KIND] else work.same_route[publish]


@kernel
def _alike(rows, publish, delivery):
    """Whether the contents may be the same; of different families, digests cannot tell."""
    one, other = rows.digest[publish], rows.digest[delivery]
    comparable = (rows.family[publish] == DESCRIBED) == (rows.family[delivery] == DESCRIBED)
    return one == other or one == 0 or other == 0 or not comparable


@kernel
def _take(rows, work, delivery):
    """The first publish in the list that fits and that this queue was not given yet, or NOBODY."""
    stamp = work.state[STAMP]
    publish = work.state[FRONT]
    while publish != NOBODY and work.stamp[publish] == stamp:
        publish = _next(work, publish)
    work.state[FRONT] = publish
    for _ in range(PROBES):
        if publish == NOBODY:
            break
        in_time = rows.from_ns[publish] <= rows.until_ns[delivery]
        if in_time and work.stamp[publish] != stamp and _alike(rows, publish, delivery):
            work.stamp[publish] = stamp
            return publish
        publish = _next(work, publish)
    return NOBODY


@kernel
def _several(rows, work, head, delivery):
    """1 when more than one publish of the list has the content of `delivery`, or the list is too long to tell."""
    fitting, publish = 0, head
    for _ in range(PROBES):
        if publish == NOBODY:
            return 0
        fitting += _alike(rows, publish, delivery)
        if fitting > 1:
            return 1
        publish = _next(work, publish)
    return 1


@kernel
def _queue(rows, pairs, work, start, end):
    """The deliveries `start`..`end` of one key from one queue."""
    loosely = _candidates(rows, work, start)
    head = work.state[FRONT]
    work.state[STAMP] += 1
    work.state[WAITING] = 0
    work.state[READY] = 0
    strangers = False
    for delivery in range(start, end):
        _come_back(work, rows.until_ns[delivery])
        first = _given_back(rows, work, delivery)
        if first == NOBODY:
            first = delivery
            publish = _take(rows, work, delivery)
            pairs.publish[delivery] = publish
            if publish == NOBODY:
                strangers = True
            else:
                pairs.taken[publish] = 1
                pairs.doubt[delivery] = loosely | _several(rows, work, head, delivery)
        else:
            pairs.repeats[first] += 1
        pairs.first[delivery] = first
        pairs.last[first] = delivery
        if rows.back_ns[delivery] >= 0:
            _wait(work, rows.back_ns[delivery], first)
    if strangers:  # one delivery has no publish here: it may have been any of them
        for delivery in range(start, end):
            pairs.doubt[delivery] = 1


@kernel
def _given_back(rows, work, delivery):
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
def _wait(work, at_ns, row):
    """Put `row` among those that come back at `at_ns`."""
    at = work.state[WAITING]
    work.state[WAITING] += 1
    while at > 0:
        above = (at - 1) >> 1
        if work.back_at[above] <= at_ns:
            break
        work.back_at[at], work.back_row[at] = work.back_at[above], work.back_row[above]
        at = above
    work.back_at[at], work.back_row[at] = at_ns, row


@kernel
def _come_back(work, now_ns):
    """Move to `ready` what may come again by now."""
    while work.state[WAITING] > 0 and work.back_at[0] <= now_ns:
        row = work.back_row[0]
        work.state[WAITING] -= 1
        n = work.state[WAITING]
        at_ns, moved, at = work.back_at[n], work.back_row[n], 0
        while True:
            below = 2 * at + 1
            if below >= n:
                break
            if below + 1 < n and work.back_at[below + 1] < work.back_at[below]:
                below += 1
            if at_ns <= work.back_at[below]:
                break
            work.back_at[at], work.back_row[at] = work.back_at[below], work.back_row[below]
            at = below
        work.back_at[at], work.back_row[at] = at_ns, moved
        _push_ready(work, row)


@kernel
def _push_ready(work, row):
    at = work.state[READY]
    work.state[READY] += 1
    while at > 0:
        above = (at - 1) >> 1
        if work.ready[above] <= row:
            break
        work.ready[at] = work.ready[above]
        at = above
    work.ready[at] = row


@kernel
def _pop_ready(work):
    work.state[READY] -= 1
    n = work.state[READY]
    moved, at = work.ready[n], 0
    while True:
        below = 2 * at + 1
        if below >= n:
            break
        if below + 1 < n and work.ready[below + 1] < work.ready[below]:
            below += 1
        if moved <= work.ready[below]:
            break
        work.ready[at] = work.ready[below]
        at = below
    work.ready[at] = moved
