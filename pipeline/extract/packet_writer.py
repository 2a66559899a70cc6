"""Second pass over the captures: writes the selected packets to a pcapng file: unchanged, redacted or anonymised.

Captures that overlap in time are read in parallel, and their packets are written in the order of the decoder. Memory:
one block of each such capture, and the columns of the survey.

The file has one section and its interfaces, each described before its first packet; little-endian. Source:
draft-ietf-opsawg-pcapng, sections 4.1 to 4.3, 4.7.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import BinaryIO
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from codec.capture.pcapng import (
    BYTE_ORDER_MAGIC,
    END_OF_OPTIONS,
    ENHANCED_PACKET,
    IF_TSRESOL,
    INTERFACE,
    MICROSECONDS,
    SECRETS_BLOCK,
    SECTION,
    TLS_KEY_LOG,
)
from codec.capture.records import RECORD, Bytes, Records
from codec.net.layers import SEGMENT, Filter
from codec.net.runs import gather_payloads
from pipeline.extract.cut_options import CapturesError
from pipeline.extract.frame_packets import grouped
from pipeline.extract.header_stack import adjust, stack_of
from pipeline.extract.originals import IF_DESCRIPTION, IF_NAME, NANOSECONDS, Interface, Original, interfaces
from pipeline.extract.packet_redaction import (
    Visible,
    anonymise,
    overwrite,
    redact,
    remove_notes,
    set_fragment_checksums,
)
from pipeline.extract.survey import NONE, Survey
from udfs.source.splits import Account, Split, read_blocks

BLOCK_BYTES = 1 << 20  # of a capture in memory at a time; a few arrays of this size are made of it


@dataclass
class Chunk:
    """Packets of one capture, in its order. `records` (RECORD) point into `bytes`, a private copy; `rows` are their
    indices in the survey."""

    data: Bytes
    records: Records
    rows: NDArray[np.int64]


def chunks(original: Original, numbers: NDArray[np.int64], rows: NDArray[np.int64]) -> Iterator[Chunk]:
    """The packets with these `numbers` (int64, ascending) of a capture; `rows` are their rows in the survey."""
    account = Account(original.name, original.file.size)
    done = 0
    for block in read_blocks(Split(original.file), account, BLOCK_BYTES, Filter()):
        first = int(block.packets.segments["packet_no"][0])
        begin, end = np.searchsorted(numbers, [first, first + len(block.records)])
        if end > begin:
            yield copy_packets(block.data, block.records[numbers[begin:end] - first], rows[begin:end])
        done = int(end)
        if done == len(numbers):
            return


def copy_packets(data: Bytes, records: Records, rows: NDArray[np.int64]) -> Chunk:
    """Copy the packets of `records` end to end into new memory."""
    spans = np.zeros(len(records), SEGMENT)
    spans["payload_at"], spans["cap_len"] = records["offset"], records["cap_len"]
    own, offsets = gather_payloads(data, spans)
    moved = np.empty(len(records), RECORD)
    moved[:] = records
    moved["offset"] = offsets[:-1]
    return Chunk(own, moved, rows)


@dataclass(frozen=True)
class PacketSelection:
    """Packets to write: those of a survey where `selected` is true. `comments`: by (index of the original, packet_no).
    `visible`: the visible ranges by group, None: no redaction. `key`: to anonymise addresses, None: keep them.
    `proxies`: what is written over headers of the PROXY protocol, by group, where there is no redaction."""

    survey: Survey
    selected: NDArray[np.bool_]
    originals: Sequence[Original]
    comments: Mapping[tuple[int, int], Sequence[str]]
    visible: Mapping[int, Visible] | None
    key: bytes | None
    proxies: Mapping[int, Visible]


Written = tuple[Interface, int, memoryview, int]  # time, bytes, length on the wire


def write(some: Sequence[PacketSelection], writer: Writer) -> int:
    """Write packets in the order of time; return their number."""
    count = 0
    for _, packet, comments in heapq.merge(*map(_in_order, some), key=itemgetter(0)):
        writer.packet(*packet, comments)
        count += 1
    writer.close()
    return count


def _in_order(selected: PacketSelection) -> Generator[tuple[int, Written, Sequence[str]], None, None]:
    """(order_ns, packet, comments) of the selected packets, in order."""
    survey = selected.survey
    rows = np.flatnonzero(selected.selected)
    rows = rows[np.lexsort([survey.packets[name][rows] for name in ("packet_no", "file", "order_ns")])]
    packets, lengths = survey.packets[rows], _datagram_lengths(survey)
    files = packets["file"]
    sources = {
        file: _packets(selected, rows[these], selected.originals[file], lengths) for file, these in grouped(files)
    }
    left = Counter(files.tolist())
    columns = (packets[name].tolist() for name in ("order_ns", "file", "packet_no"))
    for order_ns, file, number in zip(*columns, strict=True):
        packet = next(sources[file], None)
        if packet is None:  # the capture is shorter than in the first pass
            raise capture_changed(selected.originals[file])
        yield order_ns, packet, selected.comments.get((file, number), ())
        left[file] -= 1
        if not left[file]:
            sources.pop(file).close()


def _packets(
    selected: PacketSelection, rows: NDArray[np.int64], original: Original, lengths: Mapping[int, int]
) -> Generator[Written, None, None]:
    """(interface, time, bytes, length on the wire) of the survey's packets `rows`, all of one capture and in order."""
    described = interfaces(original.file)
    if selected.key is not None:
        described = [replace(each, name=b"", description=b"") for each in described]
    for chunk in chunks(original, selected.survey.packets["packet_no"][rows], rows):
        require_same(chunk, selected.survey, original)
        change_chunk(chunk, selected, lengths)
        data, records = chunk.data.data, chunk.records
        for offset, cap_len, wire_len, ts_ns, interface, link_type in records.tolist():
            captured_on = _interface(described, interface, link_type, ts_ns)
            yield captured_on, ts_ns, data[offset : offset + cap_len], wire_len


