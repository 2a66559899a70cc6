"""What the kernels do a second on one core: `python -m benchmarks.kernels`.

Packets: Ethernet, IPv4, TCP and 100 bytes of payload, as a block of a capture. The rest: the conversations of
benchmarks/profiles.py as one TCP connection of about 100 MB in segments of 1,448 bytes, from memory, family by family.

    scan     everything up to rows with raw arguments: TCP order, framing, contents, SHA-256 of bodies
    framing  the same without the time for SHA-256 of the same bodies
    values   arguments and properties to VARIANT; a row of 1.0 has some twenty values, others five

Processor seconds of this thread; the best of the runs, as others only ever add.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.processes import MEGA
from benchmarks.profiles import FAMILIES, streams
from codec.amqp import batches
from codec.amqp import decoder as decoding
from codec.amqp.batches import decode_values
from codec.capture.records import RECORD
from codec.compiler.kernel import njit
from codec.framing.stream import run
from codec.hashes.sha256 import (
    begin,
    finish,
    new_digests,
    update,
)
from codec.net.layers import ACK, SEGMENT, SYN, dissect
from codec.protocol import rows as R
from codec.protocol.versions import BODY
from udfs.warm import packets

SEGMENT_BYTES = 1448
FLOW = bytes(15) + b"\x01" + bytes(15) + b"\x02" + (5672).to_bytes(2, "big") + (40000).to_bytes(2, "big")
CLIENT, SERVER = 1, 0  # directions: the high endpoint of FLOW is the client


def conversation(family: str, size: int, message_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Segments and payload of a connection of about `size` bytes: both sides in turn, round by round."""
    openings, rounds = streams(family, message_bytes)
    count = max(1, size // (len(rounds[0]) + len(rounds[1])))
    pieces, segments = [], []
    number, at, sent = 1, 0, {CLIENT: 0, SERVER: 0}

    def add(direction: int, length: int, flags: int) -> None:
        nonlocal number, at
        ns = number * 10_000
        ack = sent[1 - direction] if flags & ACK else 0
        segments.append((ns, ns, number, at, sent[direction], ack, length, length, 0, 65535, flags, direction, 0, 0))
        number, at = number + 1, at + length
        sent[direction] += length + (1 if flags & SYN else 0)

    def say(direction: int, data: bytes) -> None:
        pieces.append(data)
        for start in range(0, len(data), SEGMENT_BYTES):
            add(direction, min(SEGMENT_BYTES, len(data) - start), ACK)

    add(CLIENT, 0, SYN)
    add(SERVER, 0, SYN | ACK)
    for direction, data in ((CLIENT, openings[0]), (SERVER, openings[1])):
        say(direction, data)
    for _ in range(count):
        say(CLIENT, rounds[0])
        say(SERVER, rounds[1])
    return np.array(segments, SEGMENT), np.frombuffer(b"".join(pieces), np.uint8)


class Spent:
    """Wraps a function and adds up the processor time that it takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *arguments: Any) -> Any:
        start = time.thread_time()
        try:
            return self.function(*arguments)
        finally:
            self.seconds += time.thread_time() - start


@njit
def hash_each(digests, data, sizes, out):
    """SHA-256 of one body after the other; all begin at the first of `bytes`."""
    for size in sizes:
        begin(digests, 0)
        update(digests, 0, data, 0, size)
        finish(digests, 0, out)


def best(runs: int, function: Callable[..., Any], *arguments: Any) -> float:
    """Processor seconds of a call; the first loads the kernels."""
    spent = []
    for _ in range(runs + 1):
        timed = Spent(function)
        timed(*arguments)
        spent.append(timed.seconds)
    return min(spent[1:])


def body_sizes(cells: np.ndarray) -> np.ndarray:
    """Bytes of the bodies that were hashed: those of body frames, or of messages of 1.0."""
    framed = cells[cells[:, R.TYPE] == BODY, R.PAYLOAD_SIZE]
    return framed if len(framed) else cells[cells[:, R.DIGEST] == 1, R.BODY_SIZE]


def packet_line(runs: int, count: int = 60_000) -> str:
    """Packets through the layers below TCP, a block of 9 MB."""
    packet = packets(b"x" * 100)[2]
    block = np.frombuffer(bytearray(packet * count), np.uint8)
    records = np.zeros(count, RECORD)
    records["offset"] = np.arange(count) * len(packet)
    records["cap_len"] = records["wire_len"] = len(packet)
    records["link_type"] = 1  # Ethernet
    assert (dissect(block, records, 1, 0).skip == 0).all()
    seconds = best(runs, dissect, block, records, 1, 0)
    return f"packets {count / seconds / MEGA:.1f} M/s"


def family_line(family: str, size: int, message_bytes: int, runs: int) -> str:
    """One line of figures."""
    segments, payload = conversation(family, size, message_bytes)
    scans, values, frames, spoken = [], [], 0, 0
    sizes: list[np.ndarray] = []
    scan_kernel, value_kernels = run, decode_values
    for _ in range(runs + 1):  # the first loads the kernels
        scan, value = Spent(scan_kernel), Spent(value_kernels)
        vars(decoding).update(run=scan)
        vars(batches).update(decode_values=value)
        frames = spoken = 0
        sizes = []
        try:
            decoder = decoding.Decoder()
            for part in (decoder.feed(FLOW, segments, payload), decoder.finish()):
                for batch in part:
                    frames += len(batch.cells)
                    spoken += int((batch.cells[:, R.DEFINITION] >= 0).sum())
                    sizes.append(body_sizes(batch.cells))
                    assert (batch.cells[:, R.STATUS] == 0).all(), "the conversation is wrong"
        finally:
            vars(decoding).update(run=scan_kernel)
            vars(batches).update(decode_values=value_kernels)
        scans.append(scan.seconds)
        values.append(value.seconds)
    scan_s, values_s, bodies = min(scans[1:]), min(values[1:]), np.concatenate(sizes)
    sha_s = best(runs, hash_each, new_digests(1), payload, bodies, np.zeros(32, np.uint8))
    return (
        f"{family:7}{frames:>10,}{frames / scan_s / MEGA:>10.1f}{len(payload) / scan_s / MEGA:>8,.0f}"
        f"{frames / (scan_s - sha_s) / MEGA:>13.1f}{int(bodies.sum()) / sha_s / MEGA:>10,.0f}"
        f"{spoken:>14,}{spoken / values_s / MEGA:>11.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description="Speed of the kernels.")
    parser.add_argument("--mb", type=float, default=100, help="size of each conversation in 10**6 bytes (default 100)")
    parser.add_argument("--message-bytes", type=int, default=64, help="size of a body (default 64)")
    parser.add_argument("--runs", type=int, default=3)
    selected = parser.parse_args()
    print(packet_line(selected.runs))
    print(f"{'':7}{'frames':>10}{'scan M/s':>10}{'MB/s':>8}{'framing M/s':>13}{'SHA MB/s':>10}", end="")
    print(f"{'with values':>14}{'values M/s':>12}")
    for family in FAMILIES:
        print(family_line(family, int(selected.mb * MEGA), selected.message_bytes, selected.runs))


if __name__ == "__main__":
    main()
