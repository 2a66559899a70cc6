"""Templates of generated traffic: `Unit`, the bytes of one side for one message, and `Script`, one connection.

A unit is encoded once, with markers in place of what differs between messages and connections. `unit` finds the
markers; numpy computes what replaces them for many messages and connections at once, and patches the copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
# Two words of letters and one that is always the same, as names of fields are in JSON. A compressor leaves a half of
# such text (zstd, level 1), and three quarters where it only looks for repeated words (lz4).
LETTERS = np.resize(np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789 ._-:/", np.uint8), 256)
BETWEEN = np.frombuffer(b'","eu":"', np.uint8)
WORD_BYTES, FIELD_WORDS = len(BETWEEN), 3
# SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): its step, shifts and factors.
STEP = np.uint64(0x9E3779B97F4A7C15)
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


@dataclass(frozen=True)
class Counter:
    """`stride` times the message's number within its connection (0 for the first) plus `added`, at least 0; or the
    connection's number. Big-endian, or as hexadecimal `digits`."""

    added: int = 0
    stride: int = 1
    of_connection: bool = False
    digits: bool = False


@dataclass(frozen=True)
class Text:
    """Pseudo-random text, another for each `key`, message and connection."""

    key: int
    of_connection: ClassVar[bool] = True


@dataclass(frozen=True)
class Patch:
    """Offsets in a stream, one for each of `messages`, where `width` bytes are replaced by `kind`."""

    at: Integers
    messages: Integers
    width: int
    kind: Counter | Text


def raw_bytes(kind: Counter | Text, width: int, messages: Integers, connections: Integers) -> Bytes:
    """The replacements: (connections, messages, `width`), 1 in a dimension that they do not depend on."""
    if isinstance(kind, Text):
        return letters(np.uint64(kind.key) ^ mixed((connections[:, None] << 32 | messages).astype(np.uint64)), width)
    numbers = connections[:, None] if kind.of_connection else (messages * kind.stride + kind.added)[None, :]
    eight = np.maximum(numbers, 0).astype(">u8")[..., None].view(np.uint8)
    if kind.digits:
        eight = DIGITS[np.stack((eight >> 4, eight & 15), -1)].reshape(*numbers.shape, 16)
    return eight[..., -width:]


def letters(seeds: NDArray[np.uint64], width: int) -> Bytes:
    """A text of `width` bytes for each seed, in a last axis of its own."""
    steps = STEP * np.arange(-(-width // WORD_BYTES), dtype=np.uint64)
    words = mixed(mixed(seeds)[..., None] + steps)
    text = LETTERS[words[..., None].view(np.uint8)]
    text[..., FIELD_WORDS - 1 :: FIELD_WORDS, :] = BETWEEN
    return text.reshape(*seeds.shape, -1)[..., :width]


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers in which each bit depends on every bit."""
    for shift, factor in ROUNDS:
        words = (words ^ words >> np.uint64(shift)) * np.uint64(factor)
    return words


def apply(rows: Bytes, patches: list[Patch], connections: Integers) -> None:
    """Patch `rows`, the same stream for each of the connections: (connections, bytes)."""
    for patch in patches:
        indices = patch.at[:, None] + np.arange(patch.width)
        rows[:, indices] = raw_bytes(patch.kind, patch.width, patch.messages, connections)


CLIENT, SERVER = 0, 1
Step = tuple[int, bytes]  # side, bytes


@dataclass(frozen=True)
class Unit:
    """What one side sends for one message. `patches`: (offset, width in bytes, content)"""

    data: Bytes
    patches: tuple[tuple[int, int, Counter | Text], ...]


@dataclass(frozen=True)
class Script:
    """One connection: `opening`; a unit of either side for each message, of several sizes around a mean; `closing`
    after a number of messages, the last burst of which is not settled yet.

    units: (random generator, burst, mean bytes of a body) -> units of client and server. Messages come in bursts: a
    client settles the messages of the burst before. Of the client there are twice as many: the second half, for the
    first burst, settles nothing.
    """

    opening: Callable[[], list[Step]]
    units: Callable[[np.random.Generator, int, int], tuple[list[Unit], list[Unit]]]
    closing: Callable[[int, int], list[Step]]


MESSAGE_DIGITS, CONNECTION_DIGITS = b"0badf00d", b"0ddba115"
# A message-id that is unique in the capture, and the counters in it.
MESSAGE_ID = b"m-" + CONNECTION_DIGITS + b"-" + MESSAGE_DIGITS
IN_MESSAGE_ID = {MESSAGE_DIGITS: Counter(digits=True), CONNECTION_DIGITS: Counter(of_connection=True, digits=True)}
# The same at the start of a body, so that no two are equal; the rest is text.
BODY_DIGITS, BODY_CONNECTION_DIGITS = b"5ca1ab1e", b"ca55e77e"
BODY_HEAD = BODY_CONNECTION_DIGITS + BODY_DIGITS
IN_BODY = {BODY_DIGITS: Counter(digits=True), BODY_CONNECTION_DIGITS: Counter(of_connection=True, digits=True)}
FILLER = b"~"  # replaced by text, if at least eight follow one another
TEXT = re.compile(FILLER + b"{8,}")


def marker(number: int, width: int) -> bytes:
    """Bytes in place of a counter while a unit is encoded; no encoding shortens them as a number."""
    return bytes([0x7A, 0xC3, 0x96, 0xE1, 0x5B, 0xD4, 0x8F][: width - 1]) + bytes([number])


def marker_value(raw_bytes: bytes) -> int:
    """A marker as a number."""
    return int.from_bytes(raw_bytes, "big")


def unit(data: bytes, kinds: Mapping[bytes, Counter | Text]) -> Unit:
    """A unit from its encoded bytes. `kinds`: marker -> its replacement. A text has one patch per frame.

    Raises ValueError if the marker of a counter does not occur exactly once.
    """
    patches: list[tuple[int, int, Counter | Text]] = []
    for raw_bytes, kind in kinds.items():
        if isinstance(kind, Text):
            pieces = enumerate(TEXT.finditer(data))
            patches += [(match.start(), len(match[0]), Text(kind.key + piece)) for piece, match in pieces]
        elif data.count(raw_bytes) != 1:
            raise ValueError(f"marker {raw_bytes.hex()} occurs {data.count(raw_bytes)} times in a unit; expected one")
        else:
            patches.append((data.index(raw_bytes), len(raw_bytes), kind))
    return Unit(np.frombuffer(data, np.uint8), tuple(patches))


def sizes(message_bytes: int) -> list[int]:
    """Sizes of bodies: 16 of them around the mean, from a tenth to nearly twice as many bytes; room for the head."""
    return [max(len(BODY_HEAD), int(message_bytes * share)) for share in np.linspace(0.1, 1.9, 16)]


def body_of(rng: np.random.Generator, size: int) -> tuple[bytes, Mapping[bytes, Counter | Text]]:
    """A body of `size` bytes, one of `sizes`, and the patches in it."""
    body = BODY_HEAD + FILLER * (size - len(BODY_HEAD))
    return body, IN_BODY | {FILLER: Text(int(rng.integers(2**62)))}
