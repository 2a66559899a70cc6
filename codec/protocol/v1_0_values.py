"""The type system of AMQP 1.0 to VARIANT: one interpreter for every value, composite and section.

A value is a constructor and its bytes (OASIS AMQP 1.0, part 1). An explicit stack has a row for each open container;
the loop of `decode_value` takes the next item of the innermost container.

* list, array -> ARRAY; map -> OBJECT when all keys are text, else ARRAY of {key, value}
* composite -> OBJECT of its fields that are not null, with "type": its name (not for the body of a frame, nor a
  section); a field that may be multiple is always an ARRAY
* any other described value -> {descriptor, value}; an array of described values -> {descriptor, value: [...]}
* an array whose elements have no bytes -> {type, count}, never expanded
* a container nested too deep or with too many entries -> BINARY, its bytes

For any bytes a well-formed value is written. A broken item ends its container, and the outer container continues after
it. Cost: linear in the bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec import variant as W
from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.cursor import (
    byte_at,
    fits,
    i64,
    signed,
    u8,
    u32,
)
from codec.protocol import rows as N
from codec.protocol import v1_0_tables as T
from codec.protocol.disclosure import SHOW_ALL, SHOW_SASL_NAMES, SHOW_SIZE, SHOW_USER, is_sasl_name, user_span
from codec.protocol.rows import BATCH, DIGEST, ERROR, HANDSHAKE, NOTES, STATUS, VALUES_BROKEN
from codec.protocol.v1_0_detection import (
    DESCRIBED,
    NULL,
    compound,
    descriptor,
    entries_fit,
    fields_in_place,
    is_operation,
    is_text_map,
    length_at,
    section_head,
    skip,
    symbol_span,
    text_span,
    unsigned,
)
from codec.protocol.versions import E_DEPTH, E_FIELDS, E_SECTIONS, E_VALUE_SIZE, MALFORMED, PARTIAL
from codec.variant.scalars import DECIMAL16, UTF32, put_hex, put_transcoded
from codec.variant.writer import DEPTH as OPEN_CONTAINERS
from codec.variant.writer import ENTRIES as OPEN_ENTRIES
from codec.variant.writer import allocate, put_le

# Scalars of AMQP 1.0 to VARIANT (part 1, section 1.6).
#
# Integers are exact. A symbol or string is STRING, a char STRING of one character, a uuid its text. A timestamp is
# TIMESTAMP; outside of the years 1 to 9999 it is its milliseconds as an integer.
#
# A decimal is DECIMAL when it is exact with at most 38 digits and a scale of 0 to 38, else {type, hex}. AMQP 1.0 has
# the decimal interchange formats of IEEE 754-2008 in binary integer encoding: sign, biased exponent, and the
# coefficient as a binary integer. The exponent begins after the sign, or two bits later when those two bits are 11 (the
# coefficient then has an implied leading 100); 1111 there is infinity or NaN.


DEPTH = LIMITS.nesting_depth
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # 0001-01-01 to 9999-12-31
EVERY_FIELD = np.int64(1 << 32)  # the most that a list may have
# By width (32, 64, 128 bits): bits of the exponent, its bias (which leaves an integer coefficient), digits.
EXPONENT_BITS = np.array([8, 10, 14], np.int64)
BIAS = np.array([101, 398, 6176], np.int64)
DIGITS = np.array([7, 16, 34], np.int64)
PRECISION = 38  # digits of a DECIMAL
REST = np.int64(5)
LIMBS = 5  # 32-bit limbs, least significant first: 128 bits and one limb to overflow into


class Scratch(NamedTuple):
    """Working memory of the interpreter, int64: `stack` (depth, 6) open containers; `fields` (16,) offsets of the
    outermost composite's fields; `field_count` (1,) how many of these are written; `limbs` of decimals."""

    stack: np.ndarray
    fields: np.ndarray
    field_count: np.ndarray
    limbs: np.ndarray


def new_scratch() -> Scratch:
    """Working memory for one value at a time."""
    fields, field_count = np.zeros(16, np.int64), np.full(1, EVERY_FIELD)
    return Scratch(np.zeros((DEPTH + 8, 6), np.int64), fields, field_count, np.zeros(2 * LIMBS, np.int64))


