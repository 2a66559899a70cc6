"""One direction of a TCP connection: its record, and the arrays with its bytes.

Bytes in order are in `bytes[pos:end]` until the framing consumes them; `marks` have the packet of each byte. Later data
waits in `pieces` (sorted, disjoint), its bytes in `pool`. A function that finds an array too small returns `NEED_*`
with nothing changed: the caller enlarges the array and calls again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.memory import as_records
from codec.stalls import FIELDS, TCP_KINDS

DONE, NEED_BYTES, NEED_MARKS, NEED_PIECES, NEED_POOL, NEED_ROWS = range(6)
TOO_SMALL = {NEED_BYTES: "bytes", NEED_MARKS: "marks", NEED_PIECES: "pieces", NEED_POOL: "pool"}  # arrays of a `Stream`

# Modes of the framing of a direction (codec.amqp.stream).
START, FRAMES, INSIDE, LOST, TLS, FOREIGN = range(6)

# Of a segment in the ring: stream offsets, time, packet, what tells it from a copy.
SENT_FIELDS = ("sent_start", "sent_end", "sent_ns", "sent_packet", "sent_id", "sent_file")
SENT = 16  # segments that are not acknowledged are known one by one

COUNTERS = (
    "packets", "payload_bytes", "retransmitted_bytes", "out_of_order", "missing_bytes", "conflicting_bytes",
    "last_data_ns", "max_silence_ns",
)  # fmt: skip
LEDGER = (  # bytes of the stream by their rows
    "frame_bytes", "skipped_bytes", "tls_bytes", "websocket_bytes", "decrypted_bytes", "foreign_bytes", "tail_bytes",
)  # fmt: skip
PARTIAL_FRAME = ("frame_size", "frame_type", "frame_channel", "frame_class", "frame_method", "frame_body_size")
DIRECTION = np.dtype(
    [
        ("anchored", "u1"),  # offset 0 is known
        *((name, "u1") for name in ("syn", "fin", "rst")),
        ("seq", "i8"),  # sequence number of the byte at `next`
        ("next", "i8"),  # stream offset of the next byte expected
        ("acked", "i8"),  # stream offset up to which the peer acknowledged
        ("hole_at", "i8"),  # stream offset of the hole that the peer acknowledged past, waiting for late copies
        ("hole_ns", "i8"),  # since when, in order_ns and
        ("hole_arrival", "i8"),  # in segments of the connection
        ("cut_end", "i8"),  # the snaplen cut off everything up to this stream offset
        ("lost_end", "i8"),  # bytes before this stream offset are missing although no snaplen cut them off (layers)
        ("highest", "i8"),  # stream offset after the furthest captured byte
        ("fin_at", "i8"),  # stream offset of the FIN, -1 unknown
        ("retained_from", "i8"),  # bytes[retained_from:pos] were consumed and remain for comparison with late copies
        ("pos", "i8"),  # bytes[pos:end] wait for the framing; bytes[end] will be the byte at `next`
        ("end", "i8"),
        ("latest_arrival", "i8"),  # the last packet to arrive of those with bytes since the last hole
        ("latest_packet_no", "i8"),
        ("latest_ns", "i8"),
        ("latest_file", "i4"),
        ("mark_from", "i8"),
        ("mark_end", "i8"),
        ("wait_from", "i8"),  # marks[wait_from:mark_end] wait for bytes that they acknowledge (codec.tcp.reassembly)
        ("ready", "i8"),  # stream offset up to which the framing may read
        ("waived", "i8"),  # stream offset of the peer: nothing waits any longer for its bytes before this
        ("early", "i8"),  # stream offset of the peer: bytes were read without its bytes before this
        ("expected_seq", "i8"),  # sequence number of offset 0 that the peer's SYN-ACK acknowledged, -1 unknown
        ("outside_ack", "i8"),  # the latest sequence number acknowledged outside of the window, -1 none
        # of a direction without captured bytes, by the acknowledgements of the peer
        ("unseen_seq", "i8"),  # the latest sequence number acknowledged, -1 none
        ("unseen_bytes", "i8"),  # bytes acknowledged since the first one
        ("piece_from", "i8"),  # pieces[piece_from:piece_end] wait, sorted by start, disjoint
        *((name, "i8") for name in ("piece_end", "pool_end", "pool_live")),
        # transport facts
        *((name, "i8") for name in COUNTERS),
        ("zero_window_ns", "i8"),  # time in which it announced a receive window of zero
        ("closed_window_ns", "i8"),  # when the receive window became zero, -1: it is open
        *((name, "i8", (TCP_KINDS,)) for name in FIELDS),  # `codec.stalls`, of what this side could not send
        # segments with data that are not acknowledged, as a ring: `sent_count` from `sent_at` on; the last one stands
        # for several if there are more
        *((name, "i8", (SENT,)) for name in SENT_FIELDS),
        ("sent_at", "i8"),
        ("sent_count", "i8"),
        ("sent_to", "i8"),  # stream offset after all data so far
        ("last_sent_packet", "i8"),  # the last packet with data: of `last_data_ns`
        ("last_sent_file", "i8"),
        ("last_sent_id", "i8"),
        ("last_sent_size", "i8"),
        ("largest_sent", "i8"),  # data of the largest segment
        ("all_acked_ns", "i8"),  # when an acknowledgement without data acknowledged all, -1: data came since
        ("ordered", "u1"),  # its segments come out of layers, not as they were captured
        ("limits", "i8"),  # reached, see codec.compiler.limits.REACHED
        # the byte ledger
        *((name, "i8") for name in LEDGER),
        ("outside_bytes", "i8"),  # beside the stream: payload of RST segments, and of those outside of any window
        # framing
        ("mode", "i8"),
        ("final", "u1"),  # a hole or the end follows the current bytes
        ("closed", "u1"),
        ("proxy_bytes", "i8"),  # of the header of the PROXY protocol at the start of the stream, 0 none
        ("preamble_bytes", "i8"),  # of another protocol, between that header and AMQP
        ("in_preamble", "u1"),  # LOST: nothing of AMQP was found yet
        ("header_version", "i8"),  # code of the last protocol header, 0: none, or of no version
        # of a direction that answers in a version of its own: what `connection` has of the other one meanwhile
        *((name, "i8") for name in ("kept_version", "kept_family", "kept_known", "kept_scoring")),
        ("scanned", "i8", 4),  # START, LOST, by family: none of its frames begins before this stream offset
        ("holes", "i8"),  # holes so far: framing after the first one may have lost the start
        ("frame_end", "i8"),  # INSIDE: stream offset at which the frame that lost bytes ends
        ("frame_seen", "i8"),  # INSIDE: captured bytes of it
        *((name, "i8") for name in PARTIAL_FRAME),
        ("frame_from", "i8"),  # stream offset of its first byte
        ("frame_stored", "i8"),  # number of its octets in State.partial, all before the first missing byte
        # the open span: its first and last packet
        ("span_from", "i8"),  # stream offset, -1 none
        *((name, "i8") for name in ("span_first_packet", "span_first_ns", "span_packet", "span_ns")),
        ("span_file", "i4"),
        ("span_notes", "i8"),  # notes on the lost frame boundary (codec.amqp.notes)
        ("foreign_head", "i8"),  # the first four octets of a foreign stream of a known protocol, plus 1; 0: none
        ("token_link", "i8"),  # key of the link to $cbs, plus 1; see codec.amqp.v1_0.tokens
        ("tls_prefix", "i8"),  # number of stored bytes of the beginning of a TLS stream
    ],
    align=True,
)

MARK = np.dtype(
    [
        ("end", "i8"),  # stream offset after the bytes of this packet
        ("packet_no", "i8"),
        ("ts_ns", "i8"),
        ("ready_packet_no", "i8"),  # the packet that completed them and all bytes before them
        ("ready_ns", "i8"),
        ("needs", "i8"),  # stream offset of the peer that this packet acknowledged
        ("since_arrival", "i8"),  # when they were in order, in segments of the connection
        ("since_ns", "i8"),  # and in order_ns
        ("file", "i4"),
        ("ready_file", "i4"),
    ],
    align=True,
)
PIECE = np.dtype(
    [
        ("start", "i8"),
        ("length", "i8"),
        ("cut", "i8"),  # bytes after them that the snaplen cut off
        ("pool_at", "i8"),
        ("arrival", "i8"),
        ("packet_no", "i8"),
        ("ts_ns", "i8"),
        ("needs", "i8"),  # stream offset of the peer that its packet acknowledged
        ("file", "i4"),
    ],
    align=True,
)


class Stream(NamedTuple):
    """The arrays of one direction. `bytes`, `pool`: uint8; `marks`: MARK; `pieces`: PIECE records."""

    bytes: np.ndarray
    marks: np.ndarray
    pieces: np.ndarray
    pool: np.ndarray


def new_stream(size: int = 1 << 18, marks: int = 1 << 12, pieces: int = 64, pool: int = 1 << 16) -> Stream:
    """Arrays for one direction: `size` and `pool` in bytes, `marks` and `pieces` in records."""
    return Stream(
        np.zeros(size, np.uint8),
        as_records(np.zeros(marks, MARK)),
        as_records(np.zeros(pieces, PIECE)),
        np.zeros(pool, np.uint8),
    )


def enlarged(array: np.ndarray, factor: int = 2) -> np.ndarray:
    """A copy of `array` with `factor` times the room, the new part zero."""
    fresh = np.zeros((len(array) * factor, *array.shape[1:]), array.dtype)
    fresh[: len(array)] = array
    return fresh


def enlarge_stream(streams: tuple[Stream, Stream], code: int, direction: int) -> tuple[Stream, Stream]:
    """The streams with twice the room in the array that `code` (NEED_*) names: of one direction, of both when -1."""
    name = TOO_SMALL[code]
    first, second = (
        stream._replace(**{name: enlarged(getattr(stream, name))}) if direction in (-1, side) else stream
        for side, stream in enumerate(streams)
    )
    return first, second
