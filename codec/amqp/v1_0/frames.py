"""Frames of AMQP 1.0 out of an ordered stream: one row each.

Frame (part 2, section 2.3.1): size, DOFF (where the body begins, in units of four octets), type, channel, an extended
header that nobody reads, then the body: a performative, behind a transfer a part of a message. A frame without body
keeps the connection alive. `next_frame` takes one whole frame from the boundary at `pos`; `tear` starts on a frame
that a hole runs through, whose row is `partial`; `torn_row` ends it. Of each performative the octets are kept for
`codec.amqp.v1_0.message`, which says how.
"""

from __future__ import annotations

from codec.amqp import notes as N
from codec.amqp import rows as R
from codec.amqp.classic.frames import MODE_CHANGED, ROWS_FULL, TAKEN, WAIT
from codec.amqp.detect import ACCEPT, FRAME_BYTES, tls_record
from codec.amqp.v1_0 import tables as T
from codec.amqp.v1_0.constructors import compound, is_true, length_at, skip, unsigned_value
from codec.amqp.v1_0.deliveries import (
    ABORTED,
    MORE_FOLLOWS,
    RESUMED,
    UNCERTAIN,
    begins,
    link_changed,
    octets_to_keep,
    transfer_seen,
    transfer_torn,
)
from codec.amqp.v1_0.delivery_slots import forget_deliveries
from codec.amqp.v1_0.detect import (
    AMQP_FRAME,
    FRAME_HEADER,
    SASL_FRAME,
    WORD,
    fields_end,
    find_described,
    is_list,
    performative,
)
from codec.amqp.v1_0.message import NO_BODY
from codec.amqp.v1_0.sections import section_head
from codec.amqp.versions import (
    AMQP,
    E_FIELDS,
    E_FRAME_TYPE,
    E_MISSING_INSIDE,
    E_MISSING_VALUES,
    E_NO_PERFORMATIVE,
    E_SHORT_FRAME,
    EMPTY,
    MALFORMED,
    PARTIAL,
    SASL,
    SKIPPED,
    UNKNOWN,
)
from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import FRAME_SIZE
from codec.cursor import octet, u8, u16, u32
from codec.tcp.direction import FRAMES, INSIDE, LOST, TLS


