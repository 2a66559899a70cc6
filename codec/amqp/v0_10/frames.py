"""Frames of AMQP 0-10 in an ordered stream: one row each.

Frame (0-10 specification, section 9.2.2): flags octet, segment type octet, size short (of the whole frame), reserved
octet, track octet, channel short, four reserved octets, payload. `next_frame` takes one whole frame from the boundary
at `pos`. A frame that lost bytes begins with `begin_partial` and ends with `partial_row`; its row has the status
'partial'.
"""

from __future__ import annotations

import numpy as np

from codec.amqp import notes as N
from codec.amqp import rows as R
from codec.amqp import versions as V
from codec.amqp.classic.contents import reset_contents
from codec.amqp.classic.frames import DECODED, MODE_CHANGED, ROWS_FULL, WAIT
from codec.amqp.v0_10 import assemblies as A
from codec.amqp.v0_10 import detect as D
from codec.amqp.v0_10 import tables as T
from codec.amqp.v0_10.segments import CODES, COMMAND_ID_OCTETS, add_frame, begin_segment, name_row, opens, store_partial
from codec.compiler.kernel import inlined, kernel
from codec.cursor import octet, u16
from codec.tcp.direction import LOST

KINDS = np.array([V.CONTROL, V.COMMAND, V.HEADER, V.BODY], np.int64)


@inlined
def next_frame(c, d, direction, s, rows, contents, a, t):
    """Decode the frame at `pos`: DECODED (its row was appended), WAIT (more bytes are needed), MODE_CHANGED (no frame
    begins here), ROWS_FULL (nothing changed)."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if end - p < D.OVERHEAD:
        return WAIT
    flaw = D.header_flaw(buf, p, end)
    size = u16(buf, p + 2, end)
    stop = p + size
    if flaw == V.E_SHORT_FRAME:
        d.span_notes = N.FRAME_SHORT
        d.mode = LOST
        return MODE_CHANGED
    if stop > end and (flaw == V.NO_ERROR or not d.final):
        return WAIT
    if stop > end or (flaw != V.NO_ERROR and D.header_flaw(buf, stop, end) != V.NO_ERROR):
        d.mode = LOST
        return MODE_CHANGED
    kind = octet(buf, p + 1)
    offset = int(d.next) - (end - p)
    index = R.append_row(rows, c, direction, KINDS[kind] if kind <= D.BODY_SEGMENT else V.SKIPPED, offset, size)
    row = rows.cells[index]
    R.set_packets(row, d, s, offset, offset + size)
    row[R.CHANNEL] = u16(buf, p + 6, end)
    row[R.PAYLOAD_SIZE] = size - D.OVERHEAD
    if flaw != V.NO_ERROR:
        row[R.STATUS] = V.UNKNOWN if flaw == V.E_FRAME_TYPE else V.MALFORMED
        row[R.ERROR] = flaw
        row[R.NOTES] = _flaw_notes(octet(buf, p), kind, octet(buf, p + 5))
    d.pos = stop
    if kind > D.BODY_SEGMENT:
        d.skipped_bytes += size
    elif _fill(c, direction, buf, p, stop, row, rows.digest[index], rows, contents, a, t):
        d.frame_bytes += size
    else:
        d.pos = p
        R.drop_last_row(rows, c)
        return ROWS_FULL
    return DECODED


@kernel
def _flaw_notes(flags, kind, track):
    """Notes on the flags and the track of a frame of this segment type."""
    notes = N.FRAME_FLAGS if flags & D.RESERVED_FLAGS else 0
    if kind > D.BODY_SEGMENT:
        return notes
    if track != (0 if kind == D.CONTROL_SEGMENT else 1):
        notes |= N.TRACK
    if flags & D.FIRST_SEGMENT != (D.FIRST_SEGMENT if kind <= D.COMMAND_SEGMENT else 0):
        notes |= N.SEGMENT_ORDER
    if kind == D.CONTROL_SEGMENT and not flags & D.LAST_SEGMENT:
        notes |= N.CONTROL_GOES_ON
    return notes


@inlined
def _fill(c, direction, buf, p, stop, row, digest, rows, contents, a, t):
    """Decode the frame `buf[p:stop]` into its row; False, with nothing changed, when a heap has no room."""
    flags, kind, start, channel = octet(buf, p), octet(buf, p + 1), p + D.OVERHEAD, int(row[R.CHANNEL])
    session = A.session_slot(a, contents.epochs, direction, channel)
    if kind == D.BODY_SEGMENT:
        is_content = not row[R.HANDSHAKE] and row[R.ERROR] == 0
        if c.keep_payload and is_content and not R.append_payload(rows, row, buf, start, stop):
            return False
        A.body_bytes(a, contents.digests, session, buf, start, stop, row)
    else:
        slot = A.segment_slot(a, contents.epochs, direction, channel, 0 if kind == D.CONTROL_SEGMENT else 1)
        size = stop - start + (0 if flags & D.FIRST_FRAME else int(a.segments[slot].length))
        if flags & D.LAST_FRAME and int(rows.used[1]) + COMMAND_ID_OCTETS + size > len(rows.octets):
            return False
        if flags & D.FIRST_FRAME:
            begin_segment(buf, start, stop, flags, kind, slot, session, row, contents, a, t)
        add_frame(c, direction, buf, start, stop, flags, kind, slot, session, row, rows, contents, a, t)
    if kind != D.CONTROL_SEGMENT:
        ends = flags & D.LAST_SEGMENT and flags & D.LAST_FRAME
        if kind == D.HEADER_SEGMENT and not a.sessions[session].open and row[R.ERROR] == 0:
            row[R.ERROR] = V.E_NO_COMMAND
        A.on_assembly_frame(a, contents.digests, session, row, digest, ends)
    return True


@kernel
def begin_partial(d, direction, s, a):
    """A hole follows `end`: if the bytes from `pos` begin a frame, continue INSIDE it. True when they do; four octets
    include its size."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if end - p < 4 or D.header_flaw(buf, p, end) != V.NO_ERROR:
        return False
    kind = octet(buf, p + 1)
    R.begin_partial_frame(d, KINDS[kind], u16(buf, p + 2, end), u16(buf, p + 6, end))  # the channel may be missing: -1
    a.numbers[A.PARTIAL_FLAGS + direction] = octet(buf, p)
    if kind <= D.COMMAND_SEGMENT and octet(buf, p) & D.FIRST_FRAME and end - p >= D.OVERHEAD + CODES:
        d.frame_class = octet(buf, p + D.OVERHEAD)
        d.frame_method = octet(buf, p + D.OVERHEAD + 1)
    return True


