"""Splits of captures for tasks (parts of large captures, whole ones, or many small ones), and their accounts.

The driver splits large uncompressed files by walking their record headers with the walkers that read them. So a part
begins exactly at a record, knows its packet number, and has a copy of the walker (interfaces, byte order) and the IP
fragments that wait there. If none of the last few thousand packets before the split is a fragment, none waits; else the
driver scans the part before for fragments.

For local files this touches one memory page per packet; from other file systems the driver reads the files that it
splits, a few at a time. So of many files only the relatively large ones are split. Compressed files are not split.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial

import numpy as np
import pyarrow as pa

from codec.capture import SNIFF_BYTES, CaptureError, Records, Walker, new_walker
from codec.capture.records import Bytes
from codec.compiler.limits import LIMITS
from codec.net.filters import Filter
from codec.net.fragments import Fragments, SavedFragments
from codec.net.layers import Packets, dissect, has_fragments
from codec.net.protocols import LINK_NAMES, TCP, skip_name
from udfs.source.files import LOCAL, CaptureFile, error_line, locate
from udfs.source.reading import CaptureBytes, in_blocks

TASK_BYTES = 32 * 1024 * 1024  # small files share a task up to this: a task costs tens of milliseconds to start
OPEN_BYTES = 64 * 1024  # cost of opening a file, in bytes
TASKS = 32  # up to so many files, each is a task: few files may take long to decode
SHARES = 64  # a file smaller than this fraction of all is not split: a task reads it sooner than the driver walks all
WALKERS = 4  # files split in parallel; splitting remote files waits for the network
REMOTE_BYTES = 64 * 1024 * 1024  # largest part of a remote file; each walker has one in memory
STEP_PACKETS = 8192  # scanned for fragments at a time; bounds memory, does not change the result
BEGINNING = -(2**63)


@dataclass(frozen=True)
class Split:
    """The bytes from `start` to `end` (None: the file's end) of a capture, and the state of reading at `start`."""

    file: CaptureFile
    start: int = 0
    end: int | None = None
    walker: Walker | None = None  # None: at the beginning of the file; chosen by its first bytes
    first_packet_no: int = 1
    order_ns: int = BEGINNING  # running maximum of the capture times before
    fragments: SavedFragments | None = None  # incomplete datagrams


@dataclass
class Account:
    """Facts about a split, as one JSON object; `udfs.source.captures` adds up those of a file."""

    capture_file: str
    byte_size: int  # of the whole file
    format: str | None = None
    compression: str | None = None
    link_types: list[str] = field(default_factory=list)
    packets: int = 0
    first_ts_ns: int | None = None
    last_ts_ns: int | None = None
    snaplen: int | None = None
    dropped: int | None = None
    truncated: bool = False
    error: str | None = None
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, records: Records, packets: Packets) -> None:
        """Count a block: its records, and skip codes of those without a segment."""
        if not len(records):
            return
        self.packets += len(records)
        earliest, latest = int(records["ts_ns"].min()), int(records["ts_ns"].max())
        self.first_ts_ns = earliest if self.first_ts_ns is None else min(earliest, self.first_ts_ns)
        self.last_ts_ns = latest if self.last_ts_ns is None else max(latest, self.last_ts_ns)
        names = {
            LINK_NAMES.get(number, f"link-type-{number}") for number in np.unique(records["link_type"]) if number >= 0
        }
        self.link_types = sorted(names.union(self.link_types))
        codes, counts = np.unique(packets.skip[packets.skip != TCP], return_counts=True)
        for code, count in zip(codes, counts, strict=True):
            self.skipped[skip_name(int(code))] += int(count)

    def close(self, walker: Walker | None, error: str | None) -> None:
        """Finish with the facts of the walker; `error`: another reason for the end of reading."""
        if walker is not None:
            self.format, self.truncated = walker.format, walker.truncated
            self.snaplen, self.dropped = walker.snaplen, walker.dropped
            error = error or walker.error
        self.error = f"{self.capture_file}: {error}" if error else None

    def to_json(self) -> str:
        """The account as JSON text, in the order of the fields."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)})


@dataclass(frozen=True)
class Block:
    """Packets of one block; `payload_at` points into `octets`, valid until the next block. `offset`:
    where these begin in the file; None if not all of them are there as they are."""

    octets: Bytes
    records: Records
    packets: Packets
    offset: int | None


def read_blocks(split: Split, account: Account, block_bytes: int, wanted: Filter) -> Iterator[Block]:
    """The packets of a split, block by block; `account` is complete at the end. Never raises because of input."""
    walker, error = copy.deepcopy(split.walker), None
    try:
        with CaptureBytes(split.file, split.start, split.end) as source:
            account.compression = source.compression
            try:
                walker = walker or new_walker(source.head)
                yield from _blocks(split, source, walker, account, block_bytes, wanted)
            except CaptureError as refusal:
                error = str(refusal)
            error = source.damage or error
    except (OSError, pa.ArrowException) as failure:
        error = error_line(failure, split.file.uri)
    account.close(walker, error)


def _blocks(
    split: Split, source: CaptureBytes, walker: Walker, account: Account, block_bytes: int, wanted: Filter
) -> Iterator[Block]:
    def walk(octets: Bytes, ended: bool) -> tuple[Records, int]:
        return walker.walk(octets, ended and split.end is None)

    packet_no, order_ns = split.first_packet_no, split.order_ns
    fragments = Fragments(split.fragments)
    for octets, records, offset in in_blocks(source, walk, max(block_bytes, SNIFF_BYTES)):
        packets = dissect(octets, records, packet_no, order_ns, fragments)
        packet_no, order_ns = packet_no + len(records), packets.order_ns
        wanted.apply(packets)
        account.add(records, packets)
        if len(records):
            as_stored = source.compression is None and len(packets.octets) == len(octets)
            yield Block(packets.octets, records, packets, split.start + offset if as_stored else None)
        if walker.error is not None:
            return


def plan(files: list[CaptureFile], split_bytes: int) -> list[list[Split]]:
    """Splits for tasks: large uncompressed files in parts, small files together when there are many."""
    largest = max(split_bytes, sum(max(0, file.size) for file in files) // SHARES)
    large = [file for file in files if file.size > largest]
    with ThreadPoolExecutor(WALKERS) as walkers:
        tasks = [[split] for parts in walkers.map(partial(cut, split_bytes=split_bytes), large) for split in parts]
    small = [file for file in files if file.size <= largest]
    total = sum(OPEN_BYTES + file.size for file in small)
    share = min(TASK_BYTES, max(1, total // TASKS)) if len(small) > TASKS else 0
    filled = share
    for file in small:
        cost = OPEN_BYTES + max(0, file.size)
        if filled + cost > share:
            tasks.append([])
            filled = 0
        tasks[-1].append(Split(file))
        filled += cost
    return tasks


def cut(file: CaptureFile, split_bytes: int) -> list[Split]:
    """Equal parts of a file of up to about `split_bytes`, each from a record to a record.

    A compressed or unreadable file, and the rest of one after damage, is one part; its reader reports the error.
    """
    part = Split(file)
    parts = [part]
    try:
        with CaptureBytes(file) as source:
            if source.compression:
                return parts
            walker = new_walker(source.head)
        largest = split_bytes if file.uri.startswith(LOCAL) else min(split_bytes, REMOTE_BYTES)
        size = -(-file.size // -(-file.size // largest))
        for end in range(size, file.size, size):
            octets = _window(file, part.start, end)
            records, consumed = walker.walk(octets, False)
            if walker.error:
                break
            if not consumed:  # the record is larger than the part
                continue
            parts[-1] = replace(part, end=part.start + consumed)
            part = Split(
                file,
                part.start + consumed,
                None,
                copy.deepcopy(walker),
                part.first_packet_no + len(records),
                max(part.order_ns, int(records["ts_ns"].max()) if len(records) else BEGINNING),
                _waiting(octets, records, part),
            )
            parts.append(part)
    except (OSError, CaptureError, pa.ArrowException):
        pass
    return parts


def _waiting(octets: Bytes, records: Records, part: Split) -> SavedFragments | None:
    """The fragments that wait after the `records` of `part` in `octets`."""
    known = LIMITS.fragment_packets
    if len(records) >= known and not has_fragments(*_around(octets, records[-known:])):
        return None
    fragments = Fragments(part.fragments)
    for at in range(0, len(records), STEP_PACKETS):
        packets = _around(octets, records[at : at + STEP_PACKETS])
        dissect(*packets, part.first_packet_no + at, BEGINNING, fragments)
    return fragments.save(part.first_packet_no + len(records))


def _around(octets: Bytes, records: Records) -> tuple[Bytes, Records]:
    """The bytes of these `records`, and the records with offsets into them."""
    begin, last = int(records["offset"][0]), records[-1]
    moved = records.copy()
    moved["offset"] -= begin
    return octets[begin : int(last["offset"] + last["cap_len"])], moved


def _window(file: CaptureFile, start: int, end: int) -> Bytes:
    """The bytes from `start` to `end`, memory-mapped if the file is local."""
    place = locate(file.uri)
    if file.uri.startswith(LOCAL):
        try:
            return np.memmap(place.path, np.uint8, "c", start, (end - start,)).view(np.ndarray)
        except ValueError as error:  # it became shorter
            raise OSError(str(error)) from error
    with place.open() as source:
        octets = np.empty(end - start, np.uint8)
        source.seek(start)
        return octets[: source.readinto(octets.data)]
