"""First pass over the captures: finds every packet of the chosen connections, and its stream offset.

The decoder numbers the bytes of a direction from the first one after the SYN, or the first one captured. The tables
locate frames by these *stream offsets*. Here packets get theirs, from their sequence numbers by the decoder's rules
(codec.framing.transport). Several connections may follow one another on the same addresses and ports: a
connection begins with the packet whose hash is its connection_id (codec.amqp.decoder).

Memory grows with the packets of the chosen connections, some 70 bytes each, and with all IP fragments, because only the
first one has the ports; not with the size of the captures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from codec.compiler.limits import LIMITS
from codec.memory import as_records, readonly
from codec.net.headers import (
    FRAGMENT,
    FRAGMENT_COPY,
    FRAGMENT_OVERLAP,
    TCP,
)
from codec.net.identity import assign_groups, new_groups
from codec.net.layers import RST, SEGMENT, SYN, Filter, host_bytes
from codec.net.runs import first_of, group_flows
from codec.tcp.reassembly import OUT_OF_WINDOW
from pipeline.extract.header_stack import datagram_of
from pipeline.extract.originals import Original, microseconds
from udfs.source.splits import Account, Block, Split, read_blocks

PORT_BYTES = 2
SAMPLE_BYTES = 256 << 20  # of payloads that are retained; frames in further ones are not read
FRAGMENTS = (FRAGMENT, FRAGMENT_COPY, FRAGMENT_OVERLAP)
WRAP, HALF = 1 << 32, 1 << 31
UNMAPPED = -(1 << 62)  # stream offset of bytes that have none
NONE = -1

PACKET = np.dtype(
    [
        ("order_ns", "i8"),
        ("ts_ns", "i8"),
        ("packet_no", "i8"),
        ("file", "i4"),  # index of the original
        ("flow", "i4"),  # index of the flow key
        ("connection", "i4"),  # index of the connection, NONE before it is known
        ("datagram", "i4"),  # of fragments: packets with the same number are one datagram; NONE: a packet by itself
        ("at", "i8"),  # stream offset of the first payload byte
        ("seq", "u4"),
        ("ack", "u4"),
        ("space", "u4"),  # address space, as in SEGMENT
        ("wire_len", "u4"),  # TCP payload bytes on the wire; 0 for a fragment that does not complete its datagram
        ("flags", "u2"),
        ("digest", "u4"),  # CRC-32 of the captured bytes: whether the second pass reads the same packet
        ("direction", "u1"),
        ("copy", "u1"),  # begins before the end of what came earlier: a retransmission, or out of order
    ]
)


@dataclass(frozen=True)
class Connection:
    """A chosen connection. `client`: direction of the client in its flow; `closed_us`: its last packet's time, µs."""

    connection_id: int
    flow: bytes
    client: int
    opened_us: int
    closed_us: int
    conflicting: bool  # copies of some bytes differ
    transport: str | None = None  # what carries AMQP, if it is not TCP itself

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Connection:
        """The connection of a row of table connections."""
        hosts = host_bytes(ip_address(row[f"{side}_ip"]) for side in ("client", "server"))
        ports = (int(row[f"{side}_port"]).to_bytes(PORT_BYTES, "big") for side in ("client", "server"))
        sides = list(zip(hosts, ports, strict=True))
        low, high = sorted(sides)
        return cls(
            row["connection_id"],
            low[0] + high[0] + low[1] + high[1],
            sides.index(low),
            microseconds(row["opened_ts"]),
            microseconds(row["closed_ts"]),
            bool(row["conflicting_overlap_bytes"]),
            row["transport"],
        )


@dataclass(frozen=True)
class Survey:
    """Packets of the chosen connections in the order in which the decoder takes them, flow by flow.

    `payloads`: of the requested packets, by (index of the original, packet_no).
    """

    packets: NDArray[np.void]  # PACKET
    connections: Sequence[Connection]
    payloads: Mapping[tuple[int, int], bytes]
    errors: Mapping[int, str]  # by index of the original: one that could not be read, or not to its end


