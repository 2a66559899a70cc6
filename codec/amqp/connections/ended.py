"""Connections that have ended, until what is known of them is handed out: their records, as the decoder left them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from codec.amqp.connections.connection import CONNECTION
from codec.amqp.detection import HELLO_BYTES
from codec.compiler.kernel import kernel
from codec.net.segments import FLOW_KEY_BYTES
from codec.tcp.direction import DIRECTION

ENDED = 1 << 12  # connections handed out at a time
HELLOS = 1 << 8  # of them encrypted ones


class Ended(NamedTuple):
    """`flows` uint8 (n, 36); `connections` CONNECTION (n,); `directions` DIRECTION (n, 2); `hellos` uint8 (m, 2,
    HELLO_BYTES): how the directions of the TLS stream `connection.hello_at` begin; `used` int64 (2,): n and m."""

    flows: np.ndarray
    connections: np.ndarray
    directions: np.ndarray
    hellos: np.ndarray
    used: np.ndarray


@dataclass(frozen=True)
class Concluded:
    """The same for those who make columns of it. `layers`: by place of the connection, what lay between its TCP and its
    AMQP (`codec.layers.connection.LayeredConnection.facts`)."""

    flows: np.ndarray
    connections: np.ndarray
    directions: np.ndarray
    hellos: np.ndarray
    layers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


def new_ended() -> Ended:
    """None yet."""
    return Ended(
        np.zeros((ENDED, FLOW_KEY_BYTES), np.uint8),
        np.zeros(ENDED, CONNECTION).view(np.recarray),
        np.zeros((ENDED, 2), DIRECTION).view(np.recarray),
        np.zeros((HELLOS, 2, HELLO_BYTES), np.uint8),
        np.zeros(2, np.int64),
    )


@kernel
def collect(ended, flow, connection, directions, hello):
    """Keep the records of a connection that has ended; False where there is no room."""
    n, m = int(ended.used[0]), int(ended.used[1])
    if n == len(ended.connections) or m == len(ended.hellos):
        return False
    if directions[0].hello > 0 or directions[1].hello > 0:
        connection[0].hello_at = m
        for direction in range(2):
            for i in range(directions[direction].hello):
                ended.hellos[m, direction, i] = hello[direction, i]
        ended.used[1] = m + 1
    for i in range(FLOW_KEY_BYTES):
        ended.flows[n, i] = flow[i]
    ended.connections[n] = connection[0]
    for direction in range(2):
        ended.directions[n, direction] = directions[direction]
    ended.used[0] = n + 1
    return True
