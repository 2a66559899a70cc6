"""The notebooks: valid, executed, without warnings, small, without local paths; the first is run here, all of them by
`make notebook-test`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# One opens in a browser, and in a code review.
LARGEST_BYTES = 300_000

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_of(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def ending(source: str) -> str:
    """The last statement of a cell."""
    return ast.unparse(ast.parse(source).body[-1])


def test_the_notebooks_exist() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["1_", "2_", "3_", "4_", "5_"]


@each
def test_a_notebook_is_valid_and_its_outputs_are_those_of_one_run(path: Path) -> None:
    nbformat.validate(nbformat.read(path, as_version=4))
    cells = code_of(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    # What a cell ends with is printed, unless that is an assignment.
    silent = [cell.source for cell in cells if not cell.outputs]
    assert [source for source in silent if not re.match(r"\w+ = ", ending(source))] == []


@each
def test_a_notebook_begins_with_the_import_that_a_person_needs(path: Path) -> None:
    first = code_of(path)[0].source
    assert first.startswith("import wirehare\n")
    assert "import pipeline" not in path.read_text()


@each
def test_a_notebook_shows_neither_errors_nor_noise(path: Path) -> None:
    kinds = [output.output_type for cell in code_of(path) for output in cell.outputs]
    assert kinds
    assert set(kinds) <= {"execute_result", "display_data"}  # no error, nothing on stdout or stderr


@each
def test_a_notebook_is_small_and_has_no_local_paths(path: Path) -> None:
    text = path.read_text()
    assert len(text.encode()) < LARGEST_BYTES
    assert not re.search(r"file:/|(?<![\w.:/])/(work|root|home|Users|tmp|var)/\w", text)
    assert not re.search(r"<(script|link|img)\b|https?://(?!www\.w3\.org/)", "".join(map(str, code_of(path))))


@each
def test_paths_in_a_notebook_exist(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    captures = [name for cell in code_of(path) for name in re.findall(r'"([\w./*]+\.pcap[\w.]*)"', cell.source)]
    links = [
        name for cell in cells if cell.cell_type == "markdown" for name in re.findall(r"\]\(([\w./]+)\)", cell.source)
    ]
    assert captures
    assert [name for name in captures + links if not list(path.parent.glob(name))] == []


def test_the_first_notebook_runs(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process and its Spark session, which was started in another directory: what its cells compute, without a
    kernel's start."""
    first = NOTEBOOKS[0]
    names: dict[str, Any] = {}
    monkeypatch.chdir(first.parent)
    for number, cell in enumerate(code_of(first)):
        exec(compile(cell.source, f"{first.name}, cell {number}", "exec"), names)
    frames = names["tables"].frames.count()
    names["tables"].release()
    # Wireshark counts 116 frames in this capture (samples/README.md), without the protocol header.
    assert frames == 117
