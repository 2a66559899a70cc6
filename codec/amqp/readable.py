"""Frames for a person at a prompt: octets in, named frames with their arguments as dicts out.

    >>> for frame in decode(bytes.fromhex("01000100000005 0014000b 00 ce".replace(" ", ""))):
    ...     print(frame.version, frame.channel, frame.name)
    0-9-1 1 channel.open-ok

Not for captures: frames are read one by one, each alone, so what only the frames before it tell is not there (which
method announced a content, the number of a 0-10 command). Captures go through `pipeline.decode`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codec.amqp import rows as R
from codec.amqp.detected_version import versions_spoken
from codec.amqp.names import NAMES
from codec.amqp.notes import note_names
from codec.amqp.standalone import HEADER_OCTETS, AloneDecoder
from codec.amqp.versions import (
    CLASSIC,
    DESCRIBED,
    ERRORS,
    FAMILY_OF_VERSION,
    FRAME_TYPES,
    NONE,
    SEGMENTED,
    STATUSES,
    VERSIONS,
)
from codec.errors import WirehareError
from codec.variant.python_values import decode as plain

# Where a frame states its size: (first octet, octets, what the size does not count).
SIZE_FIELD = {CLASSIC: (3, 4, 8), SEGMENTED: (2, 2, 0), DESCRIBED: (0, 4, 0)}
SMALLEST_FRAME = {CLASSIC: 8, SEGMENTED: 12, DESCRIBED: 8}


class UnknownVersion(WirehareError, ValueError):
    """Octets that begin neither with a protocol header nor with a whole frame of any version."""


@dataclass(frozen=True)
class Frame:
    """One frame, or one protocol header.

    `frame_type`, `name`, `status`, `error` and `notes` are as in table `frames`; `arguments` and `properties` are
    dicts of Python values, None where the frame has none. `octets` is the frame as it was given, secrets included, and
    no part of the text that a prompt shows.
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
    octets: bytes = field(repr=False)


def decode(octets: bytes, version: str | None = None) -> list[Frame]:
    """The frames that `octets` are: what one side of a connection sent, from a protocol header or a frame on.

    `version` is '0-8', '0-9', '0-9-1', '0-10' or '1.0'; without it, the protocol header or the frames tell. Octets
    after the last whole frame are a frame of type 'skipped' with status 'malformed'. Raises UnknownVersion where
    nothing tells the version, and for a version that does not exist. Secrets are not shown, as in the tables.
    """
    found: list[Frame] = []
    known = NONE if version is None else _code(version)
    for piece, spoken in _pieces(octets, known):
        found += _rows(piece, spoken)
    return found


def _code(version: str) -> int:
    if not version or version not in VERSIONS:
        raise UnknownVersion(f"no version {version!r} of AMQP: expected one of {', '.join(filter(None, VERSIONS))}")
    return VERSIONS.index(version)


def _recognised(octets: bytes) -> int:
    array = np.frombuffer(octets, np.uint8)
    code = int(versions_spoken(array, np.array([0, len(array)], np.int64))[0])
    if code == NONE:
        raise UnknownVersion("these octets begin neither with a protocol header nor with a whole frame of AMQP")
    return code


def _pieces(octets: bytes, known: int) -> Iterator[tuple[bytes, int]]:
    """Octets of one frame each, with the version that they are read as: each protocol header decides anew."""
    at, spoken = 0, known
    while at < len(octets):
        if octets.startswith(b"AMQP", at) and len(octets) - at >= HEADER_OCTETS:
            piece = octets[at : at + HEADER_OCTETS]
            spoken = known if known != NONE else _recognised(piece)
        else:
            spoken = _recognised(octets[at:]) if spoken == NONE else spoken
            piece = octets[at : at + _size(octets, at, int(FAMILY_OF_VERSION[spoken]))]
        yield piece, spoken
        at += len(piece)


def _size(octets: bytes, at: int, family: int) -> int:
    """Octets of the frame at `at`; all that is left, where it states no size that fits."""
    first, width, uncounted = SIZE_FIELD[family]
    size = int.from_bytes(octets[at + first : at + first + width], "big") + uncounted
    left = len(octets) - at
    return size if SMALLEST_FRAME[family] <= size <= left else left


def _rows(piece: bytes, version: int) -> Iterator[Frame]:
    array = np.frombuffer(bytearray(piece), np.uint8)
    for batch in AloneDecoder().frames(array, np.array([0, len(array)], np.int64), version):
        for cells in batch.cells:
            yield Frame(
                version=str(VERSIONS[version]),
                channel=None if cells[R.CHANNEL] < 0 else int(cells[R.CHANNEL]),
                frame_type=FRAME_TYPES[cells[R.TYPE]],
                name=_word(NAMES, cells[R.NAME]),
                arguments=_value(batch.arguments, batch.arguments_metadata, cells, R.ARGUMENTS_END),
                properties=_value(batch.properties, batch.properties_metadata, cells, R.PROPERTIES_END),
                status=STATUSES[cells[R.STATUS]],
                error=_word(ERRORS, cells[R.ERROR]),
                notes=tuple(note_names(int(cells[R.NOTES])) or ()),
                octets=piece,
            )


def _word(words: Sequence[str | None], code: int) -> str | None:
    return words[code] if code >= 0 else None


def _value(heap: np.ndarray, metadata: np.ndarray, cells: np.ndarray, end: int) -> Any:
    """The VARIANT of the only row of a batch."""
    value = heap[: cells[end]].tobytes()
    return plain(value, metadata[: cells[end + 1]].tobytes()) if value else None
