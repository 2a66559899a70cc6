"""What people see: text tables, units, status lines."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from audit_support import write_tables

from codec.tables import TABLES
from jobs.terminal import console, summary
from jobs.terminal.running import FAILED, ExitStatuses, cause, outcome
from pipeline.explore.duckdb_tables import open_tables
from pipeline.output import formatting as text
from udfs.workers import progress

ROOT = Path(__file__).parents[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_aligns_numbers_right_and_text_left() -> None:
    rows = [("a.pcap", 7, None), ("longer.pcap", 12345, "damaged")]
    assert console.table("Captures: 2", ("file", "packets", "remarks"), rows).splitlines() == [
        "Captures: 2",
        "  file         packets  remarks",
        "  -----------  -------  -------",
        "  a.pcap             7",
        "  longer.pcap   12,345  damaged",
    ]


def test_no_rows_are_no_table() -> None:
    assert console.table("Connections: 0", ("client",), []) == ""


def test_text_from_the_wire_cannot_control_the_terminal() -> None:
    assert console.text("\x1b[2Jqueue\r\n") == ".[2Jqueue.."


def test_times_are_shown_in_utc_to_the_second() -> None:
    assert console.text(datetime(2026, 1, 31, 8, 0, 59, 999_999, tzinfo=UTC)) == "2026-01-31 08:00:59"


@pytest.mark.parametrize(
    ("data", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (5 * 1024**3, "5.0 GB"), (3 * 1024**4, "3.0 TB")],
)
def test_sizes(data: int, expected: str) -> None:
    assert text.size(data) == expected


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [
        *((None, None), (999, "999 ns"), (1_500, "1.5 us"), (2_000_000, "2.0 ms"), (90_000_000_000, "90.0 s")),
        (2_991_500_000_000, "49.9 min"),  # 2991.5 / 60 = 49.86
        (36_000_000_000_000, "10.0 h"),
        (577_190_700_000_000, "6.7 days"),  # 577190.7 / 86400 = 6.68
    ],
)
def test_durations(nanoseconds: int | None, expected: str | None) -> None:
    assert text.duration(nanoseconds) == expected


def test_a_step_is_one_line_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with console.step("decoding 2 captures", "2 captures decoded"):
        pass
    out, err = capsys.readouterr()
    assert (out, re.sub(r"\d\.\d", "0.0", err)) == ("", "2 captures decoded in 0.0 s\n")


def test_a_long_step_is_never_silent_in_a_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.02)
    with console.step("decoding 2 captures", "2 captures decoded") as status:
        status.part = 0.5
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2
    assert lines[0] == "decoding 2 captures ... 0 s, 50 %"


@pytest.mark.parametrize(
    ("part", "seconds", "expected"),
    [
        (0.01, 60, ""),  # a hundredth says nothing yet
        (0.25, 20, ", about 60 s left"),  # a quarter in 20 s: three quarters in 60 s
        (0.1, 60, ", about 9 min left"),  # 540 s
        (1, 60, ""),
    ],
)
def test_how_long_a_step_will_take(part: float, seconds: float, expected: str) -> None:
    assert progress.time_left(part, seconds) == expected


def test_a_step_that_fails_does_not_say_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="full"), console.step("decoding", "decoded"):
        raise OSError("full")
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_a_step_shows_itself_and_clears_up(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.01)
    with console.step("decoding 2 captures", "2 captures decoded"):
        time.sleep(0.1)
    output = terminal.getvalue()
    assert "\r\x1b[Kdecoding 2 captures ... 0 s" in output
    assert re.fullmatch(r".*\r\x1b\[K2 captures decoded in \d+\.\d s\n", output, re.DOTALL)


JAVA_CHAIN = r"""An error occurred while calling o1.parquet.
: org.apache.spark.SparkException: Job aborted
    at org.apache.Writer.write(Writer.scala:1)
Caused by: java.io.IOException: No space left on device
    at a.b
"""
PYTHON_WITHIN_JAVA = r"""[PYTHON_DATA_SOURCE_ERROR] it failed: Traceback (most recent call last):
  File "x.py", line 1
ValueError: no such thing

    at org.apache.spark.api.python.Runner.read(Runner.scala:1)
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("disk full", "disk full"),
        ("", "Exception"),
        (JAVA_CHAIN, "No space left on device, for the output or for temporary files (SPARK_LOCAL_DIRS, TMPDIR)"),
        (PYTHON_WITHIN_JAVA, "ValueError: no such thing"),
    ],
)
def test_an_error_is_described_by_its_root_cause(message: str, expected: str) -> None:
    assert cause(Exception(message)) == expected


