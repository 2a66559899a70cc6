"""Trace contexts of messages: those that OpenTelemetry's instrumentation of pika wrote, and where other clients put
them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import decoding
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import pipeline
from pipeline.tables.decoding import config
from udfs.conversation.properties import trace_context
from udfs.tables import tables_of

TRACES = Path(__file__).parents[1] / "traces"
SPANS = json.loads((TRACES / "otel_pika.json").read_text())["spans"]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"  # W3C Trace Context, 3.2.3

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    """Rows of all tables of the capture."""
    found: Rows = {}
    runs = decoding.in_flow_order(decoding.runs([TRACES / "otel_pika.pcap"])).combine_chunks()
    for table, _, batch in tables_of(runs.to_batches(), config()):
        found.setdefault(table, []).extend(batch.to_pylist())
    return found


@pytest.mark.parametrize("operation", ["publish", "deliver"])
def test_messages_have_the_span_that_published_them(rows: Rows, operation: str) -> None:
    of_operation = sorted(
        (row for row in rows["messages"] if row["operation"] == operation), key=lambda row: row["first_frame_no"]
    )
    assert [[row["trace_id"], row["span_id"]] for row in of_operation] == SPANS


def test_flows_have_the_span_that_published_their_message(spark: SparkSession) -> None:
    tables = pipeline.decode(spark, str(TRACES / "otel_pika.pcap"))
    flows = tables.message_flows.collect()
    tables.release()
    flows.sort(key=lambda row: row.publish_frame_no)
    assert [[row.trace_id, row.span_id] for row in flows] == SPANS
    assert [row.deliver_frame_no for row in flows if row.match == "none" or row.deliver_frame_no is None] == []


def test_a_message_and_a_connection_name_their_capture(rows: Rows) -> None:
    uri = (TRACES / "otel_pika.pcap").resolve().as_uri()
    assert {row["capture_file"] for table in ("messages", "connections") for row in rows[table]} == {uri}


@pytest.mark.parametrize(
    ("traceparent", "found"),
    [
        (f"00-{TRACE}-{SPAN}-01", (TRACE, SPAN)),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-holds", (TRACE, SPAN)),
        (f"00-{TRACE}-{SPAN}-01-more", (None, None)),
        (f"ff-{TRACE}-{SPAN}-01", (None, None)),
        (f"00-{'0' * 32}-{SPAN}-01", (None, None)),
        (f"00-{TRACE}-{'0' * 16}-01", (None, None)),
        (f"00-{TRACE.upper()}-{SPAN}-01", (None, None)),
        (f"00-{TRACE}-{SPAN}", (None, None)),
        ("", (None, None)),
        (None, (None, None)),
    ],
)
def test_a_traceparent_is_what_the_recommendation_calls_one(
    traceparent: str | None, found: tuple[str | None, str | None]
) -> None:
    trace, span = trace_context(pa.array([None, traceparent], pa.string()))
    assert (trace.to_pylist(), span.to_pylist()) == ([None, found[0]], [None, found[1]])
