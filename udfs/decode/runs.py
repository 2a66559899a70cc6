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
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.net.runs import gather_payloads
from codec.net.segments import FLOW_KEY_BYTES, SEGMENT
from udfs.arrow.fields import heap_of
from udfs.arrow.rows import stretches
from udfs.decode.processes import FlowProcesses
from udfs.source.files import error_line, locate

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
        self._places: NDArray[np.int64] = np.zeros(0, np.int64)

    def number(self, name: str) -> int:
        """The number of `name`, assigned at its first use."""
        number = self.numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number

    def places(self) -> NDArray[np.int64]:
        """By number, the place of a file in the order of the names."""
        if len(self._places) != len(self.names):
            self._places = np.argsort(np.argsort(np.array(self.names)))
        return self._places


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
            group = joined(self._pending, group)
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
        place = self._files.places()[segments["file"]]
        keys = (flow, segments["order_ns"], place, segments["packet_no"])
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


def joined(pending: Group, group: Group) -> Group:
    """Pending segments, and those that follow, the first of which are of the same flow."""
    payload, parts = _in_one_array([(pending.segments, pending.payload), (group.segments, group.payload)])
    return Group(group.flows, group.ends + len(pending.segments), np.concatenate(parts), payload)


def _in_one_array(
    parts: Sequence[tuple[NDArray[np.void], NDArray[np.uint8]]],
) -> tuple[NDArray[np.uint8], list[NDArray[np.void]]]:
    """(segments, the octets they refer to) of each part -> the octets of all parts, and segments that refer to these.
    Nothing is copied if there is one part."""
    if len(parts) == 1:
        return parts[0][1], [parts[0][0]]
    sizes = [int(segments["cap_len"].sum(dtype=np.int64)) for segments, _ in parts]
    payload, moved, at = np.empty(sum(sizes), np.uint8), list[NDArray[np.void]](), 0
    for (segments, octets), size in zip(parts, sizes, strict=True):
        _, offsets = gather_payloads(octets, segments, payload[at : at + size])
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
    octets, offsets = heap_of(runs["segments"]).trimmed()
    segments, ends = octets.view(SEGMENT), offsets[1:] // SEGMENT.itemsize
    sizes = np.add.reduceat(segments["cap_len"].astype(np.int64), ends - np.diff(offsets) // SEGMENT.itemsize)
    part = np.maximum(np.cumsum(sizes) // GROUP_BYTES, ends // GROUP_SEGMENTS)
    for start, end in stretches(part):
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
    keys = heap_of(runs["flow"]).trimmed().octets.reshape(-1, FLOW_KEY_BYTES)
    last = np.append((keys[1:] != keys[:-1]).any(axis=1), True)  # runs after which another flow begins
    return Group(keys[last], ends[last], segments, payload), int(ends[-1] - counts[-1])


class Payloads:
    """Reads the payloads of segments in local capture files, which stay open."""

    def __init__(self) -> None:
        self._files: dict[str, io.FileIO] = {}

    def read(self, capture: str, segments: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.uint8]]:
        """SEGMENTs that refer to the octets (uint8) beside them, from those that refer to a capture file.

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
        octets = np.empty(offsets[-1], np.uint8)
        moved = segments.copy()
        moved["payload_at"][there] += (offsets[:-1] - starts)[part]
        self._fill(capture, octets, starts.tolist(), offsets.tolist())
        return moved, octets

    def _fill(self, capture: str, octets: NDArray[np.uint8], starts: list[int], offsets: list[int]) -> None:
        """Read from `starts` of the file on, each part to its place in `octets`."""
        try:
            file = self._open(capture).fileno()
            for start, at, end in zip(starts, offsets[:-1], offsets[1:], strict=True):
                while at < end:
                    count = os.preadv(file, [octets.data[at:end]], start)
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
