"""The first flight of TLS, as far as it is in the clear: server name, protocol version, application protocol.

RFC 8446 section 4 (handshake messages, extensions), RFC 6066 section 3 (server_name), RFC 7301 section 3.1 (ALPN).
Called once per encrypted connection on a few hundred bytes; anything that does not parse is simply not known.
"""

from __future__ import annotations

from collections.abc import Iterator

from codec.text import escaped

VERSION_NAMES = {0x0300: "SSL 3.0", 0x0301: "TLS 1.0", 0x0302: "TLS 1.1", 0x0303: "TLS 1.2", 0x0304: "TLS 1.3"}
RECORD_HANDSHAKE, CLIENT_HELLO, SERVER_HELLO = 22, 1, 2
SERVER_NAME, ALPN, SUPPORTED_VERSIONS = 0, 16, 43


class _Reader:
    """Reads big-endian numbers and counted vectors; past the end it gives zeros and empty vectors."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        self.at += size
        return part

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def vector(self, width: int) -> bytes:
        return self.take(self.number(width))

    def more(self) -> bool:
        return self.at < len(self.data)


def _extensions(reader: _Reader) -> Iterator[tuple[int, _Reader]]:
    block = _Reader(reader.vector(2))
    while block.more():
        kind = block.number(2)
        yield kind, _Reader(block.vector(2))


def _hello(stream: bytes, expected: int) -> _Reader | None:
    record = _Reader(stream)
    if record.number(1) != RECORD_HANDSHAKE:
        return None
    record.take(2)
    message = _Reader(record.vector(2))
    if message.number(1) != expected:
        return None
    return _Reader(message.vector(3))


def hello_is_cut(stream: bytes) -> bool:
    """Whether the handshake message that `stream` begins with goes on behind its end."""
    return stream[:1] == bytes([RECORD_HANDSHAKE]) and 9 + int.from_bytes(stream[6:9], "big") > len(stream)


def _text(octets: bytes) -> str | None:
    return escaped(octets) if octets else None


def hello_facts(client: bytes, server: bytes) -> dict[str, str | None]:
    """`{version, sni, alpn}` from the first bytes of both directions; None where they do not say."""
    facts: dict[str, str | None] = {"version": None, "sni": None, "alpn": None}
    version = 0
    hello = _hello(client, CLIENT_HELLO)
    if hello is not None:
        hello.take(2 + 32)
        hello.vector(1)  # session id
        hello.vector(2)  # cipher suites
        hello.vector(1)  # compression methods
        for kind, body in _extensions(hello):
            if kind == SERVER_NAME:
                names = _Reader(body.vector(2))
                if names.number(1) == 0:
                    facts["sni"] = _text(names.vector(2))
            elif kind == ALPN:
                facts["alpn"] = _text(_Reader(body.vector(2)).vector(1))
    hello = _hello(server, SERVER_HELLO)
    if hello is not None:
        version = hello.number(2)
        hello.take(32)
        hello.vector(1)
        hello.take(3)  # cipher suite, compression method
        for kind, body in _extensions(hello):
            if kind == SUPPORTED_VERSIONS:
                version = body.number(2)
            elif kind == ALPN:
                facts["alpn"] = _text(_Reader(body.vector(2)).vector(1)) or facts["alpn"]
    facts["version"] = VERSION_NAMES.get(version)
    return facts
