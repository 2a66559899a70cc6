"""The handshake of a TLS connection: its messages in, the ciphers of both directions out.

A direction is in clear until its ServerHello (TLS 1.3) or ChangeCipherSpec (1.2). Then it passes through stages: of TLS
1.2 one, of 1.3 the handshake and the traffic. A stage has candidates, the secrets that are known for it: usually one,
more if somebody wrote other secrets for the same client random. The first that authenticates a record counts, and no
other one is tried afterwards. A key log may lack the secrets of the handshake, or have only wrong ones; those records
are then passed over until the traffic begins.
"""

from __future__ import annotations

import binascii
import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import numpy as np
from cryptography import x509
from numpy.typing import NDArray

from codec.compiler.limits import HANDSHAKE as HANDSHAKE_SIZE
from codec.compiler.limits import LIMITS
from codec.layers.chunks import Layer
from codec.layers.tls_ciphers import (
    SECRET_BYTES,
    SUITES,
    TLS12,
    TLS13,
    Cipher,
    Suite,
    cipher,
    keys_12,
    keys_13,
    next_secret,
    suite_name,
)
from codec.text import escaped, masked

# Handshake messages of TLS in clear: hellos (server name, version, application protocol, suite) and certificates.
#
# RFC 8446 section 4 (handshake messages, extensions), RFC 6066 section 3 (server_name), RFC 7301 section 3.1 (ALPN).
# Called once per encrypted connection on a few hundred bytes. Values that do not parse are None.


VERSION_NAMES = {0x0300: "SSL 3.0", 0x0301: "TLS 1.0", 0x0302: "TLS 1.1", 0x0303: "TLS 1.2", 0x0304: "TLS 1.3"}
RECORD_HANDSHAKE, CLIENT_HELLO, SERVER_HELLO, CERTIFICATE = 22, 1, 2, 11
MESSAGE_HEAD = 4  # type, length
SERVER_NAME, ALPN, ENCRYPT_THEN_MAC, PRE_SHARED_KEY, EARLY_DATA, SUPPORTED_VERSIONS = 0, 16, 22, 41, 42, 43
READ_EXTENSIONS = {SERVER_NAME, ALPN, ENCRYPT_THEN_MAC, PRE_SHARED_KEY, EARLY_DATA, SUPPORTED_VERSIONS}
EXTENSION = struct.Struct(">HH")  # type, length
RANDOM_BYTES = 32
TLS13_CODES = tuple(code for code, suite in SUITES.items() if suite.version == TLS13)

Facts = dict[str, Any]


@dataclass(frozen=True)
class Hello:
    """A hello of either side. `suites`: the one that was chosen; of those that a client offers the ones of TLS 1.3 that
    can be decrypted, each once. `extensions`: those in READ_EXTENSIONS."""

    version: int
    random: bytes
    session: bytes
    suites: tuple[int, ...]
    extensions: Mapping[int, bytes] = field(repr=False)

    @property
    def sni(self) -> str | None:
        """The server name of the client, without userinfo: no host has an '@' in its name."""
        names = Reader(Reader(self.extensions.get(SERVER_NAME, b"")).vector(2))
        name = _text(names.vector(2)) if names.more() and names.number(1) == 0 else None
        return f"****@{name.rpartition('@')[2]}" if name and "@" in name else name

    @property
    def alpn(self) -> str | None:
        """The application protocol, the first one of several."""
        return alpn_of(self.extensions)


def alpn_of(extensions: Mapping[int, bytes]) -> str | None:
    """The first application protocol."""
    return _text(Reader(Reader(extensions.get(ALPN, b"")).vector(2)).vector(1))


def extensions_of(reader: Reader) -> dict[int, bytes]:
    """The extensions that follow and are in READ_EXTENSIONS, by code."""
    block, at, found = reader.vector(2), 0, dict[int, bytes]()
    with_zeros = block + bytes(EXTENSION.size)  # what is cut reads as zeros
    while at < len(block):
        kind, size = EXTENSION.unpack_from(with_zeros, at)
        at += EXTENSION.size
        if kind in READ_EXTENSIONS:
            found[kind] = block[at : at + size]
        at += size
    return found


