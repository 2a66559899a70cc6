"""Frames of the classic family (0-8, 0-9, 0-9-1) in an ordered stream: one row each.

Frame (0-9-1 specification, section 4.2.3): type byte, channel short, size long, payload, end byte 0xCE. `next_frame`
takes one whole frame from the boundary at `pos`. A frame that lost bytes begins with `begin_partial` and ends with
`partial_row`; its row has the status 'partial'.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import FRAME_SIZE, LIMITS
from codec.cursor import byte_at, u16
from codec.hashes.sha256 import (
    Digests,
    begin,
    finish,
    new_digests,
    update,
)
from codec.memory import as_records, sparse_zeros
from codec.protocol import rows as R
from codec.protocol import versions as V
from codec.protocol.classic_detection import (
    FRAME_END,
    apply_start,
    find_classic,
    is_start,
    method_index,
    method_sender,
    score_frame,
)
from codec.protocol.classic_tables import WITHOUT_CONTENT
from codec.protocol.classic_values import check_method, classify_method
from codec.protocol.frame_search import ACCEPT, FRAME_BYTES
from codec.protocol.versions import E_BODY_LONG, E_UNEXPECTED_BODY, E_UNEXPECTED_HEADER, MALFORMED
from codec.tcp.reassembly import LOST

# Contents in the classic family: a method, its header, its bodies, one at a time per channel and direction.
#
# (0-9-1 specification, section 4.2.6: frames of one content are consecutive on their channel; frames of other channels
# may come in between.) `Contents` has one slot per direction and channel number. A slot is valid while its epoch equals
# that of its direction. A new connection, or a lost frame boundary, starts a new epoch, so no content continues across
# a loss. Cost: constant per frame, besides SHA-256 of the bodies.


CHANNELS = 65536
NOTHING, ANNOUNCED, OPEN, UNSIZED, COMPLETE = range(5)


CONTENT = np.dtype(
    [
        ("epoch", "i8"),
        ("state", "i8"),
        ("frame_no", "i8"),  # of the method
        ("class_id", "i8"),  # of the method
        ("expected", "i8"),  # body bytes declared
        ("position", "i8"),  # body bytes reached, missing ones included
        ("whole", "i8"),  # 1 while no byte of the body is missing
    ],
    align=True,
)


class Contents(NamedTuple):
    """`slots`: CONTENT records (2 * 65536,); `epochs` int64 (2,): the current epoch of each direction; `digests`: a
    running SHA-256 for each slot."""

    slots: np.ndarray
    epochs: np.ndarray
    digests: Digests


def new_contents() -> Contents:
    """Slots for every channel of both directions; pages of unused channels are never touched."""
    n = 2 * CHANNELS
    return Contents(as_records(sparse_zeros(n, CONTENT)), np.ones(2, np.int64), new_digests(n))


@kernel
def reset_contents(contents, direction):
    """A frame boundary was lost, or a connection begins: no open content of `direction` may continue."""
    contents.epochs[direction] += 1


@inlined
def _slot(contents, direction, channel):
    slot = direction * CHANNELS + channel
    content = contents.slots[slot]
    if content.epoch != contents.epochs[direction]:
        content.epoch = contents.epochs[direction]
        content.state = NOTHING
    return slot


@inlined
def on_method(contents, direction, channel, carries_content, row):
    """A method frame: it announces a content, or ends the open content of its channel. `carries_content`: 0, 1 or
    WITHOUT_CONTENT."""
    slot = _slot(contents, direction, channel)
    state = contents.slots[slot].state
    if state == ANNOUNCED:
        row[R.NOTES] |= R.HEADER_MISSING
    elif state == OPEN:
        row[R.NOTES] |= R.BODY_SHORT
    if carries_content:
        contents.slots[slot].state = NOTHING if carries_content == WITHOUT_CONTENT else ANNOUNCED
        contents.slots[slot].frame_no = row[R.FRAME_NO]
        contents.slots[slot].class_id = row[R.CLASS]
        row[R.CONTENT] = row[R.FRAME_NO]
    else:
        contents.slots[slot].state = NOTHING


@inlined
def _complete(contents, slot, row, digest):
    contents.slots[slot].state = COMPLETE
    if contents.slots[slot].whole:
        finish(contents.digests, slot, digest)
        row[R.DIGEST] = 1


@inlined
def on_header(contents, direction, channel, body_size, row, digest):
    """A content header frame. `body_size` -1: unknown (the frame lost those bytes)."""
    slot = _slot(contents, direction, channel)
    state = contents.slots[slot].state
    if state != ANNOUNCED:
        row[R.NOTES] |= R.BODY_SHORT if state == OPEN else (R.ORPHAN_CONTENT if state != UNSIZED else 0)
        contents.slots[slot].state = NOTHING
        if row[R.ERROR] == 0:
            row[R.ERROR] = E_UNEXPECTED_HEADER
        return
    row[R.CONTENT] = contents.slots[slot].frame_no
    if row[R.CLASS] >= 0 and row[R.CLASS] != contents.slots[slot].class_id:
        row[R.NOTES] |= R.CLASS_DIFFERS
    contents.slots[slot].position = 0
    if body_size < 0:
        contents.slots[slot].state = UNSIZED
        contents.slots[slot].whole = 0
        return
    contents.slots[slot].state = OPEN
    contents.slots[slot].expected = body_size
    contents.slots[slot].whole = 1
    begin(contents.digests, slot)
    if body_size == 0:
        _complete(contents, slot, row, digest)


@inlined
def on_body(contents, direction, channel, data, start, size, row, digest):
    """A whole body frame with payload `data[start:start+size]`."""
    slot = _slot(contents, direction, channel)
    state = contents.slots[slot].state
    if state == UNSIZED:
        row[R.CONTENT] = contents.slots[slot].frame_no
        return
    if state != OPEN:
        row[R.ERROR] = E_UNEXPECTED_BODY
        if state == ANNOUNCED:
            row[R.NOTES] |= R.HEADER_MISSING
        elif state == COMPLETE:
            row[R.NOTES] |= R.BODY_LONG if contents.slots[slot].expected else R.UNEXPECTED_BODY
        else:
            row[R.NOTES] |= R.ORPHAN_CONTENT
        return
    row[R.CONTENT] = contents.slots[slot].frame_no
    contents.slots[slot].position += size
    if contents.slots[slot].whole:
        update(contents.digests, slot, data, start, size)
    if contents.slots[slot].position > contents.slots[slot].expected:
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_BODY_LONG
        row[R.NOTES] |= R.BODY_LONG
        contents.slots[slot].state = COMPLETE
    elif contents.slots[slot].position == contents.slots[slot].expected:
        _complete(contents, slot, row, digest)


@kernel
def on_partial_body(contents, direction, channel, size, row):
    """A body frame of declared payload `size` that lost bytes: the content continues, but has no digest."""
    slot = _slot(contents, direction, channel)
    if contents.slots[slot].state == UNSIZED:
        row[R.CONTENT] = contents.slots[slot].frame_no
    elif contents.slots[slot].state == OPEN:
        row[R.CONTENT] = contents.slots[slot].frame_no
        contents.slots[slot].whole = 0
        contents.slots[slot].position += size
        if contents.slots[slot].position >= contents.slots[slot].expected:
            contents.slots[slot].state = NOTHING


DECODED, WAIT, MODE_CHANGED, ROWS_FULL = range(4)
OVERHEAD = 8
PLAUSIBLE_BYTES = LIMITS.plausible_frame_bytes
FRAME_MIN_SIZE = 4096  # 0-9-1 specification, constant frame-min-size
NO_NUMBER = 0x2000  # class and method ids from here on are two characters of a text
HEADER_FIXED = 14  # class, weight, body size, first property flags


@inlined
def _u16(buf, p):
    return (int(buf[p]) << 8) | int(buf[p + 1])


@inlined
def _u32(buf, p):
    return (int(buf[p]) << 24) | (int(buf[p + 1]) << 16) | (int(buf[p + 2]) << 8) | int(buf[p + 3])


@inlined
def body_size_at(buf, p):
    """The unsigned 64-bit body size at `p`; -2 when it is 2^63 or more, which LONG cannot represent."""
    if buf[p] >= 0x80:
        return -2
    # signed, like -2: numba would make a float of signed and unsigned, which has 53 bits
    return (np.int64(_u32(buf, p)) << 32) | np.int64(_u32(buf, p + 4))


@inlined
def frame_kind(t, version, number):
    """FRAME_TYPES code of a frame type byte in `version`, -1 undefined."""
    return int(t.frame_kind[version, number])


@inlined
def next_frame(c, d, direction, s, rows, contents, t):
    """Decode the frame at `pos`: DECODED (its row was appended), WAIT (more bytes are needed), MODE_CHANGED (no frame
    begins here), ROWS_FULL (nothing changed)."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if p >= end:
        return WAIT
    kind = frame_kind(t, int(c.version), int(buf[p]))
    if kind < 0 and c.scoring:
        kind = frame_kind(t, V.V0_8, int(buf[p]))  # which defines all frame types
    if p + 7 > end:
        return WAIT
    size = _u32(buf, p + 3)
    if size + OVERHEAD > FRAME_BYTES:
        begins = begins_frame(c, buf, p, end, kind, t)
        c.limits |= FRAME_SIZE if begins else 0
        d.span_notes = R.FRAME_TYPE if kind < 0 else (R.SIZE_IMPLAUSIBLE if begins and size > PLAUSIBLE_BYTES else 0)
        d.mode = LOST
        return MODE_CHANGED
    stop = p + 7 + size
    if c.scoring and stop + 1 <= end and int(buf[stop]) == FRAME_END:
        score_frame(rows, c, buf, p, stop, t)
        kind = frame_kind(t, int(c.version), int(buf[p]))
    if kind < 0:
        # a frame with an undefined type must have its end byte in place
        if stop + 1 > end or int(buf[stop]) != FRAME_END:
            d.span_notes = R.FRAME_TYPE
            d.mode = LOST
            return MODE_CHANGED
        kind = V.SKIPPED
    if stop + 1 > end:
        return WAIT
    if int(buf[stop]) != FRAME_END and _boundary_inside(c, buf, p, stop + 1, t):
        d.span_notes = R.FRAME_END
        d.mode = LOST
        return MODE_CHANGED
    offset = int(d.next) - (end - p)
    index = R.append_row(rows, c, direction, kind, offset, size + OVERHEAD)
    row = rows.cells[index]
    R.set_packets(row, d, s, offset, offset + size + OVERHEAD)
    row[R.CHANNEL] = _u16(buf, p + 1)
    row[R.PAYLOAD_SIZE] = size
    if int(buf[stop]) != FRAME_END:
        row[R.STATUS] = V.MALFORMED
        row[R.ERROR] = V.E_FRAME_END
        row[R.NOTES] = R.FRAME_END
    if not _fill(c, direction, buf, p + 7, stop, kind, row, index, rows, contents, t):
        R.drop_last_row(rows, c)
        return ROWS_FULL
    d.pos = stop + 1
    if kind == V.SKIPPED:
        d.skipped_bytes += size + OVERHEAD
    else:
        d.frame_bytes += size + OVERHEAD
    return DECODED


