"""Recovery after a hole: finds the next record boundary and its record number by trial decryption.

`lost` bytes lie between the last known record boundary and a record. Each record has 5 bytes of header and a minimum of
body, which bounds its number; all numbers within the bounds are tried, the likeliest first, until one authenticates. A
budget that grows with the captured bytes (`budget`) pays for all trials, also for those of several candidates of a
stage, so that the cost is linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

import numpy as np

from codec.compiler.limits import EARLY_DATA, LIMITS, TRIAL
from codec.layers.chunks import Content, Output
from codec.layers.tls.framing import APPLICATION_DATA, HEADER_BYTES, RECORD_BYTES, possible_records
from codec.layers.tls.handshake import BEGAN_BEFORE, FAILED, NO_HANDSHAKE, Handshake, Opener, Side
from codec.layers.tls.keylog import Secrets
from codec.layers.tls.suites import TLS12
from codec.layers.tls.trial import number_of

TRIAL_COST = 4  # bytes of the budget for each record number tried in bulk
TRIAL_BYTES = 4096  # of the budget, for a trial beside the bytes of its record: takes as long as decrypting these
SEARCH_BYTES = 4 * RECORD_BYTES  # retained after a hole while no record has been found
HEADS = 1024  # possible records found by one call of the kernel


def numbers(lost: int, least: int, typical: int) -> Iterator[int]:
    """Possible counts of records in `lost` bytes, the likeliest first. `least`: of body bytes; `typical`: record
    size."""
    low = -(-lost // (HEADER_BYTES + RECORD_BYTES))
    high = lost // (HEADER_BYTES + least)
    likely = min(max(round(lost / max(typical, 1)), low), high)
    yield likely
    for step in range(1, LIMITS.trial_records):
        below, above = likely - step, likely + step
        if below < low and above > high:
            return
        if below >= low:
            yield below
        if above <= high:
            yield above


class Recovery(Handshake):
    """One connection; finds its records again after holes."""

    def __init__(self, client: int, secrets: Secrets, more: Callable[[], Secrets] | None = None) -> None:
        super().__init__(client, secrets, more)
        self.budget = LIMITS.trial_grace
        # 0-RTT data and holes in them, until the server accepts them; bytes among them.
        self.waiting_early: list[bytearray | int] = []
        self.waiting_bytes = 0

    def pay(self, size: int) -> bool:
        """Pay for one trial from the budget: false if it is spent."""
        self.budget -= size
        if self.budget <= 0:
            self.limits |= TRIAL
        return self.budget > 0

    def add(self, direction: int, content: Content, out: Output) -> None:
        """Output application data of a direction, or a hole (a negative size). 0-RTT data wait, and are dropped if the
        server refuses them."""
        size = content if isinstance(content, int) else len(content)
        if self.sides[direction].early and not self.early_accepted:
            if self.early_accepted is None and size:
                self.wait(content)
            return
        self.output_bytes[direction] += max(size, 0)
        out.add(self.event, direction, content)

    def wait(self, content: Content) -> None:
        """Retain 0-RTT data, or a hole in them, until it is known whether the server accepts them."""
        size = content if isinstance(content, int) else len(content)
        if not isinstance(content, int) and self.waiting_bytes + size > LIMITS.early_bytes:
            self.limits |= EARLY_DATA
            content = -size
        last = self.waiting_early[-1] if self.waiting_early else None
        if isinstance(content, int):
            if isinstance(last, int):
                self.waiting_early[-1] = last + content
            else:
                self.waiting_early.append(content)
            return
        self.waiting_bytes += size
        if isinstance(last, bytearray):
            last += content
        else:
            self.waiting_early.append(bytearray(content))

    def release_early(self, out: Output) -> None:
        """Output the 0-RTT data that wait, if the server has accepted them; drop them, if it has refused them."""
        if self.early_accepted is None or not self.waiting_early:
            return
        waiting, self.waiting_early, self.waiting_bytes = self.waiting_early, [], 0
        for part in waiting if self.early_accepted else ():
            self.output_bytes[self.client] += 0 if isinstance(part, int) else len(part)
            out.add(self.event, self.client, part)

    def hole(self, direction: int, size: int, out: Output) -> None:
        """`size` bytes of a direction are missing."""
        side = self.sides[direction]
        side.owed += size
        if side.stopped:
            return
        if not (side.encrypted or side.stages):
            self.stop_reading(NO_HANDSHAKE)
            return
        side.broken = True
        side.messages.clear()
        if side.skip:
            over = size - side.skip
            side.skip = max(-over, 0)
            if over > 0:
                side.lost = over
            if not side.skip:
                self.add(direction, -side.hidden, out)
                side.owed = max(over, 0)
            return
        partial, side.pending = side.pending, bytearray()
        if side.lost >= 0:
            side.lost += len(partial) + size
            side.searched, side.heads = 0, []
            return
        rest = HEADER_BYTES + int.from_bytes(partial[3:5], "big") - len(partial) if len(partial) >= HEADER_BYTES else 0
        if rest < size:
            side.lost = len(partial) + size
            return
        side.skip, side.number = rest - size, side.number + 1
        plain = len(partial) + rest - HEADER_BYTES - _overhead(side)
        side.hidden = max(0, plain) if partial[0] == APPLICATION_DATA else 0
        if not side.skip:
            self.add(direction, -side.hidden, out)
            side.owed = 0

    def owed(self, direction: int) -> int:
        side = self.sides[direction]
        return side.owed if side.stopped or side.lost >= 0 or side.skip else 0

    def search(self, side: Side) -> tuple[int, int, bytes] | None:
        """Find a record in `pending` that authenticates: plaintext bytes missing before it, its kind, its
        plaintext."""
        pending = side.pending
        self._find_heads(side)
        while side.heads and side.heads[0][0] <= len(pending):
            end, begin = heappop(side.heads)
            kind, body = pending[begin], bytes(pending[begin + HEADER_BYTES : end])
            found = self._numbered(side, kind, body, side.lost + begin)
            if found is not None:
                side.lost, side.searched, side.heads = -1, 0, []
                del pending[:end]
                return found[0], kind, found[1]
            if self.budget <= 0:
                self.limits |= TRIAL
                self.stop_reading(BEGAN_BEFORE if side.unknown else FAILED, side)
                return None
        # All records that are possible end after these bytes, so that they begin in the last RECORD_BYTES.
        dropped = side.searched
        if side.heads:
            dropped = min(begin for _, begin in side.heads) if len(pending) > SEARCH_BYTES else 0
        if dropped:
            side.lost += dropped
            side.searched -= dropped
            side.heads = [(end - dropped, begin - dropped) for end, begin in side.heads]
            del pending[:dropped]
        return None

    def _find_heads(self, side: Side) -> None:
        """Add possible records in the bytes of `pending` that were not searched yet."""
        octets, found = np.frombuffer(side.pending, np.uint8), np.empty((HEADS, 2), np.int64)
        count, many = HEADS, False
        while count == HEADS:
            count, side.searched = possible_records(octets, side.searched, found)
            many = many or count == HEADS
            for begin, end in found[:count].tolist():
                if many:
                    side.heads.append((end, begin))
                else:
                    heappush(side.heads, (end, begin))
        if many:
            heapify(side.heads)

    def _numbered(self, side: Side, kind: int, body: bytes, lost: int) -> tuple[int, bytes] | None:
        """Plaintext bytes missing in the `lost` bytes before this record, and its plaintext; None if no number
        authenticates."""
        if side.unknown:
            return self._first(side, kind, body)
        current = [Opener(b"", side.secret, side.cipher)] if side.cipher is not None else side.trying
        for later, stage in enumerate([current, *side.stages]):
            first = 0 if later else side.number
            for opener in stage:
                for count in numbers(lost, opener.cipher.overhead, side.typical):
                    if not self.pay(len(body) + TRIAL_BYTES):
                        return None
                    plain = opener.cipher.open(first + count, kind, TLS12, memoryview(body))
                    if plain is not None:
                        if later or side.cipher is None:
                            self.authenticated(side, opener, later, 0)
                        side.number = first + count + 1
                        return max(0, lost - count * (HEADER_BYTES + opener.cipher.overhead)), plain
        return None

    def _first(self, side: Side, kind: int, body: bytes) -> tuple[int, bytes] | None:
        """The first record of a connection that began before the capture; the numbers are shared by the candidates."""
        assert self.suite is not None
        if not self.pay(LIMITS.trial_numbers * TRIAL_COST):
            return None
        for opener in side.trying:
            found = number_of(self.suite, opener.secret, kind, body, LIMITS.trial_numbers // len(side.trying))
            if found is not None:
                self.authenticated(side, opener, 0, found[0] + 1)
                side.unknown = False
                return 0, found[1]
        return None


def _overhead(side: Side) -> int:
    """Bytes of a record's body that are not plaintext, if that is known."""
    if side.cipher is not None:
        return side.cipher.overhead
    return side.trying[0].cipher.overhead if side.trying else 0