@kernel
def partial_row(c, d, direction, stored, rows, contents, a, t):
    """Append the row of a frame that lost bytes; `stored`: its first octets. The open span of `d` has its packets."""
    index = R.append_partial_row(rows, c, d, direction, int(d.frame_type))
    row = rows.cells[index]
    row[R.PAYLOAD_SIZE] = max(0, min(int(d.frame_seen), int(d.frame_size)) - D.OVERHEAD)
    if d.frame_channel < 0:
        reset_contents(contents, direction)  # the frame may belong to any assembly
    else:
        _apply_partial(c, d, direction, stored, row, rows, rows.digest[index], contents, a, t)


@kernel
def _apply_partial(c, d, direction, stored, row, rows, digest, contents, a, t):
    """Apply a frame that lost bytes to its assembly and its segment, and set its row."""
    flags, channel = int(a.numbers[A.PARTIAL_FLAGS + direction]), int(d.frame_channel)
    is_control = d.frame_type == V.CONTROL
    session = A.session_slot(a, contents.epochs, direction, channel)
    if d.frame_type == V.BODY:
        a.sessions[session].whole = 0
    else:
        slot = A.segment_slot(a, contents.epochs, direction, channel, 0 if is_control else 1)
        segment = a.segments[slot]
        if flags & D.FIRST_FRAME:
            A.release(a, slot)
            segment.kind = (
                D.CONTROL_SEGMENT
                if is_control
                else (D.COMMAND_SEGMENT if d.frame_type == V.COMMAND else D.HEADER_SEGMENT)
            )
            segment.class_code = d.frame_class
            segment.code = d.frame_method
            segment.entry = segment.command_id = -1
            if 0 <= d.frame_class < T.NUMBERS and d.frame_method < T.NUMBERS:
                segment.entry = t.lookup[segment.kind, d.frame_class, d.frame_method]
            if d.frame_type == V.COMMAND:
                opening = opens(flags, int(segment.entry), t)
                segment.command_id = A.begin_command(a, contents.digests, session, row, opening)
        if flags & D.FIRST_FRAME or (d.frame_type != V.HEADER and segment.state != A.NOTHING):
            name_row(row, segment, t)
        if is_control and (segment.entry < 0 or segment.entry == t.special[T.COMMAND_POINT]):
            a.sessions[session].next_id = -1
        if flags & D.WHOLE_SEGMENT == D.WHOLE_SEGMENT and len(stored) > D.OVERHEAD:
            store_partial(c, stored, D.OVERHEAD, min(len(stored), int(row[R.SIZE])), segment, row, rows, t)
        A.release(a, slot)
        if flags & D.WHOLE_SEGMENT != D.WHOLE_SEGMENT and not flags & D.LAST_FRAME:
            segment.state = A.BROKEN
    if not is_control:
        A.on_assembly_frame(a, contents.digests, session, row, digest, flags & D.LAST_SEGMENT and flags & D.LAST_FRAME)
