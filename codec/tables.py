"""The columns of all tables, as plain data: the public contract, and the only list of columns.

A column is said once: its name, type, documentation and unit, where it comes from on the wire, and how a file stores
it. Everything else is derived from this: Arrow's schemas (`udfs.arrow.types`) and Spark's (`udfs.arrow.spark_schemas`),
the options of Parquet files (`udfs.sink.parquet`), `wirehare schema`, docs/tables.md, and the layouts of kernels.

The order here is the order of the columns in the tables. `*_ts` is TIMESTAMP (UTC, microseconds), `*_ts_ns` nanoseconds
since 1970-01-01 UTC, other `*_ns` are durations. A null means that the capture does not show the value. A latency is
also null if the answer was captured before the request, as happens with two interfaces or clocks.

A source is one of

    argument:NAME                     an argument of the method in the row
    [SIDE ]METHOD:PATH[=DEFAULT]      an argument of a method of the handshake, a path where it is in another one; of a
                                      method that both sides send, that of SIDE; DEFAULT if the method leaves it out
    FAMILY:argument/NAME              an argument of the method that carries the message, in the classic family, 0-10
                                      or 1.0
    FAMILY:SECTION/PROPERTY[*]        a property of the message, a path where sections are nested; with * of any type,
                                      as text

Kernels write rows into an array of int64 cells, a row of the array for each column:

    METHODS_AT = layout(METHODS)      a constant of the compiled kernel
    cells[METHODS_AT.reply_frame_no, row] = frame_no
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

from codec.names import CLASSIC_VERSIONS

# Types of columns: these, `ListOf`, `MapOf`, and a Table for a struct. As texts they are Spark's names.
LONG, INT, STRING, BOOLEAN, BINARY = "bigint", "int", "string", "boolean", "binary"
TIMESTAMP, DATE, VARIANT = "timestamp", "date", "variant"
OBJECT = "object"  # a VARIANT that is an object; of properties only

EPOCH_NS, NS, MS, S, BYTES = "ns since 1970-01-01 UTC", "ns", "ms", "s", "bytes"  # units


class ListOf(NamedTuple):
    """A list of values of one type."""

    element: Type

    def __str__(self) -> str:
        return f"array<{self.element}>"


class MapOf(NamedTuple):
    """A map of keys to values."""

    key: Type
    value: Type

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True)
class Column:
    """A column. `source`: where it comes from on the wire; of several the first that is there. `families`: those that
    have it, all if empty. `late`: filled after the row was begun, by a reply or a settlement.

    In files: `dictionary`: of the values, unless these are nearly unique (integers are then delta-encoded; of a VARIANT
    only the values); `statistics`: of row groups; `compressed`: by the file, unless the values are already.

    In files of earlier releases: `formerly`: its name; `former_values`: pairs of a value there, and that value today.
    `udfs.arrow.former` reads them."""

    name: str
    type: Type
    doc: str = ""
    unit: str = ""
    source: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    late: bool = False
    dictionary: bool = True
    statistics: bool = True
    compressed: bool = True
    formerly: str = ""
    former_values: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Table:
    """A table, or a struct. `row`: what a row stands for."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @cached_property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    def __getitem__(self, name: str) -> Column:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __str__(self) -> str:
        """As the type of a column."""
        return f"struct<{','.join(f'{column.name}:{column.type}' for column in self.columns)}>"

    def select(self, *names: str) -> tuple[Column, ...]:
        return tuple(self[name] for name in names)


Type = str | ListOf | MapOf | Table
STRINGS = ListOf(STRING)


def table_of(name: str, *columns: Column | tuple[Any, ...]) -> Table:
    """A table of columns, or of their arguments: what crosses processes and is no table of people."""
    return Table(name, "", tuple(each if isinstance(each, Column) else Column(*each) for each in columns))


def with_columns(table: Table, *columns: Column) -> Table:
    """The table with more columns at its end."""
    return Table(table.name, table.row, (*table.columns, *columns))


def with_former(table: Table) -> Table:
    """The table with the columns that files of earlier releases have instead of its own."""
    return with_columns(table, *(replace(each, name=each.formerly) for each in table if each.formerly))


def layout(table: Table, first: int = 0) -> Any:
    """The index of each column by name: a NamedTuple of ints from `first` on, which a kernel takes as constants."""
    # The fields are not known to a type checker.
    return namedtuple(f"{table.name.title().replace('_', '')}At", table.names)(  # type: ignore[misc]
        *range(first, first + len(table.columns))
    )


def layouts() -> list[Any]:
    """The layout of each table of this module: all that kernels may take from here."""
    return [layout(table) for table in globals().values() if isinstance(table, Table)]


def by_sender(
    name: str, kind: Type, doc: str, whose: str = ", sent by the {}", unit: str = ""
) -> tuple[Column, Column]:
    """The same measure of the client's and of the server's direction."""
    client, server = (Column(f"{side}_{name}", kind, doc + whose.format(side), unit) for side in ("client", "server"))
    return client, server


INCARNATION = Column("channel_incarnation", LONG, "which incarnation of the channel number, see channels",
                     formerly="channel_life")  # fmt: skip
FORMER_NOTES = (
    ("octets-left", "bytes-left"), ("body-of-nothing", "unexpected-body"), ("content-alone", "orphan-content"),
    ("control-goes-on", "control-with-content"), ("zero-octet", "zero-byte"),
)  # fmt: skip

FRAMES = Table("frames", "AMQP frame with its arguments, or span of bytes outside of frames", (
    Column("connection_id", LONG, "TCP connection, the same number for any partitioning; joins all tables"),
    Column("frame_no", LONG, "1-based order in which frames completed within the connection, both directions",
           dictionary=False),
    Column("sender", STRING, "'client' or 'server'", statistics=False),
    Column("ts", TIMESTAMP, "when the packet that completed the frame was captured, UTC, microseconds",
           dictionary=False),
    Column("ts_ns", LONG, "the same, nanoseconds since 1970-01-01 UTC", unit=EPOCH_NS, dictionary=False),
    Column("first_ts_ns", LONG, "capture time of the packet that began the frame, ns since 1970-01-01 UTC",
           unit=EPOCH_NS, dictionary=False),
    Column("capture_file", STRING, "URI of the capture that holds packet_no"),
    Column("first_packet_no", LONG, "packet that began the frame, 1-based as Wireshark's frame.number",
           dictionary=False),
    Column("packet_no", LONG, "packet that completed the frame, 1-based as Wireshark's frame.number", dictionary=False),
    Column("stream_offset", LONG, "0-based offset of the frame in the bytes of its sender", dictionary=False,
           statistics=False),
    Column("size", LONG, "bytes of the whole frame with its overhead; missing bytes of a 'gap'", unit=BYTES,
           statistics=False),
    Column("version", STRING, "'0-8' '0-9' '0-9-1' '0-10' '1.0'; null when not known"),
    Column("version_known", BOOLEAN, "true: from a protocol header or connection.start; false: inferred"),
    Column("channel", INT, "channel number as on the wire; null outside of frames"),
    Column("frame_type", STRING, "protocol-header method header body heartbeat oob-method oob-header oob-body trace | "
           "0-10 control command header body | 1.0 amqp sasl empty | spans: tls gap skipped foreign", statistics=False),
    Column("class_id", INT, "class of a method or content header; null elsewhere", statistics=False),
    Column("method_id", INT, "method within its class; null elsewhere", statistics=False),
    Column("code", LONG, "descriptor of a 1.0 performative; 4 bytes after AMQP of a protocol header; first 4 of HTTP, "
           "SSH, TLS"),
    Column("name", STRING, "'basic.publish', 'message.transfer', 'transfer'; the class name on content headers"),
    Column("arguments", VARIANT, "decoded arguments by field name, '_' for '-'; credentials left out",
           dictionary=False, statistics=False),
    Column("properties", VARIANT, "decoded content properties by name; on content headers", dictionary=False,
           statistics=False),
    Column("body_size", LONG, "content bytes that a content header declares", unit=BYTES, statistics=False),
    Column("payload_size", LONG, "bytes inside the frame: content bytes of a body", unit=BYTES, statistics=False),
    Column("payload", BINARY, "the content bytes themselves; only with the option for payloads", dictionary=False,
           statistics=False),
    Column("status", STRING, "'ok' 'partial' (bytes missing) 'malformed' (bytes break the protocol) 'unknown'"),
    Column("error", STRING, "what is wrong, when status is not 'ok'"),
    Column("notes", STRINGS, "oddities of the bytes: 'bytes-left' 'reserved-set' 'weight' ...; null: none",
           former_values=FORMER_NOTES),
    Column("content_frame_no", LONG, "frame_no of the method whose content this frame carries or announces",
           dictionary=False),
    Column("body_sha256", STRING, "lower-case hex, on the frame that completes a content, if it was captured "
           "completely", dictionary=False, statistics=False),
))  # fmt: skip