def pair_ids(index: NDArray[Any], number: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for each pair: a file or connection, and the number (below 2**40) of a packet or frame in it."""
    found: NDArray[np.int64] = (index.astype(np.int64) << 40) + number
    return found


def merged(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorted disjoint intervals: adjacent ones are joined, empty ones dropped."""
    order = np.argsort(starts, kind="stable")
    order = order[ends[order] > starts[order]]
    starts, furthest = starts[order], np.maximum.accumulate(ends[order]) if len(order) else ends[order]
    first = np.flatnonzero(np.concatenate([[True], starts[1:] > furthest[:-1]])) if len(order) else order
    last = np.concatenate([first[1:], [len(starts)]])[: len(first)] - 1
    return starts[first], furthest[last]


class Samples(NamedTuple):
    """Packets whose payload is wanted: in the original `file`, on the flow of a `connection` (index), of a direction,
    with the numbers `first` to `last`. int64 arrays of one length."""

    file: NDArray[np.int64]
    connection: NDArray[np.int64]
    direction: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


def survey(originals: Sequence[Original], connections: Sequence[Connection], samples: Samples) -> Survey:
    """Find the packets of `connections`, and the payloads of `samples`, SAMPLE_BYTES at most."""
    flows = {flow: index for index, flow in enumerate(dict.fromkeys(each.flow for each in connections))}
    wanted = coarse_filter(connections)
    found, payloads, errors, datagrams, sampled = [], {}, {}, 0, 0
    sides = np.array([2 * flows[each.flow] for each in connections], np.int64)[samples.connection] + samples.direction
    for index, original in enumerate(originals):
        if not any(original.overlaps(each.opened_us, each.closed_us) for each in connections):
            continue
        account = Account(original.name, original.file.size)
        fragments = _Datagrams(datagrams)
        here = samples.file == index
        starts, ends = merged(*(pair_ids(sides[here], each[here]) for each in (samples.first, samples.last + 1)))
        for block in read_blocks(Split(original.file), account, LIMITS.block_bytes, Filter()):
            part = _packets_of_flows(block, flows, wanted.matches(block.packets), index, fragments)
            found.append(part)
            ids = pair_ids(2 * part["flow"].astype(np.int64) + part["direction"], part["packet_no"])
            inside = np.searchsorted(starts, ids, "right") > np.searchsorted(ends, ids, "right")
            for number in part["packet_no"][inside].tolist() if sampled < SAMPLE_BYTES else ():
                payloads[index, number] = _payload(block, number)
                sampled += len(payloads[index, number])
        datagrams = fragments.number
        if account.error:
            errors[index] = account.error
    packets = np.concatenate(found) if found else np.empty(0, PACKET)
    packets = packets[np.lexsort([packets[name] for name in ("packet_no", "file", "order_ns", "flow")])]
    ends = np.searchsorted(packets["flow"], np.arange(len(flows) + 1))
    numbers = {each.connection_id: index for index, each in enumerate(connections)}
    on_flow: dict[bytes, list[Connection]] = {}
    for each in connections:
        on_flow.setdefault(each.flow, []).append(each)
    for flow, index in flows.items():
        of_flow = packets[ends[index] : ends[index + 1]]
        for rows in _groups(of_flow):
            of_group = of_flow[rows]
            assign_packets(on_flow[flow], numbers, of_group)
            of_flow[rows] = of_group
    _adopt_fragments(packets, len(flows))
    return Survey(packets[packets["connection"] != NONE], connections, payloads, errors)


def _groups(packets: NDArray[np.void]) -> Iterator[NDArray[np.int64]]:
    """The packets of one flow key by their group of address spaces, which the decoder keeps apart."""
    group_of = np.zeros(len(packets), np.int64)
    if len(packets) and (packets["space"] != packets["space"][0]).any():
        segments = np.zeros(len(packets), SEGMENT)
        for name in ("seq", "ack", "space", "wire_len", "flags", "direction"):
            segments[name] = packets[name]
        ends, counts = np.array([len(packets)]), np.empty(1, np.int64)
        segments = readonly(as_records(segments))
        assign_groups(readonly(ends), segments, new_groups(), np.zeros(1, np.int64), group_of, counts)
    for group in np.unique(group_of):
        yield np.flatnonzero(group_of == group)


def _adopt_fragments(packets: NDArray[np.void], waiting: int) -> None:
    """Assign each fragment to the connection of the packet that completed its datagram."""
    complete = np.flatnonzero((packets["datagram"] != NONE) & (packets["flow"] != waiting))
    complete = complete[np.argsort(packets["datagram"][complete])]
    rows = np.flatnonzero(packets["flow"] == waiting)
    if len(complete):
        number = packets["datagram"][rows]
        of = complete[np.minimum(np.searchsorted(packets["datagram"][complete], number), len(complete) - 1)]
        found = packets["datagram"][of] == number
        for name in ("connection", "direction"):
            packets[name][rows[found]] = packets[name][of[found]]
    packets["at"][rows] = UNMAPPED


def coarse_filter(connections: Sequence[Connection]) -> Filter:
    """A coarse filter by port and time, before flows are compared. Port 0 stands for fragments."""
    ports = {int.from_bytes(each.flow[at : at + PORT_BYTES], "big") for each in connections for at in (32, 34)}
    since = min((each.opened_us for each in connections), default=0) * 1000
    # packets may be captured out of order: the first one is not always the earliest
    margin = 10**9
    until = (max((each.closed_us for each in connections), default=0) + 1) * 1000
    return Filter(frozenset({0, *ports}), (), since - margin, until)


def _packets_of_flows(
    block: Block, flows: Mapping[bytes, int], matching: NDArray[np.bool_], file: int, fragments: _Datagrams
) -> NDArray[np.void]:
    """The packets (PACKET) of a block that belong to `flows`, and all fragments, which may belong to them."""
    packets = block.packets
    rows = np.flatnonzero(matching & ((packets.skip == TCP) | np.isin(packets.skip, FRAGMENTS)))
    keys = np.ascontiguousarray(packets.keys[rows])
    group, groups = group_flows(keys, np.zeros(len(rows), np.int32))
    distinct = [key.tobytes() for key in keys[first_of(group, groups)]]
    # a fragment has no ports, and perhaps tunnel addresses: it is assigned when its datagram is complete
    waiting = len(flows)
    flow = np.array([flows.get(key, NONE) for key in distinct], np.int32)[group]
    flow[packets.skip[rows] != TCP] = waiting
    rows, flow = rows[flow != NONE], flow[flow != NONE]
    part = np.zeros(len(rows), PACKET)
    segments = packets.segments[rows]
    for name in ("order_ns", "ts_ns", "packet_no", "seq", "ack", "space", "wire_len", "flags", "direction"):
        part[name] = segments[name]
    part["file"], part["flow"], part["connection"], part["datagram"] = file, flow, NONE, NONE
    ends = block.records["offset"][rows] + block.records["cap_len"][rows]
    # If the snaplen truncated the TCP options, the payload would begin after the packet as well.
    cut = (segments["cap_len"] == 0) & (block.records["wire_len"][rows] > block.records["cap_len"][rows])
    completes = (segments["payload_at"] > ends) & (flow != waiting) & ~cut
    digests = zip(block.records["offset"][rows].tolist(), ends.tolist(), strict=True)
    part["digest"] = [crc32(block.data.data[begin:end]) for begin, end in digests]
    for row in np.flatnonzero(completes | (flow == waiting)):
        key = datagram_of(block.data, block.records, int(rows[row]))
        part["datagram"][row] = fragments.number_of(key, int(part["packet_no"][row]))
    return part


class _Datagrams:
    """Numbers datagrams by their keys; one number is used again for `Limits.fragment_packets` packets only."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._known: dict[bytes, tuple[int, int]] = {}

    def number_of(self, key: bytes, packet_no: int) -> int:
        number, last = self._known.get(key, (NONE, 0))
        if number == NONE or packet_no - last > LIMITS.fragment_packets:
            number = self.number
            self.number += 1
        self._known[key] = number, packet_no
        return number


def _payload(block: Block, packet_no: int) -> bytes:
    """The captured TCP payload of a packet of a block."""
    segment = block.packets.segments[packet_no - int(block.packets.segments["packet_no"][0])]
    at = int(segment["payload_at"])
    return block.data[at : at + int(segment["cap_len"])].tobytes()


def assign_packets(on_flow: Sequence[Connection], numbers: Mapping[int, int], packets: NDArray[np.void]) -> None:
    """Fill in `connection`, `at` and `copy` of the packets of one flow, which are in the decoder's order.

    `numbers`: index of each connection by its connection_id.
    """
    starts = list(_starts(on_flow, packets))
    for (begin, connection), end in zip(starts, [*(at for at, _ in starts), len(packets)][1:], strict=True):
        part = packets[begin:end]
        inside = part["ts_ns"] // 1000 <= connection.closed_us
        part["connection"][inside] = numbers[connection.connection_id]
        for direction in range(2):
            rows = np.flatnonzero(inside & (part["direction"] == direction))
            part["at"][rows], part["copy"][rows] = stream_offsets(part[rows])


def _starts(on_flow: Sequence[Connection], packets: NDArray[np.void]) -> Iterator[tuple[int, Connection]]:
    """(index of the first packet, connection), in order: the packet that the connection_id names."""
    opened = np.array([each.opened_us for each in on_flow])
    ids = {each.connection_id: each for each in on_flow}
    named: dict[bytes, int] = {}
    for index in np.flatnonzero(np.isin(packets["ts_ns"] // 1000, opened)):
        name = connection_name(on_flow[0].flow, int(packets["ts_ns"][index]), int(packets["seq"][index]))
        times = named.get(name, 0)
        connection = ids.get(connection_id(name, times))
        if connection is not None:
            named[name] = times + 1
            yield int(index), connection


def connection_name(flow: bytes, ts_ns: int, seq: int) -> bytes:
    """What identifies a connection: its flow and its first packet (codec.amqp.decoder)."""
    return flow + ts_ns.to_bytes(8, "big", signed=True) + seq.to_bytes(4, "big")


def connection_id(name: bytes, times: int) -> int:
    """The connection_id of a name that `times` earlier connections have, too."""
    named = name + (times.to_bytes(4, "big") if times else b"")
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big") >> 1


def stream_offsets(packets: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Of the packets of one direction in order: the stream offset of their payload, UNMAPPED where there is none to
    map, and whether it begins before the end of what came earlier."""
    at = np.full(len(packets), UNMAPPED, np.int64)
    syn, wire = (packets["flags"] & SYN) != 0, packets["wire_len"].astype(np.int64)
    rows = np.flatnonzero(syn | ((wire > 0) & ((packets["flags"] & RST) == 0)))
    if not len(rows):
        return at, np.zeros(len(packets), np.bool_)
    seq = (packets["seq"][rows].astype(np.int64) + syn[rows]) % WRAP
    steps = (np.diff(seq, prepend=seq[0]) + HALF) % WRAP - HALF
    offsets = np.cumsum(steps)
    highest = np.maximum.accumulate(offsets + wire[rows])
    before = np.concatenate([[0], highest[:-1]])
    if (np.abs(offsets - before) >= OUT_OF_WINDOW).any():  # such a packet must not affect the offsets of others
        offsets, before = _one_by_one(seq, wire[rows])
    at[rows] = offsets
    copy = np.zeros(len(packets), np.bool_)
    copy[rows] = offsets < before
    return at, copy


def _one_by_one(seq: NDArray[np.int64], wire: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offsets, and the furthest byte before each; packets outside of any window are skipped."""
    offsets, before = np.full(len(seq), UNMAPPED, np.int64), np.zeros(len(seq), np.int64)
    highest, anchor = 0, int(seq[0])
    for row in range(len(seq)):
        before[row] = highest
        offset = highest + (int(seq[row]) - anchor - highest + HALF) % WRAP - HALF
        if abs(offset - highest) < OUT_OF_WINDOW:
            offsets[row] = offset
            highest = max(highest, offset + int(wire[row]))
    return offsets, before
