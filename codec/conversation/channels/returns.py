"""Pairs each basic.return with the publish that it returns.

A return has no tag; it repeats exchange, routing key and body of the publish. With these three (a key) there may be
several publishes that were not returned yet.

- In confirm mode the broker confirms a publish that it returns right after the return. So a return belongs to the first
  publish of its key that is confirmed after it (https://www.rabbitmq.com/docs/confirms: basic.return is sent before
  basic.ack), the oldest of several that one acknowledgement confirms.
- Otherwise it belongs to the nearest earlier one, like a closing bracket. Once no publish of the key is open, the
  brackets show which publishes were returned; the broker returns them in their order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel

Integers = NDArray[np.int64]

PUBLISH, RETURN, CONFIRM, NUMBERED = range(4)  # NUMBERED: a publish that may be confirmed
NONE = -1
PUBLISHES = (PUBLISH, NUMBERED)
# Fate of a publish: it may still be returned, it was not, it was. A return that waits for a confirm is OPEN, too.
OPEN, ROUTED, RETURNED = range(3)
PENDING = 3  # of a publish or return whose bracket is closed, while others of the key are open


@kernel
def match(kinds, keys, publish, over, fate, partner, links):
    """Rows by key and frame: `kinds`; `keys`; `publish`: the row that a CONFIRM confirms, else -1; `over`: 1 if the key
    gets no more rows. Fills `fate` and, of returned publishes, `partner`: the row of the return. `links` int64
    (2, rows): scratch, the open publish below each, and the returns that wait for a confirm, from `low` to `high`."""
    n = len(kinds)
    below, waiting = links[0], links[1]
    top, numbered, count, first, low, high = NONE, 0, 0, 0, 0, 0
    for i in range(n):
        fate[i], partner[i] = OPEN, NONE
        if i == 0 or keys[i] != keys[i - 1]:
            top, numbered, count, first, low, high = NONE, 0, 0, i, 0, 0
        if kinds[i] == PUBLISH:
            below[i], top = top, i
            count += 1
        elif kinds[i] == NUMBERED:
            numbered += 1
            count += 1
        elif kinds[i] == RETURN and numbered > 0:
            waiting[high] = i
            high += 1
        elif kinds[i] == RETURN:
            fate[i] = ROUTED if top == NONE else PENDING
            if top != NONE:
                fate[top], top = PENDING, below[top]
                count -= 1
        else:
            fate[i] = ROUTED
            at = publish[i]
            if at != NONE and kinds[at] == NUMBERED and fate[at] == OPEN:
                fate[at] = ROUTED
                numbered -= 1
                count -= 1
                # The oldest return after the publish, if it is the oldest or the newest that waits.
                if low < high and waiting[low] > at:
                    partner[at] = waiting[low]
                    low += 1
                elif low < high and waiting[high - 1] > at:
                    high -= 1
                    partner[at] = waiting[high]
                if partner[at] != NONE:
                    fate[at], fate[partner[at]] = RETURNED, RETURNED
        last = i + 1 == n or keys[i + 1] != keys[i]
        if count == 0 or (last and over[i]):
            _close(kinds, fate, partner, below, first, i + 1)
            top, first, low, high = NONE, i + 1, 0, 0


@kernel
def _close(kinds, fate, partner, below, first, end):
    """No publish in these rows will be confirmed any more: close the brackets of returns that waited, and pair the
    returned publishes with the returns, in order."""
    top = NONE
    for i in range(first, end):
        if fate[i] == OPEN and kinds[i] != RETURN:
            below[i], top = top, i
        elif fate[i] == OPEN:
            fate[i] = ROUTED if top == NONE else PENDING
            if top != NONE:
                fate[top], top = PENDING, below[top]
    at = first
    for i in range(first, end):
        if fate[i] == OPEN:
            fate[i] = ROUTED
        if kinds[i] != RETURN or fate[i] != PENDING:
            continue
        while kinds[at] == RETURN or fate[at] != PENDING:
            at += 1
        fate[at], partner[at], fate[i] = RETURNED, i, RETURNED
        at += 1


def matched(kinds: Integers, keys: Integers, publish: Integers, over: Integers) -> tuple[Integers, Integers]:
    """(fate, partner) by row, as `match` fills them."""
    fate, partner = np.zeros((2, len(kinds)), np.int64)
    match(kinds, keys, publish, over, fate, partner, np.zeros((2, len(kinds)), np.int64))
    return fate, partner
