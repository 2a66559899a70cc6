"""TLS connections made by tlslite-ng, for what OpenSSL cannot be asked for through Python: suites of TLS 1.3 by name,
KeyUpdate, HelloRetryRequest, a code over the plaintext."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from typing import Any

from tls_peers import Sent, certificate
from tlslite.api import HandshakeSettings, TLSConnection, X509CertChain, parsePEMKey
from tlslite.constants import KeyUpdateMessageType
from wire import CLIENT, SERVER

KEY_UPDATE = b"\0key update"  # data: this side changes its keys, and asks the other to


class Recorded:
    """A socket that notes what is sent."""

    def __init__(self, inner: socket.socket, direction: int, flights: list[Sent]) -> None:
        self._inner, self._direction, self._flights = inner, direction, flights

    def send(self, data: bytes) -> int:
        self._flights.append((self._direction, bytes(data)))
        self._inner.sendall(data)
        return len(data)

    def sendall(self, data: bytes) -> None:
        self.send(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def exchange(data: Iterable[Sent], client: HandshakeSettings, server: HandshakeSettings) -> tuple[list[Sent], bytes]:
    """What goes over the wire, and the key log."""
    flights: list[Sent] = []
    ends = socket.socketpair()
    sides = {way: TLSConnection(Recorded(end, way, flights)) for way, end in zip((CLIENT, SERVER), ends, strict=True)}
    pem = certificate().decode()
    chain = X509CertChain()
    chain.parsePemList(pem)
    serving = threading.Thread(
        target=lambda: sides[SERVER].handshakeServer(
            certChain=chain, privateKey=parsePEMKey(pem, private=True), settings=server
        )
    )
    serving.start()
    sides[CLIENT].handshakeClientCert(settings=client, serverName="mq.example")
    serving.join()
    session, random = sides[CLIENT].session, flights[0][1][11:43].hex()  # of the first record, a ClientHello
    secrets = (
        {
            "CLIENT_TRAFFIC_SECRET_0": bytes(session.cl_app_secret),
            "SERVER_TRAFFIC_SECRET_0": bytes(session.sr_app_secret),
        }
        if sides[CLIENT].version > (3, 3)
        else {"CLIENT_RANDOM": bytes(session.masterSecret)}
    )
    for way, wire_bytes in data:
        if wire_bytes == KEY_UPDATE:
            for _ in sides[way].send_keyupdate_request(KeyUpdateMessageType.update_requested):
                pass
            continue
        sides[way].write(wire_bytes)
        read = b""
        while len(read) < len(wire_bytes):
            read += sides[1 - way].read(max=len(wire_bytes) - len(read))
    for end in ends:
        end.close()
    return flights, "\n".join(f"{label} {random} {secret.hex()}" for label, secret in secrets.items()).encode()


def settings(version: tuple[int, int], **names: Any) -> HandshakeSettings:
    """Settings of one version; `names`: attributes of tlslite's."""
    found = HandshakeSettings()
    found.minVersion = found.maxVersion = version
    for name, value in names.items():
        setattr(found, name, value)
    return found
