"""Rows of the stream decoder: one row for each frame or span, as a matrix of integers and heaps of bytes.

`Rows.cells[r, COLUMN]` has every value of fixed width (-1: null); each column is contiguous in memory, as the tables
need it. `bytes` has the bytes of arguments and properties,
which `codec.amqp.batches` decodes to VARIANT; `payload` has the message bodies. Each row has the ends of its own
bytes in both heaps. Rows are only appended; the caller removes them (`codec.amqp.decoder`).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.memory import copy_bytes, sparse_zeros
from codec.protocol.classic_tables import classic_names
from codec.protocol.versions import E_MISSING_INSIDE, PARTIAL, fact_table
from codec.stalls import CELLS as STALL_CELLS
from codec.tcp.reassembly import FRAMES, INSIDE

COLUMNS = (
    "connection_id", "frame_no", "direction", "sender", "ts_ns", "first_ts_ns", "file", "first_packet_no", "packet_no",
    "stream_offset", "size", "version", "version_known", "channel", "frame_type", "class_id", "method_id", "code",
    "name", "body_size", "payload_size", "status", "error", "notes", "content_frame_no", "digest", "bytes_end",
    "payload_end", "definition", "handshake", "arguments_end", "arguments_metadata_end", "properties_end",
    "properties_metadata_end", "rtt_ns",
)  # fmt: skip
# NOTES: a bitmask. DEFINITION: index of the method or performative whose bytes follow; -1 none.
# DIGEST: 1 with a digest of the body; BATCH also with messages in it, which are among the bytes to decode; LARGE_BATCH
# with too many of them.
# HANDSHAKE: 1 while the client is not authenticated; bytes that do not parse may be part of a secret.
# RTT: of the handshake of TCP, ns; UNKNOWN_RTT, or MIDDLE if the beginning of the connection was not captured.
(
    CONNECTION, FRAME_NO, DIRECTION, SENDER, TS, FIRST_TS, FILE, FIRST_PACKET, PACKET, OFFSET, SIZE, VERSION, KNOWN,
    CHANNEL, TYPE, CLASS, METHOD_ID, CODE, NAME, BODY_SIZE, PAYLOAD_SIZE, STATUS, ERROR, NOTES, CONTENT, DIGEST,
    BYTES_END, PAYLOAD_END, DEFINITION, HANDSHAKE, ARGUMENTS_END, ARGUMENTS_META_END, PROPERTIES_END,
    PROPERTIES_META_END, RTT,
) = range(len(COLUMNS))  # fmt: skip
UNKNOWN_RTT, MIDDLE = -1, -2

CLIENT, SERVER = 0, 1
BATCH, LARGE_BATCH = 2, 3
KNOWN_BY = (None, "syn", "header", "method", "port")
BY_SYN, BY_HEADER, BY_METHOD, BY_PORT = range(1, len(KNOWN_BY))
SPARE_ROWS = LIMITS.detect_spans + 16  # the most that one step of the decoder appends: all pending spans and a few more
STALLS, SPARE_STALLS = 1 << 12, 16  # the most that one step may append: twice those of both directions
SPARE_BYTES = LIMITS.partial_bytes + 64  # the most bytes of a frame that lost bytes
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
    """`cells` int64 (rows, columns), in Fortran order; `digest` uint8 (rows, 32); `bytes`, `payload` uint8 heaps;
    `used` int64 (3,): rows, end of bytes, end of payload. `stalls` int64 (n, CELLS of `codec.stalls`): of TCP;
    `stall_count` int64 (1,): how many there are."""

    cells: np.ndarray
    digest: np.ndarray
    data: np.ndarray
    payload: np.ndarray
    used: np.ndarray
    stalls: np.ndarray
    stall_count: np.ndarray


def new_rows(capacity: int, data: int, payload: int) -> Rows:
    """Room for `capacity` rows, `bytes` bytes to decode and `payload` bytes of bodies."""
    return Rows(
        sparse_zeros((capacity, len(COLUMNS)), np.int64, order="F"),
        sparse_zeros((capacity, 32), np.uint8),
        sparse_zeros(data, np.uint8),
        sparse_zeros(payload, np.uint8),
        np.zeros(3, np.int64),
        sparse_zeros((STALLS, len(STALL_CELLS)), np.int64),
        np.zeros(1, np.int64),
    )


@inlined
def rows_full(rows):
    """Whether the buffer may be too small for one more step of the decoder."""
    if int(rows.used[1]) + SPARE_BYTES > len(rows.data):
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
    row[RTT] = c.rtt_ns if c.rtt_ns >= 0 or c.offers > 0 or c.known_by == BY_SYN else MIDDLE
    row[BYTES_END] = rows.used[1]
    row[PAYLOAD_END] = rows.used[2]
    return index


@kernel
def begin_partial_frame(d, frame_type, size, channel):
    """A hole follows the bytes from `pos` on, which begin a frame of `size` bytes: mode INSIDE from now on."""
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
def append_bytes(rows, row, buf, start, end):
    """Append `buf[start:end]` to the bytes to decode of the last `row`; False when the heap has no room."""
    at, size = int(rows.used[1]), end - start
    if at + size > len(rows.data):
        return False
    copy_bytes(rows.data, at, buf, start, end)
    rows.used[1] = at + size
    row[BYTES_END] = at + size
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
    """Remove the last row: its bytes did not fit, and it will be appended again."""
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


# Notes: oddities of a frame that its bytes show, as data.
#
# Rows have a bitmask of notes, column `notes` of table frames has their names. A note is not an error: status and error
# of the row have the consequence for its values. Most notes up to "orphan-content" are of 0-8 to 0-9-1.


NOTE_NAMES = (
    "frame-type",  # the frame type is not defined in this version
    "frame-end",  # the byte after the payload is not 0xCE
    "size-implausible",  # on skipped bytes: a frame above LIMITS.plausible_frame_bytes seems to begin here
    "snap-length",  # on missing bytes: the capture cut the packets that carried them
    "fields-short",  # the bytes end before the last argument or property does
    "bytes-left",  # bytes follow the last argument or property
    "table-broken",  # the entries of a field table do not fit its length, or a tag is not defined
    "ambiguous-tag",  # a field table uses a tag of AMBIGUOUS_TAGS
    "zero-byte",  # a short string holds a zero byte
    "reserved-set",  # a reserved argument is not zero or empty; a reserved property is present
    "unused-bits",  # bits above the last of a run of bit arguments are set
    "weight",  # the weight of a content header is not zero
    "undefined-flags",  # property flags are set that the class does not define
    "class-differs",  # a content header has another class than the method that announces it
    "header-missing",  # the last method on this channel announced a content, but this is not its header
    "body-short",  # the last content on this channel lacks bytes of its body
    "body-long",  # more body than the header declared, up to this frame
    "unexpected-body",  # a body, but the header declared no bytes
    "orphan-content",  # a header or body with no content announced or open
    "empty-password",  # a SASL response of PLAIN or AMQPLAIN with a password of no bytes
    "token-password",  # the same with a token for a password: three base64url parts, the first a JSON object
    "not-utf8",  # a text is not UTF-8: its invalid bytes are escaped as \\xHH, and its backslashes as \\x5c
    "frame-short",  # 0-10, 1.0: on skipped bytes: a frame smaller than its own header seems to begin here
    "frame-flags",  # 0-10: reserved bits of the frame's flags are set
    "track",  # 0-10: a control on another track than 0, or anything else on another than 1
    "segment-order",  # 0-10: flag first-segment does not fit the type of the segment
    "control-with-content",  # 0-10: a control with segments after it
    "segment-cut",  # 0-10: a segment begins before the last frame of the previous one on its channel and track
    "segments-unexpected",  # 0-10: segments are announced after a command that has none
    "entry-unexpected",  # 0-10: a struct in a header is undefined or repeated
    "fields-missing",  # 1.0: a mandatory field is null, or the list ends before it
    "fields-extra",  # 1.0: a list has more fields than its type defines
    "peer-late",  # decoded before bytes of the peer that it acknowledges: they were captured later
    "captured-late",  # acknowledged by the peer in a packet that was captured earlier
    "userinfo",  # a text has a URI with userinfo, which the tables show as **** (`codec.text`)
    "body-missing",  # 1.0: a message is complete and has no section with a body
    "values-broken",  # 1.0: the fields of a performative do not parse
)
(
    FRAME_TYPE, FRAME_END, SIZE_IMPLAUSIBLE, SNAP_LENGTH, FIELDS_SHORT, BYTES_LEFT, TABLE_BROKEN, AMBIGUOUS_TAG,
    ZERO_BYTE, RESERVED_SET, UNUSED_BITS, WEIGHT, UNDEFINED_FLAGS, CLASS_DIFFERS, HEADER_MISSING, BODY_SHORT,
    BODY_LONG, UNEXPECTED_BODY, ORPHAN_CONTENT, EMPTY_PASSWORD, TOKEN_PASSWORD, NOT_UTF8, FRAME_SHORT, FRAME_FLAGS,
    TRACK, SEGMENT_ORDER, CONTROL_WITH_CONTENT, SEGMENT_CUT, SEGMENTS_UNEXPECTED, ENTRY_UNEXPECTED, FIELDS_MISSING,
    FIELDS_EXTRA, PEER_LATE, CAPTURED_LATE, USERINFO, BODY_MISSING, VALUES_BROKEN,
) = (1 << bit for bit in range(len(NOTE_NAMES)))  # fmt: skip

# Field-table tags that the 0-9-1 grammar (section 4.2.1) and the brokers' practice read as different types, or only one
# of the two defines, although values look alike.
AMBIGUOUS_TAGS = b"slLU"


@cache
def note_names(mask: int) -> list[str] | None:
    """The names of the notes in `mask`; None without notes."""
    return [name for bit, name in enumerate(NOTE_NAMES) if mask >> bit & 1] or None
