"""The records of a TLS connection, decrypted: bytes and holes of both directions in, those of its contents out.

    tls = Tls(client, secrets)               # `client`: the direction that sent the ClientHello
    for end, way, content in tls.take(direction, octets): ...
    for end, way, content in tls.hole(direction, size): ...

`content`: plain octets of direction `way`, or, as a negative number, how many of them are missing; `end`: they were
readable as soon as so many of the octets given were there.

A direction is in clear until its ServerHello (TLS 1.3) or ChangeCipherSpec (1.2); each secret opens its records from
number 0 on. Where a record does not open, the secret of the next step is tried: handshake messages may be missing.
Behind a hole `codec.layers.tls.search` finds the number of the next record. All trial is paid from `budget`, which
grows with what is captured, so that cost stays linear. What is not opened gives nothing: the ledger counts it as TLS.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from codec.compiler.limits import EARLY_DATA as EARLY_DATA_SIZE
from codec.compiler.limits import HANDSHAKE as HANDSHAKE_SIZE
from codec.compiler.limits import LIMITS, TRIAL
from codec.layers.piece import Piece
from codec.layers.tls import keylog
from codec.layers.tls.begun import Begun, number_of
from codec.layers.tls.certificates import certificate_facts, first_certificate
from codec.layers.tls.ciphers import Cipher, cipher
from codec.layers.tls.framing import (
    ALERT,
    APPLICATION_DATA,
    CHANGE_CIPHER_SPEC,
    HANDSHAKE,
    HEADER_BYTES,
    NO_RECORD,
    RECORD_BYTES,
    split,
)
from codec.layers.tls.hello import (
    ALPN,
    CERTIFICATE,
    CLIENT_HELLO,
    EARLY_DATA,
    ENCRYPT_THEN_MAC,
    SERVER_HELLO,
    VERSION_NAMES,
    Facts,
    Hello,
    alpn_of,
    client_hello,
    extensions_of,
    facts_of,
    server_hello,
)
from codec.layers.tls.keylog import Secrets
from codec.layers.tls.reader import Reader
from codec.layers.tls.schedule import keys_12, keys_13, next_secret
from codec.layers.tls.search import numbers
from codec.layers.tls.suites import SUITES, TLS12, TLS13, Suite

NEW_TICKET, END_OF_EARLY_DATA, ENCRYPTED_EXTENSIONS, FINISHED, KEY_UPDATE = 4, 5, 8, 20, 24
# The random of a ServerHello that asks for another ClientHello (RFC 8446, section 4.1.3).
RETRY = hashlib.sha256(b"HelloRetryRequest").digest()
TRIAL_COST = 4  # octets of the budget for each number of a record that may be its own: they are looked at together
BEGAN_BEFORE = "began before the capture"
NO_SECRETS, NO_HANDSHAKE, NO_SUITE, NO_VERSION, FAILED, RENEGOTIATED, NOT_TLS = (
    "no secrets",
    "handshake not captured",
    "cipher not known",
    "version not known",
    "authentication failed",
    "renegotiation",
    "no record of TLS",
)


@dataclass(repr=False)
class Side:
    """One direction. `stages`: secrets whose turn is still to come. `size`: of the record at hand, with its header."""

    cipher: Cipher | None = None
    secret: bytes = b""
    number: int = 0
    stages: list[tuple[bytes, Cipher]] = field(default_factory=list)
    pending: bytearray = field(default_factory=bytearray)
    needed: int = HEADER_BYTES
    messages: bytearray = field(default_factory=bytearray)
    broken: bool = False  # handshake messages are missing
    skip: int = 0  # octets until the end of a record that lost some
    hidden: int = 0  # plain octets of that record
    lost: int = -1  # octets since the last boundary known, -1: at a boundary
    typical: int = 0
    certificate: bytes = b""
    dead: bool = False
    early: bool = False  # its records are 0-RTT data
    unknown: bool = False  # how many records came before the capture
    sealed: bool = False  # those of the handshake are not opened: a key log may lack these secrets
    next_cipher: Cipher | None = None  # after ChangeCipherSpec


class Opened(NamedTuple):
    """`pieces`: int64 (n, 3) of stretch, direction, size: plain octets in the order in which they were readable, each
    with the stretch that completed them; `octets` uint8: these end to end."""

    pieces: np.ndarray
    octets: np.ndarray


class Tls:
    """One connection; `facts` are those of `connections.tls`."""

    def __init__(self, client: int, secrets: Secrets) -> None:
        self.client, self.known_secrets = client, secrets
        self.sides = (Side(), Side())
        self.hellos: list[Hello | None] = [None, None]  # of the client, of the server
        self.suite: Suite | None = None
        self.reason: str | None = None
        self.alpn: str | None = None
        self.budget = LIMITS.trial_grace
        self.plain_bytes = [0, 0]
        self.waiting_early: list[bytes] = []
        self.early_suite: int | None = None
        self.early_accepted: bool | None = None  # of 0-RTT data
        self.limits = 0

    @classmethod
    def begun(cls, way: int, found: Begun) -> Tls:
        """A connection that began before the capture, of which a record of direction `way` was opened."""
        tls = cls(way if found.by_client else 1 - way, found.secrets)
        tls.suite = found.suite
        for side, label in ((tls.sides[tls.client], keylog.CLIENT_TRAFFIC), (tls.sides[1 - tls.client],
                            keylog.SERVER_TRAFFIC)):  # fmt: skip
            side.lost, side.unknown, side.broken = 0, True, True
            if label in found.secrets:
                side.secret = found.secrets[label]
                side.cipher = cipher(found.suite, keys_13(found.suite, side.secret))
            else:
                side.dead = True
        return tls

    # ---- what goes in

    def take(self, way: int, octets: bytes) -> list[Piece]:
        """The next octets of direction `way`."""
        side = self.sides[way]
        self.budget += LIMITS.trial_rate * len(octets)
        if side.dead:
            return []
        found: list[Piece] = []
        at = 0
        if side.skip:
            at = min(side.skip, len(octets))
            side.skip -= at
            if side.skip:
                return []
            if side.hidden:
                found.append((at, way, -side.hidden))
        before = len(side.pending) - at
        if side.pending:
            side.pending += memoryview(octets)[at:]
            if len(side.pending) < side.needed and side.lost < 0:
                return found
            buffer, at = bytes(side.pending), 0
        else:
            buffer, before = octets, 0
        view = memoryview(buffer)
        if side.lost >= 0:
            at = self._search(way, side, view, at, before, found)
        if side.lost < 0:
            at = self._records(way, side, view, at, before, found)
        side.pending = bytearray() if side.dead else bytearray(view[at:])
        return found

    def hole(self, way: int, size: int) -> list[Piece]:
        """`size` octets of direction `way` are missing."""
        side = self.sides[way]
        if side.dead:
            return []
        if side.cipher is None and side.next_cipher is None and not side.stages:
            self._die(NO_HANDSHAKE)
            return []
        side.broken = True
        side.messages.clear()
        if side.skip:
            over = size - side.skip
            if over <= 0:
                side.skip -= size
                return [] if side.skip else self._hidden(way, side)
            found = self._hidden(way, side)
            side.skip, side.lost = 0, over
            return found
        held, side.pending = side.pending, bytearray()
        if side.lost >= 0:
            side.lost += len(held) + size
            return []
        rest = 5 + int.from_bytes(held[3:5], "big") - len(held) if len(held) >= HEADER_BYTES else 0
        if rest >= size:
            side.skip, side.number = rest - size, side.number + 1
            plain = len(held) + rest - HEADER_BYTES - (side.cipher.overhead if side.cipher else 0)
            side.hidden = max(0, plain) if held[0] == APPLICATION_DATA else 0
            return [] if side.skip else self._hidden(way, side)
        side.lost = len(held) + size
        return []

    def _hidden(self, way: int, side: Side) -> list[Piece]:
        return [(0, way, -side.hidden)] if side.hidden else []

    @property
    def steady(self) -> bool:
        """Whether both directions are at the boundary of a record, or inside one of which nothing is lost."""
        return all(side.lost < 0 and not side.skip for side in self.sides)

    def take_all(self, ways: np.ndarray, starts: np.ndarray, ends: np.ndarray, octets: np.ndarray) -> Opened:
        """What `take` gives of stretches `octets[starts[i]:ends[i]]` of direction `ways[i]` one after the other, where
        the connection is `steady`."""
        self.budget += LIMITS.trial_rate * int((ends - starts).sum())
        records = split(ways, starts, ends, octets, (self.sides[0].pending, self.sides[1].pending))
        view, out = records.octets.data, np.empty(len(records.octets) + LIMITS.early_bytes + RECORD_BYTES, np.uint8)
        to, used = out.data, 0
        found: list[tuple[int, int, int]] = []
        columns = (records.stretch, records.way, records.at, records.size)
        for stretch, way, at, size in zip(*(column.tolist() for column in columns), strict=True):
            side = self.sides[way]
            if side.dead:
                continue
            if size == NO_RECORD:
                self._die(NOT_TLS, side)
                continue
            side.typical = HEADER_BYTES + size
            if side.cipher is not None and not side.early:
                plain = side.cipher.open_into(side.number, view, at, size, to, used)
                if plain >= 0:
                    side.number += 1
                    if plain:
                        found.append((stretch, way, plain))
                        self.plain_bytes[way] += plain
                        used += plain
                    continue
            kind, version = view[at - 5], (view[at - 4] << 8) | view[at - 3]
            for whose, part in self._parts(way, side, kind, version, view[at : at + size]):
                to[used : used + len(part)] = part
                used += len(part)
                found.append((stretch, whose, len(part)))
        for side, (begin, end) in zip(self.sides, records.rest, strict=True):
            side.pending = bytearray() if side.dead else bytearray(view[begin:end])
            whole = len(side.pending) >= HEADER_BYTES
            side.needed = HEADER_BYTES + (int.from_bytes(side.pending[3:5], "big") if whole else 0)
        return Opened(np.array(found, np.int64).reshape(-1, 3), out[:used])

    # ---- records

    def _records(self, way: int, side: Side, view: memoryview, at: int, before: int, found: list[Piece]) -> int:
        """Read whole records from `at` on: where the next begins."""
        n = len(view)
        while n - at >= HEADER_BYTES:
            kind, size = view[at], (view[at + 3] << 8) | view[at + 4]
            if not CHANGE_CIPHER_SPEC <= kind <= APPLICATION_DATA or view[at + 1] != 3 or size > RECORD_BYTES:
                self._die(NOT_TLS, side)
                return at
            end = at + HEADER_BYTES + size
            if end > n:
                side.needed = HEADER_BYTES + size
                return at
            version = (view[at + 1] << 8) | view[at + 2]
            parts = self._parts(way, side, kind, version, view[at + HEADER_BYTES : end])
            found += [(end - before, whose, part) for whose, part in parts]
            if side.dead:
                return at
            side.typical = HEADER_BYTES + size
            at = end
        side.needed = HEADER_BYTES
        return at

    def _parts(self, way: int, side: Side, kind: int, version: int, body: memoryview) -> list[tuple[int, bytes]]:
        """The application data that one record makes readable, by direction."""
        found = []
        plain = self._record(way, side, kind, version, body)
        if plain:
            found.append((way, plain))
        if self.waiting_early and self.early_accepted:
            found += [(self.client, part) for part in self.waiting_early]
            self.waiting_early = []
        for whose, part in found:
            self.plain_bytes[whose] += len(part)
        return found

    def _record(self, way: int, side: Side, kind: int, version: int, body: memoryview) -> bytes:
        """The application data of one record."""
        if kind == CHANGE_CIPHER_SPEC and self.suite is not None and self.suite.version == TLS13:
            return b""
        if side.cipher is None and not (kind == APPLICATION_DATA and side.stages):
            return self._in_clear(way, side, kind, bytes(body))
        plain = self._opened(side, kind, version, body)
        if plain is None:
            if not (side.early or side.sealed):
                self._fail(side)
            return b""
        return self._contents(way, side, kind, plain)

    def _contents(self, way: int, side: Side, kind: int, plain: bytes) -> bytes:
        """A record that was opened: its application data."""
        if self._is_13(side):
            plain = plain.rstrip(b"\0")
            if not plain:
                return b""
            kind, plain = plain[-1], plain[:-1]
        if kind == APPLICATION_DATA:
            if side.early and not self.early_accepted:
                if sum(map(len, self.waiting_early)) < LIMITS.early_bytes:
                    self.waiting_early.append(plain)
                else:
                    self.limits |= EARLY_DATA_SIZE
                return b""
            return plain
        if kind == HANDSHAKE:
            self._handshake(way, side, plain)
        return b""

    def _is_13(self, side: Side) -> bool:
        return side.early or (self.suite is not None and self.suite.version == TLS13)

    def _opened(self, side: Side, kind: int, version: int, body: memoryview) -> bytes | None:
        """The plaintext of the next record; the next secrets are tried if the one at hand does not open it."""
        if side.cipher is not None:
            plain = side.cipher.open(side.number, kind, version, body)
            if plain is not None:
                side.number += 1
                return plain
        for place, (secret, opener) in enumerate(side.stages):
            self.budget -= len(body)
            plain = opener.open(0, kind, version, body) if self.budget > 0 else None
            if plain is not None:
                side.secret, side.cipher, side.number = secret, opener, 1
                side.early = side.sealed = False
                del side.stages[: place + 1]
                return plain
        return None

    def _in_clear(self, way: int, side: Side, kind: int, body: bytes) -> bytes:
        if kind == HANDSHAKE:
            self._handshake(way, side, body)
        elif kind == CHANGE_CIPHER_SPEC and self.suite is not None:  # before that one of TLS 1.3, which means nothing
            if side.next_cipher is None:
                self._die(self.reason or NO_HANDSHAKE)
            else:
                side.cipher, side.next_cipher, side.number = side.next_cipher, None, 0
        elif kind == APPLICATION_DATA and not self._early_begins(way, side, body):
            self._die(self.reason or NO_HANDSHAKE)
        return b""

    # ---- behind a hole

    def _search(self, way: int, side: Side, view: memoryview, at: int, before: int, found: list[Piece]) -> int:
        """Find a record that opens: where the next one begins; else, with `lost` still set, what is to be kept."""
        n, start, keep = len(view), at, -1
        octets = view.obj if isinstance(view.obj, bytes) else bytes(view)
        here = octets.find(b"\x03\x03", at + 1) - 1
        while at <= here and here + HEADER_BYTES <= n:
            kind, size = view[here], (view[here + 3] << 8) | view[here + 4]
            if ALERT <= kind <= APPLICATION_DATA and size <= RECORD_BYTES:
                end = here + HEADER_BYTES + size
                if end > n:
                    keep = here if keep < 0 else keep
                else:
                    opened = self._numbered(way, side, kind, view[here + HEADER_BYTES : end], side.lost + here - start)
                    if opened is not None:
                        missing, plain = opened
                        if missing:
                            found.append((max(0, end - before), way, -missing))
                        contents = self._contents(way, side, kind, plain)
                        if contents:
                            self.plain_bytes[way] += len(contents)
                            found.append((end - before, way, contents))
                        side.lost = -1
                        return end
            if self.budget <= 0:
                self.limits |= TRIAL
                self._die(BEGAN_BEFORE if side.unknown else FAILED, side)
                return n
            here = octets.find(b"\x03\x03", here + 2) - 1
        keep = keep if keep >= 0 else max(start, n - HEADER_BYTES + 1)
        side.lost += keep - start
        return keep

    def _numbered(self, way: int, side: Side, kind: int, body: memoryview, lost: int) -> tuple[int, bytes] | None:
        """Plain octets that lie in `lost` octets before this record, and its plaintext, if it opens."""
        if side.unknown:
            return self._first(side, kind, body)
        stages = ([(side.secret, side.cipher)] if side.cipher is not None else []) + side.stages
        for place, (secret, opener) in enumerate(stages):
            first = side.number if place == 0 and side.cipher is not None else 0
            least = opener.overhead
            for count in numbers(lost, least, side.typical):
                self.budget -= len(body) + 64
                if self.budget <= 0:
                    return None
                plain = opener.open(first + count, kind, TLS12, body)
                if plain is not None:
                    if place or side.cipher is None:
                        del side.stages[: place + (side.cipher is None)]
                        side.secret, side.cipher, side.early, side.sealed = secret, opener, False, False
                    side.number = first + count + 1
                    return max(0, lost - count * (HEADER_BYTES + least)), plain
        return None

    def _first(self, side: Side, kind: int, body: memoryview) -> tuple[int, bytes] | None:
        """The first record of a connection that began before the capture."""
        assert self.suite is not None
        self.budget -= LIMITS.trial_numbers * TRIAL_COST
        found = number_of(self.suite, side.secret, kind, bytes(body), LIMITS.trial_numbers) if self.budget > 0 else None
        if found is None:
            return None
        side.number, side.unknown = found[0] + 1, False
        return 0, found[1]

    # ---- handshake

    def _handshake(self, way: int, side: Side, octets: bytes) -> None:
        """Messages may lie across records. Behind a hole only those that a record begins with are read."""
        whole = len(octets) >= 4 and 4 + int.from_bytes(octets[1:4], "big") <= len(octets)
        if side.broken and not side.messages and not (whole and octets[0] in (FINISHED, KEY_UPDATE, NEW_TICKET)):
            return
        side.messages += octets
        while len(side.messages) >= 4:
            size = int.from_bytes(side.messages[1:4], "big")
            if size > LIMITS.handshake_bytes:
                self.limits |= HANDSHAKE_SIZE
                side.broken = True
                side.messages.clear()
                return
            if len(side.messages) < 4 + size:
                return
            kind, body = side.messages[0], bytes(side.messages[4 : 4 + size])
            del side.messages[: 4 + size]
            self._message(way, side, kind, body)
            if side.dead:
                return

    def _message(self, way: int, side: Side, kind: int, body: bytes) -> None:
        by_client = way == self.client
        encrypted_12 = side.cipher is not None and self.suite is not None and self.suite.version != TLS13
        if kind == CLIENT_HELLO and by_client:
            if encrypted_12:
                self._die(RENEGOTIATED)
                return
            self.hellos[0] = client_hello(body)
        elif kind == SERVER_HELLO and not by_client:
            hello = server_hello(body)
            if hello.random != RETRY and not encrypted_12:
                self.hellos[1] = hello
                self._agree(hello)
        elif kind == CERTIFICATE and not side.certificate:
            side.certificate = first_certificate(body, self._is_13(side))
        elif self.suite is not None and self.suite.version == TLS13:
            self._message_13(side, kind, body)

    def _message_13(self, side: Side, kind: int, body: bytes) -> None:
        assert self.suite is not None
        if kind == ENCRYPTED_EXTENSIONS:
            extensions = extensions_of(Reader(body))
            self.alpn = alpn_of(extensions) if ALPN in extensions else None
            if self.early_accepted is None:
                self.early_accepted = EARLY_DATA in extensions
                if not self.early_accepted:
                    self.waiting_early = []
        elif kind in (FINISHED, END_OF_EARLY_DATA) and side.stages:
            (side.secret, side.cipher), side.number, side.early = side.stages.pop(0), 0, False
        elif kind == KEY_UPDATE and side.secret:
            side.secret = next_secret(self.suite, side.secret)
            side.cipher, side.number = cipher(self.suite, keys_13(self.suite, side.secret)), 0

    def _agree(self, hello: Hello) -> None:
        """The ServerHello: keys of both directions."""
        number, offer = hello.suites[0], self.hellos[0]
        if hello.version not in (TLS12, TLS13):
            self._die(NO_VERSION)
            return
        suite = SUITES.get(number)
        if suite is None or suite.version != hello.version:
            self._die(NO_SUITE)
            return
        if offer is None:
            self._die(NO_HANDSHAKE)
            return
        self.suite = suite
        client, server = self.sides[self.client], self.sides[1 - self.client]
        if hello.version == TLS12:
            if keylog.CLIENT_RANDOM not in self.known_secrets:
                self._die(NO_SECRETS)
                return
            client.next_cipher, server.next_cipher = self.ciphers_12()
            return
        for side, labels in (
            (client, (keylog.CLIENT_HANDSHAKE, keylog.CLIENT_TRAFFIC)),
            (server, (keylog.SERVER_HANDSHAKE, keylog.SERVER_TRAFFIC)),
        ):
            known = [self.known_secrets[label] for label in labels if label in self.known_secrets]
            side.stages = [(secret, cipher(suite, keys_13(suite, secret))) for secret in known]
            if not known:
                self._die(NO_SECRETS)
                return
            side.sealed = labels[0] not in self.known_secrets
            if not side.early and not side.sealed:
                (side.secret, side.cipher), side.number = side.stages.pop(0), 0

    def ciphers_12(self) -> tuple[Cipher, Cipher]:
        """Of TLS 1.2, when both hellos and the master secret are known: the client's, the server's."""
        suite, (offer, hello) = self.suite, self.hellos
        assert suite is not None
        assert offer is not None
        assert hello is not None
        then_mac = ENCRYPT_THEN_MAC in hello.extensions
        keys = keys_12(suite, self.known_secrets[keylog.CLIENT_RANDOM], offer.random, hello.random)
        return cipher(suite, keys[0], then_mac), cipher(suite, keys[1], then_mac)

    def _early_begins(self, way: int, side: Side, body: bytes) -> bool:
        """0-RTT data before the ServerHello: its suite is one that the client offers."""
        offer, secret = self.hellos[0], self.known_secrets.get(keylog.CLIENT_EARLY)
        if way != self.client or offer is None or EARLY_DATA not in offer.extensions:
            return False
        side.early = True
        if secret is None:
            return True
        for number in offer.suites:
            suite = SUITES.get(number)
            if suite is None or suite.version != TLS13 or len(secret) != (48 if suite.hash == "sha384" else 32):
                continue
            opener = cipher(suite, keys_13(suite, secret))
            plain = opener.open(0, APPLICATION_DATA, TLS12, memoryview(body))
            if plain is not None:
                side.secret, side.cipher, side.number = secret, opener, 1
                self.early_suite = number
                self._contents(way, side, APPLICATION_DATA, plain)
                break
        return True

    # ---- ends

    def _fail(self, side: Side) -> None:
        """A record at a boundary did not open: an altered one ends a connection, so nothing is searched behind it."""
        self._die(FAILED if self.known_secrets else NO_SECRETS, side)

    def _die(self, reason: str, side: Side | None = None) -> None:
        """Nothing of this side, or of both, is read any more."""
        self.reason = self.reason or reason
        for each in self.sides if side is None else (side,):
            each.dead = True

    @property
    def dead(self) -> bool:
        """Whether nothing more is read."""
        return all(side.dead for side in self.sides)

    def facts(self) -> Iterator[tuple[str, Any]]:
        """Name and value of what is known."""
        of_hellos: Facts = facts_of(*self.hellos)
        of_hellos["alpn"] = self.alpn or of_hellos["alpn"]
        if self.suite is not None and self.hellos[1] is None:
            of_hellos |= {"version": VERSION_NAMES[self.suite.version], "cipher_suite": self.suite.name}
        yield from of_hellos.items()
        yield "decrypted", any(self.plain_bytes)
        yield "server_certificate", certificate_facts(self.sides[1 - self.client].certificate)
        yield "client_certificate", certificate_facts(self.sides[self.client].certificate)
