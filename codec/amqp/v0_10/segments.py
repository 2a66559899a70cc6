"""Assembly segments of AMQP 0-10, frame by frame: collected, stored for decoding, and applied to their session.

The row of the frame that completes a segment has the octets of the segment, without class code and code. The octets of
a command begin with its implicit id in eight octets.
"""

from __future__ import annotations

from codec.amqp import notes as N
from codec.amqp import rows as R
from codec.amqp import versions as V
from codec.amqp.v0_10 import tables as T
from codec.amqp.v0_10.assemblies import BROKEN, GROWING, NOTHING, TOO_LARGE, append, begin_command, gather, release
from codec.amqp.v0_10.detect import COMMAND_SEGMENT, LAST_FRAME, LAST_SEGMENT, entry_at, fields_fit, session_header_end
from codec.compiler.kernel import kernel
from codec.compiler.limits import SEGMENT_SIZE
from codec.cursor import i64, octet, u16, u32
from codec.variant.writer import copy_bytes

COMMAND_ID_OCTETS = 8
STRUCT_SIZE = 4  # octets of the size of a struct32
CODES = 2  # octets of the class code and code that begin a control or command


@kernel
def begin_segment(buf, start, stop, flags, kind, slot, session, row, contents, a, t):
    """The first frame of a segment."""
    segment = a.segments[slot]
    if segment.state in (GROWING, TOO_LARGE):
        row[R.NOTES] |= N.SEGMENT_CUT
    release(a, slot)
    segment.state = GROWING
    segment.kind = kind
    segment.class_code = segment.code = segment.entry = segment.command_id = -1
    if kind <= COMMAND_SEGMENT and stop - start >= CODES:
        segment.class_code = octet(buf, start)
        segment.code = octet(buf, start + 1)
        segment.entry = entry_at(buf, start, stop, kind, t)
    if kind == COMMAND_SEGMENT:
        if segment.entry >= 0:
            row[R.NOTES] |= _content_notes(flags, int(t.entries[segment.entry, T.CONTENT]))
        segment.command_id = begin_command(a, contents.digests, session, row, opens(flags, int(segment.entry), t))


@kernel
def _content_notes(flags, content):
    """Notes on the segments that a command with this `content` (`T.CONTENT`) announces."""
    if flags & LAST_SEGMENT:
        return N.HEADER_MISSING if content == T.HEADER_REQUIRED else 0
    return 0 if content else N.SEGMENTS_UNEXPECTED


@kernel
def opens(flags, entry, t):
    """Whether segments may follow a command with these flags."""
    return 0 if flags & LAST_SEGMENT and (entry < 0 or t.entries[entry, T.CONTENT] == 0) else 1


@kernel
def name_row(row, segment, t):
    """Set class, code and name in a row of a control or command."""
    row[R.CLASS] = segment.class_code
    row[R.METHOD_ID] = segment.code
    if segment.entry >= 0:
        row[R.NAME] = t.entries[segment.entry, T.NAME]


@kernel
def add_frame(c, direction, buf, start, stop, flags, kind, slot, session, row, rows, contents, a, t):
    """Add a frame to the segment in `slot`; its last frame stores all octets for decoding (there is room)."""
    segment = a.segments[slot]
    if segment.state == NOTHING or segment.kind != kind:
        row[R.STATUS] = V.UNKNOWN
        row[R.ERROR] = V.E_UNEXPECTED_SEGMENT
        return
    name_row(row, segment, t)
    if not flags & LAST_FRAME:
        append(a, contents.epochs, slot, buf, start, stop)
        return
    at = _put_command_id(rows, segment)
    state, size = int(segment.state), int(segment.length)
    codes = CODES if kind <= COMMAND_SEGMENT else 0
    if state == BROKEN:
        row[R.STATUS] = V.UNKNOWN
        row[R.ERROR] = V.E_SEGMENT_HOLE
    elif state == TOO_LARGE:
        c.limits |= SEGMENT_SIZE
        row[R.STATUS] = V.MALFORMED
        row[R.ERROR] = V.E_VALUE_SIZE
    elif size + stop - start < codes:
        row[R.STATUS] = V.MALFORMED
        row[R.ERROR] = V.E_SHORT_METHOD
    elif kind <= COMMAND_SEGMENT and segment.entry < 0 and size == 0:
        row[R.STATUS] = V.UNKNOWN
        row[R.ERROR] = V.E_METHOD
    else:
        _store(c, direction, buf, start, stop, at, kind, slot, session, row, rows, a, t)
    release(a, slot)


