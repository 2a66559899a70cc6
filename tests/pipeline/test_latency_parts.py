"""The parts of a message's latency: connections written by hand, with the times at which their packets are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from classic_frames import body, header, method
from rule_support import Case, Connection, write_cases

import pipeline
from codec.pairing.intervals import Times as Intervals
from pipeline.run.processes import LocalProcesses
from udfs.pairing import stalls

V = "0-9-1"
PARTS = (
    "send_ns", "network_ns", "confirm_wait_ns", "queue_blocked_ns", "queue_ready_ns", "redelivery_ns", "delivery_ns",
    "consumer_ns", "ack_held_ns",
)  # fmt: skip
CONTENT = b"twelve bytes"
Row = dict[str, Any]


class Times:
    """When the packets of a message were sent, ns."""

    begun = published = confirmed = consuming = delivered = complete = again = settled = 0


def sent(connection: Connection, sender: str, name: str, apart: float, **arguments: Any) -> tuple[int, int]:
    """A message in two packets that are so far apart, seconds: when the first and the second were sent."""
    data = method(V, name, 1, **arguments) + header(V, "basic", len(CONTENT), 1) + body(CONTENT, 1)
    first = connection.now
    connection.data(sender, data[:20]).wait(apart)
    second = connection.now
    connection.data(sender, data[20:])
    return first, second


def published(times: Times, confirm_after: float | None, at: float = 0, apart: float = 0.03) -> Connection:
    connection = Connection(V, client=2, at=at).handshake().open()
    if confirm_after is not None:
        connection.asks("confirm.select")
    arguments = {"exchange": "", "routing_key": "q"}
    times.begun, times.published = sent(connection, "client", "basic.publish", apart, **arguments)
    if confirm_after is not None:
        connection.wait(confirm_after)
        times.confirmed = connection.now
        connection.server("basic.ack", delivery_tag=1)
    return connection


def consumed(times: Times, begins: float, work: float, client: int = 3, again: float | None = None) -> Connection:
    """A consumer that comes at `begins`, seconds, and gets the message 5 ms later, in two packets 7 ms apart."""
    connection = Connection(V, client=client, at=begins).handshake().open()
    times.consuming = connection.now
    connection.asks("basic.consume", 1, {"consumer_tag": "c"}, queue="q", consumer_tag="c").wait(0.005)
    arguments = {"consumer_tag": "c", "exchange": "", "routing_key": "q"}
    times.delivered, times.complete = sent(connection, "server", "basic.deliver", 0.007, delivery_tag=1, **arguments)
    if again is not None:
        connection.wait(again).client("basic.nack", delivery_tag=1, multiple=False, requeue=True)
        times.again, times.complete = sent(
            connection, "server", "basic.deliver", 0.007, delivery_tag=2, redelivered=True, **arguments
        )
    connection.wait(work)
    times.settled = connection.now
    return connection.client("basic.ack", delivery_tag=2 if again is not None else 1)


def flows(folder: Path, *connections: Connection) -> list[Row]:
    write_cases(folder / "a.pcap", [Case("", V, connections, [])])
    with LocalProcesses(1) as here:
        pipeline.write(here, str(folder / "a.pcap"), str(folder / "tables"))
    rows: list[Row] = pq.read_table(folder / "tables" / "message_flows").to_pylist()
    return rows


def parts(row: Row) -> tuple[int | None, ...]:
    assert row["total_latency_ns"] == sum(row[name] or 0 for name in PARTS)
    return tuple(row[name] for name in PARTS)


def microseconds(ns: int) -> int:
    """Times of consumers are microseconds."""
    return ns // 1000 * 1000


def test_parts_of_a_message_that_waits_for_a_consumer(tmp_path: Path) -> None:
    times = Times()
    (row,) = flows(tmp_path, published(times, confirm_after=0.02), consumed(times, begins=0.5, work=0.04))
    blocked = microseconds(times.consuming) - times.confirmed
    assert parts(row) == (
        times.published - times.begun, 0, times.confirmed - times.published, blocked,
        times.delivered - microseconds(times.consuming), 0, times.complete - times.delivered,
        times.settled - times.complete, None,
    )  # fmt: skip
    assert blocked > 300_000_000


def test_the_broker_has_the_time_until_the_delivery_where_nothing_is_confirmed(tmp_path: Path) -> None:
    times = Times()
    (row,) = flows(tmp_path, published(times, confirm_after=None), consumed(times, begins=0.5, work=0.04))
    came = microseconds(times.consuming)
    assert parts(row)[2:5] == (None, came - times.published, times.delivered - came)


def test_redelivery_is_a_part_of_its_own(tmp_path: Path) -> None:
    times = Times()
    (row,) = flows(tmp_path, published(times, confirm_after=0.02), consumed(times, begins=0.5, work=0.04, again=0.1))
    assert row["redeliveries"] == 1
    assert parts(row)[5:8] == (
        times.again - times.delivered,
        times.complete - times.again,
        times.settled - times.complete,
    )


def test_stalls_of_channels_with_many_links_are_bounded_and_the_longest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "MOST_PAIRS", 5)
    channel, other = 7, 8
    links = np.array([channel, channel, other])
    held_up = Intervals(
        np.array([channel, other, channel, channel]), np.array([0, 5, 10, 20]), np.array([3, 6, 19, 27])
    )
    at, whose = stalls._matches(links, held_up)
    assert sorted(zip(at.tolist(), whose.tolist(), strict=True)) == [(2, 0), (2, 1), (3, 0), (3, 1)]
