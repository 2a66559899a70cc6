"""TLS: hellos and certificates as OpenSSL writes them, undecrypted."""

from __future__ import annotations

import datetime
import ssl

from rule_support import Case, Connection, spoken
from tls_peers import Peers
from wire import CLIENT

V = spoken()
# Connections of cases begin on 2023-11-14.
EXPIRED, SOON = (datetime.datetime(2023, 11, day, tzinfo=datetime.UTC) for day in (10, 30))


def encrypted(old: bool = False, **peers: object) -> Connection:
    """TLS 1.2; `old`: the ServerHello says TLS 1.0 instead (its bytes 9 and 10, behind the heads of the record and of
    the message)."""
    result = Peers(**{"version": ssl.TLSVersion.TLSv1_2, "curve": True, **peers})  # type: ignore[arg-type]
    connection = Connection()
    for number, (way, data) in enumerate(result.exchange([(CLIENT, b"AMQP\0\0\x09\x01")])):
        patched = data[:9] + b"\x03\x01" + data[11:] if old and number == 1 else data
        connection.data("client" if way == CLIENT else "server", patched)
    return connection.fin("client")


def sound() -> Connection:
    return encrypted()


def cases(version: str) -> list[Case]:
    """What lies in TLS is not seen, so that the bytes are those of any version."""
    return [
        Case("TLS-01", version, encrypted(old=True), sound(), evidence={"observed": "TLS 1.0"}),
        Case("TLS-02", version, encrypted(curve=False, ciphers="AES128-SHA:@SECLEVEL=0"), sound(),
             evidence={"observed": "TLS_RSA_WITH_AES_128_CBC_SHA"}),
        Case("TLS-03", version, encrypted(not_after=EXPIRED), sound(), evidence={"observed": "2023-11-10"}),
        Case("TLS-04", version, encrypted(not_after=SOON), sound(), evidence={"observed": "2023-11-30", "limit": 30}),
        Case("TLS-05", version, encrypted(name=None), sound(), evidence={"observed": "TLS 1.2"}),
    ]  # fmt: skip


CASES = [case for version in (V, "0-10", "1.0") for case in cases(version)]