@kernel
def fixed_key(w, v, number, key_set):
    """The next value has the key FIXED_KEYS[number]."""
    W.load_known(w, v.keys, key_set)
    first = int(v.keys.first[v.fixed_key_set]) + number
    W.key(w, v.keys.text, int(v.keys.text_at[first]), int(v.keys.text_at[first + 1]))


@kernel
def put_type(w, t, v, kind):
    """Name of a primitive type (TYPES code)."""
    W.put_string(w, t.text, int(v.span[kind, 0]), int(v.span[kind, 1]))


@kernel
def _times_ten(limbs):
    carry = 0
    for i in range(LIMBS):
        product = int(limbs[i]) * 10 + carry
        limbs[i] = product & 0xFFFFFFFF
        carry = product >> 32


@kernel
def _by_ten(limbs, first):
    """Divide the number in `limbs[first:]` by ten: the remainder, -1 when the number was zero."""
    rest, seen = 0, 0
    for i in range(first + LIMBS - 1, first - 1, -1):
        part = (rest << 32) | int(limbs[i])
        seen |= part
        limbs[i] = part // 10
        rest = part % 10
    return rest if seen else -1


@kernel
def _digits(limbs):
    """The number of decimal digits; zero has none. Uses the second half of `limbs`."""
    for i in range(LIMBS):
        limbs[LIMBS + i] = limbs[i]
    count = 0
    while _by_ten(limbs, REST) >= 0:
        count += 1
    return count


@kernel
def _exact_decimal(buf, at, size, limbs):
    """The decimal of `size` bytes at `at`: its unscaled integer without sign in `limbs` (int64, 2 * LIMBS), and the
    scale, -1 when no DECIMAL is equal to it."""
    index = 0 if size == 4 else (1 if size == 8 else 2)
    bits = int(EXPONENT_BITS[index])
    top = u32(buf, at, at + size)
    large = (top >> 29) & 3 == 3
    if large and (top >> 27) & 15 == 15:
        return -1
    words = size // 4
    for i in range(LIMBS):
        limbs[i] = u32(buf, at + 4 * (words - 1 - i), at + size) if i < words else 0
    shift = 31 - bits - (2 if large else 0)
    exponent = ((top >> shift) & ((1 << bits) - 1)) - int(BIAS[index])
    limbs[words - 1] = (top & ((1 << shift) - 1)) + ((4 << shift) if large else 0)
    digits = _digits(limbs)
    if digits > DIGITS[index]:  # not canonical: its value is zero (IEEE 754-2008 section 3.5.2)
        limbs[:LIMBS] = 0
        digits = 0
    if digits == 0:
        return min(max(-exponent, 0), W.DECIMAL_SCALE)
    if digits + exponent > PRECISION:
        return -1
    while exponent > 0:
        _times_ten(limbs)
        exponent -= 1
    while -exponent > W.DECIMAL_SCALE:
        if _by_ten(limbs, 0) != 0:
            return -1
        exponent += 1
    return -exponent


@kernel
def _put_limbs(w, limbs, scale, negative):
    """DECIMAL of the unscaled integer in `limbs`."""
    if limbs[3] == 0 and limbs[2] == 0 and limbs[1] < 1 << 31:
        small = (int(limbs[1]) << 32) | int(limbs[0])
        W.put_decimal(w, -small if negative else small, scale)
        return
    at = allocate(w, 18)
    if at < 0:
        return
    w.value[at] = DECIMAL16 << 2
    w.value[at + 1] = scale
    carry = 1 if negative else 0
    for i in range(4):
        limb = int(limbs[i])
        if negative:
            limb = (limb ^ 0xFFFFFFFF) + carry
            carry = limb >> 32
        put_le(w.value, at + 2 + 4 * i, limb & 0xFFFFFFFF, 4)


@kernel
def _put_decimal_float(w, buf, at, kind, size, t, v, s, key_set):
    scale = _exact_decimal(buf, at, size, s.limbs)
    if scale >= 0:
        _put_limbs(w, s.limbs, scale, byte_at(buf, at) >= 0x80)
        return
    W.begin_object(w)
    fixed_key(w, v, T.TYPE_KEY, key_set)
    put_type(w, t, v, kind)
    fixed_key(w, v, T.HEX_KEY, key_set)
    put_hex(w, buf, at, size, False)
    W.end_object(w)


