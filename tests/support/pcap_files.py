"""pcap files, and IPv4 packets with TCP segments for them, written by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

ETHERNET, RAW_IP = 1, 101  # LINKTYPE_ETHERNET, LINKTYPE_RAW
HEADER, RECORD = 24, 16  # bytes, of a pcap file and of each record


def pcap(
    packets: Iterable[tuple[int, bytes] | tuple[int, bytes, int]], link: int = ETHERNET, snaplen: int = 1 << 18
) -> bytes:
    """A file of (time in ns, bytes), or (time in ns, bytes, length on the wire)."""
    records = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, snaplen, link)]
    for ns, data, *wire_len in packets:
        records.append(struct.pack("<IIII", *divmod(ns, 10**9), len(data), *(wire_len or [len(data)])) + data)
    return b"".join(records)


def records(capture: Path) -> tuple[bytes, list[bytes]]:
    """Header and records of a little-endian pcap file."""
    data = capture.read_bytes()
    assert data[:2] in (b"\xd4\xc3", b"\x4d\x3c"), capture
    found, at = list[bytes](), HEADER
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at + 8)
        found.append(data[at : at + RECORD + size])
        at += RECORD + size
    return data[:HEADER], found


def tcp_packet(
    source: tuple[bytes, int], target: tuple[bytes, int], seq: int, ack: int, flags: int, data: bytes,
    window: int = 65535, wire_len: int | None = None,
) -> bytes:  # fmt: skip
    """An IPv4 packet with a TCP segment between (address, port) and (address, port); checksums are zero. `wire_len`: of
    a segment whose `data` the snaplen has cut."""
    tcp = struct.pack(">HHIIBBHHH", source[1], target[1], seq, ack, 5 << 4, flags, window, 0, 0) + data
    length = 40 + (len(data) if wire_len is None else wire_len)
    return struct.pack(">BBHHHBBH", 0x45, 0, length, 0, 0, 64, 6, 0) + source[0] + target[0] + tcp
