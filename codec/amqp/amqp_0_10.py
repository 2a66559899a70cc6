"""Controls, commands and header segments of AMQP 0-10: octets to VARIANT.

One interpreter over the entries of `SegmentedTables`. Containers that are open stand on an explicit stack, a row each; the
loop of `_decode` takes the next item of the innermost one.

* An entry is an object of the fields whose packing flag is set; a bit is true or not there.
* map -> OBJECT; list, array -> ARRAY; sequence-set, byte-ranges -> ARRAY of {lower, upper}
* struct32 -> OBJECT of its fields and `struct`: its name; one nobody defines -> {struct: "CLASS.CODE", value: its octets}.
  A struct that the definition of its field names has its fields only.
* A header segment is an object of its structs by their names; other ones stand there as "CLASS.CODE" with their octets.
* An array whose elements have no octets -> {type, count}, never expanded.
* A container nested too deep or with too many items -> BINARY, its octets as they stand.

Whatever the octets, a well-formed value is written. What does not fit ends the container it is in, and the one around it
goes on behind it. Codes are those of `codec.variant`. Cost: linear in the octets.
"""

from __future__ import annotations

import numpy as np

from codec.amqp import tables_0_10 as T
from codec.amqp.credentials import user_span
from codec.amqp.extents_0_10 import BIT_TYPE, STRUCT32_TYPE, entry_at, extent, packing_flags, session_header_end
from codec.amqp.field_table import _put_name as put_key
from codec.amqp.scalars_0_10 import put_code, put_name, put_ranges, put_scalar, word
from codec.cursor import i64, octet, u8, u32
from codec.kernel import kernel
from codec.limits import LIMITS
from codec.variant import (
    MALFORMED,
    OK,
    TOO_DEEP,
    TOO_LARGE,
    begin,
    begin_array,
    begin_object,
    begin_object_of,
    element,
    end_array,
    end_known_object,
    end_object,
    finish_known,
    key,
    known_key,
    load_known,
    put_binary,
    put_bool,
    put_int,
    put_string,
    put_text,
    rollback,
    trouble,
)
from codec.variant.writer import ENTRIES, KEYS

DEPTH = LIMITS.nesting_depth
# An item costs two or more octets of VARIANT, up to four of offset, and 56 of scratch while its container is open.
ITEMS = LIMITS.variant_bytes // 16
HEADER_SEGMENT = 2
CODES = 2  # octets of class code and code
COMMAND_ID_OCTETS = 8  # of the implicit command id, which the framing puts before a command

# Columns of the stack. LEFT: items to come, or the packing flags of fields to come. BASE: number of the first field's key
# among the keys known beforehand, -1 when it is not. BEFORE: where the last field shown begins.
KIND, END, LEFT, TYPE, OF, PLACE, BASE, BEFORE = range(8)
IN_FIELDS, IN_MAP, IN_LIST, IN_ARRAY, IN_SECTIONS = range(5)
MORE, NO_MORE, UNKNOWN_KEYS = 1, 0, -1
SKIPPED, NO_VALUE = -1, -2  # for the type of a value: there is none to write; it does not fit


def new_stack() -> np.ndarray:
    """Working memory of the interpreter, int64, for one value at a time."""
    return np.zeros((DEPTH + 1, 8), np.int64)


@kernel
def _push(stack, depth, kind, end, left, number, of, base):
    row = stack[depth]
    row[KIND] = kind
    row[END] = end
    row[LEFT] = left
    row[TYPE] = number
    row[OF] = of
    row[PLACE] = 0
    row[BASE] = base
    row[BEFORE] = -1
    return depth + 1


@kernel
def _field_key(w, row, place, t, keys, key_set):
    """The value that follows belongs to field `place` of the entry at the top of the stack."""
    if row[BASE] >= 0:
        known_key(w, int(row[BASE]) + place)
        return
    load_known(w, keys, key_set)
    of = int(row[OF])
    at = int(keys.first[of]) + int(t.entries[of, T.BASE]) + place
    key(w, keys.text, int(keys.text_at[at]), int(keys.text_at[at + 1]))


