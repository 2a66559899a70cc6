"""The record of one TCP connection, and rows that are not frames: spans and protocol headers.

A *span* is a byte range of one direction outside frames: missing (`gap`), captured but undecodable (`skipped`),
encrypted (`tls`) or of another protocol (`foreign`). A direction has at most one open span (`span_*`). While it is
unknown whether the stream is AMQP, its spans are pending in `Spans`, because a foreign stream gets a single row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS, PROTOCOL_HEADERS
from codec.framing.proxy_header import STORED_BYTES
from codec.memory import as_records, sparse_zeros
from codec.net.identity import Scratch, connection_number, new_scratch
from codec.net.layers import FLOW_BYTES, FLOW_KEY_BYTES
from codec.protocol import rows as R
from codec.protocol import versions as V
from codec.tcp.reassembly import DIRECTION, FRAMES, offset_of_pos

TCP_ENDS = ("none", "fin", "rst")
END_NONE, END_FIN, END_RST = range(3)
CONNECTION_RECORD = np.dtype(
    [
        ("connection_id", "i8"),
        ("keep_payload", "u1"),
        ("ended", "u1"),  # no segment will follow
        ("phase", "i8"),  # the step of `codec.framing.stream.run` for the current segment
        ("arrival", "i8"),  # segments so far
        ("now_ns", "i8"),  # order_ns of the last one
        ("frame_no", "i8"),
        ("client", "i8"),  # direction of the client, -1 unknown
        ("known_by", "i8"),  # what determined the client, or `likely_client`
        ("likely_client", "i8"),  # direction of the client unless a frame contradicts: by the ports, or by a header
        ("row_from", "i8"),  # first row of this connection in the buffer
        *((name, "i8") for name in ("family", "version", "version_known")),
        ("frame_max", "i8"),  # negotiated, 0 unknown
        ("channel_max", "i8"),
        ("offers", "i8"),
        ("offer", "i8", V.OFFERS),  # direction << 32 | the four bytes after "AMQP", or START_VERSION 0 major minor
        (
            "in_turn",
            "u1",
        ),  # both directions have bytes from before the detection (stream.consume_in_turn)
        ("started", "u1"),  # connection.start was seen
        ("handshaking", "u1"),  # the client has begun to authenticate, and no other frame has followed
        ("answering", "u1"),  # the server's bytes are read, which are of another version (`own_version`)
        ("scoring", "u1"),  # frames are scored to find the classic version, see codec.protocol.classic_detection
        ("scored_frame", "i8"),  # frame_no of the last frame scored
        ("misfits", "i8", 4),  # points against each classic version, by version code
        *(
            (name, "i8")
            for name in ("first_ns", "last_ns", "last_packet", "last_file", "first_file", "syn_ns", "synack_ns")
        ),
        ("rtt_ns", "i8"),  # SYN to the acknowledgement of the SYN of the server, -1 unknown
        ("tcp_end", "i8"),
        ("tcp_end_by", "i8"),
        ("end_ack", "i8"),  # acknowledgement number of the FIN or RST that was captured first
        ("limits", "i8"),  # reached, see codec.compiler.limits.REACHED
        ("proxy_header", "u1", STORED_BYTES),  # the first header of the PROXY protocol, followed by zeros
        ("in_layers", "u1"),  # its bytes come out of layers (codec.framing.layered)
        ("upgraded", "u1"),  # these came after protocol headers
        ("layers", "i8"),  # the number of the facts of layers that have ended, 0 none
        ("tls_prefix_at", "i8"),  # of an ended connection: its index in EndedRecords.tls_prefixes, -1 none
    ],
    align=True,
)

SPAN_FIELDS = ("from_", "length", "gap", "first_packet", "first_ns", "packet", "ns", "file", "notes")
SPAN = np.dtype([(name, "i8") for name in SPAN_FIELDS], align=True)
SPANS = LIMITS.detect_spans
ROOM = SPANS + 2  # a hole adds at most two: the bytes before it, and itself
PROTOCOL_NUMBERS = 0x0A  # 0 to 3 are in use; a line feed is none


class Spans(NamedTuple):
    """Spans of directions without a detected protocol: `pending` SPAN (2, ROOM), `used` int64 (2,)."""

    pending: np.ndarray
    used: np.ndarray


def new_spans() -> Spans:
    """Room for the pending spans of both directions."""
    return Spans(as_records(np.zeros((2, ROOM), SPAN)), np.zeros(2, np.int64))


@kernel
def span_row(rows, c, direction, frame_type, span):
    """Append a row for `span`; returns its index."""
    index = R.append_row(rows, c, direction, frame_type, span.from_, span.length)
    row = rows.cells[index]
    row[R.FIRST_PACKET] = span.first_packet
    row[R.FIRST_TS] = span.first_ns
    row[R.PACKET] = span.packet
    row[R.TS] = span.ns
    row[R.FILE] = span.file
    row[R.NOTES] = span.notes
    if frame_type == V.GAP:
        row[R.STATUS] = V.PARTIAL
        row[R.ERROR] = V.E_MISSING
    elif frame_type == V.SKIPPED:
        row[R.STATUS] = V.UNKNOWN
        row[R.ERROR] = V.E_NO_BOUNDARY
    elif frame_type == V.TLS_SPAN:
        row[R.STATUS] = V.OK
        row[R.ERROR] = V.E_TLS
    elif frame_type == V.FOREIGN_SPAN:
        row[R.STATUS] = V.UNKNOWN
        row[R.ERROR] = V.E_FOREIGN
    return index


@kernel
def extend_span(d, s, end):
    """Add the bytes from `pos` to stream offset `end` to the open span of `d` (opened here if none is), consuming
    them."""
    start = offset_of_pos(d)
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
def take_span(d, span, length, notes):
    """Move the open span of `d` to `span`."""
    span.from_ = d.span_from
    span.length = length
    span.gap = 0
    span.first_packet = d.span_first_packet
    span.first_ns = d.span_first_ns
    span.packet = d.span_packet
    span.ns = d.span_ns
    span.file = d.span_file
    span.notes = notes
    d.span_from = -1


@kernel
def close_span(rows, c, direction, d, spans, frame_type, at):
    """End the open span of `d` at stream offset `at`: a row, or a pending span (`frame_type` -1)."""
    if d.span_from < 0:
        return
    n = int(spans.used[direction])
    span = spans.pending[direction][min(n, ROOM - 1)]
    take_span(d, span, at - int(d.span_from), int(d.span_notes))
    d.span_notes = 0
    if frame_type < 0:
        spans.used[direction] = n + 1
        return
    if frame_type == V.SKIPPED:
        d.skipped_bytes += span.length
    elif frame_type == V.FOREIGN_SPAN:
        d.foreign_bytes += span.length
        d.preamble_bytes += span.length
    index = span_row(rows, c, direction, frame_type, span)
    if frame_type == V.FOREIGN_SPAN:
        rows.cells[index, R.CODE] = d.foreign_head - 1
        d.foreign_head = 0


@kernel
def gap_span(rows, c, direction, d, s, spans, gap, wait):
    """`gap` bytes are missing at `next`: a row, or a pending span (`wait`). Its packets are those on either side."""
    n = int(spans.used[direction])
    span = spans.pending[direction][min(n, ROOM - 1)]
    span.from_ = d.next
    span.length = gap
    span.gap = 1
    span.first_packet = c.last_packet
    span.first_ns = c.last_ns
    span.packet = c.last_packet
    span.ns = c.last_ns
    span.file = c.last_file
    span.notes = R.SNAP_LENGTH if d.cut_end > d.next and d.lost_end <= d.next else 0
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
        spans.used[direction] = n + 1
    else:
        span_row(rows, c, direction, V.GAP, span)


@kernel
def release_spans(rows, c, direction, d, spans):
    """The stream is AMQP: append rows for its pending spans."""
    for i in range(int(spans.used[direction])):
        span = spans.pending[direction][i]
        if span.gap:
            span_row(rows, c, direction, V.GAP, span)
        else:
            d.skipped_bytes += span.length
            span_row(rows, c, direction, V.SKIPPED, span)
    spans.used[direction] = 0


@kernel
def proxy_header_row(rows, c, direction, d, s, spans, size):
    """The `size` bytes at `pos`, before the stream, are a header of the PROXY protocol: append its row."""
    if c.proxy_header[0] == 0:
        for i in range(min(size, STORED_BYTES)):
            c.proxy_header[i] = s.bytes[d.pos + i]
    extend_span(d, s, offset_of_pos(d) + size)
    span = spans.pending[direction][ROOM - 1]
    take_span(d, span, size, 0)
    index = span_row(rows, c, direction, V.FOREIGN_SPAN, span)
    rows.cells[index][R.STATUS] = V.OK
    rows.cells[index][R.ERROR] = V.E_PROXY
    d.foreign_bytes += size
    d.proxy_bytes = size


@kernel
def tail_row(rows, c, direction, d, s, spans):
    """The capture ends inside a frame: append a row; its bytes are the tail of the byte ledger."""
    size = int(d.end) - int(d.pos)
    if size <= 0:
        return
    d.tail_bytes += size
    extend_span(d, s, int(d.next))
    span = spans.pending[direction][ROOM - 1]
    take_span(d, span, int(d.next) - int(d.span_from), 0)
    index = span_row(rows, c, direction, V.SKIPPED, span)
    rows.cells[index][R.STATUS] = V.PARTIAL
    rows.cells[index][R.ERROR] = V.E_TAIL


@kernel
def header_version(buf, p, headers):
    """Version code of the protocol header at `buf[p:p+8]`, V.NONE when no version defines it."""
    i = find_header(buf, p, headers)
    return int(headers.version[i]) if i >= 0 else V.NONE


@kernel
def find_header(buf, p, headers):
    """Index in `headers` of the protocol header at `buf[p:p+8]`, -1 when no version defines it."""
    for i in range(len(headers.version)):
        same = True
        for j in range(4):
            if buf[p + 4 + j] != headers.data[i, j]:
                same = False
        if same:
            return i
    return -1


@kernel
def matches_magic(buf, p, end):
    """The number of bytes of "AMQP" at `p` before `end`: 0..4; -1 when another byte is among them."""
    n = 0
    while n < 4 and p + n < end:
        expected = 0x41 if n == 0 else (0x4D if n == 1 else (0x51 if n == 2 else 0x50))
        if int(buf[p + n]) != expected:
            return -1
        n += 1
    return n


@kernel
def plausible_header(buf, p):
    """Whether the byte after "AMQP" at `p` may be a protocol number, which it is not in text."""
    return buf[p + 4] < PROTOCOL_NUMBERS


@kernel
def offered(c, direction):
    """Whether a protocol header, of whatever version, was seen in `direction`."""
    for i in range(int(c.offers)):
        if c.offer[i] >> 32 == direction:
            return True
    return False


@kernel
def take_version(c, direction, version):
    """The version (code, or NONE) in a protocol header of this direction is that of the connection, if it is the
    client's or there is no other."""
    if version != V.NONE and (direction == c.client or (c.version == V.NONE and not offered(c, int(c.client)))):
        c.version = version
        c.version_known = 1
        c.scoring = 0
        c.family = V.FAMILY_OF_VERSION[version]


