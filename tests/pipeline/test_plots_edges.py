"""Pictures at their edges: names that look alike, messages that wait nowhere, more than is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from plots_support import BEGIN, SECOND, connection, frame, points, subtitle, tables_of, ts
from pyspark.sql import SparkSession

from pipeline import Tables, plots
from pipeline.plots.chart import unique_names


def test_refused_messages_are_not_in_the_backlog(spark: SparkSession) -> None:
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
    monkeypatch.setattr("pipeline.plots.lifetimes.MOST", 1)
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


def test_a_name_that_already_looks_numbered_stays_unique() -> None:
    assert unique_names({1: "a", 2: "a", 3: "a (2)"}) == {1: "a", 2: "a (2)", 3: "a (2) (2)"}
    assert unique_names({1: "a (2)", 2: "a", 3: "a", 4: "a"}) == {1: "a (2)", 2: "a", 3: "a (3)", 4: "a (4)"}


def test_of_many_failed_channels_the_first_are_marked(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel of which it is not known when it was closed takes no other one's place."""
    monkeypatch.setattr("pipeline.plots.lifetimes.MOST_MARKS", 2)
    one = connection(opened_ts=ts(0), closed_ts=ts(4 * SECOND))
    ends = (None, 3 * SECOND, 2 * SECOND, SECOND)
    failed = [{"connection_id": 1, "close_code": 404, "closed_ts": None if at is None else ts(at)} for at in ends]
    for channels, marked, suffix in ((failed[:3], [2, 3], ""), (failed, [1, 2], ", the first 2 of them")):
        chart = plots.connections(tables_of(spark, connections=[one], channels=channels))
        assert [point["t"] for point in points(chart) if set(point) == {"name", "t"}] == marked
        assert subtitle(chart) == [f"diamonds: channels closed with an error{suffix}"]


@pytest.fixture(scope="module")
def one_frame(spark: SparkSession) -> Tables:
    return tables_of(spark, frames=[frame(1, 0, "client", "channel.open")], connections=[connection()])


@pytest.mark.parametrize(
    "draw",
    [plots.backlog, plots.connections, plots.heartbeats, plots.ladder, plots.latency, plots.rates, plots.versions],
)
def test_a_picture_of_nothing_is_refused(one_frame: Tables, draw: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="nothing to draw: most=0; expected 1 or more"):
        draw(one_frame, most=0)