LEDGER = Table("ledger", "direction of a TCP connection: the byte ledger", (
    Column("packets", LONG, "packets captured in this direction"),
    Column("payload_bytes", LONG, "bytes of the stream captured, compressed WebSocket messages after inflation; the "
           "sum of the next six", unit=BYTES),
    Column("frame_bytes", LONG, "of them in frames and protocol headers", unit=BYTES),
    Column("skipped_bytes", LONG, "of them outside of frames, because a frame boundary was lost", unit=BYTES),
    Column("tls_bytes", LONG, "of them encrypted; of a decrypted connection the overhead: record headers and "
           "authentication codes, handshake, and what could not be decrypted", unit=BYTES),
    Column("websocket_bytes", LONG, "of them WebSocket: upgrade, frame headers, control frames", unit=BYTES),
    Column("foreign_bytes", LONG, "of them of another protocol", unit=BYTES),
    Column("tail_bytes", LONG, "of them in a last frame that the capture does not complete", unit=BYTES),
    Column("decrypted_bytes", LONG, "bytes after decryption; their contents are counted above", unit=BYTES),
    Column("missing_bytes", LONG, "bytes of the stream that were sent and not captured; of a decrypted one those that "
           "its 'gap' rows have", unit=BYTES),
    Column("retransmitted_bytes", LONG, "bytes captured more than once", unit=BYTES),
    Column("outside_bytes", LONG, "payload that is not part of the stream: on RST packets (which may state a reason), "
           "or outside of the TCP window", unit=BYTES),
    Column("out_of_order_segments", LONG, "segments that came before an earlier part of the stream"),
    Column("max_silence_ns", LONG, "longest time without data of this direction, up to the last packet; keep-alives of "
           "TCP are no data, ns", unit=NS),
    Column("zero_window_ns", LONG, "time during which the TCP receive window of this side was closed, because it did "
           "not read, ns", unit=NS),
))  # fmt: skip

CERTIFICATE = Table("certificate", "certificate", (
    Column("subject", STRING, "subject (RFC 4514)"),
    Column("issuer", STRING, "issuer"),
    Column("not_after", TIMESTAMP, "end of its validity"),
))  # fmt: skip

TLS = Table("tls", "encrypted connection", (
    Column("mode", STRING, "'none', 'implicit' (from the first byte), 'upgraded' (after an AMQP protocol header)"),
    Column("sni", STRING, "server name that the client asked for"),
    Column("tls_version", STRING, "negotiated version"),
    Column("alpn", STRING, "application protocol offered"),
    Column("cipher_suite", STRING, "negotiated cipher suite, by its IANA name"),
    Column("resumed", BOOLEAN, "an earlier session was resumed: such a handshake has no certificates"),
    Column("decrypted", BOOLEAN, "the connection was decrypted; streams.decrypted_bytes says how many bytes"),
    Column("server_certificate", CERTIFICATE, "of the server, if it was captured in clear (TLS 1.2) or decrypted"),
    Column("client_certificate", CERTIFICATE, "of the client, likewise"),
))  # fmt: skip

PROCESS = Table("process", "process at one end of a connection; names as in the resource attributes of OpenTelemetry", (
    Column("pid", LONG, "process id"),
    Column("name", STRING, "name of its program, without arguments"),
    Column("container_name", STRING, "name of its container"),
    Column("container_id", STRING, "id of its container"),
    Column("container_image", STRING, "image of its container"),
    Column("pod_name", STRING, "name of its Kubernetes pod"),
    Column("pod_namespace", STRING, "namespace of its pod"),
))  # fmt: skip

FACTS = Table(
    "facts",
    "TCP connection that has ended: what is known besides its frames; most are columns of "
    "connections, too", (
    Column("client_ip", STRING, "address of the client"),
    Column("client_port", INT, "TCP port of the client"),
    Column("server_ip", STRING, "address of the server"),
    Column("server_port", INT, "TCP port of the server"),
    Column("community_id", STRING, "Community ID flow hash, version 1, as Zeek and Suricata compute it"),
    Column("proxied_client_ip", STRING, "address of the client by the header of the PROXY protocol: client_ip is the "
           "load balancer's"),
    Column("proxied_client_port", INT, "TCP port of the client by that header"),
    Column("proxied_community_id", STRING, "community_id of the connection that the header speaks of, from the client "
           "to the load balancer"),
    Column("client_process", PROCESS, "process of the client by the first packet that a pcapng says it sent or "
           "received (process blocks and options of macOS and Wireshark, comments of ptcpdump)"),
    Column("server_process", PROCESS, "process of the server, likewise"),
    Column("local_process", PROCESS, "the same where packets of both directions have one process, and the capture does "
           "not say which side it is"),
    Column("capture_file", STRING, "URI of the capture that holds the first packet"),
    Column("opened_ts_ns", LONG, "first packet", unit=EPOCH_NS),
    Column("closed_ts_ns", LONG, "last packet", unit=EPOCH_NS),
    Column("tcp_rtt_ns", LONG, "round trip time of the TCP handshake, ns", unit=NS),
    Column("tcp_origin", LONG, "sequence numbers of the first bytes of both directions, the client's in the upper "
           "half: equal for one connection that was captured on both sides of a NAT; null: not known, or inside TLS or "
           "WebSocket"),
    Column("tcp_end", STRING, "'fin' 'rst' 'none'; in a lake also 'expired': no packet for too long",
           former_values=(("lost sight of", "expired"),)),
    Column("tcp_end_by", STRING, "who ended the TCP connection: 'client' or 'server'"),
    Column("syn_captured", BOOLEAN, "the SYN of the client was captured"),
    Column("roles_from", STRING, "what determined client and server: 'syn' 'header' 'method' 'port'",
           formerly="sides_known_by"),
    Column("content", STRING, "'amqp' 'tls' 'foreign' 'none'"),
    Column("versions_offered", STRINGS, "protocol headers in order, 'client 0-9-1'; and a start with another version, "
           "'server 0-8'"),
    Column("tls", TLS, "encryption of the connection"),
    Column("transport", STRING, "what carries AMQP: 'tcp' 'tls' 'websocket' 'websocket+tls'"),
    Column("undecoded_reason", STRING, "why nothing more of TLS or WebSocket was read: 'no secrets' 'began before the "
           "capture' 'handshake not captured' 'cipher not known' 'version not known' 'authentication failed' "
           "'renegotiation' 'no record of TLS' 'upgrade refused' 'upgrade not answered' 'upgrade not finished' "
           "'upgrade not captured' 'permessage-deflate' 'no frame of WebSocket'", formerly="unread_because"),
    Column("conflicting_overlap_bytes", LONG, "bytes captured twice with different values (the first ones count)",
           unit=BYTES),
    Column("limits", STRINGS, "names of the decoder's limits that this connection reached"),
    Column("proxy_bytes", LONG, "of the foreign bytes those before AMQP, such as a header of the PROXY protocol, both "
           "directions", unit=BYTES),
    Column("client", LEDGER, "what the client sent"),
    Column("server", LEDGER, "what the server sent"),
))  # fmt: skip

