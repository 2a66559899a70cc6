"""The Spark session, each setting with its reason.

`session()` finds the running session (spark-submit, a notebook, a Connect server) or starts one on this machine. It
sets `RUNTIME` on any session. `local_jvm_settings()` are only for a JVM started here; a cluster keeps its own. Starting
takes 4 to 6 s and about 1 GB.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from codec.errors import WirehareError
from pipeline.run import scratch
from udfs.source.capture_bytes import printable
from udfs.workers.process_setup import ALLOCATOR, umask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# pyspark takes 0.3 s to import, and is imported by the functions that use it: local processes only read settings here.

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

# The JVM's classes in their memory layout: it starts without parsing 20,000 of them, if its version and the jars on its
# class path are those of the archive (else it starts as usual). `pipeline.class_archive` makes it, once per
# installation. Source: Java 17 documentation of the `java` command, option -XX:ArchiveClassesAtExit (class data
# sharing).
CLASS_ARCHIVE = Path(sys.prefix) / "share" / "wirehare" / "spark-classes.jsa"
# No log lines about an archive that does not match, or classes that cannot be archived; only errors.
QUIET = "-Xlog:disable -Xlog:all=error:stderr"

# Options of every JVM with tasks. Spark generates one method per stage, and by default Java interprets methods above
# 8000 bytes: the stages of messages and flows would take twice the CPU time.
COMPILE_LARGE_METHODS = "-XX:-DontCompileHugeMethods"
EXECUTOR_OPTIONS = {"spark.executor.extraJavaOptions": COMPILE_LARGE_METHODS}
WORKER_ENVIRONMENT = {f"spark.executorEnv.{name}": value for name, value in ALLOCATOR.items()}
# The collector with the least CPU time; pauses do not matter here. Enough metaspace for Spark's classes from the start:
# otherwise Java collects the whole heap four times while it grows the metaspace.
COLLECTOR = "-XX:+UseParallelGC -XX:MetaspaceSize=256m"
# Only the quick compiler (C1). C2 takes half the CPU time of a small job, and pays off only from gigabytes on. The code
# cache is as large as with both: the default of 48 MB is full after some hundred plans, and Java then interprets.
# A stage is one loop over rows, entered once per task: compile it after 8000 iterations, not after 60,000.
QUICK_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:Tier3BackEdgeThreshold=8000"
QUICK_COMPILER_BYTES = 1 << 30  # of captures

# For jobs, which are not interactive: no recording of the Python line behind each column for error messages. That is
# half of the 42,000 JVM calls for planning all tables.
JOB_SETTINGS = {"spark.python.sql.dataFrameDebugging.enabled": "false"}

# Hundreds of rules and nine tables are large plans: on little data Spark spends most of its time compiling code that
# runs for milliseconds. Interpreted, the audit of the samples takes half the CPU time, and decoding 500 MB takes 2 of
# 23 s less. With 25,000 connections compiling saves 6 s or more of the JVM's 33 s; the break-even was not measured.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
ONE_PARTITION = {
    # Few rows fit into one partition, and need no shuffle for joins and aggregates.
    "spark.sql.shuffle.partitions": "1",
    # Nothing to adapt, and each adaptive part of a plan is a Spark job of its own.
    "spark.sql.adaptive.enabled": "false",
    # Each broadcast is a Spark job, too; hints ask for some.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.disableHints": "true",
    # Spark estimates joined rows as the product of both sides, and would shuffle what it takes for large.
    "spark.sql.maxSinglePartitionBytes": str(1 << 60),
}
ONE_PARTITION_ROWS = 10_000
ONE_PARTITION_BYTES = 2 << 20  # of tables
INTERPRETED_ROWS = 50_000  # that Spark makes tables of

LEAST_PARTITIONS = "spark.sql.adaptive.coalescePartitions.minPartitionNum"  # lower bound when Spark coalesces

GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"  # a variable that spark-submit sets, with the port of its JVM
OLDEST_JAVA = 17
# pyspark recommends an older pandas whenever it meets pandas 3; nothing here goes through pandas.
PANDAS_NOTICE = "PySpark does not yet fully support pandas"
# These write every query error to stderr before it is raised, as JSON with the JVM's stack: 9 KB for a mistyped column.
QUERY_ERROR_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
# Printed by the JVM before logging is configured, because Spark starts it with an incubator module, and opens a package
# that Java 25 no longer has.
BOOT_NOTICES = (b"WARNING: Using incubator modules", b"WARNING: package sun.security.action not in java.base")
BOOT_NOTICE_LINE = re.compile(b"(?:" + b"|".join(map(re.escape, BOOT_NOTICES)) + rb")[^\n]*\n")
# The capacity of a pipe on Linux.
PIPE_BYTES = 64 * 1024
SERVER_S = 8  # that a Connect server may take to answer
SOCKET_PATH_BYTES = 104  # of `sockaddr_un`, with the final zero: 108 on Linux, 104 on macOS


class ServerMissing(WirehareError, RuntimeError):
    """No Spark Connect server answers; the message is one line that says where."""


class JavaMissing(WirehareError, RuntimeError):
    """No suitable Java was found; the message is one line that says what to install."""


def ignore_pandas_notice() -> None:
    """Nothing of ours goes through pandas, so what pyspark says of its release is no news."""
    warnings.filterwarnings("ignore", message=PANDAS_NOTICE, category=FutureWarning)


def session(app: str = "wirehare", java_options: str = QUICK_COMPILER, **conf: str) -> SparkSession:
    """The running session with our settings, or a new one; `conf` (full setting names) overrides them.

    `java_options`: for a JVM that is started here; none for work of many minutes (see QUICK_COMPILER).

    Uses the master or Connect server that spark-submit, SPARK_REMOTE or `conf` name, else all cores of this machine.
    Raises JavaMissing, ServerMissing, and the errors of Spark if it cannot start.
    """
    ignore_pandas_notice()
    from pyspark.logger import PySparkLogger

    for name in QUERY_ERROR_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    # By default Spark starts `python3` from PATH, which may not be the one of this virtual environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    remote = conf.get("spark.remote", os.environ.get("SPARK_REMOTE"))
    if remote is not None and not remote.startswith("local") and not is_running():
        require_server(remote)
    if (remote is not None and not remote.startswith("local")) or is_running():
        return get_or_create(app, {**RUNTIME, **conf})
    if GATEWAY_PORT in os.environ:
        return get_or_create(app, {**spark_submit_settings(), **RUNTIME, **conf})
    require_java()
    private: AbstractContextManager[object] = nullcontext()
    if conf.get("spark.master", "local").startswith("local"):
        # Shuffle and spill files contain bytes of captures, and Spark makes them world-readable.
        local_dirs = scratch.directories(conf)
        private = scratch.private_umask(local_dirs)
        directory = local_dirs.partition(",")[0]
        java_options = f'{java_options} "-Djava.io.tmpdir={directory}"'
        conf = {**unix_sockets(directory), **conf}
    settings = {**local_jvm_settings(conf, remote is not None, java_options), **RUNTIME, **conf}
    with without_boot_notice(), private, warnings.catch_warnings():
        # A local Connect server accepts them all; pyspark then also sets them on its client.
        warnings.filterwarnings("ignore", message="Failed to set spark.", category=UserWarning)
        if remote is None:
            launch(settings)
        return get_or_create(app, settings)


def require_server(remote: str) -> None:
    """Raise ServerMissing unless a Spark Connect server answers there: pyspark itself would try for ten minutes without
    a word. `remote`: a URL as in SPARK_REMOTE, which may have a token."""
    from pyspark.errors import PySparkException

    try:
        import grpc  # type: ignore[import-untyped]
        from pyspark.sql.connect.client import DefaultChannelBuilder

        builder = DefaultChannelBuilder(remote)
        channel = builder.toChannel()
    except (ImportError, PySparkException):
        return  # pyspark says what is missing, or wrong about the URL
    try:
        grpc.channel_ready_future(channel).result(timeout=SERVER_S)
    except grpc.FutureTimeoutError:
        raise ServerMissing(
            f"no Spark Connect server answers at {printable(str(builder.endpoint))}; start one, or correct SPARK_REMOTE"
        ) from None
    finally:
        channel.close()


def has_session() -> bool:
    """Whether a session is running, or was started or named by the parent process."""
    return is_running() or GATEWAY_PORT in os.environ or "SPARK_REMOTE" in os.environ


def is_running() -> bool:
    """Whether a session is running, started in any thread."""
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    with suppress(PySparkRuntimeError):
        return SparkSession.active() is not None
    return False


def java_version() -> int | None:
    """The version of the Java that Spark will find; None: there is none."""
    home = os.environ.get("JAVA_HOME")
    try:
        version = subprocess.run(
            [os.path.join(home, "bin", "java") if home else "java", "-version"],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
    except (OSError, subprocess.CalledProcessError):
        return None
    major = re.search(r'version "(\d+)', version)
    return int(major[1]) if major else None


def require_java() -> None:
    """Raise JavaMissing unless Spark will find a suitable Java."""
    if (java_version() or 0) < OLDEST_JAVA:
        raise JavaMissing(
            f"Spark needs Java {OLDEST_JAVA} or later: install it (Debian, Ubuntu: "
            "apt install default-jre-headless; macOS: brew install openjdk) or set JAVA_HOME"
        )


def launch(conf: Mapping[str, str]) -> None:
    """Start the JVM for a session with these settings, unless it is running, in its own process group: otherwise Ctrl-C
    in a terminal would reach the Python workers, which print tracebacks."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        settings = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        SparkContext._ensure_initialized(gateway=launch_gateway(settings, {"process_group": 0}), conf=settings)


