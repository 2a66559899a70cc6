"""`wirehare explain` against faults that were made on purpose (`record.py`, `faults.py`), or written packet by packet
(`scripted.py`): the cause that it names is the fault. Of each fault one recording is in `recorded.tar.xz` with its
manifest; WIREHARE_FAULTS names a folder with more.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from rule_support import Case, write_cases
from scripted import FAULTS, QUEUES

from pipeline import write
from pipeline.explain import explain, explain_worst
from pipeline.explore.duckdb_tables import Session, connect, open_tables
from pipeline.run.local_processes import LocalProcesses

RECORDED = Path(__file__).parent / "recorded.tar.xz"


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "WIREHARE_FAULTS" in os.environ:
        return Path(os.environ["WIREHARE_FAULTS"])
    folder = tmp_path_factory.mktemp("faults")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    return folder


def first_cause(session: Session, subject: str | None) -> str:
    """The cause of the first answer; 'nothing' if nothing is wrong."""
    if subject == "message":
        rows = session.rows(
            "SELECT connection_id, first_frame_no FROM messages WHERE operation = 'publish' OR outcome = 'rejected' "
            "ORDER BY outcome = 'rejected' DESC, ts_ns LIMIT 1"
        )
        subject = f"{rows[0]['connection_id']}/{rows[0]['first_frame_no']}"
    answers = explain(session, subject)
    return answers[0].cause if answers else "nothing"


def test_the_first_cause_is_the_fault(recordings: Path, tmp_path: Path) -> None:
    faults = json.loads((recordings / "MANIFEST.json").read_text())
    assert len({name.rpartition("-")[0] for name in faults}) >= 40
    found = Counter[str]()
    others = list[str]()
    with LocalProcesses() as processes:
        for name, fault in faults.items():
            write(processes, [str(recordings / name)], str(tmp_path / name))
            with connect(str(tmp_path / name)) as session:
                cause = first_cause(session, fault["subject"])
            expected = "nothing" if fault["cause"] in ("closed", "still-open") else fault["cause"]
            found[{expected: "right", "encrypted": "untold", "not-known": "untold"}.get(cause, "wrong")] += 1
            if cause != expected:
                others.append(f"{name}: {cause} instead of {expected}")
    assert not others
    assert found["right"] == len(faults)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[int, str]]:
    """The tables of all FAULTS, and the names of these by client port."""
    folder = tmp_path_factory.mktemp("scripted")
    names = list(FAULTS)
    owner = write_cases(
        folder / "faults.pcap", [Case(name, "0-9-1", connections, []) for name, (connections, _) in FAULTS.items()]
    )
    with LocalProcesses() as processes:
        write(processes, [str(folder / "faults.pcap")], str(folder / "tables"))
    return str(folder / "tables"), {port: names[at] for port, (at, *_) in owner.items()}


def test_the_first_cause_is_what_was_scripted(scripted: tuple[str, dict[int, str]]) -> None:
    found = dict[str, str]()
    with connect(scripted[0]) as session:
        for row in session.rows("SELECT connection_id, client_port FROM connections"):
            (answer,) = explain(session, str(row["connection_id"]))
            found[scripted[1][row["client_port"]]] = answer.cause if answer.weight else "nothing"
    assert found == {name: cause for name, (_, cause) in FAULTS.items()}


def test_the_report_explains_what_went_wrong(scripted: tuple[str, dict[int, str]]) -> None:
    """The answers, and how many connections they lack, are the faults, but for those that cost little."""
    cheap = {"nothing", "delayed-acknowledgements", "channel-churn", "polling", "gaps", "one-direction", "last-packets"}
    causes = Counter(cause for _, cause in FAULTS.values() if cause not in cheap)
    with open_tables(scripted[0]) as session:
        answers, more = explain_worst(session, 100)
        found = Counter[str]()
        for answer in answers:
            if answer.cause not in cheap:
                found[answer.cause] += answer.connections
            assert answer.events[-1].text.startswith(("ends", "resets", "is open"))
        assert (found, more) == (causes, 0)
        few, rest = explain_worst(session, 15)
        assert [each.weight for each in few] == sorted((each.weight for each in answers), reverse=True)[:15]
        assert rest == sum(each.connections for each in answers) - sum(each.connections for each in few)


@pytest.mark.parametrize("name", QUEUES)
def test_why_messages_wait_is_what_was_scripted(name: str, tmp_path: Path) -> None:
    connections, cause = QUEUES[name]
    write_cases(tmp_path / "queue.pcap", [Case(name, "0-9-1", connections, [])])
    with LocalProcesses() as processes:
        write(processes, [str(tmp_path / "queue.pcap")], str(tmp_path / "tables"))
    with connect(str(tmp_path / "tables")) as session:
        (answer,) = explain(session, "q")
    assert (answer.cause, answer.told) == (cause, True)
