"""Which packets of the surveyed connections are written.

A stretch of a stream is carried by every packet whose payload overlaps it: retransmissions too. A packet of the middle
of a connection often begins inside a frame, and a dissector that starts there reads nonsense; so a stretch is led in by
the frames before it, back to a packet that begins with a frame. Also the packets that open the connection are taken:
the TCP handshake, from which sequence numbers count, and the protocol headers, which tell the version.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from codec.net.segments import SYN
from pipeline.extract.originals import Original
from pipeline.extract.streams import NULL, Frames, Streams, numbered
from pipeline.extract.survey import NONE, UNMAPPED, Survey

LEAD_BYTES = 1 << 20  # a lead longer than this is given up: the stretch begins where it begins
LEAD_STEPS = 1000


def picked(
    survey: Survey,
    frames: Frames,
    whole: Collection[int],
    chosen: NDArray[np.bool_],
    packets: Collection[tuple[str, int]],
    originals: Sequence[Original],
    context: bool,
) -> NDArray[np.bool_]:
    """bool (packets of the survey,): those to write.

    `whole`: connection_ids of which all are. `chosen`: frames whose packets are. `packets`: (capture_file, packet_no)
    that are, too. `context`: also what opens a connection, and what leads to a frame.
    """
    rows = survey.packets
    wanted = np.array([each.connection_id in whole for each in survey.connections], np.bool_)
    taken = wanted[rows["connection"]] if len(rows) else np.zeros(0, np.bool_)
    names = {original.name: index for index, original in enumerate(originals)}
    places = {(names[name], number) for name, number in packets if name in names}
    # the packet with which a frame was complete may have brought only what was missing before it
    completing = np.flatnonzero(chosen & (frames.file != NULL))
    places |= set(zip(frames.file[completing].tolist(), frames.last_packet[completing].tolist(), strict=True))
    lost = np.flatnonzero(chosen & (frames.end == frames.start) & (frames.file != NULL))
    places |= set(zip(frames.file[lost].tolist(), frames.first_packet[lost].tolist(), strict=True))
    taken |= _numbered(rows, places)
    streams = Streams(rows)
    for group, these in frames.by_group(chosen):
        of = streams[group]
        starts, ends = merged(frames.start[these], frames.end[these])
        if context:
            starts, ends = merged(led_in(starts, rows[of], frames.start[frames.of(group)]), ends)
        taken[of] |= overlapping(rows[of], starts, ends)
    if context:
        touched = np.isin(rows["connection"], np.unique(rows["connection"][taken]))
        opening = frames.are("kind", "protocol-header") & np.isin(frames.group // 2, rows["connection"][touched])
        for group, these in frames.by_group(opening):
            of = streams[group]
            taken[of] |= overlapping(rows[of], *merged(frames.start[these], frames.end[these]))
        taken |= touched & ((rows["flags"] & SYN) != 0)
    datagrams = np.unique(rows["datagram"][taken])
    return taken | np.isin(rows["datagram"], datagrams[datagrams != NONE])


def _numbered(rows: NDArray[np.void], places: Collection[tuple[int, int]]) -> NDArray[np.bool_]:
    """bool (n,): packets with one of these (index of the original, packet_no)."""
    files, numbers = np.array(list(places), np.int64).reshape(-1, 2).T
    return np.isin(numbered(rows["file"], rows["packet_no"]), numbered(files, numbers))


def merged(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Intervals as disjoint ones in order; those that touch become one, empty ones go."""
    order = np.argsort(starts, kind="stable")
    order = order[ends[order] > starts[order]]
    starts, furthest = starts[order], np.maximum.accumulate(ends[order]) if len(order) else ends[order]
    first = np.flatnonzero(np.concatenate([[True], starts[1:] > furthest[:-1]])) if len(order) else order
    last = np.concatenate([first[1:], [len(starts)]])[: len(first)] - 1
    return starts[first], furthest[last]


def overlapping(packets: NDArray[np.void], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool (n,): packets of one direction whose payload overlaps one of these disjoint intervals in order."""
    if not len(starts):
        return np.zeros(len(packets), np.bool_)
    begin = packets["at"]
    interval = np.searchsorted(ends, begin, "right")
    inside = interval < len(starts)
    end = begin + packets["wire_len"].astype(np.int64)
    found: NDArray[np.bool_] = inside & (begin != UNMAPPED) & (starts[np.minimum(interval, len(starts) - 1)] < end)
    return found


def led_in(starts: NDArray[np.int64], packets: NDArray[np.void], boundaries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each stretch has to begin so that its first packet begins with a frame. `boundaries`: starts of frames."""
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
