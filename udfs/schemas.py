"""Schemas of what crosses from Python workers to Spark: the rows of the data sources and of the decoder.

Every field carries its meaning, unit and source under the metadata key `comment`; `pipeline.schemas` shows them to
people. No session is needed to import this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

LONG, INT, STRING, BOOLEAN, BINARY = LongType(), IntegerType(), StringType(), BooleanType(), BinaryType()
TIMESTAMP, VARIANT, STRINGS = TimestampType(), VariantType(), ArrayType(StringType())


Column = tuple[str, DataType, *tuple[str, ...]]  # name, type, and documentation in one or several parts


def field(name: str, data_type: DataType, *comment: str) -> StructField:
    """A nullable column with its documentation."""
    return StructField(name, data_type, True, {"comment": "".join(comment)})


def table(*columns: Column | StructField) -> StructType:
    """A table's schema, from its columns or from fields that are defined elsewhere."""
    return StructType([column if isinstance(column, StructField) else field(*column) for column in columns])


def columns(schema: StructType, *names: str) -> StructType:
    return StructType([schema[name] for name in names])


# One row per frame, or per span of bytes outside of frames. The decoder fills the columns in this order.
FRAMES = table(
    ("connection_id", LONG, "TCP connection, the same number for any partitioning; joins all tables"),
    ("frame_no", LONG, "1-based order in which frames completed within the connection, both directions"),
    ("sender", STRING, "'client' or 'server'"),
    ("ts", TIMESTAMP, "when the packet that completed the frame was captured, UTC, microseconds"),
    ("ts_ns", LONG, "the same, nanoseconds since 1970-01-01 UTC"),
    ("first_ts_ns", LONG, "capture time of the packet that began the frame, ns since 1970-01-01 UTC"),
    ("capture_file", STRING, "URI of the capture that holds packet_no"),
    ("first_packet_no", LONG, "packet that began the frame, 1-based as Wireshark's frame.number"),
    ("packet_no", LONG, "packet that completed the frame, 1-based as Wireshark's frame.number"),
    ("stream_offset", LONG, "0-based offset of the frame in the bytes of its sender"),
    ("size", LONG, "bytes of the whole frame with its overhead; missing bytes of a 'gap'"),
    ("version", STRING, "'0-8' '0-9' '0-9-1' '0-10' '1.0'; null when not known"),
    ("version_known", BOOLEAN, "true: from a protocol header or connection.start; false: inferred"),
    ("channel", INT, "channel number as on the wire; null outside of frames"),
    (
        "frame_type",
        STRING,
        "protocol-header method header body heartbeat oob-method oob-header oob-body trace | 0-10 control command ",
        "header body | 1.0 amqp sasl empty | spans: tls gap skipped foreign",
    ),
    ("class_id", INT, "class of a method or content header; null elsewhere"),
    ("method_id", INT, "method within its class; null elsewhere"),
    (
        "code",
        LONG,
        "descriptor of a 1.0 performative; 4 octets after AMQP of a protocol header; first 4 of HTTP, SSH, TLS",
    ),
    ("name", STRING, "'basic.publish', 'message.transfer', 'transfer'; the class name on content headers"),
    ("arguments", VARIANT, "decoded arguments by field name, '_' for '-'; credentials left out"),
    ("properties", VARIANT, "decoded content properties by name; on content headers"),
    ("body_size", LONG, "content bytes that a content header declares"),
    ("payload_size", LONG, "bytes inside the frame: content bytes of a body"),
    ("payload", BINARY, "the content bytes themselves; only with the option for payloads"),
    ("status", STRING, "'ok' 'partial' (bytes missing) 'malformed' (octets break the protocol) 'unknown'"),
    ("error", STRING, "what is wrong, when status is not 'ok'"),
    ("notes", STRINGS, "oddities of the octets: 'octets-left' 'reserved-set' 'weight' ...; null: none"),
    ("content_frame_no", LONG, "frame_no of the method whose content this frame carries or announces"),
    ("body_sha256", STRING, "lower-case hex, on the frame that completes a content, if it was captured completely"),
)

