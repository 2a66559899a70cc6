"""Say why: why a connection ended, why messages wait in a queue, what became of a message.

Runs as `wirehare explain`, with DuckDB: neither Spark nor Java starts. `pipeline.explain` finds the answers.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from io import StringIO
from typing import TYPE_CHECKING

from jobs.sql import decoded
from jobs.terminal.arguments import add_filter, output_file, write_text
from jobs.terminal.console import print_status
from jobs.terminal.running import OK, USAGE, UsageError, run_interruptibly, run_standalone

if TYPE_CHECKING:
    from pipeline.explain import Answer
    from pipeline.explore.duckdb_tables import Session
    from pipeline.output.location import Location

EPILOG = """examples:
  wirehare explain trace.pcapng                       (what costs most in it)
  wirehare explain 10.0.0.7:44650 trace.pcapng        (why did this connection end?)
  wirehare explain order-service tables               (an application, by its name or user)
  wirehare explain orders tables                      (a queue or an address: why do messages wait?)
  wirehare explain 4711/20 tables                     (a message: connection_id/first_frame_no, or its message-id)
  wirehare explain order-service tables --json
  wirehare explain 10.0.0.7:44650 tables --ladder why.svg

An answer has the first cause, what happened before it, the proof, what else was possible and why it is ruled out, and
what to do. "This cannot be told" is an answer, too.

exit codes:
  0  done
  2  bad usage, no tables or captures found, or nothing in them is WHAT
  3  done, but some captures could not be read to their end
  4  a process or the file system failed
  5  the tables are a lake, and it is damaged
  130  stopped by Ctrl-C or SIGTERM
"""
EXIT_STATUSES = dict.fromkeys(("TablesError", "QueryError", "LakeError", "SubjectError"), (USAGE, ""))
STOPPED = "nothing was changed"
NOTHING = "Nothing wrong was found on these connections."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        metavar="[WHAT] TABLES_OR_CAPTURES",
        nargs="+",
        help="what to explain: a connection (IP:PORT, connection_id), an application or user, a queue or address, a "
        "message (connection_id/first_frame_no, message-id); without it: what costs most. Then a directory of tables "
        "or a lake; or captures, decoded first",
    )
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    parser.add_argument(
        "--ladder",
        metavar="FILE",
        help="also draw the frames of the first answer's connection, as a sequence diagram: .svg or .html",
    )
    add_filter(parser)


def run(arguments: argparse.Namespace) -> int:
    from pipeline.explain import explain, page
    from pipeline.explore.duckdb_tables import connect, has_tables

    *subject, source = arguments.words
    if len(subject) > 1:
        raise UsageError(f"one WHAT and one source, not {len(arguments.words)} (see --help)")
    if subject and os.path.exists(subject[0]) and not os.path.exists(source):
        raise UsageError(f"the source comes last: wirehare explain {source} {subject[0]}")
    picture = None
    if arguments.ladder:
        if not arguments.ladder.endswith((".svg", ".html")):
            raise UsageError(f"{arguments.ladder}: expected a name that ends in .svg or .html")
        picture = output_file(arguments.ladder)
    arguments.source = source
    with ExitStack() as stack:
        directory, exit_code, tables = source, OK, source
        if not has_tables(source):
            directory, exit_code = decoded(arguments, stack)
            tables = None
        session = stack.enter_context(connect(directory))
        answers = run_interruptibly(lambda: explain(session, subject[0] if subject else None), [session])
        if arguments.json:
            print(json.dumps([answer.as_dict() for answer in answers], indent=2))
        elif answers:
            print("\n".join(page(answer, tables) for answer in answers), end="")
        else:
            print(NOTHING)
        if picture is not None:
            draw(session, answers, picture, arguments.ladder)
        if tables is None and answers and not arguments.json:
            print_status("To cut packets out, decode first: wirehare decode CAPTURES --output tables")
    return exit_code


def draw(session: Session, answers: Sequence[Answer], picture: Location, name: str) -> None:
    """Write the ladder of the first answer that is about a connection. Raises UsageError if none is."""
    from pipeline.plots import ladder_of

    answer = next((each for each in answers if each.connection_id is not None), None)
    if answer is None:
        raise UsageError("nothing to draw: no answer is about a connection (see --help)")
    text, kind = StringIO(), name.rpartition(".")[2]
    ladder_of(session, answer).save(text, format=kind, **({"inline": True} if kind == "html" else {}))
    write_text(picture, text.getvalue())
    print_status(f"The ladder is {picture.display_name}")


if __name__ == "__main__":
    run_standalone(__name__)
