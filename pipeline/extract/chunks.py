"""Second pass over the captures: the packets that were picked, copied out of their blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codec.capture.records import RECORD, Bytes, Records
from codec.net.filters import Filter
from codec.net.runs import gather_payloads
from codec.net.segments import SEGMENT
from pipeline.extract.originals import Original
from udfs.source.splits import Account, Split, read_blocks

BLOCK_BYTES = 1 << 20  # of a capture in memory at a time; a few arrays of this size are made of it


@dataclass
class Chunk:
    """Packets of one capture, in its order. `records` (RECORD) point into `octets`, which nobody else has; `rows` are
    their places among the survey's packets."""

    octets: Bytes
    records: Records
    rows: NDArray[np.int64]


def chunks(original: Original, numbers: NDArray[np.int64], rows: NDArray[np.int64]) -> Iterator[Chunk]:
    """The packets with these `numbers` (int64, ascending) of a capture; `rows` are their places in the survey."""
    account = Account(original.name, original.file.size)
    done = 0
    for block in read_blocks(Split(original.file), account, BLOCK_BYTES, Filter()):
        first = int(block.packets.segments["packet_no"][0])
        begin, end = np.searchsorted(numbers, [first, first + len(block.records)])
        if end > begin:
            yield copied(block.octets, block.records[numbers[begin:end] - first], rows[begin:end])
        done = int(end)
        if done == len(numbers):
            return


def copied(octets: Bytes, records: Records, rows: NDArray[np.int64]) -> Chunk:
    """The packets of `records`, end to end in memory of their own."""
    spans = np.zeros(len(records), SEGMENT)
    spans["payload_at"], spans["cap_len"] = records["offset"], records["cap_len"]
    own, offsets = gather_payloads(octets, spans)
    moved = np.empty(len(records), RECORD)
    moved[:] = records
    moved["offset"] = offsets[:-1]
    return Chunk(own, moved, rows)
