"""A hash table from int64 keys to int64 values, with open addressing, that is emptied in constant time.

An entry is valid while its epoch is the current one. Look-ups probe linearly; the table is at most half full with
entries of the current epoch. Of n slots those from n to 2 n are in use: few entries are close together in memory,
however many there is room for. `put` moves them to the slots from 2 n on when they are too many, which takes no memory
but what `with_room` has made room for.

Keys come from the wire, so each table has random multipliers: nobody outside can choose keys that share a slot. Should
an entry lie more than MOST_PROBES behind its slot after all, `with_room` moves the entries to a table with others. What
is saved of a table are its entries. Nothing but the order of slots depends on the multipliers.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel, outlined
from codec.memory import readonly, sparse_zeros

FIRST_SLOTS = 1 << 12
WORD = 0xFFFFFFFF
ABSENT = -1
# Of 10,000,000 random entries in a table that is half full, the farthest is expected some 80 slots behind its own.
MOST_PROBES = 256
# Cells of `HashMap.used`.
USED, EPOCH, LOW_MULTIPLIER, HIGH_MULTIPLIER, FARTHEST, SLOTS = range(6)
EPOCH_OF, KEY, VALUE = range(3)  # of an entry
# Multipliers are odd and below 2**31: a product with 32 bits stays within 63. The compiler treats an overflow as
# undefined, and has replaced one by 0.
MULTIPLIER_BITS = 31
FOLD = 31  # the lowest bit of a product that depends on all bits of its factors


class HashMap(NamedTuple):
    """`entries` int64 (2 n, 3): EPOCH_OF, KEY, VALUE of each slot; `used` int64 (6,): entries of the current epoch,
    that epoch, the two multipliers, how far an entry of this epoch was put behind its slot, at most, and how many slots
    are in use, a power of two up to n."""

    entries: np.ndarray
    used: np.ndarray


def new_map(slots: int = FIRST_SLOTS) -> HashMap:
    """An empty table, for epochs above 0."""
    used = np.array([0, 0, _multiplier(), _multiplier(), 0, slots], np.int64)
    return HashMap(np.asarray(sparse_zeros((2 * slots, 3), np.int64)), used)


def _multiplier() -> int:
    return secrets.randbits(MULTIPLIER_BITS) | 1 << (MULTIPLIER_BITS - 1) | 1


def needs_room(table: HashMap, more: int) -> bool:
    """Whether `more` entries need a larger table, or entries are too far behind their slots."""
    return 4 * (int(table.used[USED]) + more) > len(table.entries) or int(table.used[FARTHEST]) > MOST_PROBES


def with_room(table: HashMap, more: int) -> HashMap:
    """`table`, or another one with the same entries, with room for `more` entries."""
    while needs_room(table, more):
        slots = len(table.entries) // 2
        # Twice as large also if other multipliers would do: this ends, whatever the keys.
        while 2 * (int(table.used[USED]) + more) > slots or 2 * slots == len(table.entries):
            slots *= 2
        larger = new_map(slots)
        larger.used[EPOCH], larger.used[SLOTS] = table.used[EPOCH], table.used[SLOTS]
        copy_entries(larger, table)
        table = larger
    return table


@kernel
def _first_slot(used, key):
    """The slot where the search for `key` begins, counted from the first one in use."""
    mixed = ((key & WORD) * used[LOW_MULTIPLIER]) ^ (((key >> 32) & WORD) * used[HIGH_MULTIPLIER])
    return ((((mixed ^ (mixed >> FOLD)) & WORD) * used[HIGH_MULTIPLIER]) >> FOLD) & (used[SLOTS] - 1)


@kernel
def has_entry(table, at):
    """Whether a slot is that of a key."""
    return table.entries[at, EPOCH_OF] == table.used[EPOCH]


@kernel
def slot_of(table, key):
    """The slot of `key`, or the free slot for it."""
    slots = table.used[SLOTS]
    at = slots + _first_slot(table.used, key)
    while has_entry(table, at) and table.entries[at, KEY] != key:
        at = slots + ((at + 1) & (slots - 1))
    return at


@kernel
def get(table, key):
    """The value of `key`, or ABSENT."""
    at = slot_of(table, key)
    return table.entries[at, VALUE] if has_entry(table, at) else ABSENT


@kernel
def put(table, key, value):
    """Set the value of `key`; returns the one before, or ABSENT."""
    at = slot_of(table, key)
    if has_entry(table, at):
        before = table.entries[at, VALUE]
        table.entries[at, VALUE] = value
        return before
    slots = table.used[SLOTS]
    if 2 * (table.used[USED] + 1) > slots and 4 * slots <= len(table.entries):
        use_slots(table, 2 * slots)
        at = slot_of(table, key)
    _add(table, at, key, value)
    return ABSENT


@kernel
def _add(table, at, key, value):
    """Put an entry into a free slot."""
    used = table.used
    table.entries[at, EPOCH_OF] = used[EPOCH]
    table.entries[at, KEY] = key
    table.entries[at, VALUE] = value
    used[USED] += 1
    used[FARTHEST] = max(used[FARTHEST], (at - _first_slot(used, key)) & (used[SLOTS] - 1))


@outlined
def use_slots(table, slots):
    """Move the entries to so many slots, which is another number than before; those with value ABSENT are dropped."""
    used, begin = table.used, table.used[SLOTS]
    epoch = used[EPOCH]
    used[SLOTS], used[EPOCH], used[USED], used[FARTHEST] = slots, epoch + 1, 0, 0
    for i in range(begin, 2 * begin):
        if table.entries[i, EPOCH_OF] == epoch and table.entries[i, VALUE] != ABSENT:
            key = table.entries[i, KEY]
            _add(table, slot_of(table, key), key, table.entries[i, VALUE])


@kernel
def remove(table, key):
    """Remove the entry of `key`, if there is one; returns its value, or ABSENT."""
    at = slot_of(table, key)
    if not has_entry(table, at):
        return ABSENT
    value = table.entries[at, VALUE]
    remove_at(table, at)
    return value


@kernel
def remove_at(table, free):
    """Remove the entry of a slot; entries behind it move up where a search would miss them."""
    slots = table.used[SLOTS]
    table.used[USED] -= 1
    at = slots + ((free + 1) & (slots - 1))
    while has_entry(table, at):
        behind = (at - _first_slot(table.used, table.entries[at, KEY])) & (slots - 1)
        if behind >= (at - free) & (slots - 1):
            table.entries[free, KEY] = table.entries[at, KEY]
            table.entries[free, VALUE] = table.entries[at, VALUE]
            free = at
        at = slots + ((at + 1) & (slots - 1))
    table.entries[free, EPOCH_OF] = 0


@kernel
def clear(table):
    """Remove all entries: begin a new epoch."""
    table.used[EPOCH] += 1
    table.used[USED] = 0
    table.used[FARTHEST] = 0
    table.used[SLOTS] = min(len(table.entries) // 2, FIRST_SLOTS)


@kernel
def copy_entries(to, table):
    """Put all entries of `table` into `to`."""
    slots = table.used[SLOTS]
    for i in range(slots, 2 * slots):
        if has_entry(table, i):
            put(to, table.entries[i, KEY], table.entries[i, VALUE])


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
