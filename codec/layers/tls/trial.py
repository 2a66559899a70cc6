"""Trial decryption for TLS 1.3 connections that began before the capture: finds their secrets and the number of the
first captured record.

The last octet of a record's plaintext is known: its content type (RFC 8446, section 5.2). All ciphers of TLS 1.3 are
stream ciphers, so one block of keystream for each possible record number gives the octet that masks it; AES encrypts
all blocks at once. One number in a hundred passes. With these the whole record is decrypted, which authenticates it or
fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import ECB

from codec.compiler.limits import LIMITS
from codec.layers.tls.ciphers import BLOCK, Keys, cipher, keys_13
from codec.layers.tls.framing import ALERT, APPLICATION_DATA, HANDSHAKE, HEADER_BYTES
from codec.layers.tls.keylog import CLIENT_TRAFFIC, SERVER_TRAFFIC, Secrets
from codec.layers.tls.suites import CCM, CCM_8, CHACHA, SECRET_BYTES, SUITES, TLS12, TLS13, Suite

GCM_COUNTER = 2  # of the first block of plaintext: the one before is for the tag (NIST SP 800-38D, section 7.1)
CCM_COUNTER = 1  # likewise (RFC 3610, section 2.3)
CCM_FLAGS = 2  # of a counter of three octets (RFC 3610, section 2.3)
CHACHA_COUNTER = 1  # likewise (RFC 8439, section 2.8)
CHACHA_BLOCK = 64
CHACHA_SHARE = 4  # of ChaCha20 each number is a call of its own: only one in so many is tried
CANDIDATES = 4  # tried of each label of a connection: the numbers that are tried are for all together
HEAD = bytes((APPLICATION_DATA, TLS12 >> 8, TLS12 & 0xFF))


@dataclass(frozen=True, repr=False)
class Match:
    """The connection that a record belongs to; `by_client`: the client sent it; `known`: its secrets as they were
    given; `share`: of all secrets that were tried."""

    secrets: Secrets
    suite: Suite
    by_client: bool
    known: Secrets
    share: float


def match_secrets(octets: bytes, known: Sequence[Secrets]) -> Match | None:
    """Which of the `known` secrets open the record that `octets` begin with; None where none does, or it is cut."""
    size = int.from_bytes(octets[3:5], "big")
    body = octets[HEADER_BYTES : HEADER_BYTES + size]
    if octets[:3] != HEAD or len(body) < size:
        return None
    triples = [
        (each, label, secret)
        for each in known
        for label in (CLIENT_TRAFFIC, SERVER_TRAFFIC)
        for secret in each.get(label, ())[:CANDIDATES]
    ]
    for tried, (secrets, label, secret) in enumerate(triples, 1):
        for suite in SUITES.values():
            if suite.version == TLS13 and SECRET_BYTES[suite.hash] == len(secret):
                count = LIMITS.trial_numbers // len(triples)
                if number_of(suite, secret, APPLICATION_DATA, body, count) is not None:
                    by_client, share = label == CLIENT_TRAFFIC, tried / len(triples)
                    return Match(secrets | {label: (secret,)}, suite, by_client, secrets, share)
    return None


def number_of(suite: Suite, secret: bytes, kind: int, body: bytes, count: int) -> tuple[int, bytes] | None:
    """The number of the record with this body, and its plaintext: below `count`, of ChaCha20 a CHACHA_SHARE of it."""
    keys = keys_13(suite, secret)
    opener = cipher(suite, keys)
    place = len(body) - opener.overhead  # of the content type
    if place < 0:
        return None
    masks = _chacha_masks if suite.cipher == CHACHA else _aes_masks
    types = masks(suite, keys, place, count) ^ body[place]
    for number in np.flatnonzero(np.isin(types, (APPLICATION_DATA, HANDSHAKE, ALERT))).tolist():
        plain = opener.open(number, kind, TLS12, memoryview(body))
        if plain is not None:
            return number, plain
    return None


def _nonces(keys: Keys, count: int) -> np.ndarray:
    """Nonces of the first records: uint8 (count, 12) (RFC 8446, section 5.3)."""
    nonces = np.tile(np.frombuffer(keys.iv, np.uint8), (count, 1))
    nonces[:, 4:] ^= np.arange(count, dtype=">u8").view(np.uint8).reshape(-1, 8)
    return nonces


def _aes_masks(suite: Suite, keys: Keys, place: int, count: int) -> np.ndarray:
    """The octet of keystream at `place` of the plaintext, by number: uint8 (count,)."""
    blocks = np.zeros((count, BLOCK), np.uint8)
    if suite.cipher in (CCM, CCM_8):
        blocks[:, 0], begin, counter = CCM_FLAGS, 1, CCM_COUNTER + place // BLOCK
    else:
        begin, counter = 0, GCM_COUNTER + place // BLOCK
    end = begin + len(keys.iv)
    blocks[:, begin:end] = _nonces(keys, count)
    blocks[:, end:] = np.frombuffer(counter.to_bytes(BLOCK - end, "big"), np.uint8)
    stream = BlockCipher(AES(keys.key), ECB()).encryptor().update(blocks.tobytes())
    return np.frombuffer(stream, np.uint8)[place % BLOCK :: BLOCK]


def _chacha_masks(suite: Suite, keys: Keys, place: int, count: int) -> np.ndarray:
    """See `_aes_masks`; uint8 (count // CHACHA_SHARE,)."""
    counter = (CHACHA_COUNTER + place // CHACHA_BLOCK).to_bytes(4, "little")
    context = BlockCipher(ChaCha20(keys.key, counter + keys.iv), None).encryptor()
    zeros, at = bytes(place % CHACHA_BLOCK + 1), place % CHACHA_BLOCK
    found = bytearray()
    for nonce in _nonces(keys, count // CHACHA_SHARE):
        context.reset_nonce(counter + nonce.tobytes())
        found.append(context.update(zeros)[at])
    return np.frombuffer(found, np.uint8)
