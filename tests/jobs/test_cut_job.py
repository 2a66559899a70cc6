"""`wirehare cut` and `pipeline.cut`: what they write, what they say, and their exit codes."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest
from cut_support import CAPTURES, NEEDS_TSHARK, Tables, fields, records, tables_of
from object_store import BUCKET, KEY, SECRET, object_store
from pyspark.sql import SparkSession

import pipeline
from jobs.cli import main
from pipeline.extract.originals import Original, is_capture
from pipeline.output.location import Location
from udfs.source.capture_bytes import MISSING, CaptureFile

BARE = CAPTURES / "091_confirms_and_return.pcap"
ROTATED = [f"091_rotated_{number}.pcap" for number in (1, 2, 3)]


@pytest.fixture(scope="module")
def tables() -> Tables:
    found = tables_of([BARE])
    publish, ack = found.frames("basic.publish")[0], found.frames("basic.ack")[0]
    settled = {"first_frame_no": publish["frame_no"], "settled_frame_no": ack["frame_no"], "message_id": "order-17"}
    found.rows["messages"] = [{"connection_id": publish["connection_id"], **settled}]
    finding = {"rule_id": "CF-05", "severity": "info", "summary": "The server refused a published message."}
    found.rows["findings"] = [{**found.frames("basic.nack")[0], **finding}]
    return found


@pytest.fixture(scope="module")
def folder(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tables.write(tmp_path_factory.mktemp("tables") / "tables")


def rotated(folder: Path) -> tuple[list[str], Tables, Path]:
    """Three rotated files, copied to `folder`: their names, the tables of them, and where these were written."""
    for name in ROTATED:
        shutil.copy(CAPTURES / name, folder)
    tables = tables_of([folder / name for name in ROTATED])
    return list(ROTATED), tables, tables.write(folder / "tables")


def stderr_of(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """What the command says on stderr, when it ends with `code`."""
    try:
        found = main(["cut", *map(str, arguments)])
    except SystemExit as end:
        found = int(str(end.code))
    text = capsys.readouterr().err
    assert found == code, text
    return text


def test_a_connection_by_its_number(
    folder: Path, tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = stderr_of(capsys, 0, folder, "--connection", tables.ids[0], "-o", tmp_path / "cut.pcapng")
    assert records(tmp_path / "cut.pcapng") == records(BARE)
    assert text.startswith(f"52 packets of 1 connection from 1 capture to {tmp_path / 'cut.pcapng'} in ")


def test_a_connection_by_its_addresses(
    folder: Path, tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the summary names them: one side, or both, either one first."""
    client, server = "127.0.0.1:44664", "127.0.0.1:5672"
    for ends in (client, server, f"{client}-{server}", f"{server}-{client}", f"[127.0.0.1]:44664-{server}"):
        stderr_of(capsys, 0, folder, "--connection", ends, "--overwrite", "-o", tmp_path / "cut.pcapng")
        assert records(tmp_path / "cut.pcapng") == records(BARE)
    for ends, named in {
        "127.0.0.1:44665": "with 127.0.0.1:44665",
        "[::1]:5672": "with [::1]:5672",
        f"{client}-127.0.0.1:5671": f"between {client}-127.0.0.1:5671",
        f"{client}-{client}": f"between {client}-{client}",
    }.items():
        text = stderr_of(capsys, 1, folder, "--connection", ends, "-o", tmp_path / "none.pcapng")
        assert text == f"wirehare cut: there is no connection {named} in the tables; nothing was written\n"


def test_a_connection_over_ipv6_by_its_addresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = CAPTURES / "091_ipv6.pcapng"
    tables = tables_of([capture])
    folder = tables.write(tmp_path / "tables")
    (one, *_) = tables.rows["connections"]
    assert ":" in one["client_ip"]
    for name, client in (("a", f"[{one['client_ip']}]"), ("b", str(ip_address(one["client_ip"]).exploded))):
        stderr_of(
            capsys, 0, folder, "--connection", f"{client}:{one['client_port']}", "-o", tmp_path / f"{name}.pcapng"
        )
    stderr_of(capsys, 0, folder, "--connection", one["connection_id"], "-o", tmp_path / "c.pcapng")
    assert records(tmp_path / "a.pcapng") == records(tmp_path / "b.pcapng") == records(tmp_path / "c.pcapng")


