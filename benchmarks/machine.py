"""The machine and the versions that figures were taken with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

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


def shown(known: dict[str, object]) -> str:
    """One line for people."""
    tshark = str(known["tshark"] or "no TShark").split(" (Git")[0]  # the rest of its line is where it was built
    return (
        f"{known['processor']}, {known['cores']} cores, {known['memory_gb']} GB; Python {known['python']}, "
        f"pyspark {known['pyspark']}, {tshark}, wirehare {known['wirehare']}; load before: {known['load']:.1f}"
    )
