"""The Spark session, each setting with its reason.

`session()` finds the running session (spark-submit, a notebook, a Connect server) or starts one on this machine.
What is right for wirehare everywhere is in `RUNTIME` and set on any session; what only the one who starts the JVM may
decide is in `laptop()` and is left alone on a cluster. Starting takes 4 to 6 s and about 1 GB.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from codec.errors import WirehareError
from pipeline import class_archive
from pipeline.output import scratch
from udfs.arrow.umask import umask

LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
LOGGING = f'"-Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()}"'  # an option of the JVM

RUNTIME = {
    # Timestamps of a capture have no zone; everyone who looks at one packet should read the same time.
    "spark.sql.session.timeZone": "UTC",
    # A run is up to 256 KiB: rows alone would let one batch grow to gigabytes, so bytes are capped as well.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    # toPandas() and createDataFrame() move columns, not pickled rows: fifty times faster in a notebook.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Shredding infers one schema for the arguments of a hundred methods: writing takes twice as long, for little.
    "spark.sql.variant.writeShredding.enabled": "false",
    "spark.sql.variant.inferShreddingSchema": "false",
    # Pushed into the scan, values are taken out of the arguments of all rows, also of those that a filter then drops.
    "spark.sql.variant.pushVariantIntoScan": "false",
    # The default INT96 is deprecated in Parquet, and other readers lose its statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

# Options of every JVM that works. Spark makes one method of a stage, and Java leaves methods above 8000 bytes to its
# interpreter unless told otherwise: the stages of messages and flows take twice the processor time there.
COMPILE_LARGE_METHODS = "-XX:-DontCompileHugeMethods"
EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
# The collector that takes least processor time; pauses are no matter here. Room for Spark's classes from the beginning:
# Java would go through the whole heap four times, each time before it makes more of it.
COLLECTOR = "-XX:+UseParallelGC -XX:MetaspaceSize=256m"
# Only the quick compiler. The other one takes half the processor time of a small job, to make code fast that has run
# by then; it pays from gigabytes on. Room for code as there is with both: 48 MB are full after some hundred plans, and
# Java then interprets whatever comes.
# A stage is one loop over rows, entered once for each task: compiled after 8000 turns of it, not after 60,000.
QUICK_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:Tier3BackEdgeThreshold=8000"
QUICK_COMPILER_BYTES = 1 << 30  # of captures

# For jobs, where nobody types: Spark need not be told the line of Python behind each column, for its error messages.
# That is half of the 42,000 calls into the JVM which planning all tables takes.
JOB_SETTINGS = {"spark.python.sql.dataFrameDebugging.enabled": "false"}

# Hundreds of rules are long plans, and so are nine tables: on little data Spark spends most of its time compiling code
# for them that then runs for milliseconds. Interpreted, the audit of the samples takes half the processor time, and
# to decode 500 MB whose rows workers write takes 2 s of 23 less. With 25,000 connections compiling pays, by 6 s or more
# of the JVM's 33; where between the two it begins to was not measured.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
ONE_PARTITION = {
    # So few rows lie in one partition, which needs no shuffle to be joined or grouped.
    "spark.sql.shuffle.partitions": "1",
    # Nothing to adapt, and each part of a plan that may be adapted is a Spark job of its own.
    "spark.sql.adaptive.enabled": "false",
    # A table that is sent to all tasks is a Spark job, too.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
ONE_PARTITION_ROWS = 10_000
INTERPRETED_BYTES = 16 << 20  # of tables to audit
INTERPRETED_ROWS = 50_000  # that Spark makes tables of

LEAST_PARTITIONS = "spark.sql.adaptive.coalescePartitions.minPartitionNum"  # that Spark leaves when it joins small ones

OLDEST_JAVA = 17
# pyspark recommends an older pandas whenever it meets pandas 3; nothing here goes through pandas.
PANDAS_NOTICE = "PySpark does not yet fully support pandas"
# Before pyspark raises an error about a query, it writes it to stderr as a line of JSON with the stack of the JVM: 9 KB
# for a mistyped column.
QUERY_ERROR_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
# Printed by the JVM itself, before any logging can be configured: Spark starts it with that module.
BOOT_NOTICE = b"WARNING: Using incubator modules"
BOOT_NOTICE_LINE = re.compile(re.escape(BOOT_NOTICE) + rb"[^\n]*\n")
# What one read may return: the capacity of a pipe on Linux.
PIPE_BYTES = 64 * 1024


class JavaMissing(WirehareError, RuntimeError):
    """There is no Java that Spark could run on; the message is one line that says what to install."""


def session(app: str = "wirehare", java_options: str = QUICK_COMPILER, **conf: str) -> SparkSession:
    """The running session with our settings, or a new one; `conf` (full setting names) has the last word.

    `java_options`: of a JVM that is started here; none for work of many minutes (see BRIEF).

    Where a master or a Connect server is named (spark-submit, SPARK_REMOTE, `conf`), that one is used; otherwise all
    cores of this machine. Raises JavaMissing, or what Spark raises when it cannot start.
    """
    warnings.filterwarnings("ignore", message=PANDAS_NOTICE, category=FutureWarning)
    for name in QUERY_ERROR_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    # Spark starts `python3` from PATH otherwise, which inside a virtual environment has none of our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    remote = conf.get("spark.remote", os.environ.get("SPARK_REMOTE"))
    if remote is not None and not remote.startswith("local"):
        return get_or_create(app, {**RUNTIME, **conf})
    if is_running():
        return get_or_create(app, {**RUNTIME, **conf})
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return get_or_create(app, {**spark_submit_settings(), **RUNTIME, **conf})
    require_java()
    private: AbstractContextManager[object] = nullcontext()
    if conf.get("spark.master", "local").startswith("local"):
        # Shuffle and spill files hold bytes of captures, and Spark makes them readable for everybody.
        local_dirs = scratch.directories(conf)
        private = scratch.private_umask(local_dirs)
        java_options = f'{java_options} "-Djava.io.tmpdir={local_dirs.partition(",")[0]}"'
    settings = {**local_jvm_settings(conf, remote is not None, java_options), **RUNTIME, **conf}
    with without_boot_notice(), private, warnings.catch_warnings():
        # A local Connect server takes them all; pyspark then tries them on its client too.
        warnings.filterwarnings("ignore", message="Failed to set spark.", category=UserWarning)
        if remote is None:
            launch(settings)
        return get_or_create(app, settings)


def has_session() -> bool:
    """Whether a session stands, or whoever started this process has begun or named one."""
    return is_running() or "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ


def is_running() -> bool:
    """Whether there is a session, in whichever thread it was begun."""
    with suppress(PySparkRuntimeError):
        return SparkSession.active() is not None
    return False


def require_java() -> None:
    """Raise JavaMissing unless Spark will find a Java that it runs on."""
    home = os.environ.get("JAVA_HOME")
    try:
        version = subprocess.run(
            [os.path.join(home, "bin", "java") if home else "java", "-version"],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
    except (OSError, subprocess.CalledProcessError):
        version = ""
    major = re.search(r'version "(\d+)', version)
    if major is None or int(major[1]) < OLDEST_JAVA:
        raise JavaMissing(
            f"Spark needs Java {OLDEST_JAVA} or later: install it (Debian, Ubuntu: "
            "apt install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME"
        )


def launch(conf: Mapping[str, str]) -> None:
    """Start the JVM for a session with these settings, unless there is one, in a process group of its own: Ctrl-C in a
    terminal reaches whole groups, and each Python worker would answer with a stack."""
    if SparkContext._gateway is None:
        settings = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        SparkContext._ensure_initialized(gateway=launch_gateway(settings, {"process_group": 0}), conf=settings)


def get_or_create(app: str, conf: dict[str, str]) -> SparkSession:
    """The builder's session: new with all of `conf`, or the standing one with those that may still change."""
    builder = SparkSession.builder.appName(app)
    for name, setting in conf.items():
        builder = builder.config(name, setting)
    return builder.getOrCreate()


