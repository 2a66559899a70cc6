"""A timeline of a job on small captures, from the command to the prompt.

    python -m benchmarks.start                  (`wirehare decode samples`)
    python -m benchmarks.start --job nightly --runs 3 CAPTURE...

It runs the job as a user does and observes its processes from outside: begin, end and processor time of each, with the
lines that the job prints and the Spark jobs of its event log, all in seconds since the command. The wall clock depends
on other work on the machine; processor time hardly does. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from benchmarks.eventlog import events, settings
from benchmarks.processes import DRIVER, JVM, TICK, command_line, family, kind, repeatedly, stat

LOOK_S = 0.02
DAEMON = "pyspark.daemon"


class Moment(NamedTuple):
    """An event, or what lasted from `begin` to `end`: seconds since the command."""

    begin: float
    end: float
    what: str
    processor: float | None = None


@dataclass
class Process:
    """An observed process: begin and end (of time.time), and processor seconds."""

    parent: int
    command: str
    began: float
    ended: float = 0.0
    processor: float = 0.0


@dataclass
class Timeline:
    """The timeline of a run of a job."""

    seconds: float
    processes: list[Moment]
    lines: list[Moment]
    jobs: list[Moment]
    processor: dict[str, float] = field(default_factory=dict)

    def moments(self) -> list[Moment]:
        """All moments, in the order of their begin."""
        return sorted([*self.processes, *self.lines, *self.jobs])


def boot_time() -> float:
    """The time of the first tick of this machine."""
    return time.time() - float(Path("/proc/uptime").read_text().split()[0])


class Watch:
    """Observes the processes below `pid`."""

    def __init__(self, pid: int) -> None:
        self.pid, self.seen = pid, dict[int, Process]()
        self._boot = boot_time()

    def look(self) -> None:
        for pid in {*family(self.pid), *self.seen}:  # a JVM outlives its driver
            with contextlib.suppress(OSError):
                self._look(pid)

    def _look(self, pid: int) -> None:
        fields = stat(pid)
        if fields[0] == "Z":
            return
        if pid not in self.seen:
            self.seen[pid] = Process(int(fields[1]), "", self._boot + int(fields[19]) / TICK)
        process = self.seen[pid]
        process.command = command_line(pid) or process.command  # a fork runs another program a moment later
        process.ended, process.processor = time.time(), sum(map(int, fields[11:13])) / TICK

    def processor(self) -> float:
        """Processor seconds of all processes so far."""
        return sum(process.processor for process in list(self.seen.values()))

    def named(self, pid: int) -> str:
        """The kind of a process, and the purpose of Spark's Python processes."""
        process = self.seen[pid]
        words = process.command.split()
        if DAEMON in words:
            purpose = next((word for word in words if word.startswith("pyspark") and word != DAEMON), "pyspark.worker")
            above = self.seen.get(process.parent)
            of_daemon = above is not None and DAEMON in above.command.split()
            return f"{'Python worker' if of_daemon else 'Python daemon'} ({purpose.rpartition('.')[2]})"
        found = kind(process.command)
        return found if found in (DRIVER, JVM) else words[0].rpartition("/")[2] if words else "?"


def spark_jobs(log: Path, started: float) -> list[Moment]:
    """The Spark jobs of an event log, by the code that started them."""
    begun: dict[int, tuple[float, str]] = {}
    found = []
    for name, event in events(log):
        if name == "SparkListenerJobStart":
            infos = event["Stage Infos"]
            tasks = sum(info["Number of Tasks"] for info in infos)
            what = infos[-1]["Stage Name"] if infos else "no stage"
            begun[event["Job ID"]] = event["Submission Time"] / 1000, f"{what}, {tasks} tasks"
        elif name == "SparkListenerJobEnd":
            begin, what = begun[event["Job ID"]]
            end = event["Completion Time"] / 1000
            found.append(Moment(begin - started, end - started, f"Spark job {event['Job ID']}: {what}"))
    return found


def printed(stream: IO[str], started: float, watch: Watch) -> list[Moment]:
    """The lines that a job prints, with their times, and the processor time of all processes by then."""
    lines = []
    for line in stream:
        at = time.time() - started
        lines.append(Moment(at, at, f"> {line.rstrip()} (so far)", watch.processor()))
    return lines


def timeline(job: str, captures: list[str], directory: Path) -> Timeline:
    """Run a job on captures, with output in `directory`. Raises CalledProcessError when it fails."""
    log = directory / "log"
    command = [sys.executable, "-m", "jobs.cli", job, *captures, "--output", str(directory / "tables")]
    if job == "nightly":
        command += ["--report", str(directory / "report.html"), "--fail-on", "never"]
    # Not a directory of settings: it would be on the class path, and the class archive not be used.
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": " ".join([*settings(log), "pyspark-shell"])}
    started = time.time()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as ran:
        watch = Watch(ran.pid)
        assert ran.stderr is not None
        with repeatedly(watch.look, LOOK_S):
            printed_lines = printed(ran.stderr, started, watch)
            code = ran.wait()
            seconds = time.time() - started
    if code:
        raise subprocess.CalledProcessError(code, command, stderr="\n".join(line.what for line in printed_lines))
    processes, processor = [], dict[str, float]()
    for pid, process in watch.seen.items():
        name = watch.named(pid)
        processes.append(Moment(process.began - started, process.ended - started, name, process.processor))
        processor[name] = processor.get(name, 0) + process.processor
    return Timeline(seconds, processes, printed_lines, spark_jobs(log, started), processor)


def report(found: Timeline) -> str:
    """The timeline, and who took the processor time, as text."""
    lines = ["   begin     end  CPU s"]
    for begin, end, what, processor in found.moments():
        until = "" if end == begin else f"{end:.2f}"
        lines.append(f"{begin:8.2f}{until:>8}{'' if processor is None else f'{processor:.2f}':>7}  {what}")
    lines += ["", f"{found.seconds:.1f} s, {sum(found.processor.values()):.1f} processor seconds, of these"]
    by_share = sorted(found.processor.items(), key=lambda item: -item[1])
    lines += [f"{seconds:8.2f}  {name}" for name, seconds in by_share]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", metavar="CAPTURE", nargs="*", default=["samples"])
    parser.add_argument("--job", choices=("decode", "nightly"), default="decode")
    parser.add_argument("--runs", type=int, default=1, help="times; the last is shown, and all figures")
    arguments = parser.parse_args()
    figures = []
    for _ in range(arguments.runs):
        with tempfile.TemporaryDirectory() as directory:
            found = timeline(arguments.job, arguments.captures, Path(directory))
        figures.append(f"{found.seconds:.1f} s, {sum(found.processor.values()):.1f} processor seconds")
    print(report(found), *figures[:-1], sep="\n")


if __name__ == "__main__":
    main()
