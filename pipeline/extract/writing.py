"""Packets that were picked, into a pcapng file: as they are, redacted, or with other addresses.

Captures are read side by side where they overlap in time, and their packets written in the order in which the decoder
takes them. What is in memory is a block of each such capture, and the survey's columns.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from pipeline.extract.anonymize import anonymise
from pipeline.extract.checksums import adjust
from pipeline.extract.chunks import Chunk, chunks
from pipeline.extract.harmless import Harmless
from pipeline.extract.headers import stack_of
from pipeline.extract.originals import NANOSECONDS, Interface, Original, interfaces
from pipeline.extract.pcapng import Writer
from pipeline.extract.redaction import redact, seal_fragments
from pipeline.extract.streams import grouped
from pipeline.extract.survey import NONE, Survey


@dataclass(frozen=True)
class Disguise:
    """How packets are changed. `shown`: what a redacted stream may show, by group; None: all of it. `key`: for other
    addresses; None: the ones that they have."""

    shown: Mapping[int, Harmless] | None = None
    key: bytes | None = None


@dataclass(frozen=True)
class Taken:
    """Packets of some captures that are to be written: those of a survey where `taken`. `comments`: by (index of the
    original, packet_no)."""

    survey: Survey
    taken: NDArray[np.bool_]
    originals: Sequence[Original]
    disguise: Disguise
    comments: Mapping[tuple[int, int], Sequence[str]]


Written = tuple[Interface, int, memoryview, int]  # time, octets, length on the wire


def write(some: Sequence[Taken], writer: Writer) -> int:
    """Write packets in the order of time; how many."""
    count = 0
    for _, packet, comments in heapq.merge(*map(_in_order, some), key=itemgetter(0)):
        writer.packet(*packet, comments)
        count += 1
    writer.close()
    return count


def _in_order(taken: Taken) -> Generator[tuple[int, Written, Sequence[str]], None, None]:
    """(time in order, packet, comments) of what was taken."""
    survey = taken.survey
    rows = np.flatnonzero(taken.taken)
    rows = rows[np.lexsort([survey.packets[name][rows] for name in ("packet_no", "file", "order_ns")])]
    packets, lengths = survey.packets[rows], _datagram_lengths(survey)
    files = packets["file"]
    sources = {
        file: _packets(survey, rows[these], taken.originals[file], taken.disguise, lengths)
        for file, these in grouped(files)
    }
    left = Counter(files.tolist())
    columns = (packets[name].tolist() for name in ("order_ns", "file", "packet_no"))
    for order_ns, file, number in zip(*columns, strict=True):
        yield order_ns, next(sources[file]), taken.comments.get((file, number), ())
        left[file] -= 1
        if not left[file]:
            sources.pop(file).close()


def _packets(
    survey: Survey, rows: NDArray[np.int64], original: Original, disguise: Disguise, lengths: Mapping[int, int]
) -> Generator[Written, None, None]:
    """(interface, time, octets, length on the wire) of the survey's packets `rows`, all of one capture and in order."""
    described = interfaces(original.file)
    if disguise.key is not None:
        described = [replace(each, name=b"", description=b"") for each in described]
    for chunk in chunks(original, survey.packets["packet_no"][rows], rows):
        change(chunk, survey, disguise, lengths)
        octets, records = chunk.octets.data, chunk.records
        for offset, cap_len, wire_len, ts_ns, interface, link_type in records.tolist():
            captured_on = _interface(described, interface, link_type, ts_ns)
            yield captured_on, ts_ns, octets[offset : offset + cap_len], wire_len


def _interface(described: Sequence[Interface], number: int, link_type: int, ts_ns: int) -> Interface:
    """What a packet was captured on; nanoseconds where the description does not fit the packet."""
    if number >= len(described) or described[number].link_type != link_type:
        return Interface(link_type)
    interface = described[number]
    if ts_ns % 10 ** (NANOSECONDS - interface.places):
        return replace(interface, places=NANOSECONDS)
    return interface


def change(chunk: Chunk, survey: Survey, disguise: Disguise, lengths: Mapping[int, int]) -> None:
    """Redact and anonymise the packets of a chunk in place; checksums that were right are right again."""
    if disguise.shown is None and disguise.key is None:
        return
    before = chunk.octets.copy()
    packets = survey.packets[chunk.rows]
    stacks = [stack_of(before, chunk.records, row) for row in range(len(chunk.records))]
    if disguise.shown is not None:
        redact(chunk, packets, stacks, disguise.shown, survey.connections)
    if disguise.key is not None:
        anonymise(chunk.octets, stacks, disguise.key)
    if disguise.shown is not None:  # now that the addresses are the last ones: the sum covers them
        seal_fragments(chunk, packets, stacks, lengths)
    adjust(before, chunk.octets, stacks)


def _datagram_lengths(survey: Survey) -> dict[int, int]:
    """TCP payload bytes by datagram, from the packets that completed them."""
    rows = survey.packets[(survey.packets["datagram"] != NONE) & (survey.packets["wire_len"] > 0)]
    return dict(zip(rows["datagram"].tolist(), rows["wire_len"].tolist(), strict=True))
