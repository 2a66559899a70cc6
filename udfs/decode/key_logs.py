"""TLS secrets for decoding workers, from key logs and from Decryption Secrets Blocks of the captures themselves.

A task looks up the secrets of its connections by their client random. Memory holds only an index of a key log (offsets
of the lines by client random), so a log of a million lines costs a worker 16 MB; when a log has grown, the new lines
are read. If the key logs have no secrets of a connection, or none that authenticates, the blocks of all captures of the
set are searched, because one file may have those of the others. A client random is no secret, so that any file may have
wrong secrets for it: those of all files are candidates, in an order that does not depend on that of the files. Secrets
go to the ciphers only: plans and messages name just files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.capture.pcapng import SECTION_HEADER, SecretsWalker
from codec.compiler.limits import LIMITS
from codec.errors import WirehareError
from codec.layers.tls_handshake import (
    LABELS,
    RANDOM_BYTES,
    KeyLog,
    Secrets,
    add_secret,
    folded,
    joined_secrets,
    newest,
    parse_line,
)
from udfs.source.capture_bytes import (
    CaptureBytes,
    CaptureFile,
    error_line,
    in_blocks,
    locate,
    public_uri,
)
from udfs.source.paths import PathError, resolve

READ_BYTES = 1 << 20
LINE_BYTES = 512  # no line of a key log is longer
LOOKUP_BYTES = 1 << 13  # read at once to look lines up
RECENT_BYTES = 1 << 16  # at the end of a key log: some 60 connections
SAME_KEYS = 256  # lines read for one client random at most: those of all its candidates, and some more


class KeyLogError(WirehareError, ValueError):
    """A key log cannot be read; the message is one line."""


def require_key_logs(paths: Sequence[str]) -> None:
    """Raise KeyLogError if one of these files cannot be opened, or has no line of a key log."""
    for path in paths:
        try:
            with locate(path).open() as file:
                head = file.read(READ_BYTES)
        except (OSError, pa.ArrowException) as error:
            raise KeyLogError(f"key log {public_uri(path)}: {error_line(error, path)}") from None
        lines = [line for line in head.splitlines() if line.strip() and not line.startswith(b"#")]
        if lines and not any(len(line.split()) == 3 for line in lines):
            raise KeyLogError(
                f"key log {public_uri(path)}: has no line of a key log; expected lines of a label, a client random and "
                "a secret, as SSLKEYLOGFILE makes them"
            )


class KeyLogFile:
    """An indexed key log. `keys`: of client randoms (`folded`), int64, sorted; `_offsets`: where their lines begin."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: pa.NativeFile | None = None
        self._read = self._size = 0  # bytes of whole lines in the index; size of the file at that time
        self.keys: NDArray[np.int64] = np.zeros(0, np.int64)
        self._offsets: NDArray[np.int64] = np.zeros(0, np.int64)

    def secrets(self, client_random: bytes) -> Secrets:
        """The secrets of one connection; if it is unknown, new lines are indexed first."""
        try:
            return self._found(client_random) or (self._refresh() and self._found(client_random)) or {}
        except (OSError, pa.ArrowException):
            return {}

    def _refresh(self) -> bool:
        """Open the file, and index its new lines: whether there are any."""
        self._file = locate(self._path).open()
        size = int(self._file.size())
        if size < self._size:  # another file of the same name
            self._read, self.keys, self._offsets = 0, self.keys[:0], self._offsets[:0]
        if size == self._size:
            return False
        self._index(self._file, size)
        return True

    def of_tls13(self) -> list[tuple[bytes, Secrets]]:
        """(client random, secrets) of connections of TLS 1.3 at the end of the file, the newest first."""
        try:
            with locate(self._path).open() as file:
                file.seek(max(0, int(file.size()) - RECENT_BYTES))
                return KeyLog(file.read(RECENT_BYTES)).of_tls13()
        except (OSError, pa.ArrowException):
            return []

    def _found(self, client_random: bytes) -> Secrets:
        (key,) = folded(np.frombuffer(client_random, np.uint8)[None])
        begin, end = np.searchsorted(self.keys, key, "left"), np.searchsorted(self.keys, key, "right")
        found: Secrets = {}
        data, first = b"", 0  # of the file: lines of one connection are usually together
        for offset in self._offsets[begin : min(end, begin + SAME_KEYS)].tolist():
            if self._file is not None and offset + LINE_BYTES > first + len(data):
                self._file.seek(offset)
                data, first = self._file.read(LOOKUP_BYTES), offset
            at = offset - first
            parsed = parse_line(data[at : at + LINE_BYTES].split(b"\n", 1)[0])
            if parsed is not None and parsed[1] == client_random:
                add_secret(found, parsed[0], parsed[2])
        return found

    def _index(self, file: pa.NativeFile, size: int) -> None:
        """Index the lines after the last whole one; a line that is still being written is read again next time."""
        keys, offsets = [self.keys], [self._offsets]
        while self._read < size:
            file.seek(self._read)
            block = file.read(READ_BYTES)
            found, where = _lines_of(block)
            keys.append(found)
            offsets.append(where + self._read)
            last = self._read + len(block) >= size
            self._read += block.rfind(b"\n") + 1 or (0 if last else len(block))
            if last:
                break
        joined, where = np.concatenate(keys), np.concatenate(offsets)
        order = np.lexsort((where, joined))
        self.keys, self._offsets, self._size = joined[order], where[order], size


