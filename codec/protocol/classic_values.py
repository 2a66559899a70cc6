"""Methods and content headers of 0-8, 0-9 and 0-9-1: payload bytes to VARIANT arguments and properties.

One interpreter of the fields that `ClassicTables` lists for a method (0-9-1 specification, section 4.2.5). Consecutive
bits share bytes, the first in the lowest bit. For any bytes an object is written, with the fields before the error.
Codes: OK; MALFORMED (the fields do not fit the payload, or bytes follow them) and TOO_DEEP, both with the offset;
TOO_LARGE (no value is written); FULL (`rollback`, make room, call again). Cost: linear in the bytes.
"""

from __future__ import annotations

from codec import variant as W
from codec.compiler.kernel import inlined, kernel
from codec.cursor import SHORT, byte_at, u16
from codec.protocol import classic_tables as K
from codec.protocol import rows as N
from codec.protocol.classic_field_table import (
    put_nested,
    put_scalar,
    table_fits,
    table_fits_throughout,
    value_end,
)
from codec.protocol.classic_tables import OPTIONAL, RESERVED, UNUSED_SHIFT
from codec.protocol.disclosure import is_not_secret, names_mechanism, user_span

TABLE_SIZE = 4  # bytes of the size before a table
NUMBERS = 4  # bytes of the class and method numbers that begin a method's payload
HEADER_FIXED = 12  # bytes of class, weight and body size that begin a content header's


@kernel
def classify_method(buf, start, end, t, version):
    """Index of the method whose payload (from the class number on) is `buf[start:end]`; -1: undefined in `version`."""
    class_id, method_id = u16(buf, start, end), u16(buf, start + 2, end)
    if class_id < 0 or method_id < 0 or class_id >= t.lookup.shape[1] or method_id >= t.lookup.shape[2]:
        return -1
    return int(t.lookup[version, class_id, method_id])


@kernel
def decode_arguments(buf, start, end, t, version, method, w, guarded=False, cut=False):
    """Write the arguments `buf[start:end]` (after the method number) of method index `method`: (code, offset).

    Where they do not fill the payload, a method with a secret, and any method that is `guarded`, has only arguments
    that cannot be part of a secret. `cut`: the following bytes are missing; a table has its complete entries.
    """
    W.begin(w)
    first, last = int(t.field_from[method]), int(t.field_from[method + 1])
    W.begin_object_of(w, last - first, end - start + int(t.field_room[method]))
    if guarded or t.method_secret[method] >= 0:
        visible, flaw = fields_in_place(buf, start, end, t, t.tag_kind[version], method, w.nest)
        if flaw:
            W.note(w, flaw)
            _, at = _put_fields(w, buf, start, end, t, t.tag_kind[version], method, first, first + visible, False)
            code, at = _finish(w, W.OK, at, at, t, method)
            return (W.MALFORMED if code == W.OK else code), at
    code, at = _put_fields(w, buf, start, end, t, t.tag_kind[version], method, first, last, cut)
    return _finish(w, code, at, end, t, method)


@kernel
def fields_in_place(buf, start, end, t, tags, method, nest):
    """(fields of `method` in `buf[start:end]` whose position is certain, the note on the first that does not fit). The
    note is 0 when all fields fill it exactly, with all entries of tables. Otherwise only fields before the first secret
    are certain, and only if they fit and the mechanism among them has the form of one. `nest` is scratch like
    `Writer.nest`."""
    first, last = int(t.field_from[method]), int(t.field_from[method + 1])
    certain = max(int(t.method_secret[method]), 0)
    at, bit, flaw = start, 0, 0
    for i in range(first, last):
        kind, after = int(t.field_kind[i]), at
        if at == end and t.field_flags[i] & OPTIONAL:
            break
        if kind == K.BIT:
            after = at + 1 if bit == 0 else at
            bit = (bit + 1) & 7
        else:
            bit = 0
            after = value_end(buf, at, end, kind)
        if after < 0 or after > end:
            flaw = N.FIELDS_SHORT
        elif kind == K.TABLE or kind == K.PEER_TABLE:
            flaw = 0 if table_fits_throughout(buf, at + 4, after, tags, nest) else N.TABLE_BROKEN
        elif kind == K.SASL_NAME and not names_mechanism(buf, at + 1, after, end):
            certain = 0
        if flaw:
            return (certain if i - first >= certain else 0), flaw
        at = after
    return (last - first, 0) if at == end else (certain, N.BYTES_LEFT)


