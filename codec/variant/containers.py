"""Objects and arrays of a VARIANT value.

The contents of a container are written first. Its header (count, key numbers in byte order, offsets) is written before
them at the end: into the room that `begin_object_of` reserved, when the guess was right, else after moving the
contents.
"""

from __future__ import annotations

from codec.compiler.kernel import inlined, kernel
from codec.cursor import octet
from codec.variant.dictionary import key_id
from codec.variant.writer import (
    CODE,
    DEPTH,
    ENTRIES,
    FULL,
    METADATA,
    OK,
    SHORT_SCRATCH,
    TOO_DEEP,
    VALUE,
    allocate,
    fail,
    put_le,
    shift,
    width,
)

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
        difference = octet(w.metadata, text + at_a + i) - octet(w.metadata, text + at_b + i)
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
