"""`wirehare sql`: questions in DuckDB's SQL over tables, captures and lakes, which read nothing else."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import golden
import pytest

from jobs.cli import main

CAPTURE = golden.CAPTURES / "091_confirms_and_return.pcap"
CLOSE = golden.CAPTURES / "091_vhost_refused.pcap"
# Statements that would read or write outside of the tables; {} is a file that exists, {new} one that must not.
FORBIDDEN = (
    "SELECT * FROM read_csv('{old}')", "SELECT * FROM read_text('{old}')", "FROM '{old}'",
    "SELECT * FROM glob('/etc/*')",
    "COPY (SELECT 1) TO '{new}'", "COPY messages TO '{table}'", "EXPORT DATABASE '{new}'", "ATTACH '{new}'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{table}'", "EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1) TO '{table}'",
    "PREPARE p AS COPY (SELECT 1) TO '{table}'; EXECUTE p", "INSTALL httpfs", "LOAD httpfs",
    "SET enable_external_access = true", "SET allowed_directories = ['/']", "SET temp_directory = '{new}'",
    "RESET enable_external_access", "/* c */ EXPLAIN /* d */ ANALYZE /* e */ COPY (SELECT 1) TO '{table}'",
    "IMPORT DATABASE '{old}'", "CREATE SECRET (TYPE s3)", "SELECT 1; COPY (SELECT 1) TO '{table}'",
    "SELECT getenv('HOME')", "FROM query('FROM read_text(''{old}'')')", "FROM sniff_csv('{old}')",
    "PRAGMA profiling_output = '{new}'", "CALL enable_logging(storage_path => '{new}')", "FROM duckdb_secrets()",
    "FROM json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{old}'')'))",
)  # fmt: skip


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp("sql") / "tables")
    assert main(["decode", str(CAPTURE), "--output", directory, "-q"]) == 0
    return directory


def ask(*words: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    assert main(["sql", *words]) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def test_one_query_as_json(tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    """tshark counts five publishes in this capture, and one basic.return (MANIFEST.json, goldens)."""
    query = (
        "SELECT name, count(*) AS n FROM methods WHERE name IN ('basic.publish', 'basic.return') "
        "GROUP BY ALL ORDER BY ALL"
    )
    found = json.loads(ask(tables, query, "--format", "json", capsys=capsys))
    frames = [json.loads(line) for line in golden_lines(CAPTURE)]
    assert found == [
        {"name": name, "n": sum(has_method(frame, "60", method) for frame in frames)}
        for name, method in (("basic.publish", "40"), ("basic.return", "50"))
    ]


def golden_lines(capture: Path) -> list[str]:
    import gzip

    return gzip.open(f"{capture}.frames.jsonl.gz", "rt").readlines()


def has_method(frame: dict, class_id: str, method_id: str) -> bool:  # type: ignore[type-arg]
    fields = {field["n"]: field.get("s") for field in frame["f"]}
    return fields.get("amqp.method.class") == class_id and fields.get("amqp.method.method") == method_id


def test_options_may_stand_before_the_query(tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(ask("--format", "json", tables, "SELECT 7 AS x", capsys=capsys)) == [{"x": 7}]
    assert json.loads(ask(tables, "--format", "json", "SELECT 7 AS x", capsys=capsys)) == [{"x": 7}]
    refused = ask(tables, "--format", "json", "SELECT 7", "b", capsys=capsys, code=2)
    assert re.search(r"unrecognized arguments: (SELECT 7 )?b ", refused)  # from Python 3.13 on, the last word only


def test_paths_in_variant_columns(tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT DISTINCT arguments.mechanism::VARCHAR AS m FROM methods WHERE name = 'connection.start-ok'"
    assert list(csv.reader(io.StringIO(ask(tables, query, "--format", "csv", capsys=capsys)))) == [["m"], ["PLAIN"]]


def test_captures_are_decoded_first(capsys: pytest.CaptureFixture[str]) -> None:
    """The broker refuses both connections of this capture with 530 (MANIFEST.json)."""
    query = "SELECT close_code FROM connections"
    assert json.loads(ask(str(CLOSE), query, "--format", "json", capsys=capsys)) == [{"close_code": 530}] * 2


def test_a_damaged_capture_is_answered_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(CAPTURE.read_bytes() + b"\xff" * 40)  # no packet is as long as this one says
    assert "cut.pcap" in ask(str(cut), "SELECT count(*) FROM connections", capsys=capsys, code=3)


def test_markdown_and_text_keep_hostile_names_inert(tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    query = r"SELECT 'a|b<i>' || chr(27) || '[31m' || chr(8238) AS x"
    markdown = ask(tables, query, "--format", "markdown", capsys=capsys)
    assert markdown.splitlines()[2] == "| `a\\|b<i>\ufffd[31m\ufffd` |"
    assert "\x1b" not in ask(tables, query, capsys=capsys)
    assert "\x1b" not in ask(tables, query, "--format", "json", capsys=capsys)


@pytest.mark.parametrize(
    "name", ["![i](http://evil/x.png)", "[x](javascript:alert(1))", "@team", "#1", "*b*", "<i>", "a`"]
)
def test_markdown_has_names_as_code(name: str, tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A picture would be fetched, and a mention would write to people."""
    lines = ask(tables, f"SELECT '{name}' AS x, 7 AS y", "--format", "markdown", capsys=capsys).splitlines()
    assert lines == ["| x | y |", "| --- | --- |", f"| `{name.replace('`', chr(39))}` | 7 |"]


