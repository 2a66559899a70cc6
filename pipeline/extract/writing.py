"""Second pass over the captures: writes the selected packets to a pcapng file: unchanged, redacted or anonymised.

Captures that overlap in time are read in parallel, and their packets are written in the order of the decoder. Memory:
one block of each such capture, and the columns of the survey.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from codec.capture.records import RECORD, Bytes, Records
from codec.net.filters import Filter
from codec.net.runs import gather_payloads
from codec.net.segments import SEGMENT
from pipeline.extract.anonymize import anonymise
from pipeline.extract.checksums import adjust
from pipeline.extract.frames import grouped
from pipeline.extract.headers import stack_of
from pipeline.extract.originals import NANOSECONDS, Interface, Original, interfaces
from pipeline.extract.pcapng import Writer
from pipeline.extract.redaction import Visible, redact, set_fragment_checksums
from pipeline.extract.survey import NONE, Survey
from udfs.source.splits import Account, Split, read_blocks

BLOCK_BYTES = 1 << 20  # of a capture in memory at a time; a few arrays of this size are made of it


@dataclass
class Chunk:
    """Packets of one capture, in its order. `records` (RECORD) point into `octets`, a private copy; `rows` are their
    indices in the survey."""

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
            yield copy_packets(block.octets, block.records[numbers[begin:end] - first], rows[begin:end])
        done = int(end)
        if done == len(numbers):
            return


def copy_packets(octets: Bytes, records: Records, rows: NDArray[np.int64]) -> Chunk:
    """Copy the packets of `records` end to end into new memory."""
    spans = np.zeros(len(records), SEGMENT)
    spans["payload_at"], spans["cap_len"] = records["offset"], records["cap_len"]
    own, offsets = gather_payloads(octets, spans)
    moved = np.empty(len(records), RECORD)
    moved[:] = records
    moved["offset"] = offsets[:-1]
    return Chunk(own, moved, rows)


@dataclass(frozen=True)
class Changes:
    """Changes to packets. `visible`: the visible ranges by group, None: no redaction. `key`: to anonymise addresses,
    None: keep them."""

    visible: Mapping[int, Visible] | None = None
    key: bytes | None = None


@dataclass(frozen=True)
class Selected:
    """Packets to write: those of a survey where `selected` is true. `comments`: by (index of the original,
    packet_no)."""

    survey: Survey
    selected: NDArray[np.bool_]
    originals: Sequence[Original]
    changes: Changes
    comments: Mapping[tuple[int, int], Sequence[str]]


Written = tuple[Interface, int, memoryview, int]  # time, octets, length on the wire


def write(some: Sequence[Selected], writer: Writer) -> int:
    """Write packets in the order of time; return their number."""
    count = 0
    for _, packet, comments in heapq.merge(*map(_in_order, some), key=itemgetter(0)):
        writer.packet(*packet, comments)
        count += 1
    writer.close()
    return count


def _in_order(selected: Selected) -> Generator[tuple[int, Written, Sequence[str]], None, None]:
    """(order_ns, packet, comments) of the selected packets, in order."""
    survey = selected.survey
    rows = np.flatnonzero(selected.selected)
    rows = rows[np.lexsort([survey.packets[name][rows] for name in ("packet_no", "file", "order_ns")])]
    packets, lengths = survey.packets[rows], _datagram_lengths(survey)
    files = packets["file"]
    sources = {
        file: _packets(survey, rows[these], selected.originals[file], selected.changes, lengths)
        for file, these in grouped(files)
    }
    left = Counter(files.tolist())
    columns = (packets[name].tolist() for name in ("order_ns", "file", "packet_no"))
    for order_ns, file, number in zip(*columns, strict=True):
        yield order_ns, next(sources[file]), selected.comments.get((file, number), ())
        left[file] -= 1
        if not left[file]:
            sources.pop(file).close()


def _packets(
    survey: Survey, rows: NDArray[np.int64], original: Original, changes: Changes, lengths: Mapping[int, int]
) -> Generator[Written, None, None]:
    """(interface, time, octets, length on the wire) of the survey's packets `rows`, all of one capture and in order."""
    described = interfaces(original.file)
    if changes.key is not None:
        described = [replace(each, name=b"", description=b"") for each in described]
    for chunk in chunks(original, survey.packets["packet_no"][rows], rows):
        change_chunk(chunk, survey, changes, lengths)
        octets, records = chunk.octets.data, chunk.records
        for offset, cap_len, wire_len, ts_ns, interface, link_type in records.tolist():
            captured_on = _interface(described, interface, link_type, ts_ns)
            yield captured_on, ts_ns, octets[offset : offset + cap_len], wire_len


def _interface(described: Sequence[Interface], number: int, link_type: int, ts_ns: int) -> Interface:
    """The interface of a packet; with nanoseconds if the description does not fit the packet."""
    if number >= len(described) or described[number].link_type != link_type:
        return Interface(link_type)
    interface = described[number]
    if ts_ns % 10 ** (NANOSECONDS - interface.places):
        return replace(interface, places=NANOSECONDS)
    return interface


def change_chunk(chunk: Chunk, survey: Survey, changes: Changes, lengths: Mapping[int, int]) -> None:
    """Redact and anonymise the packets of a chunk in place, and adjust their checksums."""
    if changes.visible is None and changes.key is None:
        return
    before = chunk.octets.copy()
    packets = survey.packets[chunk.rows]
    stacks = [stack_of(before, chunk.records, row) for row in range(len(chunk.records))]
    if changes.visible is not None:
        redact(chunk.octets, chunk.records, packets, stacks, changes.visible, survey.connections)
    if changes.key is not None:
        anonymise(chunk.octets, stacks, changes.key)
    if changes.visible is not None:  # after anonymise: the checksum covers the addresses
        set_fragment_checksums(chunk.octets, packets, stacks, lengths)
    adjust(before, chunk.octets, stacks)


def _datagram_lengths(survey: Survey) -> dict[int, int]:
    """TCP payload bytes by datagram, from the packets that completed them."""
    rows = survey.packets[(survey.packets["datagram"] != NONE) & (survey.packets["wire_len"] > 0)]
    return dict(zip(rows["datagram"].tolist(), rows["wire_len"].tolist(), strict=True))