@kernel
def _put_command_id(rows, segment):
    """Begin the octets of a segment, those of a command with its id: the offset after it."""
    at = int(rows.used[1])
    if segment.kind != COMMAND_SEGMENT:
        return at
    for i in range(COMMAND_ID_OCTETS):
        rows.octets[at + i] = (segment.command_id >> (56 - 8 * i)) & 0xFF
    return at + COMMAND_ID_OCTETS


@kernel
def store_partial(c, buf, start, stop, segment, row, rows, t):
    """Store `buf[start:stop]` of a segment of one frame that lost bytes (there is room). Structs of a header are cut at
    its end."""
    definition = int(segment.entry)
    at = _put_command_id(rows, segment)
    if segment.kind > COMMAND_SEGMENT:
        definition = int(t.special[T.HEADER_SET])
    elif stop - start < CODES or definition < 0:
        return
    else:
        start += CODES
        if t.entries[definition, T.AUTHENTICATES]:
            c.handshaking = 1
    end = at + stop - start
    copy_bytes(rows.octets, at, buf, start, stop)
    if segment.kind > COMMAND_SEGMENT:
        _cut_structs(rows.octets, at, end)
    row[R.DEFINITION] = definition
    rows.used[1] = end
    row[R.OCTETS_END] = end


@kernel
def _cut_structs(octets, at, end):
    """Reduce the size of a struct32 in `octets[at:end]` that ends beyond `end`."""
    while end - at > STRUCT_SIZE:
        size = u32(octets, at, end)
        if size > end - at - STRUCT_SIZE:
            size = end - at - STRUCT_SIZE
            for i in range(STRUCT_SIZE):
                octets[at + i] = (size >> (24 - 8 * i)) & 0xFF
        at += STRUCT_SIZE + size


@kernel
def _store(c, direction, buf, start, stop, at, kind, slot, session, row, rows, a, t):
    """Store the octets of a whole segment from `rows.octets[at]` on, and apply it to its session."""
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
            name_row(row, segment, t)
            copy_bytes(heap, at, heap, at + CODES, end)
            end -= CODES
    row[R.DEFINITION] = segment.entry if kind <= COMMAND_SEGMENT else int(t.special[T.HEADER_SET])
    if row[R.DEFINITION] < 0:
        row[R.STATUS] = V.UNKNOWN
        row[R.ERROR] = V.E_METHOD
        return
    rows.used[1] = end
    row[R.OCTETS_END] = end
    if kind <= COMMAND_SEGMENT:
        _update_handshake(c, heap, at, end, kind, int(segment.entry), row, t)
        apply_entry(c, direction, heap, at, end, int(segment.entry), a.sessions[session], rows, t)


@kernel
def _update_handshake(c, buf, at, end, kind, entry, row, t):
    """Update whether the client is still to authenticate after `entry` with the arguments `buf[at:end]`."""
    if t.entries[entry, T.AUTHENTICATES]:
        c.handshaking = 1
        return
    if kind == COMMAND_SEGMENT:
        at = session_header_end(buf, at, end)
    if c.handshaking and at >= 0 and fields_fit(buf, at, end, entry, t):
        c.handshaking = 0
        row[R.HANDSHAKE] = 0


@kernel
def apply_entry(c, direction, buf, at, end, entry, session, rows, t):
    """Apply a control or command with the arguments `buf[at:end]` to its connection or session."""
    sender = int(t.entries[entry, T.SENDER])
    if c.client < 0 and sender >= 0:
        R.resolve_senders(rows, c, direction if sender == R.CLIENT else 1 - direction, R.BY_METHOD)
    if entry == t.special[T.COMMAND_POINT]:
        # field 0: the id of the command that follows, or, when field 1 is not zero, of the one that continues
        session.next_id = u32(buf, at + 2, end) if end - at >= 6 and octet(buf, at) & 1 else -1
        if session.next_id >= 0 and octet(buf, at) & 2 and i64(buf, at + 6, end) != 0:
            session.next_id = (session.next_id + 1) & 0xFFFFFFFF
    elif entry == t.special[T.ATTACH] or entry == t.special[T.ATTACHED]:
        session.next_id = -1
    elif entry == t.special[T.TUNE_OK] and end - at >= 6:
        if octet(buf, at) & 1:
            c.channel_max = u16(buf, at + 2, end)
        if octet(buf, at) & 3 == 3:
            c.frame_max = u16(buf, at + 4, end)