@inlined
def next_frame(c, d, direction, s, rows, dl, t):
    """Take the frame at `pos`: TAKEN with its row appended, WAIT for more bytes, MODE_CHANGED when no frame begins
    here, ROWS_FULL with nothing changed."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if end - p < FRAME_HEADER:
        return WAIT
    size, doff, kind = u32(buf, p, end), octet(buf, p + WORD), octet(buf, p + 5)
    if size > FRAME_BYTES and tls_record(buf, p, end, size > 0) == ACCEPT:
        d.mode = TLS  # what the protocol header with id 2 announced
        return MODE_CHANGED
    if size < FRAME_HEADER or size > FRAME_BYTES:
        c.limits |= FRAME_SIZE if size > FRAME_BYTES else 0
        d.span_notes = N.FRAME_SHORT if size < FRAME_HEADER else 0
        d.mode = LOST
        return MODE_CHANGED
    stop = p + size
    if stop > end:
        return WAIT
    start = p + doff * WORD
    odd = start < p + FRAME_HEADER or start > stop or kind > SASL_FRAME
    if odd and find_described(buf, p + 1, stop, stop > p, t, c)[0] == ACCEPT:
        d.mode = LOST
        return MODE_CHANGED
    room = 1 + size
    of, code, at = performative(buf, start, stop if not odd else start, t)
    after = _locate_fields(buf, at, stop, of, dl.fields, t)
    channel = u16(buf, p + 6, end) if kind == AMQP_FRAME else 0
    if of == t.places[0].transfer and after >= 0:
        room += octets_to_keep(
            dl, direction, channel, unsigned_value(buf, int(dl.fields[t.places[0].handle]), after, t)
        )
    if int(rows.used[1]) + room > len(rows.octets) or (c.keep_payload and int(rows.used[2]) + size > len(rows.payload)):
        return ROWS_FULL
    offset = int(d.next) - (end - p)
    frame_type = SASL if kind == SASL_FRAME else (EMPTY if start == stop else AMQP)
    index = R.append_row(rows, c, direction, SKIPPED if kind > SASL_FRAME else frame_type, offset, size)
    row = rows.cells[index]
    R.set_packets(row, d, s, offset, offset + size)
    row[R.CHANNEL] = channel
    row[R.PAYLOAD_SIZE] = 0
    d.pos = stop
    if kind > SASL_FRAME:
        row[R.STATUS] = UNKNOWN
        row[R.ERROR] = E_FRAME_TYPE
        d.skipped_bytes += size
        return TAKEN
    d.frame_bytes += size
    if odd:
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_SHORT_FRAME
    elif frame_type != EMPTY:
        _fill(c, d, direction, buf, start, stop, of, code, at, after, row, index, rows, dl, t)
    return TAKEN


@kernel
def _locate_fields(buf, at, stop, of, fields, t):
    """Note where the fields of the list whose constructor is at `at` stand (-1: not there), when the framing looks into
    the performative `of`: the offset after the list, -1 when it is none."""
    if not is_list(buf, at, stop, t):
        return -1
    start, end, count = compound(buf, at + 1, stop, octet(buf, at), t)
    if of < 0 or not t.descriptor[of].framing:
        return end
    fields[:] = -1
    at = start
    for i in range(min(count, len(fields))):
        if at < 0 or at >= end:
            break
        fields[i] = at
        at = skip(buf, at, end, t)
    return end


@inlined
def _fill(c, d, direction, buf, start, stop, of, code, at, after, row, index, rows, dl, t):
    """The body `buf[start:stop]` of a frame into its row. The list of its performative is `buf[at:after]`."""
    if row[R.TYPE] == SASL:
        c.handshaking = 1
        row[R.HANDSHAKE] = 1
    if of >= 0 or not row[R.HANDSHAKE]:
        row[R.CODE] = code
    if of < 0 or after < 0:
        row[R.STATUS] = UNKNOWN if of < 0 and code >= 0 and after >= 0 else MALFORMED
        row[R.ERROR] = E_NO_PERFORMATIVE
        if of >= 0:
            row[R.NAME] = t.descriptor[of].name
        return
    row[R.NAME] = t.descriptor[of].name
    row[R.DEFINITION] = of
    row[R.PAYLOAD_SIZE] = stop - after
    misplaced = t.descriptor[of].frame_type != row[R.TYPE]
    if row[R.HANDSHAKE] and row[R.TYPE] == AMQP and not misplaced and fields_end(buf, at, after, of, t) == after:
        c.handshaking = 0
        row[R.HANDSHAKE] = 0
    if misplaced:
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_NO_PERFORMATIVE
    elif after < stop and of != t.places[0].transfer:
        row[R.NOTES] |= N.OCTETS_LEFT
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_FIELDS
    first = int(rows.used[1])
    rows.octets[first] = NO_BODY
    rows.used[1] += 1
    R.keep_octets(rows, row, buf, start, after)
    if misplaced:
        return
    if of == t.places[0].transfer:
        body = _transfer(c, d, direction, buf, after, stop, row, index, rows, dl, t)
        if body >= 0:
            rows.octets[first] = body
    else:
        _note(c, direction, buf, after, of, row, rows, dl, t)


@inlined
def _transfer(c, d, direction, buf, after, stop, row, index, rows, dl, t):
    """A transfer with the payload `buf[after:stop]`: the section of the body that it completes, or -1."""
    if c.keep_payload and not row[R.HANDSHAKE]:
        R.keep_payload(rows, row, buf, after, stop)
    places, fields = t.places[0], dl.fields
    handle = unsigned_value(buf, int(fields[places.handle]), after, t)
    if handle < 0:
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_FIELDS
        return -1
    flags = MORE_FOLLOWS if is_true(buf, int(fields[places.more]), after, t) else 0
    flags |= RESUMED if is_true(buf, int(fields[places.resume]), after, t) else 0
    flags |= ABORTED if is_true(buf, int(fields[places.aborted]), after, t) else 0
    flags |= UNCERTAIN if d.holes > 0 or not d.syn else 0
    transfer = (handle, unsigned_value(buf, int(fields[places.delivery_id]), after, t), flags)
    return transfer_seen(dl, c, direction, row, rows, rows.digest[index], t, buf, after, stop, transfer)


@kernel
def _note(c, direction, buf, after, of, row, rows, dl, t):
    """What a performative says about its connection: who is the client, the limits, which links begin and end."""
    places, fields = t.places[0], dl.fields
    sender = int(t.descriptor[of].sender)
    if c.client < 0 and sender >= 0:
        R.resolve_senders(rows, c, direction if sender == R.CLIENT else 1 - direction, R.BY_METHOD)
    if of == places.open:
        frame_max = unsigned_value(buf, int(fields[places.max_frame_size]), after, t)
        channel_max = unsigned_value(buf, int(fields[places.channel_max]), after, t)
        c.frame_max = max(int(c.frame_max), FRAME_BYTES if frame_max < 0 else min(frame_max, FRAME_BYTES))
        c.channel_max = max(int(c.channel_max), 65535 if channel_max < 0 else min(channel_max, 65535))
    elif of == places.attach or of == places.detach:
        place = places.attach_handle if of == places.attach else places.detach_handle
        handle = unsigned_value(buf, int(fields[place]), after, t)
        if handle >= 0:
            link_changed(dl, direction, int(row[R.CHANNEL]), handle)


@kernel
def tear(c, d, s, dl, t):
    """A hole follows `end`: whether the bytes from `pos` are the beginning of a frame; then INSIDE it from now on."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if end - p < FRAME_HEADER:
        return False
    size, doff, kind = u32(buf, p, end), octet(buf, p + WORD), octet(buf, p + 5)
    if size < FRAME_HEADER or size > FRAME_BYTES or doff < 2 or doff * WORD > size or kind > SASL_FRAME:
        return False
    d.mode = INSIDE
    d.frame_from = int(d.next) - (end - p)
    d.frame_size = size
    d.frame_end = d.frame_from + size
    d.frame_seen = end - p
    d.frame_type = kind
    d.frame_channel = u16(buf, p + 6, end) if kind == AMQP_FRAME else 0
    d.frame_class = -1  # index of the performative
    d.frame_method = -1  # handle of a transfer
    d.frame_body_size = 0  # flags of a transfer
    if end - p < doff * WORD:
        return True
    of, _, at = performative(buf, p + doff * WORD, end, t)
    if of >= 0 and t.descriptor[of].frame_type == (SASL if kind == SASL_FRAME else AMQP):
        d.frame_class = of
        if of == t.places[0].transfer and at >= 0:
            after = _locate_fields(buf, at, end, of, dl.fields, t)
            if after >= 0:
                d.frame_method = unsigned_value(buf, int(dl.fields[t.places[0].handle]), after, t)
                more = is_true(buf, int(dl.fields[t.places[0].more]), after, t)
                certain = d.syn != 0 and d.holes == 0
                d.frame_body_size = MORE_FOLLOWS if more else 0
                d.frame_body_size |= 0 if certain or begins(buf, after, end, t) else UNCERTAIN
    return True


