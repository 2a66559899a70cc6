"""Scalars of a VARIANT value: primitive types and strings."""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import inlined, kernel, outlined
from codec.cursor import byte_at, is_utf8, u32
from codec.memory import copy_bytes
from codec.text import (
    escaped_size,
    is_ordinary,
    masked_size,
    may_have_userinfo,
    put_escaped,
    put_masked,
)
from codec.variant.containers import begin_object, end_object, key
from codec.variant.writer import (
    AS_TEXT,
    ESCAPED,
    MASKED,
    VALUE,
    VALUE_FROM,
    allocate,
    put_le,
    shift,
)

SHORT_STRING = 1  # basic type; the others here are primitive type numbers
NULL, TRUE, FALSE, INT8, INT16, INT32, INT64, DOUBLE = range(8)
DECIMAL4, DECIMAL8, DECIMAL16, TIMESTAMP, FLOAT, BINARY, STRING = 8, 9, 10, 12, 14, 15, 16
SHORT_STRING_BYTES = 63
DECIMAL_SCALE = 38  # largest scale of a DECIMAL


@kernel
def _put_number(w, kind, number, size):
    at = allocate(w, 1 + size)
    if at >= 0:
        w.value[at] = kind << 2
        put_le(w.value, at + 1, number, size)


@kernel
def put_null(w):
    """NULL."""
    _put_number(w, NULL, 0, 0)


@kernel
def put_bool(w, truth):
    """BOOLEAN."""
    _put_number(w, TRUE if truth else FALSE, 0, 0)


@kernel
def put_int(w, number):
    """An integer within int64, in the smallest of 1, 2, 4, 8 bytes."""
    if -0x80 <= number < 0x80:
        _put_number(w, INT8, number, 1)
    elif -0x8000 <= number < 0x8000:
        _put_number(w, INT16, number, 2)
    elif -0x80000000 <= number < 0x80000000:
        _put_number(w, INT32, number, 4)
    else:
        _put_number(w, INT64, number, 8)


@kernel
def put_u64(w, bits):
    """An unsigned 64-bit integer given as two's complement `bits`; above 2^63-1 as DECIMAL(20, 0)."""
    if bits >= 0:
        put_int(w, bits)
        return
    at = allocate(w, 18)
    if at >= 0:
        w.value[at] = DECIMAL16 << 2
        w.value[at + 1] = 0
        put_le(w.value, at + 2, bits, 8)
        put_le(w.value, at + 10, 0, 8)


@kernel
def put_decimal(w, unscaled, scale):
    """DECIMAL `unscaled` (int64) times 10^-`scale`; `scale` 0 to 38."""
    kind, size = DECIMAL16, 16
    if scale <= 9 and -1_000_000_000 < unscaled < 1_000_000_000:
        kind, size = DECIMAL4, 4
    elif scale <= 18 and -1_000_000_000_000_000_000 < unscaled < 1_000_000_000_000_000_000:
        kind, size = DECIMAL8, 8
    at = allocate(w, 2 + size)
    if at >= 0:
        w.value[at] = kind << 2
        w.value[at + 1] = scale
        put_le(w.value, at + 2, unscaled, min(size, 8))
        if size == 16:
            put_le(w.value, at + 10, -1 if unscaled < 0 else 0, 8)


@kernel
def put_f32(w, bits):
    """FLOAT given as its 32 bits."""
    _put_number(w, FLOAT, bits, 4)


@kernel
def put_f64(w, bits):
    """DOUBLE given as its 64 bits."""
    _put_number(w, DOUBLE, bits, 8)


@kernel
def put_timestamp_us(w, microseconds):
    """TIMESTAMP: microseconds since 1970-01-01 UTC."""
    _put_number(w, TIMESTAMP, microseconds, 8)


@kernel
def _put_bytes(w, kind, buf, start, end):
    at = allocate(w, 5 + end - start)
    if at >= 0:
        w.value[at] = kind << 2
        put_le(w.value, at + 1, end - start, 4)
        copy_bytes(w.value, at + 5, buf, start, end)


@kernel
def put_string(w, buf, start, end):
    """STRING of `buf[start:end]`, which is UTF-8."""
    size = end - start
    if size > SHORT_STRING_BYTES:
        _put_bytes(w, STRING, buf, start, end)
        return
    at = allocate(w, 1 + size)
    if at >= 0:
        w.value[at] = (size << 2) | SHORT_STRING
        copy_bytes(w.value, at + 1, buf, start, end)


