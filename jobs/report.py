"""Make the report of an audit again, from the tables and the findings beside them.

Runs as `wirehare report`. Counts, page and printed lines are those of `wirehare audit`, which calls this module when it
has written the findings. Neither Spark nor Java starts: DuckDB counts in this process
(`pipeline.explore.duckdb_tables`).
"""

from __future__ import annotations

import argparse
import shlex
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from jobs.terminal.arguments import add_list, add_tables, moment, output_file, tables_directory, write_text
from jobs.terminal.console import print_result, print_status, step
from jobs.terminal.running import FOUND, OK, UNREADABLE, UsageError, run_interruptibly, run_standalone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.audit.config import Config
    from pipeline.explore.duckdb_tables import Session
    from pipeline.output.location import Location
    from pipeline.report.baseline import Previous
    from pipeline.report.cards import Card
    from pipeline.report.facts import Facts
    from pipeline.report.formats import Audit

EPILOG = """examples:
  wirehare report tables --report audit.html
  wirehare report tables --json tonight.json --baseline last-night.json --title 'Orders, production'
  wirehare report tables --format sarif > audit.sarif

Give the --config, --since and --until of the audit again: they decide what was checked.

exit codes:
  0  done; no finding reaches the threshold of --fail-on
  1  done; some findings reach the threshold: see the report
  2  bad usage, or a configuration or baseline that cannot be read; nothing was written
  3  the tables or the findings are missing or cannot be read; nothing was written
  4  the file system failed; the previous report is as it was
  5  the tables are a lake, and it is damaged; nothing was written
"""

EXIT_STATUSES = dict.fromkeys(("TablesError", "LakeError"), (UNREADABLE, ""))
STOPPED = "the previous report, if any, is as it was"
DAYS_AGO = {"today": 0, "yesterday": 1}
# Limits of the text for a terminal.
WIDTH, NAMES, NAME_CHARACTERS, EVIDENCE_CHARACTERS = 118, 4, 80, 120


class Inputs(NamedTuple):
    """The baseline, the configuration, and the files to write, by their names on the command line."""

    previous: Previous | None
    config: Config | None
    outputs: Mapping[str, Location]


