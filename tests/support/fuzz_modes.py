"""The same damaged captures through interpreted, compiled and bounds-checked kernels: `python
tests/support/fuzz_modes.py`.

Compiled kernels do not look whether an index lies inside its array; bounds-checked ones do, and interpreted ones do not
let it be negative either (tests/support/guarded_arrays.py). All three have to give the same rows, and no exception.
Compiled ones are the fastest and get all inputs, bounds-checked ones a sixth. Interpreted ones take a second for an
input: they get 100, captures of up to 64 KB as they are, and half of the families of attacks."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

FUZZ = Path(__file__).with_name("fuzz.py")
MODES = {
    "interpreted": {"NUMBA_DISABLE_JIT": "1"},
    "compiled": {},
    "bounds-checked": {"NUMBA_BOUNDSCHECK": "1"},
}
INPUTS, CHECKED_SHARE, INTERPRETED, INTERPRETED_BYTES = 120_000, 6, 100, 64 << 10
# Attacks on workers that need no Spark; those on their cost are compiled only.
INTERPRETED_ATTACKS = ("hostile", "hostile_tcp", "connections_apart", "frame_notes", "limits", "snaplen")
ATTACKS = (
    *INTERPRETED_ATTACKS, "damaged_logins", "fragments", "tls_hostile", "websocket", "settlement_engine",
    "pairing_engine",
)  # fmt: skip


class Round(NamedTuple):
    """How many inputs, a digest of their rows, and what it was after fewer of them."""

    inputs: int
    digest: str
    after: dict[int, str]


def fuzzed(mode: str, *options: str) -> Round:
    """A round of fuzzing in this mode, which prints what it found."""
    print(f"{mode}: {' '.join(options)}", flush=True)
    command = [sys.executable, str(FUZZ), *options]
    done = subprocess.run(command, env={**os.environ, **MODES[mode]}, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, flush=True)
    inputs, digest = re.search(r"([\d,]+) inputs,? ", done.stdout), re.search(r"digest.*: (\w+)", done.stdout)
    if done.returncode or not inputs or not digest:
        raise SystemExit(f"{mode} kernels failed")
    after = {int(number): known for number, known in re.findall(r"after (\d+) inputs: (\w+)", done.stdout)}
    return Round(int(inputs[1].replace(",", "")), digest[1], after)


def attacked(mode: str, names: tuple[str, ...]) -> None:
    """The tests of attacks, whose rows are the same in each mode, in this one."""
    print(f"{mode}: tests of attacks", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]
    tests = [str(FUZZ.with_name(f"test_{name}.py")) for name in names]
    done = subprocess.run([*command, *tests], env={**os.environ, **MODES[mode]}, cwd=FUZZ.parents[1], check=False)
    if done.returncode:
        raise SystemExit(f"{mode} kernels do not stand the attacks")


def require_equal(one: object, other: object, what: str) -> None:
    if one != other:
        raise SystemExit(f"other rows in another mode: {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=INPUTS, help=f"for compiled kernels ({INPUTS})")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    some = ("--captures", "--largest", str(INTERPRETED_BYTES))
    require_equal(fuzzed("compiled", *some), fuzzed("interpreted", *some), "small captures")
    require_equal(fuzzed("compiled", "--captures"), fuzzed("bounds-checked", "--captures"), "captures")
    attacked("interpreted", INTERPRETED_ATTACKS)
    attacked("bounds-checked", ATTACKS)
    numbers = {
        "interpreted": INTERPRETED,
        "bounds-checked": max(INTERPRETED, chosen.inputs // CHECKED_SHARE),
        "compiled": max(INTERPRETED, chosen.inputs),
    }
    rounds = {
        mode: fuzzed(mode, "--seed", str(chosen.seed), "--inputs", str(number)) for mode, number in numbers.items()
    }
    for mode in ("interpreted", "bounds-checked"):
        common = rounds[mode].after.keys() & rounds["compiled"].after.keys()
        for number in sorted(common):
            require_equal(
                rounds[mode].after[number], rounds["compiled"].after[number], f"{mode}, seed {chosen.seed}, {number}"
            )
        print(f"the rows of {max(common):,} inputs are those of {mode} kernels")


if __name__ == "__main__":
    main()
