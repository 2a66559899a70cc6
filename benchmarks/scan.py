"""The cost of connections without data: `python -m benchmarks.scan --connections 20000 300000`.

A capture of SYN packets only, as of a port scan or a flood: each is a TCP connection, with a row in `connections` and
two in `streams`, and nothing to decode. Prints the seconds of `wirehare decode`, those beyond a capture of one SYN, and
the highest resident set by kind of process. The figures are also written as JSON.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.figures import Point, decode, machine, machine_line, save
from benchmarks.generate import START_NS
from benchmarks.packets import (
    CLIENTS,
    ETHERNET_BYTES,
    FILE_HEADER,
    PACKET,
    RECORD_BYTES,
    SERVER_ADDRESS,
    SERVER_PORT,
    SYN,
)

SIZES = (20_000, 300_000)
APART_NS = 10_000
FIRST_PORT, PORTS = 1024, 64_000
SYN_PACKET = np.dtype(PACKET.descr[:-3])  # without TCP options


def scan(path: Path, connections: int, seed: int = 1) -> None:
    """Write a capture of SYN packets, each with other addresses and ports."""
    number = np.arange(connections)
    packets = np.zeros(connections, SYN_PACKET)
    times = START_NS + number * APART_NS
    packets["seconds"], packets["micros"] = times // 10**9, times // 1000 % 10**6
    packets["captured"] = packets["original"] = SYN_PACKET.itemsize - RECORD_BYTES
    packets["ether_type"], packets["version"], packets["ttl"], packets["protocol"] = 0x0800, 0x45, 64, 6
    packets["ip_length"] = SYN_PACKET.itemsize - RECORD_BYTES - ETHERNET_BYTES
    packets["source"], packets["sport"] = CLIENTS + number // PORTS, FIRST_PORT + number % PORTS
    packets["target"], packets["dport"] = SERVER_ADDRESS, SERVER_PORT
    packets["seq"] = np.random.default_rng(seed).integers(0, 2**32, connections)
    packets["header"], packets["flags"], packets["window"] = 0x50, SYN, 64_240
    path.write_bytes(FILE_HEADER + packets.tobytes())


def row(connections: int, point: Point, start: float) -> str:
    cells = f"{connections:12,}{point.seconds:10.1f}{point.seconds - start:14.1f}{point.processor:11.1f}"
    return cells + point.peak_columns()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scan", description="What silent connections cost.")
    parser.add_argument("--connections", type=int, nargs="+", default=list(SIZES), help="how many (20000 and 300000)")
    parser.add_argument("--json", type=Path, default=Path("scan.json"), help="where to (default scan.json)")
    selected = parser.parse_args()
    known = machine()
    print(machine_line(known))
    heads = {"connections": 12, "seconds": 10, "beyond start": 14, "processor": 11, "worker": 9, "JVM": 9, "driver": 9}
    print("".join(f"{head:>{width}}" for head, width in heads.items()))
    points: dict[int, Point] = {}
    for connections in [1, *sorted(selected.connections)]:
        with tempfile.TemporaryDirectory() as work:
            path = Path(work) / "scan.pcap"
            scan(path, connections)
            points[connections] = decode(path, Path(work) / "tables")
        print(row(connections, points[connections], points[1].seconds), flush=True)
    save(selected.json, machine=known, points={connections: asdict(point) for connections, point in points.items()})


if __name__ == "__main__":
    main()
