"""Numbers and counted vectors of handshake messages."""

from __future__ import annotations


class Reader:
    """Reads big-endian numbers and counted vectors; past the end it gives zeros and empty vectors."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        """The next octets."""
        part = self.data[self.at : self.at + size]
        self.at += size
        return part

    def number(self, width: int) -> int:
        """The next number of `width` octets."""
        return int.from_bytes(self.take(width), "big")

    def vector(self, width: int) -> bytes:
        """The next vector, its length in `width` octets."""
        return self.take(self.number(width))

    def more(self) -> bool:
        """Whether anything is left."""
        return self.at < len(self.data)
