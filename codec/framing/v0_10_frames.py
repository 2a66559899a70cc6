"""Frames of AMQP 0-10 in an ordered stream: one row each.

Frame (0-10 specification, section 9.2.2): flags byte, segment type byte, size short (of the whole frame), reserved
byte, track byte, channel short, four reserved bytes, payload. `next_frame` takes one whole frame from the boundary
at `pos`. A frame that lost bytes begins with `begin_partial` and ends with `partial_row`; its row has the status
'partial'.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS, SEGMENT_SIZE
from codec.cursor import (
    byte_at,
    i64,
    u16,
    u32,
)
from codec.framing.classic_frames import (
    CHANNELS,
    DECODED,
    MODE_CHANGED,
    ROWS_FULL,
    WAIT,
    reset_contents,
)
from codec.hashes.sha256 import begin, finish, update
from codec.memory import as_records, copy_bytes, sparse_zeros
from codec.protocol import rows as R
from codec.protocol import v0_10_detection as D
from codec.protocol import v0_10_tables as T
from codec.protocol import versions as V
from codec.protocol.v0_10_detection import (
    COMMAND_SEGMENT,
    LAST_FRAME,
    LAST_SEGMENT,
    entry_at,
    fields_fit,
    session_header_end,
)
from codec.protocol.versions import E_NO_COMMAND
from codec.tcp.reassembly import LOST

# Assemblies of AMQP 0-10: joins frames to segments, numbers commands, tracks contents.
#
# A command is an assembly of assembly segments (command, header, body); a segment is one or more frames. Assemblies of
# different channels interleave, and controls have a track of their own (0-10 specification, sections 9.1 and 9.2). A
# slot is valid while its epoch equals that of its direction in `Contents`. A new connection, or a lost frame boundary,
# starts a new epoch, so nothing is joined across a loss.
#
# The frames of a segment of several frames wait in blocks of one pool, which bounds their total size. Segments of one
# frame need no pool. Cost: linear in the bytes.


BLOCK = 4096
BLOCKS = max(1, LIMITS.segment_bytes // BLOCK)
NOTHING, GROWING, BROKEN, TOO_LARGE = range(4)  # BROKEN: bytes were lost; TOO_LARGE: the pool has no room

SEGMENT = np.dtype(
    [
        *((name, "i8") for name in ("epoch", "state", "kind", "class_code", "code", "entry", "command_id")),
        ("length", "i8"),  # bytes so far, in a chain of blocks
        ("head", "i8"),
        ("tail", "i8"),
    ],
    align=True,
)
SESSION = np.dtype(
    [
        ("epoch", "i8"),
        ("next_id", "i8"),  # of the next command; -1 unknown
        ("open", "i8"),  # an assembly is incomplete
        ("frame_no", "i8"),  # of its first row
        ("whole", "i8"),  # no byte of its body is missing so far
    ],
    align=True,
)
USED, FREE, PARTIAL_FLAGS = 0, 1, 2  # cells of `Assemblies.numbers`


class Assemblies(NamedTuple):
    """`segments`: SEGMENT records by direction, channel, track; `sessions`: SESSION records by direction, channel.
    `pool` uint8 in blocks; `blocks` int64 (BLOCKS, 2): next block of the chain, slot of the segment. `numbers` int64
    (4,): blocks used so far, first free one of these, and per direction the flags of the frame that lost bytes."""

    segments: np.ndarray
    sessions: np.ndarray
    pool: np.ndarray
    blocks: np.ndarray
    numbers: np.ndarray


def new_assemblies() -> Assemblies:
    """Slots for every channel of both directions; unused pages are never touched."""
    return Assemblies(
        as_records(sparse_zeros(4 * CHANNELS, SEGMENT)),
        as_records(sparse_zeros(2 * CHANNELS, SESSION)),
        sparse_zeros(BLOCKS * BLOCK, np.uint8),
        sparse_zeros((BLOCKS, 2), np.int64),
        np.array([0, -1, 0, 0], np.int64),
    )


@kernel
def release(a, slot):
    """End the segment and free its blocks."""
    segment = a.segments[slot]
    if segment.state == GROWING and segment.length > 0:
        a.blocks[segment.tail, 0] = a.numbers[FREE]
        a.numbers[FREE] = segment.head
        block = int(segment.head)
        while True:
            a.blocks[block, 1] = -1
            if block == segment.tail:
                break
            block = int(a.blocks[block, 0])
    segment.state = NOTHING
    segment.length = 0


@kernel
def segment_slot(a, epochs, direction, channel, track):
    """The slot of the open segment on a track of a channel."""
    slot = (direction * CHANNELS + channel) * 2 + track
    segment = a.segments[slot]
    if segment.epoch != epochs[direction]:
        release(a, slot)
        segment.epoch = epochs[direction]
    return slot


@kernel
def session_slot(a, epochs, direction, channel):
    """The slot of a channel."""
    slot = direction * CHANNELS + channel
    session = a.sessions[slot]
    if session.epoch != epochs[direction]:
        session.epoch = epochs[direction]
        session.next_id = -1
        session.open = 0
    return slot


@kernel
def _sweep(a, epochs):
    """Free the blocks of segments of past epochs."""
    for block in range(int(a.numbers[USED])):
        slot = int(a.blocks[block, 1])
        if slot >= 0 and a.segments[slot].epoch != epochs[slot // (2 * CHANNELS)]:
            a.segments[slot].state = NOTHING
            a.blocks[block, 1] = -1
            a.blocks[block, 0] = a.numbers[FREE]
            a.numbers[FREE] = block


@kernel
def _new_block(a, epochs):
    """A free block, or -1."""
    if a.numbers[USED] < BLOCKS:
        a.numbers[USED] += 1
        return int(a.numbers[USED]) - 1
    if a.numbers[FREE] < 0:
        _sweep(a, epochs)
    block = int(a.numbers[FREE])
    if block >= 0:
        a.numbers[FREE] = a.blocks[block, 0]
    return block


@kernel
def append(a, epochs, slot, buf, start, end):
    """Append `buf[start:end]` to the segment, which becomes TOO_LARGE when the pool has no room."""
    segment = a.segments[slot]
    while start < end and segment.state == GROWING:
        used = int(segment.length) % BLOCK
        if used == 0:
            block = _new_block(a, epochs)
            if block < 0:
                release(a, slot)
                segment.state = TOO_LARGE
                return
            a.blocks[block, 1] = slot
            if segment.length == 0:
                segment.head = block
            else:
                a.blocks[segment.tail, 0] = block
            segment.tail = block
        size = min(BLOCK - used, end - start)
        copy_bytes(a.pool, int(segment.tail) * BLOCK + used, buf, start, start + size)
        segment.length += size
        start += size


@kernel
def gather(a, slot, heap, at):
    """Copy the bytes of the segment so far to `heap[at:]`: the offset after them."""
    segment = a.segments[slot]
    block, left = int(segment.head), int(segment.length)
    while left > 0:
        size = min(BLOCK, left)
        copy_bytes(heap, at, a.pool, block * BLOCK, block * BLOCK + size)
        at += size
        left -= size
        block = int(a.blocks[block, 0])
    return at


@kernel
def begin_command(a, digests, slot, row, opens):
    """Number a command, and open its assembly when segments may follow. Returns its implicit id, -1 unknown."""
    session = a.sessions[slot]
    command_id = int(session.next_id)
    if command_id >= 0:
        session.next_id = (command_id + 1) & 0xFFFFFFFF
    session.open = opens
    if opens:
        session.frame_no = row[R.FRAME_NO]
        session.whole = 1
        begin(digests, slot)
    return command_id


@kernel
def on_assembly_frame(a, digests, slot, row, digest, ends):
    """Set content and digest in the row of a frame of an assembly. `ends`: its last frame."""
    session = a.sessions[slot]
    if not session.open:
        return
    row[R.CONTENT] = session.frame_no
    if ends:
        session.open = 0
        if session.whole:
            finish(digests, slot, digest)
            row[R.DIGEST] = 1


@kernel
def body_bytes(a, digests, slot, buf, start, end, row):
    """Add bytes to the body of an assembly."""
    session = a.sessions[slot]
    if not session.open:
        if row[R.ERROR] == 0:
            row[R.ERROR] = E_NO_COMMAND
    elif session.whole:
        update(digests, slot, buf, start, end - start)


# Assembly segments of AMQP 0-10, frame by frame: collected, stored for decoding, and applied to their session.
#
# The row of the frame that completes a segment has the bytes of the segment, without class code and code. The bytes
# of a command begin with its implicit id in eight bytes.


COMMAND_ID_BYTES = 8
STRUCT_SIZE = 4  # bytes of the size of a struct32
CODES = 2  # bytes of the class code and code that begin a control or command


@kernel
def begin_segment(buf, start, stop, flags, kind, slot, session, row, contents, a, t):
    """The first frame of a segment."""
    segment = a.segments[slot]
    if segment.state in (GROWING, TOO_LARGE):
        row[R.NOTES] |= R.SEGMENT_CUT
    release(a, slot)
    segment.state = GROWING
    segment.kind = kind
    segment.class_code = segment.code = segment.entry = segment.command_id = -1
    if kind <= COMMAND_SEGMENT and stop - start >= CODES:
        segment.class_code = byte_at(buf, start)
        segment.code = byte_at(buf, start + 1)
        segment.entry = entry_at(buf, start, stop, kind, t)
    if kind == COMMAND_SEGMENT:
        if segment.entry >= 0:
            row[R.NOTES] |= _content_notes(flags, int(t.entries[segment.entry, T.CONTENT]))
        segment.command_id = begin_command(a, contents.digests, session, row, opens(flags, int(segment.entry), t))


@kernel
def _content_notes(flags, content):
    """Notes on the segments that a command with this `content` (`T.CONTENT`) announces."""
    if flags & LAST_SEGMENT:
        return R.HEADER_MISSING if content == T.HEADER_REQUIRED else 0
    return 0 if content else R.SEGMENTS_UNEXPECTED


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
    """Add a frame to the segment in `slot`; its last frame stores all bytes for decoding (there is room)."""
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
    """Begin the bytes of a segment, those of a command with its id: the offset after it."""
    at = int(rows.used[1])
    if segment.kind != COMMAND_SEGMENT:
        return at
    for i in range(COMMAND_ID_BYTES):
        rows.data[at + i] = (segment.command_id >> (56 - 8 * i)) & 0xFF
    return at + COMMAND_ID_BYTES


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
    copy_bytes(rows.data, at, buf, start, stop)
    if segment.kind > COMMAND_SEGMENT:
        _cut_structs(rows.data, at, end)
    row[R.DEFINITION] = definition
    rows.used[1] = end
    row[R.BYTES_END] = end


@kernel
def _cut_structs(data, at, end):
    """Reduce the size of a struct32 in `bytes[at:end]` that ends beyond `end`."""
    while end - at > STRUCT_SIZE:
        size = u32(data, at, end)
        if size > end - at - STRUCT_SIZE:
            size = end - at - STRUCT_SIZE
            for i in range(STRUCT_SIZE):
                data[at + i] = (size >> (24 - 8 * i)) & 0xFF
        at += STRUCT_SIZE + size


@kernel
def _store(c, direction, buf, start, stop, at, kind, slot, session, row, rows, a, t):
    """Store the bytes of a whole segment from `rows.bytes[at]` on, and apply it to its session."""
    segment = a.segments[slot]
    heap = rows.data
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
            segment.class_code = byte_at(heap, at)
            segment.code = byte_at(heap, at + 1)
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
    row[R.BYTES_END] = end
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
        session.next_id = u32(buf, at + 2, end) if end - at >= 6 and byte_at(buf, at) & 1 else -1
        if session.next_id >= 0 and byte_at(buf, at) & 2 and i64(buf, at + 6, end) != 0:
            session.next_id = (session.next_id + 1) & 0xFFFFFFFF
    elif entry == t.special[T.ATTACH] or entry == t.special[T.ATTACHED]:
        session.next_id = -1
    elif entry == t.special[T.TUNE_OK] and end - at >= 6:
        if byte_at(buf, at) & 1:
            c.channel_max = u16(buf, at + 2, end)
        if byte_at(buf, at) & 3 == 3:
            c.frame_max = u16(buf, at + 4, end)


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
        d.span_notes = R.FRAME_SHORT
        d.mode = LOST
        return MODE_CHANGED
    if stop > end and (flaw == V.NO_ERROR or not d.final):
        return WAIT
    if stop > end or (flaw != V.NO_ERROR and D.header_flaw(buf, stop, end) != V.NO_ERROR):
        d.mode = LOST
        return MODE_CHANGED
    kind = byte_at(buf, p + 1)
    offset = int(d.next) - (end - p)
    index = R.append_row(rows, c, direction, KINDS[kind] if kind <= D.BODY_SEGMENT else V.SKIPPED, offset, size)
    row = rows.cells[index]
    R.set_packets(row, d, s, offset, offset + size)
    row[R.CHANNEL] = u16(buf, p + 6, end)
    row[R.PAYLOAD_SIZE] = size - D.OVERHEAD
    if flaw != V.NO_ERROR:
        row[R.STATUS] = V.UNKNOWN if flaw == V.E_FRAME_TYPE else V.MALFORMED
        row[R.ERROR] = flaw
        row[R.NOTES] = _flaw_notes(byte_at(buf, p), kind, byte_at(buf, p + 5))
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
    notes = R.FRAME_FLAGS if flags & D.RESERVED_FLAGS else 0
    if kind > D.BODY_SEGMENT:
        return notes
    if track != (0 if kind == D.CONTROL_SEGMENT else 1):
        notes |= R.TRACK
    if flags & D.FIRST_SEGMENT != (D.FIRST_SEGMENT if kind <= D.COMMAND_SEGMENT else 0):
        notes |= R.SEGMENT_ORDER
    if kind == D.CONTROL_SEGMENT and not flags & D.LAST_SEGMENT:
        notes |= R.CONTROL_WITH_CONTENT
    return notes


@inlined
def _fill(c, direction, buf, p, stop, row, digest, rows, contents, a, t):
    """Decode the frame `buf[p:stop]` into its row; False, with nothing changed, when a heap has no room."""
    flags, kind, start, channel = byte_at(buf, p), byte_at(buf, p + 1), p + D.OVERHEAD, int(row[R.CHANNEL])
    session = session_slot(a, contents.epochs, direction, channel)
    if kind == D.BODY_SEGMENT:
        is_content = not row[R.HANDSHAKE] and row[R.ERROR] == 0
        if c.keep_payload and is_content and not R.append_payload(rows, row, buf, start, stop):
            return False
        body_bytes(a, contents.digests, session, buf, start, stop, row)
    else:
        slot = segment_slot(a, contents.epochs, direction, channel, 0 if kind == D.CONTROL_SEGMENT else 1)
        size = stop - start + (0 if flags & D.FIRST_FRAME else int(a.segments[slot].length))
        if flags & D.LAST_FRAME and int(rows.used[1]) + COMMAND_ID_BYTES + size > len(rows.data):
            return False
        if flags & D.FIRST_FRAME:
            begin_segment(buf, start, stop, flags, kind, slot, session, row, contents, a, t)
        add_frame(c, direction, buf, start, stop, flags, kind, slot, session, row, rows, contents, a, t)
    if kind != D.CONTROL_SEGMENT:
        ends = flags & D.LAST_SEGMENT and flags & D.LAST_FRAME
        if kind == D.HEADER_SEGMENT and not a.sessions[session].open and row[R.ERROR] == 0:
            row[R.ERROR] = V.E_NO_COMMAND
        on_assembly_frame(a, contents.digests, session, row, digest, ends)
    return True


@kernel
def begin_partial(d, direction, s, a):
    """A hole follows `end`: if the bytes from `pos` begin a frame, continue INSIDE it. True when they do; four bytes
    include its size."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if end - p < 4 or D.header_flaw(buf, p, end) != V.NO_ERROR:
        return False
    kind = byte_at(buf, p + 1)
    R.begin_partial_frame(d, KINDS[kind], u16(buf, p + 2, end), u16(buf, p + 6, end))  # the channel may be missing: -1
    a.numbers[PARTIAL_FLAGS + direction] = byte_at(buf, p)
    if kind <= D.COMMAND_SEGMENT and byte_at(buf, p) & D.FIRST_FRAME and end - p >= D.OVERHEAD + CODES:
        d.frame_class = byte_at(buf, p + D.OVERHEAD)
        d.frame_method = byte_at(buf, p + D.OVERHEAD + 1)
    return True


