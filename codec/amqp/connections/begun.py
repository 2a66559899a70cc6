"""A connection begins: its blank record, and its number.

Connections of one flow that begin with the very same packet (a capture holds it twice) are numbered apart. `Names` is a
ring of the first packets of the last `Limits.names_kept` connections, chained by hash; a chain ends at what was
overwritten, or belongs to another flow, so that nothing has to be cleared.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.amqp.connections.connection import CONNECTION
from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.net.identity import Scratch, connection_number, new_scratch
from codec.net.segments import FLOW_KEY_BYTES
from codec.tcp.direction import DIRECTION

KEPT = LIMITS.names_kept
CHAINS = 2 * KEPT
NO_CONNECTION = -1  # phase between two connections
AMQP_PORTS = (5672, 5671)
# What is -1 where nothing is known yet.
UNKNOWN = {
    "connection": ("client", "syn_ns", "synack_ns", "rtt_ns", "tcp_end_by", "end_ack", "hello_at"),
    "direction": ("acked", "fin_at", "span_from", "last_data_ns", "doubt_at", "promised", "shut_ns"),
}
NAME = np.dtype([("ts_ns", "i8"), ("seq", "i8"), ("times", "i8"), ("before", "i8")], align=True)


class Begun(NamedTuple):
    """`flow` uint8 (36,): key of the flow at hand; `connection`, `direction`: blank records; `names` NAME (KEPT,), a
    ring; `chains` int64 (CHAINS,): the last name of each hash, numbered from 1; `begins` int64 (2,): names so far, and
    before this flow."""

    flow: np.ndarray
    connection: np.ndarray
    direction: np.ndarray
    names: np.ndarray
    chains: np.ndarray
    begins: np.ndarray
    scratch: Scratch


def new_begun(keep_payload: bool) -> Begun:
    """No flow, no connection."""
    connection = _blank(CONNECTION, UNKNOWN["connection"])
    connection["keep_payload"] = keep_payload
    return Begun(
        np.zeros(FLOW_KEY_BYTES, np.uint8),
        connection,
        _blank(DIRECTION, UNKNOWN["direction"]),
        np.zeros(KEPT, NAME).view(np.recarray),
        np.zeros(CHAINS, np.int64),
        np.zeros(2, np.int64),
        new_scratch(),
    )


def _blank(dtype: np.dtype, unknown: tuple[str, ...]) -> np.ndarray:
    """A record of what has only begun."""
    record = np.zeros(1, dtype)
    for name in unknown:
        record[name] = -1
    return record.view(np.recarray)


@kernel
def same_flow(begun, key):
    """Whether `key` is that of the flow at hand."""
    for i in range(FLOW_KEY_BYTES):
        if begun.flow[i] != key[i]:
            return False
    return True


@kernel
def begin_flow(begun, key):
    """The connections that follow are of this flow."""
    for i in range(FLOW_KEY_BYTES):
        begun.flow[i] = key[i]
    begun.begins[1] = begun.begins[0]


@kernel
def _chain(ts_ns, seq):
    return (((ts_ns ^ (ts_ns >> 20)) * 31 + seq) & 0x7FFFFFFF) % CHAINS


@kernel
def remember(begun, ts_ns, seq, times):
    """A connection began with such a packet, as `times` connections of the flow before."""
    chain = _chain(ts_ns, seq)
    begun.begins[0] += 1
    name = begun.names[begun.begins[0] % KEPT]
    name.ts_ns = ts_ns
    name.seq = seq
    name.times = times
    name.before = begun.chains[chain]
    begun.chains[chain] = begun.begins[0]


def names_of(begun: Begun) -> list[tuple[int, int, int]]:
    """What `remember` was told of the flow at hand, as far as it is kept."""
    last = int(begun.begins[0])
    kept = range(max(int(begun.begins[1]), last - KEPT) + 1, last + 1)
    fields = begun.names[[number % KEPT for number in kept]].tolist()
    return [(ts_ns, seq, times) for ts_ns, seq, times, _ in fields]


@kernel
def _times_named(begun, ts_ns, seq):
    """How many connections of the flow began with such a packet before."""
    chain = _chain(ts_ns, seq)
    oldest = max(int(begun.begins[1]), int(begun.begins[0]) - KEPT)
    number, times = int(begun.chains[chain]), 0
    while number > oldest:
        name = begun.names[number % KEPT]
        if name.ts_ns == ts_ns and name.seq == seq:
            times = int(name.times) + 1
            break
        number = int(name.before)
    remember(begun, ts_ns, seq, times)
    return times


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
def begin_connection(begun, connection, directions, g, row_from):
    """A connection begins with segment `g`; its rows begin with number `row_from`. Not the whole state is passed along:
    that would take longer than the work."""
    connection[0] = begun.connection[0]
    for direction in range(2):
        directions[direction] = begun.direction[0]
    c = connection[0]
    ts_ns, seq = int(g.ts_ns), int(g.seq)
    times = _times_named(begun, ts_ns, seq)
    c.connection_id = connection_number(begun.flow, ts_ns, seq, times, begun.scratch)
    c.port_client = client_by_ports(begun.flow)
    c.row_from = row_from
    c.first_ns = ts_ns
    c.last_ns = ts_ns
    c.first_file = g.file
