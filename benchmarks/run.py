"""Our times and those of other tools, on one generated capture: `python -m benchmarks.run --mb 1000 --runs 3`.

All contenders (benchmarks/contenders.py) are measured in turns, so that a slow minute of the machine hits all of them;
medians are printed, with processor time (of the process and all below it), peak memory by kind of process, and how many
times as long each takes as tshark and as the floor job. Budgets are compared in the end. Those in a session
or in local processes run once before, which is the line "first". The figures are also written as JSON.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset

from benchmarks.contenders import CONTENDERS, PREPARE, Measured, Runner, Task
from benchmarks.figures import machine, machine_line, save
from benchmarks.generate import generate
from benchmarks.processes import DRIVER, JVM, MEGA, OTHER, WORKER
from benchmarks.profiles import PROFILES

SLICES = {"tshark ek": 100_000, "scapy": 20_000}  # packets; both take minutes for a GB
FIRST = "first: "
WARM = ("session", "processes")  # where the first time is longer


@dataclass(frozen=True)
class Budget:
    """How many times as long `slow` takes as `fast`, and what is asked for: at least or at most `goal`."""

    what: str
    slow: str
    fast: str
    goal: float
    at_least: bool = True

    def line(self, medians: dict[str, float]) -> str | None:
        """None where one of both was not measured."""
        if not {self.slow, self.fast} <= medians.keys():
            return None
        times = medians[self.slow] / medians[self.fast]
        met = times >= self.goal if self.at_least else times <= self.goal
        asked = f"{'at least' if self.at_least else 'at most'} {self.goal:g}"
        return f"{self.what:58}{times:8.2f}   {asked:14}{'met' if met else 'missed'}"


BUDGETS = (
    Budget("frames: as fast as tshark -T fields, times", "tshark fields", "frames", 10),
    Budget("all tables: as fast as tshark -T fields, times", "tshark fields", "tables", 5),
    Budget("all tables: as fast as tshark -T ek, times", "tshark ek", "tables", 50),
    Budget("all tables: as long as the floor job, times", "tables", "floor", 3, at_least=False),
    Budget("frames, local processes: as fast as tshark, times", "tshark fields", "frames, local", 10),
    Budget("all tables, local processes: as fast as tshark, times", "tshark fields", "tables, local", 5),
    Budget("all tables, cold: as fast as tshark, times", "tshark fields", "tables, cold", 2.5),
)


@dataclass(frozen=True)
class Result:
    """`what` was measured; medians in seconds for the whole capture; `scaled`: from a part of it."""

    what: str
    seconds: float
    processor: float
    scaled: bool
    peaks: dict[str, int]  # bytes of the largest process of a kind

    @staticmethod
    def of(name: str, figures: Measured, scale: float) -> Result:
        kinds = {kind for each in figures.peaks for kind in each}
        return Result(
            CONTENDERS[name.removeprefix(FIRST)].what,
            statistics.median(figures.seconds) * scale,
            statistics.median(figures.processor) * scale,
            scale != 1,
            {kind: max(each[kind][0] for each in figures.peaks if kind in each) for kind in sorted(kinds)},
        )


def measure(task: Task, names: list[str], runs: int) -> dict[str, Measured]:
    """Figures by contender; those of the first time separately."""
    figures = {name: Measured() for name in names}
    processes = {CONTENDERS[name].process for name in names}
    with ExitStack() as stack:
        runners = {process: stack.enter_context(Runner()) for process in sorted(processes)}
        if "kernels" in runners:
            runners["kernels"].do(PREPARE, task)
        for name in names:
            process = CONTENDERS[name].process
            if process in WARM:
                runners[process].measure(name, task, figures.setdefault(FIRST + name, Measured()))
        for _ in range(runs):
            for name in names:
                runners[CONTENDERS[name].process].measure(name, task, figures[name])
    return figures


def line(name: str, result: Result, megabytes: float, medians: dict[str, float]) -> str:
    """A row of the printed table."""
    times = [f"{result.seconds / medians[to]:9.2f}" if to in medians else " " * 9 for to in ("tshark fields", "floor")]
    sizes = [result.peaks.get(kind) for kind in (WORKER, JVM, DRIVER, OTHER)]
    cells = [f"{size / MEGA:9,.0f}" if size else " " * 9 for size in sizes]
    mark = "~" if result.scaled else " "
    return (
        f"{name:22}{mark}{result.seconds:8.1f}{result.processor:10.1f}{megabytes / result.seconds:9.1f}"
        f"{''.join(times)}{''.join(cells)}"
    )


def report(results: dict[str, Result], capture: dict[str, Any], known: dict[str, object]) -> str:
    """Everything as people read it."""
    megabytes = float(capture["bytes"]) / MEGA
    medians = {name: result.seconds for name, result in results.items()}
    lines = [
        f"{capture['profile']}: {megabytes:,.0f} MB, {capture['packets']:,} packets, {capture['frames']:,} frames",
        machine_line(known),
        "",
        f"{'':23}{'seconds':>8}{'processor':>10}{'MB/s':>9}{'x tshark':>9}{'x floor':>9}"
        + "".join(f"{kind:>9}" for kind in ("worker", "JVM", "driver", "other")),
        *(line(name, result, megabytes, medians) for name, result in results.items()),
        "",
        "~ a part of the capture, scaled; memory in MB, the largest process of its kind",
        "",
        *filter(None, (budget.line(medians) for budget in BUDGETS)),
    ]
    return "\n".join(lines)


def markdown(results: dict[str, Result], megabytes: float) -> str:
    """The same for docs/performance.md: also throughput, times tshark, and the memory of a Python worker."""
    by = results["tshark fields"].seconds if "tshark fields" in results else None
    lines = [
        "| what | seconds | MB/s | processor s | as fast as tshark | worker MB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for result in results.values():
        times = f"{by / result.seconds:.1f} times" if by else ""
        worker = f"{result.peaks[WORKER] / MEGA:,.0f}" if WORKER in result.peaks else ""
        cells = [result.what, f"{result.seconds:.1f}", f"{megabytes / result.seconds:.0f}", f"{result.processor:.0f}"]
        lines.append("| " + " | ".join([*cells, times, worker]) + " |")
    return "\n".join(lines)


def content(work: Path) -> dict[str, int]:
    """What there is in the capture, out of the tables of the first time."""
    captures = pyarrow.dataset.dataset(str(work / "tables" / "captures"), format="parquet").to_table(["packets"])
    frames = pyarrow.dataset.dataset(str(work / "tables" / "frames"), format="parquet").count_rows()
    return {"packets": sum(captures["packets"].to_pylist()), "frames": frames}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Our times and those of other tools.")
    parser.add_argument("--mb", type=float, default=1000, help="size of the capture in 10**6 bytes (default 1000)")
    parser.add_argument("--profile", choices=PROFILES, default="usual", help="kind of traffic (default usual)")
    parser.add_argument("--runs", type=int, default=3, help="rounds of which the median is taken (default 3)")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, help="these contenders, and all tables (default: all)")
    parser.add_argument("--whole", action="store_true", help="tshark -T ek takes all of the capture")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("benchmark.json"), help="where to (default benchmark.json)")
    parser.add_argument("--markdown", type=Path, help="write the table of docs/performance.md there, too")
    parser.add_argument("--directory", type=Path, help="where the capture stays (default: a temporary one)")
    selected = parser.parse_args()
    names = [name for name in CONTENDERS if selected.only is None or name in (*selected.only, "tables")]
    if shutil.which("tshark") is None:
        names = [name for name in names if not name.startswith("tshark")]
    known = machine()
    with tempfile.TemporaryDirectory() as temporary:
        work = (selected.directory or Path(temporary)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        path = work / f"{selected.profile}-{selected.mb:g}mb-{selected.seed}.pcap"
        if not path.exists():
            generate(path, int(selected.mb * MEGA), selected.seed, profile=PROFILES[selected.profile])
        slices = {"scapy": SLICES["scapy"]} if selected.whole else SLICES
        task = Task(path, work, slices)
        figures = measure(task, names, selected.runs)
        capture: dict[str, Any] = {"profile": selected.profile, "bytes": path.stat().st_size, **content(work)}
    packets = int(capture["packets"])
    scales = {name: max(1.0, packets / count) for name, count in slices.items()}
    results = {name: Result.of(name, each, scales.get(name, 1)) for name, each in figures.items()}
    print(report(results, capture, known))
    if selected.markdown:
        selected.markdown.write_text(markdown(results, float(capture["bytes"]) / MEGA) + "\n")
    save(
        selected.json,
        machine=known,
        capture=capture,
        scales=scales,
        figures={name: asdict(each) for name, each in figures.items()},
        results={name: asdict(each) for name, each in results.items()},
    )


if __name__ == "__main__":
    main()
