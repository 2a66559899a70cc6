"""Facts of ended TCP connections that are not fields of their records (see `udfs.decode.connection_rows`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from codec.compiler.limits import DELIVERY_SIZE, HELLO_SIZE, LIMITS, NESTING, REACHED, VALUE_SIZE
from codec.framing.connection import EndedConnections
from codec.layers.tls_handshake import hello_is_cut
from codec.names import CLASSIC_VERSIONS, SIDES
from codec.protocol import versions as V
from codec.protocol.rows import CONNECTION, DEFINITION, DIGEST, ERROR, LARGE_BATCH
from codec.tcp.reassembly import FOREIGN, START, TLS

CONTENTS = ("amqp", "tls", "foreign", "none")


def offered_versions(offers: Sequence[int], client: int) -> list[str]:
    """'client 0-9-1', ... in the order of the protocol headers (`offers` of CONNECTION), an undefined header as its
    bytes. Then the version of a connection.start that differs from the header, 'server 0-8'."""
    known, started = header_versions(), started_versions()
    offered = []
    for offer in offers:
        direction, data = offer >> 32, (offer & 0xFFFFFFFF).to_bytes(4, "big")
        if data[0] == V.START_VERSION:
            version = started.get(data[2:]) or f"{data[2]}.{data[3]}"
        else:
            version = V.VERSIONS[known.get(data, 0)] or ".".join(str(byte) for byte in data)
        offered.append(f"{SIDES[0] if direction == client else SIDES[1]} {version}")
    return offered


@cache
def header_versions() -> dict[bytes, int]:
    """VERSIONS codes by the last four bytes of a protocol header."""
    return {bytes(data): int(code) for data, code in zip(V.headers().data, V.headers().version, strict=True)}


@cache
def started_versions() -> dict[bytes, str]:
    """The version by major and minor number in connection.start; 0 9 also stands for 0-9-1."""
    found: dict[bytes, str] = {}
    for version in CLASSIC_VERSIONS:
        numbers = V.fact_table(version)["protocol_header"]["start_version"]
        found.setdefault(bytes([numbers["major"], numbers["minor"]]), version)
    return found


def carried_protocols(ended: EndedConnections) -> NDArray[np.int64]:
    """The protocol that each connection carried, as indexes of CONTENTS."""
    modes = ended.directions["mode"]
    is_amqp = (ended.connections["family"] != V.UNKNOWN_FAMILY) | (ended.connections["offers"] > 0)
    # A broker answers any protocol with its header: the client, when it sent nothing of AMQP, decides.
    client = (np.arange(len(modes)), ended.connections["client"])
    is_amqp &= ~np.isin(modes[client], (TLS, FOREIGN)) | (ended.directions["frame_bytes"][client] > 0)
    found = [is_amqp, (modes == TLS).any(1), (modes == FOREIGN).any(1), (modes == START).all(1)]
    return np.select(found, range(len(CONTENTS)), CONTENTS.index("amqp")).astype(np.int64)


def tls_prefixes(ended: EndedConnections) -> dict[int, list[bytes]]:
    """The first bytes of the client's and the server's direction of TLS streams, by index of the connection."""
    found = {}
    for index in np.flatnonzero(ended.connections["tls_prefix_at"] >= 0).tolist():
        client, at = int(ended.connections["client"][index]), int(ended.connections["tls_prefix_at"][index])
        sizes = ended.directions["tls_prefix"][index].tolist()
        found[index] = [
            ended.tls_prefixes[at, direction, : sizes[direction]].tobytes() for direction in (client, 1 - client)
        ]
    return found


def limits_reached(ended: EndedConnections) -> NDArray[np.int64]:
    """Bits of the limits that the connections reached."""
    limits: NDArray[np.int64] = ended.connections["limits"] | np.bitwise_or.reduce(ended.directions["limits"], axis=1)
    for index, of_both in tls_prefixes(ended).items():
        if any(len(tls_prefix) == LIMITS.hello_bytes and hello_is_cut(tls_prefix) for tls_prefix in of_both):
            limits[index] |= HELLO_SIZE
    return limits


def limits_of_rows(cells: np.ndarray) -> dict[int, int]:
    """Bits of the limits that the values of rows reached, by connection."""
    found: dict[int, int] = {}
    errors = cells[:, ERROR]
    reached = (errors == V.E_DEPTH) | (errors == V.E_VALUE_SIZE)
    for row in np.flatnonzero(reached & (cells[:, DEFINITION] >= 0)):  # others had no values to decode
        connection = int(cells[row, CONNECTION])
        found[connection] = found.get(connection, 0) | (NESTING if errors[row] == V.E_DEPTH else VALUE_SIZE)
    for row in np.flatnonzero(cells[:, DIGEST] == LARGE_BATCH):
        connection = int(cells[row, CONNECTION])
        found[connection] = found.get(connection, 0) | DELIVERY_SIZE
    return found


def limit_names(limits: int) -> list[str]:
    """The names of bits of codec.compiler.limits.REACHED."""
    return [name for bit, name in enumerate(REACHED) if limits >> bit & 1]
