"""Controls, commands and header segments of AMQP 0-10: bytes to VARIANT.

One interpreter of the entries of `V0_10Tables`. An explicit stack has a row for each open container; the loop of
`decode_segment` takes the next item of the innermost container.

* An entry is an object of the fields whose packing flag is set; a bit is true or absent.
* map -> OBJECT; list, array -> ARRAY; sequence-set, byte-ranges -> ARRAY of {lower, upper}
* struct32 -> OBJECT of its fields and `struct`: its name; undefined -> {struct: "CLASS.CODE", value: its bytes}. A
  struct that is declared as the type of its field has its fields only.
* A header segment is an object of its structs by name; undefined ones are "CLASS.CODE" with their bytes.
* An array whose elements have no bytes -> {type, count}, never expanded.
* A container nested too deep or with too many items -> BINARY, its bytes.

For any bytes a well-formed value is written. An item that does not fit ends its container, and the outer container
continues after it. Codes are those of `codec.variant`. Cost: linear in the bytes.
"""

from __future__ import annotations

import numpy as np

from codec import variant as W
from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.cursor import (
    byte_at,
    i64,
    signed,
    u8,
    u32,
)
from codec.protocol import classic_tables as K
from codec.protocol import rows as N
from codec.protocol import v0_10_tables as T
from codec.protocol.classic_field_table import put_name as put_key
from codec.protocol.classic_field_table import put_scalar as put_classic
from codec.protocol.disclosure import (
    NO_RESPONSE,
    SHOW_ALL,
    SHOW_SASL_NAMES,
    SHOW_SHORT_TEXT,
    SHOW_SIZE,
    SHOW_USER,
    is_not_secret,
    names_mechanism,
    user_span,
)
from codec.protocol.v0_10_detection import (
    STRUCT32_TYPE,
    entry_at,
    extent,
    fields_in_place,
    packing_flags,
    session_header_end,
    unknown_flags,
)
from codec.variant.scalars import put_hex, put_scaled, put_transcoded
from codec.variant.writer import ENTRIES, KEYS

# Scalars and containers of AMQP 0-10 values to VARIANT.
#
# A scalar with the bytes of a classic type is written as that type. Text in ISO 8859-15, UTF-16 or UTF-32 becomes
# STRING like text in UTF-8; text that is not valid in its encoding is BINARY, as are undefined and opaque types. A
# container is a row of an explicit stack: `put_value` opens it, and the loop of this module writes its items.


DOT = 0x2E
SCRATCH = 0  # where a text that is composed begins in `Writer.text`
DEPTH = LIMITS.nesting_depth
# An item costs two or more bytes of VARIANT, up to four of offset, and 56 of scratch while its container is open.
ITEMS = LIMITS.variant_bytes // 16
CODES = 2  # bytes of class code and code
# Columns of the stack. LEFT: number of remaining items, or packing flags of remaining fields. BASE: number of the first
# field's key among the known keys, -1 when it is not known. BEFORE: offset of the last field written.
KIND, END, LEFT, TYPE, ENTRY, FIELD, BASE, BEFORE = range(8)
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
        put_scaled(w, unscaled, byte_at(buf, at))
    elif form < T.UUID:
        put_classic(w, buf, at, end, form)
    elif form == T.UUID:
        put_hex(w, buf, at, end - at, True)
    else:
        put_transcoded(w, buf, start, end, form - T.LATIN)


