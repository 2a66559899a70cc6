"""What generated talk is made of: `Unit`, the bytes of one side for one message, and `Script`, a talk of one version.

A unit is encoded once, with markers in the places of what differs from message to message; `unit` finds the markers,
and the generator patches millions of copies with numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
CLIENT, SERVER = 0, 1
Step = tuple[int, bytes]  # side, bytes


@dataclass(frozen=True)
class Counter:
    """`stride` times the message's number within its connection (0 for the first) plus `added`, at least 0; or the
    connection's number. Big-endian, or as hexadecimal `digits`."""

    added: int = 0
    stride: int = 1
    of_connection: bool = False
    digits: bool = False


@dataclass(frozen=True)
class Unit:
    """What one side sends for one message. patches: (offset, width in bytes, what stands there)"""

    data: Bytes
    patches: tuple[tuple[int, int, Counter], ...]


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
# The same at the head of a body, so that no two are equal.
BODY_DIGITS = b"5ca1ab1e"
BODY_HEAD = b'{"number":"' + BODY_DIGITS + b'","text":"'
IN_BODY = {BODY_DIGITS: Counter(digits=True)}


def marker(number: int, width: int) -> bytes:
    """Octets that stand for a counter while a unit is encoded; no encoding shortens the number that they are."""
    return bytes([0x7A, 0xC3, 0x96, 0xE1, 0x5B, 0xD4, 0x8F][: width - 1]) + bytes([number])


def numbered(octets: bytes) -> int:
    """The number that a marker is."""
    return int.from_bytes(octets, "big")


def unit(data: bytes, counters: Mapping[bytes, Counter]) -> Unit:
    """A unit out of its encoded bytes; counters: marker -> what stands in its place.

    Raises ValueError for a marker that is not there exactly once.
    """
    patches = []
    for octets, counter in counters.items():
        if data.count(octets) != 1:
            raise ValueError(f"marker {octets.hex()} stands {data.count(octets)} times in a unit; expected one")
        patches.append((data.index(octets), len(octets), counter))
    return Unit(np.frombuffer(data, np.uint8), tuple(patches))


def sizes(message_bytes: int) -> list[int]:
    """Sizes of bodies: 16 of them around the mean, from a tenth to nearly twice as many bytes."""
    return [max(1, int(message_bytes * share)) for share in np.linspace(0.1, 1.9, 16)]


def body_of(rng: np.random.Generator, size: int) -> tuple[bytes, Mapping[bytes, Counter]]:
    """Text of `size` bytes that looks like JSON to a compressor, and what differs in it from message to message, which
    is nothing where there is no room."""
    letters = np.frombuffer(b'abcdefghijklmnopqrstuvwxyz0123456789 ":,{}', np.uint8)
    text = letters[rng.integers(0, len(letters), size)].tobytes()
    if size <= len(BODY_HEAD):
        return text, {}
    return BODY_HEAD + text[len(BODY_HEAD) :], IN_BODY