HANDSHAKE = Table(
    "handshake", "connection: arguments of its handshake. Columns of connections, and what others there are made of", (
    Column("connection_name", STRING, "name that the client gives this connection (RabbitMQ's clients, and those that "
           "follow them)", source=("connection.start-ok:client_properties/connection_name",
           "client open:properties/connection_name")),
    Column("client_program", STRING, "program of the client (Qpid)",
           source=("connection.start-ok:client_properties/qpid.client_process",
           "client open:properties/qpid.client_process")),
    Column("vhost", STRING, "virtual host asked for; 1.0: hostname in the client's open; RabbitMQ over 1.0: '/', or "
           "NAME of 'vhost:NAME'", source=("connection.open:virtual_host", "client open:hostname")),
    Column("user", STRING, "user name of the client (PLAIN, AMQPLAIN, SCRAM, CRAM-MD5)",
           source=("connection.start-ok:user", "connection.secure-ok:user", "sasl-init:user", "sasl-response:user")),
    Column("mechanism", STRING, "authentication mechanism chosen", source=("connection.start-ok:mechanism",
           "connection.secure-ok:mechanism", "sasl-init:mechanism", "sasl-response:mechanism")),
    Column("locale", STRING, "locale chosen", source=("connection.start-ok:locale",)),
    Column("client_product", STRING, "client_properties: product",
           source=("connection.start-ok:client_properties/product", "client open:properties/product")),
    Column("client_version", STRING, "client_properties: version, else product_version (py-amqp)",
           source=("connection.start-ok:client_properties/version",
                   "connection.start-ok:client_properties/product_version", "client open:properties/version")),
    Column("client_platform", STRING, "client_properties: platform",
           source=("connection.start-ok:client_properties/platform", "client open:properties/platform")),
    Column("client_properties", VARIANT, "all properties that the client announced",
           source=("connection.start-ok:client_properties", "client open:properties")),
    Column("client_capabilities", VARIANT, "capabilities of the client",
           source=("connection.start-ok:client_properties/capabilities", "client open:offered_capabilities")),
    Column("client_container_id", STRING, "1.0: container id, sent by the client",
           source=("client open:container_id",)),
    Column("client_idle_timeout_ms", LONG, "1.0: idle time-out, ms, sent by the client", unit=MS,
           source=("client open:idle_time_out",)),
    Column("server_product", STRING, "server_properties: product",
           source=("connection.start:server_properties/product", "server open:properties/product")),
    Column("server_version", STRING, "server_properties: version",
           source=("connection.start:server_properties/version", "server open:properties/version")),
    Column("server_platform", STRING, "server_properties: platform",
           source=("connection.start:server_properties/platform", "server open:properties/platform")),
    Column("server_properties", VARIANT, "all properties that the server announced",
           source=("connection.start:server_properties", "server open:properties")),
    Column("server_capabilities", VARIANT, "capabilities of the server",
           source=("connection.start:server_properties/capabilities", "server open:offered_capabilities")),
    Column("server_container_id", STRING, "1.0: container id, sent by the server",
           source=("server open:container_id",)),
    Column("server_idle_timeout_ms", LONG, "1.0: idle time-out, ms, sent by the server", unit=MS,
           source=("server open:idle_time_out",)),
    Column("broker_name", STRING, "server_properties: cluster_name (RabbitMQ) or qpid.federation_tag (Qpid)",
           source=("connection.start:server_properties/cluster_name",
           "connection.start:server_properties/qpid.federation_tag", "server open:properties/cluster_name",
           "server open:properties/qpid.federation_tag")),
    Column("client_channel_max", LONG, "channel_max proposed, sent by the client",
           source=("connection.tune-ok:channel_max", "client open:channel_max=65535")),
    Column("client_frame_max", LONG, "frame_max proposed, bytes, sent by the client", unit=BYTES,
           source=("connection.tune-ok:frame_max", "connection.tune-ok:max_frame_size",
           "client open:max_frame_size=4294967295")),
    Column("client_heartbeat_s", LONG, "heartbeat interval proposed, s, sent by the client", unit=S,
           source=("connection.tune-ok:heartbeat",)),
    Column("server_channel_max", LONG, "channel_max proposed, sent by the server",
           source=("connection.tune:channel_max", "server open:channel_max=65535")),
    Column("server_frame_max", LONG, "frame_max proposed, bytes, sent by the server", unit=BYTES,
           source=("connection.tune:frame_max", "connection.tune:max_frame_size",
           "server open:max_frame_size=4294967295")),
    Column("server_heartbeat_s", LONG, "heartbeat interval proposed, s, sent by the server", unit=S,
           source=("connection.tune:heartbeat", "connection.tune:heartbeat_max")),
    Column("sasl_code", LONG, "1.0: code of the SASL outcome", source=("sasl-outcome:code",)),
    Column("heartbeat_s", LONG, "negotiated heartbeat interval, s, 0: none", unit=S,
           source=("connection.tune-ok:heartbeat=0",)),
))  # fmt: skip

CAPTURES = Table("captures", "capture file: packets, times, skipped packets, damage", (
    Column("capture_file", STRING, "URI of the capture, one row each"),
    Column("format", STRING, "'pcap' or 'pcapng'"),
    Column("compression", STRING, "'gzip', 'zstd', 'lz4', or null"),
    Column("link_types", STRINGS, "link types seen in it"),
    Column("byte_size", LONG, "size of the file, bytes", unit=BYTES),
    Column("packets", LONG, "packet records read"),
    Column("first_ts", TIMESTAMP, "earliest packet"),
    Column("last_ts", TIMESTAMP, "latest packet"),
    Column("snaplen", LONG, "largest capture length the file declares, bytes", unit=BYTES),
    Column("dropped", LONG, "packets the capturing machine reports as dropped (pcapng interface statistics)"),
    Column("truncated", BOOLEAN, "true: the file ends inside a record"),
    Column("error", STRING, "why reading stopped early, or which times may be wrong; null: neither"),
    Column("skipped_packets", MapOf(STRING, LONG), "packets not read, by reason: without TCP, or 'filtered' by an "
           "option"),
))  # fmt: skip

STREAMS = Table("streams", "direction of a connection: an account of all of its bytes", (
    Column("connection_id", LONG, "TCP connection"),
    Column("sender", STRING, "'client' or 'server': one row each", statistics=False),
    *LEDGER.columns,
))  # fmt: skip

CONNECTIONS = Table(
    "connections", "TCP connection: peers, version, stage of the handshake, negotiated values, how it ended", (
    Column("connection_id", LONG, "TCP connection, one row each, of any protocol"),
    *FACTS.select("community_id", "client_ip", "client_port", "server_ip", "server_port", "proxied_client_ip",
        "proxied_client_port", "proxied_community_id", "client_process", "server_process", "local_process",
        "roles_from", "content"),
    Column("version", STRING, "AMQP version; null without AMQP"),
    FACTS["versions_offered"],
    Column("version_known", BOOLEAN, "true: from a protocol header or connection.start; false: inferred from the "
           "frames"),
    *FACTS.select("transport", "undecoded_reason", "tls"),
    Column("state", STRING, "furthest stage reached: tcp header start secure tune open closing closed"),
    FACTS["capture_file"],
    Column("opened_ts", TIMESTAMP, "first packet"),
    Column("closed_ts", TIMESTAMP, "last packet"),
    Column("handshake_ns", LONG, "first packet to connection.open-ok (1.0: to the later open), ns; only when the TCP "
           "handshake was captured", unit=NS),
    *FACTS.select("tcp_rtt_ns", "tcp_origin"),
    Column("start_latency_ns", LONG, "client's protocol header to connection.start (1.0: to the server's header), ns",
           unit=NS),
    Column("login_latency_ns", LONG, "connection.start-ok to connection.tune (1.0: sasl-init to sasl-outcome), ns",
           unit=NS),
    Column("open_latency_ns", LONG, "connection.open to connection.open-ok (1.0: from one open to the other), ns",
           unit=NS),
    *HANDSHAKE.select("vhost", "user", "mechanism", "locale"),
    Column("client_name", STRING, "the application: client_properties: connection_name; else 1.0: container id; else "
           "client_properties: qpid.client_process; else product and version"),
    *HANDSHAKE.select("client_product", "client_version", "client_platform", "client_properties", "server_product",
        "server_version", "server_properties", "broker_name"),
    Column("capabilities", VARIANT, "capabilities of both sides: {client, server}"),
    Column("channel_max", LONG, "negotiated highest channel number, 0: no limit"),
    Column("frame_max", LONG, "negotiated largest frame, bytes, 0: no limit", unit=BYTES),
    *HANDSHAKE.select("heartbeat_s", "client_channel_max", "server_channel_max", "client_frame_max",
        "server_frame_max", "client_heartbeat_s", "server_heartbeat_s", "client_container_id", "server_container_id",
        "client_idle_timeout_ms", "server_idle_timeout_ms"),
    Column("close_initiator", STRING, "who sent the first close: 'client' or 'server'"),
    Column("close_code", INT, "reply code of that close; 1.0 has none"),
    Column("close_text", STRING, "reply text of that close; 1.0: condition and description of its error, or the "
           "outcome of a refused login"),
    *FACTS.select("tcp_end", "tcp_end_by"),
    Column("blocked_ns", LONG, "time between blocked and unblocked (or the end), ns; 1.0: in which the server's "
           "incoming-window of a session was 0, of several sessions the longest time", unit=NS),
    *by_sender("packets", LONG, "packets"),
    *by_sender("bytes", LONG, "bytes of the stream captured", unit=BYTES),
    *by_sender("frames", LONG, "frames, without protocol headers"),
    *by_sender("methods", LONG, "frames with a method, control, command or performative"),
    *by_sender("heartbeats", LONG, "heartbeats (1.0: empty frames)"),
    Column("messages_published", LONG, "messages the client published; 1.0: without commands to a transaction "
           "coordinator"),
    Column("messages_delivered", LONG, "messages the server delivered, including gets"),
    Column("retransmitted_bytes", LONG, "bytes captured more than once, both directions", unit=BYTES),
    Column("out_of_order_segments", LONG, "segments out of order, both directions"),
    FACTS["conflicting_overlap_bytes"],
    Column("missing_bytes", LONG, "bytes sent and not captured, both directions", unit=BYTES),
    Column("undecoded_bytes", LONG, "bytes skipped, foreign (not those before AMQP), or in an unfinished last frame, "
           "both directions", unit=BYTES),
    *by_sender("max_silence_ns", LONG, "longest time without data, up to the last packet; without TCP keep-alives, "
               "ns", unit=NS),
    *by_sender("zero_window_ns", LONG, "time during which the TCP receive window",
               whose=" of the {} was closed, because it did not read, ns", unit=NS),
    FACTS["limits"],
))  # fmt: skip