@kernel
def _put_rare(w, buf, at, kind, size, t, v, s, key_set):
    """A value of fixed size that is neither an integer nor a boolean."""
    if kind == T.FLOAT:
        W.put_f32(w, u32(buf, at, at + 4))
    elif kind == T.DOUBLE:
        W.put_f64(w, i64(buf, at, at + 8))
    elif kind == T.CHAR:
        put_transcoded(w, buf, at, at + size, UTF32)
    elif kind == T.TIMESTAMP:
        ms = i64(buf, at, at + 8)
        if FIRST_MS <= ms <= LAST_MS:
            W.put_timestamp_us(w, ms * 1000)
        else:
            W.put_int(w, ms)
    elif kind == T.UUID:
        put_hex(w, buf, at, size, True)
    else:
        _put_decimal_float(w, buf, at, kind, size, t, v, s, key_set)


@inlined
def put_scalar(w, buf, at, end, code, t, v, s, key_set):
    """Write the value with constructor `code` whose bytes begin at `at`: the offset after it, -1 when it does not end
    before `end` (then nothing is written)."""
    kind, width = int(t.constructor[code].type), int(t.constructor[code].width)
    if t.constructor[code].category == T.VARIABLE:
        size = length_at(buf, at, end, width)
        start = at + width
        if size < 0 or size > end - start:
            return -1
        if kind == T.BINARY:
            W.put_binary(w, buf, start, start + size)
        else:
            W.put_text(w, buf, start, start + size)
        return start + size
    if not fits(at, width, end):
        return -1
    number = int(t.constructor[code].constant)
    if T.UBYTE <= kind <= T.LONG and width > 0:
        number = i64(buf, at, at + 8) if width == 8 else unsigned(buf, at, width)
        if kind >= T.BYTE and width < 8:
            number = signed(number, 8 * width)
    if kind == T.NULL:
        W.put_null(w)
    elif kind == T.BOOLEAN:
        W.put_bool(w, number != 0 if width == 0 else byte_at(buf, at) != 0)
    elif kind == T.ULONG:
        W.put_u64(w, number)
    elif kind <= T.LONG:
        W.put_int(w, number)
    else:
        _put_rare(w, buf, at, kind, width, t, v, s, key_set)
    return at + width


# Fields of composites: checked against their definition, and hidden where they have a secret (part 1, section 1.4).
#
# A composite is a row on the stack; `next_field` announces its next field to the writer.


# Flaws of a value, as bits: it does not parse; its definition does not allow it; it is nested too deep; it has too many
# entries.
BROKEN, MISFIT, DEEP, LARGE = 1 << np.arange(4)

# Columns of the stack: kind of container, its end, remaining items, items read, constructor of the elements, descriptor
# index of the composite (or of the elements).
KIND, END, LEFT, STEP, CODE, DEFINITION = range(6)
IN_LIST, IN_ARRAY, IN_MAP, IN_PAIRS, IN_DESCRIBED, IN_DESCRIBED_ARRAY, IN_COMPOSITE, IN_FRAME = np.arange(8)
# What to write of a field: nothing; its value as the only element of an array; its value.
NO_VALUE, ONE_ELEMENT, VALUE = range(3)


@kernel
def put_name(w, t, definition):
    """The name of the composite with descriptor index `definition` as STRING."""
    W.put_string(w, t.text, int(t.descriptor[definition].text_from), int(t.descriptor[definition].text_end))


@inlined
def begin_composite(w, t, v, definition, count, key_set):
    """Begin the object of a composite of `count` fields, inside a value of `key_set`, with its type."""
    W.begin_object(w)
    if count == 0 and key_set < v.message_set:
        # usually the outcome 'accepted': an object with one known key needs no dictionary
        W.known_key(w, int(t.descriptor[key_set].field_end - t.descriptor[key_set].field_from))
    else:
        fixed_key(w, v, T.TYPE_KEY, key_set)
    put_name(w, t, definition)


@kernel
def missing_fields(w, definition, count, t):
    """MISFIT, and a note, when a composite with `count` fields lacks a mandatory field."""
    for field in range(int(t.descriptor[definition].field_from) + count, int(t.descriptor[definition].field_end)):
        if t.field[field].mandatory:
            W.note(w, N.FIELDS_MISSING)
            return MISFIT
    return 0


