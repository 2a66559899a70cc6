"""Input, output and scratch memory of pairing, and the heaps of returned deliveries (rules: `codec.pairing.engine`)."""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.hashes.keyed import Keyed

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

    heads: Keyed
    claimed: Keyed
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
