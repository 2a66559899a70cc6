"""Frames of AMQP 1.0 in an ordered stream: one row each.

Frame (part 2, section 2.3.1): size, DOFF (offset of the body in units of four bytes), type, channel, an extended
header that is ignored, then the body: a performative, and after a transfer a part of a message. A frame without body is
a heartbeat. `next_frame` takes one whole frame from the boundary at `pos`. A frame that lost bytes begins with
`begin_partial` and ends with `partial_row`; its row has the status 'partial'. The bytes of performatives are stored
for `codec.protocol.v1_0_values`, which describes them.
"""

from __future__ import annotations

from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import FRAME_SIZE
from codec.cursor import (
    byte_at,
    u8,
    u16,
    u32,
)
from codec.framing import v1_0_deliveries as L
from codec.framing.classic_frames import (
    DECODED,
    MODE_CHANGED,
    ROWS_FULL,
    WAIT,
)
from codec.framing.connection import offered
from codec.framing.v1_0_deliveries import reset_deliveries
from codec.protocol import rows as R
from codec.protocol import v1_0_detection as D
from codec.protocol import v1_0_tables as T
from codec.protocol import versions as V
from codec.protocol.frame_search import ACCEPT, FRAME_BYTES, tls_record
from codec.protocol.v1_0_contents import on_attach, on_detach
from codec.protocol.v1_0_detection import (
    compound,
    is_true,
    length_at,
    section_head,
    skip,
    unsigned_value,
)
from codec.protocol.v1_0_values import NO_BODY
from codec.tcp.reassembly import LOST, TLS