@kernel
def _open_fields(buf, at, end, of, base, stack, depth, t):
    """Go into the fields of entry `of`, whose object has begun and whose packing flags stand at `at`: (offset, depth, code)."""
    flags = packing_flags(buf, at, end, of, t) if at >= 0 else -1
    sized = int(t.entries[of, T.SIZE_WIDTH])
    depth = _push(stack, depth, int(IN_FIELDS), end, max(flags, NO_MORE), sized, of, base)
    if flags < 0:
        return end, depth, MALFORMED
    return at + int(t.entries[of, T.PACK]), depth, OK


@kernel
def _declared_struct(w, buf, at, end, of, base, stack, depth, t):
    """A struct that the definition of a field, of an array's elements or of a header segment names, with its size and code."""
    begin_object_of(w, int(t.entries[of, T.FIELD_END] - t.entries[of, T.FIELD_FROM]), end - at)
    at += int(t.entries[of, T.SIZE_WIDTH])
    if t.entries[of, T.CODE] >= 0:
        at = at + CODES if entry_at(buf, at, end, int(T.STRUCT_ENTRY), t) == of else -1
    return _open_fields(buf, at, end, of, base, stack, depth, t)


@kernel
def _struct32(w, buf, at, end, stack, depth, t, keys, key_set):
    """A struct whose class code and code stand at `at`."""
    begin_object(w)
    word(w, t, keys, int(T.STRUCT_WORD), key_set)
    of = entry_at(buf, at, end, int(T.STRUCT_ENTRY), t)
    if of >= 0:
        put_name(w, keys, t.special[T.NAME_SET], of)
        return _open_fields(buf, at + CODES, end, of, int(UNKNOWN_KEYS), stack, depth, t)
    coded = end - at >= CODES
    put_string(w, w.text, int(0), put_code(w, buf, at) if coded else 0)
    word(w, t, keys, int(T.VALUE_WORD), key_set)
    put_binary(w, buf, at + CODES if coded else at, end)
    depth = _push(stack, depth, int(IN_FIELDS), end, int(NO_MORE), end, of, int(UNKNOWN_KEYS))
    return end, depth, OK if coded else MALFORMED


@kernel
def _items(w, buf, at, end, form, of, stack, depth, t, keys, key_set):
    """A map, list or array, which says how many items follow. One without any octet is empty."""
    start, number = at, -1
    if form == T.ARRAY_OF:
        number = u8(buf, at, end)
        at += 1
        if of >= 0 and number != STRUCT32_TYPE:
            number = int(T.STRUCT_TYPE)  # which octet announces a struct without a code is not specified
    count = u32(buf, at, end)
    if count > 0 and number >= 0 and t.types[T.CATEGORY, number] == T.FIXED and t.types[T.WIDTH, number] == 0:
        begin_object(w)
        word(w, t, keys, int(T.TYPE_WORD), key_set)
        put_name(w, keys, t.special[T.TYPE_SET], number)
        word(w, t, keys, int(T.COUNT_WORD), key_set)
        put_int(w, count)
        end_object(w)
        return end, depth, OK if at + 4 == end else MALFORMED
    if w.positions[ENTRIES] + min(count, end - at) > ITEMS:
        put_binary(w, buf, start, end)
        return end, depth, TOO_LARGE
    kind = IN_MAP if form == T.MAP else (IN_LIST if form == T.LIST else IN_ARRAY)
    if kind == IN_MAP:
        begin_object(w)
    else:
        begin_array(w)
    depth = _push(stack, depth, kind, end, max(count, NO_MORE), number, of, int(UNKNOWN_KEYS))
    if count < 0:
        return end, depth, OK if start >= end else MALFORMED
    return at + 4, depth, OK