@kernel
def begins_frame(c, buf, p, end, kind, t):
    """Whether the bytes at `p`, with a frame type of `kind`, may begin a frame of `c`, of any size: its channel is in
    range, and its method or class is defined."""
    channel, version = u16(buf, p + 1, end), int(c.version)
    if kind < 0 or kind == V.HEARTBEAT or (c.channel_max > 0 and channel > c.channel_max):
        return False
    if kind == V.METHOD:
        return classify_method(buf, p + 7, end, t, version) >= 0
    if kind == V.HEADER:
        klass = u16(buf, p + 7, end)
        return 0 <= klass < t.class_name.shape[1] and t.class_name[version, klass] >= 0
    return True


@kernel
def _boundary_inside(c, buf, p, stop, t):
    """Whether frames begin inside the frame at `p`, which has no end byte in place: then its size is wrong."""
    verdict, _ = find_classic(buf, p + 1, stop, stop > p, False, t, c)
    return verdict == ACCEPT


@inlined
def _fill(c, direction, buf, start, stop, kind, row, index, rows, contents, t):
    """Decode the payload `buf[start:stop]` of a frame into its row; False when the row needs more room."""
    if kind in (V.METHOD, V.OOB_METHOD):
        return _fill_method(c, direction, buf, start, stop, row, rows, contents, t)
    if kind in (V.HEADER, V.OOB_HEADER):
        return _fill_header(c, direction, buf, start, stop, row, index, rows, contents, t)
    if kind == V.BODY:
        size = stop - start
        # a body on channel 0, which has no contents, may be a login with a damaged frame type
        is_content = not row[R.HANDSHAKE] and row[R.CHANNEL] != 0
        if c.keep_payload and is_content and not R.append_payload(rows, row, buf, start, stop):
            return False
        on_body(contents, direction, int(row[R.CHANNEL]), buf, start, size, row, rows.digest[index])
        return True
    if kind == V.HEARTBEAT and stop > start:
        row[R.STATUS] = V.MALFORMED
        row[R.ERROR] = V.E_HEARTBEAT
    if kind == V.SKIPPED:
        row[R.STATUS] = V.UNKNOWN
        row[R.ERROR] = V.E_FRAME_TYPE
        row[R.NOTES] |= R.FRAME_TYPE
    return True


