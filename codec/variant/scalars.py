"""Scalars of a VARIANT value: primitive types and strings."""

from __future__ import annotations

from codec.compiler.kernel import inlined, kernel, outlined
from codec.cursor import is_utf8
from codec.text import escaped_size, put_escaped
from codec.userinfo import is_ordinary, masked_size, may_have_userinfo, put_masked
from codec.variant.writer import AS_TEXT, ESCAPED, MASKED, VALUE, VALUE_FROM, allocate, copy_bytes, put_le, shift

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
    """An integer within int64, in the smallest of 1, 2, 4, 8 octets."""
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
    """Write a STRING of `size` octets without the octets: their offset, or -1."""
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
    """Mask userinfo in the STRING that was written last, of `size` octets in UTF-8."""
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
    """STRING of `buf[start:end]`, which is text by its type, with userinfo masked (`codec.userinfo`); text that is not
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
def put_octets(w, buf, start, end):
    """STRING of `buf[start:end]` when it is UTF-8, else BINARY, with userinfo masked: octets that may be text. After
    `octets_are_text` it is `put_text`."""
    if is_ordinary(buf, start, end):
        put_string(w, buf, start, end)
    elif w.positions[AS_TEXT] or is_utf8(buf, start, end):
        _put_masked_text(w, buf, start, end)
    else:
        put_binary(w, buf, start, end)
