"""Handshake messages of TLS in clear: hellos (server name, version, application protocol, suite) and certificates.

RFC 8446 section 4 (handshake messages, extensions), RFC 6066 section 3 (server_name), RFC 7301 section 3.1 (ALPN).
Called once per encrypted connection on a few hundred bytes. Values that do not parse are None.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography import x509

from codec.layers.tls.suites import SUITES, TLS13, suite_name
from codec.text import escaped

VERSION_NAMES = {0x0300: "SSL 3.0", 0x0301: "TLS 1.0", 0x0302: "TLS 1.1", 0x0303: "TLS 1.2", 0x0304: "TLS 1.3"}
RECORD_HANDSHAKE, CLIENT_HELLO, SERVER_HELLO, CERTIFICATE = 22, 1, 2, 11
MESSAGE_HEAD = 4  # type, length
SERVER_NAME, ALPN, ENCRYPT_THEN_MAC, PRE_SHARED_KEY, EARLY_DATA, SUPPORTED_VERSIONS = 0, 16, 22, 41, 42, 43
READ_EXTENSIONS = {SERVER_NAME, ALPN, ENCRYPT_THEN_MAC, PRE_SHARED_KEY, EARLY_DATA, SUPPORTED_VERSIONS}
EXTENSION = struct.Struct(">HH")  # type, length
RANDOM_BYTES = 32

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
        """The server name of the client."""
        names = Reader(Reader(self.extensions.get(SERVER_NAME, b"")).vector(2))
        return _text(names.vector(2)) if names.more() and names.number(1) == 0 else None

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
    padded = block + bytes(EXTENSION.size)  # what is cut reads as zeros
    while at < len(block):
        kind, size = EXTENSION.unpack_from(padded, at)
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
    suites = (code for code, suite in SUITES.items() if suite.version == TLS13 and code in codes)
    return Hello(version, random, session, tuple(suites), extensions_of(reader))


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
    records, octets, found = Reader(stream), b"", dict[int, bytes]()
    while records.more() and records.number(1) == RECORD_HANDSHAKE:
        records.take(2)
        octets += records.vector(2)
    reader = Reader(octets)
    while len(octets) - reader.at >= MESSAGE_HEAD:
        kind, size = reader.number(1), reader.number(3)
        if reader.at + size > len(octets):
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


def _text(octets: bytes) -> str | None:
    return escaped(octets) if octets else None


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
        """The next octets."""
        part = self.data[self.at : self.at + size]
        self.at += size
        return part

    def number(self, width: int) -> int:
        """The next number of `width` octets."""
        return int.from_bytes(self.take(width), "big")

    def vector(self, width: int) -> bytes:
        """The next vector, its length in `width` octets."""
        return self.take(self.number(width))

    def more(self) -> bool:
        """Whether octets remain."""
        return self.at < len(self.data)


def first_certificate(message: bytes, tls13: bool) -> bytes:
    """The first certificate of a Certificate message (RFC 8446 section 4.4.2, RFC 5246 section 7.4.2)."""
    reader = Reader(message)
    if tls13:
        reader.vector(1)  # request context
    return Reader(reader.vector(3)).vector(3)


def certificate_facts(octets: bytes) -> dict[str, str | int] | None:
    """`subject`, `issuer` (RFC 4514 texts), `not_after_s` (seconds since 1970-01-01 UTC); None if it is not valid."""
    if not octets:
        return None
    try:
        found = x509.load_der_x509_certificate(octets)
        return {
            "subject": escaped(found.subject.rfc4514_string().encode()),
            "issuer": escaped(found.issuer.rfc4514_string().encode()),
            "not_after_s": int(found.not_valid_after_utc.timestamp()),
        }
    except Exception:  # a certificate from the wire may make the parser raise anything
        return None
