"""Keys and record ciphers of TLS.

Keys come from the secrets of a key log: TLS 1.3 by RFC 8446, section 7; TLS 1.2 by RFC 5246, sections 5 and 6.3. Each
cipher has `open(number, kind, version, body)`: the plaintext of record `number` of its direction, None if it does not
authenticate; and `overhead`: bytes of a record's body that are not plaintext (with CBC the minimum). `cryptography`
decrypts. `codec.layers.tls_ciphers` decrypts many records of an `Aead`.
"""

from __future__ import annotations

import hmac
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC as CbcMode

from codec.compiler.kernel import kernel
from codec.layers.chunks import Chunks, Output
from codec.memory import copy_bytes

# Cipher suites that are decrypted, as data: name, version, cipher, key, hash.
#
# Source: IANA TLS Cipher Suites; RFC 5246, 5288, 5289, 6655, 7251, 7905, 8446. Suites of one cipher differ only in the
# key exchange, which a key log replaces.


GCM, CCM, CCM_8, CHACHA, CBC = "gcm", "ccm", "ccm_8", "chacha", "cbc"
TLS12, TLS13 = 0x0303, 0x0304
SECRET_BYTES = {"sha256": 32, "sha384": 48}  # of the secrets of TLS 1.3, by hash


@dataclass(frozen=True)
class Suite:
    """`key`: bytes of the cipher's key. `hash`: of the key schedule. `mac`: of CBC suites, else empty."""

    name: str
    version: int
    cipher: str
    key: int
    hash: str
    mac: str = ""


def _suites(version: int, cipher: str, key: int, hash_name: str, mac: str, named: dict[int, str]) -> dict[int, Suite]:
    return {number: Suite(name, version, cipher, key, hash_name, mac) for number, name in named.items()}


def _exchanges(form: str, numbers: dict[str, int]) -> dict[int, str]:
    return {number: f"TLS_{exchange}_WITH_{form}" for exchange, number in numbers.items()}


