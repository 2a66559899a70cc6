"""The handshake of a TLS connection: its messages in, the ciphers of both directions out.

A direction is in clear until its ServerHello (TLS 1.3) or ChangeCipherSpec (1.2). `Side.stages` has the secrets of
later stages; a key log may lack those of the handshake.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from codec.compiler.limits import HANDSHAKE as HANDSHAKE_SIZE
from codec.compiler.limits import LIMITS
from codec.layers.chunks import Layer
from codec.layers.tls import hello as H
from codec.layers.tls import keylog
from codec.layers.tls.ciphers import Cipher, cipher, keys_12, keys_13, next_secret
from codec.layers.tls.keylog import Secrets
from codec.layers.tls.suites import SUITES, TLS12, TLS13, Suite

NEW_TICKET, END_OF_EARLY_DATA, ENCRYPTED_EXTENSIONS, FINISHED, KEY_UPDATE = 4, 5, 8, 20, 24
MESSAGE_HEAD = 4  # type, length
# The random of a ServerHello that asks for another ClientHello (RFC 8446, section 4.1.3).
RETRY = hashlib.sha256(b"HelloRetryRequest").digest()
BEGAN_BEFORE, NO_SECRETS, NO_HANDSHAKE = "began before the capture", "no secrets", "handshake not captured"
NO_SUITE, NO_VERSION, FAILED = "cipher not known", "version not known", "authentication failed"
RENEGOTIATED, NOT_TLS = "renegotiation", "no record of TLS"


@dataclass(repr=False)
class Side:
    """One direction. `number`: of its next record; `stages`: secrets of later stages."""

    cipher: Cipher | None = None
    secret: bytes = b""
    number: int = 0
    stages: list[tuple[bytes, Cipher]] = field(default_factory=list)
    next_cipher: Cipher | None = None  # after ChangeCipherSpec
    pending: bytearray = field(default_factory=bytearray)  # the incomplete record
    messages: bytearray = field(default_factory=bytearray)  # the incomplete handshake message
    certificate: bytes = b""
    broken: bool = False  # handshake messages are missing
    early: bool = False  # its records are 0-RTT data
    sealed: bool = False  # handshake records are not decrypted: the key log lacks their secret
    unknown: bool = False  # the number of records before the capture is unknown
    stopped: bool = False
    typical: int = 0  # size of a record, with header
    skip: int = 0  # octets until the end of a record with a hole
    hidden: int = 0  # plaintext octets of that record
    lost: int = -1  # octets since the last known record boundary, -1: at a boundary
    searched: int = 0  # octets of `pending` searched for record headers after a hole
    candidates: list[tuple[int, int]] = field(default_factory=list)  # (end, begin) of possible records found there

    def use(self, secret: bytes, opener: Cipher, number: int = 0) -> None:
        """Decrypt with this secret from record `number` on."""
        self.secret, self.cipher, self.number, self.early = secret, opener, number, False


class Handshake(Layer):
    """One connection; `facts` are those of `connections.tls`."""

    def __init__(self, client: int, secrets: Secrets) -> None:
        super().__init__(client)
        self.secrets = secrets
        self.sides: tuple[Side, Side] = (Side(), Side())
        self.hellos: list[H.Hello | None] = [None, None]  # of the client, of the server
        self.suite: Suite | None = None
        self.alpn: str | None = None
        self.waiting_early: list[bytes] = []
        self.early_suite: int | None = None
        self.early_accepted: bool | None = None  # 0-RTT data

    def is_tls13(self, side: Side) -> bool:
        """Whether the records of a direction are those of TLS 1.3."""
        return side.early or (self.suite is not None and self.suite.version == TLS13)

    def handshake(self, direction: int, octets: bytes) -> None:
        """Handshake messages, which may span records. After a hole only those that begin with a record are read."""
        side = self.sides[direction]
        whole = len(octets) >= MESSAGE_HEAD and MESSAGE_HEAD + int.from_bytes(octets[1:4], "big") <= len(octets)
        if side.broken and not side.messages and not (whole and octets[0] in (FINISHED, KEY_UPDATE, NEW_TICKET)):
            return
        side.messages += octets
        at = 0
        while len(side.messages) - at >= MESSAGE_HEAD and not side.stopped:
            size = int.from_bytes(side.messages[at + 1 : at + MESSAGE_HEAD], "big")
            end = at + MESSAGE_HEAD + size
            if size > LIMITS.handshake_bytes:
                self.limits |= HANDSHAKE_SIZE
                side.broken = True
                side.messages.clear()
                return
            if end > len(side.messages):
                break
            self._message(direction, side, side.messages[at], bytes(side.messages[at + MESSAGE_HEAD : end]))
            at = end
        del side.messages[:at]

    def _message(self, direction: int, side: Side, kind: int, body: bytes) -> None:
        by_client = direction == self.client
        encrypted_12 = side.cipher is not None and self.suite is not None and self.suite.version != TLS13
        if kind == H.CLIENT_HELLO and by_client:
            if encrypted_12:
                self.stop_reading(RENEGOTIATED)
                return
            self.hellos[0] = H.client_hello(body)
        elif kind == H.SERVER_HELLO and not by_client:
            hello = H.server_hello(body)
            if hello.random != RETRY and not encrypted_12:
                self.hellos[1] = hello
                self._agree(hello)
        elif kind == H.CERTIFICATE and not side.certificate:
            side.certificate = H.first_certificate(body, self.is_tls13(side))
        elif self.suite is not None and self.suite.version == TLS13:
            self._message_13(side, kind, body)

    def _message_13(self, side: Side, kind: int, body: bytes) -> None:
        assert self.suite is not None
        if kind == ENCRYPTED_EXTENSIONS:
            extensions = H.extensions_of(H.Reader(body))
            self.alpn = H.alpn_of(extensions) if H.ALPN in extensions else None
            if self.early_accepted is None:
                self.early_accepted = H.EARLY_DATA in extensions
                if not self.early_accepted:
                    self.waiting_early = []
        elif kind in (FINISHED, END_OF_EARLY_DATA) and side.stages:
            side.use(*side.stages.pop(0))
        elif kind == KEY_UPDATE and side.secret:
            secret = next_secret(self.suite, side.secret)
            side.secret, side.number, side.cipher = secret, 0, cipher(self.suite, keys_13(self.suite, secret))

    def _agree(self, hello: H.Hello) -> None:
        """The ServerHello: ciphers of both directions."""
        suite, offer = SUITES.get(hello.suites[0]), self.hellos[0]
        if hello.version not in (TLS12, TLS13):
            self.stop_reading(NO_VERSION)
        elif suite is None or suite.version != hello.version:
            self.stop_reading(NO_SUITE)
        elif offer is None:
            self.stop_reading(NO_HANDSHAKE)
        elif hello.version == TLS12:
            self.suite = suite
            if keylog.CLIENT_RANDOM not in self.secrets:
                self.stop_reading(NO_SECRETS)
                return
            self.sides[self.client].next_cipher, self.sides[1 - self.client].next_cipher = self.ciphers_12()
        else:
            self.suite = suite
            self._stages_13(self.sides[self.client], suite, keylog.CLIENT_HANDSHAKE, keylog.CLIENT_TRAFFIC)
            self._stages_13(self.sides[1 - self.client], suite, keylog.SERVER_HANDSHAKE, keylog.SERVER_TRAFFIC)

    def _stages_13(self, side: Side, suite: Suite, *labels: bytes) -> None:
        known = [self.secrets[label] for label in labels if label in self.secrets]
        if not known:
            self.stop_reading(NO_SECRETS)
            return
        side.stages = [(secret, cipher(suite, keys_13(suite, secret))) for secret in known]
        side.sealed = labels[0] not in self.secrets
        if not side.early and not side.sealed:
            side.use(*side.stages.pop(0))

    def ciphers_12(self) -> tuple[Cipher, Cipher]:
        """Of TLS 1.2, when both hellos and the master secret are known: the client's, the server's."""
        suite, (offer, hello) = self.suite, self.hellos
        assert suite is not None
        assert offer is not None
        assert hello is not None
        then_mac = H.ENCRYPT_THEN_MAC in hello.extensions
        keys = keys_12(suite, self.secrets[keylog.CLIENT_RANDOM], offer.random, hello.random)
        return cipher(suite, keys[0], then_mac), cipher(suite, keys[1], then_mac)

    def facts(self) -> Iterator[tuple[str, Any]]:
        """Names and values for `connections.tls`."""
        of_hellos: H.Facts = H.facts_of(*self.hellos)
        of_hellos["alpn"] = self.alpn or of_hellos["alpn"]
        if self.suite is not None and self.hellos[1] is None:
            of_hellos |= {"tls_version": H.VERSION_NAMES[self.suite.version], "cipher_suite": self.suite.name}
        yield from of_hellos.items()
        yield "decrypted", any(self.output_bytes)
        yield "server_certificate", H.certificate_facts(self.sides[1 - self.client].certificate)
        yield "client_certificate", H.certificate_facts(self.sides[self.client].certificate)
