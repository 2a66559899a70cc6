"""Frames of AMQP 0-10 out of an ordered stream: one row each.

Frame (0-10 specification, section 9.2.2): flags octet, segment type octet, size short (of the whole frame), reserved
octet, track octet, channel short, four reserved octets, payload. `next_frame` takes one whole frame from the boundary
at `pos`; `tear` starts on a frame that a hole runs through, whose row is `partial`; `torn_row` ends it.
"""

from __future__ import annotations

import numpy as np

from codec.amqp import notes as N
from codec.amqp import rows as R
from codec.amqp.classic.contents import forget_contents
from codec.amqp.classic.frames import MODE_CHANGED, ROWS_FULL, TAKEN, WAIT
from codec.amqp.v0_10 import tables as T
from codec.amqp.v0_10.assemblies import (
    BROKEN,
    NOTHING,
    TORN_FLAGS,
    assembly_goes_on,
    body_bytes,
    command_begins,
    release,
    segment_slot,
    session_slot,
)
from codec.amqp.v0_10.detect import (
    BODY_SEGMENT,
    COMMAND_SEGMENT,
    CONTROL_SEGMENT,
    FIRST_FRAME,
    FIRST_SEGMENT,
    HEADER_SEGMENT,
    LAST_FRAME,
    LAST_SEGMENT,
    OVERHEAD,
    RESERVED_FLAGS,
    WHOLE_SEGMENT,
    header_flaw,
)
from codec.amqp.v0_10.segments import CODES, COMMAND_ID_OCTETS, begin_segment, keep_torn, name_row, opens, take_frame
from codec.amqp.versions import (
    BODY,
    COMMAND,
    CONTROL,
    E_FRAME_TYPE,
    E_MISSING_INSIDE,
    E_NO_COMMAND,
    E_SHORT_FRAME,
    HEADER,
    MALFORMED,
    NO_ERROR,
    PARTIAL,
    SKIPPED,
    UNKNOWN,
)
from codec.compiler.kernel import inlined, kernel
from codec.cursor import octet, u16
from codec.tcp.direction import FRAMES, INSIDE, LOST

KINDS = np.array([CONTROL, COMMAND, HEADER, BODY], np.int64)


@inlined
def next_frame(c, d, direction, s, rows, contents, a, t):
    """Take the frame at `pos`: TAKEN with its row appended, WAIT for more bytes, MODE_CHANGED when no frame begins
    here, ROWS_FULL with nothing changed."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if end - p < OVERHEAD:
        return WAIT
    flaw = header_flaw(buf, p, end)
    size = u16(buf, p + 2, end)
    stop = p + size
    if flaw == E_SHORT_FRAME:
        d.span_notes = N.FRAME_SHORT
        d.mode = LOST
        return MODE_CHANGED
    if stop > end and (flaw == NO_ERROR or not d.final):
        return WAIT
    if stop > end or (flaw != NO_ERROR and header_flaw(buf, stop, end) != NO_ERROR):
        d.mode = LOST
        return MODE_CHANGED
    kind = octet(buf, p + 1)
    offset = int(d.next) - (end - p)
    index = R.append_row(rows, c, direction, KINDS[kind] if kind <= BODY_SEGMENT else SKIPPED, offset, size)
    row = rows.cells[index]
    R.set_packets(row, d, s, offset, offset + size)
    row[R.CHANNEL] = u16(buf, p + 6, end)
    row[R.PAYLOAD_SIZE] = size - OVERHEAD
    if flaw != NO_ERROR:
        row[R.STATUS] = UNKNOWN if flaw == E_FRAME_TYPE else MALFORMED
        row[R.ERROR] = flaw
        row[R.NOTES] = _flaw_notes(octet(buf, p), kind, octet(buf, p + 5))
    d.pos = stop
    if kind > BODY_SEGMENT:
        d.skipped_bytes += size
    elif _fill(c, direction, buf, p, stop, row, rows.digest[index], rows, contents, a, t):
        d.frame_bytes += size
    else:
        d.pos = p
        R.cancel_row(rows, c)
        return ROWS_FULL
    return TAKEN


@kernel
def _flaw_notes(flags, kind, track):
    """What is odd about the flags and the track of a frame of this segment type."""
    notes = N.FRAME_FLAGS if flags & RESERVED_FLAGS else 0
    if kind > BODY_SEGMENT:
        return notes
    if track != (0 if kind == CONTROL_SEGMENT else 1):
        notes |= N.TRACK
    if flags & FIRST_SEGMENT != (FIRST_SEGMENT if kind <= COMMAND_SEGMENT else 0):
        notes |= N.SEGMENT_ORDER
    if kind == CONTROL_SEGMENT and not flags & LAST_SEGMENT:
        notes |= N.CONTROL_GOES_ON
    return notes


@inlined
def _fill(c, direction, buf, p, stop, row, digest, rows, contents, a, t):
    """What the frame `buf[p:stop]` says, into its row; False, with nothing changed, when a heap has no room for it."""
    flags, kind, start, channel = octet(buf, p), octet(buf, p + 1), p + OVERHEAD, int(row[R.CHANNEL])
    session = session_slot(a, contents.epochs, direction, channel)
    if kind == BODY_SEGMENT:
        is_content = not row[R.HANDSHAKE] and row[R.ERROR] == 0
        if c.keep_payload and is_content and not R.keep_payload(rows, row, buf, start, stop):
            return False
        body_bytes(a, contents.digests, session, buf, start, stop, row)
    else:
        slot = segment_slot(a, contents.epochs, direction, channel, 0 if kind == CONTROL_SEGMENT else 1)
        size = stop - start + (0 if flags & FIRST_FRAME else int(a.segments[slot].length))
        if flags & LAST_FRAME and int(rows.used[1]) + COMMAND_ID_OCTETS + size > len(rows.octets):
            return False
        if flags & FIRST_FRAME:
            begin_segment(buf, start, stop, flags, kind, slot, session, row, contents, a, t)
        take_frame(c, direction, buf, start, stop, flags, kind, slot, session, row, rows, contents, a, t)
    if kind != CONTROL_SEGMENT:
        ends = flags & LAST_SEGMENT and flags & LAST_FRAME
        if kind == HEADER_SEGMENT and not a.sessions[session].open and row[R.ERROR] == 0:
            row[R.ERROR] = E_NO_COMMAND
        assembly_goes_on(a, contents.digests, session, row, digest, ends)
    return True


@kernel
def tear(d, direction, s, a):
    """A hole follows `end`: if the bytes from `pos` are the beginning of a frame, go on INSIDE it. True when they are.
    Four octets tell where it ends."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if end - p < 4 or header_flaw(buf, p, end) != NO_ERROR:
        return False
    kind = octet(buf, p + 1)
    d.mode = INSIDE
    d.frame_from = int(d.next) - (end - p)
    d.frame_size = u16(buf, p + 2, end)
    d.frame_end = d.frame_from + d.frame_size
    d.frame_seen = end - p
    d.frame_type = KINDS[kind]
    d.frame_channel = u16(buf, p + 6, end)  # -1 when it is missing, too
    d.frame_class = -1
    d.frame_method = -1
    d.frame_body_size = -1
    a.numbers[TORN_FLAGS + direction] = octet(buf, p)
    if kind <= COMMAND_SEGMENT and octet(buf, p) & FIRST_FRAME and end - p >= OVERHEAD + CODES:
        d.frame_class = octet(buf, p + OVERHEAD)
        d.frame_method = octet(buf, p + OVERHEAD + 1)
    return True


