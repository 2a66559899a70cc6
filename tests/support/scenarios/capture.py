"""A script as packets: who sent what when, on TCP connections of their own, and a pcap file with them.

Times are those of the script to the nanosecond: contents begin with their first packet at `at` and are complete with
their last at `end`. `disturbed` reorders and doubles packets in ways that leave these times as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Protocol

from pcap_files import RAW_IP, pcap, tcp_packet

from scenarios.script import ANSWER_NS, FIRST_CLIENT_PORT, PORT, Event, Script
from scenarios.wire_0_10 import WireV0_10
from scenarios.wire_1_0 import WireV1_0
from scenarios.wire_classic import CLIENT, SERVER, ClassicWire, Sent, Step

FIN, SYN, PSH, ACK = 1, 2, 8, 16
OPENING_STEP_NS = 1_000  # between packets of an opening, of one peer after the other
FIRST_SEQ = {CLIENT: 1000, SERVER: 5_000_000}


@dataclass(frozen=True)
class Packet:
    """`event`: index of the event whose content or saying it carries, and `part` of it."""

    at: int
    script: Script
    peer: int
    sender: str
    data: bytes
    flags: int = PSH | ACK
    event: int | None = None
    part: int = 0
    seq: int = 0
    ack: int = 0

    @property
    def wire_bytes(self) -> bytes:
        """IPv4 and TCP."""
        ends = [(bytes([10, 2, 0, 1]), FIRST_CLIENT_PORT + self.peer), (bytes(self.script.address), PORT)]
        source, target = ends if self.sender == CLIENT else ends[::-1]
        return tcp_packet(source, target, self.seq, self.ack, self.flags, self.data)


class Wire(Protocol):
    """How one peer and the broker speak: bytes of each side, or frames of one side."""

    def opening(self) -> list[Step]: ...
    def closing(self) -> list[Step]: ...
    def asks(self, event: Event) -> list[Step]: ...
    def says(self, index: int) -> Sent: ...
    def answers(self, event: Event) -> list[Step]: ...


def wire_of(script: Script, number: int) -> Wire:
    version = script.peers[number].version
    if version == "0-10":
        return WireV0_10(script, number)
    return WireV1_0(script, number) if version == "1.0" else ClassicWire(script, number)


def packets(script: Script) -> list[Packet]:
    """All packets of the captured peers, in order of time."""
    found: list[Packet] = []
    clock = script.start
    wires: dict[int, Wire] = {}
    for number, peer in enumerate(script.peers):
        if peer.captured:
            wires[number] = wire_of(script, number)
            opening = list(opened(script, number, wires[number].opening(), clock))
            clock = opening[-1].at
            found += opening
    for index, event in enumerate(script.events):
        if event.peer not in wires:
            continue
        wire = wires[event.peer]

        def packet(at: int, sender: str, data: bytes, part: int = 0, flags: int = PSH | ACK) -> Packet:
            return Packet(at, script, event.peer, sender, data, flags, index, part)  # noqa: B023

        if event.kind == "close":
            found += [packet(event.at + at, *step) for at, step in enumerate(wire.closing())]
            found += [packet(event.at + 9, CLIENT, b"", 0, FIN | ACK), packet(event.at + 10, SERVER, b"", 0, FIN | ACK)]
            continue
        found += [packet(event.at - ANSWER_NS, *step) for step in wire.asks(event)]
        sender, frames = wire.says(index)
        frames = grouped(frames, event.parts)
        for part, (data, at) in enumerate(zip(frames, times(event.at, event.end, event.parts), strict=True)):
            found.append(packet(at, sender, data, part))
        found += [packet(event.end + ANSWER_NS, *step) for step in wire.answers(event)]
    return with_sequence_numbers(sorted(found, key=lambda packet: packet.at))


def opened(script: Script, number: int, steps: Iterable[tuple[str, bytes]], clock: int) -> Iterator[Packet]:
    for sender, flags in ((CLIENT, SYN), (SERVER, SYN | ACK), (CLIENT, ACK)):
        clock += OPENING_STEP_NS
        yield Packet(clock, script, number, sender, b"", flags)
    for sender, data in steps:
        clock += OPENING_STEP_NS
        yield Packet(clock, script, number, sender, data)


def grouped(frames: list[bytes], parts: int) -> list[bytes]:
    """Frames as payloads of `parts` packets; the first frame has its own packet if there are several."""
    if parts == 1:
        return [b"".join(frames)]
    return [*frames[: parts - 1], b"".join(frames[parts - 1 :])]


def times(at: int, end: int, parts: int) -> list[int]:
    """First at `at`, last at `end`, between them odd times that no event has."""
    return [at] if parts == 1 else [at, *(at + (end - at) * n // (parts - 1) | 1 for n in range(1, parts - 1)), end]


def with_sequence_numbers(ordered: list[Packet]) -> list[Packet]:
    """With sequence and acknowledgement numbers."""
    seq: dict[tuple[int, str], int] = {}
    done = []
    for packet in ordered:
        mine = (packet.peer, packet.sender)
        far = (packet.peer, SERVER if packet.sender == CLIENT else CLIENT)
        at = seq.get(mine, FIRST_SEQ[packet.sender])
        done.append(replace(packet, seq=at, ack=seq.get(far, 0) if packet.flags & ACK else 0))
        seq[mine] = at + len(packet.data) + (1 if packet.flags & (SYN | FIN) else 0)
    return done


def disturbed(ordered: list[Packet], random: Random) -> list[Packet]:
    """Packets in the middle and at the end of a content change places in time, some packets come a second time, some
    precede a slightly older one in the file. No content begins or is complete at another time."""
    swapped: dict[tuple[int, int], int] = {}
    for packet in ordered:
        if packet.event is not None and packet.script.events[packet.event].parts == 3 and packet.part:
            swapped[(packet.event, packet.part)] = packet.at
    moved = []
    for packet in ordered:
        partner = None
        if packet.event is not None and packet.event % 2 == 0:
            partner = swapped.get((packet.event, 3 - packet.part)) if packet.part else None
        moved.append(packet if partner is None else replace(packet, at=partner))
    moved = acknowledged(sorted(moved, key=lambda packet: packet.at))
    again = [replace(packet, at=packet.at + 250_000) for packet in moved if packet.data and random.random() < 0.1]
    arranged = sorted([*moved, *again], key=lambda packet: packet.at)
    for index in range(len(arranged) - 1):
        one, other = arranged[index : index + 2]
        if one.peer != other.peer and random.random() < 0.2:
            arranged[index : index + 2] = [other, one]
    return arranged


def acknowledged(ordered: list[Packet]) -> list[Packet]:
    """With acknowledgements of no more than what has come without a gap."""
    after: dict[tuple[int, str], dict[int, int]] = {}  # first number of what came -> the number after it
    reached: dict[tuple[int, str], int] = {}
    done = []
    for packet in ordered:
        far = (packet.peer, SERVER if packet.sender == CLIENT else CLIENT)
        done.append(replace(packet, ack=reached.get(far, 0) if packet.flags & ACK else 0))
        mine = (packet.peer, packet.sender)
        came = after.setdefault(mine, {})
        size = len(packet.data) + (1 if packet.flags & (SYN | FIN) else 0)
        if size:
            came[packet.seq] = packet.seq + size
        at = reached.get(mine, FIRST_SEQ[packet.sender])
        while at in came:
            at = came.pop(at)
        reached[mine] = at
    return done


def write_pcap(path: Path, written: Iterable[Packet]) -> None:
    """One file with these packets in this order."""
    path.write_bytes(pcap(((packet.at, packet.wire_bytes) for packet in written), RAW_IP))
