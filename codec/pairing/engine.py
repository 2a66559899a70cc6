"""Pairing: which delivery belongs to which publish, among messages with the same key.

Rows come grouped by key (a message-id, or a fingerprint of the content); within a key first the publishes by time, then
the deliveries, queue by queue, by time, then those whose publish is known from elsewhere, which are left alone. A queue
is first in, first out: its n-th delivery matches the n-th publish that can have reached it, unless that publish began
after the delivery ended. A delivery that follows a returned one of the same queue is a redelivery of that message.

A publish can have reached a queue when both have the same route (exchange and routing key). If a delivery's route is
unknown, the queue's name on the default exchange counts, else that of the queue whose dead letters its queue has by
its name, else any named exchange, else an address of unknown kind (a *loose* match).

Brokers may change headers, so headers are not part of the key; they are hashed to labels, which are tried in tiers. Of
the publishes that can have reached a queue, a delivery matches those with its label; if there are none, those with its
common label (of what brokers preserve across families of versions); else those that have no label of another delivery
of the queue. In each case a header or property that both have is the same. A publish that the broker refused matches
only deliveries of what a queue dead-lettered because it was full. Messages with the same label are paired in order,
separately from all others.

Each row costs O(log n), and up to `Limits.pairing_probes` looks at publishes already paired or with other content.
Memory: 120 bytes a row beside the 160 of its columns.
"""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.hashes.maps import (
    ABSENT,
    HashMap,
    clear,
    get,
    new_map,
    put,
    with_room,
)
from codec.variant.entries import agree

# Input, output and scratch memory of pairing, and the heaps of returned deliveries (rules: `codec.pairing.engine`).


PUBLISH, DELIVERY, DECIDED = range(3)  # sides; DECIDED: a delivery whose publish is known from elsewhere
TO_QUEUE, TO_EXCHANGE, TO_ADDRESS = range(3)  # what a publish names: a queue, a named exchange, one of both
CLASSIC, V0_10_FAMILY, V1_0_FAMILY = range(3)  # families of versions; the body of the last is hashed by sections
ANY_QUEUE, PERHAPS_ANY_QUEUE = 1, 2  # values of `origin_route`; the second makes loose matches
NONE = -1


class Rows(
    namedtuple(
        "Rows",
        "key side source route queue_route kind digest family first_ns last_ns redelivered requeued_ns requeue_seen "
        "flag_optional label common refused origin_route shared shared_at shared_end",
    )
):
    """Columns int64 (n,), sorted by `key`, `side`, `source`, time. `source`: hash of a delivery's queue and route;
    `route`: hash of exchange and routing key, 0 unknown; `queue_route`: that of the queue's name on the default
    exchange; `kind` of a publish: TO_QUEUE ...; `digest`: of the body, 0 unknown; `family`: CLASSIC ...; `first_ns`,
    `last_ns`: its first and last frame; `redelivered`: 1 if marked so; `requeued_ns`: time from which it may be
    redelivered, -1 never; `requeue_seen`: 1 if its return to the queue was captured; `flag_optional`: 1 if its
    redelivery need not be marked; `label`, `common`: hashes of its headers (the two never collide), 0 unknown;
    `refused`: of a publish 1 if the broker refused it, of a delivery 1 if its publish may have been refused;
    `origin_route`: of a delivery from a queue of dead letters, that of the queue whose letters these are, ANY_QUEUE, or
    0. `shared` int64 (any): headers and properties (`codec.variant.entries.list_entries`), those of a row from
    `shared_at` to `shared_end`, in their order: if its publish has the same ones, their values are the same."""


class Pairs(NamedTuple):
    """Columns int64 (n,), row numbers. Of a delivery: `first`, the first one of the same message from its queue
    (usually itself). Of a first delivery: `publish` or NONE, `last` delivery, `redeliveries`, `ambiguous` 1 if another
    publish would fit as well, `tier` of the match. Of a publish: `paired`, 1 if it has a delivery."""

    first: np.ndarray
    publish: np.ndarray
    last: np.ndarray
    redeliveries: np.ndarray
    ambiguous: np.ndarray
    paired: np.ndarray
    tier: np.ndarray


