"""Rows of the stream decoder: one row for each frame or span, as a matrix of integers and heaps of octets.

`Rows.cells[r, COLUMN]` has every value of fixed width (-1: null); each column is contiguous in memory, as the tables
need it. `octets` has the octets of arguments and properties,
which `codec.amqp.values` decodes to VARIANT; `payload` has the message bodies. Each row has the ends of its own octets
in both heaps. Rows are only appended; the caller removes them (`codec.amqp.decoder`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.amqp.classic.tables import classic_names
from codec.amqp.versions import E_MISSING_INSIDE, PARTIAL, fact_table
from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.memory import sparse_zeros
from codec.stalls import CELLS as STALL_CELLS
from codec.tcp.direction import FRAMES, INSIDE
from codec.variant.writer import copy_bytes

COLUMNS = (
    "connection_id", "frame_no", "direction", "sender", "ts_ns", "first_ts_ns", "file", "first_packet_no", "packet_no",
    "stream_offset", "size", "version", "version_known", "channel", "frame_type", "class_id", "method_id", "code",
    "name", "body_size", "payload_size", "status", "error", "notes", "content_frame_no", "digest", "octets_end",
    "payload_end", "definition", "handshake", "arguments_end", "arguments_metadata_end", "properties_end",
    "properties_metadata_end",
)  # fmt: skip
# NOTES: a bitmask, see codec.amqp.notes. DEFINITION: index of the method or performative whose octets follow; -1 none.
# DIGEST: 1 with a digest of the body; BATCH also with messages in it, which are among the octets to decode; LARGE_BATCH
# with too many of them.
# HANDSHAKE: 1 while the client is not authenticated; octets that do not parse may be part of a secret.
(
    CONNECTION, FRAME_NO, DIRECTION, SENDER, TS, FIRST_TS, FILE, FIRST_PACKET, PACKET, OFFSET, SIZE, VERSION, KNOWN,
    CHANNEL, TYPE, CLASS, METHOD_ID, CODE, NAME, BODY_SIZE, PAYLOAD_SIZE, STATUS, ERROR, NOTES, CONTENT, DIGEST,
    OCTETS_END, PAYLOAD_END, DEFINITION, HANDSHAKE, ARGUMENTS_END, ARGUMENTS_META_END, PROPERTIES_END,
    PROPERTIES_META_END,
) = range(len(COLUMNS))  # fmt: skip

CLIENT, SERVER = 0, 1
BATCH, LARGE_BATCH = 2, 3
KNOWN_BY = (None, "syn", "header", "method", "port")
BY_SYN, BY_HEADER, BY_METHOD, BY_PORT = range(1, len(KNOWN_BY))
SPARE_ROWS = LIMITS.detect_spans + 16  # the most that one step of the decoder appends: all pending spans and a few more
STALLS, SPARE_STALLS = 1 << 12, 16  # the most that one step may append: twice those of both directions
SPARE_OCTETS = LIMITS.partial_bytes + 64  # the most octets of a frame that lost bytes
# After this many rows that do not identify the client, the ports decide, and frames are no longer scored to find the
# classic version.
UNRESOLVED_ROWS = LIMITS.unresolved_rows


def _names() -> tuple[str, ...]:
    """The values of NAME: methods and content classes of the classic family, performatives and SASL frames of 1.0,
    controls and commands of 0-10."""
    v1_0 = fact_table("1.0")
    of_frames = {entry["name"] for entry in (*v1_0["performatives"], *v1_0["sasl_frames"])}
    performatives = [entry["name"] for entry in v1_0["descriptor_index"] if entry["name"] in of_frames]
    segments = [
        f"{of_class['name']}.{entry['name']}"
        for of_class in fact_table("0-10")["classes"]
        for group in ("controls", "commands")
        for entry in of_class.get(group, ())
    ]
    return (*classic_names(), *performatives, *segments)


NAMES = _names()


class Rows(NamedTuple):
    """`cells` int64 (rows, columns), in Fortran order; `digest` uint8 (rows, 32); `octets`, `payload` uint8 heaps;
    `used` int64 (3,): rows, end of octets, end of payload. `stalls` int64 (n, CELLS of `codec.stalls`): of TCP;
    `stall_count` int64 (1,): how many there are."""

    cells: np.ndarray
    digest: np.ndarray
    octets: np.ndarray
    payload: np.ndarray
    used: np.ndarray
    stalls: np.ndarray
    stall_count: np.ndarray


def new_rows(capacity: int, octets: int, payload: int) -> Rows:
    """Room for `capacity` rows, `octets` bytes to decode and `payload` bytes of bodies."""
    return Rows(
        sparse_zeros((capacity, len(COLUMNS)), np.int64, order="F"),
        sparse_zeros((capacity, 32), np.uint8),
        sparse_zeros(octets, np.uint8),
        sparse_zeros(payload, np.uint8),
        np.zeros(3, np.int64),
        sparse_zeros((STALLS, len(STALL_CELLS)), np.int64),
        np.zeros(1, np.int64),
    )


@inlined
def rows_full(rows):
    """Whether the buffer may be too small for one more step of the decoder."""
    if int(rows.used[1]) + SPARE_OCTETS > len(rows.octets):
        return True
    return int(rows.used[0]) + SPARE_ROWS > rows.cells.shape[0]


@kernel
def resolve_senders(rows, c, client, known_by):
    """The direction of the client is known from now on: set the sender of this connection's rows that have none."""
    c.client = client
    c.known_by = known_by
    for i in range(int(c.row_from), int(rows.used[0])):
        row = rows.cells[i]
        if row[SENDER] < 0 and row[CONNECTION] == c.connection_id:
            row[SENDER] = CLIENT if row[DIRECTION] == client else SERVER


