"""Decode captures into tables of Parquet files.

Runs as `wirehare decode` and as `spark-submit jobs/decode.py`. What it does is `pipeline.write`; this is its command
line, and what it tells of the result.
"""

from __future__ import annotations

import argparse
import ipaddress
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from jobs.cli import EXIT_CODES, OK, UNREADABLE, USAGE, Ending, Endings, main
from jobs.console import Status, complain, say, step
from jobs.stopping import attended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.output import Place

EPILOG = f"""examples:
  wirehare decode trace.pcapng --output tables
  wirehare decode captures/ 'more/*.pcap.gz' --output tables --overwrite
  wirehare decode trace.pcap --output tables --host 10.0.0.7 --since 2026-01-31T08:00 --until 2026-01-31T09:00
  wirehare schema connections          (what the columns mean)

{EXIT_CODES}"""

PORTS = range(1, 65536)
STANDARD_OUTPUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_captures(parser)
    parser.add_argument(
        "--json", metavar="FILE", help="also write the summary as JSON; - for standard output, instead of the text"
    )
    parser.add_argument(
        "--tables",
        metavar="A,B",
        type=table_names,
        help="write only these tables (default: all; `wirehare schema` lists them)",
    )


def add_captures(parser: argparse.ArgumentParser) -> None:
    """Which captures, which connections and times of them, and where the tables go."""
    parser.add_argument(
        "captures",
        metavar="CAPTURE",
        nargs="+",
        help="a pcap or pcapng file (also .gz .zst .lz4), a directory of them, a glob pattern, or a URI (s3, gs, hdfs)",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        required=True,
        help="directory for the tables, a sub-directory of Parquet files each; it is replaced as a whole, "
        "once all tables are written",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the tables that DIR holds")
    parser.add_argument(
        "--payload",
        action="store_true",
        help="keep message bodies too (frames.payload, messages.body), secrets in them as well: much larger",
    )
    parser.add_argument(
        "--port",
        metavar="N",
        nargs="+",
        type=port,
        action="extend",
        help="only connections from or to these ports",
    )
    parser.add_argument(
        "--host", metavar="IP", nargs="+", type=host, action="extend", help="only connections of these addresses"
    )
    parser.add_argument(
        "--since",
        metavar="T",
        type=moment,
        help="only packets from then on: 2026-01-31T08:00 (UTC), or a number as in ts_ns",
    )
    parser.add_argument("--until", metavar="T", type=moment, help="only packets before then")


def table_names(text: str) -> list[str]:
    """The tables named in a comma-separated list."""
    from pipeline.schemas import TABLES
    from udfs.suggestions import unknown

    names = [name for name in (part.strip() for part in text.split(",")) if name]
    for name in names:
        if name not in TABLES:
            raise argparse.ArgumentTypeError(unknown("table", name, TABLES))
    return names


def port(text: str) -> int:
    """A TCP port."""
    if not text.isdecimal() or int(text) not in PORTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid port; expected a number from 1 to 65535")
    return int(text)


def host(text: str) -> str:
    """An IPv4 or IPv6 address in its usual text form."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid address; expected one like 10.0.0.7 or fd00::7"
        ) from None


def moment(text: str) -> int:
    """Nanoseconds since 1970 UTC of a time as people or the tables write it."""
    from udfs.options import OptionError, parse_time

    try:
        return parse_time(text, "time")
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("time: ")) from None


def endings() -> Endings:
    """Errors of its own."""
    from pipeline.output import OutputError
    from udfs.paths import PathError

    return {
        PathError: Ending(USAGE, "; expected pcap or pcapng files, directories of them, or patterns"),
        OutputError: Ending(USAGE),
    }


def run(arguments: argparse.Namespace) -> int:
    """Decode as the arguments say; the exit code."""
    ending = decoded(arguments)[1]
    if arguments.json != STANDARD_OUTPUT:
        say(f"Next: {next_step(arguments)}")
    return ending


def next_step(arguments: argparse.Namespace) -> str:
    """The command that a person may want to run on the tables."""
    if arguments.tables:
        return f"in Python, tables = wirehare.load(wirehare.session(), {arguments.output!r})"
    from udfs.files import public_uri

    return f"wirehare audit {shlex.quote(public_uri(arguments.output))} --report audit.html"


def decoded(arguments: argparse.Namespace) -> tuple[SparkSession, int]:
    """Decode as the arguments say; the session that was begun for it, and the exit code."""
    import pipeline
    from jobs.summary import found, summary
    from pipeline.output import place
    from udfs.paths import require_capture, resolve

    started = time.monotonic()
    wanted = arguments.tables or list(pipeline.TABLES)
    report = json_target(arguments.json)
    files = resolve(arguments.captures)
    require_capture(files)  # else good tables would be replaced by empty ones
    byte_size = sum(file.expected_size for file in files)
    sessions: list[SparkSession] = []

    def begin() -> SparkSession:
        sessions.append(start(byte_size))
        return sessions[0]

    def progress(
        doing: str, done: str, spark: SparkSession, phases: Sequence[str] = ()
    ) -> AbstractContextManager[Status]:
        return step(doing, done, spark, byte_size if phases else 0, phases)

    captures = attended(
        lambda: pipeline.write(
            begin,
            [file.uri for file in files],
            arguments.output,
            tables=wanted,
            overwrite=arguments.overwrite,
            payload=arguments.payload,
            progress=progress,
            ports=arguments.port,
            hosts=arguments.host,
            since=arguments.since,
            until=arguments.until,
        ),
        sessions,
    )
    output = place(arguments.output)
    facts = found(captures, {name: output.child(name).dataset() for name in wanted})
    seconds, shown = time.monotonic() - started, output.shown
    if arguments.json is not None:
        write_json(report, {"output": shown, "seconds": round(seconds, 1), **facts})
    if arguments.json != STANDARD_OUTPUT:
        say(summary(facts))
        say(f"Decoded in {seconds:.1f} s. The tables are in {shown}")
    damaged = [row["error"] for row in captures if row["error"]]
    for line in damaged:
        complain(f"{arguments.prog}: {line}")
    return sessions[0], UNREADABLE if damaged else OK


def json_target(name: str | None) -> Place | None:
    """The file that the summary goes into as JSON; None where that is standard output, or none is wanted.

    Raises UsageError.
    """
    from jobs.audit import writable

    return None if name in (None, STANDARD_OUTPUT) else writable(name)


def write_json(target: Place | None, document: Mapping[str, Any]) -> None:
    """Write a document to standard output, or into a file in the place of an old one."""
    import json

    from pipeline.sink import sink

    text = json.dumps(document, indent=2, default=str) + "\n"
    if target is None:
        print(text, end="")
        return
    with sink(target) as file:
        file.write(text.encode())


def start(byte_size: int = 0) -> SparkSession:
    """The session to work in, on captures or tables of so many bytes."""
    from pipeline.jvm_names import remember
    from pipeline.session import BRIEF, BRIEF_BYTES, UNATTENDED, session

    with step("starting Spark", "Spark started"):
        spark = session(java_options=BRIEF if byte_size < BRIEF_BYTES else "", **UNATTENDED)
        remember()
        return spark


if __name__ == "__main__":
    sys.exit(main(["decode", *sys.argv[1:]]))
