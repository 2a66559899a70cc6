"""Pairs each basic.return with the publish that it returns.

A return has no tag; it repeats exchange, routing key and body of the publish, and comes before its confirm. So of the
publishes with the same key (these three) that are not confirmed yet, a return belongs to the nearest earlier one, like
a closing bracket. Once no publish of the key is open, the brackets show which publishes were returned; the broker
returns them in their order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel

Integers = NDArray[np.int64]

PUBLISH, RETURN, CONFIRM = range(3)
NONE = -1
OPEN, ROUTED, RETURNED = range(3)  # fate of a publish: it may still be returned, it was not, it was
PENDING = 3  # of a publish or return whose bracket is closed, while others of the key are open


@kernel
def match(kinds, keys, publish, over, fate, partner, links):
    """Rows by key and frame: `kinds`; `keys`; `publish`: the row that a CONFIRM confirms, else -1; `over`: 1 if the key
    gets no more rows. Fills `fate` and, of returned publishes, `partner`: the row of the return. `links` int64
    (2, rows): scratch, the open publishes below and above each."""
    n = len(kinds)
    below, above = links[0], links[1]
    top, count, first = NONE, 0, 0
    for i in range(n):
        fate[i], partner[i] = OPEN, NONE
        if i == 0 or keys[i] != keys[i - 1]:
            top, count, first = NONE, 0, i
        if kinds[i] == PUBLISH:
            below[i], above[i] = top, NONE
            if top != NONE:
                above[top] = i
            top = i
            count += 1
        else:
            at = publish[i] if kinds[i] == CONFIRM else top
            fate[i] = PENDING if kinds[i] == RETURN and at != NONE else ROUTED
            if at != NONE and fate[at] == OPEN:
                fate[at] = PENDING if kinds[i] == RETURN else ROUTED
                if above[at] != NONE:
                    below[above[at]] = below[at]
                else:
                    top = below[at]
                if below[at] != NONE:
                    above[below[at]] = above[at]
                count -= 1
        last = i + 1 == n or keys[i + 1] != keys[i]
        if count == 0 or (last and over[i]):
            _close(kinds, fate, partner, first, i + 1)
            first = i + 1


@kernel
def _close(kinds, fate, partner, first, end):
    """No publish in these rows is open: pair the returned ones with the returns, in order."""
    at = first
    for i in range(first, end):
        if kinds[i] == PUBLISH and fate[i] == OPEN:
            fate[i] = ROUTED
        if kinds[i] != RETURN or fate[i] != PENDING:
            continue
        while kinds[at] != PUBLISH or fate[at] != PENDING:
            at += 1
        fate[at], partner[at], fate[i] = RETURNED, i, RETURNED
        at += 1


def matched(kinds: Integers, keys: Integers, publish: Integers, over: Integers) -> tuple[Integers, Integers]:
    """(fate, partner) by row, as `match` fills them."""
    fate, partner = np.zeros((2, len(kinds)), np.int64)
    match(kinds, keys, publish, over, fate, partner, np.zeros((2, len(kinds)), np.int64))
    return fate, partner
