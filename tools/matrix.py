"""The short form of the tests under each Python and each Java of this machine: `python tools/matrix.py [PYTHON ...]`.

Each Python gets an environment of its own in build/matrix, and interprets kernels; one of them is compiled, for each
processor level. Spark's tests run under each Java, in the environment of the first Python. Prints a line for each, and
exits with 1 if one failed. The Javas are those of JVM_DIRECTORIES with a version of Spark's, and JAVA_HOME.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "build" / "matrix"
JVM_DIRECTORIES = ("/usr/lib/jvm", "/opt/java", "/Library/Java/JavaVirtualMachines")
JAVAS = (17, 21, 25)
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
INTERPRETED = (
    "tests/project/test_house.py", "tests/codec/test_golden.py", "tests/codec/test_capture_pcap.py",
    "tests/codec/test_spec_tables.py", "tests/udfs/test_tunnels.py", "tests/jobs/test_doctor.py",
    "tests/jobs/test_rules_job.py", "tests/jobs/test_sql.py",
)  # fmt: skip
COMPILED = ("tests/codec/test_digest.py", "tests/codec/test_levels.py")
ON_SPARK = ("tests/jobs/test_session.py", "tests/udfs/test_source.py", "tests/pipeline/test_summaries.py")


def usable(python: str) -> bool:
    """Whether this is a Python that the package supports. A name of pyenv's may be that of a version not in use."""
    command = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return (
        shutil.which(python) is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def passed(name: str, python: Path, tests: tuple[str, ...], **settings: str) -> bool:
    """Run tests and print how they ended."""
    started = time.monotonic()
    ran = subprocess.run(
        [python, *PYTEST, *tests], cwd=ROOT, env=os.environ | settings, stdout=subprocess.PIPE, text=True, check=False
    )
    lines = ran.stdout.strip().splitlines()
    if ran.returncode:
        print("\n".join(lines))
    print(f"{name}: {lines[-1] if lines else 'nothing ran'} ({time.monotonic() - started:.0f} s)", flush=True)
    return ran.returncode == 0


def environment(python: str) -> Path:
    """Make or update the environment of a Python, with all that the tests need: its Python."""
    directory = ENVIRONMENTS / Path(python).name
    result = directory / "bin" / "python"
    if not result.exists():
        subprocess.run([python, "-m", "venv", directory], check=True)
    pip = [result, "-m", "pip", "--disable-pip-version-check", "--quiet", "--quiet"]
    editable = ["--config-settings", "editable_mode=compat", "--editable", ".[dev]"]
    subprocess.run([*pip, "install", "--no-compile", *editable], cwd=ROOT, check=True)
    return result


def javas() -> dict[int, str]:
    """By version the directories of the Javas that are installed."""
    homes = [os.environ.get("JAVA_HOME", "")]
    for directory in map(Path, JVM_DIRECTORIES):
        homes += sorted(str(found.parents[1]) for found in directory.glob("**/bin/java"))
    found: dict[int, str] = {}
    for home in filter(None, homes):
        try:
            ran = subprocess.run([f"{home}/bin/java", "-version"], capture_output=True, text=True, check=False)
        except OSError:
            continue
        version = re.search(r'version "(\d+)', ran.stderr)
        if version and int(version[1]) in JAVAS:
            found.setdefault(int(version[1]), home)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/matrix.py", description="Short tests for each Python and Java.")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    pythons = parser.parse_args().pythons or [f"python3.{sys.version_info.minor}"]
    environments, results = list[Path](), list[bool]()
    for python in pythons:
        if not usable(python):
            print(f"{python}: is not here")
            continue
        result = environment(python)
        environments.append(result)
        results.append(passed(f"{python}, interpreted", result, INTERPRETED, NUMBA_DISABLE_JIT="1"))
        results.append(passed(f"{python}, compiled", result, COMPILED))
    for version, home in sorted(javas().items()) if environments else ():
        results.append(passed(f"Java {version}", environments[0], ON_SPARK, JAVA_HOME=home, NUMBA_DISABLE_JIT="1"))
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
