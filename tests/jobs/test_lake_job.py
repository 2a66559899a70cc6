"""The commands of a lake: their words, their loop, and one clear line for what they cannot do."""

from __future__ import annotations

import argparse
import builtins
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import golden
import pytest
from lake_support import commit, new_lake, rows_of_lake, rows_of_table
from lake_work import rotated
from test_lake_commits import FRIDAY, MONDAY, captured_on

import pipeline
from codec.tables import TABLES
from jobs import ingest
from jobs.cli import main
from jobs.terminal.running import FAILED, OK, USAGE
from pipeline.lake.opening import locked, open_or_create_lake
from pipeline.run.local_processes import LocalProcesses
from udfs.source.paths import PathError

SESSION = golden.captures()["091_tx.pcap"].paths[0]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("5m", 300), ("1.5h", 5400), ("7d", 604800), ("250ms", 0.25)]
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert ingest.length(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 weeks", "1h30"])
def test_invalid_lengths_of_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected one like 30s, 5m, 1h or 7d"):
        ingest.length(text)


class Looks:
    """Stands in for an ingest: the first look finds no capture, later ones find some."""

    copies = (("b.pcap", "a.pcap"),)
    unsettled = 0

    def __init__(self) -> None:
        self.number = 0

    def batches(self, _: Any) -> Iterator[dict[str, Any]]:
        self.number += 1
        if self.number == 1:
            raise PathError("no capture file is there")
        counts = dict.fromkeys(("bytes", "packets", "frames", "damaged_files", "late_files", "ahead_files"), 0)
        more = dict.fromkeys(("open_connections", "forgotten_connections", "unread_states", "seconds"), 0)
        yield {**counts, **more, "batch": self.number, "files": 1, "lag_ns": None}


def test_an_ingest_looks_again_and_again(capsys: pytest.CaptureFixture[str]) -> None:
    looks, waits = Looks(), list[float]()

    class Over(Exception):
        pass

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise Over

    arguments = SimpleNamespace(captures=["captures"], once=False, every=60.0, prog="wirehare ingest")
    with pytest.raises(Over):
        ingest.rounds(looks, arguments, wait)  # type: ignore[arg-type]
    printed = capsys.readouterr()
    assert [line.split(":")[0] for line in printed.out.splitlines()] == ["Batch 2", "Batch 3"]
    assert "b.pcap: is the capture a.pcap, which was ingested already" in printed.err
    assert all(59 < seconds <= 60 for seconds in waits)


def test_an_ingest_that_finds_nothing_new_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    looks = SimpleNamespace(batches=lambda _: iter(()), copies=(), unsettled=0)
    arguments = SimpleNamespace(captures=["captures"], once=True, prog="wirehare ingest")
    assert ingest.rounds(looks, arguments) == 0  # type: ignore[arg-type]
    assert capsys.readouterr().err == "No new captures\n"


def test_a_second_ingest_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, capture = tmp_path / "lake", tmp_path / "some.pcap"
    capture.touch()
    with locked(open_or_create_lake(str(lake))):
        assert main(["ingest", str(capture), "--lake", str(lake), "--once"]) == USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert "is running on this lake" in line


def test_directories_that_are_not_a_lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").touch()
    for command in (["lake", str(tmp_path)], ["ingest", "some.pcap", "--lake", str(tmp_path), "--once"]):
        assert main(command) == USAGE
        (line,) = capsys.readouterr().err.splitlines()
        assert "is not a lake" in line


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = builtins.__import__

    def missing(name: str, *arguments: Any, **named: Any) -> Any:
        if name.split(".")[0] == "deltalake":
            raise ImportError(name)
        return found(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert main(["ingest", "some.pcap", "--lake", str(tmp_path / "lake"), "--once"]) == USAGE
    assert "pip install 'wirehare[lake]'" in capsys.readouterr().err


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    found = tmp_path / "small"
    found.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(found)], capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system")
    try:
        yield found
    finally:
        subprocess.run(["umount", "--lazy", str(found)], check=True)  # what failed may still have files open


# Full while tables are created, and in the first and the third batch.
@pytest.mark.parametrize(
    "kilobytes", [80, 360, 680, *(pytest.param(size, marks=pytest.mark.slow) for size in (200, 440, 520, 600, 760))]
)
def test_a_full_disk_is_one_line_and_with_room_nothing_is_lost(
    tmp_path: Path, small: Path, kilobytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces, lake, output = list(rotated(SESSION, tmp_path / "captures", 3)), small / "lake", tmp_path / "out"

    def grown(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(small)], check=True)

    def ingested(captures: list[Path]) -> int:
        return main(["ingest", *map(str, captures), "--lake", str(lake), "--once", "--settle", "0", "--quiet"])

    grown(f"{kilobytes}k")
    codes = [ingested(pieces[:end]) for end in (1, 2, 3)]
    complaints = capsys.readouterr().err.splitlines()
    assert FAILED in codes
    assert len(complaints) == codes.count(FAILED)
    assert all(line.startswith("wirehare ingest: No space left on device") for line in complaints)
    grown("100m")
    assert ingested(pieces) == OK
    pipeline.write(LocalProcesses(), list(map(str, pieces)), str(output))
    for name in TABLES:
        assert rows_of_lake(lake, name) == rows_of_table(name, (output / name).glob("*.parquet")), name


def test_the_maintenance_commands_of_a_lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = new_lake(tmp_path / "lake")
    for batch, day in enumerate([FRIDAY, FRIDAY, MONDAY], 1):
        commit(log, batch, [batch], [100], day)
        captured_on(log, batch, day)
    assert main(["lake", str(tmp_path / "lake"), "--compact"]) == OK
    assert capsys.readouterr().out.startswith("6 files compacted into 3")
    assert main(["lake", str(tmp_path / "lake"), "--expire", "1d"]) == OK
    assert capsys.readouterr().out.startswith("3 files dropped")
    assert main(["lake", str(tmp_path / "lake")]) == OK
    printed = capsys.readouterr().out
    assert "Batch 3." in printed
    assert str(FRIDAY) not in printed
