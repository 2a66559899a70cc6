"""The bytes of a capture file from any file system, decompressed on the way.

gzip, zstd and lz4 are known by their first bytes, never by the name. Data that is cut short or damaged gives everything
that can be decoded before the damage; then `damage` says what is wrong. Memory does not grow with the file.
"""

from __future__ import annotations

from types import TracebackType

import pyarrow as pa

from codec.capture import SNIFF_BYTES
from codec.compiler.limits import LIMITS
from udfs.source.files import COMPRESSIONS, LOCAL, CaptureFile, locate, said

# Arrow decompresses 64 KiB at a time, which an object store would be asked for one by one.
FETCH_BYTES = 4 * 1024 * 1024
PIECE_BYTES = 64 * 1024  # decompressed at a time: what a failing read may lose and has to be fetched again, one by one


class CaptureBytes:
    """A capture file opened for reading from `start` to `end` (None: its own); offsets are of decompressed bytes.

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
        self._end = end
        head = bytearray(SNIFF_BYTES)
        self.head = bytes(head[: self.readinto(memoryview(head))])
        self._again = b"" if start else self.head  # read already, not yet handed out
        if start:
            self._raw.seek(start)
            self._position = start

    def __enter__(self) -> CaptureBytes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._raw.close()

    def readinto(self, view: memoryview) -> int:
        """Fill `view` (bytes); fewer bytes than it holds mean that the file, or the part asked for, is at its end."""
        filled = len(self._again)
        view[:filled] = self._again
        self._again = b""
        while filled < len(view) and self.damage is None:
            room = view[filled : filled + PIECE_BYTES] if self.compression else view[filled:]
            if self._end is not None:
                room = room[: max(0, self._end - self._position)]
            count = self._read(room)
            if not count:
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
                f"the {self.compression} data is damaged or cut short" if self.compression else said(error, self._uri)
            )
            self.damage = f"{what} after {self._position + count} bytes; what comes before was read"
        self._position += count
        if self.compression and self._position > LIMITS.expansion_grace:
            stored = max(1, self._raw.tell())
            if self._position > stored * LIMITS.expansion_ratio:
                self.damage = (
                    f"the {self.compression} data expands more than {LIMITS.expansion_ratio} times; not read on"
                )
        return count

    def _decompressed(self) -> pa.NativeFile:
        stored = pa.BufferedInputStream(self._raw, FETCH_BYTES) if self._remote else self._raw
        return pa.CompressedInputStream(stored, self.compression)

    def _rescue(self, room: memoryview) -> int:
        """What the failing read had decoded: start over, and go on byte by byte from where the last one ended."""
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