def test_an_error_ends_a_job_by_its_nearest_class() -> None:
    exit_statuses: ExitStatuses = {"OSError": (3, ""), "FileNotFoundError": (2, "; look elsewhere")}
    assert outcome(FileNotFoundError("gone"), exit_statuses) == (2, "gone; look elsewhere")
    assert outcome(PermissionError("locked"), exit_statuses) == (3, "locked")
    assert outcome(RuntimeError("one\ntwo"), exit_statuses) == (FAILED, "one")


@pytest.mark.parametrize(
    ("argv", "unbuffered", "unheard"),
    [
        (["schema", "--markdown"], "", "stdout"),  # noticed when the buffer is flushed at the end
        (["schema", "--markdown"], "1", "stdout"),
        (["cut", "nowhere", "--connection", "1", "--output", "o"], "", "stderr"),  # a complaint: 2>&1 | head
    ],
)
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(argv: list[str], unbuffered: str, unheard: str) -> None:
    """As `| head` does it to any program: 141 is what a shell says of one that SIGPIPE ended (POSIX: 128 + 13)."""
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *argv],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=writer if unheard == "stdout" else subprocess.PIPE,
        stderr=writer if unheard == "stderr" else subprocess.PIPE,
    )
    os.close(writer)
    assert (run.returncode, run.stdout or b"", run.stderr or b"") == (141, b"", b"")


class Tracker:
    """Stages as Spark's status tracker tells of them: number -> (completed tasks, all)."""

    def __init__(self, stages: dict[int, tuple[int, int]]) -> None:
        self.stages = stages
        self.sparkContext = self

    def statusTracker(self) -> Tracker:
        return self

    def getActiveStageIds(self) -> list[int]:
        return list(self.stages)

    def getStageInfo(self, stage: int) -> Any:
        completed, every = self.stages[stage]
        return SimpleNamespace(stageId=stage, numCompletedTasks=completed, numTasks=every)


def test_progress_is_in_bytes_and_per_cent() -> None:
    """The first stage of a step reads, the next one decodes, whatever their numbers are."""
    status, spark = console.Status("decoding", 10 * 1024**2, ("read", "decoded")), Tracker({})
    assert status.progress(spark, 0) == ""  # type: ignore[arg-type]
    spark.stages = {7: (1, 4)}
    assert status.progress(spark, 1) == ", 2.5 MB of 10.0 MB read (25 %)"  # type: ignore[arg-type]
    spark.stages = {8: (1, 2)}
    assert status.progress(spark, 2) == ", 5.0 MB of 10.0 MB decoded (50 %)"  # type: ignore[arg-type]
    spark.stages = {9: (2, 2)}
    assert status.progress(spark, 3) == ", 10.0 MB of 10.0 MB decoded (100 %)"  # type: ignore[arg-type]


def test_the_time_left_follows_from_the_last_part_that_was_done() -> None:
    """Of a phase: reading takes less time than decoding."""
    status, spark = console.Status("decoding", 10 * 1024**2, ("read", "decoded")), Tracker({1: (1, 2)})
    displayed = []
    for seconds, stages in ((1, {1: (1, 2)}), (2, {2: (0, 4)}), (12, {2: (1, 4)}), (22, {2: (1, 4)}), (60, {})):
        spark.stages = stages
        displayed.append(status.line(seconds, spark).partition(" s")[2])  # type: ignore[arg-type]
    assert displayed == [
        ", 5.0 MB of 10.0 MB read (50 %)",
        ", 0 B of 10.0 MB decoded (0 %)",
        ", 2.5 MB of 10.0 MB decoded (25 %), about 30 s left",
        ", 2.5 MB of 10.0 MB decoded (25 %), about 20 s left",
        "",
    ]


def test_progress_of_a_step_without_bytes_is_in_per_cent() -> None:
    assert console.Status("writing tables").progress(Tracker({3: (1, 3), 4: (2, 3)}), 1) == ", 50 %"  # type: ignore[arg-type]


def test_a_spark_session_without_progress_is_no_failure() -> None:
    assert console.Status("decoding", 5, ("read",)).progress(None, 1) == ""
    assert console.Status("decoding", 5, ("read",)).progress(object(), 1) == ""  # type: ignore[arg-type]


@pytest.fixture
def quiet() -> Iterator[None]:
    console.set_quiet(True)
    yield
    console.set_quiet(False)


