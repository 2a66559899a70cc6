"""STRINGs made of octets that are not UTF-8 text: other encodings, hexadecimal, UUIDs; and decimals of any scale."""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel, outlined
from codec.cursor import octet, u32
from codec.userinfo import is_ordinary
from codec.variant.containers import begin_object, end_object, key
from codec.variant.scalars import (
    DECIMAL_SCALE,
    SHORT_STRING,
    mask_last,
    put_binary,
    put_decimal,
    put_int,
    put_string,
    put_text,
    string_room,
)
from codec.variant.writer import VALUE

LATIN9, UTF16, UTF32 = range(3)  # ISO 8859-15; UTF-16, big-endian unless a byte order mark differs; UTF-32BE
_LATIN9 = np.array([ord(character) for character in bytes(range(256)).decode("iso-8859-15")], np.int64)
_SURROGATES, _LOW_SURROGATES, _AFTER_SURROGATES = 0xD800, 0xDC00, 0xE000
_LAST_CHARACTER = 0x10FFFF
_BIG_ENDIAN_MARK, _LITTLE_ENDIAN_MARK = 0xFEFF, 0xFFFE
_DIGITS = np.frombuffer(bytearray(b"0123456789abcdef"), np.uint8)
_HYPHEN = 0x2D
_START = np.int64(0)  # of `Writer.text`; a numpy integer: see `codec.amqp.v1_0.tables.FIXED_KEYS`
_SCALE = np.frombuffer(bytearray(b"scale"), np.uint8)
_VALUE = np.frombuffer(bytearray(b"value"), np.uint8)


@outlined
def put_hex(w, buf, at, size, hyphens):
    """STRING of `size` octets as lower-case hexadecimal, with the hyphens of a UUID (RFC 4122 section 3) if asked."""
    n = 0
    for i in range(size):
        if hyphens and (i == 4 or i == 6 or i == 8 or i == 10):
            w.text[n] = _HYPHEN
            n += 1
        byte = octet(buf, at + i)
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
        return (octet(buf, at + 1) << 8) | octet(buf, at)
    return (octet(buf, at) << 8) | octet(buf, at + 1)


@kernel
def _character(buf, at, end, encoding, little):
    """(code point of the character at `at`, -1 when it is not valid; its octets)."""
    if encoding == LATIN9:
        return _LATIN9[octet(buf, at)], 1
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
