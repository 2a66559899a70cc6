"""Audit decoded tables: write findings and a report; the exit code says whether the audit failed.

Runs as `wirehare audit` and as `spark-submit jobs/audit.py`. The findings are written as table `findings` beside the
other tables; the report and its JSON are written last, each replaced in one step.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import textwrap
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from jobs.arguments import add_tables, moment, output_file, tables_directory, write_text
from jobs.console import print_result, print_status, step
from jobs.decode import import_for_connect, start
from jobs.running import FOUND, OK, UNREADABLE, UsageError, cause, run_interruptibly, run_standalone

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from pipeline.audit.config import Config
    from pipeline.output.place import Place
    from pipeline.report.baseline import Previous
    from pipeline.report.cards import Card
    from pipeline.report.facts import Facts
    from pipeline.report.formats import Audit

EPILOG = """examples:
  wirehare decode captures/ --output tables
  wirehare audit tables --report audit.html
  wirehare audit tables --report audit.html --json tonight.json --baseline last-night.json --fail-on warning
  wirehare audit tables --format sarif > audit.sarif
  wirehare audit tables --config audit.toml --title 'Orders, production'
  wirehare audit lake --since yesterday --until today --report yesterday.html

exit codes:
  0  done; no finding reaches the threshold of --fail-on
  1  done; some findings reach the threshold: see the report
  2  bad usage, or a configuration or baseline that cannot be read; nothing was written
  3  the tables are missing or cannot be read; nothing was written
  4  Spark or the file system failed; the previous report is as it was
  5  the tables are a lake, and it is damaged; nothing was written
"""

EXIT_STATUSES = dict.fromkeys(("TablesError", "LakeError"), (UNREADABLE, ""))
DAYS_AGO = {"today": 0, "yesterday": 1}
# Derived from other tables if missing.
OPTIONAL = {"message_flows"}
# Spark's error conditions for existing files that cannot be read.
UNREADABLE_FILES = ("FAILED_READ_FILE", "CANNOT_READ_FILE", "CANNOT_MERGE_SCHEMAS", "PATH_NOT_FOUND")
# Auditing a byte of tables is as much work as decoding this many bytes of captures. Decides which JIT compiler Java
# uses: with the full one the audit of 420,000 messages took 59 CPU seconds, with the quick one 34.
DECODE_FACTOR = 2
# Limits of the text for a terminal.
WIDTH, NAMES, NAME_CHARACTERS, EVIDENCE_CHARACTERS = 118, 4, 40, 120


class Inputs(NamedTuple):
    """The baseline, the configuration, and the files to write, by their names on the command line."""

    previous: Previous | None
    config: Config | None
    outputs: Mapping[str, Place]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tables(parser)
    parser.add_argument(
        "--since",
        metavar="T",
        type=day_or_moment,
        help="only rows that end after this time: yesterday, today, 2026-01-31T08:00 (UTC); of a lake, files of other "
        "days are not read",
    )
    parser.add_argument("--until", metavar="T", type=day_or_moment, help="only rows that begin before this time")
    add_report(parser)


def day_or_moment(text: str) -> int:
    """Nanoseconds since 1970 UTC: the start of 'today' or 'yesterday', or a time as `wirehare decode` takes it."""
    if text in DAYS_AGO:
        text = (datetime.now(UTC).date() - timedelta(days=DAYS_AGO[text])).isoformat()
    return moment(text)


def add_report(parser: argparse.ArgumentParser) -> None:
    """Options: configuration, baseline, where the report goes, what is printed."""
    parser.add_argument(
        "--format",
        choices=("text", "json", "sarif", "junit", "github"),
        default="text",
        help="what to print: text (the default), or all findings as JSON, SARIF, JUnit XML or workflow commands of "
        "GitHub Actions (the text then goes to stderr)",
    )
    parser.add_argument(
        "--report", metavar="FILE", default="audit.html", help="the HTML report to write (default: audit.html)"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="also write verdict and findings as JSON, for --baseline of the next audit"
    )
    parser.add_argument(
        "--fail-on",
        metavar="SEVERITY",
        choices=("violation", "warning", "info", "never"),
        default="violation",
        help="exit with 1 when there is a finding of this severity or worse: violation (the default), warning, info; "
        "or never",
    )
    parser.add_argument(
        "--baseline", metavar="FILE", help="JSON of an earlier audit: mark findings as new, persisting or gone"
    )
    parser.add_argument(
        "--config", metavar="FILE", help="TOML with thresholds, disabled rules, accepted exceptions, custom rules"
    )
    parser.add_argument(
        "--title", metavar="TEXT", default="AMQP audit", help="heading of the report (default: AMQP audit)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Audit: check all arguments first, write the outputs last; return the exit code."""
    started = time.monotonic()
    wanted = check_inputs(arguments)
    source = open_tables(arguments.tables)
    byte_size = tables_size(source, arguments)
    import_for_connect()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(import_modules)
        spark = run_interruptibly(lambda: start(byte_size * DECODE_FACTOR))
        loading.result()
    return audit_tables(spark, source, byte_size, wanted, arguments, started)


