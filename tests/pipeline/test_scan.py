"""Connections that say nothing, as a port scan leaves them: what each costs, and what is known of it."""

from __future__ import annotations

import cProfile
from collections import Counter
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numba
import pytest
from decoding import in_flow_order, runs

from benchmarks.scan import scan
from codec.framing.connection import ENDED
from pipeline.tables.decoding import config
from udfs.tables import Part, tables_of

FEW, MANY = ENDED // 10, ENDED - 1  # of one batch: what a batch costs is the same for both


def decoded(path: Path, connections: int) -> tuple[int, list[Part]]:
    """How many calls Python makes for all tables of a scan, and their rows."""
    scan(path, connections)
    batches = in_flow_order(runs([path], references="true")).combine_chunks().to_batches(max_chunksize=ENDED)
    profile = cProfile.Profile()
    rows = profile.runcall(lambda: list(tables_of(iter(batches), config())))
    return sum(entry.callcount for entry in profile.getstats()), rows


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="kernels are Python then")
def test_no_python_code_runs_per_connection(tmp_path: Path) -> None:
    path = tmp_path / "scan.pcap"
    decoded(path, 10)  # imports and loads what is needed
    few, many = (decoded(path, connections)[0] for connections in (FEW, MANY))
    assert many - few < MANY / 10, (few, many)


def test_every_syn_is_a_connection(tmp_path: Path) -> None:
    connections = 2 * ENDED
    _, parts = decoded(tmp_path / "scan.pcap", connections)
    assert max(part.rows.num_rows for part in parts if part.table == "connections") <= ENDED
    rows: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        rows.setdefault(part.table, []).extend(part.rows.to_pylist())
    counts = {"connections": connections, "streams": 2 * connections, "accounts": 1}
    assert {table: len(found) for table, found in rows.items()} == counts
    found = rows["connections"]
    assert len({row["connection_id"] for row in found}) == connections
    assert {(row["client_ip"], row["client_port"]) for row in found} == {
        (str(ip_address(0x0A000100 + number // 64_000)), 1024 + number % 64_000) for number in range(connections)
    }
    assert Counter((row["server_ip"], row["server_port"], row["version"]) for row in found) == {
        ("10.0.0.2", 5672, None): connections
    }
    assert sum(row["client_packets"] for row in found) == connections
    assert len({row["community_id"] for row in found}) == connections