@kernel
def own_version(c, d, direction):
    """Before and after the bytes of direction `d`: a server that answered with a protocol header of another version
    than the client's goes on in that version, to say why."""
    client = int(c.client) if c.client >= 0 else int(c.likely_client)
    if c.answering == 0:
        other = d.header_version != V.NONE and d.header_version != c.version
        if direction == client or not other or not offered(c, client):
            return
        d.kept_version, d.kept_family, d.kept_known = c.version, c.family, c.version_known
        d.kept_scoring = c.scoring
        c.version = d.header_version
        c.family = V.FAMILY_OF_VERSION[c.version]
        c.version_known = 1
        c.scoring = 0
        c.answering = 1
    else:
        c.version, c.family, c.version_known = d.kept_version, d.kept_family, d.kept_known
        c.scoring = d.kept_scoring
        c.answering = 0


@kernel
def protocol_header(rows, c, direction, d, s, headers):
    """The eight bytes at `pos` are a protocol header: append its row, and apply it to the connection."""
    p = int(d.pos)
    offset = int(d.next) - (int(d.end) - p)
    known = find_header(s.bytes, p, headers)
    version = int(headers.version[known]) if known >= 0 else V.NONE
    if c.client < 0:
        if c.known_by == R.BY_PORT:
            c.likely_client = direction
            c.known_by = R.BY_HEADER
        answered = known >= 0 and headers.either_side[known] and offered(c, 1 - direction)
        if known < 0 or not headers.echoed[known] or answered:
            R.resolve_likely(rows, c)
    data = 0
    for j in range(4):
        data = (data << 8) | int(s.bytes[p + 4 + j])
    if c.offers < V.OFFERS:
        c.offer[c.offers] = (direction << 32) | data
        c.offers += 1
    else:
        c.limits |= PROTOCOL_HEADERS
    take_version(c, direction, version)
    index = R.append_row(rows, c, direction, V.PROTOCOL_HEADER, offset, 8)
    row = rows.cells[index]
    R.set_packets(row, d, s, offset, offset + 8)
    row[R.VERSION] = version
    row[R.KNOWN] = 1 if version != V.NONE else 0
    row[R.CODE] = data
    row[R.PAYLOAD_SIZE] = 0
    if version == V.NONE:
        row[R.STATUS] = V.UNKNOWN
        row[R.ERROR] = V.E_VERSION
    if not R.append_bytes(rows, row, s.bytes, p + 4, p + 8):
        R.drop_last_row(rows, c)
        return False
    d.header_version = version
    d.pos = p + 8
    d.frame_bytes += 8
    d.mode = FRAMES
    return True