SUITES: dict[int, Suite] = {
    **_suites(TLS13, GCM, 16, "sha256", "", {0x1301: "TLS_AES_128_GCM_SHA256"}),
    **_suites(TLS13, GCM, 32, "sha384", "", {0x1302: "TLS_AES_256_GCM_SHA384"}),
    **_suites(TLS13, CHACHA, 32, "sha256", "", {0x1303: "TLS_CHACHA20_POLY1305_SHA256"}),
    **_suites(TLS13, CCM, 16, "sha256", "", {0x1304: "TLS_AES_128_CCM_SHA256"}),
    **_suites(TLS13, CCM_8, 16, "sha256", "", {0x1305: "TLS_AES_128_CCM_8_SHA256"}),
    **_suites(TLS12, GCM, 16, "sha256", "", _exchanges("AES_128_GCM_SHA256", {
        "RSA": 0x009C, "DHE_RSA": 0x009E, "DH_anon": 0x00A6, "PSK": 0x00A8, "DHE_PSK": 0x00AA, "RSA_PSK": 0x00AC,
        "ECDHE_ECDSA": 0xC02B, "ECDHE_RSA": 0xC02F, "ECDHE_PSK": 0xD001})),
    **_suites(TLS12, GCM, 32, "sha384", "", _exchanges("AES_256_GCM_SHA384", {
        "RSA": 0x009D, "DHE_RSA": 0x009F, "DH_anon": 0x00A7, "PSK": 0x00A9, "DHE_PSK": 0x00AB, "RSA_PSK": 0x00AD,
        "ECDHE_ECDSA": 0xC02C, "ECDHE_RSA": 0xC030, "ECDHE_PSK": 0xD002})),
    **_suites(TLS12, CCM, 16, "sha256", "", _exchanges("AES_128_CCM", {
        "RSA": 0xC09C, "DHE_RSA": 0xC09E, "PSK": 0xC0A4, "DHE_PSK": 0xC0A6, "ECDHE_ECDSA": 0xC0AC})),
    **_suites(TLS12, CCM, 32, "sha256", "", _exchanges("AES_256_CCM", {
        "RSA": 0xC09D, "DHE_RSA": 0xC09F, "PSK": 0xC0A5, "DHE_PSK": 0xC0A7, "ECDHE_ECDSA": 0xC0AD})),
    **_suites(TLS12, CCM_8, 16, "sha256", "", _exchanges("AES_128_CCM_8", {
        "RSA": 0xC0A0, "DHE_RSA": 0xC0A2, "PSK": 0xC0A8, "DHE_PSK": 0xC0AA, "ECDHE_ECDSA": 0xC0AE})),
    **_suites(TLS12, CCM_8, 32, "sha256", "", _exchanges("AES_256_CCM_8", {
        "RSA": 0xC0A1, "DHE_RSA": 0xC0A3, "PSK": 0xC0A9, "DHE_PSK": 0xC0AB, "ECDHE_ECDSA": 0xC0AF})),
    **_suites(TLS12, CHACHA, 32, "sha256", "", _exchanges("CHACHA20_POLY1305_SHA256", {
        "ECDHE_RSA": 0xCCA8, "ECDHE_ECDSA": 0xCCA9, "DHE_RSA": 0xCCAA, "PSK": 0xCCAB, "ECDHE_PSK": 0xCCAC,
        "DHE_PSK": 0xCCAD, "RSA_PSK": 0xCCAE})),
    **_suites(TLS12, CBC, 16, "sha256", "sha1", _exchanges("AES_128_CBC_SHA", {
        "RSA": 0x002F, "DHE_RSA": 0x0033, "DH_anon": 0x0034, "PSK": 0x008C, "DHE_PSK": 0x0090, "RSA_PSK": 0x0094,
        "ECDHE_ECDSA": 0xC009, "ECDHE_RSA": 0xC013, "ECDH_anon": 0xC018, "ECDHE_PSK": 0xC035})),
    **_suites(TLS12, CBC, 32, "sha256", "sha1", _exchanges("AES_256_CBC_SHA", {
        "RSA": 0x0035, "DHE_RSA": 0x0039, "DH_anon": 0x003A, "PSK": 0x008D, "DHE_PSK": 0x0091, "RSA_PSK": 0x0095,
        "ECDHE_ECDSA": 0xC00A, "ECDHE_RSA": 0xC014, "ECDH_anon": 0xC019, "ECDHE_PSK": 0xC036})),
    **_suites(TLS12, CBC, 16, "sha256", "sha256", _exchanges("AES_128_CBC_SHA256", {
        "RSA": 0x003C, "DHE_RSA": 0x0067, "DH_anon": 0x006C, "PSK": 0x00AE, "DHE_PSK": 0x00B2, "RSA_PSK": 0x00B6,
        "ECDHE_ECDSA": 0xC023, "ECDHE_RSA": 0xC027, "ECDHE_PSK": 0xC037})),
    **_suites(TLS12, CBC, 32, "sha256", "sha256", _exchanges("AES_256_CBC_SHA256", {
        "RSA": 0x003D, "DHE_RSA": 0x006B, "DH_anon": 0x006D})),
    **_suites(TLS12, CBC, 32, "sha384", "sha384", _exchanges("AES_256_CBC_SHA384", {
        "PSK": 0x00AF, "DHE_PSK": 0x00B3, "RSA_PSK": 0x00B7,
        "ECDHE_ECDSA": 0xC024, "ECDHE_RSA": 0xC028, "ECDHE_PSK": 0xC038})),
}  # fmt: skip

# Names of suites that are not decrypted.
OTHER_NAMES = {
    0x0001: "TLS_RSA_WITH_NULL_MD5", 0x0002: "TLS_RSA_WITH_NULL_SHA", 0x003B: "TLS_RSA_WITH_NULL_SHA256",
    0x0004: "TLS_RSA_WITH_RC4_128_MD5", 0x0005: "TLS_RSA_WITH_RC4_128_SHA", 0x0009: "TLS_RSA_WITH_DES_CBC_SHA",
    0x000A: "TLS_RSA_WITH_3DES_EDE_CBC_SHA", 0x0016: "TLS_DHE_RSA_WITH_3DES_EDE_CBC_SHA",
    0xC007: "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA", 0xC011: "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    0xC008: "TLS_ECDHE_ECDSA_WITH_3DES_EDE_CBC_SHA", 0xC012: "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    0x0041: "TLS_RSA_WITH_CAMELLIA_128_CBC_SHA", 0x0084: "TLS_RSA_WITH_CAMELLIA_256_CBC_SHA",
    0xC03C: "TLS_RSA_WITH_ARIA_128_CBC_SHA256",
}  # fmt: skip