# What is known of one direction of a TCP connection: the byte ledger.
LEDGER = table(
    ("packets", LONG, "packets captured in this direction"),
    (
        "payload_bytes",
        LONG,
        "bytes of the stream captured, compressed WebSocket messages after inflation; the sum of the next six",
    ),
    ("frame_bytes", LONG, "of them in frames and protocol headers"),
    ("skipped_bytes", LONG, "of them outside of frames, because a frame boundary was lost"),
    (
        "tls_bytes",
        LONG,
        "of them encrypted; of a decrypted connection the overhead: record headers and authentication codes, ",
        "handshake, and what could not be decrypted",
    ),
    ("websocket_bytes", LONG, "of them WebSocket: upgrade, frame headers, control frames"),
    ("foreign_bytes", LONG, "of them of another protocol"),
    ("tail_bytes", LONG, "of them in a last frame that the capture does not complete"),
    ("decrypted_bytes", LONG, "bytes after decryption; their contents are counted above"),
    (
        "missing_bytes",
        LONG,
        "bytes of the stream that were sent and not captured; of a decrypted one those that its 'gap' rows have",
    ),
    ("retransmitted_bytes", LONG, "bytes captured more than once"),
    (
        "outside_bytes",
        LONG,
        "payload that is not part of the stream: on RST packets (which may state a reason), or outside of the TCP ",
        "window",
    ),
    ("out_of_order_segments", LONG, "segments that came before an earlier part of the stream"),
    (
        "max_silence_ns",
        LONG,
        "longest time without data of this direction, up to the last packet; keep-alives of TCP are no data, ns",
    ),
    (
        "zero_window_ns",
        LONG,
        "time during which the TCP receive window of this side was closed, because it did not read, ns",
    ),
)
CERTIFICATE = table(
    ("subject", STRING, "subject (RFC 4514)"),
    ("issuer", STRING, "issuer"),
    ("not_after", TIMESTAMP, "end of its validity"),
)
# What is known of the encryption of a connection.
TLS = table(
    ("mode", STRING, "'none', 'implicit' (from the first byte), 'upgraded' (after an AMQP protocol header)"),
    ("sni", STRING, "server name that the client asked for"),
    ("tls_version", STRING, "negotiated version"),
    ("alpn", STRING, "application protocol offered"),
    ("cipher_suite", STRING, "negotiated cipher suite, by its IANA name"),
    ("resumed", BOOLEAN, "an earlier session was resumed: such a handshake has no certificates"),
    ("decrypted", BOOLEAN, "the connection was decrypted; streams.decrypted_bytes says how many bytes"),
    ("server_certificate", CERTIFICATE, "of the server, if it was captured in clear (TLS 1.2) or decrypted"),
    ("client_certificate", CERTIFICATE, "of the client, likewise"),
)
# A process at one end of a connection. Names as in the resource attributes of OpenTelemetry.
PROCESS = table(
    ("pid", LONG, "process id"),
    ("name", STRING, "name of its program, without arguments"),
    ("container_name", STRING, "name of its container"),
    ("container_id", STRING, "id of its container"),
    ("container_image", STRING, "image of its container"),
    ("pod_name", STRING, "name of its Kubernetes pod"),
    ("pod_namespace", STRING, "namespace of its pod"),
)
# What is known of a TCP connection when it has ended, besides what it shares with frames. Most are columns of table
# connections, too.
FACTS = table(
    ("client_ip", STRING, "address of the client"),
    ("client_port", INT, "TCP port of the client"),
    ("server_ip", STRING, "address of the server"),
    ("server_port", INT, "TCP port of the server"),
    ("community_id", STRING, "Community ID flow hash, version 1, as Zeek and Suricata compute it"),
    (
        "proxied_client_ip",
        STRING,
        "address of the client by the header of the PROXY protocol: client_ip is the load balancer's",
    ),
    ("proxied_client_port", INT, "TCP port of the client by that header"),
    (
        "proxied_community_id",
        STRING,
        "community_id of the connection that the header speaks of, from the client to the load balancer",
    ),
    (
        "client_process",
        PROCESS,
        "process of the client by the first packet that a pcapng says it sent or received (process blocks and options ",
        "of macOS and Wireshark, comments of ptcpdump)",
    ),
    ("server_process", PROCESS, "process of the server, likewise"),
    (
        "local_process",
        PROCESS,
        "the same where packets of both directions have one process, and the capture does not say which side it is",
    ),
    ("capture_file", STRING, "URI of the capture that holds the first packet"),
    ("opened_ts_ns", LONG, "first packet"),
    ("closed_ts_ns", LONG, "last packet"),
    ("tcp_rtt_ns", LONG, "round trip time of the TCP handshake, ns"),
    (
        "tcp_origin",
        LONG,
        "sequence numbers of the first bytes of both directions, the client's in the upper half: equal for one ",
        "connection that was captured on both sides of a NAT; null: not known, or inside TLS or WebSocket",
    ),
    ("tcp_end", STRING, "'fin' 'rst' 'none'; in a lake also 'lost sight of': no packet for too long"),
    ("tcp_end_by", STRING, "who ended the TCP connection: 'client' or 'server'"),
    ("syn_seen", BOOLEAN, "the SYN of the client was captured"),
    ("sides_known_by", STRING, "what determined client and server: 'syn' 'header' 'method' 'port'"),
    ("content", STRING, "'amqp' 'tls' 'foreign' 'none'"),
    (
        "versions_offered",
        STRINGS,
        "protocol headers in order, 'client 0-9-1'; and a start with another version, 'server 0-8'",
    ),
    ("tls", TLS, "encryption of the connection"),
    ("transport", STRING, "what carries AMQP: 'tcp' 'tls' 'websocket' 'websocket+tls'"),
    (
        "unread_because",
        STRING,
        "why nothing more of TLS or WebSocket was read: 'no secrets' 'began before the capture' ",
        "'handshake not captured' 'cipher not known' 'version not known' 'authentication failed' 'renegotiation' ",
        "'no record of TLS' 'upgrade refused' 'upgrade not answered' 'upgrade not finished' 'upgrade not captured' ",
        "'permessage-deflate' 'no frame of WebSocket'",
    ),
    ("conflicting_overlap_bytes", LONG, "bytes captured twice with different values (the first ones count)"),
    ("limits", STRINGS, "names of the decoder's limits that this connection reached"),
    (
        "proxy_bytes",
        LONG,
        "of the foreign bytes those before AMQP, such as a header of the PROXY protocol, both directions",
    ),
    ("client", LEDGER, "what the client sent"),
    ("server", LEDGER, "what the server sent"),
)

