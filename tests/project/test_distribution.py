"""The sdist and the wheel, built from the files under version control: what they contain, and the demo run from the
wheel in an environment of its own (make dist-test)."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"codec", "udfs", "pipeline", "jobs"}
pytestmark = pytest.mark.dist


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


def test_the_wheel_holds_the_packages_with_their_data_and_no_tests(built: Built) -> None:
    top = {name.partition("/")[0] for name in built.files}
    assert {name for name in top if not name.endswith(".dist-info")} == {*PACKAGES, "wirehare.py"}
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(listed.stdout.split()) - built.files == set()
    assert [name for name in built.files if "__pycache__" in name] == []


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
