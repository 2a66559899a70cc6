"""Containers of AMQP 0-10 values, on an explicit stack.

A row of the stack is an open container of the VARIANT value. `put_value` writes a scalar, or opens a container, whose
items the loop of `codec.amqp.v0_10.values` writes.
"""

from __future__ import annotations

import numpy as np

from codec import variant as W
from codec.amqp.v0_10 import tables as T
from codec.amqp.v0_10.extents import STRUCT32_TYPE, entry_at, packing_flags
from codec.amqp.v0_10.scalars import SCRATCH, put_code, put_name, put_ranges, put_scalar, word
from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.cursor import u8, u32
from codec.variant.writer import ENTRIES

DEPTH = LIMITS.nesting_depth
# An item costs two or more octets of VARIANT, up to four of offset, and 56 of scratch while its container is open.
ITEMS = LIMITS.variant_bytes // 16
CODES = 2  # octets of class code and code

# Columns of the stack. LEFT: number of remaining items, or packing flags of remaining fields. BASE: number of the first
# field's key among the known keys, -1 when it is not known. BEFORE: offset of the last field written.
KIND, END, LEFT, TYPE, OF, PLACE, BASE, BEFORE = range(8)
IN_FIELDS, IN_MAP, IN_LIST, IN_ARRAY, IN_SECTIONS = range(5)
MORE, NO_MORE, UNKNOWN_KEYS = 1, 0, -1
BOTTOM = 0  # of the stack


def new_stack() -> np.ndarray:
    """Working memory of the interpreter, int64, for one value at a time."""
    return np.zeros((DEPTH + 1, 8), np.int64)


@kernel
def push(stack, depth, kind, end, left, number, of, base):
    row = stack[depth]
    row[KIND] = kind
    row[END] = end
    row[LEFT] = left
    row[TYPE] = number
    row[OF] = of
    row[PLACE] = 0
    row[BASE] = base
    row[BEFORE] = -1
    return depth + 1


@kernel
def open_fields(buf, at, end, of, base, stack, depth, t):
    """Open the fields of entry `of`, whose object has begun and whose packing flags are at `at`: (offset, depth,
    code)."""
    flags = packing_flags(buf, at, end, of, t) if at >= 0 else -1
    sized = int(t.entries[of, T.SIZE_WIDTH])
    depth = push(stack, depth, int(IN_FIELDS), end, max(flags, NO_MORE), sized, of, base)
    if flags < 0:
        return end, depth, W.MALFORMED
    return at + int(t.entries[of, T.PACK]), depth, W.OK


@kernel
def _declared_struct(w, buf, at, end, of, base, stack, depth, t):
    """Open a struct, with its size and code, that is declared as the type of a field, of the elements of an array or of
    a header segment."""
    W.begin_object_of(w, int(t.entries[of, T.FIELD_END] - t.entries[of, T.FIELD_FROM]), end - at)
    at += int(t.entries[of, T.SIZE_WIDTH])
    if t.entries[of, T.CODE] >= 0:
        at = at + CODES if entry_at(buf, at, end, int(T.STRUCT_ENTRY), t) == of else -1
    return open_fields(buf, at, end, of, base, stack, depth, t)


@kernel
def _struct32(w, buf, at, end, stack, depth, t, keys, key_set):
    """Open a struct whose class code and code are at `at`."""
    W.begin_object(w)
    word(w, t, keys, int(T.STRUCT_WORD), key_set)
    of = entry_at(buf, at, end, int(T.STRUCT_ENTRY), t)
    if of >= 0:
        put_name(w, keys, t.special[T.NAME_SET], of)
        return open_fields(buf, at + CODES, end, of, int(UNKNOWN_KEYS), stack, depth, t)
    coded = end - at >= CODES
    W.put_string(w, w.text, int(SCRATCH), put_code(w, buf, at) if coded else 0)
    word(w, t, keys, int(T.VALUE_WORD), key_set)
    W.put_binary(w, buf, at + CODES if coded else at, end)
    depth = push(stack, depth, int(IN_FIELDS), end, int(NO_MORE), end, of, int(UNKNOWN_KEYS))
    return end, depth, W.OK if coded else W.MALFORMED


@kernel
def _items(w, buf, at, end, form, of, stack, depth, t, keys, key_set):
    """Open a map, list or array, which begins with its number of items. Without octets it is empty."""
    start, number = at, -1
    if form == T.ARRAY_OF:
        number = u8(buf, at, end)
        at += 1
        if of >= 0 and number != STRUCT32_TYPE:
            number = int(T.STRUCT_TYPE)  # the type code of a struct without a code is not specified
    count = u32(buf, at, end)
    if count > 0 and number >= 0 and t.types[T.CATEGORY, number] == T.FIXED and t.types[T.WIDTH, number] == 0:
        W.begin_object(w)
        word(w, t, keys, int(T.TYPE_WORD), key_set)
        put_name(w, keys, t.special[T.TYPE_SET], number)
        word(w, t, keys, int(T.COUNT_WORD), key_set)
        W.put_int(w, count)
        W.end_object(w)
        return end, depth, W.OK if at + 4 == end else W.MALFORMED
    if w.positions[ENTRIES] + min(count, end - at) > ITEMS:
        W.put_binary(w, buf, start, end)
        return end, depth, W.TOO_LARGE
    kind = IN_MAP if form == T.MAP else (IN_LIST if form == T.LIST else IN_ARRAY)
    if kind == IN_MAP:
        W.begin_object(w)
    else:
        W.begin_array(w)
    depth = push(stack, depth, kind, end, max(count, NO_MORE), number, of, int(UNKNOWN_KEYS))
    if count < 0:
        return end, depth, W.OK if start >= end else W.MALFORMED
    return at + 4, depth, W.OK


@inlined
def put_value(w, buf, at, end, number, of, base, stack, depth, t, keys, key_set):
    """Write the scalar, or open the container, `buf[at:end]` of type `number`: (offset of the next octet, depth,
    code)."""
    form = int(t.types[T.FORM, number])
    if form < T.RANGES:
        put_scalar(w, buf, at, end, number, t, keys, key_set)
        return end, depth, W.OK
    if form == T.RANGES and put_ranges(w, buf, at, end, number, base, t, keys, key_set):
        return end, depth, W.OK
    if form == T.RANGES or depth == DEPTH:
        W.put_binary(w, buf, at, end)
        return end, depth, W.MALFORMED if form == T.RANGES else W.TOO_DEEP
    if form == T.STRUCT:
        return _declared_struct(w, buf, at, end, of, base, stack, depth, t)
    if form == T.STRUCT32:
        return _struct32(w, buf, at + 4, end, stack, depth, t, keys, key_set)
    return _items(w, buf, at + 4, end, form, of, stack, depth, t, keys, key_set)
