"""What TCP connections were, once they have ended: facts that follow from the records of the decoder.

Numbers are read from the records by whoever makes columns of them (`udfs.decode.connection_rows`); here is what takes
more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from codec.amqp.classic.tables import CLASSIC_VERSIONS
from codec.amqp.connections.ended import Concluded
from codec.amqp.rows import CONNECTION, DEFINITION, ERROR
from codec.amqp.versions import (
    E_DEPTH,
    E_VALUE_SIZE,
    START_VERSION,
    UNKNOWN_FAMILY,
    VERSIONS,
    fact_table,
    headers,
)
from codec.compiler.limits import HELLO_SIZE, LIMITS, NESTING, REACHED, VALUE_SIZE
from codec.layers.tls.hello import hello_is_cut
from codec.sides import SIDES
from codec.tcp.direction import FOREIGN, START, TLS

CONTENTS = ("amqp", "tls", "foreign", "none")


def offered_versions(offers: Sequence[int], client: int) -> list[str]:
    """'client 0-9-1', ... in the order of the protocol headers, `offers` as CONNECTION has them; a header no version
    knows by its octets. Then the version of a connection.start that differs from the header, 'server 0-8'."""
    known, said = header_versions(), started_versions()
    offered = []
    for offer in offers:
        direction, octets = offer >> 32, (offer & 0xFFFFFFFF).to_bytes(4, "big")
        if octets[0] == START_VERSION:
            version = said.get(octets[2:]) or f"{octets[2]}.{octets[3]}"
        else:
            version = VERSIONS[known.get(octets, 0)] or ".".join(str(octet) for octet in octets)
        offered.append(f"{SIDES[0] if direction == client else SIDES[1]} {version}")
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


def contents(ended: Concluded) -> NDArray[np.int64]:
    """What the connections carried, as places in CONTENTS."""
    modes = ended.directions["mode"]
    is_amqp = (ended.connections["family"] != UNKNOWN_FAMILY) | (ended.connections["offers"] > 0)
    found = [is_amqp, (modes == TLS).any(1), (modes == FOREIGN).any(1), (modes == START).all(1)]
    return np.select(found, range(len(CONTENTS)), CONTENTS.index("amqp")).astype(np.int64)


def hellos(ended: Concluded) -> dict[int, list[bytes]]:
    """How the client's and the server's direction of TLS streams begin, by place of the connection."""
    found = {}
    for place in np.flatnonzero(ended.connections["hello_at"] >= 0).tolist():
        client, at = int(ended.connections["client"][place]), int(ended.connections["hello_at"][place])
        sizes = ended.directions["hello"][place].tolist()
        found[place] = [ended.hellos[at, way, : sizes[way]].tobytes() for way in (client, 1 - client)]
    return found


def limits_reached(ended: Concluded) -> NDArray[np.int64]:
    """Bits of the limits that the connections ran into."""
    limits: NDArray[np.int64] = ended.connections["limits"] | np.bitwise_or.reduce(ended.directions["limits"], axis=1)
    for place, of_both in hellos(ended).items():
        if any(len(hello) == LIMITS.hello_bytes and hello_is_cut(hello) for hello in of_both):
            limits[place] |= HELLO_SIZE
    return limits


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
    """The names of bits of codec.compiler.limits.REACHED."""
    return [name for bit, name in enumerate(REACHED) if limits >> bit & 1]
