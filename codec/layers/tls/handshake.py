"""The handshake of a TLS connection: its messages in, the ciphers of both directions out.

A direction is in clear until its ServerHello (TLS 1.3) or ChangeCipherSpec (1.2). Then it passes through stages: of TLS
1.2 one, of 1.3 the handshake and the traffic. A stage has candidates, the secrets that are known for it: usually one,
more if somebody wrote other secrets for the same client random. The first that authenticates a record counts, and no
other one is tried afterwards. A key log may lack the secrets of the handshake, or have only wrong ones; those records
are then passed over until the traffic begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from codec.compiler.limits import HANDSHAKE as HANDSHAKE_SIZE
from codec.compiler.limits import LIMITS
from codec.layers.chunks import Layer
from codec.layers.tls import hello as H
from codec.layers.tls import keylog
from codec.layers.tls.ciphers import Cipher, cipher, keys_12, keys_13, next_secret
from codec.layers.tls.keylog import Secrets
from codec.layers.tls.suites import SECRET_BYTES, SUITES, TLS12, TLS13, Suite

NEW_TICKET, END_OF_EARLY_DATA, ENCRYPTED_EXTENSIONS, FINISHED, KEY_UPDATE = 4, 5, 8, 20, 24
MESSAGE_HEAD = 4  # type, length
# Messages that are read; all others are passed over.
READ_MESSAGES = {
    H.CLIENT_HELLO, H.SERVER_HELLO, H.CERTIFICATE, END_OF_EARLY_DATA, ENCRYPTED_EXTENSIONS, FINISHED, KEY_UPDATE,
}  # fmt: skip
# Hellos of a side that are read: a server asks once at most for another one (RFC 8446, section 4.1.4).
HELLOS = 2
# The random of a ServerHello that asks for another ClientHello (RFC 8446, section 4.1.3).
RETRY = hashlib.sha256(b"HelloRetryRequest").digest()
BEGAN_BEFORE, NO_SECRETS, NO_HANDSHAKE = "began before the capture", "no secrets", "handshake not captured"
NO_SUITE, NO_VERSION, FAILED = "cipher not known", "version not known", "authentication failed"
RENEGOTIATED, NOT_TLS = "renegotiation", "no record of TLS"


@dataclass(frozen=True, repr=False)
class Opener:
    """A candidate for a stage of one direction. `label`: of its secret in the key log."""

    label: bytes
    secret: bytes
    cipher: Cipher


@dataclass(repr=False)
class Side:
    """One direction. `cipher`: the one that has authenticated a record, with its `secret`; `number`: of the next
    record; `trying`: candidates of the current stage while none of them has; `stages`: those of later stages."""

    cipher: Cipher | None = None
    secret: bytes = b""
    number: int = 0
    trying: list[Opener] = field(default_factory=list)
    stages: list[list[Opener]] = field(default_factory=list)
    pending: bytearray = field(default_factory=bytearray)  # the incomplete record
    messages: bytearray = field(default_factory=bytearray)  # the incomplete handshake message
    certificate: bytes = b""
    hellos: int = 0  # that were read
    broken: bool = False  # handshake messages are missing
    early: bool = False  # its records are 0-RTT data
    sealed: bool = False  # handshake records are not decrypted: their secret is not known
    refused: int = 0  # records that no candidate opened, since the last one that was opened
    unknown: bool = False  # the number of records before the capture is unknown
    stopped: bool = False
    typical: int = 0  # size of a record, with header
    skip: int = 0  # bytes until the end of a record with a hole
    hidden: int = 0  # plaintext bytes of that record
    lost: int = -1  # bytes since the last known record boundary, -1: at a boundary
    owed: int = 0  # missing bytes for which the output has no hole yet
    searched: int = 0  # bytes of `pending` searched for record headers after a hole
    heads: list[tuple[int, int]] = field(default_factory=list)  # (end, begin) of possible records found there: a heap

    @property
    def encrypted(self) -> bool:
        """Whether a stage has begun."""
        return self.cipher is not None or bool(self.trying)

    def enter(self) -> None:
        """Begin the next stage."""
        self.trying, self.cipher, self.number, self.early = self.stages.pop(0), None, 0, False


class Handshake(Layer):
    """One connection; `facts` are those of `connections.tls`. `more`: gives secrets of other sources, when none of
    `secrets` authenticates."""

    def __init__(self, client: int, secrets: Secrets, more: Callable[[], Secrets] | None = None) -> None:
        super().__init__(client)
        self.secrets = dict(secrets)
        self.more = more
        self.sides: tuple[Side, Side] = (Side(), Side())
        self.hellos: list[H.Hello | None] = [None, None]  # of the client, of the server
        self.suite: Suite | None = None
        self.alpn: str | None = None
        self.early_suite: int | None = None
        self.early_accepted: bool | None = None  # 0-RTT data

    def is_tls13(self, side: Side) -> bool:
        """Whether the records of a direction are those of TLS 1.3."""
        return side.early or (self.suite is not None and self.suite.version == TLS13)

    def why_unread(self) -> str | None:
        if self.reason is None and any(side.refused for side in self.sides) and not any(self.output_bytes):
            return FAILED
        return self.reason

    def handshake(self, direction: int, octets: bytes) -> None:
        """Handshake messages, which may span records. After a hole only those that begin with a record are read."""
        side = self.sides[direction]
        if side.broken and not side.messages:
            whole = len(octets) >= MESSAGE_HEAD and MESSAGE_HEAD + int.from_bytes(octets[1:4], "big") <= len(octets)
            if not (whole and side.encrypted and octets[0] in (FINISHED, KEY_UPDATE, NEW_TICKET)):
                return
        messages, before, at = side.messages, side.secret, 0
        messages += octets
        while len(messages) - at >= MESSAGE_HEAD and not side.stopped:
            end = at + MESSAGE_HEAD + int.from_bytes(messages[at + 1 : at + MESSAGE_HEAD], "big")
            if end - at - MESSAGE_HEAD > LIMITS.handshake_bytes:
                self.limits |= HANDSHAKE_SIZE
                side.broken = True
                messages.clear()
                break
            if end > len(messages):
                break
            if messages[at] in READ_MESSAGES:
                self._message(direction, side, messages[at], bytes(messages[at + MESSAGE_HEAD : end]))
            at = end
        del messages[:at]
        if side.cipher is not None and side.secret is not before and self.suite is not None:
            side.cipher = cipher(self.suite, keys_13(self.suite, side.secret))

    def _message(self, direction: int, side: Side, kind: int, body: bytes) -> None:
        by_client, is_13 = direction == self.client, self.suite is not None and self.suite.version == TLS13
        if kind == H.CLIENT_HELLO and by_client:
            if side.encrypted and not is_13:
                self.stop_reading(RENEGOTIATED)
            elif self._is_awaited(side):
                self.hellos[0] = H.client_hello(body)
        elif kind == H.SERVER_HELLO and not by_client:
            if self._is_awaited(side):
                hello = H.server_hello(body)
                if hello.random != RETRY:
                    self.hellos[1] = hello
                    self._agree(hello)
        elif kind == H.CERTIFICATE:
            side.certificate = side.certificate or H.first_certificate(body, self.is_tls13(side))
        elif side.encrypted and self.is_tls13(side):
            self._message_13(side, kind, body)

    def _is_awaited(self, side: Side) -> bool:
        """Whether one more hello of this side is read."""
        side.hellos += 1
        return self.suite is None and side.hellos <= HELLOS

    def _message_13(self, side: Side, kind: int, body: bytes) -> None:
        if kind == ENCRYPTED_EXTENSIONS:
            extensions = H.extensions_of(H.Reader(body))
            self.alpn = H.alpn_of(extensions) if H.ALPN in extensions else None
            if self.early_accepted is None:
                self.early_accepted = H.EARLY_DATA in extensions
        elif kind in (FINISHED, END_OF_EARLY_DATA):
            if kind == END_OF_EARLY_DATA:  # only after the server has accepted them (RFC 8446, section 4.5)
                self.early_accepted = True
            if side.stages:
                side.enter()
        elif kind == KEY_UPDATE and side.cipher is not None and self.suite is not None:
            side.secret, side.number = next_secret(self.suite, side.secret), 0

    def _agree(self, hello: H.Hello) -> None:
        """The ServerHello: stages of both directions."""
        suite, offer = SUITES.get(hello.suites[0]), self.hellos[0]
        if hello.version not in (TLS12, TLS13):
            self.stop_reading(NO_VERSION)
        elif suite is None or suite.version != hello.version:
            self.stop_reading(NO_SUITE)
        elif offer is None:
            self.stop_reading(NO_HANDSHAKE)
        else:
            self.suite = suite
            if not self._stages() and not (self.widen() and self._stages()):
                self.stop_reading(NO_SECRETS)

    def _stages(self) -> bool:
        """Prepare the stages of both directions; whether each has secrets."""
        assert self.suite is not None
        for direction, side in enumerate(self.sides):
            labels: tuple[bytes, ...] = (keylog.CLIENT_RANDOM,)
            if self.suite.version == TLS13 and direction == self.client:
                labels = (keylog.CLIENT_HANDSHAKE, keylog.CLIENT_TRAFFIC)
            elif self.suite.version == TLS13:
                labels = (keylog.SERVER_HANDSHAKE, keylog.SERVER_TRAFFIC)
            stages = [self.openers(direction, label, self.secrets.get(label, ())) for label in labels]
            side.stages, side.sealed = [stage for stage in stages if stage], not stages[0]
        if not all(side.stages for side in self.sides):
            return False
        if self.suite.version == TLS13:
            for side in self.sides:
                if not side.early and not side.sealed:
                    side.enter()
        return True

    def openers(self, direction: int, label: bytes, secrets: Iterable[bytes]) -> list[Opener]:
        """Candidates of a stage of the agreed suite: the secrets that have its size."""
        suite = self.suite
        assert suite is not None
        if suite.version == TLS13:
            fitting = [secret for secret in secrets if len(secret) == SECRET_BYTES[suite.hash]]
            return [Opener(label, secret, cipher(suite, keys_13(suite, secret))) for secret in fitting]
        (offer, hello), found = self.hellos, []
        assert offer is not None
        assert hello is not None
        then_mac = H.ENCRYPT_THEN_MAC in hello.extensions
        for secret in secrets:
            keys = keys_12(suite, secret, offer.random, hello.random)
            found.append(Opener(label, secret, cipher(suite, keys[direction != self.client], then_mac)))
        return found

    def authenticated(self, side: Side, opener: Opener, later: int, number: int) -> None:
        """A candidate opened the record before `number`; `later`: stages after the current one."""
        side.cipher, side.secret, side.number = opener.cipher, opener.secret, number
        side.trying, side.stages = [], side.stages[later:]
        side.sealed, side.refused = False, 0
        side.early = side.early and not later
        self.secrets[opener.label] = (opener.secret,)
        if opener.label == keylog.CLIENT_RANDOM:  # the secret of both directions
            for other in self.sides:
                other.trying = [each for each in other.trying if each.secret == opener.secret]
                other.stages = [[each for each in stage if each.secret == opener.secret] for stage in other.stages]

    def widen(self) -> bool:
        """Add the secrets of other sources to the candidates, once; whether there are any."""
        more, self.more = self.more, None
        added = False
        for label, secrets in more().items() if more is not None else ():
            known = self.secrets.get(label, ())
            new = tuple(secret for secret in secrets if secret not in known)
            self.secrets[label] = known + new
            added = added or bool(new)
            for direction, side in enumerate(self.sides):
                for stage in (side.trying, *side.stages):
                    if stage and stage[0].label == label:
                        stage += self.openers(direction, label, new)
        return added

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