class Written(NamedTuple):
    """A result, with the texts of its files by name on the command line."""

    audit: Audit
    files: Mapping[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tables(parser)
    add_span(parser)
    add_report(parser)


def add_span(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        metavar="T",
        type=day_or_moment,
        help="only rows that end after this time: yesterday, today, 2026-01-31T08:00 (UTC); of a lake, files of other "
        "days are not read",
    )
    parser.add_argument("--until", metavar="T", type=day_or_moment, help="only rows that begin before this time")


def day_or_moment(text: str) -> int:
    """Nanoseconds since 1970 UTC: the start of 'today' or 'yesterday', or a time as `wirehare decode` takes it."""
    if text in DAYS_AGO:
        text = (datetime.now(UTC).date() - timedelta(days=DAYS_AGO[text])).isoformat()
    return moment(text)


def add_rules(parser: argparse.ArgumentParser) -> None:
    add_list(
        parser, "--rules", "RULE", "check only these rules or groups, such as R4 or CH-09 (`wirehare rules` lists them)"
    )


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
        choices=("violation", "warning", "info", "empty", "never"),
        default="violation",
        help="exit with 1 when there is a finding of this severity or worse: violation (the default), warning, info; "
        "empty: also when no AMQP was read, else as violation; or never",
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
    """Check all arguments first, write the outputs last; return the exit code."""
    from pipeline.output.location import TablesError
    from pipeline.tables.write_tables import FINDINGS

    started = time.monotonic()
    wanted = check_inputs(arguments)
    source = open_tables(arguments.tables)
    if FINDINGS not in (source.entries() or ()):
        raise TablesError(f"{arguments.tables}: has no table findings; `wirehare audit` writes it")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(import_modules)
        written = report_of(source, None, wanted, arguments)
    return write_report(written, wanted, arguments, started)


def import_modules() -> None:
    """Import the modules of the page, which takes a second, while something else is done."""
    from pipeline.report import charts, page  # noqa: F401

    charts.start_renderer()


def check_inputs(arguments: argparse.Namespace) -> Inputs:
    """Read the baseline and the configuration, and check the outputs. Raises UsageError."""
    from udfs.workers.process_setup import without_pandas

    with without_pandas():
        import pyarrow.dataset  # noqa: F401  # tables are opened by it

        from pipeline.audit import config
        from pipeline.report import baseline
    from udfs.source.capture_bytes import first_line, read_at_most

    outputs = {name: output_file(name) for name in (arguments.report, arguments.json) if name}
    previous = settings = None
    if arguments.baseline is not None:
        try:
            previous = baseline.read(read_at_most(arguments.baseline, baseline.BYTES).decode())
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--baseline {arguments.baseline}: cannot be read ({first_line(error)})") from error
        except baseline.BaselineError as error:
            raise UsageError(f"--baseline {arguments.baseline}: {error}") from error
    if arguments.config is not None:
        try:
            settings = config.read(arguments.config)
        except config.ConfigError as error:
            raise UsageError(f"--config {error}") from error
    if names := getattr(arguments, "rules", None):
        settings = only(settings or config.Config(), names)
    return Inputs(previous, settings, outputs)


def only(settings: Config, names: Sequence[str]) -> Config:
    """The configuration with all other rules disabled. Raises UsageError for a name that is no rule and no group."""
    from dataclasses import replace

    from pipeline.audit.catalogue import names_of, with_custom
    from udfs.source.options import meant

    rules = with_custom(rule for rule, _ in settings.rules)
    for name in names:
        if name not in names_of(rules):
            raise UsageError(f"--rules: there is no rule or group {name!r}{meant(name, sorted(names_of(rules)))}")
    groups = {rule.group for rule in rules.values()}
    of_groups = {rule.group for rule in rules.values() if {rule.id, rule.group} & {*names}}
    others = [rule.id for rule in rules.values() if rule.group in of_groups and not {rule.id, rule.group} & {*names}]
    return replace(settings, disabled=(*settings.disabled, *sorted(groups - of_groups), *others))


def report_of(source: Location, findings: Location | None, wanted: Inputs, arguments: argparse.Namespace) -> Written:
    """Count the tables of `source`, compare with the baseline, and make the page; nothing is written. `findings`: where
    the table is, if not beside the others. Raises TablesError if files cannot be read."""
    from pipeline.explore.duckdb_tables import QueryError, open_tables
    from pipeline.lake.lake_tables import Span
    from pipeline.output.location import TablesError
    from pipeline.report.baseline import compare
    from pipeline.report.facts import count, coverage_check, rules_of
    from pipeline.report.formats import FORMATS, Audit
    from pipeline.report.page import page
    from udfs.source.capture_bytes import first_line, public_uri

    now = datetime.now(UTC)
    sessions: list[Session] = []
    span = Span(getattr(arguments, "since", None), getattr(arguments, "until", None))

    def counted() -> Facts:
        try:
            with open_tables(arguments.tables, span=span, findings=findings) as session:
                sessions.append(session)
                return count(session)
        except QueryError as error:
            raise TablesError(f"{source.display_name}: cannot be counted ({first_line(error)})") from error

    with step("counting for the report", "Report counted"):
        facts = run_interruptibly(counted, sessions)
    rules, exceptions = rules_of(wanted.config), wanted.config.exceptions if wanted.config else ()
    difference = compare(facts.groups["identities"], wanted.previous, coverage_check(facts, rules, exceptions))
    uri = public_uri(arguments.tables)
    audit = Audit(facts, difference, arguments.fail_on, arguments.title, now, uri, wanted.config)
    with step("writing the report", "Report written"):
        files = {arguments.report: page(audit, source.display_name)}
        if arguments.json:
            files[arguments.json] = FORMATS["json"](audit)
    return Written(audit, files)


def write_report(
    written: Written, wanted: Inputs, arguments: argparse.Namespace, started: float, done: str = "Counted"
) -> int:
    """Write the files and print what matters most; return the exit code. `started`: of the job, from
    time.monotonic(); `done`: what it did."""
    from pipeline.report.cards import most_important
    from pipeline.report.formats import FORMATS

    audit = written.audit
    for name, text in written.files.items():
        write_text(wanted.outputs[name], text)
    print_line = print_result if arguments.format == "text" else print_status
    if arguments.format != "text":
        print(FORMATS[arguments.format](audit))
    print_line(f"{audit.verdict.sentence} {done} in {time.monotonic() - started:.1f} s.")
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
    from pipeline.output.formatting import plain_text, plural

    names = [plain_text(name, NAME_CHARACTERS) for name in [*card.names["application"], *card.names["things"]][:NAMES]]
    number = plural(card.findings, "finding")
    paragraphs = {
        f"  {card.rule_id:<8}": f"{card.summary} {number}{': ' if names else ''}{', '.join(names)}",
        " " * 10: card.happened(EVIDENCE_CHARACTERS),
        "       -> ": card.rule.remedy if card.rule else "",
    }
    return "\n".join(
        textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * 10)
        for head, text in paragraphs.items()
        if text
    )


def open_tables(directory: str) -> Location:
    """Where the tables are. Raises TablesError unless everything that an audit needs can be opened."""
    import pyarrow as pa

    from codec.tables import TABLES
    from pipeline.lake.layout import DamagedLakeError, LakeError
    from pipeline.lake.log import LATER_TABLES, Log
    from pipeline.lake.opening import is_lake, open_lake
    from pipeline.output.location import TablesError
    from udfs.source.capture_bytes import first_line

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
    missing = [name for name in TABLES if name not in (*entries, "message_flows", *LATER_TABLES)]
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
    run_standalone("jobs.report")
