"""Controls, commands and header segments of AMQP 0-10: octets to VARIANT.

One interpreter of the entries of `V0_10Tables`. An explicit stack has a row for each open container; the loop of
`decode_segment` takes the next item of the innermost container.

* An entry is an object of the fields whose packing flag is set; a bit is true or absent.
* map -> OBJECT; list, array -> ARRAY; sequence-set, byte-ranges -> ARRAY of {lower, upper}
* struct32 -> OBJECT of its fields and `struct`: its name; undefined -> {struct: "CLASS.CODE", value: its octets}. A
  struct that is declared as the type of its field has its fields only.
* A header segment is an object of its structs by name; undefined ones are "CLASS.CODE" with their octets.
* An array whose elements have no octets -> {type, count}, never expanded.
* A container nested too deep or with too many items -> BINARY, its octets.

For any octets a well-formed value is written. An item that does not fit ends its container, and the outer container
continues after it. Codes are those of `codec.variant`. Cost: linear in the octets.
"""

from __future__ import annotations

from codec import variant as W
from codec.amqp import notes as N
from codec.amqp.classic.field_table import put_name as put_key
from codec.amqp.disclosure import (
    SHOW_ALL,
    SHOW_SASL_NAMES,
    SHOW_SHORT_TEXT,
    SHOW_SIZE,
    SHOW_USER,
    is_not_secret,
    is_sasl_name,
    user_span,
)
from codec.amqp.v0_10 import containers as C
from codec.amqp.v0_10 import tables as T
from codec.amqp.v0_10.containers import SCRATCH, put_code
from codec.amqp.v0_10.detect import entry_at, extent, fields_in_place, session_header_end, unknown_flags
from codec.compiler.kernel import inlined, kernel
from codec.cursor import i64, octet, u8, u32
from codec.variant.writer import KEYS

COMMAND_ID_OCTETS = 8  # of the implicit command id, which the framing puts before a command
HEADER_SEGMENT = 2
EVERY_FIELD = 16  # packing flags announce no more
SKIPPED, NO_VALUE = -1, -2  # instead of the type of a value: no value is written; the value does not fit


@kernel
def _field_key(w, row, place, t, keys, key_set):
    """The next value has the key of field `place` of the entry at the top of the stack."""
    if row[C.BASE] >= 0:
        W.known_key(w, int(row[C.BASE]) + place)
        return
    W.load_known(w, keys, key_set)
    entry = int(row[C.ENTRY])
    at = int(keys.first[entry]) + int(t.entries[entry, T.BASE]) + place
    W.key(w, keys.text, int(keys.text_at[at]), int(keys.text_at[at + 1]))


@inlined
def _next_field(w, buf, at, row, t, keys, key_set):
    """Announce the next field whose packing flag is set; returns as `_next_item`."""
    flags, place = int(row[C.LEFT]), int(row[C.PLACE])
    while flags & 1 == 0:
        flags >>= 1
        place += 1
    row[C.LEFT] = flags >> 1
    row[C.PLACE] = place + 1
    field = t.fields[int(t.entries[int(row[C.ENTRY]), T.FIELD_FROM]) + place]
    number, entry = int(field[T.FIELD_TYPE]), int(field[T.FIELD_OF])
    end = extent(buf, at, int(row[C.END]), number, entry, t)
    if end < 0:
        return at, at, NO_VALUE, entry, C.UNKNOWN_KEYS
    before = int(row[C.BEFORE])
    row[C.BEFORE] = at
    policy = int(field[T.FIELD_DISCLOSURE])
    if row[C.BASE] >= 0:
        W.octets_are_text(w, field[T.FIELD_MASKED] != 0)
    if policy == SHOW_ALL or is_public(buf, at, end, policy):
        _field_key(w, row, place, t, keys, key_set)
        return at, end, number, entry, int(field[T.FIELD_BASE]) if row[C.BASE] >= 0 else C.UNKNOWN_KEYS
    if policy == SHOW_SIZE:
        _field_key(w, row, place, t, keys, key_set)
        W.put_int(w, end - at - int(t.types[T.WIDTH, number]))
    elif policy == SHOW_USER:
        mechanism = before + 1 if before >= 0 else at + 1
        user, user_end = user_span(w, buf, mechanism, at, at + 4, end, t.types[T.FORM])
        if user >= 0:
            _field_key(w, row, place, t, keys, key_set)
            W.put_text(w, buf, user, user_end)
    return end, end, SKIPPED, entry, C.UNKNOWN_KEYS


@kernel
def is_public(buf, at, end, policy):
    """Whether the str8 `buf[at:end]` with disclosure `policy` cannot be part of a secret."""
    if policy == SHOW_SASL_NAMES:
        return is_sasl_name(buf, at + 1, end)
    return policy == SHOW_SHORT_TEXT and is_not_secret(buf, at + 1, end)


@inlined
def _next_section(w, buf, at, row, t, keys, key_set):
    """Announce the next struct of a header segment; returns as `_next_item`."""
    size = u32(buf, at, int(row[C.END]))
    end = at + 4 + size
    if size < C.CODES or end > row[C.END]:
        return at, at, NO_VALUE, -1, C.UNKNOWN_KEYS
    entry = entry_at(buf, at + 4, end, int(T.STRUCT_ENTRY), t)
    number = int(t.entries[entry, T.SECTION_KEY]) if entry >= 0 else -1
    if number >= 0 and not (int(row[C.PLACE]) >> number) & 1:
        row[C.PLACE] |= 1 << number
        W.known_key(w, number)
        return at, end, T.STRUCT_TYPE, entry, int(t.entries[entry, T.SECTION_BASE])
    W.note(w, N.ENTRY_UNEXPECTED)
    W.load_known(w, keys, key_set)
    W.key(w, w.text, int(SCRATCH), put_code(w, buf, at + 4))
    W.put_binary(w, buf, at + 4 + C.CODES, end)
    return end, end, SKIPPED if number < 0 else NO_VALUE, entry, C.UNKNOWN_KEYS