@inlined
def _put_fields(w, buf, start, end, t, tags, method, first, last, cut):
    at, before, bit = start, start, 0
    for i in range(first, last):
        kind, flags = int(t.field_kind[i]), int(t.field_flags[i])
        if at == end and flags & OPTIONAL:
            break
        if kind == K.BIT:
            if bit == 0:
                if at == end:
                    W.note(w, N.FIELDS_SHORT)
                    return W.MALFORMED, at
                at += 1
            if flags:
                _check_bits(w, byte_at(buf, at - 1), bit, flags)
            W.known_key(w, int(t.field_key[i]))
            W.put_bool(w, (byte_at(buf, at - 1) >> bit) & 1)
            bit = (bit + 1) & 7
            continue
        bit = 0
        after = value_end(buf, at, end, kind)
        if after < 0:
            W.note(w, N.FIELDS_SHORT)
            if cut and end - at >= TABLE_SIZE and (kind == K.TABLE or kind == K.PEER_TABLE):
                code, where = _put_special(w, buf, before, at, end, end, t, tags, method, i)
                return (W.MALFORMED if code == W.OK else code), where
            return W.MALFORMED, at
        if flags & RESERVED:
            _check_reserved(w, buf, at, after)
        if kind < K.TABLE:
            W.known_key(w, int(t.field_key[i]))
            put_scalar(w, buf, at, after, kind)
        else:
            code, where = _put_special(w, buf, before, at, after, end, t, tags, method, i)
            if code != W.OK:
                return code, where
        before, at = at, after
    return W.OK, at


@kernel
def _check_bits(w, data, bit, flags):
    """Note a reserved `bit` that is set in this byte of bit arguments, or set bits above the last one."""
    if flags & RESERVED and (data >> bit) & 1:
        W.note(w, N.RESERVED_SET)
    if data & (flags >> UNUSED_SHIFT):
        W.note(w, N.UNUSED_BITS)


@kernel
def _check_reserved(w, buf, start, end):
    """Note a reserved value that is neither zero nor empty."""
    for i in range(start, end):
        if byte_at(buf, i) != 0:
            W.note(w, N.RESERVED_SET)
            return


@kernel
def _put_special(w, buf, before, at, after, end, t, tags, method, i):
    """Write a table, content or secret at `buf[at:after]`, or a field next to a secret; the field before it begins at
    `before`, all fields end at `end`."""
    kind, number = int(t.field_kind[i]), int(t.field_key[i])
    if kind == K.TABLE or kind == K.PEER_TABLE:
        W.load_known(w, t.keys, method)
        W.known_key(w, number)
        W.bytes_are_text(w, kind == K.PEER_TABLE)
        code, at = put_nested(w, buf, at + 4, after, K.TABLE, tags)
        W.bytes_are_text(w, False)
        return code, at
    if kind == K.CONTENT:
        # byte 0: content inline, 1: name of content sent in parts (0-9, class message)
        W.known_key(w, number + 1 if byte_at(buf, at) == 1 else number)
        W.put_bytes(w, buf, at + 5, after)
    elif kind == K.SECRET:
        if number >= 0:
            W.known_key(w, number)
            W.put_int(w, after - at - 4)
    elif kind == K.SASL_RESPONSE:
        user, user_end = user_span(w, buf, before + 1, at, at + 4, after, tags)
        if user >= 0:
            W.known_key(w, number)
            W.put_text(w, buf, user, user_end)
    elif is_public(buf, at, after, end, kind):
        W.known_key(w, number)
        put_scalar(w, buf, at, after, K.SHORTSTR)
    return W.OK, after


@kernel
def is_public(buf, at, after, end, kind):
    """Whether the short string `buf[at:after]` of kind SASL_NAME or AFTER_SECRET cannot be part of a secret. The fields
    end at `end`."""
    if kind == K.SASL_NAME:
        return names_mechanism(buf, at + 1, after, end)
    return is_not_secret(buf, at + 1, after)


@inlined
def _finish(w, code, at, end, t, key_set):
    """End the object of known keys: (code, offset)."""
    if code == W.OK and at != end:
        W.note(w, N.BYTES_LEFT)
        code = W.MALFORMED
    W.end_known_object(w, t.keys, key_set)
    error_code = W.finish_known(w, t.keys, key_set)
    if error_code == W.OK:
        return code, at
    if error_code == W.TOO_LARGE:
        W.rollback(w)
    return error_code, at


