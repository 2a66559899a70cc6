"""Time and memory against the size of a capture: `python -m benchmarks.growth --mb 250 500 1000 2000 4000`.

`wirehare decode` runs in its own process on a generated capture of each size, with all tables. Prints its seconds, the
straight line through them (least squares) with the largest deviation in percent, and the highest resident set by kind
of process. A single connection is the hard case for memory: one worker decodes it, and its memory must not grow with
it. Many short ones are the hard case for memory per connection. The figures are also written as JSON.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.figures import GIGA, Line, Point, decode, machine, machine_line, save
from benchmarks.generate import generate
from benchmarks.processes import MEGA
from benchmarks.profiles import PROFILES

SIZES = (250.0, 500.0, 1000.0, 2000.0, 4000.0)


def row(point: Point) -> str:
    return f"{point.bytes / MEGA:10,.0f}{point.seconds:10.1f}{point.processor:11.1f}{point.peak_columns()}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="Time and memory against size.")
    parser.add_argument("--mb", type=float, nargs="+", default=list(SIZES), help="sizes in 10**6 bytes (250 to 4000)")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=["many", "one"], help="kinds of traffic")
    parser.add_argument("--json", type=Path, default=Path("growth.json"), help="where to (default growth.json)")
    parser.add_argument("--directory", type=Path, help="for captures and tables (default: a temporary one)")
    selected = parser.parse_args()
    known = machine()
    print(machine_line(known))
    found: dict[str, dict[str, object]] = {}
    for name in selected.profiles:
        print(f"\n{name}: {PROFILES[name].what}")
        print(f"{'MB':>10}{'seconds':>10}{'processor':>11}{'worker':>9}{'JVM':>9}{'driver':>9}")
        points = []
        for size in sorted(selected.mb):
            with tempfile.TemporaryDirectory(dir=selected.directory) as work:
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
    save(selected.json, machine=known, profiles=found)


if __name__ == "__main__":
    main()