CHANNELS = Table(
    "channels", "channel from its open to its close (0-10, 1.0: session): mode, message counts, how it was closed", (
    Column("connection_id", LONG, "TCP connection"),
    Column("channel", INT, "channel number; 1.0: the one used by the side that began the session; 0-10: the first one, "
           "if the session was attached to several"),
    replace(INCARNATION, doc="1-based count of the opens of this number; 0: no open was captured: it was before the "
            "capture, or is missing, or (where the capture has the whole connection) there was none"),
    Column("session_name", STRING, "0-10: name of the session"),
    Column("remote_channel", INT, "1.0: channel number of the other direction"),
    Column("opened_ts", TIMESTAMP, "when the opening method was sent; null: not captured (channel_incarnation 0)"),
    Column("closed_ts", TIMESTAMP, "when the closing method was sent; null if it ended with its connection or the "
           "capture"),
    Column("close_initiator", STRING, "who sent it: 'client' or 'server'"),
    Column("close_code", INT, "its reply code; 1.0 has none"),
    Column("close_text", STRING, "its reply text; 0-10, 1.0: condition and description of the error"),
    Column("mode", STRING, "'none' 'confirm' 'tx' 'dtx'"),
    Column("prefetch_count", INT, "messages, as last set; 0: no limit"),
    Column("prefetch_size", LONG, "bytes, as last set; 0: no limit", unit=BYTES),
    Column("incoming_window", LONG, "1.0: transfers, as last announced by the side that opened"),
    Column("outgoing_window", LONG, "1.0: transfers, as last announced by the side that opened"),
    Column("published", LONG, "messages published"),
    Column("delivered", LONG, "messages delivered, including gets"),
    Column("returned", LONG, "messages returned to the publisher"),
    Column("confirmed", LONG, "published messages that the server acknowledged"),
    Column("nacked", LONG, "published messages that the server refused"),
    Column("acked", LONG, "delivered messages that the client acknowledged"),
    Column("rejected", LONG, "delivered messages that the client rejected for good"),
    Column("requeued", LONG, "delivered messages that went back to their queue"),
    Column("unsettled", LONG, "messages that were unsettled at the end"),
))  # fmt: skip

LINKS = Table("links", "consumer, subscription, sender or receiver", (
    Column("connection_id", LONG, "TCP connection"),
    Column("channel", INT, "channel number, as in channels"),
    INCARNATION,
    Column("kind", STRING, "'consumer' 'subscription' 'sender' 'receiver'"),
    Column("name", STRING, "consumer tag, destination, link name"),
    Column("handle", LONG, "1.0: handle at the client; at the server where that is not known"),
    Column("address", STRING, "1.0: address of the node at the far end"),
    Column("queue", STRING, "queue consumed from; 1.0: queue that the address names, for senders too"),
    Column("queue_type", STRING, "RabbitMQ: 'classic' 'quorum' 'stream', as stated by x-queue-type in the last "
           "declaration of the queue on this connection that was not refused (1.0: PUT /queues/QUEUE), or by "
           "x-stream-offset of the consumer, in 1.0 a filter of streams; null: not stated here"),
    Column("snd_settle_mode", STRING, "1.0: 'unsettled' 'settled' 'mixed'"),
    Column("rcv_settle_mode", STRING, "1.0: 'first' 'second'"),
    Column("acquire_mode", STRING, "0-10: 'pre-acquired', or 'not-acquired': messages stay in their queue for others"),
    Column("distribution_mode", STRING, "1.0: 'move', or 'copy': messages stay in their queue for others; null: not "
           "stated"),
    Column("filters", STRING, "1.0: filters of the source that its side grants, as JSON; {}: none of those that were "
           "asked for; as they were asked for if no grant was captured"),
    Column("filters_requested", STRING, "1.0: filters that the receiver asked for, as JSON"),
    Column("no_ack", BOOLEAN, "true: deliveries need no acknowledgement"),
    Column("exclusive", BOOLEAN, "true: the only consumer of its queue"),
    Column("opened_ts", TIMESTAMP, "when it was requested; null: not captured"),
    Column("closed_ts", TIMESTAMP, "when it was cancelled, or its channel closed; null if it ended with its "
           "connection"),
    Column("error", STRING, "1.0: condition and description of the error in its detach, or in the end of its session; "
           "0-8, 0-9, 0-9-1: 'basic.cancel by the server'"),
    Column("flow_mode", STRING, "0-10: 'credit', or 'window': completed messages renew the credit; as last set"),
    Column("credit", LONG, "total credit granted by the receiver, messages; 0-10: by message.flow, 4294967295: no "
           "limit"),
    Column("transfers", LONG, "messages that went over it; 1.0: to a transaction coordinator, its commands"),
    Column("no_credit_ns", LONG, "0-10, 1.0: time during which the sender had no credit, until the end of the link or "
           "session, or its last command; null where bytes are missing, ns", unit=NS),
))  # fmt: skip

CONTENT_COLUMNS = ("properties", "body_size", "payload", "body_sha256")
METHODS = Table("methods", "method, control, command or performative; of a request also its reply and its latency", (
    *(column for column in FRAMES.columns if column.name not in CONTENT_COLUMNS),
    Column("exchange", STRING, "argument exchange", source=("argument:exchange",)),
    Column("routing_key", STRING, "argument routing-key", source=("argument:routing_key",)),
    Column("queue", STRING, "argument queue, as written: '' means the last queue declared on the channel",
           source=("argument:queue",)),
    Column("consumer_tag", STRING, "argument consumer-tag, as written", source=("argument:consumer_tag",)),
    Column("delivery_tag", LONG, "argument delivery-tag", source=("argument:delivery_tag",), dictionary=False),
    Column("delivery_id", LONG, "1.0: delivery-id of a transfer", source=("argument:delivery_id",), dictionary=False),
    Column("handle", LONG, "1.0: handle", source=("argument:handle",)),
    Column("link_name", STRING, "1.0: name of the link, on attach", source=("argument:name",)),
    Column("reply_code", INT, "argument reply-code", source=("argument:reply_code",)),
    Column("reply_text", STRING, "argument reply-text", source=("argument:reply_text",)),
    Column("transaction_command", STRING, "1.0: the command of a transfer to a transaction coordinator: 'declare' "
           "'discharge'"),
    Column("reply_frame_no", LONG, "on a request: frame_no of its reply, which may serve several; null: none was "
           "captured. The reply to a 0-10 command is its result, exception or completion, to a session.flush the first "
           "of session.completed, confirmed and expected that it asks for, to a session.completed with timely-reply "
           "session.known-completed; to a 1.0 open, begin, attach, detach, end or close, the same performative from "
           "the other side, to a flow with echo the next flow of the other side. Transfers (except a "
           "transaction_command) and settlements have none: messages has their outcomes", late=True, dictionary=False),
    Column("reply_name", STRING, "on a request: name of its reply; to a transaction_command it is 'disposition'",
           late=True),
    Column("reply_latency_ns", LONG, "on a request: time until its reply, ns; null where the reply was captured first",
           unit=NS, late=True, dictionary=False),
))  # fmt: skip

