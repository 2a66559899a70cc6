"""The README is true: its commands run, its snippets run, its list of tables is the list of tables."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from jobs.cli import main
from pipeline.schemas import TABLES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
OURS = re.compile(r"(Spark started|\d+ captures? decoded|\d+ tables? written) in [\d.]+ s")
# What spark-submit says before a line of Python runs, and of the level that is then set.
SPARK_SUBMIT = re.compile(r"WARNING: Using incubator|Using Spark's|\d\d/\d\d/\d\d |Setting Spark log level")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> Iterator[list[str]]:
    """Every command line of the shell blocks, in words."""
    for block in blocks("sh"):
        yield from (words for line in block.splitlines() if (words := shlex.split(line, comments=True)))


def test_the_make_targets_exist() -> None:
    targets = [words[1] for words in commands() if words[0] == "make"]
    assert targets == ["demo", "test"]
    made = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(targets) <= set(re.findall(r"^make (\w+)", made, re.MULTILINE))


def test_the_list_of_tables_is_complete() -> None:
    assert re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE) == list(TABLES)


def test_the_commands_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = [words[1:] for words in commands() if words[0].endswith("bin/wirehare")]
    assert len(ours) == 3
    monkeypatch.chdir(ROOT)
    for words in ours:
        assert main([str(tmp_path / word) if word == "out" else word for word in words]) == 0
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["connections", "frames"]
    capsys.readouterr()


def test_the_spark_submit_line_runs(tmp_path: Path) -> None:
    (words,) = [words for words in commands() if words[0] == "spark-submit"]
    (home,) = pyspark.__path__
    environment = os.environ | {
        "SPARK_HOME": home,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),  # as an installed package would be found
    }
    ran = subprocess.run(
        [f"{home}/bin/spark-submit", *(str(tmp_path / word) if word == "out" else word for word in words[1:])],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stderr.splitlines()
    assert [line for line in lines if not OURS.fullmatch(line) and not SPARK_SUBMIT.match(line)] == []
    assert len([line for line in lines if SPARK_SUBMIT.match(line)]) < 15
    assert "The tables are in" in ran.stdout
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == sorted(TABLES)


def test_the_command_prints_only_our_lines(tmp_path: Path) -> None:
    """In a process of its own, where Spark, the JVM and pyspark would have their say."""
    ran = subprocess.run(
        [sys.executable, "-m", "jobs.cli", "decode", "samples", "--output", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert [line for line in ran.stderr.splitlines() if not OURS.fullmatch(line)] == []


def test_the_snippets_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["decode", "samples", "--output", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    names: dict[str, object] = {}
    for snippet in blocks("python"):
        exec(compile(snippet.replace('"out"', f'"{tmp_path}/out"'), "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "| operation|" in printed
    assert "|queue.declare|" in printed
