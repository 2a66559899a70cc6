"""Console output: status lines on stderr while a job runs, tables on stdout when it is done.

On a terminal a step shows its elapsed seconds and its progress; elsewhere (a log file, CI) each step prints one line
every ten seconds, and one when it ends. Progress is read from Spark's task counts, which needs a classic session; over
Connect only the seconds are shown. A quiet run prints errors only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from udfs.workers.progress import progress_line, time_left

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.run.local_processes import LocalProcesses

LARGE = 10_000


class Verbosity:
    """Whether only errors are printed."""

    quiet = False


def set_quiet(wanted: bool) -> None:
    """Print errors only, or everything again."""
    Verbosity.quiet = wanted


def print_error(text: str) -> None:
    """Print an error to stderr. It may quote names from the wire: control characters are escaped."""
    printable = (c if c.isprintable() or c in "\t\n" else repr(c)[1:-1] for c in text)
    print("".join(printable), file=sys.stderr, flush=True)


def print_status(text: str) -> None:
    """Print a status line to stderr, unless the run is quiet."""
    if not Verbosity.quiet:
        print_error(text)


def print_result(text: str) -> None:
    """Print results to stdout, unless the run is quiet; at once, also into a file or a pipe."""
    if not Verbosity.quiet:
        print(text, flush=True)


class Status:
    """The current step; its body may change `doing`. `phases`: what each Spark stage does to `byte_size` bytes of
    input, in order ('read', 'decoded'); the last phase also covers all later stages."""

    def __init__(self, doing: str, byte_size: int = 0, phases: Sequence[str] = ()) -> None:
        self.doing, self.byte_size, self.phases = doing, byte_size, phases
        self.part: float | None = None  # of the work that is done, where the body knows
        self._seen: list[int] = []
        self._phase, self._began = 0, 0.0  # the current phase, and after how many seconds it began
        self._reached, self._reached_after = 0.0, 0.0  # the part of it that was last seen to be done, and when

    def line(self, seconds: float, spark: SparkSession | LocalProcesses | None) -> str:
        """What is done, after how many seconds, how much of it, and how long it will take."""
        if self.part is None:
            done = self.progress(spark, seconds)
        else:
            done = f", {self.part:.0%}".replace("%", " %") + time_left(self.part, seconds)
        compiled = getattr(spark, "compiled_kernels", None)  # while others are interpreted
        beside = "" if compiled is None else f"; {compiled:,} kernels compiled so far"
        return f"{self.doing} ... {seconds:.0f} s{done}{beside}"

    def progress(self, spark: SparkSession | LocalProcesses | None, seconds: float) -> str:
        """Progress of the running stages, as ', 40 MB of 100 MB read (40 %), about 3 s left' or ', 40 %'; empty if
        unknown."""
        from pipeline.output.formatting import size  # not above: --help needs no Spark

        stages = active_stages(spark)
        self._seen += sorted(stage for stage in stages if stage not in self._seen)
        tasks = sum(of for _, of in stages.values())
        if not tasks:
            return ""
        part = sum(completed for completed, _ in stages.values()) / tasks
        turn = min(self._seen.index(stage) for stage in stages)
        if turn != self._phase:
            self._phase, self._began, self._reached = turn, seconds, 0.0
        if part != self._reached:
            self._reached, self._reached_after = part, seconds
        left = time_left(part, self._reached_after - self._began, seconds - self._reached_after)
        if not self.byte_size or not self.phases or getattr(spark, "compiled_kernels", None) is not None:
            return f", {part:.0%}{left}".replace("%", " %")
        phase = self.phases[min(turn, len(self.phases) - 1)]
        amount = f"{size(int(part * self.byte_size))} of {size(self.byte_size)}"
        return f", {amount} {phase} ({part:.0%}){left}".replace("%", " %")


@contextmanager
def step(
    doing: str,
    done: str,
    spark: SparkSession | LocalProcesses | None = None,
    phases: Sequence[str] = (),
    byte_size: int = 0,
) -> Iterator[Status]:
    """Show `doing` while the body runs, then `done`, if it is not empty, with the elapsed seconds; `byte_size`,
    `phases`: see Status."""
    status, started = Status(doing, byte_size, phases), time.monotonic()
    with nullcontext() if Verbosity.quiet else progress_line(lambda seconds: status.line(seconds, spark)):
        yield status
    if done:
        print_status(f"{done} in {time.monotonic() - started:.1f} s")


def active_stages(spark: SparkSession | LocalProcesses | None) -> dict[int, tuple[int, int]]:
    """Active stages: number -> (completed tasks, all tasks); empty if the session does not provide them."""
    from pipeline.run.local_processes import LocalProcesses  # not above: --help needs no Spark

    if spark is None:
        return {}
    if isinstance(spark, LocalProcesses):
        return spark.stages
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:  # Connect has no SparkContext, a dying JVM does not answer: a status line never fails the run
        return {}
    return {stage.stageId: (stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A titled text table: numbers flush right, everything else flush left. Empty for no rows."""
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
    """A cell as text: empty for null, numbers with thousands separators, times in UTC."""
    if value is None:
        return ""
    if isinstance(value, int) and abs(value) >= LARGE:
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if value.tzinfo else f"{value:%Y-%m-%d %H:%M:%S}"
    return "".join(character if character.isprintable() else "." for character in str(value))
