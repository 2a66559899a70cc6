"""Schemas of all tables: the public contract, as data.

Every column carries its meaning, unit and source under the metadata key `comment`; `wirehare schema` prints them. The
order here is the order of the columns in the tables. `*_ts` is TIMESTAMP (UTC, microseconds), `*_ts_ns` nanoseconds
since 1970-01-01 UTC, other `*_ns` are durations. A null means that the capture does not show the value. A
latency is also null if the answer was captured before the request, as happens with two interfaces or clocks.
"""

from __future__ import annotations

from pyspark.sql.types import DataType, MapType, StructType

from udfs.schemas import (
    BINARY,
    BOOLEAN,
    DECODED,
    FACTS,
    FRAMES,
    INT,
    LEDGER,
    LONG,
    STRING,
    STRINGS,
    TIMESTAMP,
    VARIANT,
    Column,
    columns,
    table,
)

__all__ = ["DECODED", "FINDINGS", "FRAMES", "ROWS", "TABLES"]


def by_sender(name: str, data_type: DataType, comment: str, whose: str = ", sent by the {}") -> list[Column]:
    """The same measure of the client's and of the server's direction."""
    return [(f"{side}_{name}", data_type, comment, whose.format(side)) for side in ("client", "server")]


CAPTURES = table(
    ("capture_file", STRING, "URI of the capture, one row each"),
    ("format", STRING, "'pcap' or 'pcapng'"),
    ("compression", STRING, "'gzip', 'zstd', 'lz4', or null"),
    ("link_types", STRINGS, "link types seen in it"),
    ("byte_size", LONG, "size of the file, bytes"),
    ("packets", LONG, "packet records read"),
    ("first_ts", TIMESTAMP, "earliest packet"),
    ("last_ts", TIMESTAMP, "latest packet"),
    ("snaplen", LONG, "largest capture length the file declares, bytes"),
    ("dropped", LONG, "packets the capturing machine reports as dropped (pcapng interface statistics)"),
    ("truncated", BOOLEAN, "true: the file ends inside a record"),
    ("error", STRING, "why reading stopped early; null: it did not"),
    ("skipped_packets", MapType(STRING, LONG), "packets not read, by reason: without TCP, or 'filtered' by an option"),
)

STREAMS = table(
    ("connection_id", LONG, "TCP connection"), ("sender", STRING, "'client' or 'server': one row each"), *LEDGER
)