# A message in a batch of Azure.
INSIDE = table(
    ("properties", VARIANT, "its sections by name, as frames.properties"),
    ("body_size", LONG, "bytes of its body; null: its sections do not parse"),
    ("body_sha256", STRING, "lower-case hex; null likewise"),
    ("offset", LONG, "0-based, of its bytes in the content of the frame"),
    ("size", LONG, "its bytes"),
)

# What the decoder emits: frames, one row of facts a TCP connection, and the accounts of the splits that were read.
DECODED = table(
    ("kind", STRING, "'frame', 'connection' (with facts) or 'capture' (account in arguments)"),
    *FRAMES,
    # A null array takes no room in Arrow; a null struct takes that of all its fields.
    ("facts", ArrayType(FACTS), "of a connection, one element; null on other rows"),
    ("inside", ArrayType(INSIDE), "messages in the batch of Azure that the frame completes; null: no batch"),
)

# Source "pcap": one row a packet, for people.
PACKETS = table(
    ("capture_file", STRING, "URI of the capture"),
    ("packet_no", LONG, "1-based position in the file, as Wireshark's frame.number"),
    ("ts", TIMESTAMP, "when the packet was captured, UTC, microseconds"),
    ("ts_ns", LONG, "the same, nanoseconds since 1970-01-01 UTC"),
    ("link_type", INT, "LINKTYPE_ number of the interface; null when the file does not describe it"),
    ("packet_len", LONG, "bytes of the packet on the wire"),
    ("captured_len", LONG, "of these, bytes captured"),
    (
        "encapsulation",
        STRING,
        "what the packet was wrapped in, outermost first: 'vxlan vni=42', 'gre key=7 / 6in4'; of an MPLS stack the ",
        "bottom label; null when bare. All columns below are of the packet inside",
    ),
    ("src_ip", STRING, "address of the sender; null without an IP header"),
    ("src_port", INT, "TCP port of the sender; null without TCP, like the columns below"),
    ("dst_ip", STRING, "address of the receiver"),
    ("dst_port", INT, "TCP port of the receiver"),
    ("tcp_flags", INT, "FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE 64, CWR 128, NS 256"),
    ("seq", LONG, "sequence number as on the wire"),
    ("ack", LONG, "acknowledgement number as on the wire"),
    ("window", INT, "window as on the wire, not scaled"),
    ("wire_len", LONG, "TCP payload bytes on the wire, from the IP length"),
    ("cap_len", LONG, "of these, bytes captured"),
    ("payload", BINARY, "TCP payload captured; of a whole datagram on the fragment that completed it"),
    ("skipped", STRING, "why there is no TCP segment: 'udp', 'arp', 'ip-fragment' ...; null with TCP"),
    ("error", STRING, "why reading stopped: a last row of the file, with nothing else but capture_file"),
)

# Segments of a flow, coalesced for the shuffle; and the account of each split of a capture.
TCP_RUNS = table(
    ("flow", BINARY, "flow key: low IP 16, high IP 16, low port 2, high port 2 bytes; null on accounts"),
    ("order_ns", LONG, "running maximum of capture times at the first segment; null on accounts"),
    ("capture_file", STRING, "URI of the capture"),
    ("first_packet_no", LONG, "packet number of the first segment; null on accounts"),
    ("segments", BINARY, "records of codec.net.segments.SEGMENT end to end, both directions"),
    ("payload", BINARY, "captured TCP payloads end to end; null: segments say where in the file"),
    ("account", STRING, "JSON of what the split held; null on runs"),
    ("processes", STRINGS, "JSON of each process that these packets are about; null: none"),
    ("sightings", BINARY, "when they are: records of udfs.decode.processes.SIGHTING end to end; null: none"),
)

# Runs of a flow are decoded in this order, however the captures were split and their runs cut.
RUN_ORDER = ("flow", "order_ns", "capture_file", "first_packet_no")

# What workers return beside the tables.
ACCOUNTS = "accounts"  # what each split of a capture held: DECODED rows of kind 'capture'
STATES = "states"  # of connections that are still open (`udfs.tables`)
STREAM_QUEUES = "stream_queues"  # queues that are streams, by their declaration
FACT = "\0"  # between the parts of a fact about a stream (`udfs.conversation.methods.STREAMS`)


@dataclass(frozen=True)
class Config:
    """What workers make of frames. `schemas`: columns of each table; `payload`: with the bytes of content bodies;
    `tables`: the wanted ones."""

    schemas: Mapping[str, StructType]
    payload: bool
    tables: frozenset[str]
