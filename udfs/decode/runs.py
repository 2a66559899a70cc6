"""Runs of TCP segments as the shuffle hands them over -> segments in order, many flows at a time.

Input: batches of `TCP_RUNS` rows, flow by flow, each flow ordered by (order_ns, capture_file, first_packet_no).
Runs are put end to end in groups of about GROUP_BYTES, so that what Python does is done once a group, not once a run:
a port scan has a run for each packet.

Runs of one flow may overlap in time when several files captured it: of the last flow of a group only what comes before
its last run is handed on, since no run that follows can precede that. So packets are taken strictly in the order
(order_ns, file, packet_no) however they were cut. Nothing is held but a group and the runs that overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.net.runs import gather_payloads
from codec.net.segments import FLOW_KEY_BYTES, SEGMENT
from udfs.decode.payloads import Payloads

GROUP_BYTES = 1 << 20  # of payload
GROUP_SEGMENTS = 1 << 16
CARRIED = -1  # instead of the number of a file: runs that carry their payloads


class Group(NamedTuple):
    """Segments of flows one after the other: `flows` uint8 (n, 36), `ends` int64 (n,): where the segments of each end;
    `segments`: SEGMENT, `payload_at` points into `payload` (uint8)."""

    flows: NDArray[np.uint8]
    ends: NDArray[np.int64]
    segments: NDArray[np.void]
    payload: NDArray[np.uint8]


class Files:
    """Capture files met so far, by number."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self._places: NDArray[np.int64] = np.zeros(0, np.int64)

    def number(self, name: str) -> int:
        """The number of `name`, given on first sight."""
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
    """Puts the segments of flows in their order (order_ns, file, packet_no) across runs that overlap in time."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._held: Group | None = None  # of one flow: what runs that follow may overlap

    def add(self, group: Group, last_run: int) -> Iterator[Group]:
        """Take the next runs, of which the last one begins at segment `last_run`; gives what none that follows can
        precede."""
        first = group.segments[last_run].copy()
        if self._held is not None:
            group = joined(self._held, group)
        group = self._sorted(group)
        begin = int(group.ends[-2]) if len(group.ends) > 1 else 0
        ready = begin + self._before(group.segments[begin:], first)
        if ready:
            flows = len(group.ends) if ready > begin else len(group.ends) - 1
            ends = np.minimum(group.ends[:flows], ready)
            yield Group(group.flows[:flows], ends, group.segments[:ready], group.payload)
        segments = group.segments[ready:].copy()
        self._held = Group(group.flows[-1:], np.array([len(segments)]), segments, group.payload)

    def rest(self) -> Iterator[Group]:
        """There are no more runs."""
        if self._held is not None:
            yield self._held
        self._held = None

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


def joined(held: Group, group: Group) -> Group:
    """What was held, and what follows: perhaps of the same flow."""
    goes_on = bool((held.flows[-1] == group.flows[0]).all())
    payload, parts = _in_one_array([(held.segments, held.payload), (group.segments, group.payload)])
    return Group(
        np.concatenate([held.flows[: -1 if goes_on else None], group.flows]),
        np.concatenate([held.ends[: -1 if goes_on else None], group.ends + len(held.segments)]),
        np.concatenate(parts),
        payload,
    )


def _in_one_array(
    parts: Sequence[tuple[NDArray[np.void], NDArray[np.uint8]]],
) -> tuple[NDArray[np.uint8], list[NDArray[np.void]]]:
    """Parts of segments, each with the octets to which it refers -> the octets of all, and parts that refer to these.
    Nothing is copied where all refer to the same array, as the segments of one capture file do."""
    octets = parts[0][1]
    if all(each is octets for _, each in parts):
        return octets, [segments for segments, _ in parts]
    payloads, moved, size = list[NDArray[np.uint8]](), list[NDArray[np.void]](), 0
    for segments, each in parts:
        payload, offsets = gather_payloads(each, segments)
        moved.append(segments.copy())
        moved[-1]["payload_at"] = offsets[:-1] + size
        payloads.append(payload)
        size += len(payload)
    return np.concatenate(payloads), moved


def groups(batch: pa.RecordBatch, files: Files, payloads: Payloads) -> Iterator[tuple[Group, int]]:
    """The runs of a batch (TCP_RUNS), put end to end, and where the last run of each group begins."""
    runs = batch.filter(batch["flow"].is_valid())
    if not runs.num_rows:
        return
    octets, offsets = _octets(runs["segments"])
    segments, ends = octets.view(SEGMENT), offsets[1:] // SEGMENT.itemsize
    sizes = np.add.reduceat(segments["cap_len"].astype(np.int64), ends - np.diff(offsets) // SEGMENT.itemsize)
    part = np.maximum(np.cumsum(sizes) // GROUP_BYTES, ends // GROUP_SEGMENTS)
    starts = np.flatnonzero(np.diff(part, prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), runs.num_rows], strict=True):
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
    carried, offsets = _octets(runs["payload"])
    referring = runs["payload"].is_null().to_numpy(zero_copy_only=False)
    segments["payload_at"] += np.repeat(np.where(referring, 0, offsets[:-1]), counts)
    source = np.where(np.repeat(referring, counts), segments["file"], CARRIED)
    sources = np.unique(source).tolist()
    parts = [segments if len(sources) == 1 else segments[source == number] for number in sources]
    payload, moved = _in_one_array(
        [
            (part, carried if number == CARRIED else payloads.of(files.names[number], part))
            for number, part in zip(sources, parts, strict=True)
        ]
    )
    for number, part in zip(sources, moved, strict=True):
        segments["payload_at"][source == number] = part["payload_at"]
    keys = _octets(runs["flow"])[0].reshape(-1, FLOW_KEY_BYTES)
    last = np.append((keys[1:] != keys[:-1]).any(axis=1), True)  # runs after which another flow begins
    return Group(keys[last], ends[last], segments, payload), int(ends[-1] - counts[-1])


def _octets(values: pa.BinaryArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The octets of a binary column, end to end, and the n + 1 offsets of its values. They are not copied."""
    _, offset_buffer, data = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    octets = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return octets[offsets[0] : offsets[-1]], offsets - offsets[0]
