"""Detection of frames of AMQP 1.0 (`codec.amqp.frame_search`).

They have no end octet. The evidence is the frame header (size, DOFF, type: part 2, section 2.3) and a performative
whose descriptor, list and fields are as the fact table defines them.
"""

from __future__ import annotations

from codec.amqp.frame_search import ACCEPT, POINTS_BEGUN, POINTS_BODY, POINTS_PARSED, REJECT, UNDECIDED, search
from codec.amqp.v1_0 import tables as T
from codec.amqp.v1_0.constructors import DESCRIBED, NULL, compound, descriptor, is_descriptor, skip
from codec.amqp.versions import AMQP, SASL
from codec.compiler.kernel import kernel
from codec.cursor import octet, u8, u16, u32

FRAME_HEADER = 8
WORD = 4  # unit of DOFF
AMQP_FRAME, SASL_FRAME = 0, 1
DESCRIPTOR = 40  # octets in which the descriptor of every performative has ended
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
    start, end, count = compound(buf, at + 1, stop, octet(buf, at), t)
    first, last = int(t.descriptor[definition].field_from), int(t.descriptor[definition].field_end)
    certain = max(int(t.descriptor[definition].secret), 0)
    if count > last - first:
        return 0, -1
    at = start
    for place in range(count):
        code = u8(buf, at, end)
        if code < 0:
            return min(certain, place), -1
        field = first + place
        kind = T.DESCRIBED_VALUE if code == DESCRIBED else int(t.constructor[code].type)
        if code == NULL:
            kind = -1 if t.field[field].mandatory else kind
        elif kind >= 0 and not (kind == T.ARRAY and t.field[field].multiple):
            kind = kind if int(t.field[field].types) >> kind & 1 else -1
        at = skip(buf, at, end, t)
        if kind < 0 or at < 0:
            return min(certain, place), -1
    return (count, end) if at == end else (min(certain, count), -1)


@kernel
def fields_end(buf, at, stop, definition, t):
    """The offset after the list at `at` when every item is a field of the composite `definition`, of an allowed type;
    else -1."""
    _, end = fields_in_place(buf, at, stop, definition, t)
    return end


@kernel
def may_begin(buf, p, end, frame_cap, channel_cap):
    """Whether the highest octet of the size at `p`, the data offset and the type may be those of a frame."""
    if octet(buf, p) > frame_cap >> 24:
        return False
    if p + WORD < end and not 2 <= octet(buf, p + WORD) <= MOST_DOFF:
        return False
    return p + 5 >= end or octet(buf, p + 5) <= SASL_FRAME


@kernel
def v1_0_frame(buf, p, end, t, versions, frame_cap, channel_cap):
    """Judge the bytes at `p` as one frame; see `codec.amqp.frame_search`."""
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
        known = start + DESCRIPTOR <= end or stop <= end or (start < end and octet(buf, start) != DESCRIBED)
        return (REJECT if known else UNDECIDED), size, 0, versions
    if t.descriptor[definition].frame_type != (AMQP if kind == AMQP_FRAME else SASL):
        return REJECT, 0, 0, versions
    if stop > end:
        return UNDECIDED, size, POINTS_BEGUN, versions
    after = fields_end(buf, at, stop, definition, t)
    if after < 0 or (after < stop and definition != t.places[0].transfer):
        return REJECT, 0, 0, versions
    return ACCEPT, size, POINTS_PARSED, versions


v1_0_chain, find_v1_0, is_cut_v1_0 = search(v1_0_frame, may_begin, False)
