"""The frames of the chosen connections (position in the stream, and kind), and the packets that carry them.

A range of a stream is carried by every packet whose payload overlaps it, including retransmissions. A packet in the
middle of a connection often begins inside a frame, where a dissector would misread it. So a range is extended back to a
packet that begins with a frame. The packets that open the connection are selected, too: the TCP handshake, which
anchors the sequence numbers, and the protocol headers, which show the version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.net.layers import SYN
from pipeline.extract.choice import Pair, Rows, connections
from pipeline.extract.originals import Original
from pipeline.extract.survey import NONE, UNMAPPED, Connection, Survey, merged, pair_ids
from udfs.arrow.arrays import combine_chunks, is_in, to_int64

COLUMNS = (
    "connection_id", "frame_no", "sender", "stream_offset", "size", "payload_size", "frame_type", "version", "status",
    "name", "first_packet_no", "packet_no", "capture_file", "notes",
)  # fmt: skip
NULL = -1
ENDLESS = 1 << 62  # beyond any stream
# Transports whose stream offsets count decrypted bytes. A cut treats their whole streams as one frame of this type.
ENCAPSULATED = {"tls": "tls", "websocket+tls": "tls", "websocket": "foreign"}
USERINFO = "userinfo"  # a note
PROXY = "proxy"  # kind of a header of the PROXY protocol, which is a row of type 'foreign' and status 'ok'


@dataclass(frozen=True)
class Frames:
    """Frames ordered by `group`, then `start`. All arrays have one row a frame; text columns are Arrow arrays.

    `group`: twice the index of the connection, plus the direction. `start`, `end`: stream offsets. `payload`: bytes of
    content at the end of a body or transfer, NULL not known. `file`: index of the original of `last_packet`.
    `userinfo`: frames with userinfo of a URI in a text.
    """

    group: NDArray[np.int64]
    number: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    payload: NDArray[np.int64]
    file: NDArray[np.int64]
    first_packet: NDArray[np.int64]
    last_packet: NDArray[np.int64]
    userinfo: NDArray[np.bool_]
    kind: pa.Array
    version: pa.Array
    status: pa.Array
    name: pa.Array

    def __len__(self) -> int:
        return len(self.group)

    def are(self, column: str, *values: str) -> NDArray[np.bool_]:
        """bool (n,): frames whose text in `column` is one of `values`."""
        return is_in(getattr(self, column), *values)

    def of(self, group: int) -> slice:
        begin, end = np.searchsorted(self.group, [group, group + 1])
        return slice(int(begin), int(end))

    def by_group(self, these: NDArray[np.bool_]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """(group, indices of its frames), of the frames where `these` is true."""
        rows = np.flatnonzero(these)
        return ((group, rows[part]) for group, part in grouped(self.group[rows]))

    def mask_of(self, pairs: Iterable[Pair], candidates: Sequence[Connection]) -> NDArray[np.bool_]:
        """bool (n,): frames with one of these (connection_id, frame_no)."""
        index = {each.connection_id: at for at, each in enumerate(candidates)}
        wanted = np.array([(index[connection], number) for connection, number in pairs], np.int64).reshape(-1, 2)
        return np.isin(pair_ids(self.group // 2, self.number), pair_ids(*wanted.T))


def groups(packets: NDArray[np.void]) -> NDArray[np.int64]:
    """The group of each packet (PACKET), as Frames count them."""
    found: NDArray[np.int64] = 2 * packets["connection"].astype(np.int64) + packets["direction"]
    return found


def packets_by_group(packets: NDArray[np.void]) -> Mapping[int, NDArray[np.int64]]:
    """Group -> indices of its `packets` (PACKET), perhaps none."""
    return defaultdict(lambda: np.empty(0, np.int64), grouped(groups(packets)))


def grouped(values: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each distinct value, in ascending order, and the indices where it occurs."""
    order = np.argsort(values, kind="stable")
    distinct, begins = np.unique(values[order], return_index=True)
    ends = [*begins[1:], len(values)]
    return ((int(value), order[begin:end]) for value, begin, end in zip(distinct, begins, ends, strict=False))


