"""One direction of a TCP connection: its record, and the arrays with its bytes.

Bytes in order are in `bytes[pos:end]` until the framing consumes them; `marks` have the packet of each byte. Later data
waits in `pieces` (sorted, disjoint), its bytes in `pool`. A function that finds an array too small returns `NEED_*`
with nothing changed: the caller enlarges the array and calls again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

DONE, NEED_BYTES, NEED_MARKS, NEED_PIECES, NEED_POOL, NEED_ROWS = range(6)

# Modes of the framing of a direction (codec.amqp.stream).
START, FRAMES, INSIDE, LOST, TLS, FOREIGN = range(6)

DIRECTION = np.dtype(
    [
        ("anchored", "u1"),  # offset 0 is known
        ("syn", "u1"),
        ("fin", "u1"),
        ("rst", "u1"),
        ("seq", "i8"),  # sequence number of the byte at `next`
        ("next", "i8"),  # stream offset of the next byte expected
        ("acked", "i8"),  # stream offset up to which the peer acknowledged
        ("doubt_at", "i8"),  # stream offset of the hole that the peer acknowledged past, waiting for late copies
        ("doubt_ns", "i8"),  # since when, in order_ns and
        ("doubt_arrival", "i8"),  # in segments of the connection
        ("cut_end", "i8"),  # the snaplen cut off everything up to this stream offset
        ("highest", "i8"),  # stream offset after the furthest byte seen
        ("fin_at", "i8"),  # stream offset of the FIN, -1 unknown
        ("kept", "i8"),  # bytes[kept:pos] were consumed and remain for comparison with late copies
        ("pos", "i8"),  # bytes[pos:end] wait for the framing; bytes[end] will be the byte at `next`
        ("end", "i8"),
        ("latest_arrival", "i8"),  # of the packets that brought the bytes since the last hole: the last one to arrive
        ("latest_packet_no", "i8"),
        ("latest_ns", "i8"),
        ("latest_file", "i4"),
        ("mark_from", "i8"),
        ("mark_end", "i8"),
        ("gate", "i8"),  # marks[gate:mark_end] wait for bytes that they acknowledge (codec.tcp.reassembly)
        ("ready", "i8"),  # stream offset up to which the framing may read
        ("waived", "i8"),  # stream offset of the peer up to which nothing waits for its bytes any more
        ("early", "i8"),  # stream offset of the peer whose bytes before it were not waited for long enough
        ("promised", "i8"),  # sequence number of offset 0 that the peer's SYN-ACK acknowledged, -1 unknown
        ("piece_from", "i8"),  # pieces[piece_from:piece_end] wait, sorted by start, disjoint
        ("piece_end", "i8"),
        ("pool_end", "i8"),
        ("pool_live", "i8"),
        # transport facts
        ("packets", "i8"),
        ("payload_bytes", "i8"),
        ("retransmitted_bytes", "i8"),
        ("out_of_order", "i8"),
        ("missing_bytes", "i8"),
        ("conflicting_bytes", "i8"),
        ("last_data_ns", "i8"),
        ("max_silence_ns", "i8"),
        ("zero_window_ns", "i8"),  # time in which it announced a receive window of zero
        ("shut_ns", "i8"),  # since when it announces one, -1: the window is open
        ("limits", "i8"),  # reached, see codec.compiler.limits.REACHED
        # the byte ledger
        ("frame_bytes", "i8"),
        ("skipped_bytes", "i8"),
        ("tls_bytes", "i8"),
        ("websocket_bytes", "i8"),
        ("decrypted_bytes", "i8"),
        ("foreign_bytes", "i8"),
        ("tail_bytes", "i8"),
        ("outside_bytes", "i8"),  # beside the stream: payload of RST segments, and of those outside of any window
        # framing
        ("mode", "i8"),
        ("final", "u1"),  # a hole or the end follows the current bytes
        ("closed", "u1"),
        ("scanned", "i8", 4),  # START, LOST, by family: none of its frames begins before this stream offset
        ("holes", "i8"),  # holes so far: framing after the first one may have lost the start
        ("frame_end", "i8"),  # INSIDE: stream offset at which the frame that lost bytes ends
        ("frame_seen", "i8"),  # INSIDE: bytes of it seen
        ("frame_size", "i8"),
        ("frame_type", "i8"),
        ("frame_channel", "i8"),
        ("frame_class", "i8"),
        ("frame_method", "i8"),
        ("frame_body_size", "i8"),
        ("frame_from", "i8"),  # stream offset of its first byte
        ("torn", "i8"),  # its stored octets, before the first missing byte (codec.amqp.stream)
        # the span that is being skipped, swallowed or missing: its first and last packet
        ("span_from", "i8"),  # stream offset, -1 none
        ("span_first_packet", "i8"),
        ("span_first_ns", "i8"),
        ("span_packet", "i8"),
        ("span_ns", "i8"),
        ("span_file", "i4"),
        ("span_notes", "i8"),  # notes on the lost frame boundary (codec.amqp.notes)
        ("foreign_head", "i8"),  # the first four octets of a foreign stream of a known protocol, plus 1; 0: none
        ("hello", "i8"),  # stored bytes of the beginning of a TLS stream
    ],
    align=True,
)

MARK = np.dtype(
    [
        ("end", "i8"),  # stream offset after the bytes that this packet brought
        ("packet_no", "i8"),
        ("ts_ns", "i8"),
        ("ready_packet_no", "i8"),  # the packet with which they, and all before them, were there in order
        ("ready_ns", "i8"),
        ("needs", "i8"),  # stream offset of the peer that this packet acknowledged
        ("since_arrival", "i8"),  # when they were there in order, in segments of the connection
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
        ("cut", "i8"),  # bytes that followed on the wire and the snaplen cut off
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
        np.zeros(marks, MARK).view(np.recarray),
        np.zeros(pieces, PIECE).view(np.recarray),
        np.zeros(pool, np.uint8),
    )
