"""A hash table from int64 keys to int64 values, with open addressing, that is emptied in constant time.

An entry is valid while its epoch is the current one. Look-ups probe linearly; `with_room` limits the table to half full
with entries of the current epoch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel

FIRST_ENTRIES = 1 << 12
# Odd, below 2**31: a product with 32 bits stays within 63. The compiler treats an overflow as undefined, and has
# replaced one by 0.
LOW, HIGH = 0x45D9F3B, 0x119DE1F3
WORD = 0xFFFFFFFF
ABSENT = -1


class Keyed(NamedTuple):
    """int64 (entries,) each, a power of two: `epochs`, `keys`, `values`; `used` int64 (2,): entries of the current
    epoch, and that epoch."""

    epochs: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    used: np.ndarray


def new_keyed(entries: int = FIRST_ENTRIES) -> Keyed:
    """An empty table, for epochs above 0."""
    epochs, keys, values = (np.zeros(entries, np.int64) for _ in range(3))
    return Keyed(epochs, keys, values, np.zeros(2, np.int64))


def with_room(table: Keyed, more: int) -> Keyed:
    """`table`, or a larger one with the same entries, with room for `more` entries."""
    entries = len(table.keys)
    if 2 * (int(table.used[0]) + more) <= entries:
        return table
    while 2 * (int(table.used[0]) + more) > entries:
        entries *= 2
    larger = new_keyed(entries)
    larger.used[1] = table.used[1]
    refill(larger, table)
    return larger


@kernel
def _first_place(key, mask):
    """The slot where the search for `key` begins."""
    mixed = ((key & WORD) * LOW) ^ (((key >> 32) & WORD) * HIGH)
    return (mixed ^ (mixed >> 29)) & mask


@kernel
def place_of(table, key):
    """The slot of `key`, or the free slot for it."""
    mask = len(table.keys) - 1
    at = _first_place(key, mask)
    while table.epochs[at] == table.used[1] and table.keys[at] != key:
        at = (at + 1) & mask
    return at


@kernel
def found(table, key):
    """The value of `key`, or ABSENT."""
    at = place_of(table, key)
    return table.values[at] if table.epochs[at] == table.used[1] else ABSENT


@kernel
def put(table, key, value):
    """Set the value of `key`."""
    at = place_of(table, key)
    if table.epochs[at] != table.used[1]:
        table.epochs[at] = table.used[1]
        table.keys[at] = key
        table.used[0] += 1
    table.values[at] = value


@kernel
def remove(table, key):
    """Remove the entry of `key`, if there is one; entries behind it move up where a search would miss them."""
    epoch, mask, free = table.used[1], len(table.keys) - 1, place_of(table, key)
    if table.epochs[free] != epoch:
        return
    table.used[0] -= 1
    at = (free + 1) & mask
    while table.epochs[at] == epoch:
        if (at - _first_place(table.keys[at], mask)) & mask >= (at - free) & mask:
            table.keys[free] = table.keys[at]
            table.values[free] = table.values[at]
            free = at
        at = (at + 1) & mask
    table.epochs[free] = 0


@kernel
def empty(table):
    """Remove all entries: begin a new epoch."""
    table.used[1] += 1
    table.used[0] = 0


@kernel
def refill(larger, table):
    """Copy all entries of `table` to `larger`."""
    for i in range(len(table.keys)):
        if table.epochs[i] == table.used[1]:
            put(larger, table.keys[i], table.values[i])
