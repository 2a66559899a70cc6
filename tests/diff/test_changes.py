"""`wirehare diff` against changes that were made on purpose (`record_changes.py`, `changes.py`): it names each among
its first ten differences, and names none where nothing changed but the load, the duration or the number of connections.
The recordings are in `recorded.tar.xz` with their manifest, but for large ones; those of `recorded_unseen.tar.xz` were
made after the comparison was written, to see what it misses. WIREHARE_CHANGES names a folder with others.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import write
from pipeline.diff import Difference, diff
from pipeline.run.local_processes import LocalProcesses

RECORDED = [Path(__file__).parent / f"{name}.tar.xz" for name in ("recorded", "recorded_unseen")]
LINES = 10
MISSED = 2  # of all changes, at most
OTHERS = ("amqp", "proton", "paced", "qpid", "tls", "rhea-tls", "many", "many-1.0", "jitter")
FALSE = 0.01  # of all comparisons of what is alike, at most


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "WIREHARE_CHANGES" in os.environ:
        return Path(os.environ["WIREHARE_CHANGES"])
    folder = tmp_path_factory.mktemp("changes")
    for recorded in RECORDED:
        with tarfile.open(recorded) as archive:
            archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def manifest(recordings: Path) -> Any:
    manifests = [json.loads(path.read_text()) for path in sorted(recordings.glob("MANIFEST*.json"))]
    changes = {name: change for each in manifests for name, change in each["changes"].items()}
    return {"changes": changes, "alike": [name for each in manifests for name in each["alike"]]}


@pytest.fixture(scope="module")
def tables(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """The tables of a recording, by its name; each is decoded once."""
    folder = tmp_path_factory.mktemp("tables")
    with LocalProcesses() as processes:

        def decoded(name: str) -> Path:
            if not (folder / name).exists():
                write(processes, [str(recordings / name)], str(folder / name))
            return folder / name

        yield decoded


def is_of(line: Difference, measure: str) -> bool:
    """Whether a difference is of a measure: of its name, and of an argument of this name."""
    name, _, argument = measure.partition(" ")
    return line.measure == name and argument in " ".join((line.item, *line.details))


@pytest.mark.parametrize("each", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_changes_are_among_the_first_lines(each: int, tables: Callable[[str], Path], manifest: Any) -> None:
    """Every thirteenth change, or all of them."""
    assert len(manifest["changes"]) >= 50
    for version, share in (("0-10", 5), ("1.0", 4)):
        assert sum(version in name for name in manifest["changes"]) * share >= len(manifest["changes"])
    missed = []
    for name, change in list(manifest["changes"].items())[::each]:
        found = diff(tables(change["before"]), tables(change["after"]))
        lines = [*found.differences, *found.unsure][:LINES]
        if not any(is_of(line, measure) for line in lines for measure in change["measures"]):
            missed.append(name)
    assert len(missed) <= (0 if each > 1 else MISSED), missed


@pytest.mark.parametrize("library", ["pika", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_what_is_alike_has_no_differences(library: str, tables: Callable[[str], Path], manifest: Any) -> None:
    """The same applications again, with half and double the load, the duration, the connections."""
    names = [name for name in manifest["alike"] if re.fullmatch(rf"alike-{library}-[a-z-]+\.pcap", name)]
    if not names:
        pytest.skip("large recordings, which record_changes.py makes")
    (again,) = (name for name in names if name.endswith("-again.pcap"))
    compared, false = 0, []
    for other in sorted({*names} - {again}):
        for before, after in ((again, other), (other, again)):
            found = diff(tables(before), tables(after))
            compared += found.equal + len(found.differences) + len(found.unsure)
            false += [(before, after, each.measure, each.before, each.after) for each in found.differences]
    assert compared > 1000
    assert len(false) <= FALSE * compared, false
