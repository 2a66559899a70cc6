"""The steps of examples/kubernetes/Dockerfile, run in a directory instead of an image, and what the CronJob then does.

Run by `make cluster-test`. What is not run: the base image, and packages of Debian, which are only looked up.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import venv
from dataclasses import dataclass, field
from pathlib import Path

import golden
import pytest
from deployment import environment
from standalone_cluster import ROOT

from pipeline.lake.log import Log
from pipeline.lake.opening import open_lake

pytestmark = pytest.mark.cluster

EXAMPLES = ROOT / "examples" / "kubernetes"


def steps() -> list[tuple[str, str]]:
    """Instruction, words."""
    text = re.sub(r"\\\n\s*", "", (EXAMPLES / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, words) for name, _, words in (line.partition(" ") for line in lines)]


@dataclass
class Image:
    """What a build has made below `root`, with a Python of its own."""

    root: Path
    folder: str = "/"
    environment: dict[str, str] = field(default_factory=environment)
    entrypoint: list[str] = field(default_factory=list)

    def here(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def run(self, command: list[str], folder: Path) -> None:
        subprocess.run(command, cwd=folder, env=self.environment, check=True)


def copied(target: Path) -> None:
    """What git knows but for what .dockerignore leaves out."""
    ignored = {line for line in (ROOT / ".dockerignore").read_text().splitlines() if "*" not in line}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if name.split("/")[0] not in ignored and (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    built = Image(tmp_path_factory.mktemp("image"))
    python = built.here("python")
    venv.create(python, with_pip=True)
    (site,) = python.glob("lib/python*/site-packages")
    # What is needed of others is here; nothing of it is downloaded again.
    (site / "here.pth").write_text(sysconfig.get_path("purelib") + "\n")
    built.environment["PATH"] = os.pathsep.join([str(python / "bin"), built.environment["PATH"]])
    for name, words in steps():
        match name:
            case "COPY":
                copied(built.here(words.split()[1]))
            case "WORKDIR":
                built.folder = words
            case "ENV":
                key, _, value = words.partition("=")
                built.environment[key] = value
            case "RUN" if "apt-get" not in words:
                built.run(["bash", "-euc", words], built.here(built.folder))
            case "ENTRYPOINT":
                built.entrypoint = re.findall(r'"([^"]*)"', words)
    return built


def test_the_base_image_has_a_python_that_is_supported_and_the_packages() -> None:
    (base,) = (words for name, words in steps() if name == "FROM")
    major, minor, release = re.fullmatch(r"python:(\d+)\.(\d+)-slim-(\w+)", base).groups()  # type: ignore[union-attr]
    assert (int(major), int(minor)) >= (3, 11)
    known = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    if known.get("VERSION_CODENAME") != release or shutil.which("apt-cache") is None:
        pytest.skip(f"packages of {release} are not known here")
    (install,) = (words for name, words in steps() if name == "RUN" and "apt-get" in words)
    words = shlex.split(install[install.index("install") : install.index("&& rm")])
    for package in [word for word in words[1:] if not word.startswith("-")]:
        subprocess.run(["apt-cache", "show", package], check=True, stdout=subprocess.DEVNULL)


def test_the_job_takes_captures_into_a_lake(image: Image, tmp_path: Path) -> None:
    (arguments,) = re.findall(r"args: \[(.*)\]", (EXAMPLES / "cronjob.yaml").read_text())
    words = [word.replace("/data", str(tmp_path)) for word in re.findall(r'"([^"]*)"', arguments)]
    (tmp_path / "captures").mkdir()
    shutil.copy(golden.captures()["091_tx.pcap"].paths[0], tmp_path / "captures")
    os.utime(tmp_path / "captures" / "091_tx.pcap", (0, 0))
    program = image.here("python/bin") / image.entrypoint[0]
    assert program.exists()
    image.run([str(program), *image.entrypoint[1:], *words], tmp_path)
    assert Log(open_lake(str(tmp_path / "lake"))).batch("captures") == 1
