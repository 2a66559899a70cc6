"""Detection of frames of AMQP 1.0 (`codec.protocol.frame_search`).

They have no end byte. The evidence is the frame header (size, DOFF, type: part 2, section 2.3) and a performative
whose descriptor, list and fields are as the fact table defines them.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.cursor import (
    byte_at,
    exceeds_i64,
    fits,
    i64,
    is_utf8,
    u8,
    u16,
    u32,
)
from codec.protocol import v1_0_tables as T
from codec.protocol.frame_search import ACCEPT, POINTS_BEGUN, POINTS_BODY, POINTS_PARSED, REJECT, UNDECIDED, search
from codec.protocol.versions import AMQP, SASL

# Extents of AMQP 1.0 values, without decoding them: sizes, descriptors, heads of sections.
#
# Sources: part 1, sections 1.2 and 1.3; part 3, section 3.2. Only `is_text_map` reads items of a container: its keys.
# Cost of the other functions: constant.


DESCRIBED, NULL, SMALL_ULONG = 0x00, 0x40, 0x53  # constructors
NO_HEAD = -1  # not a section
MORE = -2  # the head of the section is incomplete
CONSTRUCTORS = 4 * LIMITS.nesting_depth  # of one value outside containers: twice its possible nesting


@kernel
def unsigned(buf, at, width):
    """The big-endian unsigned integer of `width` bytes (1, 2 or 4) at `at`, which the caller knows to fit."""
    if width == 1:
        return byte_at(buf, at)
    return u16(buf, at, at + 2) if width == 2 else u32(buf, at, at + 4)


@kernel
def length_at(buf, at, end, width):
    """The length of `width` bytes (1 or 4) at `at`, or -1."""
    return u8(buf, at, end) if width == 1 else u32(buf, at, end)


@kernel
def skip(buf, at, end, t):
    """The offset after the value whose constructor is at `at`; -1 when it does not end before `end`, or has too many
    descriptors (so that the cost is constant)."""
    values = 1  # remaining; a described value is two: descriptor and value
    for _ in range(CONSTRUCTORS):
        code = u8(buf, at, end)
        at += 1
        if code == DESCRIBED:
            values += 1
            continue
        if code < 0 or t.constructor[code].type < 0:
            return -1
        width = int(t.constructor[code].width)
        if t.constructor[code].category != T.FIXED:
            size = length_at(buf, at, end, width)
            if size < 0:
                return -1
            at += size
        at += width
        if at > end:
            return -1
        values -= 1
        if values == 0:
            return at
    return -1


@kernel
def compound(buf, at, end, code, t):
    """The list, map or array with constructor `code` whose bytes begin at `at`: (start of its items, their end, number
    of items), (-1, -1, 0) when it does not fit. Items of an array begin with their constructor."""
    width = int(t.constructor[code].width)
    if t.constructor[code].category == T.FIXED:
        return at, at, 0
    size = length_at(buf, at, end, width)
    if size < width or not fits(at + width, size, end):
        return -1, -1, 0
    return at + 2 * width, at + width + size, length_at(buf, at + width, end, width)


@kernel
def text_span(buf, at, end, t):
    """The string or symbol whose constructor is at `at` (-1: none): (start, end), or (-1, -1)."""
    code = u8(buf, at, end) if at >= 0 else -1
    if code < 0 or (t.constructor[code].type != T.STRING and t.constructor[code].type != T.SYMBOL):
        return -1, -1
    width = int(t.constructor[code].width)
    size = length_at(buf, at + 1, end, width)
    start = at + 1 + width
    if size < 0 or not fits(start, size, end):
        return -1, -1
    return start, start + size


@kernel
def symbol_span(buf, at, end, t):
    """`text_span` of a symbol; (-1, -1) for a string."""
    start, stop = text_span(buf, at, end, t)
    return (start, stop) if start >= 0 and t.constructor[byte_at(buf, at)].type == T.SYMBOL else (-1, -1)


@kernel
def unsigned_value(buf, at, end, t):
    """The ubyte, ushort, uint or ulong whose constructor is at `at`; -1 for none, `at` -1, and those above 2^63-1."""
    code = u8(buf, at, end) if at >= 0 else -1
    if code <= 0 or t.constructor[code].type < T.UBYTE or t.constructor[code].type > T.ULONG:
        return -1
    width = int(t.constructor[code].width)
    if not fits(at + 1, width, end):
        return -1
    if width == 0:
        return int(t.constructor[code].constant)
    if width < 8:
        return unsigned(buf, at + 1, width)
    bits = i64(buf, at + 1, end)
    return -1 if exceeds_i64(bits) else bits


@kernel
def is_true(buf, at, end, t):
    """Whether the value at `at` (-1: none) is the boolean true."""
    code = u8(buf, at, end) if at >= 0 else -1
    if code < 0 or t.constructor[code].type != T.BOOLEAN:
        return False
    return t.constructor[code].constant != 0 if t.constructor[code].width == 0 else u8(buf, at + 1, end) > 0


@kernel
def _is_symbol(buf, start, stop, text, text_start, text_end):
    same = stop - start == text_end - text_start
    at = 0
    while same and at < stop - start:
        same = buf[start + at] == text[text_start + at]
        at += 1
    return same


@kernel
def is_descriptor(buf, at, end, t):
    """Whether the bytes from `at` can begin a descriptor: its constructor, if present, is of a number or symbol."""
    code = u8(buf, at, end)
    if code <= 0:
        return code < 0
    kind = t.constructor[code].type
    return kind in (T.ULONG, T.SYMBOL)


@kernel
def descriptor(buf, at, end, t):
    """The descriptor whose constructor is at `at` (after the byte 0): (its index in the tables or -1, its code or -1,
    the offset after it or -1). A symbol has its code in the fact table."""
    if u8(buf, at, end) == SMALL_ULONG and end - at >= 2:  # nearly every descriptor
        code = byte_at(buf, at + 1)
        return int(t.by_code[code]), code, at + 2
    code = unsigned_value(buf, at, end, t)
    if code >= 0:
        return int(t.by_code[code]) if code < len(t.by_code) else -1, code, skip(buf, at, end, t)
    start, stop = text_span(buf, at, end, t)
    if start < 0:
        return -1, -1, skip(buf, at, end, t)
    for i in range(len(t.descriptor)):
        d = t.descriptor[i]
        if _is_symbol(buf, start, stop, t.text, int(d.symbol_from), int(d.symbol_end)):
            return i, int(d.code), stop
    return -1, -1, stop


@kernel
def is_text_map(buf, start, stop, count, t):
    """Whether every key of the map items in `buf[start:stop]` is a string or symbol in UTF-8."""
    at = start
    for _ in range(count // 2):
        text, text_end = text_span(buf, at, stop, t)
        if text < 0 or not is_utf8(buf, text, text_end):
            return False
        at = skip(buf, text_end, stop, t)
        if at < 0:
            return True  # broken after a text key: written up to there
    return True


@kernel
def may_follow(section, before):
    """Whether a message may have `section` right after the section `before` (-1: none): each once and in order, of the
    body one kind, which may have several data or sequence sections (part 3, section 3.2)."""
    if section == before:
        return section == T.DATA or section == T.SEQUENCE
    return section > before and not (T.DATA <= before <= T.VALUE and section <= T.VALUE)


@kernel
def entries_fit(buf, at, end, section, t):
    """Whether the entries of the map at `at`, which is the value of `section`, are of the types that its definition
    allows: annotations have symbols or ulongs for keys; application properties strings, and simple values (part 3,
    sections 3.2.5 and 3.2.10). True of what is no map, or does not parse."""
    code = u8(buf, at, end)
    if code <= 0 or t.constructor[code].type != T.MAP:
        return True
    at, stop, count = compound(buf, at + 1, end, code, t)
    of_application = section == T.APPLICATION_PROPERTIES
    for _ in range(count // 2 if at >= 0 else 0):
        value = skip(buf, at, stop, t)
        after = skip(buf, value, stop, t) if value >= 0 else -1
        if after < 0:
            return True
        key, kind = int(t.constructor[byte_at(buf, at)].type), int(t.constructor[byte_at(buf, value)].type)
        if of_application and (key != T.STRING or kind in (T.LIST, T.MAP, T.ARRAY)):
            return False
        if not of_application and key not in (T.SYMBOL, T.ULONG):
            return False
        at = after
    return True


@kernel
def section_head(buf, at, end, t):
    """The section at `at`: (section or NO_HEAD or MORE, offset of its value's constructor, offset of the contents of
    the value, size of the contents)."""
    if at >= end:
        return MORE, at, at, 0
    if byte_at(buf, at) != DESCRIBED:
        return NO_HEAD, at, at, 0
    definition, _, value = descriptor(buf, at + 1, end, t)
    if value < 0:
        return (MORE if is_descriptor(buf, at + 1, end, t) else NO_HEAD), at, at, 0
    if definition < 0 or t.descriptor[definition].section < 0:
        return NO_HEAD, at, at, 0
    inner, code = value, u8(buf, value, end)
    while code == DESCRIBED:
        inner = skip(buf, inner + 1, end, t)
        if inner < 0:
            return MORE, at, at, 0
        code = u8(buf, inner, end)
    if code < 0:
        return MORE, at, at, 0
    if t.constructor[code].type < 0:
        return NO_HEAD, at, at, 0
    width = int(t.constructor[code].width)
    if t.constructor[code].category == T.FIXED:
        return int(t.descriptor[definition].section), value, inner + 1, width
    size = length_at(buf, inner + 1, end, width)
    if size < 0:
        return MORE, at, at, 0
    return int(t.descriptor[definition].section), value, inner + 1 + width, size


@kernel
def is_operation(buf, value, end, t):
    """Whether the value of a section is for a transaction coordinator (declare, discharge: part 4, section 4.5)."""
    if u8(buf, value, end) != DESCRIBED:
        return False
    definition, _, _ = descriptor(buf, value + 1, end, t)
    return definition >= 0 and t.descriptor[definition].transactional != 0


FRAME_HEADER = 8
WORD = 4  # unit of DOFF
AMQP_FRAME, SASL_FRAME = 0, 1
DESCRIPTOR = 40  # bytes in which the descriptor of every performative has ended
MOST_DOFF = 16  # no extended header is defined; a frame with a long one is rejected


@kernel
def performative(buf, start, stop, t):
    """The performative at `start` of a frame body that ends at `stop`: (its index in the tables or -1, its numeric
    descriptor or -1, offset of its list's constructor or -1)."""
    if u8(buf, start, stop) != DESCRIBED or not is_descriptor(buf, start + 1, stop, t):
        return -1, -1, -1
    definition, code, after = descriptor(buf, start + 1, stop, t)
    if definition >= 0 and t.descriptor[definition].frame_type < 0:
        definition = -1
    return definition, code, after


@kernel
def is_list(buf, at, stop, t):
    """Whether the value at `at` (-1: none) is a list that ends before `stop`."""
    code = u8(buf, at, stop) if at >= 0 else -1
    return code > 0 and t.constructor[code].type == T.LIST and compound(buf, at + 1, stop, code, t)[0] >= 0


@kernel
def fields_in_place(buf, at, stop, definition, t):
    """(items of the list at `at` that are fields of the composite `definition`, end of the list). The end is -1 unless
    every item is a field of an allowed type; then only items before the first field that may hold a secret are
    counted."""
    if not is_list(buf, at, stop, t):
        return 0, -1
    start, end, count = compound(buf, at + 1, stop, byte_at(buf, at), t)
    first, last = int(t.descriptor[definition].field_from), int(t.descriptor[definition].field_end)
    certain = max(int(t.descriptor[definition].secret), 0)
    if count > last - first:
        return 0, -1
    at = start
    for index in range(count):
        code = u8(buf, at, end)
        if code < 0:
            return min(certain, index), -1
        field = first + index
        kind = T.DESCRIBED_VALUE if code == DESCRIBED else int(t.constructor[code].type)
        if code == NULL:
            kind = -1 if t.field[field].mandatory else kind
        elif kind >= 0 and not (kind == T.ARRAY and t.field[field].multiple):
            kind = kind if int(t.field[field].types) >> kind & 1 else -1
        at = skip(buf, at, end, t)
        if kind < 0 or at < 0:
            return min(certain, index), -1
    return (count, end) if at == end else (min(certain, count), -1)


@kernel
def fields_end(buf, at, stop, definition, t):
    """The offset after the list at `at` when every item is a field of the composite `definition`, of an allowed type;
    else -1."""
    _, end = fields_in_place(buf, at, stop, definition, t)
    return end


@kernel
def may_begin(buf, p, end, frame_cap, channel_cap):
    """Whether the highest byte of the size at `p`, the data offset and the type may be those of a frame."""
    if byte_at(buf, p) > frame_cap >> 24:
        return False
    if p + WORD < end and not 2 <= byte_at(buf, p + WORD) <= MOST_DOFF:
        return False
    return p + 5 >= end or byte_at(buf, p + 5) <= SASL_FRAME


@kernel
def v1_0_frame(buf, p, end, t, versions, frame_cap, channel_cap):
    """Judge the bytes at `p` as one frame; see `codec.protocol.frame_search`."""
    if p < end and not may_begin(buf, p, end, frame_cap, channel_cap):
        return REJECT, 0, 0, versions
    size, doff = u32(buf, p, end), u8(buf, p + WORD, end)
    if size >= 0 and (size < FRAME_HEADER or size > frame_cap):
        return REJECT, 0, 0, versions
    if size >= 0 and doff >= 0 and doff * WORD > size:
        return REJECT, 0, 0, versions
    kind, channel = u8(buf, p + 5, end), u16(buf, p + 6, end)
    if channel > channel_cap and kind == AMQP_FRAME:
        return REJECT, 0, 0, versions
    if size < 0 or channel < 0:
        return UNDECIDED, 0, 0, versions
    start, stop = p + doff * WORD, p + size
    if start == stop:
        if kind != AMQP_FRAME:
            return REJECT, 0, 0, versions
        return (ACCEPT if stop <= end else UNDECIDED), size, POINTS_BODY if stop <= end else 0, versions
    definition, _, at = performative(buf, start, min(stop, end), t)
    if definition < 0:
        known = start + DESCRIPTOR <= end or stop <= end or (start < end and byte_at(buf, start) != DESCRIBED)
        return (REJECT if known else UNDECIDED), size, 0, versions
    if t.descriptor[definition].frame_type != (AMQP if kind == AMQP_FRAME else SASL):
        return REJECT, 0, 0, versions
    if stop > end:
        return UNDECIDED, size, POINTS_BEGUN, versions
    after = fields_end(buf, at, stop, definition, t)
    if after < 0 or (after < stop and definition != t.index_of[0].transfer):
        return REJECT, 0, 0, versions
    return ACCEPT, size, POINTS_PARSED, versions


v1_0_chain, find_v1_0, is_cut_v1_0 = search(v1_0_frame, may_begin, False)