def client_hello(body: bytes) -> Hello:
    """The body of a ClientHello."""
    reader = Reader(body)
    version, random, session = reader.number(2), reader.take(RANDOM_BYTES), reader.vector(1)
    offered = reader.vector(2)
    offered += bytes(len(offered) % 2)
    codes = set(np.frombuffer(offered, ">u2").tolist())
    reader.vector(1)  # compression methods
    return Hello(version, random, session, tuple(code for code in TLS13_CODES if code in codes), extensions_of(reader))


def server_hello(body: bytes) -> Hello:
    """The body of a ServerHello; `version` is the one agreed on."""
    reader = Reader(body)
    version, random, session = reader.number(2), reader.take(RANDOM_BYTES), reader.vector(1)
    suite = reader.number(2)
    reader.take(1)  # compression method
    extensions = extensions_of(reader)
    if SUPPORTED_VERSIONS in extensions:
        version = int.from_bytes(extensions[SUPPORTED_VERSIONS][:2], "big")
    return Hello(version, random, session, (suite,), extensions)


def _messages(stream: bytes) -> dict[int, bytes]:
    """The complete handshake messages in clear at the beginning of a stream, by type."""
    records, data, found = Reader(stream), b"", dict[int, bytes]()
    while records.more() and records.number(1) == RECORD_HANDSHAKE:
        records.take(2)
        data += records.vector(2)
    reader = Reader(data)
    while len(data) - reader.at >= MESSAGE_HEAD:
        kind, size = reader.number(1), reader.number(3)
        if reader.at + size > len(data):
            break
        found.setdefault(kind, reader.take(size))
    return found


def random_of(stream: bytes) -> bytes | None:
    """The random of the ClientHello at the beginning of a stream; None if there is none, or it is incomplete."""
    known = len(stream) >= 43 and stream[0] == RECORD_HANDSHAKE and stream[1] == 3 and stream[5] == CLIENT_HELLO
    return stream[11:43] if known and stream[9] == 3 else None


def hello_is_cut(stream: bytes) -> bool:
    """Whether the first handshake message of `stream` is incomplete."""
    return stream[:1] == bytes([RECORD_HANDSHAKE]) and 9 + int.from_bytes(stream[6:9], "big") > len(stream)


def _text(data: bytes) -> str | None:
    return masked(escaped(data)) if data else None


def facts_of(client: Hello | None, server: Hello | None) -> Facts:
    """Facts of the hellos; None: unknown."""
    facts: Facts = {"tls_version": None, "cipher_suite": None, "sni": None, "alpn": None, "resumed": None}
    if client is not None:
        facts |= {"sni": client.sni, "alpn": client.alpn}
    if server is not None:
        facts["tls_version"] = VERSION_NAMES.get(server.version)
        facts["cipher_suite"] = suite_name(server.suites[0])
        facts["alpn"] = server.alpn or facts["alpn"]
        if server.version >= 0x0304:
            facts["resumed"] = PRE_SHARED_KEY in server.extensions
        elif client is not None:
            facts["resumed"] = bool(server.session) and server.session == client.session
    return facts


def hello_facts(client: bytes, server: bytes) -> Facts:
    """Facts from the first bytes of both directions; None: unknown."""
    of_client, of_server = _messages(client), _messages(server)
    facts = facts_of(
        client_hello(of_client[CLIENT_HELLO]) if CLIENT_HELLO in of_client else None,
        server_hello(of_server[SERVER_HELLO]) if SERVER_HELLO in of_server else None,
    )
    for side, messages in (("server", of_server), ("client", of_client)):
        facts[f"{side}_certificate"] = certificate_facts(first_certificate(messages.get(CERTIFICATE, b""), False))
    return facts


