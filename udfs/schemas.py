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


def field(name: str, data_type: DataType, comment: str) -> StructField:
    """A nullable column with its documentation."""
    return StructField(name, data_type, True, {"comment": comment})


def columns(schema: StructType, *names: str) -> StructType:
    return StructType([schema[name] for name in names])


# One row per frame, or per span of bytes outside of frames. The decoder fills the columns in this order.
FRAMES = StructType(
    [
        field("connection_id", LongType(), "TCP connection, the same number for any partitioning; joins all tables"),
        field("frame_no", LongType(), "1-based order in which frames completed within the connection, both directions"),
        field("sender", StringType(), "'client' or 'server'"),
        field("ts", TimestampType(), "when the packet that completed the frame was captured, UTC, microseconds"),
        field("ts_ns", LongType(), "the same, nanoseconds since 1970-01-01 UTC"),
        field("first_ts_ns", LongType(), "capture time of the packet that began the frame, ns since 1970-01-01 UTC"),
        field("capture_file", StringType(), "URI of the capture that holds packet_no"),
        field("first_packet_no", LongType(), "packet that began the frame, 1-based as Wireshark's frame.number"),
        field("packet_no", LongType(), "packet that completed the frame, 1-based as Wireshark's frame.number"),
        field("stream_offset", LongType(), "0-based offset of the frame in the bytes of its sender"),
        field("size", LongType(), "bytes of the whole frame with its overhead; missing bytes of a 'gap'"),
        field("version", StringType(), "'0-8' '0-9' '0-9-1' '0-10' '1.0'; null when not known"),
        field("version_known", BooleanType(), "true: from a protocol header or connection.start; false: inferred"),
        field("channel", IntegerType(), "channel number as on the wire; null outside of frames"),
        field(
            "frame_type",
            StringType(),
            "protocol-header method header body heartbeat oob-method oob-header oob-body trace | 0-10 control command "
            "header body | 1.0 amqp sasl empty | spans: tls gap skipped foreign",
        ),
        field("class_id", IntegerType(), "class of a method or content header; null elsewhere"),
        field("method_id", IntegerType(), "method within its class; null elsewhere"),
        field(
            "code",
            LongType(),
            "descriptor of a 1.0 performative; 4 octets after AMQP of a protocol header; first 4 of HTTP, SSH, TLS",
        ),
        field(
            "name", StringType(), "'basic.publish', 'message.transfer', 'transfer'; the class name on content headers"
        ),
        field("arguments", VariantType(), "decoded arguments by field name, '_' for '-'; credentials left out"),
        field("properties", VariantType(), "decoded content properties by name; on content headers"),
        field("body_size", LongType(), "content bytes that a content header declares"),
        field("payload_size", LongType(), "bytes inside the frame: content bytes of a body"),
        field("payload", BinaryType(), "the content bytes themselves; only with the option for payloads"),
        field(
            "status", StringType(), "'ok' 'partial' (bytes missing) 'malformed' (octets break the protocol) 'unknown'"
        ),
        field("error", StringType(), "what is wrong, when status is not 'ok'"),
        field(
            "notes",
            ArrayType(StringType()),
            "oddities of the octets: 'octets-left' 'reserved-set' 'weight' ...; null: none",
        ),
        field("content_frame_no", LongType(), "frame_no of the method whose content this frame carries or announces"),
        field(
            "body_sha256",
            StringType(),
            "lower-case hex, on the frame that completes a content, if it was captured completely",
        ),
    ]
)