PROPERTIES = Table("properties", "message: properties that columns of messages are made of", (
    Column("delivery_mode", INT, "0-8 to 0-10: 2 is durable", source=("classic:delivery_mode",
           "0-10:delivery_properties/delivery_mode")),
    Column("traceparent", STRING, "W3C trace context, of which trace_id and span_id are parts",
           source=("classic:headers/traceparent", "0-10:message_properties/application_headers/traceparent",
           "1.0:application_properties/traceparent")),
    Column("broker_ms", LONG, "when RabbitMQ's interceptor took the message, ms since 1970-01-01 UTC",
           source=("classic:headers/timestamp_in_ms", "1.0:application_properties/timestamp_in_ms"), unit=MS),
    Column("received_ms", LONG, "the same since RabbitMQ 4.0",
           source=("classic:headers/x-opt-rabbitmq-received-time",), unit=MS),
    Column("discard_unroutable", BOOLEAN, "0-10: the opposite of mandatory",
           source=("0-10:delivery_properties/discard_unroutable",)),
    Column("ttl", LONG, "0-10, 1.0: time to live, ms", source=("0-10:delivery_properties/ttl", "1.0:header/ttl"),
           unit=MS),
    Column("reply_node", OBJECT, "0-10: where a reply goes", source=("0-10:message_properties/reply_to",)),
    Column("reply_exchange", STRING, "0-10: its exchange", source=("0-10:message_properties/reply_to/exchange",)),
    Column("reply_routing_key", STRING, "0-10: its routing key",
           source=("0-10:message_properties/reply_to/routing_key",)),
    Column("content_length", LONG, "0-10: bytes of the body as declared",
           source=("0-10:message_properties/content_length",)),
    Column("delivery_count", LONG, "1.0: deliveries before this one that failed",
           source=("1.0:header/delivery_count",)),
    Column("has_header", OBJECT, "1.0: the section, if there is one", source=("1.0:header",)),
    Column("durable_flag", BOOLEAN, "1.0: durable", source=("1.0:header/durable",)),
    Column("to", STRING, "1.0: address of the node that the message is for", source=("1.0:properties/to",)),
    Column("annotated_traceparent", STRING, "1.0: traceparent in message annotations",
           source=("1.0:message_annotations/traceparent",)),
    Column("subject", STRING, "1.0: property subject", source=("1.0:properties/subject",)),
    Column("body_value", STRING, "1.0: the body of a request to a management node", source=("1.0:body_value",)),
    Column("bound_exchange", STRING, "HTTP over AMQP (RabbitMQ): source of a binding",
           source=("1.0:body_value/source",)),
    Column("bound_queue", STRING, "HTTP over AMQP: its queue", source=("1.0:body_value/destination_queue",)),
    Column("bound_key", STRING, "HTTP over AMQP: its key", source=("1.0:body_value/binding_key",)),
    Column("http_response", STRING, "HTTP over AMQP: version of a reply",
           source=("1.0:application_properties/http:response",)),
    Column("requested_operation", STRING, "operation of a request to `$management` or `$cbs`",
           source=("1.0:application_properties/operation",)),
    Column("requested_name", STRING, "name of the entity it is about", source=("1.0:application_properties/name",)),
    Column("requested_type", STRING, "type of that entity", source=("1.0:application_properties/type",)),
    Column("status_code", INT, "status of its reply (AMQP Management)",
           source=("1.0:application_properties/statusCode",)),
    Column("status_text", STRING, "description of that status",
           source=("1.0:application_properties/statusDescription",)),
    Column("claims_status", INT, "status of a reply of `$cbs` (Claims-based Security)",
           source=("1.0:application_properties/status-code",)),
    Column("claims_text", STRING, "description of that status",
           source=("1.0:application_properties/status-description",)),
    Column("annotated_exchange", STRING, "RabbitMQ: exchange of the route",
           source=("1.0:message_annotations/x-exchange",)),
    Column("annotated_routing_key", STRING, "RabbitMQ: routing key of the route",
           source=("1.0:message_annotations/x-routing-key",)),
    Column("acquired_count", LONG, "RabbitMQ, quorum queues: how often the message was acquired before",
           source=("1.0:message_annotations/x-acquired-count",)),
    Column("received_time", TIMESTAMP, "RabbitMQ: when the broker took the message",
           source=("1.0:message_annotations/x-opt-rabbitmq-received-time",)),
    Column("enqueued_time", TIMESTAMP, "Azure: when the broker took the message",
           source=("1.0:message_annotations/x-opt-enqueued-time",)),
    Column("diagnostic_id", STRING, "Azure: its name for traceparent",
           source=("1.0:application_properties/Diagnostic-Id",)),
    Column("handle", LONG, "1.0: handle of the link", source=("1.0:argument/handle",)),
))  # fmt: skip