class Reader:
    """Reads big-endian numbers and counted vectors; past the end it gives zeros and empty vectors."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        """The next bytes."""
        begin = self.at
        self.at = end = begin + size
        return self.data[begin:end]

    def number(self, width: int) -> int:
        """The next number of `width` bytes."""
        begin = self.at
        self.at = end = begin + width
        return int.from_bytes(self.data[begin:end], "big")

    def vector(self, width: int) -> bytes:
        """The next vector, its length in `width` bytes."""
        size = self.number(width)
        return self.take(size)

    def more(self) -> bool:
        """Whether bytes remain."""
        return self.at < len(self.data)


def first_certificate(message: bytes, tls13: bool) -> bytes:
    """The first certificate of a Certificate message (RFC 8446 section 4.4.2, RFC 5246 section 7.4.2)."""
    reader = Reader(message)
    if tls13:
        reader.vector(1)  # request context
    return Reader(reader.vector(3)).vector(3)


def certificate_facts(data: bytes) -> dict[str, str | int] | None:
    """`subject`, `issuer` (RFC 4514 texts), `not_after_s` (seconds since 1970-01-01 UTC); None if it is not valid."""
    if not data:
        return None
    try:
        found = x509.load_der_x509_certificate(data)
        return {
            "subject": masked(escaped(found.subject.rfc4514_string().encode())),
            "issuer": masked(escaped(found.issuer.rfc4514_string().encode())),
            "not_after_s": int(found.not_valid_after_utc.timestamp()),
        }
    except Exception:  # a certificate from the wire may make the parser raise anything
        return None


# The lines of a key log (RFC 9850): label, client random, secret, the latter two as hexadecimal digits.
#
# No error message contains any part of a line.


CLIENT_RANDOM = b"CLIENT_RANDOM"  # the master secret of TLS 1.2
CLIENT_EARLY, CLIENT_HANDSHAKE, SERVER_HANDSHAKE, CLIENT_TRAFFIC, SERVER_TRAFFIC = (
    b"CLIENT_EARLY_TRAFFIC_SECRET",
    b"CLIENT_HANDSHAKE_TRAFFIC_SECRET",
    b"SERVER_HANDSHAKE_TRAFFIC_SECRET",
    b"CLIENT_TRAFFIC_SECRET_0",
    b"SERVER_TRAFFIC_SECRET_0",
)
LABELS = {CLIENT_RANDOM, CLIENT_EARLY, CLIENT_HANDSHAKE, SERVER_HANDSHAKE, CLIENT_TRAFFIC, SERVER_TRAFFIC}
SECRET_LENGTHS, MASTER_BYTES = (32, 48), (48,)  # of SHA-256 and SHA-384; of a master secret of TLS 1.2

SHIFTS = (31, 0, 17, 7, 29, 19, 11, 3)  # of the eight words of a random in its key
# The secrets of one connection by label: usually one of each. A client random is no secret, so that anybody may write
# other secrets for it into a capture or a key log: all are candidates, and the one that authenticates a record counts.
Secrets = dict[bytes, tuple[bytes, ...]]


class SecretSource(Protocol):
    """Looks up the secrets of a connection by its client random; empty when there are none."""

    def secrets(self, client_random: bytes) -> Secrets: ...

    def others(self, client_random: bytes) -> Secrets:
        """Those of sources that `secrets` did not need to read; asked for when none of the former authenticates."""
        ...

    def known(self) -> tuple[NDArray[np.int64], bool]:
        """Keys (`folded`) of the client randoms of which `secrets` has found secrets or would find some, sorted; true:
        of all of them, until a key log grows."""
        ...

    def recent(self) -> list[Secrets]:
        """Those of TLS 1.3 connections, the newest first, `trial_connections` at most: to try on a connection whose
        client random is not known."""
        ...


def joined_secrets(sources: Iterable[Secrets]) -> Secrets:
    """The secrets of several sources, `secret_candidates` of each label at most: the first ones of all sources come
    before the second ones, in an order that does not depend on that of the sources."""
    some = [source for source in sources if source]
    if len(some) == 1 and all(len(secrets) == 1 for secrets in some[0].values()):
        return dict(some[0])
    ranked: dict[bytes, dict[bytes, int]] = {}
    for source in some:
        for label, secrets in source.items():
            ranks = ranked.setdefault(label, {})
            for rank, secret in enumerate(secrets):
                ranks[secret] = min(rank, ranks.get(secret, rank))
    return {
        label: tuple(sorted(ranks, key=lambda secret: (ranks[secret], secret))[: LIMITS.secret_candidates])
        for label, ranks in ranked.items()
    }


def newest(sources: Sequence[Sequence[tuple[bytes, Secrets]]]) -> list[Secrets]:
    """Of the connections of several sources, each (client random, secrets) and the newest first: `trial_connections`
    of TLS 1.3, the newest of all sources before the second newest."""
    ranked: dict[bytes, tuple[int, list[Secrets]]] = {}
    for source in sources:
        for rank, (random, secrets) in enumerate(source):
            known = ranked.setdefault(random, (rank, []))
            ranked[random] = min(rank, known[0]), [*known[1], secrets]
    found = sorted(ranked, key=lambda random: (ranked[random][0], random))[: LIMITS.trial_connections]
    return [joined_secrets(ranked[random][1]) for random in found]


def parse_line(line: bytes) -> tuple[bytes, bytes, bytes] | None:
    """(label, client random, secret); None for comments, other labels and what is no such line."""
    parts = line.split()
    if len(parts) != 3 or parts[0] not in LABELS:
        return None
    try:
        random, secret = binascii.unhexlify(parts[1]), binascii.unhexlify(parts[2])
    except binascii.Error:
        return None
    sizes = MASTER_BYTES if parts[0] == CLIENT_RANDOM else SECRET_LENGTHS
    if len(random) != RANDOM_BYTES or len(secret) not in sizes:
        return None
    return parts[0], random, secret


class KeyLog:
    """A whole key log in memory, for logs that are small."""

    def __init__(self, data: bytes = b"") -> None:
        self._known: dict[bytes, Secrets] = {}
        self.add(data.splitlines())

    def add(self, lines: Iterable[bytes]) -> None:
        """Add lines; of more than `secret_candidates` different secrets of a label the first ones count."""
        for line in lines:
            found = parse_line(line)
            if found is not None:
                label, random, secret = found
                add_secret(self._known.setdefault(random, {}), label, secret)

    def secrets(self, client_random: bytes) -> Secrets:
        """The secrets of one connection."""
        return self._known.get(client_random, {})

    def others(self, client_random: bytes) -> Secrets:
        """See `SecretSource`: none."""
        return {}

    def known(self) -> tuple[NDArray[np.int64], bool]:
        """See `SecretSource`."""
        randoms = np.frombuffer(b"".join(self._known), np.uint8).reshape(-1, RANDOM_BYTES)
        return np.sort(folded(randoms)), True

    def of_tls13(self) -> list[tuple[bytes, Secrets]]:
        """(client random, secrets) of the newest connections of TLS 1.3, `trial_connections` at most."""
        known = reversed(self._known.items())
        found = (pair for pair in known if CLIENT_TRAFFIC in pair[1] or SERVER_TRAFFIC in pair[1])
        return list(islice(found, LIMITS.trial_connections))

    def recent(self) -> list[Secrets]:
        """See `SecretSource`."""
        return newest([self.of_tls13()])


def folded(randoms: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Keys of client randoms, uint8 (n, RANDOM_BYTES), for an index: equal ones of equal randoms, none negative."""
    words = np.ascontiguousarray(randoms).view(">u4").astype(np.int64)
    keys: NDArray[np.int64] = np.bitwise_xor.reduce(words << np.array(SHIFTS), axis=1)
    return keys


