"""What is known of one TCP connection, and the rows that are not frames: spans and protocol headers.

A *span* is a stretch of one direction that is in no frame: missing (`gap`), seen but undecodable (`skipped`),
encrypted (`tls`) or another protocol (`foreign`). A direction has at most one open span (`span_*`); while nobody
knows yet whether the stream is AMQP its spans wait in `Spans`, because a foreign stream gets a single row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.amqp import notes as N
from codec.amqp import rows as R
from codec.amqp.versions import (
    E_FOREIGN,
    E_MISSING,
    E_NO_BOUNDARY,
    E_TAIL,
    E_TLS,
    E_VERSION,
    FAMILY_OF_VERSION,
    FOREIGN_SPAN,
    GAP,
    NONE,
    OFFERS,
    OK,
    PARTIAL,
    PROTOCOL_HEADER,
    SKIPPED,
    TLS_SPAN,
    UNKNOWN,
)
from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS, PROTOCOL_HEADERS
from codec.tcp.direction import FRAMES

TCP_ENDS = ("none", "fin", "rst")
END_NONE, END_FIN, END_RST = range(3)
CONNECTION = np.dtype(
    [
        ("connection_id", "i8"),
        ("keep_payload", "u1"),
        ("over", "u1"),  # no segment will follow
        ("phase", "i8"),  # where `codec.amqp.connections.flows.run` goes on with the current segment
        ("arrival", "i8"),  # segments taken so far
        ("now_ns", "i8"),  # order_ns of the last one
        ("frame_no", "i8"),
        ("client", "i8"),  # direction of the client, -1 unknown
        ("known_by", "i8"),
        ("port_client", "i8"),  # direction of the client to judge by the ports alone
        ("row_from", "i8"),  # first row of this connection among the rows at hand
        ("family", "i8"),
        ("version", "i8"),
        ("version_known", "i8"),
        ("frame_max", "i8"),  # negotiated, 0 unknown
        ("channel_max", "i8"),
        ("offers", "i8"),
        ("offer", "i8", OFFERS),  # direction << 32 | the four octets after "AMQP", or START_VERSION 0 major minor
        ("started", "u1"),  # connection.start was seen
        ("handshaking", "u1"),  # the client has begun to authenticate, and nothing has followed
        ("weighing", "u1"),  # frames still tell which classic version it is, see codec.amqp.classic.version
        ("weighed", "i8"),  # frame_no of the last frame weighed
        ("misfits", "i8", 4),  # points against each classic version, by version code
        ("first_ns", "i8"),
        ("last_ns", "i8"),
        ("last_packet", "i8"),
        ("last_file", "i8"),
        ("first_file", "i8"),
        ("syn_ns", "i8"),
        ("synack_ns", "i8"),
        ("rtt_ns", "i8"),  # SYN to the acknowledgement of the SYN of the server, -1 unknown
        ("tcp_end", "i8"),
        ("tcp_end_by", "i8"),
        ("end_ack", "i8"),  # what the FIN that was captured first acknowledged
        ("limits", "i8"),  # reached, see codec.compiler.limits.REACHED
        (
            "hello_at",
            "i8",
        ),  # where the hellos of a TLS stream are kept when it has ended (codec.amqp.connections.ended), -1 none
    ],
    align=True,
)

SPAN = np.dtype(
    [
        ("from_", "i8"),
        ("length", "i8"),
        ("gap", "i8"),
        ("first_packet", "i8"),
        ("first_ns", "i8"),
        ("packet", "i8"),
        ("ns", "i8"),
        ("file", "i8"),
        ("notes", "i8"),
    ],
    align=True,
)
SPANS = LIMITS.detect_spans
ROOM = SPANS + 2  # a hole adds two at most: what is seen before it, and the hole
PROTOCOL_NUMBERS = 0x0A  # 0 to 3 are in use; a line feed is none


class Spans(NamedTuple):
    """Spans of directions not recognised yet: `waiting` SPAN (2, ROOM), `number` int64 (2,)."""

    waiting: np.ndarray
    number: np.ndarray


def new_spans() -> Spans:
    """Room for the waiting spans of both directions."""
    return Spans(np.zeros((2, ROOM), SPAN).view(np.recarray), np.zeros(2, np.int64))


@kernel
def span_row(rows, c, direction, frame_type, span):
    """A row for `span`."""
    index = R.append_row(rows, c, direction, frame_type, span.from_, span.length)
    row = rows.cells[index]
    row[R.FIRST_PACKET] = span.first_packet
    row[R.FIRST_TS] = span.first_ns
    row[R.PACKET] = span.packet
    row[R.TS] = span.ns
    row[R.FILE] = span.file
    row[R.NOTES] = span.notes
    if frame_type == GAP:
        row[R.STATUS] = PARTIAL
        row[R.ERROR] = E_MISSING
    elif frame_type == SKIPPED:
        row[R.STATUS] = UNKNOWN
        row[R.ERROR] = E_NO_BOUNDARY
    elif frame_type == TLS_SPAN:
        row[R.STATUS] = OK
        row[R.ERROR] = E_TLS
    elif frame_type == FOREIGN_SPAN:
        row[R.STATUS] = UNKNOWN
        row[R.ERROR] = E_FOREIGN
    return index


@kernel
def extend_span(d, s, end):
    """Add the bytes from `pos` to stream offset `end` to the open span of `d` (opened here if none is), consuming
    them."""
    start = int(d.next) - (int(d.end) - int(d.pos))
    if end <= start:
        return
    i = int(d.mark_from)
    while i + 1 < d.mark_end and s.marks[i].end <= start:
        i += 1
    if d.span_from < 0:
        d.span_from = start
        d.span_first_packet = s.marks[i].packet_no
        d.span_first_ns = s.marks[i].ts_ns
    while i + 1 < d.mark_end and s.marks[i].end < end:
        i += 1
    d.mark_from = i
    d.span_packet = s.marks[i].ready_packet_no
    d.span_ns = s.marks[i].ready_ns
    d.span_file = s.marks[i].ready_file
    d.pos += end - start


@kernel
def close_span(rows, c, direction, d, spans, frame_type, at):
    """End the open span of `d` at stream offset `at`: a row, or a waiting span while the stream is not recognised."""
    if d.span_from < 0:
        return
    n = int(spans.number[direction])
    span = spans.waiting[direction][min(n, ROOM - 1)]
    span.from_ = d.span_from
    span.length = at - d.span_from
    span.gap = 0
    span.first_packet = d.span_first_packet
    span.first_ns = d.span_first_ns
    span.packet = d.span_packet
    span.ns = d.span_ns
    span.file = d.span_file
    span.notes = d.span_notes
    d.span_from = -1
    d.span_notes = 0
    if frame_type < 0:
        spans.number[direction] = n + 1
        return
    if frame_type == SKIPPED:
        d.skipped_bytes += span.length
    span_row(rows, c, direction, frame_type, span)


@kernel
def gap_span(rows, c, direction, d, s, spans, gap, wait):
    """`gap` bytes are missing at `next`: a row, or a waiting span. Its packets are those on either side."""
    n = int(spans.number[direction])
    span = spans.waiting[direction][min(n, ROOM - 1)]
    span.from_ = d.next
    span.length = gap
    span.gap = 1
    span.first_packet = c.last_packet
    span.first_ns = c.last_ns
    span.packet = c.last_packet
    span.ns = c.last_ns
    span.file = c.last_file
    span.notes = N.SNAP_LENGTH if d.cut_end > d.next else 0
    if d.mark_end > 0:
        before = s.marks[d.mark_end - 1]
        span.first_packet = before.packet_no
        span.first_ns = before.ts_ns
    if d.piece_end > d.piece_from:
        after = s.pieces[d.piece_from]
        span.packet = after.packet_no
        span.ns = after.ts_ns
        span.file = after.file
        if d.mark_end == 0:
            span.first_packet = span.packet
            span.first_ns = span.ns
    if wait:
        spans.number[direction] = n + 1
    else:
        span_row(rows, c, direction, GAP, span)


@kernel
def release_spans(rows, c, direction, d, spans):
    """The stream turned out to be AMQP: the spans that waited become rows."""
    for i in range(int(spans.number[direction])):
        span = spans.waiting[direction][i]
        if span.gap:
            span_row(rows, c, direction, GAP, span)
        else:
            d.skipped_bytes += span.length
            span_row(rows, c, direction, SKIPPED, span)
    spans.number[direction] = 0


@kernel
def tail_row(rows, c, direction, d, s, spans):
    """The capture ends with an incomplete frame: its bytes are the tail of the ledger."""
    size = int(d.end) - int(d.pos)
    if size <= 0:
        return
    d.tail_bytes += size
    extend_span(d, s, int(d.next))
    at = int(d.next)
    span = spans.waiting[direction][ROOM - 1]
    span.from_ = d.span_from
    span.length = at - d.span_from
    span.first_packet = d.span_first_packet
    span.first_ns = d.span_first_ns
    span.packet = d.span_packet
    span.ns = d.span_ns
    span.file = d.span_file
    span.notes = 0
    d.span_from = -1
    index = span_row(rows, c, direction, SKIPPED, span)
    rows.cells[index][R.STATUS] = PARTIAL
    rows.cells[index][R.ERROR] = E_TAIL


@kernel
def header_version(buf, p, headers):
    """Version code of the protocol header at `buf[p:p+8]`, NONE when no version knows it."""
    for i in range(len(headers.version)):
        same = True
        for j in range(4):
            if buf[p + 4 + j] != headers.octets[i, j]:
                same = False
        if same:
            return int(headers.version[i])
    return NONE


@kernel
def matches_magic(buf, p, end):
    """How many of the octets "AMQP" stand at `p` before `end`: 0..4, or -1 when another octet does."""
    n = 0
    while n < 4 and p + n < end:
        expected = 0x41 if n == 0 else (0x4D if n == 1 else (0x51 if n == 2 else 0x50))
        if int(buf[p + n]) != expected:
            return -1
        n += 1
    return n


@kernel
def plausible_header(buf, p):
    """Could the octet after "AMQP" at `p` be a protocol number? Text that begins so goes on otherwise."""
    return buf[p + 4] < PROTOCOL_NUMBERS


@kernel
def offered(c, direction):
    """Whether a protocol header, of whatever version, was seen in `direction`."""
    for i in range(int(c.offers)):
        if c.offer[i] >> 32 == direction:
            return True
    return False


@kernel
def protocol_header(rows, c, direction, d, s, headers):
    """The eight octets at `pos` are a protocol header: its row, and what it says about the connection."""
    p = int(d.pos)
    offset = int(d.next) - (int(d.end) - p)
    version = header_version(s.bytes, p, headers)
    if c.client < 0:
        R.resolve_senders(rows, c, direction, R.BY_HEADER)
    octets = 0
    for j in range(4):
        octets = (octets << 8) | int(s.bytes[p + 4 + j])
    if c.offers < OFFERS:
        c.offer[c.offers] = (direction << 32) | octets
        c.offers += 1
    else:
        c.limits |= PROTOCOL_HEADERS
    if version != NONE and (direction == c.client or (c.version == NONE and not offered(c, int(c.client)))):
        c.version = version
        c.version_known = 1
        c.weighing = 0
        c.family = FAMILY_OF_VERSION[version]
    index = R.append_row(rows, c, direction, PROTOCOL_HEADER, offset, 8)
    row = rows.cells[index]
    R.set_packets(row, d, s, offset, offset + 8)
    row[R.VERSION] = version
    row[R.KNOWN] = 1 if version != NONE else 0
    row[R.CODE] = octets
    row[R.PAYLOAD_SIZE] = 0
    if version == NONE:
        row[R.STATUS] = UNKNOWN
        row[R.ERROR] = E_VERSION
    if not R.append_octets(rows, row, s.bytes, p + 4, p + 8):
        R.drop_last_row(rows, c)
        return False
    d.pos = p + 8
    d.frame_bytes += 8
    d.mode = FRAMES
    return True
