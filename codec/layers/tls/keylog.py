"""The lines of a key log (RFC 9850): label, client random, secret, the latter two as hexadecimal digits.

No error message contains any part of a line.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from codec.compiler.limits import LIMITS
from codec.layers.tls.hello import RANDOM_BYTES

CLIENT_RANDOM = b"CLIENT_RANDOM"  # the master secret of TLS 1.2
CLIENT_EARLY, CLIENT_HANDSHAKE, SERVER_HANDSHAKE, CLIENT_TRAFFIC, SERVER_TRAFFIC = (
    b"CLIENT_EARLY_TRAFFIC_SECRET",
    b"CLIENT_HANDSHAKE_TRAFFIC_SECRET",
    b"SERVER_HANDSHAKE_TRAFFIC_SECRET",
    b"CLIENT_TRAFFIC_SECRET_0",
    b"SERVER_TRAFFIC_SECRET_0",
)
LABELS = {CLIENT_RANDOM, CLIENT_EARLY, CLIENT_HANDSHAKE, SERVER_HANDSHAKE, CLIENT_TRAFFIC, SERVER_TRAFFIC}
SECRET_BYTES = (32, 48)  # of SHA-256 and SHA-384; a master secret has 48

Secrets = dict[bytes, bytes]


class SecretSource(Protocol):
    """Looks up the secrets of a connection by its client random; empty when there are none."""

    def secrets(self, client_random: bytes) -> Secrets: ...

    def recent(self) -> list[Secrets]:
        """Those of TLS 1.3 connections, the newest first, `trial_connections` at most: to try on a connection whose
        client random is not known."""
        ...


def parse_line(line: bytes) -> tuple[bytes, bytes, bytes] | None:
    """(label, client random, secret); None for comments, other labels and what is no such line."""
    parts = line.split()
    if len(parts) != 3 or parts[0] not in LABELS:
        return None
    try:
        random, secret = binascii.unhexlify(parts[1]), binascii.unhexlify(parts[2])
    except binascii.Error:
        return None
    if len(random) != RANDOM_BYTES or len(secret) not in SECRET_BYTES:
        return None
    return parts[0], random, secret


class KeyLog:
    """A whole key log in memory, for logs that are small."""

    def __init__(self, octets: bytes = b"") -> None:
        self._known: dict[bytes, Secrets] = {}
        self.add(octets.splitlines())

    def add(self, lines: Iterable[bytes]) -> None:
        """Add lines; of two for the same secret the first counts."""
        for line in lines:
            found = parse_line(line)
            if found is not None:
                self._known.setdefault(found[1], {}).setdefault(found[0], found[2])

    def secrets(self, client_random: bytes) -> Secrets:
        """The secrets of one connection."""
        return self._known.get(client_random, {})

    def recent(self) -> list[Secrets]:
        """See `SecretSource`."""
        found = (each for each in reversed(self._known.values()) if CLIENT_TRAFFIC in each or SERVER_TRAFFIC in each)
        return list(islice(found, LIMITS.trial_connections))