MESSAGES = Table(
    "messages", "message each time it crossed the wire: properties, size, hash, outcome, settlement latency", (
    Column("connection_id", LONG, "TCP connection"),
    Column("channel", INT, "channel number, as in channels; in frames it is the one on the wire"),
    INCARNATION,
    Column("sender", STRING, "'client' or 'server'", statistics=False),
    Column("operation", STRING, "'publish' 'deliver' 'get' 'return'; a transfer: by the client 'publish', else "
           "'deliver'"),
    Column("first_frame_no", LONG, "frame_no of the method that carries the message", dictionary=False),
    Column("last_frame_no", LONG, "frame_no of its last captured frame", dictionary=False),
    Column("capture_file", STRING, "URI of the capture that holds packet_no"),
    Column("packet_no", LONG, "packet that completed the first frame", dictionary=False),
    Column("ts", TIMESTAMP, "when the first frame was captured", dictionary=False),
    Column("ts_ns", LONG, "the same, ns since 1970-01-01 UTC", unit=EPOCH_NS, dictionary=False),
    Column("first_ts_ns", LONG, "capture time of the packet that began the first frame, ns since 1970-01-01 UTC",
           unit=EPOCH_NS, dictionary=False),
    Column("last_ts_ns", LONG, "capture time of the packet that completed the last frame, ns since 1970-01-01 UTC",
           unit=EPOCH_NS, dictionary=False),
    Column("exchange", STRING, "exchange published to, '' the default one; RabbitMQ over 1.0: by address or "
           "x-exchange", source=("classic:argument/exchange", "0-10:delivery_properties/exchange")),
    Column("routing_key", STRING, "routing key; 1.0: RabbitMQ by address or x-routing-key; a topic, by address or "
           "capabilities", source=("classic:argument/routing_key", "0-10:delivery_properties/routing_key")),
    Column("queue", STRING, "queue it was delivered from, if the capture shows its consumer or get; 1.0: if the "
           "address names one in the form of its broker ('/queues/', 'queue://', '::', '/Subscriptions/' ...)"),
    Column("address", STRING, "1.0: address of the link; property to where the link has none (anonymous relay)",
           families=("1.0",)),
    Column("link", STRING, "consumer tag, destination of a subscription, or name of the link"),
    Column("delivery_tag", LONG, "delivery tag; of a publish in confirm mode its number since confirm.select, 1-based",
           families=("classic",), dictionary=False),
    Column("delivery_tag_hex", STRING, "1.0: delivery-tag, which may be any bytes, lower-case hex", families=("0-10",
           "1.0")),
    Column("delivery_id", LONG, "1.0: delivery-id; 0-10: command id", families=("0-10", "1.0"), dictionary=False),
    Column("message_format", LONG, "1.0: message-format; 0: the sections of the specification", families=("0-10",
           "1.0")),
    Column("batch_index", INT, "1.0: 0-based index in a batch of Azure (message-format 2147563264), which has a row "
           "for each of its messages; they are one delivery, and share its outcome; null: no batch"),
    Column("resumed", BOOLEAN, "1.0: the delivery continues from an earlier attach of its link", families=("0-10",
           "1.0")),
    Column("browsed", BOOLEAN, "0-10, 1.0: true: delivered while it stays in its queue for others (acquire-mode "
           "not-acquired, distribution-mode copy)", families=("0-10", "1.0")),
    Column("queue_offset", LONG, "RabbitMQ: 0-based index of the delivered message in its stream (x-stream-offset); "
           "null: not from a stream", source=("classic:headers/x-stream-offset",
           "1.0:message_annotations/x-stream-offset"), families=("classic", "1.0")),
    Column("redelivered", BOOLEAN, "the server states that it was delivered before; 1.0: delivery-count or "
           "x-acquired-count above 0", source=("classic:argument/redelivered", "0-10:delivery_properties/redelivered")),
    Column("mandatory", BOOLEAN, "publish: to be returned when it cannot be routed",
           source=("classic:argument/mandatory",), families=("classic", "0-10")),
    Column("immediate", BOOLEAN, "publish: to be returned when no consumer is ready",
           source=("classic:argument/immediate", "0-10:delivery_properties/immediate"), families=("classic", "0-10")),
    Column("durable", BOOLEAN, "delivery mode 2, 1.0: durable; false when absent; null: its header was not captured, "
           "or (1.0) it has none, so that the broker decides"),
    Column("priority", INT, "property priority", source=("classic:priority", "0-10:delivery_properties/priority",
           "1.0:header/priority")),
    Column("ttl_ms", LONG, "property expiration, where it is a number; 0-10, 1.0: ttl; ms", unit=MS),
    Column("expiration", STRING, "property expiration as written", source=("classic:expiration",),
           families=("classic",)),
    Column("message_id", STRING, "property message-id", source=("classic:message_id",
           "0-10:message_properties/message_id", "1.0:properties/message_id*"), dictionary=False),
    Column("correlation_id", STRING, "property correlation-id", source=("classic:correlation_id",
           "0-10:message_properties/correlation_id*", "1.0:properties/correlation_id*")),
    Column("reply_to", STRING, "property reply-to", source=("classic:reply_to", "1.0:properties/reply_to")),
    Column("content_type", STRING, "property content-type", source=("classic:content_type",
           "0-10:message_properties/content_type", "1.0:properties/content_type")),
    Column("content_encoding", STRING, "property content-encoding", source=("classic:content_encoding",
           "0-10:message_properties/content_encoding", "1.0:properties/content_encoding")),
    Column("type", STRING, "property type", source=("classic:type",), families=("classic",)),
    Column("user_id", STRING, "property user-id", source=("classic:user_id", "0-10:message_properties/user_id*",
           "1.0:properties/user_id*")),
    Column("app_id", STRING, "property app-id", source=("classic:app_id", "0-10:message_properties/app_id*"),
           families=("classic", "0-10")),
    Column("group_id", STRING, "1.0: property group-id; Azure: the session of the message",
           source=("1.0:properties/group_id",), families=("1.0",)),
    Column("sequence_number", LONG, "Azure: number that it gave the message in its queue or partition "
           "(x-opt-sequence-number)", source=("1.0:message_annotations/x-opt-sequence-number",), families=("1.0",)),
    Column("locked_until", TIMESTAMP, "Azure: until when the delivery is locked for its receiver (x-opt-locked-until)",
           source=("1.0:message_annotations/x-opt-locked-until",), families=("1.0",)),
    Column("timestamp", TIMESTAMP, "property timestamp; null beyond the year 9999, such as for milliseconds",
           source=("classic:timestamp", "0-10:delivery_properties/timestamp", "1.0:properties/creation_time")),
    Column("management_operation", STRING, "1.0: what a request to a management node asks for: the method of HTTP over "
           "AMQP ('PUT'), the operation of `$management` or `$cbs` ('READ', 'put-token')", families=("1.0",)),
    Column("management_target", STRING, "1.0: of what: the path ('/queues/q'), the name or type of an entity",
           families=("1.0",)),
    Column("management_exchange", STRING, "1.0: exchange that the request is about; of a binding its source",
           families=("1.0",)),
    Column("management_queue", STRING, "1.0: queue that the request is about; of a binding its destination, if that is "
           "a queue", families=("1.0",)),
    Column("management_routing_key", STRING, "1.0: key of the binding that the request is about", families=("1.0",)),
    Column("management_status", INT, "1.0: status of the reply, which has the message-id of its request as "
           "correlation-id; 400 and above: refused", families=("1.0",)),
    Column("management_text", STRING, "1.0: what the reply says of an error, or of its status", families=("1.0",)),
    Column("broker_ts_ns", LONG, "when the broker took the message, as it states: header timestamp_in_ms, annotation "
           "x-opt-rabbitmq-received-time (RabbitMQ, where it is set to add them), x-opt-enqueued-time (Azure); ns "
           "since 1970-01-01 UTC", unit=EPOCH_NS, families=("classic", "1.0")),
    Column("trace_id", STRING, "W3C trace context (traceparent in headers or message annotations): the trace, 32 hex "
           "digits"),
    Column("span_id", STRING, "the same: the span that the publisher was in, 16 hex digits"),
    Column("headers", VARIANT, "property headers", source=("classic:headers",
           "0-10:message_properties/application_headers", "1.0:application_properties"), statistics=False),
    Column("properties", VARIANT, "all properties by name", dictionary=False, statistics=False),
    Column("body_size", LONG, "bytes of the body as declared", unit=BYTES, statistics=False),
    Column("body_captured", LONG, "bytes of the body in its frames", unit=BYTES, statistics=False,
           formerly="body_seen"),
    Column("complete", BOOLEAN, "true: every byte of the body was captured, or there is none"),
    Column("body_sha256", STRING, "lower-case hex; only of a complete body", dictionary=False, statistics=False),
    Column("body", BINARY, "the body (1.0: all sections); only with the option for payloads; null if it hands over a "
           "token", dictionary=False, statistics=False),
    Column("outcome", STRING, "publish: 'confirmed' 'nacked' 'returned'; delivery: 'acked' 'rejected' 'requeued' "
           "'released' 'modified'; 1.0 also publish: 'rejected' 'released' 'modified', and 'aborted' by its sender; a "
           "delivery that the broker takes back (a consumer time-out, a lock that was lost) is 'released', whatever "
           "the client states later; 'presettled': needs no answer (0-10: accept-mode none, unless it was refused); "
           "'unsettled': open at the end; 'unknown': the capture cannot tell", late=True),
    Column("outcome_error", STRING, "1.0: error of a rejection: 'condition: description'", late=True),
    Column("outcome_info", STRING, "1.0: what the outcome has besides, as JSON: `info` of the error of a rejection "
           "(RabbitMQ 4.3: queue and reason), message-annotations of 'modified'", late=True),
    Column("settled_ts_ns", LONG, "when it was settled (in a transaction: when the commit was requested, for a publish "
           "when it was done; for a returned publish when it was returned, which is before its confirm; for a "
           "presettled publish of 0-10 when its command was completed), ns since 1970-01-01 UTC", unit=EPOCH_NS,
           late=True, dictionary=False),
    Column("handled_ts_ns", LONG, "of deliveries that one frame acknowledged together: when the receiver had handled "
           "this one, if it handled one after the other, each in the same time; an estimate, at most settled_ts_ns; "
           "null: settled alone; ns since 1970-01-01 UTC", unit=EPOCH_NS, late=True,
           dictionary=False),
    Column("settle_latency_ns", LONG, "settled_ts_ns - ts_ns; null where the settlement was captured first", unit=NS,
           late=True, dictionary=False),
    Column("transaction", STRING, "'committed' 'rolled-back': the transaction of the publish, or of the "
           "acknowledgement; a publish that was rolled back reached no queue, whatever its outcome (the broker's "
           "answer before); null: no transaction, or its result is not known: a commit without an answer, a branch of "
           "0-10 (dtx) that no session of this connection ends", late=True),
    Column("settled_frame_no", LONG, "frame that settled it; for a returned publish, its confirm", late=True,
           dictionary=False),
    Column("returned_frame_no", LONG, "frame_no of the basic.return of the publish", late=True),
))  # fmt: skip

FINDINGS = Table(
    "findings", "broken rule with its evidence: written by an audit, and returned by `pipeline.findings(tables)`", (
    Column("rule_id", STRING, "rule of the catalogue that is broken, 'HS-08'"),
    Column("severity", STRING, "'violation' 'warning' 'info'; one lower than the rule's where `reservation` says why"),
    Column("scope", STRING, "what the finding is about: 'connection' 'channel' 'link' 'message'; 'capture': no "
           "connection"),
    Column("category", STRING, "part of the protocol, or of good practice, that the rule is about"),
    Column("offender", STRING, "who breaks the rule: 'client' or 'server'; null: the capture does not show it"),
    Column("connection_id", LONG, "TCP connection, the first one if the rule is about several; null: scope is "
           "'capture'"),
    Column("channel", INT, "channel number; null: the rule is about connections"),
    INCARNATION,
    Column("frame_no", LONG, "frame of the first occurrence", dictionary=False),
    Column("packet_no", LONG, "packet that completed that frame", dictionary=False),
    Column("capture_file", STRING, "URI of the capture that holds packet_no, or that the finding is about"),
    Column("ts", TIMESTAMP, "when it was captured", dictionary=False),
    Column("summary", STRING, "what is wrong, in the words of the rule"),
    Column("evidence", VARIANT, "values that prove it: observed, expected, negotiated, and others by name"),
    Column("reference", STRING, "source of the rule"),
    Column("occurrences", LONG, "occurrences of this rule by the same connection, channel incarnation, link or "
           "message"),
    Column("reservation", STRING, "why the severity is lowered: 'capture began mid-stream' 'bytes are missing' 'one "
           "direction only' 'segments out of order'"),
))  # fmt: skip

