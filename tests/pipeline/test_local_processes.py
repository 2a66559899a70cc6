"""Local captures are decoded without Spark: the same functions, called in local processes, give the same rows."""

from __future__ import annotations

import cProfile
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, NoReturn

import golden
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pcap_files import records
from process_work import (
    LATER,
    WriteLater,
    abort,
    decode,
    fail,
    fail_to_decode,
    group,
    identify,
    interpreted_late,
    kill,
    leave,
    loaded,
    say,
    wait_for_ever,
)
from pyspark.sql import SparkSession

import pipeline
from codec.tables import TABLES
from pipeline.run import local_processes
from pipeline.run.exchange import Local, Source
from pipeline.run.local_processes import Interrupted, LocalProcesses, ProcessLost
from pipeline.tables.decoding import LOCAL_BYTES, decoded_locally
from udfs.arrow import spill_files as arrow_files
from udfs.decode.key_logs import KeyLogError
from udfs.source.options import OptionError
from udfs.source.paths import PathError

CAPTURES = Path(__file__).parents[1] / "captures"
# Of each version; with requests and replies, streams, transactions; directions that lack packets.
NAMES = (
    "091_rpc_reply_to.pcap", "091_confirms_and_return.pcap", "091_tx.pcap", "08_qpid_client.pcap",
    "09_qpid_client.pcap", "010_tx.pcap", "010_cpp_send_receive.pcap", "10_qpidd_rpc_dynamic_node.pcap",
    "10_qpidd_transactions.pcap", "10_rabbitmq_proton_send_receive.pcap",
)  # fmt: skip
LOSSY, WITHOUT = "091_many_channels.pcap", 7  # every so many packets of a copy are missing


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("captures")
    for name in NAMES:
        shutil.copy(CAPTURES / name, folder / name)
    lossy(CAPTURES / LOSSY, folder / LOSSY)
    (folder / "text.pcap").write_text("no capture")
    return str(folder)


def lossy(capture: Path, copy: Path) -> None:
    """A capture without some of its packets."""
    header, packets = records(capture)
    copy.write_bytes(header + b"".join(packet for number, packet in enumerate(packets, 1) if number % WITHOUT))


def rows(directory: Path) -> list[str]:
    """All rows of the files of a table, in an order that does not depend on who wrote them."""
    return sorted(str(row) for file in directory.glob("*.parquet") for row in pq.read_table(file).to_pylist())