CONNECTIONS = table(
    ("connection_id", LONG, "TCP connection, one row each, of any protocol"),
    *columns(
        FACTS, "community_id", "client_ip", "client_port", "server_ip", "server_port", "sides_known_by", "content"
    ),
    ("version", STRING, "AMQP version; null without AMQP"),
    FACTS["versions_offered"],
    ("version_known", BOOLEAN, "true: from a protocol header or connection.start; false: inferred from the frames"),
    *columns(FACTS, "transport", "unread_because", "tls"),
    ("state", STRING, "furthest stage reached: tcp header start secure tune open closing closed"),
    FACTS["capture_file"],
    ("opened_ts", TIMESTAMP, "first packet"),
    ("closed_ts", TIMESTAMP, "last packet"),
    (
        "handshake_ns",
        LONG,
        "first packet to connection.open-ok (1.0: to the later open), ns; only when the TCP handshake was captured",
    ),
    FACTS["tcp_rtt_ns"],
    ("start_latency_ns", LONG, "client's protocol header to connection.start (1.0: to the server's header), ns"),
    ("login_latency_ns", LONG, "connection.start-ok to connection.tune (1.0: sasl-init to sasl-outcome), ns"),
    ("open_latency_ns", LONG, "connection.open to connection.open-ok (1.0: from one open to the other), ns"),
    (
        "vhost",
        STRING,
        "virtual host asked for; 1.0: hostname in the client's open; RabbitMQ over 1.0: '/', or NAME of 'vhost:NAME'",
    ),
    ("user", STRING, "user name of the client (PLAIN, AMQPLAIN, SCRAM, CRAM-MD5)"),
    ("mechanism", STRING, "authentication mechanism chosen"),
    ("locale", STRING, "locale chosen"),
    (
        "client_name",
        STRING,
        "the application: client_properties: connection_name; else 1.0: container id; else client_properties: ",
        "qpid.client_process; else product and version",
    ),
    ("client_product", STRING, "client_properties: product"),
    ("client_version", STRING, "client_properties: version"),
    ("client_platform", STRING, "client_properties: platform"),
    ("client_properties", VARIANT, "all properties that the client announced"),
    ("server_product", STRING, "server_properties: product"),
    ("server_version", STRING, "server_properties: version"),
    ("server_properties", VARIANT, "all properties that the server announced"),
    ("broker_name", STRING, "server_properties: cluster_name (RabbitMQ) or qpid.federation_tag (Qpid)"),
    ("capabilities", VARIANT, "capabilities of both sides: {client, server}"),
    ("channel_max", LONG, "negotiated highest channel number, 0: no limit"),
    ("frame_max", LONG, "negotiated largest frame, bytes, 0: no limit"),
    ("heartbeat_s", LONG, "negotiated heartbeat interval, s, 0: none"),
    *by_sender("channel_max", LONG, "channel_max proposed"),
    *by_sender("frame_max", LONG, "frame_max proposed, bytes"),
    *by_sender("heartbeat_s", LONG, "heartbeat interval proposed, s"),
    *by_sender("container_id", STRING, "1.0: container id"),
    *by_sender("idle_timeout_ms", LONG, "1.0: idle time-out, ms"),
    ("close_initiator", STRING, "who sent the first close: 'client' or 'server'"),
    ("close_code", INT, "reply code of that close; 1.0 has none"),
    ("close_text", STRING, "reply text of that close; 1.0: condition and description of its error"),
    *columns(FACTS, "tcp_end", "tcp_end_by"),
    ("blocked_ns", LONG, "time between blocked and unblocked (or the end), ns"),
    *by_sender("packets", LONG, "packets"),
    *by_sender("bytes", LONG, "bytes of the stream captured"),
    *by_sender("frames", LONG, "frames, without protocol headers"),
    *by_sender("methods", LONG, "frames with a method, control, command or performative"),
    *by_sender("heartbeats", LONG, "heartbeats (1.0: empty frames)"),
    ("messages_published", LONG, "messages the client published; 1.0: without commands to a transaction coordinator"),
    ("messages_delivered", LONG, "messages the server delivered, including gets"),
    ("retransmitted_bytes", LONG, "bytes captured more than once, both directions"),
    ("out_of_order_segments", LONG, "segments out of order, both directions"),
    FACTS["conflicting_overlap_bytes"],
    ("missing_bytes", LONG, "bytes sent and not captured, both directions"),
    (
        "undecoded_bytes",
        LONG,
        "bytes skipped, foreign (except a PROXY header), or in an unfinished last frame, both directions",
    ),
    *by_sender("max_silence_ns", LONG, "longest time between two packets, ns"),
    *by_sender(
        "zero_window_ns",
        LONG,
        "time during which the TCP receive window",
        " of the {} was closed, because it did not read, ns",
    ),
    FACTS["limits"],
)

CHANNELS = table(
    ("connection_id", LONG, "TCP connection"),
    (
        "channel",
        INT,
        "channel number; 1.0: the one used by the side that began the session; 0-10: the first one, if the session ",
        "was attached to several",
    ),
    (
        "channel_life",
        LONG,
        "1-based count of the opens of this number; 0: no open was captured: it was before the capture, or is ",
        "missing, or (where the capture has the whole connection) there was none",
    ),
    ("session_name", STRING, "0-10: name of the session"),
    ("remote_channel", INT, "1.0: channel number of the other direction"),
    ("opened_ts", TIMESTAMP, "when the opening method was sent; null: not captured (channel_life 0)"),
    ("closed_ts", TIMESTAMP, "when the closing method was sent; null if it ended with its connection or the capture"),
    ("close_initiator", STRING, "who sent it: 'client' or 'server'"),
    ("close_code", INT, "its reply code; 1.0 has none"),
    ("close_text", STRING, "its reply text; 0-10, 1.0: condition and description of the error"),
    ("mode", STRING, "'none' 'confirm' 'tx' 'dtx'"),
    ("prefetch_count", INT, "messages, as last set; 0: no limit"),
    ("prefetch_size", LONG, "bytes, as last set; 0: no limit"),
    ("incoming_window", LONG, "1.0: transfers, as last announced by the side that opened"),
    ("outgoing_window", LONG, "1.0: transfers, as last announced by the side that opened"),
    ("published", LONG, "messages published"),
    ("delivered", LONG, "messages delivered, including gets"),
    ("returned", LONG, "messages returned to the publisher"),
    ("confirmed", LONG, "published messages that the server acknowledged"),
    ("nacked", LONG, "published messages that the server refused"),
    ("acked", LONG, "delivered messages that the client acknowledged"),
    ("rejected", LONG, "delivered messages that the client rejected for good"),
    ("requeued", LONG, "delivered messages that went back to their queue"),
    ("unsettled", LONG, "messages that were unsettled at the end"),
)