@kernel
def allowed(buf, at, end, field, t):
    """Whether the definition of `field` allows the type at `at`, of an array the type of its elements. A boolean in an
    byte is 0 or 1 (1.6.2); others are read as true, as by tshark."""
    code = u8(buf, at, end)
    kind = T.DESCRIBED_VALUE if code == DESCRIBED else int(t.constructor[code].type)
    if kind == T.ARRAY and t.field[field].multiple:
        start, stop, count = compound(buf, at + 1, end, code, t)
        code = u8(buf, start, stop) if start >= 0 else -1
        if count == 0 or code < 0:
            return True
        kind = T.DESCRIBED_VALUE if code == DESCRIBED else int(t.constructor[code].type)
    if kind == T.BOOLEAN and t.constructor[code].width == 1 and u8(buf, at + 1, end) > 1:
        return False
    return kind >= 0 and (int(t.field[field].types) >> kind) & 1 == 1


@inlined
def next_field(w, buf, at, row, t, v, s, key_set, base):
    """Announce the next field of the composite in `row`: (offset of its constructor, flaws, NO_VALUE, ONE_ELEMENT or
    VALUE).

    A null, a secret, and a field beyond the definition are skipped: NO_VALUE. A single value of a multiple field is
    written as ONE_ELEMENT of an array. Offset -1: broken. Known keys begin at `base` of `key_set`.
    """
    definition, index, end = int(row[DEFINITION]), int(row[STEP]), int(row[END])
    row[STEP] = index + 1
    field = int(t.descriptor[definition].field_from) + index
    if field >= t.descriptor[definition].field_end:
        W.note(w, N.FIELDS_EXTRA)
        return skip(buf, at, end, t), MISFIT, NO_VALUE
    if row[KIND] == IN_FRAME:
        s.fields[index] = at
    code = u8(buf, at, end)
    if code == NULL:
        if not t.field[field].mandatory:
            return at + 1, 0, NO_VALUE
        W.note(w, N.FIELDS_MISSING)
        return at + 1, MISFIT, NO_VALUE
    if code < 0:
        return -1, BROKEN, NO_VALUE
    flaws = 0 if allowed(buf, at, end, field, t) else MISFIT
    if row[KIND] == IN_FRAME:
        if index >= s.field_count[0]:
            return skip(buf, at, end, t), MISFIT, NO_VALUE
        W.bytes_are_text(w, t.field[field].describes_peer != 0)
    if t.field[field].disclosure == SHOW_SASL_NAMES:
        if not sasl_names(buf, at, end, t):
            return skip(buf, at, end, t), flaws, NO_VALUE
    elif t.field[field].disclosure != SHOW_ALL:
        return _secret(w, buf, at, end, field, row, t, v, s, key_set, base), flaws, NO_VALUE
    if row[KIND] == IN_FRAME:
        W.known_key(w, base + index)
    else:
        _put_key(w, v, definition, index, key_set)
    if t.field[field].multiple and code != DESCRIBED and 0 <= t.constructor[code].type < T.LIST:
        return at, flaws, ONE_ELEMENT
    return at, flaws, VALUE


@kernel
def sasl_names(buf, at, end, t):
    """Whether the value at `at` is a symbol with the form of a SASL mechanism name, or an array of such symbols."""
    code = u8(buf, at, end)
    if code <= 0 or t.constructor[code].type != T.ARRAY:
        start, stop = symbol_span(buf, at, end, t)
        return start >= 0 and is_sasl_name(buf, start, stop)
    start, stop, count = compound(buf, at + 1, end, code, t)
    if count > stop - start:
        return False
    code = u8(buf, start, stop)
    at = start + 1
    for _ in range(count):
        if code <= 0 or t.constructor[code].type != T.SYMBOL:
            return False
        size, at = length_at(buf, at, stop, int(t.constructor[code].width)), at + int(t.constructor[code].width)
        if size < 0 or size > stop - at or not is_sasl_name(buf, at, at + size):
            return False
        at += size
    return count == 0 or at == stop


@kernel
def _put_key(w, v, definition, index, key_set):
    """Write a key of the set of `definition` in a value that began with another set."""
    W.load_known(w, v.keys, key_set)
    text = int(v.keys.first[definition]) + index
    W.key(w, v.keys.text, int(v.keys.text_at[text]), int(v.keys.text_at[text + 1]))