@inlined
def next_frame(c, d, direction, s, rows, dl, t):
    """Decode the frame at `pos`: DECODED (its row was appended), WAIT (more bytes are needed), MODE_CHANGED (no frame
    begins here), ROWS_FULL (nothing changed)."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if end - p < D.FRAME_HEADER:
        return WAIT
    size, doff, kind = u32(buf, p, end), byte_at(buf, p + D.WORD), byte_at(buf, p + 5)
    if size > FRAME_BYTES and tls_record(buf, p, end, size > 0) == ACCEPT:
        d.mode = TLS  # announced by the protocol header with id 2
        return MODE_CHANGED
    if size < D.FRAME_HEADER or size > FRAME_BYTES:
        c.limits |= FRAME_SIZE if size > FRAME_BYTES else 0
        d.span_notes = R.FRAME_SHORT if size < D.FRAME_HEADER else 0
        d.mode = LOST
        return MODE_CHANGED
    stop = p + size
    if stop > end:
        return WAIT
    start = p + doff * D.WORD
    invalid = start < p + D.FRAME_HEADER or start > stop or kind > D.SASL_FRAME
    if invalid and D.find_v1_0(buf, p + 1, stop, stop > p, False, t, c)[0] == ACCEPT:
        d.mode = LOST
        return MODE_CHANGED
    room = 1 + size
    definition, code, at = D.performative(buf, start, stop if not invalid else start, t)
    after = _locate_fields(buf, at, stop, definition, dl.fields, t)
    channel = u16(buf, p + 6, end) if kind == D.AMQP_FRAME else 0
    if definition == t.index_of[0].transfer and after >= 0:
        room += L.stored_bytes(
            dl, direction, channel, unsigned_value(buf, int(dl.fields[t.index_of[0].handle]), after, t)
        )
    if int(rows.used[1]) + room > len(rows.data) or (c.keep_payload and int(rows.used[2]) + size > len(rows.payload)):
        return ROWS_FULL
    offset = int(d.next) - (end - p)
    frame_type = V.SASL if kind == D.SASL_FRAME else (V.EMPTY if start == stop else V.AMQP)
    index = R.append_row(rows, c, direction, V.SKIPPED if kind > D.SASL_FRAME else frame_type, offset, size)
    row = rows.cells[index]
    R.set_packets(row, d, s, offset, offset + size)
    row[R.CHANNEL] = channel
    row[R.PAYLOAD_SIZE] = 0
    d.pos = stop
    if kind > D.SASL_FRAME:
        row[R.STATUS] = V.UNKNOWN
        row[R.ERROR] = V.E_FRAME_TYPE
        d.skipped_bytes += size
        return DECODED
    d.frame_bytes += size
    if invalid:
        row[R.STATUS] = V.MALFORMED
        row[R.ERROR] = V.E_SHORT_FRAME
    elif frame_type != V.EMPTY:
        _fill(c, d, direction, buf, start, stop, definition, code, at, after, row, index, rows, dl, t)
    if c.client < 0 and c.known_by == R.BY_HEADER and d.holes == 0 and not offered(c, direction):
        # Its header was before the capture: it came before the one that was captured, which answers it (2.2).
        R.resolve_senders(rows, c, direction, R.BY_HEADER)
    return DECODED


@kernel
def _locate_fields(buf, at, stop, definition, fields, t):
    """Store the offsets of the fields of the list at `at` (-1: absent) when the framing reads the performative
    `definition`. Returns the offset after the list, -1 when there is no list."""
    if not D.is_list(buf, at, stop, t):
        return -1
    start, end, count = compound(buf, at + 1, stop, byte_at(buf, at), t)
    if definition < 0 or not t.descriptor[definition].framing:
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
def _fill(c, d, direction, buf, start, stop, definition, code, at, after, row, index, rows, dl, t):
    """Decode the frame body `buf[start:stop]` into its row. The list of its performative is `buf[at:after]`."""
    if row[R.TYPE] == V.SASL:
        c.handshaking = 1
        row[R.HANDSHAKE] = 1
    if definition >= 0 or not row[R.HANDSHAKE]:
        row[R.CODE] = code
    if definition < 0 or after < 0:
        row[R.STATUS] = V.UNKNOWN if definition < 0 and code >= 0 and after >= 0 else V.MALFORMED
        row[R.ERROR] = V.E_NO_PERFORMATIVE
        if definition >= 0:
            row[R.NAME] = t.descriptor[definition].name
        return
    row[R.NAME] = t.descriptor[definition].name
    row[R.DEFINITION] = definition
    row[R.PAYLOAD_SIZE] = stop - after
    other_type = t.descriptor[definition].frame_type != row[R.TYPE]
    if (
        row[R.HANDSHAKE]
        and row[R.TYPE] == V.AMQP
        and not other_type
        and D.fields_end(buf, at, after, definition, t) == after
    ):
        c.handshaking = 0
        row[R.HANDSHAKE] = 0
    if other_type:
        row[R.STATUS] = V.MALFORMED
        row[R.ERROR] = V.E_NO_PERFORMATIVE
    elif after < stop and definition != t.index_of[0].transfer:
        row[R.NOTES] |= R.BYTES_LEFT
        row[R.STATUS] = V.MALFORMED
        row[R.ERROR] = V.E_FIELDS
    first = int(rows.used[1])
    rows.data[first] = NO_BODY
    rows.used[1] += 1
    R.append_bytes(rows, row, buf, start, after)
    if other_type:
        return
    if definition == t.index_of[0].transfer:
        body = _transfer(c, d, direction, buf, after, stop, row, index, rows, dl, t)
        if body >= 0:
            rows.data[first] = body
    else:
        _apply(c, d, direction, buf, after, definition, row, rows, dl, t)


@inlined
def _transfer(c, d, direction, buf, after, stop, row, index, rows, dl, t):
    """Add a transfer with the payload `buf[after:stop]`: the section of the body that it completes, or -1."""
    index_of, fields = t.index_of[0], dl.fields
    handle = unsigned_value(buf, int(fields[index_of.handle]), after, t)
    key = (int(row[R.CHANNEL]) << 32) | max(handle, 0)
    withheld = c.keep_payload != 0 and L.hands_over_token(dl, d, direction, key, buf, after, stop)
    if c.keep_payload and not row[R.HANDSHAKE] and not withheld:
        R.append_payload(rows, row, buf, after, stop)
    if handle < 0:
        row[R.STATUS] = V.MALFORMED
        row[R.ERROR] = V.E_FIELDS
        return -1
    flags = L.MORE_FOLLOWS if is_true(buf, int(fields[index_of.more]), after, t) else 0
    flags |= L.RESUMED if is_true(buf, int(fields[index_of.resume]), after, t) else 0
    flags |= L.ABORTED if is_true(buf, int(fields[index_of.aborted]), after, t) else 0
    message_format = unsigned_value(buf, int(fields[index_of.message_format]), after, t)
    flags |= L.FOREIGN if message_format > 0 else 0
    flags |= L.BATCHED if message_format == L.BATCH_FORMAT else 0
    flags |= L.UNCERTAIN if d.holes > 0 or not d.syn else 0
    flags |= L.WITHHELD if withheld else 0
    transfer = (handle, unsigned_value(buf, int(fields[index_of.delivery_id]), after, t), flags)
    return L.on_transfer(dl, c, direction, row, rows, rows.digest[index], t, buf, after, stop, transfer)


@kernel
def _apply(c, d, direction, buf, after, definition, row, rows, dl, t):
    """Apply a performative to its connection: which side is the client, the limits, links that begin and end."""
    index_of, fields = t.index_of[0], dl.fields
    sender = int(t.descriptor[definition].sender)
    if c.client < 0 and sender >= 0:
        R.resolve_senders(rows, c, direction if sender == R.CLIENT else 1 - direction, R.BY_METHOD)
    if definition == index_of.open:
        frame_max = unsigned_value(buf, int(fields[index_of.max_frame_size]), after, t)
        channel_max = unsigned_value(buf, int(fields[index_of.channel_max]), after, t)
        c.frame_max = max(int(c.frame_max), FRAME_BYTES if frame_max < 0 else min(frame_max, FRAME_BYTES))
        c.channel_max = max(int(c.channel_max), 65535 if channel_max < 0 else min(channel_max, 65535))
    elif definition == index_of.attach or definition == index_of.detach:
        handle_index = index_of.attach_handle if definition == index_of.attach else index_of.detach_handle
        handle = unsigned_value(buf, int(fields[handle_index]), after, t)
        if handle < 0:
            return
        L.on_link_change(dl, direction, int(row[R.CHANNEL]), handle)
        key = (int(row[R.CHANNEL]) << 32) | handle
        if definition == index_of.attach:
            on_attach(d, buf, after, int(fields[index_of.role]), int(fields[index_of.target]), key, t)
        else:
            on_detach(d, key)


@kernel
def begin_partial(c, d, s, dl, t):
    """A hole follows `end`: if the bytes from `pos` begin a frame, continue INSIDE it. True when they do."""
    p, end = int(d.pos), int(d.end)
    buf = s.bytes
    if end - p < D.FRAME_HEADER:
        return False
    size, doff, kind = u32(buf, p, end), byte_at(buf, p + D.WORD), byte_at(buf, p + 5)
    if size < D.FRAME_HEADER or size > FRAME_BYTES or doff < 2 or doff * D.WORD > size or kind > D.SASL_FRAME:
        return False
    R.begin_partial_frame(d, kind, size, u16(buf, p + 6, end) if kind == D.AMQP_FRAME else 0)
    d.frame_body_size = 0  # flags of a transfer; frame_class: index of the performative; frame_method: handle
    if end - p < doff * D.WORD:
        return True
    definition, _, at = D.performative(buf, p + doff * D.WORD, end, t)
    if definition >= 0 and t.descriptor[definition].frame_type == (V.SASL if kind == D.SASL_FRAME else V.AMQP):
        d.frame_class = definition
        if definition == t.index_of[0].transfer and at >= 0:
            after = _locate_fields(buf, at, end, definition, dl.fields, t)
            if after >= 0:
                d.frame_method = unsigned_value(buf, int(dl.fields[t.index_of[0].handle]), after, t)
                more = is_true(buf, int(dl.fields[t.index_of[0].more]), after, t)
                certain = d.syn != 0 and d.holes == 0
                d.frame_body_size = L.MORE_FOLLOWS if more else 0
                d.frame_body_size |= 0 if certain or L.begins(buf, after, end, t) else L.UNCERTAIN
    return True


@inlined
def only_content_follows(d, t):
    """Whether all fields of the frame that lost bytes were captured, and content may follow them: a transfer."""
    return d.frame_class == t.index_of[0].transfer and d.frame_method >= 0


@kernel
def partial_row(c, d, direction, stored, rows, dl, t):
    """Append the row of a frame that lost bytes; `stored`: its first bytes. The open span of `d` has its packets."""
    definition = int(d.frame_class)
    kind = V.SASL if d.frame_type == D.SASL_FRAME else V.AMQP
    index = R.append_partial_row(rows, c, d, direction, kind)
    row = rows.cells[index]
    if definition >= 0:
        row[R.NAME] = t.descriptor[definition].name
        row[R.CODE] = t.descriptor[definition].code
    if kind == V.SASL:
        c.handshaking = row[R.HANDSHAKE] = 1
    if definition == t.index_of[0].transfer and d.frame_method >= 0:
        L.on_partial_transfer(dl, direction, int(d.frame_method), int(d.frame_body_size), row)
    elif definition < 0 or definition == t.index_of[0].transfer:
        reset_deliveries(dl, direction)  # it may be a transfer of any delivery
    if definition >= 0:
        store_partial(d, stored, definition, row, rows, t)


@kernel
def store_partial(d, stored, definition, row, rows, t):
    """Store the complete fields of the performative `definition` in a frame that lost bytes, and the sections after it
    if it is the first transfer of a delivery. A login whose list lost bytes is not stored, since its fields are
    uncertain; those of a frame that may be one by mistake are judged by `decode_frame`."""
    start, stop = byte_at(stored, D.WORD) * D.WORD, min(len(stored), int(row[R.SIZE]))
    _, _, at = D.performative(stored, start, stop, t)
    code = u8(stored, at, stop) if at >= 0 else -1
    if code < 0 or t.constructor[code].type != T.LIST:
        return
    width = int(t.constructor[code].width)
    first, after, _ = compound(stored, at + 1, stop, code, t)
    whole = first >= 0
    row[R.PAYLOAD_SIZE] = max(0, int(d.frame_seen) - after) if whole else 0
    login = row[R.TYPE] == V.SASL or t.descriptor[definition].secret >= 0
    if not whole and (login or at + 2 * width >= stop):
        return
    count = 0
    if not whole:
        first = at + 1 + 2 * width
        after = first
        most = length_at(stored, at + 1 + width, stop, width)
        while count < most:
            follows = skip(stored, after, stop, t)
            if follows < 0:
                break
            after = follows
            count += 1
        row[R.ERROR] = V.E_MISSING_VALUES
    begin = int(rows.used[1])
    rows.data[begin] = NO_BODY
    rows.used[1] += 1
    R.append_bytes(rows, row, stored, start, after)
    row[R.DEFINITION] = definition
    if not whole:
        at += begin + 1 - start
        for i in range(width):
            rows.data[at + 1 + i] = ((after - first + width) >> (8 * (width - 1 - i))) & 0xFF
            rows.data[at + 1 + width + i] = (count >> (8 * (width - 1 - i))) & 0xFF
    elif definition == t.index_of[0].transfer and row[R.CONTENT] == row[R.FRAME_NO]:
        _store_sections(stored, after, stop, row, rows, t)


@kernel
def _store_sections(stored, at, stop, row, rows, t):
    """Store the complete sections before the body of the message that begins at `at`."""
    while at < stop:
        section, _, inside, size = section_head(stored, at, stop, t)
        if section < 0 or size > stop - inside or T.DATA <= section <= T.VALUE:
            return
        R.append_bytes(rows, row, stored, at, inside + size)
        at = inside + size
