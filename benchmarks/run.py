"""Our times beside tshark's on one generated capture: `python -m benchmarks.run --mb 180 --runs 3`.

Four things are timed, in turns (so that a slow minute of the machine hits all of them), and the medians are printed:

    reader   capture file -> runs, one core, this process: record headers, link, IP and TCP layers, coalescing
    decoder  runs -> decoded rows as Arrow batches, one core, this process
    job      capture file -> table `frames` as Parquet, Spark on all cores; the JVM and its workers are warm after the
             first run, which stands in a line of its own with the start of the session
    tshark   `tshark -T fields` with the fields that come closest to the columns of `frames`, when it is installed

Beside the seconds stands the processor time of this process and all below it, which other work on the machine changes
less, and behind the first job the highest resident set of its processes (both Linux only). The figures are also written
as JSON beside the capture.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
from pyspark.sql import SparkSession

import pipeline
from benchmarks.generate import generate
from benchmarks.memory import JVM, WORKER, peaks
from pipeline import parquet
from pipeline.session import session
from pipeline.tables.frames import frames
from udfs.decode import decode_runs
from udfs.source import TcpRunsSource

MEGA = 10**6
TSHARK_FIELDS = (
    "frame.number", "frame.time_epoch", "tcp.stream", "ip.src", "tcp.srcport",
    "amqp.type", "amqp.channel", "amqp.length", "amqp.method.class",
    "amqp.method.method", "amqp.header.body-size", "amqp.method.arguments.exchange",
    "amqp.method.arguments.routing_key", "amqp.method.arguments.delivery_tag", "amqp.method.properties.message_id",
)  # fmt: skip


@dataclass
class Timed:
    """Seconds of each run of one thing, by the clock and of the processors."""

    name: str
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def run(self, action: Callable[[], object]) -> None:
        start, busy = time.perf_counter(), processor_seconds()
        action()
        self.seconds.append(time.perf_counter() - start)
        self.processor.append(processor_seconds() - busy)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def processor_seconds() -> float:
    """User and system time of this process and its descendants, dead ones included; 0 where there is no /proc."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(status.parent.name)
        children.setdefault(int(values[1]), []).append(pid)
        ticks[pid] = sum(int(value) for value in values[11:15])  # utime, stime, cutime, cstime
    ours = [os.getpid()]
    for pid in ours:
        ours += children.get(pid, [])
    return sum(ticks.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sizes:
    """What there is in the capture."""

    bytes: int
    packets: int
    frames: int


def read_runs(path: Path) -> list[pa.RecordBatch]:
    """The runs of the capture, partition after partition, in this process."""
    source = TcpRunsSource({"path": str(path)})
    reader = source.reader(source.schema())
    return [batch for partition in reader.partitions() for batch in reader.read(partition)]


def in_flow_order(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    keys = ["flow", "order_ns", "capture_file", "first_packet_no"]
    table = pa.Table.from_batches(batches).sort_by([(key, "ascending") for key in keys])
    ordered: list[pa.RecordBatch] = table.combine_chunks().to_batches(max_chunksize=64)
    return ordered


def decode(batches: list[pa.RecordBatch]) -> int:
    """Decode sorted runs in this process; the number of frames."""
    return sum(batch.num_rows for batch in decode_runs()(iter(batches)))


def write_frames(spark: SparkSession, path: Path, output: Path) -> None:
    shutil.rmtree(output, ignore_errors=True)
    parquet.write(frames(pipeline.decoded(spark, str(path))), output.as_uri())


def tshark(path: Path) -> None:
    fields = [part for name in TSHARK_FIELDS for part in ("-e", name)]
    command = ["tshark", "-n", "-r", str(path), "-Y", "amqp", "-T", "fields", *fields]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def packets_of(batches: list[pa.RecordBatch]) -> int:
    accounts = (json.loads(text) for batch in batches for text in batch["account"].to_pylist() if text is not None)
    return sum(account["packets"] for account in accounts)


def measure(path: Path, runs: int, work: Path) -> tuple[Sizes, list[Timed], Timed, str]:
    """Times of `runs` rounds after one that warms each of them up; apart from them the job's first run, and the memory
    of its processes."""
    reader, decoder, job, other = Timed("reader"), Timed("decoder"), Timed("job"), Timed("tshark")
    batches = read_runs(path)
    ordered = in_flow_order(batches)
    decode(ordered)
    first = Timed("first job")
    output = work / "frames"

    def start_and_write() -> None:
        write_frames(session("wirehare-bench"), path, output)

    with peaks(os.getpid()) as seen:
        first.run(start_and_write)
    spark = session("wirehare-bench")
    count = pyarrow.dataset.dataset(str(output)).count_rows()
    installed = shutil.which("tshark") is not None
    for _ in range(runs):
        reader.run(lambda: read_runs(path))
        decoder.run(lambda: decode(ordered))
        job.run(lambda: write_frames(spark, path, output))
        if installed:
            other.run(lambda: tshark(path))
    spark.stop()
    timed = [reader, decoder, job, *([other] if installed else [])]
    return Sizes(path.stat().st_size, packets_of(batches), count), timed, first, seen.shown(WORKER, JVM)


def report(sizes: Sizes, timed: list[Timed], first: Timed) -> str:
    lines = [
        f"{sizes.bytes / MEGA:.1f} MB, {sizes.packets:,} packets, {sizes.frames:,} frames, {os.cpu_count()} cores",
        f"{'':10}{'seconds':>9}{'processor':>11}{'packets/s':>13}{'frames/s':>13}{'MB/s':>9}",
    ]
    for thing in [*timed, first]:
        seconds = thing.median
        rates = [sizes.packets / seconds, sizes.frames / seconds]
        lines.append(
            f"{thing.name:10}{seconds:9.2f}{statistics.median(thing.processor):11.2f}"
            f"{rates[0]:13,.0f}{rates[1]:13,.0f}{sizes.bytes / MEGA / seconds:9.1f}"
        )
    by_name = {thing.name: thing.median for thing in timed}
    if "tshark" in by_name:
        lines.append(
            f"frames to Parquet, warm: {by_name['tshark'] / by_name['job']:.2f} times as fast as tshark -T fields"
        )
        lines.append(f"with the start of the session: {by_name['tshark'] / first.median:.2f} times")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Times of kernels, job and tshark.")
    parser.add_argument("--mb", type=float, default=180, help="size of the capture in 10**6 bytes (default 180)")
    parser.add_argument("--runs", type=int, default=3, help="rounds of which the median is taken (default 3)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--message-bytes", type=int, default=850)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--directory", type=Path, help="where capture and figures stay (default: a temporary one)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = chosen.directory or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        path = work / f"bench-{chosen.mb:g}mb-{chosen.seed}-{chosen.message_bytes}-{chosen.connections}.pcap"
        if not path.exists():
            generate(path, int(chosen.mb * MEGA), chosen.seed, chosen.message_bytes, chosen.connections)
        sizes, timed, first, memory = measure(path, chosen.runs, work)
        print(report(sizes, timed, first))
        print(f"first job, {memory}")
        figures = {"sizes": asdict(sizes), "timed": [asdict(thing) for thing in [*timed, first]]}
        path.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
