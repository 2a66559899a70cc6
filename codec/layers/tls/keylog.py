"""The lines of a key log (RFC 9850): label, client random, secret, the latter two as hexadecimal digits.

No error message contains any part of a line.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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
SECRET_BYTES, MASTER_BYTES = (32, 48), (48,)  # of SHA-256 and SHA-384; of a master secret of TLS 1.2

SHIFTS = (31, 0, 17, 7, 29, 19, 11, 3)  # of the eight words of a random in its key
# The secrets of one connection by label: usually one of each. A client random is no secret, so that anybody may write
# other secrets for it into a capture or a key log: all are candidates, and the one that authenticates a record counts.
Secrets = dict[bytes, tuple[bytes, ...]]


class SecretSource(Protocol):
    """Looks up the secrets of a connection by its client random; empty when there are none."""

    def secrets(self, client_random: bytes) -> Secrets: ...

    def others(self, client_random: bytes) -> Secrets:
        """Those of sources that `secrets` did not need to read; asked for when none of the former authenticates."""
        ...

    def known(self) -> tuple[NDArray[np.int64], bool]:
        """Keys (`folded`) of the client randoms of which `secrets` has found secrets or would find some, sorted; true:
        of all of them, until a key log grows."""
        ...

    def recent(self) -> list[Secrets]:
        """Those of TLS 1.3 connections, the newest first, `trial_connections` at most: to try on a connection whose
        client random is not known."""
        ...


def joined_secrets(sources: Iterable[Secrets]) -> Secrets:
    """The secrets of several sources, `secret_candidates` of each label at most: the first ones of all sources come
    before the second ones, in an order that does not depend on that of the sources."""
    ranked: dict[bytes, dict[bytes, int]] = {}
    for source in sources:
        for label, secrets in source.items():
            ranks = ranked.setdefault(label, {})
            for rank, secret in enumerate(secrets):
                ranks[secret] = min(rank, ranks.get(secret, rank))
    return {
        label: tuple(sorted(ranks, key=lambda secret: (ranks[secret], secret))[: LIMITS.secret_candidates])
        for label, ranks in ranked.items()
    }


def newest(sources: Sequence[Sequence[tuple[bytes, Secrets]]]) -> list[Secrets]:
    """Of the connections of several sources, each (client random, secrets) and the newest first: `trial_connections`
    of TLS 1.3, the newest of all sources before the second newest."""
    ranked: dict[bytes, tuple[int, list[Secrets]]] = {}
    for source in sources:
        for rank, (random, secrets) in enumerate(source):
            known = ranked.setdefault(random, (rank, []))
            ranked[random] = min(rank, known[0]), [*known[1], secrets]
    found = sorted(ranked, key=lambda random: (ranked[random][0], random))[: LIMITS.trial_connections]
    return [joined_secrets(ranked[random][1]) for random in found]


def parse_line(line: bytes) -> tuple[bytes, bytes, bytes] | None:
    """(label, client random, secret); None for comments, other labels and what is no such line."""
    parts = line.split()
    if len(parts) != 3 or parts[0] not in LABELS:
        return None
    try:
        random, secret = binascii.unhexlify(parts[1]), binascii.unhexlify(parts[2])
    except binascii.Error:
        return None
    sizes = MASTER_BYTES if parts[0] == CLIENT_RANDOM else SECRET_BYTES
    if len(random) != RANDOM_BYTES or len(secret) not in sizes:
        return None
    return parts[0], random, secret


class KeyLog:
    """A whole key log in memory, for logs that are small."""

    def __init__(self, octets: bytes = b"") -> None:
        self._known: dict[bytes, Secrets] = {}
        self.add(octets.splitlines())

    def add(self, lines: Iterable[bytes]) -> None:
        """Add lines; of more than `secret_candidates` different secrets of a label the first ones count."""
        for line in lines:
            found = parse_line(line)
            if found is not None:
                label, random, secret = found
                add_secret(self._known.setdefault(random, {}), label, secret)

    def secrets(self, client_random: bytes) -> Secrets:
        """The secrets of one connection."""
        return self._known.get(client_random, {})

    def others(self, client_random: bytes) -> Secrets:
        """See `SecretSource`: none."""
        return {}

    def known(self) -> tuple[NDArray[np.int64], bool]:
        """See `SecretSource`."""
        randoms = np.frombuffer(b"".join(self._known), np.uint8).reshape(-1, RANDOM_BYTES)
        return np.sort(folded(randoms)), True

    def of_tls13(self) -> list[tuple[bytes, Secrets]]:
        """(client random, secrets) of the newest connections of TLS 1.3, `trial_connections` at most."""
        known = reversed(self._known.items())
        found = (pair for pair in known if CLIENT_TRAFFIC in pair[1] or SERVER_TRAFFIC in pair[1])
        return list(islice(found, LIMITS.trial_connections))

    def recent(self) -> list[Secrets]:
        """See `SecretSource`."""
        return newest([self.of_tls13()])


def folded(randoms: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Keys of client randoms, uint8 (n, RANDOM_BYTES), for an index: equal ones of equal randoms, none negative."""
    words = np.ascontiguousarray(randoms).view(">u4").astype(np.int64)
    keys: NDArray[np.int64] = np.bitwise_xor.reduce(words << np.array(SHIFTS), axis=1)
    return keys


def add_secret(known: Secrets, label: bytes, secret: bytes) -> None:
    """Add a candidate of this label to the secrets of a connection, unless it is known or they are too many."""
    candidates = known.get(label, ())
    if secret not in candidates and len(candidates) < LIMITS.secret_candidates:
        known[label] = (*candidates, secret)