# How a connection begins and ends: its blank records, its number, and the records that it leaves.
#
# Two connections of one flow can begin with the same packet, if a capture has it twice; the number of earlier ones
# distinguishes them. So a ring has the first packets of the last `Limits.flow_openings` connections, chained by hash. A
# chain ends at a packet that was overwritten or belongs to an earlier flow, so nothing has to be cleared.


RETAINED = LIMITS.flow_openings
BUCKETS = 2 * RETAINED
TLS_PREFIX_BYTES = LIMITS.hello_bytes
NO_CONNECTION = -1  # phase between two connections
AMQP_PORTS = (5672, 5671)
ENDED, TLS_STREAMS = 1 << 12, 1 << 8  # ended connections, and encrypted ones among them, until they are returned
# Fields that are -1 while nothing is known.
UNKNOWN_CONNECTION = ("client", "syn_ns", "synack_ns", "rtt_ns", "tcp_end_by", "end_ack", "tls_prefix_at")
UNKNOWN_DIRECTION = (
    "acked", "fin_at", "span_from", "last_data_ns", "hole_at", "expected_seq", "closed_window_ns", "unseen_seq",
    "outside_ack", "stall_from", "stall_since", "last_sent_packet", "last_sent_file", "all_acked_ns",
)  # fmt: skip
FIRST_PACKET = np.dtype([(name, "i8") for name in ("ts_ns", "seq", "earlier", "previous")], align=True)


