"""How a connection begins and ends: its blank records, its number, and the records that it leaves.

Two connections of one flow can begin with the same packet, if a capture has it twice; the number of earlier ones
distinguishes them. So a ring has the first packets of the last `Limits.flow_openings` connections, chained by hash. A
chain ends at a packet that was overwritten or belongs to an earlier flow, so nothing has to be cleared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from codec.amqp import rows as R
from codec.amqp.connections.connection import CONNECTION
from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.memory import as_records, sparse_zeros
from codec.net.identity import Scratch, connection_number, new_scratch
from codec.net.segments import FLOW_BYTES, FLOW_KEY_BYTES
from codec.tcp.direction import DIRECTION

RETAINED = LIMITS.flow_openings
BUCKETS = 2 * RETAINED
TLS_PREFIX_BYTES = LIMITS.hello_bytes
NO_CONNECTION = -1  # phase between two connections
AMQP_PORTS = (5672, 5671)
ENDED, TLS_STREAMS = 1 << 12, 1 << 8  # ended connections, and encrypted ones among them, until they are returned
# Fields that are -1 while nothing is known.
UNKNOWN_CONNECTION = ("client", "syn_ns", "synack_ns", "rtt_ns", "tcp_end_by", "end_ack", "tls_prefix_at")
UNKNOWN_DIRECTION = (
    "acked", "fin_at", "span_from", "last_data_ns", "hole_at", "expected_seq", "closed_window_ns", "unseen_seq",
    "outside_ack", "stall_from", "stall_since", "last_sent_packet", "last_sent_file", "all_acked_ns",
)  # fmt: skip
FIRST_PACKET = np.dtype([(name, "i8") for name in ("ts_ns", "seq", "earlier", "previous")], align=True)


class Openings(NamedTuple):
    """`flow` uint8 (FLOW_BYTES,): the current flow; `connection`, `direction`: blank records; `first_packets`
    FIRST_PACKET (RETAINED,), a ring; `buckets` int64 (BUCKETS,): the latest first packet of each hash, numbered from 1;
    `counts` int64 (2,): first packets so far, and before this flow."""

    flow: np.ndarray
    connection: np.ndarray
    direction: np.ndarray
    first_packets: np.ndarray
    buckets: np.ndarray
    counts: np.ndarray
    scratch: Scratch


def new_openings(keep_payload: bool) -> Openings:
    """No flow, no connection."""
    connection = _blank(CONNECTION, UNKNOWN_CONNECTION)
    connection["keep_payload"] = keep_payload
    return Openings(
        np.zeros(FLOW_BYTES, np.uint8),
        connection,
        _blank(DIRECTION, UNKNOWN_DIRECTION),
        as_records(np.zeros(RETAINED, FIRST_PACKET)),
        np.zeros(BUCKETS, np.int64),
        np.zeros(2, np.int64),
        new_scratch(),
    )


def _blank(dtype: np.dtype, unknown: tuple[str, ...]) -> np.ndarray:
    record = np.zeros(1, dtype)
    for name in unknown:
        record[name] = -1
    return as_records(record)


class EndedRecords(NamedTuple):
    """Ended connections, until they are returned. `flows` uint8 (n, FLOW_BYTES); `connections` CONNECTION (n,);
    `directions` DIRECTION (n, 2); `tls_prefixes` uint8 (m, 2, TLS_PREFIX_BYTES): the first bytes of both directions of
    TLS stream `connection.tls_prefix_at`; `used` int64 (2,): n and m."""

    flows: np.ndarray
    connections: np.ndarray
    directions: np.ndarray
    tls_prefixes: np.ndarray
    used: np.ndarray


def new_ended_records() -> EndedRecords:
    """None yet."""
    return EndedRecords(
        sparse_zeros((ENDED, FLOW_BYTES), np.uint8),
        as_records(sparse_zeros(ENDED, CONNECTION)),
        as_records(sparse_zeros((ENDED, 2), DIRECTION)),
        sparse_zeros((TLS_STREAMS, 2, TLS_PREFIX_BYTES), np.uint8),
        np.zeros(2, np.int64),
    )


@dataclass(frozen=True)
class EndedConnections:
    """Ended connections as the decoder returns them: columns of `EndedRecords`. `layers`: by place of the connection,
    the facts of its TLS and WebSocket (`codec.layers.connection.LayeredConnection.facts`)."""

    flows: np.ndarray
    connections: np.ndarray
    directions: np.ndarray
    tls_prefixes: np.ndarray
    layers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


@kernel
def same_flow(openings, key):
    """Whether `key` is the current flow."""
    for i in range(FLOW_BYTES):
        if openings.flow[i] != key[i]:
            return False
    return True


@kernel
def begin_flow(openings, key):
    """Make `key` the current flow. Flows with the same addresses and ports share their first packets, which name their
    connections."""
    same = True
    for i in range(FLOW_BYTES):
        same = same and (i >= FLOW_KEY_BYTES or openings.flow[i] == key[i])
        openings.flow[i] = key[i]
    if not same:
        openings.counts[1] = openings.counts[0]


@kernel
def _bucket(ts_ns, seq):
    return (((ts_ns ^ (ts_ns >> 20)) * 31 + seq) & 0x7FFFFFFF) % BUCKETS


@kernel
def record_opening(openings, ts_ns, seq, earlier):
    """Store the first packet of a connection; `earlier` connections of the flow began with the same."""
    bucket = _bucket(ts_ns, seq)
    openings.counts[0] += 1
    first = openings.first_packets[openings.counts[0] % RETAINED]
    first.ts_ns = ts_ns
    first.seq = seq
    first.earlier = earlier
    first.previous = openings.buckets[bucket]
    openings.buckets[bucket] = openings.counts[0]


def first_packets_of(openings: Openings) -> list[tuple[int, int, int]]:
    """(ts_ns, seq, earlier) of the first packets of the current flow that are still in the ring."""
    last = int(openings.counts[0])
    recent = range(max(int(openings.counts[1]), last - RETAINED) + 1, last + 1)
    fields = openings.first_packets[[number % RETAINED for number in recent]].tolist()
    return [(ts_ns, seq, earlier) for ts_ns, seq, earlier, _ in fields]


@kernel
def _earlier_openings(openings, ts_ns, seq):
    """The number of earlier connections of the flow that began with the same packet."""
    bucket = _bucket(ts_ns, seq)
    oldest = max(int(openings.counts[1]), int(openings.counts[0]) - RETAINED)
    number, earlier = int(openings.buckets[bucket]), 0
    while number > oldest:
        first = openings.first_packets[number % RETAINED]
        if first.ts_ns == ts_ns and first.seq == seq:
            earlier = int(first.earlier) + 1
            break
        number = int(first.previous)
    record_opening(openings, ts_ns, seq, earlier)
    return earlier


@kernel
def client_by_ports(flow):
    """Direction of the client, judged by ports alone: the server has an AMQP port, else the lower one."""
    low, high = (int(flow[32]) << 8) | int(flow[33]), (int(flow[34]) << 8) | int(flow[35])
    for port in AMQP_PORTS:
        if low != high and low == port:
            return 1
        if low != high and high == port:
            return 0
    return 0 if low > high else 1


@kernel
def begin_connection(openings, connection, directions, g, row_from):
    """Begin a connection with segment `g` and row `row_from`. (Passing the whole state would cost more than the
    work.)"""
    connection[0] = openings.connection[0]
    for direction in range(2):
        directions[direction] = openings.direction[0]
    c = connection[0]
    ts_ns, seq = int(g.ts_ns), int(g.seq)
    earlier = _earlier_openings(openings, ts_ns, seq)
    c.connection_id = connection_number(openings.flow, ts_ns, seq, earlier, openings.scratch)
    c.likely_client = client_by_ports(openings.flow)
    c.known_by = R.BY_PORT
    c.row_from = row_from
    c.first_ns = ts_ns
    c.last_ns = ts_ns
    c.first_file = g.file


@kernel
def record_end(ended, flow, connection, directions, tls_prefix):
    """Store the records of a connection that has ended; False when there is no room."""
    n, m = int(ended.used[0]), int(ended.used[1])
    if n == len(ended.connections) or m == len(ended.tls_prefixes):
        return False
    if directions[0].tls_prefix > 0 or directions[1].tls_prefix > 0:
        connection[0].tls_prefix_at = m
        for direction in range(2):
            for i in range(directions[direction].tls_prefix):
                ended.tls_prefixes[m, direction, i] = tls_prefix[direction, i]
        ended.used[1] = m + 1
    for i in range(FLOW_BYTES):
        ended.flows[n, i] = flow[i]
    ended.connections[n] = connection[0]
    for direction in range(2):
        ended.directions[n, direction] = directions[direction]
    ended.used[0] = n + 1
    return True
