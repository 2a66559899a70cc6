"""Fields of many VARIANT objects, and elements of many VARIANT arrays, at once: their offsets and types.

Only the top level of a value is read (Parquet's "Variant Binary Encoding"). A field is found by its name in the value's
dictionary. Bounds are checked, since values may come from any source. Cost: linear in fields and elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.memory import copy_bytes
from codec.variant import scalars as S

OBJECT, ARRAY = 2, 3  # basic types
# Kinds of fields: absent or null; a number, boolean or time in `numbers`; text or bytes, their size in `sizes` and
# their offset in `numbers`; any other type.
ABSENT, NUMBER, BOOLEAN, TIME, TEXT, OTHER = range(6)
DATE, TIMESTAMP_NTZ = 11, 13  # primitive types that the writer does not use
UUID = 20
# Cached dictionaries, and entries of each: rows of the same kind have the same dictionary.
SLOTS, ENTRIES = 64, 64
UNRESOLVED = -2


class Fields(NamedTuple):
    """k fields in n rows: `kinds` uint8, `numbers` int64, `sizes` int32, each (k, n); the latter two have no meaning
    where the kind is ABSENT or OTHER. `whole_of` int64 (k,): the row of
    `whole_at`, `whole_size`, int64 (w, n), with offset and size of the field's whole value; -1 for none."""

    kinds: np.ndarray
    numbers: np.ndarray
    sizes: np.ndarray
    whole_of: np.ndarray
    whole_at: np.ndarray
    whole_size: np.ndarray


def new_fields(wholes: Sequence[bool], rows: int) -> Fields:
    """Nothing found yet; `wholes`: whether the whole value of each field is wanted."""
    shape, wanted = (len(wholes), rows), np.flatnonzero(np.array(wholes, bool))
    whole_of = np.full(len(wholes), -1)
    whole_of[wanted] = np.arange(len(wanted))
    whole = (len(wanted), rows)
    found = (np.zeros(shape, np.uint8), np.empty(shape, np.int64), np.empty(shape, np.int32))
    return Fields(*found, whole_of, np.zeros(whole, np.int64), np.zeros(whole, np.int64))


class DictionaryCache(NamedTuple):
    """Dictionaries of earlier rows, int64: `slots` (SLOTS, 2): start and end of each; `keys` (SLOTS, ENTRIES): the
    wanted key that an entry is, -1 for none, or UNASKED."""

    slots: np.ndarray
    keys: np.ndarray


def new_dictionary_cache() -> DictionaryCache:
    """An empty cache."""
    return DictionaryCache(np.zeros((SLOTS, 2), np.int64), np.full((SLOTS, ENTRIES), UNRESOLVED, np.int64))


@kernel
def little(data, at, size):
    """Unsigned little-endian number of up to 8 bytes."""
    value = 0
    for i in range(size):
        value |= int(data[at + i]) << (8 * i)
    return value


@kernel
def signed(data, at, size):
    """Signed little-endian number of up to 8 bytes."""
    top = int(data[at + size - 1])
    return little(data, at, size - 1) | ((top - ((top & 0x80) << 1)) << (8 * (size - 1)))


@kernel
def entry_text(metadata, at, end, number):
    """Start and end of the text of entry `number` in the dictionary `metadata[at:end]`; (at, at) when it has none."""
    if at >= end:
        return at, at
    width = (int(metadata[at]) >> 6) + 1
    first = at + 1
    if first + width > end:
        return at, at
    count = little(metadata, first, width)
    offsets = first + width
    texts = offsets + (count + 1) * width
    if number >= count or texts > end:
        return at, at
    start = texts + little(metadata, offsets + number * width, width)
    stop = texts + little(metadata, offsets + (number + 1) * width, width)
    return (at, at) if stop > end or start > stop else (start, stop)


@kernel
def _wanted_key(metadata, at, end, number, keys, key_ends):
    """The index of the wanted key that entry `number` of the dictionary is; -1 for none."""
    start, stop = entry_text(metadata, at, end, number)
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
def layout(value, at, end):
    """Layout of the object or array at `at`: (elements, offset of their key numbers, of their offsets, of their values,
    bytes of a key number, bytes of an offset). -1 elements: it is neither, or its head does not end before `end`."""
    basic, rest = int(value[at]) & 3, int(value[at]) >> 2
    is_object = basic == OBJECT
    large = (rest >> 4) & 1 if is_object else (rest >> 2) & 1
    count_width = 4 if large else 1
    ids = at + 1 + count_width
    if basic < OBJECT or ids > end:
        return -1, 0, 0, 0, 0, 0
    id_width, width = ((rest >> 2) & 3) + 1 if is_object else 0, (rest & 3) + 1
    count = little(value, at + 1, count_width)
    offsets = ids + count * id_width
    values = offsets + (count + 1) * width
    return (count if values <= end else -1), ids, offsets, values, id_width, width


@kernel
def _slot_of(metadata, at, end, cache):
    """The slot of the dictionary from `at` to `end`, which replaces any other dictionary there."""
    slots = cache.slots
    size = end - at
    slot = 0
    if size > 0:
        slot = (size * 5 + int(metadata[end - 1]) * 3 + int(metadata[at + (size >> 1)])) % len(slots)
    start = slots[slot, 0]
    differs = slots[slot, 1] - start != size
    if not differs:
        before, now = metadata[start : start + size], metadata[at:end]
        bits = 0
        for i in range(len(before)):  # to the end, from 0 on: compiled to comparing many bytes at a time
            bits |= before[i] ^ now[i]
        differs = bits != 0
    if differs:
        slots[slot, 0], slots[slot, 1] = at, end
        for i in range(cache.keys.shape[1]):
            cache.keys[slot, i] = UNRESOLVED
    return slot