def import_modules() -> None:
    """Import the modules of the audit, which takes a second, while Spark starts."""
    from pipeline import audit  # noqa: F401
    from pipeline.report import charts, facts, page  # noqa: F401

    charts.start_renderer()


def check_inputs(arguments: argparse.Namespace) -> Inputs:
    """Read the baseline and the configuration, and check the outputs. Raises UsageError."""
    from udfs.processes import without_pandas

    with without_pandas():
        from pipeline.audit import config
        from pipeline.output.place import OutputError, place
        from pipeline.report import baseline
    from pyarrow.fs import FileType

    from udfs.source.files import first_line

    outputs = {name: output_file(name) for name in (arguments.report, arguments.json) if name}
    previous = settings = None
    if arguments.baseline is not None:
        try:
            file = place(arguments.baseline)
            info = file.files.get_file_info(file.path)
            if info.type not in (FileType.File, FileType.NotFound):  # to open a FIFO would block
                raise UsageError(f"--baseline {arguments.baseline}: is not a file")
            with file.files.open_input_stream(file.path) as stream:
                content = stream.read(baseline.BYTES + 1)
            if len(content) > baseline.BYTES:
                raise UsageError(f"--baseline {arguments.baseline}: has more than {baseline.BYTES:,} bytes")
            previous = baseline.read(content.decode())
        except (OSError, OutputError, UnicodeDecodeError) as error:
            raise UsageError(f"--baseline {arguments.baseline}: cannot be read ({first_line(error)})") from error
        except baseline.BaselineError as error:
            raise UsageError(f"--baseline {arguments.baseline}: {error}") from error
    if arguments.config is not None:
        try:
            settings = config.read(arguments.config)
        except config.ConfigError as error:
            raise UsageError(f"--config {error}") from error
    return Inputs(previous, settings, outputs)


def audit_tables(
    spark: SparkSession, source: Place, byte_size: int, wanted: Inputs, arguments: argparse.Namespace, started: float
) -> int:
    """Audit the tables in `source` (`byte_size` bytes) in a running session; return the exit code. `started`: start
    time of the job, from time.monotonic()."""
    from pipeline.audit.contexts.sources import audit_settings
    from pipeline.output.swap import staged_child
    from pipeline.output.writing import FINDINGS
    from pipeline.session import on_one_machine, settings

    with staged_child(arguments.tables, FINDINGS) as stage:
        if not on_one_machine(spark):
            stage.publish()  # executors of another user write there
        with settings(spark, audit_settings(spark, byte_size)):
            audit = run_interruptibly(
                lambda: find_and_compare(spark, arguments, source, stage, wanted, byte_size), [spark]
            )
        with step("writing the report", "Report written"):
            from pipeline.report.cards import most_important
            from pipeline.report.formats import FORMATS
            from pipeline.report.page import page

            html = page(audit, source.display_name)
            as_json = FORMATS["json"](audit) if arguments.json else None
    write_text(wanted.outputs[arguments.report], html)
    if as_json is not None:
        write_text(wanted.outputs[arguments.json], as_json)
    print_line = print_result if arguments.format == "text" else print_status
    if arguments.format != "text":
        print(FORMATS[arguments.format](audit))
    print_line(f"{audit.verdict.sentence} Audited in {time.monotonic() - started:.1f} s.")
    worst = most_important(audit.cards)
    for card in worst:
        print_line(card_text(card))
    print_line(f"The report is {wanted.outputs[arguments.report].display_name}")
    if worst:
        rule_id = worst[0].rule_id
        output = f"{rule_id.lower()}.pcapng"
        command = shlex.join(["wirehare", "cut", audit.tables, "--finding", rule_id, "-o", output])
        print_line(f"Next: open it, or cut out the packets that {rule_id} is about: {command}")
    return FOUND if audit.verdict.failed else OK


def card_text(card: Card) -> str:
    """A broken rule for the terminal: what, how often, by whom, what happened, what to do."""
    from pipeline.text import plain_text, plural

    names = [plain_text(name, NAME_CHARACTERS) for name in [*card.names["application"], *card.names["things"]][:NAMES]]
    number = plural(card.findings, "finding")
    paragraphs = {
        f"  {card.rule_id:<8}": f"{card.summary} {number}{': ' if names else ''}{', '.join(names)}",
        " " * 10: ", ".join(
            f"{name} {plain_text(value, EVIDENCE_CHARACTERS)}".strip() for name, value in card.highlights
        ),
        "       -> ": card.rule.remedy if card.rule else "",
    }
    return "\n".join(
        textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * 10)
        for head, text in paragraphs.items()
        if text
    )