@kernel
def _secret(w, buf, at, end, field, row, t, v, s, key_set, base):
    """Skip a field with a secret: the offset after it, or -1. At most the user or the size is written."""
    after = skip(buf, at, end, t)
    code = u8(buf, at, end)
    if after < 0 or row[KIND] != IN_FRAME or code == DESCRIBED or t.constructor[code].type != T.BINARY:
        return after
    index = int(row[STEP]) - 1
    start = at + 1 + int(t.constructor[code].width)
    policy = int(t.field[field].disclosure)
    if policy == SHOW_SIZE:
        W.known_key(w, base + index)
        W.put_int(w, after - start)
    elif policy == SHOW_USER:
        mechanism, mechanism_end = start + 1, start
        if index > 0:
            mechanism, mechanism_end = symbol_span(buf, int(s.fields[index - 1]), at, t)
        if mechanism >= 0:
            user, user_end = user_span(w, buf, mechanism, mechanism_end, start, after, v.tags)
            if user >= 0:
                W.known_key(w, base + index)
                W.put_text(w, buf, user, user_end)
    return after


# An entry costs 6 or more bytes of VARIANT, and far more of scratch memory while its container is open.
ENTRIES = LIMITS.variant_bytes // 16
EMPTY, PAIR, NONE = np.array([0, 2, -1])  # numpy integers, see `codec.protocol.v1_0_tables.FIXED_KEYS`
NOTHING, ELEMENTS = -2, -3  # instead of a constructor: no value; the rest of an array of described values


@kernel
def decode_value(w, buf, at, end, t, v, s, key_set, top, base):
    """Write the value whose constructor is at `at`: (offset after it or -1, flaws).

    `key_set`: the key set of the writer's value. `top` is the descriptor index when the value is the list of that
    composite, whose keys are in `key_set` from number `base` on. Otherwise `top` is -1.
    """
    depth, flaws, code, definition, wrapped = 0, 0, u8(buf, at, end), -1, False
    if top >= 0:
        at, depth, flaws = _begin_top(w, buf, at + 1, end, code, top, t, s)
        if at < 0:
            W.put_null(w)
            return -1, flaws
        code = NOTHING
    else:
        at += 1
    limit, depths = end, depth
    while True:
        # the next value, if any
        if code != NOTHING:
            if code == ELEMENTS:
                row = s.stack[depth - 1]
                at, depths, flaw = _array(w, buf, at, limit, int(row[CODE]), t, v, s, depth, key_set)
            elif code > 0 and t.constructor[code].type < T.LIST and t.constructor[code].type >= 0:
                at = put_scalar(w, buf, at, limit, code, t, v, s, key_set)
                flaw = 0 if at >= 0 else BROKEN
            else:
                at, depths, flaw = _value(w, buf, at, limit, code, definition, t, v, s, depth, key_set)
            flaws |= flaw
            depth = depths
            if at < 0:
                W.put_null(w)
            if wrapped:
                W.end_array(w)
                wrapped = False
        if at < 0:
            at, depth, flaw = _abandon(w, depth, t, v, s, key_set)
            flaws |= flaw
        # containers that are complete
        while depth > 0 and s.stack[depth - 1, LEFT] == 0:
            depth -= 1
            row = s.stack[depth]
            flaws |= _close(w, row, t, v, key_set)
            if row[KIND] != IN_DESCRIBED and at != row[END]:
                flaws |= BROKEN
                at = int(row[END])
        if depth == 0 or W.error_code(w) != W.OK:
            return at, flaws
        # the next item of the innermost container
        depths = depth
        row = s.stack[depth - 1]
        row[LEFT] -= 1
        limit = int(row[END])
        definition = -1
        if row[KIND] >= IN_COMPOSITE:
            at, flaw, follows = next_field(w, buf, at, row, t, v, s, key_set, base)
            flaws |= flaw
            if follows == ONE_ELEMENT:
                W.begin_array(w)
                W.element(w)
                wrapped = True
            code = NOTHING
            if at >= 0 and follows >= ONE_ELEMENT:
                code = u8(buf, at, limit)
                at += 1
        else:
            if row[KIND] == IN_ARRAY:
                definition = int(row[DEFINITION])
            at, code = _next_item(w, buf, at, row, t, v, key_set)
            if at < 0:
                flaws |= BROKEN


@kernel
def _abandon(w, depth, t, v, s, key_set):
    """End the innermost container with a size after a broken item: (offset after it, depth, flaws)."""
    at, flaws = -1, BROKEN
    while depth > 0 and at < 0:
        depth -= 1
        row = s.stack[depth]
        _end(w, row, v, key_set)  # which fields follow the broken item is not known
        if row[KIND] != IN_DESCRIBED:
            at = int(row[END])
    return at, depth, flaws