@inlined
def _fill_method(c, direction, buf, start, stop, row, rows, contents, t):
    channel = int(row[R.CHANNEL])
    if stop - start < 4:
        row[R.STATUS] = V.MALFORMED
        row[R.ERROR] = V.E_SHORT_METHOD
        row[R.NOTES] |= R.FIELDS_SHORT
        return True
    row[R.CLASS] = _u16(buf, start)
    row[R.METHOD_ID] = _u16(buf, start + 2)
    if c.started == 0 and direction != c.client and is_start(buf, start, stop, t):
        apply_start(rows, c, direction, byte_at(buf, start + 4), byte_at(buf, start + 5), t)
        row[R.VERSION] = c.version
        row[R.KNOWN] = c.version_known
    method = classify_method(buf, start, stop, t, int(c.version))
    if method < 0:
        row[R.STATUS] = V.UNKNOWN
        row[R.ERROR] = V.E_METHOD
        _hide_numbers(c, row)
        return True
    row[R.NAME] = t.method_name[method]
    row[R.DEFINITION] = method
    if not R.append_bytes(rows, row, buf, start + 4, stop):
        return False
    if t.method_authenticates[method]:
        c.handshaking = 1
    elif c.handshaking and check_method(buf, start, stop, t, int(c.version), method):
        c.handshaking = 0
        row[R.HANDSHAKE] = 0
    if row[R.TYPE] == V.OOB_METHOD:
        return True  # its content is separate from that of the channel
    apply_method(c, direction, buf, start, stop, method, rows, t)
    on_method(contents, direction, channel, t.method_content[method], row)
    return True


