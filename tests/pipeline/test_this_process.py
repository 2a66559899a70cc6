"""Small captures are decoded without Spark: the same functions, called in this process, give the same rows."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread
from typing import Any, NoReturn

import golden
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import pipeline
from pipeline.decoding import IN_PROCESS_BYTES
from pipeline.schemas import TABLES
from pipeline.tables.exchange import Interrupted, ThisProcess
from udfs.source.options import OptionError
from udfs.source.paths import PathError

CAPTURES = Path(__file__).parents[1] / "captures"
# Of each version; with requests and replies, streams, transactions; directions that lack packets.
NAMES = (
    "091_rpc_reply_to.pcap", "091_confirms_and_return.pcap", "091_tx.pcap", "08_qpid_client.pcap",
    "09_qpid_client.pcap", "010_tx.pcap", "010_cpp_send_receive.pcap", "10_qpidd_rpc_dynamic_node.pcap",
    "10_qpidd_transactions.pcap", "10_rabbitmq_proton_send_receive.pcap",
)  # fmt: skip
LOSSY, WITHOUT = "091_many_channels.pcap", 7  # every so many packets of a copy are left out


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("captures")
    for name in NAMES:
        shutil.copy(CAPTURES / name, folder / name)
    lossy(CAPTURES / LOSSY, folder / LOSSY)
    (folder / "text.pcap").write_text("no capture")
    return str(folder)


def lossy(capture: Path, copy: Path) -> None:
    """A classic pcap file (draft-ietf-opsawg-pcap), little endian, some of its packets left out."""
    octets = capture.read_bytes()
    assert octets[:4] == b"\xd4\xc3\xb2\xa1"
    kept, at, number = [octets[:24]], 24, 0
    while at < len(octets):
        end = at + 16 + int.from_bytes(octets[at + 8 : at + 12], "little")
        number += 1
        if number % WITHOUT:
            kept.append(octets[at:end])
        at = end
    copy.write_bytes(b"".join(kept))


def rows(directory: Path) -> list[str]:
    """All rows of the files of a table, in an order that does not depend on who wrote them."""
    return sorted(str(row) for file in directory.glob("*.parquet") for row in pq.read_table(file).to_pylist())


def test_the_tables_are_those_that_spark_writes(spark: SparkSession, captures: str, tmp_path: Path) -> None:
    here = pipeline.write(ThisProcess(), captures, str(tmp_path / "here"))
    there = pipeline.write(spark, captures, str(tmp_path / "there"))
    assert sorted(row["capture_file"] for row in here) == sorted(row["capture_file"] for row in there)
    for table in TABLES:
        found = rows(tmp_path / "here" / table)
        assert found == rows(tmp_path / "there" / table), table
        assert found, table


def test_what_was_lost_and_what_was_answered_are_among_them(captures: str, tmp_path: Path) -> None:
    """Else the paths behind them would not have been taken."""
    pipeline.write(ThisProcess(), captures, str(tmp_path / "here"))
    flows = pq.read_table(tmp_path / "here" / "message_flows").to_pylist()
    connections = pq.read_table(tmp_path / "here" / "connections").to_pylist()
    assert any(row["rpc_latency_ns"] is not None for row in flows)
    assert any(row["missing_bytes"] for row in connections)


REWRITTEN = [
    name for name, one in golden.captures().items() if one.origin != name and "tls" not in name and ".gz" not in name
]
OF_PACKETS = re.compile(r"flow_id|.*(connection_id|capture_file|packet_no|_ts)")


def flows(name: str, directory: Path) -> Counter[str]:
    """The flows of a capture but for packets and times; whether there is a time, or a latency, is said."""
    paths = [str(path) for path in golden.captures()[name].paths]
    pipeline.write(ThisProcess(), paths, str(directory), tables=["message_flows"])
    found = pq.read_table(directory / "message_flows").to_pylist()
    return Counter(
        str(
            {
                key: value is None if key.endswith("_ns") else value
                for key, value in row.items()
                if not OF_PACKETS.fullmatch(key)
            }
        )
        for row in found
    )


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_rewritten_capture_gives_the_flows_of_its_origin(name: str, tmp_path: Path) -> None:
    """As the other tables (`test_tables_of`): segments of some bytes, swapped, doubled, overlapping; rotated files."""
    assert flows(name, tmp_path / "rewritten") == flows(golden.captures()[name].origin, tmp_path / "origin")


def test_the_rewritten_captures_have_pairs_of_several_versions(tmp_path: Path) -> None:
    versions = {version for name in REWRITTEN for version in golden.captures()[name].versions}
    assert {"0-9-1", "0-10", "1.0"} <= versions
    for name in ("091_reorder_dup_overlap.pcap", "10_tiny_segments.pcap"):
        assert any("'match': 'none'" not in row for row in flows(name, tmp_path / name)), name


def test_work_that_is_interrupted_leaves_the_old_output(captures: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    pipeline.write(ThisProcess(), captures, str(output))
    before = rows(output / "frames")
    process = ThisProcess()
    process.interruptAll()
    with pytest.raises(Interrupted):
        pipeline.write(process, captures, str(output), overwrite=True)
    assert rows(output / "frames") == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_work_is_interrupted_wherever_it_is(captures: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two batches interpreted kernels may run for minutes."""
    decoding, process, ended = Event(), ThisProcess(), Future[None]()

    def for_ever(*args: object, **options: object) -> NoReturn:
        decoding.set()
        while True:
            pass

    def work() -> None:
        try:
            pipeline.write(process, captures, str(tmp_path / "out"))
        except Interrupted as error:
            ended.set_exception(error)

    monkeypatch.setattr("udfs.sink.writers.tables_of", for_ever)
    Thread(target=work, daemon=True).start()
    assert decoding.wait(60)
    process.interruptAll()
    assert isinstance(ended.exception(60), Interrupted)
    assert list(tmp_path.iterdir()) == []


def test_large_captures_need_spark(captures: str, tmp_path: Path) -> None:
    large = tmp_path / "large.pcap"
    large.write_bytes((Path(captures) / NAMES[0]).read_bytes() + bytes(IN_PROCESS_BYTES))
    with pytest.raises(ValueError, match="need Spark"):
        pipeline.write(ThisProcess(), str(large), str(tmp_path / "out"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["large.pcap"]


@pytest.mark.parametrize(
    ("wrong", "error", "line"),
    [
        ({"paths": "notes.txt"}, PathError, "notes.txt: the file begins with the text 'Dear diary'"),
        ({"prots": [5672]}, TypeError, r"unexpected keyword argument 'prots'; did you mean 'ports'\?"),
        ({"ports": "amqp"}, OptionError, "ports: 'amqp'"),
        ({"tables": ["mesages"]}, ValueError, r"there is no table 'mesages'; did you mean 'messages'\?"),
    ],
)
def test_what_cannot_be_meant_replaces_no_table(
    wrong: dict[str, object], error: type[Exception], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("Dear diary")
    old = tmp_path / "out" / "frames" / "part-0.parquet"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    given: dict[str, Any] = {"paths": str(CAPTURES / NAMES[0]), "output": "out", "overwrite": True, **wrong}
    with pytest.raises(error, match=line):
        pipeline.write(ThisProcess(), **given)
    assert old.read_text() == "old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["notes.txt", "out"]
