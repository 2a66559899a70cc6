"""Splits of captures for tasks (parts of large captures, whole ones, or many small ones), and their accounts.

The driver splits large uncompressed files by walking their record headers with the walkers that read them. So a part
begins exactly at a record, knows its packet number, and has a copy of the walker (interfaces, byte order) and the IP
fragments that wait there.

The driver reads the files that it splits, a few at a time. So of many files only the relatively large ones are split.
Compressed files are not split.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.capture import CaptureError, Records, Walker, new_walker
from codec.capture.records import Bytes, Process
from codec.compiler.limits import LIMITS
from codec.net.fragments import Fragments, SavedFragments
from codec.net.headers import LINK_NAMES, TCP, skip_name
from codec.net.layers import Filter, Packets, dissect
from udfs.source.capture_bytes import CaptureBytes, CaptureFile, error_line, in_blocks
from udfs.source.rotation import beginnings

TASK_BYTES = 32 * 1024 * 1024  # small files share a task up to this: a task costs tens of milliseconds to start
OPEN_BYTES = 64 * 1024  # cost of opening a file, in bytes
TASKS = 32  # up to so many files, each is a task: few files may take long to decode
SHARES = 64  # a file smaller than this fraction of all is not split: a task reads it sooner than the driver walks all
WALKERS = 4  # files split in parallel; splitting remote files waits for the network
SEARCHED_BYTES = 16 * 1024 * 1024  # before the end of a part, for IP fragments; the whole file if they show too little
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
    doubt: str | None = None  # which of what was read may be wrong
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
            self.doubt = f"{self.capture_file}: {walker.doubt}" if walker.doubt else None
        self.error = f"{self.capture_file}: {error}" if error else None

    def to_json(self) -> str:
        """The account as JSON text, in the order of the fields; without a doubt if there is none."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps({name: fact for name, fact in facts.items() if name != "doubt" or fact})


@dataclass(frozen=True)
class Block:
    """Packets of one block; `payload_at` points into `bytes`, valid until the next block. `offset`:
    where these begin in the file; None if not all of them are there as they are. `process_of`, `processes`: of the
    packets, as in `codec.capture.Walker`."""

    data: Bytes
    records: Records
    packets: Packets
    offset: int | None
    process_of: NDArray[np.int64]
    processes: Sequence[Process]


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
    def walk(data: Bytes, ended: bool) -> tuple[Records, int]:
        return walker.walk(data, ended and split.end is None)

    packet_no, order_ns = split.first_packet_no, split.order_ns
    fragments = Fragments(split.fragments)
    for data, records, offset in in_blocks(source, walk, block_bytes):
        packets = dissect(data, records, packet_no, order_ns, fragments)
        packet_no, order_ns = packet_no + len(records), packets.order_ns
        wanted.apply(packets)
        account.add(records, packets)
        if len(records):
            as_stored = source.compression is None and len(packets.data) == len(data)
            at = split.start + offset if as_stored else None
            yield Block(packets.data, records, packets, at, walker.process_of, walker.processes)
        if walker.error is not None:
            return


def plan(files: list[CaptureFile], split_bytes: int) -> list[list[Split]]:
    """Splits for tasks: large uncompressed files in parts, small files together when there are many."""
    begin_ns = beginnings(files)
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
    return [[_begun(split, begin_ns.get(split.file.uri, BEGINNING)) for split in task] for task in tasks]


def _begun(split: Split, begin_ns: int) -> Split:
    """The split of a file whose packets do not precede those at this time."""
    return replace(split, order_ns=max(split.order_ns, begin_ns))


def cut(file: CaptureFile, split_bytes: int) -> list[Split]:
    """Equal parts of a file of up to about `split_bytes`, each from a record to a record.

    A compressed or unreadable file, and the rest of one after damage, is one part; its reader reports the error.
    """
    return _parts(file, split_bytes, SEARCHED_BYTES)


def _parts(file: CaptureFile, split_bytes: int, searched_bytes: int) -> list[Split]:
    """The parts of a file. So many bytes before each end are searched for IP fragments that wait there, or all of the
    file if these do not decide."""
    parts = [Split(file)]
    try:
        with CaptureBytes(file) as source:
            if source.compression:
                return parts
            size = -(-file.size // -(-file.size // split_bytes))
            reader = _RecordReader(source, min(2 * size, LIMITS.block_bytes))
            packet_no, order_ns, fragments, searched = 1, BEGINNING, Fragments(), 0
            for end in range(size, file.size, size):
                for data, records in reader.before(end):
                    if end - reader.walker.position <= searched_bytes:
                        dissect(data, records, packet_no, order_ns, fragments)
                        searched += len(records)
                    else:
                        fragments, searched = Fragments(), 0
                    packet_no += len(records)
                    order_ns = int(records["ts_ns"].max(initial=order_ns))
                if reader.ended:
                    return parts
                waiting = fragments.save(packet_no)
                if searched < packet_no - 1 and (waiting is not None or searched < LIMITS.fragment_packets):
                    return _parts(file, split_bytes, file.size)
                walker = copy.deepcopy(reader.walker)
                if walker.position > parts[-1].start:  # else a record is larger than the part
                    parts[-1] = replace(parts[-1], end=walker.position)
                    parts.append(Split(file, walker.position, None, walker, packet_no, order_ns, waiting))
    except (OSError, CaptureError, pa.ArrowException):
        pass
    return parts


class _RecordReader:
    """Reads the records of a capture in blocks, up to one offset after the other. `walker` is behind those that were
    read. `ended`: the file is damaged, or became shorter, or cannot be read further."""

    def __init__(self, source: CaptureBytes, block_bytes: int) -> None:
        self.walker, self.ended = new_walker(source.head), False
        self._source, self._buffer, self._filled = source, np.empty(block_bytes, np.uint8), 0

    def before(self, end: int) -> Iterator[tuple[Bytes, Records]]:
        """The next records that end at or before the offset `end`, and the bytes that they point into."""
        while self.walker.position + self._filled < end:
            wanted = min(len(self._buffer), end - self.walker.position)
            self._filled += self._source.readinto(self._buffer.data[self._filled : wanted])
            data = self._buffer[: self._filled]
            records, consumed = self.walker.walk(data, False)
            self.ended = self._filled < wanted or self.walker.error is not None
            if self.ended:
                return
            yield data, records
            self._filled -= consumed
            self._buffer[: self._filled] = data[consumed:]
            if self._filled == len(self._buffer):  # a record is larger; walkers bound how large
                self._buffer = np.concatenate([self._buffer, np.empty_like(self._buffer)])
