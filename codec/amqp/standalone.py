"""Standalone bytes: columns of frames or values that belong to no connection.

    StandaloneDecoder().frames(bytes, offsets, version)    rows of whole frames, as a stream would give them
    ValueDecoder().tables(...), .values(...)                field tables and values of AMQP 1.0, as VARIANT
    detect_versions(bytes, offsets)                        the version of each
    wrap(bytes, offsets, wrappings, which)                 payloads as frames

Each frame is decoded on a connection without other frames, so it has no context: a content header or body is not
matched with its method, a command of 0-10 has no id, and a segment in several frames has no arguments. Bytes that are
not exactly one frame, or one value, give a malformed row, or an empty value. Item i is `bytes[offsets[i]:offsets[i +
1]]` (uint8, int64) throughout. Cost: linear in the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.amqp.batches import HEAP_BYTES, Batch
from codec.amqp.decoder import Decoder
from codec.compiler.kernel import inlined, kernel
from codec.cursor import u32
from codec.framing.classic_frames import ROWS_FULL
from codec.framing.connection import (
    header_version,
    matches_magic,
    plausible_header,
    protocol_header,
)
from codec.framing.detection import decode_frames, discard_incomplete
from codec.memory import copy_bytes
from codec.protocol import classic_tables as K
from codec.protocol import rows as R
from codec.protocol import versions as V
from codec.protocol.classic_detection import classic_chain
from codec.protocol.classic_field_table import put_nested
from codec.protocol.classic_tables import classic_tables
from codec.protocol.frame_search import ACCEPT, EVERY_CLASSIC, UNKNOWN_CHANNEL_MAX, UNKNOWN_FRAME_MAX
from codec.protocol.v0_10_detection import v0_10_chain
from codec.protocol.v0_10_tables import v0_10_tables
from codec.protocol.v1_0_detection import performative, v1_0_chain
from codec.protocol.v1_0_tables import v1_0_tables
from codec.protocol.v1_0_values import decode_value, new_scratch
from codec.tcp.reassembly import FRAMES
from codec.variant import FULL, METADATA, OK, VALUE, Writer, begin, enlarge, finish, new_writer, rollback

HEADER_BYTES = 8
# Errors that mean that frames before this one are missing.
MISSING_CONTEXT = np.array([V.E_UNEXPECTED_HEADER, V.E_UNEXPECTED_BODY, V.E_NO_COMMAND], np.int64)
TABLE_SIZE = 4  # bytes of the size before a field table
TABLE = np.int64(K.TABLE)  # numpy integers: see `codec.protocol.v1_0_tables.FIXED_KEYS`
NO_COMPOSITE = np.int64(-1)
FIRST_KEY = np.int64(0)
CHANNEL_CAP, FRAME_CAP = np.array([UNKNOWN_CHANNEL_MAX, UNKNOWN_FRAME_MAX])

Values = tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int64]]


@kernel
def _version(data, start, end, known, classic, v0_10, wire):
    if matches_magic(data, start, end) == 4 and end - start >= HEADER_BYTES:
        return int(header_version(data, start, known))
    # one frame that parses exactly is enough: the caller expects AMQP
    for version in range(V.V0_9_1, V.V0_8 - 1, -1):
        if classic_chain(data, start, end, True, classic, 1 << version, FRAME_CAP, CHANNEL_CAP, True, False) == ACCEPT:
            return version
    if v0_10_chain(data, start, end, True, v0_10, EVERY_CLASSIC, FRAME_CAP, CHANNEL_CAP, True, False) == ACCEPT:
        return V.V0_10
    if v1_0_chain(data, start, end, True, wire, EVERY_CLASSIC, FRAME_CAP, CHANNEL_CAP, True, False) == ACCEPT:
        return V.V1_0
    return V.NONE


@kernel
def _versions(data, offsets, known, classic, v0_10, wire, out):
    for i in range(len(out)):
        out[i] = _version(data, int(offsets[i]), int(offsets[i + 1]), known, classic, v0_10, wire)


def detect_versions(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """VERSIONS codes of bytes; NONE for those that are not AMQP.

    They begin with a protocol header, or with whole frames of which at least one parses exactly. Frames that several
    classic versions define are of the latest of them.
    """
    out = np.zeros(len(offsets) - 1, np.int64)
    _versions(data, offsets, V.headers(), classic_tables(), v0_10_tables(), v1_0_tables()[0], out)
    return out


@inlined
def _begin(state, version, family, start, end):
    """A new connection that consists of the bytes from `start` to `end` of the stream's bytes."""
    c, d = state.connection[0], state.directions[0]
    discard_incomplete(state, 0)
    c.version = version
    c.family = family
    c.version_known = 1
    c.client = 0
    c.started = 1  # no connection.start changes the version
    c.scoring = c.handshaking = 0
    c.frame_no = c.frame_max = c.channel_max = c.offers = 0
    d.syn = 0  # a transfer may continue a delivery that began earlier
    d.mode = FRAMES
    d.mark_from = 0
    d.mark_end = 1
    d.pos = start
    d.end = end
    d.next = end - start


