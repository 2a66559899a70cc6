"""Compare two captures: what did an upgrade of the broker, a library or an application change.

Runs as `wirehare diff`, with DuckDB: neither Spark nor Java starts. `pipeline.diff` finds the differences.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from jobs.sql import decoded
from jobs.terminal.arguments import add_filter, output_file, write_text
from jobs.terminal.console import print_status
from jobs.terminal.running import FOUND, OK, USAGE, UsageError, run_interruptibly, run_standalone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.explore.duckdb_tables import Session

EPILOG = """examples:
  wirehare diff before.pcapng after.pcapng
  wirehare diff tables-3.13 tables-4.2 --html diff.html
  wirehare diff lake --before 2026-11-20 --after 2026-11-21
  wirehare diff before.pcapng after.pcapng --markdown > comment.md
  wirehare diff before after --fail-on confirm_latency.p99=+5% --fail-on redelivered=+10% --fail-on heartbeat

What is compared does not depend on load and duration: settings, arguments, the order of methods; frames and bytes for
each message; shares of redelivered, returned and refused messages; latencies as distributions. Each difference has its
size, how sure it is, and where to look on both sides. pipeline/diff/measures.json has the names for --fail-on.

exit codes:
  0  done; no threshold of --fail-on is exceeded
  1  done; a threshold is exceeded
  2  bad usage, no tables or captures found, or a package is missing
  3  done, but some captures could not be read to their end
  4  a process or the file system failed
  5  the tables are a lake, and it is damaged
  130  stopped by Ctrl-C or SIGTERM
"""
EXIT_STATUSES = dict.fromkeys(("TablesError", "QueryError", "LakeError", "DiffError"), (USAGE, ""))
STOPPED = "nothing was changed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="BEFORE", help="a directory of tables or a lake; or captures, decoded first")
    parser.add_argument(
        "second", metavar="AFTER", nargs="?", help="the same, of afterwards; not for two days of a lake"
    )
    parser.add_argument("--before", metavar="DAY", help="only this day of BEFORE, such as 2026-11-20 (UTC)")
    parser.add_argument("--after", metavar="DAY", help="only this day of AFTER; without AFTER, of BEFORE")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the comparison as JSON")
    form.add_argument("--markdown", action="store_true", help="print it as Markdown, for a pull request")
    parser.add_argument("--html", metavar="FILE", help="also write it as an HTML page")
    parser.add_argument(
        "--fail-on",
        metavar="THRESHOLD",
        action="append",
        default=[],
        help="exit with 1 when this is exceeded: any; a measure (heartbeat); a measure that grows or shrinks by more "
        "than a limit (confirm_latency.p99=+5%%, confirmed=-1%%); may be repeated",
    )
    parser.set_defaults(late="second")
    add_filter(parser)


def run(arguments: argparse.Namespace) -> int:
    from pipeline.diff import Threshold, diff_sessions, pages, require_scipy

    require_scipy()
    for text in arguments.fail_on:
        Threshold.of(text)
    if arguments.second is None and not (arguments.before and arguments.after):
        raise UsageError("diff needs BEFORE and AFTER, or --before DAY and --after DAY of one lake (see --help)")
    target = output_file(arguments.html) if arguments.html else None
    exit_code = OK
    with ExitStack() as stack:
        sessions, names = [], []
        for source, day in (
            (arguments.first, arguments.before),
            (arguments.second or arguments.first, arguments.after),
        ):
            session, code = stack.enter_context(opened(source, day, arguments))
            sessions.append(session)
            names.append(f"{source} {day or ''}".strip())
            exit_code = exit_code or code
        found = run_interruptibly(
            lambda: diff_sessions(sessions[0], sessions[1], names[0], names[1], arguments.fail_on), sessions
        )
    if arguments.json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        print(pages.markdown(found) if arguments.markdown else pages.text(found), end="")
    if target is not None:
        write_text(target, pages.html(found))
        print_status(f"Written: {target.display_name}")
    return FOUND if found.failed else exit_code


@contextmanager
def opened(source: str, day: str | None, arguments: argparse.Namespace) -> Iterator[tuple[Session, int]]:
    """The tables of a source, of one day if it is given, and the exit code of decoding it. Captures are decoded and
    audited first."""
    from pipeline.diff import span_of
    from pipeline.explore.duckdb_tables import has_tables, open_tables

    with ExitStack() as stack:
        directory, exit_code = source, OK
        if not has_tables(source):
            of_source = argparse.Namespace(**{**vars(arguments), "source": source})
            directory, exit_code = decoded(of_source, stack)
            audit(directory)
        yield stack.enter_context(open_tables(directory, span=span_of(day))), exit_code


def audit(directory: str) -> None:
    """Write the findings beside the tables of captures, so that rules can be compared."""
    from jobs.audit import write_findings
    from pipeline.output.location import location
    from pipeline.output.swap import staged_child
    from pipeline.tables.write_tables import FINDINGS

    with staged_child(directory, FINDINGS) as stage:
        write_findings(argparse.Namespace(tables=directory), location(directory), stage, None)


if __name__ == "__main__":
    run_standalone(__name__)