@kernel
def torn_row(c, d, direction, torn, rows, contents, a, t):
    """The row of a frame that lost bytes, of which `torn` is there (its packets stand in the open span of `d`)."""
    index = R.append_row(rows, c, direction, int(d.frame_type), int(d.frame_from), int(d.frame_size))
    row = rows.cells[index]
    row[R.FIRST_PACKET] = d.span_first_packet
    row[R.FIRST_TS] = d.span_first_ns
    row[R.PACKET] = d.span_packet
    row[R.TS] = d.span_ns
    row[R.FILE] = d.span_file
    row[R.CHANNEL] = d.frame_channel
    row[R.STATUS] = PARTIAL
    row[R.ERROR] = E_MISSING_INSIDE
    row[R.PAYLOAD_SIZE] = max(0, min(int(d.frame_seen), int(d.frame_size)) - OVERHEAD)
    if d.frame_channel < 0:
        forget_contents(contents, direction)  # it may have been a frame of any assembly
    else:
        _torn_effects(c, d, direction, torn, row, rows, rows.digest[index], contents, a, t)
    d.frame_bytes += d.frame_seen
    d.span_from = -1
    d.mode = FRAMES


@kernel
def _torn_effects(c, d, direction, torn, row, rows, digest, contents, a, t):
    """What a frame that lost bytes does to the assembly and the segment that it belongs to, and what it says itself."""
    flags, channel = int(a.numbers[TORN_FLAGS + direction]), int(d.frame_channel)
    is_control = d.frame_type == CONTROL
    session = session_slot(a, contents.epochs, direction, channel)
    if d.frame_type == BODY:
        a.sessions[session].whole = 0
    else:
        slot = segment_slot(a, contents.epochs, direction, channel, 0 if is_control else 1)
        segment = a.segments[slot]
        if flags & FIRST_FRAME:
            release(a, slot)
            segment.kind = (
                CONTROL_SEGMENT if is_control else (COMMAND_SEGMENT if d.frame_type == COMMAND else HEADER_SEGMENT)
            )
            segment.class_code = d.frame_class
            segment.code = d.frame_method
            segment.entry = segment.command_id = -1
            if 0 <= d.frame_class < T.NUMBERS and d.frame_method < T.NUMBERS:
                segment.entry = t.lookup[segment.kind, d.frame_class, d.frame_method]
            if d.frame_type == COMMAND:
                opening = opens(flags, int(segment.entry), t)
                segment.command_id = command_begins(a, contents.digests, session, row, opening)
        if flags & FIRST_FRAME or (d.frame_type != HEADER and segment.state != NOTHING):
            name_row(row, segment, t)
        if is_control and (segment.entry < 0 or segment.entry == t.special[T.COMMAND_POINT]):
            a.sessions[session].next_id = -1
        if flags & WHOLE_SEGMENT == WHOLE_SEGMENT and len(torn) > OVERHEAD:
            keep_torn(c, torn, OVERHEAD, min(len(torn), int(row[R.SIZE])), segment, row, rows, t)
        release(a, slot)
        if flags & WHOLE_SEGMENT != WHOLE_SEGMENT and not flags & LAST_FRAME:
            segment.state = BROKEN
    if not is_control:
        assembly_goes_on(a, contents.digests, session, row, digest, flags & LAST_SEGMENT and flags & LAST_FRAME)
