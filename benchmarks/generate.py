"""Writes a deterministic capture: `python -m benchmarks.generate OUT --mb 1000 --profile small`.

Every connection opens, publishes with confirms, consumes its own messages, accepts them and closes
(benchmarks/traffic.py, sessions.py). A round is a burst of the client (publishes, acceptances of the round before) and
one of the server; a burst is split into segments. The bytes of a side for one message are encoded once as a template;
numpy makes messages, headers and packets of it (benchmarks/packets.py) and patches only numbers, texts of bodies and
times: 50 to 100 MB/s. For short connections, a few are generated and copied with other addresses, numbers and texts.
Memory does not grow with the size: the capture is written in epochs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from benchmarks.packets import (
    ACK,
    FILE_HEADER,
    FIN,
    PACKET,
    SYN,
    Flow,
    Packets,
    exchange,
    packets_of,
    rounds,
    segments,
    stamped,
    write,
)
from benchmarks.processes import MEGA
from benchmarks.profiles import PROFILES, SCRIPTS, USUAL, Profile
from benchmarks.templates import CLIENT, SERVER, Script, Unit

EPOCH_BYTES = 32 * 1024 * 1024
START_NS = 1_700_000_000 * 10**9
APART_NS = 250_000  # between the beginnings of two connections
MASTERS = 24  # connections that others are copied from
GREETING = [(CLIENT, b"", SYN), (SERVER, b"", SYN | ACK), (CLIENT, b"", ACK)]
PARTING = [(CLIENT, b"", FIN | ACK), (SERVER, b"", FIN | ACK), (CLIENT, b"", ACK)]
BURSTS = (1, 2, 3)
Units = tuple[list[Unit], list[Unit]]


def message_bytes(units: Units, segment_bytes: int) -> int:
    """Mean bytes of a message in the capture: the bytes of both sides, in packets, with pure acknowledgements."""
    client, server = units
    sent_bytes = [sum(len(unit.data) for unit in side) / len(side) for side in (client[: len(server)], server)]
    packets = sum(1.5 * (each / segment_bytes + 0.5) for each in sent_bytes)
    return int(sum(sent_bytes) + packets * PACKET.itemsize)


def meet(flows: list[Flow]) -> None:
    """Set all clocks to the latest, so that later packets come after all written ones."""
    latest = max(flow.clock_ns for flow in flows)
    for flow in flows:
        flow.clock_ns = latest


def epochs(size: int, seed: int, profile: Profile) -> Iterator[list[Packets]]:
    """The parts for `write`: openings, rounds of about EPOCH_BYTES, closings."""
    rng = np.random.default_rng(seed)
    flows = [
        Flow(n, BURSTS[n % len(BURSTS)], [int(x) for x in rng.integers(0, 2**32, 2)], START_NS + n * APART_NS)
        for n in range(profile.connections)
    ]
    versions_of = list(islice(cycle(profile.versions), len(flows)))
    scripts = [SCRIPTS[version] for version in versions_of]
    units = {
        (version, burst): SCRIPTS[version].units(rng, burst, profile.message_bytes)
        for version in profile.versions
        for burst in BURSTS
    }
    yield [packets_of(t, exchange(GREETING + segments(s.opening())), rng) for t, s in zip(flows, scripts, strict=True)]
    meet(flows)
    each = sum(
        message_bytes(units[version, flow.burst], profile.segment_bytes)
        for flow, version in zip(flows, versions_of, strict=True)
    )
    messages, done = max(1, size // each), 0  # messages of each connection, about
    while done < messages:
        done = min(messages, done + max(1, EPOCH_BYTES // each))
        parts = []
        for flow, version in zip(flows, versions_of, strict=True):
            if flow.messages < done:
                count = -(-(done - flow.messages) // flow.burst) * flow.burst
                cut = rounds(flow, units[version, flow.burst], count, profile.segment_bytes, rng)
                parts.append(packets_of(flow, cut, rng))
        yield parts
        meet(flows)
    yield [
        packets_of(t, exchange(segments(s.closing(t.messages, t.burst)) + PARTING), rng)
        for t, s in zip(flows, scripts, strict=True)
    ]


def master(number: int, script: Script, profile: Profile, rng: np.random.Generator) -> Packets:
    """A complete short connection, with sequence numbers from 0."""
    flow = Flow(number, BURSTS[number % len(BURSTS)], [0, 0], START_NS)
    units = script.units(rng, flow.burst, profile.message_bytes)
    parts = [packets_of(flow, exchange(GREETING + segments(script.opening())), rng)]
    room = profile.connection_bytes - 2 * (len(parts[0].payload) + parts[0].headers.nbytes)  # the end is as long, about
    count = max(1, room // message_bytes(units, profile.segment_bytes))
    messages = -(-count // flow.burst) * flow.burst
    parts.append(packets_of(flow, rounds(flow, units, messages, profile.segment_bytes, rng), rng))
    parts.append(packets_of(flow, exchange(segments(script.closing(flow.messages, flow.burst)) + PARTING), rng))
    columns = zip(*((part.headers, part.times, part.payload) for part in parts), strict=True)
    headers, times, payload = (np.concatenate(column) for column in columns)
    before = len(parts[0].payload)
    return Packets(headers, times, payload, [replace(patch, at=patch.at + before) for patch in parts[1].patches])


def waves(size: int, seed: int, profile: Profile) -> Iterator[list[Packets]]:
    """The parts for `write` if connections are short: waves of about EPOCH_BYTES."""
    rng = np.random.default_rng(seed)
    scripts = islice(cycle(profile.versions), MASTERS)
    masters = [master(number, SCRIPTS[version], profile, rng) for number, version in enumerate(scripts)]
    each = sum(len(packets.payload) + packets.headers.nbytes for packets in masters) // MASTERS
    total, at_once = max(1, size // each), max(1, EPOCH_BYTES // each)
    clock = 0
    for first in range(0, total, at_once):
        numbers = np.arange(first, min(total, first + at_once))
        starts = clock + rng.permutation(len(numbers)) * APART_NS
        parts = []
        for which, packets in enumerate(masters):
            mine = numbers % MASTERS == which
            if mine.any():
                parts.append(stamped(packets, numbers[mine], starts[mine], rng))
        yield parts
        clock = max(int(part.times.max()) for part in parts) - START_NS


def generate(
    path: Path,
    size: int,
    seed: int = 1,
    message_bytes: int | None = None,
    connections: int | None = None,
    profile: Profile = USUAL,
) -> None:
    """Write about `size` bytes of capture to `path`; equal arguments give equal bytes. `message_bytes`, `connections`:
    other than the profile has them."""
    selected = replace(
        profile,
        message_bytes=profile.message_bytes if message_bytes is None else message_bytes,
        connections=profile.connections if connections is None else connections,
    )
    with path.open("wb") as out:
        out.write(FILE_HEADER)
        for parts in (waves if selected.connection_bytes else epochs)(size, seed, selected):
            write(out, parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.generate", description="Writes a deterministic capture."
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--mb", type=float, default=180, help="size of the capture in 10**6 bytes (default 180)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", choices=PROFILES, default="usual", help="kind of traffic (default usual)")
    parser.add_argument("--message-bytes", type=int, help="mean size of a message body (default: the profile's)")
    parser.add_argument("--connections", type=int, help="default: the profile's")
    selected = parser.parse_args()
    profile = PROFILES[selected.profile]
    generate(
        selected.out, int(selected.mb * MEGA), selected.seed, selected.message_bytes, selected.connections, profile
    )


if __name__ == "__main__":
    main()
