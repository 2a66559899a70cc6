"""TCP segments as columns: the record that the capture readers pass to the stream decoder.

One `SEGMENT` is one captured packet with TCP. A run (row of `codec.tables.TCP_RUNS`) holds consecutive segments of one
flow, both directions, as the raw bytes of a SEGMENT array beside their captured payloads end to end.
"""

from __future__ import annotations

import numpy as np

SEGMENT = np.dtype(
    [
        ("order_ns", "i8"),  # running maximum of ts_ns over the packets of the file: never decreases within a file
        ("ts_ns", "i8"),  # capture time, nanoseconds since 1970-01-01 UTC
        ("packet_no", "i8"),  # 1-based position in the file, as Wireshark's frame.number
        ("payload_at", "i8"),  # where the captured TCP payload begins in the run's payload
        ("seq", "u4"),
        ("ack", "u4"),
        ("wire_len", "u4"),  # TCP payload bytes on the wire, from the IP length
        ("cap_len", "u4"),  # of these, bytes captured (snaplen may have cut the rest)
        ("file", "i4"),  # index into the decoder's list of capture files; 0 in a run
        ("window", "u2"),
        ("flags", "u2"),  # FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32
        ("direction", "u1"),  # 0: sent by the low endpoint of the flow key, 1: by the high one
        # what differs when a segment is sent again, not when it is captured twice: a hash of the identification of IPv4
        # and of the timestamp of TCP; 0: it has neither
        ("sent_id", "u2"),
        ("space", "u4"),  # hash of interface, VLANs and tunnels (`codec.net.spaces`); 0: the first interface, no others
    ],
    align=True,
)

FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10
# Never on the wire: set on segments that layers have ordered, for the notes `peer-late` and `captured-late` of frames.
PEER_IS_LATE, IS_LATE = 0x4000, 0x8000
# By layers, too: such a segment is of their output, or tells what they have counted (codec.amqp.connections.layered).
IN_LAYERS, ENDS_LAYERS = 0x0800, 0x1000
IS_LOST = 0x2000  # by layers as well: the bytes were not captured; without it the snaplen cut them off

FLOW_KEY_BYTES = 36  # low ip 16, high ip 16, low port 2, high port 2; IPv4 as ::ffff:a.b.c.d
# A flow key, and in network order which of the groups of address spaces it is in, 0 for the first (`codec.net.spaces`).
FLOW_BYTES = FLOW_KEY_BYTES + 4


def first_octet(segment: np.void) -> int:
    """Sequence number of the first octet of its payload; that of a SYN is one before (RFC 9293 section 3.4)."""
    return (int(segment["seq"]) + bool(segment["flags"] & SYN)) % (1 << 32)