LINKS = table(
    ("connection_id", LONG, "TCP connection"),
    ("channel", INT, "channel number, as in channels"),
    ("channel_life", LONG, "which incarnation of the channel number, see channels"),
    ("kind", STRING, "'consumer' 'subscription' 'sender' 'receiver'"),
    ("name", STRING, "consumer tag, destination, link name"),
    ("handle", LONG, "1.0: handle at the client; at the server where that is not known"),
    ("address", STRING, "1.0: address of the node at the far end"),
    ("queue", STRING, "queue consumed from; 1.0: as in messages"),
    (
        "queue_type",
        STRING,
        "RabbitMQ: 'classic' 'quorum' 'stream', as stated by x-queue-type in the last declaration of the queue on ",
        "this connection, or by x-stream-offset of the consumer, in 1.0 a filter of streams; null: not stated here",
    ),
    ("snd_settle_mode", STRING, "1.0: 'unsettled' 'settled' 'mixed'"),
    ("rcv_settle_mode", STRING, "1.0: 'first' 'second'"),
    ("acquire_mode", STRING, "0-10: 'pre-acquired', or 'not-acquired': messages stay in their queue for others"),
    ("distribution_mode", STRING, "1.0: 'move', or 'copy': messages stay in their queue for others; null: not stated"),
    ("filters", STRING, "1.0: filters of the source, as JSON"),
    ("no_ack", BOOLEAN, "true: deliveries need no acknowledgement"),
    ("exclusive", BOOLEAN, "true: the only consumer of its queue"),
    ("opened_ts", TIMESTAMP, "when it was requested; null: not captured"),
    ("closed_ts", TIMESTAMP, "when it was cancelled, or its channel closed; null if it ended with its connection"),
    (
        "error",
        STRING,
        "1.0: condition and description of the error in its detach, or in the end of its session; 0-8, 0-9, 0-9-1: ",
        "'basic.cancel by the server'",
    ),
    ("flow_mode", STRING, "0-10: 'credit', or 'window': completed messages renew the credit; as last set"),
    ("credit", LONG, "total credit granted by the receiver, messages; 0-10: by message.flow, 4294967295: no limit"),
    ("transfers", LONG, "messages that went over it; 1.0: to a transaction coordinator, its commands"),
    (
        "no_credit_ns",
        LONG,
        "0-10, 1.0: time during which the sender had no credit, until the end of the link or session, or its last ",
        "command; null where bytes are missing, ns",
    ),
)

CONTENT_COLUMNS = ("properties", "body_size", "payload", "body_sha256")
METHODS = table(
    *(column for column in FRAMES.fields if column.name not in CONTENT_COLUMNS),
    ("exchange", STRING, "argument exchange"),
    ("routing_key", STRING, "argument routing-key"),
    ("queue", STRING, "argument queue, as written: '' means the last queue declared on the channel"),
    ("consumer_tag", STRING, "argument consumer-tag, as written"),
    ("delivery_tag", LONG, "argument delivery-tag"),
    ("delivery_id", LONG, "1.0: delivery-id of a transfer"),
    ("handle", LONG, "1.0: handle"),
    ("link_name", STRING, "1.0: name of the link, on attach"),
    ("reply_code", INT, "argument reply-code"),
    ("reply_text", STRING, "argument reply-text"),
    (
        "transaction_command",
        STRING,
        "1.0: the command of a transfer to a transaction coordinator: 'declare' 'discharge'",
    ),
    (
        "reply_frame_no",
        LONG,
        "on a request: frame_no of its reply; null: none was captured. The reply to a 0-10 command is its result, ",
        "exception or completion, to a session.flush the first of session.completed, confirmed and expected that it ",
        "asks for, to a session.completed with timely-reply session.known-completed; to a 1.0 open, begin, attach, ",
        "detach, end or close, the same performative from the other side, to a flow with echo the next flow of the ",
        "other side. Transfers (except a transaction_command) and settlements have none: messages has their outcomes",
    ),
    ("reply_name", STRING, "on a request: name of its reply; to a transaction_command it is 'disposition'"),
    ("reply_latency_ns", LONG, "on a request: time until its reply, ns; null where the reply was captured first"),
)

