"""What a job does before it decodes: nothing that it does not need (pipeline.tables.decoding, codec.compiler.kernel,
benchmarks.start)."""

from __future__ import annotations

import gc
import gzip
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession
from submitting import ROOT

import pipeline
from benchmarks.start import Moment, Timeline, report
from codec.compiler import CACHE_DIR, bases
from codec.compiler.kernel import LazyKernel, all_compiled, complete_name, interpret, interpreted, njit
from jobs.cli import main
from jobs.decode import interpret_while_cold
from pipeline.tables.decoding import COLD_BYTES, ONE_TASK_BYTES, in_one_task
from udfs.source.capture_bytes import size_up_to
from udfs.source.paths import resolve
from udfs.workers.process_setup import without_pandas

SAMPLES = ROOT / "samples"

# What the driver does: it finds and splits the captures.
PLANNING = """
import sys
from udfs.source.sources import run_tasks
print(len(run_tasks({"path": sys.argv[1]})), *sorted({"numba", "pandas", "llvmlite"} & set(sys.modules)))
"""

# What a nightly does before and while the JVM starts, which is not started here; pyspark imports its `testing` then.
STARTING = """
import sys
from jobs.cli import command_line
from jobs import decode, report
report.check_inputs(command_line().arguments(["nightly", "x.pcap", "--output", sys.argv[1], "--report", sys.argv[2]]))
import pipeline.run.session
pipeline.run.session.session = lambda **_: None
decode.start_quietly()
import pyspark.testing.utils
print(*sorted({"numba", "pandas"} & set(sys.modules)))
"""

# A command line, and which large packages it has imported at its end; standard output belongs to the command.
COMMAND = """
import contextlib, sys
from jobs.cli import main
with contextlib.suppress(SystemExit):  # of --help and --version
    main(sys.argv[1:])
large = {"altair", "duckdb", "numba", "pandas", "pyarrow", "pyspark", "vl_convert"}
print("large:", *sorted(large & set(sys.modules)), file=sys.stderr)
"""

# The same over Spark Connect, which is not started either.
CONNECTING = f"""
import os
os.environ["SPARK_REMOTE"] = "local[1]"
{STARTING}
from pyspark.sql.connect.functions import expr
"""

# What the worker of a job does: it reads captures, each alone and all together, sorts their runs, and writes tables.
# Prints the kernels it compiles.
DECODING = """
import json, sys
from numba.core.event import install_recorder
import pipeline
from pathlib import Path
from decoding import in_flow_order, runs
from pieces import BEGINNING, END, Lake, piece, times
from pipeline.tables.decoding import secret_files, writer
from pipeline.output.location import location

with install_recorder("numba:compile") as compiled:
    captures = [Path(path) for path in sys.argv[2:]]
    for number, paths in enumerate([*([path] for path in captures), captures]):
        directory = location(f"{sys.argv[1]}/{number}")
        directory.create()
        table = in_flow_order(runs(paths)).combine_chunks()
        secrets = secret_files(list(map(str, paths)), None)
        assert list(writer(directory, pipeline.TABLES, secrets=secrets)(iter(table.to_batches())))
        lake, moments = Lake(), times(table)
        for begin, end in ((BEGINNING, moments[len(moments) // 2]), (moments[len(moments) // 2], END)):
            lake.add(piece(table, begin, end))
names = {event.data["dispatcher"].py_func.__qualname__ for _, event in compiled.buffer if event.is_start}
print(json.dumps(sorted(names)))
"""


