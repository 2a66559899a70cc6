"""Connections that say nothing, as a port scan leaves them: what each costs, and what is known of it."""

from __future__ import annotations

import cProfile
from collections import Counter
from ipaddress import ip_address
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
import pytest
from decoding import in_flow_order, runs

from benchmarks.scan import scan
from codec.amqp.ended import ENDED
from udfs.decode import decode_runs

MANY = 9_000


def decoded(path: Path, connections: int) -> tuple[int, list[pa.RecordBatch]]:
    """How many calls Python makes to decode a scan, and the rows."""
    scan(path, connections)
    batches = in_flow_order(runs([path], references="true")).combine_chunks().to_batches(max_chunksize=2000)
    profile = cProfile.Profile()
    rows = profile.runcall(lambda: list(decode_runs()(iter(batches))))
    return sum(entry.callcount for entry in profile.getstats()), rows


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="kernels are Python then")
def test_python_does_nothing_for_each_connection(tmp_path: Path) -> None:
    path = tmp_path / "scan.pcap"
    decoded(path, 10)  # imports and loads what is needed
    few, many = (decoded(path, connections)[0] for connections in (MANY // 9, MANY))
    assert many - few < MANY  # what remains is a batch's, and a group's


def test_every_syn_is_a_connection(tmp_path: Path) -> None:
    connections = 3_000
    _, batches = decoded(tmp_path / "scan.pcap", connections)
    assert max(batch.num_rows for batch in batches) <= ENDED
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert Counter(row["kind"] for row in rows) == {"connection": connections, "capture": 1}
    found = [row["facts"][0] for row in rows if row["kind"] == "connection"]
    assert len({row["connection_id"] for row in rows}) == connections + 1
    assert {(facts["client_ip"], facts["client_port"]) for facts in found} == {
        (str(ip_address(0x0A000100 + number // 64_000)), 1024 + number % 64_000) for number in range(connections)
    }
    assert {(facts["server_ip"], facts["server_port"]) for facts in found} == {("10.0.0.2", 5672)}
    assert {facts["content"] for facts in found} == {"none"}
    assert sum(facts["client"]["packets"] for facts in found) == connections
    assert {len(np.unique([facts["community_id"] for facts in found]))} == {connections}
