"""Memory and processor time of processes, from outside, by kind of process (Linux only; empty elsewhere).

    with peaks(pid) as seen: ...     # highest resident sets of pid and all below it

On a single machine a JVM is driver and executor. Pages that Python workers share with the daemon that forked them count
for each.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MEGA = 10**6
WORKER, JVM, DRIVER, OTHER = "Python worker", "JVM", "Python driver", "other"
LOOK_S = 0.2
TICK = os.sysconf("SC_CLK_TCK")
RESET_PEAK = "5"  # to /proc/PID/clear_refs: forget the highest resident set (proc(5))


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name of the command. Raises OSError if the process has ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def command_line(pid: int) -> str:
    """Raises OSError if the process has ended."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def peak_bytes(pid: int) -> int:
    """Highest resident set so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # a process that has ended and was not waited for


def family(of: int) -> list[int]:
    """`of` and all processes below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(stat(int(entry.name))[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry.name))
    found = [of]
    for pid in found:
        found += children.get(pid, [])
    return found


def descendants(of: int) -> Iterator[tuple[int, str]]:
    """(pid, command line) of `of` and all processes below it."""
    for pid in family(of):
        try:
            yield pid, command_line(pid)
        except OSError:
            continue


def kind(command: str) -> str:
    """What a process is, by its command line."""
    program = command.split(" ")[0]
    if "pyspark.daemon" in command or "tables/worker.py" in command:
        return WORKER
    return JVM if "java" in program else DRIVER if "python" in program else OTHER


def ticks(pid: int) -> int:
    """User and system time of a process. Raises OSError if it has ended."""
    return sum(int(value) for value in stat(pid)[11:13])


class Peaks:
    """Highest resident sets in bytes, by kind and process, and processor time, of the processes below `pid` (and of
    `pid` itself), up to the last `look`."""

    def __init__(self, pid: int, itself: bool) -> None:
        self.pid, self.itself = pid, itself
        self.bytes: dict[str, dict[int, int]] = {}
        self.before: dict[int, int] = {}
        self.ticks: dict[int, int] = {}
        for each in family(pid):
            with contextlib.suppress(OSError):
                self.before[each] = ticks(each)
                Path(f"/proc/{each}/clear_refs").write_text(RESET_PEAK)

    def look(self) -> None:
        for pid, command in descendants(self.pid):
            if pid == self.pid and not self.itself:
                continue
            try:
                peak = peak_bytes(pid)
                self.ticks[pid] = ticks(pid)
            except OSError:
                continue
            of_kind = self.bytes.setdefault(kind(command), {})
            of_kind[pid] = max(of_kind.get(pid, 0), peak)

    @property
    def processor(self) -> float:
        """Processor seconds; a process that lived for less than LOOK_S may be missing. (The kernel's sum for a parent
        lacks children that it did not wait for, such as a JVM that outlives its driver.)"""
        return sum(seen - self.before.get(pid, 0) for pid, seen in self.ticks.items()) / TICK

    def highest(self) -> dict[str, int]:
        """By kind, the highest of any one process."""
        return {name: max(seen.values()) for name, seen in self.bytes.items()}

    def peak_line(self, *kinds: str) -> str:
        """One line about these kinds of processes."""
        highest = self.highest()
        seen = [f"{name} {highest[name] / MEGA:,.0f} MB" for name in kinds if name in highest]
        return "peak memory: " + (", ".join(seen) or "not known on this system")


@contextmanager
def repeatedly(look: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call `look` every so many seconds while the body runs, and once more at its end."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(seconds):
            look()
        look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def peaks(pid: int, itself: bool = True) -> Iterator[Peaks]:
    """Watch process `pid` and those below it inside."""
    found = Peaks(pid, itself)
    with repeatedly(found.look, LOOK_S):
        yield found