@kernel
def decode_properties(buf, start, end, t, version, class_id, w, cut=False):
    """Write the properties `buf[start:end]` (from the property flags on) of a content header: (code, offset).

    A flag word with bit 0 set is followed by another. Only the bits of the first word have properties, so a set bit in
    a later word is MALFORMED: the length of its value is unknown. A broken table ends by its length, and the properties
    after it are decoded; the offset is that of the first error. `cut` is as for `decode_arguments`.
    """
    W.begin(w)
    index = int(t.class_index[version, class_id]) if class_id < t.class_index.shape[1] else -1
    flags, at = _flags(buf, start, end)
    if index < 0 or flags < 0:
        W.note(w, N.FIELDS_SHORT)
        W.begin_object_of(w, 0, 0)
        return _finish(w, W.MALFORMED, start, end, t, len(t.method_name) + max(index, 0))
    key_set = len(t.method_name) + index
    count = 0
    for bit in range(1, 16):
        count += (flags >> bit) & 1
    W.begin_object_of(w, count, end - at + 8 * count)
    code, where = W.OK, at
    for bit in range(15, 0, -1):
        if not (flags >> bit) & 1:
            continue
        error_code, error_at, at = _put_property(w, buf, at, end, t, t.tag_kind[version], index, key_set, bit, cut)
        if code == W.OK:
            code, where = error_code, error_at
        if at < 0:
            break
    if flags & 1:
        W.note(w, N.UNDEFINED_FLAGS)
        code = W.MALFORMED
    if flags & t.reserved_flags[index]:
        W.note(w, N.RESERVED_SET)
    return _finish(w, code, where, end, t, key_set)


@kernel
def _flags(buf, start, end):
    """(flags of the first word, offset after the last word); -1: cut off. Bit 0 remains if a later word has flags."""
    first = u16(buf, start, end)
    at, word, later = start + 2, first, 0
    while word >= 0 and word & 1:
        word = u16(buf, at, end)
        later |= word
        at += 2
    if word < 0:
        return -1, start
    return (first | 1 if later >> 1 else first & ~1), at


@inlined
def _put_property(w, buf, at, end, t, tags, index, key_set, bit, cut):
    """Write the property of a flag `bit`: (code, offset after it or of the error, offset after the property or SHORT
    when it is unknown or the writer is full)."""
    kind, number = int(t.property_kind[index, bit]), int(t.property_key[index, bit])
    if kind == K.BIT:
        W.known_key(w, number)
        W.put_bool(w, True)
        return W.OK, at, at
    after = value_end(buf, at, end, kind)
    if after < 0:
        W.note(w, N.UNDEFINED_FLAGS if kind == K.UNDEFINED else N.FIELDS_SHORT)
        if not (cut and kind == K.TABLE and end - at >= TABLE_SIZE):
            return W.MALFORMED, at, SHORT
    if kind == K.TABLE:
        W.load_known(w, t.keys, key_set)
        W.known_key(w, number)
        code, error_at = put_nested(w, buf, at + TABLE_SIZE, after if after >= 0 else end, kind, tags)
        if after < 0 and code == W.OK:
            code = W.MALFORMED
        return code, error_at, (after if code in (W.OK, W.MALFORMED, W.TOO_DEEP) else SHORT)
    W.known_key(w, number)
    put_scalar(w, buf, at, after, kind)
    return W.OK, after, after


@kernel
def check_method(buf, start, end, t, version, method):
    """Whether the arguments of `method` fill its payload `buf[start:end]` (from the class number on) exactly.

    Nothing is written. Only the top level of tables is parsed.
    """
    at, bit = start + NUMBERS, 0
    for i in range(int(t.field_from[method]), int(t.field_from[method + 1])):
        kind = int(t.field_kind[i])
        if at == end and t.field_flags[i] & OPTIONAL:
            break
        if kind == K.BIT:
            if bit == 0:
                at += 1
            bit = (bit + 1) & 7
        else:
            bit = 0
            at = _checked(buf, at, end, kind, t.tag_kind[version])
        if at < 0 or at > end:
            return False
    return at == end


@kernel
def _checked(buf, at, end, kind, tags):
    after = value_end(buf, at, end, kind)
    if (kind == K.TABLE or kind == K.PEER_TABLE) and after >= 0 and not table_fits(buf, at + 4, after, tags):
        return -1
    return after


@kernel
def check_header(buf, start, end, t, version):
    """Whether a content header fills the frame payload `buf[start:end]` exactly: a class with content, weight 0, and
    the properties of its flags."""
    class_id = u16(buf, start, end)
    if class_id < 0 or class_id >= t.class_index.shape[1] or u16(buf, start + 2, end) != 0:
        return False
    index = int(t.class_index[version, class_id])
    flags, at = _flags(buf, start + HEADER_FIXED, end)
    if index < 0 or flags < 0 or flags & 1:
        return False
    for bit in range(15, 0, -1):
        if (flags >> bit) & 1 and t.property_kind[index, bit] != K.BIT:
            at = _checked(buf, at, end, int(t.property_kind[index, bit]), t.tag_kind[version])
            if at < 0:
                return False
    return at == end
