"""Decryption Secrets Blocks of pcapng (draft-ietf-opsawg-pcapng, section 4.7), anywhere in a file.

A kernel skips all other blocks; it reads only their heads. Cost: constant per block.
"""

from __future__ import annotations

import numpy as np

from codec.capture.pcapng import BLOCK_BYTES, BYTE_ORDER_MAGIC, SECTION
from codec.capture.records import read32, writable
from codec.compiler.kernel import njit
from codec.compiler.limits import LIMITS

SECRETS_BLOCK = 0x0000000A
TLS_KEY_LOG = 0x544C534B
HEAD_BYTES = 20  # type, length, secrets type, secrets length; of a section also its magic


@njit
def _next_block(block, at, big):
    """The next section or secrets block from the block at `at` on: (offset, length). Length 0: it is beyond the end, or
    incomplete; -1: no block begins there."""
    while at + HEAD_BYTES <= len(block):
        kind = read32(block, at, big)
        if kind == SECTION:
            return at, HEAD_BYTES
        length = read32(block, at + 4, big)
        if length < BLOCK_BYTES or length % 4:
            return at, -1
        if kind == SECRETS_BLOCK:
            return at, length
        at += length
    return at, 0


class SecretsWalker:
    """Reads one file; `octets` of a call begin after the bytes that the last call consumed."""

    def __init__(self) -> None:
        self.damaged = False
        self._big = False
        self._ahead = 0  # bytes to skip before the next block

    def walk(self, octets: np.ndarray) -> tuple[list[bytes], int]:
        """Key logs in complete blocks of `octets` (uint8), and the number of bytes consumed."""
        octets = writable(octets)
        found: list[bytes] = []
        at, end = self._ahead, len(octets)
        while not self.damaged:
            at, length = _next_block(octets, at, self._big)
            if length <= 0:
                self.damaged = length < 0
                break
            head = octets[at : at + HEAD_BYTES].tobytes()
            if head[:4] == SECTION.to_bytes(4, "big"):
                self._big = head[8:12] == BYTE_ORDER_MAGIC.to_bytes(4, "big")
                length = int.from_bytes(head[4:8], "big" if self._big else "little")
                self.damaged = length < BLOCK_BYTES
            elif length > LIMITS.secrets_bytes:
                pass
            elif at + length > end:
                break
            else:
                order = "big" if self._big else "little"
                kind, size = (int.from_bytes(head[i : i + 4], order) for i in (8, 12))  # type: ignore[arg-type]
                if kind == TLS_KEY_LOG:
                    found.append(octets[at + 16 : at + min(16 + size, length - 4)].tobytes())
            at += length
        self._ahead = max(0, at - end)
        return found, min(at, end)
