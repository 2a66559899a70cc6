"""What many VARIANT objects hold, as hashes of their entries: for telling whether two of them say the same.

    mix_entries(value, starts, stops, words, words_starts, words_stops, left_out, private, all_, common)

Entries have no order, so what they add up to is compared. A container is known by its kind and how many elements it has
alone: numbers inside refer to a dictionary that another object need not have. Terms, and bounds, as in
`codec.variant.reading`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.hashes.rows import HIGH, LOW, WORD, mixed
from codec.variant.reading import OBJECT, little, whole

ARRAY = 3  # basic type
CASE = 0x20  # between an ASCII letter and its capital


class Names(NamedTuple):
    """Names end to end, whose letters may be of either case: `octets` uint8, `ends` int64 (k,); `prefix` uint8 (k,):
    1 for what a name begins with."""

    octets: np.ndarray
    ends: np.ndarray
    prefix: np.ndarray


def names_of(names: Collection[str]) -> Names:
    """Names as kernels read them; one that ends in '*' is a prefix."""
    plain = [name.removesuffix("*").encode() for name in names]
    return Names(
        np.frombuffer(b"".join(plain), np.uint8),
        np.cumsum([len(name) for name in plain], dtype=np.int64),
        np.array([name.endswith("*") for name in names], np.uint8),
    )


@kernel
def _entry_of(words, at, end, number):
    """Where entry `number` of the dictionary at `at` begins and ends; nowhere if it has none."""
    if at >= end:
        return at, at
    width = (int(words[at]) >> 6) + 1
    first = at + 1
    if first + width > end:
        return at, at
    count = little(words, first, width)
    offsets = first + width
    texts = offsets + (count + 1) * width
    if number >= count or texts > end:
        return at, at
    start = texts + little(words, offsets + number * width, width)
    stop = texts + little(words, offsets + (number + 1) * width, width)
    return (at, at) if stop > end or start > stop else (start, stop)


@kernel
def _is_among(words, start, stop, names):
    """Whether a text begins with one of the `names` that are prefixes, or is one of the others."""
    begin = 0
    for k in range(len(names.ends)):
        size = names.ends[k] - begin
        if stop - start == size or (names.prefix[k] and stop - start > size):
            i = 0
            while i < size and (words[start + i] | CASE) == (names.octets[begin + i] | CASE):
                i += 1
            if i == size:
                return True
        begin = names.ends[k]
    return False


@kernel
def _mixed_octets(octets, start, stop, low, high):
    at = start
    while at < stop:
        word = 0
        for i in range(min(4, stop - at)):
            word |= int(octets[at + i]) << (8 * i)
        low, high = mixed(low, word, LOW), mixed(high, word, HIGH)
        at += 4
    return mixed(low, stop - start, LOW), mixed(high, stop - start, HIGH)


@kernel
def _value_hash(value, at, end, low, high):
    """`low`, `high` with the value at `at` mixed in, and whether it is a scalar."""
    basic = value[at] & 3
    if basic < OBJECT:
        low, high = _mixed_octets(value, at, at + whole(value, at, end), low, high)
        return low, high, True
    rest = int(value[at]) >> 2
    large = (rest >> 4) & 1 if basic == OBJECT else (rest >> 2) & 1
    width = 4 if large else 1
    count = little(value, at + 1, width) if at + 1 + width <= end else 0
    return mixed(low, count + basic, LOW), mixed(high, count + basic, HIGH), False


@kernel
def mix_entries(value, starts, stops, words, words_starts, words_stops, left_out, private, all_, common):
    """Add up hashes of the entries of each row's object, but for those `left_out`, in `all_`; of scalars whose names
    are not `private` in `common`, too: lanes of 32 bits, int64 (n, 2). Rows as in `codec.variant.reading`."""
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
        for i in range(count):
            number = little(value, ids + i * id_width, id_width)
            start, stop = _entry_of(words, words_starts[row], words_stops[row], number)
            place = values + little(value, offsets + i * width, width)
            if place >= end or start == stop or _is_among(words, start, stop, left_out):
                continue
            low, high = _mixed_octets(words, start, stop, 1, 2)
            low, high, is_scalar = _value_hash(value, place, end, low, high)
            all_[row, 0], all_[row, 1] = (all_[row, 0] + low) & WORD, (all_[row, 1] + high) & WORD
            if is_scalar and not _is_among(words, start, stop, private):
                common[row, 0] = (common[row, 0] + low) & WORD
                common[row, 1] = (common[row, 1] + high) & WORD
