"""What layers hand to each other."""

from __future__ import annotations

from typing import Protocol

# (end, direction, content): plain octets, or as a negative number how many are missing; readable as soon as the first
# `end` of the octets that the layer was given are there.
Piece = tuple[int, int, bytes | int]


class Layer(Protocol):
    """Bytes and holes of both directions in, bytes and holes out. `plain_bytes`: given so far, by direction; `reason`:
    why it does not read on; `limits`: bits of those reached (codec.compiler.limits); `dead`: neither direction is read
    on."""

    plain_bytes: list[int]
    reason: str | None
    limits: int

    @property
    def dead(self) -> bool: ...

    def take(self, way: int, octets: bytes) -> list[Piece]: ...

    def hole(self, way: int, size: int) -> list[Piece]: ...