@kernel
def string_room(w, size):
    """Write a STRING of `size` bytes without the bytes: their offset, or -1."""
    if size > SHORT_STRING_BYTES:
        return _room(w, STRING, size)
    at = allocate(w, 1 + size)
    if at >= 0:
        w.value[at] = (size << 2) | SHORT_STRING
    return at + 1 if at >= 0 else -1


@kernel
def _room(w, kind, size):
    at = allocate(w, 5 + size)
    if at < 0:
        return -1
    w.value[at] = kind << 2
    put_le(w.value, at + 1, size, 4)
    return at + 5


@inlined
def put_binary(w, buf, start, end):
    """BINARY of `buf[start:end]`, with userinfo masked."""
    if may_have_userinfo(buf, start, end):
        _put_masked_binary(w, buf, start, end)
    else:
        _put_bytes(w, BINARY, buf, start, end)


@outlined
def _put_masked_binary(w, buf, start, end):
    size = masked_size(buf, start, end)
    if size < 0:
        _put_bytes(w, BINARY, buf, start, end)
        return
    w.positions[MASKED] += 1
    at = _room(w, BINARY, size)
    if at >= 0:
        put_masked(w.value, at, buf, start, end)


@outlined
def mask_last(w, size):
    """Mask userinfo in the STRING that was written last, of `size` bytes in UTF-8."""
    end = int(w.positions[VALUE])
    start = end - size
    if start < w.positions[VALUE_FROM] or not may_have_userinfo(w.value, start, end):
        return
    if masked_size(w.value, start, end) >= 0:
        _put_masked_text(w, w.value, start, end)
        start -= 1 if size <= SHORT_STRING_BYTES else 5
        _remove(w, start, end)


@kernel
def _remove(w, start, end):
    """Remove `value[start:end]`, which is before the last value."""
    last = int(w.positions[VALUE])
    if last > end:
        shift(w.value, end, last, start - end)
        w.positions[VALUE] = last - (end - start)


@inlined
def put_text(w, buf, start, end):
    """STRING of `buf[start:end]`, which is text by its type, with userinfo masked (`codec.text`); text that is not
    UTF-8 is escaped (`codec.text`) and counted."""
    if is_ordinary(buf, start, end):
        put_string(w, buf, start, end)
    else:
        _put_masked_text(w, buf, start, end)


@outlined
def _put_masked_text(w, buf, start, end):
    size = masked_size(buf, start, end) if may_have_userinfo(buf, start, end) else -1
    if size < 0:
        _put_any_text(w, buf, start, end)
        return
    w.positions[MASKED] += 1
    w.positions[ESCAPED] += 0 if is_utf8(buf, start, end) else 1
    at = allocate(w, size)
    if at >= 0:
        put_masked(w.value, at, buf, start, end)
        _put_any_text(w, w.value, at, at + size)
        _remove(w, at, at + size)


@outlined
def _put_any_text(w, buf, start, end):
    if is_utf8(buf, start, end):
        put_string(w, buf, start, end)
        return
    at = string_room(w, escaped_size(buf, start, end))
    if at >= 0:
        put_escaped(w.value, at, buf, start, end)
        w.positions[ESCAPED] += 1


@inlined
def put_bytes(w, buf, start, end):
    """STRING of `buf[start:end]` when it is UTF-8, else BINARY, with userinfo masked: bytes that may be text. After
    `octets_are_text` it is `put_text`."""
    if is_ordinary(buf, start, end):
        put_string(w, buf, start, end)
    elif w.positions[AS_TEXT] or is_utf8(buf, start, end):
        _put_masked_text(w, buf, start, end)
    else:
        put_binary(w, buf, start, end)


# STRINGs made of bytes that are not UTF-8 text: other encodings, hexadecimal, UUIDs; and decimals of any scale.


LATIN9, UTF16, UTF32 = range(3)  # ISO 8859-15; UTF-16, big-endian unless a byte order mark differs; UTF-32BE
_LATIN9 = np.array([ord(character) for character in bytes(range(256)).decode("iso-8859-15")], np.int64)
_SURROGATES, _LOW_SURROGATES, _AFTER_SURROGATES = 0xD800, 0xDC00, 0xE000
_LAST_CHARACTER = 0x10FFFF
_BIG_ENDIAN_MARK, _LITTLE_ENDIAN_MARK = 0xFEFF, 0xFFFE
_DIGITS = np.frombuffer(bytearray(b"0123456789abcdef"), np.uint8)
_HYPHEN = 0x2D
_START = np.int64(0)  # of `Writer.text`; a numpy integer: see `codec.protocol.v1_0_tables.FIXED_KEYS`
_SCALE = np.frombuffer(bytearray(b"scale"), np.uint8)
_VALUE = np.frombuffer(bytearray(b"value"), np.uint8)