def _lines_of(block: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lines of a block with a known label: the keys of their client randoms, where they begin."""
    data = np.frombuffer(block + bytes(LINE_BYTES), np.uint8)
    starts = np.append(0, np.flatnonzero(data[: len(block)] == 0x0A) + 1)
    starts = starts[starts < len(block)]
    keys, offsets = [], []
    for label in LABELS:
        mine = starts
        for at, byte in enumerate(label + b" "):
            mine = mine[data[mine + at] == byte]
        if not len(mine):
            continue
        digits = data[mine[:, None] + len(label) + 1 + np.arange(2 * RANDOM_BYTES)]
        values = (digits & 15) + 9 * (digits >> 6)
        keys.append(folded(((values[:, ::2] << 4) | values[:, 1::2]).astype(np.uint8)))
        offsets.append(mine)
    if not keys:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(keys), np.concatenate(offsets).astype(np.int64)


@dataclass(frozen=True)
class SecretFiles:
    """Files with secrets: paths of key logs, and of captures as the user named them. Plans contain only these."""

    key_logs: tuple[str, ...] = ()
    captures: tuple[str, ...] = ()

    def open(self) -> FoundSecrets:
        """A source that looks up secrets in them."""
        return FoundSecrets(self)


class FoundSecrets:
    """Secrets of a worker's connections; see `codec.layers.tls_handshake.SecretSource`."""

    def __init__(self, files: SecretFiles) -> None:
        self._key_logs = [KeyLogFile(path) for path in files.key_logs]
        self._captures = files.captures
        self._blocks: list[BlockSecrets] | None = None
        self._known: tuple[list[NDArray[np.int64]], NDArray[np.int64]] = [], np.zeros(0, np.int64)

    def secrets(self, client_random: bytes) -> Secrets:
        """The secrets of one connection in the key logs; if these have none, in the captures."""
        assert len(client_random) == RANDOM_BYTES
        found = joined_secrets(log.secrets(client_random) for log in self._key_logs)
        return found or self.others(client_random)

    def others(self, client_random: bytes) -> Secrets:
        """The secrets of one connection in the captures."""
        return joined_secrets(blocks.secrets(client_random) for blocks in self._of_captures())

    def known(self) -> tuple[NDArray[np.int64], bool]:
        """See `codec.layers.tls_handshake.SecretSource`: of the captures, once these were searched."""
        keys = [log.keys for log in self._key_logs] + [blocks.keys for blocks in self._blocks or ()]
        before, joined = self._known
        if len(before) != len(keys) or any(one is not other for one, other in zip(before, keys, strict=True)):
            joined = np.unique(np.concatenate([np.zeros(0, np.int64), *keys]))
            self._known = keys, joined
        return joined, self._blocks is not None or not self._captures

    def recent(self) -> list[Secrets]:
        """Those of the key logs; without key logs, those of the captures."""
        logs: Sequence[KeyLogFile | BlockSecrets] = self._key_logs or self._of_captures()
        return newest([log.of_tls13() for log in logs])

    def _of_captures(self) -> list[BlockSecrets]:
        if self._blocks is None:
            self._blocks = []
            with suppress(PathError, OSError, pa.ArrowException):
                for file in resolve(self._captures) if self._captures else ():
                    blocks = BlockSecrets(blocks_of(file))
                    if blocks:
                        self._blocks.append(blocks)
        return self._blocks


class BlockSecrets:
    """The secrets in the Decryption Secrets Blocks of one capture: its lines, and their index as in `KeyLogFile`."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        keys, offsets, lines, end = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [], 0
        room = LIMITS.secret_lines
        for piece in (piece for block in blocks for piece in _pieces(block)):
            data, found, where = _known_lines(piece, room)
            keys.append(found)
            offsets.append(where + end)
            lines.append(data)
            end += len(data)
            room -= len(found)
            if not room:
                break
        self._lines = b"".join(lines)
        joined, where = np.concatenate(keys), np.concatenate(offsets)
        order = np.lexsort((where, joined))
        self.keys, self._offsets = joined[order], where[order]

    def __len__(self) -> int:
        return len(self.keys)

    def secrets(self, client_random: bytes) -> Secrets:
        """The secrets of one connection."""
        (key,) = folded(np.frombuffer(client_random, np.uint8)[None])
        begin, end = np.searchsorted(self.keys, key, "left"), np.searchsorted(self.keys, key, "right")
        found: Secrets = {}
        for offset in self._offsets[begin : min(end, begin + SAME_KEYS)].tolist():
            parsed = parse_line(self._lines[offset : offset + LINE_BYTES].split(b"\n", 1)[0])
            if parsed is not None and parsed[1] == client_random:
                add_secret(found, parsed[0], parsed[2])
        return found

    def of_tls13(self) -> list[tuple[bytes, Secrets]]:
        """(client random, secrets) of connections of TLS 1.3 in the last lines, the newest first."""
        return KeyLog(self._lines[-RECENT_BYTES:]).of_tls13()


def _pieces(block: bytes) -> Iterator[bytes]:
    """Whole lines, together READ_BYTES at most; longer ones are no lines of a key log."""
    at = 0
    while at < len(block):
        end = at + READ_BYTES
        end = len(block) if end >= len(block) else (block.rfind(b"\n", at, end) + 1 or end)
        yield block[at:end]
        at = end


def _known_lines(block: bytes, room: int) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """The first `room` lines of a piece that have a known label, end to end; the keys of their client randoms, where
    they begin."""
    keys, offsets = _lines_of(block)
    order = np.argsort(offsets)[:room]
    keys, offsets = keys[order], offsets[order]
    data = np.frombuffer(block, np.uint8)
    ends = np.append(np.flatnonzero(data == 0x0A) + 1, len(data))
    sizes = np.minimum(ends[np.searchsorted(ends, offsets, "right")] - offsets, LINE_BYTES)
    begins = np.cumsum(sizes) - sizes
    rows = np.repeat(offsets - begins, sizes) + np.arange(int(sizes.sum()))
    return data[rows].tobytes() + b"\n", keys, begins


def blocks_of(file: CaptureFile) -> Iterator[bytes]:
    """Key logs in the Decryption Secrets Blocks of a capture, those of each part of the file that is read at once in
    one piece, since blocks may be many and small; none if it cannot be read."""
    try:
        with CaptureBytes(file) as capture:
            if not capture.head.startswith(SECTION_HEADER):
                return
            walker = SecretsWalker()
            for _, found, _ in in_blocks(capture, lambda data, _: walker.walk(data), READ_BYTES):
                yield b"\n".join(found)
                if walker.damaged:
                    return
    except (OSError, pa.ArrowException):
        return
