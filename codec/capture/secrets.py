"""Decryption Secrets Blocks of pcapng (draft-ietf-opsawg-pcapng, section 4.7), anywhere in a file.

A kernel finds them and skips all other blocks, of which it reads only the heads. Cost: constant per block.
"""

from __future__ import annotations

import numpy as np

from codec.capture.pcapng import BLOCK_BYTES, BYTE_ORDER_MAGIC, SECTION
from codec.capture.records import read32, writable
from codec.compiler.kernel import njit
from codec.compiler.limits import LIMITS

SECRETS_BLOCK = 0x0000000A
TLS_KEY_LOG = 0x544C534B
SECRETS_BYTES = LIMITS.secrets_bytes
AT_ONCE = 256  # blocks that one call of the kernel finds
HEAD_BYTES = 20  # type, length, secrets type, secrets length; of a section also its magic


@njit
def _key_logs(octets, at, big, found):
    """Write (begin, end) of key logs in complete blocks from the block at `at` on to `found` int64 (n, 2): (how many,
    where the next block begins, whether its section is big-endian, whether no block begins there)."""
    count = 0
    while count < len(found) and at + HEAD_BYTES <= len(octets):
        kind = read32(octets, at, big)
        if kind == SECTION:
            big = read32(octets, at + 8, True) == BYTE_ORDER_MAGIC
        length = read32(octets, at + 4, big)
        if length < BLOCK_BYTES or (kind != SECTION and length % 4):
            return count, at, big, True
        if kind == SECRETS_BLOCK and length <= SECRETS_BYTES:
            if at + length > len(octets):
                break
            if read32(octets, at + 8, big) == TLS_KEY_LOG:
                found[count, 0] = at + 16
                found[count, 1] = at + min(16 + read32(octets, at + 12, big), length - 4)
                count += 1
        at += length
    return count, at, big, False


class SecretsWalker:
    """Reads one file; `octets` of a call begin after the bytes that the last call consumed."""

    def __init__(self) -> None:
        self.damaged = False
        self._big = False
        self._ahead = 0  # bytes to skip before the next block

    def walk(self, octets: np.ndarray) -> tuple[list[bytes], int]:
        """Key logs in complete blocks of `octets` (uint8), and the number of bytes consumed."""
        octets = writable(octets)
        logs: list[bytes] = []
        at, end, found, count = self._ahead, len(octets), np.empty((AT_ONCE, 2), np.int64), AT_ONCE
        while count == AT_ONCE and not self.damaged:
            count, at, self._big, self.damaged = _key_logs(octets, at, self._big, found)
            logs += [octets[first:last].tobytes() for first, last in found[:count].tolist() if first < last]
        self._ahead = max(0, at - end)
        return logs, min(at, end)
