"""Arrays of many connections as bytes of each, written and read part by part for all connections at once.

    writer = Writer(connections)
    writer.put(values, counts)              # connection i has the next counts[i] of `values`
    bytes = writer.bytes()                # bytes of each connection

    reader = Reader(bytes)
    values = reader.take(dtype, counts)     # what was put, of these connections

Cost per part and per byte, not per connection: a kernel copies. `sealed` bytes begin with MAGIC, a layout version, a
digest of the layout and a checksum of the rest, which is compressed; `unsealed` never misreads others.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.errors import WirehareError

Integers = NDArray[np.int64]
MAGIC = b"WHST"
_HEAD = struct.Struct(">4sH8sI")  # magic, layout version, digest of the layout, CRC-32 of what follows
_COUNT = np.dtype("<u4")


class StateError(WirehareError, ValueError):
    """Bytes that are not the state of a connection, or not of this layout."""


@kernel
def _copy(source, source_at, target, target_at, sizes):
    """Copy `sizes[i]` bytes for each connection, and advance `source_at` and `target_at`."""
    for i in range(len(sizes)):
        size, begin, to = sizes[i], source_at[i], target_at[i]
        for k in range(size):
            target[to + k] = source[begin + k]
        source_at[i] = begin + size
        target_at[i] = to + size


class Writer:
    """Collects parts; see the module's text."""

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._parts: list[tuple[NDArray[np.uint8], Integers]] = []

    def put(self, values: NDArray[Any], counts: Integers) -> None:
        """Append `counts[i]` items to connection i."""
        data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
        self._parts.append((data, np.asarray(counts, np.int64) * values.dtype.itemsize))

    def put_counted(self, values: NDArray[Any], counts: Integers) -> None:
        """The same, with the counts before them."""
        self.put(counts.astype(_COUNT), np.ones(self._connections, np.int64))
        self.put(values, counts)

    def data(self) -> list[bytes]:
        """What was put, by connection."""
        sizes = sum((sizes for _, sizes in self._parts), np.zeros(self._connections, np.int64))
        ends = np.cumsum(sizes)
        at, heap = ends - sizes, np.empty(int(sizes.sum()), np.uint8)
        for data, own in self._parts:
            _copy(data, np.cumsum(own) - own, heap, at, own)
        whole = heap.tobytes()
        return [whole[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]


class Reader:
    """Takes parts in the order in which they were put."""

    def __init__(self, data: Sequence[bytes]) -> None:
        self._heap = np.frombuffer(b"".join(data), np.uint8)
        sizes = np.array([len(each) for each in data], np.int64)
        self._at = np.cumsum(sizes) - sizes
        self.connections = len(data)

    def take(self, dtype: np.dtype[Any], counts: Integers) -> NDArray[Any]:
        """The next `counts[i]` items of connection i."""
        sizes = np.asarray(counts, np.int64) * dtype.itemsize
        target = np.empty(int(sizes.sum()), np.uint8)
        _copy(self._heap, self._at, target, np.cumsum(sizes) - sizes, sizes)
        return target.view(dtype)

    def take_counted(self, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Integers]:
        """What `put_counted` was given."""
        counts = self.take(_COUNT, np.ones(self.connections, np.int64)).astype(np.int64)
        return self.take(dtype, counts), counts


def seal(data: bytes, version: int, layout: bytes) -> bytes:
    """Bytes with a head."""
    body = zlib.compress(data, 1)
    return _HEAD.pack(MAGIC, version, layout, zlib.crc32(body)) + body


def unseal(data: bytes, version: int, layout: bytes) -> bytes:
    """What was sealed; `StateError` for bytes of another layout, and damaged ones."""
    if len(data) < _HEAD.size or data[:4] != MAGIC:
        raise StateError("not the state of a connection")
    _, other, digest, checksum = _HEAD.unpack_from(data)
    if (other, digest) != (version, layout):
        raise StateError(
            f"the state of a connection has layout {other}-{digest.hex()}, this release reads "
            f"{version}-{layout.hex()} only"
        )
    body = data[_HEAD.size :]
    if zlib.crc32(body) != checksum:
        raise StateError("the state of a connection is damaged: its checksum differs")
    return zlib.decompress(body)
