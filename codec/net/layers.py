"""Packet records -> TCP segments: link layer, tags, IP, extension headers, TCP.

A packet is a stack of headers, taken off one at a time. The layer a packet stands at is a state; each layer decides
where the next one begins and what it is, so a tunnel is nothing but a layer whose next one is a link or IP layer again.
What leads to no TCP segment gives a skip code (`codec.net.protocols`). The TCP header: RFC 9293 section 3.1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.capture.records import Bytes, Records
from codec.cursor import octet, u16, u32
from codec.jit import njit
from codec.net.ip import ip_protocol, ipv4, ipv6
from codec.net.link import bsd, ethertype, ip, link, to_ethertype
from codec.net.protocols import (
    AT,
    BAD_TCP,
    END,
    ETHERNET,
    ETHERTYPE,
    IP,
    IP_PROTOCOL,
    IPV4,
    IPV6,
    LAYER,
    LINUX_SLL,
    LINUX_SLL2,
    MAX_LAYERS,
    NEXT_LAYER,
    SOURCE,
    STATE_SIZE,
    TARGET,
    TCP,
    TCP_BYTES,
    TOO_DEEP,
    TRUNCATED,
    VERSION,
    WIRE_END,
)
from codec.net.segments import FLOW_KEY_BYTES, SEGMENT


class Packets(NamedTuple):
    """What the layers say of each packet record; all arrays have one row a record.

    segments: SEGMENT; `payload_at` points into the block, lengths and TCP fields are 0 unless `skip` is TCP.
    keys: uint8 (n, 36), the flow key; without TCP its ports are 0, without IP all of it is.
    skip: int32, TCP (0) or why the packet carries no segment, see `skip_name`.
    order_ns: running maximum of the capture times after the last record.
    """

    segments: NDArray[np.void]
    keys: NDArray[np.uint8]
    skip: NDArray[np.int32]
    order_ns: int


def dissect(block: Bytes, records: Records, first_packet_no: int, order_ns: int) -> Packets:
    """Segments of the packets in `records`, which point into `block` (uint8).

    `first_packet_no` is the number of the first record, `order_ns` the running maximum of the times before it.
    """
    count = len(records)
    segments = np.empty(count, SEGMENT)
    keys = np.empty((count, FLOW_KEY_BYTES), np.uint8)
    skip = np.empty(count, np.int32)
    order_ns = _dissect_all(block, records, first_packet_no, order_ns, segments, keys, skip)
    return Packets(segments, keys, skip, int(order_ns))


@njit
def _dissect_all(block, records, first_packet_no, order_ns, segments, keys, skip):
    state = np.empty(STATE_SIZE, np.int64)
    for i in range(len(records)):
        begin = int(records["offset"][i])
        ts_ns = int(records["ts_ns"][i])
        order_ns = max(order_ns, ts_ns)
        segments["order_ns"][i] = order_ns
        segments["ts_ns"][i] = ts_ns
        segments["packet_no"][i] = first_packet_no + i
        segments["file"][i] = 0
        state[AT] = begin
        state[END] = begin + int(records["cap_len"][i])
        state[WIRE_END] = begin + int(records["wire_len"][i])
        state[VERSION] = 0
        code = link(int(records["link_type"][i]), state)
        depth = 0
        while code == NEXT_LAYER and depth < MAX_LAYERS:
            code = _step(block, state)
            depth += 1
        if code == NEXT_LAYER:
            code = TOO_DEEP
        if code == TCP:
            code = _tcp(block, state, segments, i)
        if code != TCP:
            _no_segment(segments, i)
        segments["direction"][i] = _key(block, state, code == TCP, keys, i)
        skip[i] = code
    return order_ns


@njit
def _step(block, state):
    """Take one header off; NEXT_LAYER, TCP (its header begins at AT), or a skip code."""
    layer = state[LAYER]
    if layer == ETHERTYPE:
        return ethertype(block, state)
    if layer == IPV4:
        return ipv4(block, state)
    if layer == IPV6:
        return ipv6(block, state)
    if layer == IP_PROTOCOL:
        return ip_protocol(block, state)
    if layer == ETHERNET:
        return to_ethertype(block, state, 12, 14)
    if layer == LINUX_SLL:
        return to_ethertype(block, state, 14, 16)
    if layer == LINUX_SLL2:
        return to_ethertype(block, state, 0, 20)
    if layer == IP:
        return ip(block, state)
    return bsd(block, state)


@njit
def _tcp(block, state, segments, i):
    """RFC 9293 section 3.1. Options may be cut off by the snaplen; the first 20 bytes may not."""
    at = state[AT]
    if at + TCP_BYTES > state[END]:
        return TRUNCATED if at + TCP_BYTES <= state[WIRE_END] else BAD_TCP
    control = u16(block, at + 12, state[END])
    payload_at = at + (control >> 12) * 4
    wire_len = state[WIRE_END] - payload_at
    if payload_at < at + TCP_BYTES or wire_len < 0:
        return BAD_TCP
    segments["seq"][i] = u32(block, at + 4, state[END])
    segments["ack"][i] = u32(block, at + 8, state[END])
    segments["flags"][i] = control & 0x1FF
    segments["window"][i] = u16(block, at + 14, state[END])
    segments["payload_at"][i] = payload_at
    segments["wire_len"][i] = wire_len
    segments["cap_len"][i] = max(0, min(wire_len, state[END] - payload_at))
    return TCP


@njit
def _no_segment(segments, i):
    segments["seq"][i] = 0
    segments["ack"][i] = 0
    segments["flags"][i] = 0
    segments["window"][i] = 0
    segments["payload_at"][i] = 0
    segments["wire_len"][i] = 0
    segments["cap_len"][i] = 0


@njit
def _key(block, state, ports, keys, i):
    """Write the flow key of packet `i`; 0 when its source is the low endpoint, else 1."""
    if state[VERSION] == 0:
        for j in range(FLOW_KEY_BYTES):
            keys[i, j] = 0
        return 0
    source, target = state[SOURCE], state[TARGET]
    size = 4 if state[VERSION] == 4 else 16
    difference = 0
    for j in range(size):
        difference = octet(block, source + j) - octet(block, target + j)
        if difference != 0:
            break
    at = state[AT]
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
