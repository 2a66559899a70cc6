"""Append new captures to a lake, batch by batch; open connections continue in the next batch.

Runs as `wirehare ingest` and as `spark-submit jobs/ingest.py`. It is the command line of `pipeline.ingest`, with a loop
and a line per batch.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jobs.decode import interpret_while_cold, start
from jobs.terminal.arguments import add_captures, add_filter
from jobs.terminal.console import print_error, print_result, print_status
from jobs.terminal.running import OK, UNREADABLE, USAGE, run_interruptibly, run_standalone, wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.lake.ingest_batches import Ingest
    from pipeline.run.local_processes import LocalProcesses

EPILOG = """examples:
  wirehare ingest captures/ --lake lake --every 60s
  wirehare ingest 's3://captures/amqp/*.pcap.gz' --lake s3://warehouse/amqp --once
  wirehare lake lake                   (its batches, days and open connections)
  wirehare audit lake --since yesterday

exit codes:
  0  done (--once)
  2  bad usage, no capture found, no lake, or another ingest works on it
  3  done (--once), but some captures could not be read to their end (see the table captures)
  4  Spark, a process or the file system failed; the lake is as of its last batch, and the next run continues
  5  the lake is damaged, or other users can change it
  130  stopped by Ctrl-C or SIGTERM; the lake is as of its last batch
"""
EXIT_STATUSES = {"LakeError": (USAGE, "")}
STOPPED = "the lake is as of its last batch; the next run continues from there"
# Options that take a length of time, with their defaults in seconds.
TIMES = (
    ("--settle", 30.0, "leave captures that changed within this time for a later batch (default: 30s)"),
    ("--pair-within", 3600.0, "join a publish to deliveries of its message that come within this time (default: 1h)"),
    (
        "--forget-after",
        7 * 86400.0,
        "give up connections without a packet for this time: tcp_end is 'expired' (default: 7d)",
    ),
    (
        "--late-after",
        300.0,
        "decode captures on their own if they end this long before the latest packet of the lake (default: 5m)",
    ),
)
UNITS = {"": 1, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
LENGTH = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd]?)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_captures(parser)
    parser.add_argument(
        "--lake", metavar="DIR", required=True, help="directory or URI of the lake, created if it does not exist"
    )
    how_often = parser.add_mutually_exclusive_group()
    how_often.add_argument(
        "--every",
        metavar="TIME",
        type=length,
        default=60.0,
        help="interval at which to look for new captures (default: 60s)",
    )
    how_often.add_argument("--once", action="store_true", help="ingest what is new, then exit")
    for name, seconds, about in TIMES:
        parser.add_argument(name, metavar="TIME", type=length, default=seconds, help=about)
    add_filter(parser)
    parser.add_argument(
        "--carry-secrets",
        action="store_true",
        help="keep secrets of open TLS connections in the lake (table states, mode 600), so that the next batch can "
        "decrypt them, too; without it, what they send then is not read",
    )


def length(text: str) -> float:
    """Seconds of a time as 90, 90s, 15m, 1.5h or 7d."""
    found = LENGTH.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of time; expected one like 30s, 5m, 1h or 7d")
    return float(found[1]) * UNITS[found[2]]


def run(arguments: argparse.Namespace) -> int:
    from udfs.workers.process_setup import without_pandas

    with without_pandas():
        from pipeline.lake import open_ingest
        from pipeline.tables.decoding import PacketFilter
    from pipeline.lake.layout import Options
    from pipeline.run.local_processes import LocalProcesses
    from pipeline.run.session import has_session
    from udfs.source.paths import PathError, resolve

    times = (arguments.settle, arguments.pair_within, arguments.forget_after, arguments.late_after)
    options = Options(*times, arguments.carry_secrets)
    packet_filter = PacketFilter(ports=arguments.port, hosts=arguments.host, keylog=arguments.keylog)
    processes = LocalProcesses()
    sessions: list[SparkSession | LocalProcesses] = [processes]

    def begin() -> SparkSession:
        spark = start()
        sessions.append(spark)
        return spark

    def follow() -> int:
        local = None if has_session() else processes
        with open_ingest(arguments.lake, options, begin, local, arguments.payload, packet_filter) as ingest:
            if arguments.once:  # a loop has time to compile
                with suppress(PathError):  # reported when they are ingested
                    interpret_while_cold(resolve(arguments.captures))
            if ingest.resumed is not None:
                print_status(f"Finished the commit of batch {ingest.resumed}, which an earlier run had started")
            return rounds(ingest, arguments)

    with processes:
        return run_interruptibly(follow, sessions)


def rounds(ingest: Ingest, arguments: argparse.Namespace, wait: Callable[[float], None] = wait) -> int:
    """Ingest new captures repeatedly, or once; return the exit code."""
    from udfs.source.paths import PathError

    damaged = found = 0
    missing = ""
    while True:
        began = time.monotonic()
        try:
            for batch in ingest.batches(arguments.captures):
                found, damaged = found + batch["files"], damaged + batch["damaged_files"]
                print_result(line(batch))
            missing = ""
        except PathError as error:
            if arguments.once:
                raise
            if str(error) != missing:  # once: the first capture may still arrive
                missing = str(error)
                print_status(f"{arguments.prog}: {missing}; it looks again every {arguments.every:g} s")
        for copy, original in ingest.copies:
            print_error(f"{arguments.prog}: {copy}: is the capture {original}, which was ingested already; skipped")
        if arguments.once:
            if ingest.unsettled:
                print_status(f"{ingest.unsettled} captures changed within --settle and are left for the next run")
            elif not found:
                print_status("No new captures")
            return UNREADABLE if damaged else OK
        wait(max(0.0, arguments.every - (time.monotonic() - began)))


def line(batch: dict[str, Any]) -> str:
    from pipeline.output.formatting import duration, plural, size

    lag = "" if batch["lag_ns"] is None else f", {duration(batch['lag_ns'])} after the latest packet"
    parts = [
        f"Batch {batch['batch']}: {plural(batch['files'], 'capture')} ({size(batch['bytes'])})",
        plural(batch["packets"], "packet"),
        plural(batch["frames"], "frame"),
        f"{plural(batch['open_connections'], 'connection')} open",
    ]
    for count, what in (
        ("late_files", "late"),
        ("ahead_files", "of a clock that is more than a day ahead"),
        ("damaged_files", "damaged"),
        ("forgotten_connections", "expired"),
        ("unread_states", "continued without their state, which this release cannot read"),
    ):
        if batch[count]:
            parts.append(f"{batch[count]} {what}")
    return f"{', '.join(parts)}; {batch['seconds']} s{lag}"


if __name__ == "__main__":
    run_standalone("jobs.ingest")