@inlined
def _next_item(w, buf, at, row, t, keys, key_set):
    """Announce the next entry of a map, or item of a list or array: (its offset, its end, its type, entry of a declared
    struct, number of the first known key inside it). Type SKIPPED: no value; NO_VALUE: the value does not fit."""
    kind, end = int(row[C.KIND]), int(row[C.END])
    row[C.LEFT] -= 1
    number, entry, name = int(row[C.TYPE]), int(row[C.ENTRY]), at + 1
    if kind != C.IN_ARRAY:
        if kind == C.IN_MAP:
            at += 1 + max(u8(buf, at, end), 0)
        number = u8(buf, at, end)
        at += 1
    stop = extent(buf, at, end, number, entry, t) if number >= 0 else -1
    if stop < 0:
        return at, at, NO_VALUE, entry, C.UNKNOWN_KEYS
    if kind == C.IN_MAP:
        W.load_known(w, keys, key_set)
        put_key(w, buf, name, at - 1)
    else:
        W.element(w)
    return at, stop, number, entry, C.UNKNOWN_KEYS


@inlined
def _close(w, row, keys, key_set):
    """End the container of a stack row."""
    kind = int(row[C.KIND])
    if kind in (C.IN_LIST, C.IN_ARRAY):
        W.end_array(w)
    elif (kind == C.IN_FIELDS and row[C.BASE] >= 0) or (kind == C.IN_SECTIONS and w.positions[KEYS] == 0):
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
        start += COMMAND_ID_OCTETS
        at = session_header_end(buf, start, end)
        sync = at > start + 1 and octet(buf, start + 1) & 1 != 0
    if unknown_flags(buf, at, end, entry, t):
        W.note(w, N.UNDEFINED_FLAGS)
    W.begin_object_of(w, int(t.entries[entry, T.FIELD_END] - t.entries[entry, T.FIELD_FROM]), end - start)
    if sync:
        W.known_key(w, int(T.SYNC_KEY))
        W.put_bool(w, sync)
    if command_id >= 0:
        W.known_key(w, int(T.COMMAND_ID_KEY))
        W.put_int(w, command_id)
    at, depth, code = C.open_fields(buf, at, end, entry, int(t.entries[entry, T.BASE]), stack, int(C.BOTTOM), t)
    stack[0, C.TYPE] = 1  # its end is that of the segment
    return at, depth, code


@kernel
def decode_segment(buf, start, end, kind, entry, t, keys, stack, w, guarded=False):
    """Write the value of the segment `buf[start:end]`: a code. `kind`: CONTROL_ENTRY, COMMAND_ENTRY, or HEADER_SEGMENT.

    The segment has the arguments of control or command `entry`; those of a command follow its implicit id, 8 octets, -1
    when it is unknown. `entry` of a header segment is the number of its key set. Where the fields do not fill the
    segment, an entry with a secret, and any entry that is `guarded`, has only fields that cannot be part of a secret.
    """
    if kind == HEADER_SEGMENT or (t.entries[entry, T.SECRET] < 0 and not guarded):
        return _write_segment(buf, start, end, kind, entry, t, keys, stack, w, EVERY_FIELD)
    at = begins = start
    if kind == T.COMMAND_ENTRY:
        begins = start + COMMAND_ID_OCTETS
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
        depth = C.push(
            stack, depth, int(C.IN_SECTIONS), end, int(C.MORE), int(C.MORE), int(C.UNKNOWN_KEYS), int(C.UNKNOWN_KEYS)
        )
    else:
        at, depth, code = _begin_entry(w, buf, start, end, kind, entry, stack, t)
        stack[0, C.LEFT] &= (1 << visible) - 1
    broken = code == W.MALFORMED
    while depth > 0 and W.error_code(w) == W.OK:
        row = stack[depth - 1]
        inside, stop = int(row[C.KIND]), int(row[C.END])
        if broken or row[C.LEFT] == 0 or (inside == C.IN_SECTIONS and at >= stop):
            sized = row[C.TYPE] > 0 or inside != C.IN_FIELDS
            if sized and not broken and at != stop and code == W.OK:
                code = W.MALFORMED
            _close(w, row, keys, entry)
            depth -= 1
            if sized:
                at, broken = stop, False
            continue
        if inside == C.IN_FIELDS:
            at, stop, number, declared, base = _next_field(w, buf, at, row, t, keys, entry)
        elif inside == C.IN_SECTIONS:
            at, stop, number, declared, base = _next_section(w, buf, at, row, t, keys, entry)
        else:
            at, stop, number, declared, base = _next_item(w, buf, at, row, t, keys, entry)
        flaw = W.MALFORMED if number == NO_VALUE else W.OK
        if number >= 0:
            at, depth, flaw = C.put_value(w, buf, at, stop, number, declared, base, stack, depth, t, keys, entry)
        if code == W.OK:
            code = flaw
        broken = flaw == W.MALFORMED
    ended = W.finish_known(w, keys, entry)
    if ended == W.TOO_LARGE:
        W.rollback(w)
    return code if ended == W.OK else ended
