"""Scalars and containers of AMQP 0-10 values to VARIANT.

A scalar with the octets of a classic type is written as that type. Text in ISO 8859-15, UTF-16 or UTF-32 becomes STRING
like text in UTF-8; text that is not valid in its encoding is BINARY, as are undefined and opaque types. A container is
a row of an explicit stack: `put_value` opens it, and the loop of `codec.amqp.v0_10.values` writes its items.
"""

from __future__ import annotations

import numpy as np

from codec import variant as W
from codec.amqp.classic import kinds as K
from codec.amqp.classic.field_table import put_scalar as put_classic
from codec.amqp.v0_10 import tables as T
from codec.amqp.v0_10.detect import STRUCT32_TYPE, entry_at, packing_flags
from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.cursor import i64, octet, signed, u8, u32
from codec.variant.texts import put_hex, put_scaled, put_transcoded
from codec.variant.writer import ENTRIES

DOT = 0x2E
SCRATCH = 0  # where a text that is composed begins in `Writer.text`
DEPTH = LIMITS.nesting_depth
# An item costs two or more octets of VARIANT, up to four of offset, and 56 of scratch while its container is open.
ITEMS = LIMITS.variant_bytes // 16
CODES = 2  # octets of class code and code
# Columns of the stack. LEFT: number of remaining items, or packing flags of remaining fields. BASE: number of the first
# field's key among the known keys, -1 when it is not known. BEFORE: offset of the last field written.
KIND, END, LEFT, TYPE, ENTRY, PLACE, BASE, BEFORE = range(8)
IN_FIELDS, IN_MAP, IN_LIST, IN_ARRAY, IN_SECTIONS = range(5)
MORE, NO_MORE, UNKNOWN_KEYS = 1, 0, -1
BOTTOM = 0  # of the stack


@kernel
def fixed_key(w, t, keys, number, key_set):
    """The next value has the key FIXED_KEYS[number]."""
    W.load_known(w, keys, key_set)
    at = int(keys.first[t.special[T.FIXED_KEY_SET]]) + number
    W.key(w, keys.text, int(keys.text_at[at]), int(keys.text_at[at + 1]))


@kernel
def put_name(w, keys, name_set, number):
    """The name of an entry or type (`name_set`: which) as STRING."""
    at = int(keys.first[name_set]) + number
    W.put_string(w, keys.text, int(keys.text_at[at]), int(keys.text_at[at + 1]))


@inlined
def put_scalar(w, buf, at, end, number, t, keys, key_set):
    """Write the scalar `buf[at:end]` of type `number`."""
    form = t.types[T.FORM, number]
    start = at + t.types[T.WIDTH, number] if t.types[T.CATEGORY, number] == T.VARIABLE else at
    if form == T.TEXT:
        W.put_text(w, buf, start, end)
    elif form == K.BINARY:
        W.put_binary(w, buf, start, end)
    elif form == K.BIT:
        W.put_bool(w, form)  # a bit that is present is set
    elif form == T.DECIMAL64 or form == K.DECIMAL:
        if u8(buf, at, end) > W.DECIMAL_SCALE:
            W.load_known(w, keys, key_set)
        unscaled = i64(buf, at + 1, end) if form == T.DECIMAL64 else signed(u32(buf, at + 1, end), 32)
        put_scaled(w, unscaled, octet(buf, at))
    elif form < T.UUID:
        put_classic(w, buf, at, end, form)
    elif form == T.UUID:
        put_hex(w, buf, at, end - at, True)
    else:
        put_transcoded(w, buf, start, end, form - T.LATIN)


@kernel
def put_ranges(w, buf, at, end, number, base, t, keys, key_set):
    """A sequence-set (pairs of 32 bits) or byte-ranges (pairs of 64): ARRAY of {lower, upper}, with known keys from
    `base` on (-1: none). False when the octets are not pairs; then nothing is written."""
    width = 8 if number == T.BYTE_RANGES else 4
    at += 2
    if (end - at) % (2 * width) != 0:
        return False
    W.begin_array(w)
    while at < end:
        W.element(w)
        W.begin_object(w)
        for bound in range(2):
            if base >= 0:
                W.known_key(w, base + bound)
            else:
                fixed_key(w, t, keys, T.LOWER_KEY + bound, key_set)
            if width == 4:
                W.put_int(w, u32(buf, at, end))
            else:
                W.put_u64(w, i64(buf, at, end))
            at += width
        if base >= 0:
            W.end_known_object(w, keys, key_set)
        else:
            W.end_object(w)
    W.end_array(w)
    return True


