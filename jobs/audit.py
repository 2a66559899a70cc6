"""Audit decoded tables: write findings and a report; the exit code says whether the audit failed.

Runs as `wirehare audit` and as `spark-submit jobs/audit.py`. The findings are written as table `findings` beside the
other tables; the report and its JSON are written last, each replaced in one step.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from jobs import report
from jobs.terminal.console import print_status, step
from jobs.terminal.running import NO_SPACE, run_interruptibly, run_standalone

if TYPE_CHECKING:
    from pipeline.audit.config import Config
    from pipeline.output.location import Location

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
  4  a query or the file system failed; the previous report is as it was
  5  the tables are a lake, and it is damaged; nothing was written
"""

EXIT_STATUSES = report.EXIT_STATUSES
WITHOUT_ODDITIES = (
    "no table oddities, as of an earlier release: rules about sessions and links of 0-10 and 1.0 find nothing; "
    "decode the captures again for them"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    report.add_arguments(parser)
    report.add_rules(parser)


def run(arguments: argparse.Namespace) -> int:
    """Audit: check all arguments first, write the outputs last; return the exit code."""
    started = time.monotonic()
    wanted = report.check_inputs(arguments)
    source = report.open_tables(arguments.tables)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(import_modules)
        return audit_tables(source, wanted, arguments, started)


def import_modules() -> None:
    """Import the modules of the audit, which takes a second, while other processes decode, or the tables are read."""
    from pipeline import audit  # noqa: F401

    report.import_modules()


def audit_tables(source: Location, wanted: report.Inputs, arguments: argparse.Namespace, started: float) -> int:
    """Audit the tables in `source`; return the exit code. `started`: start time of the job, from time.monotonic()."""
    from pipeline.output.swap import staged_child
    from pipeline.tables.write_tables import FINDINGS

    with staged_child(arguments.tables, FINDINGS) as stage:
        write_findings(arguments, source, stage, wanted.config)
        written = report.report_of(source, stage, wanted, arguments)
    return report.write_report(written, wanted, arguments, started, "Audited")


def write_findings(arguments: argparse.Namespace, source: Location, stage: Location, config: Config | None) -> None:
    """Write the findings to `stage`. Raises TablesError if files of a table cannot be read."""
    import duckdb

    from codec.tables import FINDINGS
    from pipeline.audit import findings_in
    from pipeline.explore.duckdb_tables import files_here, span_conditions
    from pipeline.lake.lake_tables import Span
    from pipeline.output.location import TablesError
    from pipeline.output.parquet_tables import write_rows
    from udfs.findings.evaluation import Run
    from udfs.source.capture_bytes import first_line

    running = Run()
    span = Span(getattr(arguments, "since", None), getattr(arguments, "until", None))

    def find() -> None:
        with files_here(source, arguments.tables, span) as files:
            if files["methods"] and not files["oddities"]:
                print_status(f"{source.display_name}: {WITHOUT_ODDITIES}")
            found = findings_in(files, span_conditions(span), config=config, run=running)
        write_rows(stage, FINDINGS, found.to_batches())

    try:
        with step("looking for findings", "Findings written"):
            run_interruptibly(find, [running])
    except duckdb.Error as error:
        if isinstance(error, duckdb.OutOfMemoryException) or NO_SPACE.lower() in str(error).lower():
            raise
        raise TablesError(f"{source.display_name}: cannot be read ({first_line(error)})") from error


if __name__ == "__main__":
    run_standalone("jobs.audit")
