"""What a person sees: status lines on stderr while a job runs, tables on stdout when it is done.

On a terminal a step shows its tasks and its seconds as they pass; elsewhere (a log file, CI) each step is one line when
it ends. Counting tasks needs a classic session; over Connect only the seconds are shown.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFRESH_SECONDS = 0.25
LARGE = 10_000


def complain(line: str) -> None:
    """One line on stderr."""
    print(line, file=sys.stderr, flush=True)


class Status:
    """What is being done now; the body of a step may change it."""

    def __init__(self, doing: str) -> None:
        self.doing = doing


@contextmanager
def step(doing: str, done: str, spark: SparkSession | None = None) -> Iterator[Status]:
    """Show what is being done while the body runs, then `done` with its seconds."""
    status, started, over = Status(doing), time.monotonic(), threading.Event()
    thread = None
    if sys.stderr.isatty():
        thread = threading.Thread(target=show, args=(status, started, over, spark), name="progress", daemon=True)
        thread.start()
    try:
        yield status
    finally:
        over.set()
        if thread is not None:
            thread.join()
    complain(f"{done} in {time.monotonic() - started:.1f} s")


def show(status: Status, started: float, over: threading.Event, spark: SparkSession | None) -> None:
    """Redraw the status line until the step is over, then clear it."""
    while not over.wait(REFRESH_SECONDS):
        line = f"{status.doing} ... {time.monotonic() - started:.0f} s{tasks(spark)}"
        sys.stderr.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()


def tasks(spark: SparkSession | None) -> str:
    """How far the active stages are, as ', 3 of 8 tasks'; empty when the session does not tell."""
    try:
        tracker = spark.sparkContext.statusTracker() if spark is not None else None
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()] if tracker else []
    except Exception:  # Connect has no context, a dying JVM no answer: a status line never fails the run
        return ""
    running = [stage for stage in stages if stage is not None]
    if not running:
        return ""
    return f", {sum(stage.numCompletedTasks for stage in running)} of {sum(stage.numTasks for stage in running)} tasks"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A titled table of text: numbers to the right, everything else to the left. Nothing for no rows."""
    if not rows:
        return ""
    cells = [[text(value) for value in row] for row in rows]
    right = [all(isinstance(row[at], int | float | None) for row in rows) for at in range(len(columns))]
    widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(columns)]
    lines = [list(columns), ["-" * width for width in widths], *cells]
    body = (
        "  ".join(
            cell.rjust(width) if flush_right else cell.ljust(width)
            for cell, width, flush_right in zip(line, widths, right, strict=True)
        )
        for line in lines
    )
    return "\n".join([title, *(f"  {line}".rstrip() for line in body), ""])


def text(value: object) -> str:
    """A cell as people read it: nothing for null, thousands apart, times in UTC."""
    if value is None:
        return ""
    if isinstance(value, int) and abs(value) >= LARGE:
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if value.tzinfo else f"{value:%Y-%m-%d %H:%M:%S}"
    return "".join(character if character.isprintable() else "." for character in str(value))
