"""Segments of flow keys -> segments of flows: connections in different address spaces, one after the other.

    spaces = AddressSpaces()
    for group in spaces.feed(group): ...      # groups of `udfs.decode.runs.flows_in_order`
    for group in spaces.finish(): ...

`codec.net.spaces` decides what is in which group of address spaces. The first group of a flow key passes at once; the
others wait for its end, in a temporary file if they are large. So the decoder sees one connection at a time, as always.
Flows of the output have FLOW_BYTES bytes. Python runs once per group, except for the flow keys of `carried`.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.limits import LIMITS
from codec.memory import as_records, readonly
from codec.net.runs import gather_payloads
from codec.net.segments import FLOW_BYTES, FLOW_KEY_BYTES, SEGMENT
from codec.net.spaces import GROUP, GROUPS, assign_groups, new_groups
from udfs.decode.runs import Group

Groups = dict[int, NDArray[np.void]]  # GROUP records of earlier captures, by the number in their flow
Carried = Callable[[bytes], Groups]


def flow_of(key: bytes, number: int = 0) -> bytes:
    """The flow of a group of address spaces of a flow key."""
    return key + number.to_bytes(FLOW_BYTES - FLOW_KEY_BYTES, "big")


def flows_of(keys: NDArray[np.uint8], numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The same for many: uint8 (n, FLOW_BYTES)."""
    return np.hstack([keys, numbers.astype(">u4").view(np.uint8).reshape(len(keys), -1)])


class _Part(NamedTuple):
    """Segments that wait, and their payload: in memory, or where they are in the file."""

    segments: NDArray[np.void]
    payload: NDArray[np.uint8]
    at: int
    sizes: tuple[int, int]


class _Waiting:
    """Segments of the later groups of a flow key, by group."""

    def __init__(self) -> None:
        self._parts: dict[int, list[_Part]] = {}
        self._file: io.BufferedRandom | None = None
        self._size = 0

    def add(self, number: int, segments: NDArray[np.void], payload: NDArray[np.uint8]) -> None:
        octets, offsets = gather_payloads(payload, segments)
        segments = segments.copy()
        segments["payload_at"] = offsets[:-1]
        sizes = segments.nbytes, octets.nbytes
        self._size += sum(sizes)
        part = _Part(segments, octets, 0, sizes)
        if self._size > LIMITS.waiting_spaces_bytes:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115
            part = _Part(segments[:0], octets[:0], self._file.seek(0, io.SEEK_END), sizes)
            self._file.write(segments.tobytes())
            self._file.write(octets.tobytes())
        self._parts.setdefault(number, []).append(part)

    def take(self, number: int) -> Iterator[tuple[NDArray[np.void], NDArray[np.uint8]]]:
        """Remove and return the segments of a group."""
        for part in self._parts.pop(number, ()):
            if sum(part.sizes) == part.segments.nbytes + part.payload.nbytes:
                yield part.segments, part.payload
            else:
                assert self._file is not None
                self._file.seek(part.at)
                octets = np.frombuffer(bytearray(self._file.read(sum(part.sizes))), np.uint8)
                yield octets[: part.sizes[0]].view(SEGMENT), octets[part.sizes[0] :]

    def __bool__(self) -> bool:
        return bool(self._parts)

    def close(self) -> None:
        """Forget everything."""
        if self._file is not None:
            self._file.close()
        self.__init__()  # type: ignore[misc]