# What is known of one direction of a TCP connection: the byte ledger.
LEDGER = StructType(
    [
        field("packets", LongType(), "packets captured in this direction"),
        field("payload_bytes", LongType(), "bytes of the stream captured; the sum of the next six"),
        field("frame_bytes", LongType(), "of them in frames and protocol headers"),
        field("skipped_bytes", LongType(), "of them outside of frames, because a frame boundary was lost"),
        field(
            "tls_bytes",
            LongType(),
            "of them encrypted; of a decrypted connection the overhead: record headers and authentication codes, "
            "handshake, and what could not be decrypted",
        ),
        field("websocket_bytes", LongType(), "of them WebSocket: upgrade, frame headers, control frames"),
        field("foreign_bytes", LongType(), "of them of another protocol"),
        field("tail_bytes", LongType(), "of them in a last frame that the capture does not complete"),
        field("decrypted_bytes", LongType(), "bytes after decryption; their contents are counted above"),
        field("missing_bytes", LongType(), "bytes of the stream that were sent and not captured"),
        field("retransmitted_bytes", LongType(), "bytes captured more than once"),
        field(
            "outside_bytes",
            LongType(),
            "payload that is not part of the stream: on RST packets (which may state a reason), or outside of the TCP "
            "window",
        ),
        field("out_of_order_segments", LongType(), "segments that came before an earlier part of the stream"),
        field("max_silence_ns", LongType(), "longest time between two packets of this direction, ns"),
        field(
            "zero_window_ns",
            LongType(),
            "time during which the TCP receive window of this side was closed, because it did not read, ns",
        ),
    ]
)
CERTIFICATE = StructType(
    [
        field("subject", StringType(), "subject (RFC 4514)"),
        field("issuer", StringType(), "issuer"),
        field("not_after", TimestampType(), "end of its validity"),
    ]
)
# What is known of the encryption of a connection.
TLS_FACTS = StructType(
    [
        field("mode", StringType(), "'implicit' (from the first byte), 'upgraded' (after an AMQP protocol header)"),
        field("version", StringType(), "version agreed on"),
        field("cipher_suite", StringType(), "cipher suite agreed on"),
        field("sni", StringType(), "server name that the client asked for"),
        field("alpn", StringType(), "application protocol"),
        field("resumed", BooleanType(), "an earlier session was resumed"),
        field("decrypted", BooleanType(), "plain bytes were decrypted"),
        field("server_certificate", CERTIFICATE, "the server's, where it was seen in clear or decrypted"),
        field("client_certificate", CERTIFICATE, "the client's, likewise"),
    ]
)
# What is known of a TCP connection when it has ended, besides what it shares with frames.
FACTS = StructType(
    [
        field("client_ip", StringType(), "address of the client"),
        field("client_port", IntegerType(), "port of the client"),
        field("server_ip", StringType(), "address of the server"),
        field("server_port", IntegerType(), "port of the server"),
        field("community_id", StringType(), "Community ID, version 1"),
        field("capture_file", StringType(), "capture that holds the first packet"),
        field("opened_ts_ns", LongType(), "first packet"),
        field("closed_ts_ns", LongType(), "last packet"),
        field("tcp_rtt_ns", LongType(), "SYN to the acknowledgement of the server's SYN"),
        field("tcp_end", StringType(), "'fin' 'rst' 'none'"),
        field("tcp_end_by", StringType(), "who sent it"),
        field("syn_seen", BooleanType(), "the SYN of the client was captured"),
        field("sides_known_by", StringType(), "'syn' 'header' 'method' 'port'"),
        field("content", StringType(), "'amqp' 'tls' 'foreign' 'none'"),
        field("versions_offered", ArrayType(StringType()), "protocol headers, 'client 0-9-1'"),
        field("tls", TLS_FACTS, "null without TLS"),
        field("transport", StringType(), "'tcp' 'tls' 'websocket' 'websocket+tls'"),
        field("unread_because", StringType(), "why nothing, or nothing more, of TLS or WebSocket was read"),
        field("conflicting_overlap_bytes", LongType(), "bytes captured again with another value"),
        field("limits", ArrayType(StringType()), "limits of the decoder that were reached"),
        field("client", LEDGER, "what the client sent"),
        field("server", LEDGER, "what the server sent"),
    ]
)

