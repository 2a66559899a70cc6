"""Frames of AMQP 0-10 out of an ordered stream: one row each.

Frame (0-10 specification, section 9.2.2): flags octet, segment type octet, size short (of the whole frame), reserved
octet, track octet, channel short, four reserved octets, payload. `next_frame` takes one whole frame from the boundary at
`pos`; `tear` starts on a frame that a hole runs through, whose row is `partial`; `torn_row` ends it.

The octets of a segment are kept for decoding on the row of the frame that completes it, without class code and code;
before those of a command stands its implicit id in eight octets.
"""

from __future__ import annotations

import numpy as np

from codec.amqp import rows as R
from codec.amqp import tables_0_10 as T
from codec.amqp.assemblies import (
    BROKEN,
    GROWING,
    NOTHING,
    TOO_LARGE,
    TORN_FLAGS,
    append,
    assembly_goes_on,
    body_bytes,
    command_begins,
    gather,
    release,
    segment_slot,
    session_slot,
)
from codec.amqp.classic_frames import MODE_CHANGED, ROWS_FULL, TAKEN, WAIT
from codec.amqp.contents import forget_contents
from codec.amqp.extents_0_10 import entry_at
from codec.amqp.segmented_detect import (
    BODY_SEGMENT,
    COMMAND_SEGMENT,
    CONTROL_SEGMENT,
    FIRST_FRAME,
    HEADER_SEGMENT,
    LAST_FRAME,
    LAST_SEGMENT,
    OVERHEAD,
    WHOLE_SEGMENT,
    header_flaw,
)
from codec.amqp.versions import (
    BODY,
    COMMAND,
    CONTROL,
    E_FRAME_TYPE,
    E_METHOD,
    E_MISSING_INSIDE,
    E_NO_COMMAND,
    E_SEGMENT_ALONE,
    E_SEGMENT_HOLE,
    E_SHORT_FRAME,
    E_SHORT_METHOD,
    E_VALUE_SIZE,
    HEADER,
    MALFORMED,
    NO_ERROR,
    PARTIAL,
    SKIPPED,
    UNKNOWN,
)
from codec.cursor import i64, octet, u16, u32
from codec.kernel import kernel
from codec.net.reassembly import FRAMES, INSIDE, LOST
from codec.variant.writer import copy_bytes

KINDS = np.array([CONTROL, COMMAND, HEADER, BODY], np.int64)
COMMAND_ID_OCTETS = 8
CODES = 2  # octets of the class code and code that begin a control or command


