"""Summaries of tables that are written down here; what they should say is counted by hand."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import pipeline
from pipeline import TABLES, Tables

S = 10**9


def rows(spark: SparkSession, schema: StructType, *given: dict[str, Any]) -> Any:
    """A table of which only some columns are known."""
    return spark.createDataFrame([tuple(row.get(name) for name in schema.names) for row in given], schema)


def flow(publish: int, deliver: int | None = None, **columns: Any) -> dict[str, Any]:
    ends = (
        {} if deliver is None else {"deliver_connection_id": 2, "deliver_frame_no": deliver, "deliver_ts_ns": deliver}
    )
    return {"flow_id": publish, "publish_connection_id": 1, "publish_frame_no": publish, **ends, **columns}


def delivered(at_s: int, settled_s: int | None, connection: int = 2, **columns: Any) -> dict[str, Any]:
    settled = {} if settled_s is None else {"settled_ts_ns": settled_s * S, "settle_latency_ns": (settled_s - at_s) * S}
    ts = datetime(1970, 1, 1, 0, at_s // 60, at_s % 60)
    stands = {"connection_id": connection, "channel": 1, "channel_incarnation": 1, "operation": "deliver", "link": "c"}
    return {
        **stands,
        "queue": "q",
        "ts": ts,
        "ts_ns": at_s * S,
        "outcome": "acked",
        "body_size": 10,
        **settled,
        **columns,
    }


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Tables:
    flows = [
        # One publish to two queues: its confirm counts once.
        flow(1, 11, queue="a", confirm_latency_ns=100, broker_latency_ns=10, ack_latency_ns=1, total_latency_ns=111),
        flow(
            1, 12, queue="b", confirm_latency_ns=100, broker_latency_ns=20, ack_latency_ns=None, total_latency_ns=None
        ),
        *(flow(n, 20 + n, queue="a", broker_latency_ns=10 * n) for n in range(2, 101)),
        flow(200, confirm_latency_ns=300),
    ]
    published = {"operation": "publish", "connection_id": 1, "exchange": "x", "body_size": 7}
    messages = [
        {**published, "ts": datetime(1970, 1, 1, 0, 0, 1)},
        {**published, "ts": datetime(1970, 1, 1, 0, 0, 2)},
        {**published, "ts": datetime(1970, 1, 1, 0, 1, 2)},
        delivered(1, 5),
        delivered(2, 5),
        delivered(3, 5),
        delivered(6, None, outcome="unsettled"),
        delivered(7, None, outcome="presettled"),
    ]
    connections = [
        {"connection_id": 1, "vhost": "/", "user": "ann"},
        {"connection_id": 2, "vhost": "/shop", "client_name": "orders"},
    ]
    channels = [{"connection_id": 2, "channel": 1, "channel_incarnation": 1, "prefetch_count": 2}]
    given = {"message_flows": flows, "messages": messages, "connections": connections, "channels": channels}
    return Tables(**{name: rows(spark, schema, *given.get(name, [])) for name, schema in TABLES.items()})


def test_latency_counts_confirms_by_publish_and_the_rest_by_delivery(tables: Tables) -> None:
    found = {row.measure: row for row in pipeline.latency(tables).collect()}
    assert {name: row["count"] for name, row in found.items()} == {"ack": 1, "broker": 101, "confirm": 2, "total": 1}
    broker = found["broker"]  # 10, 20, 20, 30, 40 ... 1000
    assert (broker.p50_ns, broker.p90_ns, broker.p99_ns, broker.max_ns) == (500, 900, 990, 1000)
    assert found["confirm"].max_ns == 300


def test_latency_by_columns_of_flows_and_of_connections(tables: Tables) -> None:
    found = pipeline.latency(tables, by=["queue", "user"]).filter("measure = 'broker'").collect()
    assert [(row.queue, row.user, row["count"]) for row in found] == [("a", "ann", 100), ("b", "ann", 1)]


def test_the_address_is_the_queue_where_there_is_no_other(spark: SparkSession, tables: Tables) -> None:
    flows = [flow(n, 1000 + n, address="d", broker_latency_ns=7) for n in (1, 2)]
    flows.append(flow(3, 1003, queue="a", address="d", broker_latency_ns=9))
    of_1_0 = tables.having(message_flows=rows(spark, TABLES["message_flows"], *flows))
    found = pipeline.latency(of_1_0, by=["queue"]).collect()
    assert [(row.queue, row["count"], row.max_ns) for row in found] == [("a", 1, 9), ("d", 2, 7)]
    found = pipeline.latency(of_1_0, by=["queue", "address"]).collect()
    assert [(row.queue, row.address, row["count"]) for row in found] == [(None, "d", 2), ("a", "d", 1)]


def test_rates_by_interval(tables: Tables) -> None:
    found = pipeline.rates(tables, every="1 minute", by=["vhost"]).collect()
    assert [tuple(row) for row in found] == [
        (datetime(1970, 1, 1), "/", 2, 14, 0, 0),
        (datetime(1970, 1, 1), "/shop", 0, 0, 5, 50),
        (datetime(1970, 1, 1, 0, 1), "/", 1, 7, 0, 0),
    ]


def test_backlog_is_what_is_outstanding_after_each_change(tables: Tables) -> None:
    found = pipeline.backlog(tables).orderBy("ts_ns").collect()
    assert [(row.ts_ns // S, row.outstanding) for row in found] == [(1, 1), (2, 2), (3, 3), (5, 0), (6, 1)]
    assert [row.until_ns for row in found] == [2 * S, 3 * S, 5 * S, 6 * S, None]
    assert {row.client_name for row in found} == {"orders"}


def test_consumers_with_the_time_that_their_prefetch_was_used_up(tables: Tables) -> None:
    (found,) = pipeline.consumers(tables).collect()
    assert found.client_name == "orders"
    assert (found.deliveries, found.settled, found.settle_max_ns, found.most_outstanding) == (5, 3, 4 * S, 3)
    assert (found.prefetch_count, found.exhausted_ns) == (2, 3 * S)  # from second 2 to 5


def test_an_unknown_column_is_an_error_that_lists_the_columns(tables: Tables) -> None:
    with pytest.raises(ValueError, match=r"no column 'shoe'.*routing_key"):
        pipeline.latency(tables, by=["shoe"])


def test_parts_of_the_total(spark: SparkSession, tables: Tables) -> None:
    """Two messages of queue a take 100 and 300 ns, of which the consumer has 60 and 180; one of b takes 10."""
    flows = [
        flow(1, 11, queue="a", total_latency_ns=100, send_ns=30, network_ns=0, queue_ready_ns=10, consumer_ns=60),
        flow(2, 12, queue="a", total_latency_ns=300, send_ns=None, network_ns=100, queue_ready_ns=20, consumer_ns=180),
        flow(3, 13, queue="b", total_latency_ns=10, queue_ready_ns=10),
        flow(4, 14, queue="b"),
    ]
    own = tables.having(message_flows=rows(spark, TABLES["message_flows"], *flows))
    found = (
        pipeline.latency(own, ["queue"], parts=True).select("queue", "measure", "count", "mean_ns", "share").collect()
    )
    assert [row["measure"] for row in found[:3]] == ["total", "send", "network"]
    known = {(row["queue"], row["measure"]): tuple(row)[2:] for row in found}
    assert known["a", "total"] == (2, 200, 1.0)
    assert known["a", "send"] == (2, 15, 0.075)
    assert known["a", "network"] == (2, 50, 0.25)
    assert known["a", "consumer"] == (2, 120, 0.6)
    assert known["b", "queue_ready"] == (1, 10, 1.0)
    assert known["b", "consumer"] == (1, 0, 0.0)
