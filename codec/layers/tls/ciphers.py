"""Record ciphers: `cryptography` decrypts; where a record has its nonce, its authentication code and its padding is
here.

Each cipher has `open(number, kind, version, body)`: the plaintext of record `number` of its direction, None where it
does not authenticate; and `overhead`: octets of a record's body that are no plaintext (of CBC the least). What an
`Aead` knows is enough for `codec.layers.tls.bulk` to decrypt many records.
"""

from __future__ import annotations

import hmac
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC as CbcMode

from codec.layers.tls.schedule import MAC_BYTES, Keys
from codec.layers.tls.suites import CBC, CCM, CCM_8, CHACHA, TLS13, Suite

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
    record; `tag`: octets of the authentication tag."""

    def __init__(self, suite: Suite, keys: Keys) -> None:
        self.tls13 = suite.version == TLS13
        self.tag = SHORT_TAG_BYTES if suite.cipher == CCM_8 else TAG_BYTES
        self.explicit = 0 if self.tls13 or suite.cipher == CHACHA else EXPLICIT_BYTES
        self.overhead = self.explicit + self.tag + self.tls13
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
    """TLS 1.2 with a block cipher (RFC 5246, section 6.2.3.2), the code over the plaintext or, as RFC 7366 has it,
    over what is encrypted."""

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
