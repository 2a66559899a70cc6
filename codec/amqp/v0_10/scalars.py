"""Values of AMQP 0-10 that hold no others: octets to VARIANT scalars, and the two kinds of ranges.

Where the octets are those of the classic family its writer is used. Text in ISO 8859-15 or UTF-16 becomes STRING like
text in UTF-8; what is not a text in its encoding is BINARY. Types that are not defined, or opaque, are BINARY.
"""

from __future__ import annotations

import numpy as np

from codec.amqp.classic import kinds as K
from codec.amqp.classic.field_table import put_scalar as put_classic
from codec.amqp.v0_10 import tables as T
from codec.compiler.kernel import inlined, kernel
from codec.cursor import i64, octet, u8, u32
from codec.variant import (
    DECIMAL_SCALE,
    begin_array,
    begin_object,
    element,
    end_array,
    end_known_object,
    end_object,
    key,
    known_key,
    load_known,
    put_binary,
    put_bool,
    put_decimal,
    put_int,
    put_string,
    put_text,
    put_u64,
)
from codec.variant.scalars import mask_last, string_room

LATIN9 = np.array([ord(character) for character in bytes(range(256)).decode("iso-8859-15")], np.int64)
SURROGATES, LOW_SURROGATES, AFTER_SURROGATES = 0xD800, 0xDC00, 0xE000
LAST_CHARACTER = 0x10FFFF
DIGITS = np.frombuffer(bytearray(b"0123456789abcdef"), np.uint8)
HYPHEN, DOT = 0x2D, 0x2E
SCRATCH = 0  # where a text that is made up begins in `Writer.text`
BIG_ENDIAN_MARK, LITTLE_ENDIAN_MARK = 0xFEFF, 0xFFFE


@kernel
def word(w, t, keys, number, key_set):
    """The value that follows belongs to the key WORDS[number]."""
    load_known(w, keys, key_set)
    at = int(keys.first[t.special[T.WORD_SET]]) + number
    key(w, keys.text, int(keys.text_at[at]), int(keys.text_at[at + 1]))


@kernel
def put_name(w, keys, name_set, number):
    """Name of an entry or type (`name_set`: which) as STRING."""
    at = int(keys.first[name_set]) + number
    put_string(w, keys.text, int(keys.text_at[at]), int(keys.text_at[at + 1]))


@kernel
def _unit(buf, at, little):
    """A 16-bit unit of UTF-16."""
    if little:
        return (octet(buf, at + 1) << 8) | octet(buf, at)
    return (octet(buf, at) << 8) | octet(buf, at + 1)


@kernel
def _character(buf, at, end, form, little):
    """(code of the character at `at`, -1 when it is none; its octets)."""
    if form == T.LATIN:
        return LATIN9[octet(buf, at)], 1
    if form == T.UTF32:
        code = u32(buf, at, end)
        return (-1 if code > LAST_CHARACTER or SURROGATES <= code < AFTER_SURROGATES else code), 4
    if end - at < 2:
        return -1, 2
    unit = _unit(buf, at, little)
    if unit < SURROGATES or unit >= AFTER_SURROGATES:
        return unit, 2
    if unit >= LOW_SURROGATES or end - at < 4:
        return -1, 2
    low = _unit(buf, at + 2, little)
    if low < LOW_SURROGATES or low >= AFTER_SURROGATES:
        return -1, 4
    return 0x10000 + ((unit - SURROGATES) << 10) + (low - LOW_SURROGATES), 4


@kernel
def _utf8_size(code):
    if code < 0x80:
        return 1
    if code < 0x800:
        return 2
    return 3 if code < 0x10000 else 4


