"""A lake filled by this process: its tables, message flows across batches among them, are those of one decode."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import golden
import pyarrow.parquet as pq
import pytest
from lake_work import rotated

import pipeline
from pipeline import TABLES
from pipeline.lake.log import Log
from pipeline.lake.place import existing
from pipeline.tables.exchange import ThisProcess

BATCHES, FOREVER_S = 6, 3e9  # captures are of several years
# Of each version; a stream, requests and replies, a transaction, bytes that are lost.
NAMES = (
    "091_rpc_reply_to.pcap", "091_confirms_and_return.pcap", "091_tx.pcap", "08_amqplib_session.pcap",
    "09_qpid_client.pcap", "010_cpp_send_receive.pcap", "10_qpidd_rpc_dynamic_node.pcap",
    "10_rabbitmq_proton_send_receive.pcap",
)  # fmt: skip
LOSSY = "091_many_channels.pcap"


def no_session() -> NoReturn:
    raise AssertionError("Spark was begun")


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Captures of each batch; of one connection some are missing."""
    folder = tmp_path_factory.mktemp("captures")
    found: list[list[str]] = [[] for _ in range(BATCHES)]
    for name in (*NAMES, LOSSY):
        for batch, piece in zip(found, rotated(golden.captures()[name].paths[0], folder, BATCHES), strict=True):
            batch.append(str(piece))
    found[BATCHES // 2].pop()
    return found


@pytest.fixture(scope="module")
def lake(batches: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> Log:
    lake = str(tmp_path_factory.mktemp("lake") / "lake")
    for number, batch in enumerate(batches, 1):
        taken = pipeline.ingest(
            no_session, batch, lake, settle=0, pair_within=FOREVER_S, forget_after=FOREVER_S, late_after=FOREVER_S
        )
        assert [row["batch"] for row in taken] == [number]
    return Log(existing(lake))


@pytest.fixture(scope="module")
def decoded(batches: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("decoded") / "out"
    pipeline.write(ThisProcess(), [name for batch in batches for name in batch], str(output))
    return output


def rows(name: str, files: Iterable[object]) -> list[str]:
    columns = TABLES[name].names
    return sorted(str([row[column] for column in columns]) for file in files for row in pq.read_table(file).to_pylist())


@pytest.mark.parametrize("name", TABLES)
def test_a_lake_has_the_tables_of_one_decode(lake: Log, decoded: Path, name: str) -> None:
    found = rows(name, [f"{lake.root.path}/{name}/{file.path}" for file in lake.files(name)])
    assert found == rows(name, (decoded / name).glob("*.parquet"))
    assert found


def test_flows_join_messages_of_several_batches(lake: Log, decoded: Path) -> None:
    """Else the test above says little."""
    flows = [row for file in (decoded / "message_flows").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    messages = [(file.path[:8], file) for file in lake.files("messages")]
    batch_of = {
        (row["connection_id"], row["first_frame_no"]): batch
        for batch, file in messages
        for row in pq.read_table(f"{lake.root.path}/messages/{file.path}").to_pylist()
    }
    pairs = [
        [batch_of[row[f"{side}_connection_id"], row[f"{side}_frame_no"]] for side in ("publish", "deliver")]
        for row in flows
        if row["match"] != "none"
    ]
    assert any(publish != deliver for publish, deliver in pairs)
    assert any(row["rpc_latency_ns"] is not None for row in flows)


def test_nothing_is_left_of_a_batch_but_what_the_log_names(lake: Log) -> None:
    for name in ("pairing", "brokers", "states", "taken"):
        there = {
            str(path.relative_to(f"{lake.root.path}/{name}")) for path in Path(lake.root.path, name).rglob("*.parquet")
        }
        assert {path for path in there if not path.startswith("_")} == {file.path for file in lake.files(name)}
