"""Keys and record ciphers of TLS.

Keys come from the secrets of a key log: TLS 1.3 by RFC 8446, section 7; TLS 1.2 by RFC 5246, sections 5 and 6.3. Each
cipher has `open(number, kind, version, body)`: the plaintext of record `number` of its direction, None if it does not
authenticate; and `overhead`: octets of a record's body that are not plaintext (with CBC the minimum). `cryptography`
decrypts. `codec.layers.tls.bulk` decrypts many records of an `Aead`.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC as CbcMode

from codec.layers.tls.suites import CBC, CCM, CCM_8, CHACHA, GCM, TLS13, Suite

TAG_BYTES, SHORT_TAG_BYTES = 16, 8
EXPLICIT_BYTES = 8  # of the nonce of GCM and CCM in TLS 1.2
SEQUENCE_BYTES = 8  # of a record number
BLOCK = 16


class Cipher(Protocol):
    """Decrypts the records of one direction."""

    overhead: int

    def open(self, number: int, kind: int, version: int, body: memoryview) -> bytes | None: ...


class Aead:
    """TLS 1.3 (RFC 8446, section 5.2), where the plaintext ends with its content type and zeros; TLS 1.2 (RFC 5246,
    section 6.2.3.3; RFC 5288; RFC 7905, where the nonce is not in the record). `explicit`: octets of the nonce in a
    record; `tag`: octets of the authentication tag; `layout`: what records
    that are decrypted together have in common."""

    def __init__(self, suite: Suite, keys: Keys) -> None:
        self.tls13 = suite.version == TLS13
        self.tag = SHORT_TAG_BYTES if suite.cipher == CCM_8 else TAG_BYTES
        self.explicit = 0 if self.tls13 or suite.cipher == CHACHA else EXPLICIT_BYTES
        self.overhead = self.explicit + self.tag + self.tls13
        self.layout = self.tls13, self.explicit, self.tag
        self.iv = keys.iv
        aead: ChaCha20Poly1305 | AESCCM | AESGCM
        if suite.cipher == CHACHA:
            aead = ChaCha20Poly1305(keys.key)
        elif suite.cipher in (CCM, CCM_8):
            aead = AESCCM(keys.key, self.tag)
        else:
            aead = AESGCM(keys.key)
        self._decrypt, self.decrypt_into = aead.decrypt, aead.decrypt_into

    def open(self, number: int, kind: int, version: int, body: memoryview) -> bytes | None:
        """The plaintext of record `number`."""
        size = len(body) - (0 if self.tls13 else self.overhead)
        if size < 0:
            return None
        head = _pseudo_header(number, kind, version, size)[SEQUENCE_BYTES if self.tls13 else 0 :]
        if self.explicit:
            nonce = self.iv + bytes(body[:EXPLICIT_BYTES])
        else:
            nonce = (int.from_bytes(self.iv, "big") ^ number).to_bytes(len(self.iv), "big")
        try:
            return self._decrypt(nonce, body[self.explicit :], head)
        except (InvalidTag, ValueError):
            return None


class Cbc12:
    """TLS 1.2 with a block cipher (RFC 5246, section 6.2.3.2), the code over the plaintext or, as RFC 7366 has it, over
    what is encrypted."""

    def __init__(self, suite: Suite, keys: Keys, encrypt_then_mac: bool) -> None:
        self._cipher, self._keys, self._mac = AES(keys.key), keys, suite.mac
        self._then_mac = encrypt_then_mac
        self._mac_bytes = MAC_BYTES[suite.mac]
        self.overhead = BLOCK + self._mac_bytes + 1

    def open(self, number: int, kind: int, version: int, body: memoryview) -> bytes | None:
        """The plaintext of record `number`."""
        encrypted = body
        if self._then_mac:
            encrypted = body[: max(0, len(body) - self._mac_bytes)]
            if not self._authentic(number, kind, version, bytes(encrypted), bytes(body[len(encrypted) :])):
                return None
        if len(encrypted) < 2 * BLOCK or len(encrypted) % BLOCK:
            return None
        opener = BlockCipher(self._cipher, CbcMode(bytes(encrypted[:BLOCK]))).decryptor()
        plain = opener.update(encrypted[BLOCK:]) + opener.finalize()
        padding = plain[-1] + 1
        if padding > len(plain) or plain[-padding:] != bytes([padding - 1]) * padding:
            return None
        plain = plain[:-padding]
        if self._then_mac:
            return plain
        size = len(plain) - self._mac_bytes
        if size < 0 or not self._authentic(number, kind, version, plain[:size], plain[size:]):
            return None
        return plain[:size]

    def _authentic(self, number: int, kind: int, version: int, octets: bytes, mac: bytes) -> bool:
        head = _pseudo_header(number, kind, version, len(octets))
        return hmac.compare_digest(hmac.digest(self._keys.mac, head + octets, self._mac), mac)


def cipher(suite: Suite, keys: Keys, encrypt_then_mac: bool = False) -> Cipher:
    """The cipher of one direction."""
    return Cbc12(suite, keys, encrypt_then_mac) if suite.cipher == CBC else Aead(suite, keys)


def _pseudo_header(number: int, kind: int, version: int, size: int) -> bytes:
    return number.to_bytes(SEQUENCE_BYTES, "big") + bytes((kind, version >> 8, version & 0xFF, size >> 8, size & 0xFF))


MAC_BYTES = {"": 0, "sha1": 20, "sha256": 32, "sha384": 48}
IV_BYTES = 12
SALT_BYTES = 4  # of GCM and CCM in TLS 1.2: the record has the rest of the nonce


@dataclass(frozen=True, repr=False)
class Keys:
    """Of one direction. `mac`: of CBC suites."""

    key: bytes
    iv: bytes
    mac: bytes = b""


def expand_label(hash_name: str, secret: bytes, label: str, size: int) -> bytes:
    """HKDF-Expand-Label without a context, `size` up to that of the hash: one round of HKDF-Expand (RFC 5869, section
    2.3), whose counter is 1."""
    return hmac.digest(secret, _label_info(label, size), hash_name)[:size]


@cache
def _label_info(label: str, size: int) -> bytes:
    """The structure HkdfLabel (RFC 8446, section 7.1), and the counter."""
    full = b"tls13 " + label.encode()
    return size.to_bytes(2, "big") + bytes([len(full)]) + full + b"\0\1"


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
