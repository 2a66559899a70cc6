"""The tables of the page as data: caption, columns, and a query for all rows.

The queries are Spark SQL over views with the names of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TableSpec:
    """A table of the page: `columns` are (heading, key or measure, kind of `tables.KINDS`); `query` shows all rows."""

    section: str
    caption: str
    columns: Sequence[tuple[str, str, str]]
    query: str
    nothing: str = ""


CONNECTIONS = ("Connections", "rows", "count")
TABLES: Mapping[str, TableSpec] = {
    shown.section: shown
    for shown in (
        TableSpec(
            "files",
            "Captures",
            [
                ("File", "file", "wire"),
                ("Format", "format", "wire"),
                ("Packets", "packets", "count"),
                ("Size", "bytes", "size"),
                ("First packet (UTC)", "first", "moment"),
                ("Last packet (UTC)", "last", "moment"),
                ("Dropped", "dropped", "count"),
                ("Without TCP", "skipped", "wire"),
                ("Damage", "error", "wire"),
            ],
            "SELECT * FROM captures ORDER BY packets DESC",
            "No capture.",
        ),
        TableSpec(
            "versions",
            "Connections by protocol version",
            [
                ("Version", "version", "wire"),
                ("Content", "content", "wire"),
                CONNECTIONS,
                ("Version inferred", "inferred", "count"),
                ("Frames", "frames", "count"),
                ("Published", "published", "count"),
                ("Delivered", "delivered", "count"),
                ("Bytes", "bytes", "size"),
                ("With loss", "lossy", "count"),
            ],
            "SELECT version, content, count(*) AS connections FROM connections "
            "GROUP BY version, content ORDER BY 3 DESC",
            "No connection.",
        ),
        TableSpec(
            "topology",
            "Who publishes where, what is bound, who consumes",
            [
                ("What", "kind", "wire"),
                ("From", "origin", "wire"),
                ("To", "target", "wire"),
                ("Messages", "rows", "count"),
            ],
            "SELECT client_name, exchange, count(*) AS messages FROM messages JOIN connections USING (connection_id) "
            "WHERE operation = 'publish' GROUP BY client_name, exchange ORDER BY 3 DESC",
            "No message and no binding was captured.",
        ),
        TableSpec(
            "products",
            "Clients by product and version",
            [
                ("Product", "product", "wire"),
                ("Release", "release", "wire"),
                ("Protocol", "version", "wire"),
                CONNECTIONS,
                ("Published", "published", "count"),
                ("Delivered", "delivered", "count"),
                ("Bytes", "bytes", "size"),
            ],
            "SELECT client_product, client_version, version, count(*) AS connections FROM connections "
            "WHERE content = 'amqp' GROUP BY client_product, client_version, version ORDER BY 4 DESC",
            "No client said what it is.",
        ),
        TableSpec(
            "servers",
            "Servers",
            [
                ("Address", "server", "wire"),
                ("Product", "product", "wire"),
                ("Release", "release", "wire"),
                CONNECTIONS,
                ("Published", "published", "count"),
                ("Delivered", "delivered", "count"),
                ("Longest handshake", "handshake", "duration"),
                ("Time blocked", "blocked", "duration"),
            ],
            "SELECT server_ip, server_port, server_product, server_version, count(*) AS connections FROM connections "
            "GROUP BY server_ip, server_port, server_product, server_version ORDER BY 5 DESC",
            "No server.",
        ),
        TableSpec(
            "negotiated",
            "Proposed by client / by server, and what was agreed on",
            [
                ("Client", "client", "wire"),
                ("Server", "server", "wire"),
                ("Frame max, bytes", "frame_max", "agreed"),
                ("Channel max", "channel_max", "agreed"),
                ("Heartbeat, s", "heartbeat_s", "agreed"),
                ("Idle time-out, ms", "idle_timeout_ms", "agreed"),
                CONNECTIONS,
            ],
            "SELECT connection_id, client_product, server_product, client_frame_max, server_frame_max, frame_max, "
            "client_channel_max, server_channel_max, channel_max, client_heartbeat_s, server_heartbeat_s, heartbeat_s "
            "FROM connections WHERE content = 'amqp'",
            "No negotiation was captured.",
        ),
        TableSpec(
            "logins",
            "Logins",
            [
                ("User", "user", "wire"),
                ("Mechanism", "mechanism", "wire"),
                ("Virtual host", "vhost", "wire"),
                ("TLS", "tls", "wire"),
                CONNECTIONS,
            ],
            "SELECT user, mechanism, vhost, tls.mode, count(*) AS connections FROM connections "
            "GROUP BY user, mechanism, vhost, tls.mode ORDER BY 5 DESC",
            "No login was captured.",
        ),
        TableSpec(
            "encryption",
            "Encryption",
            [
                ("Mode", "mode", "wire"),
                ("TLS version", "tls_version", "wire"),
                ("Server name", "sni", "wire"),
                CONNECTIONS,
                ("Bytes", "bytes", "size"),
            ],
            "SELECT tls.mode, tls.tls_version, tls.sni, count(*) AS connections FROM connections "
            "GROUP BY tls.mode, tls.tls_version, tls.sni ORDER BY 4 DESC",
            "No connection.",
        ),
        TableSpec(
            "ends",
            "How far connections came, and how they ended",
            [("Stage reached", "state", "wire"), ("TCP end", "end", "wire"), ("By", "by", "wire"), CONNECTIONS],
            "SELECT state, tcp_end, tcp_end_by, count(*) AS connections FROM connections "
            "GROUP BY state, tcp_end, tcp_end_by ORDER BY 4 DESC",
            "No connection.",
        ),
        *(
            TableSpec(
                f"{thing}_errors",
                f"{thing.capitalize()}s closed with an error",
                [
                    ("Times", "rows", "count"),
                    ("Client", "client", "wire"),
                    ("By", "by", "wire"),
                    ("Code", "code", "wire"),
                    ("Reason", "text", "wire"),
                ],
                "SELECT client_name, closed.close_initiator, closed.close_code, closed.close_text, count(*) AS times "
                f"FROM {closed} WHERE closed.close_code >= 300 "
                "OR (closed.close_code IS NULL AND closed.close_text IS NOT NULL) GROUP BY ALL ORDER BY times DESC",
                f"No {thing} was closed with an error.",
            )
            for thing, closed in (
                ("connection", "connections AS closed"),
                ("channel", "channels AS closed JOIN connections USING (connection_id)"),
            )
        ),
        TableSpec(
            "returns",
            "Messages returned",
            [
                ("Times", "rows", "count"),
                ("Code", "code", "wire"),
                ("Reason", "text", "wire"),
                ("Exchange", "exchange", "wire"),
            ],
            "SELECT reply_code, reply_text, exchange, count(*) AS times FROM methods WHERE name = 'basic.return' "
            "GROUP BY reply_code, reply_text, exchange ORDER BY 4 DESC",
            "No message was returned.",
        ),
        TableSpec(
            "outcomes",
            "Messages by what became of them",
            [
                ("Operation", "operation", "wire"),
                ("Outcome", "outcome", "wire"),
                ("Messages", "rows", "count"),
                ("Bytes", "bytes", "size"),
                ("Redelivered", "redelivered", "count"),
            ],
            "SELECT operation, outcome, count(*) AS messages FROM messages GROUP BY operation, outcome ORDER BY 3 DESC",
            "No message.",
        ),
        TableSpec(
            "busiest",
            "Busiest exchanges, routing keys and queues",
            [
                ("Operation", "operation", "wire"),
                ("Exchange", "exchange", "wire"),
                ("Routing key, queue or address", "target", "wire"),
                ("Messages", "rows", "count"),
                ("Bytes", "bytes", "size"),
            ],
            "SELECT operation, exchange, coalesce(queue, address, routing_key) AS target, count(*) AS messages "
            "FROM messages GROUP BY operation, exchange, coalesce(queue, address, routing_key) ORDER BY 4 DESC",
            "No message.",
        ),
        TableSpec(
            "methods",
            "Methods, commands and performatives",
            [("Name", "name", "wire"), ("Sender", "sender", "wire"), ("Times", "rows", "count")],
            "SELECT name, sender, count(*) AS times FROM methods GROUP BY name, sender ORDER BY 3 DESC",
            "None.",
        ),
        TableSpec(
            "heartbeats",
            "Heartbeats by the interval agreed on",
            [
                ("Interval s", "interval", "count"),
                ("Protocol", "version", "wire"),
                CONNECTIONS,
                ("Sent by clients", "client_heartbeats", "count"),
                ("Sent by servers", "server_heartbeats", "count"),
                ("Longest silence of a client", "client_silence", "duration"),
                ("Longest silence of a server", "server_silence", "duration"),
                ("Clients silent too long", "client_silent", "count"),
                ("Servers silent too long", "server_silent", "count"),
            ],
            "SELECT connection_id, heartbeat_s, client_max_silence_ns, server_max_silence_ns FROM connections "
            "WHERE heartbeat_s > 0 AND greatest(client_max_silence_ns, server_max_silence_ns) > 2e9 * heartbeat_s",
            "No connection.",
        ),
        TableSpec(
            "unsettled",
            "Unsettled at the end, by where they were going",
            [
                ("Operation", "operation", "wire"),
                ("Queue, address or routing key", "target", "wire"),
                ("Consumer or link", "link", "wire"),
                ("Messages", "rows", "count"),
                ("Bytes", "bytes", "size"),
            ],
            "SELECT operation, coalesce(queue, address, routing_key) AS target, link, count(*) AS messages "
            "FROM messages WHERE outcome = 'unsettled' "
            "GROUP BY operation, coalesce(queue, address, routing_key), link ORDER BY 4 DESC",
            "Every message that needs an answer has one.",
        ),
        TableSpec(
            "damage",
            "Bytes and frames that are not as they should be",
            [
                ("Status", "status", "wire"),
                ("Kind", "kind", "wire"),
                ("What is wrong", "error", "wire"),
                ("Rows", "rows", "count"),
                ("Bytes", "bytes", "size"),
            ],
            "SELECT status, frame_type, error, count(*) AS times, sum(size) AS bytes FROM frames WHERE status <> 'ok' "
            "GROUP BY status, frame_type, error ORDER BY 4 DESC",
            "Every frame is whole and well formed.",
        ),
        TableSpec(
            "limits",
            "Limits of the decoder that were reached",
            [("Limit", "limits", "wire"), CONNECTIONS, ("Bytes", "bytes", "size")],
            "SELECT connection_id, limits FROM connections WHERE size(limits) > 0",
            "No limit was reached.",
        ),
    )
}
