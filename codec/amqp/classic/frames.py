"""Frames of the classic family (0-8, 0-9, 0-9-1) out of an ordered stream: one row each.

Frame (0-9-1 specification, section 4.2.3): type octet, channel short, size long, payload, end octet 0xCE.
`next_frame` takes one whole frame from the boundary at `pos`; `tear` starts on a frame that a hole runs through,
whose row is `partial`; `torn_row` ends it.
"""

from __future__ import annotations

import numpy as np

from codec.amqp import notes as N
from codec.amqp import rows as R
from codec.amqp.classic.agreement import agree, is_start, method_index, method_sender, weigh_frame
from codec.amqp.classic.contents import body_seen, body_torn, header_seen, method_seen
from codec.amqp.classic.methods import check_method, classify_method
from codec.amqp.detect import ACCEPT, FRAME_BYTES, FRAME_END, find_chain
from codec.amqp.versions import (
    BODY,
    E_FRAME_END,
    E_FRAME_TYPE,
    E_HEARTBEAT,
    E_METHOD,
    E_MISSING_INSIDE,
    E_NO_CONTENT_CLASS,
    E_SHORT_HEADER,
    E_SHORT_METHOD,
    HEADER,
    HEARTBEAT,
    MALFORMED,
    METHOD,
    OOB_HEADER,
    OOB_METHOD,
    PARTIAL,
    SKIPPED,
    UNKNOWN,
    V0_8,
)
from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import FRAME_SIZE, LIMITS
from codec.cursor import octet, u16
from codec.tcp.direction import FRAMES, INSIDE, LOST

TAKEN, WAIT, MODE_CHANGED, ROWS_FULL = range(4)
OVERHEAD = 8
PLAUSIBLE_BYTES = LIMITS.plausible_frame_bytes
FRAME_MIN_SIZE = 4096  # 0-9-1 specification, constant frame-min-size
NO_NUMBER = 0x2000  # of a class or method: two characters of a text that stands in their place
HEADER_FIXED = 14  # class, weight, body size, first property flags


@inlined
def _u16(buf, p):
    return (int(buf[p]) << 8) | int(buf[p + 1])


@inlined
def _u32(buf, p):
    return (int(buf[p]) << 24) | (int(buf[p + 1]) << 16) | (int(buf[p + 2]) << 8) | int(buf[p + 3])


@inlined
def body_size_at(buf, p):
    """The unsigned 64-bit body size at `p`; -2 when it is 2^63 or more (no LONG holds it, no content has it)."""
    if buf[p] >= 0x80:
        return -2
    # signed, like -2: of signed and unsigned numba would make a float, which has 53 bits
    return (np.int64(_u32(buf, p)) << 32) | np.int64(_u32(buf, p + 4))


@inlined
def frame_kind(t, version, number):
    """FRAME_TYPES code of a frame type octet in `version`, -1 undefined."""
    return int(t.frame_kind[version, number])