@kernel
def torn_row(c, d, direction, torn, rows, dl, t):
    """The row of a frame that lost bytes, of which `torn` is there (its packets stand in the open span of `d`)."""
    of = int(d.frame_class)
    kind = SASL if d.frame_type == SASL_FRAME else AMQP
    index = R.append_row(rows, c, direction, kind, int(d.frame_from), int(d.frame_size))
    row = rows.cells[index]
    row[R.FIRST_PACKET] = d.span_first_packet
    row[R.FIRST_TS] = d.span_first_ns
    row[R.PACKET] = d.span_packet
    row[R.TS] = d.span_ns
    row[R.FILE] = d.span_file
    row[R.CHANNEL] = d.frame_channel
    row[R.STATUS] = PARTIAL
    row[R.ERROR] = E_MISSING_INSIDE
    if of >= 0:
        row[R.NAME] = t.descriptor[of].name
        row[R.CODE] = t.descriptor[of].code
    if kind == SASL:
        c.handshaking = row[R.HANDSHAKE] = 1
    if of == t.places[0].transfer and d.frame_method >= 0:
        transfer_torn(dl, direction, int(d.frame_method), int(d.frame_body_size), row)
    elif of < 0 or of == t.places[0].transfer:
        forget_deliveries(dl, direction)  # it may have been a transfer of any of them
    if of >= 0:
        _keep_torn(d, torn, of, row, rows, t)
    d.frame_bytes += d.frame_seen
    d.span_from = -1
    d.mode = FRAMES


@kernel
def _keep_torn(d, torn, of, row, rows, t):
    """Keep what is there of the performative `of` in a frame that lost bytes: fields that are whole; and if it is the
    transfer that a delivery begins with, sections. Of a login nothing is kept where its list lost bytes, since nobody
    knows what is whole then."""
    start, stop = octet(torn, WORD) * WORD, min(len(torn), int(row[R.SIZE]))
    _, _, at = performative(torn, start, stop, t)
    code = u8(torn, at, stop) if at >= 0 else -1
    if code < 0 or t.constructor[code].type != T.LIST:
        return
    width = int(t.constructor[code].width)
    first, after, _ = compound(torn, at + 1, stop, code, t)
    whole = first >= 0
    row[R.PAYLOAD_SIZE] = max(0, int(d.frame_seen) - after) if whole else 0
    if not whole and (row[R.HANDSHAKE] or t.descriptor[of].secret >= 0 or at + 2 * width >= stop):
        return
    count = 0
    if not whole:
        first = at + 1 + 2 * width
        after = first
        most = length_at(torn, at + 1 + width, stop, width)
        while count < most:
            follows = skip(torn, after, stop, t)
            if follows < 0:
                break
            after = follows
            count += 1
        row[R.ERROR] = E_MISSING_VALUES
    begins = int(rows.used[1])
    rows.octets[begins] = NO_BODY
    rows.used[1] += 1
    R.keep_octets(rows, row, torn, start, after)
    row[R.DEFINITION] = of
    if not whole:
        at += begins + 1 - start
        for i in range(width):
            rows.octets[at + 1 + i] = ((after - first + width) >> (8 * (width - 1 - i))) & 0xFF
            rows.octets[at + 1 + width + i] = (count >> (8 * (width - 1 - i))) & 0xFF
    elif of == t.places[0].transfer and row[R.CONTENT] == row[R.FRAME_NO]:
        _keep_sections(torn, after, stop, row, rows, t)


@kernel
def _keep_sections(torn, at, stop, row, rows, t):
    """Keep the sections before the body, as far as they are whole, of the message that begins at `at`."""
    while at < stop:
        section, _, inside, size = section_head(torn, at, stop, t)
        if section < 0 or size > stop - inside or T.DATA <= section <= T.VALUE:
            return
        R.keep_octets(rows, row, torn, at, inside + size)
        at = inside + size