def suite_name(number: int) -> str:
    """The name of a cipher suite; its number when it is not in these tables."""
    return SUITES[number].name if number in SUITES else OTHER_NAMES.get(number, f"0x{number:04x}")


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
    section 6.2.3.3; RFC 5288; RFC 7905, where the nonce is not in the record). `explicit`: bytes of the nonce in a
    record; `tag`: bytes of the authentication tag; `layout`: what records
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

    def _authentic(self, number: int, kind: int, version: int, data: bytes, mac: bytes) -> bool:
        head = _pseudo_header(number, kind, version, len(data))
        return hmac.compare_digest(hmac.digest(self._keys.mac, head + data, self._mac), mac)


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


# TLS record framing: finds the records in chunks of both directions.
#
# The bytes of each direction are copied end to end, after those of its incomplete record, so that each record is one
# slice of one buffer.


HEADER_BYTES = 5  # kind, version, size of the body
RECORD_BYTES = (1 << 14) + 256 + 1792  # the largest body: TLS 1.2 allows 2048 bytes around 2**14
CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, APPLICATION_DATA = 20, 21, 22, 23
NO_RECORD = -1  # instead of a size: no record begins here


class Records(NamedTuple):
    """Records in the order in which they were complete. `chunk`: index of the chunk that completed it; `direction`;
    `at`, `size`: its body in `bytes` (size NO_RECORD: no record begins there, the rest of this direction is not
    split). `rest`: begin and end of the incomplete record of each direction in `bytes`."""

    data: np.ndarray  # uint8
    chunk: np.ndarray
    direction: np.ndarray
    at: np.ndarray
    size: np.ndarray
    rest: tuple[tuple[int, int], tuple[int, int]]

    def of(self, direction: int, first: int) -> Records:
        """Those of one direction from `first` on."""
        return self._at(first + np.flatnonzero(self.direction[first:] == direction))

    def without_change_cipher_spec(self, first: int) -> Records:
        """Those from `first` on that are no ChangeCipherSpec, which has no meaning in TLS 1.3."""
        kinds = self.data[self.at[first:] - HEADER_BYTES]
        is_dropped = (kinds == CHANGE_CIPHER_SPEC) & (self.size[first:] != NO_RECORD)
        return self._at(first + np.flatnonzero(~is_dropped))

    def _at(self, rows: np.ndarray) -> Records:
        columns = (self.chunk[rows], self.direction[rows], self.at[rows], self.size[rows])
        return Records(self.data, *columns, self.rest)


@kernel
def _split(direction, begin, size, data, used, start, buffer, chunk, direction_of, at_of, size_of):
    """Copy chunks to `used[direction]` in `buffer`; `start[direction]`: where the next record begins, -1: this
    direction is skipped. Returns the number of records."""
    count = 0
    for i in range(len(direction)):
        side = int(direction[i])
        if start[side] < 0:
            continue
        copy_bytes(buffer, int(used[side]), data, int(begin[i]), int(begin[i] + size[i]))
        used[side] += int(size[i])
        at, end = int(start[side]), int(used[side])
        while end - at >= HEADER_BYTES:
            kind, length = buffer[at], (int(buffer[at + 3]) << 8) | int(buffer[at + 4])
            sound = CHANGE_CIPHER_SPEC <= kind <= APPLICATION_DATA and buffer[at + 1] == 3 and length <= RECORD_BYTES
            if sound and at + HEADER_BYTES + length > end:
                break
            chunk[count], direction_of[count], at_of[count] = i, side, at + HEADER_BYTES
            size_of[count] = length if sound else NO_RECORD
            count += 1
            if not sound:
                start[side] = -1
                break
            at += HEADER_BYTES + length
        if start[side] >= 0:
            start[side] = at
    return count


@kernel
def has_nothing_to_read(data, begin, end, unread):
    """Whether a record of handshake messages has only whole ones of types that are `unread`: bool (256,)."""
    at = begin
    while at + 4 <= end and unread[data[at]]:
        at += 4 + ((int(data[at + 1]) << 16) | (int(data[at + 2]) << 8) | int(data[at + 3]))
    return at == end


