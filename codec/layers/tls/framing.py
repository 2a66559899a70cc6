"""TLS record framing: finds the records in chunks of both directions.

The octets of each direction are copied end to end, behind those of its incomplete record, so that each record is one
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
        keep = first + np.flatnonzero(self.direction[first:] == direction)
        columns = (self.chunk[keep], self.direction[keep], self.at[keep], self.size[keep])
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


def split(chunks: Chunks, pending: tuple[bytes | bytearray | None, ...]) -> Records:
    """Records in chunks without holes, behind what is `pending` of each direction; None: it is skipped."""
    skipped = [part is None for part in pending]
    sizes = [len(part or b"") + int(chunks.size[chunks.direction == side].sum()) for side, part in enumerate(pending)]
    buffer = np.empty(sum(sizes), np.uint8)
    start = np.array([0, sizes[0]])
    used = start + [len(part or b"") for part in pending]
    for side, part in enumerate(pending):
        buffer[start[side] : used[side]] = np.frombuffer(part or b"", np.uint8)
    start[skipped] = -1
    columns = [np.empty(len(buffer) // HEADER_BYTES + 2, np.int64) for _ in range(4)]
    count = _split(chunks.direction, chunks.begin, chunks.size, chunks.octets, used, start, buffer, *columns)
    rest = [(int(begin if begin >= 0 else end), int(end)) for begin, end in zip(start, used, strict=True)]
    return Records._make([buffer, *(column[:count] for column in columns), (rest[0], rest[1])])


@kernel
def clear_end(direction, size, i, excluded):
    """Index of the first chunk from `i` on that is a hole, or of a direction that is `excluded` (bool (2,))."""
    while i < len(size) and size[i] >= 0 and not excluded[direction[i]]:
        i += 1
    return i
