"""The README is true: its commands run, its snippets run, its list of tables is the list of tables."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from submitting import OF_SPARK, submitted

from jobs.cli import main
from jobs.summary import summary
from pipeline.audit.catalogue import catalogue
from pipeline.output import place
from pipeline.schemas import TABLES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
OURS = re.compile(r"(Spark started|\d+ captures? decoded|\d+ tables? written) in [\d.]+ s")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> Iterator[list[str]]:
    """Every command line of the shell blocks, in words."""
    for block in blocks("sh"):
        yield from (words for line in block.splitlines() if (words := shlex.split(line, comments=True)))


def test_the_make_targets_exist() -> None:
    targets = [words[1] for words in commands() if words[0] == "make"]
    assert targets == ["demo", "notebook", "test"]
    made = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(targets) <= set(re.findall(r"^make (\w+)", made, re.MULTILINE))


def test_the_list_of_tables_is_complete() -> None:
    assert re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE) == list(TABLES)


@pytest.fixture(scope="module")
def outputs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What the commands of the README write, in order; `out` is another directory for each."""
    ours = [words[1:] for words in commands() if words[0].endswith("bin/wirehare")]
    written = [tmp_path_factory.mktemp("readme") / "out" for _ in ours]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for words, out in zip(ours, written, strict=True):
            assert main([str(out) if word == "out" else word for word in words]) == 0
    return [out for out in written if out.exists()]


def test_the_commands_write_what_they_say(outputs: list[Path]) -> None:
    everything, some = outputs
    assert sorted(entry.name for entry in everything.iterdir()) == sorted(TABLES)
    assert sorted(entry.name for entry in some.iterdir()) == ["connections", "frames"]


def test_the_demo_prints_what_is_shown(outputs: list[Path]) -> None:
    (shown,) = blocks("text")
    tables = {name: place(str(outputs[0])).child(name).dataset() for name in TABLES}
    assert shown in summary(tables["captures"].to_table().to_pylist(), tables)


def test_the_spark_submit_line_runs(tmp_path: Path) -> None:
    (words,) = [words for words in commands() if words[0] == "spark-submit"]
    ran = submitted(*(str(tmp_path / word) if word == "out" else word for word in words[1:]), folder=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [line for line in ran.stderr.splitlines() if not OF_SPARK.match(line)] == []
    assert len(ran.stderr.splitlines()) < 15
    assert [bool(OURS.fullmatch(line)) for line in ran.stdout.splitlines()[:4]] == [True, True, True, False]
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
    outputs: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for snippet in blocks("python"):
        exec(compile(snippet.replace('"out"', f'"{outputs[0]}"'), "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "|operation|" in printed
    assert "|queue.declare|" in printed


def test_the_rules_are_counted_for_each_version() -> None:
    """As many as the catalogue has; in the README in a sentence, in the page about audits in a table."""
    counted = Counter(version for rule in catalogue().values() for version in rule.versions)
    (every, told) = re.findall(r"against (\d+) rules\s+\(([^)]*)\)", README)[0]
    assert int(every) == len(catalogue())
    in_words = {version: int(number) for number, version in re.findall(r"(\d+) (?:of them apply )?to ([\d.-]+)", told)}
    page = (ROOT / "docs" / "audit.md").read_text()
    in_table = {version: int(number) for version, number in re.findall(r"^\| ([\d.-]+) \| (\d+) \|$", page, re.M)}
    assert in_words == in_table == dict(counted)
    assert f"The catalogue has {len(catalogue())} rules:" in page


def test_the_speeds_compared_are_those_of_the_table() -> None:
    """From start to end as people run it, and in a session that runs already."""
    cells = re.findall(r"^\| (.*) \| ([\d.]+) \| [\d.]+ \| .*\|$", README, re.M)
    seconds = {name: float(number) for name, number in cells}

    def of(words: str) -> float:
        (number,) = (value for name, value in seconds.items() if name.startswith(words))
        return number

    whole, warm, frames = of("`wirehare decode`"), of("all nine tables"), of("`frames`")
    fields, ek = of("`tshark -T fields`"), of("`tshark -T ek`")
    (told,) = re.findall(r"^So from start to end .*?\.\n", README, re.M | re.S)
    assert re.findall(r"([\d.]+) times as fast|([\d.]+) times,", told) == [
        (f"{fields / whole:.1f}", ""), (f"{fields / warm:.1f}", ""), ("", f"{fields / frames:.1f}"),
    ]  # fmt: skip
    assert f"({whole} s against {fields} s)" in told
    assert "an\neleventh" in told
    assert 11 <= ek / warm < 12
