"""Rotated captures whose clock steps back from one file to the next.

Packets are ordered by their times, and those of a file never before the ones that precede them there. So a file that
continues another one, and begins earlier, begins after its last packet. Names that differ in numbers only tell which
files follow each other; a ring of files, of which the oldest is overwritten, has such names as well. Therefore the TCP
connections in both decide: most of them must go on where they were.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.capture import CaptureError, new_walker
from codec.net.headers import TCP
from codec.net.layers import FLOW_KEY_BYTES, RST, SYN, Packets, dissect
from udfs.source.capture_bytes import LOCAL, CaptureBytes, CaptureFile, in_blocks

NUMBER = re.compile(r"(\d+)")
READERS = 4
FIRST_BYTES = 64 * 1024  # which have the first record, or nothing is known
BLOCK_BYTES = 4 * 1024 * 1024
CONTINUES_WITHIN = 1 << 20  # bytes that may be lost between two files


DIRECTION = np.dtype((np.void, FLOW_KEY_BYTES + 1))


class Segments(NamedTuple):
    """Direction of a connection, and sequence numbers of each segment: of its first byte, and after its last one."""

    keys: NDArray[np.void]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]


class Numbers(NamedTuple):
    """A sequence number of each direction; `keys` are sorted."""

    keys: NDArray[np.void]
    number: NDArray[np.int64]


class Ends(NamedTuple):
    """Where the first packets of a file begin, where its last ones end; the latest time in it."""

    first: Numbers
    last: Numbers
    last_ns: int


_NOTHING = Segments(np.zeros(0, DIRECTION), np.zeros(0, np.int64), np.zeros(0, np.int64))


def beginnings(files: Sequence[CaptureFile]) -> dict[str, int]:
    """By URI, the least `order_ns` of the packets of local files whose clock is behind that of the files before."""
    found: dict[str, int] = {}
    for chain in _chains(files):
        with ThreadPoolExecutor(READERS) as readers:
            firsts = list(readers.map(_first_ns, chain))
        behind_ns = None  # `order_ns` of the file before, if its clock is behind
        for (before, before_ns), (file, first_ns) in pairwise(zip(chain, firsts, strict=True)):
            if before_ns is None or first_ns is None:
                behind_ns = None
            elif first_ns < before_ns:
                behind_ns = _stepped_back(before, file, behind_ns)
            else:
                behind_ns = behind_ns + 1 if behind_ns is not None and first_ns <= behind_ns else None
            if behind_ns is not None:
                found[file.uri] = behind_ns
    return found


def _stepped_back(before: CaptureFile, file: CaptureFile, behind_ns: int | None) -> int | None:
    """The least `order_ns` of a file that begins earlier than the one before; None if it does not continue that."""
    ends, others = _ends(before), _ends(file)
    if ends is None or others is None or _continuing_directions(ends, others) <= _continuing_directions(others, ends):
        return None
    return max(ends.last_ns, behind_ns or ends.last_ns) + 1


def _chains(files: Sequence[CaptureFile]) -> Iterator[list[CaptureFile]]:
    """Local files of a folder whose names differ in numbers only, in the order of these. The first file of tcpdump has
    no number at its end, where the others have one."""
    chains: dict[str, list[tuple[list[int], CaptureFile]]] = defaultdict(list)
    for file in files:
        if file.uri.startswith(LOCAL):
            folder, _, name = file.uri.rpartition("/")
            parts = NUMBER.split(name if name[-1:].isdigit() else f"{name}0")
            chains[f"{folder}/{'0'.join(parts[::2])}"].append(([int(number) for number in parts[1::2]], file))
    for chain in chains.values():
        if len(chain) > 1:
            yield [file for _, file in sorted(chain, key=lambda each: each[0])]


def _first_ns(file: CaptureFile) -> int | None:
    """The time of the first packet; None if it cannot be read."""
    try:
        with CaptureBytes(file) as source:
            data = np.empty(FIRST_BYTES, np.uint8)
            filled = source.readinto(data.data)
            records, _ = new_walker(source.head).walk(data[:filled], False)
            return int(records["ts_ns"][0]) if len(records) else None
    except (OSError, CaptureError, pa.ArrowException):
        return None


def _ends(file: CaptureFile) -> Ends | None:
    """None if the file has no packets, or cannot be read."""
    first, last = _NOTHING, [_NOTHING]
    last_ns = None
    try:
        with CaptureBytes(file) as source:
            walker = new_walker(source.head)
            for data, records, _ in in_blocks(source, walker.walk, BLOCK_BYTES):
                if not len(records):
                    continue
                packets = dissect(data, records, 1, 0)
                directions = _directions(packets)
                block_ns = int(records["ts_ns"].max())
                first, last_ns = (directions, block_ns) if last_ns is None else (first, max(block_ns, last_ns))
                last = [last[-1], directions]
    except (OSError, CaptureError, pa.ArrowException):
        return None
    if last_ns is None:
        return None
    end = Segments(*(np.concatenate(columns)[::-1] for columns in zip(*last, strict=True)))
    (starting, first_at), (ending, last_at) = (np.unique(each.keys, return_index=True) for each in (first, end))
    return Ends(Numbers(starting, first.begin[first_at]), Numbers(ending, end.end[last_at]), last_ns)


def _directions(packets: Packets) -> Segments:
    """The segments of connections that stand: no port scans."""
    segments = packets.segments
    rows = np.flatnonzero((packets.skip == TCP) & (segments["flags"] & (SYN | RST) == 0))
    keys = np.empty((len(rows), FLOW_KEY_BYTES + 1), np.uint8)
    keys[:, :-1], keys[:, -1] = packets.keys[rows], segments["direction"][rows]
    begin = segments["seq"][rows].astype(np.int64)
    return Segments(keys.view(DIRECTION)[:, 0], begin, begin + segments["wire_len"][rows])


def _continuing_directions(before: Ends, after: Ends) -> int:
    """In how many directions `after` begins where `before` ends, but for what may be lost, or one keep-alive."""
    _, at, there = np.intersect1d(before.last.keys, after.first.keys, assume_unique=True, return_indices=True)
    between = after.first.number[there] + 1 - before.last.number[at]
    return int(np.count_nonzero(between % (1 << 32) <= CONTINUES_WITHIN))
