"""Decode captures into tables of Parquet files.

Runs as `wirehare decode` and as `spark-submit jobs/decode.py`. The work is done by `pipeline.write`; here are its
command line and the summary of the result.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from jobs.terminal.arguments import STANDARD_OUTPUT, add_captures, add_filter, moment, output_file, write_text
from jobs.terminal.console import print_error, print_result, print_status, step
from jobs.terminal.running import EXIT_CODES, OK, UNREADABLE, run_interruptibly, run_standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.run.local_processes import LocalProcesses
    from udfs.source.capture_bytes import CaptureFile


EPILOG = f"""examples:
  wirehare decode trace.pcapng --output tables
  wirehare decode captures/ 'more/*.pcap.gz' --output tables --overwrite
  wirehare decode trace.pcap --output tables --host 10.0.0.7 --since 2026-01-31T08:00 --until 2026-01-31T09:00
  wirehare schema connections          (what the columns mean)

{EXIT_CODES}"""

COMPILE_COMMAND = "python -m udfs.warm"
COMPILE = [sys.executable, *COMPILE_COMMAND.split()[1:]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_input_and_output(parser)
    parser.add_argument(
        "--json", metavar="FILE", help="also write the summary as JSON; - for standard output, instead of the text"
    )
    parser.add_argument(
        "--tables",
        metavar="A,B",
        type=table_names,
        help="write only these tables (default: all; `wirehare schema` lists them)",
    )


def add_input_and_output(parser: argparse.ArgumentParser) -> None:
    """Options: which captures, connections and times are decoded, and where the tables go."""
    add_captures(parser)
    parser.add_argument(
        "--output", metavar="DIR", required=True, help="directory for the tables, each a sub-directory of Parquet files"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the tables in DIR, all at once when the new ones are complete"
    )
    add_filter(parser)
    parser.add_argument(
        "--since",
        metavar="T",
        type=moment,
        help="only packets at or after this time: 2026-01-31T08:00 (UTC), or a number as in ts_ns",
    )
    parser.add_argument("--until", metavar="T", type=moment, help="only packets before this time")


def table_names(text: str) -> list[str]:
    """The tables named in a comma-separated list."""
    from codec.tables import TABLES
    from udfs.source.options import unknown

    names = [name for name in (part.strip() for part in text.split(",")) if name]
    for name in names:
        if name not in TABLES:
            raise argparse.ArgumentTypeError(unknown("table", name, TABLES))
    return names


def run(arguments: argparse.Namespace) -> int:
    exit_code = decode_captures(arguments)[1]
    if arguments.json != STANDARD_OUTPUT:
        print_result(f"Next: {next_step(arguments)}")
    return exit_code


def next_step(arguments: argparse.Namespace) -> str:
    """A command to run next on the tables."""
    if arguments.tables:
        return f"in Python, tables = wirehare.load(wirehare.session(), {arguments.output!r})"
    from udfs.source.capture_bytes import public_uri

    return f"wirehare audit {shlex.quote(public_uri(arguments.output))} --report audit.html"


def decode_captures(
    arguments: argparse.Namespace, meanwhile: Callable[[], object] = lambda: None
) -> tuple[SparkSession | None, int]:
    """Decode; return the Spark session that was started for it, if any, and the exit code. If it is decoded
    without Spark, `meanwhile` is called first."""
    from udfs.workers.process_setup import without_pandas

    with without_pandas():
        import pipeline
    from codec.tables import TABLES
    from pipeline.output.location import location
    from pipeline.run.local_processes import LocalProcesses
    from pipeline.tables.decoding import checked_key_logs, decoded_locally
    from udfs.source.capture_bytes import LOCAL
    from udfs.source.paths import require_capture, resolve

    started = time.monotonic()
    wanted = arguments.tables or list(TABLES)
    report = None if arguments.json in (None, STANDARD_OUTPUT) else output_file(arguments.json)
    files = resolve(arguments.captures)
    checked_key_logs(arguments.keylog)
    require_capture(files)  # never replace good tables by empty ones
    for file in files:
        if file.problem and file.uri.startswith(LOCAL):  # Spark may reach stores that Arrow does not
            print_status(f"{file.name}: {file.problem}; the other captures are decoded")
    byte_size = sum(file.expected_size for file in files)
    sessions: list[SparkSession | LocalProcesses] = []

    def begin() -> SparkSession | LocalProcesses:
        from codec.compiler.kernel import all_compiled
        from pipeline.run.session import GATEWAY_PORT, has_session, on_one_machine

        submitted = GATEWAY_PORT in os.environ
        ready = all_compiled() or interpret_while_cold(files)
        if not has_session() and decoded_locally([file.uri for file in files]):
            meanwhile()
            if not ready:
                compile_kernels()
            sessions.append(LocalProcesses())
            return sessions[0]
        importlib.import_module("pandas")  # Spark requires it; imports in two threads at once may fail
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(import_modules)
            sessions.append(spark := start(byte_size))
            loading.result()
        if submitted and not all_compiled() and on_one_machine(spark):
            interpreted_sooner(files)  # as its workers decide
        return sessions[0]

    captures = run_interruptibly(
        lambda: pipeline.write(
            begin,
            [file.uri for file in files],
            arguments.output,
            tables=wanted,
            overwrite=arguments.overwrite,
            payload=arguments.payload,
            progress=partial(step, byte_size=byte_size),
            ports=arguments.port,
            hosts=arguments.host,
            since=arguments.since,
            until=arguments.until,
            keylog=arguments.keylog,
        ),
        sessions,
    )
    from jobs.terminal.summary import summarize, summary_text
    from pipeline.explore.duckdb_tables import open_tables

    output = location(arguments.output)
    with open_tables(arguments.output) as tables:
        facts = run_interruptibly(lambda: summarize(captures, tables, wanted), [tables])
    seconds, directory = time.monotonic() - started, output.display_name
    if arguments.json is not None:
        text = json.dumps({"output": directory, "seconds": round(seconds, 1), **facts}, indent=2, default=str)
        print(text) if report is None else write_text(report, f"{text}\n")
    if arguments.json != STANDARD_OUTPUT:
        print_result(summary_text(facts))
        print_result(f"Decoded in {seconds:.1f} s. The tables are in {directory}")
    damaged = [row["error"] for row in captures if row["error"]]
    for line in damaged:
        print_error(f"{arguments.prog}: {line}")
    session = sessions[0]
    return None if isinstance(session, LocalProcesses) else session, UNREADABLE if damaged else OK


def interpret_while_cold(files: Sequence[CaptureFile]) -> bool:
    """If the kernels are not compiled yet and decoding these captures is faster without compiling, run them
    interpreted, in this process and in those that it starts. Return whether that is so. Workers of a session that runs
    already decide for themselves (`pipeline.tables.decoding.tell_workers`)."""
    from codec.compiler.kernel import all_compiled
    from pipeline.run.session import has_session

    return not has_session() and not all_compiled() and interpreted_sooner(files)


def interpreted_sooner(files: Sequence[CaptureFile]) -> bool:
    """Tell the user that kernels are not compiled yet; interpret them if captures are decoded faster by that. Return
    whether that is so."""
    from codec.compiler.kernel import interpret
    from pipeline.tables import decoding

    sooner = decoding.interpreted_sooner(files)
    if sooner:
        interpret()
    speed = "decoding is slow" if sooner else "they are compiled first, in a minute or more"
    print_status(f"Kernels are not compiled yet, so {speed}; to compile them once: {COMPILE_COMMAND}")
    return sooner


def compile_kernels() -> None:
    """Compile all kernels in two processes, which takes half as long as in each process that decodes. If it fails, each
    is compiled when it is needed."""
    started = time.monotonic()
    if subprocess.run(COMPILE, check=False).returncode == 0:
        print_status(f"Kernels compiled in {time.monotonic() - started:.1f} s")


def import_modules() -> None:
    """Import the modules that planning needs, which takes a second, while Spark starts."""
    from jobs.terminal import summary  # noqa: F401
    from udfs.sink import (
        parquet,  # noqa: F401
        writers,  # noqa: F401
    )
    from udfs.source import sources  # noqa: F401


def import_for_connect() -> None:
    """Import pandas if Spark Connect will need it; imports in two threads at once may fail."""
    if "SPARK_REMOTE" in os.environ:
        importlib.import_module("pandas")


def start(byte_size: int = 0) -> SparkSession:
    """A Spark session for `byte_size` bytes of captures or tables."""
    with step("starting Spark", "Spark started"):
        return start_quietly(byte_size)


def start_quietly(byte_size: int = 0) -> SparkSession:
    """The same, without status lines."""
    from pipeline.run.session import (
        JOB_SETTINGS,
        QUICK_COMPILER,
        QUICK_COMPILER_BYTES,
        ignore_pandas_notice,
        session,
    )
    from udfs.workers.process_setup import without_pandas

    import_for_connect()
    ignore_pandas_notice()
    with without_pandas():
        import pyspark.testing.utils  # noqa: F401  (pyspark imports it with the first call to the JVM)
    return session(java_options=QUICK_COMPILER if byte_size < QUICK_COMPILER_BYTES else "", **JOB_SETTINGS)


if __name__ == "__main__":
    run_standalone("jobs.decode")
