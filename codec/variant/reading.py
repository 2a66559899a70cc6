"""Fields of many VARIANT objects at once: where each lies, and of which type it is.

Only what stands at the top of a value is read ("Variant Binary Encoding" of Parquet). Bounds are checked: values may
come from anywhere. A field is looked for by its name in the dictionary of the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.variant.scalars import (
    BINARY,
    DECIMAL4,
    DECIMAL16,
    DOUBLE,
    FALSE,
    FLOAT,
    INT8,
    INT64,
    NULL,
    STRING,
    TIMESTAMP,
    TRUE,
)
from codec.variant.writer import copy_bytes

OBJECT = 2  # basic type
# What was found of a field: nothing or null; a number, truth value or time in `numbers`; text or octets, of `sizes`
# octets at the place in `numbers`; a value of some other type.
ABSENT, NUMBER, TRUTH, TIME, TEXT, OTHER = range(6)
DATE, TIMESTAMP_NTZ = 11, 13  # primitive types that are not written here
UUID = 20
# Dictionaries that are remembered, and entries of each: rows of one kind have the same one.
SLOTS, ENTRIES = 64, 64
UNASKED = -2


class Fields(NamedTuple):
    """What is found of k fields in n rows: `kinds` uint8, `numbers` int64, `sizes` int32, each (k, n). `whole_of` int64
    (k,): the row of `whole_at`, `whole_size`, int64 (w, n), that tells the whole value of a field; -1 for none."""

    kinds: np.ndarray
    numbers: np.ndarray
    sizes: np.ndarray
    whole_of: np.ndarray
    whole_at: np.ndarray
    whole_size: np.ndarray


def new_fields(wholes: Sequence[bool], rows: int) -> Fields:
    """Nothing was found yet; `wholes`: whether the whole value of a field is wanted."""
    shape, wanted = (len(wholes), rows), np.flatnonzero(np.array(wholes, bool))
    whole_of = np.full(len(wholes), -1)
    whole_of[wanted] = np.arange(len(wanted))
    whole = (len(wanted), rows)
    found = (np.zeros(shape, np.uint8), np.zeros(shape, np.int64), np.zeros(shape, np.int32))
    return Fields(*found, whole_of, np.zeros(whole, np.int64), np.zeros(whole, np.int64))


class Seen(NamedTuple):
    """Dictionaries of rows before, int64: `slots` (SLOTS, 2): where each begins and ends; `keys` (SLOTS, ENTRIES):
    which of the wanted keys an entry is, -1 for none, or UNASKED."""

    slots: np.ndarray
    keys: np.ndarray


def new_seen() -> Seen:
    """Nothing was seen yet."""
    return Seen(np.zeros((SLOTS, 2), np.int64), np.full((SLOTS, ENTRIES), UNASKED, np.int64))


@kernel
def little(data, at, size):
    """Unsigned little-endian number of up to 8 octets."""
    value = 0
    for i in range(size):
        value |= int(data[at + i]) << (8 * i)
    return value


@kernel
def signed(data, at, size):
    """Signed little-endian number of up to 8 octets."""
    top = int(data[at + size - 1])
    return little(data, at, size - 1) | ((top - ((top & 0x80) << 1)) << (8 * (size - 1)))


@kernel
def _wanted(metadata, at, end, number, keys, key_ends):
    """Which of the wanted keys entry `number` of the dictionary at `at` is; -1 for none."""
    if at >= end:
        return -1
    width = (int(metadata[at]) >> 6) + 1
    first = at + 1
    if first + width > end:
        return -1
    count = little(metadata, first, width)
    offsets = first + width
    texts = offsets + (count + 1) * width
    if number >= count or texts > end:
        return -1
    start = texts + little(metadata, offsets + number * width, width)
    stop = texts + little(metadata, offsets + (number + 1) * width, width)
    if stop > end or start > stop:
        return -1
    begin = 0
    for k in range(len(key_ends)):
        if key_ends[k] - begin == stop - start:
            i = 0
            while start + i < stop and metadata[start + i] == keys[begin + i]:
                i += 1
            if start + i == stop:
                return k
        begin = key_ends[k]
    return -1


@kernel
def _slot_of(metadata, at, end, seen):
    """The slot of the dictionary from `at` to `end`; if another one was there, it is forgotten."""
    slots = seen.slots
    size = end - at
    slot = 0
    if size > 0:
        slot = (size * 5 + int(metadata[end - 1]) * 3 + int(metadata[at + (size >> 1)])) % len(slots)
    start = slots[slot, 0]
    differs = slots[slot, 1] - start != size
    if not differs:
        before, now = metadata[start : start + size], metadata[at:end]
        bits = 0
        for i in range(len(before)):  # to the end, from 0 on: compiled to comparing many octets at a time
            bits |= before[i] ^ now[i]
        differs = bits != 0
    if differs:
        slots[slot, 0], slots[slot, 1] = at, end
        for i in range(seen.keys.shape[1]):
            seen.keys[slot, i] = UNASKED
    return slot


@kernel
def look(value, at, end, out, k, row):
    """Note what the value at `at` is, which ends at `end` at the latest."""
    kinds, numbers, sizes = out.kinds, out.numbers, out.sizes
    head = value[at]
    basic, rest = head & 3, int(head) >> 2
    kinds[k, row] = OTHER
    if basic == 1:
        if at + 1 + rest <= end:
            kinds[k, row] = TEXT
            numbers[k, row] = at + 1
            sizes[k, row] = rest
    elif basic == 0:
        if rest == NULL:
            kinds[k, row] = ABSENT
        elif TRUE <= rest <= FALSE:
            kinds[k, row] = TRUTH
            numbers[k, row] = 1 if rest == TRUE else 0
        elif INT8 <= rest <= INT64:
            size = 1 << (rest - INT8)
            if at + 1 + size <= end:
                kinds[k, row] = NUMBER
                numbers[k, row] = signed(value, at + 1, size)
        elif rest == TIMESTAMP:
            if at + 9 <= end:
                kinds[k, row] = TIME
                numbers[k, row] = signed(value, at + 1, 8)
        elif BINARY <= rest <= STRING and at + 5 <= end:
            size = little(value, at + 1, 4)
            if at + 5 + size <= end:
                kinds[k, row] = TEXT
                numbers[k, row] = at + 5
                sizes[k, row] = size


@kernel
def whole(value, at, end):
    """How many octets the value at `at` has; what lies behind `end` is not counted."""
    head = value[at]
    basic, rest = head & 3, int(head) >> 2
    size = end - at
    if basic == 1:
        size = 1 + rest
    elif basic == 0:
        if rest <= FALSE:
            size = 1
        elif rest <= INT64:
            size = 1 + (1 << (rest - INT8))
        elif rest in (DOUBLE, TIMESTAMP, TIMESTAMP_NTZ):
            size = 9
        elif rest in (FLOAT, DATE):
            size = 5
        elif DECIMAL4 <= rest <= DECIMAL16:
            size = 2 + (4 << (rest - DECIMAL4))
        elif BINARY <= rest <= STRING:
            size = 5 + little(value, at + 1, 4) if at + 5 <= end else end - at
        elif rest == UUID:
            size = 17
    else:
        # Containers: how many there are, their offsets, the last of which is where the values end.
        is_object = basic == OBJECT
        width = (rest & 3) + 1
        id_width = ((rest >> 2) & 3) + 1 if is_object else 0
        large = (rest >> 4) & 1 if is_object else (rest >> 2) & 1
        count_width = 4 if large else 1
        if at + 1 + count_width <= end:
            count = little(value, at + 1, count_width)
            offsets = at + 1 + count_width + count * id_width
            values = offsets + (count + 1) * width
            if values <= end:
                size = values + little(value, offsets + count * width, width) - at
    return min(size, end - at)


@kernel
def read_fields(value, starts, stops, words, words_starts, words_stops, keys, key_ends, seen, out):
    """Look for fields of each row's object.

    Row i has the octets from `starts[i]` to `stops[i]` of `value`, which are none where it has no value, and a
    dictionary of those from `words_starts[i]` to `words_stops[i]` of `words`; both heaps are uint8, the places int64
    (n,). `keys` uint8: names end to end, `key_ends` int64 (k,). `seen`: `Seen`, new. `out`: `Fields`, zeroed.
    """
    for row in range(len(starts)):
        at, end = starts[row], stops[row]
        if at >= end or value[at] & 3 != OBJECT:
            continue
        rest = int(value[at]) >> 2
        width, id_width = (rest & 3) + 1, ((rest >> 2) & 3) + 1
        count_width = 4 if (rest >> 4) & 1 else 1
        if at + 1 + count_width > end:
            continue
        count = little(value, at + 1, count_width)
        ids = at + 1 + count_width
        offsets = ids + count * id_width
        values = offsets + (count + 1) * width
        if values > end:
            continue
        slot = _slot_of(words, words_starts[row], words_stops[row], seen)
        for i in range(count):
            number = little(value, ids + i * id_width, id_width)
            k = seen.keys[slot, number] if number < ENTRIES else UNASKED
            if k == UNASKED:
                k = _wanted(words, words_starts[row], words_stops[row], number, keys, key_ends)
                if number < ENTRIES:
                    seen.keys[slot, number] = k
            place = values + little(value, offsets + i * width, width)
            if k >= 0 and place < end:
                look(value, place, end, out, k, row)
                of_whole = out.whole_of[k]
                if of_whole >= 0:
                    out.whole_at[of_whole, row] = place
                    out.whole_size[of_whole, row] = whole(value, place, end)


@kernel
def gather(heap, places, sizes, out):
    """Put the octets of `sizes` at `places` of `heap` end to end into `out`."""
    to = 0
    for i in range(len(places)):
        copy_bytes(out, to, heap, places[i], places[i] + sizes[i])
        to += sizes[i]
