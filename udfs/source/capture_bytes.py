"""The bytes of a capture file from any file system, decompressed.

gzip, zstd and lz4 are detected by their first bytes, not by name. Truncated or damaged data is decoded up to the
damage, and `damage` says what is wrong. Memory does not grow with the file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import pyarrow as pa
from pyarrow import fs

from codec.capture import HEAD_BYTES, SNIFF_BYTES
from codec.capture.records import Bytes
from codec.compiler.limits import LIMITS

# A capture file on any file system that Arrow knows, by its URI.


SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
LOCAL = "file://"
# Hadoop's names of the same store.
ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}
# Schemes with ports. In others a number after a colon begins a password.
WITH_PORTS = ("hdfs", "viewfs")
MISSING = -1  # size of a file that cannot be opened


@dataclass(frozen=True)
class Compression:
    """A compression of captures: Arrow's name, first bytes, and suffixes of file names."""

    name: str
    magic: bytes
    ends: tuple[str, ...]


COMPRESSIONS = (
    Compression("gzip", b"\x1f\x8b", ("gz", "gzip")),
    Compression("zstd", b"\x28\xb5\x2f\xfd", ("zst", "zstd")),
    Compression("zstd", b"\x50\x2a\x4d\x18", ()),  # of pzstd: a skippable frame (RFC 8878, section 3.1.2) comes first
    Compression("lz4", b"\x04\x22\x4d\x18", ("lz4",)),
)
COMPRESSED_SUFFIX = rf"\.({'|'.join(end for each in COMPRESSIONS for end in each.ends)})"
COMPRESSED_NAME = re.compile(f"{COMPRESSED_SUFFIX}$", re.IGNORECASE)
# Opening one of these would block, or never end.
SPECIAL_FILES = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
# File names as text: bytes that are not UTF-8 are escaped, in URIs as `%FC`.
UNDECODED = "surrogateescape"
UNDECODED_BYTE = re.compile(r"[\udc80-\udcff]")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
EXPANSION = 10  # assumed compression ratio


@dataclass(frozen=True)
class CaptureFile:
    """One capture: `uri` opens it, `size` is its bytes as stored; `problem` says why it cannot be opened at all.
    `modified_ns`: when it was changed last, None where that is not known."""

    uri: str
    size: int
    problem: str | None = None
    modified_ns: int | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The URI in rows, without credentials."""
        return public_uri(self.uri)

    @property
    def expected_size(self) -> int:
        """Uncompressed size: as stored, or estimated if the name has a suffix of a compression."""
        return max(self.size, 0) * (EXPANSION if COMPRESSED_NAME.search(self.name) else 1)


@dataclass(frozen=True)
class Location:
    """A path on an opened file system. URIs of its paths are `before`, the path less `root`, `after`."""

    filesystem: fs.FileSystem
    path: str
    before: str
    root: str = ""
    after: str = ""

    def uri(self, path: str) -> str:
        """URI of another path on the same file system."""
        return self.before + quote(path.removeprefix(self.root), errors=UNDECODED) + self.after

    def at(self, path: str) -> Location:
        """Another path on the same file system."""
        return replace(self, path=path)

    @property
    def local(self) -> bool:
        return self.before == LOCAL

    def open(self) -> pa.NativeFile:
        """Open the file for reading. Raises OSError, also if a local one is not a regular file."""
        if not self.local:
            return self.filesystem.open_input_file(self.path)
        problem = special(os.stat(self.path))
        if problem:
            raise OSError(problem)
        return self.filesystem.open_input_file(os.fsencode(self.path))  # also a name that is not UTF-8


def read_at_most(path: str, limit: int) -> bytes:
    """The bytes of a file, a path or a URI. Raises OSError if it is not a regular file, or has more bytes than that."""
    try:
        with locate(path).open() as file:
            content: bytes = file.read(limit + 1)
    except pa.ArrowException as error:
        raise OSError(error_line(error, path)) from None
    if len(content) > limit:
        raise OSError(f"has more than {limit:,} bytes")
    return content


def special(status: os.stat_result, allowed: str = "only regular files are read") -> str | None:
    """Why a local file is neither opened nor replaced; None for a regular file or a directory."""
    kind = SPECIAL_FILES.get(stat.S_IFMT(status.st_mode))
    return kind and f"is {kind}; {allowed}"


def printable(path: str) -> str:
    """A path as one line of text that can be encoded: control characters and bytes that are not UTF-8 as `\\xNN`."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return CONTROL.sub(lambda control: f"\\x{ord(control[0]):02x}", text)