@inlined
def next_frame(c, d, direction, s, rows, contents, t):
    """Take the frame at `pos`: TAKEN with its row appended, WAIT for more bytes, MODE_CHANGED when no frame begins
    here, ROWS_FULL with nothing changed."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if p >= end:
        return WAIT
    kind = frame_kind(t, int(c.version), int(buf[p]))
    if kind < 0 and c.weighing:
        kind = frame_kind(t, V0_8, int(buf[p]))  # which defines all types
    if p + 7 > end:
        return WAIT
    size = _u32(buf, p + 3)
    if size + OVERHEAD > FRAME_BYTES:
        begins = begins_frame(c, buf, p, end, kind, t)
        c.limits |= FRAME_SIZE if begins else 0
        d.span_notes = N.FRAME_TYPE if kind < 0 else (N.SIZE_IMPLAUSIBLE if begins and size > PLAUSIBLE_BYTES else 0)
        d.mode = LOST
        return MODE_CHANGED
    stop = p + 7 + size
    if c.weighing and stop + 1 <= end and int(buf[stop]) == FRAME_END:
        weigh_frame(rows, c, buf, p, stop, t)
        kind = frame_kind(t, int(c.version), int(buf[p]))
    if kind < 0:
        # an undefined type is a frame only if everything else says so
        if stop + 1 > end or int(buf[stop]) != FRAME_END:
            d.span_notes = N.FRAME_TYPE
            d.mode = LOST
            return MODE_CHANGED
        kind = SKIPPED
    if stop + 1 > end:
        return WAIT
    if int(buf[stop]) != FRAME_END and _boundary_inside(c, buf, p, stop + 1, t):
        d.span_notes = N.FRAME_END
        d.mode = LOST
        return MODE_CHANGED
    offset = int(d.next) - (end - p)
    index = R.append_row(rows, c, direction, kind, offset, size + OVERHEAD)
    row = rows.cells[index]
    R.set_packets(row, d, s, offset, offset + size + OVERHEAD)
    row[R.CHANNEL] = _u16(buf, p + 1)
    row[R.PAYLOAD_SIZE] = size
    if int(buf[stop]) != FRAME_END:
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_FRAME_END
        row[R.NOTES] = N.FRAME_END
    if not _fill(c, direction, buf, p + 7, stop, kind, row, index, rows, contents, t):
        R.cancel_row(rows, c)
        return ROWS_FULL
    d.pos = stop + 1
    if kind == SKIPPED:
        d.skipped_bytes += size + OVERHEAD
    else:
        d.frame_bytes += size + OVERHEAD
    return TAKEN


@kernel
def begins_frame(c, buf, p, end, kind, t):
    """Whether the bytes at `p`, with a frame type of `kind`, may begin a frame of `c`, whatever size they claim: a
    channel in use, a method or class that is defined."""
    channel, version = u16(buf, p + 1, end), int(c.version)
    if kind < 0 or kind == HEARTBEAT or (c.channel_max > 0 and channel > c.channel_max):
        return False
    if kind == METHOD:
        return classify_method(buf, p + 7, end, t, version) >= 0
    if kind == HEADER:
        klass = u16(buf, p + 7, end)
        return 0 <= klass < t.class_name.shape[1] and t.class_name[version, klass] >= 0
    return True


@kernel
def _boundary_inside(c, buf, p, stop, t):
    """The frame at `p` has no end octet in place: is its size a lie that hides real frames?"""
    verdict, _ = find_chain(buf, p + 1, stop, stop > p, t, c)
    return verdict == ACCEPT


@inlined
def _fill(c, direction, buf, start, stop, kind, row, index, rows, contents, t):
    """Decode the payload `buf[start:stop]` of a frame into its row; False when the row must be made again with more
    room."""
    if kind in (METHOD, OOB_METHOD):
        return _fill_method(c, direction, buf, start, stop, row, rows, contents, t)
    if kind in (HEADER, OOB_HEADER):
        return _fill_header(c, direction, buf, start, stop, row, index, rows, contents, t)
    if kind == BODY:
        size = stop - start
        # a body on channel 0, which has no content, may be a login whose type is damaged
        is_content = not row[R.HANDSHAKE] and row[R.CHANNEL] != 0
        if c.keep_payload and is_content and not R.keep_payload(rows, row, buf, start, stop):
            return False
        body_seen(contents, direction, int(row[R.CHANNEL]), buf, start, size, row, rows.digest[index])
        return True
    if kind == HEARTBEAT and stop > start:
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_HEARTBEAT
    if kind == SKIPPED:
        row[R.STATUS] = UNKNOWN
        row[R.ERROR] = E_FRAME_TYPE
        row[R.NOTES] |= N.FRAME_TYPE
    return True


@inlined
def _fill_method(c, direction, buf, start, stop, row, rows, contents, t):
    channel = int(row[R.CHANNEL])
    if stop - start < 4:
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_SHORT_METHOD
        row[R.NOTES] |= N.FIELDS_SHORT
        return True
    row[R.CLASS] = _u16(buf, start)
    row[R.METHOD_ID] = _u16(buf, start + 2)
    if c.started == 0 and direction != c.client and is_start(buf, start, stop, t):
        agree(rows, c, direction, octet(buf, start + 4), octet(buf, start + 5), t)
        row[R.VERSION] = c.version
        row[R.KNOWN] = c.version_known
    method = classify_method(buf, start, stop, t, int(c.version))
    if method < 0:
        row[R.STATUS] = UNKNOWN
        row[R.ERROR] = E_METHOD
        _hide_numbers(c, row)
        return True
    row[R.NAME] = t.method_name[method]
    row[R.DEFINITION] = method
    if not R.keep_octets(rows, row, buf, start + 4, stop):
        return False
    if t.method_greets[method]:
        c.handshaking = 1
    elif c.handshaking and check_method(buf, start, stop, t, int(c.version), method):
        c.handshaking = 0
        row[R.HANDSHAKE] = 0
    if row[R.TYPE] == OOB_METHOD:
        return True  # its content travels apart from that of the channel
    note_method(c, direction, buf, start, stop, method, rows, t)
    method_seen(contents, direction, channel, t.method_content[method], row)
    return True


@inlined
def _hide_numbers(c, row):
    """Class and method that nobody has defined may be a piece of a secret."""
    if c.handshaking or row[R.CLASS] >= NO_NUMBER or row[R.METHOD_ID] >= NO_NUMBER:
        row[R.CLASS] = row[R.METHOD_ID] = -1


@kernel
def note_method(c, direction, buf, start, stop, method, rows, t):
    """What a method says about its connection: who is the client, and the limits agreed on."""
    if c.client < 0:
        sender = method_sender(c, buf, start, stop, method, t)
        if sender >= 0:
            R.resolve_senders(rows, c, direction if sender == R.CLIENT else 1 - direction, R.BY_METHOD)
    if method == t.tune_ok[int(c.version)] and stop - start >= 10:
        c.channel_max = _u16(buf, start + 4)
        frame_max = _u32(buf, start + 6)
        # less than every peer must accept, or more than is ever buffered, bounds nothing
        c.frame_max = min(frame_max, FRAME_BYTES) if frame_max >= FRAME_MIN_SIZE else 0


@inlined
def _fill_header(c, direction, buf, start, stop, row, index, rows, contents, t):
    if stop - start < HEADER_FIXED:
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_SHORT_HEADER
        row[R.NOTES] |= N.FIELDS_SHORT
        return True
    klass = _u16(buf, start)
    row[R.CLASS] = klass
    if _u16(buf, start + 2) != 0:
        row[R.NOTES] |= N.WEIGHT
    body_size = body_size_at(buf, start + 4)
    version = int(c.version)
    if klass < t.class_name.shape[1] and t.class_name[version, klass] >= 0:
        row[R.BODY_SIZE] = body_size if body_size >= 0 else -1
        row[R.NAME] = t.class_name[version, klass]
        row[R.DEFINITION] = klass
        if not R.keep_octets(rows, row, buf, start + 12, stop):
            return False
    else:
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_NO_CONTENT_CLASS
    if row[R.TYPE] == HEADER:
        header_seen(contents, direction, int(row[R.CHANNEL]), body_size, row, rows.digest[index])
    return True


@kernel
def tear(c, d, s, t):
    """A hole follows `end`: if the bytes from `pos` are the beginning of a frame, go on INSIDE it. True when they
    are."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if end - p < 7:
        return False
    kind = frame_kind(t, int(c.version), int(buf[p]))
    size = _u32(buf, p + 3)
    if kind < 0 or size + OVERHEAD > FRAME_BYTES:
        return False
    d.mode = INSIDE
    d.frame_from = int(d.next) - (end - p)
    d.frame_size = size + OVERHEAD
    d.frame_end = d.frame_from + d.frame_size
    d.frame_seen = end - p
    d.frame_type = kind
    d.frame_channel = _u16(buf, p + 1)
    d.frame_class = -1
    d.frame_method = -1
    d.frame_body_size = -1
    if kind == METHOD and end - p >= 11:
        d.frame_class = _u16(buf, p + 7)
        d.frame_method = _u16(buf, p + 9)
    elif kind == HEADER and end - p >= 9:
        d.frame_class = _u16(buf, p + 7)
        if end - p >= 19:
            d.frame_body_size = body_size_at(buf, p + 11)
    return True


