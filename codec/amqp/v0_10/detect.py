"""Detection of frames of 0-10 (`codec.amqp.frame_search`).

They have no end octet. The evidence is the frame header, of which about fifty bits are fixed (flags, type, track,
reserved octets), and payloads that parse exactly.
"""

from __future__ import annotations

from codec.amqp.frame_search import ACCEPT, POINTS_BODY, POINTS_PARSED, REJECT, UNDECIDED, search
from codec.amqp.v0_10.extents import entry_at, segment_fits
from codec.amqp.versions import E_FRAME_TYPE, E_RESERVED, E_SHORT_FRAME, E_TRACK, NO_ERROR
from codec.compiler.kernel import kernel
from codec.cursor import octet, u16

OVERHEAD = 12
CONTROL_SEGMENT, COMMAND_SEGMENT, HEADER_SEGMENT, BODY_SEGMENT = range(4)
FIRST_SEGMENT, LAST_SEGMENT, FIRST_FRAME, LAST_FRAME = 8, 4, 2, 1
WHOLE_SEGMENT = FIRST_FRAME | LAST_FRAME
RESERVED_FLAGS = 0xF0


@kernel
def header_flaw(buf, p, end):
    """The first flaw of the frame header at `p`, of which the octets before `end` are checked: NO_ERROR or an ERRORS
    code. With E_SHORT_FRAME the frame has no end; with other flaws it may still be a frame."""
    have = end - p
    if have >= 4 and u16(buf, p + 2, end) < OVERHEAD:
        return E_SHORT_FRAME
    if have >= 2 and octet(buf, p + 1) > BODY_SEGMENT:
        return E_FRAME_TYPE
    if have >= 1 and octet(buf, p) & RESERVED_FLAGS:
        return E_RESERVED
    if have >= 5 and octet(buf, p + 4) != 0:
        return E_RESERVED
    for i in range(8, min(have, OVERHEAD)):
        if octet(buf, p + i) != 0:
            return E_RESERVED
    if have < 2:
        return NO_ERROR
    flags, kind = octet(buf, p), octet(buf, p + 1)
    if have >= 6 and octet(buf, p + 5) != (0 if kind == CONTROL_SEGMENT else 1):
        return E_TRACK
    begins = FIRST_SEGMENT if kind <= COMMAND_SEGMENT else 0
    if flags & FIRST_SEGMENT != begins or (kind == CONTROL_SEGMENT and not flags & LAST_SEGMENT):
        return E_TRACK
    return NO_ERROR


@kernel
def v0_10_frame(buf, p, end, t, versions, frame_cap, channel_cap):
    """Judge the bytes at `p` as one frame; see `codec.amqp.frame_search`. Its size field bounds the frame."""
    if header_flaw(buf, p, end) != NO_ERROR:
        return REJECT, 0, 0, versions
    if end - p < OVERHEAD:
        return UNDECIDED, 0, 0, versions
    if u16(buf, p + 6, end) > channel_cap:
        return REJECT, 0, 0, versions
    flags, kind, size = octet(buf, p), octet(buf, p + 1), u16(buf, p + 2, end)
    start, stop = p + OVERHEAD, p + size
    coded = kind <= COMMAND_SEGMENT and flags & FIRST_FRAME
    if coded and end - start >= 2 and entry_at(buf, start, min(stop, end), kind, t) < 0:
        return REJECT, 0, 0, versions
    if stop > end:
        return UNDECIDED, size, 0, versions
    if kind == BODY_SEGMENT or flags & WHOLE_SEGMENT != WHOLE_SEGMENT:
        return ACCEPT, size, POINTS_BODY, versions
    if not segment_fits(buf, start, stop, kind, t):
        return REJECT, 0, 0, versions
    return ACCEPT, size, POINTS_PARSED, versions


v0_10_chain, find_v0_10, is_cut_v0_10 = search(v0_10_frame, True)
