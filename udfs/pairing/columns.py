"""Which columns flows are made of; no kernel is needed to import this."""

from __future__ import annotations

import pyarrow as pa

# Columns of table messages.
OF_MESSAGES = (
    "connection_id", "channel", "operation", "first_frame_no", "ts_ns", "first_ts_ns", "last_ts_ns", "exchange",
    "routing_key", "queue", "address", "link", "browsed", "redelivered", "priority", "message_id", "correlation_id",
    "reply_to", "content_type", "content_encoding", "type", "app_id", "headers", "properties", "body_size",
    "body_sha256", "outcome", "settled_ts_ns", "transaction", "trace_id", "span_id",
)  # fmt: skip
# Of these: what messages are paired by; what their key comes from, beside the broker; what requests and replies are;
# what tells whether message-ids repeat.
OF_PAIRS = tuple(name for name in OF_MESSAGES if name != "reply_to")
OF_KEY = (
    "connection_id", "first_frame_no", "operation", "message_id", "correlation_id", "body_size", "body_sha256",
    "outcome", "transaction",
)  # fmt: skip
OF_REPLIES = (
    *OF_KEY, "ts_ns", "first_ts_ns", "last_ts_ns", "exchange", "routing_key", "queue", "address", "reply_to",
)  # fmt: skip
OF_IDS = ("connection_id", "operation", "redelivered", "message_id", "queue", "address", "link")

# Columns of table connections that brokers are made of: a broker is a server endpoint and a virtual host.
OF_CONNECTIONS = (
    "connection_id", "version", "server_ip", "server_port", "vhost", "missing_bytes", "undecoded_bytes",
)  # fmt: skip
# What messages are told of their broker. `lossy`: bytes of that broker are lost; `ids_repeat`: a message-id came there
# more than once, and unmarked; `streams`: names of queues, each ended by a newline.
OF_BROKERS = {
    "version": pa.string(), "server": pa.string(), "vhost": pa.string(), "lossy": pa.bool_(), "ids_repeat": pa.bool_(),
    "streams": pa.string(),
}  # fmt: skip
BROKERS = pa.schema({"connection_id": pa.int64(), **OF_BROKERS})
BROKERS_OF_SPARK = """connection_id bigint, version string, server string, vhost string, lossy boolean,
    ids_repeat boolean, streams string"""

# How rows are handed from one step to the next: those of a bucket as octets (`udfs.pairing.hash_partitions`).
PARTITIONED = "bucket int, rows binary"
