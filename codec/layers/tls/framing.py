"""TLS record framing: finds the records in chunks of both directions.

The bytes of each direction are copied end to end, after those of its incomplete record, so that each record is one
slice of one buffer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.layers.chunks import Chunks
from codec.variant.writer import copy_bytes

HEADER_BYTES = 5  # kind, version, size of the body
RECORD_BYTES = (1 << 14) + 256 + 1792  # the largest body: TLS 1.2 allows 2048 octets around 2**14
CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION_DATA = 20, 21, 22, 23
NO_RECORD = -1  # instead of a size: no record begins here


class Records(NamedTuple):
    """Records in the order in which they were complete. `chunk`: index of the chunk that completed it; `direction`;
    `at`, `size`: its body in `octets` (size NO_RECORD: no record begins there, the rest of this direction is not
    split). `rest`: begin and end of the incomplete record of each direction in `octets`."""

    octets: np.ndarray  # uint8
    chunk: np.ndarray
    direction: np.ndarray
    at: np.ndarray
    size: np.ndarray
    rest: tuple[tuple[int, int], tuple[int, int]]

    def of(self, direction: int, first: int) -> Records:
        """Those of one direction from `first` on."""
        return self._at(first + np.flatnonzero(self.direction[first:] == direction))

    def without_change_cipher_spec(self, first: int) -> Records:
        """Those from `first` on that are no ChangeCipherSpec, which has no meaning in TLS 1.3."""
        kinds = self.octets[self.at[first:] - HEADER_BYTES]
        is_dropped = (kinds == CHANGE_CIPHER_SPEC) & (self.size[first:] != NO_RECORD)
        return self._at(first + np.flatnonzero(~is_dropped))

    def _at(self, rows: np.ndarray) -> Records:
        columns = (self.chunk[rows], self.direction[rows], self.at[rows], self.size[rows])
        return Records(self.octets, *columns, self.rest)


@kernel
def _split(direction, begin, size, octets, used, start, buffer, chunk, direction_of, at_of, size_of):
    """Copy chunks to `used[direction]` in `buffer`; `start[direction]`: where the next record begins, -1: this
    direction is skipped. Returns the number of records."""
    count = 0
    for i in range(len(direction)):
        side = int(direction[i])
        if start[side] < 0:
            continue
        copy_bytes(buffer, int(used[side]), octets, int(begin[i]), int(begin[i] + size[i]))
        used[side] += int(size[i])
        at, end = int(start[side]), int(used[side])
        while end - at >= HEADER_BYTES:
            kind, length = buffer[at], (int(buffer[at + 3]) << 8) | int(buffer[at + 4])
            sound = CHANGE_CIPHER_SPEC <= kind <= APPLICATION_DATA and buffer[at + 1] == 3 and length <= RECORD_BYTES
            if sound and at + HEADER_BYTES + length > end:
                break
            chunk[count], direction_of[count], at_of[count] = i, side, at + HEADER_BYTES
            size_of[count] = length if sound else NO_RECORD
            count += 1
            if not sound:
                start[side] = -1
                break
            at += HEADER_BYTES + length
        if start[side] >= 0:
            start[side] = at
    return count


@kernel
def has_nothing_to_read(octets, begin, end, unread):
    """Whether a record of handshake messages has only whole ones of types that are `unread`: bool (256,)."""
    at = begin
    while at + 4 <= end and unread[octets[at]]:
        at += 4 + ((int(octets[at + 1]) << 16) | (int(octets[at + 2]) << 8) | int(octets[at + 3]))
    return at == end


@kernel
def ignored_end(octets, direction, at, size, first, ignored, unread):
    """Index of the first record from `first` on that has to be read. `ignored`: bool (2, 4), kinds of records that are
    not, by direction; `unread`: bool (2, 256), types of handshake messages that are not, where a direction is in clear
    and between two messages."""
    i = first
    while i < len(size) and size[i] != NO_RECORD:
        side, kind = int(direction[i]), int(octets[at[i] - HEADER_BYTES])
        if not ignored[side, kind - CHANGE_CIPHER_SPEC] and not (
            kind == HANDSHAKE and has_nothing_to_read(octets, int(at[i]), int(at[i] + size[i]), unread[side])
        ):
            break
        i += 1
    return i


@kernel
def gather(octets, direction, at, size, first, out):
    """Copy the bodies of records from `first` on to `out`, while they are handshake records of one direction and `out`
    has room for all of the next one: (their end, their bytes)."""
    i, used = first, 0
    while i < len(size) and size[i] != NO_RECORD and direction[i] == direction[first]:
        if octets[at[i] - HEADER_BYTES] != HANDSHAKE or used + size[i] > len(out):
            break
        copy_bytes(out, used, octets, int(at[i]), int(at[i] + size[i]))
        used += int(size[i])
        i += 1
    return i, used


@kernel
def possible_records(octets, first, out):
    """Write (begin, end) of possible records from `first` on, by their headers, to `out` int64 (n, 2): (their number,
    where to go on). Encrypted records have version 3.3."""
    count, i = 0, first
    while i + HEADER_BYTES <= len(octets) and count < len(out):
        size = (int(octets[i + 3]) << 8) | int(octets[i + 4])
        if (
            ALERT <= octets[i] <= APPLICATION_DATA
            and octets[i + 1] == 3
            and octets[i + 2] == 3
            and size <= RECORD_BYTES
        ):
            out[count, 0], out[count, 1] = i, i + HEADER_BYTES + size
            count += 1
        i += 1
    return count, i


def split(chunks: Chunks, pending: tuple[bytes | bytearray | None, ...]) -> Records:
    """Records in chunks without holes, behind what is `pending` of each direction; None: it is skipped."""
    before = [len(part or b"") for part in pending]
    all_bytes, of_second = int(chunks.size.sum()), int((chunks.size * chunks.direction).sum())
    sizes = before[0] + all_bytes - of_second, before[1] + of_second
    buffer = np.empty(sum(sizes), np.uint8)
    first = 0, sizes[0]
    for part, begin, size in zip(pending, first, before, strict=True):
        if part:
            buffer[begin : begin + size] = np.frombuffer(part, np.uint8)
    used = np.array((before[0], sizes[0] + before[1]))
    start = np.array([-1 if part is None else begin for part, begin in zip(pending, first, strict=True)])
    columns = np.empty((4, len(buffer) // HEADER_BYTES + 2), np.int64)
    count = _split(chunks.direction, chunks.begin, chunks.size, chunks.octets, used, start, buffer, *columns)
    stops = used.tolist()
    rest = [(begin if begin >= 0 else end, end) for begin, end in zip(start.tolist(), stops, strict=True)]
    return Records._make([buffer, *columns[:, :count], (rest[0], rest[1])])


@kernel
def clear_end(direction, size, i, excluded):
    """Index of the first chunk from `i` on that is a hole, or of a direction that is `excluded` (bool (2,))."""
    while i < len(size) and size[i] >= 0 and not excluded[direction[i]]:
        i += 1
    return i
