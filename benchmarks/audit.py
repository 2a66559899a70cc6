"""Time of an audit beyond the tables, and size of its report: `python -m benchmarks.audit --messages 1000000`.

A capture of about this many messages (a publish and a delivery are one each) is generated and decoded; then `wirehare
audit` runs on its tables in its own process, `--runs` times. Prints for each run the seconds, their ratio to those of
decoding (the goal is at most 0.5), and the size of the report.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.generate import generate
from benchmarks.processes import MEGA

MESSAGES_PER_MB = 865  # of benchmarks.generate, near enough


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--messages", type=int, default=MEGA, help="approximately (default: 1000000)")
    arguments.add_argument("--runs", type=int, default=2)
    arguments.add_argument("--tables", type=Path, help="audit these tables instead of generated ones")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tables, decoding = (options.tables, None) if options.tables else decoded(Path(folder), options.messages)
        for _ in range(options.runs):
            report = Path(folder) / "audit.html"
            seconds = timed("audit", str(tables), "--report", str(report), "--fail-on", "never")
            ratio = f"{seconds / decoding:.2f} times decoding, " if decoding else ""
            print(f"audit {seconds:.1f} s, {ratio}report {report.stat().st_size / MEGA:.2f} MB", flush=True)


def decoded(folder: Path, messages: int) -> tuple[Path, float]:
    """Tables of a generated capture, and the seconds that decoding took."""
    capture, tables = folder / "conversations.pcap", folder / "tables"
    generate(capture, messages // MESSAGES_PER_MB * MEGA)
    seconds = timed("decode", str(capture), "--output", str(tables))
    print(f"decode {seconds:.1f} s", flush=True)
    return tables, seconds


def timed(*command: str) -> float:
    """Seconds of a wirehare command; raises CalledProcessError where it fails."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "jobs.cli", *command], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


if __name__ == "__main__":
    main()
