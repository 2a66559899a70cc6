"""The findings of tables in files and in memory, as DuckDB evaluates rules in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import cycle
from pathlib import Path
from time import process_time
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from audit_support import by_connection, connection, counted
from growth import assert_linear
from hypothesis import given
from hypothesis import strategies as st

from codec.tables import FINDINGS, TABLES
from codec.variant.python_values import decode
from jobs.cli import main
from pipeline.audit import findings_in, wanted_program
from pipeline.audit.contexts import scripts
from pipeline.audit.file_groups import grouped, groups_of, joined_files
from pipeline.run import scratch
from udfs.arrow.types import arrow_schema
from udfs.findings import evaluation
from udfs.findings.evaluation import Question, Resources, Run, connected, findings_across, findings_of
from udfs.findings.group_tasks import FILES, AnswerFiles, AnswerRows, PackRows, ReadConnections, unpacked
from udfs.findings.program import Program
from udfs.sink.parquet import ParquetFiles

ROOT = Path(__file__).parents[2]
CAPTURES = [
    ROOT / "samples" / "091_channel_exceptions.pcap",
    ROOT / "samples" / "091_rpc_reply_to.pcap",
    ROOT / "tests" / "captures" / "10_rabbitmq_link_errors.pcap",
    ROOT / "tests" / "captures" / "010_exceptions.pcap",
]
PARTS = 3


def a_program() -> Program:
    found = wanted_program()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("decoded")
    assert main(["decode", *map(str, CAPTURES), "--output", str(folder)]) == 0
    return {name: sorted(map(str, (folder / name).glob("*.parquet"))) for name in TABLES}


@pytest.fixture(scope="module")
def found(files: dict[str, list[str]]) -> Counter[str]:
    rows = counted(findings_in(files))
    assert {"CH-09", "NM-03", "L10-40", "T10-52"} <= {json.loads(row)["rule_id"] for row in rows}
    return rows


def test_refused_early_data_accuse_nobody_of_frames_out_of_sequence(tmp_path: Path) -> None:
    """The client's first 600 bytes, are in early data of TLS that the server refused; pika and
    RabbitMQ did nothing wrong."""
    capture = ROOT / "tests" / "captures" / "tls13_early_data_refused.pcapng"
    assert main(["decode", str(capture), "--output", str(tmp_path)]) == 0
    rows = findings_in({name: sorted(map(str, (tmp_path / name).glob("*.parquet"))) for name in TABLES})
    worse = [row for row in rows.select(["rule_id", "severity"]).to_pylist() if row["severity"] != "info"]
    assert worse == [{"rule_id": "DL-15", "severity": "warning"}]  # 3 of 14 deliveries are redelivered


def test_rows_in_memory_give_the_findings_of_their_files(files: dict[str, list[str]], found: Counter[str]) -> None:
    rows = {name: pq.read_table(paths[0]) for name, paths in files.items() if paths}
    of_rows = findings_of(rows, a_program())
    assert of_rows.schema.equals(arrow_schema(FINDINGS))
    assert counted(of_rows) == found


def test_findings_do_not_depend_on_the_files_and_the_order_of_rows(
    files: dict[str, list[str]], found: Counter[str], tmp_path: Path
) -> None:
    spread: dict[str, list[str]] = {}
    for name, paths in files.items():
        rows = pa.concat_tables([pq.read_table(path) for path in paths])
        backwards = rows.take(list(range(rows.num_rows))[::-1])
        for part in range(PARTS):
            file = ParquetFiles(pyarrow.fs.LocalFileSystem(), str(tmp_path / name), TABLES[name])
            for batch in backwards.take(list(range(part, rows.num_rows, PARTS))).to_batches():
                file.write(batch)
            file.close(arrow_schema(TABLES[name]))
        spread[name] = sorted(map(str, (tmp_path / name).iterdir()))
    assert all(len(paths) == PARTS for paths in spread.values())
    assert counted(findings_in(spread)) == found


def test_rows_that_came_to_tasks_give_the_same_findings(files: dict[str, list[str]], found: Counter[str]) -> None:
    """As Spark calls it, without Spark: batches of all tables, as streams of Arrow, a group of connections a task."""
    packed = [
        row
        for name, paths in files.items()
        if name in a_program().schemas
        for row in pa.Table.from_batches(PackRows(name, PARTS)(iter(pq.read_table(paths).to_batches(100)))).to_batches(
            1
        )
    ]

    def ask(question: Question) -> Iterator[dict[str, pa.Table]]:
        for group in range(PARTS):
            of_group = [row for row in packed if row["group_no"][0].as_py() == group]
            for row in AnswerRows(a_program(), question)(iter(of_group)):
                yield {row["name"][0].as_py(): unpacked(row["data"][0].as_buffer())}

    assert len({row["group_no"][0].as_py() for row in packed}) == PARTS
    assert counted(pa.concat_tables(findings_across(ask, a_program()))) == found


def test_tasks_that_read_the_files_of_a_group_give_the_same_findings(
    files: dict[str, list[str]], found: Counter[str], tmp_path: Path
) -> None:
    """As Spark calls it, without Spark: each task is given the paths of its group; some files are on another system."""
    spread = by_connection(files, tmp_path, PARTS)
    paths = {path: name for name in a_program().tables for path in spread[name]}
    elsewhere = pyarrow.fs.SubTreeFileSystem("/", pyarrow.fs.LocalFileSystem())
    read = pa.Table.from_batches(ReadConnections(elsewhere)(iter([files_in(paths)])))
    assert {*read["connection_id"].to_pylist()} - {None} == connections_in(spread["frames"])
    firsts: dict[int, str] = {}
    pairs = [(firsts.setdefault(each["connection_id"], each["path"]), each["path"]) for each in read.to_pylist()]
    groups = grouped(dict.fromkeys(paths, 1), joined_files(pairs), 1)
    assert len(groups) == PARTS

    def ask(question: Question) -> Iterator[dict[str, pa.Table]]:
        for system, group in zip(cycle([elsewhere, pyarrow.fs.LocalFileSystem()]), groups, strict=False):
            task = AnswerFiles(a_program(), question, system)
            for row in task(iter([files_in({path: paths[path] for path in group})])):
                yield {row["name"][0].as_py(): unpacked(row["data"][0].as_buffer())}

    assert counted(pa.concat_tables(findings_across(ask, a_program()))) == found


def files_in(paths: Mapping[str, str]) -> pa.RecordBatch:
    """FILES of the tables in these paths."""
    return pa.record_batch([pa.repeat(0, len(paths)), pa.array(paths.values()), pa.array(paths)], names=FILES.names)


def test_groups_are_files_with_the_same_connections(files: dict[str, list[str]], tmp_path: Path) -> None:
    spread = by_connection(files, tmp_path, PARTS)
    groups = groups_of(spread, 0)
    assert len(groups) == PARTS
    of_group = [{row for name in ("frames", "links") for row in connections_in(group[name])} for group in groups]
    assert sum(map(len, of_group)) == len(set().union(*of_group)) == len(connections_in(spread["frames"]))
    assert [path for group in groups for path in group["captures"]] == spread["captures"]
    assert groups_of(spread) == [spread]
    # as in a lake: both batches have rows of all connections
    mixed = {name: [*spread[name], *files[name]] for name in files}
    assert [{name: sorted(paths) for name, paths in group.items()} for group in groups_of(mixed, 0)] == [
        {name: sorted(paths) for name, paths in mixed.items()}
    ]


def connections_in(paths: Sequence[str]) -> set[int]:
    return {
        row for path in paths for row in pq.read_table(path, columns=["connection_id"])["connection_id"].to_pylist()
    }


def test_findings_in_groups_are_those_of_the_whole(
    files: dict[str, list[str]], found: Counter[str], tmp_path: Path
) -> None:
    assert counted(findings_in(by_connection(files, tmp_path, PARTS), most_bytes=0)) == found


def test_an_audit_that_is_stopped_ends_and_leaves_nothing(
    files: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More groups than there are processors: those that wait are not begun."""
    monkeypatch.setattr(scratch, "directories", lambda _: str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    groups, begun = by_connection(files, tmp_path / "groups", 8), list[object]()

    def counted_connection(*arguments: Any) -> duckdb.DuckDBPyConnection:
        begun.append(arguments)
        return connected(*arguments)

    monkeypatch.setattr(evaluation, "connected", counted_connection)
    run = Run()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(findings_in, groups, run=run, most_bytes=0)
        while not running.done():
            run.interruptAll()
        with pytest.raises(duckdb.InterruptException):
            running.result()
    assert len(begun) < len(groups_of(groups, 0))
    assert run.connections == []
    assert list((tmp_path / "scratch").iterdir()) == []


def test_files_that_are_missing_are_empty_tables(files: dict[str, list[str]]) -> None:
    assert findings_in({}).num_rows == 0
    only = {name: paths for name, paths in files.items() if name in ("connections", "frames")}
    assert findings_in(only).num_rows > 0


def test_a_version_that_only_connection_start_states_is_that_of_the_frames(tmp_path: Path) -> None:
    """RabbitMQ 3.10.8 speaks 0-9-1, of which connection.start says 0-9; the server refused the client's header, which
    was early data of TLS."""
    capture = ROOT / "tests" / "captures" / "tls13_early_data_refused.pcapng"
    assert main(["decode", str(capture), "--output", str(tmp_path)]) == 0
    decoded = {name: sorted(map(str, (tmp_path / name).glob("*.parquet"))) for name in TABLES}
    assert pq.read_table(decoded["frames"])["version"].unique().to_pylist() == ["0-9-1"]
    assert findings_in(decoded, rules=["SEC-03"]).num_rows == 0


def test_only_rows_that_count_are_read(files: dict[str, list[str]]) -> None:
    of_1_0 = "connection_id IN (SELECT connection_id FROM connections WHERE version = '1.0')"
    found = findings_in(files, dict.fromkeys(TABLES, of_1_0) | {"connections": "version = '1.0'", "captures": "true"})
    rules = {rule.partition("-")[0] for rule in found["rule_id"].to_pylist()}
    assert "L10" in rules
    assert not {"CH", "T10", "NM"} & rules


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE other AS FROM read_text('{secret}')",
        "CREATE TABLE other AS FROM read_parquet('{secret}')",
        "COPY (SELECT 1) TO '{secret}'",
        "ATTACH '{secret}' AS other",
        "SET enable_external_access = true",
        "SET memory_limit = '1TB'",
    ],
)
def test_a_program_reads_and_writes_no_other_file(files: dict[str, list[str]], tmp_path: Path, statement: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    program = a_program()
    hostile = program._replace(macros=[*program.macros, statement.format(secret=secret)])
    with pytest.raises(duckdb.Error, match=r"disabled by configuration|locked"):
        findings_of(files, hostile)
    assert secret.read_text() == "secret"


def test_nothing_is_left_in_the_scratch_directory(files: dict[str, list[str]], tmp_path: Path) -> None:
    findings_of(files, a_program(), Resources(threads=1, directory=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def escaped(data: bytes) -> str:
    """The rule of `codec.text`: without an invalid byte as it is, else these and backslashes as \\xNN."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.replace(b"\\", b"\\x5c").decode(errors="backslashreplace")


LEADS = st.sampled_from([bytes([first]) for first in (0, 0x41, 0x5C, 0x80, 0xC0, 0xE0, 0xED, 0xF0, 0xF4, 0xFF)])


@given(st.lists(st.one_of(st.binary(max_size=4), st.text(max_size=2).map(lambda text: text.encode()), LEADS)))
def test_bytes_that_are_not_utf8_are_escaped_as_in_the_tables(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert with_macros().execute("SELECT utf8_text(?::BLOB)", [data]).fetchall() == [(escaped(data),)]


@cache
def with_macros() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET VARIABLE settings = MAP {'': 0::DOUBLE}")
    for macro in scripts()[0]:
        connection.execute(macro)
    return connection


def test_a_night_needs_no_java(tmp_path: Path) -> None:
    """With a JAVA_HOME without Java, a JVM cannot be started."""
    command = [sys.executable, "-m", "jobs.nightly", str(CAPTURES[0]), "--output", "tables", "--fail-on", "never"]
    ran = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "JAVA_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "audit.html").is_file()


def test_time_is_linear_in_the_number_of_connections_that_break_rules(
    files: dict[str, list[str]], found: Counter[str], tmp_path: Path
) -> None:
    """All to one broker, so that rules about several connections compare each with all others."""
    copies = {number: many_times(files, tmp_path / str(number), number) for number in (20, 100)}

    def seconds(number: int) -> float:
        began = process_time()
        rows = findings_in(copies[number]).num_rows
        assert rows >= number * found.total() // 2
        return process_time() - began

    assert_linear(seconds, (20, 100))


def many_times(files: dict[str, list[str]], folder: Path, number: int) -> dict[str, list[str]]:
    """Files with each connection so many times, under other ids."""
    many: dict[str, list[str]] = {}
    for name, paths in files.items():
        rows = pa.concat_tables([pq.read_table(path) for path in paths])
        file = ParquetFiles(pyarrow.fs.LocalFileSystem(), str(folder / name), TABLES[name])
        at = rows.schema.get_field_index("connection_id")
        for copy in range(number if at >= 0 else 1):
            ids = pc.bit_wise_xor(rows["connection_id"], copy << 20) if copy else None
            copied = rows.set_column(at, rows.schema.field(at), ids) if copy else rows
            for batch in copied.to_batches():
                file.write(batch)
        file.close(arrow_schema(TABLES[name]))
        many[name] = sorted(map(str, (folder / name).iterdir()))
    return many


def of_connections(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Findings of these rows of `connections`, with little memory."""
    table = pa.Table.from_pylist(list(rows), arrow_schema(TABLES["connections"]))
    return findings_of({"connections": table}, a_program(), Resources(memory_bytes=256 << 20))


def test_as_many_products_as_connections_of_a_user_need_no_memory_for_each_pair() -> None:
    """Anybody who connects chooses the name of his product."""
    rows = [connection(number, f"product-{number:06}", content="amqp") for number in range(6_000)]
    found = of_connections(rows).filter(pc.field("rule_id") == "PR-04").to_pylist()
    assert len(found) == 1
    observed = decode(**found[0]["evidence"])["observed"]
    assert observed == ", ".join(f"product-{number:06}" for number in range(20)) + ", 5980 more"