@kernel
def _push(s, depth, kind, end, left, code, definition):
    row = s.stack[depth]
    row[KIND] = kind
    row[END] = end
    row[LEFT] = left
    row[STEP] = 0
    row[CODE] = code
    row[DEFINITION] = definition
    return depth + 1


@kernel
def _begin_top(w, buf, at, end, code, top, t, s):
    start, stop, count = -1, -1, 0
    s.fields[:] = -1
    if code > 0 and t.constructor[code].type == T.LIST:
        start, stop, count = compound(buf, at, end, code, t)
    if start < 0 or count > stop - start:
        return -1, 0, BROKEN
    W.begin_object_of(w, min(count, 16), 2 * (stop - start))
    return start, _push(s, EMPTY, IN_FRAME, stop, count, NONE, top), 0


@inlined
def _value(w, buf, at, end, code, definition, t, v, s, depth, key_set):
    """Write a value that is not a scalar, with constructor `code` and bytes from `at` on: (offset of the next byte,
    new depth, flaws). The offset is -1 when nothing was written. `definition`: descriptor index of a composite, else
    -1."""
    if code == DESCRIBED:
        index, _, after = descriptor(buf, at, end, t)
        inner = u8(buf, after, end) if after >= 0 else -1
        if inner < 0:
            return -1, depth, BROKEN
        if index < 0 or not t.descriptor[index].composite or t.constructor[inner].type != T.LIST:
            if w.positions[OPEN_CONTAINERS] >= DEPTH:
                return _raw(w, buf, at, skip(buf, at - 1, end, t), depth, DEEP)
            W.begin_object(w)
            return at, _push(s, depth, IN_DESCRIBED, end, PAIR, NONE, NONE), 0
        at, code, definition = after + 1, inner, index
    if code < 0 or t.constructor[code].type < 0:
        return -1, depth, BROKEN
    return _container(w, buf, at, end, code, definition, t, v, s, depth, key_set)


@inlined
def _container(w, buf, at, end, code, definition, t, v, s, depth, key_set):
    kind = int(t.constructor[code].type)
    start, stop, count = compound(buf, at, end, code, t)
    if start < 0:
        return -1, depth, BROKEN
    if w.positions[OPEN_CONTAINERS] >= DEPTH:
        return _raw(w, buf, at, stop, depth, DEEP)
    if kind == T.ARRAY:
        return _array(w, buf, start, stop, count, t, v, s, depth, key_set)
    if w.positions[OPEN_ENTRIES] + count > ENTRIES:
        return _raw(w, buf, at, stop, depth, LARGE)
    if count > stop - start or (kind == T.MAP and count & 1):  # every item has a constructor, every key a value
        return -1, depth, BROKEN
    if kind == T.LIST and definition >= 0:
        begin_composite(w, t, v, definition, count, key_set)
        if start == stop:  # no fields: usually the outcome 'accepted'
            W.end_object(w)
            return stop, depth, missing_fields(w, definition, 0, t)
        return start, _push(s, depth, IN_COMPOSITE, stop, count, NONE, definition), 0
    if kind == T.MAP and is_text_map(buf, start, stop, count, t):
        W.begin_object(w)
        return start, _push(s, depth, IN_MAP, stop, count, NONE, NONE), 0
    W.begin_array(w)
    return start, _push(s, depth, IN_LIST if kind == T.LIST else IN_PAIRS, stop, count, NONE, NONE), 0


@kernel
def _raw(w, buf, at, stop, depth, flaw):
    """Write a container that is too deep or too large as BINARY."""
    if stop < 0:
        return -1, depth, BROKEN
    W.put_binary(w, buf, at, stop)
    return stop, depth, flaw