def python(code: str, *arguments: object, **environment: str) -> str:
    """What a Python of its own prints."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "support")))
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    "words", ["--help", "--version", "decode --help", "sql --help", "cut --help", "rules", "rule CH-09"]
)
def test_a_command_that_reads_no_rows_imports_no_large_package(words: str) -> None:
    command = [sys.executable, "-c", COMMAND, *words.split()]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout
    assert ran.stderr.split() == ["large:"]


def test_nothing_imports_pyspark_before_spark_is_used(tmp_path: Path) -> None:
    """Nor what draws pictures, where none is drawn."""
    capture = str(ROOT / "tests" / "captures" / "091_handshake_ok.pcap")
    tables, report = str(tmp_path / "tables"), str(tmp_path / "report.html")
    for words, large in (
        (["decode", capture, "--output", tables], {"pyspark", "altair", "vl_convert"}),
        (["sql", tables, "SELECT 1"], {"pyspark", "altair", "vl_convert", "numba"}),
        (["audit", tables, "--report", report, "--fail-on", "never"], {"pyspark"}),
    ):
        command = [sys.executable, "-c", COMMAND, *words]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found = ran.stderr.splitlines()[-1].split()
        assert found[0] == "large:"
        assert large & {*found} == set(), words


def test_planning_loads_neither_a_compiler_nor_pandas() -> None:
    assert python(PLANNING, SAMPLES) == "5\n"


def test_a_nightly_starts_spark_without_pandas(tmp_path: Path) -> None:
    assert python(STARTING, tmp_path / "tables", tmp_path / "audit.html") == "\n"


def test_an_import_in_another_thread_finds_its_module_after_without_pandas_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in two threads: while one looks for a module, the other leaves `without_pandas`."""
    (tmp_path / "imported_meanwhile.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    context = without_pandas()
    context.__enter__()

    class Leaving:
        def find_spec(self, *_: object) -> None:
            context.__exit__(None, None, None)

    sys.meta_path.insert(sys.meta_path.index(PathFinder), Leaving())  # type: ignore[arg-type]
    assert find_spec("imported_meanwhile") is not None


def test_over_connect_spark_starts_with_pandas_which_it_requires(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    assert python(CONNECTING, tmp_path / "tables", tmp_path / "audit.html") == "pandas\n"


def test_few_bytes_are_one_task(tmp_path: Path) -> None:
    capture = tmp_path / "a.pcap"
    capture.write_bytes(b"\0" * ONE_TASK_BYTES)
    assert in_one_task([str(capture)])
    (tmp_path / "b.pcap").write_bytes(b"\0")
    assert in_one_task([str(capture)])
    assert not in_one_task([str(tmp_path)])


def test_the_size_of_compressed_captures_is_unknown(tmp_path: Path) -> None:
    packed = tmp_path / "a.pcap"  # whatever the name says
    packed.write_bytes(gzip.compress(b"\0"))
    assert not in_one_task([str(packed)])


def test_one_task_gives_the_rows_of_many(spark: SparkSession) -> None:
    captures = [str(SAMPLES / "091_rpc_reply_to.pcap"), str(ROOT / "tests" / "captures" / "010_auth.pcap")]
    one, many = pipeline.decode(spark, captures), pipeline.decode(spark, captures, split_bytes=5000)
    for name in ("frames", "connections", "messages", "captures"):
        rows = [
            sorted(row[0] for row in getattr(tables, name).selectExpr("to_json(struct(*))").collect())
            for tables in (one, many)
        ]
        assert rows[0] == rows[1]
        assert rows[0]


def test_missing_and_remote_captures_are_not_decoded_in_one_task(tmp_path: Path) -> None:
    assert not in_one_task([str(tmp_path / "gone.pcap")])
    assert not in_one_task(["s3://bucket/a.pcap", str(SAMPLES)])


@pytest.mark.skipif(interpreted() or not all_compiled(), reason="kernels are not compiled")
def test_a_worker_compiles_nothing_once_kernels_are_compiled(tmp_path: Path) -> None:
    """Whether it decodes captures as wholes or in pieces."""
    found = sorted((ROOT / "tests" / "captures").glob("*.pcap"))
    captures = {*found[::5], *(ROOT / "tests" / "captures").glob("*tls*.pcapng")}  # named by their versions
    assert json.loads(python(DECODING, tmp_path, *sorted(captures), *sorted(SAMPLES.glob("*.pcap")))) == []


def test_workers_do_not_visit_what_they_imported_after_every_task(spark: SparkSession) -> None:
    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import udfs.sink.writers  # noqa: F401

        yield from (pa.record_batch({"objects": [gc.get_freeze_count()]}) for _ in batches)

    numbers = spark.range(0, 2, 1, 2).mapInArrow(frozen, "objects bigint")
    assert max(row.objects for _ in range(3) for row in numbers.collect()) > 50_000


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for kernels, and no switch set."""
    monkeypatch.setenv(CACHE_DIR, str(tmp_path))
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    return tmp_path


def test_all_are_compiled_when_their_directory_is_there(cold: Path) -> None:
    assert bases() == [cold.resolve()]
    assert not all_compiled()
    (cold / complete_name()).mkdir()
    assert all_compiled()


@pytest.mark.parametrize(
    ("size", "compiled", "running", "interprets"),
    [
        (COLD_BYTES, False, False, True),
        (COLD_BYTES + 1, False, False, False),
        (COLD_BYTES, True, False, False),
        (COLD_BYTES, False, True, False),
    ],
)
def test_small_captures_are_decoded_without_a_compiler_while_there_are_no_kernels(
    size: int, compiled: bool, running: bool, interprets: bool,
    cold: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("pipeline.run.session.has_session", lambda: running)
    if compiled:
        (cold / complete_name()).mkdir()
    capture = tmp_path_factory.mktemp("captures") / "a.pcap"
    capture.touch()
    os.truncate(capture, size)
    assert interpret_while_cold(resolve([str(capture)])) == interprets
    notice = {True: "so decoding is slow;", False: "so they are compiled first, in a minute or more;"}[interprets]
    assert (notice in capsys.readouterr().err) == (not compiled and not running)
    assert os.environ["NUMBA_DISABLE_JIT"] == ("2" if interprets else "0")


def packed(name: str, size: int) -> bytes:
    """A capture that has so many bytes decompressed and few as a file: zeros, in several members or frames."""
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)
    zeros = bytes(size - len(header))
    if name == "gzip that names no size":
        # The size of a gzip member is modulo 2**32, of the last member only, and what its writer likes (RFC 1952).
        return gzip.compress(header) + gzip.compress(zeros, 9) + gzip.compress(b"")
    codec = pa.Codec(name.partition(" ")[0])
    return bytes(codec.compress(header, asbytes=True)) + bytes(codec.compress(zeros, asbytes=True))


@pytest.mark.parametrize("name", ["gzip that names no size", "zstd frames", "lz4 frames"])
@pytest.mark.parametrize("suffix", [".pcap.gz", ".pcap"])
def test_small_files_that_are_large_captures_are_not_interpreted(
    tmp_path: Path, name: str, suffix: str, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.run.session.has_session", lambda: False)
    for size, interprets in ((1 << 20, True), (COLD_BYTES + (1 << 20), False)):
        path = tmp_path / f"{size}{suffix}"
        path.write_bytes(packed(name, size))
        files = resolve([str(path)])
        assert size_up_to(files, 1 << 30) == size
        assert path.stat().st_size < COLD_BYTES // 50
        assert interpret_while_cold(files) == interprets


@pytest.mark.skipif(interpreted(), reason="nothing is compiled")
def test_after_the_switch_a_kernel_is_the_function_itself(cold: Path) -> None:
    @njit
    def inverse(x: float) -> float:
        return 1 / x

    assert isinstance(inverse, LazyKernel)
    interpret()
    assert inverse(4) == 0.25
    assert "dispatcher" not in vars(inverse)


def test_a_first_run_without_kernels_writes_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A run of the command, and the session of the tests."""
    capture = str(SAMPLES / "091_confirms_and_return.pcap")
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    ran = subprocess.run(
        [sys.executable, "-m", "jobs.cli", "decode", capture, "--output", str(tmp_path / "cold")],
        env={**os.environ, "PYTHONPATH": str(ROOT), CACHE_DIR: str(kernels), "NUMBA_DISABLE_JIT": "0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Kernels are not compiled yet" in ran.stderr
    assert "Warning" not in ran.stderr
    assert not list(kernels.iterdir())
    pipeline.write(spark, capture, str(tmp_path / "warm"))
    for table in ("frames", "methods", "messages", "connections", "channels", "message_flows"):
        cold, warm = (
            pyarrow.dataset.dataset(tmp_path / name / table, format="parquet").to_table().to_pylist()
            for name in ("cold", "warm")
        )
        assert sorted(map(repr, cold)) == sorted(map(repr, warm))
        assert cold


@pytest.mark.skipif(interpreted(), reason="nothing is compiled")
def test_workers_of_a_running_session_interpret_small_captures_while_there_are_no_kernels(
    spark: SparkSession, cold: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where kernels are compiled, and for larger captures, they do not."""

    def is_interpreted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import udfs  # noqa: F401
        from codec.compiler.kernel import interpreted

        yield from (pa.record_batch({"is": [interpreted()]}) for _ in batches)

    def workers_interpret() -> bool:
        return spark.range(0, 1, 1, 1).mapInArrow(is_interpreted, "is boolean").collect() == [(True,)]

    def messages(directory: Path) -> list[str]:
        pipeline.write(spark, str(SAMPLES / "091_confirms_and_return.pcap"), str(directory))
        found = pyarrow.dataset.dataset(directory / "messages", format="parquet").to_table()
        return sorted(map(repr, found.to_pylist()))

    folder = tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as warm:
        warm.delenv(CACHE_DIR)
        expected = messages(folder / "warm")
    # Spark starts other workers for another environment.
    environment = {**spark.sparkContext.environment, CACHE_DIR: str(cold)}
    monkeypatch.setattr(spark.sparkContext, "environment", environment)
    assert messages(folder / "cold") == expected
    assert workers_interpret()
    assert not list(cold.iterdir())
    compiled = tmp_path_factory.mktemp("kernels")
    (compiled / complete_name()).mkdir()
    environment[CACHE_DIR] = str(compiled)  # only there: as on other machines than the driver's
    assert not workers_interpret()
    environment[CACHE_DIR] = str(cold)
    monkeypatch.setattr("pipeline.tables.decoding.COLD_BYTES", 0)
    pipeline.decode(spark, str(SAMPLES))
    assert not workers_interpret()


def test_larger_captures_are_decoded_without_spark_once_kernels_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiling = []

    def compiled(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        compiling.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("codec.compiler.kernel.all_compiled", lambda: False)
    monkeypatch.setattr("pipeline.tables.decoding.COLD_BYTES", 0)
    monkeypatch.setattr("jobs.decode.subprocess.run", compiled)
    monkeypatch.setattr("pipeline.run.session.is_running", lambda: False)
    capture = str(SAMPLES / "091_confirms_and_return.pcap")
    assert main(["decode", capture, "--output", str(tmp_path / "tables")]) == 0
    assert compiling == [[sys.executable, "-m", "udfs.warm"]]
    stderr = capsys.readouterr().err
    assert "Kernels compiled in" in stderr
    assert "Spark" not in stderr


def test_a_timeline_is_printed_in_order() -> None:
    found = Timeline(
        3.0, [Moment(0.5, 2.0, "JVM", 1.5), Moment(0.0, 3.0, "Python driver", 0.25)],
        [Moment(1.0, 1.0, "> Spark started", 1.25)], [Moment(1.5, 1.75, "Spark job 0")],
        {"JVM": 1.5, "Python driver": 0.25},
    )  # fmt: skip
    begun = [line.split()[0] for line in report(found).splitlines()[1:5]]
    assert begun == ["0.00", "0.50", "1.00", "1.50"]
    assert "3.0 s, 1.8 processor seconds" in report(found)