def get_or_create(app: str, conf: dict[str, str]) -> SparkSession:
    """A new session with all of `conf`, or the running one with those settings that can still change."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName(app).config(map={**conf}).getOrCreate()


def local_jvm_settings(conf: dict[str, str], remote: bool, java_options: str = "") -> dict[str, str]:
    """Settings for a JVM started here; local mode unless `conf` names a master or the session is `remote`."""
    options = (LOGGING, class_archive_options(), COLLECTOR, COMPILE_LARGE_METHODS, java_options)
    settings = {
        # The console shows our own progress lines.
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(filter(None, options)),
        **EXECUTOR_OPTIONS,
        **WORKER_ENVIRONMENT,
        # Short jobs need no UI, which takes a port and a second to start, nor many retained plans.
        "spark.ui.enabled": "false",
        "spark.sql.ui.retainedExecutions": "20",
    }
    if not conf.get("spark.master", "local").startswith("local"):
        return settings
    # Everything runs on this machine: the loopback address is enough, and Spark would warn about guessing another.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not remote:
        # All cores: decoding is CPU-bound. Four attempts per task, as on a cluster: if the system kills a Python
        # worker, for example for lack of memory, the job goes on.
        settings["spark.master"] = "local[*,4]"
    # Hadoop sets the permissions of written files by this setting, not by the umask of the process.
    settings["spark.hadoop.fs.permissions.umask-mode"] = f"{umask():03o}"
    if "SPARK_DRIVER_MEMORY" not in os.environ:
        # Local mode: shuffle blocks and Arrow buffers of all cores share the driver's heap.
        settings["spark.driver.memory"] = "2g"
    return settings | one_machine_settings()


def class_archive_options() -> str:
    """JVM options that use the class archive; empty when there is none."""
    return f'"-XX:SharedArchiveFile={CLASS_ARCHIVE}" {QUIET}' if CLASS_ARCHIVE.is_file() else ""


def unix_sockets(directory: str) -> dict[str, str]:
    """Settings for Unix domain sockets in `directory` between the JVM and Python workers, if their paths are not too
    long. Over TCP each task takes 30 ms more: a small message waits for the acknowledgement of the one before."""
    path = os.path.join(directory, f".{uuid.uuid4()}.sock")
    return {"spark.python.unix.domain.socket.enabled": "true"} if len(os.fsencode(path)) < SOCKET_PATH_BYTES else {}


def one_machine_settings() -> dict[str, str]:
    """Settings for local mode, where executors run in the driver."""
    partitions = str(4 * (os.cpu_count() or 1))
    return {
        # Without tracebacks of workers whose results nobody waits for.
        "spark.python.daemon.module": "udfs.workers.daemon",
        # Every sort, aggregate and broadcast takes at least a page, even for three rows. Spark would choose 32 MB for
        # our heap, or 1 MB with G1.
        "spark.buffer.pageSize": "1m",
        # The default of 200 is for clusters: each partition is a task with a Python worker. Four per core, because few
        # connections are distributed unevenly; Spark coalesces partitions below 1 MB.
        "spark.sql.shuffle.partitions": partitions,
        LEAST_PARTITIONS: partitions,
    }


def on_one_machine(spark: SparkSession) -> bool:
    """Whether executors run in the driver (local mode): on the same machine, as the same user."""
    return (spark.conf.get("spark.master", None) or "").startswith("local")


def grouping_settings(spark: SparkSession) -> Mapping[str, str]:
    """Settings (for `settings`) for work whose partitions have about the same size, as pairing: in local mode one
    partition per core, small ones coalesced. Decoding needs more partitions, because connections differ in size."""
    if spark.conf.get(LEAST_PARTITIONS, None) is None:
        return {}  # on a cluster: keep its settings
    return {"spark.sql.shuffle.partitions": str(os.cpu_count() or 1), LEAST_PARTITIONS: "1"}


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Run the body with changed Spark settings, and restore them."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in wanted}

    def restore() -> None:
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
        with suppress(Exception):  # if the JVM is gone, the original error matters
            restore()
        raise
    restore()


def spark_submit_settings() -> dict[str, str]:
    """Settings that can still be changed under spark-submit, which has started the driver: log level, executor options,
    and in local mode `one_machine_settings`."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # connects to that JVM, so that SparkConf() has the settings of spark-submit
    given = SparkConf()
    # Spark's default of INFO would bury our lines; --conf spark.log.level=INFO restores it.
    ours = {"spark.log.level": "ERROR", **EXECUTOR_OPTIONS, **WORKER_ENVIRONMENT}
    local = given.get("spark.master", "").startswith("local")
    wanted = ours | (one_machine_settings() if local else {})
    found = {name: value for name, value in wanted.items() if not given.contains(name)}
    if local and scratch.LOCAL_DIRS not in os.environ:  # the variable overrides the setting
        found[scratch.LOCAL_DIR] = scratch.directories({scratch.LOCAL_DIR: given.get(scratch.LOCAL_DIR, "")})
    return found


@contextmanager
def without_boot_notice() -> Iterator[None]:
    """For starting the JVM: forward its stderr without the boot notices."""
    try:
        stderr = os.dup(2)
    except OSError:  # no stderr at all
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
    """Copy from one file descriptor to another, unbuffered, without the lines of the notices."""
    pending = b""
    with os.fdopen(reader, "rb", buffering=0) as source, os.fdopen(writer, "wb", buffering=0) as out:
        while data := source.read(PIPE_BYTES):
            pending = BOOT_NOTICE_LINE.sub(b"", pending + data)
            if not any(notice in pending for notice in BOOT_NOTICES):  # else the rest of its line is still to come
                out.write(pending)
                pending = b""
