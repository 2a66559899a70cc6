"""Hashes of many VARIANT objects, from their entries: two objects with equal entries have equal hashes.

    mix_entries(value, starts, stops, words, words_starts, words_stops, left_out, private, all_, common)
    list_entries(value, starts, stops, words, words_starts, words_stops, left_out, private, entries, counts)

The second lists entries one by one, so that two objects can be compared entry by entry (`agree`).

Entries have no order, so their hashes are added. Of a nested container only its type and its number of elements count:
key numbers in it refer to a dictionary, which another object may not share. Bounds are checked as in
`codec.variant.reading`. Cost: linear in the bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.hashes.rows import HIGH, LOW, WORD, mixed, mixed_words
from codec.variant.reading import OBJECT, entry_text, layout, little, whole

CASE = 0x20  # the bit that differs between an ASCII letter and its capital
# An entry as a number: the hash of its name above bit 32; below, that of its value, and what the value is.
NAME, VALUE = 32, 3
KIND, PRIVATE = 3, 4  # bits
ANY_KIND, TEXT, WHOLE, TRUTH = range(4)
MOST_ENTRIES = 64  # of an object: those whose names have the lowest hashes, so that two objects list the same names
OWN_NAMES = 16  # lower name hashes are those of properties (`property_entry`)
NAME_HASH, VALUE_HASH = (1 << 31) - 1, (1 << 29) - 1
PRIMITIVE, SHORT_TEXT, LONG_TEXT, TRUTHS, WHOLES = 0, 1, 16, (1, 2), (3, 6)  # types of VARIANT


class Names(NamedTuple):
    """Names end to end, compared without case: `bytes` uint8, `ends` int64 (k,); `prefix` uint8 (k,): 1 for a
    prefix."""

    data: np.ndarray
    ends: np.ndarray
    prefix: np.ndarray


def names_of(names: Collection[str]) -> Names:
    """Names for kernels; a name that ends in '*' is a prefix."""
    plain = [name.removesuffix("*").encode() for name in names]
    return Names(
        np.frombuffer(b"".join(plain), np.uint8),
        np.cumsum([len(name) for name in plain], dtype=np.int64),
        np.array([name.endswith("*") for name in names], np.uint8),
    )


@kernel
def _is_one_of_names(metadata, start, stop, names):
    """Whether a text equals one of `names`, or begins with one that is a prefix."""
    begin = 0
    for k in range(len(names.ends)):
        size = names.ends[k] - begin
        if stop - start == size or (names.prefix[k] and stop - start > size):
            i = 0
            while i < size and (metadata[start + i] | CASE) == (names.data[begin + i] | CASE):
                i += 1
            if i == size:
                return True
        begin = names.ends[k]
    return False


@kernel
def _mixed_bytes(data, start, stop, low, high):
    low, high = mixed_words(data, start, stop, low, high)
    return mixed(low, stop - start, LOW), mixed(high, stop - start, HIGH)


@kernel
def _value_hash(value, at, end, low, high):
    """(`low`, `high` with the value at `at` mixed in, whether it is a scalar)."""
    basic = int(value[at]) & 3
    if basic < OBJECT:
        low, high = _mixed_bytes(value, at, at + whole(value, at, end), low, high)
        return low, high, True
    rest = int(value[at]) >> 2
    large = (rest >> 4) & 1 if basic == OBJECT else (rest >> 2) & 1
    width = 4 if large else 1
    count = little(value, at + 1, width) if at + 1 + width <= end else 0
    return mixed(low, count + basic, LOW), mixed(high, count + basic, HIGH), False


@kernel
def mix_entries(value, starts, stops, metadata, metadata_starts, metadata_stops, excluded, private, all_, common):
    """Add the hashes of the entries of each row's object to `all_`, except those named in `excluded`; and those of
    scalars whose names are not in `private` also to `common`: two lanes of 32 bits, int64 (n, 2). Rows are as in
    `codec.variant.reading.read_fields`."""
    for row in range(len(starts)):
        at, end = starts[row], stops[row]
        if at >= end or value[at] & 3 != OBJECT:
            continue
        count, ids, offsets, values, id_width, width = layout(value, at, end)
        for i in range(count):
            number = little(value, ids + i * id_width, id_width)
            start, stop = entry_text(metadata, metadata_starts[row], metadata_stops[row], number)
            value_at = values + little(value, offsets + i * width, width)
            if value_at >= end or start == stop or _is_one_of_names(metadata, start, stop, excluded):
                continue
            low, high = _mixed_bytes(metadata, start, stop, 1, 2)
            low, high, is_scalar = _value_hash(value, value_at, end, low, high)
            all_[row, 0], all_[row, 1] = (all_[row, 0] + low) & WORD, (all_[row, 1] + high) & WORD
            if is_scalar and not _is_one_of_names(metadata, start, stop, private):
                common[row, 0] = (common[row, 0] + low) & WORD
                common[row, 1] = (common[row, 1] + high) & WORD


@kernel
def _kind(value, at):
    """What a value is: TEXT, WHOLE, TRUTH, or ANY_KIND."""
    basic, kind = value[at] & 3, int(value[at]) >> 2
    if basic == SHORT_TEXT or (basic == PRIMITIVE and kind == LONG_TEXT):
        return TEXT
    if basic != PRIMITIVE:
        return ANY_KIND
    if TRUTHS[0] <= kind <= TRUTHS[1]:
        return TRUTH
    return WHOLE if WHOLES[0] <= kind <= WHOLES[1] else ANY_KIND


@kernel
def list_entries(value, starts, stops, metadata, metadata_starts, metadata_stops, excluded, private, entries, counts):
    """List up to MOST_ENTRIES entries of each row's object in `entries`, int64 (n, MOST_ENTRIES), in the order of their
    names' hashes; `counts` int64 (n,). PRIVATE: the name is in `private`. Otherwise as `mix_entries`."""
    for row in range(len(starts)):
        at, end = starts[row], stops[row]
        counts[row] = 0
        if at >= end or value[at] & 3 != OBJECT:
            continue
        count, ids, offsets, values, id_width, width = layout(value, at, end)
        for i in range(count):
            number = little(value, ids + i * id_width, id_width)
            start, stop = entry_text(metadata, metadata_starts[row], metadata_stops[row], number)
            value_at = values + little(value, offsets + i * width, width)
            if value_at >= end or start == stop or _is_one_of_names(metadata, start, stop, excluded):
                continue
            low, high = _mixed_bytes(metadata, start, stop, 1, 2)
            name = max(OWN_NAMES, (low ^ (high << 7)) & NAME_HASH)
            low, high, _ = _value_hash(value, value_at, end, 1, 2)
            mark = PRIVATE if _is_one_of_names(metadata, start, stop, private) else 0
            entry = (name << NAME) | (((low ^ (high << 5)) & VALUE_HASH) << VALUE) | mark | _kind(value, value_at)
            counts[row] = _insert(entries[row], counts[row], entry)


@kernel
def _insert(entries, count, entry):
    """Put an entry in its order, in place of the last one where there are MOST_ENTRIES; returns their number."""
    if count == MOST_ENTRIES:
        if entries[count - 1] <= entry:
            return count
        count -= 1
    at = count
    while at > 0 and entries[at - 1] > entry:
        entries[at] = entries[at - 1]
        at -= 1
    entries[at] = entry
    return count + 1


@kernel
def agree(entries, at, end, other, other_end, same_family):
    """Whether no name in both `entries[at:end]` and `entries[other:other_end]` has different values. Between families
    of versions (`same_family` false) only values of kinds that brokers preserve count."""
    while at < end and other < other_end:
        one, two = entries[at], entries[other]
        if one >> NAME < two >> NAME:
            at += 1
        elif one >> NAME > two >> NAME:
            other += 1
        else:
            comparable = same_family or (
                (one & KIND) == (two & KIND) and (one & KIND) != ANY_KIND and not (one | two) & PRIVATE
            )
            if one != two and comparable:
                return False
            at += 1
            other += 1
    return True