def test_an_existing_file_is_not_overwritten(
    folder: Path, tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "cut.pcapng"
    target.write_text("a letter")
    text = stderr_of(capsys, 2, folder, "--connection", tables.ids[0], "-o", target)
    assert text == f"wirehare cut: {target}: exists; use --overwrite to replace it, or another name\n"
    assert target.read_text() == "a letter"
    stderr_of(capsys, 0, folder, "--connection", tables.ids[0], "-o", target, "--overwrite")
    assert records(target) == records(BARE)


def test_a_quiet_cut_prints_nothing(
    folder: Path, tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stderr_of(capsys, 0, folder, "--connection", tables.ids[0], "-q", "-o", tmp_path / "cut.pcapng") == ""


@NEEDS_TSHARK
def test_a_message_by_its_id_or_its_frame(
    folder: Path, tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = tables.rows["messages"][0]
    by_id, by_frame = tmp_path / "id.pcapng", tmp_path / "frame.pcapng"
    stderr_of(capsys, 0, folder, "--message-id", "order-17", "-o", by_id)
    stderr_of(capsys, 0, folder, "--message", f"{message['connection_id']}/{message['first_frame_no']}", "-o", by_frame)
    assert by_id.read_bytes() == by_frame.read_bytes()
    infos = [info.rpartition("] ")[2] for (info,) in fields(by_id, "_ws.col.Info")]
    assert infos[-4:] == ["Basic.Publish x= rk=cq ", "Content-Header ", "Content-Body ", "Basic.Ack "]
    assert len(infos) == 7  # SYN, SYN ACK, protocol header
    stderr_of(capsys, 0, folder, "--message-id", "order-17", "--only", "--overwrite", "-o", by_id)
    assert [info for (info,) in fields(by_id, "_ws.col.Info")] == infos[-4:]


@NEEDS_TSHARK
def test_a_finding_is_a_comment(
    folder: Path, tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nack = tables.frames("basic.nack")[0]
    for finding in ("CF-05", f"CF-05/{nack['connection_id']}", f"CF-05/{nack['connection_id']}/{nack['frame_no']}"):
        stderr_of(capsys, 0, folder, "--finding", finding, "--only", "--overwrite", "-o", tmp_path / "cut.pcapng")
        (found,) = fields(tmp_path / "cut.pcapng", "frame.comment", "_ws.col.Info")
        assert (
            found[0]
            == f"CF-05 info: The server refused a published message. (packet {nack['packet_no']} of {BARE.name})"
        )
        assert found[1] == "Basic.Nack "
    assert "nothing matched" in stderr_of(capsys, 1, folder, "--finding", "CF-05/1", "-o", tmp_path / "none.pcapng")
    assert not (tmp_path / "none.pcapng").exists()


def test_what_is_shared_has_neither_secret_nor_address(
    folder: Path, tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_bytes(b"a passphrase")
    cut = ["--connection", tables.ids[0], "--redact", "--anonymise", tmp_path / "key"]
    stderr_of(capsys, 0, folder, *cut, "-o", tmp_path / "a.pcapng")
    stderr_of(capsys, 0, folder, *cut, "-o", tmp_path / "b.pcapng")
    data = (tmp_path / "a.pcapng").read_bytes()
    assert b"\x7f\0\0\x01" in BARE.read_bytes()
    assert b"\x7f\0\0\x01" not in data
    assert b"\0guest\0guest" in BARE.read_bytes()
    assert b"guest" not in data
    assert data == (tmp_path / "b.pcapng").read_bytes()


def test_bad_usage_writes_nothing(
    folder: Path, tables: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, one = tmp_path / "cut.pcapng", tables.ids[0]
    (tmp_path / "empty").touch()
    shutil.copy(BARE, tmp_path)
    for words, arguments in {
        "nothing to cut": [folder, "-o", target],
        "'x' is not a connection": [folder, "--connection", "x", "-o", target],
        "10.0.0.7:0' is not a connection": [folder, "--connection", "10.0.0.7:0", "-o", target],
        "'10.0.0.7' is not a connection": [folder, "--connection", "10.0.0.7", "-o", target],
        "'1.1.1.1:1-2.2.2.2' is not a connection": [folder, "--connection", "1.1.1.1:1-2.2.2.2", "-o", target],
        "no rule 'CF-5'; did you mean 'CF-05'?": [folder, "--finding", "CF-5", "-o", target],
        "'5' is not a message": [folder, "--message", "5", "-o", target],
        "'/5' is not a finding": [folder, "--finding", "/5", "-o", target],
        "is one of the captures": [folder, "--connection", one, "-o", BARE],
        " is one of the captures": [folder, "--connection", one, "--captures", tmp_path, "-o", tmp_path / BARE.name],
        "there is no directory": [folder, "--connection", one, "-o", tmp_path / "nowhere" / "cut.pcapng"],
        "cannot be read": [folder, "--connection", one, "--anonymise", tmp_path / "no-key", "-o", target],
        "the key is empty": [folder, "--connection", one, "--anonymise", tmp_path / "empty", "-o", target],
        "no table 'captures'; expected one of": [folder, "--where", "true", "--table", "captures", "-o", target],
        "no such file or directory": [folder, "--connection", one, "--captures", tmp_path / "empty*dir", "-o", target],
        f"'{2**63}' is not a connection_id": [folder, "--connection", 2**63, "-o", target],
        f"'5/{2**63}' is not a message": [folder, "--message", f"5/{2**63}", "-o", target],
        f"'A-1/{2**63}' is not a finding": [folder, "--finding", f"A-1/{2**63}", "-o", target],
    }.items():
        text = stderr_of(capsys, 2, *arguments)
        assert words in text
        assert text.startswith("wirehare cut: ")
        assert text.count("\n") == 1
    assert "no connection 5 in the tables" in stderr_of(capsys, 1, folder, "--connection", 5, "-o", target)
    assert "no such directory" in stderr_of(capsys, 3, tmp_path / "none", "--connection", one, "-o", target)
    assert "table captures cannot be read" in stderr_of(capsys, 3, tmp_path, "--connection", one, "-o", target)
    damaged = shutil.copytree(folder, tmp_path / "damaged") / "frames" / "part.parquet"
    damaged.write_bytes(damaged.read_bytes()[:4] + bytes(500) + damaged.read_bytes()[504:])  # its footer is intact
    assert "table frames cannot be read" in stderr_of(
        capsys, 3, tmp_path / "damaged", "--connection", one, "-o", target
    )
    assert not target.exists()


def test_a_capture_decompressed_since_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Decoded as BARE.gz, unpacked into another directory, and read from there: by any other name it is that file."""
    packed = tmp_path / f"{BARE.name}.gz"
    packed.write_bytes(gzip.compress(BARE.read_bytes()))
    tables = tables_of([packed])
    folder = tables.write(tmp_path / "tables")
    moved, elsewhere = tmp_path / "moved", tmp_path / "elsewhere"
    for location in (moved, elsewhere):
        location.mkdir()
        shutil.copy(BARE, location)
    (tmp_path / "link").symlink_to(moved)
    cut = [folder, "--connection", tables.ids[0], "--captures", moved, "-o"]
    for output in (moved / BARE.name, tmp_path / "link" / BARE.name):
        assert "is one of the captures" in stderr_of(capsys, 2, *cut, output)
    assert (moved / BARE.name).read_bytes() == BARE.read_bytes()
    # a file that only has the name of one is a file to write into
    stderr_of(capsys, 0, *cut, elsewhere / BARE.name, "--overwrite")
    assert records(elsewhere / BARE.name) == records(BARE)


def test_tables_without_an_audit_have_no_findings(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says which command is missing, and not that the tables cannot be read."""
    shutil.copytree(folder, tmp_path / "tables", ignore=shutil.ignore_patterns("findings"))
    for cut in (["--finding", "CF-05"], ["--where", "true", "--table", "findings"]):
        text = stderr_of(capsys, 3, tmp_path / "tables", *cut, "-o", tmp_path / "cut.pcapng")
        assert text.endswith("/tables: has no table findings; `wirehare audit` writes it\n")
    assert not (tmp_path / "cut.pcapng").exists()


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_captures_that_are_gone(gone: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of three rotated files one is gone: the others are written, the exit code and a line say what is missing. Without
    the first one nobody can tell whose packets the others hold, and nothing is written."""
    names, tables, folder = rotated(tmp_path)
    (tmp_path / "moved").mkdir()
    missing = names.pop(gone)
    for name in names:
        (tmp_path / name).rename(tmp_path / "moved" / name)
    (tmp_path / missing).unlink()
    ids = tables.ids
    cut = [folder, "--connection", *ids, "-o", tmp_path / "cut.pcapng"]
    assert stderr_of(capsys, 3, *cut).count("use --captures when it was moved") >= 1
    text = stderr_of(capsys, 3, *cut, "--captures", tmp_path / "moved")
    problem = f"{(tmp_path / missing).as_uri()}: no file {missing} is there (not in {tmp_path / 'moved'})"
    assert f"wirehare cut: {problem}\n" in text
    assert "do not hold" not in text
    if gone:
        assert records(tmp_path / "cut.pcapng") == [each for name in names for each in records(CAPTURES / name)]
    assert (tmp_path / "cut.pcapng").exists() == bool(gone)


def test_an_unreachable_capture_does_not_affect_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Decoded from a file system that this machine does not know; two of three files were brought here."""
    tables = tables_of([CAPTURES / name for name in ROTATED])
    for row in (*tables.rows["captures"], *tables.rows["frames"]):
        row["capture_file"] = f"hdfs://elsewhere/{Path(row['capture_file']).name}"
    folder = tables.write(tmp_path / "tables")
    (tmp_path / "here").mkdir()
    for name in ROTATED[:2]:
        shutil.copy(CAPTURES / name, tmp_path / "here")
    cut = [folder, "--connection", *tables.ids, "--captures", tmp_path / "here"]
    text = stderr_of(capsys, 3, *cut, "-o", tmp_path / "cut.pcapng")
    assert f"hdfs://elsewhere/{ROTATED[2]}: no file {ROTATED[2]} is there" in text
    assert records(tmp_path / "cut.pcapng") == [each for name in ROTATED[:2] for each in records(CAPTURES / name)]


def test_a_file_is_one_of_the_captures_only_on_its_own_file_system() -> None:
    """A URI that no file system serves is the place of no file; where one is not found now, it may be again."""
    captures = [
        Original(uri, CaptureFile(uri, MISSING, "no such file"), 0, 0)
        for uri in ("nobody://bucket/a.pcap", "s3a://bucket/b.pcap?region=x", "file:///bucket/c.pcap")
    ]
    locations = {f"s3://bucket/{name}.pcap": f"bucket/{name}.pcap" for name in "abc"}
    locations |= {
        f"{at}://{path}": path for at in ("hdfs", "file") for path in (f"/bucket/{name}.pcap" for name in "abc")
    }
    found = [uri for uri, path in locations.items() if is_capture(captures, Location(None, path, uri))]
    assert found == ["s3://bucket/b.pcap", "file:///bucket/c.pcap"]


def test_captures_and_cut_in_an_object_store_do_not_expose_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, tables, folder = rotated(tmp_path)
    with object_store() as store:
        store.put(*(tmp_path / name for name in names[:2]), folder="moved")
        cut = [folder, "--connection", *tables.ids, "--captures", store.uri("moved", "s3a")]
        text = stderr_of(capsys, 3, *cut, "-o", store.uri("cut.pcapng", "s3a"))
        (tmp_path / "cut.pcapng").write_bytes(store.files().open_input_stream(f"{BUCKET}/cut.pcapng").read())
    assert records(tmp_path / "cut.pcapng") == [each for name in names[:2] for each in records(CAPTURES / name)]
    assert f" from 2 captures to s3a://{BUCKET}/cut.pcapng in " in text
    assert f"{names[2]}: no file {names[2]} is there (not in s3a://{BUCKET}/moved)" in text
    assert SECRET not in text
    assert KEY not in text


def test_standard_output_is_the_file(folder: Path, tables: Tables, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jobs.cli", "cut", str(folder), "--connection", str(tables.ids[0]), "-o", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    (tmp_path / "cut.pcapng").write_bytes(done.stdout)
    assert records(tmp_path / "cut.pcapng") == records(BARE)
    assert done.stderr.startswith(b"52 packets of 1 connection from 1 capture to standard output in ")


def test_rows_of_dataframes(
    spark: SparkSession, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tables: Tables
) -> None:
    """Rows of any table in a notebook."""
    loaded = pipeline.load(spark, str(folder))
    publishes = loaded.frames.where("name = 'basic.publish'")
    result = pipeline.cut(loaded, str(tmp_path / "a.pcapng"), rows={"frames": publishes}, context=False)
    expected = sorted({row["packet_no"] for row in tables.frames("basic.publish")})
    assert records(tmp_path / "a.pcapng") == [records(BARE)[number - 1] for number in expected]
    assert (result.packets, result.problems) == (len(expected), [])
    with pytest.raises(pipeline.extract.CutError):
        pipeline.cut(loaded, str(tmp_path / "c.pcapng"), connections=[5])
    assert not (tmp_path / "c.pcapng").exists()


def test_rows_for_which_a_condition_is_true(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB's SQL, which may ask other tables and reads paths of VARIANT columns, without Java."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def numbers(name: str) -> list[int]:
        return sorted({row["packet_no"] for row in tables.frames(name)})

    def cut(condition: str, table: str = "frames", folder: Path = folder) -> list[bytes]:
        to = ("--only", "--overwrite", "-o", tmp_path / "b.pcapng")
        stderr_of(capsys, 0, folder, "--where", condition, "--table", table, *to)
        return [data for _, _, data in records(tmp_path / "b.pcapng")]

    def expected(name: str) -> list[bytes]:
        return [records(BARE)[number - 1][2] for number in numbers(name)]

    condition = "name = 'basic.publish' AND connection_id IN (SELECT connection_id FROM connections)"
    assert cut(condition) == expected("basic.publish")
    assert main(["decode", str(BARE), "--output", str(tmp_path / "decoded")]) == 0
    of_variant = "arguments.delivery_tag >= 0 AND name = 'basic.nack' -- all"
    assert cut(of_variant, "methods", tmp_path / "decoded") == expected("basic.nack")
    audited = "connection_id IN (SELECT connection_id FROM findings WHERE rule_id = 'CF-05') AND name = 'basic.nack'"
    assert cut(audited) == expected("basic.nack")
    for wrong in (
        "nmae = 'x'",
        "true; DROP TABLE frames",
        "true); DROP VIEW frames; SELECT (1",
        "name = (FROM 'other.csv')",
    ):
        text = stderr_of(capsys, 2, folder, "--where", wrong, "-o", tmp_path / "c.pcapng")
        assert "wirehare cut: --where: " in text
    assert not (tmp_path / "c.pcapng").exists()


def test_a_condition_reads_variants_of_tables_in_an_object_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tables: Tables
) -> None:
    folder = tmp_path / "decoded"
    assert main(["decode", str(BARE), "--output", str(folder)]) == 0
    condition = "arguments.delivery_tag >= 0 AND name = 'basic.nack'"
    with object_store() as store:
        for table in folder.iterdir():
            store.put(*table.iterdir(), folder=f"tables/{table.name}")
        to = ("--where", condition, "--table", "methods", "--only", "-o", tmp_path / "a.pcapng")
        stderr_of(capsys, 0, store.uri("tables"), *to)
    packets = {row["packet_no"] for row in tables.frames("basic.nack")}
    assert [data for _, _, data in records(tmp_path / "a.pcapng")] == [
        records(BARE)[at - 1][2] for at in sorted(packets)
    ]


def test_help_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["cut", "--help"])
    text = capsys.readouterr().out
    assert all(f"\n  {code}  " in text for code in range(5))
