"""Payloads of runs that refer to their capture file instead of carrying them through the shuffle."""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udfs.source.files import error_line, locate

OPEN_FILES = 16
SHORTER = "has become shorter while it was read"
# What a map may hold in memory before its pages are given back, and what one segment may bring in: Linux maps up to 16
# pages around the one that is touched. So the memory of a worker does not grow with the file.
RESIDENT_BYTES, TOUCHED_BYTES = 32 << 20, 64 << 10


class Mapped(NamedTuple):
    """A capture file: `octets` uint8, readonly, of all of it."""

    map: mmap.mmap
    octets: NDArray[np.uint8]


class Payloads:
    """Local capture files, mapped when their first payload is asked for."""

    def __init__(self) -> None:
        self._maps: dict[str, Mapped] = {}
        self._touched = 0

    def of(self, capture: str, segments: NDArray[np.void]) -> NDArray[np.uint8]:
        """The octets of the capture file, to which `payload_at` of these SEGMENTs refers; the same array for each call,
        as a rule. Raises OSError when the file has been taken away or is too short; one that is cut short while it is
        decoded ends the worker, and the task that is tried again says so."""
        there = segments[segments["cap_len"] > 0]
        if not len(there):
            return np.zeros(0, np.uint8)
        end = int((there["payload_at"] + there["cap_len"]).max())
        found = self._mapped(capture, end)
        self._touched += min(end - int(there["payload_at"].min()), len(there) * TOUCHED_BYTES)
        if self._touched > RESIDENT_BYTES:
            self._touched = 0
            for mapped in self._maps.values():
                mapped.map.madvise(mmap.MADV_DONTNEED)
        return found.octets

    def _mapped(self, capture: str, end: int) -> Mapped:
        """The map of a file that has at least `end` bytes."""
        found = self._maps.get(capture)
        if found is None or len(found.octets) < end:
            found = self._maps[capture] = self._map(capture)
        if found.map.size() < end:
            raise OSError(f"{capture}: {SHORTER}")
        return found

    def _map(self, capture: str) -> Mapped:
        if capture not in self._maps and len(self._maps) >= OPEN_FILES:
            self.close()
        try:
            with open(locate(capture).path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file
            raise OSError(f"{capture}: {SHORTER}") from error
        except OSError as error:
            raise OSError(f"{capture}: cannot be read again ({error_line(error, capture)})") from error
        return Mapped(mapped, np.frombuffer(mapped, np.uint8))

    def close(self) -> None:
        """Forget all files; a map is closed when nobody refers to its octets any more."""
        self._maps.clear()
