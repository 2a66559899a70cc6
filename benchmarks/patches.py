"""What differs from message to message and from connection to connection: computed with numpy for many of both at once,
and put over the copies of a template.
"""

from __future__ import annotations

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
    """Places of a stream, one for each of `messages`, where `width` bytes are what `kind` says."""

    at: Integers
    messages: Integers
    width: int
    kind: Counter | Text


def octets(kind: Counter | Text, width: int, messages: Integers, connections: Integers) -> Bytes:
    """What stands in such places: (connections, messages, `width`), or 1 instead of what it does not depend on."""
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
    """Other numbers for other numbers, each bit of which hangs on every bit."""
    for shift, factor in ROUNDS:
        words = (words ^ words >> np.uint64(shift)) * np.uint64(factor)
    return words


def apply(rows: Bytes, patches: list[Patch], connections: Integers) -> None:
    """Patch `rows`, the same stream for each of the connections: (connections, bytes)."""
    for patch in patches:
        places = patch.at[:, None] + np.arange(patch.width)
        rows[:, places] = octets(patch.kind, patch.width, patch.messages, connections)
