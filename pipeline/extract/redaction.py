"""Blanks what is not harmless in packets. Lengths stay, and so does everything up to the TCP payload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from codec.amqp.secrets import BLANK
from codec.capture.records import Bytes
from codec.net.protocols import PROTOCOL_TCP
from pipeline.extract.checksums import folded, word_sum
from pipeline.extract.chunks import Chunk
from pipeline.extract.harmless import Harmless
from pipeline.extract.headers import NOWHERE, TCP_SUM_AT, Stack
from pipeline.extract.streams import grouped, groups
from pipeline.extract.survey import NONE, UNMAPPED, Connection


def redact(
    chunk: Chunk,
    packets: NDArray[np.void],
    stacks: Sequence[Stack],
    shown: Mapping[int, Harmless],
    connections: Sequence[Connection],
) -> None:
    """Blank the payloads of a chunk in place. `packets` (PACKET) are its rows of the survey, `stacks` their headers.

    Of a fragment, and of a copy on a connection where copies differ, nobody knows what its bytes are: all are blanked.
    """
    begin = np.array([stack.payload for stack in stacks], np.int64)
    start = chunk.records["offset"]
    # the captured bytes: what follows the payload is padding, which may hold what was in memory before
    end = start + chunk.records["cap_len"]
    keep = _Marks(len(chunk.octets))
    keep.add(start, begin)
    conflicting = np.array([each.conflicting for each in connections], np.bool_)[packets["connection"]]
    mapped = (packets["at"] != UNMAPPED) & (packets["datagram"] == NONE) & ~(conflicting & (packets["copy"] != 0))
    length = np.minimum(end - begin, packets["wire_len"])
    candidates = np.flatnonzero(mapped)
    patched = []
    for each, these in grouped(groups(packets)[candidates]):
        if each in shown:
            rows = candidates[these]
            at, size, to, harmless = packets["at"][rows], length[rows], begin[rows], shown[each]
            which, first, last = _overlaps(harmless.starts, harmless.ends, at, at + size)
            moved = to[which] - at[which]
            keep.add(first + moved, last + moved)
            patched.append(_within(harmless, at, size, to))
    chunk.octets[~keep.mask()] = BLANK
    for places, octets in patched:
        chunk.octets[places] = octets


class _Marks:
    """Bytes of a buffer that are marked, from disjoint intervals."""

    def __init__(self, size: int) -> None:
        self._edges = np.zeros(size + 1, np.int8)

    def add(self, begin: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        np.add.at(self._edges, begin, 1)
        np.subtract.at(self._edges, end, 1)

    def mask(self) -> NDArray[np.bool_]:
        marks: NDArray[np.bool_] = np.cumsum(self._edges[:-1], dtype=np.int8) > 0
        return marks


def _overlaps(
    starts: NDArray[np.int64], ends: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Where the stretches `begin:end` overlap the disjoint intervals `starts:ends`: (stretch, first, last) of each."""
    low, high = np.searchsorted(ends, begin, "right"), np.searchsorted(starts, end, "left")
    which, interval = _ranges(low, np.maximum(high, low))
    return which, np.maximum(starts[interval], begin[which]), np.minimum(ends[interval], end[which])


def _within(
    harmless: Harmless, at: NDArray[np.int64], size: NDArray[np.int64], to: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The octets to write for packets with stream offsets `at` and payloads at `to` in the buffer: (where, what)."""
    low, high = np.searchsorted(harmless.patch_at, at), np.searchsorted(harmless.patch_at, at + size)
    which, index = _ranges(low, high)
    return harmless.patch_at[index] - at[which] + to[which], harmless.patch[index]


def _ranges(low: NDArray[np.int64], high: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All numbers of the ranges low[i]:high[i], end to end, with their i before them."""
    counts = high - low
    which = np.repeat(np.arange(len(low)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) + low[which]


def seal_fragments(
    chunk: Chunk, packets: NDArray[np.void], stacks: Sequence[Stack], lengths: Mapping[int, int]
) -> None:
    """The TCP checksum of a blanked datagram, in the fragment that begins it; nobody has the old payload together.

    `lengths`: TCP payload bytes by datagram.
    """
    for row, stack in enumerate(stacks):
        length = lengths.get(int(packets["datagram"][row]))
        if not stack.fragment or stack.tcp == NOWHERE or length is None:
            continue
        field = stack.sums.pop()
        header = stack.payload - stack.tcp
        octets: Bytes = chunk.octets
        octets[field.at : field.at + 2] = 0
        total = word_sum(octets[field.pseudo : field.pseudo_end]) + PROTOCOL_TCP + header + length
        total += word_sum(octets[stack.tcp : stack.payload]) + word_sum(np.full(length, BLANK, np.uint8))
        assert field.at == stack.tcp + TCP_SUM_AT
        octets[field.at : field.at + 2] = np.frombuffer((0xFFFF - folded(total)).to_bytes(2, "big"), np.uint8)
