"""The state of a VARIANT writer: heaps, positions, scratch; allocation of room, and errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.memory import copy_bytes, sparse_zeros

OK, FULL, TOO_LARGE, TOO_DEEP, MALFORMED = range(5)  # MALFORMED is for decoders: the value ends at the error

# Cells of `Writer.positions`. NOTES: bits that decoders set while they write a value. ESCAPED: the number of texts that
# are not UTF-8. MASKED: of those with userinfo. AS_TEXT: bytes that may be text are text.
VALUE, METADATA, VALUE_FROM, METADATA_FROM, ROOM, CODE, SHORT_OF, KEYS, DEPTH, ENTRIES, GENERATION, NOTES = range(12)
ESCAPED, AS_TEXT, MASKED = 12, 13, 14
# What a writer lacked room in (cell SHORT_OF), for `enlarge`.
SHORT_VALUE, SHORT_METADATA, SHORT_SCRATCH = range(3)

VARIANT_BYTES = LIMITS.variant_bytes
KEY_TEXT = 1024  # a shortstr of 255 bytes, each escaped as four characters
_GENERATIONS = 1 << 30


class Writer(NamedTuple):
    """`value`, `metadata` uint8 heaps, used up to `positions[VALUE]` and `positions[METADATA]`; the rest is scratch.

    All int64: `stack` (depth, 3) open containers: start, reserved header room, first entry; `nest` (depth, 2) a stack
    for decoders; `key_at` end of each key of this value in the dictionary text; `slots` hash table of the keys
    (generation << 32 | key); `entry_id`, `entry_at` key and offset of each open entry; `order` twice as long, for
    sorting. `text` uint8 (KEY_TEXT,) is for callers that compose a text.
    """

    value: np.ndarray
    metadata: np.ndarray
    positions: np.ndarray
    stack: np.ndarray
    nest: np.ndarray
    key_at: np.ndarray
    slots: np.ndarray
    entry_id: np.ndarray
    entry_at: np.ndarray
    order: np.ndarray
    text: np.ndarray


def new_writer(value_bytes: int = 1 << 16, metadata_bytes: int = 1 << 16, entries: int = 1024) -> Writer:
    """A writer with heaps of these sizes and scratch for `entries` (rounded up to a power of two) open entries and
    keys."""
    depth = LIMITS.nesting_depth + 8  # containers that decoders add around the nesting that they bound
    entries = 1 << max(entries - 1, 1).bit_length()
    return Writer(
        sparse_zeros(value_bytes, np.uint8),
        sparse_zeros(metadata_bytes, np.uint8),
        np.zeros(15, np.int64),
        np.zeros((depth, 3), np.int64),
        np.zeros((depth, 2), np.int64),
        np.zeros(entries + 1, np.int64),
        np.zeros(2 * entries, np.int64),
        np.zeros(entries, np.int64),
        np.zeros(entries, np.int64),
        np.zeros(2 * entries, np.int64),
        np.zeros(KEY_TEXT, np.uint8),
    )


def enlarge(w: Writer) -> Writer:
    """A writer with twice the room that `w` lacked at its last FULL, and the finished values of `w`."""
    rollback(w)
    short = int(w.positions[SHORT_OF])
    larger = new_writer(
        len(w.value) * (2 if short == SHORT_VALUE else 1),
        len(w.metadata) * (2 if short == SHORT_METADATA else 1),
        len(w.entry_id) * (2 if short == SHORT_SCRATCH else 1),
    )
    value, metadata = int(w.positions[VALUE]), int(w.positions[METADATA])
    larger.value[:value] = w.value[:value]
    larger.metadata[:metadata] = w.metadata[:metadata]
    larger.positions[VALUE] = value
    larger.positions[METADATA] = metadata
    return larger


@kernel
def begin(w):
    """Begin a value at the end of the heaps."""
    p = w.positions
    p[VALUE_FROM] = p[VALUE]
    p[METADATA_FROM] = p[METADATA]
    p[ROOM] = min(len(w.value), int(p[VALUE]) + VARIANT_BYTES)
    p[CODE] = OK
    p[NOTES] = 0
    p[ESCAPED] = 0
    p[AS_TEXT] = 0
    p[MASKED] = 0
    p[KEYS] = 0
    p[DEPTH] = 0
    p[ENTRIES] = 0
    p[GENERATION] += 1
    if p[GENERATION] == _GENERATIONS:
        p[GENERATION] = 1
        w.slots[:] = 0


@kernel
def rollback(w):
    """Remove everything written since `begin`."""
    w.positions[VALUE] = w.positions[VALUE_FROM]
    w.positions[METADATA] = w.positions[METADATA_FROM]


@kernel
def error_code(w):
    """The code that `finish` will return, so that a decoder can stop early: OK without errors."""
    return int(w.positions[CODE])


@kernel
def note(w, bits):
    """Set `bits` among the notes of this value."""
    w.positions[NOTES] |= bits


@kernel
def bytes_are_text(w, truth):
    """Whether bytes that may be text are text in the next values: those of a peer that describes itself."""
    w.positions[AS_TEXT] = 1 if truth else 0


@kernel
def fail(w, code, short_of):
    if w.positions[CODE] == OK:
        w.positions[CODE] = code
        w.positions[SHORT_OF] = short_of
        w.positions[ROOM] = -1


@kernel
def allocate(w, size):
    """Allocate `size` more bytes of value: their offset, or -1."""
    p = w.positions
    at = int(p[VALUE])
    if at + size > p[ROOM]:
        fail(w, TOO_LARGE if at + size > p[VALUE_FROM] + VARIANT_BYTES else FULL, SHORT_VALUE)
        return -1
    p[VALUE] = at + size
    return at


@kernel
def put_le(heap, at, number, size):
    """The low `size` bytes of `number`, little-endian."""
    for i in range(size):
        heap[at + i] = (number >> (8 * i)) & 0xFF


@kernel
def shift(heap, start, end, distance):
    """Move `heap[start:end]` by `distance`."""
    if distance > 0:
        source, target = heap[start:end], heap[start + distance : end + distance]
        for i in range(len(source) - 1, -1, -1):
            target[i] = source[i]
    elif distance < 0:
        copy_bytes(heap, start + distance, heap, start, end)


@kernel
def width(number):
    """Bytes that hold the unsigned `number`: 1 to 4."""
    if number < 1 << 8:
        return 1
    if number < 1 << 16:
        return 2
    return 3 if number < 1 << 24 else 4