MESSAGES = table(
    ("connection_id", LONG, "TCP connection"),
    ("channel", INT, "channel number, as in channels; in frames it is the one on the wire"),
    ("channel_life", LONG, "which incarnation of the channel number, see channels"),
    ("sender", STRING, "'client' or 'server'"),
    ("operation", STRING, "'publish' 'deliver' 'get' 'return'; a transfer: by the client 'publish', else 'deliver'"),
    ("first_frame_no", LONG, "frame_no of the method that carries the message"),
    ("last_frame_no", LONG, "frame_no of its last captured frame"),
    ("capture_file", STRING, "URI of the capture that holds packet_no"),
    ("packet_no", LONG, "packet that completed the first frame"),
    ("ts", TIMESTAMP, "when the first frame was captured"),
    ("ts_ns", LONG, "the same, ns since 1970-01-01 UTC"),
    ("first_ts_ns", LONG, "capture time of the packet that began the first frame, ns since 1970-01-01 UTC"),
    ("last_ts_ns", LONG, "capture time of the packet that completed the last frame, ns since 1970-01-01 UTC"),
    ("exchange", STRING, "exchange published to, '' the default one; RabbitMQ over 1.0: by address or x-exchange"),
    ("routing_key", STRING, "routing key; RabbitMQ over 1.0: by address or x-routing-key; ActiveMQ: the topic"),
    (
        "queue",
        STRING,
        "queue it was delivered from, if the capture shows its consumer or get; 1.0: if the address names one in the ",
        "form of its broker ('/queues/', 'queue://', '::', '/Subscriptions/' ...)",
    ),
    ("address", STRING, "1.0: address of the link; property to where the link has none (anonymous relay)"),
    ("link", STRING, "consumer tag, destination of a subscription, or name of the link"),
    ("delivery_tag", LONG, "delivery tag; of a publish in confirm mode its number since confirm.select, 1-based"),
    ("delivery_tag_hex", STRING, "1.0: delivery-tag, which may be any octets, lower-case hex"),
    ("delivery_id", LONG, "1.0: delivery-id; 0-10: command id"),
    ("message_format", LONG, "1.0: message-format; 0: the sections of the specification"),
    ("resumed", BOOLEAN, "1.0: the delivery continues from an earlier attach of its link"),
    (
        "browsed",
        BOOLEAN,
        "0-10, 1.0: true: delivered while it stays in its queue for others (acquire-mode not-acquired, ",
        "distribution-mode copy)",
    ),
    (
        "queue_offset",
        LONG,
        "RabbitMQ: 0-based index of the delivered message in its stream (x-stream-offset); null: not from a stream",
    ),
    (
        "redelivered",
        BOOLEAN,
        "the server states that it was delivered before; 1.0: delivery-count or x-acquired-count above 0",
    ),
    ("mandatory", BOOLEAN, "publish: to be returned when it cannot be routed"),
    ("immediate", BOOLEAN, "publish: to be returned when no consumer is ready"),
    ("durable", BOOLEAN, "delivery mode 2, 1.0: durable; false when absent; null: its header was not captured"),
    ("priority", INT, "property priority"),
    ("ttl_ms", LONG, "property expiration, where it is a number; 0-10, 1.0: ttl; ms"),
    ("expiration", STRING, "property expiration as written"),
    ("message_id", STRING, "property message-id"),
    ("correlation_id", STRING, "property correlation-id"),
    ("reply_to", STRING, "property reply-to"),
    ("content_type", STRING, "property content-type"),
    ("content_encoding", STRING, "property content-encoding"),
    ("type", STRING, "property type"),
    ("user_id", STRING, "property user-id"),
    ("app_id", STRING, "property app-id"),
    ("timestamp", TIMESTAMP, "property timestamp; null beyond the year 9999, such as for milliseconds"),
    ("trace_id", STRING, "W3C trace context (traceparent in headers or message annotations): the trace, 32 hex digits"),
    ("span_id", STRING, "the same: the span that the publisher was in, 16 hex digits"),
    ("headers", VARIANT, "property headers"),
    ("properties", VARIANT, "all properties by name"),
    ("body_size", LONG, "bytes of the body as declared"),
    ("body_seen", LONG, "bytes of the body in its frames"),
    ("complete", BOOLEAN, "true: every byte of the body was captured, or there is none"),
    ("body_sha256", STRING, "lower-case hex; only of a complete body"),
    ("body", BINARY, "the body (1.0: all sections; tokens for `$cbs` as well); only with the option for payloads"),
    (
        "outcome",
        STRING,
        "publish: 'confirmed' 'nacked' 'returned'; delivery: 'acked' 'rejected' 'requeued' 'released' 'modified'; ",
        "1.0 also publish: 'rejected' 'released' 'modified', and 'aborted' by its sender; ",
        "'presettled': needs no answer (0-10: accept-mode none, unless it was refused); 'unsettled': open at the ",
        "end; 'unknown': the capture cannot tell",
    ),
    (
        "settled_ts_ns",
        LONG,
        "when it was settled (in a transaction: when the commit was requested, for a publish when it was done; for ",
        "a returned publish when it was returned, which is before its confirm; for a presettled publish of 0-10 ",
        "when its command was completed), ns since 1970-01-01 UTC",
    ),
    ("settle_latency_ns", LONG, "settled_ts_ns - ts_ns; null where the settlement was captured first"),
    (
        "transaction",
        STRING,
        "'committed' 'rolled-back': the transaction of the publish, or of the acknowledgement; a publish that was ",
        "rolled back reached no queue, whatever its outcome (the broker's answer before); null: no transaction, or ",
        "its result is not known, such as that of a commit without an answer",
    ),
    ("settled_frame_no", LONG, "frame that settled it; for a returned publish, its confirm"),
    ("returned_frame_no", LONG, "frame_no of the basic.return of the publish"),
)

