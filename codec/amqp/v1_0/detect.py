"""Does a frame of AMQP 1.0 begin here? The counterpart of `codec.amqp.detect` for streams without a known boundary.

A frame has no end octet; what speaks for it is its header (size, DOFF, type: part 2, section 2.3) and a performative
whose descriptor, list and fields are as the fact table has them.
"""

from __future__ import annotations

from codec.amqp.detect import (
    ACCEPT,
    FRAMES_KNOWN,
    FRAMES_UNKNOWN,
    NEED_KNOWN,
    NEED_UNKNOWN,
    POINTS_BODY,
    POINTS_PARSED,
    REJECT,
    UNDECIDED,
    UNKNOWN_FRAME_MAX,
)
from codec.amqp.v1_0 import tables as T
from codec.amqp.v1_0.constructors import DESCRIBED, NULL, compound, descriptor, is_descriptor, skip
from codec.amqp.versions import AMQP, SASL, UNKNOWN_FAMILY
from codec.compiler.kernel import kernel
from codec.cursor import octet, u8, u16, u32

FRAME_HEADER = 8
WORD = 4  # unit of DOFF
AMQP_FRAME, SASL_FRAME = 0, 1
DESCRIPTOR = 40  # octets in which the descriptor of every performative has ended
MOST_DOFF = 16  # nobody has defined an extended header; a boundary is not believed behind a long one


@kernel
def performative(buf, start, stop, t):
    """The performative at `start` of a frame's body that ends at `stop`: (its index in the tables or -1, its numeric
    descriptor or -1, offset of its list's constructor or -1)."""
    if u8(buf, start, stop) != DESCRIBED or not is_descriptor(buf, start + 1, stop, t):
        return -1, -1, -1
    of, code, after = descriptor(buf, start + 1, stop, t)
    if of >= 0 and t.descriptor[of].frame_type < 0:
        of = -1
    return of, code, after


@kernel
def is_list(buf, at, stop, t):
    """Whether a list that ends before `stop` has its constructor at `at` (-1: nothing does)."""
    code = u8(buf, at, stop) if at >= 0 else -1
    return code > 0 and t.constructor[code].type == T.LIST and compound(buf, at + 1, stop, code, t)[0] >= 0


@kernel
def fields_in_place(buf, at, stop, of, t):
    """How many items of the list at `at` are fields of the composite `of`, each of an allowed type, and where the list
    ends: -1 unless all of it is such. Of those that are not fields for certain none is counted from the first on that
    may hold a secret."""
    if not is_list(buf, at, stop, t):
        return 0, -1
    start, end, count = compound(buf, at + 1, stop, octet(buf, at), t)
    first, last = int(t.descriptor[of].field_from), int(t.descriptor[of].field_end)
    certain = max(int(t.descriptor[of].secret), 0)
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
def fields_end(buf, at, stop, of, t):
    """The offset after the list at `at` when its items are fields of the composite `of`, each of an allowed type; else
    -1."""
    _, end = fields_in_place(buf, at, stop, of, t)
    return end


@kernel
def described_frame(buf, p, end, t, frame_cap, channel_cap):
    """Judge the bytes at `p` as one frame: (verdict, its size, points).

    UNDECIDED: nothing speaks against it, but it reaches beyond `end`.
    """
    size, doff = u32(buf, p, end), u8(buf, p + WORD, end)
    if size >= 0 and (size < FRAME_HEADER or size > frame_cap):
        return REJECT, 0, 0
    if size >= 0 and doff >= 0 and (doff < 2 or doff > MOST_DOFF or doff * WORD > size):
        return REJECT, 0, 0
    kind, channel = u8(buf, p + 5, end), u16(buf, p + 6, end)
    if kind > SASL_FRAME or (channel > channel_cap and kind == AMQP_FRAME):
        return REJECT, 0, 0
    if size < 0 or channel < 0:
        return UNDECIDED, 0, 0
    start, stop = p + doff * WORD, p + size
    if start == stop:
        if kind != AMQP_FRAME:
            return REJECT, 0, 0
        return (ACCEPT if stop <= end else UNDECIDED), size, POINTS_BODY
    of, _, at = performative(buf, start, min(stop, end), t)
    if of < 0:
        known = start + DESCRIPTOR <= end or stop <= end or (start < end and octet(buf, start) != DESCRIBED)
        return (REJECT if known else UNDECIDED), 0, 0
    if t.descriptor[of].frame_type != (AMQP if kind == AMQP_FRAME else SASL):
        return REJECT, 0, 0
    if stop > end:
        return UNDECIDED, size, 0
    after = fields_end(buf, at, stop, of, t)
    if after < 0 or (after < stop and of != t.places[0].transfer):
        return REJECT, 0, 0
    return ACCEPT, size, POINTS_PARSED


@kernel
def described_chain(buf, p, end, ended, t, frame_cap, channel_cap, known):
    """Does a chain of frames begin at `p`? `ended`: no byte will follow `end` (the stream or its part is over)."""
    need = NEED_KNOWN if known else NEED_UNKNOWN
    least = FRAMES_KNOWN if known else FRAMES_UNKNOWN
    points, frames = 0, 0
    while True:
        verdict, size, more = described_frame(buf, p, end, t, frame_cap, channel_cap)
        if verdict != ACCEPT:
            return REJECT if ended else verdict
        points += more
        frames += 1
        if points >= need and frames >= least:
            return ACCEPT
        p += size


@kernel
def find_described(buf, p, end, ended, t, c):
    """First position from `p` where a chain begins: (ACCEPT, position), or (UNDECIDED, first position not ruled out).

    `c` (CONNECTION record) says whether the stream is known to be AMQP, and which limits its peers agreed on.
    """
    frame_cap = int(c.frame_max) if c.frame_max > 0 else UNKNOWN_FRAME_MAX
    channel_cap = int(c.channel_max) if c.channel_max > 0 else 65535
    known = c.family != UNKNOWN_FAMILY
    while p < end:
        if octet(buf, p) <= frame_cap >> 24:  # the first octet of the size
            verdict = described_chain(buf, p, end, ended, t, frame_cap, channel_cap, known)
            if verdict != REJECT:
                return verdict, p
        p += 1
    return UNDECIDED, p


@kernel
def cut_described_chain(buf, p, end, t, c):
    """Whether whole frames from `p` on lead to one that names its performative, and goes on behind `end`."""
    frame_cap = int(c.frame_max) if c.frame_max > 0 else UNKNOWN_FRAME_MAX
    channel_cap = int(c.channel_max) if c.channel_max > 0 else 65535
    while True:
        verdict, size, points = described_frame(buf, p, end, t, frame_cap, channel_cap)
        if verdict != ACCEPT:
            return verdict == UNDECIDED and size > 0 and points == 0
        p += size