STALLS = Table(
    "stalls", "time of a millisecond or more in which a side could not send, or did not get on: why, how long, and "
    "what began it", (
    Column("connection_id", LONG, "TCP connection"),
    Column("channel", INT, "channel number, as in channels; of 'session-window', that of the side that announced the "
           "window; null: the whole connection"),
    replace(INCARNATION, doc=f"{INCARNATION.doc}; null: not known, as of 'session-window' and 'unanswered-request'"),
    Column("link", STRING, "consumer tag, destination of a subscription, or name of the link, as in messages; null: "
           "all of the channel"),
    Column("kind", STRING, "'zero-window': the TCP receive window of the other side was closed; 'retransmission': "
           "bytes were lost, until they were sent again; 'nagle': a small segment waited for the acknowledgement of "
           "the one before; 'no-credit': no link credit (0-10, 1.0); 'prefetch-full': as many deliveries "
           "unacknowledged as basic.qos allows; 'session-window': the incoming-window of the other side was 0 (1.0); "
           "'connection-blocked': by connection.blocked; 'channel-flow': by channel.flow; 'unanswered-request': no "
           "reply within a second; 'silence': no data for longer than this side promised by its heartbeat or the "
           "idle time-out of the other side"),
    Column("side", STRING, "'client' or 'server': the one that could not send, or did not get on"),
    Column("from_ts", TIMESTAMP, "when it began", dictionary=False),
    Column("until_ts", TIMESTAMP, "when it ended", dictionary=False),
    Column("from_ns", LONG, "when it began, ns since 1970-01-01 UTC", unit=EPOCH_NS, dictionary=False),
    Column("until_ns", LONG, "when it ended, ns since 1970-01-01 UTC; where it never did, the end of what it was about "
           "(link, channel, connection), or of the capture", unit=EPOCH_NS, dictionary=False),
    Column("stall_ns", LONG, "how long it was: until_ns - from_ns, without breaks in it: of up to a millisecond, or a "
           "quarter of the stall before, at most 50 ms; ns", unit=NS, dictionary=False),
    Column("resumed", BOOLEAN, "true: it went on after that; false: it never did"),
    Column("bytes", LONG, "TCP payload that came late: sent again, or retained by Nagle's algorithm; null: not known",
           unit=BYTES),
    Column("frame_no", LONG, "frame that began it; null: no frame did, as in TCP", dictionary=False),
    Column("packet_no", LONG, "packet that began it", dictionary=False),
    Column("capture_file", STRING, "URI of the capture that holds packet_no"),
))  # fmt: skip

STALL = Table("stall", "stall as workers collect it: columns of stalls, and `since_ns`", (
    *(column for column in STALLS.columns if column.type != TIMESTAMP),
    Column("since_ns", LONG, "since when it lasts; null: it is over", unit=EPOCH_NS),
))  # fmt: skip

ODDITIES = Table(
    "oddities", "something in a session or on a link of 0-10 or 1.0 that its protocol does not allow, or an answer "
    "that is late or lacking: which frame, by which side, and what would be right", (
    Column("connection_id", LONG, "TCP connection"),
    Column("frame_no", LONG, "frame that is odd, or that was not answered", dictionary=False),
    Column("ts", TIMESTAMP, "when that was noticed", dictionary=False),
    Column("ts_ns", LONG, "the same in ns since 1970-01-01 UTC", unit=EPOCH_NS, dictionary=False),
    Column("version", STRING, "AMQP version"),
    Column("side", STRING, "'client' or 'server': the one that is odd, or that did not answer"),
    Column("channel", INT, "channel number, as in channels; null: about the connection"),
    Column("channel_incarnation", LONG, "which incarnation of the channel number, see channels"),
    Column("name", STRING, "what is odd: 'no-credit' 'delivery-id-order' 'detach-unanswered' ...; `wirehare rules` "
           "lists the rules, each of which names the oddity that breaks it"),
    Column("observed", LONG, "the number that is odd", dictionary=False),
    Column("expected", LONG, "the number in its place, or the limit", dictionary=False),
    Column("about_frame_no", LONG, "frame that begins the link or message it is about", dictionary=False),
    Column("waited_ns", LONG, "how long an answer took, more than a second, or had not come at the end; ns", unit=NS,
           dictionary=False),
    Column("missing", STRINGS, "of 'required-missing', names of the fields that are left out"),
))  # fmt: skip

ODDITY = Table("oddity", "oddity as workers collect it: columns of oddities, and `since_ns`", (
    *(column for column in ODDITIES.columns if column.type != TIMESTAMP),
    Column("since_ns", LONG, "since when the answer is awaited; null: it is not", unit=EPOCH_NS),
))  # fmt: skip

MESSAGE_FLOWS = Table(
    "message_flows",
    "pair of a publish and a delivery of its message from one queue, across connections and "
    "versions: the latency of each step", (
    Column("flow_id", LONG, "the same number for the same pair, whatever else is in the tables"),
    Column("version", STRING, "AMQP version of the publish; of the delivery where there is no publish"),
    Column("deliver_version", STRING, "AMQP version of the delivery"),
    Column("server", STRING, "where it was delivered, else published: 'ip:port'; connections.broker_name tells "
           "addresses of one broker"),
    Column("vhost", STRING, "its virtual host; '/' where none was named"),
    Column("trace_id", STRING, "messages.trace_id of the publish; without one, of the delivery"),
    Column("span_id", STRING, "messages.span_id, likewise"),
    Column("publish_connection_id", LONG, "connection of the publish"),
    Column("publish_frame_no", LONG, "messages.first_frame_no of the publish"),
    Column("publish_batch_index", INT, "messages.batch_index of the publish"),
    Column("publish_ts_ns", LONG, "when the publish was complete, ns since 1970-01-01 UTC", unit=EPOCH_NS),
    Column("confirm_latency_ns", LONG, "from then until the broker confirmed or refused it, ns", unit=NS),
    Column("exchange", STRING, "exchange published to, '' the default one"),
    Column("routing_key", STRING, "routing key"),
    Column("address", STRING, "1.0: address of the link it was delivered on; without a delivery, published on"),
    Column("queue", STRING, "queue it was delivered from"),
    Column("deliver_connection_id", LONG, "connection of the first delivery from that queue"),
    Column("deliver_frame_no", LONG, "messages.first_frame_no of that delivery"),
    Column("deliver_batch_index", INT, "messages.batch_index of that delivery"),
    Column("deliver_ts_ns", LONG, "when that delivery began, ns since 1970-01-01 UTC", unit=EPOCH_NS),
    Column("broker_latency_ns", LONG, "deliver_ts_ns - publish_ts_ns; null where the delivery was captured first",
           unit=NS),
    Column("ack_latency_ns", LONG, "last delivery complete until it was settled, ns", unit=NS),
    Column("total_latency_ns", LONG, "publish begun until the last delivery was settled (presettled: complete), ns; "
           "without a publish from when the broker took the message, as it states (messages.broker_ts_ns); the sum of "
           "the next nine", unit=NS),
    Column("send_ns", LONG, "of the total: the publish on the wire, first to last byte, without network_ns; null: no "
           "publish", unit=NS),
    Column("network_ns", LONG, "of the total: TCP held up the publish, its confirm, the delivery or its settlement: it "
           "was retransmitted, waited for a closed receive window or for an acknowledgement (Nagle)", unit=NS),
    Column("confirm_wait_ns", LONG, "of the total: publish complete until the broker confirmed it; null: not confirmed "
           "before its delivery, and queue_ready_ns contains the time that the broker took", unit=NS),
    Column("queue_blocked_ns", LONG, "of the total: then until the delivery began, while no consumer of the queue (in "
           "the capture) could take a message: none attached, prefetch full, no credit", unit=NS),
    Column("queue_ready_ns", LONG, "of the total: the rest of the time until the delivery began", unit=NS),
    Column("redelivery_ns", LONG, "of the total: first delivery begun until the last one began; 0: delivered once",
           unit=NS),
    Column("delivery_ns", LONG, "of the total: the last delivery on the wire, first to last byte, without network_ns",
           unit=NS),
    Column("consumer_ns", LONG, "of the total: last delivery complete until the consumer had handled it: until it "
           "settled it, or before by ack_held_ns", unit=NS),
    Column("ack_held_ns", LONG, "of the total: then until it settled it together with others; an estimate, see "
           "messages.handled_ts_ns; null: settled alone", unit=NS),
    Column("redeliveries", LONG, "how often it was delivered from that queue again"),
    Column("outcome", STRING, "of the last delivery, as in messages; without a delivery, of the publish"),
    Column("transaction", STRING, "'committed' 'rolled-back', of the publish; one that was rolled back reached no "
           "queue, whatever its outcome"),
    Column("dead_letter_reason", STRING, "why the first queue dead-lettered it ('rejected' 'expired' 'maxlen' ...); "
           "'unknown': it is not stated; null: it did not", formerly="dead_lettered"),
    Column("rpc_latency_ns", LONG, "on a request: publish begun until its reply was delivered to the requester, ns",
           unit=NS),
    Column("match", STRING, "'message-id'; 'fingerprint': exchange, routing key, correlation id, size, hash, and no "
           "header or property of both with different values; of a stream the offset decides; 'none': not paired"),
    Column("ambiguous", BOOLEAN, "on a pair: several publishes match, with equally many of the delivery's headers, and "
           "their order decided; or it is a fingerprint, and no publish has its headers; or bytes of the broker are "
           "lost (for message-id: if ids repeat at that broker)"),
))  # fmt: skip

