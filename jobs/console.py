"""What a person sees: status lines on stderr while a job runs, tables on stdout when it is done.

On a terminal a step shows its seconds and how much of it is done; elsewhere (a log file, CI) each step is one line when
it ends. How much is done follows from Spark's tasks, which takes a classic session; over Connect only the seconds are
shown. A `quiet` run prints neither steps nor tables, only what went wrong.
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


class Loudness:
    """Whether only what went wrong is printed."""

    quiet = False


def quiet(wanted: bool) -> None:
    """Print only what went wrong from now on, or everything again."""
    Loudness.quiet = wanted


def complain(line: str) -> None:
    """One line on stderr about what went wrong."""
    print(line, file=sys.stderr, flush=True)


def note(line: str) -> None:
    """One line on stderr about what was done, unless the run is quiet."""
    if not Loudness.quiet:
        complain(line)


def say(text: str) -> None:
    """Results on stdout, unless the run is quiet."""
    if not Loudness.quiet:
        print(text)


class Status:
    """What is being done now; the body of a step may change it. `phases`: what each stage of Spark does to `byte_size`
    bytes of input, in order ('read', 'decoded'); the last one also for all stages that follow."""

    def __init__(self, doing: str, byte_size: int = 0, phases: Sequence[str] = ()) -> None:
        self.doing, self.byte_size, self.phases = doing, byte_size, phases
        self._seen: list[int] = []

    def done(self, spark: SparkSession | None) -> str:
        """How much of the running stages is done, as ', 40 MB of 100 MB read (40 %)' or ', 40 %'; empty when the
        session does not tell."""
        from pipeline.output.units import size  # not above: a word of help needs no Spark

        stages = running(spark)
        self._seen += sorted(stage for stage in stages if stage not in self._seen)
        tasks = sum(of for _, of in stages.values())
        if not tasks:
            return ""
        part = sum(completed for completed, _ in stages.values()) / tasks
        if not self.byte_size or not self.phases:
            return f", {part:.0%}".replace("%", " %")
        turn = min(self._seen.index(stage) for stage in stages)
        phase = self.phases[min(turn, len(self.phases) - 1)]
        amount = f"{size(int(part * self.byte_size))} of {size(self.byte_size)}"
        return f", {amount} {phase} ({part:.0%})".replace("%", " %")


@contextmanager
def step(
    doing: str, done: str, spark: SparkSession | None = None, byte_size: int = 0, phases: Sequence[str] = ()
) -> Iterator[Status]:
    """Show what is being done while the body runs, then `done` with its seconds; `byte_size`, `phases`: see Status."""
    status, started, over = Status(doing, byte_size, phases), time.monotonic(), threading.Event()
    thread = None
    if sys.stderr.isatty() and not Loudness.quiet:
        thread = threading.Thread(target=show, args=(status, started, over, spark), name="progress", daemon=True)
        thread.start()
    try:
        yield status
    finally:
        over.set()
        if thread is not None:
            thread.join()
    note(f"{done} in {time.monotonic() - started:.1f} s")


def show(status: Status, started: float, over: threading.Event, spark: SparkSession | None) -> None:
    """Redraw the status line until the step is over, then clear it."""
    while not over.wait(REFRESH_SECONDS):
        line = f"{status.doing} ... {time.monotonic() - started:.0f} s{status.done(spark)}"
        sys.stderr.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()


def running(spark: SparkSession | None) -> dict[int, tuple[int, int]]:
    """Active stages of Spark: (completed tasks, all tasks) by number; none when the session does not tell."""
    try:
        tracker = spark.sparkContext.statusTracker() if spark is not None else None
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()] if tracker else []
    except Exception:  # Connect has no context, a dying JVM no answer: a status line never fails the run
        return {}
    return {stage.stageId: (stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None}


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