def test_errors_show_no_control_characters(tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    """DuckDB quotes the value that it cannot convert, which may come from the wire."""
    query = "SELECT ('7' || chr({}) || '[31m')::INTEGER"
    for code, escaped in ((0x1B, r"7\x1b[31m"), (0x9B, r"7\x9b[31m"), (0x202E, r"7\u202e[31m")):
        refused = ask(tables, query.format(code), capsys=capsys, code=2)
        assert escaped in refused
        assert chr(code) not in refused


def test_many_rows_are_cut_short_as_text_only(tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = ask(tables, "SELECT range AS r FROM range(500)", "--rows", "3", capsys=capsys).splitlines()
    assert [line.strip() for line in text[2:]] == ["0", "1", "2", "... more than 3 rows (--rows 0 shows all)"]
    assert len(json.loads(ask(tables, "FROM range(500)", "--format", "json", capsys=capsys))) == 500


def test_integers_stay_exact(tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "9223372036854775807" in ask(tables, "SELECT 9223372036854775807 AS x", "--format", "json", capsys=capsys)


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_a_query_touches_no_file_but_the_tables(
    tables: str, statement: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.csv", tmp_path / "new"
    old.write_text("content of another file\n1\n")
    table = next(Path(tables, "messages").glob("*.parquet"))
    before = table.read_bytes()
    message = ask(tables, statement.format(old=old, new=new, table=table), capsys=capsys, code=2)
    assert "content of another file" not in message
    assert table.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["old.csv"]


def test_files_are_read_and_written_where_asked(
    tables: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "rows.csv"
    ask(tables, f"COPY (SELECT 1 AS x) TO '{target}'", "--any-files", capsys=capsys)
    assert target.read_text() == "x\n1\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["{tables}", "SELEC 1"], "syntax error"),
        (["{tables}", "SELECT 1 FROM mesages"], "messages"),
        (["{missing}", "SELECT 1"], "no such file or directory"),
        (["{empty}", "SELECT 1"], "no pcap or pcapng file found"),
        (["s3://bucket/tables", "SELECT 1"], "s3://bucket/tables"),
    ],
)
def test_mistakes_are_named(
    tables: str, tmp_path: Path, words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [word.format(tables=tables, missing=tmp_path / "nothing", empty=tmp_path) for word in words]
    assert reason in ask(*named, capsys=capsys, code=2)


def test_a_table_that_was_not_written_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(tmp_path / "some")
    assert main(["decode", str(CAPTURE), "--output", directory, "--tables", "connections", "-q"]) == 0
    query = "SELECT (SELECT count(*) FROM messages) AS m, (SELECT count(*) FROM connections) AS c"
    assert json.loads(ask(directory, query, "--format", "json", capsys=capsys)) == [{"m": 0, "c": 1}]
    assert ask(directory, "SELECT arguments.queue FROM methods", "--format", "json", capsys=capsys) == "[]\n"


def test_folders_with_columns_are_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day in ("2026-11-20", "2026-11-21"):
        assert main(["decode", str(CAPTURE), "--output", f"{tmp_path}/date={day}", "-q"]) == 0
    query = "SELECT date, count(*) AS n FROM connections GROUP BY ALL ORDER BY ALL"
    assert json.loads(ask(str(tmp_path), query, "--format", "json", capsys=capsys)) == [
        {"date": "2026-11-20", "n": 1},
        {"date": "2026-11-21", "n": 1},
    ]


def test_a_lake_is_read_as_of_its_last_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = str(tmp_path / "lake")
    assert main(["ingest", str(CAPTURE), "--lake", lake, "--once", "--settle", "0s", "-q"]) == 0
    (stray,) = [next(Path(lake, "messages").rglob("*.parquet"))]
    stray.with_name("stray.parquet").write_bytes(stray.read_bytes())  # of no batch
    published = [json.loads(line) for line in golden_lines(CAPTURE)]
    query = "SELECT count(*) AS n FROM messages WHERE operation = 'publish'"
    expected = sum(has_method(frame, "60", "40") for frame in published)
    assert json.loads(ask(lake, query, "--format", "json", capsys=capsys)) == [{"n": expected}]


def test_neither_java_nor_spark_starts(tables: str) -> None:
    code = "import sys; from jobs.cli import main; sys.exit(main())"
    environment = {**os.environ, "JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}
    words = [sys.executable, "-c", code, "sql", tables, "SELECT 42 AS x"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "42" in done.stdout


def test_the_prompt(tables: str, tmp_path: Path) -> None:
    """A person types, with a completion by tab, and leaves; the history is theirs alone."""
    script = "import sys; from jobs.cli import main; sys.exit(main())"
    child, terminal = pty.fork()
    if child == 0:
        os.environ["XDG_STATE_HOME"] = str(tmp_path)
        os.execv(sys.executable, [sys.executable, "-c", script, "sql", tables])
    printed = b""

    def until(text: bytes) -> None:
        nonlocal printed
        deadline = time.monotonic() + 60
        while text not in printed and time.monotonic() < deadline:
            printed += os.read(terminal, 1 << 16)
        assert text in printed, printed.decode()
        printed = printed[printed.index(text) + len(text) :]

    until(b"wirehare> ")
    os.write(terminal, b"SELECT 6 * 7\n")
    until(b"...> ")
    os.write(terminal, b"AS answer;\n")
    until(b"42")
    until(b"wirehare> ")
    os.write(terminal, b"SELEC;\n")
    until(b"syntax error")
    until(b"wirehare> ")
    os.write(terminal, b"SELECT count(*) AS n FROM message_f\t;\n")
    until(b"message_flows")
    until(b"wirehare> ")
    os.write(terminal, b".columns links\n")
    until(b"snd_settle_mode")
    until(b"wirehare> ")
    os.write(terminal, b".quit\n")
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    history = tmp_path / "wirehare" / "sql_history"
    assert "SELECT 6 * 7" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
