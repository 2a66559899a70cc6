"""AMQP over WebSocket: the upgrade of HTTP/1.1 and the frames behind it (RFC 6455; OASIS AMQP WebSocket Binding 1.0).

Bytes and holes of both directions in, those of the messages out, as `codec.layers.tls.records` does it. AMQP of any
version may lie in the messages: boundaries of these mean nothing to it. A compressed message (permessage-deflate), and
an upgrade that the server refuses, are named and not read.

A hole inside a frame is one of the same size; where the boundary is lost, frames are searched: three in a row whose
heads are those of a peer (masked from the client, not masked from the server) are taken for frames.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from codec.compiler.limits import LIMITS
from codec.layers.piece import Piece
from codec.text import escaped

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
OPCODES = (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG)
HEADER = re.compile(rb"^([!-9;-~]+):[ \t]*([^\r\n]*?)[ \t]*\r?$", re.MULTILINE)
REFUSED, COMPRESSED, NO_FRAME, NO_UPGRADE = (
    "upgrade refused",
    "permessage-deflate",
    "no frame of WebSocket",
    "upgrade not captured",
)
CHAIN = 3  # frames in a row that are believed


def is_upgrade(octets: bytes) -> bool:
    """Whether a stream begins with a request for WebSocket, as far as the octets at hand tell."""
    if octets[:4] != b"GET ":
        return False
    whole = b"\r\n\r\n" in octets
    return b"websocket" in headers_of(octets).get(b"upgrade", b"").lower() or (not whole and b" HTTP/1.1\r\n" in octets)


def headers_of(octets: bytes) -> dict[bytes, bytes]:
    """Headers of an HTTP message by their names in lower case; several of a name are joined."""
    found: dict[bytes, bytes] = {}
    for name, value in HEADER.findall(octets):
        key = name.lower()
        found[key] = found[key] + b"," + value if key in found else value
    return found


@dataclass
class Side:
    """One direction. `left`: octets of the frame at hand still to come; `lost`: the boundary is."""

    pending: bytearray = field(default_factory=bytearray)
    upgraded: bool = False
    left: int = 0
    data: bool = False  # the frame at hand carries a message
    mask: bytes = b""
    turn: int = 0  # which octet of the mask is next
    compressed: bool = False
    lost: bool = False
    dead: bool = False


class WebSocket:
    """One connection, from the upgrade on."""

    def __init__(self, client: int) -> None:
        self.client = client
        self.sides = (Side(), Side())
        self.reason: str | None = None
        self.subprotocol: str | None = None
        self.accepted = False
        self.plain_bytes = [0, 0]
        self.limits = 0

    def take(self, way: int, octets: bytes) -> list[Piece]:
        """The next octets of direction `way`."""
        side = self.sides[way]
        if side.dead:
            return []
        found: list[Piece] = []
        before = len(side.pending)
        buffer = bytes(side.pending) + octets if before else octets
        at = 0
        if not side.upgraded:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(buffer) > LIMITS.upgrade_bytes:
                    self._die(NO_UPGRADE)
                side.pending = bytearray(buffer)
                return []
            at = end + 4
            self._upgrade(way, side, buffer[:at])
        if side.lost:
            at = self._search(way, side, buffer, at)
        if not side.lost and not side.dead:
            at = self._frames(way, side, buffer, at, before, found)
        side.pending = bytearray() if side.dead else bytearray(buffer[at:])
        return found

    def hole(self, way: int, size: int) -> list[Piece]:
        """`size` octets of direction `way` are missing."""
        side = self.sides[way]
        if side.dead:
            return []
        if not side.upgraded:
            self._die(NO_UPGRADE)
            return []
        held = len(side.pending)
        side.pending.clear()
        inside = min(size, side.left)
        side.left -= inside
        side.turn += inside
        side.lost = side.lost or held > 0 or size > inside
        missing = size if side.lost else inside
        return [(0, way, -missing)] if missing and (side.data or side.lost) else []

    def _upgrade(self, way: int, side: Side, octets: bytes) -> None:
        named = headers_of(octets)
        side.upgraded = True
        if way != self.client:
            self.accepted = re.match(rb"HTTP/1\.1 101\b", octets) is not None
            if not self.accepted:
                self._die(REFUSED)
            protocol = named.get(b"sec-websocket-protocol")
            self.subprotocol = escaped(protocol) if protocol else None
            if b"permessage-deflate" in named.get(b"sec-websocket-extensions", b"").lower():
                for each in self.sides:
                    each.compressed = True

    def _frames(self, way: int, side: Side, buffer: bytes, at: int, before: int, found: list[Piece]) -> int:
        n = len(buffer)
        while True:
            if side.left:
                size = min(side.left, n - at)
                if size <= 0:
                    return at
                if side.data:
                    plain = _unmasked(buffer[at : at + size], side.mask, side.turn)
                    self.plain_bytes[way] += size
                    found.append((max(0, at + size - before), way, plain))
                side.left -= size
                side.turn += size
                at += size
                continue
            head = _head(buffer, at)
            if head is None:
                return at
            opcode, compressed, masked, start, size = head
            if opcode not in OPCODES or masked != (way == self.client):
                self._die(NO_FRAME, side)
                return at
            if compressed:
                self._die(COMPRESSED if side.compressed else NO_FRAME, side)
                return at
            side.mask = buffer[start - 4 : start] if masked else b""
            side.left, side.turn, side.data = size, 0, opcode <= BINARY
            at = start

    def _search(self, way: int, side: Side, buffer: bytes, at: int) -> int:
        """Where frames begin again; else what is to be kept."""
        first = 0x82
        here = at
        while here < len(buffer):
            here = buffer.find(first, here)
            if here < 0:
                return len(buffer)
            place, seen = here, 0
            while seen < CHAIN:
                head = _head(buffer, place)
                if head is None or head[0] not in OPCODES or head[1] or head[2] != (way == self.client):
                    break
                if head[4] > LIMITS.websocket_frame_bytes:
                    break
                place, seen = head[3] + head[4], seen + 1
            if seen == CHAIN or (seen and place == len(buffer)):
                side.lost, side.left = False, 0
                return here
            here += 1
        return max(at, len(buffer))

    def _die(self, reason: str, side: Side | None = None) -> None:
        self.reason = self.reason or reason
        for each in self.sides if side is None else (side,):
            each.dead = True

    @property
    def dead(self) -> bool:
        """Whether nothing more is read."""
        return all(side.dead for side in self.sides)


def _head(buffer: bytes, at: int) -> tuple[int, bool, bool, int, int] | None:
    """Opcode, compressed, masked, where its octets begin, how many: of the frame at `at`; None: more is needed."""
    if len(buffer) < at + 2:
        return None
    masked, size, start = buffer[at + 1] >= 0x80, buffer[at + 1] & 0x7F, at + 2
    wide = {126: 2, 127: 8}.get(size, 0)
    if len(buffer) < start + wide + 4 * masked:
        return None
    if wide:
        size = int.from_bytes(buffer[start : start + wide], "big")
    start += wide + 4 * masked
    reserved = buffer[at] & 0x70
    opcode = buffer[at] & 0x0F
    return (opcode if reserved in (0, 0x40) else -1), reserved == 0x40, masked, start, size


def _unmasked(octets: bytes, mask: bytes, turn: int) -> bytes:
    if not mask or mask == bytes(4):
        return octets
    turn %= 4
    size = len(octets)
    key = (mask[turn:] + mask[:turn]) * (size // 4 + 1)
    return (int.from_bytes(octets, "big") ^ int.from_bytes(key[:size], "big")).to_bytes(size, "big")
