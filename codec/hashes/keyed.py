"""Numbers found by a key: an open-addressing table that is emptied in one step.

An entry is there while its epoch is that of the table's user. Look-ups probe linearly; `with_room` keeps the table at
most half full, counting entries of the epoch at hand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel

FIRST_ENTRIES = 1 << 12
# Odd, below 2**31: a product with 32 bits stays inside 63. To the compiler a product that does not is undefined, and it
# has made 0 of one.
LOW, HIGH = 0x45D9F3B, 0x119DE1F3
WORD = 0xFFFFFFFF
ABSENT = -1


class Keyed(NamedTuple):
    """int64 (entries,) each, a power of two: `epochs`, `keys`, `values`; `used` int64 (2,): entries of the epoch, and
    that epoch."""

    epochs: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    used: np.ndarray


def new_keyed(entries: int = FIRST_ENTRIES) -> Keyed:
    """An empty table; epochs above 0 may use it."""
    epochs, keys, values = (np.zeros(entries, np.int64) for _ in range(3))
    return Keyed(epochs, keys, values, np.zeros(2, np.int64))


def with_room(table: Keyed, more: int) -> Keyed:
    """`table`, or a larger one with the same entries, that takes so many more."""
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
def place_of(table, key):
    """Where `key` is, or is to be put."""
    mask = len(table.keys) - 1
    mixed = ((key & WORD) * LOW) ^ (((key >> 32) & WORD) * HIGH)
    at = (mixed ^ (mixed >> 29)) & mask
    while table.epochs[at] == table.used[1] and table.keys[at] != key:
        at = (at + 1) & mask
    return at


@kernel
def found(table, key):
    """The number of `key`, or ABSENT."""
    at = place_of(table, key)
    return table.values[at] if table.epochs[at] == table.used[1] else ABSENT


@kernel
def put(table, key, value):
    """Let `key` have the number `value`."""
    at = place_of(table, key)
    if table.epochs[at] != table.used[1]:
        table.epochs[at] = table.used[1]
        table.keys[at] = key
        table.used[0] += 1
    table.values[at] = value


@kernel
def empty(table):
    """Begin a new epoch."""
    table.used[1] += 1
    table.used[0] = 0


@kernel
def refill(larger, table):
    """Put all entries of `table` into `larger`."""
    for i in range(len(table.keys)):
        if table.epochs[i] == table.used[1]:
            put(larger, table.keys[i], table.values[i])
