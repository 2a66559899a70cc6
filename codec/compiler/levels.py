"""Levels of processors that a wheel may carry machine code for (`make dist`).

Machine code that is compiled here is for the processor that is here, and numba stores it under the processor's name and
features. The machine code of a wheel is for a level that many processors have: x86-64-v3 of the psABI (AVX2, BMI, FMA;
Intel from 2013, AMD from 2015), with and without the SHA instructions. Of the levels that the wheel carries, the first
one that this processor has counts. It is stored in the package, under the digests of the sources as everywhere, so that
other sources, another numba or another Python never run it.
"""

from __future__ import annotations

import functools
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from codec.compiler import PACKAGE

PACKAGED = PACKAGE / "machine_code"  # a directory for each level; only wheels have it
PROCESSOR = Path("/proc/cpuinfo")
V3 = "avx avx2 bmi bmi2 cmov cx16 f16c fma fxsr lzcnt mmx movbe popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3 xsave"
# Features whose flags Linux calls otherwise.
FLAGS = {
    "bmi": "bmi1", "lzcnt": "abm", "sahf": "lahf_lm", "sha": "sha_ni", "sse3": "pni", "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
}  # fmt: skip


class Level(NamedTuple):
    """`name` of its directory; `processor` and `features` as LLVM calls them."""

    name: str
    processor: str
    features: tuple[str, ...]

    @property
    def target(self) -> tuple[str, str]:
        """Processor and features as numba stores them with machine code."""
        return self.processor, ",".join(f"+{feature}" for feature in self.features)

    @property
    def settings(self) -> dict[str, str]:
        """Variables of numba with which kernels are compiled for this level."""
        processor, features = self.target
        return {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features}


LEVELS = (
    Level("x86-64-v3-sha", "x86-64-v3", (*V3.split(), "sha")),
    Level("x86-64-v3", "x86-64-v3", tuple(V3.split())),
)


@functools.cache
def flags() -> frozenset[str]:
    """What this x86-64 processor has, as Linux calls it; nothing on other machines."""
    if platform.machine() != "x86_64":
        return frozenset()
    try:
        lines = PROCESSOR.read_text().splitlines()
    except OSError:  # no /proc, as in a plain chroot: LLVM asks the processor
        from llvmlite import binding

        with suppress(RuntimeError):
            found = binding.get_host_cpu_features()
            return frozenset(FLAGS.get(name, name) for name, has in found.items() if has)
        return frozenset()
    found = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return frozenset(found.split())


@functools.cache
def level() -> Level | None:
    """The level whose machine code this process uses, if this package carries one that the processor has. None where a
    variable of numba names another processor."""
    if any(os.environ.get(name) for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")):
        return None
    for candidate in LEVELS:
        needed = {FLAGS.get(feature, feature) for feature in candidate.features}
        if (PACKAGED / candidate.name).is_dir() and needed <= flags():
            return candidate
    return None


def machine_code() -> Path | None:
    """The directory of the machine code of `level()`."""
    found = level()
    return PACKAGED / found.name if found else None
