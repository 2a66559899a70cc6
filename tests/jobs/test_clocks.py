"""Clocks that are coarse, were set back, or are far off: decoded, audited, reported and drawn all the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_support import write_tables
from night import RETIMED
from plots_support import BEGIN, MILLISECOND, SECOND, connection, frame, svg, tables_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import pipeline
from codec.capture.pcapng import LAST_NS
from pipeline import Tables, plots
from pipeline.explore.duckdb_tables import open_tables
from pipeline.output import theme
from pipeline.output.formatting import duration
from pipeline.report import charts
from pipeline.report.facts import count
from pipeline.report.grouped_counts import Latency
from pipeline.report.page import draw_charts

PICTURES: dict[str, Callable[[Tables], Any]] = {
    **{name: getattr(plots, name) for name in plots.__all__ if name != "ladder_of"},  # that of an answer
    "latency by queue": lambda tables: plots.latency(tables, by="queue"),
    "confirms over time": lambda tables: plots.latency_over_time(tables, measure="confirm"),
}
# Times of two events of one kind, ns: what a clock may make of them.
CLOCKS = {
    "equal": (BEGIN, BEGIN),
    "set back": (BEGIN, BEGIN - 3600 * SECOND),
    "never set": (0, 0),
    "at its end": (LAST_NS, LAST_NS),
    "from end to end": (LAST_NS, -LAST_NS),
}

# The others are alike: both times are equal, as in some captures below, or the second is the earlier one.
FEW = ("from end to end",)


def test_a_logarithmic_axis_takes_zero_and_negative_times() -> None:
    """The logarithm of 0, or of less, is not a number."""
    assert [theme.logarithmic_ms(ns) for ns in (-5, 0, 1, 2 * MILLISECOND)] == [1e-6, 1e-6, 1e-6, 2]
    for quantiles in ((0, 0, 0), (-7, 0, 9), (-9, -8, -7), (0, 1, LAST_NS)):
        drawing = charts.percentiles([Latency("a", 3, None, quantiles, quantiles[-1])], "label")
        assert drawing is not None
        assert "NaN" not in drawing


def test_negative_durations_are_printed() -> None:
    assert [duration(ns) for ns in (0, -812, -14_200, -3600 * SECOND)] == ["0 ns", "-812 ns", "-14.2 us", "-60.0 min"]


@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(name, marks=pytest.mark.slow) for name in CLOCKS if name not in FEW)]
)
def test_tables_of_any_clock_are_counted_and_drawn(name: str, spark: SparkSession, tmp_path: Path) -> None:
    first, last = CLOCKS[name]
    took = last - first
    at = [{"first": pipeline_ts(ns), "ns": ns} for ns in (first, last)]
    sides = {"opened_ts": at[0]["first"], "closed_ts": at[1]["first"], "heartbeat_s": 1, "blocked_ns": took}
    captures = [{"capture_file": "a", "packets": 2, "first_ts": at[first > last]["first"],
                 "last_ts": at[first <= last]["first"]}]  # fmt: skip
    frames = [frame(number, ns - BEGIN, "client", "basic.publish") for number, ns in enumerate((first, last), 1)]
    methods = [{"connection_id": 1, "frame_no": 1, "name": "queue.declare", "reply_latency_ns": took}]
    messages = [
        {"connection_id": 1, "channel": 1, "channel_incarnation": 1, "link": "c", "queue": "q", "operation": operation,
         "ts_ns": first, "settled_ts_ns": last, "settle_latency_ns": took, "outcome": "acked"}
        for operation in ("publish", "deliver")
    ]  # fmt: skip
    measures = ("confirm", "broker", "ack", "total", "rpc")
    flows = [
        {"flow_id": 1, "queue": "q", "publish_ts_ns": first, "deliver_ts_ns": last, "publish_connection_id": 1,
         **{f"{measure}_latency_ns": took for measure in measures}}
    ]  # fmt: skip
    rows = {
        "captures": captures, "connections": [connection(number, **sides) for number in (1, 2, 3, 4)], "frames": frames,
        "methods": methods, "messages": messages, "message_flows": flows,
    }  # fmt: skip
    tables = tables_of(spark, **rows)
    with open_tables(str(write_tables(tmp_path, rows))) as session:
        drawn = draw_charts(count(session))
    assert drawn["flows_chart"] is not None
    for picture in PICTURES.values():
        assert "NaN" not in svg(picture(tables))


def pipeline_ts(ns: int) -> Any:
    from datetime import UTC, datetime, timedelta

    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)


def of_retimed(tables: Tables, folder: Path) -> Tables:
    """The rows about the samples with other times."""
    captured = f"capture_file IN ({', '.join(repr((folder / 'captures' / name).as_uri()) for name in RETIMED)})"
    connections = tables.frames.filter(captured).select("connection_id").distinct().collect()
    known = f"IN ({', '.join(str(row.connection_id) for row in connections)})"
    conditions = {
        "captures": captured,
        "message_flows": f"publish_connection_id {known} OR deliver_connection_id {known}",
    }
    of_connections = f"connection_id {known}"
    return tables.having(**{name: rows.filter(conditions.get(name, of_connections)) for name, rows in tables.items()})


def test_captures_of_such_clocks_end_in_a_report_and_pictures(spark: SparkSession, night: Path) -> None:
    all_tables = pipeline.load(spark, str(night / "tables"))
    tables = of_retimed(all_tables, night)
    begins = tables.frames.groupBy("connection_id").agg(F.min("ts_ns").alias("ns"))
    longest = (
        tables.messages.join(begins, "connection_id")
        .groupBy(F.col("ns") < 1_705_000_000 * SECOND)
        .agg(F.max("settle_latency_ns"), F.count("*"))
    )
    equal, backwards = (rows[1:] for rows in sorted(longest.collect(), reverse=True))
    assert min(equal[1], backwards[1]) > 0
    assert (equal[0], backwards[0]) == (0, None)  # a latency is unknown if the clock was set back
    page, verdict = (night / "audit.html").read_text(), json.loads((night / "audit.json").read_text())["verdict"]
    assert "From publish through the broker to settlement" in page
    assert verdict["amqp"] == all_tables.connections.filter("content = 'amqp'").count()
    for picture in PICTURES.values():
        assert "NaN" not in svg(picture(tables))
