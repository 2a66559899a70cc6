"""The records of a TLS connection, decrypted: chunks of both directions in, chunks of their contents out.

    tls = Tls(client, secrets)               # `client`: the direction that sent the ClientHello
    plain = tls.read(chunks)

Each secret decrypts the records of its direction from number 0 on. If a record does not authenticate, the candidates of
the next stage are tried, because handshake messages may be missing. `codec.layers.tls_ciphers` decrypts records in
bulk, and kernels pass over records that say nothing; the others are read one by one: hellos, the first record of a
stage, those after a change of keys. `codec.layers.tls_recovery` finds the next record after a hole. Records that are
not decrypted have no output; the byte ledger counts them as TLS.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from codec.compiler.limits import LIMITS
from codec.layers import tls_ciphers as F
from codec.layers import tls_handshake as keylog
from codec.layers.chunks import Chunks, Output
from codec.layers.tls_ciphers import (
    KIND,
    ROOM,
    SECRET_BYTES,
    SUITES,
    TARGET,
    TLS12,
    TLS13,
    Aead,
    cipher,
    decrypt,
    keys_13,
)
from codec.layers.tls_handshake import (
    CERTIFICATE,
    CLIENT_HELLO,
    EARLY_DATA,
    FAILED,
    HELLOS,
    MESSAGE_HEAD,
    NO_HANDSHAKE,
    NO_SECRETS,
    NOT_TLS,
    READ_MESSAGES,
    SERVER_HELLO,
    Opener,
    Secrets,
    Side,
)
from codec.layers.tls_recovery import TRIAL_BYTES, Match, Recovery

BULK = 16  # records to decrypt in bulk after one that was not
SINGLE = 4  # records to decrypt one by one after a change of keys
REFUSED = 64  # records that no candidate opens while those of the handshake may be sealed; a handshake has some ten
IN_CLEAR = np.ones(256, np.bool_)  # types of handshake messages that are not read in clear
IN_CLEAR[list({CLIENT_HELLO, SERVER_HELLO, CERTIFICATE} & READ_MESSAGES)] = False
NONE_UNREAD = np.zeros(256, np.bool_)


class Tls(Recovery):
    """The TLS of one connection."""

    def __init__(self, client: int, secrets: Secrets, more: Callable[[], Secrets] | None = None) -> None:
        super().__init__(client, secrets, more)
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
            side.trying = tls.openers(0, label, found.secrets.get(label, ()))
            side.stopped = not side.trying
        return tls

    def read(self, chunks: Chunks) -> Chunks:
        sizes, self.stopped_at, self._counted = np.maximum(chunks.size, 0), -1, 0
        self._events, self._income = chunks.event, LIMITS.trial_rate * np.cumsum(sizes)
        room = int(sizes.sum()) + sum(len(side.pending) for side in self.sides)
        out = Output(room + self.waiting_bytes + min(room, LIMITS.early_bytes))
        i, has_holes = 0, bool(len(sizes)) and int(chunks.size.min()) < 0
        while i < len(sizes) and not self.stopped:
            after_hole = [not side.stopped and (side.lost >= 0 or side.skip > 0) for side in self.sides]
            end = len(sizes)
            if has_holes or any(after_hole):
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
        if i < len(sizes):  # those after both have stopped
            for direction, side in enumerate(self.sides):
                side.owed -= int(chunks.size[i:][chunks.direction[i:] == direction].clip(max=0).sum())
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
        rest = [bytearray(records.data[begin:end].data) for begin, end in records.rest]
        k, single, step, is_filtered = 0, 0, len(records.size), False
        active = [not side.stopped for side in self.sides]
        while not self.stopped:
            if not is_filtered and self.suite is not None and self.suite.version == TLS13:
                records, k, is_filtered = records.without_change_cipher_spec(k), 0, True
            for direction, side in enumerate(self.sides):
                if active[direction] and side.stopped:
                    records, k, active[direction] = records.of(1 - direction, k), 0, False
            k = self._ignored(records, k)
            if k == len(records.size):
                break
            if not single:
                stop = min(len(records.size), k + step)
                count = self._bulk(records, chunks.event, before, k, stop, out)
                k, step, single = k + count, 2 * step if k + count == stop else BULK, int(0 < count < stop - k)
                if count:
                    continue
            self._advance(before + int(records.chunk[k]))
            side, cipher_before = self.sides[records.direction[k]], self.sides[records.direction[k]].cipher
            k += self._record(side, records, k, before, out)
            single = SINGLE if side.cipher is not cipher_before else max(0, single - 1)
        for side, data in zip(self.sides, rest, strict=True):
            side.pending = bytearray() if side.stopped else data

    def _ignored(self, records: F.Records, k: int) -> int:
        """The first record from `k` on that has to be read: not one in clear that has no meaning."""
        if k == len(records.size) or records.size[k] == F.NO_RECORD:
            return k
        direction, at = int(records.direction[k]), int(records.at[k])
        if self.sides[direction].encrypted or self._is_awaited_hello(records, direction, at, int(records.size[k])):
            return k
        ignored, unread = np.zeros((2, 4), np.bool_), np.zeros((2, 256), np.bool_)
        for direction, side in enumerate(self.sides):
            if side.encrypted or side.stopped:
                continue
            ignored[direction] = (
                self.suite is None,
                True,
                side.broken and not side.messages,
                side.early and not side.stages,
            )
            if not side.messages:
                unread[direction] = IN_CLEAR
                read = self.suite is None and side.hellos < HELLOS
                unread[direction, CLIENT_HELLO] = not read or direction != self.client
                unread[direction, SERVER_HELLO] = not read or direction == self.client
                unread[direction, CERTIFICATE] = bool(side.certificate)
        return int(F.ignored_end(records.data, records.direction, records.at, records.size, k, ignored, unread))

    def _is_awaited_hello(self, records: F.Records, direction: int, at: int, size: int) -> bool:
        """Whether a record in clear begins with a hello that is read."""
        side = self.sides[direction]
        if self.suite is not None or side.messages or side.hellos >= HELLOS or not size:
            return False
        hello = CLIENT_HELLO if direction == self.client else SERVER_HELLO
        return bool(records.data[at - F.HEADER_BYTES] == F.HANDSHAKE and records.data[at] == hello)

    def _bulk(self, records: F.Records, events: np.ndarray, before: int, k: int, stop: int, out: Output) -> int:
        """Decrypt records `k` to `stop`, up to the first that cannot be decrypted in bulk, or that changes what
        follows; returns their count."""
        current = [side.cipher for side in self.sides]
        own = current[records.direction[k]]
        if not isinstance(own, Aead):
            return 0
        able = [each if isinstance(each, Aead) and each.layout == own.layout else None for each in current]
        layout = decrypt(records, k, stop, (able[0], able[1]), [side.number for side in self.sides], out)
        is_early, accepted = self.sides[self.client].early, self.early_accepted
        for i in np.flatnonzero(layout[:, KIND] == F.HANDSHAKE).tolist():
            self._advance(before + int(records.chunk[k + i]))
            begin, size = int(layout[i, TARGET]), int(layout[i, ROOM])
            self.handshake(int(records.direction[k + i]), out.data[begin : begin + size].tobytes())
            is_other_cipher = any(
                side.cipher is not each or side.stopped for side, each in zip(self.sides, current, strict=True)
            )
            if is_other_cipher or self.early_accepted is not accepted:
                layout = layout[: i + 1]
                break
        part = slice(k, k + len(layout))
        directions = records.direction[part]
        is_data = (layout[:, KIND] == F.APPLICATION_DATA) & (layout[:, ROOM] > 0)
        if is_early and not accepted:
            waiting = is_data & (directions == self.client)
            if accepted is None:
                for begin, size in layout[waiting][:, [TARGET, ROOM]].tolist():
                    self.wait(out.view[begin : begin + size])
            is_data &= ~waiting
        for direction, side in enumerate(self.sides):
            mine = np.flatnonzero(directions == direction)
            if len(mine):
                side.typical = F.HEADER_BYTES + int(records.size[part][mine[-1]])
            if side.cipher is current[direction]:
                side.number += len(mine)
            self.output_bytes[direction] += int(layout[mine, ROOM][is_data[mine]].sum())
        out.add_columns(
            events[records.chunk[part]][is_data], directions[is_data], *layout[is_data][:, [TARGET, ROOM]].T
        )
        out.used = int(layout[-1, TARGET] + layout[-1, ROOM]) if len(layout) else out.used
        self.release_early(out)
        return len(layout)

    def _record(self, side: Side, records: F.Records, k: int, before: int, out: Output) -> int:
        """Record `k`, of any kind; returns how many were read: several that are parts of one message in clear."""
        direction, at, size = int(records.direction[k]), int(records.at[k]), int(records.size[k])
        if size == F.NO_RECORD:
            self.stop_reading(NOT_TLS, side)
            return 1
        side.typical, count = F.HEADER_BYTES + size, 1
        view = records.data.data
        kind, version, body = view[at - 5], (view[at - 4] << 8) | view[at - 3], view[at : at + size]
        if side.encrypted or (kind == F.APPLICATION_DATA and side.stages):
            plain = self._decrypt(side, kind, version, body)
            if plain is not None:
                self._contents(direction, side, kind, plain, out)
            else:
                self._refuse(side)
        elif kind == F.HANDSHAKE:
            count, data = _of_one_message(side.messages, records, k)
            self._advance(before + int(records.chunk[k + count - 1]))
            self.handshake(direction, data)
        elif kind == F.CHANGE_CIPHER_SPEC and self.suite is not None:  # of TLS 1.2
            if side.stages:
                side.enter()
            else:
                self.stop_reading(self.reason or NO_HANDSHAKE)
        elif kind == F.APPLICATION_DATA and not self._try_early_data(direction, side, body, out):
            self.stop_reading(self.reason or NO_HANDSHAKE)
        self.release_early(out)
        return count

    def _contents(self, direction: int, side: Side, kind: int, plain: bytes, out: Output) -> None:
        """The plaintext of a record."""
        if self.is_tls13(side):
            plain = plain.rstrip(b"\0")
            if not plain:
                return
            kind, plain = plain[-1], plain[:-1]
        if kind == F.HANDSHAKE:
            self.handshake(direction, plain)
        elif kind == F.APPLICATION_DATA:
            self.add(direction, plain, out)

    def _decrypt(self, side: Side, kind: int, version: int, body: memoryview) -> bytes | None:
        """The plaintext of the next record, by the current secret or a candidate of this stage or a later one."""
        if side.cipher is not None:
            plain = side.cipher.open(side.number, kind, version, body)
            if plain is not None:
                side.number += 1
                return plain
        plain = self._tried(side, kind, version, body)
        return self._tried(side, kind, version, body) if plain is None and self.widen() else plain

    def _tried(self, side: Side, kind: int, version: int, body: memoryview) -> bytes | None:
        """The plaintext of the next record, by the first candidate that opens it."""
        for later, stage in enumerate((side.trying, *side.stages)):
            number = 0 if later else side.number
            for opener in stage:
                if not self.pay(len(body) + TRIAL_BYTES):
                    return None
                plain = opener.cipher.open(number, kind, version, body)
                if plain is not None:
                    self.authenticated(side, opener, later, number + 1)
                    return plain
        return None

    def _refuse(self, side: Side) -> None:
        """No candidate opened a record. It may be of 0-RTT data that are refused, or of a handshake whose secret is not
        known; else an altered record at a boundary ends the connection: no search after it."""
        side.refused += 1
        if self.suite is not None and self.suite.version == TLS13 and side.trying and side.stages:
            side.trying, side.sealed = [], True
        if self.budget <= 0 or not (side.early or (side.sealed and side.refused < REFUSED)):
            self.stop_reading(FAILED if self.secrets else NO_SECRETS, side)

    def _try_early_data(self, direction: int, side: Side, body: memoryview, out: Output) -> bool:
        """Try the offered suites on the first record of 0-RTT data; returns whether there can be such data. Those that
        follow are passed over if none opens it."""
        offer = self.hellos[0]
        if direction != self.client or offer is None or EARLY_DATA not in offer.extensions:
            return False
        side.early = True
        if not self._opens_early_data(side, offer.suites, body, out) and self.widen():
            self._opens_early_data(side, offer.suites, body, out)
        return True

    def _opens_early_data(self, side: Side, offered: tuple[int, ...], body: memoryview, out: Output) -> bool:
        for secret in self.secrets.get(keylog.CLIENT_EARLY, ()):
            for code in offered:
                suite = SUITES[code]
                if len(secret) != SECRET_BYTES[suite.hash] or not self.pay(len(body) + TRIAL_BYTES):
                    continue
                opener = Opener(keylog.CLIENT_EARLY, secret, cipher(suite, keys_13(suite, secret)))
                plain = opener.cipher.open(0, F.APPLICATION_DATA, TLS12, body)
                if plain is not None:
                    self.authenticated(side, opener, 0, 1)
                    self.early_suite = code
                    self._contents(self.client, side, F.APPLICATION_DATA, plain, out)
                    return True
        return False

    def _after_hole(self, chunks: Chunks, before: int, out: Output) -> None:
        """One chunk of a direction inside a record with a hole, or with unknown record boundary."""
        direction, begin, size = (int(column[0]) for column in chunks[1:4])
        side, used = self.sides[direction], 0
        if side.skip:
            used = min(side.skip, size)
            side.skip -= used
            if side.skip:
                return
            self.add(direction, -side.hidden, out)
            side.owed = 0
        if side.lost >= 0:
            side.pending += chunks.data[begin : begin + size].data
            used = size
            found = self.search(side)
            if found is not None:
                missing, kind, plain = found
                self.add(direction, -missing, out)
                side.owed = 0
                self._contents(direction, side, kind, plain, out)
                self.release_early(out)
        if side.lost < 0:
            self._records(chunks._replace(begin=chunks.begin + used, size=chunks.size - used), before, out)


def _of_one_message(pending: bytearray, records: F.Records, k: int) -> tuple[int, bytes]:
    """(count, contents) of records from `k` on that are parts of one handshake message: one, or those of its direction
    that do not reach beyond the message. `pending`: its bytes before."""
    missing = MESSAGE_HEAD - len(pending)
    if missing <= 0:
        missing = MESSAGE_HEAD + int.from_bytes(pending[1:MESSAGE_HEAD], "big") - len(pending)
    at, size = int(records.at[k]), int(records.size[k])
    if size >= missing:
        return 1, records.data[at : at + size].tobytes()
    data = np.empty(missing, np.uint8)
    end, used = F.gather(records.data, records.direction, records.at, records.size, k, data)
    return int(end) - k, data[:used].tobytes()
