"""Records as they are framed; and where they lie in stretches of both directions, found by a kernel.

Bytes of a direction that came in several stretches are laid end to end, behind those of a record begun before, so that
each record is one slice of one buffer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.variant.writer import copy_bytes

HEADER_BYTES = 5  # kind, version, size of the body
RECORD_BYTES = (1 << 14) + 256 + 1792  # the largest body: TLS 1.2 allows 2048 octets around 2**14
CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION_DATA = 20, 21, 22, 23
NO_RECORD = -1  # size of what begins as no record does


class Split(NamedTuple):
    """Records in the order in which they were complete. `stretch`: with which; `way`: direction; `at`, `size`: their
    body in `octets` (size NO_RECORD: none begins there, nothing more is split of this direction). `rest`: begin and end
    of what is left of each direction in `octets`."""

    octets: np.ndarray  # uint8
    stretch: np.ndarray
    way: np.ndarray
    at: np.ndarray
    size: np.ndarray
    rest: tuple[tuple[int, int], tuple[int, int]]


@kernel
def _split(ways, starts, ends, octets, used, begun, buffer, stretch, way_of, at_of, size_of):
    """Lay stretches behind `used[way]` in `buffer`; `begun[way]` is where the record at hand begins, -1: nothing is
    split of this direction. How many records."""
    count = 0
    for i in range(len(ways)):
        way = int(ways[i])
        if begun[way] < 0:
            continue
        size = int(ends[i] - starts[i])
        copy_bytes(buffer, int(used[way]), octets, int(starts[i]), int(ends[i]))
        used[way] += size
        at, end = int(begun[way]), int(used[way])
        while end - at >= HEADER_BYTES:
            kind, length = buffer[at], (int(buffer[at + 3]) << 8) | int(buffer[at + 4])
            sound = CHANGE_CIPHER_SPEC <= kind <= APPLICATION_DATA and buffer[at + 1] == 3 and length <= RECORD_BYTES
            if sound and at + HEADER_BYTES + length > end:
                break
            stretch[count], way_of[count], at_of[count] = i, way, at + HEADER_BYTES
            size_of[count] = length if sound else NO_RECORD
            count += 1
            if not sound:
                begun[way] = -1
                break
            at += HEADER_BYTES + length
        if begun[way] >= 0:
            begun[way] = at
    return count


def split(
    ways: np.ndarray, starts: np.ndarray, ends: np.ndarray, octets: np.ndarray, pending: tuple[bytes | bytearray, ...]
) -> Split:
    """Records of stretches `octets[starts[i]:ends[i]]` of direction `ways[i]` (int64), behind what is `pending` of each
    direction."""
    sizes = ends - starts
    first = len(pending[0]) + int(sizes[ways == 0].sum())
    total = first + len(pending[1]) + int(sizes[ways == 1].sum())
    buffer = np.empty(total, np.uint8)
    begun = np.array([0, first])
    used = begun + [len(part) for part in pending]
    for way, part in enumerate(pending):
        buffer[begun[way] : used[way]] = np.frombuffer(part, np.uint8)
    stretch, way_of, at, size = (np.empty(total // HEADER_BYTES + 2, np.int64) for _ in range(4))
    count = _split(ways, starts, ends, octets, used, begun, buffer, stretch, way_of, at, size)
    left = [(int(begin if begin >= 0 else end), int(end)) for begin, end in zip(begun, used, strict=True)]
    return Split(buffer, stretch[:count], way_of[:count], at[:count], size[:count], (left[0], left[1]))
