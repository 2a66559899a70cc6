"""The sdist and the wheel, built from the files under version control: what they contain, and the demo run from the
wheel in an environment of its own (make dist-test). The wheel with kernels that `make dist` has left in dist/ is tested
by make wheel-test."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from dataclasses import dataclass
from email.message import Message
from importlib.metadata import version
from pathlib import Path

import pytest

from codec.compiler.levels import FLAGS, LEVELS, flags

ROOT = Path(__file__).parents[2]
PACKAGES = {"codec", "udfs", "pipeline", "jobs"}
MOST_BYTES = 60_000_000  # of a wheel
REPORT_S = 10  # that a nightly of 10 MB takes on an idle machine of two cores


@dataclass(frozen=True)
class Built:
    """`sources`: the unpacked sdist; `files`: names in the wheel; `about`: its metadata; `python`: that of an
    environment with the wheel."""

    sources: Path
    files: set[str]
    about: Message
    python: Path

    def run(self, *command: str, folder: Path) -> str:
        """What a command of the environment prints; sources on the path of this process are not seen."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
        own["PATH"] = os.pathsep.join([str(self.python.parent), own["PATH"]])
        done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Dependencies are those of this process: a new environment would download half a gigabyte."""
    folder = tmp_path_factory.mktemp("dist")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    subprocess.run(
        ["tar", "-cf", str(folder / "tree.tar"), "--null", "-T", "-"], cwd=ROOT, input=listed, text=True, check=True
    )
    (folder / "tree").mkdir()
    with tarfile.open(folder / "tree.tar") as archive:
        archive.extractall(folder / "tree", filter="data")
    # The wheel is built from the sdist, so the sdist is complete.
    subprocess.run([sys.executable, "-m", "build", "-o", str(folder), str(folder / "tree")], check=True)
    (sdist,), (wheel,) = folder.glob("wirehare-*.tar.gz"), folder.glob("wirehare-*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        (metadata,) = (name for name in files if name.endswith(".dist-info/METADATA"))
        about = email.message_from_bytes(archive.read(metadata))
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], check=True)
    site = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    # A path in a .pth file is searched; .pth files in it, such as that of an editable installation, are not read.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (sources,) = (folder / "unpacked").iterdir()
    return Built(sources, files, about, python)


@pytest.mark.dist
def test_the_wheel_holds_the_packages_with_their_data_and_no_tests(built: Built) -> None:
    top = {name.partition("/")[0] for name in built.files}
    assert {name for name in top if not name.endswith(".dist-info")} == {*PACKAGES, "wirehare.py"}
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(listed.stdout.split()) - built.files == set()
    assert [name for name in built.files if "__pycache__" in name] == []


@pytest.mark.dist
def test_the_sdist_holds_what_the_makefile_needs(built: Built) -> None:
    for name in (
        "Makefile",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "samples",
        "docs",
        "tests/captures",
        "pyproject.toml",
    ):
        assert (built.sources / name).exists(), name
    assert list(built.sources.rglob("__pycache__")) == []


@pytest.mark.dist
def test_the_wheel_has_its_metadata(built: Built) -> None:
    about = built.about
    assert (about["Name"], about["License-Expression"], about["Requires-Python"]) == (
        "wirehare",
        "Apache-2.0",
        ">=3.11",
    )
    assert about["Description-Content-Type"] == "text/markdown"
    assert about["Summary"]
    assert {"lake", "notebook"} <= set(about.get_all("Provides-Extra", []))
    assert any(name.startswith("pyspark") for name in about.get_all("Requires-Dist", []))


@pytest.mark.dist
def test_the_installed_wheel_runs_the_demo(built: Built, tmp_path: Path) -> None:
    found = built.run("python", "-c", "import codec, wirehare; print(codec.__file__)", folder=tmp_path)
    assert Path(found.strip()).is_relative_to(built.python.parents[1])
    assert built.run("wirehare", "--version", folder=tmp_path).startswith(
        f"wirehare {built.about['Version']}, pyspark "
    )
    samples = str(built.sources / "samples")
    printed = built.run(
        "wirehare", "nightly", samples, "--output", "out", "--report", "out.html", "--fail-on", "never", folder=tmp_path
    )
    assert "Messages: 81" in printed
    assert (tmp_path / "out" / "messages").is_dir()
    assert "CH-09" in (tmp_path / "out.html").read_text()


@dataclass(frozen=True)
class Ready:
    """An environment with a wheel that has kernels: `wheel`; `python`; `home`: an empty directory."""

    wheel: Path
    python: Path
    home: Path

    def run(self, *command: str) -> tuple[str, str, float]:
        """Standard output, standard error and seconds of a command without variables of ours and without Java."""
        own = {"HOME": str(self.home), "PATH": f"{self.python.parent}:/usr/bin:/bin", "JAVA_HOME": str(self.home)}
        started = time.monotonic()
        done = subprocess.run(command, cwd=self.home, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr, time.monotonic() - started


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    """Dependencies are those of this process."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheels = sorted((ROOT / "dist").glob(f"wirehare-*-{tag}-{tag}-*.whl"))
    if not wheels:
        pytest.fail("dist/ has no wheel for this Python: make dist")
    directory = tmp_path_factory.mktemp("ready")
    subprocess.run([sys.executable, "-m", "venv", str(directory / "env")], check=True)
    python = directory / "env" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheels[-1])], check=True)
    (site,) = (directory / "env" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (directory / "home").mkdir()
    return Ready(wheels[-1], python, directory / "home")


@pytest.mark.wheel
def test_a_wheel_with_kernels_is_small_and_names_the_numba_that_compiled_them(ready: Ready) -> None:
    assert ready.wheel.stat().st_size <= MOST_BYTES
    with zipfile.ZipFile(ready.wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        required = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
    assert f"numba=={version('numba')}" in required
    assert f"llvmlite=={version('llvmlite')}" in required
    for level in LEVELS:
        if {FLAGS.get(feature, feature) for feature in level.features} <= flags():
            marks = [name for name in names if name.startswith(f"codec/machine_code/{level.name}/complete-")]
            assert len(marks) == 1, level.name


@pytest.mark.wheel
def test_a_wheel_with_kernels_compiles_nothing_and_gives_the_rows_of_kernels_compiled_here(
    ready: Ready, tmp_path: Path
) -> None:
    capture = tmp_path / "usual.pcap"
    subprocess.run([sys.executable, "-m", "benchmarks.generate", str(capture), "--mb", "10"], cwd=ROOT, check=True)
    nightly = ("wirehare", "nightly", str(capture), "--fail-on", "never", "--output")
    _, noticed, seconds = ready.run(*nightly, "first", "--report", "first.html")
    assert "kernels" not in noticed.lower()  # no word about compiling
    assert list(ready.home.rglob("*.nb[ic]")) == []  # of numba
    assert list((ready.python.parents[1] / "lib").rglob("__pycache__/kernels-*/*")) == []
    assert b"<h1" in (ready.home / "first.html").read_bytes()
    assert seconds <= REPORT_S
    ready.run("python", "-c", HERE, str(ROOT), str(capture), "second")
    same = [sys.executable, str(ROOT / "tools" / "same_tables.py"), "second", "first"]
    compared = subprocess.run(same, cwd=ready.home, capture_output=True, text=True, check=False)
    assert compared.returncode == 0, compared.stdout
    assert "messages" in compared.stdout


# Decodes with the sources of this tree, whose kernels are compiled for the processor that is here.
HERE = """
import sys
sys.path.insert(0, sys.argv[1])
import codec, wirehare
assert codec.__file__.startswith(sys.argv[1])
wirehare.write(wirehare.LocalProcesses, sys.argv[2], sys.argv[3])
"""


def test_a_name_of_pyenv_whose_version_is_not_in_use_is_no_python(tmp_path: Path) -> None:
    """It is there, and ends with 127."""
    name = tmp_path / "python3.99"
    name.write_text("#!/bin/sh\necho pyenv: python3.99: command not found >&2\nexit 127\n")
    name.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "tools/matrix.py", str(name)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, f"{name}: is not here\n", "")
