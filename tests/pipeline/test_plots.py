"""Pictures: what is drawn is what a person counts, they are bounded, hostile names are inert, and no network is needed.

Rows are written by hand; the numbers expected are counted in the comments.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from plots_support import BEGIN, MILLISECOND, SECOND, connection, frame, points, subtitle, svg, tables_of, ts
from pyspark.sql import SparkSession

from pipeline import Tables, plots

NASTY = "x\u202eevil\x00<script>alert(1)</script>" + "y" * 5000


# Four publishes, a second apart, through the default exchange to queue q; three are delivered, two of these settled.
PUBLISHED = [0, SECOND, 2 * SECOND, 3 * SECOND]
DELIVERED = [SECOND // 10, 21 * SECOND // 10, 41 * SECOND // 10, None]
SETTLED = [11 * SECOND // 10, 31 * SECOND // 10, None, None]


def delivery(at: int, settled: int | None) -> dict[str, Any]:
    same = {
        "connection_id": 1,
        "channel": 1,
        "channel_incarnation": 1,
        "link": "c",
        "queue": "q",
        "operation": "deliver",
    }
    moments = {"ts_ns": BEGIN + at, "settled_ts_ns": None if settled is None else BEGIN + settled}
    return {**same, **moments, "outcome": "acked" if settled else "unsettled"}


@pytest.fixture(scope="module")
def waiting(spark: SparkSession) -> Tables:
    """The messages above, as tables."""
    flows = [
        {
            "flow_id": n, "exchange": "", "routing_key": "q", "queue": "q" if there is not None else None,
            "publish_connection_id": 1, "publish_frame_no": n, "publish_ts_ns": BEGIN + came,
            "deliver_ts_ns": None if there is None else BEGIN + there,
            "broker_latency_ns": None if there is None else there - came,
        }
        for n, (came, there) in enumerate(zip(PUBLISHED, DELIVERED, strict=True))
    ]  # fmt: skip
    # The transaction of one more was rolled back: it is in no queue.
    undone: dict[str, Any] = {
        "publish_frame_no": 99,
        "publish_ts_ns": BEGIN,
        "outcome": "confirmed",
        "transaction": "rolled-back",
    }
    flows.append({**flows[0], "flow_id": 99, **undone, **dict.fromkeys(("queue", "deliver_ts_ns"))})
    messages = [delivery(at, gone) for at, gone in zip(DELIVERED, SETTLED, strict=True) if at is not None]
    return tables_of(spark, messages=messages, message_flows=flows, connections=[connection()])


def series(chart: Any, what: str) -> list[float]:
    return [point["value"] for point in points(chart) if point["what"].startswith(what)]


def test_rates_count_what_goes_in_and_out_of_a_queue(waiting: Tables) -> None:
    chart = plots.rates(waiting, every="1 second")
    assert series(chart, "published") == [1, 1, 1, 1, 0]
    assert series(chart, "delivered") == [1, 0, 1, 0, 1]
    assert {point["row"] for point in points(chart)} == {"q"}


def test_backlog_is_the_largest_number_of_waiting_messages(waiting: Tables) -> None:
    chart = plots.backlog(waiting, every="1 second")
    # In the broker: 1 at 0 s, 0 at 0.1, 1 at 1, 2 at 2, 1 at 2.1, 2 at 3, 1 at 4.1, which had 2 when its second began.
    assert series(chart, "in the broker") == [1, 1, 2, 2, 2]
    # With the consumer one from 0.1 to 1.1, from 2.1 to 3.1, and from 4.1 on.
    assert series(chart, "with consumers") == [1, 1, 1, 1, 1]


def test_a_condition_chooses_what_is_drawn(waiting: Tables) -> None:
    nothing = plots.rates(waiting, "queue = 'other' AND client_port = 40001")
    assert "no message was published or delivered" in svg(nothing)
    # Of the four publishes three came to the queue by name; all are of the connection from this port.
    drawn = plots.rates(waiting, "queue = 'q' AND client_port = 40001", every="1 second")
    assert series(drawn, "published") == [1, 1, 1, 0, 0]
    assert series(drawn, "delivered") == [1, 0, 1, 0, 1]


@pytest.mark.parametrize("every", ["soon", "0.1 microseconds", "1 fortnight", "1.2.3 seconds", "1 microsecond"])
def test_an_invalid_interval_is_refused(waiting: Tables, every: str) -> None:
    with pytest.raises(ValueError, match="not an interval"):
        plots.rates(waiting, every=every)


def test_latencies_are_counted_in_the_class_that_contains_them(spark: SparkSession) -> None:
    # 98 times 1 ms and twice 100 ms: the 99th of 100 is 100 ms.
    flows = [
        {"flow_id": n, "queue": "q", "publish_ts_ns": BEGIN + n, "broker_latency_ns": ns * MILLISECOND}
        for n, ns in enumerate([1] * 98 + [100] * 2)
    ]
    tables = tables_of(spark, message_flows=flows)
    chart = plots.latency(tables, by="queue")
    bars = [point for point in points(chart) if "n" in point]
    assert [(bar["n"], bar["from"] <= ms < bar["to"]) for bar, ms in zip(bars, (1, 100), strict=True)] == [
        (98, True),
        (2, True),
    ]
    assert {p["mark"]: p["at"] for p in points(chart) if "mark" in p} == {"median": 1, "90 %": 1, "99 %": 100}
    with pytest.raises(ValueError, match="no latency 'speed'"):
        plots.latency_over_time(tables, measure="speed")
    over_time = plots.latency_over_time(tables, every="1 second")
    (totals,) = [point for point in points(over_time) if "n" in point and "median" in point][:1]
    assert (totals["n"], totals["median"], totals["99 %"], totals["longest"]) == (100, 1, 100, 100)


@pytest.fixture(scope="module")
def ended(spark: SparkSession) -> Tables:
    """Connections of ten seconds that ended in different ways, of peers with heartbeats of one second."""
    named = {"connection_name": NASTY}
    ways: list[dict[str, Any]] = [
        {"close_initiator": "client", "close_code": 200, "tcp_end": "fin", "tcp_end_by": "client", "heartbeat_s": 1},
        {"close_initiator": "server", "close_code": 320, "close_text": "CONNECTION_FORCED", "client_product": "A"},
        {"tcp_end": "rst", "tcp_end_by": "client", "client_product": NASTY, "client_properties": named},
        {"tcp_end": "none", "version": "1.0", "client_product": "A"},
        {"tcp_end": "none", "version": None, "content": "tls"},
    ]  # fmt: skip
    moments = {"opened_ts": ts(0), "closed_ts": ts(4 * SECOND)}
    connections = [connection(n, **moments, **way) for n, way in enumerate(ways, 1)]
    client = [frame(1, 0, "client", None), frame(2, 9 * SECOND // 10, "client", None, frame_type="heartbeat", size=8)]
    server = [
        frame(n, at * SECOND // 2, "server", "basic.deliver", size=100) for n, at in ((3, 0), (4, 3), (5, 6), (6, 8))
    ]
    channels = [{"connection_id": 1, "close_code": 404, "closed_ts": ts(SECOND)}]
    return tables_of(spark, connections=connections, channels=channels, frames=[*client, *server])


@pytest.fixture(scope="module")
def connection_chart(ended: Tables) -> Any:
    return plots.connections(ended)


@pytest.fixture(scope="module")
def spoken(ended: Tables) -> Any:
    return plots.versions(ended)


def test_the_parts_of_latency_are_bars_side_by_side(spark: SparkSession) -> None:
    flows = [
        {
            "flow_id": n,
            "queue": queue,
            "total_latency_ns": 4 * MILLISECOND,
            "queue_ready_ns": MILLISECOND,
            "consumer_ns": 3 * MILLISECOND,
        }
        for n, queue in enumerate(["q", "q", "r"])
    ]
    chart = plots.latency_parts(tables_of(spark, message_flows=flows))
    bars = {(bar["name"], bar["part"]): bar["ms"] for bar in points(chart)}
    assert bars["q · 4.0 ms · 2", "at the consumer"] == 3
    assert bars["r · 4.0 ms · 1", "in the queue otherwise"] == 1
    assert "at the consumer" in svg(chart)
    assert "no message was seen" in svg(plots.latency_parts(tables_of(spark, message_flows=flows), "queue = 'none'"))


def test_connections_say_how_they_ended_and_by_whom(ended: Tables, connection_chart: Any) -> None:
    chart = connection_chart
    bars = {int(p["connection_id"]): p for p in points(chart) if "connection_id" in p}
    assert [bars[n]["ending"] for n in (1, 2, 3, 4)] == [
        "closed", "closed with an error", "reset by TCP", "open at the end of the capture",
    ]  # fmt: skip
    assert [bars[n]["why"] for n in (1, 2, 3, 4)] == [
        "by the client",
        "by the server: 320 CONNECTION_FORCED",
        "by the client",
        "",
    ]
    assert [p["t"] for p in points(chart) if set(p) == {"name", "t"}] == [1.0]  # the channel, after one of four seconds
    assert any(line.startswith("2 of 5 connections") for line in subtitle(plots.connections(ended, most=2)))


def test_silence_is_compared_with_the_interval_agreed_on(ended: Tables) -> None:
    found = {
        (p["name"].split()[0], round(p["t"], 3), round(p["to"] - p["t"], 3), p["how"])
        for p in points(plots.heartbeats(ended))
        if "how" in p
    }
    assert found == {
        ("client", 0.0, 0.9, "within the interval"),
        ("client", 0.9, 3.1, "longer than two intervals"),  # to the last packet
        ("server", 0.0, 1.5, "longer than the interval"),
        ("server", 1.5, 1.5, "longer than the interval"),
        ("server", 3.0, 1.0, "within the interval"),
    }


def test_a_condition_on_frames_chooses_connections_to_look_for_silence_in(ended: Tables) -> None:
    """Other frames on them are no silence."""
    every, selected = (points(plots.heartbeats(ended, where)) for where in (None, "name = 'basic.deliver'"))
    assert sorted(map(str, selected)) == sorted(map(str, every))
    assert "no connection agreed on heartbeats" in svg(plots.heartbeats(ended, "name = 'basic.nack'"))


def test_versions_are_counted_by_product(spoken: Any) -> None:
    counted = Counter[tuple[str, str]]()
    for point in points(spoken)[:5]:
        counted[point["who"][:4], point["version"]] += point["connections"]
    assert counted == Counter([("A", "0-9-1"), ("A", "1.0"), ("says", "0-9-1"), ("says", "TLS"), ("x[U+", "0-9-1")])


def test_sizes_are_counted_by_kind(ended: Tables) -> None:
    bars = sorted(points(plots.frame_sizes(ended)), key=lambda bar: bar["from"])
    # A heartbeat of 8 bytes, a frame without a name of 20, four deliveries of 100.
    assert [(bar["kind"], bar["n"]) for bar in bars] == [("heartbeats", 1), ("methods", 1), ("methods", 4)]
    assert [bar["from"] <= size < bar["to"] for bar, size in zip(bars, (8, 20, 100), strict=True)] == [True] * 3


def test_a_sequence_diagram_has_frames_in_order_with_their_senders(ended: Tables, spark: SparkSession) -> None:
    frames = [
        frame(1, 0, "client", "channel.open"),
        frame(2, MILLISECOND, "server", "channel.open-ok"),
        frame(3, 2 * MILLISECOND, "client", "basic.publish", arguments={"exchange": NASTY, "routing_key": "k"}),
        frame(4, 3 * MILLISECOND, "client", None, frame_type="header", content_frame_no=3, body_size=12),
        frame(5, 3 * SECOND, "server", "channel.close", arguments={"reply_code": 404, "reply_text": "NOT_FOUND"}),
        frame(6, 3 * SECOND, "server", None, frame_type="gap", size=77, status="partial"),
    ]
    facts = connection(tcp_end="rst", tcp_end_by="client", closed_ts=ts(4 * SECOND))
    chart = plots.ladder(tables_of(spark, frames=frames, connections=[facts]))
    drawn = points(chart)
    arrows = sorted((p for p in drawn if "way" in p), key=lambda p: p["y"])
    texts = list(dict.fromkeys((p["text"], p["kind"], p["way"]) for p in arrows))
    assert [text[:21] for text, _, _ in texts] == [
        "channel.open", "channel.open-ok", "basic.publish x[U+202", "channel.close 404 NOT", "77 bytes not captured",
        "TCP RST",
    ]  # fmt: skip
    assert [kind for _, kind, _ in texts][2:] == ["messages", "error", "lost or not AMQP", "error"]
    assert [way for _, _, way in texts] == [1, -1, 1, -1, -1, 1]
    notes = [p["text"] for p in drawn if "silence" in str(p.get("text"))]
    assert notes[0] == "3.0 s of silence"
    picture = svg(chart)
    for word in ("10.0.0.2:40001", "10.0.0.1:5672", "0.001000", "0 s is 2023-11-14 22:13:20.000000 UTC"):
        assert word in picture


def test_a_picture_is_bounded_and_counts_what_it_omits(spark: SparkSession) -> None:
    names = ("basic.publish", "basic.ack", "queue.declare", "basic.get", "basic.cancel")
    # Frame n has the name of its number of divisors: no pattern repeats.
    divisors = [sum(n % d == 0 for d in range(1, n + 1)) for n in range(1, 401)]
    frames = [
        frame(n, n * MILLISECOND, "client", names[many % 5], connection_id=1 + n % 5) for n, many in enumerate(divisors)
    ]
    chart = plots.ladder(tables_of(spark, frames=frames, connections=[connection(n) for n in range(1, 6)]), most=20)
    lines = subtitle(chart)
    assert lines[1] == "3 of 5 connections shown: those that began first"
    assert re.fullmatch(r"\d+ of 400 frames shown: the earliest", lines[2])
    assert len({p["y"] for p in points(chart) if "way" in p}) <= 20
    assert len(svg(chart)) < 100_000


def test_names_from_the_wire_are_inert(connection_chart: Any, spoken: Any) -> None:
    for chart in (connection_chart, spoken):
        picture = svg(chart)
        assert "[U+202E]" in picture
        assert not re.search("\u202e|\x00|<script|y{60}", picture)


def test_pictures_need_no_network(connection_chart: Any, tmp_path: Path) -> None:
    chart = connection_chart
    bundle = chart._repr_mimebundle_()
    bundle = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "image/svg+xml" in bundle
    assert set(re.findall(r"(?:href|src)=\"?(https?:[^\"> ]+)", bundle["image/svg+xml"])) == set()
    chart.save(str(tmp_path / "chart.html"), inline=True)
    assert not re.search(r"<(script|link)[^>]+(src|href)=", (tmp_path / "chart.html").read_text())


def test_a_chosen_renderer_is_retained() -> None:
    lines = (
        "import altair",
        "altair.renderers.enable('mimetype')",
        "import pipeline.plots",
        "print(altair.renderers.active)",
    )
    ran = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "mimetype"
