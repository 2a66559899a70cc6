"""Recovery after a hole: finds the next record boundary and its record number by trial decryption.

`lost` bytes lie between the last known record boundary and a record. Each record has 5 bytes of header and a minimum of
body, which bounds its number; all numbers within the bounds are tried, the likeliest first, until one authenticates. A
budget that grows with the captured bytes (`budget`) pays for all trials, also for those of several candidates of a
stage, so that the cost is linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import ECB

from codec.compiler.limits import EARLY_DATA, LIMITS, TRIAL
from codec.layers.chunks import Content, Output
from codec.layers.tls_ciphers import (
    ALERT,
    APPLICATION_DATA,
    BLOCK,
    CCM,
    CCM_8,
    CHACHA,
    HANDSHAKE,
    HEADER_BYTES,
    RECORD_BYTES,
    SECRET_BYTES,
    SUITES,
    TLS12,
    TLS13,
    Keys,
    Suite,
    cipher,
    keys_13,
    possible_records,
)
from codec.layers.tls_handshake import (
    BEGAN_BEFORE,
    CLIENT_TRAFFIC,
    FAILED,
    NO_HANDSHAKE,
    SERVER_TRAFFIC,
    Handshake,
    Opener,
    Secrets,
    Side,
)

# Trial decryption for TLS 1.3 connections that began before the capture: finds their secrets and the number of the
# first captured record.
#
# The last byte of a record's plaintext is known: its content type (RFC 8446, section 5.2). All ciphers of TLS 1.3 are
# stream ciphers, so one block of keystream for each possible record number gives the byte that masks it; AES encrypts
# all blocks at once. One number in a hundred passes. With these the whole record is decrypted, which authenticates it
# or fails.


GCM_COUNTER = 2  # of the first block of plaintext: the one before is for the tag (NIST SP 800-38D, section 7.1)
CCM_COUNTER = 1  # likewise (RFC 3610, section 2.3)
CCM_FLAGS = 2  # of a counter of three bytes (RFC 3610, section 2.3)
CHACHA_COUNTER = 1  # likewise (RFC 8439, section 2.8)
CHACHA_BLOCK = 64
CHACHA_SHARE = 4  # of ChaCha20 each number is a call of its own: only one in so many is tried
CANDIDATES = 4  # tried of each label of a connection: the numbers that are tried are for all together
HEAD = bytes((APPLICATION_DATA, TLS12 >> 8, TLS12 & 0xFF))


@dataclass(frozen=True, repr=False)
class Match:
    """The connection that a record belongs to; `by_client`: the client sent it; `known`: its secrets as they were
    given; `share`: of all secrets that were tried."""

    secrets: Secrets
    suite: Suite
    by_client: bool
    known: Secrets
    share: float


def match_secrets(data: bytes, known: Sequence[Secrets]) -> Match | None:
    """Which of the `known` secrets open the record that `bytes` begin with; None where none does, or it is cut."""
    size = int.from_bytes(data[3:5], "big")
    body = data[HEADER_BYTES : HEADER_BYTES + size]
    if data[:3] != HEAD or len(body) < size:
        return None
    triples = [
        (each, label, secret)
        for each in known
        for label in (CLIENT_TRAFFIC, SERVER_TRAFFIC)
        for secret in each.get(label, ())[:CANDIDATES]
    ]
    for tried, (secrets, label, secret) in enumerate(triples, 1):
        for suite in SUITES.values():
            if suite.version == TLS13 and SECRET_BYTES[suite.hash] == len(secret):
                count = LIMITS.trial_numbers // len(triples)
                if number_of(suite, secret, APPLICATION_DATA, body, count) is not None:
                    by_client, share = label == CLIENT_TRAFFIC, tried / len(triples)
                    return Match(secrets | {label: (secret,)}, suite, by_client, secrets, share)
    return None


def number_of(suite: Suite, secret: bytes, kind: int, body: bytes, count: int) -> tuple[int, bytes] | None:
    """The number of the record with this body, and its plaintext: below `count`, of ChaCha20 a CHACHA_SHARE of it."""
    keys = keys_13(suite, secret)
    opener = cipher(suite, keys)
    position = len(body) - opener.overhead  # of the content type
    if position < 0:
        return None
    masks = _chacha_masks if suite.cipher == CHACHA else _aes_masks
    types = masks(suite, keys, position, count) ^ body[position]
    for number in np.flatnonzero(np.isin(types, (APPLICATION_DATA, HANDSHAKE, ALERT))).tolist():
        plain = opener.open(number, kind, TLS12, memoryview(body))
        if plain is not None:
            return number, plain
    return None


def _nonces(keys: Keys, count: int) -> np.ndarray:
    """Nonces of the first records: uint8 (count, 12) (RFC 8446, section 5.3)."""
    nonces = np.tile(np.frombuffer(keys.iv, np.uint8), (count, 1))
    nonces[:, 4:] ^= np.arange(count, dtype=">u8").view(np.uint8).reshape(-1, 8)
    return nonces


def _aes_masks(suite: Suite, keys: Keys, position: int, count: int) -> np.ndarray:
    """The byte of keystream at `position` of the plaintext, by number: uint8 (count,)."""
    blocks = np.zeros((count, BLOCK), np.uint8)
    if suite.cipher in (CCM, CCM_8):
        blocks[:, 0], begin, counter = CCM_FLAGS, 1, CCM_COUNTER + position // BLOCK
    else:
        begin, counter = 0, GCM_COUNTER + position // BLOCK
    end = begin + len(keys.iv)
    blocks[:, begin:end] = _nonces(keys, count)
    blocks[:, end:] = np.frombuffer(counter.to_bytes(BLOCK - end, "big"), np.uint8)
    stream = BlockCipher(AES(keys.key), ECB()).encryptor().update(blocks.tobytes())
    return np.frombuffer(stream, np.uint8)[position % BLOCK :: BLOCK]


def _chacha_masks(suite: Suite, keys: Keys, position: int, count: int) -> np.ndarray:
    """See `_aes_masks`; uint8 (count // CHACHA_SHARE,)."""
    counter = (CHACHA_COUNTER + position // CHACHA_BLOCK).to_bytes(4, "little")
    context = BlockCipher(ChaCha20(keys.key, counter + keys.iv), None).encryptor()
    zeros, at = bytes(position % CHACHA_BLOCK + 1), position % CHACHA_BLOCK
    found = bytearray()
    for nonce in _nonces(keys, count // CHACHA_SHARE):
        context.reset_nonce(counter + nonce.tobytes())
        found.append(context.update(zeros)[at])
    return np.frombuffer(found, np.uint8)


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
            found = self._with_number(side, kind, body, side.lost + begin)
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
        data, found = np.frombuffer(side.pending, np.uint8), np.empty((HEADS, 2), np.int64)
        count, many = HEADS, False
        while count == HEADS:
            count, side.searched = possible_records(data, side.searched, found)
            many = many or count == HEADS
            for begin, end in found[:count].tolist():
                if many:
                    side.heads.append((end, begin))
                else:
                    heappush(side.heads, (end, begin))
        if many:
            heapify(side.heads)

    def _with_number(self, side: Side, kind: int, body: bytes, lost: int) -> tuple[int, bytes] | None:
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