class Work(NamedTuple):
    """Scratch. `heads`: the first publish of each list (`_list_key`); `claimed`: labels of a queue's deliveries. int64
    (LISTS, n): `chains`, the next publish of the same list. int64 (n,): `stamp` (source last paired with a publish),
    `match_label` (label that a delivery is paired by), `order` (a queue's deliveries by that label); the heap
    `requeue_at`, `requeue_row` (returned deliveries by the time from which they may be redelivered) and the heap
    `turn`, `ready` (those that may be redelivered now, by their turn). `state` int64 (8,): FRONT ..."""

    heads: HashMap
    claimed: HashMap
    chains: np.ndarray
    stamp: np.ndarray
    match_label: np.ndarray
    order: np.ndarray
    requeue_at: np.ndarray
    requeue_row: np.ndarray
    ready: np.ndarray
    turn: np.ndarray
    state: np.ndarray


FRONT, CHAIN, STAMP, PENDING, READY, TURNS, CLAIMED, SINGLE = range(8)  # cells of Work.state
# Lists of publishes: of one route or one kind, all of them, or those of a label, or of a common label.
BY_ROUTE, BY_KIND = range(2)
ANY, LABEL, COMMON = range(3)
LISTS = 6
FIRST_TURN = 1 << 40  # of deliveries whose return was not captured: after all others, by time


@kernel
def _before(keys, rows, at, key, row):
    """Whether entry `at` of a heap comes before (key, row)."""
    return keys[at] < key or (keys[at] == key and rows[at] < row)


@kernel
def push(keys, rows, n, key, row):
    """Add (key, row) to a heap of `n` entries, the smallest first."""
    at = n
    while at > 0:
        above = (at - 1) >> 1
        if _before(keys, rows, above, key, row):
            break
        keys[at], rows[at] = keys[above], rows[above]
        at = above
    keys[at], rows[at] = key, row


@kernel
def pop(keys, rows, n):
    """Remove the first of `n` entries of a heap; returns its row."""
    first, key, row, at = rows[0], keys[n - 1], rows[n - 1], 0
    while True:
        below = 2 * at + 1
        if below >= n - 1:
            break
        if below + 2 < n and _before(keys, rows, below + 1, keys[below], rows[below]):
            below += 1
        if not _before(keys, rows, below, key, row):
            break
        keys[at], rows[at] = keys[below], rows[below]
        at = below
    keys[at], rows[at] = key, row
    return first


@kernel
def redelivered_message(rows, work, delivery):
    """The first delivery of the message that `delivery` redelivers, or NONE if it is new."""
    if work.state[READY] == 0:
        return NONE
    flag_optional = rows.family[delivery] != CLASSIC and rows.flag_optional[work.ready[0]]
    if rows.redelivered[delivery] or flag_optional:
        work.state[READY] -= 1
        return pop(work.turn, work.ready, work.state[READY] + 1)
    return NONE


@kernel
def schedule(work, at_ns, row):
    """Let `row` return to the queue at `at_ns`."""
    push(work.requeue_at, work.requeue_row, work.state[PENDING], at_ns, row)
    work.state[PENDING] += 1


@kernel
def release_requeued(rows, pairs, work, now_ns):
    """Move to `ready` what may be redelivered by now. A message whose return was captured keeps its place in the queue;
    of others only the end of the delivery is known, so they follow in the order of time."""
    while work.state[PENDING] > 0 and work.requeue_at[0] <= now_ns:
        row = pop(work.requeue_at, work.requeue_row, work.state[PENDING])
        work.state[PENDING] -= 1
        turn = row
        if not rows.requeue_seen[pairs.last[row]]:
            turn = FIRST_TURN + work.state[TURNS]
            work.state[TURNS] += 1
        push(work.turn, work.ready, work.state[READY], turn, row)
        work.state[READY] += 1


PROBES = LIMITS.pairing_probes


def pairs_of(rows: Rows) -> Pairs:
    """The pairs of whole groups of rows."""
    n = len(rows.key)
    by_row = [np.zeros(n, np.int64) for _ in range(7)]
    publishes = int(np.count_nonzero(rows.side == PUBLISH))
    heads, claimed = with_room(new_map(), LISTS * publishes), with_room(new_map(), n)
    work = Work._make([heads, claimed, np.zeros((LISTS, n), np.int64), *by_row, np.zeros(8, np.int64)])
    pairs = Pairs(*(np.full(n, value, np.int64) for value in (NONE, NONE, NONE, 0, 0, 0, ANY)))
    pair(rows, pairs, work)
    return pairs


@kernel
def pair(rows, pairs, work):
    """Fill `pairs` for all keys of `rows`."""
    start, n = 0, len(rows.key)
    while start < n:
        end = start + 1
        while end < n and rows.key[end] == rows.key[start]:
            end += 1
        _pair_key(rows, pairs, work, start, end)
        start = end


@kernel
def _list_key(by, number, label):
    """The key of a list of publishes: of route or kind `number`, of a label (0: any)."""
    return (number << 32) ^ label ^ (by << 62)