@kernel
def put_recoded(w, buf, start, end, form):
    """STRING of text in ISO 8859-15 (LATIN), UTF-16 (big-endian unless a byte order mark says otherwise) or
    UTF-32BE."""
    little = False
    at = start
    if form == T.UTF16 and end - start >= 2:
        mark = _unit(buf, start, little)
        little = mark == LITTLE_ENDIAN_MARK
        if mark in (BIG_ENDIAN_MARK, LITTLE_ENDIAN_MARK):
            start += 2
    size, at = 0, start
    while at < end:
        code, step = _character(buf, at, end, form, little)
        if code < 0:
            put_binary(w, buf, start, end)
            return
        size += _utf8_size(code)
        at += step
    whole, out, at = size, string_room(w, size), start
    while out >= 0 and at < end:
        code, step = _character(buf, at, end, form, little)
        at += step
        size = _utf8_size(code)
        lead = 0 if size == 1 else (0xF00 >> size) & 0xFF
        w.value[out] = lead | (code >> (6 * (size - 1)))
        for i in range(1, size):
            w.value[out + i] = 0x80 | ((code >> (6 * (size - 1 - i))) & 0x3F)
        out += size
    mask_last(w, whole)


@kernel
def _put_uuid(w, buf, at):
    """The text of a UUID (RFC 4122 section 3)."""
    size = 0
    for i in range(16):
        if i in (4, 6, 8, 10):
            w.text[size] = HYPHEN
            size += 1
        w.text[size] = DIGITS[octet(buf, at + i) >> 4]
        w.text[size + 1] = DIGITS[octet(buf, at + i) & 15]
        size += 2
    put_string(w, w.text, int(SCRATCH), size)


@kernel
def _put_decimal64(w, buf, at, t, keys, key_set):
    """An octet with the number of decimal places, then a signed 64-bit integer. More places than DECIMAL has: {scale,
    value}."""
    scale, unscaled = u8(buf, at, at + 1), i64(buf, at + 1, at + 9)
    if scale <= DECIMAL_SCALE:
        put_decimal(w, unscaled, scale)
        return
    begin_object(w)
    word(w, t, keys, int(T.SCALE_WORD), key_set)
    put_int(w, scale)
    word(w, t, keys, int(T.VALUE_WORD), key_set)
    put_int(w, unscaled)
    end_object(w)


@inlined
def put_scalar(w, buf, at, end, number, t, keys, key_set):
    """Write the value `buf[at:end]` of type `number`, which holds no others."""
    form = t.types[T.FORM, number]
    start = at + t.types[T.WIDTH, number] if t.types[T.CATEGORY, number] == T.VARIABLE else at
    if form == T.TEXT:
        put_text(w, buf, start, end)
    elif form == K.BINARY:
        put_binary(w, buf, start, end)
    elif form < T.UUID:
        if form == K.BIT:
            put_bool(w, form)  # it is there, hence set
        else:
            put_classic(w, buf, at, end, form)
    elif form == T.UUID:
        _put_uuid(w, buf, at)
    elif form == T.DECIMAL64:
        _put_decimal64(w, buf, at, t, keys, key_set)
    else:
        put_recoded(w, buf, start, end, form)


@kernel
def put_ranges(w, buf, at, end, number, base, t, keys, key_set):
    """A sequence-set (pairs of 32 bits) or byte-ranges (of 64): ARRAY of {lower, upper}, whose keys are known from
    `base` on (-1: not). False when the octets are not pairs; nothing is written then."""
    width = 8 if number == T.BYTE_RANGES else 4
    at += 2
    if (end - at) % (2 * width) != 0:
        return False
    begin_array(w)
    while at < end:
        element(w)
        begin_object(w)
        for bound in range(2):
            if base >= 0:
                known_key(w, base + bound)
            else:
                word(w, t, keys, T.LOWER_WORD + bound, key_set)
            if width == 4:
                put_int(w, u32(buf, at, end))
            else:
                put_u64(w, i64(buf, at, end))
            at += width
        if base >= 0:
            end_known_object(w, keys, key_set)
        else:
            end_object(w)
    end_array(w)
    return True


@kernel
def put_code(w, buf, at):
    """The class code and code at `at` as text, like 4.1, into the writer's scratch: its size."""
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
