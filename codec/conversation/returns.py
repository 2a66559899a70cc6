"""Returns: which publish a basic.return gives back.

The broker names no tag; it gives back the same exchange, routing key and body, and it does so before it confirms. So of
the publishes of one key that may be returned, and are not confirmed yet, each return means the nearest earlier one:
brackets that close. Once nothing of the key is open, the brackets tell which publishes were returned; the broker
returns them in the order in which they came.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel

Integers = NDArray[np.int64]

PUBLISH, RETURN, CONFIRM = range(3)
NONE = -1
OPEN, KEPT, RETURNED = range(3)  # fate of a publish: it may be returned yet, it never was, it was
PENDING = 3  # of a publish, or a return, that is in a bracket whose others are still open


@kernel
def match(kinds, keys, publish, over, fate, partner, links):
    """Rows by key, those of a key in the order of frames: `kinds`; `keys`; of a CONFIRM the row of its `publish`, else
    -1; `over`: 1 where nothing more comes. Fills `fate` and, of what was returned, `partner`: the row of its return.
    `links` int64 (2, rows): the open publish below each, and above."""
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
            fate[i] = PENDING if kinds[i] == RETURN and at != NONE else KEPT
            if at != NONE and fate[at] == OPEN:
                fate[at] = PENDING if kinds[i] == RETURN else KEPT
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
    """Nothing in these rows is open any more: the first publish that was returned is that of the first return."""
    at = first
    for i in range(first, end):
        if kinds[i] == PUBLISH and fate[i] == OPEN:
            fate[i] = KEPT
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
