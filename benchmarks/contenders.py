"""The contenders that `benchmarks.run` compares, as a table of functions, and processes that run them by name.

Those of Spark run in one process with one session, or as a whole `wirehare` process. A contender that is too slow for
the whole capture reads its first packets only: its figures are scaled to the whole, and marked.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.processes import peaks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.run.local_processes import LocalProcesses

# The fields that come closest to the columns of `frames`. Of the arguments and properties only the hot ones: `frames`
# has them all, tshark would be slower.
TSHARK_FIELDS = (
    "frame.number", "frame.time_epoch", "tcp.stream", "tcp.seq", "ip.src", "tcp.srcport",
    "amqp.type", "amqp.channel", "amqp.length", "amqp.method.class", "amqp.method.method",
    "amqp.header.body-size", "amqp.method.arguments.exchange", "amqp.method.arguments.routing_key",
    "amqp.method.arguments.delivery_tag", "amqp.method.properties.message_id",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A capture, packets that slow contenders read, and a directory for output."""

    capture: Path
    work: Path
    slices: dict[str, int]  # contender -> packets, for those that do not take all


@dataclass(frozen=True)
class Contender:
    """`what` is measured; `process`: its process ('kernels', 'session', 'processes' without Spark, or 'command': one
    of its own each time)."""

    what: str
    process: str
    run: Callable[[Task], None]


# ---- one core, no Spark ---------------------------------------------------------------------------------------------


def read(task: Task) -> None:
    """Record headers, link, IP and TCP layers, coalescing into runs."""
    from udfs.source.sources import read_runs

    read_runs({"path": str(task.capture)})


_ordered: list[pa.RecordBatch] = []


def decode(task: Task) -> None:
    """Runs, read and ordered before, to rows of frames as Arrow batches."""
    from pipeline.tables.decoding import config
    from udfs.tables import tables_of

    if not _ordered:
        raise RuntimeError("the runs are not prepared")
    for _ in tables_of(iter(_ordered), config(tables=("frames",))):
        pass


def prepare(task: Task) -> None:
    """Sort the runs by flow, before the time is taken; row by row: `sort_by` would copy all payloads."""
    from codec.tables import RUN_ORDER
    from udfs.source.sources import read_runs

    runs = read_runs({"path": str(task.capture)})
    order = pc.sort_indices(runs, sort_keys=[(name, "ascending") for name in RUN_ORDER])
    _ordered[:] = [batch for at in order.to_pylist() for batch in runs.slice(at, 1).to_batches()]


# ---- in a session of Spark ------------------------------------------------------------------------------------------


def spark(task: Task) -> SparkSession:
    """The session as `wirehare decode` starts it for this capture."""
    from jobs.decode import start

    return start(task.capture.stat().st_size)


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def floor(task: Task) -> None:
    """The same source, the same shuffle and sort, every batch through Python as it is, and thrown away."""
    from codec.tables import TCP_RUNS
    from pipeline.tables.decoding import anchored_paths, sorted_runs, source_options
    from udfs.arrow.spark_schemas import spark_schema

    runs = sorted_runs(spark(task), source_options(anchored_paths(str(task.capture)), {}))
    runs.mapInArrow(identity, spark_schema(TCP_RUNS)).write.format("noop").mode("overwrite").save()


def write(task: Task, session: SparkSession | LocalProcesses, folder: str, tables: list[str] | None = None) -> None:
    """Tables (default: all) as `wirehare decode` writes them."""
    import pipeline

    pipeline.write(session, str(task.capture), str(task.work / folder), tables=tables, overwrite=True)


def write_tables(task: Task) -> None:
    """What `wirehare decode` does with a running session."""
    from jobs.cli import main

    spark(task)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        code = main(["decode", str(task.capture), "--output", str(task.work / "tables"), "--overwrite"])
    if code:
        raise RuntimeError(f"wirehare decode ended with {code}")


# ---- local processes without Spark, which stay -----------------------------------------------------------------------


@functools.cache
def processes() -> LocalProcesses:
    from pipeline.run.local_processes import LocalProcesses

    return LocalProcesses()


# ---- processes of their own -----------------------------------------------------------------------------------------


