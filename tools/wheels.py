"""Wheels with machine code: `python tools/wheels.py DIST [PYTHON ...]`.

DIST has the wheel that `python -m build` made. For each Python named (this one without any; those that are missing or
older than 3.11 are passed over) a wheel is added that also carries all kernels, compiled for each of
`codec.compiler.levels.LEVELS` that this processor has. Its metadata name the numba that compiled them: machine code of
another one is not loaded, and all kernels would be compiled again.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from matrix import usable

from codec.compiler.levels import FLAGS, LEVELS, flags

PLATFORM = "manylinux_2_28_x86_64"  # the machine code calls the C library alone, no newer than numba itself does
PINNED = ("numba", "llvmlite")
REQUIRES = re.compile(rf"^Requires-Dist: ({'|'.join(PINNED)})\b.*$", re.MULTILINE)


def run(*command: str | Path, **settings: str) -> str:
    """What a command prints; `settings` are variables of its environment."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA"))}
    done = subprocess.run(list(map(str, command)), env=own | settings, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def environment(python: str, wheel: Path, directory: Path) -> Path:
    """Make an environment of `python` with the wheel and what it requires: its Python."""
    run(python, "-m", "venv", directory)
    result = directory / "bin" / "python"
    run(result, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    return result


def compile_into(python: Path, machine_code: Path) -> None:
    """Compile all kernels for each level, with the packages of `python`."""
    for level in LEVELS:
        if {FLAGS.get(feature, feature) for feature in level.features} <= flags():
            started, directory = time.monotonic(), machine_code / level.name
            try:
                run(python, "-P", "-m", "udfs.warm", NUMBA_CACHE_DIR=str(directory), **level.settings)
            except subprocess.CalledProcessError:
                print(f"{level.name}: could not be compiled, and is left out", file=sys.stderr)
                shutil.rmtree(directory, ignore_errors=True)
                continue
            for mark in directory.glob("complete-*"):  # a wheel has no empty directories
                (mark / "all").touch()
            print(f"{level.name}: compiled in {time.monotonic() - started:.0f} s", file=sys.stderr)


def with_machine_code(wheel: Path, python: Path, directory: Path) -> Path:
    """Add to the directory of `wheel` one with machine code for the Python at `python`."""
    run(sys.executable, "-m", "wheel", "unpack", "--dest", directory, wheel)
    (unpacked,) = directory.iterdir()
    compile_into(python, unpacked / "codec" / "machine_code")
    (about,) = unpacked.glob("*.dist-info")
    found = run(python, "-c", f"import importlib.metadata as m; print(*map(m.version, {PINNED!r}))").split()
    versions = dict(zip(PINNED, found, strict=True))
    metadata = about / "METADATA"
    text = metadata.read_text("utf-8")
    metadata.write_text(REQUIRES.sub(lambda line: f"Requires-Dist: {line[1]}=={versions[line[1]]}", text), "utf-8")
    tag = run(python, "-c", "import sys; print(f'cp{sys.version_info.major}{sys.version_info.minor}')")
    kind = about / "WHEEL"
    lines = [line for line in kind.read_text().splitlines() if line and not line.startswith(("Tag:", "Root-Is-Pure"))]
    kind.write_text("\n".join([*lines, "Root-Is-Purelib: false", f"Tag: {tag}-{tag}-{PLATFORM}", ""]))
    run(sys.executable, "-m", "wheel", "pack", "--dest-dir", wheel.parent, unpacked)
    (result,) = wheel.parent.glob(f"*-{tag}-{tag}-{PLATFORM}.whl")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tools/wheels.py", description="Wheels with machine code.")
    parser.add_argument("dist", type=Path)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    selected = parser.parse_args()
    (wheel,) = selected.dist.resolve().glob("wirehare-*-py3-none-any.whl")
    for python in selected.pythons or [sys.executable]:
        if not usable(python):
            print(f"{python} is not here", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as directory:
            result = environment(python, wheel, Path(directory, "environment"))
            Path(directory, "unpacked").mkdir()
            built = with_machine_code(wheel, result, Path(directory, "unpacked"))
        print(f"{built.name}: {built.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