class Openings(NamedTuple):
    """`flow` uint8 (FLOW_BYTES,): the current flow; `connection`, `direction`: blank records; `first_packets`
    FIRST_PACKET (RETAINED,), a ring; `buckets` int64 (BUCKETS,): the latest first packet of each hash, numbered from 1;
    `counts` int64 (2,): first packets so far, and before this flow."""

    flow: np.ndarray
    connection: np.ndarray
    direction: np.ndarray
    first_packets: np.ndarray
    buckets: np.ndarray
    counts: np.ndarray
    scratch: Scratch


def new_openings(keep_payload: bool) -> Openings:
    """No flow, no connection."""
    connection = _blank(CONNECTION_RECORD, UNKNOWN_CONNECTION)
    connection["keep_payload"] = keep_payload
    return Openings(
        np.zeros(FLOW_BYTES, np.uint8),
        connection,
        _blank(DIRECTION, UNKNOWN_DIRECTION),
        as_records(np.zeros(RETAINED, FIRST_PACKET)),
        np.zeros(BUCKETS, np.int64),
        np.zeros(2, np.int64),
        new_scratch(),
    )


def _blank(dtype: np.dtype, unknown: tuple[str, ...]) -> np.ndarray:
    record = np.zeros(1, dtype)
    for name in unknown:
        record[name] = -1
    return as_records(record)


class EndedRecords(NamedTuple):
    """Ended connections, until they are returned. `flows` uint8 (n, FLOW_BYTES); `connections` CONNECTION (n,);
    `directions` DIRECTION (n, 2); `tls_prefixes` uint8 (m, 2, TLS_PREFIX_BYTES): the first bytes of both directions of
    TLS stream `connection.tls_prefix_at`; `used` int64 (2,): n and m."""

    flows: np.ndarray
    connections: np.ndarray
    directions: np.ndarray
    tls_prefixes: np.ndarray
    used: np.ndarray


def new_ended_records() -> EndedRecords:
    """None yet."""
    return EndedRecords(
        sparse_zeros((ENDED, FLOW_BYTES), np.uint8),
        as_records(sparse_zeros(ENDED, CONNECTION_RECORD)),
        as_records(sparse_zeros((ENDED, 2), DIRECTION)),
        sparse_zeros((TLS_STREAMS, 2, TLS_PREFIX_BYTES), np.uint8),
        np.zeros(2, np.int64),
    )


@dataclass(frozen=True)
class EndedConnections:
    """Ended connections as the decoder returns them: columns of `EndedRecords`. `layers`: by index of the connection,
    the facts of its TLS and WebSocket (`codec.layers.connection.LayeredConnection.facts`)."""

    flows: np.ndarray
    connections: np.ndarray
    directions: np.ndarray
    tls_prefixes: np.ndarray
    layers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


