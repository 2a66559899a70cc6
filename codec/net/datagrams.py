"""Datagrams whose fragments have been seen: what is known of each, in bounded memory.

A datagram is known for `Limits.fragment_packets` packets from its first fragment on. As long as it is not complete it
occupies one of `Limits.fragment_datagrams` buffers; one that finds none free is not taken in. What is known depends on
those last packets only: after that many without a fragment there is nothing, wherever reading began.

A packet begins one datagram at most, so as many rows as packets are enough: datagram n of a file stands in row n modulo
their number, and a row is never in use when its turn comes again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.cursor import octet, u32
from codec.net.protocols import SOURCE, TARGET, VERSION

UNIT = 8  # fragments begin and, but for the last one, end at multiples of it
BUFFER_BYTES = 65536
KEY_BYTES = 40  # version 1, protocol 1 (IPv4), identification 4, source 16, target 16, unused 2
KEY_SOURCE, KEY_TARGET = 6, 22
MIX = 0x45D9F3B  # below 2**31, so that a product with 32 bits stays inside 63
NONE = -1

DATAGRAM = np.dtype(
    [
        ("packet_no", "i8"),  # that brought the first fragment
        ("older", "i8"),  # number of the datagram before in the same bucket
        ("buffer", "i4"),  # NONE: complete
        ("protocol", "i4"),  # from the fragment that begins the datagram; NONE before that
        ("total", "i4"),  # bytes behind the IP header, from the last fragment; NONE before that
        ("seen", "i4"),  # units
        ("farthest", "i4"),  # end of the farthest fragment, in bytes
        ("captured", "i4"),  # bytes from here on may be missing: the snaplen cut them off
    ],
    align=True,
)


class Waiting(NamedTuple):
    """Datagram n (counted from 0 in the file) stands at n modulo the length of `datagrams`."""

    datagrams: NDArray[np.void]  # DATAGRAM
    keys: NDArray[np.uint8]  # (datagrams, KEY_BYTES)
    newest: NDArray[np.int64]  # by bucket: the number of its latest datagram
    octets: NDArray[np.uint8]  # (buffers, BUFFER_BYTES)
    covered: NDArray[np.uint8]  # (buffers, units): 1 where bytes are known
    free: NDArray[np.int64]  # free[:counts[2]] are the buffers not in use
    counts: NDArray[np.int64]  # first datagram that is still known, datagrams so far, free buffers


class Kept(NamedTuple):
    """What is known between two packets, without the room around it: `Waiting` to send away."""

    datagrams: NDArray[np.void]
    keys: NDArray[np.uint8]
    octets: NDArray[np.uint8]  # of the datagrams with a buffer, in their order
    covered: NDArray[np.uint8]


class Fragments:
    """What the packets of a capture so far have left behind; takes no memory before the first fragment."""

    def __init__(self, kept: Kept | None = None) -> None:
        self._waiting: Waiting | None = None
        if kept is not None:
            self._adopt(kept)

    def waiting(self) -> Waiting:
        """The arrays that kernels work on."""
        if self._waiting is None:
            known, buffers = LIMITS.fragment_packets, LIMITS.fragment_datagrams
            self._waiting = Waiting(
                np.zeros(known, DATAGRAM),
                np.zeros((known, KEY_BYTES), np.uint8),
                np.full(2 * known, NONE, np.int64),
                np.empty((buffers, BUFFER_BYTES), np.uint8),
                np.zeros((buffers, BUFFER_BYTES // UNIT), np.uint8),
                np.arange(buffers)[::-1].copy(),
                np.array([0, 0, buffers]),
            )
        return self._waiting

    def kept(self, packet_no: int) -> Kept | None:
        """What packet `packet_no` finds; None for nothing."""
        if self._waiting is None:
            return None
        waiting = self._waiting
        forget(waiting, packet_no)
        first, end, _ = waiting.counts
        if first == end:
            return None
        places = np.arange(first, end) % len(waiting.datagrams)
        datagrams = waiting.datagrams[places]
        buffers = datagrams["buffer"][datagrams["buffer"] != NONE]
        longest = (int(datagrams["farthest"].max()) + UNIT - 1) // UNIT
        return Kept(
            datagrams,
            waiting.keys[places],
            waiting.octets[buffers, : longest * UNIT],
            waiting.covered[buffers, :longest],
        )

    def _adopt(self, kept: Kept) -> None:
        waiting, count = self.waiting(), len(kept.datagrams)
        waiting.datagrams[:count], waiting.keys[:count] = kept.datagrams, kept.keys
        held = np.flatnonzero(kept.datagrams["buffer"] != NONE)
        buffers = waiting.free[len(waiting.free) - len(held) :]
        waiting.datagrams["buffer"][held] = buffers
        waiting.octets[buffers, : kept.octets.shape[1]] = kept.octets
        waiting.covered[buffers, : kept.covered.shape[1]] = kept.covered
        waiting.counts[:] = 0, count, len(waiting.free) - len(held)
        _link(waiting, count)


@kernel
def forget(waiting, packet_no):
    """Drop the datagrams whose time is over when `packet_no` comes."""
    known = len(waiting.datagrams)
    while waiting.counts[0] < waiting.counts[1]:
        row = waiting.counts[0] % known
        if waiting.datagrams["packet_no"][row] > packet_no - known:
            break
        if waiting.datagrams["buffer"][row] != NONE:
            release(waiting, row)
        waiting.counts[0] += 1


@kernel
def release(waiting, row):
    """The buffer of a datagram is free again."""
    buffer = int(waiting.datagrams["buffer"][row])
    for unit in range((int(waiting.datagrams["farthest"][row]) + UNIT - 1) // UNIT):
        waiting.covered[buffer, unit] = 0
    waiting.free[waiting.counts[2]] = buffer
    waiting.counts[2] += 1
    waiting.datagrams["buffer"][row] = NONE


@kernel
def datagram(octets, state, waiting, packet_no, identification, protocol):
    """Number of the datagram that a fragment belongs to, a new one if need be; NONE when there is no room."""
    known = len(waiting.datagrams)
    number = waiting.counts[1]
    row = number % known  # not in use: no packet begins more than one datagram, and this many packets are known
    key = waiting.keys[row]
    size = 4 if state[VERSION] == 4 else 16
    for j in range(KEY_BYTES):
        key[j] = 0
    key[0], key[1] = state[VERSION], protocol
    for j in range(4):
        key[2 + j] = (identification >> (24 - 8 * j)) & 0xFF
    for j in range(size):
        key[KEY_SOURCE + j] = octet(octets, state[SOURCE] + j)
        key[KEY_TARGET + j] = octet(octets, state[TARGET] + j)
    bucket = _bucket(waiting, row)
    other = int(waiting.newest[bucket])
    while other >= waiting.counts[0]:
        same = 0
        while same < KEY_BYTES and waiting.keys[other % known, same] == key[same]:
            same += 1
        if same == KEY_BYTES:
            return other
        other = int(waiting.datagrams["older"][other % known])
    if waiting.counts[2] == 0:
        return NONE
    waiting.counts[2] -= 1
    waiting.counts[1] += 1
    datagrams = waiting.datagrams
    datagrams["packet_no"][row] = packet_no
    datagrams["older"][row] = waiting.newest[bucket]
    datagrams["buffer"][row] = waiting.free[waiting.counts[2]]
    datagrams["protocol"][row] = NONE
    datagrams["total"][row] = NONE
    datagrams["seen"][row] = 0
    datagrams["farthest"][row] = 0
    datagrams["captured"][row] = BUFFER_BYTES
    waiting.newest[bucket] = number
    return number


@kernel
def _bucket(waiting, row):
    mixed = 0
    for j in range(0, KEY_BYTES, 4):
        mixed = (mixed ^ u32(waiting.keys[row], j, KEY_BYTES)) * MIX
        mixed = (mixed ^ (mixed >> 32)) & 0xFFFFFFFF
    return mixed % len(waiting.newest)


@kernel
def _link(waiting, count):
    """Put the first `count` datagrams into their buckets."""
    for row in range(count):
        bucket = _bucket(waiting, row)
        waiting.datagrams["older"][row] = waiting.newest[bucket]
        waiting.newest[bucket] = row
