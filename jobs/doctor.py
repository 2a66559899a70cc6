"""Say what this machine lacks to decode fast, and what a capture lacks to be understood.

Each line has what was found, and what to do about it. Without a capture: the machine only.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from jobs.terminal.arguments import add_filter
from jobs.terminal.console import print_result
from jobs.terminal.running import FOUND, OK, run_interruptibly, run_standalone

if TYPE_CHECKING:
    from pipeline.diagnosis import Check

EPILOG = """examples:
  wirehare doctor
  wirehare doctor trace.pcapng
  wirehare doctor captures/ --keylog keys.log

exit codes:
  0  nothing is in the way; lines that begin with 'note' are worth knowing
  1  something is: the lines that begin with 'problem'
  2  bad usage, or no capture found
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="CAPTURE", nargs="?", help="a capture, a directory of them, a glob pattern, or a URI"
    )
    add_filter(parser)


def run(arguments: argparse.Namespace) -> int:
    from jobs.decode import COMPILE_COMMAND
    from pipeline import diagnosis as doctor

    problem = print_checks(doctor.machine(COMPILE_COMMAND))
    if arguments.source is not None:
        problem |= print_checks(checks_of_captures(arguments))
    return FOUND if problem else OK


def checks_of_captures(arguments: argparse.Namespace) -> Iterable[Check]:
    """Decode the captures and check them."""
    from jobs.sql import decoded
    from pipeline import diagnosis as doctor
    from pipeline.explore.duckdb_tables import connect, files_here
    from pipeline.lake.lake_tables import Span
    from pipeline.output.location import location
    from udfs.source.paths import resolve

    with ExitStack() as stack:
        directory, _ = decoded(arguments, stack)
        paths = stack.enter_context(files_here(location(directory), directory, Span()))
        session = stack.enter_context(connect(directory))
        files = resolve([arguments.source])
        key_logs = bool(arguments.keylog)
        return run_interruptibly(lambda: list(doctor.capture(session, paths, files, key_logs)), [session])


def print_checks(checks: Iterable[Check]) -> bool:
    """Print a line for each check; return whether there is a problem."""
    from pipeline.diagnosis import PROBLEM
    from udfs.source.capture_bytes import printable

    found = False
    for check in checks:
        found |= check.state == PROBLEM
        remedy = f" -> {check.remedy}" if check.remedy else ""
        print_result(printable(f"{check.state:<8} {check.about}: {check.found}{remedy}"))
    return found


if __name__ == "__main__":
    run_standalone("jobs.doctor")
