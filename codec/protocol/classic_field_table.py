"""Values of the classic family into VARIANT: scalars, field tables, field arrays (0-9-1, section 4.2.5).

A table is a sequence of (name shortstr, tag byte, value), an array a sequence of (tag byte, value), both after a
length in bytes. The kind of value of a tag is data (`ClassicTables.tag_kind`, a row per version): the brokers' practice
where it differs from the printed tags. Nesting is bounded by `LIMITS.nesting_depth`, on an explicit stack
(`Writer.nest`). Cost: linear, since every step consumes at least the tag byte.

A value that does not fit is MALFORMED with its offset, as is an undefined tag, because its width is unknown. Then the
value is written up to that offset.
"""

from __future__ import annotations

import numpy as np

from codec import variant as W
from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.cursor import (
    SHORT,
    byte_at,
    exceeds_i64,
    fits,
    i64,
    signed,
    u8,
    u16,
    u32,
)
from codec.names import CLASSIC_VERSIONS
from codec.protocol import classic_tables as K
from codec.protocol import rows as N
from codec.protocol.classic_tables import printed_kinds, tag_kinds
from codec.text import is_ordinary
from codec.variant.scalars import put_scaled

_DEPTH = LIMITS.nesting_depth
_ENTRIES = LIMITS.detect_entries
# TIMESTAMP ends with year 9999, as in SQL and Python; later seconds are written as an integer (some Qpid clients send
# milliseconds).
_LAST_SECOND = 253_402_300_799
_AMBIGUOUS = np.array([tag in N.AMBIGUOUS_TAGS for tag in range(256)], np.uint8)
# Tags whose width in practice differs from the printed one (`s` of 0-9-1), and the kinds of all tags as printed.
_LATEST = CLASSIC_VERSIONS[-1]
_PRINTED_ONLY = printed_kinds(_LATEST)
_DIVERGES = np.array([chr(tag) in _PRINTED_ONLY for tag in range(256)], np.uint8)
_PRINTED = np.array(
    [{**tag_kinds(_LATEST), **_PRINTED_ONLY}.get(chr(tag), K.UNDEFINED) for tag in range(256)], np.int64
)


@inlined
def value_end(buf, at, end, kind):
    """End of the value of `kind` at `at`; SHORT when it is beyond `end`, or the kind has no value."""
    size = K.SIZE[kind]
    if size >= 0:
        return at + size if fits(at, size, end) else SHORT
    if size == K.LENGTH_8:
        length, data = u8(buf, at, end), at + 1
    elif size == K.LENGTH_32:
        length, data = u32(buf, at, end), at + 4
    elif size == K.BYTE_AND_LENGTH_32:
        length, data = u32(buf, at + 1, end), at + 5
    else:
        return SHORT
    return data + length if length >= 0 and fits(data, length, end) else SHORT


@inlined
def put_scalar(w, buf, at, end, kind):
    """Write the value `buf[at:end]` of `kind`, neither table nor array; `end` is that of `value_end`."""
    if kind == K.SHORTSTR:
        if is_ordinary(buf, at + 1, end):
            W.put_string(w, buf, at + 1, end)
        else:
            _put_special_text(w, buf, at + 1, end)
    elif kind == K.LONGSTR or kind == K.CHARACTER:
        W.put_bytes(w, buf, at + (4 if kind == K.LONGSTR else 0), end)
    elif kind == K.UINT64:
        W.put_u64(w, i64(buf, at, end))
    elif kind == K.UINT16:
        W.put_int(w, u16(buf, at, end))
    elif kind == K.UINT8:
        W.put_int(w, u8(buf, at, end))
    elif kind == K.UINT32:
        W.put_int(w, u32(buf, at, end))
    elif kind == K.BOOL:
        W.put_bool(w, u8(buf, at, end) != 0)
    elif kind == K.INT32:
        W.put_int(w, signed(u32(buf, at, end), 32))
    elif kind == K.INT64:
        W.put_int(w, i64(buf, at, end))
    elif kind == K.INT16:
        W.put_int(w, signed(u16(buf, at, end), 16))
    elif kind == K.INT8:
        W.put_int(w, signed(u8(buf, at, end), 8))
    elif kind == K.TIMESTAMP:
        _put_timestamp(w, i64(buf, at, end))
    elif kind == K.FLOAT64:
        W.put_f64(w, i64(buf, at, end))
    elif kind == K.FLOAT32:
        W.put_f32(w, u32(buf, at, end))
    elif kind == K.BINARY:
        W.put_binary(w, buf, at + 4, end)
    elif kind == K.DECIMAL:
        # the grammar says unsigned, the prose signed: signed is what every client writes
        put_scaled(w, signed(u32(buf, at + 1, end), 32), u8(buf, at, end))
    else:
        W.put_null(w)


@kernel
def _put_special_text(w, buf, start, end):
    """The text of a short string that is not ordinary."""
    _check_shortstr(w, buf, start, end)
    W.put_text(w, buf, start, end)


@kernel
def _check_shortstr(w, buf, start, end):
    """Note zero bytes, which a short string may not contain (0-9-1 specification, section 4.2.5.3)."""
    for i in range(start, end):
        if byte_at(buf, i) == 0:
            W.note(w, N.ZERO_BYTE)
            return


@kernel
def _put_timestamp(w, seconds):
    """POSIX seconds, unsigned 64 bits."""
    if exceeds_i64(seconds) or seconds > _LAST_SECOND:
        W.put_u64(w, seconds)
    else:
        W.put_timestamp_us(w, seconds * 1_000_000)


