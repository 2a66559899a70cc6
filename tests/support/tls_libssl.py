"""TLS 1.3 connections made by OpenSSL's library itself, for what Python's `ssl` does not pass on: KeyUpdate. Both sides
are in this process, and memory BIOs carry the bytes."""

from __future__ import annotations

import _ssl
import ctypes
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tls_peers import Sent, certificate
from wire import CLIENT, SERVER

# Sent: this side changes its keys; and asks the other one to change its own, too.
UPDATE, REQUEST = b"\0update", b"\0request"
KEY_UPDATES = {UPDATE: 0, REQUEST: 1}  # SSL_KEY_UPDATE_NOT_REQUESTED, SSL_KEY_UPDATE_REQUESTED
PEM, VERIFY_NONE, SET_MIN_PROTOCOL, TLS13 = 1, 0, 123, 0x0304
KeyLogCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
POINTERS = ("TLS_method", "SSL_CTX_new", "SSL_new", "BIO_new", "BIO_s_mem")


def library() -> Any:
    """The OpenSSL that Python is linked with."""
    found = ctypes.CDLL(_ssl.__file__)
    for name in POINTERS:
        getattr(found, name).restype = ctypes.c_void_p
    return found


class Side:
    """One end of a connection, and its key log."""

    def __init__(self, lib: Any, pem: Path, suite: str, *, server: bool) -> None:
        self.key_log: list[bytes] = []
        self._lib = lib
        self._log = KeyLogCallback(lambda _, line: self.key_log.append(line))
        context = ctypes.c_void_p(lib.SSL_CTX_new(ctypes.c_void_p(lib.TLS_method())))
        lib.SSL_CTX_ctrl(context, SET_MIN_PROTOCOL, ctypes.c_long(TLS13), None)
        lib.SSL_CTX_set_verify(context, VERIFY_NONE, None)
        lib.SSL_CTX_set_keylog_callback(context, self._log)
        assert lib.SSL_CTX_set_ciphersuites(context, suite.encode()) == 1
        if server:
            assert lib.SSL_CTX_use_certificate_file(context, str(pem).encode(), PEM) == 1
            assert lib.SSL_CTX_use_PrivateKey_file(context, str(pem).encode(), PEM) == 1
        self._ssl = ctypes.c_void_p(lib.SSL_new(context))
        self._input, self._output = (
            ctypes.c_void_p(lib.BIO_new(ctypes.c_void_p(lib.BIO_s_mem()))) for _ in ("input", "output")
        )
        lib.SSL_set_bio(self._ssl, self._input, self._output)
        (lib.SSL_set_accept_state if server else lib.SSL_set_connect_state)(self._ssl)
        lib.SSL_CTX_free(context)

    def given(self, data: bytes) -> None:
        """What the other side sent."""
        self._lib.BIO_write(self._input, data, len(data))

    def sent(self) -> bytes:
        """What goes to the other side."""
        buffer = ctypes.create_string_buffer(1 << 20)
        size = self._lib.BIO_read(self._output, buffer, len(buffer))
        return buffer.raw[: max(size, 0)]

    def handshake(self) -> bool:
        """Go on with it, or send what is due."""
        return bool(self._lib.SSL_do_handshake(self._ssl) == 1)

    def read(self) -> bytes:
        buffer = ctypes.create_string_buffer(1 << 20)
        size = self._lib.SSL_read(self._ssl, buffer, len(buffer))
        return buffer.raw[: max(size, 0)]

    def write(self, data: bytes) -> None:
        assert self._lib.SSL_write(self._ssl, data, len(data)) == len(data)

    def update(self, kind: int) -> None:
        assert self._lib.SSL_key_update(self._ssl, kind) == 1
        assert self.handshake()

    def free(self) -> None:
        self._lib.SSL_free(self._ssl)


def exchange(data: Iterable[Sent], suite: str) -> tuple[list[Sent], bytes]:
    """What goes over the wire, and the key log. A side reads what it was sent when data follow: until then two updates
    may cross."""
    lib, flights = library(), []
    with tempfile.TemporaryDirectory() as folder:
        pem = Path(folder) / "certificate.pem"
        pem.write_bytes(certificate())
        sides = {way: Side(lib, pem, suite, server=way == SERVER) for way in (CLIENT, SERVER)}

    def carry(way: int) -> None:
        wire_bytes = sides[way].sent()
        if wire_bytes:
            flights.append((way, wire_bytes))
            sides[1 - way].given(wire_bytes)

    done = {CLIENT: False, SERVER: False}
    while not all(done.values()):
        for way in (CLIENT, SERVER):
            done[way] = sides[way].handshake()
            carry(way)
    for way, wire_bytes in data:
        if wire_bytes in KEY_UPDATES:
            sides[way].update(KEY_UPDATES[wire_bytes])
        else:
            sides[way].write(wire_bytes)
        carry(way)
        if wire_bytes not in KEY_UPDATES:
            read = b""
            while len(read) < len(wire_bytes):
                more = sides[1 - way].read()
                assert more
                read += more
            assert read == wire_bytes
    for side in sides.values():
        side.free()
    return flights, b"\n".join(sides[CLIENT].key_log)
