"""The records of a TLS connection, decrypted: chunks of both directions in, chunks of their contents out.

    tls = Tls(client, secrets)               # `client`: the direction that sent the ClientHello
    plain = tls.read(chunks)

Each secret decrypts the records of its direction from number 0 on. If a record does not authenticate, the secret of the
next stage is tried, because handshake messages may be missing. Records of application data are decrypted in bulk
(`codec.layers.tls.bulk`), all others one by one. `codec.layers.tls.recovery` finds the next record after a hole.
Records that are not decrypted have no output; the byte ledger counts them as TLS.
"""

from __future__ import annotations

import numpy as np

from codec.compiler.limits import EARLY_DATA as EARLY_DATA_SIZE
from codec.compiler.limits import LIMITS
from codec.layers.chunks import Chunks, Output
from codec.layers.tls import framing as F
from codec.layers.tls import keylog
from codec.layers.tls.bulk import PLACE, ROOM, decrypt
from codec.layers.tls.ciphers import Aead, cipher, keys_13
from codec.layers.tls.handshake import FAILED, NO_HANDSHAKE, NO_SECRETS, NOT_TLS, Side
from codec.layers.tls.hello import EARLY_DATA
from codec.layers.tls.keylog import Secrets
from codec.layers.tls.recovery import Recovery
from codec.layers.tls.suites import SUITES, TLS12, TLS13
from codec.layers.tls.trial import SECRET_BYTES, Match

BULK = 16  # records to decrypt in bulk after one that is not application data


