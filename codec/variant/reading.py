"""Fields of many VARIANT objects at once: where each lies, and of which type it is.

Only what stands at the top of a value is read ("Variant Binary Encoding" of Parquet). Bounds are checked: values may
come from anywhere. A field is looked for by its name in the dictionary of the value.
"""

from __future__ import annotations

from codec.kernel import kernel
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

OBJECT = 2  # basic type
# What was found of a field: nothing or null; a number, truth value or time in `numbers`; text or octets of `sizes`
# octets at `places`; a value of some other type. Each field's whole value is told as `whole_at`, `whole_size`, too.
ABSENT, NUMBER, TRUTH, TIME, TEXT, OTHER = range(6)
DATE, TIMESTAMP_NTZ = 11, 13  # primitive types that are not written here
UUID = 20


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
    width = (metadata[at] >> 6) + 1
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
def _look(value, at, end, out, k, row):
    """Note what the value at `at` is, which ends at `end` at the latest."""
    kinds, numbers, places, sizes = out.kinds, out.numbers, out.places, out.sizes
    head = value[at]
    basic, rest = head & 3, int(head) >> 2
    kinds[k, row] = OTHER
    if basic == 1:
        if at + 1 + rest <= end:
            kinds[k, row] = TEXT
            places[k, row] = at + 1
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
                places[k, row] = at + 5
                sizes[k, row] = size


@kernel
def _whole(value, at, end):
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
def read_fields(value, value_ends, metadata, metadata_ends, present, keys, key_ends, out):
    """Look for fields of each row's object.

    `value`, `metadata` uint8 heaps; row i has the octets from `ends[i]` to `ends[i + 1]` of each, int64 (n + 1,).
    `present` uint8 (n,): 0 where there is no value. `keys` uint8: names end to end, `key_ends` int64 (k,). `out`:
    `Fields` of k times n, zeroed.
    """
    for row in range(len(present)):
        at, end = value_ends[row], value_ends[row + 1]
        if present[row] == 0 or at >= end or value[at] & 3 != OBJECT:
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
        for i in range(count):
            number = little(value, ids + i * id_width, id_width)
            k = _wanted(metadata, metadata_ends[row], metadata_ends[row + 1], number, keys, key_ends)
            place = values + little(value, offsets + i * width, width)
            if k >= 0 and place < end:
                _look(value, place, end, out, k, row)
                out.whole_at[k, row] = place
                out.whole_size[k, row] = _whole(value, place, end)


@kernel
def gather(heap, places, sizes, out):
    """Put the octets of `sizes` at `places` of `heap` end to end into `out`."""
    to = 0
    for i in range(len(places)):
        at = places[i]
        for j in range(sizes[i]):
            out[to + j] = heap[at + j]
        to += sizes[i]
