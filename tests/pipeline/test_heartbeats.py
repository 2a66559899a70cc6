"""Heartbeats against what was agreed on: rows that are written down here, counted by hand."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from test_summaries import rows

import pipeline
from pipeline import TABLES, Tables

S = 10**9
CLASSIC, NEW, NONE, CLOSED = 1, 2, 3, 4


def frames_at(
    connection: int, sender: str, *at_s: int, kind: str = "heartbeat", name: str | None = None, took_s: int = 0
) -> list[dict[str, Any]]:
    """Frames of one side, complete at each of these seconds, and begun so long before."""
    return [
        {"connection_id": connection, "sender": sender, "frame_no": 10 * at + (sender == "client"), "ts_ns": at * S,
         "first_ts_ns": (at - took_s) * S, "frame_type": kind, "name": name}
        for at in at_s
    ]  # fmt: skip


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Tables:
    frames = [
        # Interval 5 s: silences of 5, 6 (late), 11 (overdue), and 4 to the end.
        *frames_at(CLASSIC, "client", 0, kind="method"),
        *frames_at(CLASSIC, "client", 5, 11),
        *frames_at(CLASSIC, "client", 22, kind="method"),
        *frames_at(CLASSIC, "server", 0, 4, 8, 12, 16, 20),
        *frames_at(CLASSIC, "server", 23, kind="gap"),  # lost bytes are not a sign of life
        # 1.0: the server asks the client for a frame every 2 s, the client asks for none.
        *frames_at(NEW, "client", 0, 2, 4, kind="empty"),
        *frames_at(NEW, "server", 0, 20, kind="amqp"),
        *frames_at(NONE, "client", 0, 100, kind="method"),
        # The login takes 20 s, the end of TCP another 20: what counts is from 20 to 60. A body of 8 s is no silence.
        *frames_at(CLOSED, "client", 0, kind="method"),
        *frames_at(CLOSED, "client", 20, kind="method", name="connection.tune-ok"),
        *frames_at(CLOSED, "client", 40, kind="body", took_s=8),
        *frames_at(CLOSED, "client", 60, kind="method", name="connection.close"),
        *frames_at(CLOSED, "server", 0, 80, kind="method"),
    ]
    connections = [
        {"connection_id": CLASSIC, "heartbeat_s": 5, "closed_ts": datetime(1970, 1, 1, 0, 0, 26)},
        {"connection_id": NEW, "server_idle_timeout_ms": 2000, "closed_ts": datetime(1970, 1, 1, 0, 0, 20)},
        {"connection_id": CLOSED, "heartbeat_s": 15, "closed_ts": datetime(1970, 1, 1, 0, 1, 20)},
        {"connection_id": NONE, "heartbeat_s": 0, "closed_ts": datetime(1970, 1, 1, 0, 2)},
    ]
    given = {"frames": frames, "connections": connections}
    return Tables(**{name: rows(spark, schema, *given.get(name, [])) for name, schema in TABLES.items()})


def test_silence_is_counted_against_the_interval_agreed_on(tables: Tables) -> None:
    found = {(row.connection_id, row.sender): row[2:] for row in pipeline.heartbeats(tables).collect()}
    assert found == {
        # interval, heartbeats, longest, since when, late, overdue
        (CLASSIC, "client"): (5 * S, 2, 11 * S, 11 * S, 2, 1),
        (CLASSIC, "server"): (5 * S, 6, 6 * S, 20 * S, 1, 0),
        (NEW, "client"): (2 * S, 3, 16 * S, 4 * S, 1, 1),
        # 12 s until the body began, 20 after it.
        (CLOSED, "client"): (15 * S, 0, 20 * S, 40 * S, 1, 0),
        (CLOSED, "server"): (15 * S, 0, 40 * S, 20 * S, 1, 1),
    }
