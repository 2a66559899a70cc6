"""Which captures the next batch ingests: new ones, and those that grew.

A capture is identified by its first bytes: one that was renamed or compressed after its ingestion is skipped, and a
ring buffer's file that was overwritten under its old name is new. Of one that grew, only the new packets are decoded.
A capture that changed within `settle` is left for a later batch.

Costs one listing, one read of the first bytes of each capture not known by name and size, and a walk over the records
of captures that begin before the latest packet of the lake.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import pyarrow as pa

from codec.capture import CaptureError, new_walker
from pipeline.lake.layout import NS, Options
from udfs.source.capture_bytes import CaptureBytes, CaptureFile, in_blocks

HEAD_BYTES = 4096
READ_BYTES = 1 << 20  # at a time
FIRST_BYTES = 1 << 16  # the same, for the first packet


@dataclass(frozen=True)
class KnownCapture:
    """A capture that was ingested: a row of table `known` (`pipeline.lake.layout`)."""

    capture_file: str
    byte_size: int
    modified_ns: int | None
    packets: int
    head: str | None
    head_size: int
    batch: int
    late: bool
    listed_ns: int


@dataclass(frozen=True)
class Arrival:
    """A capture to ingest, from packet number `read` + 1 on. `again`: its row of table taken, if it grew. `first_ns`:
    time of its first packet, None if it has none or cannot be read."""

    file: CaptureFile
    head: str | None
    head_size: int
    first_ns: int | None
    read: int = 0
    again: KnownCapture | None = None
    late: bool = False

    def taken_row(self, batch: int, packets: int, now_ns: int) -> KnownCapture:
        """Its row of table taken; `packets` of the whole file."""
        file = self.file
        return KnownCapture(
            file.name, file.size, file.modified_ns, packets, self.head, self.head_size, batch, self.late, now_ns
        )  # fmt: skip


@dataclass(frozen=True)
class Listing:
    """`arrivals`: in order of their first packets; `known`: the known captures, without those to forget; `copies`:
    (name, name of the original); `unsettled`: number of captures left for later."""

    arrivals: list[Arrival]
    known: list[KnownCapture]
    copies: list[tuple[str, str]]
    unsettled: int


def find(
    files: Iterable[CaptureFile], known: Iterable[KnownCapture], options: Options, now_ns: int, newest_ns: int | None
) -> Listing:
    """Which of these files to ingest. `known`: those ingested before; one not listed for `forget_after` is forgotten.
    `newest_ns`: the latest packet in the lake; captures that end more than `late_after` before it are late."""
    by_name = {each.capture_file: each for each in known}
    heads = {(each.head_size, each.head): each for each in reversed(by_name.values()) if each.head}
    arrivals, copies, unsettled = list[Arrival](), list[tuple[str, str]](), 0
    for file in files:
        before, modified_ns = by_name.get(file.name), file.modified_ns
        if before and (before.byte_size, before.modified_ns) == (file.size, modified_ns):
            by_name[file.name] = replace(before, listed_ns=now_ns)
            continue
        if modified_ns is not None and 0 <= now_ns - modified_ns < options.settle * NS:
            unsettled += 1
            continue
        arrival = inspect(file)
        if before and arrival.head and (before.head is None or _digest(_first(file, before.head_size)) == before.head):
            if before.head and file.size == before.byte_size:  # touched, not changed
                by_name[file.name] = replace(before, modified_ns=modified_ns, listed_ns=now_ns)
                continue
            arrival = replace(arrival, read=before.packets, again=before, late=before.late)
        elif original := _original(arrival, heads):
            copies.append((file.name, original.capture_file))
            by_name[file.name] = replace(
                original, capture_file=file.name, byte_size=file.size, modified_ns=modified_ns, listed_ns=now_ns
            )
            continue
        if arrival.head:
            heads.setdefault((arrival.head_size, arrival.head), arrival.taken_row(0, 0, 0))
        if newest_ns is not None and not arrival.again:
            arrival = replace(arrival, late=_ends_before(arrival, newest_ns - int(options.late_after * NS)))
        arrivals.append(arrival)
    arrivals.sort(key=lambda each: (each.first_ns is None, each.first_ns or 0, each.file.uri))
    remembered = [each for each in by_name.values() if now_ns - each.listed_ns < options.forget_after * NS]
    return Listing(arrivals, remembered, copies, unsettled)


def inspect(file: CaptureFile) -> Arrival:
    """A capture with its first bytes and its first packet."""
    data = _first(file, HEAD_BYTES)
    first_ns, _ = _times(file, first_only=True)
    known = first_ns is not None  # two captures without a packet are not copies of each other
    return Arrival(file, _digest(data) if known else None, len(data) if known else 0, first_ns)


def split_into_batches(arrivals: Sequence[Arrival], most_bytes: int) -> Iterable[list[Arrival]]:
    """The captures, in order, in batches of about `most_bytes`."""
    batch, size = list[Arrival](), 0
    for arrival in arrivals:
        if batch and size + arrival.file.expected_size > most_bytes:
            yield batch
            batch, size = [], 0
        batch.append(arrival)
        size += arrival.file.expected_size
    if batch:
        yield batch


def _original(arrival: Arrival, heads: Mapping[tuple[int, str], KnownCapture]) -> KnownCapture | None:
    """The known capture with the same first bytes, at least as long as this one; `heads`: known ones by the number and
    the digest of their first bytes."""
    if arrival.head is None:
        return None
    data = _first(arrival.file, HEAD_BYTES)
    for size in sorted({size for size, _ in heads if size <= len(data)}, reverse=True):
        found = heads.get((size, _digest(data[:size])))
        if found is not None and (size == HEAD_BYTES or size == len(data)):
            return found
    return None


def _ends_before(arrival: Arrival, moment_ns: int) -> bool:
    if arrival.first_ns is None or arrival.first_ns >= moment_ns:
        return False
    last_ns = _times(arrival.file, first_only=False)[1]
    return last_ns is not None and last_ns < moment_ns


def _times(file: CaptureFile, *, first_only: bool) -> tuple[int | None, int | None]:
    """Times of the first and the latest packet of a capture, ns; None if none can be read."""
    first = last = None
    try:
        with CaptureBytes(file) as source:
            walker = new_walker(source.head)
            for _, records, _ in in_blocks(source, walker.walk, FIRST_BYTES if first_only else READ_BYTES):
                if len(records):
                    first = int(records["ts_ns"][0]) if first is None else first
                    last = max(int(records["ts_ns"].max()), last or 0)
                if walker.error or (first_only and len(records)):
                    break
    except (OSError, CaptureError, pa.ArrowException):
        pass
    return first, last


def _first(file: CaptureFile, size: int) -> bytes:
    """The first bytes of a capture, decompressed; fewer if it is shorter or cannot be read."""
    try:
        with CaptureBytes(file) as source:
            data = bytearray(size)
            return bytes(data[: source.readinto(memoryview(data))])
    except (OSError, pa.ArrowException):
        return b""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def known_from_rows(rows: Iterable[Mapping[str, object]]) -> list[KnownCapture]:
    """Rows of table taken. Raises ValueError for values that no ingest writes."""
    names = [each.name for each in fields(KnownCapture)]
    found = [KnownCapture(**{name: row.get(name) for name in names}) for row in rows]  # type: ignore[arg-type]
    for each in found:
        counts = (each.packets, each.batch, each.listed_ns)
        if None in (each.capture_file, each.byte_size, *counts) or min(counts) < 0:
            raise ValueError("a capture without its name, size, packets or batch")
        if each.head_size is None or not 0 <= each.head_size <= HEAD_BYTES:
            raise ValueError(f"a capture of which {each.head_size} first bytes are known")
    return found
