"""Runs of TCP segments from the shuffle -> segments in order, many flows at a time: `flows_in_order`.

Input: batches of `TCP_RUNS` rows, flow by flow, each flow ordered by (order_ns, capture_file, first_packet_no). Runs
are concatenated in groups of about GROUP_BYTES, so that Python code runs once per group, not once per run (a port scan
has a run for each packet), and that flows whose packets alternate in the capture are read together: neighbours in the
file are one read.

Runs of one flow may overlap in time when several files captured it. So of the last flow of a group only the segments
before its last run are passed on: no later run can precede those. Packets are decoded strictly in the order (order_ns,
file, packet_no), however they were cut. Memory holds a group and the runs that overlap.

`Payloads` reads the payloads of runs that refer to their capture file instead of carrying them through the shuffle. It
copies them: a file that is truncated while it is memory-mapped ends the process.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.compiler.limits import LIMITS
from codec.memory import as_records, readonly
from codec.net.identity import (
    GROUP,
    GROUPS,
    assign_groups,
    new_groups,
)
from codec.net.layers import FLOW_BYTES, FLOW_KEY_BYTES, SEGMENT
from codec.net.runs import gather_payloads
from udfs.arrow.arrays import equal_runs
from udfs.arrow.fields import heap_of
from udfs.source.capture_bytes import error_line, locate
from udfs.source.connection_processes import FlowProcesses

GROUP_BYTES = 1 << 23  # of payload
GROUP_SEGMENTS = 1 << 17
CARRIED = -1  # instead of the number of a file: runs that carry their payloads
OPEN_FILES = 16
SHORTER = "has become shorter while it was read"
# Payloads so near to each other in the file are read at once, with the bytes between them, which is faster than one by
# one; all bytes between the payloads of a group are at most the second number.
GAP_BYTES, GAPS_BYTES = 8 << 10, 24 << 20


class Group(NamedTuple):
    """Segments, flow by flow. `flows`: uint8 (n, FLOW_BYTES). `ends`: int64 (n,), where the segments of each flow end.
    `segments`: SEGMENT, whose `payload_at` points into `payload` (uint8)."""

    flows: NDArray[np.uint8]
    ends: NDArray[np.int64]
    segments: NDArray[np.void]
    payload: NDArray[np.uint8]


class Files:
    """Capture files seen so far, by number."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)

    def number(self, name: str) -> int:
        """The number of `name`, assigned at its first use."""
        number = self.numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number

    def order(self) -> NDArray[np.int64]:
        """By number, the index of a file in the order of the names."""
        if len(self._order) != len(self.names):
            self._order = np.argsort(np.argsort(np.array(self.names)))
        return self._order


class FlowOrder:
    """Orders the segments of flows by (order_ns, file, packet_no) across runs that overlap in time."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._pending: Group | None = None  # segments of one flow that later runs may overlap

    def add(self, group: Group, last_run: int) -> Iterator[Group]:
        """Add the next runs, the last of which begins at segment `last_run`; return the segments that no later run can
        precede."""
        first = group.segments[last_run].copy()
        if self._pending is not None and _precedes(self._pending, group):
            yield self._pending
        elif self._pending is not None:
            group = concat_groups(self._pending, group)
        group = self._sorted(group)
        begin = int(group.ends[-2]) if len(group.ends) > 1 else 0
        ready = begin + self._before(group.segments[begin:], first)
        if ready:
            flows = len(group.ends) if ready > begin else len(group.ends) - 1
            ends = np.minimum(group.ends[:flows], ready)
            yield Group(group.flows[:flows], ends, group.segments[:ready], group.payload)
        segments = group.segments[ready:].copy()
        self._pending = Group(group.flows[-1:], np.array([len(segments)]), segments, group.payload)

    def rest(self) -> Iterator[Group]:
        """There are no more runs."""
        if self._pending is not None:
            yield self._pending
        self._pending = None

    def _sorted(self, group: Group) -> Group:
        segments = group.segments
        flow = np.repeat(np.arange(len(group.ends)), np.diff(group.ends, prepend=0))
        index = self._files.order()[segments["file"]]
        keys = (flow, segments["order_ns"], index, segments["packet_no"])
        later = np.zeros(max(0, len(segments) - 1), np.bool_)
        for key in reversed(keys):  # whether each comes after the one before
            later = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & later)
        if later.all():
            return group
        return group._replace(segments=segments[np.lexsort(keys[::-1])])

    def _before(self, segments: NDArray[np.void], first: np.void) -> int:
        """How many of a flow's segments, which are in order, come before `first`, which is among them."""
        equal = np.flatnonzero((segments["packet_no"] == first["packet_no"]) & (segments["file"] == first["file"]))
        return int(equal[0])


