"""Values of AMQP 1.0 that hold no others: octets to VARIANT scalars (part 1, section 1.6).

`put_scalar` writes what stands after a constructor. Unsigned and signed integers are exact; a symbol or string is
STRING, a char STRING of one character, a uuid its text, a timestamp TIMESTAMP (outside
of the years 1 to 9999 its milliseconds as an integer), a decimal DECIMAL when one is equal to it, else {type, hex} of
its octets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.amqp.decimals import LIMBS, exact_decimal, put_limbs
from codec.amqp.v1_0 import tables as T
from codec.amqp.v1_0.constructors import length_at, unsigned
from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.cursor import fits, i64, octet, signed, u32
from codec.variant import (
    begin_object,
    end_object,
    key,
    load_known,
    put_binary,
    put_bool,
    put_f32,
    put_f64,
    put_int,
    put_null,
    put_string,
    put_text,
    put_timestamp_us,
    put_u64,
)

DEPTH = LIMITS.nesting_depth
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # 0001-01-01 to 9999-12-31
HYPHEN = 0x2D
EVERY_FIELD = np.int64(1 << 32)  # as many as a list may have
START = np.int64(0)  # see `codec.amqp.v1_0.tables.WORDS`
DIGITS = np.frombuffer(bytearray(b"0123456789abcdef"), np.uint8)


class Scratch(NamedTuple):
    """Working memory of the interpreter, int64: `stack` (depth, 6) open containers; `fields` (16,) where the fields of
    the outermost composite stand; `shown` (1,) how many of those are shown; `limbs` of decimals."""

    stack: np.ndarray
    fields: np.ndarray
    shown: np.ndarray
    limbs: np.ndarray


def new_scratch() -> Scratch:
    """Working memory for one value at a time."""
    fields, shown = np.zeros(16, np.int64), np.full(1, EVERY_FIELD)
    return Scratch(np.zeros((DEPTH + 8, 6), np.int64), fields, shown, np.zeros(2 * LIMBS, np.int64))


@kernel
def word(w, v, number, key_set):
    """The value that follows belongs to the key WORDS[number]."""
    load_known(w, v.keys, key_set)
    first = int(v.keys.first[v.word_set]) + number
    key(w, v.keys.text, int(v.keys.text_at[first]), int(v.keys.text_at[first + 1]))


@kernel
def put_type(w, t, v, kind):
    """Name of a primitive type (TYPES code)."""
    put_string(w, t.text, int(v.span[kind, 0]), int(v.span[kind, 1]))


@kernel
def _put_hex(w, buf, at, size, uuid):
    """The octets as lower-case hex; `uuid`: with the hyphens of a UUID (RFC 4122 section 3)."""
    n = 0
    for i in range(size):
        if uuid and (i == 4 or i == 6 or i == 8 or i == 10):
            w.text[n] = HYPHEN
            n += 1
        byte = octet(buf, at + i)
        w.text[n] = DIGITS[byte >> 4]
        w.text[n + 1] = DIGITS[byte & 15]
        n += 2
    put_string(w, w.text, START, n)


@kernel
def _put_char(w, buf, at):
    """A UTF-32BE character as STRING; four octets that are none as BINARY."""
    code = u32(buf, at, at + 4)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        put_binary(w, buf, at, at + 4)
        return
    size, lead = 4, 0xF0
    if code < 0x80:
        size, lead = 1, 0
    elif code < 0x800:
        size, lead = 2, 0xC0
    elif code < 0x10000:
        size, lead = 3, 0xE0
    for i in range(size - 1, 0, -1):
        w.text[i] = 0x80 | (code & 0x3F)
        code >>= 6
    w.text[0] = lead | code
    put_string(w, w.text, START, size)


@kernel
def _put_decimal_float(w, buf, at, kind, size, t, v, s, key_set):
    scale = exact_decimal(buf, at, size, s.limbs)
    if scale >= 0:
        put_limbs(w, s.limbs, scale, octet(buf, at) >= 0x80)
        return
    begin_object(w)
    word(w, v, T.TYPE_WORD, key_set)
    put_type(w, t, v, kind)
    word(w, v, T.HEX_WORD, key_set)
    _put_hex(w, buf, at, size, kind == T.UUID)
    end_object(w)


@kernel
def _put_rare(w, buf, at, kind, size, t, v, s, key_set):
    """A value of fixed size that is neither an integer nor a boolean."""
    if kind == T.FLOAT:
        put_f32(w, u32(buf, at, at + 4))
    elif kind == T.DOUBLE:
        put_f64(w, i64(buf, at, at + 8))
    elif kind == T.CHAR:
        _put_char(w, buf, at)
    elif kind == T.TIMESTAMP:
        ms = i64(buf, at, at + 8)
        if FIRST_MS <= ms <= LAST_MS:
            put_timestamp_us(w, ms * 1000)
        else:
            put_int(w, ms)
    elif kind == T.UUID:
        _put_hex(w, buf, at, size, kind == T.UUID)
    else:
        _put_decimal_float(w, buf, at, kind, size, t, v, s, key_set)


@inlined
def put_scalar(w, buf, at, end, code, t, v, s, key_set):
    """Write the value whose constructor is `code` and whose octets begin at `at`: the offset after it, -1 when it does
    not end before `end` (nothing is written then)."""
    kind, width = int(t.constructor[code].type), int(t.constructor[code].width)
    if t.constructor[code].category == T.VARIABLE:
        size = length_at(buf, at, end, width)
        start = at + width
        if size < 0 or size > end - start:
            return -1
        if kind == T.BINARY:
            put_binary(w, buf, start, start + size)
        else:
            put_text(w, buf, start, start + size)
        return start + size
    if not fits(at, width, end):
        return -1
    number = int(t.constructor[code].constant)
    if T.UBYTE <= kind <= T.LONG and width > 0:
        number = i64(buf, at, at + 8) if width == 8 else unsigned(buf, at, width)
        if kind >= T.BYTE and width < 8:
            number = signed(number, 8 * width)
    if kind == T.NULL:
        put_null(w)
    elif kind == T.BOOLEAN:
        put_bool(w, number != 0 if width == 0 else octet(buf, at) != 0)
    elif kind == T.ULONG:
        put_u64(w, number)
    elif kind <= T.LONG:
        put_int(w, number)
    else:
        _put_rare(w, buf, at, kind, width, t, v, s, key_set)
    return at + width