def add_secret(known: Secrets, label: bytes, secret: bytes) -> None:
    """Add a candidate of this label to the secrets of a connection, unless it is known or they are too many."""
    candidates = known.get(label, ())
    if secret not in candidates and len(candidates) < LIMITS.secret_candidates:
        known[label] = (*candidates, secret)


NEW_TICKET, END_OF_EARLY_DATA, ENCRYPTED_EXTENSIONS, FINISHED, KEY_UPDATE = 4, 5, 8, 20, 24
# Messages that are read; all others are passed over.
READ_MESSAGES = {
    CLIENT_HELLO, SERVER_HELLO, CERTIFICATE, END_OF_EARLY_DATA, ENCRYPTED_EXTENSIONS, FINISHED, KEY_UPDATE,
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
        self.hellos: list[Hello | None] = [None, None]  # of the client, of the server
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

    def handshake(self, direction: int, data: bytes) -> None:
        """Handshake messages, which may span records. After a hole only those that begin with a record are read."""
        side = self.sides[direction]
        if side.broken and not side.messages:
            whole = len(data) >= MESSAGE_HEAD and MESSAGE_HEAD + int.from_bytes(data[1:4], "big") <= len(data)
            if not (whole and side.encrypted and data[0] in (FINISHED, KEY_UPDATE, NEW_TICKET)):
                return
        messages, before, at = side.messages, side.secret, 0
        messages += data
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
        if kind == CLIENT_HELLO and by_client:
            if side.encrypted and not is_13:
                self.stop_reading(RENEGOTIATED)
            elif self._is_awaited(side):
                self.hellos[0] = client_hello(body)
        elif kind == SERVER_HELLO and not by_client:
            if self._is_awaited(side):
                hello = server_hello(body)
                if hello.random != RETRY:
                    self.hellos[1] = hello
                    self._agree(hello)
        elif kind == CERTIFICATE:
            side.certificate = side.certificate or first_certificate(body, self.is_tls13(side))
        elif side.encrypted and self.is_tls13(side):
            self._message_13(side, kind, body)

    def _is_awaited(self, side: Side) -> bool:
        """Whether one more hello of this side is read."""
        side.hellos += 1
        return self.suite is None and side.hellos <= HELLOS

    def _message_13(self, side: Side, kind: int, body: bytes) -> None:
        if kind == ENCRYPTED_EXTENSIONS:
            extensions = extensions_of(Reader(body))
            self.alpn = alpn_of(extensions) if ALPN in extensions else None
            if self.early_accepted is None:
                self.early_accepted = EARLY_DATA in extensions
        elif kind in (FINISHED, END_OF_EARLY_DATA):
            if kind == END_OF_EARLY_DATA:  # only after the server has accepted them (RFC 8446, section 4.5)
                self.early_accepted = True
            if side.stages:
                side.enter()
        elif kind == KEY_UPDATE and side.cipher is not None and self.suite is not None:
            side.secret, side.number = next_secret(self.suite, side.secret), 0

    def _agree(self, hello: Hello) -> None:
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
            labels: tuple[bytes, ...] = (CLIENT_RANDOM,)
            if self.suite.version == TLS13 and direction == self.client:
                labels = (CLIENT_HANDSHAKE, CLIENT_TRAFFIC)
            elif self.suite.version == TLS13:
                labels = (SERVER_HANDSHAKE, SERVER_TRAFFIC)
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
        then_mac = ENCRYPT_THEN_MAC in hello.extensions
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
        if opener.label == CLIENT_RANDOM:  # the secret of both directions
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
        of_hellos: Facts = facts_of(*self.hellos)
        of_hellos["alpn"] = self.alpn or of_hellos["alpn"]
        if self.suite is not None and self.hellos[1] is None:
            of_hellos |= {"tls_version": VERSION_NAMES[self.suite.version], "cipher_suite": self.suite.name}
        yield from of_hellos.items()
        yield "decrypted", any(self.output_bytes)
        yield "server_certificate", certificate_facts(self.sides[1 - self.client].certificate)
        yield "client_certificate", certificate_facts(self.sides[self.client].certificate)
