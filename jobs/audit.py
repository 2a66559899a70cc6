"""Audit decoded tables: write findings and a report; the exit code says whether the audit failed.

Runs as `wirehare audit` and as `spark-submit jobs/audit.py`. The findings are written as table `findings` beside the
other tables; the report and its JSON are written last, each replaced in one step.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from jobs import report
from jobs.console import step
from jobs.decode import import_for_connect, start
from jobs.running import cause, run_interruptibly, run_standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.audit.config import Config
    from pipeline.output.place import Place

EPILOG = """examples:
  wirehare decode captures/ --output tables
  wirehare audit tables --report audit.html
  wirehare audit tables --report audit.html --json tonight.json --baseline last-night.json --fail-on warning
  wirehare audit tables --format sarif > audit.sarif
  wirehare audit tables --config audit.toml --title 'Orders, production'
  wirehare audit tables --rules R4 --report rabbitmq-4.html
  wirehare audit lake --since yesterday --until today --report yesterday.html

exit codes:
  0  done; no finding reaches the threshold of --fail-on
  1  done; some findings reach the threshold: see the report
  2  bad usage, or a configuration or baseline that cannot be read; nothing was written
  3  the tables are missing or cannot be read; nothing was written
  4  Spark or the file system failed; the previous report is as it was
  5  the tables are a lake, and it is damaged; nothing was written
"""

EXIT_STATUSES = report.EXIT_STATUSES
# Spark's error conditions for existing files that cannot be read.
UNREADABLE_FILES = ("FAILED_READ_FILE", "CANNOT_READ_FILE", "CANNOT_MERGE_SCHEMAS", "PATH_NOT_FOUND")
# Auditing a byte of tables is as much work as decoding this many bytes of captures. Decides which JIT compiler Java
# uses: with the full one the audit of 420,000 messages took 59 CPU seconds, with the quick one 34.
DECODE_FACTOR = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    report.add_arguments(parser)
    report.add_rules(parser)


def run(arguments: argparse.Namespace) -> int:
    """Audit: check all arguments first, write the outputs last; return the exit code."""
    started = time.monotonic()
    wanted = report.check_inputs(arguments)
    source = report.open_tables(arguments.tables)
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

    report.import_modules()


def audit_tables(
    spark: SparkSession,
    source: Place,
    byte_size: int,
    wanted: report.Inputs,
    arguments: argparse.Namespace,
    started: float,
) -> int:
    """Audit the tables in `source` (`byte_size` bytes) in a running session; return the exit code. `started`: start
    time of the job, from time.monotonic()."""
    from pipeline.output.swap import staged_child
    from pipeline.output.writing import FINDINGS

    with staged_child(arguments.tables, FINDINGS) as stage:
        write_findings(spark, arguments, source, stage, wanted.config, byte_size)
        written = report.report_of(source, stage, wanted, arguments)
    return report.write_report(written, wanted, arguments, started, "Audited")


def write_findings(
    spark: SparkSession,
    arguments: argparse.Namespace,
    source: Place,
    stage: Place,
    config: Config | None,
    byte_size: int,
) -> None:
    """Write the findings to `stage`. Raises TablesError if files of a table cannot be read."""
    import pipeline
    from pipeline.audit.contexts.sources import audit_settings
    from pipeline.lake.place import is_lake
    from pipeline.output import parquet
    from pipeline.output.place import TablesError
    from pipeline.session import on_one_machine, settings

    def find() -> None:
        # For a lake use the URI as given: it may have options that are needed to read the logs.
        directory = arguments.tables if is_lake(source) else source.pattern
        since, until = getattr(arguments, "since", None), getattr(arguments, "until", None)
        tables = pipeline.load(spark, directory, since=since, until=until)
        # The stage exists and is locked: append the files to it.
        parquet.write(pipeline.findings(tables, config=config), stage.uri, append=True)

    if not on_one_machine(spark):
        stage.publish()  # executors of another user write there
    try:
        with (
            settings(spark, audit_settings(spark, byte_size)),
            step("looking for findings", "Findings written", spark),
        ):
            run_interruptibly(find, [spark])
    except BaseException as error:
        with contextlib.suppress(Exception):  # if the JVM is gone, so are its tasks
            spark.interruptAll()  # tasks would go on writing to a stage that is being removed
        if any(name in str(error) for name in UNREADABLE_FILES):
            raise TablesError(cause(error)) from error
        raise


def tables_size(source: Place, arguments: argparse.Namespace) -> int:
    """Bytes of the files to audit."""
    from pipeline.lake.place import is_lake
    from pipeline.lake.reading import Span, byte_size

    of_lake = is_lake(source)
    return byte_size(arguments.tables, Span(arguments.since, arguments.until)) if of_lake else source.byte_size()


if __name__ == "__main__":
    run_standalone("jobs.audit")
