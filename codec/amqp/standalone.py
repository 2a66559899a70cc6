"""Standalone frames: a column of octets, each the whole of one frame, to the rows that a stream would give.

The framing of `codec.amqp.framing` takes each of them, on a connection that remembers nothing of the others. So what a
frame says only beside its neighbours is not there: a content header or body is not asked for the method that announced
it, a command of 0-10 has no id, and of a segment in several frames none shows its arguments.

`wrap` lays the frame around payloads that have lost theirs. Cost: linear in the octets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.amqp import notes as N
from codec.amqp import rows as R
from codec.amqp.classic.frames import ROWS_FULL
from codec.amqp.connections.connection import matches_magic, plausible_header, protocol_header
from codec.amqp.decoder import Batch, Decoder
from codec.amqp.framing import forget, take_frames
from codec.amqp.v1_0.detect import performative
from codec.amqp.versions import (
    E_BODY_ALONE,
    E_HEADER_ALONE,
    E_NO_BOUNDARY,
    E_NO_COMMAND,
    FAMILY_OF_VERSION,
    MALFORMED,
    SASL,
    SKIPPED,
)
from codec.compiler.kernel import inlined, kernel
from codec.tcp.direction import FRAMES
from codec.variant.writer import copy_bytes

HEADER_OCTETS = 8
# What says of a frame that others are missing before it.
NEIGHBOURS = np.array([E_HEADER_ALONE, E_BODY_ALONE, E_NO_COMMAND], np.int64)


@inlined
def _begin(state, version, family, start, end):
    """The octets from `start` to `end` of the stream's bytes are all that was ever said on the connection."""
    c, d = state.connection[0], state.directions[0]
    forget(state, 0)
    c.version = version
    c.family = family
    c.version_known = 1
    c.client = 0
    c.started = 1  # no greeting decides about the version
    c.weighing = c.handshaking = 0
    c.frame_no = c.frame_max = c.channel_max = c.offers = 0
    d.syn = 0  # a transfer may go on with what another one began
    d.mode = FRAMES
    d.mark_from = 0
    d.mark_end = 1
    d.pos = start
    d.end = end
    d.next = end - start


@inlined
def _take_one(state, start, end):
    """Append the row of one frame: False, with nothing changed, when it has no room."""
    c, d, s, rows = state.connection[0], state.directions[0], state.streams[0], state.rows
    index = int(rows.used[0])
    magic = matches_magic(s.bytes, start, end) == 4 and end - start == HEADER_OCTETS
    if magic and plausible_header(s.bytes, start):
        return protocol_header(rows, c, 0, d, s, state.headers)
    taken = take_frames(state, c, d, 0, s)
    if taken == ROWS_FULL and rows.used[0] == index:
        return False
    if d.pos != end or rows.used[0] != index + 1:
        rows.used[0] = index
        row = rows.cells[R.append_row(rows, c, 0, SKIPPED, 0, end - start)]
        row[R.STATUS] = MALFORMED
        row[R.ERROR] = E_NO_BOUNDARY
        return True
    row = rows.cells[index]
    row[R.NOTES] &= ~N.CONTENT_ALONE
    for error in NEIGHBOURS:
        if row[R.ERROR] == error:
            row[R.ERROR] = 0
    return True


@kernel
def take_alone(state, offsets, first, version, family):
    """Append a row for each of the octets between `offsets` (in the bytes of the stream of direction 0), from index
    `first` on: the index of the first that had no room, or their number."""
    for i in range(first, len(offsets) - 1):
        start, end = int(offsets[i]), int(offsets[i + 1])
        _begin(state, version, family, start, end)
        if R.rows_full(state.rows) or not _take_one(state, start, end):
            return i
    return len(offsets) - 1


class AloneDecoder(Decoder):
    """Decodes standalone frames. Not for two threads at a time."""

    def frames(self, octets: NDArray[np.uint8], offsets: NDArray[np.int64], version: int) -> Iterator[Batch]:
        """Rows of the frames `octets[offsets[i]:offsets[i + 1]]` of a VERSIONS code, one each, in their order.

        `octets` must be writable, as those of a stream are (nobody writes). Octets that are not one whole frame give a
        row of type 'skipped', status 'malformed'. Batches are views, valid until the next.
        """
        ours, peer = self.state.streams
        self.state = self.state._replace(streams=(ours._replace(bytes=octets), peer))
        first, family = 0, int(FAMILY_OF_VERSION[version])
        while first < len(offsets) - 1:
            self.state.rows.used[:] = 0
            stop = int(take_alone(self.state, offsets, first, version, family))
            if stop == first:
                self._enlarge_heaps()
                continue
            rows = self.state.rows
            yield from self._decoded(rows.cells[: stop - first], rows)
            first = stop


class Wrapping(NamedTuple):
    """The frame around a payload: the octets `before` it, of which `size_width` ones from `size_at` on are the size,
    counting `counted` octets beside the payload; and those `after` it."""

    before: bytes
    after: bytes
    size_at: int
    size_width: int
    counted: int


@kernel
def _wrap(octets, offsets, which, before, after, size_at, size_width, counted, out):
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
        copy_bytes(out, at, octets, start, start + size)
        at += size
        for j in range(len(after)):
            out[at + j] = after[j]
        at += len(after)


@kernel
def sasl_bodies(octets, offsets, t, out):
    """Which of the frame bodies between `offsets` begin with a performative of the SASL layer (AMQP 1.0)."""
    for i in range(len(out)):
        of, _, _ = performative(octets, int(offsets[i]), int(offsets[i + 1]), t)
        out[i] = 1 if of >= 0 and t.descriptor[of].frame_type == SASL else 0


def wrap(
    octets: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    wrappings: list[Wrapping],
    which: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The payloads `octets[offsets[i]:offsets[i + 1]]` as frames: (octets, offsets).

    Payload i goes into `wrappings[which[i]]`; all of them have the same shape. A payload too large for the size field
    gives octets that are no frame.
    """
    shape = wrappings[0]
    before = np.frombuffer(b"".join(w.before for w in wrappings), np.uint8).reshape(len(wrappings), -1).copy()
    after = np.frombuffer(bytearray(shape.after), np.uint8)
    framed = offsets - offsets[0] + np.arange(len(offsets)) * (before.shape[1] + len(after))
    out = np.empty(int(framed[-1]), np.uint8)
    _wrap(octets, offsets, which, before, after, shape.size_at, shape.size_width, shape.counted, out)
    return out, framed