@kernel
def next_frame(c, d, direction, s, rows, contents, a, t):
    """Take the frame at `pos`: TAKEN with its row appended, WAIT for more bytes, MODE_CHANGED when no frame begins here,
    ROWS_FULL with nothing changed."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if end - p < OVERHEAD:
        return WAIT
    flaw = header_flaw(buf, p, end)
    size = u16(buf, p + 2, end)
    stop = p + size
    if flaw == E_SHORT_FRAME:
        d.mode = LOST
        return MODE_CHANGED
    if stop > end:
        return WAIT
    if flaw != NO_ERROR and header_flaw(buf, stop, end) != NO_ERROR:
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
def _fill(c, direction, buf, p, stop, row, digest, rows, contents, a, t):
    """What the frame `buf[p:stop]` says, into its row; False, with nothing changed, when a heap has no room for it."""
    flags, kind, start, channel = octet(buf, p), octet(buf, p + 1), p + OVERHEAD, int(row[R.CHANNEL])
    session = session_slot(a, contents.epochs, direction, channel)
    if kind == BODY_SEGMENT:
        if c.keep_payload and not R.keep_payload(rows, row, buf, start, stop):
            return False
        body_bytes(a, contents.digests, session, buf, start, stop, row)
    else:
        slot = segment_slot(a, contents.epochs, direction, channel, 0 if kind == CONTROL_SEGMENT else 1)
        size = stop - start + (0 if flags & FIRST_FRAME else int(a.segments[slot].length))
        if flags & LAST_FRAME and int(rows.count[1]) + COMMAND_ID_OCTETS + size > len(rows.octets):
            return False
        if flags & FIRST_FRAME:
            _begin_segment(buf, start, stop, flags, kind, slot, session, row, contents, a, t)
        _segment(c, direction, buf, start, stop, flags, kind, slot, session, row, rows, contents, a, t)
    if kind != CONTROL_SEGMENT:
        ends = flags & LAST_SEGMENT and flags & LAST_FRAME
        if kind == HEADER_SEGMENT and not a.sessions[session].open and row[R.ERROR] == 0:
            row[R.ERROR] = E_NO_COMMAND
        assembly_goes_on(a, contents.digests, session, row, digest, ends)
    return True


@kernel
def _begin_segment(buf, start, stop, flags, kind, slot, session, row, contents, a, t):
    """The first frame of a segment."""
    release(a, slot)
    segment = a.segments[slot]
    segment.state = GROWING
    segment.kind = kind
    segment.class_code = segment.code = segment.entry = segment.command_id = -1
    if kind <= COMMAND_SEGMENT and stop - start >= CODES:
        segment.class_code = octet(buf, start)
        segment.code = octet(buf, start + 1)
        segment.entry = entry_at(buf, start, stop, kind, t)
    if kind == COMMAND_SEGMENT:
        segment.command_id = command_begins(
            a, contents.digests, session, row, _opens(flags, int(segment.entry), t)
        )


@kernel
def _opens(flags, of, t):
    """Whether segments may follow a command with these flags."""
    return 0 if flags & LAST_SEGMENT and (of < 0 or t.entries[of, T.CONTENT] == 0) else 1


@kernel
def _name_row(row, segment, t):
    """What is known of its segment, on a row of a control or command."""
    row[R.CLASS] = segment.class_code
    row[R.METHOD_ID] = segment.code
    if segment.entry >= 0:
        row[R.NAME] = t.entries[segment.entry, T.NAME]


@kernel
def _segment(c, direction, buf, start, stop, flags, kind, slot, session, row, rows, contents, a, t):
    """A frame of the segment in `slot`: collect it; the last one keeps all octets for decoding (there is room)."""
    segment = a.segments[slot]
    if segment.state == NOTHING or segment.kind != kind:
        row[R.STATUS] = UNKNOWN
        row[R.ERROR] = E_SEGMENT_ALONE
        return
    _name_row(row, segment, t)
    if not flags & LAST_FRAME:
        append(a, contents.epochs, slot, buf, start, stop)
        return
    at = int(rows.count[1])
    if kind == COMMAND_SEGMENT:
        for i in range(COMMAND_ID_OCTETS):
            rows.octets[at + i] = (segment.command_id >> (56 - 8 * i)) & 0xFF
        at += COMMAND_ID_OCTETS
    state, size = int(segment.state), int(segment.length)
    codes = CODES if kind <= COMMAND_SEGMENT else 0
    if state == BROKEN:
        row[R.STATUS] = UNKNOWN
        row[R.ERROR] = E_SEGMENT_HOLE
    elif state == TOO_LARGE:
        c.value_limit = 1
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_VALUE_SIZE
    elif size + stop - start < codes:
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_SHORT_METHOD
    elif kind <= COMMAND_SEGMENT and segment.entry < 0 and size == 0:
        row[R.STATUS] = UNKNOWN
        row[R.ERROR] = E_METHOD
    else:
        _keep(c, direction, buf, start, stop, at, kind, slot, session, row, rows, a, t)
    release(a, slot)


@kernel
def _keep(c, direction, buf, start, stop, at, kind, slot, session, row, rows, a, t):
    """Keep the octets of a whole segment, from `rows.octets[at]` on, and note what it says about the session."""
    segment = a.segments[slot]
    heap = rows.octets
    if segment.length == 0:
        if kind <= COMMAND_SEGMENT:
            start += CODES
        copy_bytes(heap, at, buf, start, stop)
        end = at + stop - start
    else:
        end = gather(a, slot, heap, at)
        copy_bytes(heap, end, buf, start, stop)
        end += stop - start
        if kind <= COMMAND_SEGMENT:
            segment.class_code = octet(heap, at)
            segment.code = octet(heap, at + 1)
            segment.entry = entry_at(heap, at, end, kind, t)
            _name_row(row, segment, t)
            copy_bytes(heap, at, heap, at + CODES, end)
            end -= CODES
    row[R.DEFINITION] = segment.entry if kind <= COMMAND_SEGMENT else int(t.special[T.HEADER_SET])
    if row[R.DEFINITION] < 0:
        row[R.STATUS] = UNKNOWN
        row[R.ERROR] = E_METHOD
        return
    rows.count[1] = end
    row[R.OCTETS_END] = end
    if kind <= COMMAND_SEGMENT:
        note_entry(c, direction, heap, at, end, int(segment.entry), a.sessions[session], rows, t)


@kernel
def note_entry(c, direction, buf, at, end, of, session, rows, t):
    """What a control or command says about its connection or session. `buf[at:end]` are its arguments."""
    sender = int(t.entries[of, T.SENDER])
    if c.client < 0 and sender >= 0:
        R.resolve_senders(rows, c, direction if sender == R.CLIENT else 1 - direction, R.BY_METHOD)
    if of == t.special[T.COMMAND_POINT]:
        # field 0: the id of the command that follows, or, when field 1 is not zero, of the one that goes on
        session.next_id = u32(buf, at + 2, end) if end - at >= 6 and octet(buf, at) & 1 else -1
        if session.next_id >= 0 and octet(buf, at) & 2 and i64(buf, at + 6, end) != 0:
            session.next_id = (session.next_id + 1) & 0xFFFFFFFF
    elif of == t.special[T.ATTACH] or of == t.special[T.ATTACHED]:
        session.next_id = -1
    elif of == t.special[T.TUNE_OK] and end - at >= 6:
        if octet(buf, at) & 1:
            c.channel_max = u16(buf, at + 2, end)
        if octet(buf, at) & 3 == 3:
            c.frame_max = u16(buf, at + 4, end)


@kernel
def tear(d, direction, s, a):
    """A hole follows `end`: if the bytes from `pos` are the beginning of a frame, go on INSIDE it. True when they are. Four
    octets tell where it ends."""
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
def torn_row(c, d, direction, rows, contents, a, t):
    """The row of a frame that lost bytes (its packets stand in the open span of `d`)."""
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
        _torn_effects(d, direction, row, rows.digest[index], contents, a, t)
    d.frame_bytes += d.frame_seen
    d.span_from = -1
    d.mode = FRAMES


@kernel
def _torn_effects(d, direction, row, digest, contents, a, t):
    """What a frame that lost bytes does to the assembly and the segment that it belongs to."""
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
            segment.kind = CONTROL_SEGMENT if is_control else (COMMAND_SEGMENT if d.frame_type == COMMAND else HEADER_SEGMENT)
            segment.class_code = d.frame_class
            segment.code = d.frame_method
            segment.entry = -1
            if 0 <= d.frame_class < T.NUMBERS and d.frame_method < T.NUMBERS:
                segment.entry = t.lookup[segment.kind, d.frame_class, d.frame_method]
            if d.frame_type == COMMAND:
                command_begins(a, contents.digests, session, row, _opens(flags, int(segment.entry), t))
        if flags & FIRST_FRAME or (d.frame_type != HEADER and segment.state != NOTHING):
            _name_row(row, segment, t)
        if is_control and (segment.entry < 0 or segment.entry == t.special[T.COMMAND_POINT]):
            a.sessions[session].next_id = -1
        release(a, slot)
        if flags & WHOLE_SEGMENT != WHOLE_SEGMENT and not flags & LAST_FRAME:
            segment.state = BROKEN
    if not is_control:
        assembly_goes_on(a, contents.digests, session, row, digest, flags & LAST_SEGMENT and flags & LAST_FRAME)