@pytest.fixture(scope="module")
def of_spark(spark: SparkSession, captures: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("spark") / "tables"
    pipeline.write(spark, captures, str(output))
    return output


@pytest.mark.parametrize("number", [1, 2])
def test_the_tables_are_those_that_spark_writes(number: int, of_spark: Path, captures: str, tmp_path: Path) -> None:
    here = pipeline.write(LocalProcesses(number), captures, str(tmp_path / "here"))
    assert [row["packets"] for row in here if row["format"]]
    for table in TABLES:
        found = rows(tmp_path / "here" / table)
        assert found == rows(of_spark / table), table
        assert found, table


@pytest.mark.parametrize("large_row", [arrow_files.LARGE_ROW, 0])
def test_flows_whose_runs_are_sorted_in_many_pieces_are_complete(
    of_spark: Path, captures: str, tmp_path: Path, large_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captures are split within connections, runs go to many files, and are merged a few at a time."""
    monkeypatch.setattr(arrow_files, "LARGE_ROW", large_row)
    monkeypatch.setattr(arrow_files, "SORTED_BYTES", 4096)
    pipeline.write(LocalProcesses(), captures, str(tmp_path / "here"), split_bytes=4096)
    for table in set(TABLES) - {"captures"}:
        assert rows(tmp_path / "here" / table) == rows(of_spark / table), table


def test_a_flow_is_in_one_bucket() -> None:
    flows = [bytes([number]) * 36 for number in range(200)]
    buckets = arrow_files.flow_buckets(pa.table({"flow": pa.array([*flows, None, *reversed(flows)], pa.binary())}))
    assert buckets[:200].tolist() == buckets[:200:-1].tolist()
    assert len(set(buckets.tolist())) > arrow_files.FLOW_BUCKETS / 2
    assert set(buckets.tolist()) <= set(range(arrow_files.FLOW_BUCKETS))


def test_the_cost_of_merging_depends_on_rows_not_on_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One long connection: each file begins where the one before ends."""
    monkeypatch.setattr(arrow_files, "SORTED_BYTES", 1 << 16)

    def calls(pieces: int) -> int:
        rows = pa.table({"flow": pa.array([bytes(36)] * 4096), "order_ns": pa.array(range(4096))})
        parts = [rows.slice(begin, 4096 // pieces) for begin in range(0, 4096, 4096 // pieces)]
        profile = cProfile.Profile()
        batches = profile.runcall(lambda: list(arrow_files.merged(parts, ["flow", "order_ns"])))
        assert [row["order_ns"] for batch in batches for row in batch.to_pylist()] == list(range(4096))
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(64) < 1.5 * 64 / 16 * calls(16)


def resident_of_files() -> int:
    """Bytes of mapped files that count for this process (proc_pid_status(5))."""
    (kilobytes,) = re.findall(r"RssFile:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(kilobytes)


def test_pages_of_sorted_files_that_were_read_do_not_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long connection has as many files as it has bytes."""
    monkeypatch.setattr(arrow_files, "SORTED_BYTES", 1 << 20)
    batches = (
        pa.record_batch(
            {"flow": pa.array([bytes(36)] * 100), "order_ns": pa.array(range(at, at + 100)), "x": [bytes(5000)] * 100}
        )
        for at in range(0, 12_800, 100)
    )
    files = arrow_files.write_sorted(batches, str(tmp_path), arrow_files.flow_buckets, ("flow", "order_ns"))
    assert sum(os.path.getsize(file.path) for file in files) > 64_000_000
    before, read = resident_of_files(), 0
    for batch in arrow_files.read_sorted(files, range(arrow_files.FLOW_BUCKETS), ("flow", "order_ns")):
        read += batch.num_rows
        assert resident_of_files() - before < 16_000_000
    assert read == 12_800


@pytest.mark.parametrize("large_row", [arrow_files.LARGE_ROW, 0])
def test_temporary_files_go_with_the_rows_that_need_them(large_row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of `wirehare ingest` would fill the disk."""
    monkeypatch.setattr(arrow_files, "LARGE_ROW", large_row)
    processes = LocalProcesses()
    rows = pa.record_batch({"bucket": pa.array([3, 1, 3], pa.int32()), "rows": pa.array([b"a", b"b", b"c"])})
    once = Local(processes, [Source([rows]), Source([rows])]).by_bucket()
    assert len(os.listdir(processes.directory)) == 2
    twice = once.by_bucket()
    assert len(os.listdir(processes.directory)) == 1
    assert [row["rows"] for row in twice.collected()] == [b"b", b"b", b"a", b"c", b"a", b"c"]
    assert os.listdir(processes.directory) == []
    processes.close()


@given(
    parts=st.lists(st.lists(st.tuples(st.none() | st.binary(max_size=2), st.integers(0, 9))), max_size=4),
    size=st.integers(1, 200),
)
def test_sorted_tables_are_merged_as_they_would_be_sorted_together(
    parts: list[list[tuple[bytes | None, int]]], size: int
) -> None:
    def key(row: tuple[bytes | None, int]) -> tuple[bool, bytes, int]:
        return row[0] is None, row[0] or b"", row[1]

    schema = pa.schema({"flow": pa.binary(), "order_ns": pa.int64()})
    tables = [
        pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in sorted(part, key=key)], schema)
        for part in parts
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_files, "SORTED_BYTES", size)
        batches = list(arrow_files.merged(tables, schema.names))
    found = [(row["flow"], row["order_ns"]) for batch in batches for row in batch.to_pylist()]
    assert found == sorted((row for part in parts for row in part), key=key)


def test_the_captures_include_losses_and_replies(of_spark: Path) -> None:
    """Else the paths behind them would not have been taken."""
    flows = pq.read_table(of_spark / "message_flows").to_pylist()
    connections = pq.read_table(of_spark / "connections").to_pylist()
    assert any(row["rpc_latency_ns"] is not None for row in flows)
    assert any(row["missing_bytes"] for row in connections)


REWRITTEN = [
    name for name, one in golden.captures().items() if one.origin != name and "tls" not in name and ".gz" not in name
]
OF_PACKETS = re.compile(r"flow_id|.*(connection_id|capture_file|packet_no|_ts)")


@cache
def flows(name: str) -> Counter[str]:
    """The flows of a capture but for packets and times; of times and latencies only whether there are any."""
    paths = [str(path) for path in golden.captures()[name].paths]
    with TemporaryDirectory() as directory:
        pipeline.write(LocalProcesses(), paths, f"{directory}/tables", tables=["message_flows"])
        found = pq.read_table(f"{directory}/tables/message_flows").to_pylist()
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
def test_a_rewritten_capture_gives_the_flows_of_its_origin(name: str) -> None:
    """As the other tables (`test_tables_of`): segments of some bytes, swapped, doubled, overlapping; rotated files."""
    assert flows(name) == flows(golden.captures()[name].origin)


def test_the_rewritten_captures_have_pairs_of_several_versions() -> None:
    versions = {version for name in REWRITTEN for version in golden.captures()[name].versions}
    assert {"0-9-1", "0-10", "1.0"} <= versions
    for name in ("091_reorder_dup_overlap.pcap", "10_tiny_segments.pcap"):
        assert any("'match': 'none'" not in row for row in flows(name)), name


def test_work_that_is_interrupted_leaves_the_old_output(of_spark: Path, captures: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    shutil.copytree(of_spark, output)
    before = rows(output / "frames")
    process = LocalProcesses()
    process.interruptAll()
    with pytest.raises(Interrupted):
        pipeline.write(process, captures, str(output), overwrite=True)
    assert rows(output / "frames") == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_work_is_interrupted_wherever_it_is(captures: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two batches interpreted kernels may run for minutes."""
    decoding, process, ended = Event(), LocalProcesses(), Future[None]()

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


def test_remote_and_very_large_captures_are_left_to_spark(captures: str, tmp_path: Path) -> None:
    assert decoded_locally([captures])
    assert not decoded_locally([captures, "s3://bucket/trace.pcap"])
    large = tmp_path / "large.pcap"
    shutil.copy(Path(captures) / NAMES[0], large)
    os.truncate(large, LOCAL_BYTES + 1)
    assert not decoded_locally([str(large)])


@dataclass(frozen=True)
class KillItself:
    """Decodes nothing: its process is killed, as for lack of memory."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that decode nothing start without kernels."""
    monkeypatch.setattr(local_processes, "PRELOADED", [])


def running(number: int) -> bool:
    """Whether a process has not ended; one that is only waited for has."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


def test_work_after_a_lost_process_is_done_by_new_ones(bare: None) -> None:
    """A loop of `wirehare ingest` goes on when an idle process was killed between two batches."""
    processes = LocalProcesses(2)
    first = set(processes.run(identify, range(4)))
    for number in first:
        os.kill(number, signal.SIGKILL)
    for number in first:
        os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)
    second = set(processes.run(identify, range(4)))
    assert second
    assert not second & first
    with pytest.raises(ProcessLost):
        processes.run(kill, range(2))
    assert processes.run(identify, range(4))
    processes.close()


def test_nothing_is_written_once_the_work_has_failed(bare: None, tmp_path: Path) -> None:
    """An ingest then removes what the batch has written, and lets the next one begin."""
    processes = LocalProcesses(2)
    processes.run(identify, range(4))
    with pytest.raises(OSError, match="no space"):
        processes.run(WriteLater(str(tmp_path)), range(20))
    file_count = len(os.listdir(tmp_path))
    assert file_count < 19
    time.sleep(2 * LATER)
    assert len(os.listdir(tmp_path)) == file_count
    processes.close()


@pytest.fixture(scope="module")
def two() -> Iterator[LocalProcesses]:
    """Two processes, for functions that do not fail."""
    with LocalProcesses(2) as processes:
        yield processes


def test_ctrl_c_on_a_terminal_does_not_reach_the_processes(two: LocalProcesses) -> None:
    """It reaches the process group of the job."""
    assert os.getpgrp() not in two.run(group, range(4))


def test_an_error_that_cannot_be_pickled_is_reported_with_its_place(bare: None) -> None:
    with LocalProcesses(2) as processes, pytest.raises(RuntimeError, match=r"in fail\n(.*\n)+.*Unlike: this"):
        processes.run(fail, range(2))


def test_a_function_that_exits_ends_only_its_own_work(bare: None) -> None:
    with LocalProcesses(2) as processes:
        with pytest.raises(RuntimeError, match="SystemExit: this function leaves"):
            processes.run(leave, range(2))
        with pytest.raises(ProcessLost, match=r"\(exit status 3\)"):
            processes.run(abort, range(2))
        assert len(processes.run(identify, range(4))) == 4


def test_processes_can_be_used_again_after_work_has_failed(captures: str, tmp_path: Path) -> None:
    """Whether it failed before it began, or in the middle, by a process that was killed; and no file remains."""
    with LocalProcesses(2) as processes:
        with pytest.raises(KeyLogError):
            pipeline.write(processes, captures, str(tmp_path / "out"), keylog=str(tmp_path / "none"))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ProcessLost, match="lack of memory"):
            patch.setattr("pipeline.tables.decoding.writer", lambda *args, **options: KillItself())
            pipeline.write(processes, captures, str(tmp_path / "out"))
        assert os.listdir(processes.directory) == []
        assert list(tmp_path.iterdir()) == []
        pipeline.write(processes, captures, str(tmp_path / "out"))
    assert rows(tmp_path / "out" / "frames")


def test_unused_processes_end(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_processes, "most_processes", lambda: 2)
    with LocalProcesses() as processes:
        both = set(processes.use_for(1 << 40).run(identify, range(8)))
        assert len(both) == 2
        assert processes.use_for(1).run(identify, [0]) == [os.getpid()]
        assert not any(map(running, both))


def test_interpreted_kernels_are_worth_a_process_sooner(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 2 * local_processes.INTERPRETED_BYTES
    with LocalProcesses(most=2) as processes:
        assert processes.use_for(size).number == 1
        monkeypatch.setattr(local_processes, "interpreted", lambda: True)
        assert processes.use_for(size).number == 2
        assert processes.use_for(size - 1).number == 1


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `interpret()` leaves the environment."""
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "2")
    monkeypatch.setattr(local_processes, "COMPILE_BYTES", 0)


def test_interpreted_work_is_begun_anew_by_compiled_processes_as_soon_as_kernels_are_compiled(cold: None) -> None:
    with LocalProcesses(most=2) as processes:
        found = processes.use_for(1, decode).run(interpreted_late, range(3))
        assert found == [(0, True), (1, False), (2, False)]
        assert processes.compiled_kernels is None
        assert processes.run(interpreted_late, range(2)) == [(0, False), (1, False)]


@pytest.mark.parametrize("compiler", [fail_to_decode, abort])
def test_kernels_stay_interpreted_if_they_cannot_be_compiled(cold: None, compiler: Any) -> None:
    with LocalProcesses(most=2) as processes:
        assert processes.use_for(1, compiler).run(interpreted_late, [0] * 10) == [(0, True)] * 10


def test_a_process_that_compiles_ends_with_the_work(cold: None) -> None:
    with LocalProcesses(most=2) as processes:
        processes.use_for(1, wait_for_ever)
        assert processes.compiled_kernels == 0
        assert processes.run(interpreted_late, [0, 0]) == [(0, True)] * 2
        compiler = processes._compiler
        assert compiler is not None
        assert running(compiler.pid)
    assert not running(compiler.pid)


def test_tables_do_not_depend_on_when_kernels_are_compiled(
    cold: None, of_spark: Path, captures: str, tmp_path: Path
) -> None:
    """Loaded, here: while the captures are read, or decoded."""
    pipeline.write(lambda: LocalProcesses(most=2), captures, str(tmp_path / "here"))
    for table in TABLES:
        assert rows(tmp_path / "here" / table) == rows(of_spark / table), table


def test_what_a_function_prints_goes_to_standard_error(bare: None, capfd: pytest.CaptureFixture[str]) -> None:
    with LocalProcesses(2) as processes:
        assert processes.run(say, range(4)) == list(range(4))
    assert capfd.readouterr() == ("", "a line for people\n" * 4)


def test_only_as_many_processes_are_started_as_requested(bare: None) -> None:
    processes = LocalProcesses(2)
    assert len(set(processes.run(identify, range(12)))) <= 2
    processes.number = 3
    assert len(set(processes.run(identify, range(12)))) <= 3
    assert LocalProcesses(most=1).use_for(1 << 40).number == 1
    processes.close()


def test_without_further_processes_the_work_is_done_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> NoReturn:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", refuse)
    processes = LocalProcesses(most=2).use_for(1 << 40)
    assert processes.run(identify, range(2)) == [os.getpid()] * 2


def test_a_process_does_not_load_pandas(two: LocalProcesses) -> None:
    """It takes as long as all kernels; pyarrow would load it to know its types."""
    assert two.run(loaded, ["pandas", "udfs.sink.writers"]) == [False, True]


def test_a_process_keeps_memory_that_pyarrow_has_freed(two: LocalProcesses) -> None:
    assert two.run(os.getenv, ["MIMALLOC_PURGE_DELAY"] * 2) == ["-1"] * 2


def test_pandas_can_still_be_imported_later() -> None:
    code = """
from udfs.workers.process_setup import without_pandas
with without_pandas():
    import pyarrow.dataset
import sys
assert "pandas" not in sys.modules
rows = pyarrow.table({"a": [1]}).to_pandas()
import pandas
assert pyarrow.table({"b": rows["a"]}) == pyarrow.Table.from_pandas(rows.rename(columns={"a": "b"})).cast(
    pyarrow.schema([("b", pyarrow.int64())])
)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_a_container_with_little_memory_has_few_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text(f"{2 << 30}\n")
    monkeypatch.setattr(local_processes, "CONTAINER_MEMORY", tmp_path / "memory.max")
    assert local_processes.most_processes() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    (tmp_path / "memory.max").write_text("max\n")
    assert local_processes.most_processes() > 1


# Without `if __name__ == "__main__"`, which `multiprocessing` would require.
JOB = """
import time
import pipeline.run.local_processes
from pipeline.run.exchange import LocalProcesses

pipeline.run.local_processes.PRELOADED = []
processes = LocalProcesses(2)
processes.run(time.sleep, [0.2] * 4)
print(*(process.pid for process in processes._processes), flush=True)
processes.run(time.sleep, [600, 600])
"""


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    job = subprocess.Popen([sys.executable, str(tmp_path / "job.py")], stdout=subprocess.PIPE, env=environment)
    assert job.stdout is not None
    numbers = [int(number) for number in job.stdout.readline().split()]
    assert len(numbers) == 2
    job.kill()
    job.wait()
    deadline = time.monotonic() + 30
    while any(map(running, numbers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(running, numbers))


def test_work_of_several_processes_is_interrupted(bare: None) -> None:
    processes, ended = LocalProcesses(2), Future[None]()

    def work() -> None:
        try:
            processes.run(time.sleep, [600, 600])
        except Interrupted as error:
            ended.set_exception(error)

    Thread(target=work, daemon=True).start()
    while not processes.stages:
        time.sleep(0.01)
    processes.interruptAll()
    assert isinstance(ended.exception(60), Interrupted)
    processes.close()


@pytest.mark.parametrize(
    ("wrong", "error", "line"),
    [
        ({"paths": "notes.txt"}, PathError, "notes.txt: the file begins with the text 'Dear diary'"),
        ({"prots": [5672]}, TypeError, r"unexpected keyword argument 'prots'; did you mean 'ports'\?"),
        ({"ports": "amqp"}, OptionError, "ports: 'amqp'"),
        ({"tables": ["mesages"]}, ValueError, r"there is no table 'mesages'; did you mean 'messages'\?"),
    ],
)
def test_invalid_arguments_replace_no_table(
    wrong: dict[str, object], error: type[Exception], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("Dear diary")
    old = tmp_path / "out" / "frames" / "part-0.parquet"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    given: dict[str, Any] = {"paths": str(CAPTURES / NAMES[0]), "output": "out", "overwrite": True, **wrong}
    with pytest.raises(error, match=line):
        pipeline.write(LocalProcesses(), **given)
    assert old.read_text() == "old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["notes.txt", "out"]
