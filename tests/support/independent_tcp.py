"""A second reader of captures for the tests: packets, TCP streams and plain AMQP framing, one byte at a time.

It shares no code with the product and takes the simplest way everywhere: every byte of a stream remembers the packet
that brought it first, so what is complete, what is missing and which packet completed a frame is known. Slow (a few
MB/s). Only what the captures of the tests need is understood: pcap and pcapng, gzip, Ethernet with VLAN tags, SLL,
SLL2, NULL, RAW, IPv4 without fragments, IPv6 without extension headers.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

FIN, SYN, RST, ACK = 1, 2, 4, 16
NANOSECONDS = 1_000_000_000
FRAME_END = 0xCE
FRAME_OVERHEAD = 8  # type 1, channel 2, size 4, end 1

Endpoint = tuple[str, int]


@dataclass(frozen=True, eq=False)  # a list of a million of them is searched for None, which would compare the fields
class Packet:
    """One captured TCP packet. `order` counts over all files read together; `wire_len` counts payload bytes sent,
    `payload` holds those captured."""

    order: int
    file: str
    no: int
    ts_ns: int
    source: Endpoint
    target: Endpoint
    seq: int
    ack: int
    flags: int
    wire_len: int
    payload: bytes


# ---- files ----------------------------------------------------------------------------------------------------------


def records(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(time in ns, link type, bytes) of every packet; a record that the file's end cuts off is skipped."""
    raw = path.read_bytes()
    data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    return pcapng_records(data) if data[:4] == b"\x0a\x0d\x0d\x0a" else pcap_records(data)


def pcap_records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    order = ">" if data[:2] == b"\xa1\xb2" else "<"
    magic, _major, _minor, _zone, _sigfigs, _snaplen, link = struct.unpack_from(order + "IHHiIII", data)
    unit = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}[magic]
    at = 24
    while at + 16 <= len(data):
        seconds, fraction, captured, _wire = struct.unpack_from(order + "IIII", data, at)
        at += 16
        if at + captured > len(data):
            return
        yield seconds * NANOSECONDS + fraction * unit, link & 0xFFFF, data[at : at + captured]
        at += captured