@inlined
def _hide_numbers(c, row):
    """Clear undefined class and method ids that may be part of a secret."""
    if c.handshaking or row[R.CLASS] >= NO_NUMBER or row[R.METHOD_ID] >= NO_NUMBER:
        row[R.CLASS] = row[R.METHOD_ID] = -1


@kernel
def apply_method(c, direction, buf, start, stop, method, rows, t):
    """Apply a method to its connection: which side is the client, the negotiated limits."""
    if c.client < 0:
        sender = method_sender(c, buf, start, stop, method, t)
        if sender >= 0:
            R.resolve_senders(rows, c, direction if sender == R.CLIENT else 1 - direction, R.BY_METHOD)
    if method == t.tune_ok[int(c.version)] and stop - start >= 10:
        c.channel_max = _u16(buf, start + 4)
        frame_max = _u32(buf, start + 6)
        # a value below the minimum, or above the buffer, does not limit
        c.frame_max = min(frame_max, FRAME_BYTES) if frame_max >= FRAME_MIN_SIZE else 0


@inlined
def _fill_header(c, direction, buf, start, stop, row, index, rows, contents, t):
    if stop - start < HEADER_FIXED:
        row[R.STATUS] = V.MALFORMED
        row[R.ERROR] = V.E_SHORT_HEADER
        row[R.NOTES] |= R.FIELDS_SHORT
        return True
    klass = _u16(buf, start)
    row[R.CLASS] = klass
    if _u16(buf, start + 2) != 0:
        row[R.NOTES] |= R.WEIGHT
    body_size = body_size_at(buf, start + 4)
    version = int(c.version)
    if klass < t.class_name.shape[1] and t.class_name[version, klass] >= 0:
        row[R.BODY_SIZE] = body_size if body_size >= 0 else -1
        row[R.NAME] = t.class_name[version, klass]
        row[R.DEFINITION] = klass
        if not R.append_bytes(rows, row, buf, start + 12, stop):
            return False
    else:
        row[R.STATUS] = V.MALFORMED
        row[R.ERROR] = V.E_NO_CONTENT_CLASS
    if row[R.TYPE] == V.HEADER:
        on_header(contents, direction, int(row[R.CHANNEL]), body_size, row, rows.digest[index])
    return True


