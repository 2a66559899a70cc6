"""Wrapped and fragmented packets with random damage: what the layers make of each, one line a packet.

As a script, to be run with NUMBA_DISABLE_JIT=1 beside the compiled kernels: `python mangled.py COUNT`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import numpy as np
from encapsulations import FRAME, MACS, WRAPS
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from codec.capture import RECORD
from codec.net.fragments import Fragments
from codec.net.layers import dissect

LINKS = [0, 1, 9, 12, 50, 51, 101, 108, 113, 219, 228, 229, 239, 276]


def seeds() -> list[tuple[int, bytes]]:
    """(link type, bytes) of every encapsulation, some around fragments."""
    packet = bytes(Ether(**MACS) / IP(src="10.0.0.9", dst="10.0.0.2") / TCP() / Raw(bytes(30)))
    parts = [
        bytes(
            Ether(**MACS) / IP(src="10.0.0.9", dst="10.0.0.2", id=n, flags=more, frag=index, proto=6) / Raw(bytes(16))
        )
        for n in range(2)
        for more, index in (("MF", 0), (0, 2), ("MF", 1))
    ]
    wrapped = [(wrap.link, wrap(packet)) for wrap in WRAPS.values()]
    return wrapped + [(wrap.link, wrap(part)) for wrap in WRAPS.values() if wrap.inside == FRAME for part in parts]


def mangle(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, the end cut off or repeated; a third is not changed, so that fragments can be joined."""
    changed = bytearray(data)
    kind = rng.randrange(6) if data else 5
    if kind < 2:
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.choice([0, 1, 4, 6, 0x45, 0x60, 0x7F, 0xFF, rng.randrange(256)])
    elif kind == 2:
        del changed[rng.randrange(len(changed)) :]
    elif kind == 3:
        at = rng.randrange(len(changed))
        changed[at:at] = changed[at : at + rng.randrange(40)]
    return bytes(changed)


def packets_of(count: int) -> Iterator[str]:
    """Each packet in a block of its own, so that a read past its end is one past the block."""
    rng, known, fragments = random.Random(11), seeds(), Fragments()
    for number in range(1, count + 1):
        link, data = rng.choice(known)
        if rng.randrange(10) == 0:
            link, data = rng.choice(LINKS), rng.randbytes(rng.randrange(90))
        data = mangle(rng, data)
        record = np.zeros(1, RECORD)
        record["cap_len"], record["link_type"] = len(data), link
        record["wire_len"] = len(data) + rng.choice([0, 0, 0, 8, 100_000])
        packets = dissect(np.frombuffer(bytearray(data), np.uint8), record, number, 0, fragments)
        segment = packets.segments[0]
        end = int(segment["payload_at"]) + int(segment["cap_len"])
        assert end <= len(packets.data)
        assert segment["cap_len"] <= segment["wire_len"]
        yield f"{packets.skip[0]} {packets.tunnels[0].tolist()} {packets.keys[0].tobytes().hex()} {segment}"


if __name__ == "__main__":
    for line in packets_of(int(sys.argv[1])):
        print(line)
