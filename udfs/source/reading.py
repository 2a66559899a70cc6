"""The bytes of a capture file from any file system, decompressed.

gzip, zstd and lz4 are detected by their first bytes, not by name. Truncated or damaged data is decoded up to the
damage, and `damage` says what is wrong. Memory does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

import numpy as np
import pyarrow as pa

from codec.capture import HEAD_BYTES, SNIFF_BYTES
from codec.capture.records import Bytes
from codec.compiler.limits import LIMITS
from udfs.source.files import COMPRESSIONS, LOCAL, CaptureFile, error_line, locate

# Arrow decompresses 64 KiB at a time, each a request to an object store without buffering.
FETCH_BYTES = 4 * 1024 * 1024
SHRUNK = "the file became shorter while it was read; the packets that are left were read"
Found = TypeVar("Found")
PIECE_BYTES = 64 * 1024  # decompressed at a time; after a failing read decoded again byte by byte


class CaptureBytes:
    """A capture file opened for reading from `start` to `end` (None: end of file); offsets are of decompressed bytes.

    Opening raises OSError. Reading does not: it ends early and sets `damage`.
    """

    head: bytes  # the first bytes of the capture itself
    compression: str | None
    damage: str | None = None

    def __init__(self, file: CaptureFile, start: int = 0, end: int | None = None) -> None:
        if file.problem:
            raise OSError(file.problem)
        self._uri, self._place = file.uri, locate(file.uri)
        self._raw = self._place.open()
        magic = self._raw.read(SNIFF_BYTES)
        self._raw.seek(0)
        self.compression = next((each.name for each in COMPRESSIONS if magic.startswith(each.magic)), None)
        self._remote = not file.uri.startswith(LOCAL)
        self._stream = self._decompressed() if self.compression else self._raw
        self._position = 0
        self._again = b""
        self._end: int | None = None
        head = bytearray(SNIFF_BYTES if start else HEAD_BYTES)
        self.head = bytes(head[: self.readinto(memoryview(head))])
        self._again = b"" if start else self.head[:end]  # read already, not yet returned
        self._end = end
        if start:
            self._raw.seek(start)
            self._position = start
            if start > self._raw.size():
                self.damage = SHRUNK

    def __enter__(self) -> CaptureBytes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._raw.close()

    def readinto(self, view: memoryview) -> int:
        """Fill `view` (bytes); fewer bytes than its size: end of the file or of the part."""
        filled = min(len(self._again), len(view))
        view[:filled] = self._again[:filled]
        self._again = self._again[filled:]
        while filled < len(view) and self.damage is None:
            room = view[filled : filled + PIECE_BYTES] if self.compression else view[filled:]
            if self._end is not None:
                room = room[: max(0, self._end - self._position)]
            count = self._read(room)
            if not count:
                if room and self._end is not None and self.damage is None:
                    self.damage = SHRUNK
                break
            filled += count
        return filled

    def _read(self, room: memoryview) -> int:
        if not room:
            return 0
        try:
            count = int(self._stream.readinto(room))
        except (OSError, pa.ArrowException) as error:
            count = self._rescue(room) if self.compression else 0
            what = (
                f"the {self.compression} data is damaged or cut short"
                if self.compression
                else error_line(error, self._uri)
            )
            self.damage = f"{what} after {self._position + count} bytes; the data before was read"
        self._position += count
        if self.compression and self._position > LIMITS.expansion_grace:
            stored = max(1, self._raw.tell())
            if self._position > stored * LIMITS.expansion_ratio:
                self.damage = (
                    f"the {self.compression} data expands more than {LIMITS.expansion_ratio} times; reading stopped"
                )
        return count

    def _decompressed(self) -> pa.NativeFile:
        stored = pa.BufferedInputStream(self._raw, FETCH_BYTES) if self._remote else self._raw
        return pa.CompressedInputStream(stored, self.compression)

    def _rescue(self, room: memoryview) -> int:
        """The bytes before the damage: decompress again, and continue byte by byte after the last successful read."""
        self._stream.close()
        self._raw = self._place.open()
        self._stream = self._decompressed()
        count = 0
        try:
            left = self._position
            while left and (piece := self._stream.read(min(left, PIECE_BYTES))):
                left -= len(piece)
            while not left and count < len(room) and self._stream.readinto(room[count : count + 1]):
                count += 1
        except (OSError, pa.ArrowException):
            pass
        return count


def in_blocks(
    source: CaptureBytes, walk: Callable[[Bytes, bool], tuple[Found, int]], size: int
) -> Iterator[tuple[Bytes, Found, int]]:
    """The rest of a capture in blocks of `size` bytes, more where a record is larger: (octets, what `walk` finds in
    them, offset of the block). `walk` gets the octets and whether they are the last ones, and says how many it
    consumed; the next block begins behind these. The octets are valid until then."""
    buffer = np.empty(size, np.uint8)
    filled, ended, offset = 0, False, 0
    while not ended:
        filled += source.readinto(buffer.data[filled:])
        ended = filled < len(buffer)
        found, consumed = walk(buffer[:filled], ended)
        yield buffer[:filled], found, offset
        filled -= consumed
        offset += consumed
        if consumed:
            buffer[:filled] = buffer[consumed : consumed + filled]
        elif filled == len(buffer):  # one record is larger than the buffer; walkers bound how large
            buffer = np.concatenate([buffer, np.empty_like(buffer)])


def size_up_to(files: Sequence[CaptureFile], most: int) -> int:
    """Bytes of these captures, decompressed; a number above `most` if there are more. What is compressed is
    decompressed and counted, up to `most` in all: sizes in headers and trailers are what a stranger wrote."""
    total = sum(max(file.size, 0) for file in files)
    piece = memoryview(bytearray(PIECE_BYTES))
    for file in files:
        if total > most:
            break
        if not is_compressed(file):
            continue
        total -= max(file.size, 0)
        try:
            with CaptureBytes(file) as source:
                while total <= most and (count := source.readinto(piece)):
                    total += count
        except (OSError, pa.ArrowException):  # reported when it is decoded
            continue
    return total


def is_compressed(file: CaptureFile) -> bool:
    """Whether a file that can be opened is compressed."""
    if file.problem:
        return False
    try:
        with locate(file.uri).open() as source:
            head = source.read(max(len(each.magic) for each in COMPRESSIONS))
    except OSError:
        return False
    return any(head.startswith(each.magic) for each in COMPRESSIONS)