class AddressSpaces:
    """See the module's text. `carried` gives the groups of a flow key whose connections earlier captures left open;
    then `ended` has those of all flows so far, until they are removed."""

    def __init__(self, carried: Carried | None = None) -> None:
        self.ended: dict[bytes, NDArray[np.void]] = {}  # GROUP (1,) by flow
        self._carried = carried
        self._key: bytes | None = None
        self._groups, self._used = new_groups(), np.zeros(1, np.int64)
        self._numbers = list(range(GROUPS))  # of the groups, in their flows
        self._restored: set[int] = set()  # indexes of groups that are carried and have not been passed on
        self._waiting = _Waiting()

    def feed(self, group: Group) -> Iterator[Group]:
        """Add segments in order: those that may be decoded now."""
        if self._carried is None:
            yield from self._feed(group)
            return
        begin = 0
        for key, end in zip(group.flows, group.ends.tolist(), strict=True):
            one = Group(key[None], np.array([end - begin]), group.segments[begin:end], group.payload)
            yield from self._feed(one)
            begin = end

    def finish(self) -> Iterator[Group]:
        """There are no more segments."""
        yield from self._end()
        self._key = None

    def _feed(self, group: Group) -> Iterator[Group]:
        count = len(group.flows)
        if not count:
            return
        if self._key != group.flows[0].tobytes():
            yield from self._end()
            self._begin(group.flows[0].tobytes())
        group_of, counts = np.empty(len(group.segments), np.int64), np.empty(count, np.int64)
        segments = readonly(as_records(group.segments))
        assign_groups(readonly(group.ends), segments, self._groups, self._used, group_of, counts)
        last = group.flows[-1].tobytes()
        if (counts == 1).all() and not self._waiting and self._carried is None:
            self._key = last
            yield group._replace(flows=flows_of(group.flows, np.zeros(count, np.int64)))
            return
        starts = np.append(0, group.ends[:-1])
        yield from self._open_flow(group, group_of, 0)
        if count > 1:
            yield from self._end()
            if count > 2:
                yield _apart(group, group_of, int(starts[1]), int(starts[-1]))
            self._key = last
            yield from self._open_flow(group, group_of, count - 1)

    def _begin(self, key: bytes) -> None:
        """Another flow key, which no call before had."""
        self._key, self._used[0] = key, 0
        if self._carried is not None:
            found = self._carried(key)
            self._numbers = [*found, *(number for number in range(GROUPS) if number not in found)][:GROUPS]
            self._restored = set(range(min(GROUPS, len(found))))
            for i in self._restored:
                self._groups[i] = found[self._numbers[i]][0]
            self._used[0] = len(self._restored)

    def _open_flow(self, group: Group, group_of: NDArray[np.int64], flow: int) -> Iterator[Group]:
        """The first or last flow key of `group`, which other calls may continue."""
        begin = int(group.ends[flow - 1]) if flow else 0
        segments, of = group.segments[begin : group.ends[flow]], group_of[begin : group.ends[flow]]
        first = segments[of == 0]
        if len(first):
            yield self._passed(0, first, group.payload)
        for i in np.unique(of[of > 0]).tolist():
            self._waiting.add(i, segments[of == i], group.payload)

    def _passed(self, i: int, segments: NDArray[np.void], payload: NDArray[np.uint8]) -> Group:
        self._restored.discard(i)
        assert self._key is not None
        flow = np.frombuffer(flow_of(self._key, self._numbers[i]), np.uint8)
        return Group(flow[None], np.array([len(segments)]), segments, payload)

    def _end(self) -> Iterator[Group]:
        """The current flow key has no more segments."""
        if self._key is None:
            return
        nothing = np.zeros(0, SEGMENT), np.zeros(0, np.uint8)
        if 0 in self._restored:
            yield self._passed(0, *nothing)
        for i in range(1, GROUPS if self._waiting or self._restored else 0):
            for segments, payload in self._waiting.take(i):
                yield self._passed(i, segments, payload)
            if i in self._restored:
                yield self._passed(i, *nothing)
        self._waiting.close()
        if self._carried is not None:
            for i in range(int(self._used[0])):
                self.ended[flow_of(self._key, self._numbers[i])] = np.array(self._groups[i : i + 1], GROUP)


def _apart(group: Group, group_of: NDArray[np.int64], begin: int, end: int) -> Group:
    """The segments from `begin` to `end`, of whole flow keys, by flow."""
    key_of = np.searchsorted(group.ends, np.arange(begin, end), "right")
    of = group_of[begin:end]
    order = np.lexsort([of, key_of])
    key_of, of = key_of[order], of[order]
    last = np.append((key_of[1:] != key_of[:-1]) | (of[1:] != of[:-1]), True)
    flows = flows_of(group.flows[key_of[last]], of[last])
    return Group(flows, np.flatnonzero(last) + 1, group.segments[begin:end][order], group.payload)