@kernel
def resolve_likely(rows, c):
    """No frame has determined the client: the first protocol header does, or the ports."""
    resolve_senders(rows, c, int(c.likely_client), int(c.known_by))


@inlined
def append_row(rows, c, direction, frame_type, offset, size):
    """Append a row of connection `c` with the values that every row has; the others are null. Returns its index."""
    if c.client < 0 and c.frame_no >= UNRESOLVED_ROWS:
        resolve_likely(rows, c)
    index = int(rows.used[0])
    rows.used[0] = index + 1
    c.frame_no += 1
    if c.frame_no >= UNRESOLVED_ROWS:
        c.scoring = 0
    row = rows.cells[index]
    row[CONNECTION] = c.connection_id
    row[FRAME_NO] = c.frame_no
    row[DIRECTION] = direction
    row[SENDER] = -1 if c.client < 0 else (CLIENT if direction == c.client else SERVER)
    row[OFFSET] = offset
    row[SIZE] = size
    row[VERSION] = c.version
    row[KNOWN] = c.version_known
    row[CHANNEL] = -1
    row[TYPE] = frame_type
    row[CLASS] = -1
    row[METHOD_ID] = -1
    row[CODE] = -1
    row[NAME] = -1
    row[BODY_SIZE] = -1
    row[PAYLOAD_SIZE] = -1
    row[STATUS] = 0
    row[ERROR] = 0
    row[NOTES] = 0
    row[CONTENT] = -1
    row[DIGEST] = 0
    row[DEFINITION] = -1
    row[HANDSHAKE] = c.handshaking
    row[OCTETS_END] = rows.used[1]
    row[PAYLOAD_END] = rows.used[2]
    return index


@kernel
def begin_partial_frame(d, frame_type, size, channel):
    """A hole follows the octets from `pos` on, which begin a frame of `size` octets: mode INSIDE from now on."""
    here = int(d.end) - int(d.pos)
    d.mode = INSIDE
    d.frame_from = int(d.next) - here
    d.frame_size = size
    d.frame_end = d.frame_from + size
    d.frame_seen = here
    d.frame_type = frame_type
    d.frame_channel = channel
    d.frame_class = -1
    d.frame_method = -1
    d.frame_body_size = -1


@kernel
def append_partial_row(rows, c, d, direction, frame_type):
    """Append the row of the frame that lost bytes in `d`, with the packets of its open span, which ends here. Returns
    its index; mode FRAMES from now on."""
    index = append_row(rows, c, direction, frame_type, int(d.frame_from), int(d.frame_size))
    row = rows.cells[index]
    row[FIRST_PACKET] = d.span_first_packet
    row[FIRST_TS] = d.span_first_ns
    row[PACKET] = d.span_packet
    row[TS] = d.span_ns
    row[FILE] = d.span_file
    row[CHANNEL] = d.frame_channel
    row[STATUS] = PARTIAL
    row[ERROR] = E_MISSING_INSIDE
    d.frame_bytes += d.frame_seen
    d.span_from = -1
    d.mode = FRAMES
    return index


@inlined
def append_octets(rows, row, buf, start, end):
    """Append `buf[start:end]` to the octets to decode of the last `row`; False when the heap has no room."""
    at, size = int(rows.used[1]), end - start
    if at + size > len(rows.octets):
        return False
    copy_bytes(rows.octets, at, buf, start, end)
    rows.used[1] = at + size
    row[OCTETS_END] = at + size
    return True


@inlined
def append_payload(rows, row, buf, start, end):
    """Append the body bytes `buf[start:end]` of the last `row`; False when the heap has no room."""
    at, size = int(rows.used[2]), end - start
    if at + size > len(rows.payload):
        return False
    copy_bytes(rows.payload, at, buf, start, end)
    rows.used[2] = at + size
    row[PAYLOAD_END] = at + size
    return True


@kernel
def drop_last_row(rows, c):
    """Remove the last row: its octets did not fit, and it will be appended again."""
    rows.used[0] -= 1
    c.frame_no -= 1


@inlined
def set_packets(row, d, s, start, end):
    """Set the first packet, of the byte at stream offset `start`, and the packet that completed the bytes before
    `end`."""
    i = int(d.mark_from)
    while i + 1 < d.mark_end and s.marks[i].end <= start:
        i += 1
    d.mark_from = i
    row[FIRST_PACKET] = s.marks[i].packet_no
    row[FIRST_TS] = s.marks[i].ts_ns
    while i + 1 < d.mark_end and s.marks[i].end < end:
        i += 1
    row[PACKET] = s.marks[i].ready_packet_no
    row[TS] = s.marks[i].ready_ns
    row[FILE] = s.marks[i].ready_file
