"""Time and memory against the size of a capture: `python -m benchmarks.growth --mb 250 500 1000 2000 4000`.

`wirehare decode` runs as a process of its own on a generated capture of each size, all tables included. Printed are its
seconds, the straight line through them (least squares) with the largest distance of a measurement from it in percent,
and the highest resident set of any process of each kind. One connection that holds all bytes is the hard case for
memory: it is decoded by one worker, which must not hold more of it when there is more of it. Many short ones are the
hard case for what is kept for each connection. The figures are also written as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.generate import generate
from benchmarks.line import GIGA, Line
from benchmarks.machine import machine, shown
from benchmarks.processes import DRIVER, JVM, MEGA, WORKER, peaks
from benchmarks.profiles import PROFILES

SIZES = (250.0, 500.0, 1000.0, 2000.0, 4000.0)


@dataclass(frozen=True)
class Point:
    """One decode: bytes of the capture, seconds by the clock and of the processors, peak bytes by kind of process."""

    bytes: int
    seconds: float
    processor: float
    peaks: dict[str, int]


def decode(path: Path, output: Path, environment: Mapping[str, str] | None = None) -> Point:
    """Figures of a `wirehare decode` of the capture, with these variables beside those of this process; raises
    CalledProcessError when it fails."""
    command = [sys.executable, "-m", "jobs.cli", "decode", str(path), "--output", str(output), "--overwrite"]
    started = time.perf_counter()
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
    with peaks(job.pid) as found:
        code = job.wait()
    if code:
        raise subprocess.CalledProcessError(code, command)
    seconds = time.perf_counter() - started
    return Point(path.stat().st_size, seconds, found.processor, found.highest())


def row(point: Point) -> str:
    sizes = [point.peaks.get(kind) for kind in (WORKER, JVM, DRIVER)]
    cells = "".join(f"{size / MEGA:9,.0f}" if size else " " * 9 for size in sizes)
    return f"{point.bytes / MEGA:10,.0f}{point.seconds:10.1f}{point.processor:11.1f}{cells}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="Time and memory against size.")
    parser.add_argument("--mb", type=float, nargs="+", default=list(SIZES), help="sizes in 10**6 bytes (250 to 4000)")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=["many", "one"], help="kinds of traffic")
    parser.add_argument("--json", type=Path, default=Path("growth.json"), help="where to (default growth.json)")
    parser.add_argument("--directory", type=Path, help="where captures and tables stand meanwhile (default: temporary)")
    chosen = parser.parse_args()
    known = machine()
    print(shown(known))
    found: dict[str, dict[str, object]] = {}
    for name in chosen.profiles:
        print(f"\n{name}: {PROFILES[name].what}")
        print(f"{'MB':>10}{'seconds':>10}{'processor':>11}{'worker':>9}{'JVM':>9}{'driver':>9}")
        points = []
        for size in sorted(chosen.mb):
            with tempfile.TemporaryDirectory(dir=chosen.directory) as work:
                path = Path(work) / "capture.pcap"
                generate(path, int(size * MEGA), profile=PROFILES[name])
                points.append(decode(path, Path(work) / "tables"))
                shutil.rmtree(Path(work) / "tables")
            print(row(points[-1]), flush=True)
        found[name] = {"points": [asdict(point) for point in points]}
        if len(points) > 1:
            seconds = [(point.bytes / GIGA, point.seconds) for point in points]
            line = Line.through(seconds)
            deviation = line.deviation(seconds)
            print(f"{line.fixed:.1f} s and {line.per_gb:.1f} s a GB; furthest from it: {deviation:.0%}")
            found[name]["line"] = asdict(line) | {"deviation": deviation}
    chosen.json.write_text(json.dumps({"machine": known, "profiles": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
