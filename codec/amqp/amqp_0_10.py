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
COMMAND_ID_OCTETS = 8  # of the implicit command id, which the framing puts before a command

# Columns of the stack. LEFT: items to come, or the packing flags of fields to come. BASE: number of the first field's key
# among the keys known beforehand, -1 when it is not. BEFORE: where the last field shown begins.
KIND, END, LEFT, TYPE, OF, PLACE, BASE, BEFORE = range(8)
IN_FIELDS, IN_MAP, IN_LIST, IN_ARRAY, IN_SECTIONS = range(5)
NO_MORE, UNKNOWN_KEYS = 0, -1


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
def _field_key(w, row, place, t, key_set):
    """The value that follows belongs to field `place` of the entry at the top of the stack."""
    if row[BASE] >= 0:
        known_key(w, int(row[BASE]) + place)
        return
    load_known(w, t.keys, key_set)
    of = int(row[OF])
    at = int(t.keys.first[of]) + int(t.entries[of, T.BASE]) + place
    key(w, t.keys.text, int(t.keys.text_at[at]), int(t.keys.text_at[at + 1]))


@kernel
def _open_fields(buf, at, end, of, base, stack, depth, t):
    """Go into the fields of entry `of`, whose object has begun and whose packing flags stand at `at`: (offset, depth, code)."""
    sized = int(t.entries[of, T.SIZE_WIDTH])
    flags = packing_flags(buf, at, end, of, t)
    if flags < 0:
        return end, _push(stack, depth, IN_FIELDS, end, NO_MORE, sized, of, base), MALFORMED
    return at + int(t.entries[of, T.PACK]), _push(stack, depth, IN_FIELDS, end, flags, sized, of, base), OK


@kernel
def _struct32(w, buf, at, end, stack, depth, t, key_set):
    """A struct whose class code and code stand at `at`."""
    begin_object(w)
    word(w, t, T.STRUCT_WORD, key_set)
    of = entry_at(buf, at, end, T.STRUCT_ENTRY, t)
    if of >= 0:
        put_name(w, t, t.name_set, of)
        return _open_fields(buf, at + 2, end, of, UNKNOWN_KEYS, stack, depth, t)
    coded = end - at >= 2
    put_string(w, w.text, 0, put_code(w, buf, at) if coded else 0)
    word(w, t, T.VALUE_WORD, key_set)
    put_binary(w, buf, at + 2 if coded else at, end)
    return end, _push(stack, depth, IN_FIELDS, end, NO_MORE, 1, of, UNKNOWN_KEYS), OK if coded else MALFORMED


@kernel
def _declared_struct(w, buf, at, end, of, base, stack, depth, t):
    """A struct that the definition of a field or of an array's elements names; its code stands there all the same."""
    begin_object_of(w, int(t.entries[of, T.FIELD_END] - t.entries[of, T.FIELD_FROM]), end - at)
    at += int(t.entries[of, T.SIZE_WIDTH])
    if t.entries[of, T.CODE] >= 0:
        if entry_at(buf, at, end, T.STRUCT_ENTRY, t) != of:
            return end, _push(stack, depth, IN_FIELDS, end, NO_MORE, 1, of, base), MALFORMED
        at += 2
    return _open_fields(buf, at, end, of, base, stack, depth, t)


@kernel
def _items(w, buf, at, end, form, of, stack, depth, t, key_set):
    """A map, list or array, which says how many items follow. One without any octet is empty."""
    start, number = at, -1
    if form == T.ARRAY_OF:
        number = u8(buf, at, end)
        at += 1
        if of >= 0 and number != STRUCT32_TYPE:
            number = T.STRUCT_TYPE  # which octet announces a struct without a code is not specified
    count = u32(buf, at, end)
    if count > 0 and number >= 0 and t.types[T.CATEGORY, number] == T.FIXED and t.types[T.WIDTH, number] == 0:
        begin_object(w)
        word(w, t, T.TYPE_WORD, key_set)
        put_name(w, t, t.type_set, number)
        word(w, t, T.COUNT_WORD, key_set)
        put_int(w, count)
        end_object(w)
        return end, depth, OK if at + 4 == end else MALFORMED
    if w.positions[ENTRIES] + min(count, end - at) > ITEMS:
        put_binary(w, buf, start, end)
        return end, depth, TOO_LARGE
    if form == T.MAP:
        begin_object(w)
    else:
        begin_array(w)
    kind = IN_MAP if form == T.MAP else (IN_LIST if form == T.LIST else IN_ARRAY)
    if count < 0:
        return end, _push(stack, depth, kind, end, NO_MORE, number, of, -1), OK if start >= end else MALFORMED
    return at + 4, _push(stack, depth, kind, end, count, number, of, -1), OK


