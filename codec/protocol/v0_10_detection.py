"""Extents of AMQP 0-10 values, without decoding them, and detection of frames (`codec.protocol.frame_search`).

The type gives the size of a fixed value, the size field that of a variable one; the code range gives the width of an
undefined type. A struct without a size field ends with its fields. Frames have no end byte. The evidence for one is
the frame header, of which about fifty bits are fixed (flags, type, track, reserved bytes), and a payload that parses
exactly.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.cursor import (
    SHORT,
    byte_at,
    fits,
    u8,
    u16,
    u32,
)
from codec.protocol import v0_10_tables as T
from codec.protocol.disclosure import NO_RESPONSE, SHOW_SASL_NAMES, names_mechanism
from codec.protocol.frame_search import ACCEPT, POINTS_BEGUN, POINTS_BODY, POINTS_PARSED, REJECT, UNDECIDED, search
from codec.protocol.versions import E_FRAME_TYPE, E_RESERVED, E_SHORT_FRAME, E_TRACK, NO_ERROR

NUMBERS = T.NUMBERS
SECTIONS = LIMITS.detect_entries
CONNECTION_CLASS = next(entry.class_code for entry in T.entries() if entry.name == "connection.start")
BIT_TYPE, STRUCT32_TYPE = T.type_numbers()["bit"], T.type_numbers()["struct32"]
OVERHEAD, CHANNEL_END = 12, 8
CONTROL_SEGMENT, COMMAND_SEGMENT, HEADER_SEGMENT, BODY_SEGMENT = range(4)
FIRST_SEGMENT, LAST_SEGMENT, FIRST_FRAME, LAST_FRAME = 8, 4, 2, 1
WHOLE_SEGMENT = FIRST_FRAME | LAST_FRAME
RESERVED_FLAGS = 0xF0


@kernel
def length_at(buf, at, end, width):
    """The size of `width` bytes (1, 2 or 4) at `at`, or SHORT."""
    if width == 1:
        return u8(buf, at, end)
    return u16(buf, at, end) if width == 2 else u32(buf, at, end)


@kernel
def extent(buf, at, end, number, entry, t):
    """End of the value of type `number` at `at`; SHORT when it is beyond `end` or unknown. `entry`: the entry of a
    declared struct; one without a size field ends at `end`."""
    category, width = t.types[T.CATEGORY, number], t.types[T.WIDTH, number]
    if category == T.FIXED:
        return at + width if fits(at, width, end) else SHORT
    if number == T.STRUCT_TYPE:
        width = t.entries[entry, T.SIZE_WIDTH]
        if width == 0:
            return end
    elif category == T.RESERVED:
        return SHORT
    size = length_at(buf, at, end, width)
    return at + width + size if size >= 0 and fits(at + width, size, end) else SHORT


@kernel
def entry_at(buf, at, end, kind, t):
    """The control, command or struct whose class code and code are at `at`; -1 when it is undefined."""
    if end - at < 2 or byte_at(buf, at) >= NUMBERS or byte_at(buf, at + 1) >= NUMBERS:
        return -1
    return int(t.lookup[kind, byte_at(buf, at), byte_at(buf, at + 1)])


@kernel
def packing_flags(buf, at, end, entry, t):
    """The packing flags of `entry` at `at`, field 0 in the lowest bit; SHORT when they are cut off, or a flag has no
    field. An entry without flag bytes has all fields."""
    pack = t.entries[entry, T.PACK]
    count = t.entries[entry, T.FIELD_END] - t.entries[entry, T.FIELD_FROM]
    if pack == 0:
        return (1 << count) - 1
    if end - at < pack:
        return SHORT
    flags = byte_at(buf, at)
    if pack == 2:
        flags |= byte_at(buf, at + 1) << 8
    return SHORT if flags >> count else flags


@kernel
def unknown_flags(buf, at, end, entry, t):
    """Whether the packing flags at `at` have a flag without a field of `entry`."""
    pack = t.entries[entry, T.PACK]
    return at >= 0 and pack > 0 and end - at >= pack and packing_flags(buf, at, end, entry, t) == SHORT


@kernel
def _items_fit(buf, at, end, form, t):
    """Whether the items of a map, list or array, which begins with its size at `at`, match its count and end exactly at
    `end`. Nested values with a size field are not parsed."""
    at += 4
    if at == end:
        return True
    number = -1
    if form == T.ARRAY_OF:
        number = u8(buf, at, end)
        at += 1
    count = u32(buf, at, end)
    at += 4
    if count > end - at:
        return False
    for _ in range(max(count, 0)):
        if form == T.MAP:
            at += 1 + max(u8(buf, at, end), 0)
        entry = number
        if form != T.ARRAY_OF:
            entry = u8(buf, at, end)
            at += 1
        at = extent(buf, at, end, entry, -1, t) if entry >= 0 else SHORT
        if at < 0:
            return False
    return count >= 0 and at == end


@kernel
def fields_in_place(buf, at, end, entry, t):
    """(fields of `entry` whose position is certain, end of the last of them); its packing flags are at `at`. All fields
    are certain when they end exactly at `end`. Otherwise only fields before the first secret are, and only if they fit
    and the mechanism among them has the form of one. Only the items of connection controls, which may be a login, are
    parsed."""
    count = int(t.entries[entry, T.FIELD_END] - t.entries[entry, T.FIELD_FROM])
    flags = packing_flags(buf, at, end, entry, t)
    if flags < 0:
        return 0, at
    at += int(t.entries[entry, T.PACK])
    certain = max(int(t.entries[entry, T.SECRET]), 0)
    of_connection = t.entries[entry, T.CLASS_CODE] == CONNECTION_CLASS
    ordinal, start, certain_at = 0, at, at
    while flags:
        if ordinal == certain:
            certain_at = at
        field = int(t.entries[entry, T.FIELD_FROM]) + ordinal
        number = int(t.fields[field, T.FIELD_TYPE])
        if flags & 1 and number != BIT_TYPE:
            after = extent(buf, at, end, number, int(t.fields[field, T.FIELD_OF]), t)
            form = int(t.types[T.FORM, number])
            if after >= 0 and of_connection and T.MAP <= form <= T.ARRAY_OF:
                after = after if _items_fit(buf, at, after, form, t) else SHORT
            if after < 0:
                return (certain, certain_at) if ordinal >= certain else (0, start)
            if t.fields[field, T.FIELD_DISCLOSURE] == SHOW_SASL_NAMES and not names_mechanism(
                buf, at + 1, after, end if flags & 2 else NO_RESPONSE
            ):
                certain, certain_at = 0, start
            at = after
        flags >>= 1
        ordinal += 1
    if at == end:
        return count, at
    if ordinal == certain:
        certain_at = at
    return (certain, certain_at) if ordinal >= certain else (0, start)


@kernel
def fields_fit(buf, at, end, entry, t):
    """Whether the packing flags at `at` and their fields, which are not parsed, end exactly at `end`."""
    if packing_flags(buf, at, end, entry, t) < 0:
        return False
    visible, after = fields_in_place(buf, at, end, entry, t)
    return after == end and visible == t.entries[entry, T.FIELD_END] - t.entries[entry, T.FIELD_FROM]


@kernel
def session_header_end(buf, at, end):
    """End of the session header of a command: an byte with its size, then flags."""
    size = u8(buf, at, end)
    return at + 1 + size if size >= 0 and fits(at + 1, size, end) else SHORT


@kernel
def segment_fits(buf, at, end, kind, t):
    """Whether a whole control (0), command (1) or header (2) segment fills `buf[at:end]` exactly."""
    if kind == 2:
        return sections_fit(buf, at, end, t)
    entry = entry_at(buf, at, end, kind, t)
    if entry < 0:
        return False
    at += 2
    if kind == T.COMMAND_ENTRY:
        at = session_header_end(buf, at, end)
    return at >= 0 and fields_fit(buf, at, end, entry, t)


@kernel
def sections_fit(buf, at, end, t):
    """Whether `buf[at:end]` is a sequence of defined struct32; at most `LIMITS.detect_entries` of them are checked."""
    if at == end:
        return False
    for _ in range(SECTIONS):
        if at == end:
            break
        size = u32(buf, at, end)
        if size < 0 or not fits(at + 4, size, end):
            return False
        entry = entry_at(buf, at + 4, at + 4 + size, T.STRUCT_ENTRY, t)
        if entry < 0 or not fields_fit(buf, at + 6, at + 4 + size, entry, t):
            return False
        at += 4 + size
    return True


@kernel
def content_length(buf, at, end, t):
    """The content-length in the message-properties of a header segment, their first field; -1 without one."""
    while fits(at, 8, end):
        size = u32(buf, at, end)
        if not fits(at + 4, size, end):
            return -1
        if entry_at(buf, at + 4, end, T.STRUCT_ENTRY, t) == t.special[T.MESSAGE_PROPERTIES]:
            high = u32(buf, at + 8, at + 4 + size)
            low = u32(buf, at + 12, at + 4 + size)
            if byte_at(buf, at + 6) & 1 == 0 or low < 0 or high >> 31:
                return -1
            return (high << 32) | low
        at += 4 + size
    return -1


@kernel
def header_flaw(buf, p, end):
    """The first flaw of the frame header at `p`, of which the bytes before `end` are checked: NO_ERROR or an ERRORS
    code. With E_SHORT_FRAME the frame has no end; with other flaws it may still be a frame."""
    have = end - p
    if have >= 4 and u16(buf, p + 2, end) < OVERHEAD:
        return E_SHORT_FRAME
    if have >= 2 and byte_at(buf, p + 1) > BODY_SEGMENT:
        return E_FRAME_TYPE
    if have >= 1 and byte_at(buf, p) & RESERVED_FLAGS:
        return E_RESERVED
    if have >= 5 and byte_at(buf, p + 4) != 0:
        return E_RESERVED
    for i in range(8, min(have, OVERHEAD)):
        if byte_at(buf, p + i) != 0:
            return E_RESERVED
    if have < 2:
        return NO_ERROR
    flags, kind = byte_at(buf, p), byte_at(buf, p + 1)
    if have >= 6 and byte_at(buf, p + 5) != (0 if kind == CONTROL_SEGMENT else 1):
        return E_TRACK
    begins = FIRST_SEGMENT if kind <= COMMAND_SEGMENT else 0
    if flags & FIRST_SEGMENT != begins or (kind == CONTROL_SEGMENT and not flags & LAST_SEGMENT):
        return E_TRACK
    return NO_ERROR


@kernel
def may_begin(buf, p, end, frame_cap, channel_cap):
    """Whether the bytes at `p` may be a frame header."""
    return header_flaw(buf, p, end) == NO_ERROR


@kernel
def v0_10_frame(buf, p, end, t, versions, frame_cap, channel_cap):
    """Judge the bytes at `p` as one frame; see `codec.protocol.frame_search`. Its size field bounds the frame."""
    if not may_begin(buf, p, end, frame_cap, channel_cap):
        return REJECT, 0, 0, versions
    if u16(buf, p + 6, end) > channel_cap:
        return REJECT, 0, 0, versions
    if end - p < OVERHEAD:  # bytes after the channel are reserved
        return UNDECIDED, u16(buf, p + 2, end) if end - p >= CHANNEL_END else 0, 0, versions
    flags, kind, size = byte_at(buf, p), byte_at(buf, p + 1), u16(buf, p + 2, end)
    start, stop = p + OVERHEAD, p + size
    coded = kind <= COMMAND_SEGMENT and flags & FIRST_FRAME
    if coded and end - start >= 2 and entry_at(buf, start, min(stop, end), kind, t) < 0:
        return REJECT, 0, 0, versions
    if stop > end:
        return UNDECIDED, size, POINTS_BEGUN, versions
    if kind == BODY_SEGMENT or flags & WHOLE_SEGMENT != WHOLE_SEGMENT:
        return ACCEPT, size, POINTS_BODY, versions
    if not segment_fits(buf, start, stop, kind, t):
        return REJECT, 0, 0, versions
    return ACCEPT, size, POINTS_PARSED, versions


v0_10_chain, find_v0_10, is_cut_v0_10 = search(v0_10_frame, may_begin, True)
