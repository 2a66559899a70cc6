"""The same damaged captures through interpreted, compiled and bounds-checked kernels: `python
tests/support/fuzz_modes.py`.

Compiled kernels do not look whether an index lies inside its array; bounds-checked ones do, and interpreted ones do not
let it be negative either (tests/support/guarded_arrays.py). All three have to give the same rows, and no exception.
Compiled ones are the fastest and get all inputs, on a core of their own; bounds-checked ones, which are compiled first,
a sixth. Interpreted ones take a second for an input: they get 100, captures of up to 64 KB as they are, and half of the
families of attacks."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

FUZZ = Path(__file__).with_name("fuzz.py")
TESTS = FUZZ.parents[1]
MODES = {"interpreted": {"NUMBA_DISABLE_JIT": "1"}, "compiled": {}, "bounds-checked": {"NUMBA_BOUNDSCHECK": "1"}}
INPUTS, CHECKED_SHARE, INTERPRETED, INTERPRETED_BYTES = 120_000, 6, 100, 64 << 10
# Attacks on workers that need no Spark; those on their cost are compiled only.
INTERPRETED_ATTACKS = ("hostile", "hostile_tcp", "connections_apart", "frame_notes", "limits", "snaplen")
ATTACKS = (
    *INTERPRETED_ATTACKS, "damaged_logins", "fragments", "tls_hostile", "tls_poisoned", "websocket",
    "settlement_engine", "pairing_engine",
)  # fmt: skip


class Round(NamedTuple):
    """How many inputs, a digest of their rows, and what it was after fewer of them."""

    inputs: int
    digest: str
    after: dict[int, str]


def fuzzed(mode: str, *options: str) -> Round:
    """A round of fuzzing in this mode, which prints what it finds."""
    code, printed = ended(mode, [str(FUZZ), *options])
    inputs, digest = re.search(r"([\d,]+) inputs,? ", printed), re.search(r"digest.*: (\w+)", printed)
    if code or not inputs or not digest:
        raise SystemExit(f"{mode} kernels failed")
    after = {int(number): known for number, known in re.findall(r"after (\d+) inputs: (\w+)", printed)}
    return Round(int(inputs[1].replace(",", "")), digest[1], after)


def attacked(mode: str, names: tuple[str, ...]) -> None:
    """The tests of attacks, whose rows are the same in each mode, in this one."""
    options = ["-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]
    code, _ = ended(mode, [*options, *(str(attack_file(name)) for name in names)])
    if code:
        raise SystemExit(f"{mode} kernels fail tests of attacks")


def ended(mode: str, arguments: list[str]) -> tuple[int, str]:
    """Exit code and output of Python with these arguments in this mode; its lines are printed as they come, then what
    it took."""
    named = " ".join(Path(argument).name for argument in arguments)
    command, environment = [sys.executable, *arguments], {**os.environ, **MODES[mode]}
    print(f"{mode}: {named}", flush=True)
    with subprocess.Popen(command, env=environment, cwd=TESTS.parent, stdout=subprocess.PIPE, text=True) as run:
        lines = []
        for line in run.stdout or ():
            print(f"{mode}: {line}", end="", flush=True)
            lines.append(line)
        _, status, spent = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    print(f"{mode}: {spent.ru_utime + spent.ru_stime:,.0f} s of processor time: {named}\n", flush=True)
    return run.returncode, "".join(lines)


def attack_file(name: str) -> Path:
    """The test file of this name, whichever floor it tests."""
    (found,) = TESTS.glob(f"*/test_{name}.py")
    return found


def require_equal(one: object, other: object, what: str) -> None:
    if one != other:
        raise SystemExit(f"other rows in another mode: {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=INPUTS, help=f"for compiled kernels ({INPUTS})")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    selected = parser.parse_args()
    seed = ("--seed", str(selected.seed))
    checked = max(INTERPRETED, selected.inputs // CHECKED_SHARE)
    with ThreadPoolExecutor(1) as other_core:
        compiled = other_core.submit(fuzzed, "compiled", *seed, "--inputs", str(max(INTERPRETED, selected.inputs)))
        some = ("--captures", "--largest", str(INTERPRETED_BYTES))
        require_equal(fuzzed("compiled", *some), fuzzed("interpreted", *some), "small captures")
        require_equal(fuzzed("compiled", "--captures"), fuzzed("bounds-checked", "--captures"), "captures")
        attacked("interpreted", INTERPRETED_ATTACKS)
        attacked("bounds-checked", ATTACKS)
        rounds = {
            mode: fuzzed(mode, *seed, "--inputs", str(number))
            for mode, number in (("interpreted", INTERPRETED), ("bounds-checked", checked))
        }
    every = compiled.result()
    for mode, found in rounds.items():
        common = found.after.keys() & every.after.keys()
        for number in sorted(common):
            require_equal(found.after[number], every.after[number], f"{mode}, seed {selected.seed}, input {number}")
        print(f"the rows of {max(common):,} inputs are those of {mode} kernels")


if __name__ == "__main__":
    main()