FINDINGS = table(
    ("rule_id", STRING, "rule of the catalogue that is broken, 'HS-08'"),
    ("severity", STRING, "'violation' 'warning' 'info'; one lower than the rule's where `reservation` says why"),
    ("scope", STRING, "what the finding is about: 'connection' 'channel' 'link' 'message'; 'capture': no connection"),
    ("category", STRING, "part of the protocol, or of good practice, that the rule is about"),
    ("offender", STRING, "who breaks the rule: 'client' or 'server'; null: the capture does not show it"),
    ("connection_id", LONG, "TCP connection, the first one if the rule is about several; null: scope is 'capture'"),
    ("channel", INT, "channel number; null: the rule is about connections"),
    ("channel_life", LONG, "which incarnation of the channel number, see channels"),
    ("frame_no", LONG, "frame of the first occurrence"),
    ("packet_no", LONG, "packet that completed that frame"),
    ("capture_file", STRING, "URI of the capture that holds packet_no, or that the finding is about"),
    ("ts", TIMESTAMP, "when it was captured"),
    ("summary", STRING, "what is wrong, in the words of the rule"),
    ("evidence", VARIANT, "values that prove it: observed, expected, negotiated, and others by name"),
    ("reference", STRING, "source of the rule"),
    ("occurrences", LONG, "occurrences of this rule by the same connection, channel incarnation, link or message"),
    (
        "reservation",
        STRING,
        "why the severity is lowered: 'capture began mid-stream' 'bytes are missing' 'one direction only' ",
        "'segments out of order'",
    ),
)

