"""Figures: the machine they were taken on, those of a decode as a whole process, and a straight line through them."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import linear_regression

from benchmarks.processes import DRIVER, JVM, MEGA, WORKER, peaks

GIGA = 10**9
Points = list[tuple[float, float]]  # (GB, cost)
ROOT = Path(__file__).parent.parent
PACKAGES = ("pyspark", "pyarrow", "numpy", "numba", "scapy")


def first_line(*command: str) -> str | None:
    """What a command prints first; None where it is not there or fails."""
    if shutil.which(command[0]) is None:
        return None
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = (ran.stdout or ran.stderr).splitlines()
    return lines[0] if lines and not ran.returncode else None


def proc_value(path: str, name: str) -> str | None:
    """The first value of a name in a file of /proc."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def machine() -> dict[str, object]:
    """Processor, memory, system, versions; what is not known is None."""
    memory = proc_value("/proc/meminfo", "MemTotal")
    return {
        "processor": proc_value("/proc/cpuinfo", "model name") or platform.processor() or None,
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory.split()[0]) * 1024 / 1e9, 1) if memory else None,
        "system": platform.platform(),
        "load": os.getloadavg()[0],  # of the minute before: what else ran
        "python": platform.python_version(),
        "java": first_line("java", "--version"),
        "tshark": first_line("tshark", "--version"),
        "wirehare": first_line("git", "describe", "--always", "--dirty"),
        **{name: version(name) for name in PACKAGES},
    }


def machine_line(known: dict[str, object]) -> str:
    """One line for people."""
    tshark = str(known["tshark"] or "no TShark").split(" (Git")[0]  # the rest of its line is where it was built
    return (
        f"{known['processor']}, {known['cores']} cores, {known['memory_gb']} GB; Python {known['python']}, "
        f"pyspark {known['pyspark']}, {tshark}, wirehare {known['wirehare']}; load before: {known['load']:.1f}"
    )


def save(path: Path, **figures: object) -> None:
    """Write figures as JSON."""
    path.write_text(json.dumps(figures, indent=1) + "\n")


@dataclass(frozen=True)
class Line:
    """fixed + per_gb * GB."""

    fixed: float
    per_gb: float

    @staticmethod
    def through(points: Points) -> Line:
        """The least squares line through two points or more."""
        per_gb, fixed = linear_regression(*zip(*points, strict=True))
        return Line(fixed, per_gb)

    def of(self, gb: float) -> float:
        return self.fixed + self.per_gb * gb

    def deviation(self, points: Points) -> float:
        """The largest distance of a point from the line, as a share of the line."""
        return max(abs(cost - self.of(gb)) / self.of(gb) for gb, cost in points)


@dataclass(frozen=True)
class Point:
    """One decode: bytes of the capture, seconds by the clock and of the processors, peak bytes by kind of process."""

    bytes: int
    seconds: float
    processor: float
    peaks: dict[str, int]

    def peak_columns(self) -> str:
        """Peaks of a Python worker, the JVM and the driver in MB, each nine characters wide."""
        sizes = [self.peaks.get(kind) for kind in (WORKER, JVM, DRIVER)]
        return "".join(f"{size / MEGA:9,.0f}" if size else " " * 9 for size in sizes)


def decode(path: Path, output: Path, environment: Mapping[str, str] | None = None) -> Point:
    """Figures of a `wirehare decode` of the capture, with additional environment variables. Raises
    CalledProcessError."""
    command = [sys.executable, "-m", "jobs.cli", "decode", str(path), "--output", str(output), "--overwrite"]
    started = time.perf_counter()
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
    with peaks(job.pid) as found:
        code = job.wait()
    if code:
        raise subprocess.CalledProcessError(code, command)
    seconds = time.perf_counter() - started
    return Point(path.stat().st_size, seconds, found.processor, found.highest())
