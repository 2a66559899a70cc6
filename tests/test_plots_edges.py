"""Pictures at their edges: names that look alike, messages that wait nowhere, more than is drawn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from plots_support import BEGIN, SECOND, connection, frame, points, subtitle, tables_of, ts
from pyspark.sql import SparkSession

from jobs.audit import INTERPRETED, settings
from pipeline import plots


@pytest.fixture(scope="module", autouse=True)
def quick(spark: SparkSession) -> Iterator[None]:
    with settings(spark, INTERPRETED):
        yield


def test_what_was_refused_waits_nowhere(spark: SparkSession) -> None:
    """Through the default exchange, and given back or refused at once: no consumer will take it from the queue."""
    flows = [
        {"flow_id": n, "exchange": "", "routing_key": "q", "publish_ts_ns": BEGIN + n * SECOND, "outcome": outcome}
        for n, outcome in enumerate([None, "returned", "nacked", "confirmed"])
    ]
    chart = plots.backlog(tables_of(spark, message_flows=flows), every="1 second")
    assert [point["value"] for point in points(chart) if point["what"].startswith("in the broker")] == [1, 1, 1, 2]


def test_names_that_are_shortened_to_the_same_are_rows_of_their_own(spark: SparkSession) -> None:
    names = [f"prod.eu-west-1.orders.payment.created.v{number}" for number in (1, 2)]
    messages = [
        {"connection_id": 1, "operation": "deliver", "queue": name, "ts_ns": BEGIN + at * SECOND}
        for name, many in zip(names, (1, 2), strict=True)
        for at in range(many)
    ]
    chart = plots.rates(tables_of(spark, messages=messages), every="1 second")
    rows = {point["row"] for point in points(chart)}
    assert len(rows) == 2
    delivered = [(point["row"], point["value"]) for point in points(chart) if point["what"] == "delivered"]
    assert sorted(tuple(value for name, value in delivered if name == row) for row in rows) == [(1, 0), (1, 1)]
    connections = [connection(n, client_product=name) for n, name in enumerate([*names, names[1]])]
    drawn = points(plots.versions(tables_of(spark, connections=connections)))
    assert sorted(point["connections"] for point in drawn) == [1, 1, 2, 2]  # the same points in two charts
    assert len({point["who"] for point in drawn}) == 2


def test_the_longest_silences_are_those_in_intervals(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 s with an interval of 60 s is less than 3 s with one of 1 s."""
    monkeypatch.setattr("pipeline.plots.silences.MOST", 1)
    frames = [
        frame(n, at * SECOND, "client", None, connection_id=c) for c, n, at in ((1, 1, 0), (2, 1, 0), (1, 2, 100))
    ]
    beats = [
        connection(1, heartbeat_s=60, closed_ts=ts(100 * SECOND)),
        connection(2, heartbeat_s=1, closed_ts=ts(3 * SECOND)),
    ]
    chart = plots.heartbeats(tables_of(spark, frames=frames, connections=beats))
    assert [p["how"] for p in points(chart) if "how" in p] == ["longer than two intervals"]
    assert any(line.startswith("1 of 2 silences shown") for line in subtitle(chart))
