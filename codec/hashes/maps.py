"""A hash table from int64 keys to int64 values, with open addressing, that is emptied in constant time.

An entry is valid while its epoch is the current one. Look-ups probe linearly; `with_room` limits the table to half full
with entries of the current epoch.

Keys come from the wire, so each table has random multipliers: nobody outside can choose keys that share a slot. Should
an entry lie more than MOST_PROBES behind its slot after all, `with_room` moves the entries to a table with others. What
is saved of a table are its entries. Nothing but the order of slots depends on the multipliers.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.memory import readonly

FIRST_ENTRIES = 1 << 12
WORD = 0xFFFFFFFF
ABSENT = -1
# Of 10,000,000 random entries in a table that is half full, the farthest is expected some 80 slots behind its own.
MOST_PROBES = 256
USED, EPOCH, LOW_MULTIPLIER, HIGH_MULTIPLIER, FARTHEST = range(5)  # cells of `Keyed.used`
# Multipliers are odd and below 2**31: a product with 32 bits stays within 63. The compiler treats an overflow as
# undefined, and has replaced one by 0.
MULTIPLIER_BITS = 31
FOLD = 31  # the lowest bit of a product that depends on all bits of its factors


class HashMap(NamedTuple):
    """int64 (entries,) each, a power of two: `epochs`, `keys`, `values`; `used` int64 (5,): entries of the current
    epoch, that epoch, the two multipliers, and how far an entry of this epoch was put behind its slot, at most."""

    epochs: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    used: np.ndarray


def new_map(entries: int = FIRST_ENTRIES) -> HashMap:
    """An empty table, for epochs above 0."""
    epochs, keys, values = (np.zeros(entries, np.int64) for _ in range(3))
    return HashMap(epochs, keys, values, np.array([0, 0, _multiplier(), _multiplier(), 0], np.int64))


def _multiplier() -> int:
    return secrets.randbits(MULTIPLIER_BITS) | 1 << (MULTIPLIER_BITS - 1) | 1


def needs_room(table: HashMap, more: int) -> bool:
    """Whether `more` entries need a larger table, or entries are too far behind their slots."""
    return 2 * (int(table.used[USED]) + more) > len(table.keys) or int(table.used[FARTHEST]) > MOST_PROBES


def with_room(table: HashMap, more: int) -> HashMap:
    """`table`, or another one with the same entries, with room for `more` entries."""
    while needs_room(table, more):
        entries = len(table.keys)
        # Twice as large also if other multipliers would do: this ends, whatever the keys.
        while 2 * (int(table.used[USED]) + more) > entries or entries == len(table.keys):
            entries *= 2
        larger = new_map(entries)
        larger.used[EPOCH] = table.used[EPOCH]
        refill(larger, table)
        table = larger
    return table


@kernel
def _first_slot(used, key, mask):
    """The slot where the search for `key` begins."""
    mixed = ((key & WORD) * used[LOW_MULTIPLIER]) ^ (((key >> 32) & WORD) * used[HIGH_MULTIPLIER])
    return ((((mixed ^ (mixed >> FOLD)) & WORD) * used[HIGH_MULTIPLIER]) >> FOLD) & mask


@kernel
def slot_of(table, key):
    """The slot of `key`, or the free slot for it."""
    mask = len(table.keys) - 1
    at = _first_slot(table.used, key, mask)
    while table.epochs[at] == table.used[EPOCH] and table.keys[at] != key:
        at = (at + 1) & mask
    return at


@kernel
def get(table, key):
    """The value of `key`, or ABSENT."""
    at = slot_of(table, key)
    return table.values[at] if table.epochs[at] == table.used[EPOCH] else ABSENT


@kernel
def put(table, key, value):
    """Set the value of `key`."""
    at = slot_of(table, key)
    if table.epochs[at] != table.used[EPOCH]:
        table.epochs[at] = table.used[EPOCH]
        table.keys[at] = key
        table.used[USED] += 1
        mask = len(table.keys) - 1
        table.used[FARTHEST] = max(table.used[FARTHEST], (at - _first_slot(table.used, key, mask)) & mask)
    table.values[at] = value


@kernel
def remove(table, key):
    """Remove the entry of `key`, if there is one; entries behind it move up where a search would miss them."""
    epoch, mask, free = table.used[EPOCH], len(table.keys) - 1, slot_of(table, key)
    if table.epochs[free] != epoch:
        return
    table.used[USED] -= 1
    at = (free + 1) & mask
    while table.epochs[at] == epoch:
        if (at - _first_slot(table.used, table.keys[at], mask)) & mask >= (at - free) & mask:
            table.keys[free] = table.keys[at]
            table.values[free] = table.values[at]
            free = at
        at = (at + 1) & mask
    table.epochs[free] = 0


@kernel
def clear(table):
    """Remove all entries: begin a new epoch."""
    table.used[EPOCH] += 1
    table.used[USED] = 0
    table.used[FARTHEST] = 0


@kernel
def refill(larger, table):
    """Copy all entries of `table` to `larger`."""
    for i in range(len(table.keys)):
        if table.epochs[i] == table.used[EPOCH]:
            put(larger, table.keys[i], table.values[i])


# Pairs of int64, such as (connection, frame number), numbered and found by hash: linear in their number.
#
#     pairs = Pairs(connections, frames)
#     pairs.numbers        of each pair, from 0 on in the order of their first occurrence
#     pairs.find(connections, frames)
#
# Pairs come from the wire, so that each process has random multipliers, as each table of `codec.hashes.maps`: nobody
# outside can choose pairs that share a slot. Should a pair lie more than MOST_PROBES behind its slot after all, the
# table is made again with others, and twice as large.


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
