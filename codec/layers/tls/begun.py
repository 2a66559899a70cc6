"""Connections of TLS 1.3 that began before the capture: no hello says whose secrets are theirs, nor which record is at
hand. With AES-GCM both are found by trial.

Of the plaintext of a record the last octet is known: its content type (RFC 8446, section 5.2). GCM is a counter mode,
so the octet that masks it comes from one block of AES for each number that the record may have: all of them are
enciphered at once. One number in a hundred passes, and of these AES-GCM authenticates the record, or does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from codec.compiler.limits import LIMITS
from codec.layers.tls.ciphers import BLOCK, TAG_BYTES, cipher
from codec.layers.tls.framing import ALERT, APPLICATION_DATA, HANDSHAKE, HEADER_BYTES
from codec.layers.tls.keylog import CLIENT_TRAFFIC, SERVER_TRAFFIC, Secrets
from codec.layers.tls.schedule import keys_13
from codec.layers.tls.suites import GCM, SUITES, TLS12, TLS13, Suite

FIRST_COUNTER = 2  # of the blocks of GCM: the first one is for the tag (NIST SP 800-38D, section 7.1)
SECRET_BYTES = {"sha256": 32, "sha384": 48}
HEAD = bytes((APPLICATION_DATA, TLS12 >> 8, TLS12 & 0xFF))


class Begun(NamedTuple):
    """Whose record it is: `by_client`: the client sent it."""

    secrets: Secrets
    suite: Suite
    by_client: bool


def begun_before(octets: bytes, known: Sequence[Secrets]) -> Begun | None:
    """Which of the `known` secrets open the record that `octets` begin with; None where none does, or it is cut."""
    size = int.from_bytes(octets[3:5], "big")
    body = octets[HEADER_BYTES : HEADER_BYTES + size]
    if octets[:3] != HEAD or len(body) < size:
        return None
    pairs = [(each, label) for each in known for label in (CLIENT_TRAFFIC, SERVER_TRAFFIC) if label in each]
    for secrets, label in pairs:
        for suite in SUITES.values():
            if suite.version == TLS13 and suite.cipher == GCM and SECRET_BYTES[suite.hash] == len(secrets[label]):
                count = LIMITS.trial_numbers // len(pairs)
                if number_of(suite, secrets[label], APPLICATION_DATA, body, count) is not None:
                    return Begun(secrets, suite, label == CLIENT_TRAFFIC)
    return None


def number_of(suite: Suite, secret: bytes, kind: int, body: bytes, count: int) -> tuple[int, bytes] | None:
    """The number below `count` of the record with this body, and its plaintext."""
    place = len(body) - TAG_BYTES - 1  # of the content type
    if suite.cipher != GCM or place < 0:
        return None
    keys = keys_13(suite, secret)
    blocks = np.zeros((count, BLOCK), np.uint8)
    blocks[:, :12] = np.frombuffer(keys.iv, np.uint8)
    blocks[:, 4:12] ^= np.arange(count, dtype=">u8").view(np.uint8).reshape(-1, 8)
    blocks[:, 12:] = np.frombuffer((FIRST_COUNTER + place // BLOCK).to_bytes(4, "big"), np.uint8)
    masks = np.frombuffer(BlockCipher(AES(keys.key), ECB()).encryptor().update(blocks.tobytes()), np.uint8)
    types = masks[place % BLOCK :: BLOCK] ^ body[place]
    opener = cipher(suite, keys)
    for number in np.flatnonzero(np.isin(types, (APPLICATION_DATA, HANDSHAKE, ALERT))).tolist():
        plain = opener.open(number, kind, TLS12, memoryview(body))
        if plain is not None:
            return number, plain
    return None
