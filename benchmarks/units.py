"""What generated talk is made of: `Unit`, the bytes of one side for one message, and `Script`, a talk of one version.

A unit is encoded once, with markers in the places of what differs from message to message; `unit` finds the markers,
and the generator patches millions of copies with numpy (benchmarks/patches.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.patches import Bytes, Counter, Text

CLIENT, SERVER = 0, 1
Step = tuple[int, bytes]  # side, bytes


@dataclass(frozen=True)
class Unit:
    """What one side sends for one message. patches: (offset, width in bytes, what stands there)"""

    data: Bytes
    patches: tuple[tuple[int, int, Counter | Text], ...]


@dataclass(frozen=True)
class Script:
    """The talk of one connection: `opening`; for each message a unit of either side, out of several sizes around a
    mean; `closing` after so many messages.

    units: (dice, burst, mean bytes of a body) -> units of client and server. Messages come in bursts: a client settles
    what the server delivered in the burst before.
    """

    opening: Callable[[], list[Step]]
    units: Callable[[np.random.Generator, int, int], tuple[list[Unit], list[Unit]]]
    closing: Callable[[int], list[Step]]


MESSAGE_DIGITS, CONNECTION_DIGITS = b"0badf00d", b"0ddba115"
# A message-id unlike any other of the capture, and how its places are counted.
MESSAGE_ID = b"m-" + CONNECTION_DIGITS + b"-" + MESSAGE_DIGITS
IN_MESSAGE_ID = {
    MESSAGE_DIGITS: Counter(digits=True),
    CONNECTION_DIGITS: Counter(of_connection=True, digits=True),
}
# The same at the head of a body, so that no two are equal; the rest is text.
BODY_DIGITS, BODY_CONNECTION_DIGITS = b"5ca1ab1e", b"ca55e77e"
BODY_HEAD = BODY_CONNECTION_DIGITS + BODY_DIGITS
IN_BODY = {BODY_DIGITS: Counter(digits=True), BODY_CONNECTION_DIGITS: Counter(of_connection=True, digits=True)}
FILLER = b"~"  # where text will stand; a stretch of fewer than these stays as it is
TEXT = re.compile(FILLER + b"{8,}")


def marker(number: int, width: int) -> bytes:
    """Octets that stand for a counter while a unit is encoded; no encoding shortens the number that they are."""
    return bytes([0x7A, 0xC3, 0x96, 0xE1, 0x5B, 0xD4, 0x8F][: width - 1]) + bytes([number])


def numbered(octets: bytes) -> int:
    """The number that a marker is."""
    return int.from_bytes(octets, "big")


def unit(data: bytes, kinds: Mapping[bytes, Counter | Text]) -> Unit:
    """A unit out of its encoded bytes; kinds: marker -> what stands in its place. A text has as many places as frames
    cut it into.

    Raises ValueError for the marker of a counter that is not there exactly once.
    """
    patches: list[tuple[int, int, Counter | Text]] = []
    for octets, kind in kinds.items():
        if isinstance(kind, Text):
            pieces = enumerate(TEXT.finditer(data))
            patches += [(place.start(), len(place[0]), Text(kind.key + piece)) for piece, place in pieces]
        elif data.count(octets) != 1:
            raise ValueError(f"marker {octets.hex()} stands {data.count(octets)} times in a unit; expected one")
        else:
            patches.append((data.index(octets), len(octets), kind))
    return Unit(np.frombuffer(data, np.uint8), tuple(patches))


def sizes(message_bytes: int) -> list[int]:
    """Sizes of bodies: 16 of them around the mean, from a tenth to nearly twice as many bytes; room for the head."""
    return [max(len(BODY_HEAD), int(message_bytes * share)) for share in np.linspace(0.1, 1.9, 16)]


def body_of(rng: np.random.Generator, size: int) -> tuple[bytes, Mapping[bytes, Counter | Text]]:
    """A body of `size` bytes, one of `sizes`, and what stands in it for each message."""
    body = BODY_HEAD + FILLER * (size - len(BODY_HEAD))
    return body, IN_BODY | {FILLER: Text(int(rng.integers(2**62)))}