@inlined
def _decode_one(state, start, end):
    """Append the row of one frame; False, with nothing changed, when it has no room."""
    c, d, s, rows = state.connection[0], state.directions[0], state.streams[0], state.rows
    index = int(rows.used[0])
    magic = matches_magic(s.bytes, start, end) == 4 and end - start == HEADER_BYTES
    if magic and plausible_header(s.bytes, start):
        return protocol_header(rows, c, 0, d, s, state.headers)
    outcome = decode_frames(state, c, d, 0, s)
    if outcome == ROWS_FULL and rows.used[0] == index:
        return False
    if d.pos != end or rows.used[0] != index + 1:
        rows.used[0] = index
        row = rows.cells[R.append_row(rows, c, 0, V.SKIPPED, 0, end - start)]
        row[R.STATUS] = V.MALFORMED
        row[R.ERROR] = V.E_NO_BOUNDARY
        return True
    row = rows.cells[index]
    row[R.NOTES] &= ~R.ORPHAN_CONTENT
    for error in MISSING_CONTEXT:
        if row[R.ERROR] == error:
            row[R.ERROR] = 0
    return True


@kernel
def decode_standalone(state, offsets, first, version, family):
    """Append a row for each frame in the bytes of direction 0, from index `first` on: the index of the first frame that
    had no room, or their number."""
    for i in range(first, len(offsets) - 1):
        start, end = int(offsets[i]), int(offsets[i + 1])
        _begin(state, version, family, start, end)
        if R.rows_full(state.rows) or not _decode_one(state, start, end):
            return i
    return len(offsets) - 1


class StandaloneDecoder(Decoder):
    """Decodes standalone frames. Not thread-safe."""

    def frames(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], version: int) -> Iterator[Batch]:
        """Rows of frames of a VERSIONS code, one each, in their order.

        `bytes` must be writable, as those of a stream are (nothing writes to them). Bytes that are not one whole
        frame give a row of type 'skipped', status 'malformed'. Batches are views, valid until the next.
        """
        own, peer = self.state.streams
        self.state = self.state._replace(streams=(own._replace(bytes=data), peer))
        first, family = 0, int(V.FAMILY_OF_VERSION[version])
        while first < len(offsets) - 1:
            self.state.rows.used[:] = 0
            stop = int(decode_standalone(self.state, offsets, first, version, family))
            if stop == first:
                self._enlarge_heaps()
                continue
            rows = self.state.rows
            yield from self._decoded(rows, stop - first)
            first = stop


class Wrapping(NamedTuple):
    """The frame around a payload: the bytes `before` and `after` it. The frame's size has `size_width` bytes from
    `size_at` on in `before`; it is the size of the payload and `counted` more."""

    before: bytes
    after: bytes
    size_at: int
    size_width: int
    counted: int


@kernel
def _wrap(data, offsets, which, before, after, size_at, size_width, counted, out):
    """Write a frame around each payload: `before[which[i]]`, the payload, `after`."""
    at = 0
    for i in range(len(which)):
        start, size = int(offsets[i]), int(offsets[i + 1] - offsets[i])
        head = before[which[i]]
        for j in range(len(head)):
            out[at + j] = head[j]
        for j in range(size_width):
            out[at + size_at + j] = ((size + counted) >> (8 * (size_width - 1 - j))) & 0xFF
        at += len(head)
        copy_bytes(out, at, data, start, start + size)
        at += size
        for j in range(len(after)):
            out[at + j] = after[j]
        at += len(after)


@kernel
def sasl_bodies(data, offsets, t, out):
    """Set `out[i]` to whether frame body `i` begins with a performative of the SASL layer (AMQP 1.0)."""
    for i in range(len(out)):
        definition, _, _ = performative(data, int(offsets[i]), int(offsets[i + 1]), t)
        out[i] = 1 if definition >= 0 and t.descriptor[definition].frame_type == V.SASL else 0


