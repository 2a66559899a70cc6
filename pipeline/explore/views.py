"""The tables with the column names of OpenTelemetry, Elastic Common Schema and Zeek.

    pipeline.explore.views.otel(tables)   one row per message     OpenTelemetry semantic conventions, messaging spans
    pipeline.explore.views.ecs(tables)    one row per connection  Elastic Common Schema, network events
    pipeline.explore.views.conn(tables)   one row per connection  Zeek's conn.log

Each view maps names to SQL over the joined tables. The names contain dots: quote them in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.explore.summaries import PARTS

if TYPE_CHECKING:
    from pipeline.tables.dataframes import Tables

# The RabbitMQ conventions: exchange, routing key and, for consumers, the queue, without empty and repeated parts;
# 'amq.default' if nothing is left.
RABBITMQ_DESTINATION = (
    "coalesce(nullif(array_join(array_distinct(filter(array(exchange, routing_key, "
    "if(operation = 'publish', null, queue)), name -> name != '')), ':'), ''), 'amq.default')"
)

OTEL = {
    "time": "m.ts",
    "messaging.system": "coalesce(lower(c.server_product), 'amqp')",
    "messaging.operation.name": "m.operation",
    "messaging.operation.type": "CASE WHEN m.operation = 'publish' THEN 'send' ELSE 'receive' END",
    "messaging.destination.name": f"coalesce(m.address, {RABBITMQ_DESTINATION})",
    "messaging.destination.subscription.name": "m.link",
    "messaging.message.id": "m.message_id",
    "messaging.message.conversation_id": "m.correlation_id",
    "messaging.message.body.size": "coalesce(m.body_size, m.body_captured)",
    "messaging.rabbitmq.destination.routing_key": "nullif(m.routing_key, '')",
    "messaging.rabbitmq.message.delivery_tag": "m.delivery_tag",
    "messaging.client.id": "c.client_container_id",
    "server.address": "c.server_ip",
    "server.port": "c.server_port",
    "network.peer.address": "c.client_ip",
    "network.peer.port": "c.client_port",
    "network.transport": "'tcp'",
    "network.protocol.name": "'amqp'",
    "network.protocol.version": "c.version",
    "messaging.rabbitmq.vhost": "c.vhost",
    "trace_id": "m.trace_id",
    "span_id": "m.span_id",
    # What became of the operation, where it failed (attribute error.type of the general conventions).
    "error.type": "CASE WHEN m.outcome IN ('nacked', 'returned', 'rejected', 'aborted') THEN m.outcome END",
}

# A settlement is a span of its own: of the consumer, or of the broker that confirms a publish.
SETTLED = {
    **OTEL,
    "time": "timestamp_micros(m.settled_ts_ns div 1000)",
    "messaging.operation.name": (
        "CASE m.outcome WHEN 'confirmed' THEN 'confirm' WHEN 'nacked' THEN 'nack' WHEN 'acked' THEN 'ack' "
        "WHEN 'rejected' THEN 'reject' WHEN 'requeued' THEN 'requeue' ELSE m.outcome END"
    ),
    "messaging.operation.type": "'settle'",
}

ECS = {
    "@timestamp": "opened_ts",
    "event.kind": "'event'",
    "event.category": "array('network')",
    "event.type": "array('connection')",
    "event.outcome": (
        "CASE WHEN close_code > 200 THEN 'failure' WHEN state = 'closed' THEN 'success' ELSE 'unknown' END"
    ),
    "event.start": "opened_ts",
    "event.end": "closed_ts",
    "event.duration": "(unix_micros(closed_ts) - unix_micros(opened_ts)) * 1000",
    "event.reason": "close_text",
    "network.transport": "'tcp'",
    "network.protocol": "CASE content WHEN 'amqp' THEN 'amqp' WHEN 'tls' THEN 'tls' END",
    "network.community_id": "community_id",
    "network.bytes": "client_bytes + server_bytes",
    "network.packets": "client_packets + server_packets",
    "source.ip": "client_ip",
    "source.port": "client_port",
    "source.bytes": "client_bytes",
    "source.packets": "client_packets",
    "destination.ip": "server_ip",
    "destination.port": "server_port",
    "destination.bytes": "server_bytes",
    "destination.packets": "server_packets",
    "user.name": "user",
    "tls.established": "tls.mode != 'none'",
    "tls.client.server_name": "tls.sni",
    "tls.version": "regexp_extract(tls.tls_version, '[0-9.]+$', 0)",
}

CONN = {
    "ts": "unix_micros(opened_ts) / 1e6D",
    "uid": "concat('C', lower(hex(connection_id)))",
    "id.orig_h": "client_ip",
    "id.orig_p": "client_port",
    "id.resp_h": "server_ip",
    "id.resp_p": "server_port",
    "proto": "'tcp'",
    "service": "CASE content WHEN 'amqp' THEN 'amqp' WHEN 'tls' THEN 'ssl' END",
    "duration": "(unix_micros(closed_ts) - unix_micros(opened_ts)) / 1e6D",
    "orig_bytes": "client_bytes",
    "resp_bytes": "server_bytes",
    # SF: ended by FIN; RSTO, RSTR: reset by who opened, by who answered; S1: still open; OTH: older than the capture.
    "conn_state": (
        "CASE WHEN tcp_end = 'rst' THEN if(tcp_end_by = 'client', 'RSTO', 'RSTR') "
        "WHEN roles_from != 'syn' THEN 'OTH' WHEN tcp_end = 'fin' THEN 'SF' ELSE 'S1' END"
    ),
    "missed_bytes": "missing_bytes",
    "orig_pkts": "client_packets",
    "resp_pkts": "server_packets",
    "community_id": "community_id",
}


def otel(tables: Tables, *, flows: bool = True) -> DataFrame:
    """One row per message and one per settlement, with the columns of OTEL. Returns are not rows: they are the
    `error.type` of a publish.

    `trace_id`, `span_id`: the trace context in the message, to join the spans of applications. With `flows` deliveries
    have `queue_time_ns`, the time in the broker, and PARTS of the time from publish to settlement, from table
    message_flows."""
    messages = tables.messages.filter("operation != 'return'")
    rows = messages.alias("m").join(tables.connections.alias("c"), "connection_id")
    settled = rows.filter("m.settled_ts_ns IS NOT NULL")
    if not flows:
        return _named(rows, OTEL).unionByName(_named(settled, SETTLED))
    pairs = tables.message_flows.filter("publish_frame_no IS NOT NULL")
    delivered = (f"deliver_{name}" for name in ("connection_id", "frame_no", "batch_index"))
    waited = pairs.select(*delivered, "broker_latency_ns", *PARTS).alias("f")
    of_flow = F.expr(
        "c.connection_id = f.deliver_connection_id AND m.first_frame_no = f.deliver_frame_no"
        " AND m.batch_index <=> f.deliver_batch_index"
    )
    of_flows = {"queue_time_ns": "f.broker_latency_ns", **{name: f"f.{name}" for name in PARTS}}
    started = _named(rows.join(waited, of_flow, "left"), {**OTEL, **of_flows})
    return started.unionByName(_named(settled, {**SETTLED, **dict.fromkeys(of_flows, "CAST(NULL AS BIGINT)")}))


def ecs(tables: Tables) -> DataFrame:
    """One row per connection, with the columns of ECS."""
    return _named(tables.connections, ECS)


def conn(tables: Tables) -> DataFrame:
    """One row per connection, with the columns of Zeek's conn.log; times in seconds."""
    return _named(tables.connections, CONN)


def _named(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    return rows.select(*(F.expr(sql).alias(name) for name, sql in columns.items()))
