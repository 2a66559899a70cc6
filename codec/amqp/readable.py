"""Frames at a prompt: bytes to named frames, with arguments as dicts.

    >>> for frame in decode(bytes.fromhex("01 0001 00000004 0014 0029 ce")):
    ...     print(frame.version, frame.channel, frame.name)
    0-9-1 1 channel.close-ok

Each frame is decoded on its own, without context from earlier frames (the method of a content, the id of a 0-10
command). `pipeline.decode` decodes captures. Cost: linear in the bytes, with a Python call for each frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codec.amqp.standalone import HEADER_BYTES, StandaloneDecoder, detect_versions
from codec.errors import WirehareError
from codec.protocol import rows as R
from codec.protocol import versions as V
from codec.protocol.rows import NAMES, note_names
from codec.variant import decode as to_python

# The size field of a frame: (first byte, bytes, bytes of the frame that the size does not count).
SIZE_FIELD = {V.CLASSIC: (3, 4, 8), V.V0_10_FAMILY: (2, 2, 0), V.V1_0_FAMILY: (0, 4, 0)}
SMALLEST_FRAME = {V.CLASSIC: 8, V.V0_10_FAMILY: 12, V.V1_0_FAMILY: 8}


class UnknownVersion(WirehareError, ValueError):
    """The bytes begin neither with a protocol header nor with a whole frame of any version."""


@dataclass(frozen=True)
class Frame:
    """A frame, or a protocol header, that `decode` has read.

    `frame_type`, `name`, `status`, `error` and `notes` are as in table `frames`; `arguments` and `properties` are dicts
    of Python values, None where the frame has none. `data` has the bytes of the frame, secrets included; they are not
    part of the `repr`.
    """

    version: str
    channel: int | None
    frame_type: str
    name: str | None
    arguments: Any
    properties: Any
    status: str
    error: str | None
    notes: tuple[str, ...]
    data: bytes = field(repr=False)


def decode(data: bytes, version: str | None = None) -> list[Frame]:
    """The frames in `data`, bytes that one side of a connection sent, beginning with a protocol header or a frame.

    `version` is '0-8', '0-9', '0-9-1', '0-10' or '1.0'. Without it, the protocol header or the frames determine it.
    Bytes after the last whole frame are a frame of type 'skipped' with status 'malformed'. Raises UnknownVersion when
    the version cannot be determined or does not exist. As in the tables, secrets are hidden.
    """
    found: list[Frame] = []
    known = V.NONE if version is None else _code(version)
    for piece, code in _pieces(data, known):
        found += _rows(piece, code)
    return found


def _code(version: str) -> int:
    if not version or version not in V.VERSIONS:
        raise UnknownVersion(f"no version {version!r} of AMQP: expected one of {', '.join(filter(None, V.VERSIONS))}")
    return V.VERSIONS.index(version)


def _detected(data: bytes) -> int:
    array = np.frombuffer(bytearray(data), np.uint8)  # writable: the kernel is compiled for such bytes
    code = int(detect_versions(array, np.array([0, len(array)], np.int64))[0])
    if code == V.NONE:
        raise UnknownVersion("not AMQP: expected a protocol header or a complete frame at byte 0")
    return code


def _pieces(data: bytes, known: int) -> Iterator[tuple[bytes, int]]:
    """(bytes of one frame, its version); each protocol header changes the version unless it is `known`."""
    at, code = 0, known
    while at < len(data):
        if data.startswith(b"AMQP", at) and len(data) - at >= HEADER_BYTES:
            piece = data[at : at + HEADER_BYTES]
            code = known if known != V.NONE else _detected(piece)
        else:
            code = _detected(data[at:]) if code == V.NONE else code
            piece = data[at : at + _size(data, at, int(V.FAMILY_OF_VERSION[code]))]
        yield piece, code
        at += len(piece)


def _size(data: bytes, at: int, family: int) -> int:
    """Size of the frame at `at`; all remaining bytes where its size field does not fit."""
    first, width, uncounted = SIZE_FIELD[family]
    size = int.from_bytes(data[at + first : at + first + width], "big") + uncounted
    rest = len(data) - at
    return size if SMALLEST_FRAME[family] <= size <= rest else rest


def _rows(piece: bytes, version: int) -> Iterator[Frame]:
    array = np.frombuffer(bytearray(piece), np.uint8)
    for batch in StandaloneDecoder().frames(array, np.array([0, len(array)], np.int64), version):
        for cells in batch.cells:
            yield Frame(
                version=str(V.VERSIONS[version]),
                channel=None if cells[R.CHANNEL] < 0 else int(cells[R.CHANNEL]),
                frame_type=V.FRAME_TYPES[cells[R.TYPE]],
                name=_text(NAMES, cells[R.NAME]),
                arguments=_value(batch.arguments, batch.arguments_metadata, cells, R.ARGUMENTS_END),
                properties=_value(batch.properties, batch.properties_metadata, cells, R.PROPERTIES_END),
                status=V.STATUSES[cells[R.STATUS]],
                error=_text(V.ERRORS, cells[R.ERROR]),
                notes=tuple(note_names(int(cells[R.NOTES])) or ()),
                data=piece,
            )


def _text(texts: Sequence[str | None], code: int) -> str | None:
    return texts[code] if code >= 0 else None


def _value(heap: np.ndarray, metadata: np.ndarray, cells: np.ndarray, end: int) -> Any:
    """The VARIANT of the only row of a batch."""
    value = heap[: cells[end]].tobytes()
    return to_python(value, metadata[: cells[end + 1]].tobytes()) if value else None
