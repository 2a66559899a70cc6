"""TLS 1.3 written by hand (RFC 8446): hellos, records sealed with secrets of our choice, and their key log. It makes
what no library sends: endless runs of small records, early data that are refused, wrong secrets."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tls_peers import Sent
from wire import CLIENT, SERVER

AES_128_GCM, HASH = 0x1301, "sha256"
CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, DATA = 20, 21, 22, 23
EARLY_DATA, SUPPORTED_VERSIONS = 42, 43
LABELS = {
    "early": "CLIENT_EARLY_TRAFFIC_SECRET",
    "client handshake": "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
    "server handshake": "SERVER_HANDSHAKE_TRAFFIC_SECRET",
    "client": "CLIENT_TRAFFIC_SECRET_0",
    "server": "SERVER_TRAFFIC_SECRET_0",
}
KEY_UPDATE, TICKET = b"\x18\0\0\1\0", b"\4\0\0\0"


def expand(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label (section 7.1) of at most one hash."""
    info = size.to_bytes(2, "big") + bytes([6 + len(label)]) + b"tls13 " + label + b"\0\1"
    return hmac.digest(secret, info, HASH)[:size]


class Sealer:
    """Records of one secret, numbered from 0 on (section 5.2)."""

    def __init__(self, secret: bytes) -> None:
        self.use(secret)

    def use(self, secret: bytes) -> None:
        self._secret, self._number = secret, 0
        self._aead, self._iv = AESGCM(expand(secret, b"key", 16)), int.from_bytes(expand(secret, b"iv", 12), "big")

    def record(self, content: bytes, kind: int = DATA, padding: int = 0) -> bytes:
        inner = content + bytes([kind]) + bytes(padding)
        head = b"\x17\3\3" + (len(inner) + 16).to_bytes(2, "big")
        nonce, self._number = (self._iv ^ self._number).to_bytes(12, "big"), self._number + 1
        return head + self._aead.encrypt(nonce, inner, head)

    def update(self) -> bytes:
        """A KeyUpdate, after which the next secret counts (section 7.2)."""
        result = self.record(KEY_UPDATE, HANDSHAKE)
        self.use(expand(self._secret, b"traffic upd", 32))
        return result


def record(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + b"\3\3" + len(body).to_bytes(2, "big") + body


def in_records(message: bytes, size: int = 16_000) -> bytes:
    """A handshake message in clear, in records of this size."""
    return b"".join(record(HANDSHAKE, message[at : at + size]) for at in range(0, len(message), size))


def message(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(3, "big") + body


def extensions(*each: tuple[int, bytes]) -> bytes:
    block = b"".join(kind.to_bytes(2, "big") + len(body).to_bytes(2, "big") + body for kind, body in each)
    return len(block).to_bytes(2, "big") + block


def client_hello(random: bytes, suites: Iterable[int] = (AES_128_GCM,), early: bool = False) -> bytes:
    offered = b"".join(suite.to_bytes(2, "big") for suite in suites)
    with_early = ((EARLY_DATA, b""),) if early else ()
    body = b"\3\3" + random + b"\0" + len(offered).to_bytes(2, "big") + offered + b"\1\0"
    return message(1, body + extensions((SUPPORTED_VERSIONS, b"\2\3\4"), *with_early))


def server_hello(random: bytes, suite: int = AES_128_GCM) -> bytes:
    body = b"\3\3" + random + b"\0" + suite.to_bytes(2, "big") + b"\0"
    return message(2, body + extensions((SUPPORTED_VERSIONS, b"\3\4")))


class Forged:
    """Both sides of a connection."""

    def __init__(self, name: bytes = b"forged") -> None:
        def drawn(what: str) -> bytes:
            return hashlib.sha256(name + what.encode()).digest()

        self.random, self._server_random = drawn("client"), drawn("server")
        self.secrets = {which: drawn(label) for which, label in LABELS.items()}
        self.sealers = {which: Sealer(secret) for which, secret in self.secrets.items()}
        self.client, self.server = self.sealers["client"], self.sealers["server"]

    def lines(self, *which: str) -> list[bytes]:
        """Lines of its key log: all, or some."""
        return [key_line(LABELS[each], self.random, self.secrets[each]) for each in which or LABELS]

    def hello(self, early: bool = False, suites: Iterable[int] = (AES_128_GCM,)) -> Sent:
        return CLIENT, in_records(client_hello(self.random, suites, early))

    def answer(self, accept_early: bool = False) -> Sent:
        """ServerHello, EncryptedExtensions, Finished."""
        accepted = extensions((EARLY_DATA, b"")) if accept_early else extensions()
        sealed = self.sealers["server handshake"].record(message(8, accepted) + message(20, bytes(32)), HANDSHAKE)
        return SERVER, in_records(server_hello(self._server_random)) + sealed

    def finished(self) -> Sent:
        return CLIENT, self.sealers["client handshake"].record(message(20, bytes(32)), HANDSHAKE)

    def opening(self) -> list[Sent]:
        """Until both sides use their traffic secrets."""
        return [self.hello(), self.answer(), self.finished()]


def key_line(label: str, random: bytes, secret: bytes) -> bytes:
    return f"{label} {random.hex()} {secret.hex()}\n".encode()


def wrong_lines(lines: Iterable[bytes], number: int = 0) -> list[bytes]:
    """The same labels and client randoms with other secrets of the same sizes."""
    result = []
    for line in lines:
        label, random, secret = line.split()
        other = hashlib.shake_256(secret + number.to_bytes(4, "big")).digest(len(secret) // 2)
        result.append(b" ".join((label, random, other.hex().encode())) + b"\n")
    return result


def secrets_capture(lines: Iterable[bytes]) -> bytes:
    """A pcapng without packets and with a Decryption Secrets Block of these lines."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = (12 + len(body)).to_bytes(4, "little")
        return kind.to_bytes(4, "little") + size + body + size

    log = b"".join(lines)
    section = block(0x0A0D0D0A, bytes.fromhex("4d3c2b1a 0100 0000") + b"\xff" * 8)
    return section + block(10, b"KSLT" + len(log).to_bytes(4, "little") + log)