@kernel
def put_code(w, buf, at):
    """Write the class code and code at `at` as text, such as 4.1, to `Writer.text`; returns its size."""
    size = 0
    for i in range(2):
        number = octet(buf, at + i)
        digits = 3 if number > 99 else (2 if number > 9 else 1)
        for j in range(digits - 1, -1, -1):
            w.text[size + j] = 0x30 + number % 10
            number //= 10
        size += digits
        if i == 0:
            w.text[size] = DOT
            size += 1
    return size


def new_stack() -> np.ndarray:
    """Working memory of the interpreter, int64, for one value at a time."""
    return np.zeros((DEPTH + 1, 8), np.int64)


@kernel
def push(stack, depth, kind, end, left, number, entry, base):
    row = stack[depth]
    row[KIND] = kind
    row[END] = end
    row[LEFT] = left
    row[TYPE] = number
    row[ENTRY] = entry
    row[PLACE] = 0
    row[BASE] = base
    row[BEFORE] = -1
    return depth + 1


@kernel
def open_fields(buf, at, end, entry, base, stack, depth, t):
    """Open the fields of `entry`, whose object has begun and whose packing flags are at `at`: (offset, depth, code)."""
    flags = packing_flags(buf, at, end, entry, t) if at >= 0 else -1
    sized = int(t.entries[entry, T.SIZE_WIDTH])
    depth = push(stack, depth, int(IN_FIELDS), end, max(flags, NO_MORE), sized, entry, base)
    if flags < 0:
        return end, depth, W.MALFORMED
    return at + int(t.entries[entry, T.PACK]), depth, W.OK


@kernel
def _declared_struct(w, buf, at, end, entry, base, stack, depth, t):
    """Open a struct, with its size and code, that is declared as the type of a field, of the elements of an array or of
    a header segment."""
    W.begin_object_of(w, int(t.entries[entry, T.FIELD_END] - t.entries[entry, T.FIELD_FROM]), end - at)
    at += int(t.entries[entry, T.SIZE_WIDTH])
    if t.entries[entry, T.CODE] >= 0:
        at = at + CODES if entry_at(buf, at, end, int(T.STRUCT_ENTRY), t) == entry else -1
    return open_fields(buf, at, end, entry, base, stack, depth, t)


@kernel
def _struct32(w, buf, at, end, stack, depth, t, keys, key_set):
    """Open a struct whose class code and code are at `at`."""
    W.begin_object(w)
    fixed_key(w, t, keys, int(T.STRUCT_KEY), key_set)
    entry = entry_at(buf, at, end, int(T.STRUCT_ENTRY), t)
    if entry >= 0:
        put_name(w, keys, t.special[T.NAME_SET], entry)
        return open_fields(buf, at + CODES, end, entry, int(UNKNOWN_KEYS), stack, depth, t)
    coded = end - at >= CODES
    W.put_string(w, w.text, int(SCRATCH), put_code(w, buf, at) if coded else 0)
    fixed_key(w, t, keys, int(T.VALUE_KEY), key_set)
    W.put_binary(w, buf, at + CODES if coded else at, end)
    depth = push(stack, depth, int(IN_FIELDS), end, int(NO_MORE), end, entry, int(UNKNOWN_KEYS))
    return end, depth, W.OK if coded else W.MALFORMED


@kernel
def _items(w, buf, at, end, form, entry, stack, depth, t, keys, key_set):
    """Open a map, list or array, which begins with its number of items. Without octets it is empty."""
    start, number = at, -1
    if form == T.ARRAY_OF:
        number = u8(buf, at, end)
        at += 1
        if entry >= 0 and number != STRUCT32_TYPE:
            number = int(T.STRUCT_TYPE)  # the type code of a struct without a code is not specified
    count = u32(buf, at, end)
    if count > 0 and number >= 0 and t.types[T.CATEGORY, number] == T.FIXED and t.types[T.WIDTH, number] == 0:
        W.begin_object(w)
        fixed_key(w, t, keys, int(T.TYPE_KEY), key_set)
        put_name(w, keys, t.special[T.TYPE_SET], number)
        fixed_key(w, t, keys, int(T.COUNT_KEY), key_set)
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
    depth = push(stack, depth, kind, end, max(count, NO_MORE), number, entry, int(UNKNOWN_KEYS))
    if count < 0:
        return end, depth, W.OK if start >= end else W.MALFORMED
    return at + 4, depth, W.OK


@inlined
def put_value(w, buf, at, end, number, entry, base, stack, depth, t, keys, key_set):
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
        return _declared_struct(w, buf, at, end, entry, base, stack, depth, t)
    if form == T.STRUCT32:
        return _struct32(w, buf, at + 4, end, stack, depth, t, keys, key_set)
    return _items(w, buf, at + 4, end, form, entry, stack, depth, t, keys, key_set)
