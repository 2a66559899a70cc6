"""The same damaged captures through interpreted, compiled and bounds-checked kernels: `python tests/fuzz_modes.py`.

Compiled kernels do not look whether an index lies inside its array; bounds-checked ones do, and interpreted ones do not
let it be negative either (tests/guarded_arrays.py). All three have to give the same rows, and no exception.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

FUZZ = Path(__file__).with_name("fuzz.py")
MODES = {
    "interpreted": {"NUMBA_DISABLE_JIT": "1"},
    "compiled": {},
    "bounds-checked": {"NUMBA_BOUNDSCHECK": "1"},
}


def fuzzed(mode: str, *options: str) -> tuple[int, str]:
    """A round of fuzzing in this mode, which prints what it found: number of inputs, digest of rows."""
    print(f"{mode}:", flush=True)
    command = [sys.executable, str(FUZZ), *options]
    done = subprocess.run(command, env={**os.environ, **MODES[mode]}, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, flush=True)
    inputs, digest = re.search(r"([\d,]+) inputs", done.stdout), re.search(r"digest.*: (\w+)", done.stdout)
    if done.returncode or not inputs or not digest:
        raise SystemExit(f"{mode} kernels failed")
    return int(inputs[1].replace(",", "")), digest[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300, help="for all modes together, besides compiling")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    third = str(chosen.seconds / 3)
    number, rows = fuzzed("interpreted", "--seed", str(chosen.seed), "--seconds", third)
    for mode in ("compiled", "bounds-checked"):
        _, other = fuzzed(mode, "--seed", str(chosen.seed), "--inputs", str(number), "--seconds", "1e9")
        if other != rows:
            raise SystemExit(f"{mode} kernels give other rows than interpreted ones for seed {chosen.seed}")
        fuzzed(mode, "--seed", str(chosen.seed + 1), "--seconds", third)
    print(f"the rows of {number:,} inputs are equal in all modes")


if __name__ == "__main__":
    main()
