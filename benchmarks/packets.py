"""Packets of generated traffic, with numpy: bytes of both sides -> segments -> records of a pcap file.

Sequence numbers, acknowledgements and lengths are right, checksums are zero. No Python code runs per packet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from benchmarks.templates import CLIENT, SERVER, Bytes, Integers, Patch, Step, Unit, apply

FIN, SYN, PSH, ACK = 1, 2, 8, 16
PIECE_RECORDS = 2048  # written at a time: the index of a byte takes eight

PACKET = np.dtype(
    [
        ("seconds", "<u4"), ("micros", "<u4"), ("captured", "<u4"), ("original", "<u4"),
        ("macs", "V12"), ("ether_type", ">u2"),
        ("version", "u1"), ("tos", "u1"), ("ip_length", ">u2"), ("ip_id", ">u2"), ("fragment", ">u2"),
        ("ttl", "u1"), ("protocol", "u1"), ("ip_sum", ">u2"), ("source", ">u4"), ("target", ">u4"),
        ("sport", ">u2"), ("dport", ">u2"), ("seq", ">u4"), ("ack", ">u4"), ("header", "u1"), ("flags", "u1"),
        ("window", ">u2"), ("tcp_sum", ">u2"), ("urgent", ">u2"),
        ("option", ">u4"), ("tsval", ">u4"), ("tsecr", ">u4"),
    ]
)  # fmt: skip
RECORD_BYTES, ETHERNET_BYTES = 16, 14
HEADER_BYTES = PACKET.itemsize - RECORD_BYTES
FILE_HEADER = np.array([0xA1B2C3D4, 4 << 16 | 2, 0, 0, 262144, 1], "<u4").tobytes()  # pcap 2.4, Ethernet
CLIENTS, FIRST_PORT, PORTS = 0x0A000100, 40000, 20000
SERVER_ADDRESS, SERVER_PORT = 0x0A000002, 5672


@dataclass(frozen=True)
class Packets:
    """Headers, times in ns, concatenated payloads, and the patches in these."""

    headers: NDArray[np.void]
    times: Integers
    payload: Bytes
    patches: list[Patch]


@dataclass(frozen=True)
class Stream:
    """Bytes of one side, where each message ends, and the patches."""

    data: Bytes
    ends: Integers
    patches: list[Patch]


@dataclass(frozen=True)
class Segments:
    """Columns of one connection's packets in order, and the streams of both sides."""

    side: Integers
    start: Integers  # into streams[side]
    length: Integers
    flags: Integers
    streams: tuple[Stream, Stream]


@dataclass
class Flow:
    """State of one connection: its number, messages per burst, sequence numbers, and time."""

    number: int
    burst: int
    sent: list[int]  # sequence number of the next byte, by side
    clock_ns: int
    messages: int = 0


def endpoints(number: Integers) -> tuple[Integers, Integers]:
    """Addresses and ports of the clients of connections."""
    return CLIENTS + number // PORTS, FIRST_PORT + number % PORTS


def stream_of(units: list[Unit], selected: Integers, first: int, connection: int) -> Stream:
    """Units end to end, the first being of message `first`."""
    lengths = np.array([len(unit.data) for unit in units], np.int64)[selected]
    ends = np.cumsum(lengths)
    data = np.empty(int(ends[-1]), np.uint8)
    patches = []
    for which, unit in enumerate(units):
        mine = np.flatnonzero(selected == which)
        if not len(mine):
            continue
        at = ends[mine] - len(unit.data)
        for index in at if len(unit.data) > 4096 else ():  # few, and an index would be larger than they are
            data[index : index + len(unit.data)] = unit.data
        if len(unit.data) <= 4096:
            data[at[:, None] + np.arange(len(unit.data))] = unit.data
        patches += [Patch(at + offset, mine + first, width, kind) for offset, width, kind in unit.patches]
    apply(data[None], patches, np.array([connection]))
    return Stream(data, ends, patches)