@kernel
def _value(w, buf, at, end, number, of, base, stack, depth, t, keys, key_set):
    """Write the value `buf[at:end]` of type `number`, or go into it: (offset after what was taken, depth, code)."""
    form = int(t.types[T.FORM, number])
    if form < T.RANGES:
        put_scalar(w, buf, at, end, number, t, keys, key_set)
        return end, depth, OK
    if form == T.RANGES and put_ranges(w, buf, at, end, number, base, t, keys, key_set):
        return end, depth, OK
    if form == T.RANGES or depth == DEPTH:
        put_binary(w, buf, at, end)
        return end, depth, MALFORMED if form == T.RANGES else TOO_DEEP
    if form == T.STRUCT:
        return _declared_struct(w, buf, at, end, of, base, stack, depth, t)
    if form == T.STRUCT32:
        return _struct32(w, buf, at + 4, end, stack, depth, t, keys, key_set)
    return _items(w, buf, at + 4, end, form, of, stack, depth, t, keys, key_set)


@kernel
def _next_field(w, buf, at, row, t, keys, key_set):
    """Announce the next field whose packing flag is set: as `_next_item`."""
    flags, place = int(row[LEFT]), int(row[PLACE])
    while flags & 1 == 0:
        flags >>= 1
        place += 1
    row[LEFT] = flags >> 1
    row[PLACE] = place + 1
    field = t.fields[int(t.entries[int(row[OF]), T.FIELD_FROM]) + place]
    number, of = int(field[T.FIELD_TYPE]), int(field[T.FIELD_OF])
    end = extent(buf, at, int(row[END]), number, of, t)
    if end < 0:
        return at, at, NO_VALUE, of, UNKNOWN_KEYS
    before = int(row[BEFORE])
    row[BEFORE] = at
    if field[T.FIELD_SHOWN] == T.SHOWN:
        _field_key(w, row, place, t, keys, key_set)
        return at, end, number, of, int(field[T.FIELD_BASE]) if row[BASE] >= 0 else UNKNOWN_KEYS
    if field[T.FIELD_SHOWN] == T.USER_SHOWN:
        user, user_end = user_span(buf, before + 1, at, at + 4, end, t.types[T.FORM])
        if user >= 0:
            _field_key(w, row, place, t, keys, key_set)
            put_text(w, buf, user, user_end)
    return end, end, SKIPPED, of, UNKNOWN_KEYS


@kernel
def _next_section(w, buf, at, row, t, keys, key_set):
    """Announce the next struct of a header segment: as `_next_item`."""
    size = u32(buf, at, int(row[END]))
    end = at + 4 + size
    if size < CODES or end > row[END]:
        return at, at, NO_VALUE, -1, UNKNOWN_KEYS
    of = entry_at(buf, at + 4, end, int(T.STRUCT_ENTRY), t)
    number = int(t.entries[of, T.SECTION_KEY]) if of >= 0 else -1
    if number >= 0 and not (int(row[PLACE]) >> number) & 1:
        row[PLACE] |= 1 << number
        known_key(w, number)
        return at, end, T.STRUCT_TYPE, of, int(t.entries[of, T.SECTION_BASE])
    load_known(w, keys, key_set)
    key(w, w.text, int(0), put_code(w, buf, at + 4))
    put_binary(w, buf, at + 4 + CODES, end)
    return end, end, SKIPPED if number < 0 else NO_VALUE, of, UNKNOWN_KEYS


@kernel
def _next_item(w, buf, at, row, t, keys, key_set):
    """Announce the next entry of a map, or item of a list or array: (its offset and end, its type, SKIPPED when nothing
    follows or NO_VALUE when it does not fit, entry of a declared struct, number of the first key known inside of it)."""
    kind, end = int(row[KIND]), int(row[END])
    row[LEFT] -= 1
    number, of, name = int(row[TYPE]), int(row[OF]), at + 1
    if kind != IN_ARRAY:
        if kind == IN_MAP:
            at += 1 + max(u8(buf, at, end), 0)
        number = u8(buf, at, end)
        at += 1
    stop = extent(buf, at, end, number, of, t) if number >= 0 else -1
    if stop < 0:
        return at, at, NO_VALUE, of, UNKNOWN_KEYS
    if kind == IN_MAP:
        load_known(w, keys, key_set)
        put_key(w, buf, name, at - 1)
    else:
        element(w)
    return at, stop, number, of, UNKNOWN_KEYS