def is_utf8(path: str) -> bool:
    """Whether a path is valid UTF-8, as programs like Spark need."""
    return not UNDECODED_BYTE.search(path)


def arrow_uri(uri: str) -> str:
    """A URI with the scheme as Arrow names it, in lower case; paths are unchanged."""
    if not SCHEME.match(uri):
        return uri
    scheme, separator, rest = uri.partition("://")
    return ARROW_SCHEMES.get(scheme.lower(), scheme.lower()) + separator + rest


def locate(uri: str) -> Location:
    """The file system and path of a URI or local path, the same for all spellings of a scheme.

    Raises OSError or ArrowException if there is no such system.
    """
    if uri.startswith(LOCAL):
        return Location(fs.LocalFileSystem(), unquote(uri[len(LOCAL) :], errors=UNDECODED), LOCAL)
    if not SCHEME.match(uri):
        return Location(fs.LocalFileSystem(), os.path.abspath(uri.removeprefix("file:")), LOCAL)
    uri = arrow_uri(uri)
    filesystem, path = fs.FileSystem.from_uri(uri)
    parts = urlsplit(uri)
    inside = unquote(parts.path).strip("/")  # within the bucket, which some file systems count as part of the path
    root = path.rstrip("/").removesuffix(inside)
    root = root if root.endswith("/") else root + "/"
    return Location(
        filesystem, path, f"{parts.scheme}://{parts.netloc}/", root, f"?{parts.query}" if parts.query else ""
    )


class Parts(NamedTuple):
    """Parts of a URI: `login` is `name:password@`, `public` its public part; `options` begin with '?'."""

    scheme: str
    login: str
    public: str
    path: str
    options: str


def parts_of(uri: str) -> Parts:
    """The parts of a URI, also of an invalid one.

    A login ends with an '@' before the first of '/?#' (RFC 3986, section 3.2). If there is a colon without such an '@',
    and it cannot be a port, one of these characters is unescaped in a password: then the login ends with the last '@'.
    """
    scheme, _, rest = uri.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    port = scheme in WITH_PORTS and authority.rpartition(":")[2].isdecimal()
    unescaped = ":" in authority and "@" not in authority and not port
    end = (rest if unescaped else authority).rfind("@") + 1
    login, (path, _, options) = rest[:end], rest[end:].partition("?")
    name, colon, _ = login.partition(":")
    public = name + "@" if scheme.startswith("abfs") else ""  # its name is the container
    return Parts(scheme, login, public if colon else login, path, f"?{options}" if options else "")


def public_uri(uri: str) -> str:
    """A URI or path without passwords and connection options, which may contain keys."""
    if uri.startswith(LOCAL) or not SCHEME.match(uri):
        return uri
    parts = parts_of(uri)
    return f"{parts.scheme}://{parts.public}{parts.path}"


def masked(text: str, *words: str) -> str:
    """A text without the parts that `public_uri` removes from the URIs among these words.

    A word may have a prefix, as in --output=s3://key:secret@bucket.
    """
    for word in words:
        found = SCHEME.search(word)
        if found is None or found[0] == LOCAL:
            continue
        parts = parts_of(word[found.start() :])
        for secret, public in ((parts.login, parts.public), (parts.options, "")):
            for spelled in filter(None, (secret, unquote(secret))):  # some systems unescape URIs in messages
                text = text.replace(spelled, public)
    return text


def error_line(error: BaseException, *uris: str) -> str:
    """The error in one line, without credentials of these URIs."""
    return masked(first_line(error), *uris)


def first_line(error: BaseException) -> str:
    """The error in one line, without the details that file systems add."""
    if isinstance(error, FileNotFoundError):
        return "no such file or directory"
    if isinstance(error, PermissionError):
        return "permission denied"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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
        self._uri, self._location = file.uri, locate(file.uri)
        self._raw = self._location.open()
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
        self._raw = self._location.open()
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
    """The rest of a capture in blocks of `size` bytes, more where a record is larger: (bytes, what `walk` finds in
    them, offset of the block). `walk` gets the bytes and whether they are the last ones, and says how many it
    consumed; the next block begins behind these. The bytes are valid until then."""
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
