"""AMQP over WebSocket: the upgrade of HTTP/1.1 and the frames behind it (RFC 6455; OASIS AMQP WebSocket Binding 1.0).

Chunks of both directions in, chunks of the messages' octets out. The boundaries of messages have no meaning for AMQP.
After a compressed message (permessage-deflate), or an upgrade that the server refuses, nothing is read; `reason` has
the cause.

A hole inside a frame is one of the same size; where the boundary is lost, frames are searched: three in a row whose
heads fit their sender (masked from the client, not masked from the server) are accepted as frames.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.layers.chunks import Chunks, Layer, Output
from codec.layers.tls.framing import clear_end
from codec.text import escaped

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
OPCODES = (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG)
NAME = re.compile(rb"[!-9;-~]+")  # of a field of HTTP
REFUSED, COMPRESSED = "upgrade refused", "permessage-deflate"
NO_FRAME, NO_UPGRADE = "no frame of WebSocket", "upgrade not captured"
CHAIN = 3  # plausible frames in a row that are accepted
FINAL_BINARY = 0x80 | BINARY  # first octet of a frame with a whole message
HEAD_BYTES = 14  # of a frame at most
COMPRESSION = 0x40  # the reserved bit of permessage-deflate
ENDLESS = 1 << 62  # instead of a size with its highest bit set
LEFT, TURN, DATA, HEAD, STOPPED = 0, 1, 2, 3, 4  # columns of the state of both directions
WRONG_FRAME, COMPRESSED_FRAME = 1, 2


def is_upgrade(octets: bytes) -> bool:
    """Whether a stream begins with a request for WebSocket, judged by its first octets."""
    if octets[:4] != b"GET ":
        return False
    octets = octets[: LIMITS.upgrade_bytes]
    whole = b"\r\n\r\n" in octets
    return b"websocket" in headers_of(octets).get(b"upgrade", b"").lower() or (not whole and b" HTTP/1.1\r\n" in octets)


def headers_of(octets: bytes) -> dict[bytes, bytes]:
    """Headers of an HTTP message by their names in lower case; several of a name are joined."""
    found: dict[bytes, list[bytes]] = {}
    for line in octets.split(b"\n"):  # no expression over a whole line: its cost would not be linear
        name, colon, value = line.removesuffix(b"\r").partition(b":")
        if colon and b"\r" not in value and NAME.fullmatch(name):
            found.setdefault(name.lower(), []).append(value.strip(b" \t"))
    return {name: b",".join(values) for name, values in found.items()}


@dataclass
class Side:
    """One direction. `left`: octets of the current frame that are still missing; `lost`: the boundary is lost."""

    pending: bytearray = field(default_factory=bytearray)
    upgraded: bool = False
    left: int = 0
    data: bool = False  # the current frame is part of a message
    mask: bytes = b""
    turn: int = 0  # index of the next octet of the mask
    compressed: bool = False
    lost: bool = False
    stopped: bool = False


class WebSocket(Layer):
    """One connection, from the upgrade on."""

    def __init__(self, client: int) -> None:
        super().__init__(client)
        self.sides: tuple[Side, Side] = (Side(), Side())
        self.subprotocol: str | None = None
        self.accepted = False

    def read(self, chunks: Chunks) -> Chunks:
        room = int(np.maximum(chunks.size, 0).sum()) + sum(len(side.pending) for side in self.sides)
        out, self.stopped_at, i = Output(room), -1, 0
        while i < len(chunks.size) and not self.stopped:
            apart = np.array([not side.stopped and (side.lost or not side.upgraded) for side in self.sides])
            end = int(clear_end(chunks.direction, chunks.size, i, apart))
            if end > i:
                i += self._frames(chunks.part(i, end), out)
                continue
            direction, self.event = int(chunks.direction[i]), int(chunks.event[i])
            begin, size, side = int(chunks.begin[i]), int(chunks.size[i]), self.sides[direction]
            if side.stopped:
                pass
            elif size < 0:
                self._hole(direction, side, -size, out)
            else:
                self._boundary(direction, side, chunks.octets[begin : begin + size].tobytes(), out)
            i += 1
        return out.chunks()

    def _boundary(self, direction: int, side: Side, octets: bytes, out: Output) -> None:
        """Find the first frame after the upgrade, or after a hole."""
        octets = bytes(side.pending) + octets
        side.pending.clear()
        if not side.upgraded:
            end = octets.find(b"\r\n\r\n") + 4
            if end < 4:
                side.pending += octets
                if len(octets) > LIMITS.upgrade_bytes:
                    self.stop_reading(NO_UPGRADE)
                return
            self._upgrade(direction, side, octets[:end])
            octets = octets[end:]
        if side.lost:
            octets = octets[self._search(direction, side, octets) :]
        if octets and not side.lost and not side.stopped:
            rest = np.frombuffer(bytearray(octets), np.uint8)
            columns = np.array([[self.event], [direction], [0], [len(rest)]])
            self._frames(Chunks._make([*columns, rest]), out)

    def _frames(self, chunks: Chunks, out: Output) -> int:
        """Read chunks without holes; returns their number, fewer when a direction stops."""
        partial = [side.pending if side.upgraded else b"" for side in self.sides]  # heads of frames
        state = np.array(
            [[s.left, s.turn % 4, s.data, len(b), s.stopped] for s, b in zip(self.sides, partial, strict=True)]
        )
        masks = np.array([np.frombuffer(side.mask or bytes(4), np.uint8) for side in self.sides])
        heads = np.array([np.frombuffer(octets.ljust(HEAD_BYTES), np.uint8) for octets in partial])
        found = np.empty((len(chunks.size) + int(chunks.size.sum()) // 2 + 1, 4), np.int64)
        columns = (chunks.octets, chunks.direction, chunks.begin, chunks.size)
        count, used, stop = read_frames(*columns, self.client, state, masks, heads, out.octets, out.used, found)
        out.used = int(used)
        chunk, directions, begin, size = found[:count].T
        out.add_columns(chunks.event[chunk], directions, begin, size)
        for direction, side in enumerate(self.sides):
            if not side.upgraded:
                continue
            side.left, side.turn, data = state[direction, : DATA + 1].tolist()
            side.data, side.mask = bool(data), masks[direction].tobytes()
            side.pending = bytearray(heads[direction, : state[direction, HEAD]].data)
            self.output_bytes[direction] += int(size[directions == direction].sum())
        if stop < len(chunks.size):
            side, self.event = self.sides[int(chunks.direction[stop])], int(chunks.event[stop])
            compressed = state[int(chunks.direction[stop]), STOPPED] == COMPRESSED_FRAME and side.compressed
            self.stop_reading(COMPRESSED if compressed else NO_FRAME, side)
        return min(int(stop) + 1, len(chunks.size))

    def _hole(self, direction: int, side: Side, size: int, out: Output) -> None:
        """`size` octets of a direction are missing."""
        if not side.upgraded:
            self.stop_reading(NO_UPGRADE)
            return
        incomplete = len(side.pending) > 0
        side.pending.clear()
        inside = min(size, side.left)
        side.left -= inside
        side.turn += inside
        side.lost = side.lost or incomplete or size > inside
        if side.data or side.lost:
            out.add(self.event, direction, -(size if side.lost else inside))

    def _upgrade(self, direction: int, side: Side, octets: bytes) -> None:
        named = headers_of(octets)
        side.upgraded = True
        if direction != self.client:
            self.accepted = re.match(rb"HTTP/1\.1 101\b", octets) is not None
            if not self.accepted:
                self.stop_reading(REFUSED)
            protocol = named.get(b"sec-websocket-protocol")
            self.subprotocol = escaped(protocol) if protocol else None
            if b"permessage-deflate" in named.get(b"sec-websocket-extensions", b"").lower():
                for each in self.sides:
                    each.compressed = True

    def _search(self, direction: int, side: Side, octets: bytes) -> int:
        """The offset of the next frame; the number of octets when none is found."""
        here = octets.find(FINAL_BINARY)
        while here >= 0:
            place, seen = here, 0
            while seen < CHAIN:
                head = _head(octets, place)
                if head is None or head[0] not in OPCODES or head[1] != (direction == self.client):
                    break
                if head[3] > LIMITS.websocket_frame_bytes:
                    break
                place, seen = head[2] + head[3], seen + 1
            if seen == CHAIN or (seen and place == len(octets)):
                side.lost, side.left = False, 0
                return here
            here = octets.find(FINAL_BINARY, here + 1)
        return len(octets)


def _head(octets: bytes, at: int) -> tuple[int, bool, int, int] | None:
    """Opcode with reserved bits, whether masked, where the payload begins, its size: of the frame at `at`; None: more
    is needed."""
    if len(octets) < at + 2:
        return None
    masked, size, start = octets[at + 1] >= 0x80, octets[at + 1] & 0x7F, at + 2
    wide = {126: 2, 127: 8}.get(size, 0)
    if len(octets) < start + wide + 4 * masked:
        return None
    if wide:
        size = int.from_bytes(octets[start : start + wide], "big")
    return octets[at] & 0x7F, masked, start + wide + 4 * masked, size


@kernel
def read_frames(octets, direction, begin, size, client, state, masks, heads, out, used, found):
    """Read chunks of frames; write the octets of messages, unmasked, to `out` from `used` on, and for each part of one
    its chunk, direction, begin and size to `found`. `state` int64 (2, 5), `masks` uint8 (2, 4), `heads` uint8 (2,
    HEAD_BYTES): by direction the current frame, its mask, its incomplete head.

    Returns the number of parts, the end of `out`, and the chunk at which a direction stopped (STOPPED is set), or the
    number of chunks."""
    count = 0
    for i in range(len(direction)):
        side = int(direction[i])
        at, end = int(begin[i]), int(begin[i] + size[i])
        while at < end and state[side, STOPPED] == 0:
            left = int(state[side, LEFT])
            if left > 0:
                amount, turn = min(left, end - at), int(state[side, TURN])
                if state[side, DATA]:
                    for j in range(amount):
                        out[used + j] = octets[at + j] ^ masks[side, (turn + j) & 3]
                    found[count, 0], found[count, 1], found[count, 2], found[count, 3] = i, side, used, amount
                    count += 1
                    used += amount
                state[side, LEFT], state[side, TURN] = left - amount, (turn + amount) & 3
                at += amount
                continue
            known = int(state[side, HEAD])
            heads[side, known] = octets[at]
            at, known = at + 1, known + 1
            state[side, HEAD] = known
            if known < 2:
                continue
            masked, length = heads[side, 1] >= 0x80, int(heads[side, 1]) & 0x7F
            wide = 2 if length == 126 else 8 if length == 127 else 0
            if known < 2 + wide + (4 if masked else 0):
                continue
            opcode, reserved = int(heads[side, 0]) & 0x0F, int(heads[side, 0]) & 0x70
            known_opcode = opcode <= BINARY or CLOSE <= opcode <= PONG
            if reserved not in (0, COMPRESSION) or not known_opcode or masked != (side == client):
                state[side, STOPPED] = WRONG_FRAME
                return count, used, i
            if reserved:
                state[side, STOPPED] = COMPRESSED_FRAME
                return count, used, i
            if wide:
                length = 0
                for j in range(wide):
                    length = (length << 8) | int(heads[side, 2 + j])
                length = length if length >= 0 else ENDLESS
            for j in range(4):
                masks[side, j] = heads[side, 2 + wide + j] if masked else 0
            state[side, HEAD], state[side, LEFT], state[side, TURN] = 0, length, 0
            state[side, DATA] = opcode <= BINARY
    return count, used, len(direction)
