"""What a TCP connection was, once it has ended: the transport's facts as a plain dict, one per connection."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from codec.amqp.connection import TCP_ENDS
from codec.amqp.rows import CONNECTION, DEFINITION, ERROR, KNOWN_BY
from codec.amqp.tables import CLASSIC_VERSIONS
from codec.amqp.tls import hello_facts, hello_is_cut
from codec.amqp.versions import E_DEPTH, E_VALUE_SIZE, START_SAID, VERSIONS, fact_table, headers
from codec.limits import HELLO_SIZE, LIMITS, NESTING, REACHED, VALUE_SIZE
from codec.net.direction import FOREIGN, START, TLS
from codec.sides import SIDES

AMQP_PORTS = (5672, 5671)
IPPROTO_TCP = 6
IPV4_MAPPED = bytes(10) + b"\xff\xff"  # RFC 4291 section 2.5.5.2
SIDE_COUNTERS = {
    "packets": "packets",
    "payload_bytes": "payload_bytes",
    "frame_bytes": "frame_bytes",
    "skipped_bytes": "skipped_bytes",
    "tls_bytes": "tls_bytes",
    "foreign_bytes": "foreign_bytes",
    "tail_bytes": "tail_bytes",
    "missing_bytes": "missing_bytes",
    "retransmitted_bytes": "retransmitted_bytes",
    "out_of_order_segments": "out_of_order",
    "max_silence_ns": "max_silence_ns",
}


def plain_records(records: np.ndarray) -> list[SimpleNamespace]:
    """Records with their fields as attributes of plain objects: numpy takes a microsecond to look at each."""
    names = records.dtype.names or ()
    return [SimpleNamespace(**dict(zip(names, record, strict=True))) for record in records.tolist()]


def endpoints(flow: bytes) -> list[tuple[bytes, int]]:
    """The two (address of 16 octets, port) of a flow key, low endpoint first."""
    return [
        (flow[0:16], int.from_bytes(flow[32:34], "big")),
        (flow[16:32], int.from_bytes(flow[34:36], "big")),
    ]


def address_text(octets: bytes) -> str:
    """The usual text of a 16-octet address; IPv4 ones are mapped (RFC 4291 section 2.5.5.2)."""
    address = ipaddress.IPv6Address(octets)
    return str(address.ipv4_mapped or address)


def fewest_port_is_server(flow: bytes) -> int:
    """Direction of the client, judged by ports alone: the server has an AMQP port, else the lower one."""
    ports = [port for _, port in endpoints(flow)]
    for known in AMQP_PORTS:
        if known in ports and ports[0] != ports[1]:
            return 1 - ports.index(known)
    return 0 if ports[0] > ports[1] else 1


def community_id(flow: bytes, seed: int = 0, protocol: int = IPPROTO_TCP) -> str:
    """Community ID version 1 of a flow key (of TCP, or another protocol with ports): base64 of SHA-1 over seed,
    addresses, protocol and ports, low endpoint first."""
    ends = [(flow[0:16], flow[32:34]), (flow[16:32], flow[34:36])]
    (low, low_port), (high, high_port) = sorted((ip[12:] if ip[:12] == IPV4_MAPPED else ip, port) for ip, port in ends)
    named = seed.to_bytes(2, "big") + low + high + bytes([protocol, 0]) + low_port + high_port
    return "1:" + base64.b64encode(hashlib.sha1(named, usedforsecurity=False).digest()).decode()


def offered_versions(c: Any) -> list[str]:
    """'client 0-9-1', ... in the order of the protocol headers; a header no version knows by its octets. Then the
    version of a connection.start that differs from the header, 'server 0-8'."""
    known, said = header_versions(), started_versions()
    offered = []
    for i in range(int(c.offers)):
        direction, octets = int(c.offer[i]) >> 32, (int(c.offer[i]) & 0xFFFFFFFF).to_bytes(4, "big")
        if octets[0] == START_SAID:
            version = said.get(octets[2:]) or f"{octets[2]}.{octets[3]}"
        else:
            version = VERSIONS[known.get(octets, 0)] or ".".join(str(octet) for octet in octets)
        offered.append(f"{SIDES[0] if direction == c.client else SIDES[1]} {version}")
    return offered


@cache
def header_versions() -> dict[bytes, int]:
    """The version (a place in VERSIONS) that the last four octets of a protocol header mean."""
    return {bytes(octets): int(code) for octets, code in zip(headers().octets, headers().version, strict=True)}


@cache
def started_versions() -> dict[bytes, str]:
    """The version that connection.start means by its major and minor number; 0 9 is how 0-9-1 too calls itself."""
    found: dict[bytes, str] = {}
    for version in CLASSIC_VERSIONS:
        numbers = fact_table(version)["protocol_header"]["start_version"]
        found.setdefault(bytes([numbers["major"], numbers["minor"]]), version)
    return found


def _content(c: Any, directions: Sequence[Any]) -> str:
    modes = [int(d.mode) for d in directions]
    if c.family or c.offers:
        return "amqp"
    if TLS in modes:
        return "tls"
    if FOREIGN in modes:
        return "foreign"
    return "none" if all(mode == START for mode in modes) else "amqp"


def connection_facts(flow: bytes, c: Any, directions: Sequence[Any], hello: np.ndarray) -> dict[str, Any]:
    """All facts of the ended connection `c` (CONNECTION) with its two directions (DIRECTION), as
    `plain_records`.

    `limits` are bits of codec.limits.REACHED; `limit_names` names them when the rows have told theirs.
    """
    client = int(c.client)
    (client_ip, client_port), (server_ip, server_port) = endpoints(flow) if client == 0 else reversed(endpoints(flow))
    hellos = [bytes(hello[direction][: directions[direction].hello]) for direction in (client, 1 - client)]
    facts: dict[str, Any] = {
        "client_ip": address_text(client_ip),
        "client_port": client_port,
        "server_ip": address_text(server_ip),
        "server_port": server_port,
        "community_id": community_id(flow),
        "opened_ts_ns": int(c.first_ns),
        "closed_ts_ns": int(c.last_ns),
        "tcp_rtt_ns": int(c.rtt_ns) if c.rtt_ns >= 0 else None,
        "tcp_end": TCP_ENDS[c.tcp_end],
        "tcp_end_by": None if c.tcp_end_by < 0 else SIDES[0 if c.tcp_end_by == client else 1],
        "syn_seen": bool(c.syn_ns >= 0),
        "sides_known_by": KNOWN_BY[c.known_by],
        "content": _content(c, directions),
        "versions_offered": offered_versions(c),
        "tls": hello_facts(*hellos) if any(hellos) else None,
        "conflicting_overlap_bytes": int(directions[0].conflicting_bytes + directions[1].conflicting_bytes),
        "limits": limits_reached(c, directions, hellos),
    }
    for side, direction in ((SIDES[0], client), (SIDES[1], 1 - client)):
        d = directions[direction]
        facts[side] = {name: int(getattr(d, column)) for name, column in SIDE_COUNTERS.items()}
    return facts


def limits_reached(c: Any, directions: Sequence[Any], hellos: list[bytes]) -> int:
    """Bits of the limits that this connection ran into while its frames were taken."""
    limits = int(c.limits | directions[0].limits | directions[1].limits)
    cut = any(len(hello) == LIMITS.hello_bytes and hello_is_cut(hello) for hello in hellos)
    return limits | (HELLO_SIZE if cut else 0)


def limits_of_rows(cells: np.ndarray) -> dict[int, int]:
    """Bits of the limits that the values of rows ran into, by connection."""
    found: dict[int, int] = {}
    errors = cells[:, ERROR]
    reached = (errors == E_DEPTH) | (errors == E_VALUE_SIZE)
    for row in np.flatnonzero(reached & (cells[:, DEFINITION] >= 0)):  # others had no values to decode
        connection = int(cells[row, CONNECTION])
        found[connection] = found.get(connection, 0) | (NESTING if errors[row] == E_DEPTH else VALUE_SIZE)
    return found


def limit_names(limits: int) -> list[str]:
    """The names of bits of codec.limits.REACHED."""
    return [name for bit, name in enumerate(REACHED) if limits >> bit & 1]