@kernel
def put_name(w, buf, start, end):
    """The key of a table entry; a name that is not UTF-8 is escaped (`codec.text`)."""
    if not is_ordinary(buf, start, end):
        _check_shortstr(w, buf, start, end)
    W.text_key(w, buf, start, end)


@kernel
def _open(w, depth, kind, end):
    w.nest[depth, 0] = kind
    w.nest[depth, 1] = end
    if kind == K.TABLE:
        W.begin_object(w)
    else:
        W.begin_array(w)


@kernel
def _close(w, depth):
    if w.nest[depth, 0] == K.TABLE:
        W.end_object(w)
    else:
        W.end_array(w)


@kernel
def put_nested(w, buf, start, end, kind, tags):
    """Write the entries `buf[start:end]` (after the length) of a field TABLE as OBJECT or a field ARRAY as ARRAY.

    `tags` is the row of `tag_kind` of the version. Returns (OK, end), or (MALFORMED or TOO_DEEP, offset of the value
    that does not fit), or (error code of the writer, offset).
    """
    _open(w, 0, kind, end)
    depth, at, code = 0, start, W.OK
    while depth >= 0:
        stop = int(w.nest[depth, 1])
        if code == W.OK and at < stop:
            code, at, depth = _put_entry(w, buf, at, stop, depth, tags)
        else:
            _close(w, depth)
            depth -= 1
    if code == W.MALFORMED:
        W.note(w, N.TABLE_BROKEN)
    return code, at


@kernel
def _put_entry(w, buf, at, stop, depth, tags):
    """Write one entry of the container at `depth`: (code, offset after it or of the error, new depth)."""
    data = at
    in_table = w.nest[depth, 0] == K.TABLE
    if in_table:
        data = value_end(buf, at, stop, K.SHORTSTR)
        if data < 0:
            return W.MALFORMED, at, depth
    tag = u8(buf, data, stop)
    kind = int(tags[tag]) if tag >= 0 else K.UNDEFINED
    if in_table and tag >= 0 and _DIVERGES[tag] and _fits_as_printed(buf, at, stop, tags):
        kind = int(_PRINTED[tag])
    end = value_end(buf, data + 1, stop, kind)
    if end < 0:
        return W.MALFORMED, data if data < stop else at, depth
    if _AMBIGUOUS[tag]:
        W.note(w, N.AMBIGUOUS_TAG)
    nested = kind == K.TABLE or kind == K.ARRAY
    if nested and depth + 1 == _DEPTH:
        return W.TOO_DEEP, data, depth
    if in_table:
        put_name(w, buf, at + 1, data)
    else:
        W.element(w)
    if nested:
        _open(w, depth + 1, kind, end)
        return W.error_code(w), data + 5, depth + 1
    put_scalar(w, buf, data + 1, end, kind)
    return W.error_code(w), end, depth


@kernel
def _fits_as_printed(buf, at, stop, tags):
    """Whether the entries of a table from `at` on are valid only with the tags as printed."""
    return not entries_fit(buf, at, stop, tags) and entries_fit(buf, at, stop, _PRINTED)


@kernel
def table_fits(buf, start, end, tags):
    """Whether `buf[start:end]` are table entries by `entries_fit`, with tags as in practice or as printed."""
    return entries_fit(buf, start, end, tags) or entries_fit(buf, start, end, _PRINTED)


@kernel
def table_fits_throughout(buf, start, end, tags, nest):
    """Whether table entries fill `buf[start:end]` exactly, nested ones included, with tags as in practice or as
    printed. `nest` is scratch like `Writer.nest`."""
    return _nested_fit(buf, start, end, tags, nest) or _nested_fit(buf, start, end, _PRINTED, nest)


@kernel
def _nested_fit(buf, start, end, tags, nest):
    nest[0, 0] = K.TABLE
    nest[0, 1] = end
    depth, at = 0, start
    while depth >= 0:
        stop = int(nest[depth, 1])
        if at == stop:
            depth -= 1
            continue
        data = at if nest[depth, 0] == K.ARRAY else value_end(buf, at, stop, K.SHORTSTR)
        tag = u8(buf, data, stop) if data >= 0 else SHORT
        kind = int(tags[tag]) if tag >= 0 else K.UNDEFINED
        after = value_end(buf, data + 1, stop, kind)
        if after < 0:
            return False
        if kind == K.TABLE or kind == K.ARRAY:
            depth += 1
            if depth == _DEPTH:
                return False
            nest[depth, 0] = kind
            nest[depth, 1] = after
            after = data + 5
        at = after
    return True


@kernel
def entries_fit(buf, start, end, tags):
    """Whether a sequence of table entries fills `buf[start:end]` exactly. Nested values are not parsed; at most
    `LIMITS.detect_entries` entries are."""
    at = start
    for _ in range(_ENTRIES):
        if at == end:
            return True
        _, _, at = next_entry(buf, at, end, tags)
        if at < 0:
            return False
    return True


@kernel
def next_entry(buf, at, end, tags):
    """The table entry at `at`: (offset of its tag byte, kind of its value, offset after it or SHORT)."""
    tag_at = value_end(buf, at, end, K.SHORTSTR)
    if tag_at < 0:
        return SHORT, K.UNDEFINED, SHORT
    tag = u8(buf, tag_at, end)
    kind = int(tags[tag]) if tag >= 0 else K.UNDEFINED
    return tag_at, kind, value_end(buf, tag_at + 1, end, kind)