@kernel
def ignored_end(data, direction, at, size, first, ignored, unread):
    """Index of the first record from `first` on that has to be read. `ignored`: bool (2, 4), kinds of records that are
    not, by direction; `unread`: bool (2, 256), types of handshake messages that are not, where a direction is in clear
    and between two messages."""
    i = first
    while i < len(size) and size[i] != NO_RECORD:
        side, kind = int(direction[i]), int(data[at[i] - HEADER_BYTES])
        if not ignored[side, kind - CHANGE_CIPHER_SPEC] and not (
            kind == HANDSHAKE and has_nothing_to_read(data, int(at[i]), int(at[i] + size[i]), unread[side])
        ):
            break
        i += 1
    return i


@kernel
def gather(data, direction, at, size, first, out):
    """Copy the bodies of records from `first` on to `out`, while they are handshake records of one direction and `out`
    has room for all of the next one: (their end, their bytes)."""
    i, used = first, 0
    while i < len(size) and size[i] != NO_RECORD and direction[i] == direction[first]:
        if data[at[i] - HEADER_BYTES] != HANDSHAKE or used + size[i] > len(out):
            break
        copy_bytes(out, used, data, int(at[i]), int(at[i] + size[i]))
        used += int(size[i])
        i += 1
    return i, used


@kernel
def possible_records(data, first, out):
    """Write (begin, end) of possible records from `first` on, by their headers, to `out` int64 (n, 2): (their number,
    where to go on). Encrypted records have version 3.3."""
    count, i = 0, first
    while i + HEADER_BYTES <= len(data) and count < len(out):
        size = (int(data[i + 3]) << 8) | int(data[i + 4])
        if ALERT <= data[i] <= APPLICATION_DATA and data[i + 1] == 3 and data[i + 2] == 3 and size <= RECORD_BYTES:
            out[count, 0], out[count, 1] = i, i + HEADER_BYTES + size
            count += 1
        i += 1
    return count, i


