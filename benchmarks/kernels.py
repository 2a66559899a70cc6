"""What the decoder's kernels do a second on one core, family by family: `python -m benchmarks.kernels`.

The conversations of benchmarks/families.py as one TCP connection of about 100 MB in segments of 1,448 bytes, from
memory. `scan` is everything up to rows with raw arguments: TCP order, framing, contents, SHA-256 of bodies; `values` is
arguments and properties to VARIANT. Processor seconds of this thread; the best of the runs, as others only ever add.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.families import FAMILIES, streams
from codec.amqp import decoder as decoding
from codec.amqp import rows as R
from codec.amqp.stream import run
from codec.amqp.values import decode_values
from codec.net.segments import ACK, SEGMENT, SYN

MEGA = 10**6
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
        segments.append((ns, ns, number, at, sent[direction], ack, length, length, 0, 65535, flags, direction))
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


def measure(family: str, size: int, message_bytes: int, runs: int) -> str:
    """One line of figures."""
    segments, payload = conversation(family, size, message_bytes)
    scans, values, frames, spoken = [], [], 0, 0
    scan_kernel, value_kernels = run, decode_values
    for _ in range(runs + 1):  # the first loads the kernels
        scan, value = Spent(scan_kernel), Spent(value_kernels)
        vars(decoding).update(run=scan, decode_values=value)
        frames = spoken = 0
        try:
            decoder = decoding.Decoder()
            for part in (decoder.feed(FLOW, segments, payload), decoder.finish()):
                for batch in part:
                    frames += len(batch.cells)
                    spoken += int((batch.cells[:, R.DEFINITION] >= 0).sum())
                    assert (batch.cells[:, R.STATUS] == 0).all(), "the conversation is wrong"
        finally:
            vars(decoding).update(run=scan_kernel, decode_values=value_kernels)
        scans.append(scan.seconds)
        values.append(value.seconds)
    best = min(scans[1:]), min(values[1:])
    return (
        f"{family:8}{frames:>10,}{best[0]:>9.2f}{frames / best[0] / MEGA:>9.1f}{len(payload) / best[0] / MEGA:>8.0f}"
        f"{spoken:>12,}{best[1]:>9.2f}{spoken / best[1] / MEGA:>9.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description="Speed of the decoder's kernels.")
    parser.add_argument("--mb", type=float, default=100, help="size of each conversation in 10**6 bytes (default 100)")
    parser.add_argument("--message-bytes", type=int, default=64, help="size of a body (default 64)")
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args()
    print(f"{'':8}{'frames':>10}{'scan s':>9}{'M/s':>9}{'MB/s':>8}{'with values':>12}{'values s':>9}{'M/s':>9}")
    for family in FAMILIES:
        print(measure(family, int(chosen.mb * MEGA), chosen.message_bytes, chosen.runs))


if __name__ == "__main__":
    main()
