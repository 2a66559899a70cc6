"""The packed environment, submitted as docs/deployment.md says, to executors that have nothing else: the same tables as
one machine makes, also when a worker dies meanwhile and over Spark Connect, and no kernel is compiled again.

Run by `make cluster-test`, which packs the environment first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from deployment import ARCHIVE, commands, environment, replaced, shell
from object_store import BUCKET, object_store
from standalone_cluster import (
    ROOT,
    SPARK,
    Cluster,
    Tables,
    cluster,
    decoded,
    decoding,
    end,
    fingerprints,
    free_port,
    listens,
    running,
    wait_for,
)

from codec.tables import TABLES as SCHEMAS

pytestmark = pytest.mark.cluster
PACKED = ROOT / ".venv" / "packed"
MASTER, CAPTURES, TABLES = "spark://master:7077", "s3a://amqp/captures", "s3a://amqp/tables"
JOB = "environment/lib/python3*/site-packages/jobs/decode.py"
SERVER = "sc://server:15002"
WHERE = "tests/cluster/where.py"


@dataclass
class Site:
    """A cluster, and the folder from which a person submits to it."""

    cluster: Cluster
    folder: Path
    conf: dict[str, str]

    @contextmanager
    def run(self, script: str, log: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        """A script in the folder that holds `environment`, with `conf` as the defaults of its Spark."""
        (self.folder / "spark-defaults.conf").write_text("".join(f"{key} {text}\n" for key, text in self.conf.items()))
        ours = environment(SPARK_HOME=str(SPARK), SPARK_CONF_DIR=str(self.folder), **variables)
        with running(shell(script), self.log(log), ours, PACKED) as process:
            yield process

    def done(self, script: str, log: str, **variables: str) -> str:
        """What a script printed that succeeds."""
        with self.run(script, log, **variables) as process:
            assert process.wait() == 0, self.log(log).read_text()[-2000:]
        return self.log(log).read_text()

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """A cluster whose workers find nothing of ours: not in their environment, not in a cache of their user."""
    if not (PACKED / ARCHIVE).exists():
        raise FileNotFoundError(f"{PACKED / ARCHIVE}: make cluster-test packs it")
    conf = {
        "spark.driver.host": "127.0.0.1", "spark.executor.cores": "1", "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false", "spark.log.level": "WARN",
    }  # fmt: skip
    with cluster(folder, {"XDG_CACHE_HOME": str(folder / "cache")}) as running_cluster:
        yield Site(running_cluster, folder, conf)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site")) as deployment:
        yield deployment


def submit(to: Site, captures: str = CAPTURES, output: str = TABLES) -> str:
    names = {MASTER: to.cluster.url, CAPTURES: captures, TABLES: output}
    return replaced(commands("Standalone")[0], names)


def kernels(files: list[str]) -> set[str]:
    """Compiled kernels among files, by folder and name."""
    return {"/".join(file.split("/")[-2:]) for file in files if file.endswith((".nbi", ".nbc"))}


def test_executors_have_only_the_archive(ready: Site) -> None:
    script = replaced(submit(ready), {f"{JOB} {CAPTURES} --output": str(ROOT / WHERE)})
    printed = ready.done(script, "where")
    executors = [json.loads(line) for line in printed.splitlines() if line.startswith('{"folder"')]
    assert len({found["folder"] for found in executors}) == 2
    for found in executors:
        unpacked = os.path.join(found["folder"], "environment")
        assert found["folder"].startswith(str(ready.folder))
        assert os.path.realpath(found["prefix"]) == unpacked
        assert all(os.path.realpath(file).startswith(unpacked) for file in found["code"])
        assert not [entry for entry in found["path"] if entry.startswith(str(ROOT)) and "pyspark" not in entry]


def test_a_packaged_job_makes_the_tables_of_one_machine(
    ready: Site, capture: Path, tmp_path: Path, expected: Tables
) -> None:
    before = kernels([str(file) for file in PACKED.rglob("*.nb?")])
    assert before
    ready.done(submit(ready, str(capture), str(tmp_path / "undisturbed")), "undisturbed")
    assert fingerprints(tmp_path / "undisturbed") == expected
    with tarfile.open(PACKED / ARCHIVE) as archive:
        assert kernels(archive.getnames()) == before
    unpacked = list(ready.folder.glob("worker-*/app-*/*/environment"))
    assert len(unpacked) >= 2
    for index in unpacked:
        assert kernels([str(file) for file in index.rglob("*.nb?")]) == before
    assert kernels([str(file) for file in PACKED.rglob("*.nb?")]) == before
    assert not (ready.folder / "cache").exists()


def test_captures_come_from_an_object_store(ready: Site, capture: Path, tmp_path: Path, expected: Tables) -> None:
    """Where it is, and the credentials, are in the environment of driver and executors."""
    with object_store() as store:
        store.put(capture, folder="captures")
        sent = {f"spark.executorEnv.{name}": value for name, value in store.environment.items()}
        there = Site(ready.cluster, ready.folder, {**ready.conf, **sent})
        there.done(submit(there, f"s3a://{BUCKET}/captures", str(tmp_path / "stored")), "stored", **store.environment)
    found = fingerprints(tmp_path / "stored")
    assert {name: rows for name, (rows, _) in found.items()} == {name: rows for name, (rows, _) in expected.items()}
    same = [name for name in expected if "capture_file" not in SCHEMAS[name].names]
    assert {name: found[name] for name in same} == {name: expected[name] for name in same}


def test_the_jobs_run_over_connect(ready: Site, capture: Path, tmp_path: Path, expected: Tables) -> None:
    port = free_port()
    server, client = commands("Connect servers")
    deployment = Site(ready.cluster, ready.folder, {**ready.conf, "spark.connect.grpc.binding.port": str(port)})
    script = replaced(server, {MASTER: ready.cluster.url})
    logs = {"SPARK_LOG_DIR": str(ready.folder), "SPARK_PID_DIR": str(ready.folder)}
    with deployment.run(script, "server", **logs) as process:
        wait_for("the Connect server", lambda: listens(port) or process.poll() is not None)
        names = {SERVER: f"sc://127.0.0.1:{port}", CAPTURES: str(capture), TABLES: str(tmp_path / "connected")}
        deployment.done(replaced(client, names), "client")
        where = subprocess.run(
            [sys.executable, str(ROOT / WHERE)], cwd=ROOT, capture_output=True, text=True, check=True,
            env=environment(SPARK_REMOTE=f"sc://127.0.0.1:{port}", PYTHONPATH=str(ROOT)),
        )  # fmt: skip
    assert fingerprints(tmp_path / "connected") == expected
    found = [json.loads(line) for line in where.stdout.splitlines() if line.startswith('{"folder"')]
    assert found
    assert all(os.path.realpath(file).startswith(str(ready.folder)) for each in found for file in each["code"])


def test_a_worker_that_dies_changes_no_table(capture: Path, tmp_path: Path, expected: Tables) -> None:
    output = tmp_path / "killed"
    with site(tmp_path) as deployment:
        work = deployment.cluster
        with deployment.run(submit(deployment, str(capture), str(output)), "killed") as job:
            wait_for("the decode", lambda: decoding(output) and len(work.executors()) == len(work.daemons))
            wait_for("Python workers", lambda: work.python_workers())
            end(work.daemons[1])
            assert not decoded(output)
            assert job.wait() == 0
        assert "Lost executor" in deployment.log("killed").read_text()
    assert fingerprints(output) == expected