def _precedes(pending: Group, group: Group) -> bool:
    """Whether pending segments are of another flow than those that follow, or all before them."""
    if (pending.flows[0] != group.flows[0]).any():
        return True
    return bool(pending.segments["order_ns"][-1] < group.segments["order_ns"][: group.ends[0]].min())


def concat_groups(pending: Group, group: Group) -> Group:
    """Pending segments, and those that follow, the first of which are of the same flow."""
    payload, parts = _in_one_array([(pending.segments, pending.payload), (group.segments, group.payload)])
    return Group(group.flows, group.ends + len(pending.segments), np.concatenate(parts), payload)


def _in_one_array(
    parts: Sequence[tuple[NDArray[np.void], NDArray[np.uint8]]],
) -> tuple[NDArray[np.uint8], list[NDArray[np.void]]]:
    """(segments, the bytes they refer to) of each part -> the bytes of all parts, and segments that refer to these.
    Nothing is copied if there is one part."""
    if len(parts) == 1:
        return parts[0][1], [parts[0][0]]
    sizes = [int(segments["cap_len"].sum(dtype=np.int64)) for segments, _ in parts]
    payload, moved, at = np.empty(sum(sizes), np.uint8), list[NDArray[np.void]](), 0
    for (segments, data), size in zip(parts, sizes, strict=True):
        _, offsets = gather_payloads(data, segments, payload[at : at + size])
        moved.append(segments.copy())
        moved[-1]["payload_at"] = offsets[:-1] + at
        at += size
    return payload, moved


def flows_in_order(
    runs: Iterable[pa.RecordBatch], files: Files, processes: FlowProcesses | None = None
) -> Generator[Group | str, None, None]:
    """Batches of TCP_RUNS -> groups of segments in order, and the accounts of splits among them. Processes are added
    to `processes`."""
    payloads, order = Payloads(), FlowOrder(files)
    try:
        for batch in runs:
            yield from batch["account"].drop_null().to_pylist()
            if processes is not None:
                processes.add(batch)
            for group, last_run in _groups(batch, files, payloads):
                yield from order.add(group, last_run)
        yield from order.rest()
    finally:
        payloads.close()


