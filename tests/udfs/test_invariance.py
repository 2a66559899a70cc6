"""The same rows whatever the split size, the coalescing limits, the batches, the partitions and the order of files, and
whether the kernels are compiled or run as plain Python."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import golden
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from decoding import decode_batches, decode_table, decoded, dump, in_flow_order, rows_of, runs
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pipeline
from benchmarks.generate import generate
from pipeline.run import session

ROTATED = "091_rotated_*.pcap"
# Damage of each kind, streams long enough to be cut into many runs, and every version, also without its header.
FEATURED = [
    "091_reorder_dup_overlap.pcap",
    "091_loss.pcap",
    "091_snaplen96.pcap",
    "091_mid_frame.pcap",
    "091_many_channels.pcap",
    "091_mixed_traffic.pcap",
    "091_port_reuse.pcap",
    "091_ipv6.pcapng",
    "0x_all_protocol_headers.pcap",
    "08_amqplib_session.pcap",
    "09_qpid_client.pcap",
    "010_lowlevel_methods.pcap",
    "010_mid_stream.pcap",
    "010_tiny_segments.pcap",
    "10_qpidd_all_types.pcap",
    "10_mid_stream.pcap",
    "10_rabbitmq_multi_frame_transfer.pcap",
    ROTATED,
]
SMALL = 20_000  # bytes of a capture that plain Python kernels decode in less than a second
LARGER = ["08_qpid_dialect_refused.pcap", "09_qpid_client.pcap"]  # of versions that no small capture has

VERSIONS = {"0-8", "0-9", "0-9-1", "0-10", "1.0"}

featured = pytest.mark.parametrize("name", FEATURED)


def test_the_captures_cover_every_version() -> None:
    assert {version for name in FEATURED for version in golden.captures()[name].versions} == VERSIONS


def frame_rows(table: pa.Table) -> pa.Table:
    """All rows but the accounts of the splits, in an order of their own."""
    rows = table.filter(pc.not_equal(table["kind"], "capture"))
    return rows.sort_by([(name, "ascending") for name in ("connection_id", "kind", "frame_no")])


@cache
def reference(name: str) -> pa.Table:
    return frame_rows(decode_table(in_flow_order(runs(golden.captures()[name].paths))))


def assert_same_rows(decoded: pa.Table, name: str) -> None:
    """Column by column, VARIANT byte by byte; as values only where they differ, which takes Python long."""
    found = frame_rows(decoded)
    if not found.equals(reference(name)):
        assert rows_of(found) == rows_of(reference(name))
        raise AssertionError("the same values in other bytes")


@featured
@pytest.mark.parametrize("split_bytes", [1_000, 7_777, 100_000])
def test_split_size_changes_no_row(name: str, split_bytes: int) -> None:
    split = runs(golden.captures()[name].paths, splitBytes=split_bytes)
    assert_same_rows(decode_table(in_flow_order(split)), name)


@featured
@pytest.mark.parametrize(("run_bytes", "block_bytes"), [(1, 8_388_608), (3_000, 10_000), (262_144, 1_000)])
def test_coalescing_and_read_blocks_change_no_row(name: str, run_bytes: int, block_bytes: int) -> None:
    coalesced = runs(golden.captures()[name].paths, runBytes=run_bytes, blockBytes=block_bytes)
    assert_same_rows(decode_table(in_flow_order(coalesced)), name)


@featured
@given(seed=st.integers(0, 2**32), split_bytes=st.integers(400, 60_000))
@settings(max_examples=3, deadline=None)
def test_batches_cut_anywhere_change_no_row(name: str, seed: int, split_bytes: int) -> None:
    table = in_flow_order(runs(golden.captures()[name].paths, splitBytes=split_bytes))
    cuts, rng = [0], random.Random(seed)
    while cuts[-1] < len(table):
        cuts.append(cuts[-1] + rng.randint(1, 5))
    uncut = table.combine_chunks().to_batches()[0]
    batches = [uncut.slice(start, stop - start) for start, stop in itertools.pairwise(cuts)]
    assert_same_rows(decode_batches(batches), name)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_order_of_rotated_files_changes_no_row(order: tuple[int, ...]) -> None:
    paths = golden.captures()[ROTATED].paths
    shuffled = runs([paths[index] for index in order])
    assert_same_rows(decode_table(in_flow_order(shuffled)), ROTATED)


def test_capture_rows_of_splits_add_up_to_the_file() -> None:
    (path,) = golden.captures()["091_loss.pcap"].paths
    accounts = [
        row["arguments"] for row in rows_of(decode_table(runs([path], splitBytes=5_000))) if row["kind"] == "capture"
    ]
    assert len(accounts) > 10
    assert sum(account["packets"] for account in accounts) == golden.captures()["091_loss.pcap"].packets
    assert {account["byte_size"] for account in accounts} == {path.stat().st_size}


# ---- plain Python kernels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_kernels_without_the_compiler_give_the_same_columns(every: int) -> None:
    small = [
        name for name, capture in golden.captures().items() if sum(p.stat().st_size for p in capture.paths) < SMALL
    ]
    assert len(small) > 45
    names = [*small[::every], *LARGER]
    assert {version for name in names for version in golden.captures()[name].versions} == VERSIONS
    root = Path(__file__).parents[2]
    support = root / "tests" / "support"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join([str(root), str(support)])}
    plain = subprocess.run(
        [sys.executable, str(support / "decoding.py"), *names],
        env=environment, cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert plain.stdout.splitlines() == list(dump(names))


# ---- through Spark --------------------------------------------------------------------------------------------------


def fingerprint(table: DataFrame) -> list[str]:
    """The rows of a table as sorted JSON, without the location of the files."""
    rows = table.select(F.to_json(F.struct(*table.columns)).alias("row")).collect()
    return sorted(row["row"] for row in rows)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1000 packets of ten connections in step with one another."""
    path = tmp_path_factory.mktemp("generated") / "traffic.pcap"
    generate(path, 600_000, seed=7, connections=10)
    return path


# Of Spark; other tests run without (conftest.py).
ADAPTIVE = {"spark.sql.adaptive.enabled": "true", "spark.sql.autoBroadcastJoinThreshold": "10MB"}


def test_all_tables_are_the_same_for_any_split_partition_count_and_plan(spark: SparkSession, generated: Path) -> None:
    found = []
    for split_bytes, partitions, plan in [
        (64_000_000, 1, session.INTERPRETED),
        (31_111, 5, {**session.COMPILED, **ADAPTIVE}),
    ]:
        with session.settings(spark, {"spark.sql.shuffle.partitions": str(partitions), **plan}):
            tables = pipeline.decode(spark, str(generated), split_bytes=split_bytes)
            found.append({name: fingerprint(table) for name, table in tables.items()})
            tables.release()
    assert found[0]["messages"]
    assert found[0] == found[1]


def test_in_process_rows_are_those_of_spark(spark: SparkSession) -> None:
    """The harness of these tests does what the job does: same frames from Spark and from the generators."""
    name = "091_connection_exceptions.pcap"
    tables = pipeline.decode(spark, str(golden.captures()[name].paths[0]), payload=True)
    columns = ["connection_id", "frame_no", "sender", "packet_no", "size", "frame_type", "name", "status", "error"]
    found = [tuple(row) for row in tables.frames.select(columns).orderBy("connection_id", "frame_no").collect()]
    rows = [tuple(row[column] for column in columns) for connection in decoded(name) for row in connection.rows]
    assert found == sorted(rows)
