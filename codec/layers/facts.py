"""What was between TCP and AMQP, for the columns `connections.tls` and `connections.transport`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codec.amqp.connections.ended import Concluded
from codec.amqp.connections.facts import hellos
from codec.layers.tls.handshake import BEGAN_BEFORE, NO_HANDSHAKE, NO_SECRETS
from codec.layers.tls.hello import RECORD_HANDSHAKE, hello_facts
from codec.tcp.direction import TLS

HANDSHAKE_RECORD = bytes([RECORD_HANDSHAKE])
TRANSPORTS = ("tcp", "tls", "websocket", "websocket+tls")


def layer_facts(ended: Concluded) -> dict[int, dict[str, Any]]:
    """Facts of TLS by place of the connection, of all that were encrypted."""
    found: dict[int, dict[str, Any]] = {}
    of_hellos = hellos(ended)
    for place in np.flatnonzero((ended.directions["mode"] == TLS).any(1)).tolist():
        known: dict[str, Any] = hello_facts(*of_hellos.get(place, (b"", b"")))
        found[place] = known | {"decrypted": False}
    for place in of_hellos:
        if place not in found:
            found[place] = dict(hello_facts(*of_hellos[place])) | {"decrypted": False}
    for place, facts in ended.layers.items():
        if facts["tls"] is not None:
            found[place] = facts["tls"]
    for place, known in found.items():
        header_first = bool(ended.connections["offers"][place]) and place not in ended.layers
        upgraded = ended.layers[place]["upgraded"] if place in ended.layers else header_first
        known["mode"] = "upgraded" if upgraded else "implicit"
    return found


def unread(ended: Concluded) -> list[str | None]:
    """Why nothing, or nothing more, of TLS or WebSocket was read; None where that is not so."""
    found: list[str | None] = [None] * len(ended.connections)
    began, of_hellos = ended.connections["syn_ns"] >= 0, hellos(ended)
    for place in np.flatnonzero((ended.directions["mode"] == TLS).any(1)).tolist():
        has_hello = any(octets[:1] == HANDSHAKE_RECORD for octets in of_hellos.get(place, ()))
        found[place] = NO_SECRETS if has_hello else NO_HANDSHAKE if began[place] else BEGAN_BEFORE
    for place, facts in ended.layers.items():
        found[place] = facts["unread_because"]
    return found


def transports(ended: Concluded) -> NDArray[np.int64]:
    """Places in TRANSPORTS."""
    found = np.where((ended.directions["mode"] == TLS).any(1), 1, 0).astype(np.int64)
    for place, facts in ended.layers.items():
        found[place] = (1 if facts["tls"] is not None else 0) + (2 if facts["websocket"] else 0)
    return found
