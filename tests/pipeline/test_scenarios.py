"""Scripts of all versions as captures: tables messages and message_flows say what the script says.

Frames are encoded by pika, qpid-proton and the tests' own 0-10 encoder; what must come out is computed from the script
(scenarios.truth), which knows nothing of how it is decoded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scenarios import as_rows, sums, truth
from scenarios.compared import FLOW_COLUMNS, differences, unsound
from scenarios.decoded import Decoded, busiest, population, write_scripts
from scenarios.script import VERSIONS, Script

import pipeline
from pipeline.explore.summaries import RATES
from pipeline.tables.message_flows import message_flows

COUNT = 60
INTERVAL_US = 20
CONSUMER_COLUMNS = (
    "deliveries", "settled", "settle_p50_ns", "settle_p99_ns", "settle_max_ns", "most_outstanding", "exhausted_ns",
)  # fmt: skip
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
    by_time = sorted(decoded.rows("messages", number, *COLUMNS), key=lambda row: (row["ts_ns"], row["peer"]))
    assert by_time == sorted(expected, key=lambda row: (row["ts_ns"], row["peer"]))


@pytest.mark.parametrize("number", range(COUNT))
def test_flows_are_those_of_the_script(played: list[Script], decoded: Decoded, number: int) -> None:
    found = decoded.flows(number, *FLOW_COLUMNS)
    assert differences(played[number], found) == []
    assert unsound(played[number], found) == []


def by_consumer(decoded: Decoded, summary: DataFrame, *columns: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(script, peer, channel, consumer) and those columns of each row of a summary."""
    rows = summary.select("connection_id", "channel", "link", *columns).collect()
    for connection_id, channel, link, *values in rows:
        yield (*decoded.origin_of[connection_id], channel, link), values


def test_backlog_is_the_messages_that_the_script_does_not_settle(played: list[Script], decoded: Decoded) -> None:
    """How many deliveries a consumer has not settled, whenever that changes."""
    found: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    for consumer, change in by_consumer(decoded, pipeline.backlog(decoded.tables), "ts_ns", "outstanding"):
        found[consumer].append(tuple(change))
    expected = {
        (script.number, *consumer): numbers for script in played for consumer, numbers in sums.backlog(script).items()
    }
    assert {consumer: sorted(numbers) for consumer, numbers in found.items()} == expected


def test_consumers_did_what_the_script_says(played: list[Script], decoded: Decoded) -> None:
    """How many deliveries, how long until they were settled, and how long nothing more could be sent."""
    rows = by_consumer(decoded, pipeline.consumers(decoded.tables), *CONSUMER_COLUMNS)
    found = {consumer: dict(zip(CONSUMER_COLUMNS, values, strict=True)) for consumer, values in rows}
    expected = {(script.number, *key): row for script in played for key, row in sums.consumers(script).items()}
    unknown = [consumer for consumer, row in expected.items() if row["exhausted_ns"] == sums.UNKNOWN]
    for consumer in unknown:
        expected[consumer]["exhausted_ns"] = found[consumer]["exhausted_ns"]
    assert found == expected
    peers = {(script.number, number): peer for script in played for number, peer in enumerate(script.peers)}
    limited = Counter(
        peers[consumer[:2]].version
        for consumer, row in expected.items()
        if consumer not in unknown and peers[consumer[:2]].channel(consumer[2]).prefetch and row["exhausted_ns"]
    )
    assert min(limited[version] for version in VERSIONS) > 0


def test_rates_are_those_of_the_script(played: list[Script], decoded: Decoded) -> None:
    """Messages and bytes, in and out, by connection, exchange, queue and address."""
    indices = ["connection_id", "exchange", "queue", "address"]
    summary = pipeline.rates(decoded.tables, every=f"{INTERVAL_US} microseconds", by=indices)
    rows = summary.select(F.unix_micros("ts"), *indices, *RATES).collect()
    found = {
        (decoded.origin_of[connection_id][0], 1000 * ts, decoded.origin_of[connection_id][1], *position): numbers
        for ts, connection_id, *rest in rows
        for position, numbers in [(rest[:3], rest[3:])]
    }
    assert found == {
        (script.number, *position): numbers
        for script in played
        for position, numbers in sums.rates(script, 1000 * INTERVAL_US).items()
    }
    assert len({key[1] for key in found}) > 100


def test_rates_by_what_is_known_of_the_connection(played: list[Script], decoded: Decoded) -> None:
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for script in played:
        for (_, peer, *_), numbers in sums.rates(script, 1).items():
            version = script.peers[peer].version
            expected[version] = [one + other for one, other in zip(expected[version], numbers, strict=True)]
    rows = pipeline.rates(decoded.tables, every="1 day", by=["version"]).select("version", *RATES).collect()
    assert {version: numbers for version, *numbers in rows} == expected
    assert set(expected) == set(VERSIONS)


def test_latency_agrees_with_the_flows(decoded: Decoded, played: list[Script]) -> None:
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
    wrong = [
        (script.number, *lines)
        for script in many
        if (lines := differences(script, by_server[script.server]) + unsound(script, by_server[script.server]))
    ]
    assert wrong == []


def test_scripts_show_what_brokers_do(played: list[Script]) -> None:
    """Nothing is tested by scripts in which it does not happen."""
    events = [(script, event) for script in played for event in script.events]
    seen = {event.kind for _, event in events} | {event.outcome for _, event in events}
    seen |= {death.reason for _, event in events for death in event.x_death}
    kinds = ["publish", "deliver", "get", "get-empty", "return", "confirm", "settle", "commit", "rollback", "close"]
    outcomes = ["confirmed", "nacked", "acked", "rejected", "requeued", "expired", "maxlen", "delivery_limit"]
    assert {*kinds, *outcomes} - seen == set()
    for version in VERSIONS:
        mine = [event for script, event in events if script.peers[event.peer].version == version]
        assert {event.kind for event in mine} >= {"publish", "deliver", "settle", "commit", "rollback"}
        assert any(event.redelivered for event in mine)
    across = {
        (script.peers[script.events[event.of].peer].version, script.peers[event.peer].version)
        for script, event in events
        if event.kind == "deliver" and event.of is not None
    }
    assert len(across) > 20
