"""The records of a TLS connection, decrypted: stretches of both directions in, stretches of their contents out.

    tls = Tls(client, secrets)               # `client`: the direction that sent the ClientHello
    plain = tls.read(stretches)

Each secret decrypts the records of its direction from number 0 on. Where a record does not authenticate, the secret of
the next stage is tried: handshake messages may be missing. Records of application data are decrypted in bulk
(`codec.layers.tls.bulk`), all others one by one. Behind a hole `codec.layers.tls.search` finds the number of the next
record. All trial is paid from `budget`, which grows with what is captured, so that cost stays linear. What is not
decrypted gives nothing: the ledger counts it as TLS.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from codec.compiler.limits import EARLY_DATA as EARLY_DATA_SIZE
from codec.compiler.limits import LIMITS, TRIAL
from codec.layers.stretches import Output, Stretches
from codec.layers.tls import keylog
from codec.layers.tls.bulk import PLACE, ROOM, decrypt
from codec.layers.tls.ciphers import Aead, cipher
from codec.layers.tls.framing import (
    APPLICATION_DATA,
    CHANGE_CIPHER_SPEC,
    HANDSHAKE,
    HEADER_BYTES,
    NO_RECORD,
    RECORD_BYTES,
    Records,
    clear_end,
    split,
)
from codec.layers.tls.handshake import BEGAN_BEFORE, FAILED, NO_HANDSHAKE, NO_SECRETS, NOT_TLS, Handshake, Side
from codec.layers.tls.hello import EARLY_DATA
from codec.layers.tls.keylog import Secrets
from codec.layers.tls.schedule import keys_13
from codec.layers.tls.search import headers, numbers
from codec.layers.tls.suites import SUITES, TLS12, TLS13
from codec.layers.tls.trial import SECRET_BYTES, Match, number_of

TRIAL_COST = 4  # octets of the budget for each number of a record that may be its own: they are looked at together
SEARCHED_BYTES = 4 * RECORD_BYTES  # that are kept behind a hole, before those are dropped in which no record may begin
BULK = 16  # records that are decrypted at once behind one that is no application data


class Tls(Handshake):
    """One connection."""

    def __init__(self, client: int, secrets: Secrets) -> None:
        super().__init__(client, secrets)
        self.budget = LIMITS.trial_grace
        self._events = self._income = np.zeros(0, np.int64)  # of the stretches given; the latter summed up
        self._counted = 0  # of the income

    @classmethod
    def from_match(cls, direction: int, found: Match) -> Tls:
        """A connection that began before the capture, of which a record of `direction` was decrypted."""
        tls = cls(direction if found.by_client else 1 - direction, found.secrets)
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

    def read(self, given: Stretches) -> Stretches:
        """The next stretches of both directions."""
        sizes, self.died_at, self._counted = np.maximum(given.size, 0), -1, 0
        self._events, self._income = given.event, LIMITS.trial_rate * np.cumsum(sizes)
        room = int(sizes.sum()) + sum(len(side.pending) for side in self.sides)
        out = Output(room + LIMITS.early_bytes + RECORD_BYTES)
        i = 0
        while i < len(sizes) and not self.dead:
            behind_hole = [not side.dead and (side.lost >= 0 or side.skip > 0) for side in self.sides]
            end = int(clear_end(given.direction, given.size, i, np.array(behind_hole)))
            if end > i:
                self._records(given.part(i, end), i, out)
                i = end
                continue
            self._reach(i)
            if given.size[i] < 0:
                self._hole(int(given.direction[i]), -int(given.size[i]), out)
            else:
                self._behind_hole(given.part(i, i + 1), i, out)
            i += 1
        if len(sizes):
            self._reach(len(sizes) - 1)
        return out.stretches()

    def _reach(self, i: int) -> None:
        """Stretch `i` of those given is at hand: it, and those before it, add to the budget."""
        self.event = int(self._events[i])
        self.budget += int(self._income[i]) - self._counted
        self._counted = int(self._income[i])

    # ---- records

    def _records(self, given: Stretches, before: int, out: Output) -> None:
        """Stretches without holes, at the boundary of a record or inside one. `before`: stretches read before these."""
        records = split(given, tuple(None if side.dead else side.pending for side in self.sides))
        rest = [bytearray(records.octets[begin:end].data) for begin, end in records.rest]
        k, step = 0, len(records.size)
        while k < len(records.size):
            stop = min(len(records.size), k + step)
            k, step = k + self._bulk(records, given.event, k, stop, out), 2 * step
            if k == stop:
                continue
            self._reach(before + int(records.stretch[k]))
            direction = int(records.direction[k])
            self._record(direction, records, k, out)
            k, step = k + 1, BULK
            if self.dead:
                break
            if self.sides[direction].dead:
                records, k = records.of(1 - direction, k), 0
        for side, octets in zip(self.sides, rest, strict=True):
            side.pending = bytearray() if side.dead else octets

    def _bulk(self, records: Records, events: np.ndarray, k: int, stop: int, out: Output) -> int:
        """Decrypt records `k` to `stop` as far as they are nothing but application data: how many."""
        ciphers = [side.cipher if isinstance(side.cipher, Aead) and not side.early else None for side in self.sides]
        if ciphers[records.direction[k]] is None:
            return 0
        places = decrypt(records, k, stop, (ciphers[0], ciphers[1]), [side.number for side in self.sides], out)
        part = slice(k, k + len(places))
        directions, sizes = records.direction[part], places[:, ROOM]
        out.add_columns(events[records.stretch[part]], directions, places[:, PLACE], sizes)
        for direction, side in enumerate(self.sides):
            mine = np.flatnonzero(directions == direction)
            side.number += len(mine)
            self.plain_bytes[direction] += int(sizes[mine].sum())
            if len(mine):
                side.typical = HEADER_BYTES + int(records.size[part][mine[-1]])
        return len(places)

    def _record(self, direction: int, records: Records, k: int, out: Output) -> None:
        """One record of any kind."""
        side, at, size = self.sides[direction], int(records.at[k]), int(records.size[k])
        if size == NO_RECORD:
            self.die(NOT_TLS, side)
            return
        side.typical = HEADER_BYTES + size
        view = records.octets.data
        kind, version, body = view[at - 5], (view[at - 4] << 8) | view[at - 3], view[at : at + size]
        if kind == CHANGE_CIPHER_SPEC and self.suite is not None and self.suite.version == TLS13:
            return
        if side.cipher is None and not (kind == APPLICATION_DATA and side.stages):
            self._in_clear(direction, side, kind, bytes(body), out)
        else:
            plain = self._opened(side, kind, version, body)
            if plain is not None:
                self._contents(direction, side, kind, plain, out)
            elif not (side.early or side.sealed):
                # A record at a boundary that was altered ends a connection, so nothing is searched behind it.
                self.die(FAILED if self.known_secrets else NO_SECRETS, side)
        if self.waiting_early and self.early_accepted:
            for part in self.waiting_early:
                self._add(self.client, part, out)
            self.waiting_early = []

    def _add(self, direction: int, plain: bytes, out: Output) -> None:
        self.plain_bytes[direction] += len(plain)
        out.add(self.event, direction, plain)

    def _contents(self, direction: int, side: Side, kind: int, plain: bytes, out: Output) -> None:
        """What a record has that was decrypted."""
        if self.is_tls13(side):
            plain = plain.rstrip(b"\0")
            if not plain:
                return
            kind, plain = plain[-1], plain[:-1]
        if kind == HANDSHAKE:
            self.handshake(direction, plain)
        elif kind == APPLICATION_DATA and side.early and not self.early_accepted:
            if sum(map(len, self.waiting_early)) < LIMITS.early_bytes:
                self.waiting_early.append(plain)
            else:
                self.limits |= EARLY_DATA_SIZE
        elif kind == APPLICATION_DATA:
            self._add(direction, plain, out)

    def _opened(self, side: Side, kind: int, version: int, body: memoryview) -> bytes | None:
        """The plaintext of the next record; the next secrets are tried if the one at hand does not decrypt it."""
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
        if kind == HANDSHAKE:
            self.handshake(direction, body)
        elif kind == CHANGE_CIPHER_SPEC and self.suite is not None:  # before that one of TLS 1.3, which means nothing
            if side.next_cipher is None:
                self.die(self.reason or NO_HANDSHAKE)
            else:
                side.cipher, side.next_cipher, side.number = side.next_cipher, None, 0
        elif kind == APPLICATION_DATA and not self._early_begins(direction, side, body, out):
            self.die(self.reason or NO_HANDSHAKE)

    def _early_begins(self, direction: int, side: Side, body: bytes, out: Output) -> bool:
        """0-RTT data before the ServerHello: its suite is one that the client offers."""
        offer, secret = self.hellos[0], self.known_secrets.get(keylog.CLIENT_EARLY)
        if direction != self.client or offer is None or EARLY_DATA not in offer.extensions:
            return False
        side.early = True
        for number in offer.suites if secret is not None else ():
            suite = SUITES.get(number)
            if secret is None or suite is None or suite.version != TLS13 or len(secret) != SECRET_BYTES[suite.hash]:
                continue
            opener = cipher(suite, keys_13(suite, secret))
            plain = opener.open(0, APPLICATION_DATA, TLS12, memoryview(body))
            if plain is not None:
                side.secret, side.cipher, side.number = secret, opener, 1
                self.early_suite = number
                self._contents(direction, side, APPLICATION_DATA, plain, out)
                break
        return True

    # ---- holes

    def _hole(self, direction: int, size: int, out: Output) -> None:
        """`size` octets of a direction are missing."""
        side = self.sides[direction]
        if side.dead:
            return
        if side.cipher is None and side.next_cipher is None and not side.stages:
            self.die(NO_HANDSHAKE)
            return
        side.broken = True
        side.messages.clear()
        if side.skip:
            over = size - side.skip
            side.skip = max(-over, 0)
            if over > 0:
                side.lost = over
            if not side.skip:
                out.add(self.event, direction, -side.hidden)
            return
        begun, side.pending = side.pending, bytearray()
        if side.lost >= 0:
            side.lost += len(begun) + size
            side.searched, side.candidates = 0, []
            return
        rest = HEADER_BYTES + int.from_bytes(begun[3:5], "big") - len(begun) if len(begun) >= HEADER_BYTES else 0
        if rest < size:
            side.lost = len(begun) + size
            return
        side.skip, side.number = rest - size, side.number + 1
        plain = len(begun) + rest - HEADER_BYTES - (side.cipher.overhead if side.cipher else 0)
        side.hidden = max(0, plain) if begun[0] == APPLICATION_DATA else 0
        if not side.skip:
            out.add(self.event, direction, -side.hidden)

    def _behind_hole(self, given: Stretches, before: int, out: Output) -> None:
        """One stretch of a direction that is inside a record with a hole, or has lost the boundary."""
        direction, begin, size = (int(column[0]) for column in given[1:4])
        side, taken = self.sides[direction], 0
        if side.skip:
            taken = min(side.skip, size)
            side.skip -= taken
            if side.skip:
                return
            out.add(self.event, direction, -side.hidden)
        if side.lost >= 0:
            side.pending += given.octets[begin : begin + size].data
            taken = size
            self._search(direction, side, out)
        if side.lost < 0:
            self._records(given._replace(begin=given.begin + taken, size=given.size - taken), before, out)

    def _search(self, direction: int, side: Side, out: Output) -> None:
        """Find a record in `pending` that authenticates."""
        octets = side.pending
        for begin, end in headers(octets, side.searched):
            heappush(side.candidates, (end, begin))
        side.searched = max(side.searched, len(octets) - HEADER_BYTES + 1)
        while side.candidates and side.candidates[0][0] <= len(octets):
            end, begin = heappop(side.candidates)
            kind, body = octets[begin], bytes(octets[begin + HEADER_BYTES : end])
            found = self._numbered(side, kind, body, side.lost + begin)
            if found is not None:
                missing, plain = found
                out.add(self.event, direction, -missing)
                self._contents(direction, side, kind, plain, out)
                side.lost, side.searched, side.candidates = -1, 0, []
                del octets[:end]
                return
            if self.budget <= 0:
                self.limits |= TRIAL
                self.die(BEGAN_BEFORE if side.unknown else FAILED, side)
                return
        keep = side.searched
        if side.candidates:
            keep = min(begin for _, begin in side.candidates) if len(octets) > SEARCHED_BYTES else 0
        side.lost += keep
        side.searched -= keep
        side.candidates = [(end - keep, begin - keep) for end, begin in side.candidates] if keep else side.candidates
        del octets[:keep]

    def _numbered(self, side: Side, kind: int, body: bytes, lost: int) -> tuple[int, bytes] | None:
        """Plaintext octets that are missing in `lost` octets before this record, and its plaintext, if it
        authenticates."""
        if side.unknown:
            return self._first(side, kind, body)
        stages = ([(side.secret, side.cipher)] if side.cipher is not None else []) + side.stages
        for place, (secret, opener) in enumerate(stages):
            first = side.number if place == 0 and side.cipher is not None else 0
            for count in numbers(lost, opener.overhead, side.typical):
                self.budget -= len(body) + 64
                if self.budget <= 0:
                    return None
                plain = opener.open(first + count, kind, TLS12, memoryview(body))
                if plain is not None:
                    if place or side.cipher is None:
                        del side.stages[: place + (side.cipher is None)]
                        side.use(secret, opener)
                        side.sealed = False
                    side.number = first + count + 1
                    return max(0, lost - count * (HEADER_BYTES + opener.overhead)), plain
        return None

    def _first(self, side: Side, kind: int, body: bytes) -> tuple[int, bytes] | None:
        """The first record of a connection that began before the capture."""
        assert self.suite is not None
        self.budget -= LIMITS.trial_numbers * TRIAL_COST
        found = number_of(self.suite, side.secret, kind, body, LIMITS.trial_numbers) if self.budget > 0 else None
        if found is None:
            return None
        side.number, side.unknown = found[0] + 1, False
        return 0, found[1]