def cut(ends: Integers, side: int, segment_bytes: int) -> tuple[Integers, ...]:
    """Bursts, given by their ends, cut into segments: (order key, side, start, length), with the peer's bare
    acknowledgement after every second segment and after the last."""
    starts = np.concatenate(([0], ends[:-1]))
    pieces = -(-(ends - starts) // segment_bytes)
    burst = np.repeat(np.arange(len(ends)), pieces)
    index = np.arange(len(burst)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = starts[burst] + index * segment_bytes
    length = np.minimum(segment_bytes, ends[burst] - start)
    key = (burst * 2 + side) * 10**6 + index * 2
    bare = (index % 2 == 1) | (index == pieces[burst] - 1)
    nothing = np.zeros(int(bare.sum()), np.int64)
    return (
        np.concatenate((key, key[bare] + 1)),
        np.concatenate((np.full(len(key), side), nothing + 1 - side)),
        np.concatenate((start, nothing)),
        np.concatenate((length, nothing)),
    )


def rounds(
    flow: Flow, units: tuple[list[Unit], list[Unit]], messages: int, segment_bytes: int, rng: np.random.Generator
) -> Segments:
    """The packets of a number of messages, a multiple of the burst: bursts of client and server alternate."""
    selected = rng.integers(0, len(units[SERVER]), messages)
    nothing_to_settle = np.arange(flow.messages, flow.messages + messages) < flow.burst
    chosen_by = {CLIENT: selected + nothing_to_settle * len(units[SERVER]), SERVER: selected}
    streams, tables = [], []
    for side in (CLIENT, SERVER):
        streams.append(stream_of(units[side], chosen_by[side], flow.messages, flow.number))
        tables.append(cut(streams[side].ends[flow.burst - 1 :: flow.burst], side, segment_bytes))
    key, side_of, start, length = (np.concatenate(columns) for columns in zip(*tables, strict=True))
    order = np.argsort(key, kind="stable")
    flow.messages += messages
    flags = np.where(length[order] > 0, PSH | ACK, ACK)
    return Segments(side_of[order], start[order], length[order], flags, (streams[0], streams[1]))


def exchange(steps: list[tuple[int, bytes, int]]) -> Segments:
    """Packets for a few hand-made (side, bytes, flags)."""
    streams = [b"".join(data for s, data, _ in steps if s == side) for side in (CLIENT, SERVER)]
    at, starts = [0, 0], []
    for side, data, _ in steps:
        starts.append(at[side])
        at[side] += len(data)
    columns = (
        [side for side, _, _ in steps],
        starts,
        [len(data) for _, data, _ in steps],
        [flags for _, _, flags in steps],
    )
    sides, start, length, flags = (np.array(column, np.int64) for column in columns)
    client, server = (Stream(np.frombuffer(data, np.uint8), np.array([len(data)]), []) for data in streams)
    return Segments(sides, start, length, flags, (client, server))


def segments(steps: list[Step]) -> list[tuple[int, bytes, int]]:
    """(side, bytes, flags) of steps, each a packet."""
    return [(side, data, PSH | ACK) for side, data in steps]


def packets_of(flow: Flow, packets: Segments, rng: np.random.Generator) -> Packets:
    """Packets of a connection with their headers and times; the state of `flow` moves on."""
    count = len(packets.side)
    headers = np.zeros(count, PACKET)
    numbers = packets.length + (packets.flags & (SYN | FIN) != 0)  # SYN and FIN take a number each
    address, port = (int(values[0]) for values in endpoints(np.array([flow.number])))
    addresses, ports = (address, SERVER_ADDRESS), (port, SERVER_PORT)
    for side in (CLIENT, SERVER):
        sent = np.cumsum(np.where(packets.side == side, numbers, 0))
        mine = packets.side == side
        headers["seq"][mine] = (flow.sent[side] + sent[mine] - numbers[mine]) % 2**32
        headers["ack"][~mine] = (flow.sent[side] + sent[~mine]) % 2**32
        flow.sent[side] += int(sent[-1])
        ends = {"source": addresses[side], "target": addresses[1 - side]}
        ends |= {"sport": ports[side], "dport": ports[1 - side]}
        for name, value in ends.items():
            headers[name][mine] = value
    headers["ack"][packets.flags & ACK == 0] = 0
    times = flow.clock_ns + np.cumsum(rng.integers(5_000, 60_000, count))
    flow.clock_ns = int(times[-1])
    headers["captured"] = headers["original"] = packets.length + HEADER_BYTES
    headers["ether_type"], headers["version"], headers["ttl"], headers["protocol"] = 0x0800, 0x45, 64, 6
    headers["ip_length"] = packets.length + HEADER_BYTES - ETHERNET_BYTES
    headers["fragment"], headers["header"], headers["window"], headers["option"] = 0x4000, 0x80, 65535, 0x0101080A
    headers["flags"] = packets.flags
    both = np.concatenate([stream.data for stream in packets.streams])
    start = packets.start + packets.side * len(packets.streams[CLIENT].data)
    patches = [
        replace(patch, at=in_payload(packets, side, patch.at))
        for side in (CLIENT, SERVER)
        for patch in packets.streams[side].patches
    ]
    return Packets(headers, times, both[spread(start, packets.length)], patches)


def in_payload(packets: Segments, side: int, at: Integers) -> Integers:
    """Offsets of the bytes `at` of a side's stream in the concatenated payloads of all packets. A message stays in one
    piece there, because one side sends it before the other side sends anything."""
    begins = np.cumsum(packets.length) - packets.length
    mine = (packets.side == side) & (packets.length > 0)
    packet = np.searchsorted(packets.start[mine], at, "right") - 1
    moved: Integers = at + (begins - packets.start)[mine][packet]
    return moved


def stamped(master: Packets, numbers: Integers, starts: Integers, rng: np.random.Generator) -> Packets:
    """Copies of a complete connection, each with its own number (hence address, port, message-ids, bodies), sequence
    numbers and start time (ns after the master's)."""
    count, each = len(numbers), len(master.headers)
    headers = np.tile(master.headers, count).reshape(count, each)
    address, port = endpoints(numbers)
    initial = rng.integers(0, 2**32, (2, count))
    from_client = master.headers["dport"] == SERVER_PORT
    for side, mine in ((CLIENT, from_client), (SERVER, ~from_client)):
        headers["seq"][:, mine] = (headers["seq"][:, mine].astype(np.int64) + initial[side][:, None]) % 2**32
        acks = ~mine & (master.headers["flags"] & ACK != 0)
        headers["ack"][:, acks] = (headers["ack"][:, acks].astype(np.int64) + initial[side][:, None]) % 2**32
    headers["source"][:, from_client] = headers["target"][:, ~from_client] = address[:, None]
    headers["sport"][:, from_client] = headers["dport"][:, ~from_client] = port[:, None]
    payload = np.tile(master.payload, count).reshape(count, len(master.payload))
    apply(payload, [patch for patch in master.patches if patch.kind.of_connection], numbers)
    times = master.times[None, :] + starts[:, None]
    return Packets(headers.reshape(-1), times.reshape(-1), payload.reshape(-1), [])


def spread(starts: Integers, lengths: Integers) -> Integers:
    """The indices start, start + 1, ... of each stretch, end to end."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def write(out: BinaryIO, parts: list[Packets]) -> None:
    """Records of several connections in the order of time."""
    headers = np.concatenate([part.headers for part in parts], dtype=PACKET)  # without the dtype: native byte order
    times = np.concatenate([part.times for part in parts])
    headers["seconds"], headers["micros"] = times // 10**9, times // 1000 % 10**6
    headers["tsval"] = headers["tsecr"] = times // 10**6 % 2**32
    order = np.argsort(times, kind="stable")
    payload = np.concatenate([part.payload for part in parts])
    length = headers["captured"].astype(np.int64) - HEADER_BYTES
    start = (np.cumsum(length) - length)[order]
    headers, length = headers[order], length[order]
    for first in range(0, len(order), PIECE_RECORDS):
        some = slice(first, first + PIECE_RECORDS)
        sizes = length[some] + PACKET.itemsize
        at = np.cumsum(sizes) - sizes
        block = np.empty(int(sizes.sum()), np.uint8)
        block[at[:, None] + np.arange(PACKET.itemsize)] = headers[some].view(np.uint8).reshape(-1, PACKET.itemsize)
        block[spread(at + PACKET.itemsize, length[some])] = payload[spread(start[some], length[some])]
        out.write(block.tobytes())
