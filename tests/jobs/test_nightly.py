"""`wirehare nightly`: what the two jobs say and write, in one session; which of their exit codes counts."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset
import pytest
from audit_support import only
from pyspark.sql import SparkSession
from submitting import OF_SPARK, ROOT, submitted

from codec.tables import TABLES
from jobs import audit, decode, report
from jobs.cli import command_line, main

CAPTURE = ROOT / "samples" / "091_declare_publish_consume_ack.pcap"
WRITTEN = ("--output", "tables", "--report", "audit.html", "--json", "audit.json")


def nightly(*argv: object) -> int:
    """The exit code of `wirehare nightly`."""
    return main(["nightly", *map(str, argv)])


def options(job: str) -> set[str]:
    """The options of a job."""
    parser = command_line().commands[job]
    return {name for action in parser._actions for name in action.option_strings}


def rows(directory: Path, table: str) -> list[str]:
    """The rows of a table in any order; where a capture lies is the same in both runs."""
    found = pyarrow.dataset.dataset(directory / table, format="parquet").to_table().to_pylist()
    return sorted(map(repr, found))


def test_nightly_takes_the_options_of_decode_and_audit() -> None:
    # An audit needs all tables, so that there is nothing to choose.
    without = {"--tables", "--since", "--until"}
    assert options("nightly") | without == options("decode") | options("audit")


@pytest.fixture(scope="module")
def apart(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `captures` and `audit.toml`, and what the two commands write of them: `tables`, `audit.html`,
    `audit.json`."""
    folder = tmp_path_factory.mktemp("apart")
    (folder / "captures").mkdir()
    # Behind the last record the header of one that claims 2**32 - 1 bytes.
    (folder / "captures" / "torn.pcap").write_bytes(CAPTURE.read_bytes() + b"\xff" * 16)
    tables, report, json_path = (str(folder / name) for name in ("tables", "audit.html", "audit.json"))
    rules = ("--config", str(only(folder, "CH", "SEC", "CAP")))
    assert main(["decode", str(folder / "captures"), "--output", tables]) == 3
    assert main(["audit", tables, "--report", report, "--json", json_path, "--fail-on", "never", *rules]) == 0
    return folder


def test_submitted_from_anywhere_it_writes_what_the_two_commands_write(apart: Path, tmp_path: Path) -> None:
    job, rules = str(ROOT / "jobs" / "nightly.py"), ("--config", str(apart / "audit.toml"))
    ran = submitted(job, str(apart / "captures"), *WRITTEN, "--fail-on", "never", *rules, folder=tmp_path)
    assert ran.returncode == 3, ran.stdout + ran.stderr
    # Spark puts what goes to stderr into stdout, and keeps stderr for itself.
    assert [line for line in ran.stderr.splitlines() if not OF_SPARK.match(line)] == []
    lines = [line for line in ran.stdout.splitlines() if " ... " not in line]  # of steps that take long
    assert lines[0].startswith("Spark started in ")
    (damaged,) = (line for line in lines if line.startswith("wirehare nightly: "))
    assert "torn.pcap: the record at byte" in damaged
    assert "The tables are in" in ran.stdout
    assert lines[-2] == f"The report is {tmp_path / 'audit.html'}"
    assert lines[-1].endswith("wirehare cut tables --finding SEC-01 -o sec-01.pcapng")

    assert {entry.name for entry in tmp_path.iterdir()} == {"tables", "audit.html", "audit.json"}
    for table in (*TABLES, "findings"):
        assert rows(tmp_path / "tables", table) == rows(apart / "tables", table), table
    one, other = (json.loads((folder / "audit.json").read_text()) for folder in (tmp_path, apart))
    assert one["findings"]
    for group in (*one["findings"], *other["findings"]):
        group["first"]["cut"] = re.sub(r"cut \S*tables ", "cut tables ", str(group["first"]["cut"]))
    assert (one["findings"], one["verdict"]) == (other["findings"], other["verdict"])
    assert "torn.pcap" in (tmp_path / "audit.html").read_text()


def test_standard_output_for_other_programs_is_only_the_audit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def decoding(*_: object) -> tuple[str, int]:
        print("The tables are in out")
        return "session", 0

    def auditing(*_: object) -> int:
        print("{}")
        return 0

    monkeypatch.setattr(decode, "decode_captures", decoding)
    monkeypatch.setattr(audit, "audit_tables", auditing)
    monkeypatch.setattr(report, "open_tables", lambda directory: f"tables at {directory}")
    printed = {}
    for form in ("text", "json"):
        assert nightly("a.pcap", "--output", "out", "--report", tmp_path / "r.html", "--format", form) == 0
        printed[form] = tuple(capsys.readouterr())
    assert printed == {"text": ("The tables are in out\n{}\n", ""), "json": ("{}\n", "The tables are in out\n")}


@pytest.mark.parametrize(("decoded", "audited", "code"), [(0, 0, 0), (0, 1, 1), (3, 0, 3), (3, 1, 1)])
def test_findings_decide_the_exit_status_before_damage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, decoded: int, audited: int, code: int
) -> None:
    asked = []

    def decoding(arguments: argparse.Namespace, meanwhile: Callable[[], object]) -> tuple[str, int]:
        asked.append(("decode", arguments.captures, arguments.tables))
        return "session", decoded

    def auditing(source: str, inputs: report.Inputs, arguments: argparse.Namespace, started: float) -> int:
        asked.append(("audit", arguments.tables, source))
        return audited

    monkeypatch.setattr(decode, "decode_captures", decoding)
    monkeypatch.setattr(audit, "audit_tables", auditing)
    monkeypatch.setattr(report, "open_tables", lambda directory: f"tables at {directory}")
    assert nightly("a.pcap", "--output", "out", "--report", tmp_path / "r.html") == code
    assert asked == [("decode", ["a.pcap"], None), ("audit", "out", "tables at out")]


def test_captures_that_cannot_be_audited_are_not_decoded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decode, "decode_captures", lambda arguments: pytest.fail("decoded"))
    report = ("--report", tmp_path / "r.html")
    assert nightly(CAPTURE, "--output", tmp_path / "out", *report, "--config", tmp_path / "none.toml") == 2
    assert nightly(CAPTURE, "--output", tmp_path / "out", *report, "--baseline", tmp_path / "none.json") == 2
    assert nightly(CAPTURE, "--output", tmp_path / "out", "--report", tmp_path / "none/r.html") == 2
    assert all(line.startswith("wirehare nightly: ") for line in capsys.readouterr().err.splitlines())


def test_nothing_is_audited_when_decoding_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(audit, "audit_tables", lambda *_: pytest.fail("audited"))
    assert nightly(tmp_path / "none.pcap", "--output", tmp_path / "out", "--report", tmp_path / "r.html") == 2
    holds = tmp_path / "holds"
    holds.mkdir()
    (holds / "letters").touch()
    assert nightly(CAPTURE, "--output", holds, "--report", tmp_path / "r.html") == 2

    def fails(arguments: argparse.Namespace) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(decode, "decode_captures", fails)
    assert nightly(CAPTURE, "--output", tmp_path / "out", "--report", tmp_path / "r.html") == 4
    assert not (tmp_path / "r.html").exists()
