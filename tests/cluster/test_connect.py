"""The jobs over Spark Connect on one core: the tables and findings of a classic session on two, row for row. A server
with default settings that shares no directory of captures or tables with its client."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import independent_tcp
import pyspark
import pytest
from golden import CAPTURES
from object_store import BUCKET, object_store
from pyarrow import fs
from pyspark.sql import SparkSession
from standalone_cluster import ROOT, fingerprints

from codec.tables import TABLES
from jobs.cli import main
from pipeline.explore.duckdb_tables import connect

# Confirms, returns, consumers: every table has rows.
SOME = ("091_confirms_and_return.pcap", "091_rpc_reply_to.pcap")


def over_connect(*words: str) -> None:
    """A command in a process of its own: one with a classic session cannot have the other kind."""
    ran = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *words],
        cwd=ROOT, env={**os.environ, "SPARK_REMOTE": "local[1]"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.cluster
def test_the_jobs_make_the_same_tables_and_findings_over_connect(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    decode = ["decode", *(str(CAPTURES / name) for name in SOME), "--output"]
    assert main([*decode, str(tmp_path / "classic")]) == 0
    over_connect(*decode, str(tmp_path / "connect"))
    expected = fingerprints(tmp_path / "classic")
    assert set(expected) == set(TABLES)
    assert all(rows for rows, _ in expected.values())
    assert fingerprints(tmp_path / "connect") == expected
    report, found = str(tmp_path / "audit.html"), [tmp_path / "classic.json", tmp_path / "connect.json"]
    audit = ["audit", str(tmp_path / "connect"), "--fail-on", "never", "--report", report, "--json"]
    assert main([*audit, str(found[0])]) == 0
    over_connect(*audit, str(found[1]))
    classic, connect = (json.loads(path.read_text())["findings"] for path in found)
    assert classic == connect != []


# A notebook's cells, with a server that is started there.
WRITING = """
import sys, wirehare
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[1]").getOrCreate()
print(sum(row["packets"] for row in wirehare.write(spark, sys.argv[2:], sys.argv[1])))
"""


@pytest.mark.cluster
def test_tables_are_written_to_an_object_store_over_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    captures = [str(CAPTURES / name) for name in SOME]
    assert main(["decode", *captures, "--output", str(tmp_path / "local")]) == 0
    with object_store() as store:
        ran = subprocess.run(
            [sys.executable, "-c", WRITING, store.uri("tables"), *captures],
            cwd=ROOT, env={**os.environ, "PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[-2000:]
        fs.copy_files(f"{BUCKET}/tables", str(tmp_path / "stored"), source_filesystem=store.files())
    assert int(ran.stdout) == sum(1 for path in captures for _ in independent_tcp.records(Path(path)))
    assert fingerprints(tmp_path / "stored") == fingerprints(tmp_path / "local")


SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
# What mounts a file system of its own over /srv, fills it, and becomes the server.
APART = f"""
mount -t tmpfs tmpfs /srv && mkdir /srv/captures && cp "$@" /srv/captures && cd /srv &&
exec "$SPARK_HOME/bin/spark-submit" --class {SERVER} --master 'local[1]' \\
    --conf spark.connect.grpc.binding.port=$PORT --conf spark.ui.enabled=false
"""
# A notebook's cells. Nothing of the session is set.
CELLS = """
import sys, wirehare
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
wirehare.register(spark)
tables = wirehare.decode(spark, "/srv/captures")
found = {name: rows.count() for name, rows in tables.items()}
found["packets"] = spark.read.format("pcap").load("/srv/captures").where("dst_port = 5672").count()
found["rules"] = sorted(row.rule_id for row in wirehare.findings(tables).select("rule_id").collect())
try:
    wirehare.write(spark, "/srv/captures", sys.argv[2])
except wirehare.WirehareError as error:
    found["refused"] = str(error)
print(found)
"""


@pytest.fixture
def apart() -> Iterator[str]:
    """The address of a server that alone has a directory /srv/captures."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("only root can hide a directory from others")
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = os.environ | {
        "SPARK_HOME": str(Path(pyspark.__file__).parent), "PORT": str(port), "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    captures = [str(CAPTURES / name) for name in SOME]
    server = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", APART, "sh", *captures],
        env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and server.poll() is None:
            with socket.socket() as connection:
                if connection.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.5)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.cluster
def test_a_server_that_shares_no_directory_with_its_client(apart: str, tmp_path: Path) -> None:
    assert main(["decode", *(str(CAPTURES / name) for name in SOME), "--output", str(tmp_path / "local")]) == 0
    assert main(["audit", str(tmp_path / "local"), "--fail-on", "never", "--report", str(tmp_path / "a.html")]) == 0
    # In a mount namespace of the server's, this file system is still the client's: only /srv differs.
    output = "/srv/tables"
    ran = subprocess.run(
        [sys.executable, "-c", CELLS, apart, output], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = ast.literal_eval(ran.stdout.strip().splitlines()[-1])
    with connect(str(tmp_path / "local")) as session:
        expected: dict[str, object] = {
            name: next(iter(rows))[0] for name in TABLES for _, rows in session.run(f"SELECT count(*) FROM {name}")
        }
        ((_, rules),) = session.run("SELECT rule_id FROM findings ORDER BY rule_id")
        expected["rules"] = [rule for (rule,) in rules]
    packets = independent_tcp.packets(CAPTURES / name for name in SOME)
    expected["packets"] = sum(packet.target[1] == 5672 for packet in packets)
    refused = found.pop("refused")
    assert found == expected
    assert "the workers of the Spark Connect server do not see this directory" in refused
    assert not os.path.exists(output)  # what the client had made there
