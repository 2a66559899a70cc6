"""Payloads of runs that say where they are in their capture, instead of carrying them through the shuffle."""

from __future__ import annotations

import mmap
import os

import numpy as np
from numpy.typing import NDArray

from udfs.source.files import locate, said

OPEN_FILES = 16
# Up to this size all that lies between the segments of a run is read; above, the file is mapped, and only pages that
# hold some of them are touched. A map goes with its run: the memory of a worker does not grow with the file.
READ_BYTES = 64 << 10


class Payloads:
    """Local capture files, opened when their first payload is asked for."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def of(self, capture: str, segments: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.uint8]]:
        """SEGMENTs whose `payload_at` counts from the beginning of the file -> the same, and octets of the file to
        which it refers now. Raises OSError when the file has been taken away or is too short; one that is cut short
        while it is decoded ends the worker, and the task that is tried again says so."""
        segments = segments.copy()
        there = segments["cap_len"] > 0
        if not there.any():
            segments["payload_at"] = 0
            return segments, np.zeros(0, np.uint8)
        begin = int(segments["payload_at"][there].min())
        end = int((segments["payload_at"] + segments["cap_len"])[there].max())
        file = self._file(capture)
        if os.fstat(file).st_size < end:
            raise OSError(f"{capture}: has become shorter while it was read")
        segments["payload_at"][~there] = begin
        if end - begin <= READ_BYTES:
            segments["payload_at"] -= begin
            return segments, np.frombuffer(bytearray(os.pread(file, end - begin, begin)), np.uint8)
        base = begin - begin % mmap.ALLOCATIONGRANULARITY
        segments["payload_at"] -= base
        # The last who looks at the octets closes the map.
        return segments, np.frombuffer(mmap.mmap(file, end - base, access=mmap.ACCESS_COPY, offset=base), np.uint8)

    def _file(self, capture: str) -> int:
        """Descriptor of an open file."""
        if capture not in self._open:
            if len(self._open) == OPEN_FILES:
                self.close()
            try:
                self._open[capture] = os.open(locate(capture).path, os.O_RDONLY)
            except OSError as error:
                raise OSError(f"{capture}: cannot be read again ({said(error, capture)})") from error
        return self._open[capture]

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            os.close(file)
        self._open.clear()
