"""Decode captures, then audit the tables.

Runs as `wirehare nightly` and as `spark-submit jobs/nightly.py`. It is `wirehare decode` followed by `wirehare audit`
and writes the same files. Nothing is audited if decoding failed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from jobs import audit, decode, report
from jobs.terminal.running import FAILED, OK, run_standalone

EPILOG = """examples:
  wirehare nightly captures/2026-11-20 --output tables/date=2026-11-20 --overwrite --report reports/2026-11-20.html
  wirehare nightly trace.pcapng --output tables --json tonight.json --baseline last-night.json --fail-on warning
  wirehare nightly trace.pcapng --output tables --format sarif > nightly.sarif

exit codes:
  0  done; no finding reaches the threshold of --fail-on, and all captures were read to their end
  1  done; some findings reach the threshold: see the report, which names incomplete captures, too
  2  bad usage, no capture found, or a configuration or baseline that cannot be read; nothing was written
  3  done; no finding reaches the threshold, but some captures could not be read to their end (see the report)
  4  Spark, a process or the file system failed; the old report is as it was, and the tables unless all were written
"""

# Tables that were just written and cannot be read are a failure.
EXIT_STATUSES = {"TablesError": (FAILED, "")}
STOPPED = "the previous report, if any, is as it was, and so are the tables unless all new ones were written"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    decode.add_input_and_output(parser)
    report.add_report(parser)
    report.add_rules(parser)


def run(arguments: argparse.Namespace) -> int:
    wanted = report.check_inputs(arguments)  # fail before an hour of decoding
    with ThreadPoolExecutor(1) as pool:
        # Only the audit goes to stdout: unless it is text, another program reads it.
        aside = contextlib.nullcontext() if arguments.format == "text" else contextlib.redirect_stdout(sys.stderr)
        with aside:
            of_decode = argparse.Namespace(**{**vars(arguments), "tables": None, "json": None})
            exit_code = decode.decode_captures(of_decode, lambda: pool.submit(audit.import_modules))[1]
        started = time.monotonic()
        source = report.open_tables(arguments.output)
        of_tables = argparse.Namespace(**{**vars(arguments), "tables": arguments.output})
        verdict = audit.audit_tables(source, wanted, of_tables, started)
    return exit_code if verdict == OK else verdict


if __name__ == "__main__":
    run_standalone("jobs.nightly")
