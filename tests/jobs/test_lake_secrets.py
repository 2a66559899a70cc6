"""TLS in a lake: key logs that grow, and secrets that stay out of it unless they are to be carried."""

from __future__ import annotations

import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake_work import LocalWork, rotated
from test_lake_batches import compared, decoded_at_once, in_lake

from codec.layers.tls_handshake import KeyLog
from jobs.cli import main
from jobs.terminal.running import USAGE
from pipeline.lake.ingest_batches import Ingest
from pipeline.lake.lake_files import read_rows
from pipeline.lake.layout import Options
from pipeline.lake.log import Log
from pipeline.lake.opening import open_lake
from udfs.decode.key_logs import SecretFiles

CAPTURES = Path(__file__).parents[1] / "captures"
IN_TIME = 10**9  # s; no capture is late
HEAD = 18  # bytes before what is compressed in a state: magic, version, digest, checksum


def ingest(lake: Path, found: list[Path], key_log: Path, *, carry: bool) -> None:
    options = Options(settle=0, late_after=IN_TIME, carry_secrets=carry)
    with Ingest.into(str(lake), lambda log: LocalWork(log, (str(key_log),), carry), options) as ingesting:
        for _ in ingesting.batches([str(path) for path in found]):
            pass


def values(path: Path) -> Iterator[bytes]:
    """All that a file of the lake holds, uncompressed; of states what is inside."""
    if path.suffix != ".parquet" or "_delta_log" in str(path):
        yield path.read_bytes()
        return
    table = pq.read_table(path, partitioning=None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    yield sink.getvalue().to_pybytes()
    for data in table["octets"].to_pylist() if path.is_relative_to(path.parents[1].parent / "states") else ():
        yield zlib.decompress(data[HEAD:])


def with_secrets(lake: Path, key_log: Path) -> set[Path]:
    """Files of the lake in which a secret of the key log stands, as bytes or as text."""
    known = [
        secret
        for each in KeyLog(key_log.read_bytes())._known.values()
        for secrets in each.values()
        for secret in secrets
    ]
    assert known
    shapes = [shape for secret in known for shape in (secret, secret.hex().encode(), secret.hex().upper().encode())]
    files = [path for path in lake.rglob("*") if path.is_file()]
    return {path for path in files if any(shape in data for data in values(path) for shape in shapes)}


def contents(lake: Path) -> list[str]:
    log = Log(open_lake(str(lake)))
    found: list[str] = read_rows(log.root, "connections", log.files("connections"), ["content"])["content"].to_pylist()
    return sorted(found)


@pytest.mark.parametrize("name", ["091_tls12", "091_tls13"])
def test_a_tls_connection_goes_on_where_its_secrets_are_carried(tmp_path: Path, name: str) -> None:
    pieces = list(rotated(CAPTURES / f"{name}.pcap", tmp_path / "captures", 4))
    key_log = CAPTURES / f"{name}.keylog.txt"
    lake = tmp_path / "lake"
    for end in (1, 2, 3):
        ingest(lake, pieces[:end], key_log, carry=True)
    holding = with_secrets(lake, key_log)
    assert holding
    assert {path.relative_to(lake).parts[0] for path in holding} == {"states"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}
    ingest(lake, pieces, key_log, carry=True)
    compared(in_lake(lake), decoded_at_once(pieces, SecretFiles((str(key_log),))))
    assert contents(lake) == ["amqp"]


@pytest.mark.parametrize("name", ["091_tls12", "091_tls13"])
def test_without_it_the_lake_holds_no_secret_and_the_rest_is_tls(tmp_path: Path, name: str) -> None:
    pieces = list(rotated(CAPTURES / f"{name}.pcap", tmp_path / "captures", 2))
    key_log = CAPTURES / f"{name}.keylog.txt"
    lake = tmp_path / "lake"
    for end in (1, 2):
        ingest(lake, pieces[:end], key_log, carry=False)
        assert with_secrets(lake, key_log) == set()
    assert contents(lake) == ["amqp", "tls"]
    first, rest = decoded_at_once(pieces[:1], SecretFiles((str(key_log),))), decoded_at_once(pieces[1:])
    compared(in_lake(lake), {table: first[table] + rest[table] for table in first})


def test_carried_secrets_are_deleted_by_the_first_batch_without_the_option(tmp_path: Path) -> None:
    pieces, key_log = list(rotated(CAPTURES / "091_tls13.pcap", tmp_path / "a", 2)), CAPTURES / "091_tls13.keylog.txt"
    lake, other = tmp_path / "lake", next(rotated(CAPTURES / "091_tx.pcap", tmp_path / "b", 2))
    ingest(lake, pieces[:1], key_log, carry=True)
    before = in_lake(lake)
    ingest(lake, [other], key_log, carry=False)
    log = Log(open_lake(str(lake)))
    assert read_rows(log.root, "states", log.files("states"), ["secrets"])["secrets"].to_pylist() == [False]
    assert with_secrets(lake, key_log) == set()
    rest = decoded_at_once([other])
    compared(in_lake(lake), {table: before[table] + rest[table] for table in before})


def test_a_key_log_is_read_again_when_it_has_grown(tmp_path: Path) -> None:
    lake, key_log = tmp_path / "lake", tmp_path / "keys.txt"
    names = ("091_tls12", "091_tls13")
    expected = {
        name: decoded_at_once([CAPTURES / f"{name}.pcap"], SecretFiles((str(CAPTURES / f"{name}.keylog.txt"),)))
        for name in names
    }
    options = Options(settle=0, late_after=IN_TIME)
    with Ingest.into(str(lake), lambda log: LocalWork(log, (str(key_log),)), options) as ingesting:
        for name in names:
            with key_log.open("ab") as file:
                file.write((CAPTURES / f"{name}.keylog.txt").read_bytes())
            assert len(list(ingesting.batches([str(CAPTURES / f"{name}.pcap")]))) == 1
    compared(
        in_lake(lake), {table: [row for each in expected.values() for row in each[table]] for table in in_lake(lake)}
    )


def test_a_file_that_is_not_a_key_log_is_named_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, lake, key_log = CAPTURES / "091_tls13.pcap", tmp_path / "lake", tmp_path / "keys.txt"
    key_log.write_text("no line of a key log\n")
    for path in (key_log, tmp_path / "absent.txt"):
        assert main(["ingest", str(capture), "--lake", str(lake), "--once", "--keylog", str(path)]) == USAGE
        (line,) = capsys.readouterr().err.splitlines()
        assert f"key log {path}" in line
    assert not lake.exists()