def _groups(batch: pa.RecordBatch, files: Files, payloads: Payloads) -> Iterator[tuple[Group, int]]:
    """The runs of a batch (TCP_RUNS) in groups, and where the last run of each group begins."""
    runs = batch.filter(batch["flow"].is_valid())
    if not runs.num_rows:
        return
    data, offsets = heap_of(runs["segments"]).trimmed()
    segments, ends = data.view(SEGMENT), offsets[1:] // SEGMENT.itemsize
    sizes = np.add.reduceat(segments["cap_len"].astype(np.int64), ends - np.diff(offsets) // SEGMENT.itemsize)
    part = np.maximum(np.cumsum(sizes) // GROUP_BYTES, ends // GROUP_SEGMENTS)
    for start, end in equal_runs(part):
        first = int(ends[start - 1]) if start else 0
        some = segments[first : ends[end - 1]]
        yield _group(runs.slice(start, end - start), some, ends[start:end] - first, files, payloads)


def _group(
    runs: pa.RecordBatch, segments: NDArray[np.void], ends: NDArray[np.int64], files: Files, payloads: Payloads
) -> tuple[Group, int]:
    counts = np.diff(ends, prepend=0)
    captures = runs["capture_file"].dictionary_encode()
    numbers = np.array([files.number(name) for name in captures.dictionary.to_pylist()])
    segments = segments.copy()
    file_of = numbers[captures.indices.to_numpy()]
    segments["file"] = np.repeat(file_of, counts)
    carried, offsets = heap_of(runs["payload"]).trimmed()
    referring = runs["payload"].is_null().to_numpy(zero_copy_only=False)
    segments["payload_at"] += np.repeat(np.where(referring, 0, offsets[:-1]), counts)
    source = np.where(np.repeat(referring, counts), segments["file"], CARRIED)
    sources = np.unique(source).tolist()
    parts = [segments if len(sources) == 1 else segments[source == number] for number in sources]
    payload, moved = _in_one_array(
        [
            (part, carried) if number == CARRIED else payloads.read(files.names[number], part)
            for number, part in zip(sources, parts, strict=True)
        ]
    )
    for number, part in zip(sources, moved, strict=True):
        segments["payload_at"][source == number] = part["payload_at"]
    keys = heap_of(runs["flow"]).trimmed().data.reshape(-1, FLOW_KEY_BYTES)
    last = np.append((keys[1:] != keys[:-1]).any(axis=1), True)  # runs after which another flow begins
    return Group(keys[last], ends[last], segments, payload), int(ends[-1] - counts[-1])


class Payloads:
    """Reads the payloads of segments in local capture files, which stay open."""

    def __init__(self) -> None:
        self._files: dict[str, io.FileIO] = {}

    def read(self, capture: str, segments: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.uint8]]:
        """SEGMENTs that refer to the bytes (uint8) beside them, from those that refer to a capture file.

        Raises OSError if the file was removed or is too short."""
        there = np.flatnonzero(segments["cap_len"])
        if not len(there):
            return segments, np.zeros(0, np.uint8)
        there = there[np.argsort(segments["payload_at"][there], kind="stable")]
        begins = segments["payload_at"][there]
        ends = np.maximum.accumulate(begins + segments["cap_len"][there])
        apart = begins[1:] > ends[:-1] + min(GAP_BYTES, GAPS_BYTES // len(there))
        part = np.append(0, np.cumsum(apart))
        starts = begins[np.append(True, apart)]
        offsets = np.append(0, np.cumsum(ends[np.append(apart, True)] - starts))
        data = np.empty(offsets[-1], np.uint8)
        moved = segments.copy()
        moved["payload_at"][there] += (offsets[:-1] - starts)[part]
        self._fill(capture, data, starts.tolist(), offsets.tolist())
        return moved, data

    def _fill(self, capture: str, data: NDArray[np.uint8], starts: list[int], offsets: list[int]) -> None:
        """Read from `starts` of the file on, each part to its place in `bytes`."""
        try:
            file = self._open(capture).fileno()
            for start, at, end in zip(starts, offsets[:-1], offsets[1:], strict=True):
                while at < end:
                    count = os.preadv(file, [data.data[at:end]], start)
                    if not count:
                        raise EOFError
                    at, start = at + count, start + count
        except EOFError as error:
            raise OSError(f"{capture}: {SHORTER}") from error
        except OSError as error:
            raise OSError(f"{capture}: cannot be read again ({error_line(error, capture)})") from error

    def _open(self, capture: str) -> io.FileIO:
        if capture not in self._files:
            if len(self._files) >= OPEN_FILES:
                self.close()
            self._files[capture] = open(locate(capture).path, "rb", buffering=0)  # noqa: SIM115
        return self._files[capture]

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


# Segments of flow keys -> segments of flows: connections in different address spaces, one after the other.
#
#     spaces = AddressSpaces()
#     for group in spaces.feed(group): ...      # groups of `udfs.decode.flow_order.flows_in_order`
#     for group in spaces.finish(): ...
#
# `codec.net.identity` decides what is in which group of address spaces. The first group of a flow key passes at once;
# the others wait for its end, in a temporary file if they are large. So the decoder sees one connection at a time, as
# always. Flows of the output have FLOW_BYTES bytes. Python runs once per group, except for the flow keys of `carried`.


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
        data, offsets = gather_payloads(payload, segments)
        segments = segments.copy()
        segments["payload_at"] = offsets[:-1]
        sizes = segments.nbytes, data.nbytes
        self._size += sum(sizes)
        part = _Part(segments, data, 0, sizes)
        if self._size > LIMITS.waiting_spaces_bytes:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115
            part = _Part(segments[:0], data[:0], self._file.seek(0, io.SEEK_END), sizes)
            self._file.write(segments.tobytes())
            self._file.write(data.tobytes())
        self._parts.setdefault(number, []).append(part)

    def take(self, number: int) -> Iterator[tuple[NDArray[np.void], NDArray[np.uint8]]]:
        """Remove and return the segments of a group."""
        for part in self._parts.pop(number, ()):
            if sum(part.sizes) == part.segments.nbytes + part.payload.nbytes:
                yield part.segments, part.payload
            else:
                assert self._file is not None
                self._file.seek(part.at)
                data = np.frombuffer(bytearray(self._file.read(sum(part.sizes))), np.uint8)
                yield data[: part.sizes[0]].view(SEGMENT), data[part.sizes[0] :]

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
