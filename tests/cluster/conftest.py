"""What the tests of `make cluster-test` share: the cluster, a capture that takes a while, and its tables."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from standalone_cluster import ROOT, Cluster, Tables, cluster, decode_here, fingerprints

from benchmarks.generate import generate

CAPTURE_BYTES = 12_000_000


@pytest.fixture(scope="session")
def on_loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), {"PYTHONPATH": str(ROOT)}) as running_cluster:
        yield running_cluster


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long enough to decode for somebody to be killed meanwhile."""
    path = tmp_path_factory.mktemp("capture") / "traffic.pcap"
    generate(path, CAPTURE_BYTES, seed=11)
    return path


@pytest.fixture(scope="session")
def expected(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """The tables as one process on this machine makes them."""
    output = tmp_path_factory.mktemp("local") / "tables"
    subprocess.run(decode_here(capture, output), cwd=ROOT, check=True, capture_output=True)
    return fingerprints(output)
