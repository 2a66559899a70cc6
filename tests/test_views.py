"""Views: rows that are written down here under the names of OpenTelemetry, ECS and Zeek."""

from __future__ import annotations

from datetime import datetime

import pytest
from pyspark.sql import SparkSession
from test_summaries import rows

from pipeline import TABLES, Tables, views


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Tables:
    connection = {
        "connection_id": 255, "community_id": "1:abc", "client_ip": "10.0.0.1", "client_port": 40000, "server_ip":
        "10.0.0.2", "server_port": 5672, "sides_known_by": "syn", "content": "amqp", "version": "0-9-1", "state":
        "closed", "opened_ts": datetime(1970, 1, 1, 0, 0, 1), "closed_ts": datetime(1970, 1, 1, 0, 0, 3, 500_000),
        "user": "ann", "server_product": "RabbitMQ", "tcp_end": "fin", "tcp_end_by": "client", "client_bytes": 100,
        "server_bytes": 200, "client_packets": 5, "server_packets": 6, "missing_bytes": 7,
        "tls": ("none", None, None, None),
    }  # fmt: skip
    connections = [
        connection,
        {**connection, "connection_id": 1, "tcp_end": "rst", "tcp_end_by": "server"},
        {**connection, "connection_id": 2, "sides_known_by": "header"},
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
    found = [row.asDict() for row in views.otel(tables).collect()]
    assert sorted((row["messaging.operation.type"], row["messaging.destination.name"]) for row in found) == [
        ("receive", "/a"), ("receive", "q"), ("receive", "x:k:q"), ("send", "amq.default"), ("send", "q"),
    ]  # fmt: skip
    (nacked,) = (row for row in found if row["error.type"] == "nacked")
    assert nacked["messaging.system"] == "rabbitmq"
    assert (nacked["messaging.message.id"], nacked["messaging.rabbitmq.message.delivery_tag"]) == ("m-1", 4)
    assert (nacked["server.address"], nacked["network.protocol.version"]) == ("10.0.0.2", "0-9-1")


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
