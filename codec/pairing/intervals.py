"""Times during which something was so, as disjoint intervals of a key, sorted by key and time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.memory import as_kernel_array

NONE = -1
Integers = NDArray[np.int64]


class Times(NamedTuple):
    """Columns int64 (n,): intervals `from_ns`..`until_ns` of `keys`."""

    keys: Integers
    from_ns: Integers
    until_ns: Integers


class Intervals(NamedTuple):
    """`keys` (k,): distinct, rising; `starts` (k + 1,): where the intervals of each begin. By interval (n,): `from_ns`,
    `until_ns`; `before_ns`: how much all before it cover together, of any key (modulo 2**64: differences count)."""

    keys: Integers
    starts: Integers
    from_ns: Integers
    until_ns: Integers
    before_ns: Integers

    @classmethod
    def of(cls, keys: Integers, from_ns: Integers, until_ns: Integers) -> Intervals:
        """Disjoint intervals, sorted by key and time."""
        distinct, starts = np.unique(keys, return_index=True)
        covered = np.cumsum(until_ns - from_ns)
        ends = np.append(starts, len(keys))
        before_ns = np.append(0, covered)[: len(covered)]
        return cls(
            as_kernel_array(distinct),
            as_kernel_array(ends),
            as_kernel_array(from_ns),
            as_kernel_array(until_ns),
            as_kernel_array(before_ns),
        )

    def last_begun(self, keys: Integers, at_ns: Integers) -> Integers:
        """The last interval of each of `keys` that begins before `at_ns`, or NONE."""
        first, end = self._slots(keys)
        found = np.empty(len(keys), np.int64)
        last_before(self.from_ns, as_kernel_array(first), as_kernel_array(end), as_kernel_array(at_ns), found)
        return found

    def covered_ns(self, keys: Integers, from_ns: Integers, until_ns: Integers) -> Integers:
        """How much of each span the intervals of its key cover."""
        if not len(self.keys):
            return np.zeros(len(keys), np.int64)
        covered: Integers = self._covered_before(keys, until_ns) - self._covered_before(keys, from_ns)
        return covered

    def _covered_before(self, keys: Integers, at_ns: Integers) -> Integers:
        at = self.last_begun(keys, at_ns)
        nothing = self.before_ns[np.minimum(self._slots(keys)[0], len(self.before_ns) - 1)]
        inside = self.before_ns[at] + np.minimum(self.until_ns[at], at_ns) - self.from_ns[at]
        return np.where(at == NONE, nothing, inside)

    def _slots(self, keys: Integers) -> tuple[Integers, Integers]:
        """Where the intervals of each of `keys` begin and end; both the same where it has none."""
        slot = np.searchsorted(self.keys, keys)
        known = np.append(self.keys, 0)[slot] == keys
        known &= slot < len(self.keys)
        return self.starts[slot], np.where(known, self.starts[np.minimum(slot + 1, len(self.keys))], self.starts[slot])


@kernel
def last_before(from_ns, first, end, at_ns, found):
    """Fill `found` (m,) with the last of the intervals `first`..`end` that begins before `at_ns`, or NONE."""
    for i in range(len(at_ns)):
        low, high = first[i], end[i]
        while low < high:
            middle = (low + high) >> 1
            if from_ns[middle] < at_ns[i]:
                low = middle + 1
            else:
                high = middle
        found[i] = low - 1 if low > first[i] else NONE


def united(keys: Integers, from_ns: Integers, until_ns: Integers, gap_ns: int = 0) -> Times:
    """The unions of intervals of the same key that overlap, or are at most `gap_ns` apart, sorted by key and time."""
    order = np.lexsort((until_ns, from_ns, keys))
    keys, from_ns, until_ns = keys[order], from_ns[order], until_ns[order]
    if not len(keys):
        return Times(keys, from_ns, until_ns)
    group = np.cumsum(np.diff(keys, prepend=keys[0]) != 0)
    ends, rank = np.unique(until_ns, return_inverse=True)
    latest = ends[np.maximum.accumulate(group * len(ends) + rank) - group * len(ends)]
    begins = np.ones(len(keys), bool)
    begins[1:] = (np.diff(group) != 0) | (from_ns[1:] - gap_ns > latest[:-1])
    first = np.flatnonzero(begins)
    return Times(keys[first], from_ns[first], latest[np.append(first[1:], len(keys)) - 1])