def _interface(described: Sequence[Interface], number: int, link_type: int, ts_ns: int) -> Interface:
    """The interface of a packet; with nanoseconds if the description does not fit the packet."""
    if number >= len(described) or described[number].link_type != link_type:
        return Interface(link_type)
    interface = described[number]
    if ts_ns % 10 ** (NANOSECONDS - interface.decimals):
        return replace(interface, decimals=NANOSECONDS)
    return interface


def require_same(chunk: Chunk, survey: Survey, original: Original) -> None:
    """Raise CapturesError if the packets are not those that the survey located: what is known of those says nothing
    about the secrets in these."""
    begins, lengths = (chunk.records[name].tolist() for name in ("offset", "cap_len"))
    found = [crc32(chunk.data.data[begin : begin + length]) for begin, length in zip(begins, lengths, strict=True)]
    if found != survey.packets["digest"][chunk.rows].tolist():
        raise capture_changed(original)


def capture_changed(original: Original) -> CapturesError:
    return CapturesError(f"{original.name}: changed while it was read; run the command again when it is complete")


def change_chunk(chunk: Chunk, selected: PacketSelection, lengths: Mapping[int, int]) -> None:
    """Redact and anonymise the packets of a chunk in place, and adjust their checksums."""
    visible, key, survey = selected.visible, selected.key, selected.survey
    if visible is None and key is None:
        return
    before = chunk.data.copy()
    packets = survey.packets[chunk.rows]
    stacks = [stack_of(before, chunk.records, row) for row in range(len(chunk.records))]
    remove_notes(chunk.data, stacks)
    if visible is not None:
        redact(chunk.data, chunk.records, packets, stacks, visible, survey.connections)
    if key is not None:
        overwrite(chunk.data, packets, stacks, selected.proxies)
        anonymise(chunk.data, stacks, key)
    if visible is not None:  # after anonymise: the checksum covers the addresses
        set_fragment_checksums(chunk.data, packets, stacks, lengths)
    adjust(before, chunk.data, stacks)


def _datagram_lengths(survey: Survey) -> dict[int, int]:
    """TCP payload bytes by datagram, from the packets that completed them."""
    rows = survey.packets[(survey.packets["datagram"] != NONE) & (survey.packets["wire_len"] > 0)]
    return dict(zip(rows["datagram"].tolist(), rows["wire_len"].tolist(), strict=True))


COMMENT, APPLICATION = 1, 4
UNKNOWN_LENGTH = (1 << 64) - 1
LONGEST_OPTION = 0xFFFF
PIECE_BYTES = 1 << 18


def option(code: int, value: bytes) -> bytes:
    """An option, padded to four bytes; too long values are truncated."""
    value = value[:LONGEST_OPTION]
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def block(kind: int, body: bytes) -> bytes:
    """A block with its length at both ends."""
    length = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + length + body + length


class Writer:
    """Writes packets to an open file, in the order of the calls. `close` flushes."""

    def __init__(self, sink: BinaryIO, application: str) -> None:
        self._sink = sink
        self._interfaces: dict[Interface, int] = {}
        self._pieces = bytearray()
        options = option(APPLICATION, application.encode()) + option(END_OF_OPTIONS, b"")
        self._pieces += block(SECTION, struct.pack("<IHHQ", BYTE_ORDER_MAGIC, 1, 0, UNKNOWN_LENGTH) + options)

    def secrets(self, key_log: bytes) -> None:
        """Write a Decryption Secrets Block (section 4.7), before the packets that it is about."""
        head = struct.pack("<II", TLS_KEY_LOG, len(key_log))
        self._pieces += block(SECRETS_BLOCK, head + key_log + bytes(-len(key_log) % 4))

    def packet(
        self, interface: Interface, ts_ns: int, data: memoryview, wire_len: int, comments: Sequence[str] = ()
    ) -> None:
        """Write a packet that was captured at `ts_ns` (ns since 1970) and had `wire_len` bytes on the wire."""
        number = self._interfaces.get(interface)
        if number is None:
            number = self._describe(interface)
        units = ts_ns // 10 ** (9 - interface.decimals)
        head = struct.pack("<IIIII", number, units >> 32, units & 0xFFFFFFFF, len(data), wire_len)
        tail = bytes(-len(data) % 4)
        if comments:
            tail += b"".join(option(COMMENT, text.encode()) for text in comments) + option(END_OF_OPTIONS, b"")
        length = struct.pack("<I", 12 + len(head) + len(data) + len(tail))
        self._pieces += struct.pack("<I", ENHANCED_PACKET) + length + head
        self._pieces += data
        self._pieces += tail + length
        if len(self._pieces) >= PIECE_BYTES:
            self.close()

    def _describe(self, interface: Interface) -> int:
        options = b"".join(
            option(code, value)
            for code, value in ((IF_NAME, interface.name), (IF_DESCRIPTION, interface.description))
            if value
        )
        if interface.decimals != MICROSECONDS:
            options += option(IF_TSRESOL, bytes([interface.decimals]))
        if options:
            options += option(END_OF_OPTIONS, b"")
        self._pieces += block(INTERFACE, struct.pack("<HHI", interface.link_type, 0, interface.snaplen) + options)
        self._interfaces[interface] = len(self._interfaces)
        return self._interfaces[interface]

    def close(self) -> None:
        """Write the buffered bytes."""
        self._sink.write(bytes(self._pieces))
        self._pieces.clear()
