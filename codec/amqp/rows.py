"""Output of the stream decoder: one row per frame or span, as a matrix of integers and heaps of bytes.

`Rows.cells[r, COLUMN]` holds everything of fixed width (-1: null). Octets whose values are still to be decoded stand
end to end in `octets` (`codec.amqp.values` makes VARIANT of them), bodies in `payload`; each row records where its
own end. Rows are only ever appended; the caller takes them out and starts over (`codec.amqp.decoder`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.variant.writer import copy_bytes

COLUMNS = (
    "connection_id",
    "frame_no",
    "direction",
    "sender",
    "ts_ns",
    "first_ts_ns",
    "file",
    "first_packet_no",
    "packet_no",
    "stream_offset",
    "size",
    "version",
    "version_known",
    "channel",
    "frame_type",
    "class_id",
    "method_id",
    "code",
    "name",
    "body_size",
    "payload_size",
    "status",
    "error",
    "notes",
    "content_frame_no",
    "digest",
    "octets_end",
    "payload_end",
    "definition",
    "handshake",
    "arguments_end",
    "arguments_metadata_end",
    "properties_end",
    "properties_metadata_end",
)
(
    CONNECTION,
    FRAME_NO,
    DIRECTION,
    SENDER,
    TS,
    FIRST_TS,
    FILE,
    FIRST_PACKET,
    PACKET,
    OFFSET,
    SIZE,
    VERSION,
    KNOWN,
    CHANNEL,
    TYPE,
    CLASS,
    METHOD_ID,
    CODE,
    NAME,
    BODY_SIZE,
    PAYLOAD_SIZE,
    STATUS,
    ERROR,
    NOTES,  # bitmask, see codec.amqp.notes
    CONTENT,
    DIGEST,
    OCTETS_END,
    PAYLOAD_END,
    DEFINITION,  # which definition the octets follow: index of the method, of the performative; -1 none
    HANDSHAKE,  # 1: the client is not authenticated yet; what is not understood may be part of a secret
    ARGUMENTS_END,
    ARGUMENTS_META_END,
    PROPERTIES_END,
    PROPERTIES_META_END,
) = range(len(COLUMNS))

CLIENT, SERVER = 0, 1
KNOWN_BY = (None, "syn", "header", "method", "port")
BY_NOTHING, BY_SYN, BY_HEADER, BY_METHOD, BY_PORT = range(5)
SPARE_ROWS = LIMITS.detect_spans + 16  # that one step of the decoder appends at most: all waiting spans and a few
SPARE_OCTETS = LIMITS.torn_bytes + 64  # that the row of a frame which lost bytes keeps at most
# After so many rows that do not tell the client from the server, the ports must; by then rows have told the classic
# versions apart, or nothing will.
UNRESOLVED_ROWS = LIMITS.unresolved_rows


class Rows(NamedTuple):
    """`cells` int64 (rows, columns); `digest` uint8 (rows, 32); `octets`, `payload` uint8 heaps; `used` int64 (3,):
    rows, end of octets, end of payload."""

    cells: np.ndarray
    digest: np.ndarray
    octets: np.ndarray
    payload: np.ndarray
    used: np.ndarray


def new_rows(capacity: int, octets: int, payload: int) -> Rows:
    """Room for `capacity` rows, `octets` bytes to decode and `payload` bytes of bodies."""
    return Rows(
        np.zeros((capacity, len(COLUMNS)), np.int64),
        np.zeros((capacity, 32), np.uint8),
        np.zeros(octets, np.uint8),
        np.zeros(payload, np.uint8),
        np.zeros(3, np.int64),
    )


@inlined
def rows_full(rows):
    """True when one more step of the decoder might not fit."""
    if int(rows.used[1]) + SPARE_OCTETS > len(rows.octets):
        return True
    return int(rows.used[0]) + SPARE_ROWS > rows.cells.shape[0]


@kernel
def resolve_senders(rows, c, client, known_by):
    """Now it is known which direction is the client's: say so on this connection's rows that still wait for it."""
    c.client = client
    c.known_by = known_by
    for i in range(int(c.row_from), int(rows.used[0])):
        row = rows.cells[i]
        if row[SENDER] < 0 and row[CONNECTION] == c.connection_id:
            row[SENDER] = CLIENT if row[DIRECTION] == client else SERVER


@inlined
def append_row(rows, c, direction, frame_type, offset, size):
    """A new row of connection `c` with what every row has; the rest is null. Returns its index."""
    if c.client < 0 and c.frame_no >= UNRESOLVED_ROWS:
        resolve_senders(rows, c, int(c.port_client), BY_PORT)
    index = int(rows.used[0])
    rows.used[0] = index + 1
    c.frame_no += 1
    if c.frame_no >= UNRESOLVED_ROWS:
        c.weighing = 0
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


@inlined
def keep_octets(rows, row, buf, start, end):
    """Keep `buf[start:end]` for `codec.amqp.values` to decode; False when the heap has no room."""
    at, size = int(rows.used[1]), end - start
    if at + size > len(rows.octets):
        return False
    copy_bytes(rows.octets, at, buf, start, end)
    rows.used[1] = at + size
    row[OCTETS_END] = at + size
    return True


@inlined
def keep_payload(rows, row, buf, start, end):
    """Keep the content bytes `buf[start:end]`; False when the heap has no room."""
    at, size = int(rows.used[2]), end - start
    if at + size > len(rows.payload):
        return False
    copy_bytes(rows.payload, at, buf, start, end)
    rows.used[2] = at + size
    row[PAYLOAD_END] = at + size
    return True


@kernel
def cancel_row(rows, c):
    """Take back the last row: its octets did not fit, it will be made again."""
    rows.used[0] -= 1
    c.frame_no -= 1


@inlined
def set_packets(row, d, s, start, end):
    """Which packet brought the byte at stream offset `start`, and with which all bytes before `end` were there in
    order."""
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
