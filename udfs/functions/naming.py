"""Numbers to names, by the tables of the specifications; flows to Community IDs."""

from __future__ import annotations

import socket
from functools import cache

import numpy as np
import pyarrow as pa

from codec.amqp.classic.tables import CLASSIC_VERSIONS, methods
from codec.amqp.v0_10.tables import COMMAND_ENTRY, CONTROL_ENTRY, entries
from codec.amqp.v1_0.tables import descriptors
from codec.net.identity import IPPROTO_TCP, IPV4_MAPPED, name_flows
from udfs.functions.columns import by_distinct, version_code

WITH_PORTS = (IPPROTO_TCP, 17, 132)  # TCP, UDP, SCTP (the Internet's protocol numbers)


@cache
def _methods(version: str) -> dict[tuple[int, int], str]:
    version_code(version)
    if version in CLASSIC_VERSIONS:
        return {(method.class_id, method.method_id): method.name for method in methods(version)}
    if version == "0-10":
        named = [entry for entry in entries() if entry.kind in (CONTROL_ENTRY, COMMAND_ENTRY)]
        return {(entry.class_code, entry.code): entry.name for entry in named if entry.code is not None}
    return {}


@cache
def _classes(version: str) -> dict[int, str]:
    return {class_id: name.partition(".")[0] for (class_id, _), name in _methods(version).items()}


@cache
def _descriptors() -> dict[int, str]:
    return {described.code: described.name for described in descriptors()}


def method_name(class_id: pa.Array, method_id: pa.Array, version: pa.Array) -> pa.Array:
    """'basic.publish' for class 60 and method 40 of 0-9-1; null if the version does not define it."""
    return by_distinct([class_id, method_id, version], lambda c, m, v: _methods(v).get((c, m)), pa.string())


def class_name(class_id: pa.Array, version: pa.Array) -> pa.Array:
    """'basic' for class 60 of 0-9-1; null if the version does not define it (1.0 has no classes)."""
    return by_distinct([class_id, version], lambda c, v: _classes(v).get(c), pa.string())


def descriptor_name(code: pa.Array) -> pa.Array:
    """'transfer' for descriptor 0x14 of 1.0: performatives, sections, outcomes and all other types of the standard."""
    return by_distinct([code], _descriptors().get, pa.string())


def flow_id(
    ip: pa.Array,
    port: pa.Array,
    other_ip: pa.Array,
    other_port: pa.Array,
    protocol: pa.Array = None,
    seed: pa.Array = None,
) -> pa.Array:
    """Community ID, version 1, of each flow, the same for both orders of its ends; null where an address, a port, the
    protocol (TCP, UDP or SCTP by number) or the seed is invalid. Defaults: TCP, seed 0."""
    columns = [ip, port, other_ip, other_port, _default(protocol, IPPROTO_TCP, ip), _default(seed, 0, ip)]
    return by_distinct(columns, _community, pa.string())


def _default(column: pa.Array, otherwise: int, like: pa.Array) -> pa.Array:
    return pa.repeat(pa.scalar(otherwise), len(like)) if column is None else column


def _community(ip: str, port: int, other_ip: str, other_port: int, protocol: int, seed: int) -> str | None:
    ends = [packed(ip), packed(other_ip)]
    short = all(0 <= number < 1 << 16 for number in (port, other_port, seed))
    if None in ends or not short or protocol not in WITH_PORTS:
        return None
    mapped = [IPV4_MAPPED + octets if len(octets) == 4 else octets for octets in ends if octets]
    (low, low_port), (high, high_port) = sorted(zip(mapped, (port, other_port), strict=True))
    flow = low + high + low_port.to_bytes(2, "big") + high_port.to_bytes(2, "big")
    name: bytes = name_flows(np.frombuffer(flow, np.uint8)[None], seed, protocol).tobytes()
    return name.decode()


def packed(ip: str) -> bytes | None:
    """The 4 or 16 octets of an address; None for an invalid address, or one with a zone."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)
    except (OSError, ValueError):  # C rejects a text with a zero octet
        return None
