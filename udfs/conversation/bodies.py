"""Assembles the bodies of messages from the payloads of their frames."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.arrow.fields import gathered, heap_of
from udfs.arrow.rows import Index, numbers_of

Key = tuple[int, int]  # connection, frame_no of the method
FRAME_COLUMNS = ("connection_id", "content_frame_no", "payload")
PENDING_BODIES = pa.schema([("connection_id", pa.int64()), ("frame_no", pa.int64()), ("payload", pa.binary())])
LARGEST = (1 << 31) - 1  # bytes of a value


class Bodies:
    """The payloads of the current frames, and those of incomplete contents from earlier frames."""

    def __init__(self) -> None:
        self._pending: dict[Key, list[pa.Array]] = {}
        self._connections = self._contents = np.zeros(0, np.int64)
        self._payload = pa.array([], pa.binary())

    def add(self, frames: pa.RecordBatch) -> None:
        """Take the payloads of `frames` (FRAME_COLUMNS), in order."""
        there = frames["payload"].is_valid()
        self._connections = numbers_of(frames["connection_id"].filter(there))
        self._contents = numbers_of(frames["content_frame_no"].filter(there))
        self._payload = frames["payload"].filter(there)

    def sizes(self, connections: NDArray[np.int64], contents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of the bodies of some contents; -1 where there is no payload."""
        sizes, counts = self._current(connections, contents)[1:]
        sizes[counts == 0] = -1
        for at, parts in self._earlier(connections, contents):
            sizes[at] = max(0, sizes[at]) + sum(_size(part) for part in parts)
        return sizes

    def of(self, connections: NDArray[np.int64], contents: NDArray[np.int64], complete: NDArray[np.bool_]) -> pa.Array:
        """The bodies of some contents; empty where they are complete without any payload, else null."""
        order, sizes, counts = self._current(connections, contents)
        column = gathered(self._payload.take(pa.array(order)), sizes, (counts > 0) | complete)
        pieces, done = [], 0
        for at, parts in self._earlier(connections, contents):
            whole = b"".join(heap_of(part).trimmed().octets.tobytes() for part in (*parts, column.slice(at, 1)))
            pieces += [column.slice(done, at - done), pa.array([whole if len(whole) <= LARGEST else None], pa.binary())]
            done = at + 1
        return pa.concat_arrays([*pieces, column.slice(done)])

    def keep(self, connections: NDArray[np.int64], contents: NDArray[np.int64]) -> None:
        """Store the payloads of these contents, which are incomplete, and drop all others."""
        order, _, counts = self._current(connections, contents)
        payload, ends = self._payload.take(pa.array(order)), np.cumsum(counts)
        pending = {}
        for at, key in enumerate(zip(connections.tolist(), contents.tolist(), strict=True)):
            parts = self._pending.get(key, [])
            if counts[at]:
                parts.append(payload.slice(ends[at] - counts[at], counts[at]))
            pending[key] = parts
        self._pending = {key: parts for key, parts in pending.items() if parts}
        self._connections = self._contents = np.zeros(0, np.int64)
        self._payload = self._payload.slice(0, 0)

    def saved(self) -> pa.Table:
        """The payloads of incomplete contents, PENDING_BODIES."""
        parts = [(*key, part) for key, parts in self._pending.items() for part in parts]
        columns = [
            pa.array([connection for connection, _, part in parts for _ in part], pa.int64()),
            pa.array([content for _, content, part in parts for _ in part], pa.int64()),
            pa.chunked_array([part for _, _, part in parts], pa.binary()),
        ]
        return pa.table(columns, schema=PENDING_BODIES)

    def restore(self, saved: pa.Table) -> None:
        """Add payloads of incomplete contents."""
        for batch in saved.combine_chunks().to_batches():
            keys = zip(batch["connection_id"].to_pylist(), batch["frame_no"].to_pylist(), strict=True)
            for at, key in enumerate(keys):
                self._pending.setdefault(key, []).append(batch["payload"].slice(at, 1))

    def _current(
        self, connections: NDArray[np.int64], contents: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The current payloads of these contents, content by content; bytes and number of payloads of each content."""
        of_row = Index(connections, contents).find(self._connections, self._contents)
        order = np.argsort(of_row, kind="stable")[np.count_nonzero(of_row < 0) :]
        sizes, counts = np.zeros((2, len(connections)), np.int64)
        np.add.at(counts, of_row[order], 1)
        np.add.at(sizes, of_row[order], np.diff(heap_of(self._payload).ends)[order])
        return order, sizes, counts

    def _earlier(self, connections: NDArray[np.int64], contents: NDArray[np.int64]) -> list[tuple[int, list[pa.Array]]]:
        """Places of the contents with earlier payloads, in order, and these."""
        if not self._pending:
            return []
        keys = np.array(list(self._pending), np.int64)
        at = Index(connections, contents).find(keys[:, 0], keys[:, 1])
        parts = list(self._pending.values())
        return sorted(((int(at[i]), parts[i]) for i in np.flatnonzero(at >= 0)), key=lambda each: each[0])


def _size(part: pa.Array) -> int:
    ends = heap_of(part).ends
    return int(ends[-1] - ends[0])