def local_jvm_settings(conf: dict[str, str], remote: bool, java_options: str = "") -> dict[str, str]:
    """Settings for a JVM that we start. On this machine, unless `conf` names a master or the session is `remote`."""
    options = (LOGGING, class_archive.options(), COLLECTOR, COMPILE_LARGE_METHODS, java_options)
    settings = {
        # The log and the bars are Spark's; progress is reported in our own words.
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(filter(None, options)),
        EXECUTOR_OPTIONS: COMPILE_LARGE_METHODS,
        # Nobody looks at the UI of a job of seconds; it takes a port and a second to start. Plans are not kept for it.
        "spark.ui.enabled": "false",
        "spark.sql.ui.retainedExecutions": "20",
    }
    if not conf.get("spark.master", "local").startswith("local"):
        return settings
    # All of it runs on this machine: no other address is needed, and Spark warns about the one it would guess.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not remote:
        # All cores: decoding is bound by them. A task is tried four times, as on a cluster: a Python worker that the
        # system ends, for the memory of another program say, costs its task and not the job.
        settings["spark.master"] = "local[*,4]"
    # What is written by Spark: Hadoop sets permissions by this, whatever the umask of the process.
    settings["spark.hadoop.fs.permissions.umask-mode"] = f"{umask():03o}"
    if "SPARK_DRIVER_MEMORY" not in os.environ:
        # Executors live in the driver here: shuffle blocks and Arrow buffers of all cores share this heap.
        settings["spark.driver.memory"] = "2g"
    return settings | one_machine_settings()