@kernel
def put_ranges(w, buf, at, end, number, base, t, keys, key_set):
    """A sequence-set (pairs of 32 bits) or byte-ranges (pairs of 64): ARRAY of {lower, upper}, with known keys from
    `base` on (-1: none). False when the bytes are not pairs; then nothing is written."""
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
        number = byte_at(buf, at + i)
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
    row[FIELD] = 0
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
    """Open a map, list or array, which begins with its number of items. Without bytes it is empty."""
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
    """Write the scalar, or open the container, `buf[at:end]` of type `number`: (offset of the next byte, depth,
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


COMMAND_ID_BYTES = 8  # of the implicit command id, which the framing puts before a command
HEADER_SEGMENT = 2
EVERY_FIELD = 16  # packing flags announce no more
SKIPPED, NO_VALUE = -1, -2  # instead of the type of a value: no value is written; the value does not fit


@kernel
def _field_key(w, row, field_no, t, keys, key_set):
    """The next value has the key of field `field_no` of the entry at the top of the stack."""
    if row[BASE] >= 0:
        W.known_key(w, int(row[BASE]) + field_no)
        return
    W.load_known(w, keys, key_set)
    entry = int(row[ENTRY])
    at = int(keys.first[entry]) + int(t.entries[entry, T.BASE]) + field_no
    W.key(w, keys.text, int(keys.text_at[at]), int(keys.text_at[at + 1]))


@inlined
def _next_field(w, buf, at, row, t, keys, key_set):
    """Announce the next field whose packing flag is set; returns as `_next_item`."""
    flags, field_no = int(row[LEFT]), int(row[FIELD])
    while flags & 1 == 0:
        flags >>= 1
        field_no += 1
    row[LEFT] = flags >> 1
    row[FIELD] = field_no + 1
    field = t.fields[int(t.entries[int(row[ENTRY]), T.FIELD_FROM]) + field_no]
    number, entry = int(field[T.FIELD_TYPE]), int(field[T.FIELD_OF])
    end = extent(buf, at, int(row[END]), number, entry, t)
    if end < 0:
        return at, at, NO_VALUE, entry, UNKNOWN_KEYS
    before = int(row[BEFORE])
    row[BEFORE] = at
    policy = int(field[T.FIELD_DISCLOSURE])
    if row[BASE] >= 0:
        W.bytes_are_text(w, field[T.FIELD_MASKED] != 0)
    if policy == SHOW_ALL or is_public(buf, at, end, int(row[END]) if flags & 2 else NO_RESPONSE, policy):
        _field_key(w, row, field_no, t, keys, key_set)
        return at, end, number, entry, int(field[T.FIELD_BASE]) if row[BASE] >= 0 else UNKNOWN_KEYS
    if policy == SHOW_SIZE:
        _field_key(w, row, field_no, t, keys, key_set)
        W.put_int(w, end - at - int(t.types[T.WIDTH, number]))
    elif policy == SHOW_USER:
        mechanism = before + 1 if before >= 0 else at + 1
        user, user_end = user_span(w, buf, mechanism, at, at + 4, end, t.types[T.FORM])
        if user >= 0:
            _field_key(w, row, field_no, t, keys, key_set)
            W.put_text(w, buf, user, user_end)
    return end, end, SKIPPED, entry, UNKNOWN_KEYS


@kernel
def is_public(buf, at, end, fields_end, policy):
    """Whether the str8 `buf[at:end]` with disclosure `policy` cannot be part of a secret. `fields_end`: of all fields;
    NO_RESPONSE, if the next field is not there."""
    if policy == SHOW_SASL_NAMES:
        return names_mechanism(buf, at + 1, end, fields_end)
    return policy == SHOW_SHORT_TEXT and is_not_secret(buf, at + 1, end)


@inlined
def _next_section(w, buf, at, row, t, keys, key_set):
    """Announce the next struct of a header segment; returns as `_next_item`."""
    size = u32(buf, at, int(row[END]))
    end = at + 4 + size
    if size < CODES or end > row[END]:
        return at, at, NO_VALUE, -1, UNKNOWN_KEYS
    entry = entry_at(buf, at + 4, end, int(T.STRUCT_ENTRY), t)
    number = int(t.entries[entry, T.SECTION_KEY]) if entry >= 0 else -1
    if number >= 0 and not (int(row[FIELD]) >> number) & 1:
        row[FIELD] |= 1 << number
        W.known_key(w, number)
        return at, end, T.STRUCT_TYPE, entry, int(t.entries[entry, T.SECTION_BASE])
    W.note(w, N.ENTRY_UNEXPECTED)
    W.load_known(w, keys, key_set)
    W.key(w, w.text, int(SCRATCH), put_code(w, buf, at + 4))
    W.put_binary(w, buf, at + 4 + CODES, end)
    return end, end, SKIPPED if number < 0 else NO_VALUE, entry, UNKNOWN_KEYS


@inlined
def _next_item(w, buf, at, row, t, keys, key_set):
    """Announce the next entry of a map, or item of a list or array: (its offset, its end, its type, entry of a declared
    struct, number of the first known key inside it). Type SKIPPED: no value; NO_VALUE: the value does not fit."""
    kind, end = int(row[KIND]), int(row[END])
    row[LEFT] -= 1
    number, entry, name = int(row[TYPE]), int(row[ENTRY]), at + 1
    if kind != IN_ARRAY:
        if kind == IN_MAP:
            at += 1 + max(u8(buf, at, end), 0)
        number = u8(buf, at, end)
        at += 1
    stop = extent(buf, at, end, number, entry, t) if number >= 0 else -1
    if stop < 0:
        return at, at, NO_VALUE, entry, UNKNOWN_KEYS
    if kind == IN_MAP:
        W.load_known(w, keys, key_set)
        put_key(w, buf, name, at - 1)
    else:
        W.element(w)
    return at, stop, number, entry, UNKNOWN_KEYS


@inlined
def _close(w, row, keys, key_set):
    """End the container of a stack row."""
    kind = int(row[KIND])
    if kind in (IN_LIST, IN_ARRAY):
        W.end_array(w)
    elif (kind == IN_FIELDS and row[BASE] >= 0) or (kind == IN_SECTIONS and w.positions[KEYS] == 0):
        W.end_known_object(w, keys, key_set)
    else:
        W.end_object(w)


@inlined
def _begin_entry(w, buf, start, end, kind, entry, stack, t):
    """Begin the object of a control or command with its implicit id and the session header's sync: (offset, depth,
    code)."""
    at, sync, command_id = start, False, -1
    if kind == T.COMMAND_ENTRY:
        command_id = i64(buf, start, end)
        start += COMMAND_ID_BYTES
        at = session_header_end(buf, start, end)
        sync = at > start + 1 and byte_at(buf, start + 1) & 1 != 0
    if unknown_flags(buf, at, end, entry, t):
        W.note(w, N.UNDEFINED_FLAGS)
    W.begin_object_of(w, int(t.entries[entry, T.FIELD_END] - t.entries[entry, T.FIELD_FROM]), end - start)
    if sync:
        W.known_key(w, int(T.SYNC_KEY))
        W.put_bool(w, sync)
    if command_id >= 0:
        W.known_key(w, int(T.COMMAND_ID_KEY))
        W.put_int(w, command_id)
    at, depth, code = open_fields(buf, at, end, entry, int(t.entries[entry, T.BASE]), stack, int(BOTTOM), t)
    stack[0, TYPE] = 1  # its end is that of the segment
    return at, depth, code


@kernel
def decode_segment(buf, start, end, kind, entry, t, keys, stack, w, guarded=False):
    """Write the value of the segment `buf[start:end]`: a code. `kind`: CONTROL_ENTRY, COMMAND_ENTRY, or HEADER_SEGMENT.

    The segment has the arguments of control or command `entry`; those of a command follow its implicit id, 8 bytes, -1
    when it is unknown. `entry` of a header segment is the number of its key set. Where the fields do not fill the
    segment, an entry with a secret, and any entry that is `guarded`, has only fields that cannot be part of a secret.
    """
    if kind == HEADER_SEGMENT or (t.entries[entry, T.SECRET] < 0 and not guarded):
        return _write_segment(buf, start, end, kind, entry, t, keys, stack, w, EVERY_FIELD)
    at = begins = start
    if kind == T.COMMAND_ENTRY:
        begins = start + COMMAND_ID_BYTES
        at = session_header_end(buf, begins, end)
    visible, visible_end = fields_in_place(buf, at, end, entry, t) if at >= 0 else (0, begins)
    whole = visible_end == end and visible == t.entries[entry, T.FIELD_END] - t.entries[entry, T.FIELD_FROM]
    stop = end if whole else visible_end
    code = _write_segment(buf, start, stop, kind, entry, t, keys, stack, w, EVERY_FIELD if whole else visible)
    if code == W.MALFORMED and visible > 0:
        # a field that does not parse may have a wrong end, too
        W.rollback(w)
        code = _write_segment(buf, start, end, kind, entry, t, keys, stack, w, 0)
    return W.MALFORMED if code == W.OK and not whole else code


@kernel
def _write_segment(buf, start, end, kind, entry, t, keys, stack, w, visible):
    """`decode_segment`, with the first `visible` fields."""
    W.begin(w)
    at, depth, code = start, 0, W.OK
    if kind == HEADER_SEGMENT:
        W.begin_object_of(w, 2, end - start)
        depth = push(stack, depth, int(IN_SECTIONS), end, int(MORE), int(MORE), int(UNKNOWN_KEYS), int(UNKNOWN_KEYS))
    else:
        at, depth, code = _begin_entry(w, buf, start, end, kind, entry, stack, t)
        stack[0, LEFT] &= (1 << visible) - 1
    broken = code == W.MALFORMED
    while depth > 0 and W.error_code(w) == W.OK:
        row = stack[depth - 1]
        inside, stop = int(row[KIND]), int(row[END])
        if broken or row[LEFT] == 0 or (inside == IN_SECTIONS and at >= stop):
            sized = row[TYPE] > 0 or inside != IN_FIELDS
            if sized and not broken and at != stop and code == W.OK:
                code = W.MALFORMED
            _close(w, row, keys, entry)
            depth -= 1
            if sized:
                at, broken = stop, False
            continue
        if inside == IN_FIELDS:
            at, stop, number, declared, base = _next_field(w, buf, at, row, t, keys, entry)
        elif inside == IN_SECTIONS:
            at, stop, number, declared, base = _next_section(w, buf, at, row, t, keys, entry)
        else:
            at, stop, number, declared, base = _next_item(w, buf, at, row, t, keys, entry)
        flaw = W.MALFORMED if number == NO_VALUE else W.OK
        if number >= 0:
            at, depth, flaw = put_value(w, buf, at, stop, number, declared, base, stack, depth, t, keys, entry)
        if code == W.OK:
            code = flaw
        broken = flaw == W.MALFORMED
    ended = W.finish_known(w, keys, entry)
    if ended == W.TOO_LARGE:
        W.rollback(w)
    return code if ended == W.OK else ended