def split(chunks: Chunks, pending: tuple[bytes | bytearray | None, ...]) -> Records:
    """Records in chunks without holes, behind what is `pending` of each direction; None: it is skipped."""
    before = [len(part or b"") for part in pending]
    all_bytes, of_second = int(chunks.size.sum()), int((chunks.size * chunks.direction).sum())
    sizes = before[0] + all_bytes - of_second, before[1] + of_second
    buffer = np.empty(sum(sizes), np.uint8)
    first = 0, sizes[0]
    for part, begin, size in zip(pending, first, before, strict=True):
        if part:
            buffer[begin : begin + size] = np.frombuffer(part, np.uint8)
    used = np.array((before[0], sizes[0] + before[1]))
    start = np.array([-1 if part is None else begin for part, begin in zip(pending, first, strict=True)])
    columns = np.empty((4, len(buffer) // HEADER_BYTES + 2), np.int64)
    count = _split(chunks.direction, chunks.begin, chunks.size, chunks.data, used, start, buffer, *columns)
    stops = used.tolist()
    rest = [(begin if begin >= 0 else end, end) for begin, end in zip(start.tolist(), stops, strict=True)]
    return Records._make([buffer, *columns[:, :count], (rest[0], rest[1])])


@kernel
def clear_end(direction, size, i, excluded):
    """Index of the first chunk from `i` on that is a hole, or of a direction that is `excluded` (bool (2,))."""
    while i < len(size) and size[i] >= 0 and not excluded[direction[i]]:
        i += 1
    return i


# Many encrypted records decrypted at once: kernels do everything around the one call per record.
#
# `lay_out` writes the nonce and the associated data of each record, and where its plaintext goes; `cryptography`
# decrypts record by record into one buffer; `measure` strips padding and content type of TLS 1.3. The buffer keeps gaps
# where the tags and paddings were, since chunks say where their bytes begin.


NONCE_BYTES = 12
# Of `layout`: where ciphertext and plaintext begin, bytes of the latter, its content type (0: TLS 1.3 without one).
BODY, TARGET, ROOM, KIND, COLUMNS = 0, 1, 2, 3, 4


@kernel
def lay_out(data, direction, at, size, able, numbers, ivs, explicit, tag, tls13, used, nonces, heads, layout):
    """Fill `nonces`, `heads`, `layout` for the first records that can be decrypted in bulk; returns their count.

    `able`, `numbers`, `ivs`: by direction: whether its cipher is known, the number of its next record, its IV.
    `explicit`: bytes of the nonce in the record; `used`: where plaintext goes. RFC 8446, sections 5.2 and 5.3; TLS
    1.2: RFC 5246, section 6.2.3.3, RFC 5288, RFC 7905."""
    for i in range(len(direction)):
        side, begin = int(direction[i]), int(at[i])
        kind, plain = int(data[begin - HEADER_BYTES]), int(size[i]) - explicit - tag
        if not able[side] or plain < (1 if tls13 else 0) or (tls13 and kind != APPLICATION_DATA):
            return i
        number = int(numbers[side])
        numbers[side] = number + 1
        for j in range(NONCE_BYTES):
            nonces[i, j] = ivs[side, j]
        if explicit:
            for j in range(explicit):
                nonces[i, NONCE_BYTES - explicit + j] = data[begin + j]
        else:
            for j in range(SEQUENCE_BYTES):
                nonces[i, NONCE_BYTES - 1 - j] ^= (number >> (8 * j)) & 0xFF
        first = 0
        if not tls13:
            for j in range(SEQUENCE_BYTES):
                heads[i, j] = (number >> (8 * (SEQUENCE_BYTES - 1 - j))) & 0xFF
            first = SEQUENCE_BYTES
        for j in range(HEADER_BYTES):
            heads[i, first + j] = data[begin - HEADER_BYTES + j]
        if not tls13:
            heads[i, first + 3], heads[i, first + 4] = plain >> 8, plain & 0xFF
        layout[i, BODY], layout[i, TARGET], layout[i, ROOM], layout[i, KIND] = begin + explicit, used, plain, kind
        used += plain
    return len(direction)


@kernel
def measure(out, layout):
    """Set ROOM and KIND of TLS 1.3 plaintexts, which end with a content type and zeros."""
    for i in range(len(layout)):
        end = layout[i, TARGET] + layout[i, ROOM] - 1
        while end > layout[i, TARGET] and out[end] == 0:
            end -= 1
        layout[i, ROOM], layout[i, KIND] = end - layout[i, TARGET], out[end]


def decrypt(
    records: Records, first: int, end: int, ciphers: tuple[Aead | None, Aead | None], numbers: list[int], out: Output
) -> np.ndarray:
    """Decrypt records `first` to `end`, up to the first that has no cipher or does not authenticate: `layout` int64
    (n, COLUMNS) of those; the caller advances `out.used`. `ciphers`, `numbers`: of each direction, its cipher (None:
    nothing is decrypted), its next record."""
    known = ciphers[0] or ciphers[1]
    assert known is not None
    room = end - first
    nonces = np.empty((room, NONCE_BYTES), np.uint8)
    heads = np.empty((room, HEADER_BYTES + (0 if known.tls13 else SEQUENCE_BYTES)), np.uint8)
    layout = np.empty((room, COLUMNS), np.int64)
    able = np.array([each is not None for each in ciphers])
    ivs = np.array([np.frombuffer((each or known).iv.ljust(NONCE_BYTES), np.uint8) for each in ciphers])
    direction, at, size = (column[first:end] for column in (records.direction, records.at, records.size))
    next_numbers, explicit, tag, tls13 = np.array(numbers), known.explicit, known.tag, known.tls13
    count = lay_out(
        records.data,
        direction,
        at,
        size,
        able,
        next_numbers,
        ivs,
        explicit,
        tag,
        tls13,
        out.used,
        nonces,
        heads,
        layout,
    )
    begins, targets, sizes = layout[:count, : ROOM + 1].T
    prepared = zip(
        direction[:count].tolist(),
        nonces[:count].view(f"V{nonces.shape[1]}").ravel().tolist(),
        heads[:count].view(f"V{heads.shape[1]}").ravel().tolist(),
        begins.tolist(),
        (begins + sizes + tag).tolist(),
        targets.tolist(),
        (targets + sizes).tolist(),
        strict=True,
    )
    into = [(each or known).decrypt_into for each in ciphers]
    source, target, opened = records.data.data, out.view, 0
    with suppress(InvalidTag, ValueError):
        for side, nonce, head, begin, stop, to, to_end in prepared:
            into[side](nonce, source[begin:stop], head, target[to:to_end])
            opened += 1
    if tls13:
        measure(out.data, layout[:opened])
    return layout[:opened]