@kernel
def _read_scalar(value, at, end, out, k, row):
    """Read kind and number of the value at `at`, which may not pass `end`, into field `k` of `row`."""
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
        if rest == S.NULL:
            kinds[k, row] = ABSENT
        elif S.TRUE <= rest <= S.FALSE:
            kinds[k, row] = BOOLEAN
            numbers[k, row] = 1 if rest == S.TRUE else 0
        elif S.INT8 <= rest <= S.INT64:
            size = 1 << (rest - S.INT8)
            if at + 1 + size <= end:
                kinds[k, row] = NUMBER
                numbers[k, row] = signed(value, at + 1, size)
        elif rest == S.TIMESTAMP:
            if at + 9 <= end:
                kinds[k, row] = TIME
                numbers[k, row] = signed(value, at + 1, 8)
        elif S.BINARY <= rest <= S.STRING and at + 5 <= end:
            size = little(value, at + 1, 4)
            if at + 5 + size <= end:
                kinds[k, row] = TEXT
                numbers[k, row] = at + 5
                sizes[k, row] = size


@kernel
def whole(value, at, end):
    """Bytes of the value at `at`, those beyond `end` not counted."""
    head = value[at]
    basic, rest = head & 3, int(head) >> 2
    size = end - at
    if basic == 1:
        size = 1 + rest
    elif basic == 0:
        if rest <= S.FALSE:
            size = 1
        elif rest <= S.INT64:
            size = 1 + (1 << (rest - S.INT8))
        elif rest in (S.DOUBLE, S.TIMESTAMP, TIMESTAMP_NTZ):
            size = 9
        elif rest in (S.FLOAT, DATE):
            size = 5
        elif S.DECIMAL4 <= rest <= S.DECIMAL16:
            size = 2 + (4 << (rest - S.DECIMAL4))
        elif S.BINARY <= rest <= S.STRING:
            size = 5 + little(value, at + 1, 4) if at + 5 <= end else end - at
        elif rest == UUID:
            size = 17
    else:
        count, _, offsets, values, _, width = layout(value, at, end)
        if count >= 0:  # the last offset is the end of the values
            size = values + little(value, offsets + count * width, width) - at
    return min(size, end - at)


@kernel
def read_fields(value, starts, stops, metadata, metadata_starts, metadata_stops, keys, key_ends, cache, out):
    """Read the fields of each row's object.

    The value of row i is `value[starts[i]:stops[i]]`, empty where it has none; its dictionary is
    `metadata[metadata_starts[i]:metadata_stops[i]]`. Heaps are uint8, offsets int64 (n,). `keys` uint8: names end to
    end, which end at `key_ends` int64 (k,). `cache`: a new `DictionaryCache`. `out`: a new `Fields`.
    """
    for row in range(len(starts)):
        at, end = starts[row], stops[row]
        if at >= end or value[at] & 3 != OBJECT:
            continue
        count, ids, offsets, values, id_width, width = layout(value, at, end)
        if count < 0:
            continue
        slot = _slot_of(metadata, metadata_starts[row], metadata_stops[row], cache)
        for i in range(count):
            number = little(value, ids + i * id_width, id_width)
            k = cache.keys[slot, number] if number < ENTRIES else UNRESOLVED
            if k == UNRESOLVED:
                k = _wanted_key(metadata, metadata_starts[row], metadata_stops[row], number, keys, key_ends)
                if number < ENTRIES:
                    cache.keys[slot, number] = k
            value_at = values + little(value, offsets + i * width, width)
            if k >= 0 and value_at < end:
                _read_scalar(value, value_at, end, out, k, row)
                of_whole = out.whole_of[k]
                if of_whole >= 0:
                    out.whole_at[of_whole, row] = value_at
                    out.whole_size[of_whole, row] = whole(value, value_at, end)


@kernel
def gather(heap, begins, sizes, out):
    """Copy `sizes` bytes from each of `begins` in `heap` to `out`, end to end."""
    to = 0
    for i in range(len(begins)):
        copy_bytes(out, to, heap, begins[i], begins[i] + sizes[i])
        to += sizes[i]


@kernel
def read_values(value, starts, stops, out):
    """Read each row's value itself, as if it were the only field of an object; `out`: `Fields` of one."""
    for row in range(len(starts)):
        if starts[row] < stops[row]:
            _read_scalar(value, starts[row], stops[row], out, 0, row)


@kernel
def _array(value, at, end):
    """(elements, offset of their offsets, of their values, bytes of an offset) of the array at `at`; no elements when
    there is no array."""
    count, _, offsets, values, _, width = layout(value, at, end)
    return (count, offsets, values, width) if value[at] & 3 == ARRAY and count > 0 else (0, 0, 0, 0)


@kernel
def count_elements(value, starts, stops, counts):
    """Count the elements of each row's array, `counts` int64 (n,); 0 when it is not an array."""
    for row in range(len(starts)):
        counts[row] = _array(value, starts[row], stops[row])[0] if starts[row] < stops[row] else 0


@kernel
def read_elements(value, starts, stops, counts, begins, ends):
    """Start and end of each element of each row's array, those of all rows in order: int64 (sum of `counts`,), zeroed.
    An element that does not lie in its array has no bytes."""
    to = 0
    for row in range(len(counts)):
        if counts[row]:
            count, offsets, values, width = _array(value, starts[row], stops[row])
            begin = little(value, offsets, width)
            for i in range(count):
                stop = little(value, offsets + (i + 1) * width, width)
                if begin <= stop and values + stop <= stops[row]:
                    begins[to], ends[to] = values + begin, values + stop
                begin = stop
                to += 1
