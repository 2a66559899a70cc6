"""Hashes of many rows at once, over several columns: 64 bits, as two lanes of 32.

    lanes = new_lanes(rows)
    mix_texts(bytes, ends, present, lanes)
    mix_numbers(numbers, present, lanes)

Each column is mixed into both lanes word by word, each lane with its own odd factor; an absent value is a word as well.
The hash groups rows; it does not resist texts that are chosen to collide.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.kernel import kernel

LOW, HIGH = 0x45D9F3B, 0x119DE1F3  # odd, below 2**31: a product with 32 bits stays inside 63
WORD = 0xFFFFFFFF


def new_lanes(rows: int, seed: int = 0) -> np.ndarray:
    """Lanes with the seed alone; int64 (rows, 2)."""
    return np.full((rows, 2), seed + 1, np.int64)


@kernel
def mixed(lane, word, factor):
    """A lane with one more word of 32 bits."""
    product = ((lane ^ word) * factor) & WORD
    return product ^ (product >> 15)


@kernel
def mixed_words(data, at, end, low, high):
    """Both lanes with the words of `bytes[at:end]`."""
    while at + 4 <= end:  # written out, these four loads are compiled to one
        word = int(data[at]) | int(data[at + 1]) << 8 | int(data[at + 2]) << 16 | int(data[at + 3]) << 24
        low, high = mixed(low, word, LOW), mixed(high, word, HIGH)
        at += 4
    if at < end:
        word = 0
        for i in range(end - at):
            word |= int(data[at + i]) << (8 * i)
        low, high = mixed(low, word, LOW), mixed(high, word, HIGH)
    return low, high


@kernel
def mix_texts(data, ends, present, lanes):
    """Mix in a text a row: row i has `bytes` from `ends[i]` to `ends[i + 1]`, int64 (n + 1,); `present` uint8 (n,)."""
    for row in range(len(present)):
        low, high = lanes[row, 0], lanes[row, 1]
        size = 0
        if present[row]:
            low, high = mixed_words(data, ends[row], ends[row + 1], low, high)
            size = ends[row + 1] - ends[row] + 1  # an absent text has another size than an empty one
        lanes[row, 0], lanes[row, 1] = mixed(low, size, LOW), mixed(high, size, HIGH)


@kernel
def mix_numbers(numbers, present, lanes):
    """Mix in a number a row, int64 (n,); `present` uint8 (n,)."""
    for row in range(len(present)):
        low, high = lanes[row, 0], lanes[row, 1]
        word = 0
        if present[row]:
            low, high = mixed(low, numbers[row] & WORD, LOW), mixed(high, numbers[row] & WORD, HIGH)
            word = ((numbers[row] >> 32) & WORD) + 1  # an absent number has another word than any number
        lanes[row, 0], lanes[row, 1] = mixed(low, word, LOW), mixed(high, word, HIGH)
