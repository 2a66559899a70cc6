"""The README is true: its commands run from top to bottom in one shell, then its snippets run on what they wrote.

That takes minutes: `make readme-test`; what needs no shell belongs to all tests. The shell works in a folder that has
links to all that the tree holds. A `make` line would install things: it stands for a look at what its target needs.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from deployment import blocks
from pyspark.sql import SparkSession
from submitting import BRIEFLY, OF_SPARK

from codec.tables import TABLES
from jobs.terminal.summary import summarize, summary_text
from pipeline.audit.catalogue import catalogue
from pipeline.explore.sql import open_tables
from pipeline.output.place import place

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
OURS = re.compile(
    r"(Spark started|\d+ captures? decoded|\d+ tables? written) in [\d.]+ s"
    r"|Kernels are not compiled yet, .*"  # where only this test was asked for
)
WRITTEN = {"out", "audit.html", "audit.json", "closed.pcapng", "lake"}


LINES = [line for block in blocks(README, "sh") for line in block.splitlines() if line.strip()]


MADE = {
    "make demo": "grep -q 'wirehare nightly samples --output out --overwrite --report out.html' Makefile",
    "make spark-demo": "grep -q 'spark-submit .*jobs/nightly.py samples --output out-spark' Makefile",
    "make notebook": "test -f notebooks/1_first_look.ipynb && grep -q 'jupyterlab' pyproject.toml",
    "make test": "test -d tests",
    "make kernels": "grep -q '^kernels:' Makefile",
}


@dataclass(frozen=True)
class Run:
    """What became of a line."""

    code: int
    out: str
    error: str


@dataclass(frozen=True)
class Shell:
    folder: Path
    runs: dict[str, Run]

    def run(self, word: str) -> Run:
        """That of the first line that holds a word."""
        return next(run for line, run in self.runs.items() if word in line)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Every line of the shell blocks, run in one bash."""
    folder = tmp_path_factory.mktemp("readme")
    results = tmp_path_factory.mktemp("results")
    tree = [*ROOT.iterdir(), Path(sys.prefix)]
    for entry in tree:
        name = ".venv" if entry == Path(sys.prefix) else entry.name
        if name not in WRITTEN and not (folder / name).is_symlink() and (name != ".venv" or entry == tree[-1]):
            (folder / name).symlink_to(entry)
    script = ""
    for number, line in enumerate(LINES):
        command = MADE.get(line.partition("#")[0].strip(), line)
        script += (
            f"{{\n{command}\n}} >{results}/{number}.out 2>{results}/{number}.err\necho $? >{results}/{number}.code\n"
        )
    path = [each for each in os.environ["PATH"].split(os.pathsep) if Path(each) != Path(sys.prefix) / "bin"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    environment |= {"PATH": os.pathsep.join(path), "PYTHONPATH": str(folder), "SPARK_SUBMIT_OPTS": BRIEFLY}
    if environment.get("NUMBA_DISABLE_JIT"):  # numpy warns where kernels mean to overflow
        environment["PYTHONWARNINGS"] = "ignore::RuntimeWarning"
    subprocess.run(["bash", "-c", script], cwd=folder, env=environment, check=False, stdin=subprocess.DEVNULL)
    runs = {}
    for number, line in enumerate(LINES):
        code, out, error = ((results / f"{number}.{end}").read_text() for end in ("code", "out", "err"))
        runs[line] = Run(int(code), out, error)
    return Shell(folder, runs)


@pytest.mark.readme
def test_every_line_runs_in_one_shell_from_top_to_bottom(shell: Shell) -> None:
    assert {line: run.error for line, run in shell.runs.items() if run.code} == {}
    written = {entry.name for entry in shell.folder.iterdir() if not entry.is_symlink()}
    assert written - {"spark-warehouse"} == WRITTEN
    assert sorted(entry.name for entry in (shell.folder / "out").iterdir()) == sorted(TABLES)


def test_the_shell_runs_all_commands_of_the_readme() -> None:
    assert {shlex.split(line)[0] for line in LINES} == {"make", "source", "wirehare", "spark-submit"}
    assert {line.partition("#")[0].strip() for line in LINES if line.startswith("make")} == set(MADE)


def test_the_list_of_tables_is_complete() -> None:
    assert re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE) == list(TABLES)


@pytest.mark.readme
def test_the_demo_prints_the_documented_output(shell: Shell) -> None:
    """As a decode of the same captures does."""
    (output,) = blocks(README, "text")
    assert output in shell.run("wirehare decode").out
    out = str(shell.folder / "out")
    captures = place(out).child("captures").dataset().to_table().to_pylist()
    with open_tables(out) as session:
        assert output in summary_text(summarize(captures, session, TABLES))


@pytest.mark.readme
def test_a_command_prints_only_our_lines(shell: Shell) -> None:
    """Spark, the JVM and pyspark would have their say. What to do next is a line of the README, or like one."""
    decode, audit = shell.run("wirehare decode"), shell.run("wirehare audit")
    assert [line for line in decode.error.splitlines() if not OURS.fullmatch(line)] == []
    assert decode.out.splitlines()[-1] == "Next: wirehare audit out --report audit.html"
    assert re.search(r": wirehare cut out --finding \S+ -o \S+\.pcapng$", audit.out.splitlines()[-1])


@pytest.mark.readme
def test_what_spark_submit_prints(shell: Shell) -> None:
    """Spark puts what Python writes to stderr into stdout."""
    run = shell.run("spark-submit")
    assert [line for line in run.error.splitlines() if not OF_SPARK.match(line)] == []
    assert len(run.error.splitlines()) < 15
    assert [bool(OURS.fullmatch(line)) for line in run.out.splitlines()[:4]] == [True, True, True, False]
    assert "The tables are in" in run.out


@pytest.mark.readme
def test_the_snippets_run(
    spark: SparkSession, shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shell.folder)
    names: dict[str, object] = {}
    for snippet in blocks(README, "python"):
        exec(compile(snippet, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "|operation|" in printed
    assert "|queue.declare|" in printed


def test_the_number_of_rules_is_not_exaggerated() -> None:
    (number,) = re.findall(r"against more than (\d+) rules", README)
    assert int(number) <= len(catalogue())


def test_the_speeds_compared_are_those_of_the_table() -> None:
    """From start to end as people run it, and in a running session."""
    cells = re.findall(r"^\| (.*) \| ([\d.]+) \| [\d.]+ \| .*\|$", README, re.M)
    seconds = {name: float(number) for name, number in cells}

    def of(words: str) -> float:
        (number,) = (value for name, value in seconds.items() if name.startswith(words))
        return number

    command, warm, frames = of("`wirehare decode`"), of("all nine tables"), of("`frames`")
    fields = of("`tshark -T fields`")
    (sentence,) = re.findall(r"^From start to end .*? times\.", README, re.M | re.S)
    assert re.findall(r"([\d.]+) times as fast|([\d.]+) times\.", sentence) == [
        (f"{fields / command:.1f}", ""), (f"{fields / warm:.1f}", ""), ("", f"{fields / frames:.1f}"),
    ]  # fmt: skip
    assert f"({command} s against {fields} s)" in sentence
