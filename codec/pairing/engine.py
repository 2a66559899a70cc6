"""Pairing: which delivery belongs to which publish, for messages with the same key.

Rows come in groups of one key (an identifier, or a fingerprint of the content), in each first the publishes in the
order of time, then the deliveries, queue by queue, in the order of time. A queue is first in, first out: the n-th
publish that can have reached the queue matches its n-th first delivery, unless the publish began only after the end of
the delivery. A delivery after one of the same queue that was returned is a redelivery of that message.

A publish may have reached a queue when both name the same route (exchange and routing key). If the route of a
delivery is unknown, the queue's name on the default exchange counts, else any named exchange, else an address of
unknown kind (this one *loosely*).

Brokers may change headers, so headers are not part of the key, but are hashed to labels, in tiers: of the publishes
that can have reached a queue, a delivery matches those with its label; if there are none, those with its common label
(of what brokers preserve across families of versions); else those without a label of other deliveries of this queue.
Messages with the same label are paired in their order, separately from all others.

Each row costs O(log n), and up to `Limits.pairing_probes` looks at publishes already paired or with different content.
Memory: 150 bytes a row.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.hashes.keyed import ABSENT, empty, found, new_keyed, put, with_room
from codec.pairing.state import (  # fmt: skip
    ANY,
    BY_KIND,
    BY_ROUTE,
    CHAIN,
    CLAIMS,
    COMMON,
    FRONT,
    LABEL,
    LISTS,
    NAMED,
    NOBODY,
    PLAIN,
    PUBLISH,
    READY,
    SINGLE,
    STAMP,
    TURNS,
    V1_0_FAMILY,
    WAITING,
    Pairs,
    Rows,
    Work,
    come_back,
    given_back,
    wait,
)

PROBES = LIMITS.pairing_probes


def pairs_of(rows: Rows) -> Pairs:
    """The pairs of whole groups of rows."""
    n = len(rows.key)
    by_row = [np.zeros(n, np.int64) for _ in range(7)]
    heads, claimed = with_room(new_keyed(), LISTS * n), with_room(new_keyed(), n)
    work = Work._make([heads, claimed, np.zeros((LISTS, n), np.int64), *by_row, np.zeros(8, np.int64)])
    pairs = Pairs(*(np.full(n, value, np.int64) for value in (NOBODY, NOBODY, NOBODY, 0, 0, 0, ANY)))
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
def _list(by, number, label):
    """The number of a list: of route or kind `number`, of a label (0: any)."""
    return (number << 32) ^ label ^ (by << 62)


@kernel
def _group(rows, pairs, work, start, end):
    """The rows `start`..`end` of one key."""
    at = start
    while at < end and rows.side[at] == PUBLISH:
        at += 1
    if at < end:
        empty(work.heads)
        work.state[SINGLE] = start if at - start == 1 else NOBODY
        for publish in range(at - 1, start - 1, -1):
            for by in range(2):
                number = rows.kind[publish] if by else rows.route[publish]
                _enlist(work, publish, _list(by, number, 0), 3 * by + ANY)
                if at - start > 1:
                    _enlist(work, publish, _list(by, number, rows.label[publish]), 3 * by + LABEL)
                    _enlist(work, publish, _list(by, number, rows.common[publish]), 3 * by + COMMON)
                else:
                    work.chains[3 * by + LABEL, publish] = work.chains[3 * by + COMMON, publish] = NOBODY
    while at < end:
        stop = at + 1
        while stop < end and rows.place[stop] == rows.place[at]:
            stop += 1
        _queue(rows, pairs, work, at, stop)
        at = stop


@kernel
def _enlist(work, publish, number, chain):
    """Put a publish before the others of a list."""
    work.chains[chain, publish] = found(work.heads, number)
    put(work.heads, number, publish)


@kernel
def _head(rows, work, by, number, label):
    """The first publish of a list, or ABSENT. Where a key has a single publish, only lists of any label were made."""
    single = work.state[SINGLE]
    if label and single != NOBODY:
        bears = rows.label[single] == label or rows.common[single] == label
        return found(work.heads, _list(by, number, 0)) if bears else ABSENT
    return found(work.heads, _list(by, number, label))


@kernel
def _candidates(rows, work, delivery):
    """Which list of publishes can have reached the queue of `delivery`: (BY_ROUTE or BY_KIND, number of the route or
    kind, whether they fit loosely only)."""
    route = rows.route[delivery]
    named = route if route != 0 else rows.own_route[delivery]
    if found(work.heads, _list(BY_ROUTE, named, 0)) != ABSENT:
        return BY_ROUTE, named, 0
    if route == 0 and found(work.heads, _list(BY_KIND, NAMED, 0)) != ABSENT:
        return BY_KIND, NAMED, 0
    return BY_KIND, PLAIN, 1


@kernel
def _alike(rows, publish, delivery):
    """Whether the contents may be the same; of different families, digests cannot tell."""
    one, other = rows.digest[publish], rows.digest[delivery]
    comparable = (rows.family[publish] == V1_0_FAMILY) == (rows.family[delivery] == V1_0_FAMILY)
    return one == other or one == 0 or other == 0 or not comparable


@kernel
def _is_claimed(rows, work, publish):
    """Whether a publish bears a label by which other deliveries of the queue are paired."""
    if work.state[CLAIMS] == 0:
        return False
    return (
        found(work.claimed, rows.label[publish]) != ABSENT or found(work.claimed, rows.common[publish]) != ABSENT
    )  # fmt: skip


@kernel
def _take(rows, work, delivery, tier):
    """The first publish in the list that fits and that this queue was not given yet, or NOBODY."""
    stamp = work.state[STAMP]
    next_of = work.chains[work.state[CHAIN]]
    publish = work.state[FRONT]
    while publish != NOBODY and work.stamp[publish] == stamp:
        publish = next_of[publish]
    work.state[FRONT] = publish
    for _ in range(PROBES):
        if publish == NOBODY:
            break
        in_time = rows.from_ns[publish] <= rows.until_ns[delivery]
        if in_time and work.stamp[publish] != stamp and _fits(rows, work, publish, delivery, tier):
            work.stamp[publish] = stamp
            return publish
        publish = next_of[publish]
    return NOBODY


@kernel
def _fits(rows, work, publish, delivery, tier):
    """Whether a publish of the list may be the one of `delivery`, as far as content and labels tell."""
    if tier == ANY and _is_claimed(rows, work, publish):
        return False
    if tier == COMMON and work.state[CLAIMS] and found(work.claimed, rows.label[publish]) != ABSENT:
        return False
    return _alike(rows, publish, delivery)


@kernel
def _several(rows, work, head, delivery, tier):
    """1 when more than one publish of the list has the content of `delivery`, or the list is too long to tell."""
    next_of = work.chains[work.state[CHAIN]]
    fitting, publish = 0, head
    for _ in range(PROBES):
        if publish == NOBODY:
            return 0
        fitting += _fits(rows, work, publish, delivery, tier)
        if fitting > 1:
            return 1
        publish = next_of[publish]
    return 1


@kernel
def _queue(rows, pairs, work, start, end):
    """The deliveries `start`..`end` of one key from one queue."""
    by, number, loosely = _candidates(rows, work, start)
    work.state[STAMP] += 1
    work.state[CLAIMS] = 0
    mixed = False
    for delivery in range(start, end):
        work.order[delivery] = delivery
        work.used[delivery] = _tier(rows, work, by, number, delivery)
        mixed |= work.used[delivery] != work.used[start]
    if not mixed:
        _run(rows, pairs, work, by, number, loosely, start, end)
        return
    _by_label(work, start, end)
    empty(work.claimed)
    for delivery in range(start, end):
        if work.used[delivery]:
            put(work.claimed, work.used[delivery], 1)
            work.state[CLAIMS] = 1
    for tier in (LABEL, COMMON, ANY):
        at = start
        while at < end:
            used = work.used[work.order[at]]
            stop = at + 1
            while stop < end and work.used[work.order[stop]] == used:
                stop += 1
            if _tier_of(rows, work, work.order[at]) == tier:
                _run(rows, pairs, work, by, number, loosely, at, stop)
            at = stop


@kernel
def _by_label(work, start, end):
    """Sort the deliveries `start`..`end` of `order` by the labels that tell them apart; those of one by time."""
    for root in range((end - start) // 2 - 1, -1, -1):
        _sink(work, start, root, end - start)
    for last in range(end - start - 1, 0, -1):
        work.order[start], work.order[start + last] = work.order[start + last], work.order[start]
        _sink(work, start, 0, last)


@kernel
def _sink(work, start, root, size):
    """Make a heap below `root` of `order[start:start + size]`, the last on top."""
    while True:
        below = 2 * root + 1
        if below >= size:
            return
        if below + 1 < size and _comes_after(work, work.order[start + below + 1], work.order[start + below]):
            below += 1
        one, other = work.order[start + root], work.order[start + below]
        if not _comes_after(work, other, one):
            return
        work.order[start + root], work.order[start + below] = other, one
        root = below


@kernel
def _comes_after(work, one, other):
    by_label = work.used[one] > work.used[other]
    return by_label or (work.used[one] == work.used[other] and one > other)


@kernel
def _tier(rows, work, by, number, delivery):
    """The label by which a delivery is told from others: its own one, or its common one, if a publish of the list has
    it; else 0."""
    for label in (rows.label[delivery], rows.common[delivery]):
        if label and _head(rows, work, by, number, label) != ABSENT:
            return label
    return 0


@kernel
def _tier_of(rows, work, delivery):
    """LABEL, COMMON or ANY: what the label by which a delivery is told from others is."""
    used = work.used[delivery]
    if used == 0:
        return ANY
    return LABEL if used == rows.label[delivery] else COMMON


@kernel
def _run(rows, pairs, work, by, number, loosely, start, end):
    """Deliveries of a queue that are paired by the same label, `start`..`end` in `order`: those of one message after
    the other."""
    first = work.order[start]
    tier = _tier_of(rows, work, first)
    head = _head(rows, work, by, number, work.used[first])
    work.state[FRONT] = head
    work.state[CHAIN] = 3 * by + tier
    work.state[WAITING] = 0
    work.state[READY] = 0
    work.state[TURNS] = 0
    strangers = False
    for at in range(start, end):
        delivery = work.order[at]
        come_back(rows, pairs, work, rows.until_ns[delivery])
        first = given_back(rows, work, delivery)
        if first == NOBODY:
            first = delivery
            publish = _take(rows, work, delivery, tier)
            pairs.publish[delivery] = publish
            pairs.tier[delivery] = tier
            if publish == NOBODY:
                strangers = True
            else:
                pairs.taken[publish] = 1
                pairs.doubt[delivery] = loosely | _several(rows, work, head, delivery, tier)
        else:
            pairs.repeats[first] += 1
        pairs.first[delivery] = first
        pairs.last[first] = delivery
        if rows.back_ns[delivery] >= 0:
            wait(work, rows.back_ns[delivery], first)
    if strangers:  # one delivery has no publish here: it may have been any of them
        for at in range(start, end):
            pairs.doubt[work.order[at]] = 1
