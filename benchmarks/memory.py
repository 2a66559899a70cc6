"""Peak memory of a decode whose capture is one connection: `python -m benchmarks.memory --mb 2000`.

`wirehare decode` runs as a process of its own on the generated capture, all tables included, and its processes are
looked at five times a second: Python workers (those of Spark's daemon), the JVM (driver and executor in one), and the
Python driver. What is printed is the highest resident set of any process of each kind, as the kernel keeps it (Linux
only); pages that workers share with the daemon they were forked from count for each. One connection that holds all
bytes is the hard case: it is decoded by one worker, which must not hold more of it when there is more of it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.generate import generate

MEGA = 10**6
WORKER, JVM, DRIVER = "Python worker", "JVM", "Python driver"
LOOK_S = 0.2


def stat(pid: int) -> tuple[int, str]:
    """Parent and command line of a process. Raises OSError when it has ended."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return parent, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def peak_bytes(pid: int) -> int:
    """Highest resident set so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # a process that has ended and was not waited for


def descendants(of: int) -> Iterator[tuple[int, str]]:
    """(pid, command line) of `of` and all processes below it."""
    children: dict[int, list[tuple[int, str]]] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            parent, commands[pid] = stat(pid)
        except OSError:
            continue
        children.setdefault(parent, []).append((pid, commands[pid]))
    found = [(of, commands.get(of, ""))]
    for pid, _ in found:
        found += children.get(pid, [])
    yield from found


class Peaks:
    """Highest resident set in bytes of any process of each kind from `pid` down, looked at until `ended`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.bytes: dict[str, int] = {}
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self) -> None:
        while not self.ended.wait(LOOK_S):
            for pid, command in descendants(self.pid):
                kind = WORKER if "pyspark.daemon" in command else JVM if "java" in command.split(" ")[0] else DRIVER
                try:
                    self.bytes[kind] = max(self.bytes.get(kind, 0), peak_bytes(pid))
                except OSError:
                    continue

    def shown(self, *kinds: str) -> str:
        """One line about these kinds of processes."""
        seen = [f"{kind} {self.bytes[kind] / MEGA:,.0f} MB" for kind in kinds if kind in self.bytes]
        return "peak memory: " + (", ".join(seen) or "not known on this system")


@contextmanager
def peaks(pid: int) -> Iterator[Peaks]:
    """Watch process `pid` and those below it inside; nothing is seen where there is no /proc."""
    found = Peaks(pid)
    found.thread.start()
    try:
        yield found
    finally:
        found.ended.set()
        found.thread.join()


def decode(path: Path, output: Path) -> tuple[float, Peaks]:
    """Seconds and peaks of a `wirehare decode` of the capture; raises CalledProcessError when it fails."""
    command = [sys.executable, "-m", "jobs.cli", "decode", str(path), "--output", str(output), "--overwrite"]
    started = time.perf_counter()
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    with peaks(job.pid) as found:
        code = job.wait()
    if code:
        raise subprocess.CalledProcessError(code, command)
    return time.perf_counter() - started, found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description="Peak memory of a decode.")
    parser.add_argument("--mb", type=float, nargs="+", default=[250, 2000], help="sizes in 10**6 bytes (250 2000)")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--message-bytes", type=int, default=850)
    parser.add_argument("--directory", type=Path, help="where captures and tables stand meanwhile (default: temporary)")
    chosen = parser.parse_args()
    for size in chosen.mb:
        with tempfile.TemporaryDirectory(dir=chosen.directory) as work:
            path = Path(work) / "one.pcap"
            generate(path, int(size * MEGA), 1, chosen.message_bytes, chosen.connections)
            seconds, found = decode(path, Path(work) / "tables")
            took = f"{path.stat().st_size / MEGA:,.0f} MB in {seconds:.0f} s"
            print(f"{took}; {found.shown(WORKER, JVM, DRIVER)}", flush=True)


if __name__ == "__main__":
    main()
