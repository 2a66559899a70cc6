"""The captures that the tables were made of: where they are now, and their capture interfaces."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from codec.capture import CaptureError, new_walker
from codec.capture.pcapng import MULTIPLY, PcapngWalker
from codec.capture.processes import options_of
from codec.capture.records import PcapWalker
from pipeline.output.location import Location, OutputError, location
from udfs.source.capture_bytes import (
    COMPRESSED_NAME,
    LOCAL,
    MISSING,
    CaptureBytes,
    CaptureFile,
)
from udfs.source.paths import PathError, resolve

COLUMNS = ("capture_file", "byte_size", "first_ts", "last_ts")
HEAD_BYTES = 1 << 20  # interfaces are described before their packets, usually at the start of a file
NANOSECONDS = 9  # decimal places of a second
IF_NAME, IF_DESCRIPTION = 2, 3


@dataclass(frozen=True)
class Interface:
    """A capture interface. `decimals`: decimal places of a second in its times; `snaplen`: 0 for no limit."""

    link_type: int
    decimals: int = NANOSECONDS
    snaplen: int = 0
    name: bytes = b""
    description: bytes = b""


@dataclass(frozen=True)
class Original:
    """A capture: its name in the tables, its current file, and the times of its first and last packet. `rewritten`: a
    temporary capture, made of others for this cut."""

    name: str
    file: CaptureFile
    first_us: int  # µs since 1970-01-01 UTC
    last_us: int
    rewritten: bool = False

    @property
    def display_name(self) -> str:
        return posixpath.basename(self.name)

    def overlaps(self, first_us: int, last_us: int) -> bool:
        """Whether it may have packets in this time."""
        return self.first_us <= last_us and first_us <= self.last_us


def microseconds(ts: datetime) -> int:
    """A time of the tables, µs since 1970-01-01 UTC."""
    aware = ts if ts.tzinfo else ts.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def originals(captures: pa.Table, directory: str | None = None) -> list[Original]:
    """The captures of table `captures` by name; with `directory`, they are located there by file name.

    A missing file has a `problem`. Raises PathError for a directory without captures.
    """
    moved = _by_name(resolve([directory])) if directory else None
    named = (row for row in captures.to_pylist() if row["capture_file"] is not None)
    rows = sorted(named, key=lambda row: row["capture_file"].encode())
    return [
        Original(row["capture_file"], _locate(row, moved), microseconds(row["first_ts"]), microseconds(row["last_ts"]))
        for row in rows
        if row["first_ts"] is not None
    ]


def is_capture(captures: Iterable[Original], target: Location) -> bool:
    """Whether `target` is one of the captures, including missing ones."""
    for each in captures:
        if each.file.uri.startswith(LOCAL) == target.local:
            with contextlib.suppress(OutputError):  # an unreachable file cannot be overwritten
                if location(each.file.uri).path == target.path:
                    return True
    return False


def _by_name(files: Iterable[CaptureFile]) -> Mapping[str, list[CaptureFile]]:
    found: dict[str, list[CaptureFile]] = {}
    for file in files:
        found.setdefault(_base_name(file.name), []).append(file)
    return found


def _base_name(name: str) -> str:
    """The file name without a compression suffix, which may have changed since."""
    return COMPRESSED_NAME.sub("", posixpath.basename(name))


def _locate(row: Mapping[str, Any], moved: Mapping[str, list[CaptureFile]] | None) -> CaptureFile:
    name, size = row["capture_file"], row["byte_size"]
    if moved is None:
        candidates = [_open(name)]
    else:
        candidates = moved.get(_base_name(name), [])
        if not candidates:
            return CaptureFile(name, MISSING, f"no file {posixpath.basename(name)} is there")
    compressed = bool(COMPRESSED_NAME.search(name))
    for file in candidates:
        if size is None or file.size == size or bool(COMPRESSED_NAME.search(file.name)) != compressed:
            return file
    file = candidates[0]
    if file.problem:
        return file
    return replace(file, problem=f"has {file.size} bytes, but {size} when it was decoded: it is another file now")


def _open(name: str) -> CaptureFile:
    try:
        return resolve([name])[0]
    except PathError as error:
        return CaptureFile(name, MISSING, str(error).removeprefix(f"{name}: "))


class _Interfaces(PcapngWalker):
    """A walker that collects the interface descriptions of the first section."""

    def __init__(self) -> None:
        super().__init__()
        self.described: list[Interface] = []

    def _interface_description(self, body: bytes) -> None:
        super()._interface_description(body)
        if self.section == 1:
            options = dict(options_of(body[8:], self._byte_order))
            link_type, rule, factor, _, snaplen = self.interfaces[self.interface_count - 1].tolist()
            self.described.append(
                Interface(
                    link_type,
                    NANOSECONDS - len(str(factor)) + 1 if rule == MULTIPLY else NANOSECONDS,
                    snaplen,
                    options.get(IF_NAME, b""),
                    options.get(IF_DESCRIPTION, b""),
                )
            )


def interfaces(file: CaptureFile) -> list[Interface]:
    """The interfaces described at the start of a capture, by number; empty if it cannot be read."""
    buffer = bytearray(HEAD_BYTES)
    try:
        with CaptureBytes(file) as source:
            data = np.frombuffer(buffer, np.uint8)[: source.readinto(memoryview(buffer))]
            walker = new_walker(source.head)
    except (OSError, CaptureError, pa.ArrowException):
        return []
    if isinstance(walker, PcapWalker):
        walker.walk(data, False)
        return [Interface(walker.link_type, NANOSECONDS - len(str(walker.unit_ns)) + 1, walker.snaplen or 0)]
    describing = _Interfaces()
    describing.walk(data, False)
    return describing.described