def frames_of(rows: Rows, candidates: Sequence[Connection], originals: Sequence[Original]) -> Frames:
    table = rows("frames", COLUMNS, connections(each.connection_id for each in candidates)).combine_chunks()
    index = pc.index_in(table["connection_id"], pa.array([each.connection_id for each in candidates], pa.int64()))
    connection = index.to_numpy().astype(np.int64)
    clients = np.array([each.client for each in candidates], np.int64)
    from_client = pc.equal(table["sender"], "client").fill_null(True).to_numpy()
    group = 2 * connection + np.where(from_client, clients[connection], 1 - clients[connection])
    start, size = (to_int64(table[name], NULL) for name in ("stream_offset", "size"))
    order = np.lexsort([start, group])
    # a gap occupies no captured bytes; an encrypted stream is one endless frame
    inside = pa.array([ENCAPSULATED.get(each.transport or "") for each in candidates], pa.string()).take(
        pa.array(connection)
    )
    is_proxy = pc.and_(pc.equal(table["frame_type"], "foreign"), pc.equal(table["status"], "ok")).fill_null(False)
    wrapped = pc.and_not(inside.is_valid(), is_proxy).to_numpy()
    kind = pc.if_else(is_proxy, PROXY, pc.coalesce(inside, table["frame_type"]))
    start = np.where(wrapped, 0, start)
    end = np.where(pc.equal(kind, "gap").fill_null(False).to_numpy(), start, start + np.maximum(size, 0))
    end = np.where(wrapped | pc.equal(kind, "tls").fill_null(False).to_numpy(), ENDLESS, end)
    files = pa.array([each.name for each in originals], pa.string())
    file = pc.index_in(table["capture_file"], files).fill_null(NULL).to_numpy().astype(np.int64)
    names = pc.if_else(pa.array(wrapped), pa.scalar(None, pa.string()), combine_chunks(table["name"]).cast(pa.string()))
    numbers = (to_int64(table[name], NULL) for name in ("frame_no", "payload_size", "first_packet_no", "packet_no"))
    number, payload, first_packet, last_packet = numbers
    numeric = (group, number, start, end, payload, file, first_packet, last_packet)
    arrays: tuple[NDArray[Any], ...] = (*numeric, _noted(combine_chunks(table["notes"]), USERINFO))
    texts = (kind, table["version"], table["status"], names)
    return Frames(*(array[order] for array in arrays), *(combine_chunks(text).take(pa.array(order)) for text in texts))


def _noted(notes: pa.ListArray, note: str) -> NDArray[np.bool_]:
    """bool (n,): rows with this note."""
    found = np.zeros(len(notes), np.bool_)
    found[pc.list_parent_indices(notes).filter(pc.equal(notes.flatten(), note))] = True
    return found


LEAD_BYTES = 1 << 20  # beyond this the range is not extended
LEAD_STEPS = 1000


def select_packets(
    survey: Survey,
    frames: Frames,
    whole: Collection[int],
    requested: NDArray[np.bool_],
    packets: Collection[tuple[str, int]],
    originals: Sequence[Original],
    context: bool,
) -> NDArray[np.bool_]:
    """bool (packets of the survey,): packets to write.

    `whole`: connection_ids with all their packets. `requested`: frames. `packets`: (capture_file, packet_no) to add.
    `context`: also packets that open a connection, and those that lead to a frame.
    """
    rows = survey.packets
    wanted = np.array([each.connection_id in whole for each in survey.connections], np.bool_)
    selected = wanted[rows["connection"]] if len(rows) else np.zeros(0, np.bool_)
    names = {original.name: index for index, original in enumerate(originals)}
    pairs = {(names[name], number) for name, number in packets if name in names}
    # the packet with which a frame was complete may have brought only what was missing before it
    completing = np.flatnonzero(requested & (frames.file != NULL))
    pairs |= set(zip(frames.file[completing].tolist(), frames.last_packet[completing].tolist(), strict=True))
    lost = np.flatnonzero(requested & (frames.end == frames.start) & (frames.file != NULL))
    pairs |= set(zip(frames.file[lost].tolist(), frames.first_packet[lost].tolist(), strict=True))
    files, numbers = np.array(list(pairs), np.int64).reshape(-1, 2).T
    selected |= np.isin(pair_ids(rows["file"], rows["packet_no"]), pair_ids(files, numbers))
    streams = packets_by_group(rows)
    for group, these in frames.by_group(requested):
        of = streams[group]
        starts, ends = merged(frames.start[these], frames.end[these])
        if context:
            starts, ends = merged(lead_in_starts(starts, rows[of], frames.start[frames.of(group)]), ends)
        selected[of] |= overlapping(rows[of], starts, ends)
    if context:
        touched = np.isin(rows["connection"], np.unique(rows["connection"][selected]))
        opening = frames.are("kind", "protocol-header", PROXY) & np.isin(frames.group // 2, rows["connection"][touched])
        for group, these in frames.by_group(opening):
            of = streams[group]
            selected[of] |= overlapping(rows[of], *merged(frames.start[these], frames.end[these]))
        selected |= touched & ((rows["flags"] & SYN) != 0)
    datagrams = np.unique(rows["datagram"][selected])
    return selected | np.isin(rows["datagram"], datagrams[datagrams != NONE])


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