@kernel
def _array(w, buf, start, stop, count, t, v, s, depth, key_set):
    """Write an array of `count` elements, which share the constructor at `start` (part 1, section 1.2)."""
    code = u8(buf, start, stop)
    at, definition = start + 1, -1
    if count == 0:
        W.begin_array(w)
        return stop, _push(s, depth, IN_ARRAY, stop, EMPTY, NONE, NONE), 0
    if code == DESCRIBED:
        definition, _, after = descriptor(buf, at, stop, t)
        code = u8(buf, after, stop) if after >= 0 else -1
        if code >= 0 and (
            definition < 0 or not t.descriptor[definition].composite or t.constructor[code].type != T.LIST
        ):
            if w.positions[OPEN_CONTAINERS] >= DEPTH:
                return _raw(w, buf, start, stop, depth, DEEP)
            W.begin_object(w)
            return at, _push(s, depth, IN_DESCRIBED_ARRAY, stop, PAIR, count, NONE), 0
        at = after + 1
    if code < 0 or t.constructor[code].type < 0:
        return -1, depth, BROKEN
    least = int(t.constructor[code].width)
    if t.constructor[code].category == T.FIXED and least == 0:
        _put_count(w, t, v, int(t.constructor[code].type), definition, count, key_set)
        return stop, depth, 0 if at == stop else BROKEN
    if count > (stop - at) // least:
        return -1, depth, BROKEN
    if w.positions[OPEN_ENTRIES] + count > ENTRIES:
        return _raw(w, buf, start, stop, depth, LARGE)
    W.begin_array(w)
    return at, _push(s, depth, IN_ARRAY, stop, count, code, definition), 0


@kernel
def _put_count(w, t, v, kind, definition, count, key_set):
    """Write an array of `count` elements without bytes."""
    W.begin_object(w)
    fixed_key(w, v, T.TYPE_KEY, key_set)
    if definition >= 0:
        put_name(w, t, definition)
    else:
        put_type(w, t, v, kind)
    fixed_key(w, v, T.COUNT_KEY, key_set)
    W.put_int(w, count)
    W.end_object(w)


@kernel
def _next_item(w, buf, at, row, t, v, key_set):
    """Announce the next item of a container that is not a composite: (offset after its constructor, its constructor or
    NOTHING or ELEMENTS). The offset is -1 when the item is broken and was not announced."""
    kind, end, step = int(row[KIND]), int(row[END]), int(row[STEP])
    row[STEP] = step + 1
    if kind == IN_ARRAY:
        W.element(w)
        return at, int(row[CODE])
    if kind == IN_LIST:
        W.element(w)
    elif kind == IN_MAP:
        row[LEFT] -= 1
        start, stop = text_span(buf, at, end, t)
        if start < 0:
            return -1, NOTHING
        W.load_known(w, v.keys, key_set)
        W.text_key(w, buf, start, stop)
        at = stop
    elif kind == IN_PAIRS:
        if step & 1 == 0:
            if step > 0:
                W.end_object(w)
            W.element(w)
            W.begin_object(w)
        fixed_key(w, v, T.MAP_KEY if step & 1 == 0 else T.VALUE_KEY, key_set)
    else:
        fixed_key(w, v, T.DESCRIPTOR_KEY if step == 0 else T.VALUE_KEY, key_set)
        if kind == IN_DESCRIBED_ARRAY and step == 1:
            return at, ELEMENTS
    return at + 1, u8(buf, at, end)


@kernel
def _end(w, row, v, key_set):
    """End the container of a stack row."""
    kind = int(row[KIND])
    if kind == IN_FRAME:
        W.end_known_object(w, v.keys, key_set)
    elif kind in (IN_LIST, IN_ARRAY):
        W.end_array(w)
    elif kind == IN_PAIRS:
        if row[STEP] > 0:
            W.end_object(w)
        W.end_array(w)
    else:
        W.end_object(w)


@kernel
def _close(w, row, t, v, key_set):
    """End the container of a stack row, all of whose items were read: its flaws."""
    _end(w, row, v, key_set)
    if row[KIND] == IN_FRAME or row[KIND] == IN_COMPOSITE:
        return missing_fields(w, int(row[DEFINITION]), int(row[STEP]), t)
    return 0


# Arguments and properties of 1.0 frames, from the bytes that `codec.framing.v1_0_frames` stored.
#
# The bytes are: one byte with the section of the message's body (NO_BODY: unknown or none); the performative; and in
# the frame that completes a delivery, the sections of its message without those of the body, unless the body is for a
# transaction coordinator, or a small one of a management request or its reply (`codec.protocol.v1_0_contents`). The
# properties are one object: the sections by name, "body_kind", "body" for a transaction coordinator, and "body_value"
# of management. In a batch of Azure the bytes have its data sections, too (`codec.protocol.v1_0_contents`); its
# properties are those of the batch.


