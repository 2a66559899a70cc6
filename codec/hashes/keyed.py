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

from codec.compiler.kernel import kernel

FIRST_ENTRIES = 1 << 12
WORD = 0xFFFFFFFF
ABSENT = -1
# Of 10,000,000 random entries in a table that is half full, the farthest is expected some 80 slots behind its own.
MOST_PROBES = 256
USED, EPOCH, LOW, HIGH, FARTHEST = range(5)  # cells of `Keyed.used`
# Multipliers are odd and below 2**31: a product with 32 bits stays within 63. The compiler treats an overflow as
# undefined, and has replaced one by 0.
MULTIPLIER_BITS = 31
FOLD = 31  # the lowest bit of a product that depends on all bits of its factors


class Keyed(NamedTuple):
    """int64 (entries,) each, a power of two: `epochs`, `keys`, `values`; `used` int64 (5,): entries of the current
    epoch, that epoch, the two multipliers, and how far an entry of this epoch was put behind its slot, at most."""

    epochs: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    used: np.ndarray


def new_keyed(entries: int = FIRST_ENTRIES) -> Keyed:
    """An empty table, for epochs above 0."""
    epochs, keys, values = (np.zeros(entries, np.int64) for _ in range(3))
    return Keyed(epochs, keys, values, np.array([0, 0, _multiplier(), _multiplier(), 0], np.int64))


def _multiplier() -> int:
    return secrets.randbits(MULTIPLIER_BITS) | 1 << (MULTIPLIER_BITS - 1) | 1


def needs_room(table: Keyed, more: int) -> bool:
    """Whether `more` entries need a larger table, or entries are too far behind their slots."""
    return 2 * (int(table.used[USED]) + more) > len(table.keys) or int(table.used[FARTHEST]) > MOST_PROBES


def with_room(table: Keyed, more: int) -> Keyed:
    """`table`, or another one with the same entries, with room for `more` entries."""
    while needs_room(table, more):
        entries = len(table.keys)
        # Twice as large also if other multipliers would do: this ends, whatever the keys.
        while 2 * (int(table.used[USED]) + more) > entries or entries == len(table.keys):
            entries *= 2
        larger = new_keyed(entries)
        larger.used[EPOCH] = table.used[EPOCH]
        refill(larger, table)
        table = larger
    return table


@kernel
def _first_place(used, key, mask):
    """The slot where the search for `key` begins."""
    mixed = ((key & WORD) * used[LOW]) ^ (((key >> 32) & WORD) * used[HIGH])
    return ((((mixed ^ (mixed >> FOLD)) & WORD) * used[HIGH]) >> FOLD) & mask


@kernel
def place_of(table, key):
    """The slot of `key`, or the free slot for it."""
    mask = len(table.keys) - 1
    at = _first_place(table.used, key, mask)
    while table.epochs[at] == table.used[EPOCH] and table.keys[at] != key:
        at = (at + 1) & mask
    return at


@kernel
def found(table, key):
    """The value of `key`, or ABSENT."""
    at = place_of(table, key)
    return table.values[at] if table.epochs[at] == table.used[EPOCH] else ABSENT


@kernel
def put(table, key, value):
    """Set the value of `key`."""
    at = place_of(table, key)
    if table.epochs[at] != table.used[EPOCH]:
        table.epochs[at] = table.used[EPOCH]
        table.keys[at] = key
        table.used[USED] += 1
        mask = len(table.keys) - 1
        table.used[FARTHEST] = max(table.used[FARTHEST], (at - _first_place(table.used, key, mask)) & mask)
    table.values[at] = value


@kernel
def remove(table, key):
    """Remove the entry of `key`, if there is one; entries behind it move up where a search would miss them."""
    epoch, mask, free = table.used[EPOCH], len(table.keys) - 1, place_of(table, key)
    if table.epochs[free] != epoch:
        return
    table.used[USED] -= 1
    at = (free + 1) & mask
    while table.epochs[at] == epoch:
        if (at - _first_place(table.used, table.keys[at], mask)) & mask >= (at - free) & mask:
            table.keys[free] = table.keys[at]
            table.values[free] = table.values[at]
            free = at
        at = (at + 1) & mask
    table.epochs[free] = 0


@kernel
def empty(table):
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