MESSAGE_FLOWS = table(
    ("flow_id", LONG, "the same number for the same pair, whatever else is in the tables"),
    ("version", STRING, "AMQP version of the publish; of the delivery where there is no publish"),
    ("deliver_version", STRING, "AMQP version of the delivery"),
    (
        "server",
        STRING,
        "where it was delivered, else published: 'ip:port'; connections.broker_name tells addresses of one broker",
    ),
    ("vhost", STRING, "its virtual host; '/' where none was named"),
    ("trace_id", STRING, "messages.trace_id of the publish; without one, of the delivery"),
    ("span_id", STRING, "messages.span_id, likewise"),
    ("publish_connection_id", LONG, "connection of the publish"),
    ("publish_frame_no", LONG, "messages.first_frame_no of the publish"),
    ("publish_ts_ns", LONG, "when the publish was complete, ns since 1970-01-01 UTC"),
    ("confirm_latency_ns", LONG, "from then until the broker confirmed or refused it, ns"),
    ("exchange", STRING, "exchange published to, '' the default one"),
    ("routing_key", STRING, "routing key"),
    ("address", STRING, "1.0: address of the link it was delivered on; without a delivery, published on"),
    ("queue", STRING, "queue it was delivered from"),
    ("deliver_connection_id", LONG, "connection of the first delivery from that queue"),
    ("deliver_frame_no", LONG, "messages.first_frame_no of that delivery"),
    ("deliver_ts_ns", LONG, "when that delivery began, ns since 1970-01-01 UTC"),
    ("broker_latency_ns", LONG, "deliver_ts_ns - publish_ts_ns; null where the delivery was captured first"),
    ("ack_latency_ns", LONG, "last delivery complete until it was settled, ns"),
    ("total_latency_ns", LONG, "publish begun until the last delivery was settled (presettled: complete), ns"),
    ("redeliveries", LONG, "how often it was delivered from that queue again"),
    ("outcome", STRING, "of the last delivery, as in messages; without a delivery, of the publish"),
    (
        "transaction",
        STRING,
        "'committed' 'rolled-back', of the publish; one that was rolled back reached no queue, whatever its outcome",
    ),
    (
        "dead_lettered",
        STRING,
        "why the first queue dead-lettered it ('rejected' 'expired' 'maxlen' ...); 'unknown': it is not stated; null: ",
        "it did not",
    ),
    ("rpc_latency_ns", LONG, "on a request: publish begun until its reply was delivered to the requester, ns"),
    (
        "match",
        STRING,
        "'message-id'; 'fingerprint': exchange, routing key, correlation id, size, hash, and no header or property of ",
        "both with different values; of a stream the offset decides; 'none': not paired",
    ),
    (
        "ambiguous",
        BOOLEAN,
        "on a pair: several publishes match, with equally many of the delivery's headers, and their order decided; ",
        "or it is a fingerprint, and no publish has its headers; or bytes of the broker are lost (for message-id: ",
        "if ids repeat at that broker)",
    ),
)

TABLES: dict[str, StructType] = {
    "captures": CAPTURES,
    "frames": FRAMES,
    "streams": STREAMS,
    "connections": CONNECTIONS,
    "channels": CHANNELS,
    "links": LINKS,
    "methods": METHODS,
    "messages": MESSAGES,
    "message_flows": MESSAGE_FLOWS,
}
# What Spark derives; workers make the other tables from the frames of one connection.
SPARK_TABLES = ("captures", "message_flows")
WORKER_TABLES = tuple(name for name in TABLES if name not in SPARK_TABLES)
# In a lake a final row is in the partition of its day: that of its end, so that the days from some day on have all rows
# that were still open on that day. Tables without such a column: `streams` are in the day of their connection,
# `message_flows` in that of the later message.
DAY_COLUMNS = ("last_ts", "closed_ts", "ts")
DAY_OF = {name: next((day for day in DAY_COLUMNS if day in schema.names), None) for name, schema in TABLES.items()}
# What a row stands for: first the tables that jobs write, then those that exist only in a Spark session.
ROWS = {
    "captures": "capture file: packets, times, skipped packets, damage",
    "frames": "AMQP frame with its arguments, or span of bytes outside of frames",
    "streams": "direction of a connection: an account of all of its bytes",
    "connections": "TCP connection: peers, version, stage of the handshake, negotiated values, how it ended",
    "channels": "channel from its open to its close (0-10, 1.0: session): mode, message counts, how it was closed",
    "links": "consumer, subscription, sender or receiver",
    "methods": "method, control, command or performative; of a request also its reply and its latency",
    "messages": "message each time it crossed the wire: properties, size, hash, outcome, settlement latency",
    "message_flows": (
        "pair of a publish and a delivery of its message from one queue, across connections and versions: the latency "
        "of each step"
    ),
    "findings": "broken rule with its evidence: written by an audit, and returned by `pipeline.findings(tables)`",
    "packets": 'packet of a capture: `spark.read.format("pcap").load("captures")`, after `wirehare.register(spark)`',
}
