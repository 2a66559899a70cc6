"""Connections that go on from capture to capture: their rows and states are made together, not one after the other."""

from __future__ import annotations

import cProfile
from pathlib import Path

import numba
import pytest
from decoding import in_flow_order, runs

from benchmarks.lake import Traffic
from pipeline.tables.decoding import config
from udfs.tables import STATES, Part, tables_of

FEW, MANY = 5, 105
CALLS = 6000  # of Python for a connection: its arrays are taken out of the decoder, and put into it


def decoded(path: Path, states: dict[bytes, bytes]) -> tuple[int, list[Part]]:
    """How many calls Python makes for a capture, and its rows; `states` are updated."""
    batches = in_flow_order(runs([path])).combine_chunks().to_batches()
    profile = cProfile.Profile()
    parts = profile.runcall(lambda: list(tables_of(iter(batches), config(), states=states)))
    for part in parts:
        if part.table == STATES:
            states |= zip(part.rows["flow"].to_pylist(), part.rows["octets"].to_pylist(), strict=True)
    return sum(entry.callcount for entry in profile.getstats()), parts


def calls(directory: Path, connections: int) -> int:
    """For a capture in which connections only send heartbeats."""
    traffic, states = Traffic(connections), dict[bytes, bytes]()
    traffic.opening(directory / "opening.pcap")
    decoded(directory / "opening.pcap", states)
    traffic.heartbeats(directory / "heartbeats.pcap")
    found, parts = decoded(directory / "heartbeats.pcap", states)
    rows = [row for part in parts if part.table == "connections" for row in part.rows.to_pylist()]
    assert [(row["client_heartbeats"], row["server_heartbeats"], row["state"]) for row in rows] == [
        (1, 1, "open")
    ] * connections
    assert len(states) == connections
    return found


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="kernels are Python then")
def test_a_connection_that_goes_on_costs_few_calls(tmp_path: Path) -> None:
    """Each one for itself cost 24,000."""
    calls(tmp_path, FEW)  # imports and loads what is needed
    few, many = (calls(tmp_path, connections) for connections in (FEW, MANY))
    assert (many - few) / (MANY - FEW) < CALLS, (few, many)
