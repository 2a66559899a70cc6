"""Every limit of the decoder, each with its reason.

Reaching a limit never raises and never loses data silently: a row (status, error, a skipped span), the `limits` fact of
the connection (REACHED) or the account of the capture shows it, or the comment has the alternative. The values are
compiled into the kernels; a change of this file compiles them again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on what wire bytes may cost. Sizes in bytes, times in nanoseconds."""

    # A run is the unit of the shuffle: large enough for few rows, small enough for many in flight.
    run_bytes: int = 256 * 1024
    run_segments: int = 8192
    # Read block of the capture readers: one batch of work for the kernels, well inside the L2 + page cache.
    block_bytes: int = 8 * 1024 * 1024
    # Plain files above this, and above 1/64 of all captures, are read in several splits. A task of Spark costs what
    # reading 30 MB costs.
    split_bytes: int = 256 * 1024 * 1024
    # A damaged capture may claim any record length; no link carries frames this long (Wireshark's bound is the same
    # order).
    record_bytes: int = 16 * 1024 * 1024
    # Interfaces of a section of a pcapng; obsolete packet blocks can number no more. Packets of others are skipped.
    interfaces: int = 65_536
    # Processes of a capture that are told apart (of the further ones nothing is known), blocks that describe them, and
    # different comments about them: a machine that starts one a second makes so many in four hours ...
    processes: int = 16_384
    # ... and bytes of each of their names; the longest one is that of a Kubernetes pod.
    process_text_bytes: int = 253
    # Compressed captures: a bomb expands by more than this without end; a real capture compresses 3 to 30 times.
    expansion_ratio: int = 1000
    # The ratio is checked above this size: a small, repetitive capture is not a bomb.
    expansion_grace: int = 64 * 1024 * 1024
    # Bytes of later data stored while an earlier segment is awaited, per direction; a full 10 Gbit/s * 13 ms window.
    reorder_bytes: int = 16 * 1024 * 1024
    # Stored pieces per direction, so that inserting in order remains cheap with 1-byte segments.
    reorder_segments: int = 4096
    # How long a hole that the peer has acknowledged past is still awaited: captures of several queues or interfaces
    # swap packets by microseconds, two sniffers of the same traffic differ by some tens of milliseconds ...
    reorder_ns: int = 1_000_000_000
    # ... or so many segments of the connection, whichever comes first.
    reorder_patience: int = 256
    # How long bytes wait for those of the other direction that their packet acknowledged and that are not there yet:
    # far more than two interfaces of a machine differ, or the clocks of two sniffers that are set by a server ...
    ack_ns: int = 10_000_000_000
    # ... or so many segments of the connection, or `reorder_bytes` that wait, whichever comes first.
    ack_segments: int = 1 << 14
    # Encapsulations of one packet around its innermost IP header: a mirrored (1) overlay (2) across a provider (3).
    tunnels: int = 4
    # Headers of one packet below TCP, tags and extension headers included; real stacks stay below 12.
    packet_headers: int = 32
    # Connections with the same addresses and ports at a time that VLANs, tunnels or interfaces tell apart, and how many
    # of these one connection may pass through; the last one takes the packets of all others.
    address_spaces: int = 16
    # Bytes of them in memory that wait for the end of the first one; more are in a temporary file.
    waiting_spaces_bytes: int = 64 * 1024 * 1024
    # Packets of the file after its first fragment that a datagram waits for the others, and is known afterwards so
    # that late copies begin no new one: fragments are sent back to back, several capture queues mix some hundred.
    fragment_packets: int = 4096
    # Datagrams that wait at a time, each in 64 KB (unused pages are never touched): 16 MB.
    fragment_datagrams: int = 256
    # A frame is buffered whole to decode it; larger ones (no frame_max in practice is higher) are malformed.
    frame_bytes: int = 16 * 1024 * 1024
    # Bytes stored of a frame up to its first missing byte, to decode them: more than a usual snaplen leaves, and more
    # than arguments and properties have.
    partial_bytes: int = 64 * 1024
    # Larger sizes are implausible: negotiated are 128 KB to a few MB, and bytes that are not a size field are above
    # this in 31 of 32 cases.
    plausible_frame_bytes: int = 128 * 1024 * 1024
    # Nesting of field tables, arrays, maps, described values. RabbitMQ and Qpid nest fewer than 10.
    nesting_depth: int = 64
    # A decoded value as VARIANT; Spark refuses larger ones.
    variant_bytes: int = 16 * 1024 * 1024
    # Slots of a value's dictionary that are probed for a key; a key that is not found is stored again, so that
    # colliding keys cannot make the search long.
    key_probes: int = 32
    # Segments of 0-10 that came in several frames and wait for their last one, on all channels of a connection.
    segment_bytes: int = 16 * 1024 * 1024
    # Deliveries of 1.0 that came in several transfers and wait for their last one, per direction.
    open_deliveries: int = 32768
    # Slots that are probed for a delivery; a delivery without a free slot is not joined.
    delivery_probes: int = 32
    # Sections around the bodies of these deliveries, stored for the last transfer, per direction.
    delivery_bytes: int = 8 * 1024 * 1024
    # Bytes of a section of 1.0 before its contents: descriptor, constructor, size; 20 are usual. More are malformed.
    section_head_bytes: int = 64
    # Bytes of a stream without protocol header that are searched for frames before it is declared foreign.
    detect_bytes: int = 1024 * 1024
    # Spans of such a stream, captured and missing in turn, after which it is declared foreign as well.
    detect_spans: int = 30
    # Table entries, and sections of a 0-10 header, that are checked to detect a frame: so many in a row are no
    # coincidence, and thousands of forged frame headers may share one long table.
    detect_entries: int = 64
    # Consumed bytes in the buffer for comparison with late copies: the largest TCP window without scaling. Older copies
    # are not compared.
    copy_bytes: int = 64 * 1024
    # Larger frames are not searched for where a boundary was lost before frame_max is known: no broker accepts more
    # than 128 KiB by default.
    guessed_frame_bytes: int = 1024 * 1024
    # Rows withheld until one identifies the client, or the version; after them the ports decide.
    unresolved_rows: int = 256
    # Protocol headers, and versions in connection.start, stored of a connection; the frames have all of them.
    offers: int = 8
    # First bytes of each direction of a TLS stream, which have its hello; a longer hello is not read.
    hello_bytes: int = 4096
    # A message of a TLS handshake, such as a chain of certificates; a longer one is not read.
    handshake_bytes: int = 64 * 1024
    # 0-RTT data that wait until the server accepts them: servers accept 16 KB by default. More are a hole.
    early_bytes: int = 64 * 1024
    # Bytes that may be decrypted by trial after losses and with secrets that may not fit, where a trial counts as 4 KB
    # more than its record: this much of each connection ...
    trial_grace: int = 2 * 1024 * 1024
    # ... and so many bytes for each byte captured.
    trial_rate: int = 32
    # Numbers that are tried for the first record after a loss: 64 MB of usual records.
    trial_records: int = 4096
    # Secrets of one label that are tried for one client random, which is no secret: anybody may write others beside the
    # genuine one into a capture. The first ones of all files come before the second ones.
    secret_candidates: int = 16
    # Lines of the Decryption Secrets Blocks of one capture: a worker has them in memory. A key log may have any number.
    secret_lines: int = 1 << 20
    # Connections of a key log, the newest ones, whose secrets are tried on one that began before the capture ...
    trial_connections: int = 32
    # ... and numbers that are tried for a record of it, over all these secrets.
    trial_numbers: int = 1 << 18
    # Bytes of a connection that wait for the first bytes of a layer; after them the connection has no layer.
    layer_bytes: int = 256 * 1024
    # The WebSocket request, and its response, with headers: web servers accept 8 to 16 KB.
    upgrade_bytes: int = 16 * 1024
    # Larger frames of WebSocket are not searched for where a boundary was lost.
    websocket_frame_bytes: int = 16 * 1024 * 1024
    # A compressed message of WebSocket, compressed or inflated: no frame of AMQP is larger, see `frame_bytes`.
    inflate_bytes: int = 16 * 1024 * 1024
    # All compressed messages of a direction may expand to this many times their size; repetitive JSON compresses 10 to
    # 50 times, zeros 1000 times ...
    inflate_ratio: int = 100
    # ... and to so many bytes more: the first messages may be large and repetitive.
    inflate_grace: int = 256 * 1024
    # A Decryption Secrets Block: 300,000 lines of a key log. A longer one is skipped.
    secrets_bytes: int = 64 * 1024 * 1024
    # Messages of one connection that wait for settlement, return, or the end of their transaction, and commands of 0-10
    # that wait for their reply; above that the oldest are written with outcome 'unknown', or without a reply. Brokers
    # throttle far below.
    outstanding_messages: int = 1 << 21
    # Messages in a batch of Azure, which has at most 1 MB; one with more is one message. As many are decoded at a time.
    batch_messages: int = 65536
    # The body of a management request over 1.0, or of its reply, that is decoded: declarations take some hundred bytes.
    management_bytes: int = 4096
    # Queues of one connection whose declared types are remembered, those declared last: clients that declare all they
    # use declare some thousand, others one for each request. Consumers of earlier queues have no `queue_type`.
    queue_types: int = 4096
    # Connections of one flow that begin with equal packets are distinguished among this many later ones.
    flow_openings: int = 4096
    # A shorter stall has no row: a receive window, or the credit of a link, is often used up for some microseconds.
    stall_ns: int = 1_000_000
    # A stall goes on after a shorter break: the next message is delivered some hundred microseconds after the last one
    # was acknowledged. A longer one is bridged ...
    stall_break_ns: int = 1_000_000
    # ... if it is less than a quarter of the stall before it, and shorter than this.
    stall_longest_break_ns: int = 50_000_000
    # A request that is answered later did not get on: brokers answer within some milliseconds.
    answer_ns: int = 1_000_000_000
    # An acknowledgement that came later was delayed, so that a small segment may have waited for it (Nagle): Linux
    # delays them by 40 ms, others by up to 200 ms ...
    delayed_ack_ns: int = 10_000_000
    # ... and the segment follows at once, within the time that packets take to its sender and back, and this.
    nagle_ns: int = 1_000_000
    # A segment that fills a hole within this time, or within the round trip time, was overtaken, not sent again; as
    # Wireshark has it.
    overtaken_ns: int = 3_000_000
    # A copy of a segment within this time is one packet that was captured twice, if neither IP nor TCP tell (see
    # `codec.net.layers`): two sniffers differ by so much, and a sender waits 200 ms for an acknowledgement.
    duplicate_ns: int = 20_000_000
    # Silences of a direction that are compared with what its side promised: heartbeats are stated in seconds.
    silence_ns: int = 1_000_000_000
    # Publishes of one key that are compared with a delivery. Without a match among them the delivery, and all
    # deliveries of its queue with that key, are ambiguous.
    pairing_probes: int = 1024