NO_BODY = 0xFF
MISFIT_OF_FIELDS, MISFIT_OF_SECTIONS = np.array([E_FIELDS, E_SECTIONS])  # see `codec.protocol.v1_0_tables.FIXED_KEYS`
START, SECTIONS = np.array([0, 4])  # first key of a performative; the usual number of sections


@kernel
def decode_frame(data, start, end, row, definition, t, v, s, arguments, properties):
    """Write the values of a frame from `bytes[start:end]`: OK, or FULL with nothing written.

    `definition`: descriptor index of the performative. Status and error of `row` tell whether the values fit it. If
    they do not, a performative that may hold a secret, and any performative before the client is authenticated, has
    only fields that cannot be part of a secret.
    """
    if start >= end:
        return W.OK
    _, _, at = descriptor(data, start + 2, end, t)
    s.field_count[0] = EVERY_FIELD
    if row[HANDSHAKE] or t.descriptor[definition].secret >= 0:
        visible, fields_stop = fields_in_place(data, at, end, definition, t)
        if fields_stop < 0:
            s.field_count[0] = visible
    W.begin(arguments)
    at, flaws = decode_value(arguments, data, at, end, t, v, s, definition, definition, START)
    code = W.finish_known(arguments, v.keys, definition)
    if code == W.FULL:
        W.rollback(arguments)
        return W.FULL
    if code != W.OK:
        W.rollback(arguments)
        flaws |= LARGE
    note_flaws(row, flaws, MISFIT_OF_FIELDS)
    if flaws & BROKEN and row[STATUS] != PARTIAL:
        row[NOTES] |= VALUES_BROKEN
    body = byte_at(data, start)
    if at < 0 or (at >= end and body == NO_BODY):
        return W.OK
    code, flaws = decode_message(
        properties, data, at, end, t, v, s, -1 if body == NO_BODY else body, row[DIGEST] >= BATCH
    )
    if code == W.FULL:
        W.rollback(properties)
        W.rollback(arguments)
        return W.FULL
    if code != W.OK:
        W.rollback(properties)
        flaws |= LARGE
    note_flaws(row, flaws, MISFIT_OF_SECTIONS)
    return W.OK


@kernel
def note_flaws(row, flaws, misfit):
    """Set status and error of a row whose values have flaws."""
    if flaws and row[STATUS] != PARTIAL:
        row[STATUS] = MALFORMED
        if row[ERROR] == 0:
            row[ERROR] = misfit if flaws & (BROKEN | MISFIT) else (E_DEPTH if flaws & DEEP else E_VALUE_SIZE)


@kernel
def decode_message(w, buf, at, end, t, v, s, body, batched):
    """Write the sections in `buf[at:end]`: (code of the writer, flaws). `body`: section of the body, -1 none;
    `batched`: data sections are left out."""
    flaws, seen, key_set = 0, 0, int(v.message_set)
    W.begin(w)
    W.begin_object_of(w, SECTIONS, 2 * (end - at))
    while at < end:
        section, value, start, size = section_head(buf, at, end, t)
        if batched and section == T.DATA and size <= end - start:
            at = start + size
            continue
        if section < 0 or size > end - start or seen >> section & 1 or section == T.DATA or section == T.SEQUENCE:
            flaws |= BROKEN
            break
        at = start + size
        if seen >> section:
            flaws |= MISFIT  # a later section came before it
        seen |= 1 << section
        definition, first = int(v.section[section, 2]), int(v.section[section, 1])
        if section == T.VALUE:
            W.known_key(w, int(v.body_key if is_operation(buf, value, at, t) else v.body_value_key))
        else:
            W.known_key(w, int(v.section[section, 0]))
            is_map = definition >= 0 or t.constructor[byte_at(buf, value)].type == T.MAP
            if not is_map or (definition < 0 and not entries_fit(buf, value, at, section, t)):
                flaws |= MISFIT
        after, flaw = decode_value(w, buf, value, at, t, v, s, key_set, definition, first)
        flaws |= flaw
        if after != at:
            flaws |= BROKEN
    if body >= 0:
        W.known_key(w, int(v.body_kind_key))
        kind = len(T.TYPES) + body - T.DATA
        W.put_string(w, t.text, int(v.span[kind, 0]), int(v.span[kind, 1]))
    W.end_known_object(w, v.keys, key_set)
    return W.finish_known(w, v.keys, key_set), flaws