def find_and_compare(
    spark: SparkSession, arguments: argparse.Namespace, source: Place, stage: Place, wanted: Inputs, byte_size: int
) -> Audit:
    """Write the findings to `stage`; return the result, compared with the baseline. Raises TablesError if files of a
    table cannot be read."""
    import pipeline
    from pipeline.lake.place import is_lake
    from pipeline.output import parquet
    from pipeline.output.place import TablesError
    from pipeline.report.baseline import compare
    from pipeline.report.facts import count_findings, count_tables, coverage_check, rules_of
    from pipeline.report.formats import Audit
    from pipeline.schemas import FINDINGS as SCHEMA
    from pipeline.session import INTERPRETED_BYTES, ONE_PARTITION_BYTES
    from udfs.source.files import public_uri

    now = datetime.now(UTC)

    def counting() -> Future[Facts]:
        flows, large = "message_flows" in (source.entries() or ()), byte_size >= INTERPRETED_BYTES
        return pool.submit(count_tables, tables, flows=flows, large=large)

    with ThreadPoolExecutor(1) as pool:
        try:
            # For a lake use the URI as given: it may have options that are needed to read the logs.
            directory = arguments.tables if is_lake(source) else source.pattern
            since, until = getattr(arguments, "since", None), getattr(arguments, "until", None)
            tables = pipeline.load(spark, directory, since=since, until=until)
            # The queries on small tables wait for each other, and leave a core idle.
            counted = counting() if byte_size < ONE_PARTITION_BYTES else None
            with step("looking for findings", "Findings written", spark):
                # The stage exists and is locked: append the files to it.
                parquet.write(pipeline.findings(tables, config=wanted.config), stage.uri, append=True)
            with step("counting for the report", "Report counted", spark):
                counted = counted or counting()
                findings = spark.read.schema(SCHEMA).parquet(stage.pattern)
                about_findings = count_findings(findings, tables.connections)
                facts = counted.result().with_findings(*about_findings)
        except BaseException as error:
            with contextlib.suppress(Exception):  # if the JVM is gone, so are its tasks
                spark.interruptAll()  # tasks would go on writing to a stage that is being removed
            if any(name in str(error) for name in UNREADABLE_FILES):
                raise TablesError(cause(error)) from error
            raise
    rules, exceptions = rules_of(wanted.config), wanted.config.exceptions if wanted.config else ()
    difference = compare(facts.groups["identities"], wanted.previous, coverage_check(facts, rules, exceptions))
    uri = public_uri(arguments.tables)
    return Audit(facts, difference, arguments.fail_on, arguments.title, now, uri, wanted.config)


def tables_size(source: Place, arguments: argparse.Namespace) -> int:
    """Bytes of the files to audit."""
    from pipeline.lake.place import is_lake
    from pipeline.lake.reading import Span, byte_size

    of_lake = is_lake(source)
    return byte_size(arguments.tables, Span(arguments.since, arguments.until)) if of_lake else source.byte_size()


def open_tables(directory: str) -> Place:
    """The place of the tables. Raises TablesError unless everything that an audit needs can be opened."""
    import pyarrow as pa

    from pipeline.lake.layout import DamagedLakeError, LakeError
    from pipeline.lake.log import Log
    from pipeline.lake.place import is_lake, open_lake
    from pipeline.output.place import TablesError
    from pipeline.schemas import TABLES
    from udfs.source.files import first_line

    source = tables_directory(directory)
    entries = source.entries() or []
    if is_lake(source):
        try:
            if not Log(open_lake(directory), directory).batch("captures"):
                raise TablesError(f"{directory}: the lake has no batch yet; `wirehare ingest` adds some")
        except DamagedLakeError:
            raise
        except LakeError as error:
            raise TablesError(str(error)) from error
        return source
    missing = [name for name in TABLES if name not in entries and name not in OPTIONAL]
    if not {*TABLES} & {*entries}:
        raise TablesError(f"{directory}: holds no tables; expected a directory that `wirehare decode` has written")
    if missing:
        raise TablesError(
            f"{directory}: has no table {', '.join(missing)}; "
            "expected all that `wirehare decode` writes without --tables"
        )
    for name, schema in TABLES.items():
        try:
            columns = set(source.child(name).dataset().schema.names) if name in entries else set(schema.names)
        except (OSError, pa.ArrowInvalid) as error:
            raise TablesError(f"{directory}: table {name} cannot be read ({first_line(error)})") from error
        absent = {"connection_id", "capture_file"} & {*schema.names} - columns
        if absent:
            raise TablesError(
                f"{directory}: table {name} has no column {min(absent)}; expected one of `wirehare decode`"
            )
    return source


if __name__ == "__main__":
    run_standalone("jobs.audit")
