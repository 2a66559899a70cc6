"""Damage done to real captures, each kind as bytes in, bytes out; the same for the TCP segments of a connection; and
two connections that a capture cannot tell apart by their addresses."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

Mutation = Callable[[random.Random, bytearray, bytes], None]

# Lengths, counts and tags that decoders get wrong.
EDGES = (0, 1, 3, 7, 8, 11, 12, 0x7F, 0x80, 0xCE, 0xFE, 0xFF, 0x7FFF, 0xFFFF, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


def flip_bits(rng: random.Random, data: bytearray, _other: bytes) -> None:
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def overwrite(rng: random.Random, data: bytearray, _other: bytes) -> None:
    """An integer of 1, 2, 4 or 8 bytes becomes one from the edge, in either byte order."""
    for _ in range(rng.randint(1, 3)):
        width = rng.choice((1, 2, 4, 8))
        at = rng.randrange(len(data))
        value = rng.choice(EDGES) % 256**width
        patch = value.to_bytes(width, rng.choice(("big", "little")))[: len(data) - at]
        data[at : at + len(patch)] = patch


def off_by_one(rng: random.Random, data: bytearray, _other: bytes) -> None:
    """A length one too short or too long."""
    at = rng.randrange(len(data))
    data[at] = (data[at] + rng.choice((-1, 1))) % 256


def cut(rng: random.Random, data: bytearray, _other: bytes) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice((1, 2, 8, 100, len(data)))]


def repeat(rng: random.Random, data: bytearray, _other: bytes) -> None:
    start = rng.randrange(len(data))
    piece = bytes(data[start : start + rng.randint(1, 200)])
    data[start:start] = piece * rng.randint(1, 5)


def splice(rng: random.Random, data: bytearray, other: bytes) -> None:
    """A piece of another stream in the place of some of this one."""
    if other:
        start, at = rng.randrange(len(other)), rng.randrange(len(data))
        data[at : at + rng.randint(0, 300)] = other[start : start + rng.randint(1, 2000)]


def noise(rng: random.Random, data: bytearray, _other: bytes) -> None:
    at = rng.randrange(len(data))
    data[at : at + rng.randint(1, 64)] = rng.randbytes(rng.randint(1, 64))


MUTATIONS: tuple[Mutation, ...] = (flip_bits, overwrite, off_by_one, cut, repeat, splice, noise)


def mutated(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """`bytes` after one to four mutations."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if changed:
            rng.choice(MUTATIONS)(rng, changed, other)
    return bytes(changed)


def mutated_segments(rng: random.Random, segments: np.ndarray) -> np.ndarray:
    """TCP segments lost, doubled, swapped, cut by a snaplen, with other numbers, lengths, flags, times."""
    changed = segments.copy()
    for _ in range(rng.randint(1, 4)):
        if not len(changed):
            break
        at = rng.randrange(len(changed))
        kind = rng.randrange(8)
        if kind == 0:
            changed = np.delete(changed, at)
        elif kind == 1:
            number = changed["packet_no"].max() + 1
            changed = np.insert(changed, at, changed[rng.randrange(len(changed))])
            changed["packet_no"][at] = number  # each packet of a capture has its own
        elif kind == 2:
            other = rng.randrange(len(changed))
            changed[[at, other]] = changed[[other, at]]
        elif kind == 3:
            changed["cap_len"][at] = rng.randint(0, int(changed["cap_len"][at]))
        elif kind == 4:
            changed["seq"][at] = (int(changed["seq"][at]) + rng.choice((-1, 1, 1448, 2**31, 2**32 - 1))) % 2**32
        elif kind == 5:
            changed["ack"][at] = (int(changed["ack"][at]) + rng.choice((-1, 1, 70000, 2**31))) % 2**32
        elif kind == 6:
            changed["flags"][at] ^= rng.choice((1, 2, 4, 16))
        else:
            changed["wire_len"][at] = max(int(changed["cap_len"][at]), rng.choice((0, 1, 1448, 65535, 10**6)))
    changed["order_ns"] = np.maximum.accumulate(changed["order_ns"])  # as the readers make it
    return changed


def merged(
    rng: random.Random, first: tuple[np.ndarray, bytes], second: tuple[np.ndarray, bytes]
) -> tuple[np.ndarray, bytes]:
    """Segments and payload of two connections on the same addresses and ports, the second behind the first or, by
    their times, into its end. Either may lack its beginning or its end: a SYN, a SYN-ACK, all before its middle."""
    segments, data = (part.copy() for part, _ in (first, second)), first[1] + second[1]
    before, after = (shortened(rng, part) for part in segments)
    if len(before) and len(after):
        overlap = rng.choice((0, 0, 0, 3, 20))
        end = int(before["order_ns"][-min(len(before), 1 + overlap)])
        for name in ("order_ns", "ts_ns"):
            after[name] += end + 1 - int(after[name][0])
        after["packet_no"] += int(before["packet_no"].max())
    after["payload_at"] += len(first[1])
    if rng.random() < 0.3:  # opened by the other end
        after["direction"] ^= 1
    both = np.concatenate([before, after])
    both = both[np.argsort(both["order_ns"], kind="stable")]
    both["order_ns"] = np.maximum.accumulate(both["order_ns"])
    return both, data


def shortened(rng: random.Random, segments: np.ndarray) -> np.ndarray:
    """Some lost at the beginning, some at the end."""
    way = rng.randrange(6)
    begin = (0, 0, 1, 2, rng.randrange(len(segments) + 1), rng.randrange(1, 6))[way]
    end = len(segments) - rng.choice((0, 0, 0, 1, 4))
    return segments[begin : max(begin, end)]