LIMITS = Limits()

# Limits that a connection reached, as in `connections.limits`; records have a bitmask of these.
REACHED = (
    "reorder window",  # reorder_bytes, reorder_segments
    "segment out of window",  # RFC 7323, section 2.3
    "frame size",  # frame_bytes
    "decoded value size",  # variant_bytes
    "nesting depth",  # nesting_depth
    "search for frames",  # detect_bytes, detect_spans
    "segment size",  # segment_bytes
    "open deliveries",  # open_deliveries, delivery_probes
    "delivery size",  # delivery_bytes, batch_messages
    "protocol headers",  # offers
    "hello size",  # hello_bytes
    "outstanding messages",  # outstanding_messages
    "handshake size",  # handshake_bytes, layer_bytes
    "early data size",  # early_bytes
    "trial decryption",  # trial_grace, trial_rate
    "order of both sides",  # ack_ns, ack_segments, reorder_bytes
    "inflated size",  # inflate_bytes, inflate_ratio, inflate_grace
)
(
    REORDER_WINDOW, STRAY_SEGMENT, FRAME_SIZE, VALUE_SIZE, NESTING, SEARCH, SEGMENT_SIZE, OPEN_DELIVERIES,
    DELIVERY_SIZE, PROTOCOL_HEADERS, HELLO_SIZE, OUTSTANDING, HANDSHAKE, EARLY_DATA, TRIAL, ORDER_OF_SIDES, INFLATED,
) = (1 << bit for bit in range(len(REACHED)))  # fmt: skip
