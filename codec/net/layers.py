"""Packet records -> TCP segments: link layer, tags, IP, extension headers, TCP.

A packet is a stack of headers, which are parsed one at a time. The current layer is a state; each layer determines type
and offset of the next one, so a tunnel is a layer whose next one is a link or IP layer again. A packet without TCP
segment gets a skip code (`codec.net.protocols`). The TCP header: RFC 9293 section 3.1. Cost: linear in the headers.

A second pass handles fragments only, in packet order: a complete datagram is parsed again, from its IP header on, and
belongs to the packet that completed it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.capture.records import Bytes, Records
from codec.compiler.kernel import kernel, njit
from codec.cursor import octet, u16, u32
from codec.net import protocols as P
from codec.net.fragments import DATAGRAM_BYTES, Fragments, add_fragment
from codec.net.headers import enter_space, header, link
from codec.net.segments import FLOW_KEY_BYTES, SEGMENT
from codec.net.tunnels import tunnel

IDENTIFICATION = 8  # bytes from it to the source address, in the header of IPv4
TIMESTAMP, TIMESTAMP_BYTES = 0x0101080A, 12  # two bytes of padding, kind, length; with the values
MIXERS = (40503, 25173, 13849)  # any odd numbers
HEADROOM = (P.MAX_TUNNELS + 1) * DATAGRAM_BYTES  # one packet can complete a datagram at each level


class Packets(NamedTuple):
    """Columns of packet records; all arrays but `octets` have one row per record.

    segments: SEGMENT; `payload_at` points into `octets`, lengths and TCP fields are 0 unless `skip` is TCP. keys: uint8
    (n, 36), the flow key; without TCP its ports are 0, without IP all of it is. skip: int32, TCP (0) or the reason why
    the packet has no segment, see `skip_name`. tunnels: int64 (n, MAX_TUNNELS), encapsulations of the packet, outermost
    first, see `tunnel_name`; else 0. octets: uint8, the block, and after it the datagrams that were reassembled from
    fragments. order_ns: running maximum of the capture times after the last record.
    """

    segments: NDArray[np.void]
    keys: NDArray[np.uint8]
    skip: NDArray[np.int32]
    tunnels: NDArray[np.int64]
    octets: Bytes
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
    octets = block
    fragmented = skip == P.FRAGMENT
    if fragmented.any():
        buffers = (fragments or Fragments()).buffers()
        at, used, room = 0, len(block), HEADROOM + int(records["cap_len"][fragmented].sum())
        while at < count:
            octets = np.concatenate([octets[:used], np.empty(room, np.uint8)])
            at, used = _reassemble_all(octets, used, records, at, buffers, segments, keys, skip, tunnels)
            room *= 2
        octets = octets[:used]
    return Packets(segments, keys, skip, tunnels, octets, int(order_ns))


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
def _reassemble_all(octets, used, records, at, buffers, segments, keys, skip, tunnels):
    """Reassemble fragments of `records[at:]`; datagrams go to `octets[used:]`. Returns (next record, end of them)."""
    state = np.empty(P.STATE_SIZE, np.int64)
    for i in range(at, len(records)):
        if skip[i] != P.FRAGMENT:
            continue
        if used + HEADROOM > len(octets):
            return i, used
        code = _layers(octets, state, _first_layer(records, i, state))
        code, used = _reassemble(octets, used, state, buffers, int(segments["packet_no"][i]), code)
        _finish(octets, state, code, i, segments, keys, skip, tunnels)
    return len(records), used


@kernel
def _reassemble(octets, used, state, buffers, packet_no, code):
    """Reassemble the nested datagrams that a packet completes: (TCP or a skip code, end of them)."""
    for _ in range(P.MAX_TUNNELS + 1):
        if code != P.FRAGMENT:
            return code, used
        code = add_fragment(octets, used, state, buffers, packet_no)
        if code != P.NEXT_LAYER:
            return code, used
        used = state[P.END]
        code = _layers(octets, state, code)
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
    """See `codec.net.segments`. The timestamp (RFC 7323) is looked for where senders put it: as the first option, after
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
        difference = octet(block, source + j) - octet(block, target + j)
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
