"""`wirehare audit`: arguments, exit codes, what it writes and when, and what stands after bad and failed runs.

The findings are written by hand: what the rules find is tested with the rules.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import audit_support
import pyarrow.parquet as pq
import pytest
from audit_support import HOSTILE_QUEUE, write_tables
from object_store import BUCKET, KEY, SECRET, object_store
from pyspark.sql import SparkSession
from tables_support import arrow_rows

import pipeline
from codec.tables import FINDINGS
from jobs.cli import main
from pipeline.output.location import Location
from pipeline.tables import write_tables as writing
from udfs.arrow.spark_schemas import TABLES

STEP = re.compile(r"(Findings written|Report counted|Report written) in [\d.]+ s|.* \.\.\. \d+ s(, .*)?")


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tables, audited with findings written by hand."""
    with pytest.MonkeyPatch.context() as patch:
        found = pipeline.to_arrow(audit_support.found(spark))
        patch.setattr("pipeline.audit.findings_in", lambda *_, **__: found)
        yield write_tables(tmp_path_factory.mktemp("audit") / "tables")


def audit(*argv: object) -> int:
    """The exit code of `wirehare audit`."""
    try:
        return main(["audit", *map(str, argv)])
    except SystemExit as exit_:
        return int(exit_.code or 0)


def test_an_audit_from_one_night_to_the_next(
    spark: SparkSession, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, report = tmp_path / "first.json", tmp_path / "audit.html"
    assert audit(tables, "--report", report, "--json", first, "--title", "Orders & more") == 1
    out, error = capsys.readouterr()
    what = out.splitlines()[1]
    assert what.startswith("  NM-03   NM-03 is broken. 2 findings: pika guest@10.0.0.7:50001, ")
    assert "       -> Choose another prefix." in out.splitlines()
    assert out.splitlines()[-2] == f"The report is {report}"
    # Of the violations there is one.
    assert re.fullmatch(r"Next: .*: wirehare cut \S+ --finding NM-03 -o nm-03\.pcapng", out.splitlines()[-1])
    assert out.startswith("1 violation and 4 warnings in 3 of 3 connections. Audited in ")
    assert all(STEP.fullmatch(line) for line in error.splitlines()), error

    html = report.read_text()
    assert "Orders &amp; more" in html
    assert HOSTILE_QUEUE not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;<i>U+202E</i>gnp" in html

    table = pq.read_table(tables / "findings")
    assert table.column_names == FINDINGS.names
    assert sorted(table["rule_id"].to_pylist()) == ["CAP-01", "NM-03", "NM-03", "SEC-01", "SEC-01", "SEC-01"]

    # The second night the threshold is higher, all of it is known, and the report goes to a store.
    with object_store() as store:
        locations = ("--report", store.uri("second.html", "s3a"), "--json", store.uri("second.json"))
        assert audit(tables, *locations, "--baseline", first, "--fail-on", "never") == 0
        html, second = (
            store.files().open_input_stream(f"{BUCKET}/second.{end}").read().decode() for end in ("html", "json")
        )
    assert {entry["status"] for entry in json.loads(second)["findings"]} == {"persisting"}
    assert json.loads(second)["verdict"]["new"] == 0
    out, error = capsys.readouterr()
    assert out.splitlines()[-2] == f"The report is s3a://{BUCKET}/second.html"
    assert "AMQP audit" in html
    assert not [text for text in (out, error, html, second) if SECRET in text or KEY in text]
    assert {path.name for path in tmp_path.iterdir()} == {"first.json", "audit.html"}
    assert not list(tables.parent.glob(".wirehare*"))


def test_a_day_that_is_decoded_again_loses_its_old_findings(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(spark: SparkSession, paths: list[str], stage: Location, *rest: object) -> None:
        """In place of decoding: the table of captures only."""
        rows = arrow_rows(spark, audit_support.ROWS["captures"][:1], TABLES["captures"])
        rows.write.parquet(stage.child("captures").uri)

    monkeypatch.setattr(writing, "_write", write)
    (tmp_path / "tables" / "findings").mkdir(parents=True)
    (tmp_path / "a.pcap").write_bytes(b"\xd4\xc3\xb2\xa1\x02\0\x04\0" + bytes(16))
    options = ("--output", str(tmp_path / "tables"), "--overwrite", "--tables", "captures")
    assert main(["decode", str(tmp_path / "a.pcap"), *options]) == 0
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["captures"]


def test_a_failed_audit_changes_nothing(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "audit.html"
    report.write_text("last night's")
    before = sorted(path.name for path in tables.iterdir())

    def fail(*arguments: object, **choices: object) -> None:
        raise RuntimeError("the disk is gone")

    monkeypatch.setattr("pipeline.audit.findings_in", fail)
    assert audit(tables, "--report", report) == 4
    assert capsys.readouterr().err.splitlines()[-1] == "wirehare audit: the disk is gone"
    assert report.read_text() == "last night's"
    assert sorted(path.name for path in tables.iterdir()) == before
    assert not list(tables.parent.glob(".wirehare*"))


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ([], "the following arguments are required: TABLES (see wirehare audit --help)"),
        (["TABLES", "--fail-on", "panic"], "invalid choice: 'panic'"),
        (["TABLES", "--baseline", "gone.json"], "--baseline gone.json: cannot be read"),
        (["TABLES", "--baseline", "{tmp}/letter.json"], "is not what `wirehare audit --json` writes"),
        (["TABLES", "--config", "gone.toml"], "--config gone.toml: cannot be read (no such file or directory)"),
        (["TABLES", "--report", "{tmp}/no/such/audit.html"], "there is no directory {tmp}/no/such to write it into"),
        (["TABLES", "--report", "{tmp}"], "is a directory; expected the name of a file to write"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    argv: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.json").write_text('"dear all"')
    assert audit(*(word.format(tmp=tmp_path) for word in argv)) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert line.format(tmp=tmp_path) in error


def test_tables_that_cannot_be_read_are_exit_code_3(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "audit.html"
    damaged, partial = tmp_path / "damaged", tmp_path / "partial"
    shutil.copytree(tables, damaged)
    (file,) = (damaged / "methods").glob("*.parquet")
    file.write_bytes(b"PAR1" + bytes(100))
    shutil.copytree(tables, partial)
    shutil.rmtree(partial / "methods")
    for directory, line in [
        (tmp_path / "gone", "no such directory; expected one that `wirehare decode` has written"),
        (file, "is a file; expected a directory to read tables from"),
        (damaged / "methods", "holds no tables; expected a directory that `wirehare decode` has written"),
        (partial, "has no table methods; expected all that `wirehare decode` writes without --tables"),
        (damaged, "table methods cannot be read"),
    ]:
        assert audit(directory, "--report", report) == 3
        out, error = capsys.readouterr()
        assert (out, error.count("\n")) == ("", 1)
        assert line in error
    assert not report.exists()


def test_a_file_that_breaks_off_inside_is_exit_code_3(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(tables, damaged)
    (file,) = (damaged / "connections").glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[4:400] = bytes(396)  # the footer is intact, its columns are not
    file.write_bytes(data)
    for sidecar in (damaged / "connections").glob(".*.crc"):
        sidecar.unlink()
    assert audit(damaged, "--report", tmp_path / "audit.html") == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("wirehare audit: ")


def test_help_is_enough_to_work_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("--help") == 0
    text = capsys.readouterr().out
    for word in ("TABLES", "--report", "--json", "--fail-on", "--baseline", "--config", "--title"):
        assert word in text
    assert [int(code) for code in re.findall(r"^  (\d)  ", text, re.MULTILINE)] == [0, 1, 2, 3, 4, 5]