@outlined
def put_hex(w, buf, at, size, hyphens):
    """STRING of `size` bytes as lower-case hexadecimal, with the hyphens of a UUID (RFC 4122 section 3) if asked."""
    n = 0
    for i in range(size):
        if hyphens and (i == 4 or i == 6 or i == 8 or i == 10):
            w.text[n] = _HYPHEN
            n += 1
        byte = byte_at(buf, at + i)
        w.text[n] = _DIGITS[byte >> 4]
        w.text[n + 1] = _DIGITS[byte & 15]
        n += 2
    put_string(w, w.text, _START, n)


@outlined
def put_scaled(w, unscaled, scale):
    """DECIMAL `unscaled` times 10^-`scale`; an object {scale, value} where DECIMAL has no such scale."""
    if scale <= DECIMAL_SCALE:
        put_decimal(w, unscaled, scale)
        return
    begin_object(w)
    key(w, _SCALE, 0, len(_SCALE))
    put_int(w, scale)
    key(w, _VALUE, 0, len(_VALUE))
    put_int(w, unscaled)
    end_object(w)


@kernel
def text_key(w, buf, start, end):
    """The next value has the key `buf[start:end]`, which is text from the wire: with userinfo masked, and escaped where
    it is not UTF-8 (`put_text`)."""
    if is_ordinary(buf, start, end):
        key(w, buf, start, end)
        return
    # as a value first, whose bytes become the key
    at = int(w.positions[VALUE])
    put_text(w, buf, start, end)
    text_end = int(w.positions[VALUE])
    if text_end > at:
        w.positions[VALUE] = at
        text = at + (1 if w.value[at] & 3 == SHORT_STRING else 5)
        key(w, w.value, text, text_end)


@kernel
def _unit(buf, at, little):
    """A 16-bit unit of UTF-16."""
    if little:
        return (byte_at(buf, at + 1) << 8) | byte_at(buf, at)
    return (byte_at(buf, at) << 8) | byte_at(buf, at + 1)


@kernel
def _character(buf, at, end, encoding, little):
    """(code point of the character at `at`, -1 when it is not valid; its bytes)."""
    if encoding == LATIN9:
        return _LATIN9[byte_at(buf, at)], 1
    if encoding == UTF32:
        code = u32(buf, at, end)
        return (-1 if code > _LAST_CHARACTER or _SURROGATES <= code < _AFTER_SURROGATES else code), 4
    if end - at < 2:
        return -1, 2
    unit = _unit(buf, at, little)
    if unit < _SURROGATES or unit >= _AFTER_SURROGATES:
        return unit, 2
    if unit >= _LOW_SURROGATES or end - at < 4:
        return -1, 2
    low = _unit(buf, at + 2, little)
    if low < _LOW_SURROGATES or low >= _AFTER_SURROGATES:
        return -1, 4
    return 0x10000 + ((unit - _SURROGATES) << 10) + (low - _LOW_SURROGATES), 4


@kernel
def _utf8_size(code):
    if code < 0x80:
        return 1
    if code < 0x800:
        return 2
    return 3 if code < 0x10000 else 4


@outlined
def put_transcoded(w, buf, start, end, encoding):
    """STRING of the text `buf[start:end]` in LATIN9, UTF16 or UTF32; BINARY when it is not valid."""
    little = False
    if encoding == UTF16 and end - start >= 2:
        mark = _unit(buf, start, little)
        little = mark == _LITTLE_ENDIAN_MARK
        if mark in (_BIG_ENDIAN_MARK, _LITTLE_ENDIAN_MARK):
            start += 2
    total, at = 0, start
    while at < end:
        code, step = _character(buf, at, end, encoding, little)
        if code < 0:
            put_binary(w, buf, start, end)
            return
        total += _utf8_size(code)
        at += step
    out, at = string_room(w, total), start
    while out >= 0 and at < end:
        code, step = _character(buf, at, end, encoding, little)
        at += step
        size = _utf8_size(code)
        lead = 0 if size == 1 else (0xF00 >> size) & 0xFF
        w.value[out] = lead | (code >> (6 * (size - 1)))
        for i in range(1, size):
            w.value[out + i] = 0x80 | ((code >> (6 * (size - 1 - i))) & 0x3F)
        out += size
    if out >= 0:
        mask_last(w, total)
