"""IP fragments to datagrams, in the order of a capture file's packets and in bounded memory.

Rules (RFC 791 section 3.2, RFC 8200 section 4.5):

* Fragments of one datagram agree in version, addresses, identification, and protocol (IPv4), in any tunnel.
* The first copy of each eight bytes wins. A malformed fragment is ignored: it has no bytes, ends beyond 64 KB or beyond
  the last fragment, or is not the last one and its length is no multiple of eight.
* A datagram is stored for `Limits.fragment_packets` packets from its first fragment on, so that late copies begin no
  new one; fragments with other bytes do, since some senders give all datagrams the same identification. While it is
  incomplete it has one of `Limits.fragment_datagrams` buffers; a datagram without a free buffer is not stored. So the
  stored datagrams depend only on these last packets, wherever reading began.
* Where the snaplen cut a fragment, the captured part of the datagram ends.

A packet begins at most one datagram, so as many rows as packets are enough: datagram n of a file has row n modulo their
number, and a row is free when it is used again. Cost: linear in the length of the fragments.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.cursor import byte_at, u16, u32
from codec.net import headers as P

UNIT = 8  # fragments begin and, but for the last one, end at multiples of it
BUFFER_BYTES = 65536
KEY_BYTES = 40  # version 1, protocol 1 (IPv4), identification 4, source 16, target 16, unused 2
KEY_SOURCE, KEY_TARGET = 6, 22
MIX = 0x45D9F3B  # below 2**31, so that a product with 32 bits stays inside 63
NONE = -1

DATAGRAM = np.dtype(
    [
        ("packet_no", "i8"),  # of the first fragment
        ("older", "i8"),  # number of the datagram before in the same bucket
        ("buffer", "i4"),  # NONE: complete
        ("protocol", "i4"),  # from the fragment that begins the datagram; NONE before that
        ("total", "i4"),  # bytes after the IP header, from the last fragment; NONE before that
        ("seen", "i4"),  # units
        ("farthest", "i4"),  # end of the farthest fragment, in bytes
        ("captured", "i4"),  # bytes from here on may be missing: the snaplen cut them off
    ],
    align=True,
)
LONGEST = 65535  # of an IPv4 datagram, and of the payload of an IPv6 packet
DATAGRAM_BYTES = P.IPV6_BYTES + LONGEST


class FragmentBuffers(NamedTuple):
    """Datagram n (counted from 0 in the file) has row n modulo the length of `datagrams`."""

    datagrams: NDArray[np.void]  # DATAGRAM
    keys: NDArray[np.uint8]  # (datagrams, KEY_BYTES)
    newest: NDArray[np.int64]  # by bucket: the number of its latest datagram
    data: NDArray[np.uint8]  # (buffers, BUFFER_BYTES)
    covered: NDArray[np.uint8]  # (buffers, units): 1 where bytes are known
    free: NDArray[np.int64]  # free[:counts[2]] are the buffers not in use
    added: NDArray[np.int64]  # (fragments, 2): packet and digest of the latest ones; fragment n has row n modulo them
    counts: NDArray[np.int64]  # first datagram still stored, datagrams so far, free buffers, fragments so far


class SavedFragments(NamedTuple):
    """The stored datagrams between two packets, without unused memory, to be pickled."""

    datagrams: NDArray[np.void]
    keys: NDArray[np.uint8]
    data: NDArray[np.uint8]  # of the datagrams with a buffer, in their order
    covered: NDArray[np.uint8]
    added: NDArray[np.int64]


class Fragments:
    """Stored datagrams of a capture after some packets; without memory before the first fragment."""

    def __init__(self, saved: SavedFragments | None = None) -> None:
        self._buffers: FragmentBuffers | None = None
        if saved is not None:
            self._restore(saved)

    def buffers(self) -> FragmentBuffers:
        """The arrays that kernels work on."""
        if self._buffers is None:
            known, buffers = LIMITS.fragment_packets, LIMITS.fragment_datagrams
            self._buffers = FragmentBuffers(
                np.zeros(known, DATAGRAM),
                np.zeros((known, KEY_BYTES), np.uint8),
                np.full(2 * known, NONE, np.int64),
                np.empty((buffers, BUFFER_BYTES), np.uint8),
                np.zeros((buffers, BUFFER_BYTES // UNIT), np.uint8),
                np.arange(buffers)[::-1].copy(),
                np.zeros((known, 2), np.int64),
                np.array([0, 0, buffers, 0]),
            )
        return self._buffers

    def save(self, packet_no: int) -> SavedFragments | None:
        """The datagrams that are stored before packet `packet_no`; None without any."""
        if self._buffers is None:
            return None
        buffers = self._buffers
        expire(buffers, packet_no)
        first, end, _, fragments = buffers.counts
        if first == end:
            return None
        slots = np.arange(first, end) % len(buffers.datagrams)
        datagrams = buffers.datagrams[slots]
        incomplete = datagrams["buffer"][datagrams["buffer"] != NONE]
        longest = (int(datagrams["farthest"].max()) + UNIT - 1) // UNIT
        return SavedFragments(
            datagrams,
            buffers.keys[slots],
            buffers.data[incomplete, : longest * UNIT],
            buffers.covered[incomplete, :longest],
            buffers.added[np.arange(max(0, fragments - len(buffers.added)), fragments) % len(buffers.added)],
        )

    def _restore(self, saved: SavedFragments) -> None:
        buffers, count = self.buffers(), len(saved.datagrams)
        buffers.datagrams[:count], buffers.keys[:count] = saved.datagrams, saved.keys
        incomplete = np.flatnonzero(saved.datagrams["buffer"] != NONE)
        free = buffers.free[len(buffers.free) - len(incomplete) :]
        buffers.datagrams["buffer"][incomplete] = free
        buffers.data[free, : saved.data.shape[1]] = saved.data
        buffers.covered[free, : saved.covered.shape[1]] = saved.covered
        buffers.added[: len(saved.added)] = saved.added
        buffers.counts[:] = 0, count, len(buffers.free) - len(incomplete), len(saved.added)
        _link(buffers, count)


@kernel
def expire(buffers, packet_no):
    """Remove the datagrams that have expired before `packet_no`."""
    known = len(buffers.datagrams)
    while buffers.counts[0] < buffers.counts[1]:
        row = buffers.counts[0] % known
        if buffers.datagrams["packet_no"][row] > packet_no - known:
            break
        if buffers.datagrams["buffer"][row] != NONE:
            release(buffers, row)
        buffers.counts[0] += 1


@kernel
def release(buffers, row):
    """Free the buffer of a datagram."""
    buffer = int(buffers.datagrams["buffer"][row])
    for unit in range((int(buffers.datagrams["farthest"][row]) + UNIT - 1) // UNIT):
        buffers.covered[buffer, unit] = 0
    buffers.free[buffers.counts[2]] = buffer
    buffers.counts[2] += 1
    buffers.datagrams["buffer"][row] = NONE


@kernel
def datagram(data, state, buffers, packet_no, identification, protocol, digest):
    """Number of the datagram of a fragment, new or stored; NONE when no buffer is free."""
    known = len(buffers.datagrams)
    number = buffers.counts[1]
    row = number % known  # free: a packet begins at most one datagram, and only this many packets are stored
    key = buffers.keys[row]
    size = 4 if state[P.VERSION] == 4 else 16
    for j in range(KEY_BYTES):
        key[j] = 0
    key[0], key[1] = state[P.VERSION], protocol
    for j in range(4):
        key[2 + j] = (identification >> (24 - 8 * j)) & 0xFF
    for j in range(size):
        key[KEY_SOURCE + j] = byte_at(data, state[P.SOURCE] + j)
        key[KEY_TARGET + j] = byte_at(data, state[P.TARGET] + j)
    bucket = _bucket(buffers, row)
    other = int(buffers.newest[bucket])
    while other >= buffers.counts[0]:
        same = 0
        while same < KEY_BYTES and buffers.keys[other % known, same] == key[same]:
            same += 1
        if same == KEY_BYTES:
            if buffers.datagrams["buffer"][other % known] != NONE or _was_added(buffers, packet_no, digest):
                return other
            break  # complete, and this fragment is not one of it
        other = int(buffers.datagrams["older"][other % known])
    if buffers.counts[2] == 0:
        return NONE
    buffers.counts[2] -= 1
    buffers.counts[1] += 1
    datagrams = buffers.datagrams
    datagrams["packet_no"][row] = packet_no
    datagrams["older"][row] = buffers.newest[bucket]
    datagrams["buffer"][row] = buffers.free[buffers.counts[2]]
    datagrams["protocol"][row] = NONE
    datagrams["total"][row] = NONE
    datagrams["seen"][row] = 0
    datagrams["farthest"][row] = 0
    datagrams["captured"][row] = BUFFER_BYTES
    buffers.newest[bucket] = number
    return number


@kernel
def _digest(data, at, end, begin, identification):
    """Of the bytes and the offset of a fragment."""
    mixed = (begin + identification) & 0xFFFFFFFF
    for j in range(at, end):
        mixed = (mixed ^ byte_at(data, j)) * MIX
        mixed = (mixed ^ (mixed >> 32)) & 0xFFFFFFFF
    return mixed


@kernel
def _was_added(buffers, packet_no, digest):
    """Whether a fragment with this digest is one of the latest."""
    known = len(buffers.added)
    for n in range(max(0, buffers.counts[3] - known), buffers.counts[3]):
        if buffers.added[n % known, 1] == digest and buffers.added[n % known, 0] > packet_no - known:
            return True
    return False


@kernel
def _bucket(buffers, row):
    mixed = 0
    for j in range(0, KEY_BYTES, 4):
        mixed = (mixed ^ u32(buffers.keys[row], j, KEY_BYTES)) * MIX
        mixed = (mixed ^ (mixed >> 32)) & 0xFFFFFFFF
    return mixed % len(buffers.newest)


@kernel
def _link(buffers, count):
    """Add the first `count` datagrams to their buckets."""
    for row in range(count):
        bucket = _bucket(buffers, row)
        buffers.datagrams["older"][row] = buffers.newest[bucket]
        buffers.newest[bucket] = row


@kernel
def add_fragment(data, used, state, buffers, packet_no):
    """Add the fragment at `state`, of packet `packet_no`, to its datagram.

    NEXT_LAYER: it completes the datagram, which is now at `bytes[used:]` (the caller provides DATAGRAM_BYTES of room);
    `state` is at its IP header. Else a skip code.
    """
    at, end, version = state[P.AT], state[P.END], state[P.VERSION]
    if version == 4:
        offset_field = u16(data, at + 6, end)
        begin, more = (offset_field & 0x1FFF) * UNIT, offset_field & 0x2000
        protocol, identification = byte_at(data, at + 9), u16(data, at + 4, end)
        at += (byte_at(data, at) & 0x0F) * 4
        longest = LONGEST - P.IPV4_BYTES
    else:
        offset_field = u16(data, at + 2, end)
        begin, more = offset_field & 0xFFF8, offset_field & 1
        protocol, identification = byte_at(data, at), u32(data, at + 4, end)
        at += UNIT
        longest = LONGEST
    stop = begin + state[P.WIRE_END] - at
    if stop <= begin or stop > longest or (more and (stop - begin) % UNIT != 0):
        return P.BAD_FRAGMENT
    expire(buffers, packet_no)
    digest = _digest(data, at, end, begin, identification)
    number = datagram(data, state, buffers, packet_no, identification, protocol if version == 4 else 0, digest)
    if number == NONE:
        return P.FRAGMENT_LIMIT
    row = number % len(buffers.datagrams)
    datagrams = buffers.datagrams
    if datagrams["buffer"][row] == NONE:
        return P.FRAGMENT_COPY
    total = int(datagrams["total"][row])
    if total != NONE and (stop > total or (not more and stop != total)):
        return P.BAD_FRAGMENT
    if not more:
        if stop < datagrams["farthest"][row]:
            return P.BAD_FRAGMENT
        total = stop
        datagrams["total"][row] = total
    added = buffers.added[buffers.counts[3] % len(buffers.added)]
    added[0], added[1] = packet_no, digest
    buffers.counts[3] += 1
    if begin == 0:
        datagrams["protocol"][row] = protocol
    datagrams["farthest"][row] = max(stop, int(datagrams["farthest"][row]))
    fresh = _fill(data, at, begin, stop, begin + end - at, buffers, row)
    if total != NONE and datagrams["seen"][row] == (total + UNIT - 1) // UNIT:
        _complete(data, used, state, buffers, row)
        return P.NEXT_LAYER
    if fresh == 0:
        return P.FRAGMENT_COPY
    return P.FRAGMENT if fresh == (stop - begin + UNIT - 1) // UNIT else P.FRAGMENT_OVERLAP


@kernel
def _fill(data, at, begin, stop, captured, buffers, row):
    """Store bytes `begin` to `stop` of a datagram from `bytes[at:]`, unless they are stored already; those before
    `captured` were captured. Returns the number of new units."""
    buffer = int(buffers.datagrams["buffer"][row])
    covered, bytes_of = buffers.covered[buffer], buffers.data[buffer]
    fresh = 0
    unit, last = begin // UNIT, (stop + UNIT - 1) // UNIT
    while unit < last:
        after = unit
        while after < last and covered[after] == 0:
            covered[after] = 1
            after += 1
        if after > unit:
            fresh += after - unit
            to = min(after * UNIT, stop)
            there = max(unit * UNIT, min(to, captured))
            for j in range(unit * UNIT, there):
                bytes_of[j] = data[at + j - begin]
            if there < to:
                buffers.datagrams["captured"][row] = min(there, int(buffers.datagrams["captured"][row]))
        unit = after + 1  # the unit at `after` was stored before
    buffers.datagrams["seen"][row] += fresh
    return fresh


@kernel
def _complete(data, used, state, buffers, row):
    """Write the datagram at `used`, after an IP header without options."""
    total, protocol = int(buffers.datagrams["total"][row]), int(buffers.datagrams["protocol"][row])
    captured = min(total, int(buffers.datagrams["captured"][row]))
    version = state[P.VERSION]
    header, size = (P.IPV4_BYTES, 4) if version == 4 else (P.IPV6_BYTES, 16)
    for j in range(used, used + header):
        data[j] = 0
    length, length_at, protocol_at, source_at = total, used + 4, used + 6, used + 8
    if version == 4:
        length, length_at, protocol_at, source_at = header + total, used + 2, used + 9, used + 12
    data[used] = 0x45 if version == 4 else 0x60
    data[length_at], data[length_at + 1] = length >> 8, length & 0xFF
    data[protocol_at] = protocol
    for j in range(size):
        data[source_at + j] = buffers.keys[row, KEY_SOURCE + j]
        data[source_at + size + j] = buffers.keys[row, KEY_TARGET + j]
    buffer = int(buffers.datagrams["buffer"][row])
    for j in range(captured):
        data[used + header + j] = buffers.data[buffer, j]
    release(buffers, row)
    state[P.AT] = used
    state[P.END] = used + header + captured
    state[P.WIRE_END] = used + header + total
    state[P.LAYER] = P.IPV4 if version == 4 else P.IPV6
