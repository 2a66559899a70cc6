"""Input and output of layers: chunks of both directions, of octets or holes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from codec.compiler.limits import HANDSHAKE, LIMITS

CHUNK_COST, HOLE_COST = 16, 64  # bytes that a chunk and a hole count beside their own in the bound of waiting bytes

Content = bytes | bytearray | memoryview | int  # bytes, or a hole: the negative of its size


class Chunks(NamedTuple):
    """Chunks in the order in which they became readable; int64 columns. `event`: the TCP event that completed it;
    `direction`; `begin`, `size`: its octets in `octets` (uint8); a negative size is a hole of so many octets."""

    event: np.ndarray
    direction: np.ndarray
    begin: np.ndarray
    size: np.ndarray
    octets: np.ndarray

    def part(self, begin: int, end: int) -> Chunks:
        """Chunks `begin` to `end`."""
        return Chunks._make([*(column[begin:end] for column in self[:4]), self.octets])

    def contents(self) -> list[tuple[int, bytes | int]]:
        """(direction, octets, or the negative size of a hole) of each."""
        columns = (self.direction.tolist(), self.begin.tolist(), self.size.tolist())
        return [
            (direction, self.octets[at : at + size].tobytes() if size >= 0 else size)
            for direction, at, size in zip(*columns, strict=True)
        ]

    def copied(self) -> Chunks:
        """A copy with its own octets, end to end."""
        parts = [
            self.octets[at : at + size]
            for at, size in zip(self.begin.tolist(), self.size.tolist(), strict=True)
            if size > 0
        ]
        sizes = np.maximum(self.size, 0)
        octets = np.concatenate([np.zeros(0, np.uint8), *parts])
        return Chunks(self.event.copy(), self.direction.copy(), np.cumsum(sizes) - sizes, self.size.copy(), octets)

    @classmethod
    def hole(cls, event: int, direction: int, size: int) -> Chunks:
        """A hole of `size` octets."""
        return cls._make([*np.array([[event], [direction], [0], [-size]]), np.zeros(0, np.uint8)])


NO_CHUNKS = Chunks._make([*np.zeros((4, 0), np.int64), np.zeros(0, np.uint8)])


class Output:
    """Collects chunks; `octets` has room for those of all."""

    def __init__(self, room: int) -> None:
        self.octets = np.empty(room, np.uint8)
        self.view = self.octets.data
        self.used = 0
        self._rows: list[np.ndarray] = []
        self._last: list[tuple[int, int, int, int]] = []

    def add(self, event: int, direction: int, content: Content) -> None:
        """Add a chunk; a negative number is a hole."""
        size = content if isinstance(content, int) else len(content)
        if not isinstance(content, int):
            self.view[self.used : self.used + size] = content
        if size:
            self._last.append((event, direction, self.used, size))
        self.used += max(size, 0)

    def add_columns(self, event: np.ndarray, direction: np.ndarray, begin: np.ndarray, size: np.ndarray) -> None:
        """Add chunks whose octets are in `octets` already; the caller advances `used`."""
        self._flush()
        self._rows.append(np.array([event, direction, begin, size]))

    def _flush(self) -> None:
        if self._last:
            self._rows.append(np.array(self._last, np.int64).T)
            self._last = []

    def chunks(self) -> Chunks:
        """All of them."""
        self._flush()
        columns = np.concatenate([np.zeros((4, 0), np.int64), *self._rows], axis=1)
        return Chunks._make([*columns, self.octets])


def joined(*parts: Chunks) -> Chunks:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part.octets) for part in parts[:-1])]).tolist()
    moved = [part._replace(begin=part.begin + at) for part, at in zip(parts, before, strict=True)]
    return Chunks._make(np.concatenate(column) for column in zip(*moved, strict=True))


class Layer(ABC):
    """Chunks to chunks of their contents. `client`: direction of the client; `output_bytes`: octets of output, by
    direction; `reason`: why it stopped; `limits`: bits of those reached (codec.compiler.limits); `event`: the current
    one; `stopped_at`: the event of the last call at which both directions stopped."""

    sides: tuple[Any, Any]  # the state of each direction, with `stopped` and `pending`
    accepted = False  # both sides agreed on this layer, so that bytes without output are its own

    def __init__(self, client: int) -> None:
        self.client = client
        self.output_bytes = [0, 0]
        self.reason: str | None = None
        self.limits = 0
        self.event = self.stopped_at = -1

    @abstractmethod
    def read(self, chunks: Chunks) -> Chunks:
        """Read the next chunks of both directions."""

    def why_unread(self) -> str | None:
        """Why it was not read, or not to the end."""
        return self.reason or None

    def owed(self, direction: int) -> int:
        """Missing bytes of a direction for which the output has no hole, although their contents are lost."""
        return 0

    def expansion(self, direction: int) -> int:
        """How many bytes longer the output is than what it was made of."""
        return 0

    def give_up(self, answered: bool) -> None:  # noqa: B027
        """The connection ends before the first output. `answered`: packets of the server were captured."""

    def stop_reading(self, reason: str, side: Any = None) -> None:
        """Stop reading this side, or both."""
        self.reason = self.reason or reason
        for each in self.sides if side is None else (side,):
            each.stopped, each.pending = True, bytearray()
        if self.stopped:
            self.stopped_at = self.event

    @property
    def stopped(self) -> bool:
        """Whether both sides have stopped."""
        return all(side.stopped for side in self.sides)


@dataclass
class Attempt:
    """A layer, and its input without output so far. `passes`: it is none, its input passes unchanged."""

    layer: Layer
    waiting: list[Chunks] | None = field(default_factory=list)  # None: it had output, or passes
    cost: int = 0  # of what waits
    passes: bool = False

    def read(self, chunks: Chunks) -> Chunks:
        """Chunks through the layer."""
        if self.passes:
            return chunks
        if self.waiting is None:
            return self.layer.read(chunks)
        count = len(chunks.event)
        cost = self.cost + np.cumsum(np.where(chunks.size < 0, HOLE_COST, chunks.size + CHUNK_COST))
        last = min(int(np.searchsorted(cost, LIMITS.layer_bytes, "right")), count - 1)
        found = self.layer.read(chunks.part(0, last + 1))
        if len(found.event):
            self.waiting = None
            return found if last == count - 1 else joined(found, self.layer.read(chunks.part(last + 1, count)))
        if count and cost[last] > LIMITS.layer_bytes:
            self.layer.limits |= HANDSHAKE
        elif not self.layer.stopped:
            if count:
                self.waiting.append(chunks.copied())
                self.cost = int(cost[-1])
            return found
        return self.passed(chunks)

    def passed(self, chunks: Chunks) -> Chunks:
        """What waits and `chunks`, unchanged; so is all that follows."""
        before, self.waiting, self.passes = self.waiting or [], None, True
        return joined(*before, chunks)
