"""TLS connections made in memory: OpenSSL on both sides, the bytes of each flight in order, and its key log.

No network: `ssl.MemoryBIO` carries the bytes, and `wire.Wire` makes segments of them.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from wire import CLIENT, SERVER, Wire

from codec.net.layers import ACK, SYN

NOT_AFTER = datetime.datetime(2036, 1, 31, 12, tzinfo=datetime.UTC)
Sent = tuple[int, bytes]  # direction, bytes


@cache
def certificate(curve: bool = False, not_after: datetime.datetime = NOT_AFTER) -> bytes:
    """A self-signed certificate of CN=mq.example and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1()) if curve else rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mq.example")])
    result = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(not_after - datetime.timedelta(days=3650))
        .not_valid_after(not_after)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + result.public_bytes(serialization.Encoding.PEM)


@dataclass
class Peers:
    """Contexts of both sides, with one key log. `version`: of TLS; `ciphers`: in OpenSSL's words."""

    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    ciphers: str = ""
    curve: bool = False
    session: ssl.SSLSession | None = None
    client_certificate: bool = False
    not_after: datetime.datetime = NOT_AFTER
    name: str | None = "mq.example"  # that the client asks for
    contexts: tuple[ssl.SSLContext, ssl.SSLContext] = field(init=False)

    def __post_init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        pem = Path(self._folder.name) / "certificate.pem"
        pem.write_bytes(certificate(self.curve, self.not_after))
        server.load_cert_chain(pem)
        if self.client_certificate:
            client.load_cert_chain(pem)
            server.verify_mode = ssl.CERT_OPTIONAL
            server.load_verify_locations(pem)
        for context in (client, server):
            context.minimum_version = context.maximum_version = self.version
            if self.ciphers:
                context.set_ciphers(self.ciphers)
        client.keylog_filename = str(Path(self._folder.name) / "keys.txt")
        self.contexts = client, server

    @property
    def key_log(self) -> bytes:
        return Path(str(self.contexts[0].keylog_filename)).read_bytes()

    def exchange(self, data: Iterable[Sent]) -> list[Sent]:
        """A handshake, then the bytes of both sides in turn, then the end: what goes over the wire."""
        inputs, outputs = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())  # by direction
        client = self.contexts[0].wrap_bio(
            inputs[CLIENT], outputs[CLIENT], server_hostname=self.name, session=self.session
        )
        server = self.contexts[1].wrap_bio(inputs[SERVER], outputs[SERVER], server_side=True)
        sides = {CLIENT: client, SERVER: server}
        flights: list[Sent] = []

        def step(direction: int, action: str, *arguments: bytes | int) -> bool:
            """One side acts; its bytes go to the other."""
            try:
                getattr(sides[direction], action)(*arguments)
                done = True
            except (ssl.SSLWantReadError, ssl.SSLSyscallError, ssl.SSLZeroReturnError):
                done = False
            wire_bytes = outputs[direction].read()
            if wire_bytes:
                flights.append((direction, wire_bytes))
                inputs[1 - direction].write(wire_bytes)
            return done

        done = {CLIENT: False, SERVER: False}
        while not all(done.values()):
            for direction in (CLIENT, SERVER):
                done[direction] = done[direction] or step(direction, "do_handshake")
        for direction, wire_bytes in data:
            step(direction, "write", wire_bytes)
            step(1 - direction, "read", 1 << 20)
        self.resumable = client.session
        step(CLIENT, "unwrap")
        return flights


def wire_of(flights: Iterable[Sent], size: int = 1400, fast_open: bool = False) -> Wire:
    """The flights as segments of at most `size` bytes. `fast_open`: the first one is in the SYN (RFC 7413)."""
    wire = Wire(syn=not fast_open)
    for direction, data in flights:
        for at in range(0, len(data), size):
            opens = not wire.segments
            wire.add(direction, data[at : at + size], SYN if opens else ACK)
            if opens:
                wire.add(1 - direction, b"", SYN | ACK)
    return wire
