"""Objects and arrays of a VARIANT value.

The contents of a container are written first. Its header (count, key numbers in byte order, offsets) is written before
them at the end: into the room that `begin_object_of` reserved, when the guess was right, else after moving the
contents.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.cursor import byte_at
from codec.memory import copy_bytes
from codec.variant.writer import (
    CODE,
    DEPTH,
    ENTRIES,
    FULL,
    GENERATION,
    KEYS,
    METADATA,
    OK,
    SHORT_METADATA,
    SHORT_SCRATCH,
    TOO_DEEP,
    TOO_LARGE,
    VALUE,
    VARIANT_BYTES,
    Writer,
    allocate,
    begin,
    fail,
    new_writer,
    put_le,
    shift,
    width,
)

# The dictionary of keys (metadata) of a VARIANT value, and known key sets.
#
# While a value is written its dictionary text grows at the end of the metadata heap; `finish` puts the header before
# it.


PROBES = LIMITS.key_probes
_VERSION = 1
_SLOT = (1 << 32) - 1


class KnownKeys(NamedTuple):
    """Known key sets; the id of a key is its index in its set. Set `s` has the keys `first[s]` to `first[s+1]`.

    Per key int64: `text_at` (one more) into `text` uint8, `hash`, `rank` in its set's byte order, and the reverse,
    `by_rank`. Per set: `block_at` (one more) into `block` uint8, the finished metadata.
    """

    first: np.ndarray
    text: np.ndarray
    text_at: np.ndarray
    hash: np.ndarray
    rank: np.ndarray
    by_rank: np.ndarray
    block: np.ndarray
    block_at: np.ndarray


def known_keys(sets: list[list[str]]) -> KnownKeys:
    """Prepare key sets. Keys of a set are distinct."""
    texts = [[name.encode() for name in names] for names in sets]
    flat = [text for names in texts for text in names]
    by_rank = [sorted(range(len(names)), key=names.__getitem__) for names in texts]
    blocks = [_metadata_block(names) for names in texts]
    return KnownKeys(
        np.cumsum([0, *map(len, texts)], dtype=np.int64),
        np.frombuffer(b"".join(flat), np.uint8).copy(),
        np.cumsum([0, *map(len, flat)], dtype=np.int64),
        np.array([key_hash(_bytes(text), 0, len(text)) for text in flat], np.int64),
        np.array([order.index(i) for order in by_rank for i in range(len(order))], np.int64),
        np.array([i for order in by_rank for i in order], np.int64),
        np.frombuffer(b"".join(blocks), np.uint8).copy(),
        np.cumsum([0, *map(len, blocks)], dtype=np.int64),
    )


def _bytes(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8).copy()


def _metadata_block(names: list[bytes]) -> bytes:
    w: Writer = new_writer()
    begin(w)
    for text in names:
        key_id(w, _bytes(text), 0, len(text))
    finish(w)
    return bytes(w.metadata[: int(w.positions[METADATA])])


@kernel
def key_hash(buf, start, end):
    """32-bit FNV-1a."""
    state = 0x811C9DC5
    for i in range(start, end):
        state = ((state ^ byte_at(buf, i)) * 0x01000193) & 0xFFFFFFFF
    return state


@kernel
def _is_key(w, number, buf, start, end):
    """Whether key `number` of the current value is `buf[start:end]`."""
    at = int(w.key_at[number])
    if int(w.key_at[number + 1]) - at != end - start:
        return False
    at += int(w.positions[METADATA])
    for i in range(end - start):
        if w.metadata[at + i] != buf[start + i]:
            return False
    return True


@kernel
def _text_room(w, keys, size):
    """Whether there is room for `keys` more keys of `size` bytes in total."""
    p = w.positions
    text = int(w.key_at[int(p[KEYS])])
    if text + size > VARIANT_BYTES:
        fail(w, TOO_LARGE, SHORT_METADATA)
        return False
    if int(p[METADATA]) + text + size > len(w.metadata):
        fail(w, FULL, SHORT_METADATA)
        return False
    if int(p[KEYS]) + keys >= len(w.key_at):
        fail(w, FULL, SHORT_SCRATCH)
        return False
    return True


@kernel
def key_id(w, buf, start, end):
    """Number of the key `buf[start:end]` (UTF-8), which is added when it is new; -1 after an error."""
    p = w.positions
    if p[CODE] != OK:
        return -1
    generation = int(p[GENERATION])
    mask = len(w.slots) - 1
    slot = key_hash(buf, start, end) & mask
    free = -1
    for _ in range(PROBES):
        entry = int(w.slots[slot])
        if entry >> 32 != generation:
            free = slot
            break
        if _is_key(w, entry & _SLOT, buf, start, end):
            return entry & _SLOT
        slot = (slot + 1) & mask
    if not _text_room(w, 1, end - start):
        return -1
    number = int(p[KEYS])
    at = int(w.key_at[number])
    copy_bytes(w.metadata, int(p[METADATA]) + at, buf, start, end)
    w.key_at[number + 1] = at + end - start
    p[KEYS] = number + 1
    if free >= 0:
        w.slots[free] = (generation << 32) | number
    return number


@kernel
def load_known(w, keys, key_set):
    """Add the known keys to the dictionary, with unchanged ids, before other keys. A second call does nothing."""
    p = w.positions
    if p[KEYS] > 0 or p[CODE] != OK:
        return
    first, last = int(keys.first[key_set]), int(keys.first[key_set + 1])
    text, end = int(keys.text_at[first]), int(keys.text_at[last])
    if not _text_room(w, last - first, end - text):
        return
    copy_bytes(w.metadata, int(p[METADATA]), keys.text, text, end)
    mask = len(w.slots) - 1
    generation = int(p[GENERATION])
    for i in range(last - first):
        w.key_at[i + 1] = int(keys.text_at[first + i + 1]) - text
        slot = int(keys.hash[first + i]) & mask
        for _ in range(PROBES):
            if int(w.slots[slot]) >> 32 != generation:
                w.slots[slot] = (generation << 32) | i
                break
            slot = (slot + 1) & mask
    p[KEYS] = last - first


@kernel
def finish(w):
    """End the value and write its dictionary to the metadata heap. OK, or an error code (then `rollback`)."""
    p = w.positions
    if p[CODE] != OK:
        return int(p[CODE])
    count = int(p[KEYS])
    at = int(p[METADATA])
    text = int(w.key_at[count])
    size = width(max(text, count))
    header = 1 + (count + 2) * size
    if header + text > VARIANT_BYTES:
        fail(w, TOO_LARGE, SHORT_METADATA)
        return TOO_LARGE
    if at + header + text > len(w.metadata):
        fail(w, FULL, SHORT_METADATA)
        return FULL
    shift(w.metadata, at, at + text, header)
    w.metadata[at] = _VERSION | ((size - 1) << 6)
    put_le(w.metadata, at + 1, count, size)
    for i in range(count + 1):
        put_le(w.metadata, at + 1 + (i + 1) * size, int(w.key_at[i]), size)
    p[METADATA] = at + header + text
    return OK


@inlined
def finish_known(w, keys, key_set):
    """`finish` for a value with the keys of `key_set`; cheap when no other key was used."""
    p = w.positions
    if p[KEYS] > 0 or p[CODE] != OK:
        return finish(w)
    start, end = int(keys.block_at[key_set]), int(keys.block_at[key_set + 1])
    at = int(p[METADATA])
    if at + end - start > len(w.metadata):
        fail(w, FULL, SHORT_METADATA)
        return FULL
    copy_bytes(w.metadata, at, keys.block, start, end)
    p[METADATA] = at + end - start
    return OK


OBJECT, ARRAY = 2, 3  # basic types
_INSERTION = 12  # up to this many entries are sorted by insertion


@kernel
def _begin(w, reserved):
    p = w.positions
    depth = int(p[DEPTH])
    if depth == len(w.stack):
        fail(w, TOO_DEEP, SHORT_SCRATCH)
        return
    w.stack[depth, 0] = p[VALUE]
    w.stack[depth, 1] = reserved
    w.stack[depth, 2] = p[ENTRIES]
    p[DEPTH] = depth + 1
    allocate(w, reserved)


@kernel
def begin_object(w):
    """Begin an object: `key` and a value for each entry, then `end_object`."""
    _begin(w, 0)


@kernel
def begin_object_of(w, count, size):
    """`begin_object` for about `count` known keys (`known_key`, `end_known_object`) and up to `size` bytes."""
    _begin(w, 2 + count + (count + 1) * width(size))


@kernel
def begin_array(w):
    """Begin an array: `element` and a value for each element, then `end_array`."""
    _begin(w, 0)


@kernel
def known_key(w, number):
    """The next value has the key with this number."""
    p = w.positions
    n = int(p[ENTRIES])
    if n == len(w.entry_id):
        fail(w, FULL, SHORT_SCRATCH)
        return
    w.entry_id[n] = number
    w.entry_at[n] = p[VALUE]
    p[ENTRIES] = n + 1


@kernel
def key(w, buf, start, end):
    """The next value has the key `buf[start:end]` (UTF-8)."""
    number = key_id(w, buf, start, end)
    if number >= 0:
        known_key(w, number)


@kernel
def element(w):
    """The next value is the next element of the array."""
    known_key(w, 0)


@kernel
def _compare_keys(w, a, b):
    """Order of the keys numbered `a` and `b` by their bytes: negative, 0, positive."""
    if a == b:
        return 0
    text = int(w.positions[METADATA])
    at_a, at_b = int(w.key_at[a]), int(w.key_at[b])
    size_a, size_b = int(w.key_at[a + 1]) - at_a, int(w.key_at[b + 1]) - at_b
    for i in range(min(size_a, size_b)):
        difference = byte_at(w.metadata, text + at_a + i) - byte_at(w.metadata, text + at_b + i)
        if difference != 0:
            return difference
    return size_a - size_b


@kernel
def _insert_sorted(w, first, start, end):
    """Stable insertion sort of `order[start:end]`, entries counted from `first`."""
    order = w.order
    for i in range(start + 1, end):
        moved = int(order[i])
        number = int(w.entry_id[first + moved])
        j = i
        while j > start and _compare_keys(w, int(w.entry_id[first + int(order[j - 1])]), number) > 0:
            order[j] = order[j - 1]
            j -= 1
        order[j] = moved


@kernel
def _merge(w, first, low, middle, high, source, target):
    """Merge the sorted runs `[low, middle)` and `[middle, high)` at `order[source:]` into `order[target:]`."""
    order = w.order
    i, j = low, middle
    for k in range(low, high):
        if j == high or (
            i < middle
            and _compare_keys(
                w, int(w.entry_id[first + int(order[source + i])]), int(w.entry_id[first + int(order[source + j])])
            )
            <= 0
        ):
            order[target + k] = order[source + i]
            i += 1
        else:
            order[target + k] = order[source + j]
            j += 1


@kernel
def _sort_entries(w, first, count):
    """Sort the entries from `first` by key, stably, into `order`. Returns their offset in `order`."""
    order = w.order
    for i in range(count):
        order[i] = i
    for low in range(0, count, _INSERTION):
        _insert_sorted(w, first, low, min(low + _INSERTION, count))
    source, target = 0, len(order) // 2
    run = _INSERTION
    while run < count:
        for low in range(0, count, 2 * run):
            _merge(w, first, low, min(low + run, count), min(low + 2 * run, count), source, target)
        source, target = target, source
        run *= 2
    return source


@kernel
def _drop_duplicates(w, first, start, count):
    """Remove all but the last of sorted entries with equal keys. Returns the number of entries."""
    order = w.order
    unique = 0
    for i in range(count):
        number = int(w.entry_id[first + int(order[start + i])])
        if i + 1 < count and _compare_keys(w, number, int(w.entry_id[first + int(order[start + i + 1])])) == 0:
            continue
        order[start + unique] = order[start + i]
        unique += 1
    return unique


@inlined
def _make_header_room(w, header):
    """Close the innermost container with exactly `header` bytes before its contents: their offset, -1 after an
    error."""
    p = w.positions
    depth = int(p[DEPTH]) - 1
    start, reserved, first = int(w.stack[depth, 0]), int(w.stack[depth, 1]), int(w.stack[depth, 2])
    end = int(p[VALUE])
    if header > reserved:
        if allocate(w, header - reserved) < 0:
            return -1
    else:
        p[VALUE] = end - (reserved - header)
    shift(w.value, start + reserved, end, header - reserved)
    p[DEPTH] = depth
    p[ENTRIES] = first
    return start


@inlined
def _put_object(w, first, start, count, size, origin):
    """Write the header of the innermost object: `count` entries at `order[start:]`, `size` bytes from `origin`."""
    largest = 0
    for i in range(count):
        largest = max(largest, int(w.entry_id[first + int(w.order[start + i])]))
    id_width, offset_width = width(largest), width(size)
    many = 1 if count > 255 else 0
    count_width = 4 if many else 1
    at = _make_header_room(w, 1 + count_width + count * id_width + (count + 1) * offset_width)
    if at < 0:
        return
    value = w.value
    value[at] = (many << 6) | ((id_width - 1) << 4) | ((offset_width - 1) << 2) | OBJECT
    put_le(value, at + 1, count, count_width)
    at += 1 + count_width
    offsets = at + count * id_width
    if id_width == 1 and offset_width == 1:
        for i in range(count):
            entry = first + int(w.order[start + i])
            value[at + i] = w.entry_id[entry]
            value[offsets + i] = w.entry_at[entry] - origin
        value[offsets + count] = size
        return
    for i in range(count):
        entry = first + int(w.order[start + i])
        put_le(value, at + i * id_width, int(w.entry_id[entry]), id_width)
        put_le(value, offsets + i * offset_width, int(w.entry_at[entry]) - origin, offset_width)
    put_le(value, offsets + count * offset_width, size, offset_width)


@kernel
def end_object(w):
    """End the innermost object, whose keys were written with `key`."""
    p = w.positions
    if p[CODE] != OK:
        return
    depth = int(p[DEPTH]) - 1
    origin, first = int(w.stack[depth, 0]) + int(w.stack[depth, 1]), int(w.stack[depth, 2])
    count = int(p[ENTRIES]) - first
    start = _sort_entries(w, first, count)
    count = _drop_duplicates(w, first, start, count)
    _put_object(w, first, start, count, int(p[VALUE]) - origin, origin)


@inlined
def end_known_object(w, keys, key_set):
    """End the innermost object, whose keys are distinct keys of `key_set` in ascending order of number."""
    p = w.positions
    if p[CODE] != OK:
        return
    depth = int(p[DEPTH]) - 1
    origin, first = int(w.stack[depth, 0]) + int(w.stack[depth, 1]), int(w.stack[depth, 2])
    count = int(p[ENTRIES]) - first
    known = int(keys.first[key_set])
    order = w.order
    if count == int(keys.first[key_set + 1]) - known:
        for i in range(count):
            order[i] = keys.by_rank[known + i]
    else:
        for i in range(count):
            rank = keys.rank[known + int(w.entry_id[first + i])]
            j = i
            while j > 0 and keys.rank[known + int(w.entry_id[first + int(order[j - 1])])] > rank:
                order[j] = order[j - 1]
                j -= 1
            order[j] = i
    _put_object(w, first, 0, count, int(p[VALUE]) - origin, origin)


@kernel
def end_array(w):
    """End the innermost array."""
    p = w.positions
    if p[CODE] != OK:
        return
    depth = int(p[DEPTH]) - 1
    origin, first = int(w.stack[depth, 0]) + int(w.stack[depth, 1]), int(w.stack[depth, 2])
    count = int(p[ENTRIES]) - first
    size = int(p[VALUE]) - origin
    offset_width = width(size)
    many = 1 if count > 255 else 0
    count_width = 4 if many else 1
    at = _make_header_room(w, 1 + count_width + (count + 1) * offset_width)
    if at < 0:
        return
    w.value[at] = (many << 4) | ((offset_width - 1) << 2) | ARRAY
    put_le(w.value, at + 1, count, count_width)
    at += 1 + count_width
    for i in range(count):
        put_le(w.value, at + i * offset_width, int(w.entry_at[first + i]) - origin, offset_width)
    put_le(w.value, at + count * offset_width, size, offset_width)