@kernel
def _pair_key(rows, pairs, work, start, end):
    """Pair the rows `start`..`end`, all of one key."""
    at = start
    while at < end and rows.side[at] == PUBLISH:
        at += 1
    if at < end:
        clear(work.heads)
        work.state[SINGLE] = start if at - start == 1 else NONE
        for publish in range(at - 1, start - 1, -1):
            for by in range(2):
                number = rows.kind[publish] if by else rows.route[publish]
                _prepend(work, publish, _list_key(by, number, 0), 3 * by + ANY)
                if at - start > 1:
                    _prepend(work, publish, _list_key(by, number, rows.label[publish]), 3 * by + LABEL)
                    _prepend(work, publish, _list_key(by, number, rows.common[publish]), 3 * by + COMMON)
                else:
                    work.chains[3 * by + LABEL, publish] = work.chains[3 * by + COMMON, publish] = NONE
    while at < end and rows.side[at] == DELIVERY:
        stop = at + 1
        while stop < end and rows.side[stop] == DELIVERY and rows.source[stop] == rows.source[at]:
            stop += 1
        _pair_queue(rows, pairs, work, at, stop)
        at = stop


@kernel
def _prepend(work, publish, number, chain):
    """Put a publish at the front of a list."""
    work.chains[chain, publish] = get(work.heads, number)
    put(work.heads, number, publish)


@kernel
def _head(rows, work, by, number, label):
    """The first publish of a list, or ABSENT. Where a key has a single publish, only lists of any label were made."""
    single = work.state[SINGLE]
    if label and single != NONE:
        bears = rows.label[single] == label or rows.common[single] == label
        return get(work.heads, _list_key(by, number, 0)) if bears else ABSENT
    return get(work.heads, _list_key(by, number, label))


@kernel
def _candidates(rows, work, delivery):
    """Which publishes can have reached the queue of `delivery`: (BY_ROUTE or BY_KIND, the route or kind, 1 for a loose
    match)."""
    route = rows.route[delivery]
    named = route if route != 0 else rows.queue_route[delivery]
    if get(work.heads, _list_key(BY_ROUTE, named, 0)) != ABSENT:
        return BY_ROUTE, named, 0
    origin = rows.origin_route[delivery]
    if origin in (ANY_QUEUE, PERHAPS_ANY_QUEUE):
        return BY_KIND, TO_QUEUE, origin == PERHAPS_ANY_QUEUE
    if origin != 0 and get(work.heads, _list_key(BY_ROUTE, origin, 0)) != ABSENT:
        return BY_ROUTE, origin, 0
    if route == 0 and get(work.heads, _list_key(BY_KIND, TO_EXCHANGE, 0)) != ABSENT:
        return BY_KIND, TO_EXCHANGE, 0
    return BY_KIND, TO_ADDRESS, 1


@kernel
def _same_content(rows, publish, delivery):
    """Whether the bodies may be the same; digests of different families are not comparable."""
    one, other = rows.digest[publish], rows.digest[delivery]
    comparable = (rows.family[publish] == V1_0_FAMILY) == (rows.family[delivery] == V1_0_FAMILY)
    return one == other or one == 0 or other == 0 or not comparable


@kernel
def _is_claimed(rows, work, publish):
    """Whether a publish has a label by which other deliveries of the queue are paired."""
    if work.state[CLAIMED] == 0:
        return False
    return (
        get(work.claimed, rows.label[publish]) != ABSENT or get(work.claimed, rows.common[publish]) != ABSENT
    )  # fmt: skip


@kernel
def _match(rows, work, delivery, tier):
    """The first publish in the list that fits and is not paired with this queue yet, or NONE."""
    stamp = work.state[STAMP]
    next_of = work.chains[work.state[CHAIN]]
    publish = work.state[FRONT]
    while publish != NONE and work.stamp[publish] == stamp:
        publish = next_of[publish]
    work.state[FRONT] = publish
    for _ in range(PROBES):
        if publish == NONE:
            break
        in_time = rows.first_ns[publish] <= rows.last_ns[delivery]
        if in_time and work.stamp[publish] != stamp and _fits(rows, work, publish, delivery, tier):
            work.stamp[publish] = stamp
            return publish
        publish = next_of[publish]
    return NONE


@kernel
def _fits(rows, work, publish, delivery, tier):
    """Whether content and labels allow a publish of the list to be the one of `delivery`."""
    if tier == ANY and _is_claimed(rows, work, publish):
        return False
    if tier == COMMON and work.state[CLAIMED] and get(work.claimed, rows.label[publish]) != ABSENT:
        return False
    if rows.refused[publish] and not rows.refused[delivery]:
        return False
    return _same_content(rows, publish, delivery) and _agree(rows, publish, delivery)


