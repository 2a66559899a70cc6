"""Headers of single packets, outermost first: what is needed to change a packet and keep it valid.

The kernels that dissect captures (codec.net.layers) parse the layers, one call per header. A packet takes some
microseconds: this is for packets that are written, not for all that are read.

Checksums of changed packets are adjusted incrementally (RFC 1624): a correct checksum stays correct, and a wrong one
stays wrong by the same difference, also in truncated packets. Inner checksums are adjusted first, because outer ones
cover them. With checksum offloading, the capture has the sum of the pseudo-header in place of the TCP checksum: such a
value is adjusted only for the addresses, not for the payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from codec.capture.records import Bytes, Records
from codec.net import headers as P
from codec.net.headers import header as parse_header
from codec.net.headers import tunnel
from codec.net.layers import _first_layer, _layers

TCP_SUM_AT, UDP_SUM_AT, GRE_SUM_AT, IPV4_SUM_AT = 16, 6, 4, 10
GRE_HAS_SUM = 0x80
HARDWARE_BYTES = 6
HARDWARE_AT = {P.ETHERNET: (0, 6), P.LINUX_SLL: (6,), P.LINUX_SLL2: (12,)}  # of the addresses in link headers
NOTES_AT = {P.PFLOG: 2, P.PKTAP: P.PKTAP_BYTES}  # what a link header has from there on describes no link
ABSENT = -1
# Options of headers, and what remains of them where addresses are replaced (`plain_options`): those that have none.
IPV4_OPTIONS, TCP_OPTIONS, IPV6_OPTIONS, IPV6_ROUTING = range(4)
END_OF_LIST, NO_OPERATION, PAD_N = 0, 1, 1
ROUTER_ALERT = 148  # RFC 2113
TCP_PLAIN = (2, 3, 4, 5, 8, 19, 28, 29, 34)  # of the IANA registry: from the maximum segment size to fast open
MULTIPATH, ADD_ADDRESS = 30, 3  # RFC 8684, section 3.4.1
IPV6_PLAIN = (4, 5, 0xC2)  # limit of tunnels, router alert, jumbo payload
ROUTING_FIXED = 4  # bytes of a routing header before its data (RFC 8200, section 4.4)
OPTION_HEADERS = {P.PROTOCOL_HOP_BY_HOP: IPV6_OPTIONS, P.PROTOCOL_DESTINATION: IPV6_OPTIONS}
OPTION_HEADERS[P.PROTOCOL_ROUTING] = IPV6_ROUTING


@dataclass
class Sum:
    """An Internet checksum (RFC 1071) at `at` over `begin:end`, and over the addresses at `pseudo:pseudo_end`.

    `tcp_len`: of a TCP checksum the length in its pseudo-header; else ABSENT. `optional`: 0 means no checksum.
    """

    at: int
    begin: int
    end: int
    pseudo: int = 0
    pseudo_end: int = 0
    tcp_len: int = ABSENT
    optional: bool = False


@dataclass
class Stack:
    """Headers of a packet, as offsets into its buffer.

    `payload`: the first byte after the headers; `end`: of the packet. `hardware`: addresses in link headers. `noted`:
    (begin, end) of what the capturing host noted beside the packet. `options`: (kind, begin, end) of options. `sums`:
    outermost first. `tcp`: the TCP header, or ABSENT.
    """

    payload: int
    end: int
    ips: list[tuple[int, int]] = field(default_factory=list)  # (offset, version)
    hardware: list[int] = field(default_factory=list)
    noted: list[tuple[int, int]] = field(default_factory=list)
    options: list[tuple[int, int, int]] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    tcp: int = ABSENT
    fragment: bool = False
    fragment_of_tcp: bool = False


def stack_of(data: Bytes, records: Records, row: int) -> Stack:
    """The headers of packet `row` of `records` (RECORD), which point into `bytes`."""
    state = np.empty(P.STATE_SIZE, np.int64)
    code = _first_layer(records, row, state)
    begin = int(records["offset"][row])
    stack = Stack(begin, begin + int(records["cap_len"][row]))
    for _ in range(P.MAX_LAYERS):
        if code != P.NEXT_LAYER:
            break
        layer, at = int(state[P.LAYER]), int(state[P.AT])
        gre_sum = layer == P.GRE and at + 8 <= state[P.END] and data[at] & GRE_HAS_SUM
        if layer == P.IP_PROTOCOL and state[P.VALUE] == P.PROTOCOL_UDP and at + P.UDP_BYTES <= state[P.END]:
            stack.sums.append(_sum(state, at + UDP_SUM_AT, at, optional=True))
        if layer in HARDWARE_AT and at + 2 * HARDWARE_BYTES <= stack.end:
            stack.hardware += [at + offset for offset in HARDWARE_AT[layer]]
        outer_end = int(state[P.END])
        if (
            layer == P.IP_PROTOCOL
            and state[P.VERSION] == 6
            and int(state[P.VALUE]) in OPTION_HEADERS
            and at + 2 <= outer_end
        ):
            end = min(at + 8 * (int(data[at + 1]) + 1), outer_end)
            stack.options.append((OPTION_HEADERS[int(state[P.VALUE])], at + 2, end))
        code = parse_header(data, state) if layer < P.BARE else tunnel(data, state)
        if layer in (P.IPV4, P.IPV6) and (code in (P.NEXT_LAYER, P.FRAGMENT)):
            stack.ips.append((at, 4 if layer == P.IPV4 else 6))
            header = (int(data[at]) & 0x0F) * 4 if layer == P.IPV4 else P.IPV6_BYTES
            stack.payload = min(at + header, outer_end)
            if layer == P.IPV4:
                stack.sums.append(Sum(at + IPV4_SUM_AT, at, stack.payload))
                if stack.payload > at + P.IPV4_BYTES:
                    stack.options.append((IPV4_OPTIONS, at + P.IPV4_BYTES, stack.payload))
        if layer in NOTES_AT and code == P.NEXT_LAYER:
            stack.noted.append((at + NOTES_AT[layer], int(state[P.AT])))
        if layer == P.NFLOG and code == P.NEXT_LAYER:
            stack.noted += _attributes(data, at + 4, int(state[P.AT]) - 4)
        if gre_sum and code == P.NEXT_LAYER:
            stack.sums.append(Sum(at + GRE_SUM_AT, at, outer_end))
    if code == P.TCP:
        _transport(data, state, stack, int(state[P.AT]))
    elif code == P.FRAGMENT:
        _fragment(data, state, stack)
    return stack


def _attributes(data: Bytes, at: int, end: int) -> list[tuple[int, int]]:
    """The values of NFLOG attributes from `at` to `end`, see `codec.net.headers.nflog`."""
    found: list[tuple[int, int]] = []
    order: Literal["little", "big"] = "little" if data[at + 3] == 0 else "big"
    while at < end:
        size = int.from_bytes(data[at : at + 2], order)
        found.append((at + 4, at + size))
        at += max(4, size + 3 & ~3)
    return found


def _sum(state: NDArray[np.int64], at: int, begin: int, optional: bool = False, tcp: bool = False) -> Sum:
    source = int(state[P.SOURCE])
    size = 8 if state[P.VERSION] == 4 else 32
    length = int(state[P.WIRE_END]) - begin if tcp else ABSENT
    return Sum(at, begin, int(state[P.END]), source, source + size, length, optional)


def _transport(data: Bytes, state: NDArray[np.int64], stack: Stack, at: int) -> None:
    """The TCP header at `at`, as far as it was captured."""
    if at + P.TCP_BYTES <= state[P.END]:
        stack.tcp = at
        stack.payload = min(at + (int(data[at + 12]) >> 4) * 4, int(state[P.END]))
        stack.sums.append(_sum(state, at + TCP_SUM_AT, at, tcp=True))
        if stack.payload > at + P.TCP_BYTES:
            stack.options.append((TCP_OPTIONS, at + P.TCP_BYTES, stack.payload))


def _fragment(data: Bytes, state: NDArray[np.int64], stack: Stack) -> None:
    """A fragment (AT is at its IPv4 or fragment header): the one that begins the datagram has the TCP header."""
    stack.fragment = True
    at = int(state[P.AT])
    if state[P.VERSION] == 4:
        first, protocol = not int.from_bytes(data[at + 6 : at + 8], "big") & 0x1FFF, data[at + 9]
    else:
        stack.payload = at + 8
        first, protocol = not int.from_bytes(data[at + 2 : at + 4], "big") & 0xFFF8, data[at]
    stack.fragment_of_tcp = bool(protocol == P.PROTOCOL_TCP)
    if first and stack.fragment_of_tcp:
        _transport(data, state, stack, stack.payload)


def plain_options(data: Bytes, kind: int, begin: int, end: int) -> None:
    """Overwrite options in place that may have addresses: with no-operations, or padding, of the same length. Known
    ones without addresses stay; what does not parse is overwritten to the end."""
    if kind == IPV6_ROUTING:
        data[begin + ROUTING_FIXED - 2 : end] = 0
        return
    at = begin
    while at < end:
        code = int(data[at])
        if kind == IPV6_OPTIONS:
            size = 2 + int(data[at + 1]) if code and at + 1 < end else 1
            if size > end - at or (code not in IPV6_PLAIN and code > PAD_N):
                size = min(size, end - at)
                data[at + 1 : at + size] = 0
                data[at] = 0
                if size > 1:
                    data[at : at + 2] = PAD_N, size - 2
        elif code == END_OF_LIST:
            data[at:end] = END_OF_LIST
            return
        else:
            size = 1 if code == NO_OPERATION else (int(data[at + 1]) if at + 1 < end else 0)
            damaged = size < 1 or size > end - at or (size < 2 and code != NO_OPERATION)
            size = end - at if damaged else size
            if damaged or not _is_plain(data, kind, at, code):
                data[at : at + size] = NO_OPERATION
        at += size


def _is_plain(data: Bytes, kind: int, at: int, code: int) -> bool:
    if kind == IPV4_OPTIONS:
        return code in (NO_OPERATION, ROUTER_ALERT)
    if code == MULTIPATH:
        return int(data[at + 2]) >> 4 != ADD_ADDRESS if data[at + 1] > 2 else False
    return code == NO_OPERATION or code in TCP_PLAIN


def datagram_of(data: Bytes, records: Records, row: int) -> bytes:
    """What fragments of one datagram have in common (RFC 791 section 3.2, RFC 8200 section 4.5)."""
    state = np.empty(P.STATE_SIZE, np.int64)
    code = _first_layer(records, row, state)
    _layers(data, state, code)
    at, source = int(state[P.AT]), int(state[P.SOURCE])
    if state[P.VERSION] == 4:
        parts: list[tuple[int, int]] = [(source, source + 8), (at + 4, at + 6), (at + 9, at + 10)]
    else:
        parts = [(source, source + 32), (at + 4, at + 8)]
    return b"".join(data[begin:end].tobytes() for begin, end in parts)


FULL = 0xFFFF


def folded(total: int) -> int:
    """A sum of 16-bit words in ones' complement arithmetic, 0 to 0xFFFF."""
    while total >> 16:
        total = (total & FULL) + (total >> 16)
    return total


