"""Packet records -> TCP segments: link layer, tags, IP, extension headers, TCP.

A packet is a stack of headers, which are parsed one at a time. The current layer is a state; each layer determines type
and offset of the next one, so a tunnel is a layer whose next one is a link or IP layer again. A packet without TCP
segment gets a skip code (`codec.net.headers`). The TCP header: RFC 9293 section 3.1. Cost: linear in the headers.

A second pass handles fragments only, in packet order: a complete datagram is parsed again, from its IP header on, and
belongs to the packet that completed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.capture.records import Bytes, Records
from codec.compiler.kernel import kernel, njit
from codec.cursor import byte_at, u16, u32
from codec.net import headers as P
from codec.net.fragments import DATAGRAM_BYTES, Fragments, add_fragment
from codec.net.headers import FILTERED, TCP, enter_space, header, link, tunnel

# TCP segments as columns: the record that the capture readers pass to the stream decoder.
#
# One `SEGMENT` is one captured packet with TCP. A run (row of `codec.tables.TCP_RUNS`) holds consecutive segments of
# one flow, both directions, as the raw bytes of a SEGMENT array beside their captured payloads end to end.


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
        ("space", "u4"),  # hash of interface, VLANs, tunnels (`codec.net.identity`); 0: the first interface, no others
    ],
    align=True,
)

FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10
# Never on the wire: set on segments that layers have ordered, for the notes `peer-late` and `captured-late` of frames.
PEER_IS_LATE, IS_LATE = 0x4000, 0x8000
# By layers, too: such a segment is of their output, or tells what they have counted (codec.framing.layered).
IN_LAYERS, ENDS_LAYERS = 0x0800, 0x1000
IS_LOST = 0x2000  # by layers as well: the bytes were not captured; without it the snaplen cut them off

FLOW_KEY_BYTES = 36  # low ip 16, high ip 16, low port 2, high port 2; IPv4 as ::ffff:a.b.c.d
# A flow key, and in network order which of the groups of address spaces it is in, 0 for the first
# (`codec.net.identity`).
FLOW_BYTES = FLOW_KEY_BYTES + 4


def first_byte(segment: np.void) -> int:
    """Sequence number of the first byte of its payload; that of a SYN is one before (RFC 9293 section 3.4)."""
    return (int(segment["seq"]) + bool(segment["flags"] & SYN)) % (1 << 32)


IDENTIFICATION = 8  # bytes from it to the source address, in the header of IPv4
TIMESTAMP, TIMESTAMP_BYTES = 0x0101080A, 12  # two bytes of padding, kind, length; with the values
MIXERS = (40503, 25173, 13849)  # any odd numbers
HEADROOM = (P.MAX_TUNNELS + 1) * DATAGRAM_BYTES  # one packet can complete a datagram at each level


class Packets(NamedTuple):
    """Columns of packet records; all arrays but `bytes` have one row per record.

    segments: SEGMENT; `payload_at` points into `bytes`, lengths and TCP fields are 0 unless `skip` is TCP. keys: uint8
    (n, 36), the flow key; without TCP its ports are 0, without IP all of it is. skip: int32, TCP (0) or the reason why
    the packet has no segment, see `skip_name`. tunnels: int64 (n, MAX_TUNNELS), encapsulations of the packet, outermost
    first, see `tunnel_name`; else 0. bytes: uint8, the block, and after it the datagrams that were reassembled from
    fragments. order_ns: running maximum of the capture times after the last record.
    """

    segments: NDArray[np.void]
    keys: NDArray[np.uint8]
    skip: NDArray[np.int32]
    tunnels: NDArray[np.int64]
    data: Bytes
    order_ns: int


def dissect(
    block: Bytes, records: Records, first_packet_no: int, order_ns: int, fragments: Fragments | None = None
) -> Packets:
    """Segments of the packets in `records`, which point into `block` (uint8).

    `first_packet_no` is the number of the first record, `order_ns` the running maximum of the times before it.
    `fragments` has the datagrams of earlier packets; those of these packets are added.
    """
    count = len(records)
    segments = np.empty(count, SEGMENT)
    keys = np.empty((count, FLOW_KEY_BYTES), np.uint8)
    skip = np.empty(count, np.int32)
    tunnels = np.zeros((count, P.MAX_TUNNELS), np.int64)
    order_ns = _dissect_all(block, records, first_packet_no, order_ns, segments, keys, skip, tunnels)
    data = block
    fragmented = skip == P.FRAGMENT
    if fragmented.any():
        buffers = (fragments or Fragments()).buffers()
        at, used, room = 0, len(block), HEADROOM + int(records["cap_len"][fragmented].sum())
        while at < count:
            data = np.concatenate([data[:used], np.empty(room, np.uint8)])
            at, used = _reassemble_all(data, used, records, at, buffers, segments, keys, skip, tunnels)
            room *= 2
        data = data[:used]
    return Packets(segments, keys, skip, tunnels, data, int(order_ns))


@njit
def _dissect_all(block, records, first_packet_no, order_ns, segments, keys, skip, tunnels):
    state = np.empty(P.STATE_SIZE, np.int64)
    for i in range(len(records)):
        ts_ns = int(records["ts_ns"][i])
        order_ns = max(order_ns, ts_ns)
        segments["order_ns"][i] = order_ns
        segments["ts_ns"][i] = ts_ns
        segments["packet_no"][i] = first_packet_no + i
        segments["file"][i] = 0
        code = _layers(block, state, _first_layer(records, i, state))
        _finish(block, state, code, i, segments, keys, skip, tunnels)
    return order_ns


@njit
def _reassemble_all(data, used, records, at, buffers, segments, keys, skip, tunnels):
    """Reassemble fragments of `records[at:]`; datagrams go to `bytes[used:]`. Returns (next record, end of them)."""
    state = np.empty(P.STATE_SIZE, np.int64)
    for i in range(at, len(records)):
        if skip[i] != P.FRAGMENT:
            continue
        if used + HEADROOM > len(data):
            return i, used
        code = _layers(data, state, _first_layer(records, i, state))
        code, used = _reassemble(data, used, state, buffers, int(segments["packet_no"][i]), code)
        _finish(data, state, code, i, segments, keys, skip, tunnels)
    return len(records), used


@kernel
def _reassemble(data, used, state, buffers, packet_no, code):
    """Reassemble the nested datagrams that a packet completes: (TCP or a skip code, end of them)."""
    for _ in range(P.MAX_TUNNELS + 1):
        if code != P.FRAGMENT:
            return code, used
        code = add_fragment(data, used, state, buffers, packet_no)
        if code != P.NEXT_LAYER:
            return code, used
        used = state[P.END]
        code = _layers(data, state, code)
    return (P.TOO_NESTED if code == P.FRAGMENT else code), used


@kernel
def _first_layer(records, i, state):
    """The state at the first byte of packet `i`; NEXT_LAYER or a skip code."""
    begin = int(records["offset"][i])
    state[P.AT] = begin
    state[P.END] = begin + int(records["cap_len"][i])
    state[P.WIRE_END] = begin + int(records["wire_len"][i])
    state[P.VERSION] = 0
    state[P.DEPTH] = 0
    state[P.SPACE] = 0
    state[P.TUNNELS] = 0
    enter_space(state, P.ON_INTERFACE, int(records["interface"][i]))
    return link(int(records["link_type"][i]), state)


@kernel
def _layers(block, state, code):
    """Parse headers: TCP (its header begins at AT), or a skip code."""
    depth = state[P.DEPTH]
    while code == P.NEXT_LAYER and depth < P.MAX_LAYERS:
        code = header(block, state) if state[P.LAYER] < P.BARE else tunnel(block, state)
        depth += 1
    state[P.DEPTH] = depth
    return P.TOO_DEEP if code == P.NEXT_LAYER else code


@kernel
def _finish(block, state, code, i, segments, keys, skip, tunnels):
    """Write the columns of packet `i`."""
    if code == P.TCP:
        code = _tcp(block, state, segments, i)
    if code != P.TCP:
        _no_segment(segments, i)
    segments["direction"][i] = _key(block, state, code == P.TCP, keys, i)
    segments["space"][i] = state[P.SPACE]
    skip[i] = code
    for j in range(state[P.TUNNELS]):
        tunnels[i, j] = state[P.FIRST_TUNNEL + j]


@kernel
def _tcp(block, state, segments, i):
    """RFC 9293 section 3.1. Options may be cut off by the snaplen; the first 20 bytes may not."""
    at = state[P.AT]
    if at + P.TCP_BYTES > state[P.END]:
        return P.TRUNCATED if at + P.TCP_BYTES <= state[P.WIRE_END] else P.BAD_TCP
    control = u16(block, at + 12, state[P.END])
    payload_at = at + (control >> 12) * 4
    wire_len = state[P.WIRE_END] - payload_at
    if payload_at < at + P.TCP_BYTES or wire_len < 0:
        return P.BAD_TCP
    segments["seq"][i] = u32(block, at + 4, state[P.END])
    segments["ack"][i] = u32(block, at + 8, state[P.END])
    segments["flags"][i] = control & 0x1FF
    segments["window"][i] = u16(block, at + 14, state[P.END])
    segments["payload_at"][i] = payload_at
    segments["wire_len"][i] = wire_len
    segments["cap_len"][i] = max(0, min(wire_len, state[P.END] - payload_at))
    segments["sent_id"][i] = _sent_id(block, state, at, payload_at)
    return P.TCP


@kernel
def _sent_id(block, state, at, payload_at):
    """See `codec.net.layers`. The timestamp (RFC 7323) is looked for where senders put it: as the first option, after
    two of padding."""
    found, end = 0, state[P.END]
    if state[P.VERSION] == 4:
        found = u16(block, state[P.SOURCE] - IDENTIFICATION, end) * MIXERS[0]
    options = at + P.TCP_BYTES
    if options + TIMESTAMP_BYTES <= min(payload_at, end) and u32(block, options, end) == TIMESTAMP:
        found += u16(block, options + 4, end) * MIXERS[1] + u16(block, options + 6, end) * MIXERS[2] + 1
    return 0 if found == 0 else max(found & 0xFFFF, 1)


@kernel
def _no_segment(segments, i):
    segments["seq"][i] = 0
    segments["ack"][i] = 0
    segments["flags"][i] = 0
    segments["window"][i] = 0
    segments["payload_at"][i] = 0
    segments["wire_len"][i] = 0
    segments["cap_len"][i] = 0
    segments["sent_id"][i] = 0


@kernel
def _key(block, state, ports, keys, i):
    """Write the flow key of packet `i`; 0 when its source is the low endpoint, else 1."""
    if state[P.VERSION] == 0:
        for j in range(FLOW_KEY_BYTES):
            keys[i, j] = 0
        return 0
    source, target = state[P.SOURCE], state[P.TARGET]
    size = 4 if state[P.VERSION] == 4 else 16
    difference = 0
    for j in range(size):
        difference = byte_at(block, source + j) - byte_at(block, target + j)
        if difference != 0:
            break
    at = state[P.AT]
    if difference == 0 and ports:
        difference = u16(block, at, at + 2) - u16(block, at + 2, at + 4)
    direction = 1 if difference > 0 else 0
    if direction == 1:
        source, target = target, source
    if size == 4:
        for j in range(12):
            mapped = 0xFF if j >= 10 else 0
            keys[i, j] = mapped
            keys[i, 16 + j] = mapped
    for j in range(size):
        keys[i, 16 - size + j] = block[source + j]
        keys[i, 32 - size + j] = block[target + j]
    for j in range(4):
        keys[i, 32 + j] = block[at + (j ^ (2 * direction))] if ports else 0
    return direction


# Filters of packets by port, host and time. Cost: linear in the packets.


PORTS = 65536
IP_BYTES = 16
BEGINNING, END_OF_TIME = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Filter:
    """A packet passes when one of its ports, one of its addresses and its time match. Empty matches all.

    ports: numbers, either side. hosts: 16-byte addresses (IPv4 as ::ffff:a.b.c.d), either side. since_ns, until_ns:
    nanoseconds since 1970-01-01 UTC, from the first and before the second.
    """

    ports: frozenset[int] = frozenset()
    hosts: tuple[bytes, ...] = ()
    since_ns: int = BEGINNING
    until_ns: int = END_OF_TIME

    @property
    def passes_all(self) -> bool:
        """Whether every packet passes."""
        return self == Filter()

    def matches(self, packets: Packets) -> NDArray[np.bool_]:
        """bool (n,): the packets that pass. A packet without ports or addresses matches no port or host."""
        ports = np.full(PORTS, not self.ports)
        ports[list(self.ports)] = True
        hosts = np.frombuffer(bytearray(b"".join(self.hosts)), np.uint8).reshape(-1, IP_BYTES)
        wanted = np.empty(len(packets.skip), np.bool_)
        _match(packets.keys, packets.segments, ports, hosts, self.since_ns, self.until_ns, wanted)
        return wanted

    def apply(self, packets: Packets) -> None:
        """Set the skip code of TCP packets that do not pass to FILTERED."""
        if not self.passes_all:
            packets.skip[(packets.skip == TCP) & ~self.matches(packets)] = FILTERED


def host_bytes(addresses: Iterable[IPv4Address | IPv6Address]) -> tuple[bytes, ...]:
    """Addresses as in flow keys."""
    return tuple(
        address.packed if address.version == 6 else b"\x00" * 10 + b"\xff\xff" + address.packed for address in addresses
    )


@njit
def _match(keys, segments, ports, hosts, since_ns, until_ns, wanted):
    for i in range(len(wanted)):
        ts_ns = int(segments["ts_ns"][i])
        low = (byte_at(keys[i], 32) << 8) | byte_at(keys[i], 33)
        high = (byte_at(keys[i], 34) << 8) | byte_at(keys[i], 35)
        passes = since_ns <= ts_ns and ts_ns < until_ns and (ports[low] or ports[high])
        if passes and len(hosts) > 0:
            passes = False
            for j in range(len(hosts)):
                passes = passes or _is_host(keys[i], 0, hosts[j]) or _is_host(keys[i], IP_BYTES, hosts[j])
        wanted[i] = passes


@njit
def _is_host(key, at, host):
    same = 0
    while same < IP_BYTES and byte_at(key, at + same) == byte_at(host, same):
        same += 1
    return same == IP_BYTES
