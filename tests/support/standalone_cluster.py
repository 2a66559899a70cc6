"""A standalone Spark cluster on the loopback interface, from only the PyPI package: a master and two workers of one
core each, each a process that is ended by its id. Jobs are submitted by spark-submit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset
import pyspark

from benchmarks.processes import TICK, descendants, stat, ticks

ROOT = Path(__file__).resolve().parents[2]
SPARK = Path(pyspark.__file__).parent
WORKERS = 2
PATIENCE_S = 300
Tables = dict[str, tuple[int, int]]  # as `fingerprints` gives them


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_for(what: str, condition: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """The first true value of `condition`, asked again and again."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds} s")


@contextmanager
def running(
    command: list[str], log: Path, environment: dict[str, str], folder: Path = ROOT
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, started in `folder`, ended with all of the group."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it started, as the kernel would."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass
class Cluster:
    """`url` of the master; `daemons` are the workers; logs are in `folder`."""

    url: str
    folder: Path
    daemons: list[subprocess.Popen[bytes]]

    def processes(self, mark: str) -> list[int]:
        """Processes below the workers whose command line holds `mark`."""
        return [pid for daemon in self.daemons for pid, command in descendants(daemon.pid) if mark in command]

    def executors(self) -> list[int]:
        return self.processes("CoarseGrainedExecutorBackend")

    def python_workers(self) -> list[int]:
        return [pid for daemon in self.daemons for pid in working(daemon.pid)]

    @contextmanager
    def job(self, capture: Path, output: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """`jobs/decode.py` under spark-submit; its log is `log_of(output)`."""
        arguments = [str(capture), "--output", str(output), "--overwrite", *options]
        with self.submitted("jobs/decode.py", output, *arguments) as process:
            yield process

    @contextmanager
    def submitted(
        self, script: str, output: Path, *arguments: str, options: Iterable[str] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A script of this tree under spark-submit, with more of its `options`; its log is `log_of(output)`."""
        conf = {
            "spark.driver.host": "127.0.0.1", "spark.executor.cores": "1", "spark.executor.memory": "1g",
            "spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false", "spark.log.level": "WARN",
        }  # fmt: skip
        settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        command = [str(SPARK / "bin/spark-submit"), "--master", self.url, *settings, *options, str(ROOT / script)]
        environment = os.environ | LOOPBACK | {"PYTHONPATH": str(ROOT)}
        environment |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
        with running([*command, *arguments], self.log_of(output), environment) as process:
            yield process

    def log_of(self, output: Path) -> Path:
        return self.folder / f"{output.name}.log"


LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def cluster(folder: Path, environment: dict[str, str]) -> Iterator[Cluster]:
    """Master and workers, up and known to each other; `environment` is that of the workers and all below them."""
    port, page = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    spark_class, deploy = str(SPARK / "bin/spark-class"), "org.apache.spark.deploy"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with ExitStack() as stack:
        master = [spark_class, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        stack.enter_context(running([*master, "--webui-port", str(page)], folder / "master.log", clean | LOOPBACK))
        wait_for("master", lambda: listens(port))
        daemons = []
        for number in range(WORKERS):
            work = folder / f"worker-{number}"
            worker = [spark_class, f"{deploy}.worker.Worker", "-c", "1", "-m", "2g", "--webui-port", "0"]
            worker += ["--host", "127.0.0.1", "--work-dir", str(work), url]
            log = folder / f"worker-{number}.log"
            daemons.append(stack.enter_context(running(worker, log, clean | LOOPBACK | environment)))
        wait_for("workers", lambda: alive_workers(page) == WORKERS)
        yield Cluster(url, folder, daemons)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def alive_workers(page: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except OSError:
        return 0


def working(below: int) -> list[int]:
    """Python workers below a process that are at work on a task: forked by pyspark's daemon for tasks (planning has one
    of its own, and no second try), running now, and for half a second in all."""
    pythons = [pid for pid, command in descendants(below) if "pyspark.daemon pyspark.worker" in command]
    return [pid for pid in pythons if runs_below(pid, pythons)]


def runs_below(pid: int, parents: list[int]) -> bool:
    try:
        state, parent = stat(pid)[:2]
        busy = ticks(pid) / TICK
    except OSError:
        return False
    return int(parent) in parents and state == "R" and busy > 0.5


def decode_here(capture: Path, output: Path, *options: str) -> list[str]:
    """The command on a single machine."""
    return [sys.executable, "-m", "jobs.cli", "decode", str(capture), "--output", str(output), *options]


def decoding(output: Path) -> bool:
    """Has a run for `output` begun to decode, or have files of one that died remained?"""
    return bool(list(output.parent.glob(f".wirehare-{output.name}-*-scratch")))


def decoded(output: Path) -> bool:
    """Have all captures been decoded? Then tables come into the stage, and before that nothing does."""
    stages = [name for name in os.listdir(output.parent) if name.startswith(f".wirehare-{output.name}-")]
    with suppress(FileNotFoundError):  # a stage may go meanwhile
        return any(os.listdir(output.parent / name) for name in stages if not name.endswith("-scratch"))
    return False


def fingerprints(output: Path) -> Tables:
    """Table -> its number of rows and the sum of their hashes: equal for equal rows in any order."""
    found = {}
    for folder in sorted(output.iterdir()):
        rows = pyarrow.dataset.dataset(folder, format="parquet", exclude_invalid_files=True)  # noqa: F841
        with duckdb.connect() as connection:
            (row,) = connection.execute("SELECT count(*), sum(hash(rows)::HUGEINT) FROM rows").fetchall()
        found[folder.name] = (int(row[0]), int(row[1] or 0))
    return found