def word_sum(data: Bytes) -> int:
    """The sum of big-endian 16-bit words; an odd byte at the end is the high one of a word."""
    return 256 * int(data[::2].sum(dtype=np.int64)) + int(data[1::2].sum(dtype=np.int64))


def adjust(before: Bytes, after: Bytes, stacks: Sequence[Stack]) -> None:
    """Set the checksums of the packets in `after`, whose bytes were `before`; `stacks` are their headers."""
    for level in range(max((len(stack.sums) for stack in stacks), default=0)):
        running = changes(before, after)
        for stack in stacks:
            if level < len(stack.sums):
                _adjust(before, after, stack.sums[-1 - level], running)


def changes(before: Bytes, after: Bytes) -> NDArray[np.int64]:
    """int64 (n + 1,): at i, by how much the bytes before i have grown, those at even offsets counted 256 times."""
    running = np.zeros(len(before) + 1, np.int64)
    grown = after.astype(np.int64) - before
    grown[::2] *= 256
    np.cumsum(grown, out=running[1:])
    return running


def _adjust(before: Bytes, after: Bytes, field: Sum, running: NDArray[np.int64]) -> None:
    if field.at + 2 > field.end:
        return  # cut off
    old = _read(before, field.at)
    if field.optional and old == 0:
        return
    pseudo = _change(running, field.pseudo, field.pseudo_end)
    if field.tcp_len != ABSENT and old == _partial(before, field):
        if pseudo:
            _write(after, field.at, (old + pseudo) % FULL or FULL)
        return
    grown = pseudo + _change(running, field.begin, field.end)
    if grown:
        new = FULL - ((FULL - old + grown) % FULL or FULL)
        _write(after, field.at, new or (FULL if field.optional else 0))  # UDP writes a sum of 0 as 0xFFFF (RFC 768)


def _change(running: NDArray[np.int64], begin: int, end: int) -> int:
    """The change of the words of `begin:end`; the first byte is the high one of a word."""
    change = int(running[end] - running[begin])
    return change * 256 if begin % 2 else change  # 256 * 256 is 1 in this arithmetic


def _partial(data: Bytes, field: Sum) -> int:
    """The value in place of a TCP checksum with checksum offloading."""
    return folded(word_sum(data[field.pseudo : field.pseudo_end]) + P.PROTOCOL_TCP + field.tcp_len)


def _read(data: Bytes, at: int) -> int:
    return int(data[at]) << 8 | int(data[at + 1])


def _write(data: Bytes, at: int, value: int) -> None:
    data[at], data[at + 1] = value >> 8, value & 0xFF