@kernel
def _value(w, buf, at, end, number, of, base, stack, depth, t, key_set):
    """Write the value `buf[at:end]` of type `number`, or go into it: (offset after what was taken, depth, code)."""
    form = int(t.types[T.FORM, number])
    if form < T.RANGES:
        put_scalar(w, buf, at, end, number, t, key_set)
        return end, depth, OK
    if form == T.RANGES:
        if put_ranges(w, buf, at, end, number, base, t, key_set):
            return end, depth, OK
        put_binary(w, buf, at, end)
        return end, depth, MALFORMED
    if depth == DEPTH:
        put_binary(w, buf, at, end)
        return end, depth, TOO_DEEP
    if form == T.STRUCT:
        return _declared_struct(w, buf, at, end, of, base, stack, depth, t)
    if form == T.STRUCT32:
        return _struct32(w, buf, at + 4, end, stack, depth, t, key_set)
    return _items(w, buf, at + 4, end, form, of, stack, depth, t, key_set)


@kernel
def _field(w, buf, at, row, stack, depth, t, key_set):
    """The next field whose packing flag is set."""
    flags, place = int(row[LEFT]), int(row[PLACE])
    while flags & 1 == 0:
        flags >>= 1
        place += 1
    row[LEFT] = flags >> 1
    row[PLACE] = place + 1
    field = t.fields[int(t.entries[int(row[OF]), T.FIELD_FROM]) + place]
    number, of = int(field[T.FIELD_TYPE]), int(field[T.FIELD_OF])
    before = int(row[BEFORE])
    row[BEFORE] = at
    if number == BIT_TYPE:
        _field_key(w, row, place, t, key_set)
        put_bool(w, flags)
        return at, depth, OK
    end = extent(buf, at, int(row[END]), number, of, t)
    if end < 0:
        return at, depth, MALFORMED
    if field[T.FIELD_SHOWN] == T.SHOWN:
        _field_key(w, row, place, t, key_set)
        base = int(field[T.FIELD_BASE]) if row[BASE] >= 0 else UNKNOWN_KEYS
        return _value(w, buf, at, end, number, of, base, stack, depth, t, key_set)
    if field[T.FIELD_SHOWN] == T.USER_SHOWN:
        user, user_end = user_span(buf, before + 1, at, at + 4, end, t.types[T.FORM])
        if user >= 0:
            _field_key(w, row, place, t, key_set)
            put_text(w, buf, user, user_end)
    return end, depth, OK


@kernel
def _section(w, buf, at, row, stack, depth, t, key_set):
    """The next struct of a header segment."""
    size = u32(buf, at, int(row[END]))
    end = at + 4 + size
    if size < 2 or end > row[END]:
        return at, depth, MALFORMED
    of = entry_at(buf, at + 4, end, T.STRUCT_ENTRY, t)
    number = int(t.entries[of, T.SECTION_KEY]) if of >= 0 else -1
    if number >= 0 and not (int(row[PLACE]) >> number) & 1:
        row[PLACE] |= 1 << number
        known_key(w, number)
        begin_object_of(w, int(t.entries[of, T.FIELD_END] - t.entries[of, T.FIELD_FROM]), size)
        return _open_fields(buf, at + 6, end, of, int(t.entries[of, T.SECTION_BASE]), stack, depth, t)
    load_known(w, t.keys, key_set)
    key(w, w.text, 0, put_code(w, buf, at + 4))
    put_binary(w, buf, at + 6, end)
    return end, depth, OK if number < 0 else MALFORMED


