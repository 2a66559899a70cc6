"""Is this AMQP 0-10, and where does a frame begin? The counterpart of `codec.amqp.detect` for frames without an end
octet.

What stands for the end octet: some fifty bits of the frame header that are fixed (flags, type, track, reserved octets),
and payloads that parse exactly.
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
)
from codec.amqp.v0_10.extents import entry_at, segment_fits
from codec.amqp.versions import E_FRAME_TYPE, E_RESERVED, E_SHORT_FRAME, E_TRACK, NO_ERROR, UNKNOWN_FAMILY
from codec.compiler.kernel import kernel
from codec.cursor import octet, u16

OVERHEAD = 12
CONTROL_SEGMENT, COMMAND_SEGMENT, HEADER_SEGMENT, BODY_SEGMENT = range(4)
FIRST_SEGMENT, LAST_SEGMENT, FIRST_FRAME, LAST_FRAME = 8, 4, 2, 1
WHOLE_SEGMENT = FIRST_FRAME | LAST_FRAME
RESERVED_FLAGS = 0xF0


@kernel
def header_flaw(buf, p, end):
    """What is wrong with the frame header at `p`, as far as it stands before `end`: NO_ERROR or an ERRORS code.
    E_SHORT_FRAME: the frame has no end; other flaws leave it a frame that somebody may have meant."""
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
def segmented_frame(buf, p, end, t, channel_cap):
    """Judge the bytes at `p` as one frame: (verdict, its size, points). UNDECIDED: nothing speaks against it, but it
    reaches beyond `end`."""
    if header_flaw(buf, p, end) != NO_ERROR:
        return REJECT, 0, 0
    if end - p < OVERHEAD:
        return UNDECIDED, 0, 0
    if u16(buf, p + 6, end) > channel_cap:
        return REJECT, 0, 0
    flags, kind, size = octet(buf, p), octet(buf, p + 1), u16(buf, p + 2, end)
    start, stop = p + OVERHEAD, p + size
    coded = kind <= COMMAND_SEGMENT and flags & FIRST_FRAME
    if coded and end - start >= 2 and entry_at(buf, start, min(stop, end), kind, t) < 0:
        return REJECT, 0, 0
    if stop > end:
        return UNDECIDED, size, 0
    if kind == BODY_SEGMENT or flags & WHOLE_SEGMENT != WHOLE_SEGMENT:
        return ACCEPT, size, POINTS_BODY
    if not segment_fits(buf, start, stop, kind, t):
        return REJECT, 0, 0
    return ACCEPT, size, POINTS_PARSED


@kernel
def segmented_chain(buf, p, end, ended, t, channel_cap, known):
    """Does a chain of frames begin at `p`? `ended`: no byte will follow `end` (the stream or its part is over)."""
    need = NEED_KNOWN if known else NEED_UNKNOWN
    least = FRAMES_KNOWN if known else FRAMES_UNKNOWN
    points, frames = 0, 0
    while True:
        verdict, size, more = segmented_frame(buf, p, end, t, channel_cap)
        if verdict == REJECT:
            return REJECT
        if verdict == UNDECIDED:
            if not ended:
                return UNDECIDED
            # the last frame before a hole or the end: accept a lone body that ends exactly there
            return ACCEPT if known and frames > 0 and p >= end else REJECT
        points += more
        frames += 1
        if points >= need and frames >= least:
            return ACCEPT
        p += size


@kernel
def find_segmented_chain(buf, p, end, ended, t, c):
    """First position from `p` where a chain begins: (ACCEPT, position), or (UNDECIDED, first position not ruled
    out)."""
    channel_cap = int(c.channel_max) if c.channel_max > 0 else 65535
    known = c.family != UNKNOWN_FAMILY
    while p < end:
        verdict = segmented_chain(buf, p, end, ended, t, channel_cap, known)
        if verdict != REJECT:
            return verdict, p
        p += 1
    return UNDECIDED, p


@kernel
def cut_segmented_chain(buf, p, end, t, c):
    """Whether whole frames from `p` on lead to one whose header is there, and that goes on behind `end`."""
    channel_cap = int(c.channel_max) if c.channel_max > 0 else 65535
    while True:
        verdict, size, _ = segmented_frame(buf, p, end, t, channel_cap)
        if verdict != ACCEPT:
            return verdict == UNDECIDED and size > 0
        p += size