def quietly(*command: str) -> None:
    """Run a command; its output is thrown away. Raises CalledProcessError when it fails."""
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def wirehare(task: Task, *more: str) -> None:
    tables = task.work / "cold"
    quietly(
        sys.executable, "-m", "jobs.cli", "decode", str(task.capture), "--output", str(tables), "--overwrite", *more
    )


def tshark(task: Task, name: str, *how: str) -> None:
    limit = ["-c", str(task.slices[name])] if name in task.slices else []
    quietly("tshark", "-n", "-r", str(task.capture), *limit, "-Y", "amqp", "-T", *how)


def scapy(task: Task) -> None:
    """Ethernet, IP and TCP of each packet; scapy does not know AMQP."""
    quietly(sys.executable, "-m", "benchmarks.contenders", str(task.capture), str(task.slices["scapy"]))


FIELDS = tuple(part for name in TSHARK_FIELDS for part in ("-e", name))
CONTENDERS = {
    "read": Contender("kernels: capture to runs, one core", "kernels", read),
    "decode": Contender("kernels: runs to rows, one core", "kernels", decode),
    "floor": Contender("floor job: read, shuffle, identity", "session", floor),
    "frames": Contender(
        "frames to Parquet, warm session", "session", lambda task: write(task, spark(task), "frames", ["frames"])
    ),
    "tables": Contender("all tables to Parquet, warm session", "session", write_tables),
    "frames, local": Contender(
        "frames to Parquet, local processes", "processes", lambda task: write(task, processes(), "local", ["frames"])
    ),
    "tables, local": Contender(
        "all tables to Parquet, local processes", "processes", lambda task: write(task, processes(), "local")
    ),
    "frames, cold": Contender(
        "wirehare decode --tables frames, whole process", "command", lambda task: wirehare(task, "--tables", "frames")
    ),
    "tables, cold": Contender("wirehare decode, whole process", "command", wirehare),
    "tshark fields": Contender(
        "tshark -T fields, columns of frames", "command", lambda task: tshark(task, "tshark fields", "fields", *FIELDS)
    ),
    "tshark ek": Contender("tshark -T ek", "command", lambda task: tshark(task, "tshark ek", "ek")),
    "scapy": Contender("scapy, without AMQP", "command", scapy),
}


# ---- processes that run contenders by name -------------------------------------------------------------------------

PREPARE = "prepare"


@dataclass
class Measured:
    """Of each run of one contender: seconds by the clock and of the processors, and peak bytes by kind and process."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    peaks: list[dict[str, list[int]]] = field(default_factory=list)


class Runner:
    """A process that runs contenders, so that its processor time and memory can be measured."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,))
        self.process.start()
        theirs.close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.close()  # which ends it
        self.process.join()

    def do(self, name: str, task: Task) -> float:
        """Run a contender; return the seconds of the clock. Raises RuntimeError with its error."""
        self.pipe.send((name, task))
        try:
            answer = self.pipe.recv()
        except EOFError:
            raise RuntimeError(f"{name}: its process has ended") from None
        if isinstance(answer, str):
            raise RuntimeError(f"{name}: {answer}")
        return float(answer)

    def measure(self, name: str, task: Task, to: Measured) -> None:
        """Run a contender and add its figures to `to`."""
        pid = self.process.pid
        assert pid is not None
        of_commands = CONTENDERS[name].process == "command"
        with peaks(pid, itself=not of_commands) as seen:
            to.seconds.append(self.do(name, task))
        to.processor.append(seen.processor)
        to.peaks.append({kind: sorted(found.values(), reverse=True) for kind, found in seen.bytes.items()})


def serve(pipe: Connection) -> None:
    """Run contenders until the pipe is closed."""
    while True:
        try:
            name, task = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        action = prepare if name == PREPARE else CONTENDERS[name].run
        started = time.perf_counter()
        try:
            action(task)
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {str(error)[:500]}")
        else:
            pipe.send(time.perf_counter() - started)


def main() -> None:
    """The slice of scapy, in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("capture")
    parser.add_argument("packets", type=int)
    selected = parser.parse_args()
    from scapy.utils import PcapReader

    with PcapReader(selected.capture) as packets:
        seen = sum(1 for _, packet in zip(range(selected.packets), packets, strict=False) if packet.haslayer("TCP"))
    print(json.dumps({"tcp": seen}))


if __name__ == "__main__":
    main()
