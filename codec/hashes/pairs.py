"""Pairs of int64, such as (connection, frame number), numbered and found by hash: linear in their number.

    pairs = Pairs(connections, frames)
    pairs.numbers        of each pair, from 0 on in the order of their first occurrence
    pairs.find(connections, frames)

Pairs come from the wire, so that each process has random multipliers, as each table of `codec.hashes.keyed`: nobody
outside can choose pairs that share a slot. Should a pair lie more than MOST_PROBES behind its slot after all, the table
is made again with others, and twice as large.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.hashes.keyed import FOLD, MOST_PROBES, MULTIPLIER_BITS, WORD
from codec.memory import readonly

Integers = NDArray[np.int64]
FEWEST_SLOTS = 16
LOW, HIGH, THIRD, FOURTH = range(4)  # multipliers: of the two halves of the first number, of those of the second


@kernel
def _slot_of(first, second, multipliers, mask):
    """The slot where the search for a pair begins."""
    mixed = ((first & WORD) * multipliers[LOW]) ^ (((first >> 32) & WORD) * multipliers[HIGH])
    mixed = (mixed ^ (mixed >> FOLD)) & WORD
    mixed ^= ((second & WORD) * multipliers[THIRD]) ^ (((second >> 32) & WORD) * multipliers[FOURTH])
    return ((((mixed ^ (mixed >> FOLD)) & WORD) * multipliers[HIGH]) >> FOLD) & mask


@kernel
def number_pairs(first, second, multipliers, slots, rows, numbers):
    """Number the pairs int64 (n,): `numbers` of each, `rows` the first row of each number. `slots` int64, a power of
    two of zeros, get numbers plus 1. Returns how many there are; -1 if one lies too far behind its slot."""
    mask, count = len(slots) - 1, 0
    for i in range(len(first)):
        at, probes = _slot_of(first[i], second[i], multipliers, mask), 0
        while slots[at]:
            row = rows[slots[at] - 1]
            if first[row] == first[i] and second[row] == second[i]:
                break
            at = (at + 1) & mask
            probes += 1
            if probes > MOST_PROBES:
                return -1
        if not slots[at]:
            rows[count] = i
            count += 1
            slots[at] = count
        numbers[i] = slots[at] - 1
    return count


@kernel
def find_pairs(first, second, multipliers, slots, rows, wanted_first, wanted_second, found):
    """The first row of each wanted pair; -1 where there is none."""
    mask = len(slots) - 1
    for i in range(len(wanted_first)):
        at = _slot_of(wanted_first[i], wanted_second[i], multipliers, mask)
        found[i] = -1
        while slots[at]:
            row = rows[slots[at] - 1]
            if first[row] == wanted_first[i] and second[row] == wanted_second[i]:
                found[i] = row
                break
            at = (at + 1) & mask


def _multipliers() -> Integers:
    return np.array([secrets.randbits(MULTIPLIER_BITS) | 1 << (MULTIPLIER_BITS - 1) | 1 for _ in range(4)], np.int64)


MULTIPLIERS = _multipliers()


class Pairs:
    """Pairs (first[i], second[i]): `numbers` int64 (n,), `count`: how many distinct ones, `rows` int64 (count,): where
    each occurs first."""

    def __init__(self, first: Integers, second: Integers) -> None:
        self._first, self._second = _as_read(first), _as_read(second)
        self.numbers, rows = np.empty(len(first), np.int64), np.empty(len(first), np.int64)
        slots, count = FEWEST_SLOTS, -1
        while slots < 2 * len(first):
            slots *= 2
        self._multipliers = MULTIPLIERS
        while count < 0:
            self._slots = np.zeros(slots, np.int64)
            count = int(number_pairs(self._first, self._second, self._multipliers, self._slots, rows, self.numbers))
            slots *= 2
            if count < 0:
                self._multipliers = _multipliers()
        self.count, self.rows = count, rows[:count]

    def find(self, first: Integers, second: Integers) -> Integers:
        """The first row of each pair; -1 where it is not there."""
        found = np.empty(len(first), np.int64)
        if not self.count:
            found.fill(-1)
            return found
        wanted = _as_read(first), _as_read(second)
        find_pairs(self._first, self._second, self._multipliers, self._slots, self.rows, *wanted, found)
        return found


def _as_read(numbers: Integers) -> Integers:
    return readonly(np.ascontiguousarray(numbers, np.int64))
