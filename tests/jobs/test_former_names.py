"""Tables and lakes with the names of columns and the values of the release before: all that read tables read them, also
where files of both releases are beside each other."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import golden
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake_support import new_lake
from pyspark.sql import SparkSession

from codec.tables import TABLES
from jobs.cli import main
from pipeline import load, to_arrow
from pipeline.audit import findings_in
from pipeline.lake.lake_files import compact, read_rows
from pipeline.lake.layout import LakeFile
from udfs.pairing.schemas import MESSAGE_COLUMNS

CAPTURES = ("091_channel_exceptions.pcap", "091_loss.pcap", "091_tls13.pcap")
# As the release before wrote them: name today -> name then, by table; value today -> value then, by column.
NAMES = {
    "channels": {"channel_incarnation": "channel_life"},
    "links": {"channel_incarnation": "channel_life"},
    "stalls": {"channel_incarnation": "channel_life"},
    "messages": {"channel_incarnation": "channel_life", "body_captured": "body_seen"},
    "connections": {"roles_from": "sides_known_by", "undecoded_reason": "unread_because"},
    "message_flows": {"dead_letter_reason": "dead_lettered"},
}
NOTES = {
    "bytes-left": "octets-left", "unexpected-body": "body-of-nothing", "orphan-content": "content-alone",
    "control-with-content": "control-goes-on", "zero-byte": "zero-octet",
}  # fmt: skip


def copy(source: Path, target: Path, before: bool) -> None:
    """Copy tables; `before`: as the release before wrote them, without oddities. A lake has the value of tcp_end."""
    expired = "lost sight of" if before else "expired"
    values = {"connections": f"replace(tcp_end, 'fin', '{expired}') AS tcp_end"}
    if before:
        cases = " ".join(f"WHEN '{now}' THEN '{then}'" for now, then in NOTES.items())
        notes = f"list_transform(notes, lambda note: CASE note {cases} ELSE note END) AS notes"
        values |= {"frames": notes, "methods": notes}
    with duckdb.connect() as connection:
        for table in source.iterdir():
            if before and table.name == "oddities":
                continue
            (target / table.name).mkdir(parents=True)
            renamed = ", ".join(f"{now} AS {then}" for now, then in NAMES.get(table.name, {}).items() if before)
            columns = f"* REPLACE ({values[table.name]})" if table.name in values else "*"
            rows = f"SELECT {columns} FROM read_parquet('{table}/*.parquet', hive_partitioning = false)"
            rows = f"SELECT * {f'RENAME ({renamed})' if renamed else ''} FROM ({rows})"
            connection.execute(f"COPY ({rows}) TO '{target / table.name / 'part-0.parquet'}' (FORMAT parquet)")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `now` and `then`, of the tables of all captures, and `both`, a folder of each with half of them."""
    folder = tmp_path_factory.mktemp("names")
    captures = [str(golden.CAPTURES / name) for name in CAPTURES]
    for name, some in (("all", captures), ("first", captures[:1]), ("rest", captures[1:])):
        assert main(["decode", *some, "--output", str(folder / "decoded" / name), "-q"]) == 0
    copy(folder / "decoded/all", folder / "now", before=False)
    copy(folder / "decoded/all", folder / "then", before=True)
    copy(folder / "decoded/first", folder / "both/half=1", before=True)
    copy(folder / "decoded/rest", folder / "both/half=2", before=False)
    names = {field.name for path in (folder / "then").rglob("*.parquet") for field in pq.read_schema(path)}
    assert names >= {name for of_table in NAMES.values() for name in of_table.values()}
    return folder


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main([*words, "-q"] if words[0] != "sql" else [*words]) == 0
    return capsys.readouterr().out


def rows(capsys: pytest.CaptureFixture[str], directory: Path, table: str) -> list[dict[str, object]]:
    columns = ", ".join(f'"{name}"' for name in TABLES[table].names)
    query = f"SELECT {columns} FROM {table} ORDER BY ALL"
    found: list[dict[str, object]] = json.loads(answer(capsys, "sql", str(directory), query, "--format", "json"))
    return found


