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
Memory: 150 bytes a row.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.hashes.keyed import ABSENT, empty, found, new_keyed, put, with_room
from codec.pairing import state as S
from codec.pairing.state import Pairs, Rows, Work, pop, push, redelivered_message, release_requeued, schedule
from codec.variant.entries import agree

PROBES = LIMITS.pairing_probes


def pairs_of(rows: Rows) -> Pairs:
    """The pairs of whole groups of rows."""
    n = len(rows.key)
    by_row = [np.zeros(n, np.int64) for _ in range(7)]
    heads, claimed = with_room(new_keyed(), S.LISTS * n), with_room(new_keyed(), n)
    work = Work._make([heads, claimed, np.zeros((S.LISTS, n), np.int64), *by_row, np.zeros(8, np.int64)])
    pairs = Pairs(*(np.full(n, value, np.int64) for value in (S.NONE, S.NONE, S.NONE, 0, 0, 0, S.ANY)))
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
    while at < end and rows.side[at] == S.PUBLISH:
        at += 1
    if at < end:
        empty(work.heads)
        work.state[S.SINGLE] = start if at - start == 1 else S.NONE
        for publish in range(at - 1, start - 1, -1):
            for by in range(2):
                number = rows.kind[publish] if by else rows.route[publish]
                _prepend(work, publish, _list_key(by, number, 0), 3 * by + S.ANY)
                if at - start > 1:
                    _prepend(work, publish, _list_key(by, number, rows.label[publish]), 3 * by + S.LABEL)
                    _prepend(work, publish, _list_key(by, number, rows.common[publish]), 3 * by + S.COMMON)
                else:
                    work.chains[3 * by + S.LABEL, publish] = work.chains[3 * by + S.COMMON, publish] = S.NONE
    while at < end and rows.side[at] == S.DELIVERY:
        stop = at + 1
        while stop < end and rows.side[stop] == S.DELIVERY and rows.source[stop] == rows.source[at]:
            stop += 1
        _pair_queue(rows, pairs, work, at, stop)
        at = stop


@kernel
def _prepend(work, publish, number, chain):
    """Put a publish at the front of a list."""
    work.chains[chain, publish] = found(work.heads, number)
    put(work.heads, number, publish)


@kernel
def _head(rows, work, by, number, label):
    """The first publish of a list, or ABSENT. Where a key has a single publish, only lists of any label were made."""
    single = work.state[S.SINGLE]
    if label and single != S.NONE:
        bears = rows.label[single] == label or rows.common[single] == label
        return found(work.heads, _list_key(by, number, 0)) if bears else ABSENT
    return found(work.heads, _list_key(by, number, label))


@kernel
def _candidates(rows, work, delivery):
    """Which publishes can have reached the queue of `delivery`: (BY_ROUTE or BY_KIND, the route or kind, 1 for a loose
    match)."""
    route = rows.route[delivery]
    named = route if route != 0 else rows.queue_route[delivery]
    if found(work.heads, _list_key(S.BY_ROUTE, named, 0)) != ABSENT:
        return S.BY_ROUTE, named, 0
    origin = rows.origin_route[delivery]
    if origin == S.ANY_QUEUE or origin == S.PERHAPS_ANY_QUEUE:
        return S.BY_KIND, S.TO_QUEUE, origin == S.PERHAPS_ANY_QUEUE
    if origin != 0 and found(work.heads, _list_key(S.BY_ROUTE, origin, 0)) != ABSENT:
        return S.BY_ROUTE, origin, 0
    if route == 0 and found(work.heads, _list_key(S.BY_KIND, S.TO_EXCHANGE, 0)) != ABSENT:
        return S.BY_KIND, S.TO_EXCHANGE, 0
    return S.BY_KIND, S.TO_ADDRESS, 1


@kernel
def _same_content(rows, publish, delivery):
    """Whether the bodies may be the same; digests of different families are not comparable."""
    one, other = rows.digest[publish], rows.digest[delivery]
    comparable = (rows.family[publish] == S.V1_0_FAMILY) == (rows.family[delivery] == S.V1_0_FAMILY)
    return one == other or one == 0 or other == 0 or not comparable


@kernel
def _is_claimed(rows, work, publish):
    """Whether a publish has a label by which other deliveries of the queue are paired."""
    if work.state[S.CLAIMED] == 0:
        return False
    return (
        found(work.claimed, rows.label[publish]) != ABSENT or found(work.claimed, rows.common[publish]) != ABSENT
    )  # fmt: skip


@kernel
def _match(rows, work, delivery, tier):
    """The first publish in the list that fits and is not paired with this queue yet, or NONE."""
    stamp = work.state[S.STAMP]
    next_of = work.chains[work.state[S.CHAIN]]
    publish = work.state[S.FRONT]
    while publish != S.NONE and work.stamp[publish] == stamp:
        publish = next_of[publish]
    work.state[S.FRONT] = publish
    for _ in range(PROBES):
        if publish == S.NONE:
            break
        in_time = rows.first_ns[publish] <= rows.last_ns[delivery]
        if in_time and work.stamp[publish] != stamp and _fits(rows, work, publish, delivery, tier):
            work.stamp[publish] = stamp
            return publish
        publish = next_of[publish]
    return S.NONE


@kernel
def _fits(rows, work, publish, delivery, tier):
    """Whether content and labels allow a publish of the list to be the one of `delivery`."""
    if tier == S.ANY and _is_claimed(rows, work, publish):
        return False
    if tier == S.COMMON and work.state[S.CLAIMED] and found(work.claimed, rows.label[publish]) != ABSENT:
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
    next_of = work.chains[work.state[S.CHAIN]]
    fitting, publish = 0, head
    for _ in range(PROBES):
        if publish == S.NONE:
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
    work.state[S.STAMP] += 1
    work.state[S.CLAIMED] = 0
    mixed = False
    for delivery in range(start, end):
        work.order[delivery] = delivery
        work.match_label[delivery] = _matching_label(rows, work, by, number, delivery)
        mixed |= work.match_label[delivery] != work.match_label[start]
    if not mixed:
        _pair_run(rows, pairs, work, by, number, loose, start, end)
        return
    _sort_by_label(work, start, end)
    empty(work.claimed)
    for delivery in range(start, end):
        if work.match_label[delivery]:
            put(work.claimed, work.match_label[delivery], 1)
            work.state[S.CLAIMED] = 1
    for tier in (S.LABEL, S.COMMON, S.ANY):
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
        return S.ANY
    return S.LABEL if label == rows.label[delivery] else S.COMMON


@kernel
def _pair_run(rows, pairs, work, by, number, loose, start, end):
    """Pair the deliveries `start`..`end` of `order`: those of one queue that are paired by the same label."""
    first = work.order[start]
    tier = _tier_of(rows, work, first)
    head = _head(rows, work, by, number, work.match_label[first])
    work.state[S.FRONT] = head
    work.state[S.CHAIN] = 3 * by + tier
    work.state[S.PENDING] = 0
    work.state[S.READY] = 0
    work.state[S.TURNS] = 0
    unmatched = False
    for at in range(start, end):
        delivery = work.order[at]
        release_requeued(rows, pairs, work, rows.last_ns[delivery])
        first = redelivered_message(rows, work, delivery)
        if first == S.NONE:
            first = delivery
            publish = _match(rows, work, delivery, tier)
            pairs.publish[delivery] = publish
            pairs.tier[delivery] = tier
            if publish == S.NONE:
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