PACKETS = Table(
    "packets", 'packet of a capture: `spark.read.format("pcap").load("captures")`, after `wirehare.register(spark)`', (
    Column("capture_file", STRING, "URI of the capture"),
    Column("packet_no", LONG, "1-based position in the file, as Wireshark's frame.number", dictionary=False),
    Column("ts", TIMESTAMP, "when the packet was captured, UTC, microseconds", dictionary=False),
    Column("ts_ns", LONG, "the same, nanoseconds since 1970-01-01 UTC", unit=EPOCH_NS, dictionary=False),
    Column("link_type", INT, "LINKTYPE_ number of the interface; null when the file does not describe it"),
    Column("packet_len", LONG, "bytes of the packet on the wire", unit=BYTES),
    Column("captured_len", LONG, "of these, bytes captured", unit=BYTES),
    Column("encapsulation", STRING, "what the packet was wrapped in, outermost first: 'vxlan vni=42', 'gre key=7 / "
           "6in4'; of an MPLS stack the bottom label; null when bare. All columns below are of the packet inside"),
    Column("src_ip", STRING, "address of the sender; null without an IP header"),
    Column("src_port", INT, "TCP port of the sender; null without TCP, like the columns below"),
    Column("dst_ip", STRING, "address of the receiver"),
    Column("dst_port", INT, "TCP port of the receiver"),
    Column("tcp_flags", INT, "FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE 64, CWR 128, NS 256"),
    Column("seq", LONG, "sequence number as on the wire"),
    Column("ack", LONG, "acknowledgement number as on the wire"),
    Column("window", INT, "window as on the wire, not scaled"),
    Column("wire_len", LONG, "TCP payload bytes on the wire, from the IP length", unit=BYTES),
    Column("cap_len", LONG, "of these, bytes captured", unit=BYTES),
    Column("payload", BINARY, "TCP payload captured; of a whole datagram on the fragment that completed it",
           dictionary=False, statistics=False),
    Column("skipped", STRING, "why there is no TCP segment: 'udp', 'arp', 'ip-fragment' ...; null with TCP"),
    Column("error", STRING, "why reading stopped: a last row of the file, with nothing else but capture_file"),
))  # fmt: skip

INSIDE = Table("inside", "message in a batch of Azure", (
    Column("properties", VARIANT, "its sections by name, as frames.properties", dictionary=False, statistics=False),
    Column("body_size", LONG, "bytes of its body; null: its sections do not parse", unit=BYTES, statistics=False),
    Column("body_sha256", STRING, "lower-case hex; null likewise", dictionary=False, statistics=False),
    Column("offset", LONG, "0-based, of its bytes in the content of the frame"),
    Column("size", LONG, "its bytes", unit=BYTES, statistics=False),
))  # fmt: skip

PACKED = Table("packed", "rows of any table, as workers of Spark hand them back", (
    Column("table", STRING, "the table"),
    Column("rows", BINARY, "a stream of Arrow IPC"),
))  # fmt: skip

TCP_RUNS = Table(
    "tcp_runs", "segments of a flow, coalesced for the shuffle; and the account of each split of a capture", (
    Column("flow", BINARY, "flow key: low IP 16, high IP 16, low port 2, high port 2 bytes; null on accounts",
           dictionary=False),
    Column("order_ns", LONG, "running maximum of capture times at the first segment; null on accounts", unit=NS),
    Column("capture_file", STRING, "URI of the capture"),
    Column("first_packet_no", LONG, "packet number of the first segment; null on accounts", dictionary=False),
    Column("segments", BINARY, "records of codec.net.layers.SEGMENT end to end, both directions"),
    Column("payload", BINARY, "captured TCP payloads end to end; null: segments say where in the file",
           dictionary=False, statistics=False),
    Column("account", STRING, "JSON of what the split held; null on runs"),
    Column("processes", STRINGS, "JSON of each process that these packets are about; null: none"),
    Column("sightings", BINARY, "when they are: records SIGHTING (udfs.source), end to end; null: none"),
))  # fmt: skip

# Runs of a flow are decoded in this order, however the captures were split and their runs cut.
RUN_ORDER = ("flow", "order_ns", "capture_file", "first_packet_no")

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        CAPTURES, FRAMES, STREAMS, CONNECTIONS, CHANNELS, LINKS, METHODS, MESSAGES, STALLS, ODDITIES,
        MESSAGE_FLOWS,
    )
}  # fmt: skip
# What is derived from the others; workers make the other tables from the frames of one connection.
DERIVED_TABLES = ("captures", "message_flows")
WORKER_TABLES = tuple(name for name in TABLES if name not in DERIVED_TABLES)
# In a lake a final row is in the partition of its day: that of its end, so that the days from some day on have all rows
# that were still open on that day. Tables without such a column: `streams` are in the day of their connection,
# `message_flows` in that of the later message.
DAY_COLUMNS = ("last_ts", "closed_ts", "until_ts", "ts")
DAY_OF = {name: next((day for day in DAY_COLUMNS if day in table.names), None) for name, table in TABLES.items()}
# What people see: the tables that jobs write, then those that exist only in a Spark session.
ALL_TABLES = {**TABLES, FINDINGS.name: FINDINGS, PACKETS.name: PACKETS}


class ArgumentPath(NamedTuple):
    """An argument of a method, by its path; `sender`: if both sides send the method; `default`: if it is left out."""

    method: str
    path: tuple[str, ...]
    sender: str | None = None
    default: int | None = None


def arguments_of(column: Column) -> tuple[ArgumentPath, ...]:
    """The sources of a column of HANDSHAKE."""
    found = []
    for source in column.source:
        method, path = source.split(":")
        sender, _, name = method.rpartition(" ")
        path, _, default = path.partition("=")
        found.append(ArgumentPath(name, tuple(path.split("/")), sender or None, int(default) if default else None))
    return tuple(found)


# Type of an attribute of a connection, and the arguments that are it.
ATTRIBUTES = {column.name: (str(column.type), arguments_of(column)) for column in HANDSHAKE}
PropertyPath = tuple[str, str, str]  # section ('a.b' for nested ones, '' for none), property, type or 'any'
ARGUMENT = "argument"


class Family(NamedTuple):
    """How messages of some `versions` are assembled; `and_unknown`: also of frames whose version is unknown.
    `arguments` of the method that are columns; `properties`: column -> where it is, of columns of MESSAGES and of
    PROPERTIES; `absent`: columns of MESSAGES that the family does not have."""

    versions: tuple[str, ...]
    and_unknown: bool
    arguments: tuple[str, ...]
    properties: dict[str, PropertyPath]
    absent: tuple[str, ...]


def family(name: str, versions: Sequence[str], and_unknown: bool = False) -> Family:
    """The family `name`, from the sources of columns."""
    arguments, properties = list[str](), dict[str, PropertyPath]()
    for column in (*MESSAGES, *PROPERTIES):
        for source in column.source:
            of, _, path = source.partition(":")
            section, _, part = path.rpartition("/")
            if of == name and section == ARGUMENT:
                arguments.append(column.name)
            elif of == name:
                kind = "any" if part.endswith("*") else str(column.type)
                properties[column.name] = (section.replace("/", "."), part.removesuffix("*"), kind)
    absent = tuple(column.name for column in MESSAGES if column.families and name not in column.families)
    return Family(tuple(versions), and_unknown, tuple(arguments), properties, absent)


@cache
def families() -> tuple[Family, ...]:
    return family("classic", CLASSIC_VERSIONS, True), family("0-10", ("0-10",)), family("1.0", ("1.0",))
