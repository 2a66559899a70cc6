"""`wirehare report`: the report of tables and findings that are there already, without Spark and Java."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from audit_support import FOUND, HOSTILE_QUEUE, write_table, write_tables
from object_store import KEY, SECRET, object_store

from jobs.cli import main
from jobs.report import only
from pipeline.audit.catalogue import catalogue
from pipeline.audit.config import Config
from pipeline.report.facts import rules_of


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_tables(tmp_path_factory.mktemp("report") / "tables")
    write_table(directory, "findings", FOUND)
    return directory


def report(*argv: object) -> int:
    return main(["report", *map(str, argv)])


def test_the_report_of_saved_findings(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, document = tmp_path / "audit.html", tmp_path / "audit.json"
    assert report(tables, "--report", page, "--json", document, "--title", "Orders & more") == 1
    out, error = capsys.readouterr()
    assert out.startswith("1 violation and 4 warnings in 3 of 3 connections. Counted in ")
    assert re.search(
        r"^  NM-03   NM-03 is broken. 2 findings: pika guest@10.0.0.7:50001, pika guest@", out, re.MULTILINE
    )
    assert [line.partition(" in ")[0] for line in error.splitlines()] == ["Report counted", "Report written"]
    assert "Orders &amp; more" in page.read_text()
    assert HOSTILE_QUEUE not in page.read_text()
    verdict = json.loads(document.read_text())["verdict"]
    assert (verdict["violation"], verdict["warning"], verdict["info"], verdict["affected"]) == (1, 4, 1, 3)
    assert not list(tables.parent.glob(".wirehare*"))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no list of processes in files")
def test_no_java_starts(tables: Path, tmp_path: Path) -> None:
    """Neither as a child, nor in the list of processes of its session."""
    page = tmp_path / "audit.html"
    command = [sys.executable, "-m", "jobs.cli", "report", str(tables), "--report", str(page), "--fail-on", "never"]
    started = subprocess.Popen(command, cwd=Path(__file__).parents[2], start_new_session=True)
    names = set()
    while started.poll() is None:
        names |= {name for session, name in processes() if session == started.pid}
        time.sleep(0.02)
    assert started.returncode == 0
    assert page.exists()
    assert names
    assert not [name for name in names if "java" in name]


def processes() -> list[tuple[int, str]]:
    """(session, name) of all processes."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdigit() else ""
        except OSError:  # it has ended
            continue
        if stat:
            name, _, rest = stat.partition("(")[2].rpartition(")")
            found.append((int(rest.split()[3]), name))
    return found


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no list of processes in files")
def test_the_list_of_processes_has_this_one() -> None:
    assert os.getsid(0) in {session for session, _ in processes()}


def test_tables_in_a_store(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are read through Arrow; the same numbers come out."""
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    assert report(tables, "--report", tmp_path / "a.html", "--json", here) == 1
    with object_store() as store:
        target = store.uri("tables")
        for table in tables.iterdir():
            store.put(*table.iterdir(), folder=f"tables/{table.name}")
        assert report(target, "--report", tmp_path / "b.html", "--json", there) == 1
    assert verdicts(here) == verdicts(there)
    printed = "".join(capsys.readouterr())
    assert not [text for text in (printed, (tmp_path / "b.html").read_text()) if SECRET in text or KEY in text]


def verdicts(path: Path) -> object:
    found = json.loads(path.read_text())
    for entry in found["findings"]:
        entry["first"].pop("cut")  # names the directory
    return found["verdict"], found["findings"], found["captures"], found["first_packet_ns"]


def test_without_findings_it_says_who_finds_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(write_tables(tmp_path / "tables"), "--report", tmp_path / "audit.html") == 3
    line = "has no table findings; `wirehare audit` writes it"
    assert capsys.readouterr().err == f"wirehare report: {tmp_path / 'tables'}: {line}\n"
    assert not (tmp_path / "audit.html").exists()


def test_findings_that_cannot_be_read_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(write_tables(tmp_path / "tables"), "findings", FOUND)
    (file,) = (tmp_path / "tables" / "findings").glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[4:400] = bytes(396)  # the footer is intact, its columns are not
    file.write_bytes(data)
    assert report(tmp_path / "tables", "--report", tmp_path / "audit.html") == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"wirehare report: {tmp_path / 'tables'}: cannot be counted (")
    assert not (tmp_path / "audit.html").exists()


def of_rules(*names: str, disabled: tuple[str, ...] = ()) -> set[str]:
    return {*rules_of(only(Config(disabled=disabled), names))}


def test_an_audit_of_some_rules() -> None:
    everything = {*catalogue()}
    assert of_rules("R4") == {name for name in everything if name.startswith("R4-")}
    assert of_rules("CH-09", "CL-04") == {"CH-09", "CL-04"}
    assert of_rules("CH-09", "CL") == {"CH-09", *(name for name in everything if name.startswith("CL-"))}
    assert of_rules("CL", disabled=("CL-04",)) == of_rules("CL") - {"CL-04"}


def test_a_rule_that_is_unknown_is_one_line(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(tables), "--rules", "R5"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("wirehare audit: --rules: there is no rule or group 'R5'")
    assert error.count("\n") == 1