@kernel
def begin_partial(c, d, s, t):
    """A hole follows `end`: if the bytes from `pos` begin a frame, continue INSIDE it. True when they do."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if end - p < 7:
        return False
    kind = frame_kind(t, int(c.version), int(buf[p]))
    size = _u32(buf, p + 3)
    if kind < 0 or size + OVERHEAD > FRAME_BYTES:
        return False
    R.begin_partial_frame(d, kind, size + OVERHEAD, _u16(buf, p + 1))
    if kind == V.METHOD and end - p >= 11:
        d.frame_class = _u16(buf, p + 7)
        d.frame_method = _u16(buf, p + 9)
    elif kind == V.HEADER and end - p >= 9:
        d.frame_class = _u16(buf, p + 7)
        if end - p >= 19:
            d.frame_body_size = body_size_at(buf, p + 11)
    return True


@kernel
def partial_row(c, d, direction, stored, rows, contents, t):
    """Append the row of a frame that lost bytes; `stored`: its first bytes. The open span of `d` has its packets."""
    kind = int(d.frame_type)
    index = R.append_partial_row(rows, c, d, direction, kind)
    row = rows.cells[index]
    row[R.CLASS] = d.frame_class
    row[R.METHOD_ID] = d.frame_method
    # the bytes present without the frame header; the end byte may be among them
    row[R.PAYLOAD_SIZE] = max(0, min(int(d.frame_seen) - 7, int(d.frame_size) - OVERHEAD))
    channel = int(d.frame_channel)
    version = int(c.version)
    if kind == V.METHOD and d.frame_class >= 0:
        method = method_index(t, version, int(d.frame_class), int(d.frame_method))
        if method >= 0:
            row[R.NAME] = t.method_name[method]
            row[R.DEFINITION] = method
            if t.method_authenticates[method]:
                c.handshaking = 1
            store_partial(rows, row, stored, 4)
            on_method(contents, direction, channel, t.method_content[method], row)
        else:
            _hide_numbers(c, row)
    elif kind == V.METHOD:
        on_method(contents, direction, channel, False, row)
    elif kind == V.HEADER:
        if 0 <= d.frame_class < t.class_name.shape[1]:
            row[R.NAME] = t.class_name[version, int(d.frame_class)]
            if row[R.NAME] >= 0 and d.frame_body_size != -1:
                row[R.DEFINITION] = d.frame_class
                store_partial(rows, row, stored, 12)
        if d.frame_body_size >= 0 and row[R.NAME] >= 0:
            row[R.BODY_SIZE] = d.frame_body_size
        on_header(contents, direction, channel, int(d.frame_body_size), row, rows.digest[index])
    elif kind == V.BODY:
        on_partial_body(contents, direction, channel, int(d.frame_size) - OVERHEAD, row)


@kernel
def store_partial(rows, row, stored, fixed):
    """Store the bytes of values after the first `fixed` bytes of the payload, of a frame that lost bytes."""
    R.append_bytes(rows, row, stored, 7 + fixed, max(7 + fixed, min(len(stored), 7 + int(row[R.SIZE]) - OVERHEAD)))