@pytest.mark.parametrize("table", [*TABLES])
def test_sql_reads_them(tables: Path, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    now = rows(capsys, tables / "now", table)
    assert rows(capsys, tables / "then", table) == now
    assert rows(capsys, tables / "both", table) == now


def test_what_is_compared_has_each_of_the_names_and_values(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = """SELECT (SELECT max(channel_incarnation) FROM channels) AS incarnation,
        (SELECT count(*) FROM connections WHERE tcp_end = 'expired') > 0 AS expired,
        (SELECT count(*) FROM frames WHERE list_contains(notes, 'orphan-content')) > 0 AS orphan,
        (SELECT sum(body_captured) FROM messages) > 0 AS captured,
        (SELECT any_value(undecoded_reason) FROM connections) AS reason"""
    found = json.loads(answer(capsys, "sql", str(tables / "then"), query, "--format", "json"))
    assert found == [{"incarnation": 7, "expired": True, "orphan": True, "captured": True, "reason": "no secrets"}]


def test_an_audit_says_which_table_earlier_releases_did_not_write(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(tables / "decoded/all", tmp_path / "then", before=True)
    assert main(["audit", str(tmp_path / "then"), "--report", str(tmp_path / "a.html"), "--fail-on", "never"]) == 0
    assert "no table oddities, as of an earlier release" in capsys.readouterr().err


def test_the_audit_finds_the_same(tables: Path) -> None:
    def found(directory: Path) -> list[str]:
        files = {name: sorted(map(str, directory.glob(f"**/{name}/*.parquet"))) for name in TABLES}
        return sorted(map(str, findings_in(files).to_pylist()))

    assert len(found(tables / "now")) > 5
    assert found(tables / "then") == found(tables / "both") == found(tables / "now")


def test_an_audit_and_its_report_are_the_same(tables: Path, tmp_path: Path) -> None:
    reports = {}
    for name in ("now", "then"):
        written = ["--json", f"{tmp_path}/{name}.json", "--report", f"{tmp_path}/{name}.html"]
        assert main(["audit", str(tables / name), "--fail-on", "never", "-q", *written]) == 0
        text = (tmp_path / f"{name}.json").read_text()
        reports[name] = {**json.loads(text.replace("/then", "/now")), "audited": None}
    assert reports["then"] == reports["now"]


def test_explain_says_the_same(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = answer(capsys, "explain", str(tables / "now"))
    assert answer(capsys, "explain", str(tables / "then")).replace("/then", "/now") == now


def test_a_comparison_with_them_has_no_difference(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "diff", str(tables / "then"), str(tables / "now"))
    assert found.replace("/then", "/now") == answer(capsys, "diff", str(tables / "now"), str(tables / "now"))


def test_spark_reads_them(spark: SparkSession, tables: Path) -> None:
    now, then, both = (dict(load(spark, str(tables / name)).items()) for name in ("now", "then", "both"))
    for name in NAMES:
        columns = TABLES[name].names
        assert then[name].schema == now[name].schema
        expected = sorted(map(str, now[name].toArrow().to_pylist()))
        assert sorted(map(str, then[name].toArrow().to_pylist())) == expected
        assert sorted(map(str, to_arrow(both[name].select(*columns)).to_pylist())) == expected


def test_a_lake_is_read_and_compacted(tmp_path: Path) -> None:
    log, day = new_lake(tmp_path / "lake"), datetime.now(UTC).date()
    old: dict[str, list[object]] = {
        "connection_id": [1, 2],
        "sides_known_by": ["syn", "port"],
        "tcp_end": ["lost sight of", "fin"],
    }
    new: dict[str, list[object]] = {"connection_id": [3], "roles_from": ["header"], "tcp_end": ["expired"]}
    for age, columns in ((9, old), (9, new), (0, new)):
        folder = f"{age:08}/open=false/day={day - timedelta(days=age)}"
        path = tmp_path / "lake/connections" / folder / f"part-{len(columns['connection_id'])}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        name = f"{folder}/{path.name}"
        file = LakeFile(name, path.stat().st_size, len(columns["connection_id"]), False, day - timedelta(days=age))
        log.commit("connections", None, [file], [])
        log.commit("captures", None, [file], []) if age == 0 else None
    expected = [(1, "syn", "expired"), (2, "port", "fin"), (3, "header", "expired"), (3, "header", "expired")]

    def found() -> list[tuple[object, ...]]:
        rows = read_rows(log.root, "connections", log.files("connections"), ["connection_id", "roles_from", "tcp_end"])
        return sorted(tuple(row.values()) for row in rows.to_pylist())

    assert found() == expected
    assert compact(log).removed == 2
    assert found() == expected


def test_columns_that_are_read_by_their_names_alone_had_no_other() -> None:
    """What pairing reads goes around `udfs.arrow.former`."""
    read = TABLES["messages"].select(*MESSAGE_COLUMNS)
    assert [column.name for column in read if column.formerly or column.former_values] == []
