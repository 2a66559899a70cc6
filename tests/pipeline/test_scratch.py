"""What is written while a job runs: only its user can read it, and a killed run leaves it to the next one to remove."""

from __future__ import annotations

import gzip
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from commands import decode_with

from benchmarks.generate import generate
from pipeline.run import scratch
from udfs.workers import process_setup as processes

ROOT = Path(__file__).parents[2]
OTHERS = stat.S_IRWXG | stat.S_IRWXO
DIES_WITH_SCRATCH = """
import os, signal, sys
from pipeline.run.scratch import directories
print(directories({"spark.local.dir": sys.argv[1]}), flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def with_scratch(parent: Path, end: str) -> str:
    """The directory that a process made in `parent`, before it came to its `end`."""
    words = [sys.executable, "-c", DIES_WITH_SCRATCH, str(parent), end]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, umask=0)
    assert ran.returncode == (-signal.SIGKILL if end == "killed" else 0)
    return ran.stdout.strip()


def test_a_process_removes_its_scratch_when_it_ends(tmp_path: Path) -> None:
    assert Path(with_scratch(tmp_path, "well")).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_next_run_removes_scratch_of_a_killed_one(tmp_path: Path) -> None:
    killed = Path(with_scratch(tmp_path, "killed"))
    assert stat.S_IMODE(killed.stat().st_mode) == 0o700
    (killed / "blockmgr-1/0c").mkdir(parents=True)
    (killed / "blockmgr-1/0c/shuffle_0_0_0.data").write_bytes(b"secret")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"{scratch.PREFIX}link").symlink_to(elsewhere)
    (tmp_path / f"{scratch.PREFIX}open").mkdir(mode=0o755)  # made by somebody else
    living = scratch.private(str(tmp_path))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(
        ["elsewhere", f"{scratch.PREFIX}link", f"{scratch.PREFIX}open", Path(living).name]
    )
    with_scratch(tmp_path, "well")
    assert Path(living).is_dir()  # its process is alive
    scratch.private.cache_clear()


def test_scratch_of_another_user_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = with_scratch(tmp_path, "killed")
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    scratch.clean(str(tmp_path))
    assert Path(killed).is_dir()


def test_scratch_goes_where_spark_would_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(scratch.LOCAL_DIRS, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(f"# ours\nspark.master x\nspark.local.dir   {tmp_path}/defaults\n")
    parents = {"defaults": {}, "conf": {"spark.local.dir": f"{tmp_path}/conf"}}
    for name, conf in parents.items():
        assert Path(scratch.directories(conf)).parent == tmp_path / name
    monkeypatch.setenv(scratch.LOCAL_DIRS, f"{tmp_path}/one,{tmp_path}/two")
    result = [Path(directory) for directory in scratch.directories(parents["conf"]).split(",")]
    assert [directory.parent.name for directory in result] == ["one", "two"]
    scratch.private.cache_clear()


def process_umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def test_workers_restore_the_umask_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o027)
    try:
        with scratch.private_umask("somewhere"):
            assert process_umask() == 0o077
            assert processes.umask() == 0o027  # what a decode meanwhile publishes its tables with
            assert os.environ[scratch.LOCAL_DIRS] == "somewhere"
            program = "import os, udfs; print(oct(os.umask(0)))"
            ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        assert ran.stdout == "0o27\n"
        assert processes.umask() == 0o027
        assert processes.USER_UMASK not in os.environ
    finally:
        os.umask(before)


def readable(folder: Path) -> dict[str, str]:
    """What in a folder others could read or list, by mode; whatever goes while we look is passed over. What is in a
    directory that keeps others out counts too."""
    found = {}
    for directory, _, files in os.walk(folder):
        for path in (directory, *(os.path.join(directory, name) for name in files)):
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                continue
            if mode & OTHERS and Path(path) != folder:
                found[os.path.relpath(path, folder)] = oct(stat.S_IMODE(mode))
    return found


@pytest.mark.parametrize(("means", "shuffle_file"), [("Spark", r"shuffle_.*\.data"), ("processes", r".*\.arrow")])
def test_nothing_that_a_run_writes_meanwhile_can_be_read_by_others(
    tmp_path: Path, means: str, shuffle_file: str
) -> None:
    """A packed capture goes through the shuffle in one piece. Tables follow the umask of who asked for them."""
    temporary, work = tmp_path / "tmp", tmp_path / "work"
    temporary.mkdir()
    work.mkdir()
    generate(tmp_path / "a.pcap", 2_000_000, seed=5)
    (tmp_path / "a.pcap.gz").write_bytes(gzip.compress((tmp_path / "a.pcap").read_bytes(), 1))
    command = decode_with(means, str(tmp_path / "a.pcap.gz"), "--output", str(work / "out"))
    environment = {name: value for name, value in os.environ.items() if name != scratch.LOCAL_DIRS}
    run = subprocess.Popen(command, cwd=ROOT, env=environment | {"TMPDIR": str(temporary)}, umask=0o027)
    seen: dict[str, str] = {}
    shuffled, stages, over = set(), set(), threading.Event()
    while run.poll() is None:
        seen |= readable(temporary)
        for name in os.listdir(work):  # what is in a stage nobody else comes to, whatever its own mode
            if name.startswith(".wirehare-"):
                with suppress(FileNotFoundError):
                    stages.add((work / name).stat().st_mode)
        names = {name for _, _, files in os.walk(temporary) for name in files}  # passes over directories that go
        shuffled |= {name for name in names if re.fullmatch(shuffle_file, name)}
        over.wait(0.02)
    assert run.returncode == 0
    assert shuffled  # there was something to read
    assert seen == {}
    assert {stat.S_IMODE(mode) for mode in stages} == {0o700}
    assert list(temporary.iterdir()) == []
    modes = {path.is_dir(): oct(stat.S_IMODE(path.stat().st_mode)) for path in (work / "out").rglob("*")}
    assert modes == {True: "0o750", False: "0o640"}
    assert len({path.stat().st_mode for path in (work / "out").rglob("*")}) == 2
