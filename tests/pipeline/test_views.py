"""Views: rows that are written down here under the names of OpenTelemetry, ECS and Zeek."""

from __future__ import annotations

from datetime import datetime

import pytest
from pyspark.sql import SparkSession
from test_summaries import rows

from pipeline import TABLES, Tables
from pipeline.explore import views


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Tables:
    connection = {
        "connection_id": 255, "community_id": "1:abc", "client_ip": "10.0.0.1", "client_port": 40000, "server_ip":
        "10.0.0.2", "server_port": 5672, "roles_from": "syn", "content": "amqp", "version": "0-9-1", "state":
        "closed", "opened_ts": datetime(1970, 1, 1, 0, 0, 1), "closed_ts": datetime(1970, 1, 1, 0, 0, 3, 500_000),
        "user": "ann", "vhost": "/orders",
        "server_product": "RabbitMQ", "tcp_end": "fin", "tcp_end_by": "client", "client_bytes": 100,
        "server_bytes": 200, "client_packets": 5, "server_packets": 6, "missing_bytes": 7,
        "tls": {"mode": "none"},
    }  # fmt: skip
    connections = [
        connection,
        {**connection, "connection_id": 1, "tcp_end": "rst", "tcp_end_by": "server"},
        {**connection, "connection_id": 2, "roles_from": "header"},
        {**connection, "connection_id": 3, "tcp_end": "none"},
    ]
    message = {"connection_id": 255, "ts": datetime(1970, 1, 1), "exchange": "", "routing_key": "q", "body_size": 9}
    messages = [
        {**message, "operation": "publish", "outcome": "nacked", "message_id": "m-1", "delivery_tag": 4},
        {**message, "operation": "deliver", "outcome": "acked", "queue": "q", "link": "tag"},
        {**message, "operation": "get", "outcome": "acked", "exchange": "x", "routing_key": "k", "queue": "q"},
        {**message, "operation": "deliver", "outcome": "acked", "routing_key": None, "exchange": None, "address": "/a"},
        {**message, "operation": "publish", "outcome": "unknown", "routing_key": ""},
        {**message, "operation": "return", "outcome": "presettled"},
    ]
    given = {"connections": connections, "messages": messages}
    return Tables(**{name: rows(spark, schema, *given.get(name, [])) for name, schema in TABLES.items()})


def test_messages_as_opentelemetry_names_them(tables: Tables) -> None:
    found = [row.asDict() for row in views.otel(tables, flows=False).collect()]
    assert sorted((row["messaging.operation.type"], row["messaging.destination.name"]) for row in found) == [
        ("receive", "/a"), ("receive", "q"), ("receive", "x:k:q"), ("send", "amq.default"), ("send", "q"),
    ]  # fmt: skip
    (nacked,) = (row for row in found if row["error.type"] == "nacked")
    assert nacked["messaging.system"] == "rabbitmq"
    assert (nacked["messaging.message.id"], nacked["messaging.rabbitmq.message.delivery_tag"]) == ("m-1", 4)
    assert (nacked["server.address"], nacked["network.protocol.version"]) == ("10.0.0.2", "0-9-1")


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"  # of the example in W3C Trace Context, 3.2.3


def traced(tables: Tables) -> Tables:
    """A publish of frame 1 that is confirmed, and deliveries of frames 2 and 3; the latter has no trace context."""
    message = {"connection_id": 255, "operation": "deliver", "outcome": "unsettled", "queue": "q"}
    confirmed = {"operation": "publish", "outcome": "confirmed", "settled_ts_ns": 2_000_000_500}
    context = {"trace_id": TRACE, "span_id": SPAN}
    given = [
        {**message, **confirmed, **context, "first_frame_no": 1},
        {**message, **context, "first_frame_no": 2},
        {**message, "first_frame_no": 3},
    ]
    flow = {"publish_frame_no": 1, "deliver_connection_id": 255, "deliver_frame_no": 2, "broker_latency_ns": 7}
    spark = tables.messages.sparkSession
    return tables.having(
        messages=rows(spark, TABLES["messages"], *given), message_flows=rows(spark, TABLES["message_flows"], flow)
    )


def test_messages_carry_the_trace_context_of_their_publisher(tables: Tables) -> None:
    found = sorted(
        (row["messaging.operation.name"], row["trace_id"] or "", row["span_id"] or "", row["queue_time_ns"])
        for row in views.otel(traced(tables)).collect()
    )
    assert found == [
        ("confirm", TRACE, SPAN, None),
        ("deliver", "", "", None),
        ("deliver", TRACE, SPAN, 7),
        ("publish", TRACE, SPAN, None),
    ]


def test_a_settlement_is_a_span_of_its_own(tables: Tables) -> None:
    (row,) = (row for row in views.otel(traced(tables)).collect() if row["messaging.operation.type"] == "settle")
    assert (row["time"], row["messaging.rabbitmq.vhost"]) == (datetime(1970, 1, 1, 0, 0, 2), "/orders")


def test_connections_as_elastic_names_them(tables: Tables) -> None:
    (row,) = (row.asDict() for row in views.ecs(tables).filter("`source.ip` = '10.0.0.1'").limit(1).collect())
    assert (row["event.duration"], row["event.outcome"], row["network.bytes"]) == (2_500_000_000, "success", 300)
    assert (row["network.community_id"], row["user.name"], row["tls.established"]) == ("1:abc", "ann", False)


def test_connections_as_in_a_conn_log(tables: Tables) -> None:
    found = {row["uid"]: row.asDict() for row in views.conn(tables).collect()}
    assert {uid: row["conn_state"] for uid, row in found.items()} == {
        "Cff": "SF",
        "C1": "RSTR",
        "C2": "OTH",
        "C3": "S1",
    }
    row = found["Cff"]
    assert (row["ts"], row["duration"], row["service"], row["missed_bytes"]) == (1.0, 2.5, "amqp", 7)
    assert (row["id.orig_h"], row["id.resp_p"], row["orig_pkts"]) == ("10.0.0.1", 5672, 5)
