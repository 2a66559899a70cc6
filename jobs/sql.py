"""Ask tables or captures a question in SQL.

Runs as `wirehare sql`, with DuckDB: neither Spark nor Java starts. The work is done by
`pipeline.explore.duckdb_tables`; here are its command line, its prompt, and the forms of a result.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.terminal.arguments import STANDARD_OUTPUT, add_filter
from jobs.terminal.console import print_error, print_status, step, table
from jobs.terminal.running import OK, UNREADABLE, USAGE, UsageError, run_interruptibly, run_standalone

if TYPE_CHECKING:
    from pipeline.explore.duckdb_tables import Session

EPILOG = """examples:
  wirehare sql tables "SELECT outcome, count(*) FROM messages GROUP BY ALL"
  wirehare sql trace.pcapng "FROM connections SELECT client_name, close_text WHERE close_code IS NOT NULL"
  wirehare sql tables "SELECT arguments.queue, count(*) FROM methods WHERE name = 'queue.declare' GROUP BY ALL"
  wirehare sql tables --format csv - < question.sql
  wirehare sql tables                       (a prompt: statements end with ;  .help lists what else it knows)

The dialect is DuckDB's. A query reads the tables and nothing else; --any-files lifts that.

exit codes:
  0  done
  2  bad usage, no tables or captures found, or a statement that is wrong or refused
  3  done, but some captures could not be read to their end
  4  a process or the file system failed
  5  the tables are a lake, and it is damaged
  130  stopped by Ctrl-C or SIGTERM
"""
EXIT_STATUSES = dict.fromkeys(("TablesError", "QueryError", "LakeError"), (USAGE, ""))
STOPPED = "nothing was changed"

TEXT_ROWS = 200  # of a result that a person reads
CELL = 100  # characters
HISTORY = "sql_history"
HELP = """.tables           the tables            .columns TABLE   columns and what they mean
.format NAME      text, markdown, csv or json        .quit   or Ctrl-D
Everything else is SQL and ends with ;"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="TABLES_OR_CAPTURES", help="a directory of tables or a lake; or captures, decoded first"
    )
    parser.add_argument(
        "query", metavar="QUERY", nargs="?", help="statements; - reads them from standard input; without: a prompt"
    )
    parser.add_argument("--format", choices=sorted(FORMATS), default="text", help="of the result (default: text)")
    parser.add_argument("--rows", metavar="N", type=int, default=TEXT_ROWS, help="rows shown as text; 0 shows all")
    parser.add_argument(
        "--any-files", action="store_true", help="let statements read and write any file (COPY, read_csv, ATTACH ...)"
    )
    # argparse gives an optional word its default when options stand between it and the word before.
    parser.set_defaults(late="query")
    add_filter(parser)


def run(arguments: argparse.Namespace) -> int:
    from pipeline.explore.duckdb_tables import connect, has_tables

    with ExitStack() as stack:
        directory, exit_code = arguments.source, OK
        if not has_tables(directory):
            directory, exit_code = decoded(arguments, stack)
        session = stack.enter_context(connect(directory, any_files=arguments.any_files))
        text = arguments.query
        if text is None and sys.stdin.isatty():
            Prompt(session, arguments.format, arguments.rows).run()
            return exit_code
        if text in (None, STANDARD_OUTPUT):
            text = sys.stdin.read()
        show = FORMATS[arguments.format]
        run_interruptibly(lambda: [show(*result, arguments.rows) for result in session.run(text)], [session])
    return exit_code


def decoded(arguments: argparse.Namespace, stack: ExitStack) -> tuple[str, int]:
    """Decode captures into a directory that `stack` removes; the exit code says whether they were whole."""
    from jobs.decode import interpret_while_cold
    from pipeline import write
    from pipeline.run import scratch
    from pipeline.run.local_processes import LocalProcesses
    from pipeline.tables.decoding import checked_key_logs
    from udfs.source.paths import require_capture, resolve

    files = resolve([arguments.source])
    checked_key_logs(arguments.keylog)
    require_capture(files)
    byte_size = sum(file.expected_size for file in files)
    interpret_while_cold(files)
    parent = scratch.directories({}).partition(",")[0]
    directory = stack.enter_context(tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True))
    processes = stack.enter_context(LocalProcesses())
    with step("decoding", "Decoded", processes, byte_size=byte_size):
        captures = run_interruptibly(
            lambda: write(
                processes, [file.uri for file in files], f"{directory}/tables", payload=arguments.payload,
                ports=arguments.port, hosts=arguments.host, keylog=arguments.keylog,
            ),
            [processes],
        )  # fmt: skip
    damaged = [row["error"] for row in captures if row["error"]]
    for line in damaged:
        print_error(f"{arguments.prog}: {line}")
    return f"{directory}/tables", UNREADABLE if damaged else OK


