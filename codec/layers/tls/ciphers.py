"""Records opened: `cryptography` does the ciphers, here is where a record has its nonce, its code and its padding.

Each cipher has `open(number, kind, version, body)`: the plaintext of record `number` of its direction, None where it
does not authenticate; `overhead`: octets of a record's body that are no plaintext (of CBC the least); and `open_into`,
the same for a whole record of application data, without a copy: of millions of records each call counts.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC as CbcMode

from codec.layers.tls.framing import APPLICATION_DATA, HEADER_BYTES
from codec.layers.tls.schedule import MAC_BYTES, Keys
from codec.layers.tls.suites import CBC, CCM, CCM_8, CHACHA, TLS13, Suite

TAG_BYTES, SHORT_TAG_BYTES = 16, 8
EXPLICIT_BYTES = 8  # of the nonce of GCM and CCM in TLS 1.2
BLOCK = 16
NOT_SO = -1  # what `open_into` says of a record that is no application data, or does not open: `open` has to look
Decrypt = Callable[[bytes, bytes | memoryview, bytes], bytes]
DecryptInto = Callable[[bytes, memoryview, bytes | memoryview, memoryview], int]


class Cipher(Protocol):
    """How records of one direction are opened."""

    overhead: int

    def open(self, number: int, kind: int, version: int, body: memoryview) -> bytes | None: ...

    def open_into(self, number: int, octets: memoryview, at: int, size: int, out: memoryview, used: int) -> int:
        """Write the application data of the record with `octets[at:at+size]` as its body to `out[used:]`: how many
        octets, or NOT_SO."""
        ...


class Aead13:
    """TLS 1.3 (RFC 8446, section 5.2). The plaintext ends with its content type, and zeros."""

    def __init__(self, suite: Suite, keys: Keys) -> None:
        self._decrypt, self._into, self._tag = _aead(suite, keys.key)
        self._iv = int.from_bytes(keys.iv, "big")
        self.overhead = self._tag + 1

    def open(self, number: int, kind: int, version: int, body: memoryview) -> bytes | None:
        """The plaintext of record `number`."""
        nonce = (self._iv ^ number).to_bytes(12, "big")
        size = len(body)
        try:
            return self._decrypt(nonce, body, bytes((kind, version >> 8, version & 0xFF, size >> 8, size & 0xFF)))
        except (InvalidTag, ValueError):
            return None

    def open_into(self, number: int, octets: memoryview, at: int, size: int, out: memoryview, used: int) -> int:
        """See `Cipher`. A padded record is NOT_SO."""
        end = used + size - self._tag
        if end <= used:
            return NOT_SO
        nonce = (self._iv ^ number).to_bytes(12, "big")
        try:
            self._into(nonce, octets[at : at + size], octets[at - HEADER_BYTES : at], out[used:end])
        except (InvalidTag, ValueError):
            return NOT_SO
        return end - used - 1 if out[end - 1] == APPLICATION_DATA else NOT_SO


class Aead12:
    """TLS 1.2 (RFC 5246, section 6.2.3.3; RFC 5288; RFC 7905, where the nonce is not in the record)."""

    def __init__(self, suite: Suite, keys: Keys) -> None:
        self._decrypt, self._into, tag = _aead(suite, keys.key)
        self._salt = keys.iv
        self._iv = int.from_bytes(keys.iv, "big")
        self._explicit = 0 if suite.cipher == CHACHA else EXPLICIT_BYTES
        self.overhead = tag + self._explicit

    def open(self, number: int, kind: int, version: int, body: memoryview) -> bytes | None:
        """The plaintext of record `number`."""
        size = len(body) - self.overhead
        if size < 0:
            return None
        explicit = self._salt + bytes(body[:EXPLICIT_BYTES])
        nonce = explicit if self._explicit else (self._iv ^ number).to_bytes(12, "big")
        try:
            return self._decrypt(nonce, body[self._explicit :], _pseudo_header(number, kind, version, size))
        except (InvalidTag, ValueError):
            return None

    def open_into(self, number: int, octets: memoryview, at: int, size: int, out: memoryview, used: int) -> int:
        """See `Cipher`."""
        plain = size - self.overhead
        if plain < 0 or octets[at - HEADER_BYTES] != APPLICATION_DATA:
            return NOT_SO
        begin = at + self._explicit
        nonce = self._salt + bytes(octets[at:begin]) if self._explicit else (self._iv ^ number).to_bytes(12, "big")
        head = number.to_bytes(8, "big") + bytes(octets[at - HEADER_BYTES : at - 2]) + plain.to_bytes(2, "big")
        try:
            self._into(nonce, octets[begin : at + size], head, out[used : used + plain])
        except (InvalidTag, ValueError):
            return NOT_SO
        return plain


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

    def open_into(self, number: int, octets: memoryview, at: int, size: int, out: memoryview, used: int) -> int:
        """See `Cipher`: NOT_SO, as the padding is not known before."""
        return NOT_SO

    def _authentic(self, number: int, kind: int, version: int, octets: bytes, mac: bytes) -> bool:
        head = _pseudo_header(number, kind, version, len(octets))
        return hmac.compare_digest(hmac.digest(self._keys.mac, head + octets, self._mac), mac)


def cipher(suite: Suite, keys: Keys, encrypt_then_mac: bool = False) -> Cipher:
    """What opens the records of one direction."""
    if suite.version == TLS13:
        return Aead13(suite, keys)
    return Cbc12(suite, keys, encrypt_then_mac) if suite.cipher == CBC else Aead12(suite, keys)


def _pseudo_header(number: int, kind: int, version: int, size: int) -> bytes:
    return number.to_bytes(8, "big") + bytes((kind, version >> 8, version & 0xFF, size >> 8, size & 0xFF))


def _aead(suite: Suite, key: bytes) -> tuple[Decrypt, DecryptInto, int]:
    """What decrypts (nonce, octets, associated data), the same into memory that is given, and the octets of its tag."""
    aead: ChaCha20Poly1305 | AESCCM | AESGCM
    tag = SHORT_TAG_BYTES if suite.cipher == CCM_8 else TAG_BYTES
    if suite.cipher == CHACHA:
        aead = ChaCha20Poly1305(key)
    elif suite.cipher in (CCM, CCM_8):
        aead = AESCCM(key, tag)
    else:
        aead = AESGCM(key)
    return aead.decrypt, aead.decrypt_into, tag