class Tls(Recovery):
    """The TLS of one connection."""

    def __init__(self, client: int, secrets: Secrets) -> None:
        super().__init__(client, secrets)
        self._events = self._income = np.zeros(0, np.int64)  # of the input; the latter is cumulative
        self._counted = 0  # part of the income in the budget

    @classmethod
    def from_match(cls, direction: int, found: Match) -> Tls:
        """A connection that began before the capture; a record of `direction` was decrypted by trial."""
        tls = cls(direction if found.by_client else 1 - direction, found.secrets)
        tls.suite = found.suite
        for side, label in ((tls.sides[tls.client], keylog.CLIENT_TRAFFIC), (tls.sides[1 - tls.client],
                            keylog.SERVER_TRAFFIC)):  # fmt: skip
            side.lost, side.unknown, side.broken = 0, True, True
            if label in found.secrets:
                side.secret = found.secrets[label]
                side.cipher = cipher(found.suite, keys_13(found.suite, side.secret))
            else:
                side.stopped = True
        return tls

    def read(self, chunks: Chunks) -> Chunks:
        sizes, self.stopped_at, self._counted = np.maximum(chunks.size, 0), -1, 0
        self._events, self._income = chunks.event, LIMITS.trial_rate * np.cumsum(sizes)
        room = int(sizes.sum()) + sum(len(side.pending) for side in self.sides)
        out = Output(room + LIMITS.early_bytes + F.RECORD_BYTES)
        i = 0
        while i < len(sizes) and not self.stopped:
            after_hole = [not side.stopped and (side.lost >= 0 or side.skip > 0) for side in self.sides]
            end = int(F.clear_end(chunks.direction, chunks.size, i, np.array(after_hole)))
            if end > i:
                self._records(chunks.part(i, end), i, out)
                i = end
                continue
            self._advance(i)
            if chunks.size[i] < 0:
                self.hole(int(chunks.direction[i]), -int(chunks.size[i]), out)
            else:
                self._after_hole(chunks.part(i, i + 1), i, out)
            i += 1
        if len(sizes):
            self._advance(len(sizes) - 1)
        return out.chunks()

    def _advance(self, i: int) -> None:
        """Make chunk `i` of the input the current one; add it and those before it to the budget."""
        self.event = int(self._events[i])
        self.budget += int(self._income[i]) - self._counted
        self._counted = int(self._income[i])

    # ---- records

    def _records(self, chunks: Chunks, before: int, out: Output) -> None:
        """Chunks without holes, at the boundary of a record or inside one. `before`: chunks read before these."""
        records = F.split(chunks, tuple(None if side.stopped else side.pending for side in self.sides))
        rest = [bytearray(records.octets[begin:end].data) for begin, end in records.rest]
        k, step = 0, len(records.size)
        while k < len(records.size):
            stop = min(len(records.size), k + step)
            k, step = k + self._bulk(records, chunks.event, k, stop, out), 2 * step
            if k == stop:
                continue
            self._advance(before + int(records.chunk[k]))
            direction = int(records.direction[k])
            self._record(direction, records, k, out)
            k, step = k + 1, BULK
            if self.stopped:
                break
            if self.sides[direction].stopped:
                records, k = records.of(1 - direction, k), 0
        for side, octets in zip(self.sides, rest, strict=True):
            side.pending = bytearray() if side.stopped else octets

    def _bulk(self, records: F.Records, events: np.ndarray, k: int, stop: int, out: Output) -> int:
        """Decrypt records `k` to `stop`, up to the first that is not application data; returns their number."""
        ciphers = [side.cipher if isinstance(side.cipher, Aead) and not side.early else None for side in self.sides]
        if ciphers[records.direction[k]] is None:
            return 0
        places = decrypt(records, k, stop, (ciphers[0], ciphers[1]), [side.number for side in self.sides], out)
        part = slice(k, k + len(places))
        directions, sizes = records.direction[part], places[:, ROOM]
        out.add_columns(events[records.chunk[part]], directions, places[:, PLACE], sizes)
        for direction, side in enumerate(self.sides):
            mine = np.flatnonzero(directions == direction)
            side.number += len(mine)
            self.output_bytes[direction] += int(sizes[mine].sum())
            if len(mine):
                side.typical = F.HEADER_BYTES + int(records.size[part][mine[-1]])
        return len(places)

    def _record(self, direction: int, records: F.Records, k: int, out: Output) -> None:
        """One record of any kind."""
        side, at, size = self.sides[direction], int(records.at[k]), int(records.size[k])
        if size == F.NO_RECORD:
            self.stop_reading(NOT_TLS, side)
            return
        side.typical = F.HEADER_BYTES + size
        view = records.octets.data
        kind, version, body = view[at - 5], (view[at - 4] << 8) | view[at - 3], view[at : at + size]
        if kind == F.CHANGE_CIPHER_SPEC and self.suite is not None and self.suite.version == TLS13:
            return
        if side.cipher is None and not (kind == F.APPLICATION_DATA and side.stages):
            self._in_clear(direction, side, kind, bytes(body), out)
        else:
            plain = self._decrypt(side, kind, version, body)
            if plain is not None:
                self._contents(direction, side, kind, plain, out)
            elif not (side.early or side.sealed):
                # An altered record at a boundary ends the connection: no search after it.
                self.stop_reading(FAILED if self.secrets else NO_SECRETS, side)
        if self.waiting_early and self.early_accepted:
            for part in self.waiting_early:
                self._add(self.client, part, out)
            self.waiting_early = []

    def _add(self, direction: int, plain: bytes, out: Output) -> None:
        self.output_bytes[direction] += len(plain)
        out.add(self.event, direction, plain)

    def _contents(self, direction: int, side: Side, kind: int, plain: bytes, out: Output) -> None:
        """The plaintext of a record."""
        if self.is_tls13(side):
            plain = plain.rstrip(b"\0")
            if not plain:
                return
            kind, plain = plain[-1], plain[:-1]
        if kind == F.HANDSHAKE:
            self.handshake(direction, plain)
        elif kind == F.APPLICATION_DATA and side.early and not self.early_accepted:
            if sum(map(len, self.waiting_early)) < LIMITS.early_bytes:
                self.waiting_early.append(plain)
            else:
                self.limits |= EARLY_DATA_SIZE
        elif kind == F.APPLICATION_DATA:
            self._add(direction, plain, out)

    def _decrypt(self, side: Side, kind: int, version: int, body: memoryview) -> bytes | None:
        """The plaintext of the next record, by the current secret or one of the next stages."""
        if side.cipher is not None:
            plain = side.cipher.open(side.number, kind, version, body)
            if plain is not None:
                side.number += 1
                return plain
        for place, (secret, opener) in enumerate(side.stages):
            self.budget -= len(body)
            plain = opener.open(0, kind, version, body) if self.budget > 0 else None
            if plain is not None:
                side.use(secret, opener, 1)
                side.sealed = False
                del side.stages[: place + 1]
                return plain
        return None

    def _in_clear(self, direction: int, side: Side, kind: int, body: bytes, out: Output) -> None:
        if kind == F.HANDSHAKE:
            self.handshake(direction, body)
        elif kind == F.CHANGE_CIPHER_SPEC and self.suite is not None:  # in TLS 1.3 it has no meaning
            if side.next_cipher is None:
                self.stop_reading(self.reason or NO_HANDSHAKE)
            else:
                side.cipher, side.next_cipher, side.number = side.next_cipher, None, 0
        elif kind == F.APPLICATION_DATA and not self._try_early_data(direction, side, body, out):
            self.stop_reading(self.reason or NO_HANDSHAKE)

    def _try_early_data(self, direction: int, side: Side, body: bytes, out: Output) -> bool:
        """Try the offered suites on 0-RTT data before the ServerHello; returns whether there can be such data."""
        offer, secret = self.hellos[0], self.secrets.get(keylog.CLIENT_EARLY)
        if direction != self.client or offer is None or EARLY_DATA not in offer.extensions:
            return False
        side.early = True
        for number in offer.suites if secret is not None else ():
            suite = SUITES.get(number)
            if secret is None or suite is None or suite.version != TLS13 or len(secret) != SECRET_BYTES[suite.hash]:
                continue
            opener = cipher(suite, keys_13(suite, secret))
            plain = opener.open(0, F.APPLICATION_DATA, TLS12, memoryview(body))
            if plain is not None:
                side.secret, side.cipher, side.number = secret, opener, 1
                self.early_suite = number
                self._contents(direction, side, F.APPLICATION_DATA, plain, out)
                break
        return True

    def _after_hole(self, chunks: Chunks, before: int, out: Output) -> None:
        """One chunk of a direction inside a record with a hole, or with unknown record boundary."""
        direction, begin, size = (int(column[0]) for column in chunks[1:4])
        side, taken = self.sides[direction], 0
        if side.skip:
            taken = min(side.skip, size)
            side.skip -= taken
            if side.skip:
                return
            out.add(self.event, direction, -side.hidden)
        if side.lost >= 0:
            side.pending += chunks.octets[begin : begin + size].data
            taken = size
            found = self.search(side)
            if found is not None:
                missing, kind, plain = found
                out.add(self.event, direction, -missing)
                self._contents(direction, side, kind, plain, out)
        if side.lost < 0:
            self._records(chunks._replace(begin=chunks.begin + taken, size=chunks.size - taken), before, out)
