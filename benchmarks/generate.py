"""Writes a deterministic capture of RabbitMQ-like 0-9-1 traffic: `python -m benchmarks.generate OUT --mb 180`.

Every connection opens, publishes with confirms, gets its own messages delivered, acknowledges them and closes. A round
is a burst of the client (publishes, acknowledgements of the round before) and one of the server (confirms, deliveries);
a burst is cut into segments of 1448 bytes wherever they end. Frames are encoded once as templates
(benchmarks/traffic.py); messages, headers and packets are then laid out with numpy and only tags and times are patched,
about 100 MB/s. Sequence numbers, acknowledgements and lengths are right, checksums are zero. Memory does not grow with
the size: it is written in epochs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from benchmarks.traffic import CLIENT, SERVER, Bytes, Unit, closing, opening, units

Integers = NDArray[np.int64]
Laid = tuple[NDArray[np.void], Integers, Bytes]  # packet headers, their times in ns, their payloads end to end

SEGMENT_BYTES = 1448  # Ethernet MTU 1500 less IPv4, TCP and the TCP timestamp option
EPOCH_BYTES = 64 * 1024 * 1024
START_NS = 1_700_000_000 * 10**9
FIN, SYN, PSH, ACK = 1, 2, 8, 16

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
RECORD_BYTES = 16
HEADER_BYTES = PACKET.itemsize - RECORD_BYTES


@dataclass
class Talk:
    """One connection: addresses, how many messages a burst holds, and where it has got to."""

    number: int
    burst: int
    sent: list[int]  # sequence number of the next byte, by side
    clock_ns: int
    messages: int = 0

    @property
    def ports(self) -> tuple[int, int]:
        return 40000 + self.number, 5672

    @property
    def addresses(self) -> tuple[int, int]:
        return 0x0A000100 + self.number, 0x0A000002


# ---- packets --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packets:
    """Columns of one connection's packets in order, and the bytes of both sides that they cut."""

    side: Integers
    start: Integers  # into streams[side]
    length: Integers
    flags: Integers
    streams: tuple[Bytes, Bytes]


def stream_of(templates: list[Unit], chosen: Integers, first: int) -> tuple[Bytes, Integers]:
    """Units end to end with their tags patched, and where each one ends."""
    lengths = np.array([len(unit.data) for unit in templates], np.int64)[chosen]
    ends = np.cumsum(lengths)
    data = np.empty(int(ends[-1]), np.uint8)
    for which, unit in enumerate(templates):
        mine = np.flatnonzero(chosen == which)
        at = (ends - lengths)[mine, None]
        data[at + np.arange(len(unit.data))] = unit.data
        for offset, added in unit.tags:
            tags = np.maximum(mine + first + added, 0).astype(">u8").view(np.uint8).reshape(-1, 8)
            data[at + np.arange(offset, offset + 8)] = tags
    return data, ends