@pytest.mark.usefixtures("quiet")
def test_a_quiet_run_prints_only_errors(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with console.step("decoding 2 captures", "2 captures decoded"):
        pass
    console.print_result("a table")
    console.print_status("52 packets written")
    console.print_error("a.pcap: damaged")
    assert capsys.readouterr() == ("", "a.pcap: damaged\n")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.001)
    with console.step("decoding 2 captures", "2 captures decoded"):
        time.sleep(0.02)
    assert terminal.getvalue() == ""


INEQUIVALENT = (
    "PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{}' in vhost '/': "
    "received 'true' but current is 'false'"
)


def test_texts_with_a_common_beginning_stay_distinguishable() -> None:
    """All of RabbitMQ's texts about inequivalent arguments share their first 61 characters and more."""
    texts = [INEQUIVALENT.format(queue) for queue in ("orders.eu.invoices", "orders.us.invoices", "x")]
    shortened = summary.distinguishable([*texts, "y" * 300, "NOT_FOUND - no queue 'missing' in vhost '/'", None])
    assert len(set(shortened)) == 6
    assert max(map(len, shortened)) <= summary.TEXT_WIDTH
    assert "orders.eu" in shortened[0]
    assert "orders.us" in shortened[1]
    assert shortened[3:] == ["y" * 57 + "...", "NOT_FOUND - no queue 'missing' in vhost '/'", ""]


@pytest.mark.parametrize("shared", [0, 30, 45, 50, 57, 60, 200])
@pytest.mark.parametrize("rest", [1, 5, 100])
def test_texts_with_a_long_common_part_stay_distinguishable(shared: int, rest: int) -> None:
    one, other = ("s" * shared + letter * rest for letter in "ab")
    shortened = summary.distinguishable([one, other, one])
    assert shortened[0] == shortened[2] != shortened[1]
    assert max(map(len, shortened)) <= summary.TEXT_WIDTH


def test_columns_in_which_nothing_is_are_left_out() -> None:
    columns = {"a": itemgetter("a"), "b": itemgetter("b"), "c": itemgetter("c")}
    rows: list[dict[str, Any]] = [{"a": 1, "b": None, "c": 0}, {"a": None, "b": "", "c": 0}]
    assert summary.listed("t", columns, rows).splitlines()[1].split() == ["a", "c"]
    assert summary.listed("t", columns, []) == ""


@pytest.mark.parametrize(
    ("state", "tcp_end", "by", "text"),
    [
        ("closed", "fin", "client", "closed"),
        ("closed", "rst", "server", "closed"),
        ("open", "rst", "server", "open, reset by server"),
        ("start", "fin", "client", "start, ended by client"),
        ("open", "fin", None, "open, ended"),
        ("open", "none", None, "open"),
        ("open", None, None, "open"),
    ],
)
def test_the_state_of_a_dead_connection_says_how_it_died(state: str, tcp_end: str, by: str | None, text: str) -> None:
    assert summary.state_text({"state": state, "tcp_end": tcp_end, "tcp_end_by": by}) == text


def test_errors_of_links_say_who_ended_them(tmp_path: Path) -> None:
    """Both peers detach one link, the server first; a consumer is cancelled; of one link no detach was captured."""
    error, other = (
        {"condition": "amqp:not-found", "description": "no node q"},
        {"condition": "amqp:session:errant-link"},
    )
    same = {"connection_id": 1, "channel": 0, "name": "detach"}
    tables: dict[str, list[dict[str, Any]]] = {
        "links": [
            {"connection_id": 1, "channel": 0, "error": "amqp:not-found: no node q"},
            {"connection_id": 1, "channel": 0, "error": "amqp:session:errant-link"},
            {"connection_id": 2, "channel": 0, "error": "amqp:not-found: no node q"},
            *({"connection_id": 3, "channel": channel, "error": "basic.cancel by the server"} for channel in (1, 2)),
            {"connection_id": 4, "channel": 0},
        ],
        "methods": [
            {**same, "frame_no": 8, "sender": "client", "arguments": {"error": error}},
            {**same, "frame_no": 7, "sender": "server", "arguments": {"error": error}},
            {**same, "frame_no": 9, "sender": "client", "arguments": {"error": other}},
            {**same, "frame_no": 10, "sender": "server", "arguments": {"handle": 0}},
        ],
    }  # fmt: skip
    with open_tables(str(write_tables(tmp_path, tables))) as session:
        found = summary.summarize([], session, TABLES)["closed_with_error"]
    assert [(row["times"], row["closed"], row["by"], row["text"]) for row in found] == [
        (2, "link", "server", "basic.cancel by the server"),
        (1, "link", None, "amqp:not-found: no node q"),
        (1, "link", "server", "amqp:not-found: no node q"),
        (1, "link", "client", "amqp:session:errant-link"),
    ]