@kernel
def _close(w, row, keys, key_set):
    """End the container of a stack row."""
    kind = int(row[KIND])
    if kind in (IN_LIST, IN_ARRAY):
        end_array(w)
    elif (kind == IN_FIELDS and row[BASE] >= 0) or (kind == IN_SECTIONS and w.positions[KEYS] == 0):
        end_known_object(w, keys, key_set)
    else:
        end_object(w)


@kernel
def _begin_entry(w, buf, start, end, kind, of, stack, t):
    """Begin the object of a control or command with what the framing and the session header say: (offset, depth, code)."""
    at, sync, command_id = start, False, -1
    if kind == T.COMMAND_ENTRY:
        command_id = i64(buf, start, end)
        start += COMMAND_ID_OCTETS
        at = session_header_end(buf, start, end)
        sync = at > start + 1 and octet(buf, start + 1) & 1 != 0
    begin_object_of(w, int(t.entries[of, T.FIELD_END] - t.entries[of, T.FIELD_FROM]), end - start)
    if sync:
        known_key(w, int(T.SYNC_KEY))
        put_bool(w, sync)
    if command_id >= 0:
        known_key(w, int(T.COMMAND_ID_KEY))
        put_int(w, command_id)
    at, depth, code = _open_fields(buf, at, end, of, int(t.entries[of, T.BASE]), stack, int(0), t)
    stack[0, TYPE] = 1  # its end is that of the segment
    return at, depth, code


@kernel
def decode_segment(buf, start, end, kind, of, t, keys, stack, w):
    """Write what the segment `buf[start:end]` holds: a code. `kind`: CONTROL_ENTRY, COMMAND_ENTRY, or HEADER_SEGMENT.

    Arguments of control or command `of` follow its class code and code; before those of a command stands its implicit id,
    8 octets, -1 when it is not known. `of` of a header segment is the number of its key set.
    """
    begin(w)
    at, depth, code = start, 0, OK
    if kind == HEADER_SEGMENT:
        begin_object_of(w, 2, end - start)
        depth = _push(stack, depth, int(IN_SECTIONS), end, int(MORE), int(MORE), int(UNKNOWN_KEYS), int(UNKNOWN_KEYS))
    else:
        at, depth, code = _begin_entry(w, buf, start, end, kind, of, stack, t)
    broken = code == MALFORMED
    while depth > 0 and trouble(w) == OK:
        row = stack[depth - 1]
        inside, stop = int(row[KIND]), int(row[END])
        if broken or row[LEFT] == 0 or (inside == IN_SECTIONS and at >= stop):
            sized = row[TYPE] > 0 or inside != IN_FIELDS
            if sized and not broken and at != stop and code == OK:
                code = MALFORMED
            _close(w, row, keys, of)
            depth -= 1
            if sized:
                at, broken = stop, False
            continue
        if inside == IN_FIELDS:
            at, stop, number, declared, base = _next_field(w, buf, at, row, t, keys, of)
        elif inside == IN_SECTIONS:
            at, stop, number, declared, base = _next_section(w, buf, at, row, t, keys, of)
        else:
            at, stop, number, declared, base = _next_item(w, buf, at, row, t, keys, of)
        flaw = MALFORMED if number == NO_VALUE else OK
        if number >= 0:
            at, depth, flaw = _value(w, buf, at, stop, number, declared, base, stack, depth, t, keys, of)
        if code == OK:
            code = flaw
        broken = flaw == MALFORMED
    ended = finish_known(w, keys, of)
    if ended == TOO_LARGE:
        rollback(w)
    return code if ended == OK else ended
