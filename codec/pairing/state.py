"""What pairing reads and writes: messages in columns, pairs, and scratch (`codec.pairing.engine` has the rules)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.hashes.keyed import Keyed

PUBLISH, DELIVERY = 0, 1  # sides
EXACT, NAMED, PLAIN = range(3)  # what a publish's route says: a queue, a named exchange, an address of either kind
CLASSIC, V0_10_FAMILY, V1_0_FAMILY = range(3)  # families of versions; the body of the last is hashed by sections
NOBODY = -1


class Rows(NamedTuple):
    """Columns int64 (n,), sorted by `key`, `side`, `place`, time. `place`: number of the queue of a delivery (with its
    route); `route`: number of exchange and routing key, 0 unknown; `own_route`: that of the queue's name on the default
    exchange; `kind`: EXACT ... of a publish; `digest`: of the body, 0 unknown; `family`: CLASSIC ...; `from_ns`,
    `until_ns`: when it began and was complete; `again`: 1 the server says that it was delivered before; `back_ns`: from
    when on it may be delivered again, -1 never; `surely` 1: it was seen to go back then; `unmarked`: 1: when delivered
    again it need not say so; `label`, `common`: hashes of its headers (no number is both), 0 unknown."""

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
    (itself, as a rule). Of a first delivery: `publish` or NOBODY, `last` delivery, `repeats` after the first, `doubt` 1
    where another publish would fit as well, `tier` that it was found in. Of a publish: `taken`, 1 when it has a
    delivery."""

    first: np.ndarray
    publish: np.ndarray
    last: np.ndarray
    repeats: np.ndarray
    doubt: np.ndarray
    taken: np.ndarray
    tier: np.ndarray


class Work(NamedTuple):
    """Scratch. `heads`: the first publish of each list, by its number (`_list`); `claimed`: labels of a queue's
    deliveries. int64 (LISTS, n): `chains`, the next publish of the same list. int64 (n,): `stamp` (the place that was
    last given a publish), `used` (label by which a delivery is paired), `order` (deliveries of a queue by that),
    `back_at`, `back_row` (heap of deliveries given back, by the time from which they may come again), `ready`,
    `turn` (heap of those that may, by their turn). `state` int64 (8,): FRONT ..."""

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
FIRST_TURN = 1 << 40  # of deliveries that nobody saw go back: behind all others, in the order of time