# What the decoder emits: frames, one row of facts a TCP connection, and the accounts of the splits that were read.
DECODED = StructType(
    [
        field("kind", StringType(), "'frame', 'connection' (with facts) or 'capture' (account in arguments)"),
        *FRAMES.fields,
        # A null array takes no room in Arrow; a null struct takes that of all its fields.
        field("facts", ArrayType(FACTS), "of a connection, one element; null on other rows"),
    ]
)

# Source "pcap": one row a packet, for people.
PACKETS = StructType(
    [
        field("capture_file", StringType(), "URI of the capture"),
        field("packet_no", LongType(), "1-based position in the file, as Wireshark's frame.number"),
        field("ts", TimestampType(), "when the packet was captured, UTC, microseconds"),
        field("ts_ns", LongType(), "the same, nanoseconds since 1970-01-01 UTC"),
        field("link_type", IntegerType(), "LINKTYPE_ number of the interface; null when the file does not describe it"),
        field("packet_len", LongType(), "bytes of the packet on the wire"),
        field("captured_len", LongType(), "of these, bytes captured"),
        field(
            "encapsulation",
            StringType(),
            "what the packet was wrapped in, outermost first: 'vxlan vni=42', 'gre key=7 / 6in4'; of an MPLS stack the "
            "bottom label; null when bare. All columns below are of the packet inside",
        ),
        field("src_ip", StringType(), "address of the sender; null without an IP header"),
        field("src_port", IntegerType(), "TCP port of the sender; null without TCP, like the columns below"),
        field("dst_ip", StringType(), "address of the receiver"),
        field("dst_port", IntegerType(), "TCP port of the receiver"),
        field("tcp_flags", IntegerType(), "FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE 64, CWR 128, NS 256"),
        field("seq", LongType(), "sequence number as on the wire"),
        field("ack", LongType(), "acknowledgement number as on the wire"),
        field("window", IntegerType(), "window as on the wire, not scaled"),
        field("wire_len", LongType(), "TCP payload bytes on the wire, from the IP length"),
        field("cap_len", LongType(), "of these, bytes captured"),
        field("payload", BinaryType(), "TCP payload captured; of a whole datagram on the fragment that completed it"),
        field("skipped", StringType(), "why there is no TCP segment: 'udp', 'arp', 'ip-fragment' ...; null with TCP"),
        field("error", StringType(), "why reading stopped: a last row of the file, with nothing else but capture_file"),
    ]
)

# Segments of a flow, coalesced for the shuffle; and the account of each split of a capture.
TCP_RUNS = StructType(
    [
        field("flow", BinaryType(), "flow key: low IP 16, high IP 16, low port 2, high port 2 bytes; null on accounts"),
        field("order_ns", LongType(), "running maximum of capture times at the first segment; null on accounts"),
        field("capture_file", StringType(), "URI of the capture"),
        field("first_packet_no", LongType(), "packet number of the first segment; null on accounts"),
        field("segments", BinaryType(), "records of codec.net.segments.SEGMENT end to end, both directions"),
        field("payload", BinaryType(), "captured TCP payloads end to end; null: segments say where in the file"),
        field("account", StringType(), "JSON of what the split held; null on runs"),
    ]
)

# Runs of a flow are decoded in this order, however the captures were split and their runs cut.
RUN_ORDER = ("flow", "order_ns", "capture_file", "first_packet_no")

# What workers return beside the tables.
ACCOUNTS = "accounts"  # what each split of a capture held: DECODED rows of kind 'capture'
STATES = "states"  # of connections that are still open (`udfs.tables`)
STREAM_QUEUES = "stream_queues"  # queues that are streams, by their declaration


@dataclass(frozen=True)
class Config:
    """What workers make of frames. `schemas`: columns of each table; `payload`: with the bytes of content bodies;
    `tables`: the wanted ones."""

    schemas: Mapping[str, StructType]
    payload: bool
    tables: frozenset[str]
