"""The README is true, and so are docs/commands.md and docs/python.md: their commands run from top to bottom in one
shell, then their snippets run on what these wrote.

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
from jobs.cli import command_line
from jobs.terminal.summary import summarize, summary_text
from pipeline.audit.catalogue import catalogue
from pipeline.explore.duckdb_tables import open_tables
from pipeline.output.location import location

ROOT = Path(__file__).parents[2]
README, COMMANDS, PYTHON, PERFORMANCE = (
    (ROOT / name).read_text() for name in ("README.md", "docs/commands.md", "docs/python.md", "docs/performance.md")
)
OURS = re.compile(
    r"(Spark started|\d+ captures? decoded|\d+ tables? written) in [\d.]+ s"
    r"|Kernels are not compiled yet, .*"  # where only this test was asked for
)
WRITTEN = {"out", "audit.html", "audit.json", "closed.pcapng", "lake", "nightly", "nightly.html"}
SCREEN = 40  # lines


LINES = [
    line for page in (README, COMMANDS) for block in blocks(page, "sh") for line in block.splitlines() if line.strip()
]


REPLACEMENTS = {
    "make demo": "grep -q 'wirehare nightly samples --output out --overwrite --report out.html' Makefile",
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
        command = REPLACEMENTS.get(line.partition("#")[0].strip(), line)
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
    assert {line.partition("#")[0].strip() for line in LINES if line.startswith("make")} == set(REPLACEMENTS)


def test_the_readme_fits_on_four_screens() -> None:
    assert len(README.splitlines()) <= 4 * SCREEN


def test_the_list_of_tables_is_complete() -> None:
    """It is the last one of the README that begins with words of code."""
    assert re.findall(r"^\| `(\w+)` \|", README.partition("## The tables")[2], re.MULTILINE) == list(TABLES)


def test_each_command_is_on_the_page_of_commands() -> None:
    listed = {name for row in re.findall(r"^\| (`.*?) \| ", COMMANDS, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert listed == {*command_line().commands}


@pytest.mark.readme
def test_the_demo_prints_the_documented_output(shell: Shell) -> None:
    """As a decode of the same captures does; and `explain` says what is shown."""
    output, why = blocks(README, "text")
    assert output in shell.run("wirehare decode").out
    answers = shell.run("wirehare explain").out
    assert [line for line in why.replace("...", "").splitlines() if line.partition("file://")[0] not in answers] == []
    out = str(shell.folder / "out")
    captures = location(out).child("captures").dataset().to_table().to_pylist()
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
    for page in (README, PYTHON):
        for snippet in blocks(page, "python"):
            exec(compile(snippet, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "|operation|" in printed
    assert "|queue.declare|" in printed


def test_the_number_of_rules_is_not_exaggerated() -> None:
    (number,) = re.findall(r"checks more than (\d+) rules", README)
    assert int(number) <= len(catalogue())


def test_the_speeds_compared_are_those_of_the_table() -> None:
    """From start to end as people run it, and in a running session."""
    cells = re.findall(r"^\| (.*) \| ([\d.]+) \| [\d.]+ \| .*\|$", PERFORMANCE, re.M)
    seconds = {name: float(number) for name, number in cells}

    def of(words: str) -> float:
        (number,) = (value for name, value in seconds.items() if name.startswith(words))
        return number

    command, warm, frames = of("`wirehare decode`"), of("all nine tables"), of("`frames`")
    fields = of("`tshark -T fields`")
    (sentence,) = re.findall(r"^From start to end .*? times\.", PERFORMANCE, re.M | re.S)
    assert re.findall(r"([\d.]+) times as fast|([\d.]+) times\.", sentence) == [
        (f"{fields / command:.1f}", ""), (f"{fields / warm:.1f}", ""), ("", f"{fields / frames:.1f}"),
    ]  # fmt: skip
    assert f"({command} s against {fields} s)" in sentence
