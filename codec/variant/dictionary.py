"""The dictionary of keys (metadata) of a VARIANT value, and known key sets.

While a value is written its dictionary text grows at the end of the metadata heap; `finish` puts the header before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import inlined, kernel
from codec.compiler.limits import LIMITS
from codec.cursor import octet
from codec.variant.writer import (
    CODE,
    FULL,
    GENERATION,
    KEYS,
    METADATA,
    OK,
    SHORT_METADATA,
    SHORT_SCRATCH,
    TOO_LARGE,
    VARIANT_BYTES,
    Writer,
    begin,
    copy_bytes,
    fail,
    new_writer,
    put_le,
    shift,
    width,
)

PROBES = LIMITS.key_probes
_VERSION = 1
_SLOT = (1 << 32) - 1


class KnownKeys(NamedTuple):
    """Known key sets; the id of a key is its index in its set. Set `s` has the keys `first[s]` to `first[s+1]`.

    Per key int64: `text_at` (one more) into `text` uint8, `hash`, `rank` in its set's byte order, and the reverse,
    `by_rank`. Per set: `block_at` (one more) into `block` uint8, the finished metadata.
    """

    first: np.ndarray
    text: np.ndarray
    text_at: np.ndarray
    hash: np.ndarray
    rank: np.ndarray
    by_rank: np.ndarray
    block: np.ndarray
    block_at: np.ndarray


def known_keys(sets: list[list[str]]) -> KnownKeys:
    """Prepare key sets. Keys of a set are distinct."""
    texts = [[name.encode() for name in names] for names in sets]
    flat = [text for names in texts for text in names]
    by_rank = [sorted(range(len(names)), key=names.__getitem__) for names in texts]
    blocks = [_metadata_block(names) for names in texts]
    return KnownKeys(
        np.cumsum([0, *map(len, texts)], dtype=np.int64),
        np.frombuffer(b"".join(flat), np.uint8).copy(),
        np.cumsum([0, *map(len, flat)], dtype=np.int64),
        np.array([key_hash(_octets(text), 0, len(text)) for text in flat], np.int64),
        np.array([order.index(i) for order in by_rank for i in range(len(order))], np.int64),
        np.array([i for order in by_rank for i in order], np.int64),
        np.frombuffer(b"".join(blocks), np.uint8).copy(),
        np.cumsum([0, *map(len, blocks)], dtype=np.int64),
    )


def _octets(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8).copy()


def _metadata_block(names: list[bytes]) -> bytes:
    w: Writer = new_writer()
    begin(w)
    for text in names:
        key_id(w, _octets(text), 0, len(text))
    finish(w)
    return bytes(w.metadata[: int(w.positions[METADATA])])


@kernel
def key_hash(buf, start, end):
    """32-bit FNV-1a."""
    state = 0x811C9DC5
    for i in range(start, end):
        state = ((state ^ octet(buf, i)) * 0x01000193) & 0xFFFFFFFF
    return state


@kernel
def _is_key(w, number, buf, start, end):
    """Whether key `number` of the current value is `buf[start:end]`."""
    at = int(w.key_at[number])
    if int(w.key_at[number + 1]) - at != end - start:
        return False
    at += int(w.positions[METADATA])
    for i in range(end - start):
        if w.metadata[at + i] != buf[start + i]:
            return False
    return True


@kernel
def _text_room(w, keys, size):
    """Whether there is room for `keys` more keys of `size` bytes in total."""
    p = w.positions
    text = int(w.key_at[int(p[KEYS])])
    if text + size > VARIANT_BYTES:
        fail(w, TOO_LARGE, SHORT_METADATA)
        return False
    if int(p[METADATA]) + text + size > len(w.metadata):
        fail(w, FULL, SHORT_METADATA)
        return False
    if int(p[KEYS]) + keys >= len(w.key_at):
        fail(w, FULL, SHORT_SCRATCH)
        return False
    return True


@kernel
def key_id(w, buf, start, end):
    """Number of the key `buf[start:end]` (UTF-8), which is added when it is new; -1 after an error."""
    p = w.positions
    if p[CODE] != OK:
        return -1
    generation = int(p[GENERATION])
    mask = len(w.slots) - 1
    slot = key_hash(buf, start, end) & mask
    free = -1
    for _ in range(PROBES):
        entry = int(w.slots[slot])
        if entry >> 32 != generation:
            free = slot
            break
        if _is_key(w, entry & _SLOT, buf, start, end):
            return entry & _SLOT
        slot = (slot + 1) & mask
    if not _text_room(w, 1, end - start):
        return -1
    number = int(p[KEYS])
    at = int(w.key_at[number])
    copy_bytes(w.metadata, int(p[METADATA]) + at, buf, start, end)
    w.key_at[number + 1] = at + end - start
    p[KEYS] = number + 1
    if free >= 0:
        w.slots[free] = (generation << 32) | number
    return number


@kernel
def load_known(w, keys, key_set):
    """Add the known keys to the dictionary, with unchanged ids, before other keys. A second call does nothing."""
    p = w.positions
    if p[KEYS] > 0 or p[CODE] != OK:
        return
    first, last = int(keys.first[key_set]), int(keys.first[key_set + 1])
    text, end = int(keys.text_at[first]), int(keys.text_at[last])
    if not _text_room(w, last - first, end - text):
        return
    copy_bytes(w.metadata, int(p[METADATA]), keys.text, text, end)
    mask = len(w.slots) - 1
    generation = int(p[GENERATION])
    for i in range(last - first):
        w.key_at[i + 1] = int(keys.text_at[first + i + 1]) - text
        slot = int(keys.hash[first + i]) & mask
        for _ in range(PROBES):
            if int(w.slots[slot]) >> 32 != generation:
                w.slots[slot] = (generation << 32) | i
                break
            slot = (slot + 1) & mask
    p[KEYS] = last - first


@kernel
def finish(w):
    """End the value and write its dictionary to the metadata heap. OK, or an error code (then `rollback`)."""
    p = w.positions
    if p[CODE] != OK:
        return int(p[CODE])
    count = int(p[KEYS])
    at = int(p[METADATA])
    text = int(w.key_at[count])
    size = width(max(text, count))
    header = 1 + (count + 2) * size
    if header + text > VARIANT_BYTES:
        fail(w, TOO_LARGE, SHORT_METADATA)
        return TOO_LARGE
    if at + header + text > len(w.metadata):
        fail(w, FULL, SHORT_METADATA)
        return FULL
    shift(w.metadata, at, at + text, header)
    w.metadata[at] = _VERSION | ((size - 1) << 6)
    put_le(w.metadata, at + 1, count, size)
    for i in range(count + 1):
        put_le(w.metadata, at + 1 + (i + 1) * size, int(w.key_at[i]), size)
    p[METADATA] = at + header + text
    return OK


@inlined
def finish_known(w, keys, key_set):
    """`finish` for a value with the keys of `key_set`; cheap when no other key was used."""
    p = w.positions
    if p[KEYS] > 0 or p[CODE] != OK:
        return finish(w)
    start, end = int(keys.block_at[key_set]), int(keys.block_at[key_set + 1])
    at = int(p[METADATA])
    if at + end - start > len(w.metadata):
        fail(w, FULL, SHORT_METADATA)
        return FULL
    copy_bytes(w.metadata, at, keys.block, start, end)
    p[METADATA] = at + end - start
    return OK
