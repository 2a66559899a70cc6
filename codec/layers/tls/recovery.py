"""Recovery after a hole: finds the next record boundary and its record number by trial decryption.

`lost` octets lie between the last known record boundary and a record. Each record has 5 octets of header and a minimum
of body, which bounds its number; all numbers within the bounds are tried, the likeliest first, until one authenticates.
A budget that grows with the captured octets (`budget`) pays for all trials, so that the cost is linear.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from codec.compiler.limits import LIMITS, TRIAL
from codec.layers.chunks import Output
from codec.layers.tls.framing import ALERT, APPLICATION_DATA, HEADER_BYTES, RECORD_BYTES
from codec.layers.tls.handshake import BEGAN_BEFORE, FAILED, NO_HANDSHAKE, Handshake, Side
from codec.layers.tls.keylog import Secrets
from codec.layers.tls.suites import TLS12
from codec.layers.tls.trial import number_of

TRIAL_COST = 4  # octets of the budget per record number tried in bulk
SEARCH_BYTES = 4 * RECORD_BYTES  # retained after a hole while no record has been found
VERSION = b"\x03\x03"  # in the header of an encrypted record


def headers(octets: bytes | bytearray, first: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of possible records, by their headers, from `first` on."""
    begin = octets.find(VERSION, first + 1) - 1
    while begin >= first and begin + HEADER_BYTES <= len(octets):
        size = (octets[begin + 3] << 8) | octets[begin + 4]
        if ALERT <= octets[begin] <= APPLICATION_DATA and size <= RECORD_BYTES:
            yield begin, begin + HEADER_BYTES + size
        begin = octets.find(VERSION, begin + 2) - 1


def numbers(lost: int, least: int, typical: int) -> Iterator[int]:
    """Possible numbers of records in `lost` octets, the likeliest first. `least`: of body octets; `typical`: record
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

    def __init__(self, client: int, secrets: Secrets) -> None:
        super().__init__(client, secrets)
        self.budget = LIMITS.trial_grace

    def hole(self, direction: int, size: int, out: Output) -> None:
        """`size` octets of a direction are missing."""
        side = self.sides[direction]
        if side.stopped:
            return
        if side.cipher is None and side.next_cipher is None and not side.stages:
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
                out.add(self.event, direction, -side.hidden)
            return
        partial, side.pending = side.pending, bytearray()
        if side.lost >= 0:
            side.lost += len(partial) + size
            side.searched, side.candidates = 0, []
            return
        rest = HEADER_BYTES + int.from_bytes(partial[3:5], "big") - len(partial) if len(partial) >= HEADER_BYTES else 0
        if rest < size:
            side.lost = len(partial) + size
            return
        side.skip, side.number = rest - size, side.number + 1
        plain = len(partial) + rest - HEADER_BYTES - (side.cipher.overhead if side.cipher else 0)
        side.hidden = max(0, plain) if partial[0] == APPLICATION_DATA else 0
        if not side.skip:
            out.add(self.event, direction, -side.hidden)

    def search(self, side: Side) -> tuple[int, int, bytes] | None:
        """Find a record in `pending` that authenticates: plaintext octets missing before it, its kind, its
        plaintext."""
        octets = side.pending
        for begin, end in headers(octets, side.searched):
            heappush(side.candidates, (end, begin))
        side.searched = max(side.searched, len(octets) - HEADER_BYTES + 1)
        while side.candidates and side.candidates[0][0] <= len(octets):
            end, begin = heappop(side.candidates)
            kind, body = octets[begin], bytes(octets[begin + HEADER_BYTES : end])
            found = self._numbered(side, kind, body, side.lost + begin)
            if found is not None:
                side.lost, side.searched, side.candidates = -1, 0, []
                del octets[:end]
                return found[0], kind, found[1]
            if self.budget <= 0:
                self.limits |= TRIAL
                self.stop_reading(BEGAN_BEFORE if side.unknown else FAILED, side)
                return None
        dropped = side.searched
        if side.candidates:
            dropped = min(begin for _, begin in side.candidates) if len(octets) > SEARCH_BYTES else 0
        side.lost += dropped
        side.searched -= dropped
        side.candidates = [(end - dropped, begin - dropped) for end, begin in side.candidates]
        del octets[:dropped]
        return None

    def _numbered(self, side: Side, kind: int, body: bytes, lost: int) -> tuple[int, bytes] | None:
        """Plaintext octets missing in the `lost` octets before this record, and its plaintext; None if no number
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
