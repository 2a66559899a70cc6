"""What a batch of an ingest costs as a lake grows, and what open connections cost: `python -m benchmarks.lake`.

    batches    --number batches of --mb each, in which --talking of the open --connections have messages: the seconds of
               the batches, those of the processors in the process of the ingest, how much more of these a late batch
               takes than an early one, and the memory of the process. Messages are paired within five batches, so that
               early ones have as many to pair as late ones
    states     batches with messages of one connection: while few connections are open, and after the rows of these
               were copied until --open are; then with messages of all those few: seconds, processor time and memory

    heartbeats batches in which each of the open --connections sends a heartbeat, and nothing else

Connections never end. Captures are generated (benchmarks/generate.py), taken by one ingest, and deleted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.generate import APART_NS, BURSTS, GREETING, START_NS, meet, message_bytes
from benchmarks.packets import ACK, FILE_HEADER, PSH, Flow, Packets, exchange, packets_of, rounds, segments, write
from benchmarks.processes import DRIVER, JVM, MEGA, WORKER, peaks
from benchmarks.profiles import SCRIPTS, USUAL
from benchmarks.templates import CLIENT, SERVER
from pipeline.lake import open_ingest
from pipeline.lake.ingest_batches import OF_CONNECTIONS
from pipeline.lake.lake_files import read_rows, write_file
from pipeline.lake.layout import Options
from pipeline.lake.log import Log
from pipeline.lake.opening import open_lake
from pipeline.run.local_processes import LocalProcesses
from pipeline.run.session import session

VERSION, HEARTBEAT = "0-9-1", bytes([8, 0, 0, 0, 0, 0, 0, 0xCE])
SPAN = 10  # batches that a figure is the median of
BATCH_APART_NS = 60 * 10**9
FEW, ROUNDS = 100, 4


class Traffic:
    """Connections that go on from capture to capture."""

    def __init__(self, connections: int) -> None:
        self._rng = np.random.default_rng(1)
        sequences = self._rng.integers(0, 2**32, (connections, 2)).tolist()
        self._flows = [
            Flow(n, BURSTS[n % len(BURSTS)], sequence, START_NS + n * APART_NS) for n, sequence in enumerate(sequences)
        ]
        self._script = SCRIPTS[VERSION]
        self._units = {burst: self._script.units(self._rng, burst, USUAL.message_bytes) for burst in BURSTS}

    def opening(self, path: Path) -> None:
        """All connections begin."""
        steps = exchange(GREETING + segments(self._script.opening()))
        self._write(path, [packets_of(flow, steps, self._rng) for flow in self._flows])

    def messages(self, path: Path, size: int, connections: int | None = None) -> None:
        """About `size` bytes of messages, of `connections` or of all; at least a burst each."""
        flows = self._flows[:connections]
        parts = []
        for flow in flows:
            units = self._units[flow.burst]
            count = max(1, size // len(flows) // message_bytes(units, USUAL.segment_bytes) // flow.burst) * flow.burst
            parts.append(packets_of(flow, rounds(flow, units, count, USUAL.segment_bytes, self._rng), self._rng))
        self._write(path, parts)

    def heartbeats(self, path: Path) -> None:
        """Each side of all connections sends one."""
        steps = exchange([(side, HEARTBEAT, PSH | ACK) for side in (CLIENT, SERVER)])
        self._write(path, [packets_of(flow, steps, self._rng) for flow in self._flows])

    def _write(self, path: Path, parts: list[Packets]) -> None:
        with path.open("wb") as out:
            out.write(FILE_HEADER)
            write(out, parts)
        meet(self._flows)
        for flow in self._flows:
            flow.clock_ns += BATCH_APART_NS


def batches(directory: Path, number: int, size: int, connections: int, talking: int) -> None:
    """Print what batches cost."""
    traffic, seconds, busy = Traffic(connections), list[float](), list[float]()
    with ingesting(directory / "lake", traffic) as take:
        for batch in range(1, number + 1):
            path = directory / f"{batch}.pcap"
            traffic.messages(path, size, talking)
            began = time.process_time()
            seconds.append(take(path))
            busy.append(time.process_time() - began)
            if batch % SPAN == 0:
                latest = statistics.median(busy[-SPAN:])
                share = latest / statistics.median(busy[:SPAN])
                print(
                    f"batch {batch:4}: {statistics.median(seconds[-SPAN:]):6.2f} s, {latest:6.2f} s of processors, "
                    f"{share:5.2f} of the first {SPAN}, {resident() / MEGA:,.0f} MB",
                    flush=True,
                )


def heartbeats(directory: Path, number: int, connections: int) -> None:
    """Print what batches of heartbeats cost."""
    traffic = Traffic(connections)
    with ingesting(directory / "lake", traffic) as take:
        for batch in range(1, number + 1):
            path = directory / f"{batch}.pcap"
            traffic.heartbeats(path)
            with peaks(os.getpid()) as seen:
                seconds = take(path)
            print(
                f"batch {batch:4}: {connections} connections with heartbeats: {seconds:6.2f} s, "
                f"{seen.processor:6.2f} s of processors, " + seen.peak_line(DRIVER, JVM, WORKER),
                flush=True,
            )


def resident() -> int:
    """Bytes that this process has in memory (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def states(directory: Path, number: int) -> None:
    """Print what open connections cost, with a packet in the batch and without."""
    traffic, lake = Traffic(FEW), directory / "lake"
    with ingesting(lake, traffic) as take:
        for batch in range(1, 3 * ROUNDS + 1):
            path, talking = directory / f"{batch}.pcap", 1 if batch <= 2 * ROUNDS else FEW
            traffic.messages(path, 0, talking)
            if batch == ROUNDS + 1:
                multiply(lake, number // FEW)
            with peaks(os.getpid()) as seen:
                took = take(path)
            log = Log(open_lake(str(lake)))
            there = sum(file.rows for file in log.files("states"))
            data = sum(file.size for file in log.files("states")) / MEGA
            print(
                f"{there:6} states, {data:6.1f} MB, {talking:3} with packets: "
                f"{took:6.2f} s, {seen.processor:6.2f} s of processors, " + seen.peak_line(DRIVER, JVM, WORKER),
                flush=True,
            )


def multiply(lake: Path, times: int) -> None:
    """Copy the rows of open connections `times` times into one file, as rows of other connections."""
    log = Log(open_lake(str(lake)))
    for name in (*OF_CONNECTIONS, "states"):
        table = log.tables[name]
        files = [file for file in log.files(name) if file.open or not table.partitioned]
        rows = read_rows(log.root, name, files)
        others = (_other(batch, copy) for copy in range(times) for batch in rows.to_batches())
        if written := write_file(log.root, table, f"copies-{name}", others, open_rows=True):
            log.commit(name, None, written, files)


def _other(batch: pa.RecordBatch, copy: int) -> pa.RecordBatch:
    """The rows of other connections."""
    for column, change in (("connection_id", _other_id), ("flow", _other_flow)):
        if column in batch.schema.names:
            at = batch.schema.get_field_index(column)
            values = [change(value, copy) for value in batch[column].to_pylist()]
            batch = batch.set_column(at, batch.schema.field(at), pa.array(values, batch[column].type))
    return batch


def _other_id(connection: int, copy: int) -> int:
    return connection ^ copy


def _other_flow(flow: bytes, copy: int) -> bytes:
    return copy.to_bytes(2, "big") + flow[2:]  # another address; that of IPv4 begins with zeros


@contextmanager
def ingesting(lake: Path, traffic: Traffic) -> Iterator[Callable[[Path], float]]:
    """A running ingest, which has taken the opening of the traffic: a function that ingests a capture as a batch,
    deletes it, and returns the seconds."""
    options = Options(settle=0, pair_within=5 * BATCH_APART_NS / 10**9)
    with open_ingest(str(lake), options, session, LocalProcesses(), False, {}) as ingest:

        def take(path: Path) -> float:
            began = time.perf_counter()
            (_,) = ingest.batches([str(path)])
            seconds = time.perf_counter() - began
            path.unlink()
            return seconds

        first = lake.parent / "0.pcap"
        traffic.opening(first)
        take(first)
        yield take


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lake", description="Measures what batches cost.")
    parser.add_argument("what", choices=("batches", "states", "heartbeats"), nargs="?")
    parser.add_argument("--number", type=int, default=300, help="of batches (default 300)")
    parser.add_argument("--mb", type=float, default=5, help="size of a batch in 10**6 bytes (default 5)")
    parser.add_argument("--connections", type=int, default=1000, help="that are open all the time (default 1000)")
    parser.add_argument("--talking", type=int, default=20, help="of these, that have messages (default 20)")
    parser.add_argument("--open", type=int, default=10_000, help="how many states are measured (default 10000)")
    selected = parser.parse_args()
    for what in [selected.what] if selected.what else ["batches", "states"]:
        with tempfile.TemporaryDirectory() as directory:
            if what == "batches":
                batches(
                    Path(directory), selected.number, int(selected.mb * MEGA), selected.connections, selected.talking
                )
            elif what == "heartbeats":
                heartbeats(Path(directory), ROUNDS, selected.connections)
            else:
                states(Path(directory), selected.open)


if __name__ == "__main__":
    main()
