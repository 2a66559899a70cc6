"""Scripts of all versions as captures: tables messages and message_flows say what the script says.

Frames are encoded by pika, qpid-proton and the tests' own 0-10 encoder; what must come out is computed from the script
(scenarios.truth), which knows nothing of how it is decoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from scenarios import as_rows, truth
from scenarios.compared import FLOW_COLUMNS, differences, unsound
from scenarios.decoded import Decoded, busiest, population, write_scripts
from scenarios.script import VERSIONS, Script

import pipeline
from pipeline.tables.flows import message_flows

COUNT = 60
COLUMNS = (
    "connection_id", "channel", "operation", "ts_ns", "queue", "address", "exchange", "routing_key", "message_id",
    "correlation_id", "reply_to", "body_size", "complete", "redelivered", "outcome", "settled_ts_ns", "transaction",
)  # fmt: skip


@pytest.fixture(scope="module")
def played() -> list[Script]:
    return busiest(COUNT)


@pytest.fixture(scope="module")
def decoded(spark: SparkSession, played: list[Script], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoded]:
    folder = tmp_path_factory.mktemp("scripts")
    write_scripts(folder / "in-order.pcap", played[::2])
    write_scripts(folder / "disturbed.pcap", played[1::2], disturb=True)
    found = Decoded(spark, folder, played)
    yield found
    found.tables.release()


@pytest.mark.parametrize("number", range(COUNT))
def test_messages_are_those_of_the_script(played: list[Script], decoded: Decoded, number: int) -> None:
    expected = truth.messages(played[number])
    found = decoded.rows("messages", number, *COLUMNS)
    by_time = sorted(found, key=lambda row: (row["ts_ns"], row["peer"]))
    assert by_time == sorted(expected, key=lambda row: (row["ts_ns"], row["peer"]))


@pytest.mark.parametrize("number", range(COUNT))
def test_flows_are_those_of_the_script(played: list[Script], decoded: Decoded, number: int) -> None:
    found = decoded.flows(number, *FLOW_COLUMNS)
    assert differences(played[number], found) == []
    assert unsound(played[number], found) == []


def test_backlog_is_what_the_script_leaves_open(played: list[Script], decoded: Decoded) -> None:
    """How many deliveries a consumer has not settled, whenever that changes."""
    found: dict[tuple[int, int, int, str | None], list[tuple[int, int]]] = defaultdict(list)
    rows = pipeline.backlog(decoded.tables).select("connection_id", "channel", "link", "ts_ns", "outstanding").collect()
    for connection_id, channel, link, ts_ns, outstanding in rows:
        found[(*decoded.place_of[connection_id], channel, link)].append((ts_ns, outstanding))
    expected = {
        (script.number, *consumer): numbers for script in played for consumer, numbers in truth.backlog(script).items()
    }
    assert {consumer: sorted(numbers) for consumer, numbers in found.items()} == expected


def test_latency_counts_and_ranks_what_the_flows_say(decoded: Decoded, played: list[Script]) -> None:
    flows = [row for script in played for row in decoded.flows(script.number, *FLOW_COLUMNS)]
    summary = {row.measure: row for row in pipeline.latency(decoded.tables).collect()}
    for measure in ("broker", "ack", "total"):
        values = sorted(row[f"{measure}_latency_ns"] for row in flows if row[f"{measure}_latency_ns"] is not None)
        row = summary[measure]
        assert (row["count"], row["max_ns"]) == (len(values), values[-1])
        assert row["p50_ns"] == values[-(-len(values) // 2) - 1]  # nearest rank
    # Once for each publish, however many queues it came to.
    confirms = {(row["server"], row["publish_ts_ns"]): row["confirm_latency_ns"] for row in flows}
    assert summary["confirm"]["count"] == sum(value is not None for value in confirms.values())


def test_flows_of_many_scripts_from_their_rows(spark: SparkSession) -> None:
    """Past capture and decoder more scripts can be tried."""
    many = population()
    rows = message_flows(*as_rows.tables(spark, many)).collect()
    by_server: dict[str, list[dict[str, Any]]] = {script.server: [] for script in many}
    for row in rows:
        peers = {
            f"{side}_peer": number if number is None else number % as_rows.PEERS
            for side in ("publish", "deliver")
            for number in [row[f"{side}_connection_id"]]
        }
        by_server[row.server].append({**row.asDict(), **peers})
    told = [
        (script.number, *lines)
        for script in many
        if (lines := differences(script, by_server[script.server]) + unsound(script, by_server[script.server]))
    ]
    assert told == []


def test_scripts_show_what_brokers_do(played: list[Script]) -> None:
    """Nothing is tested by scripts in which it does not happen."""
    events = [(script, event) for script in played for event in script.events]
    seen = {event.kind for _, event in events} | {event.outcome for _, event in events}
    seen |= {death.reason for _, event in events for death in event.deaths}
    kinds = ["publish", "deliver", "get", "get-empty", "return", "confirm", "settle", "commit", "rollback", "close"]
    outcomes = ["confirmed", "nacked", "acked", "rejected", "requeued", "expired", "maxlen", "delivery_limit"]
    assert {*kinds, *outcomes} - seen == set()
    for version in VERSIONS:
        mine = [event for script, event in events if script.peers[event.peer].version == version]
        assert {event.kind for event in mine} >= {"publish", "deliver", "settle"}
        assert any(event.redelivered for event in mine)
    across = {
        (script.peers[script.events[event.of].peer].version, script.peers[event.peer].version)
        for script, event in events
        if event.kind == "deliver" and event.of is not None
    }
    assert len(across) > 20