def pcapng_records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    order, at = "<", 0
    interfaces: list[tuple[int, int]] = []  # link type, ticks per second
    while at + 12 <= len(data):
        if data[at : at + 4] == b"\x0a\x0d\x0d\x0a":
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            interfaces = []
        kind, length = struct.unpack_from(order + "II", data, at)
        body = data[at + 8 : at + length - 4]
        if kind == 1:
            interfaces.append((struct.unpack_from(order + "H", body)[0], ticks_per_second(order, body)))
        elif kind == 6:
            interface, high, low, captured, _wire = struct.unpack_from(order + "IIIII", body)
            link, ticks = interfaces[interface]
            yield ((high << 32 | low) * NANOSECONDS // ticks, link, body[20 : 20 + captured])
        at += length


def ticks_per_second(order: str, interface_block: bytes) -> int:
    at = 8
    while at + 4 <= len(interface_block):
        code, length = struct.unpack_from(order + "HH", interface_block, at)
        if code == 9:  # if_tsresol
            value = interface_block[at + 4]
            return int(2 ** (value & 0x7F)) if value & 0x80 else int(10**value)
        at += 4 + (length + 3) // 4 * 4
    return 1_000_000


# ---- layers ---------------------------------------------------------------------------------------------------------


def network_layer(link: int, data: bytes) -> bytes:
    """The IP packet inside a link frame, b"" when there is none."""
    if link == 101:
        return data
    if link == 0:
        return data[4:]
    if link == 1:
        at = 12
    elif link == 113:
        at = 14
    elif link == 276:
        return data[20:] if data[:2] in (b"\x08\x00", b"\x86\xdd") else b""
    else:
        return b""
    while data[at : at + 2] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    return data[at + 2 :] if data[at : at + 2] in (b"\x08\x00", b"\x86\xdd") else b""


def tcp_packet(order: int, file: str, no: int, ts_ns: int, ip: bytes) -> Packet | None:
    if not ip:
        return None
    if ip[0] >> 4 == 4:
        protocol, start = ip[9], (ip[0] & 15) * 4
        end = struct.unpack_from(">H", ip, 2)[0]
        source, target = ip[12:16], ip[16:20]
    else:
        protocol, start = ip[6], 40
        end = 40 + struct.unpack_from(">H", ip, 4)[0]
        source, target = ip[8:24], ip[24:40]
    if protocol != 6:
        return None
    sport, dport, seq, ack, offset, flags = struct.unpack_from(">HHIIBB", ip, start)
    begin = start + (offset >> 4) * 4
    return Packet(
        order, file, no, ts_ns, (str(ip_address(source)), sport), (str(ip_address(target)), dport),
        seq, ack, flags, end - begin, ip[begin:end],
    )  # fmt: skip


def packets(paths: Iterable[Path]) -> list[Packet]:
    """The TCP packets of these files, in the order of the files and of the packets in them."""
    found: list[Packet] = []
    for path in paths:
        for no, (ts_ns, link, data) in enumerate(records(path), 1):
            packet = tcp_packet(len(found), path.name, no, ts_ns, network_layer(link, data))
            if packet is not None:
                found.append(packet)
    return found


# ---- streams --------------------------------------------------------------------------------------------------------


@dataclass
class Half:
    """What one side sent. `arrival[i]` is the packet that brought byte i first, None where it was never captured."""

    sender: Endpoint
    base: int | None = None  # sequence number of stream byte 0
    syn: bool = False
    fin_at: int | None = None
    data: bytearray = field(default_factory=bytearray)
    arrival: list[Packet | None] = field(default_factory=list)
    acked: int = 0  # stream bytes that the other side acknowledged
    outside: int = 0  # bytes captured on RST packets, which are no part of the stream

    def offset(self, seq: int) -> int:
        """Stream offset of a sequence number: the one nearest to the end of what is known (numbers wrap at 2**32)."""
        assert self.base is not None
        expected = self.base + len(self.data)
        return len(self.data) + (seq - expected + 2**31) % 2**32 - 2**31

    def extend(self, end: int) -> None:
        self.data.extend(bytes(max(0, end - len(self.data))))
        self.arrival.extend([None] * (end - len(self.arrival)))

    def add(self, packet: Packet) -> None:
        if packet.flags & SYN:
            self.base, self.syn = packet.seq + 1, True
            return
        if packet.flags & RST:
            self.outside += len(packet.payload)
            return
        if self.base is None:
            self.base = packet.seq
        at = self.offset(packet.seq)
        if packet.flags & FIN:
            self.fin_at = at + packet.wire_len
        if packet.wire_len == 0:
            return
        self.extend(at + packet.wire_len)
        for index, byte in enumerate(packet.payload, at):
            if index >= 0 and self.arrival[index] is None:
                self.data[index], self.arrival[index] = byte, packet

    def take_ack(self, ack: int) -> None:
        if self.base is not None:
            self.acked = max(self.acked, self.offset(ack))

    def finish(self) -> None:
        """Acknowledged bytes that no packet carried are missing at the end (FIN takes one number and is no byte)."""
        end = self.fin_at if self.fin_at is not None else self.acked
        self.extend(max(end, 0))

    def holes(self) -> list[tuple[int, int]]:
        """(offset, length) of each stretch that was sent and not captured."""
        found: list[tuple[int, int]] = []
        for at, packet in enumerate(self.arrival):
            if packet is None:
                if found and sum(found[-1]) == at:
                    found[-1] = (found[-1][0], found[-1][1] + 1)
                else:
                    found.append((at, 1))
        return found

    @property
    def complete(self) -> bool:
        return self.syn and None not in self.arrival


@dataclass
class Connection:
    """One TCP connection; `client` is None when no SYN shows it."""

    halves: dict[Endpoint, Half]
    client: Endpoint | None = None

    @property
    def complete(self) -> bool:
        return all(half.complete for half in self.halves.values())

    @property
    def payload_bytes(self) -> int:
        return sum(len(half.data) for half in self.halves.values())


def connections(captured: Iterable[Packet]) -> list[Connection]:
    """TCP connections in the order of their first packets; a new initial sequence number begins a new one."""
    found: list[Connection] = []
    current: dict[frozenset[Endpoint], Connection] = {}
    for packet in captured:
        flow = frozenset((packet.source, packet.target))
        connection = current.get(flow)
        opening = packet.flags & (SYN | ACK) == SYN
        if connection is None or (packet.flags & SYN and begins_another(packet, connection)):
            connection = current[flow] = Connection({end: Half(end) for end in (packet.source, packet.target)})
            found.append(connection)
        if packet.flags & SYN:
            connection.client = packet.source if opening else packet.target
        connection.halves[packet.source].add(packet)
        if packet.flags & ACK:
            connection.halves[packet.target].take_ack(packet.ack)
    for connection in found:
        for half in connection.halves.values():
            half.finish()
    return found


def begins_another(packet: Packet, connection: Connection) -> bool:
    """Whether a SYN has another initial sequence number than this connection, or acknowledges another one."""
    base = connection.halves[packet.source].base
    if base is not None and base != (packet.seq + 1) % 2**32:
        return True
    other = connection.halves[packet.target].base
    return bool(packet.flags & ACK and other is not None and other != packet.ack)


# ---- frames ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """One 0-9-1 frame (or protocol header, kind "AMQP") by the length in its first bytes and nothing else."""

    sender: Endpoint
    offset: int
    size: int
    kind: int | str
    channel: int | None
    payload: bytes
    first_packet: Packet | None
    packet: Packet | None

    @property
    def class_id(self) -> int | None:
        return int.from_bytes(self.payload[:2], "big") if self.kind in (1, 2) else None

    @property
    def method_id(self) -> int | None:
        return int.from_bytes(self.payload[2:4], "big") if self.kind == 1 else None


def plain_frames(half: Half) -> tuple[list[Frame], int]:
    """Frames from byte 0 up to the first hole or the first thing that is not a frame, and how many bytes follow."""
    hole = half.holes()
    end = hole[0][0] if hole else len(half.data)
    data, at, found = bytes(half.data[:end]), 0, []
    carried = completing_packets(half.arrival[:end])
    while at < end:
        if at == 0 and data[:4] == b"AMQP" and end >= 8:
            kind, channel, size, payload = "AMQP", None, 8, data[4:8]
        else:
            if at + 7 > end:
                break
            kind, channel, length = struct.unpack_from(">BHI", data, at)
            size = length + FRAME_OVERHEAD
            if at + size > end or data[at + size - 1] != FRAME_END:
                break
            payload = data[at + 7 : at + size - 1]
        found.append(Frame(half.sender, at, size, kind, channel, payload, half.arrival[at], carried[at + size - 1]))
        at += size
    return found, len(half.data) - at - sum(length for _, length in hole)


def completing_packets(arrival: list[Packet | None]) -> list[Packet]:
    """For each byte the packet with which the stream was complete up to and with it."""
    found: list[Packet] = []
    for packet in arrival:
        assert packet is not None
        found.append(packet if not found or packet.order > found[-1].order else found[-1])
    return found
