"""Input columns of pairing; importing this loads no kernel."""

from __future__ import annotations

import pyarrow as pa

from udfs.arrow.types import ddl

# Columns of table messages.
MESSAGE_COLUMNS = (
    "connection_id", "channel", "operation", "first_frame_no", "batch_index", "ts_ns", "first_ts_ns", "last_ts_ns",
    "exchange", "routing_key", "queue", "address", "link", "browsed", "queue_offset", "redelivered", "priority",
    "expiration", "message_id", "correlation_id", "reply_to", "content_type", "content_encoding", "type", "user_id",
    "app_id", "headers", "properties", "body_size", "body_sha256", "outcome", "settled_ts_ns", "transaction",
    "trace_id", "span_id", "broker_ts_ns", "handled_ts_ns",
)  # fmt: skip
# Of these, for: the pairing key, with the broker; requests and replies; streams; repeated message-ids.
KEY_COLUMNS = (
    "connection_id", "first_frame_no", "batch_index", "operation", "address", "message_id", "correlation_id",
    "body_size", "body_sha256", "outcome", "transaction",
)  # fmt: skip
REPLY_COLUMNS = (
    *KEY_COLUMNS, "ts_ns", "first_ts_ns", "last_ts_ns", "exchange", "routing_key", "queue", "reply_to",
)  # fmt: skip
ID_COLUMNS = ("connection_id", "operation", "redelivered", "message_id", "queue", "address", "link")

# Columns of table connections.
CONNECTION_COLUMNS = (
    "connection_id", "version", "server_ip", "server_port", "server_product", "broker_name", "vhost", "missing_bytes",
    "undecoded_bytes", "roles_from", "tcp_origin", "opened_ts", "closed_ts", "handshake_ns", "client_ip",
    "client_port", "proxied_client_ip", "proxied_client_port", "user", "client_name", "client_packets",
    "server_packets", "client_bytes", "server_bytes", "client_frames", "server_frames", "messages_published",
    "messages_delivered", "tcp_end",
)  # fmt: skip
# Columns of tables links and stalls.
LINK_COLUMNS = (
    "connection_id", "channel", "channel_incarnation", "kind", "name", "address", "queue", "opened_ts", "closed_ts",
)  # fmt: skip
STALL_COLUMNS = ("connection_id", "channel", "channel_incarnation", "link", "kind", "side", "from_ns", "until_ns")
# What is joined to messages. `broker`: its name, or else `server`; `lossy`: bytes of that broker are lost;
# `ids_repeat`: a message-id occurs twice there without a redelivered flag; `streams`: names of queues, and facts about
# them, each followed by a newline.
BROKER_COLUMNS = {
    "version": pa.string(), "server": pa.string(), "broker": pa.string(), "vhost": pa.string(), "lossy": pa.bool_(),
    "ids_repeat": pa.bool_(), "streams": pa.string(),
}  # fmt: skip
BROKERS = pa.schema({"connection_id": pa.int64(), **BROKER_COLUMNS})
BROKERS_DDL = ddl(BROKERS)
# Brokers at which a message-id occurs twice.
REPEATED = pa.schema({"broker": pa.string(), "vhost": pa.string()})
REPEATED_DDL = ddl(REPEATED)

# Shuffled rows: those of a bucket, serialized (`udfs.pairing.hash_partitions`).
ARROW_PARTITIONED = pa.schema({"bucket": pa.int32(), "rows": pa.binary()})
PARTITIONED = ddl(ARROW_PARTITIONED)