@kernel
def torn_row(c, d, direction, torn, rows, contents, t):
    """The row of a frame that lost bytes, of which `torn` is there (its packets stand in the open span of `d`)."""
    kind = int(d.frame_type)
    index = R.append_row(rows, c, direction, kind, int(d.frame_from), int(d.frame_size))
    row = rows.cells[index]
    row[R.FIRST_PACKET] = d.span_first_packet
    row[R.FIRST_TS] = d.span_first_ns
    row[R.PACKET] = d.span_packet
    row[R.TS] = d.span_ns
    row[R.FILE] = d.span_file
    row[R.CHANNEL] = d.frame_channel
    row[R.CLASS] = d.frame_class
    row[R.METHOD_ID] = d.frame_method
    row[R.STATUS] = PARTIAL
    row[R.ERROR] = E_MISSING_INSIDE
    # bytes seen less the frame header; whether the end octet is among them is not worth an exact answer
    row[R.PAYLOAD_SIZE] = max(0, min(int(d.frame_seen) - 7, int(d.frame_size) - OVERHEAD))
    channel = int(d.frame_channel)
    version = int(c.version)
    if kind == METHOD and d.frame_class >= 0:
        method = method_index(t, version, int(d.frame_class), int(d.frame_method))
        if method >= 0:
            row[R.NAME] = t.method_name[method]
            row[R.DEFINITION] = method
            if t.method_greets[method]:
                c.handshaking = 1
            _keep_torn(rows, row, torn, 4)
            method_seen(contents, direction, channel, t.method_content[method], row)
        else:
            _hide_numbers(c, row)
    elif kind == METHOD:
        method_seen(contents, direction, channel, False, row)
    elif kind == HEADER:
        if 0 <= d.frame_class < t.class_name.shape[1]:
            row[R.NAME] = t.class_name[version, int(d.frame_class)]
            if row[R.NAME] >= 0 and d.frame_body_size != -1:
                row[R.DEFINITION] = d.frame_class
                _keep_torn(rows, row, torn, 12)
        if d.frame_body_size >= 0 and row[R.NAME] >= 0:
            row[R.BODY_SIZE] = d.frame_body_size
        header_seen(contents, direction, channel, int(d.frame_body_size), row, rows.digest[index])
    elif kind == BODY:
        body_torn(contents, direction, channel, int(d.frame_size) - OVERHEAD, row)
    d.frame_bytes += d.frame_seen
    d.span_from = -1
    d.mode = FRAMES


@kernel
def _keep_torn(rows, row, torn, fixed):
    """Keep what is there of the values behind the first `fixed` octets of the payload of a frame that lost bytes."""
    R.keep_octets(rows, row, torn, 7 + fixed, max(7 + fixed, min(len(torn), 7 + int(row[R.SIZE]) - OVERHEAD)))