def one_machine_settings() -> dict[str, str]:
    """Settings for a session whose executors live in its driver."""
    partitions = str(4 * (os.cpu_count() or 1))
    return {
        # Every sort, aggregate and broadcast table takes a page at least, even for three rows. Spark would choose 32 MB
        # for our heap, or 1 MB where the collector is G1.
        "spark.buffer.pageSize": "1m",
        # The default of 200 is for clusters: each partition is a task with a Python worker behind it. Four for each
        # core, as few connections are not distributed evenly; Spark joins those that have less than a MB.
        "spark.sql.shuffle.partitions": partitions,
        LEAST_PARTITIONS: partitions,
    }


def on_one_machine(spark: SparkSession) -> bool:
    """Whether executors live in the driver: they run on its machine, as its user."""
    return (spark.conf.get("spark.master", None) or "").startswith("local")


def grouping_settings(spark: SparkSession) -> Mapping[str, str]:
    """Settings for work that groups rows many times, for `settings`: on one machine a partition a core, of which those
    with few rows are joined. Connections that are decoded differ in size, groups of findings do not."""
    if spark.conf.get(LEAST_PARTITIONS, None) is None:
        return {}  # on a cluster: whoever set it up has decided
    return {"spark.sql.shuffle.partitions": str(os.cpu_count() or 1), LEAST_PARTITIONS: "1"}


def plan_settings(*, small: bool, one_partition: bool = False) -> Mapping[str, str]:
    """Settings for work on few rows, or on many, for `settings`; `one_partition`: on so few that they lie in one."""
    return {**(INTERPRETED if small else COMPILED), **(ONE_PARTITION if one_partition else {})}


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Run the body with other Spark settings."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in wanted}

    def back() -> None:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)

    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # where the JVM is gone, that is what is to be told
            back()
        raise
    back()


def spark_submit_settings() -> dict[str, str]:
    """What is still ours to decide under spark-submit, which has started the driver: how much of Spark's log is shown,
    how executors start, and what suits one machine where that is all."""
    SparkContext._ensure_initialized()  # connects to that JVM, so that SparkConf() tells what spark-submit was given
    given = SparkConf()
    # Spark's default of INFO would bury our lines; --conf spark.log.level=INFO brings it back.
    ours = {"spark.log.level": "ERROR", EXECUTOR_OPTIONS: COMPILE_LARGE_METHODS}
    if given.get("spark.master", "").startswith("local"):
        ours |= one_machine_settings()
        if scratch.LOCAL_DIRS not in os.environ:  # which overrides what we could set
            private = scratch.directories({scratch.LOCAL_DIR: given.get(scratch.LOCAL_DIR, "")})
            return {name: value for name, value in ours.items() if not given.contains(name)} | {
                scratch.LOCAL_DIR: private
            }
    return {name: value for name, value in ours.items() if not given.contains(name)}


@contextmanager
def without_boot_notice() -> Iterator[None]:
    """Start the JVM inside: its stderr reaches ours without the boot notice."""
    try:
        stderr = os.dup(2)
    except OSError:  # no stderr at all: nothing to keep clean
        yield
        return
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    threading.Thread(target=relay, args=(reader, stderr), name="jvm-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(stderr, 2)


def relay(reader: int, writer: int) -> None:
    """Copy from one file descriptor to another until the end, each piece at once, but for the line of the notice."""
    held = b""
    with os.fdopen(reader, "rb", buffering=0) as source, os.fdopen(writer, "wb", buffering=0) as out:
        while octets := source.read(PIPE_BYTES):
            held = BOOT_NOTICE_LINE.sub(b"", held + octets)
            if BOOT_NOTICE not in held:  # else the rest of its line is still to come
                out.write(held)
                held = b""