def cut(ends: Integers, side: int) -> tuple[Integers, ...]:
    """Bursts, given by their ends, cut into segments: (order key, side, start, length), with the peer's bare
    acknowledgement after every second segment and after the last."""
    starts = np.concatenate(([0], ends[:-1]))
    pieces = -(-(ends - starts) // SEGMENT_BYTES)
    burst = np.repeat(np.arange(len(ends)), pieces)
    place = np.arange(len(burst)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = starts[burst] + place * SEGMENT_BYTES
    length = np.minimum(SEGMENT_BYTES, ends[burst] - start)
    key = (burst * 2 + side) * 10**6 + place * 2
    bare = (place % 2 == 1) | (place == pieces[burst] - 1)
    nothing = np.zeros(int(bare.sum()), np.int64)
    return (
        np.concatenate((key, key[bare] + 1)),
        np.concatenate((np.full(len(key), side), nothing + 1 - side)),
        np.concatenate((start, nothing)),
        np.concatenate((length, nothing)),
    )


def rounds(talk: Talk, templates: tuple[list[Unit], list[Unit]], messages: int, rng: np.random.Generator) -> Packets:
    chosen = rng.integers(0, len(templates[0]), messages)
    streams, tables = [], []
    for side in (CLIENT, SERVER):
        data, ends = stream_of(templates[side], chosen, talk.messages)
        streams.append(data)
        tables.append(cut(ends[talk.burst - 1 :: talk.burst], side))
    key, side_of, start, length = (np.concatenate(columns) for columns in zip(*tables, strict=True))
    order = np.argsort(key, kind="stable")
    talk.messages += messages
    flags = np.where(length[order] > 0, PSH | ACK, ACK)
    return Packets(side_of[order], start[order], length[order], flags, (streams[0], streams[1]))


def exchange(steps: list[tuple[int, bytes, int]]) -> Packets:
    """Packets for a few hand-made (side, bytes, flags)."""
    streams = tuple(np.frombuffer(b"".join(data for s, data, _ in steps if s == side), np.uint8) for side in (0, 1))
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
    return Packets(sides, start, length, flags, (streams[0], streams[1]))


def lay_out(talk: Talk, packets: Packets, rng: np.random.Generator) -> Laid:
    """Headers of the packets, their times in ns, and their payloads end to end."""
    count = len(packets.side)
    headers = np.zeros(count, PACKET)
    numbers = packets.length + (packets.flags & (SYN | FIN) != 0)  # SYN and FIN take a number each
    for side in (CLIENT, SERVER):
        sent = np.cumsum(np.where(packets.side == side, numbers, 0))
        mine = packets.side == side
        headers["seq"][mine] = (talk.sent[side] + sent[mine] - numbers[mine]) % 2**32
        headers["ack"][~mine] = (talk.sent[side] + sent[~mine]) % 2**32
        talk.sent[side] += int(sent[-1])
        ends = {"source": talk.addresses[side], "target": talk.addresses[1 - side]}
        ends |= {"sport": talk.ports[side], "dport": talk.ports[1 - side]}
        for name, value in ends.items():
            headers[name][mine] = value
    headers["ack"][packets.flags & ACK == 0] = 0
    times = talk.clock_ns + np.cumsum(rng.integers(5_000, 60_000, count))
    talk.clock_ns = int(times[-1])
    headers["seconds"], headers["micros"] = times // 10**9, times // 1000 % 10**6
    headers["captured"] = headers["original"] = packets.length + HEADER_BYTES
    headers["ether_type"], headers["version"], headers["ttl"], headers["protocol"] = 0x0800, 0x45, 64, 6
    headers["ip_length"] = packets.length + HEADER_BYTES - 14
    headers["fragment"], headers["header"], headers["window"], headers["option"] = 0x4000, 0x80, 65535, 0x0101080A
    headers["flags"] = packets.flags
    headers["tsval"] = headers["tsecr"] = times // 10**6 % 2**32
    return headers, times, payloads(packets)


def payloads(packets: Packets) -> Bytes:
    both = np.concatenate(packets.streams)
    start = packets.start + packets.side * len(packets.streams[CLIENT])
    return both[spread(start, packets.length)]


def spread(starts: Integers, lengths: Integers) -> Integers:
    """The indices start, start + 1, ... of each stretch, end to end."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def write(out: BinaryIO, parts: list[Laid]) -> None:
    """Records of several connections in the order of time."""
    headers = np.concatenate([part[0] for part in parts], dtype=PACKET)  # without the dtype: native byte order
    order = np.argsort(np.concatenate([part[1] for part in parts]), kind="stable")
    payload = np.concatenate([part[2] for part in parts])
    length = headers["captured"].astype(np.int64) - HEADER_BYTES
    start = (np.cumsum(length) - length)[order]
    headers, length = headers[order], length[order]
    for first in range(0, len(order), 16384):  # in pieces: the index of a byte takes eight
        some = slice(first, first + 16384)
        sizes = length[some] + PACKET.itemsize
        at = np.cumsum(sizes) - sizes
        block = np.empty(int(sizes.sum()), np.uint8)
        block[at[:, None] + np.arange(PACKET.itemsize)] = headers[some].view(np.uint8).reshape(-1, PACKET.itemsize)
        block[spread(at + PACKET.itemsize, length[some])] = payload[spread(start[some], length[some])]
        out.write(block.tobytes())


def meet(talks: list[Talk]) -> None:
    """All wait for the slowest, so that what is written next is later than all that was."""
    latest = max(talk.clock_ns for talk in talks)
    for talk in talks:
        talk.clock_ns = latest


def epochs(size: int, seed: int, message_bytes: int, connections: int) -> Iterator[list[Laid]]:
    """What `write` takes, piece after piece: the openings, rounds of about EPOCH_BYTES, the ends."""
    rng = np.random.default_rng(seed)
    talks = [
        Talk(n, 1 + n % 3, [int(x) for x in rng.integers(0, 2**32, 2)], START_NS + n * 250_000)
        for n in range(connections)
    ]
    templates = {burst: units(rng, burst, message_bytes) for burst in (1, 2, 3)}
    greet = [(CLIENT, b"", SYN), (SERVER, b"", SYN | ACK), (CLIENT, b"", ACK)]
    yield [lay_out(t, exchange(greet + [(s, d, PSH | ACK) for s, d in opening()]), rng) for t in talks]
    meet(talks)
    unit = sum(len(side[n].data) for side in templates[1] for n in range(16)) // 16
    left = size // ((unit + 3 * PACKET.itemsize) * connections)  # messages of each connection, about
    while left > 0:
        count = min(left, max(1, EPOCH_BYTES // (unit * connections)))
        left -= count
        yield [lay_out(t, rounds(t, templates[t.burst], -(-count // t.burst) * t.burst, rng), rng) for t in talks]
        meet(talks)
    part = [(CLIENT, b"", FIN | ACK), (SERVER, b"", FIN | ACK), (CLIENT, b"", ACK)]
    yield [lay_out(t, exchange([(s, d, PSH | ACK) for s, d in closing(t.messages)] + part), rng) for t in talks]


def generate(path: Path, size: int, seed: int = 1, message_bytes: int = 850, connections: int = 8) -> None:
    """Write about `size` bytes of capture to `path`; equal arguments give equal bytes."""
    with path.open("wb") as out:
        out.write(np.array([0xA1B2C3D4, 4 << 16 | 2, 0, 0, 262144, 1], "<u4").tobytes())  # pcap 2.4, Ethernet
        for parts in epochs(size, seed, message_bytes, connections):
            write(out, parts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("out", type=Path)
    parser.add_argument("--mb", type=float, default=180, help="size of the capture in 10**6 bytes (default 180)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--message-bytes", type=int, default=850, help="mean size of a message body (default 850)")
    parser.add_argument("--connections", type=int, default=8)
    chosen = parser.parse_args()
    generate(chosen.out, int(chosen.mb * 10**6), chosen.seed, chosen.message_bytes, chosen.connections)


if __name__ == "__main__":
    main()
