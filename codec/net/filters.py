"""Filters of packets by port, host and time. Cost: linear in the packets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import njit
from codec.cursor import octet
from codec.net.layers import Packets
from codec.net.protocols import FILTERED, TCP

PORTS = 65536
IP_BYTES = 16
BEGINNING, END_OF_TIME = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Filter:
    """A packet passes when one of its ports, one of its addresses and its time match. Empty matches all.

    ports: numbers, either side. hosts: 16-byte addresses (IPv4 as ::ffff:a.b.c.d), either side. since_ns, until_ns:
    nanoseconds since 1970-01-01 UTC, from the first and before the second.
    """

    ports: frozenset[int] = frozenset()
    hosts: tuple[bytes, ...] = ()
    since_ns: int = BEGINNING
    until_ns: int = END_OF_TIME

    @property
    def passes_all(self) -> bool:
        """Whether every packet passes."""
        return self == Filter()

    def matches(self, packets: Packets) -> NDArray[np.bool_]:
        """bool (n,): the packets that pass. A packet without ports or addresses matches no port or host."""
        ports = np.full(PORTS, not self.ports)
        ports[list(self.ports)] = True
        hosts = np.frombuffer(bytearray(b"".join(self.hosts)), np.uint8).reshape(-1, IP_BYTES)
        wanted = np.empty(len(packets.skip), np.bool_)
        _match(packets.keys, packets.segments, ports, hosts, self.since_ns, self.until_ns, wanted)
        return wanted

    def apply(self, packets: Packets) -> None:
        """Set the skip code of TCP packets that do not pass to FILTERED."""
        if not self.passes_all:
            packets.skip[(packets.skip == TCP) & ~self.matches(packets)] = FILTERED


def host_bytes(addresses: Iterable[IPv4Address | IPv6Address]) -> tuple[bytes, ...]:
    """Addresses as in flow keys."""
    return tuple(
        address.packed if address.version == 6 else b"\x00" * 10 + b"\xff\xff" + address.packed for address in addresses
    )


@njit
def _match(keys, segments, ports, hosts, since_ns, until_ns, wanted):
    for i in range(len(wanted)):
        ts_ns = int(segments["ts_ns"][i])
        low = (octet(keys[i], 32) << 8) | octet(keys[i], 33)
        high = (octet(keys[i], 34) << 8) | octet(keys[i], 35)
        passes = since_ns <= ts_ns and ts_ns < until_ns and (ports[low] or ports[high])
        if passes and len(hosts) > 0:
            passes = False
            for j in range(len(hosts)):
                passes = passes or _is_host(keys[i], 0, hosts[j]) or _is_host(keys[i], IP_BYTES, hosts[j])
        wanted[i] = passes


@njit
def _is_host(key, at, host):
    same = 0
    while same < IP_BYTES and octet(key, at + same) == octet(host, same):
        same += 1
    return same == IP_BYTES
