"""The session that everything runs in."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.decode import start
from pipeline.run.session import (
    BOOT_NOTICES,
    PANDAS_NOTICE,
    QUICK_COMPILER,
    QUICK_COMPILER_BYTES,
    RUNTIME,
    JavaMissing,
    local_jvm_settings,
    session,
    unix_sockets,
    without_boot_notice,
)


def test_all_runtime_settings_are_set(spark: SparkSession) -> None:
    assert {name: spark.conf.get(name) for name in RUNTIME} == RUNTIME


def test_a_running_spark_session_is_used_and_retains_its_own_settings(spark: SparkSession) -> None:
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    assert session("other").range(1).count() == 1
    assert session("other").conf.get("spark.sql.shuffle.partitions") == partitions == "2"
    assert spark.sparkContext.appName == "wirehare-tests"


def test_python_workers_run_the_same_interpreter(spark: SparkSession) -> None:
    assert os.environ["PYSPARK_PYTHON"]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_python_workers_keep_memory_that_pyarrow_has_freed(spark: SparkSession) -> None:
    def purge_delay(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"delay": [os.environ.get("MIMALLOC_PURGE_DELAY")]})

    assert spark.range(1).coalesce(1).mapInArrow(purge_delay, "delay string").first() == ("-1",)


@pytest.mark.parametrize(
    ("byte_size", "expected"),
    [(0, QUICK_COMPILER), (QUICK_COMPILER_BYTES - 1, QUICK_COMPILER), (QUICK_COMPILER_BYTES, "")],
)
def test_only_small_jobs_run_without_the_full_compiler(
    byte_size: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr("pipeline.run.session.get_or_create", lambda app, conf: started.append(conf))
    monkeypatch.setattr("pipeline.run.session.is_running", lambda: False)
    monkeypatch.setattr("pipeline.run.session.launch", lambda conf: None)
    start(byte_size)
    (settings,) = started
    java_options = local_jvm_settings({}, False, expected)["spark.driver.extraJavaOptions"]
    assert settings["spark.driver.extraJavaOptions"].startswith(java_options)
    assert ("TieredStopAtLevel" in settings["spark.driver.extraJavaOptions"]) == bool(expected)


@pytest.mark.parametrize("size", [40, 58, 59, 60, 61, 62, 63, 64, 65, 66, 90])
def test_sockets_of_workers_are_files_where_the_system_can_open_them(size: int, tmp_path: Path) -> None:
    directory = f"/tmp/{tmp_path.name}".ljust(size, "x")
    os.mkdir(directory, 0o700)
    try:
        if unix_sockets(directory):
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(f"{directory}/.{uuid.uuid4()}.sock")
        else:
            assert size > 60
    finally:
        shutil.rmtree(directory)


def test_a_named_master_keeps_its_address_and_its_parallelism() -> None:
    settings = local_jvm_settings({"spark.master": "spark://host:7077"}, remote=False)
    assert not {"spark.master", "spark.driver.memory", "spark.sql.shuffle.partitions"} & settings.keys()


def test_without_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    program = "from pipeline.run.session import *\ntry: session()\nexcept JavaMissing as error: print(error)"
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_REMOTE")}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | {"PATH": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == [ran.stdout.strip()]
    assert ran.stdout.startswith("Spark needs Java 17 or later: install it")
    assert ran.stderr == ""


def test_a_java_that_is_too_old_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.run.session import require_java

    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing):
        require_java()


def test_only_the_boot_notice_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    """Also where a status line without an end stands before it, and where it comes in two pieces."""
    with without_boot_notice():
        writer = os.dup(2)  # as a JVM started inside would hold it
    pieces = (
        b"starting ... 0 s", BOOT_NOTICES[0] + b": jdk", b".incubator.vector\n", BOOT_NOTICES[1], b"\nout of memory\n"
    )  # fmt: skip
    for piece in pieces:
        os.write(writer, piece)
    os.close(writer)
    relayed, deadline = "", time.monotonic() + 60
    while not relayed.endswith("\n") and time.monotonic() < deadline:
        time.sleep(0.01)
        relayed += capfd.readouterr().err
    assert relayed == "starting ... 0 sout of memory\n"


def test_pyspark_may_not_complain_about_pandas() -> None:
    with warnings.catch_warnings(record=True) as caught:
        session()
        warnings.warn(f"{PANDAS_NOTICE} >= 3.0.0.", FutureWarning, stacklevel=1)
    assert caught == []