@kernel
def _agree(rows, publish, delivery):
    """Whether the headers and properties that both have are the same."""
    at, other = rows.shared_at[publish], rows.shared_at[delivery]
    return agree(
        rows.shared, at, rows.shared_end[publish], other, rows.shared_end[delivery],
        rows.family[publish] == rows.family[delivery],
    )  # fmt: skip


@kernel
def _has_alternative(rows, work, head, delivery, tier):
    """1 if several publishes of the list have the content of `delivery`, or the list is too long to check."""
    next_of = work.chains[work.state[CHAIN]]
    fitting, publish = 0, head
    for _ in range(PROBES):
        if publish == NONE:
            return 0
        fitting += _fits(rows, work, publish, delivery, tier)
        if fitting > 1:
            return 1
        publish = next_of[publish]
    return 1


@kernel
def _pair_queue(rows, pairs, work, start, end):
    """Pair the deliveries `start`..`end` of one key and one queue."""
    by, number, loose = _candidates(rows, work, start)
    work.state[STAMP] += 1
    work.state[CLAIMED] = 0
    mixed = False
    for delivery in range(start, end):
        work.order[delivery] = delivery
        work.match_label[delivery] = _matching_label(rows, work, by, number, delivery)
        mixed |= work.match_label[delivery] != work.match_label[start]
    if not mixed:
        _pair_run(rows, pairs, work, by, number, loose, start, end)
        return
    _sort_by_label(work, start, end)
    clear(work.claimed)
    for delivery in range(start, end):
        if work.match_label[delivery]:
            put(work.claimed, work.match_label[delivery], 1)
            work.state[CLAIMED] = 1
    for tier in (LABEL, COMMON, ANY):
        at = start
        while at < end:
            label = work.match_label[work.order[at]]
            stop = at + 1
            while stop < end and work.match_label[work.order[stop]] == label:
                stop += 1
            if _tier_of(rows, work, work.order[at]) == tier:
                _pair_run(rows, pairs, work, by, number, loose, at, stop)
            at = stop


@kernel
def _sort_by_label(work, start, end):
    """Sort the deliveries `start`..`end` of `order` by the label that they are paired by, then by time."""
    for delivery in range(start, end):
        push(work.turn, work.ready, delivery - start, work.match_label[delivery], delivery)
    for at in range(start, end):
        work.order[at] = pop(work.turn, work.ready, end - at)


@kernel
def _matching_label(rows, work, by, number, delivery):
    """The label to pair a delivery by: its own, or its common one, if a publish of the list has it; else 0."""
    for label in (rows.label[delivery], rows.common[delivery]):
        if label and _head(rows, work, by, number, label) != ABSENT:
            return label
    return 0


@kernel
def _tier_of(rows, work, delivery):
    """LABEL, COMMON or ANY: the tier of the label that a delivery is paired by."""
    label = work.match_label[delivery]
    if label == 0:
        return ANY
    return LABEL if label == rows.label[delivery] else COMMON


@kernel
def _pair_run(rows, pairs, work, by, number, loose, start, end):
    """Pair the deliveries `start`..`end` of `order`: those of one queue that are paired by the same label."""
    first = work.order[start]
    tier = _tier_of(rows, work, first)
    head = _head(rows, work, by, number, work.match_label[first])
    work.state[FRONT] = head
    work.state[CHAIN] = 3 * by + tier
    work.state[PENDING] = 0
    work.state[READY] = 0
    work.state[TURNS] = 0
    unmatched = False
    for at in range(start, end):
        delivery = work.order[at]
        release_requeued(rows, pairs, work, rows.last_ns[delivery])
        first = redelivered_message(rows, work, delivery)
        if first == NONE:
            first = delivery
            publish = _match(rows, work, delivery, tier)
            pairs.publish[delivery] = publish
            pairs.tier[delivery] = tier
            if publish == NONE:
                unmatched = True
            else:
                pairs.paired[publish] = 1
                pairs.ambiguous[delivery] = loose | _has_alternative(rows, work, head, delivery, tier)
        else:
            pairs.redeliveries[first] += 1
        pairs.first[delivery] = first
        pairs.last[first] = delivery
        if rows.requeued_ns[delivery] >= 0:
            schedule(work, rows.requeued_ns[delivery], first)
    if unmatched:  # one delivery has no publish: it may be any of them
        for at in range(start, end):
            pairs.ambiguous[work.order[at]] = 1
