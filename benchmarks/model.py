"""A model of the time that a decode takes, measured, and what it predicts: `python -m benchmarks.model --mb 250 1000`.

`spark-submit jobs/decode.py` runs on generated captures of two sizes, with Spark's event log. The difference is
the cost of a GB, by stage; the rest is the cost of each run. Seconds are those in which tasks occupied a core: a
cluster divides them by its busy cores. The driver's own time (start, planning, the walk over record headers of files
that it splits) is not divided. Prints the model and its prediction for `--daily-gb` in files of `--file-mb` on
`--executors` of `--cores` each; docs/performance.md has the assumptions. The figures are also written as JSON.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.eventlog import settings, stages
from benchmarks.figures import GIGA, Line, machine, machine_line, save
from benchmarks.generate import generate
from benchmarks.processes import MEGA
from benchmarks.profiles import PROFILES
from codec.compiler.limits import LIMITS
from jobs import decode

MEASURES = ("seconds", "jvm", "python", "gc", "shuffle_written", "spilled", "written")
STEPS = ("read", "decode", "derive")
DAY_S = 24 * 3600


@dataclass(frozen=True)
class Run:
    """One decode. gb: of the capture; seconds: of the whole process; walk: of the driver over the record headers;
    steps: 'part table' -> measure -> what it came to; files, tables: number and bytes of what was written."""

    gb: float
    seconds: float
    walk: float
    steps: dict[str, dict[str, float]]
    files: int
    tables: int


def run(path: Path, work: Path) -> Run:
    """Decode the capture and measure it. Raises CalledProcessError."""
    log, output = work / "log", work / "tables"
    submit = Path(sys.executable).with_name("spark-submit")
    command = [str(submit), *settings(log), decode.__file__, str(path), "--output", str(output)]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    started = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - started
    steps: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(MEASURES, 0.0))
    for stage in stages(log):
        for measure in MEASURES:
            steps[f"{stage.part} {stage.table}"][measure] += getattr(stage, measure)
    written = list(output.rglob("*.parquet"))
    size = sum(file.stat().st_size for file in written)
    return Run(path.stat().st_size / GIGA, seconds, walk(path), dict(steps), len(written), size)


def walk(path: Path) -> float:
    """Seconds that the driver takes to cut the capture into splits."""
    from udfs.source.sources import run_tasks

    started = time.perf_counter()
    run_tasks({"path": str(path)})
    return time.perf_counter() - started


@dataclass(frozen=True)
class Model:
    """steps: by step and measure, what tasks took; `wall`: seconds of the whole, on `cores`; `walk`: of the driver over
    the record headers; files and bytes of the tables."""

    steps: dict[str, dict[str, Line]]
    cores: int
    wall: Line
    walk: Line
    files: Line
    tables: Line

    def total(self, measure: str) -> Line:
        """Of all steps together."""
        costs = [step[measure] for step in self.steps.values()]
        return Line(sum(cost.fixed for cost in costs), sum(cost.per_gb for cost in costs))

    @property
    def busy(self) -> float:
        """The share of the cores that tasks occupied, after the walk and while there was data."""
        return min(1.0, self.total("seconds").per_gb / (self.cores * (self.wall.per_gb - self.walk.per_gb)))

    @property
    def driver(self) -> float:
        """Seconds of each run outside of tasks: start, planning, moving the tables into place."""
        return max(0.0, self.wall.fixed - self.total("seconds").fixed / self.cores)


def model(small: Run, large: Run, cores: int) -> Model:
    """The model from two runs."""
    nothing = dict.fromkeys(MEASURES, 0.0)

    def cost(first: float, second: float) -> Line:
        return Line.through([(small.gb, first), (large.gb, second)])

    names = [name for part in STEPS for name in large.steps if name.startswith(part)]
    steps = {
        name: {m: cost(small.steps.get(name, nothing)[m], large.steps[name][m]) for m in MEASURES} for name in names
    }
    return Model(
        steps,
        cores,
        cost(small.seconds, large.seconds),
        cost(small.walk, large.walk),
        cost(small.files, large.files),
        cost(small.tables, large.tables),
    )


def model_text(found: Model) -> str:
    """The model as a table: seconds and bytes a GB, and what each run costs besides."""
    titles = ("core s", "JVM s", "GC s", "Python s", "shuffle MB", "spilled MB", "by Spark MB", "each run s")
    lines = [f"{'for a GB':24}" + "".join(f"{title:>12}" for title in titles)]
    rows = [*found.steps.items(), ("all", {measure: found.total(measure) for measure in MEASURES})]
    for name, step in rows:
        cells = [step[name].per_gb for name in ("seconds", "jvm", "gc", "python")]
        cells += [step[name].per_gb / MEGA for name in ("shuffle_written", "spilled", "written")]
        cells.append(step["seconds"].fixed)
        lines.append(f"{name:24}" + "".join(f"{cell:12.2f}" for cell in cells))
    lines.append(f"walk over the headers of files that are cut: {found.walk.per_gb:.2f} s a GB, on the driver")
    lines.append(f"driver beside the tasks: {found.driver:.1f} s each run; cores busy: {found.busy:.0%}")
    lines.append(f"tables: {found.tables.per_gb / MEGA:.0f} MB a GB")
    lines.append(f"files: {found.files.fixed:.0f} each run, {found.files.per_gb:.1f} a GB")
    return "\n".join(lines)


def prediction(
    found: Model, daily_gb: float, runs: int, executors: int, cores: int, file_gb: float
) -> dict[str, float]:
    """Of a day's captures, files of one size, decoded in a number of runs."""
    from udfs.source.splits import SHARES

    each = daily_gb / runs
    core_seconds = found.total("seconds").of(each)
    walked = each if file_gb > max(LIMITS.split_bytes / GIGA, each / SHARES) else 0.0
    seconds = core_seconds / (executors * cores * found.busy) + found.driver + found.walk.per_gb * walked
    return {
        "gb_each_run": each,
        "gb_walked_each_run": walked,
        "core_hours_a_day": runs * core_seconds / 3600,
        "seconds_each_run": seconds,
        "share_of_the_day": runs * seconds / DAY_S,
        "shuffle_gb_a_day": runs * found.total("shuffle_written").of(each) / GIGA,
        "tables_gb_a_day": found.tables.per_gb * daily_gb / GIGA,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model", description="A measured model of a decode.")
    parser.add_argument("--mb", type=float, nargs=2, default=[250, 1000], help="two sizes in 10**6 bytes (250 1000)")
    parser.add_argument("--profile", choices=PROFILES, default="usual", help="kind of traffic (default usual)")
    parser.add_argument("--daily-gb", type=float, default=1000, help="what comes in a day (default 1000)")
    parser.add_argument("--file-mb", type=float, default=200, help="size of a capture in 10**6 bytes (default 200)")
    parser.add_argument("--runs", type=int, default=24, help="runs a day (default 24)")
    parser.add_argument("--executors", type=int, default=20, help="default 20")
    parser.add_argument("--cores", type=int, default=4, help="of an executor (default 4)")
    parser.add_argument("--json", type=Path, default=Path("model.json"), help="where to (default model.json)")
    parser.add_argument("--directory", type=Path, help="for captures and tables (default: a temporary one)")
    selected = parser.parse_args()
    known = machine()
    measured = []
    for size in sorted(selected.mb):
        with tempfile.TemporaryDirectory(dir=selected.directory) as work:
            path = Path(work) / "capture.pcap"
            generate(path, int(size * MEGA), profile=PROFILES[selected.profile])
            measured.append(run(path, Path(work)))
    found = model(measured[0], measured[1], os.cpu_count() or 1)
    file_gb = selected.file_mb * MEGA / GIGA
    predicted = prediction(found, selected.daily_gb, selected.runs, selected.executors, selected.cores, file_gb)
    print(f"{machine_line(known)}\n\n{model_text(found)}\n")
    print(
        f"{selected.daily_gb:g} GB a day in files of {selected.file_mb:g} MB and {selected.runs} runs "
        f"on {selected.executors} executors of {selected.cores} cores:"
    )
    for name, value in predicted.items():
        print(f"  {name.replace('_', ' '):20}{value:10.2f}")
    runs = [asdict(each) for each in measured]
    save(selected.json, machine=known, runs=runs, model=asdict(found), predicted=predicted)


if __name__ == "__main__":
    main()
