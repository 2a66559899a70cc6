"""Scalars of AMQP 1.0 to VARIANT (part 1, section 1.6).

Integers are exact. A symbol or string is STRING, a char STRING of one character, a uuid its text. A timestamp is
TIMESTAMP; outside of the years 1 to 9999 it is its milliseconds as an integer.

A decimal is DECIMAL when it is exact with at most 38 digits and a scale of 0 to 38, else {type, hex}. AMQP 1.0 has the
decimal interchange formats of IEEE 754-2008 in binary integer encoding: sign, biased exponent, and the coefficient as a
binary integer. The exponent begins after the sign, or two bits later when those two bits are 11 (the coefficient then
has an implied leading 100); 1111 there is infinity or NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec import variant as W
from codec.amqp.v1_0 import tables as T
from codec.amqp.v1_0.constructors import length_at, unsigned
from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.cursor import fits, i64, octet, signed, u32
from codec.variant.scalars import DECIMAL16
from codec.variant.texts import UTF32, put_hex, put_transcoded
from codec.variant.writer import allocate, put_le

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
    """The decimal of `size` octets at `at`: its unscaled integer without sign in `limbs` (int64, 2 * LIMBS), and the
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
        _put_limbs(w, s.limbs, scale, octet(buf, at) >= 0x80)
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
    """Write the value with constructor `code` whose octets begin at `at`: the offset after it, -1 when it does not end
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
        W.put_bool(w, number != 0 if width == 0 else octet(buf, at) != 0)
    elif kind == T.ULONG:
        W.put_u64(w, number)
    elif kind <= T.LONG:
        W.put_int(w, number)
    else:
        _put_rare(w, buf, at, kind, width, t, v, s, key_set)
    return at + width