@kernel
def same_flow(openings, key):
    """Whether `key` is the current flow."""
    for i in range(FLOW_BYTES):
        if openings.flow[i] != key[i]:
            return False
    return True


@kernel
def begin_flow(openings, key):
    """Make `key` the current flow. Flows with the same addresses and ports share their first packets, which name their
    connections."""
    same = True
    for i in range(FLOW_BYTES):
        same = same and (i >= FLOW_KEY_BYTES or openings.flow[i] == key[i])
        openings.flow[i] = key[i]
    if not same:
        openings.counts[1] = openings.counts[0]


@kernel
def _bucket(ts_ns, seq):
    return (((ts_ns ^ (ts_ns >> 20)) * 31 + seq) & 0x7FFFFFFF) % BUCKETS


@kernel
def record_opening(openings, ts_ns, seq, earlier):
    """Store the first packet of a connection; `earlier` connections of the flow began with the same."""
    bucket = _bucket(ts_ns, seq)
    openings.counts[0] += 1
    first = openings.first_packets[openings.counts[0] % RETAINED]
    first.ts_ns = ts_ns
    first.seq = seq
    first.earlier = earlier
    first.previous = openings.buckets[bucket]
    openings.buckets[bucket] = openings.counts[0]


def first_packets_of(openings: Openings) -> list[tuple[int, int, int]]:
    """(ts_ns, seq, earlier) of the first packets of the current flow that are still in the ring."""
    last = int(openings.counts[0])
    recent = range(max(int(openings.counts[1]), last - RETAINED) + 1, last + 1)
    fields = openings.first_packets[[number % RETAINED for number in recent]].tolist()
    return [(ts_ns, seq, earlier) for ts_ns, seq, earlier, _ in fields]


@kernel
def _earlier_openings(openings, ts_ns, seq):
    """The number of earlier connections of the flow that began with the same packet."""
    bucket = _bucket(ts_ns, seq)
    oldest = max(int(openings.counts[1]), int(openings.counts[0]) - RETAINED)
    number, earlier = int(openings.buckets[bucket]), 0
    while number > oldest:
        first = openings.first_packets[number % RETAINED]
        if first.ts_ns == ts_ns and first.seq == seq:
            earlier = int(first.earlier) + 1
            break
        number = int(first.previous)
    record_opening(openings, ts_ns, seq, earlier)
    return earlier


@kernel
def client_by_ports(flow):
    """Direction of the client, judged by ports alone: the server has an AMQP port, else the lower one."""
    low, high = (int(flow[32]) << 8) | int(flow[33]), (int(flow[34]) << 8) | int(flow[35])
    for port in AMQP_PORTS:
        if low != high and low == port:
            return 1
        if low != high and high == port:
            return 0
    return 0 if low > high else 1


@kernel
def begin_connection(openings, connection, directions, g, row_from):
    """Begin a connection with segment `g` and row `row_from`. (Passing the whole state would cost more than the
    work.)"""
    connection[0] = openings.connection[0]
    for direction in range(2):
        directions[direction] = openings.direction[0]
    c = connection[0]
    ts_ns, seq = int(g.ts_ns), int(g.seq)
    earlier = _earlier_openings(openings, ts_ns, seq)
    c.connection_id = connection_number(openings.flow, ts_ns, seq, earlier, openings.scratch)
    c.likely_client = client_by_ports(openings.flow)
    c.known_by = R.BY_PORT
    c.row_from = row_from
    c.first_ns = ts_ns
    c.last_ns = ts_ns
    c.first_file = g.file


@kernel
def record_end(ended, flow, connection, directions, tls_prefix):
    """Store the records of a connection that has ended; False when there is no room."""
    n, m = int(ended.used[0]), int(ended.used[1])
    if n == len(ended.connections) or m == len(ended.tls_prefixes):
        return False
    if directions[0].tls_prefix > 0 or directions[1].tls_prefix > 0:
        connection[0].tls_prefix_at = m
        for direction in range(2):
            for i in range(directions[direction].tls_prefix):
                ended.tls_prefixes[m, direction, i] = tls_prefix[direction, i]
        ended.used[1] = m + 1
    for i in range(FLOW_BYTES):
        ended.flows[n, i] = flow[i]
    ended.connections[n] = connection[0]
    for direction in range(2):
        ended.directions[n, direction] = directions[direction]
    ended.used[0] = n + 1
    return True
