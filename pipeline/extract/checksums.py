"""Adjusts the checksums of changed packets incrementally (RFC 1624).

A correct checksum stays correct, and a wrong one stays wrong by the same difference. This also works for truncated
packets, whose checksums cannot be computed. Inner checksums are adjusted first, because outer ones cover them.

With checksum offloading, the capture has the sum of the pseudo-header in place of the TCP checksum. Such a value is
adjusted only for the addresses, not for the payload.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from codec.capture.records import Bytes
from codec.net.protocols import PROTOCOL_TCP
from pipeline.extract.headers import ABSENT, Stack, Sum

FULL = 0xFFFF


def folded(total: int) -> int:
    """A sum of 16-bit words in ones' complement arithmetic, 0 to 0xFFFF."""
    while total >> 16:
        total = (total & FULL) + (total >> 16)
    return total


def word_sum(octets: Bytes) -> int:
    """The sum of big-endian 16-bit words; an odd octet at the end is the high one of a word."""
    return 256 * int(octets[::2].sum(dtype=np.int64)) + int(octets[1::2].sum(dtype=np.int64))


def adjust(before: Bytes, after: Bytes, stacks: Sequence[Stack]) -> None:
    """Set the checksums of the packets in `after`, whose octets were `before`; `stacks` are their headers."""
    for level in range(max((len(stack.sums) for stack in stacks), default=0)):
        running = changes(before, after)
        for stack in stacks:
            if level < len(stack.sums):
                _adjust(before, after, stack.sums[-1 - level], running)


def changes(before: Bytes, after: Bytes) -> NDArray[np.int64]:
    """int64 (n + 1,): at i, by how much the octets before i have grown, those at even offsets counted 256 times."""
    running = np.zeros(len(before) + 1, np.int64)
    grown = after.astype(np.int64) - before
    grown[::2] *= 256
    np.cumsum(grown, out=running[1:])
    return running


def _adjust(before: Bytes, after: Bytes, field: Sum, running: NDArray[np.int64]) -> None:
    if field.at + 2 > field.end:
        return  # cut off
    old = _read(before, field.at)
    if field.optional and old == 0:
        return
    pseudo = _change(running, field.pseudo, field.pseudo_end)
    if field.tcp_len != ABSENT and old == _partial(before, field):
        if pseudo:
            _write(after, field.at, (old + pseudo) % FULL or FULL)
        return
    grown = pseudo + _change(running, field.begin, field.end)
    if grown:
        new = FULL - ((FULL - old + grown) % FULL or FULL)
        _write(after, field.at, new or (FULL if field.optional else 0))  # UDP writes a sum of 0 as 0xFFFF (RFC 768)


def _change(running: NDArray[np.int64], begin: int, end: int) -> int:
    """The change of the words of `begin:end`; the first octet is the high one of a word."""
    change = int(running[end] - running[begin])
    return change * 256 if begin % 2 else change  # 256 * 256 is 1 in this arithmetic


def _partial(octets: Bytes, field: Sum) -> int:
    """The value in place of a TCP checksum with checksum offloading."""
    return folded(word_sum(octets[field.pseudo : field.pseudo_end]) + PROTOCOL_TCP + field.tcp_len)


def _read(octets: Bytes, at: int) -> int:
    return int(octets[at]) << 8 | int(octets[at + 1])


def _write(octets: Bytes, at: int, value: int) -> None:
    octets[at], octets[at + 1] = value >> 8, value & 0xFF
