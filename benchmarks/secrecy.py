"""The cost of encrypting Spark's temporary files: `python -m benchmarks.secrecy --mb 60 --rounds 3`.

`wirehare decode` of a capture in gzip, whose payloads all go through the shuffle, with and without
`spark.io.encryption.enabled`, alternating. Prints processor seconds of all processes, and the medians. While a job
runs, its shuffle files are read: those in clear must begin with the magic of Spark's compression, the others must not.
The figures are also written as JSON.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.figures import Point, decode, machine, machine_line, save
from benchmarks.generate import generate
from benchmarks.processes import MEGA, repeatedly

CLEAR = b"LZ4Block"  # how lz4 streams of Spark begin (lz4-java, LZ4BlockOutputStream)
LOOK_S = 0.05
KINDS = {"in clear": False, "encrypted": True}


@contextmanager
def looking(folder: Path) -> Iterator[set[bool]]:
    """Whether shuffle files below `folder` can be read, of those that are seen."""
    seen: set[bool] = set()

    def look() -> None:
        for directory, _, names in os.walk(folder):  # passes over directories that go
            for name in fnmatch.filter(names, "shuffle_*.data"):
                with suppress(OSError), open(os.path.join(directory, name), "rb") as file:
                    if head := file.read(len(CLEAR)):
                        seen.add(head == CLEAR)

    with repeatedly(look, LOOK_S):
        yield seen


def measured(capture: Path, work: Path, encrypted: bool) -> Point:
    """A decode; raises RuntimeError where its shuffle files are not as they should be."""
    settings = work / "conf"
    settings.mkdir(exist_ok=True)
    (settings / "spark-defaults.conf").write_text(f"spark.io.encryption.enabled {str(encrypted).lower()}\n")
    scratch = work / "scratch"
    scratch.mkdir(exist_ok=True)
    with looking(scratch) as seen:
        point = decode(capture, work / "tables", {"SPARK_CONF_DIR": str(settings), "SPARK_LOCAL_DIRS": str(scratch)})
    if seen != {not encrypted}:
        raise RuntimeError(f"shuffle files that can be read: {seen or 'none was seen'}, encrypted: {encrypted}")
    return point


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secrecy", description="What encrypted files cost.")
    parser.add_argument("--mb", type=float, default=60.0, help="size of the capture before gzip, in 10**6 bytes (60)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each (3), after one that does not count")
    parser.add_argument("--json", type=Path, default=Path("secrecy.json"), help="where to (default secrecy.json)")
    selected = parser.parse_args()
    known = machine()
    print(machine_line(known))
    points: dict[str, list[Point]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        generate(work / "a.pcap", int(selected.mb * MEGA))
        capture = work / "a.pcap.gz"
        capture.write_bytes(gzip.compress((work / "a.pcap").read_bytes(), 1))
        measured(capture, work, False)
        print("".join(f"{kind:>12}" for kind in KINDS) + "   processor seconds")
        for _ in range(selected.rounds):
            for kind, encrypted in KINDS.items():
                points[kind].append(measured(capture, work, encrypted))
            print("".join(f"{points[kind][-1].processor:12.1f}" for kind in KINDS), flush=True)
    medians = {kind: median(point.processor for point in points[kind]) for kind in KINDS}
    print("".join(f"{medians[kind]:12.1f}" for kind in KINDS) + "   medians")
    figures = {kind: [asdict(point) for point in points[kind]] for kind in KINDS}
    save(selected.json, machine=known, points=figures, medians=medians)


if __name__ == "__main__":
    main()
