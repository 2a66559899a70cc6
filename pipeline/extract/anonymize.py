"""Anonymises the addresses in all headers of a packet. IP addresses keep their common prefixes.

Hardware addresses become locally administered ones and keep the group bit. Text in payloads (host names, client
properties, queue names) is not changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from codec.amqp.redaction import BLANK
from codec.capture.records import Bytes
from codec.pseudonyms import anonymise_ipv4, anonymise_ipv6
from pipeline.extract.headers import HARDWARE_BYTES, Stack

IPV4_AT, IPV6_AT = 12, 8  # of the source address in the header; the target follows
GROUP, LOCAL = 0x01, 0x02  # bits of the first octet of a hardware address (IEEE 802)
_HARDWARE = b"wirehare mac"


def anonymise(octets: Bytes, stacks: Sequence[Stack], key: bytes) -> None:
    """Replace the addresses of packets in place. `key`: 32 octets (codec.pseudonyms).

    Fragments of a tunnel are blanked after the outer header: their inner headers cannot be parsed.
    """
    for stack in stacks:
        if stack.fragment and not stack.fragment_of_tcp:
            octets[stack.payload : stack.end] = BLANK
    fours = _places(stacks, 4, IPV4_AT, 4)
    addresses = np.ascontiguousarray(octets[fours]).view(">u4").reshape(-1).astype(np.uint32)
    if len(addresses):
        octets[fours] = anonymise_ipv4(addresses, key).astype(">u4").view(np.uint8).reshape(-1, 4)
    sixes = _places(stacks, 6, IPV6_AT, 16)
    if len(sixes):
        octets[sixes] = anonymise_ipv6(np.ascontiguousarray(octets[sixes]), key)
    places = np.array([at for stack in stacks for at in stack.hardware], np.int64).reshape(-1, 1)
    if len(places):
        places = places + np.arange(HARDWARE_BYTES)
        known, which = np.unique(octets[places], axis=0, return_inverse=True)
        fresh = np.array([list(_hardware(each.tobytes(), key)) for each in known], np.uint8)
        octets[places] = fresh[which.reshape(-1)]


def _places(stacks: Sequence[Stack], version: int, offset: int, size: int) -> NDArray[np.int64]:
    """int64 (n, size): where the octets of each address of IP `version` are; source and target of each header."""
    starts = [
        at + offset + side * size for stack in stacks for at, each in stack.ips if each == version for side in (0, 1)
    ]
    return np.array(starts, np.int64).reshape(-1, 1) + np.arange(size)


def _hardware(address: bytes, key: bytes) -> bytes:
    if address in (bytes(HARDWARE_BYTES), b"\xff" * HARDWARE_BYTES):
        return address  # unspecified, broadcast
    digest = hashlib.blake2b(address, key=key, person=_HARDWARE, digest_size=HARDWARE_BYTES).digest()
    return bytes([(digest[0] & ~GROUP) | LOCAL | (address[0] & GROUP)]) + digest[1:]
