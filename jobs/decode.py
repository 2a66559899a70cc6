"""Decode captures into tables of Parquet files.

Runs as `wirehare decode` and as `spark-submit jobs/decode.py`. The captures are read and decoded once: what follows
from single connections is written as they are decoded, into a stage beside the output; Spark derives the rest, and the
stage is swapped into place when all tables are written.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import shlex
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from typing import TYPE_CHECKING, Any

from jobs.cli import EXIT_CODES, OK, UNREADABLE, USAGE, Ending, Endings, main
from jobs.console import Status, complain, say, step
from jobs.stopping import attended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.decoding import Written
    from pipeline.derivation import Derivation
    from pipeline.output import Place

EPILOG = f"""examples:
  wirehare decode trace.pcapng --output tables
  wirehare decode captures/ 'more/*.pcap.gz' --output tables --overwrite
  wirehare decode trace.pcap --output tables --host 10.0.0.7 --since 2026-01-31T08:00 --until 2026-01-31T09:00
  wirehare schema connections          (what the columns mean)

{EXIT_CODES}"""

PORTS = range(1, 65536)
# Tables written at the same time, and in which turn: first those that take longest.
SIDE_BY_SIDE = 3
TURN = ("messages", "connections", "methods", "streams", "channels", "links", "captures")
STANDARD_OUTPUT = "-"
# What an audit leaves beside the tables; it goes when they are replaced.
FINDINGS = "findings"


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
        "--payload", action="store_true", help="keep message bodies too (frames.payload, messages.body): much larger"
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
    from pipeline.output import place, staged
    from pipeline.session import on_one_machine
    from udfs.paths import require_capture, resolve

    started = time.monotonic()
    wanted = arguments.tables or list(pipeline.TABLES)
    report = json_target(arguments.json)
    files = resolve(arguments.captures)
    require_capture(files)  # else good tables would be replaced by empty ones
    paths = [file.uri for file in files]
    with staged(arguments.output, known=(*pipeline.TABLES, FINDINGS), overwrite=arguments.overwrite) as stage:
        byte_size = sum(file.expected_size for file in files)
        spark = attended(lambda: start(byte_size))
        stage.scratch.create()
        if not on_one_machine(spark):
            stage.publish()  # executors of another user write there
            stage.scratch.publish()
        try:
            attended(lambda: write(spark, paths, stage, wanted, arguments, byte_size), spark)
        except BaseException:
            with contextlib.suppress(Exception):  # where the JVM is gone, so are its tasks
                spark.interruptAll()  # they would go on writing to a stage that is being removed
            raise
        captures = stage.child("captures").dataset().to_table().to_pylist()
        facts = found(captures, {name: stage.child(name).dataset() for name in wanted})
        if "captures" not in wanted:
            stage.child("captures").remove()
    seconds, shown = time.monotonic() - started, place(arguments.output).shown
    if arguments.json is not None:
        write_json(report, {"output": shown, "seconds": round(seconds, 1), **facts})
    if arguments.json != STANDARD_OUTPUT:
        say(summary(facts))
        say(f"Decoded in {seconds:.1f} s. The tables are in {shown}")
    damaged = [row["error"] for row in captures if row["error"]]
    for line in damaged:
        complain(f"{arguments.prog}: {line}")
    return spark, UNREADABLE if damaged else OK


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


def write(
    spark: SparkSession,
    paths: Sequence[str],
    stage: Place,
    wanted: Sequence[str],
    arguments: argparse.Namespace,
    byte_size: int,
) -> None:
    """Decode the captures (of so many bytes), write the wanted tables (and always `captures`) under `stage`."""
    from pipeline.decoding import decode_into
    from pipeline.derivation import Derivation
    from pipeline.schemas import TABLES
    from pipeline.session import INTERPRETED_ROWS, planned, settings
    from udfs.parts import MESSAGES

    captures = counted(len(paths), "capture")
    decoding = step(f"decoding {captures}", f"{captures} decoded", spark, byte_size, ("read", "decoded"))
    with decoding, settings(spark, planned(small=True)):  # to Spark, runs are few rows
        written = decode_into(
            spark,
            paths,
            stage.scratch,
            wanted,
            payload=arguments.payload,
            ports=arguments.port,
            hosts=arguments.host,
            since=arguments.since,
            until=arguments.until,
        )
    with step("writing tables", f"{counted(len(wanted), 'table')} written", spark) as status:
        # Everything else is derived from what is written: the captures are read and decoded once.
        left = Derivation(written, payload=arguments.payload)
        needed = [name for name in TABLES if name in (*wanted, "captures")]
        with settings(spark, planned(small=written.rows_left() < INTERPRETED_ROWS)):
            write_tables(spark, left, written, stage, [name for name in needed if name in TURN], status)
        if "message_flows" in needed:
            status.doing = "writing message_flows"
            # Answers to requests, and what is asked where bytes are lost, go through Spark.
            with settings(spark, planned(small=written.rows_left(MESSAGES) < INTERPRETED_ROWS)):
                write_message_flows(spark, left, written, stage, needed)
        if "frames" in needed:
            frames = stage.child("frames")
            write_left(spark, written.moved("frames", frames), None, frames)


def write_tables(
    spark: SparkSession, left: Derivation, written: Written, stage: Place, names: Sequence[str], status: Status
) -> None:
    """Write these tables, some side by side: one is planned on the driver, on one core, while others are computed."""
    pool = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="table")
    under_way: dict[str, Future[None]] = {}

    def write_table(name: str) -> None:
        target = stage.child(name)
        rows = left.of(name)
        write_left(spark, written.moved(name, target), rows, target)

    try:
        under_way.update((name, pool.submit(write_table, name)) for name in sorted(names, key=TURN.index))
        for table in as_completed(under_way.values()):
            table.result()
            status.doing = f"writing {', '.join(name for name, table in under_way.items() if table.running())}"
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        while any(table.running() for table in under_way.values()):  # one that is being planned starts its tasks yet
            with contextlib.suppress(Exception):  # where the JVM is gone, so are its tasks
                spark.interruptAll()
            wait(under_way.values(), timeout=0.2)
        raise
    pool.shutdown()


def write_message_flows(
    spark: SparkSession, left: Derivation, written: Written, stage: Place, there: Collection[str]
) -> None:
    """Write this table, out of those that are `there`."""
    from pipeline import parquet
    from pipeline.tables.flows import write_flows

    target = stage.child("message_flows")
    if "messages" not in there:
        write_left(spark, False, left.of(target.name), target)
        return
    flows, source = written.directory.child(target.name), stage.child("messages")
    connections = standing(spark, stage, "connections") if "connections" in there else left.whole("connections")
    said = standing(spark, stage, source.name)
    files = write_flows(said, connections, left.stream_queues, parquet.files(source), source, flows)
    if files:
        flows.move_to(target)
        target.keep(files)
    write_left(spark, bool(files), None, target)


def standing(spark: SparkSession, stage: Place, name: str) -> DataFrame:
    """A table that has been written under `stage`."""
    from pipeline.schemas import TABLES

    return spark.read.schema(TABLES[name]).parquet(stage.child(name).pattern)


def write_left(spark: SparkSession, there: bool, rows: DataFrame | None, target: Place) -> None:
    """Add the `rows` of a table of which some are `there` in `target`, or none yet."""
    from pipeline import parquet
    from pipeline.schemas import TABLES

    if rows is None and not there:
        rows = spark.createDataFrame([], TABLES[target.name])
    if rows is not None:
        parquet.write(rows, target.uri, append=there)


def counted(number: int, noun: str) -> str:
    """1 capture, 2 captures."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


if __name__ == "__main__":
    sys.exit(main(["decode", *sys.argv[1:]]))
