"""Selects the packets of the surveyed connections to write.

A range of a stream is carried by every packet whose payload overlaps it, including retransmissions. A packet in the
middle of a connection often begins inside a frame, where a dissector would misread it. So a range is extended back to a
packet that begins with a frame. The packets that open the connection are selected, too: the TCP handshake, which
anchors the sequence numbers, and the protocol headers, which show the version.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from codec.net.segments import SYN
from pipeline.extract.frames import NULL, Frames, Streams, numbered
from pipeline.extract.originals import Original
from pipeline.extract.survey import NONE, UNMAPPED, Survey

LEAD_BYTES = 1 << 20  # beyond this the range is not extended
LEAD_STEPS = 1000


def select_packets(
    survey: Survey,
    frames: Frames,
    whole: Collection[int],
    chosen: NDArray[np.bool_],
    packets: Collection[tuple[str, int]],
    originals: Sequence[Original],
    context: bool,
) -> NDArray[np.bool_]:
    """bool (packets of the survey,): packets to write.

    `whole`: connection_ids with all their packets. `chosen`: frames. `packets`: (capture_file, packet_no) to add.
    `context`: also packets that open a connection, and those that lead to a frame.
    """
    rows = survey.packets
    wanted = np.array([each.connection_id in whole for each in survey.connections], np.bool_)
    selected = wanted[rows["connection"]] if len(rows) else np.zeros(0, np.bool_)
    names = {original.name: index for index, original in enumerate(originals)}
    places = {(names[name], number) for name, number in packets if name in names}
    # the packet with which a frame was complete may have brought only what was missing before it
    completing = np.flatnonzero(chosen & (frames.file != NULL))
    places |= set(zip(frames.file[completing].tolist(), frames.last_packet[completing].tolist(), strict=True))
    lost = np.flatnonzero(chosen & (frames.end == frames.start) & (frames.file != NULL))
    places |= set(zip(frames.file[lost].tolist(), frames.first_packet[lost].tolist(), strict=True))
    selected |= _with_numbers(rows, places)
    streams = Streams(rows)
    for group, these in frames.by_group(chosen):
        of = streams[group]
        starts, ends = merged(frames.start[these], frames.end[these])
        if context:
            starts, ends = merged(lead_in_starts(starts, rows[of], frames.start[frames.of(group)]), ends)
        selected[of] |= overlapping(rows[of], starts, ends)
    if context:
        touched = np.isin(rows["connection"], np.unique(rows["connection"][selected]))
        opening = frames.are("kind", "protocol-header") & np.isin(frames.group // 2, rows["connection"][touched])
        for group, these in frames.by_group(opening):
            of = streams[group]
            selected[of] |= overlapping(rows[of], *merged(frames.start[these], frames.end[these]))
        selected |= touched & ((rows["flags"] & SYN) != 0)
    datagrams = np.unique(rows["datagram"][selected])
    return selected | np.isin(rows["datagram"], datagrams[datagrams != NONE])


def _with_numbers(rows: NDArray[np.void], places: Collection[tuple[int, int]]) -> NDArray[np.bool_]:
    """bool (n,): packets with one of these (index of the original, packet_no)."""
    files, numbers = np.array(list(places), np.int64).reshape(-1, 2).T
    return np.isin(numbered(rows["file"], rows["packet_no"]), numbered(files, numbers))


def merged(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorted disjoint intervals: adjacent ones are joined, empty ones dropped."""
    order = np.argsort(starts, kind="stable")
    order = order[ends[order] > starts[order]]
    starts, furthest = starts[order], np.maximum.accumulate(ends[order]) if len(order) else ends[order]
    first = np.flatnonzero(np.concatenate([[True], starts[1:] > furthest[:-1]])) if len(order) else order
    last = np.concatenate([first[1:], [len(starts)]])[: len(first)] - 1
    return starts[first], furthest[last]


def overlapping(packets: NDArray[np.void], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool (n,): packets of one direction whose payload overlaps one of these sorted disjoint intervals."""
    if not len(starts):
        return np.zeros(len(packets), np.bool_)
    begin = packets["at"]
    interval = np.searchsorted(ends, begin, "right")
    inside = interval < len(starts)
    end = begin + packets["wire_len"].astype(np.int64)
    found: NDArray[np.bool_] = inside & (begin != UNMAPPED) & (starts[np.minimum(interval, len(starts) - 1)] < end)
    return found


def lead_in_starts(
    starts: NDArray[np.int64], packets: NDArray[np.void], boundaries: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Starts of the ranges, extended back to a packet that begins with a frame. `boundaries`: frame starts."""
    here = packets[(packets["at"] != UNMAPPED) & (packets["wire_len"] > 0)]
    here = here[np.argsort(here["at"], kind="stable")]
    if not len(here) or not len(starts):
        return starts
    begins = here["at"]
    furthest = np.maximum.accumulate(begins + here["wire_len"].astype(np.int64))
    lead = starts.copy()
    for _ in range(LEAD_STEPS):
        carrier = begins[np.minimum(np.searchsorted(furthest, lead, "right"), len(begins) - 1)]
        earlier = np.searchsorted(boundaries, np.minimum(carrier, lead), "right") - 1
        before = np.where(earlier >= 0, boundaries[np.maximum(earlier, 0)], lead)
        moved = (before < lead) & (lead > starts - LEAD_BYTES)
        if not moved.any():
            break
        lead = np.where(moved, before, lead)
    return np.where(lead > starts - LEAD_BYTES, lead, starts)