def wrap(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], wrappings: list[Wrapping], which: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Payloads as frames: (bytes, offsets).

    The frame of payload i is `wrappings[which[i]]`; all wrappings have the same shape. A payload too large for the size
    field gives bytes that are not a frame.
    """
    shape = wrappings[0]
    before = np.frombuffer(b"".join(w.before for w in wrappings), np.uint8).reshape(len(wrappings), -1).copy()
    after = np.frombuffer(bytearray(shape.after), np.uint8)
    framed = offsets - offsets[0] + np.arange(len(offsets)) * (before.shape[1] + len(after))
    out = np.empty(int(framed[-1]), np.uint8)
    _wrap(data, offsets, which, before, after, shape.size_at, shape.size_width, shape.counted, out)
    return out, framed


@inlined
def _end(w, whole, ends):
    """End a value, or drop it unless it is `whole`; False when it must be written again with more room."""
    code = finish(w)
    if code == FULL:
        rollback(w)
        return False
    if code != OK or not whole:
        rollback(w)
    ends[0] = w.positions[VALUE]
    ends[1] = w.positions[METADATA]
    return True


@kernel
def put_tables(data, offsets, first, t, version, w, ends):
    """Write field tables (0-8 to 0-9-1), each with its length before it, and their `ends`: the index of the first
    without room, or their number."""
    for i in range(first, len(offsets) - 1):
        start, end = int(offsets[i]), int(offsets[i + 1])
        begin(w)
        whole = u32(data, start, end) == end - start - TABLE_SIZE
        if whole:
            code, _ = put_nested(w, data, start + TABLE_SIZE, end, TABLE, t.tag_kind[version])
            whole = code == OK
        if not _end(w, whole, ends[i]):
            return i
    return len(offsets) - 1


@kernel
def put_values(data, offsets, first, t, v, s, w, ends):
    """`put_tables` for values of AMQP 1.0 of any type."""
    for i in range(first, len(offsets) - 1):
        start, end = int(offsets[i]), int(offsets[i + 1])
        begin(w)
        at, flaws = decode_value(w, data, start, end, t, v, s, v.fixed_key_set, NO_COMPOSITE, FIRST_KEY)
        if not _end(w, at == end and flaws == 0, ends[i]):
            return i
    return len(offsets) - 1


@kernel
def only_field(value, ends, out, out_ends):
    """Copy the only field of each VARIANT object to `out`; of other values, no bytes. Values end at `ends` in the heap
    `value`, fields at `out_ends[:, 0]` in `out`.

    (Variant Binary Encoding, object: header byte, number of fields, their keys, their offsets and the end.)
    """
    start, at = 0, 0
    for i in range(len(ends)):
        end = int(ends[i])
        if end - start > 1 and value[start + 1] == 1:
            header = int(value[start]) >> 2
            inside = start + 2 + ((header >> 2) & 3) + 1 + 2 * ((header & 3) + 1)
            copy_bytes(out, at, value, inside, end)
            at += end - inside
        out_ends[i, 0] = at
        start = end


class ValueDecoder:
    """Decodes standalone values. Not thread-safe."""

    def __init__(self) -> None:
        self.writer: Writer = new_writer(HEAP_BYTES, HEAP_BYTES)
        self.scratch = new_scratch()

    def tables(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], version: int) -> Iterator[Values]:
        """Field tables of a VERSIONS code of the classic family, in batches of (values, metadata, ends of both int64
        (n, 2)): views, valid until the next."""
        return self._batches(put_tables, data, offsets, classic_tables(), version)

    def values(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Iterator[Values]:
        """`tables` for values of AMQP 1.0."""
        return self._batches(put_values, data, offsets, *v1_0_tables(), self.scratch)

    def _batches(
        self, put: Callable[..., int], data: NDArray[np.uint8], offsets: NDArray[np.int64], *tables: Any
    ) -> Iterator[Values]:
        first, ends = 0, np.zeros((len(offsets) - 1, 2), np.int64)
        while first < len(offsets) - 1:
            w = self.writer
            w.positions[VALUE] = w.positions[METADATA] = 0
            stop = int(put(data, offsets, first, *tables, w, ends))
            if stop == first:
                self.writer = enlarge(w)
                continue
            yield w.value[: w.positions[VALUE]], w.metadata[: w.positions[METADATA]], ends[first:stop]
            first = stop