Rows = Iterable[Sequence[Any]]
Show = Callable[[list[str], Rows, int], None]


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value == value and abs(value) != float("inf") else str(value)
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case datetime():
            return (value.astimezone(UTC) if value.tzinfo else value).replace(tzinfo=None).isoformat(" ")
        case date():
            return value.isoformat()
        case dict():
            return {str(plain(key)): plain(part) for key, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
    return str(value)


def as_line(value: Any) -> Any:
    """A value in one line of text: numbers as they are, structures as JSON."""
    json_value = plain(value)
    return json.dumps(json_value, ensure_ascii=False) if isinstance(json_value, dict | list) else json_value


def printable(text: object) -> str:
    """Text from the wire without control characters and marks of direction."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(text))


def show_text(names: list[str], rows: Rows, most: int) -> None:
    """A table of text; of more than `most` rows, these and a line that says so."""
    found = [[shortened(as_line(value)) for value in row] for row in islice(rows, most + 1 if most else None)]
    more = bool(most) and len(found) > most
    first_rows = found[:most] if more else found
    print(table("", [printable(name) for name in names], first_rows).strip("\n") or "no rows")
    if more:
        print(f"  ... more than {most} rows (--rows 0 shows all)")


def shortened(value: Any) -> Any:
    text = printable(value) if isinstance(value, str) else value
    return f"{text[: CELL - 3]}..." if isinstance(text, str) and len(text) > CELL else text


def show_markdown(names: list[str], rows: Rows, most: int) -> None:
    """A table of GitHub's Markdown: texts are code spans."""
    print(f"| {' | '.join(map(markdown_cell, names))} |")
    print(f"| {' | '.join(['---'] * len(names))} |")
    for row in rows:
        print(f"| {' | '.join(map(markdown_cell, row))} |")


def markdown_cell(value: Any) -> str:
    from pipeline.output.formatting import code_span

    text = "" if value is None else printable(as_line(value))
    return text if re.fullmatch(r"\w*|[\d.:+TZ -]*", text) else code_span(text)


def show_csv(names: list[str], rows: Rows, most: int) -> None:
    """Comma-separated values (RFC 4180)."""
    clean = printable if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout)
    writer.writerow(names)
    writer.writerows([None if value is None else clean(as_line(value)) for value in row] for row in rows)


def show_json(names: list[str], rows: Rows, most: int) -> None:
    """An array with an object for each row; integers beyond 53 bits stay exact, as JSON allows."""
    print("[", end="")
    for turn, row in enumerate(rows):
        text = json.dumps(dict(zip(names, map(plain, row), strict=True)))
        print(",\n " if turn else "", text, sep="", end="")
    print("]")


FORMATS: dict[str, Show] = {"text": show_text, "markdown": show_markdown, "csv": show_csv, "json": show_json}


class Prompt:
    """Statements of a person: with history, and completion of tables, columns and keywords where readline is there."""

    def __init__(self, session: Session, form: str, rows: int) -> None:
        self.session, self.form, self.rows = session, form, rows
        self.words = [*session.names(), ".tables", ".columns", ".format", ".help", ".quit"]

    def run(self) -> None:
        """Until the end of input. Ctrl-C drops what was typed, or cancels what runs."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self._prepare()
        print_status("Statements end with ;  .help lists what else there is.")
        try:
            while (text := self._statement()) is not None:
                self._execute(text)
        finally:
            signal.signal(signal.SIGINT, before)

    def _statement(self) -> str | None:
        """The next statement or command; None at the end of input."""
        lines: list[str] = []
        while True:
            try:
                lines.append(input("wirehare> " if not lines else "     ...> "))
            except EOFError:
                print()
                return None
            except KeyboardInterrupt:
                print()
                return ""
            text = "\n".join(lines).strip()
            if not text or text.startswith(".") or text.endswith(";"):
                return None if text.split(" ")[0].rstrip(";") in (".quit", ".exit") else text

    def _execute(self, text: str) -> None:
        from pipeline.explore.duckdb_tables import QueryError

        try:
            if text.startswith("."):
                self._command(text.split())
                return
            for names, rows in self.session.run(text):
                FORMATS[self.form](names, rows, self.rows)
        except (QueryError, UsageError) as error:
            print_error(str(error))
        except KeyboardInterrupt:
            print_error("cancelled")

    def _command(self, words: list[str]) -> None:
        from codec.tables import TABLES
        from jobs.schema import table_text
        from udfs.source.options import unknown

        match words:
            case [".tables"]:
                print(
                    table("", ["table", "one row for each"], [[each.name, each.row] for each in TABLES.values()]).strip(
                        "\n"
                    )
                )
            case [".columns", name]:
                if name not in TABLES:
                    raise UsageError(unknown("table", name, TABLES))
                print(table_text(TABLES[name]))
            case [".format", form] if form in FORMATS:
                self.form = form
            case _:
                print(HELP)

    def _prepare(self) -> None:
        """Completion and history; the file of the history is the user's alone."""
        try:
            import readline
        except ImportError:  # a Python without it
            return
        readline.set_completer_delims(" \t\n,;()=<>+-*/'\"")
        readline.set_completer(lambda text, state: next(islice(self.matches(text), state, None), None))
        readline.parse_and_bind("tab: complete")
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state", "wirehare")
        with suppress(OSError):
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(state / HISTORY, os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600))
            readline.read_history_file(state / HISTORY)
            import atexit

            atexit.register(readline.write_history_file, state / HISTORY)

    def matches(self, text: str) -> Iterator[str]:
        """Words that begin with `text`; after a dot, names of columns."""
        before, dot, last = text.rpartition(".")
        start = before + dot if before else ""
        wanted = last if before else text
        return (start + word for word in self.words if word.lower().startswith(wanted.lower()))


if __name__ == "__main__":
    run_standalone("jobs.sql")
