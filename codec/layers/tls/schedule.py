"""From the secrets of a key log to the keys of both directions: TLS 1.3 (RFC 8446, section 7), TLS 1.2 (RFC 5246,
sections 5 and 6.3)."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from codec.layers.tls.suites import CBC, CCM, CCM_8, GCM, Suite

HASHES: dict[str, type[hashes.HashAlgorithm]] = {
    "sha1": hashes.SHA1,
    "sha256": hashes.SHA256,
    "sha384": hashes.SHA384,
}
MAC_BYTES = {"": 0, "sha1": 20, "sha256": 32, "sha384": 48}
IV_BYTES = 12
SALT_BYTES = 4  # of GCM and CCM in TLS 1.2: the rest of the nonce stands in the record


@dataclass(frozen=True, repr=False)
class Keys:
    """Of one direction. `mac`: of CBC suites."""

    key: bytes
    iv: bytes
    mac: bytes = b""


def expand_label(hash_name: str, secret: bytes, label: str, size: int) -> bytes:
    """HKDF-Expand-Label without a context."""
    full = b"tls13 " + label.encode()
    info = size.to_bytes(2, "big") + bytes([len(full)]) + full + b"\0"
    return HKDFExpand(HASHES[hash_name](), size, info).derive(secret)


def keys_13(suite: Suite, secret: bytes) -> Keys:
    """Keys of a traffic secret."""
    return Keys(expand_label(suite.hash, secret, "key", suite.key), expand_label(suite.hash, secret, "iv", IV_BYTES))


def next_secret(suite: Suite, secret: bytes) -> bytes:
    """The traffic secret after a KeyUpdate."""
    return expand_label(suite.hash, secret, "traffic upd", len(secret))


def prf(hash_name: str, secret: bytes, label: bytes, seed: bytes, size: int) -> bytes:
    """The pseudorandom function of TLS 1.2."""
    seed = label + seed
    found, a = b"", seed
    while len(found) < size:
        a = hmac.digest(secret, a, hash_name)
        found += hmac.digest(secret, a + seed, hash_name)
    return found[:size]


def keys_12(suite: Suite, master: bytes, client_random: bytes, server_random: bytes) -> tuple[Keys, Keys]:
    """Keys of the client's and of the server's direction."""
    mac = MAC_BYTES[suite.mac]
    iv = 0 if suite.cipher == CBC else SALT_BYTES if suite.cipher in (GCM, CCM, CCM_8) else IV_BYTES
    block = prf(suite.hash, master, b"key expansion", server_random + client_random, 2 * (mac + suite.key + iv))
    parts, at = [], 0
    for size in (mac, mac, suite.key, suite.key, iv, iv):
        parts.append(block[at : at + size])
        at += size
    return Keys(parts[2], parts[4], parts[0]), Keys(parts[3], parts[5], parts[1])