@kernel
def partial_row(c, d, direction, stored, rows, contents, a, t):
    """Append the row of a frame that lost bytes; `stored`: its first bytes. The open span of `d` has its packets."""
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
    flags, channel = int(a.numbers[PARTIAL_FLAGS + direction]), int(d.frame_channel)
    is_control = d.frame_type == V.CONTROL
    session = session_slot(a, contents.epochs, direction, channel)
    if d.frame_type == V.BODY:
        a.sessions[session].whole = 0
    else:
        slot = segment_slot(a, contents.epochs, direction, channel, 0 if is_control else 1)
        segment = a.segments[slot]
        if flags & D.FIRST_FRAME:
            release(a, slot)
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
                segment.command_id = begin_command(a, contents.digests, session, row, opening)
        if flags & D.FIRST_FRAME or (d.frame_type != V.HEADER and segment.state != NOTHING):
            name_row(row, segment, t)
        if is_control and (segment.entry < 0 or segment.entry == t.special[T.COMMAND_POINT]):
            a.sessions[session].next_id = -1
        if flags & D.WHOLE_SEGMENT == D.WHOLE_SEGMENT and len(stored) > D.OVERHEAD:
            store_partial(c, stored, D.OVERHEAD, min(len(stored), int(row[R.SIZE])), segment, row, rows, t)
        release(a, slot)
        if flags & D.WHOLE_SEGMENT != D.WHOLE_SEGMENT and not flags & D.LAST_FRAME:
            segment.state = BROKEN
    if not is_control:
        on_assembly_frame(a, contents.digests, session, row, digest, flags & D.LAST_SEGMENT and flags & D.LAST_FRAME)