@kernel
def _item(w, buf, at, row, stack, depth, t, key_set):
    """The next entry of a map, or item of a list or array."""
    kind, end = int(row[KIND]), int(row[END])
    row[LEFT] -= 1
    number, name = int(row[TYPE]), at + 1
    if kind != IN_ARRAY:
        if kind == IN_MAP:
            at += 1 + max(u8(buf, at, end), 0)
        number = u8(buf, at, end)
        at += 1
    stop = extent(buf, at, end, number, int(row[OF]), t) if number >= 0 else -1
    if stop < 0:
        return at, depth, MALFORMED
    if kind == IN_MAP:
        load_known(w, t.keys, key_set)
        put_key(w, buf, name, at - 1)
    else:
        element(w)
    return _value(w, buf, at, stop, number, int(row[OF]), UNKNOWN_KEYS, stack, depth, t, key_set)


@kernel
def _close(w, row, t, key_set):
    """End the container of a stack row."""
    kind = int(row[KIND])
    if kind == IN_LIST or kind == IN_ARRAY:
        end_array(w)
    elif kind == IN_FIELDS and row[BASE] >= 0 or kind == IN_SECTIONS and w.positions[KEYS] == 0:
        end_known_object(w, t.keys, key_set)
    else:
        end_object(w)


@kernel
def _decode(w, buf, at, depth, code, stack, t, key_set):
    """Write everything in the open container: the first thing that was wrong, or OK."""
    broken = code == MALFORMED
    while depth > 0 and trouble(w) == OK:
        row = stack[depth - 1]
        kind, end = int(row[KIND]), int(row[END])
        if broken or row[LEFT] == 0 or (kind == IN_SECTIONS and at >= end):
            sized = kind != IN_FIELDS or row[TYPE] > 0
            if sized and not broken and at != end and code == OK:
                code = MALFORMED
            _close(w, row, t, key_set)
            depth -= 1
            if sized:
                at, broken = end, False
            continue
        if kind == IN_FIELDS:
            at, depth, flaw = _field(w, buf, at, row, stack, depth, t, key_set)
        elif kind == IN_SECTIONS:
            at, depth, flaw = _section(w, buf, at, row, stack, depth, t, key_set)
        else:
            at, depth, flaw = _item(w, buf, at, row, stack, depth, t, key_set)
        if code == OK:
            code = flaw
        broken = flaw == MALFORMED
    return code


@kernel
def _finish(w, code, t, key_set):
    """Close the value of known keys: its code."""
    ended = finish_known(w, t.keys, key_set)
    if ended == TOO_LARGE:
        rollback(w)
    return code if ended == OK else ended


@kernel
def decode_entry(buf, start, end, kind, of, t, stack, w):
    """Write the arguments of control or command `of` (`kind` CONTROL_ENTRY or COMMAND_ENTRY): a code.

    `buf[start:end]` follows the class code and code. Before that of a command stands its implicit id, 8 octets: -1 not known.
    """
    begin(w)
    at, sync, command_id = start, False, -1
    if kind == T.COMMAND_ENTRY:
        command_id = i64(buf, start, end)
        start += COMMAND_ID_OCTETS
        at = session_header_end(buf, start, end)
        sync = at > start + 1 and octet(buf, start + 1) & 1 != 0
    base = int(t.entries[of, T.BASE])
    begin_object_of(w, int(t.entries[of, T.FIELD_END] - t.entries[of, T.FIELD_FROM]) // 2 + base, end - start)
    if sync:
        known_key(w, T.SYNC_KEY)
        put_bool(w, sync)
    if command_id >= 0:
        known_key(w, T.COMMAND_ID_KEY)
        put_int(w, command_id)
    if at < 0:
        at, depth, code = end, _push(stack, 0, IN_FIELDS, end, NO_MORE, 1, of, base), MALFORMED
    else:
        at, depth, code = _open_fields(buf, at, end, of, base, stack, 0, t)
    stack[0, TYPE] = 1  # the segment's end is that of its fields
    return _finish(w, _decode(w, buf, at, depth, code, stack, t, of), t, of)


@kernel
def decode_header(buf, start, end, t, stack, w):
    """Write the properties of the header segment `buf[start:end]`: a code."""
    begin(w)
    begin_object_of(w, 2, end - start)
    depth = _push(stack, 0, IN_SECTIONS, end, 1, -1, -1, 0)
    return _finish(w, _decode(w, buf, start, depth, OK, stack, t, t.header_set), t, t.header_set)
