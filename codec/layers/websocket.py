"""AMQP over WebSocket: the upgrade of HTTP/1.1 and the frames after it (RFC 6455; OASIS AMQP WebSocket Binding 1.0).

Chunks of both directions in, chunks of the messages' bytes out. The boundaries of messages have no meaning for AMQP.
Each direction is in one of these stages:

    HEAD      the request or the response of HTTP     -> FRAMES, STOPPED
    FRAMES    at a frame or inside one                -> LOST (a hole), STOPPED
    LOST      the boundary is lost: find the next     -> FRAMES
    STOPPED   nothing is read; `reason` has the cause

A hole inside a frame is one of the same size; where the boundary is lost, frames are searched: three in a row whose
heads fit their sender (masked from the client, not masked from the server), or fewer that end with a chunk.

`read_chunks` does the work for all chunks of a call and returns to Python where a head ends and where a direction
stops. Compressed messages (permessage-deflate) are inflated afterwards, each in one call (`codec.layers.websocket`).
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import INFLATED, LIMITS
from codec.cursor import byte_at
from codec.errors import WirehareError
from codec.layers.chunks import Chunks, Layer
from codec.layers.http import COMPLETE, MORE, asks_for_websocket, field_of, head_step
from codec.memory import as_records, copy_bytes
from codec.text import escaped

# permessage-deflate, the compression of WebSocket (RFC 7692).
#
# A message is compressed with DEFLATE (RFC 1951), without its last four bytes, which are always the same. With *context
# takeover*, the usual way, a message may refer to the last 32 KB of the messages before it. So between two messages the
# state of a direction is these bytes. The compressed bytes of a message are collected until it ends and inflated in one
# call; what that may cost has bounds (`Limits.inflate_*`).


EXTENSION = b"permessage-deflate"
NO_TAKEOVER = (b"client_no_context_takeover", b"server_no_context_takeover")  # parameters (section 7.1.1)
TAIL = b"\x00\x00\xff\xff"  # section 7.2.2
RAW = -zlib.MAX_WBITS  # a window of the largest size inflates what was compressed with any smaller one
WINDOW_BYTES = 1 << zlib.MAX_WBITS
COUNTS = ("compressed", "inflated", "expanded")


class NotInflated(WirehareError):
    """A message is not valid DEFLATE."""


class TooLarge(NotInflated):
    """A message expands to more than the limits allow."""


def agreed(extensions: bytes) -> tuple[bool, bool] | None:
    """Whether the client's and the server's messages are without context takeover, by the field
    Sec-WebSocket-Extensions of a response; None: permessage-deflate is not among its extensions."""
    for extension in extensions.lower().split(b","):
        name, *parameters = (part.strip(b" \t") for part in extension.split(b";"))
        if name == EXTENSION:
            return NO_TAKEOVER[0] in parameters, NO_TAKEOVER[1] in parameters
    return None


class Inflater:
    """The compressed messages of one direction. `fresh`: without context takeover."""

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh
        self.pending = bytearray()  # of the current message
        self.compressed = self.inflated = 0  # bytes of all messages
        self.expanded = 0  # bytes that inflating added
        self._recent: deque[bytes] = deque()  # with the last WINDOW_BYTES of the messages
        self._recent_bytes = 0
        self._stream = zlib.decompressobj(RAW)

    def add(self, data: bytes) -> None:
        """Compressed bytes of the current message."""
        if len(self.pending) + len(data) > LIMITS.inflate_bytes:
            raise TooLarge
        self.pending += data

    def end(self, complete: bool = True) -> bytes:
        """The bytes of the current message; not `complete`: as many as can be inflated before a hole."""
        data, self.pending = bytes(self.pending), bytearray()
        if not data:  # no block at all: an empty message has at least one (section 7.2.3.6)
            return b""
        self.compressed += len(data)
        allowed = LIMITS.inflate_grace + LIMITS.inflate_ratio * self.compressed - self.inflated
        plain = self._inflate(data + TAIL if complete else data, min(allowed, LIMITS.inflate_bytes))
        self.inflated += len(plain)
        self.expanded += len(plain) - len(data)
        if self.fresh:
            self._stream = zlib.decompressobj(RAW)
        return plain

    def _inflate(self, data: bytes, allowed: int) -> bytes:
        parts, size = [], 0
        while True:
            try:
                part = self._stream.decompress(data, allowed - size + 1)
            except zlib.error as error:
                raise NotInflated from error
            size += len(part)
            if size > allowed:
                raise TooLarge
            parts.append(part)
            if not self.fresh:
                self._remember(part)
            data = self._stream.unused_data
            if not data:
                break
            # A block was the last of its stream (section 7.2.3.4); another stream follows, which has the same window.
            self._stream = self._resumed()
        if self._stream.eof:
            self._stream = self._resumed()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _remember(self, plain: bytes) -> None:
        if plain:
            self._recent.append(plain[-WINDOW_BYTES:])
            self._recent_bytes += len(self._recent[-1])
            while self._recent_bytes - len(self._recent[0]) >= WINDOW_BYTES:
                self._recent_bytes -= len(self._recent.popleft())

    @property
    def window(self) -> bytes:
        """The bytes to which the next message may refer."""
        return b"".join(self._recent)[-WINDOW_BYTES:]

    def _resumed(self) -> Any:
        window = self.window
        return zlib.decompressobj(RAW, zdict=window) if window else zlib.decompressobj(RAW)

    def state(self) -> dict[str, Any]:
        """Its state between two chunks."""
        counts = {name: getattr(self, name) for name in COUNTS}
        return counts | {"fresh": self.fresh, "pending": bytes(self.pending), "window": self.window}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Inflater:
        """The inverse of `state`."""
        found = cls(state["fresh"])
        for name in COUNTS:
            setattr(found, name, state[name])
        found.pending = bytearray(state["pending"])
        found._remember(state["window"])
        found._stream = found._resumed()
        return found


CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
REFUSED, COMPRESSED = "upgrade refused", "permessage-deflate"
NO_FRAME, NO_UPGRADE = "no frame of WebSocket", "upgrade not captured"
NO_ANSWER, UNFINISHED = "upgrade not answered", "upgrade not finished"
NO_REQUEST = ""  # HTTP, but no request for WebSocket: the layer does not concern it
STATUS_LINE = b"HTTP/1.1 101"  # Switching Protocols

HEAD, FRAMES, LOST, STOPPED = range(4)  # stages
CHAIN = 3  # plausible frames in a row that are accepted
FINAL_BINARY = 0x80 | BINARY  # first byte of a frame with a whole message
HEAD_BYTES = 14  # of a frame at most
COMPRESSION = 0x40  # the reserved bit of permessage-deflate
ENDLESS = 1 << 62  # instead of a size with its highest bit set
BUFFER_BYTES = 4 * LIMITS.upgrade_bytes  # of a head of HTTP, or of the search for a frame
UPGRADE_BYTES, FRAME_BYTES = LIMITS.upgrade_bytes, LIMITS.websocket_frame_bytes
# Codes of `read_chunks`.
DONE, HEAD_READ, HEAD_WRONG, HEAD_TOO_LONG, HEAD_HOLE, WRONG_FRAME, MESSAGE_HOLE = range(7)
ACCEPT, REJECT, UNDECIDED = range(3)
# Kinds of output: bytes of a message or a hole; compressed bytes; the last ones of a message; the last ones before a
# hole.
PLAIN, DEFLATED, DEFLATED_END, DEFLATED_CUT = range(4)
ROW = CHUNK, DIRECTION, BEGIN, SIZE, KIND = range(5)  # columns of the output of `read_chunks`
NO_INFLATERS: list[Inflater | None] = [None, None]

SIDE = np.dtype(
    [
        ("stage", "i8"),
        ("left", "i8"),  # bytes of the current frame that are still missing
        ("turn", "i8"),  # index of the next byte of the mask
        ("inside", "i8"),  # the current frame is part of a message
        ("final", "i8"),  # the current frame ends a message
        ("head", "i8"),  # bytes of an incomplete head of a frame, in `bytes`
        ("buffered", "i8"),  # bytes that are buffered: of a head of HTTP, or since the boundary was lost
        ("searched", "i8"),  # of these, bytes at which no frame begins
        ("deflate", "i8"),  # permessage-deflate was agreed
        ("deflated", "i8"),  # the current message is compressed
        ("owed", "i8"),  # missing bytes since this direction stopped
        ("mask", "u1", 4),
        ("head_bytes", "u1", HEAD_BYTES),
    ],
    align=True,
)


class WebSocket(Layer):
    """One connection, from the upgrade on."""

    def __init__(self, client: int) -> None:
        super().__init__(client)
        self.state = as_records(np.zeros(2, SIDE))
        self.buffered = np.empty((2, BUFFER_BYTES), np.uint8)
        self.inflaters = list(NO_INFLATERS)
        self.expanded = [0, 0]  # bytes that inflaters of the past added
        self.subprotocol: str | None = None
        self.asked = self.accepted = False  # what the request asks for, what the response says

    def read(self, chunks: Chunks) -> Chunks:
        self.stopped_at, count = -1, len(chunks.size)
        room = int(np.maximum(chunks.size, 0).sum()) + int(self.state["buffered"].sum())
        data, plain = np.empty(room, np.uint8), bytearray()
        found, to = np.empty((2 * count + room // 2 + 4, len(ROW)), np.int64), np.zeros(2, np.int64)
        columns = (chunks.direction, chunks.begin, chunks.size, chunks.data)
        i = at = rows = 0
        while i < count:
            code, i, at = read_chunks(*columns, i, at, self.client, self.state, self.buffered, data, found, to)
            if self.inflaters != NO_INFLATERS:
                self._inflate(found[rows : to[0]], data, chunks, plain)
            rows = int(to[0])
            if code != DONE:
                self.event = int(chunks.event[i])
                self._returned(int(chunks.direction[i]), code)
                if code == MESSAGE_HOLE:
                    i, at = i + 1, 0
        found = found[:rows][found[:rows, SIZE] != 0]
        chunk, directions, begin, size = found[:, :KIND].T
        for direction in (0, 1):
            self.output_bytes[direction] += int(size[directions == direction].clip(min=0).sum())
        data = np.concatenate([data, np.frombuffer(plain, np.uint8)]) if plain else data
        return Chunks(chunks.event[chunk], directions, begin, size, data)

    def _returned(self, direction: int, code: int) -> None:
        """`read_chunks` returned in a chunk of this direction."""
        buffered = self.buffered[direction, : int(self.state["buffered"][direction])]
        if code == HEAD_READ:
            self._upgrade(direction, buffered.tobytes())
        elif code == HEAD_HOLE:
            self.stop_reading(NO_UPGRADE)
        elif code in (HEAD_WRONG, HEAD_TOO_LONG):
            self.stop_reading(self._reason(REFUSED if direction != self.client and code == HEAD_WRONG else UNFINISHED))
        else:
            self.stop_reading(NO_FRAME if code == WRONG_FRAME else COMPRESSED, direction)

    def _reason(self, refusal: str) -> str:
        """`refusal` if there was a request for WebSocket, as far as it is known."""
        asked = self.asked or asks_for_websocket(self.buffered[self.client], 0, self._buffered(self.client)) == COMPLETE
        return refusal if asked else NO_REQUEST

    def _buffered(self, direction: int) -> int:
        return int(self.state["buffered"][direction])

    def _upgrade(self, direction: int, head: bytes) -> None:
        """The head of the request or of the response is complete."""
        if direction == self.client:
            self.asked = self._reason(REFUSED) == REFUSED
            if not self.asked:
                self.stop_reading(NO_REQUEST)
                return
        else:
            self.accepted = head.startswith(STATUS_LINE) and not head[len(STATUS_LINE) : len(STATUS_LINE) + 1].isalnum()
            if not self.accepted:
                self.stop_reading(self._reason(REFUSED))
                return
            protocol = field_of(head, b"sec-websocket-protocol")
            self.subprotocol = escaped(protocol) if protocol else None
            compression = agreed(field_of(head, b"sec-websocket-extensions"))
            if compression is not None:
                self.inflaters = [Inflater(fresh) for fresh in compression[:: 1 if self.client == 0 else -1]]
                self.state["deflate"] = 1
        self.state["stage"][direction], self.state["buffered"][direction] = FRAMES, 0

    def give_up(self, answered: bool) -> None:
        """The connection ends before the upgrade. `answered`: packets of the server were captured."""
        incomplete = not self.asked or self._buffered(1 - self.client) > 0
        self.stop_reading(self._reason(UNFINISHED if incomplete else NO_ANSWER if answered else NO_UPGRADE))

    def _inflate(self, rows: np.ndarray, data: np.ndarray, chunks: Chunks, plain: bytearray) -> None:
        """Inflate the compressed messages of these rows, each where it ends; their bytes follow `bytes` in `plain`."""
        failed = [False, False]
        for k in np.flatnonzero(rows[:, KIND] != PLAIN).tolist():
            direction, begin, size, kind = rows[k, DIRECTION:].tolist()
            inflater = self.inflaters[direction]
            rows[k, SIZE] = 0
            if failed[direction] or inflater is None:
                continue
            try:
                inflater.add(data[begin : begin + size].data)
                if kind != DEFLATED:
                    message = inflater.end(kind == DEFLATED_END)
                    rows[k, BEGIN], rows[k, SIZE] = len(data) + len(plain), len(message)
                    plain += message
            except NotInflated as error:
                self.limits |= INFLATED if isinstance(error, TooLarge) else 0
                self.event = int(chunks.event[rows[k, CHUNK]])
                self.stop_reading(COMPRESSED, direction)
                failed[direction] = True
                later = k + np.flatnonzero(rows[k:, DIRECTION] == direction)
                self.state["owed"][direction] -= int(rows[later, SIZE][rows[later, KIND] == PLAIN].clip(max=0).sum())
                rows[later, SIZE] = 0

    def stop_reading(self, reason: str, side: Any = None) -> None:
        """Stop reading this direction, or both."""
        self.reason = self.reason or reason
        for direction in (0, 1) if side is None else (side,):
            self.state["stage"][direction], self.state["buffered"][direction] = STOPPED, 0
            inflater, self.inflaters[direction] = self.inflaters[direction], None
            self.expanded[direction] += inflater.expanded if inflater is not None else 0
        if self.stopped:
            self.stopped_at = self.event

    @property
    def stopped(self) -> bool:
        """Whether both directions have stopped."""
        return bool((self.state["stage"] == STOPPED).all())

    def owed(self, direction: int) -> int:
        return int(self.state["owed"][direction])

    def expansion(self, direction: int) -> int:
        inflater = self.inflaters[direction]
        return self.expanded[direction] + (inflater.expanded if inflater is not None else 0)


@kernel
def _put(found, to, chunk, direction, size, kind):
    """Append a row: the last `size` bytes of the output, or a hole."""
    row = found[to[0]]
    row[0], row[1], row[2], row[3], row[4] = chunk, direction, to[1] - max(size, 0), size, kind
    to[0] += 1


@kernel
def _frames(s, masked, source, at, end, out, found, to, chunk, direction):
    """Read frames in `source[at:end]`: DONE or WRONG_FRAME."""
    while at < end:
        if s.left > 0:
            amount, turn, used = min(int(s.left), end - at), int(s.turn), int(to[1])
            s.left -= amount
            s.turn = (turn + amount) & 3
            if s.inside != 0:
                for j in range(amount):
                    out[used + j] = source[at + j] ^ s.mask[(turn + j) & 3]
                to[1] += amount
                kind = PLAIN
                if s.deflated != 0:
                    kind = DEFLATED_END if s.final != 0 and s.left == 0 else DEFLATED
                _put(found, to, chunk, direction, amount, kind)
            at += amount
            continue
        known = int(s.head)
        s.head_bytes[known] = source[at]
        at, known = at + 1, known + 1
        s.head = known
        if known < 2:
            continue
        length = int(np.int64(s.head_bytes[1])) & 0x7F
        wide = 2 if length == 126 else 8 if length == 127 else 0
        if known < 2 + wide + (4 if masked else 0):
            continue
        first = int(np.int64(s.head_bytes[0]))
        opcode, reserved = first & 0x0F, first & 0x70
        is_data = opcode <= BINARY
        is_known = is_data or CLOSE <= opcode <= PONG
        # Only the first frame of a message says that it is compressed (RFC 7692, section 6).
        sound = reserved == 0 or (reserved == COMPRESSION and s.deflate != 0 and is_data and opcode != CONTINUATION)
        if not is_known or not sound or masked != (s.head_bytes[1] >= 0x80):
            s.stage = STOPPED
            return WRONG_FRAME
        if wide:
            length = 0
            for j in range(wide):
                length = (length << 8) | int(np.int64(s.head_bytes[2 + j]))
            length = length if length >= 0 else ENDLESS
        for j in range(4):
            s.mask[j] = s.head_bytes[2 + wide + j] if masked else 0
        s.head = 0
        s.left = length
        s.turn = 0
        s.inside = 1 if is_data else 0
        if is_data:
            s.final = first >> 7
            if opcode != CONTINUATION:
                s.deflated = reserved >> 6
            if s.final != 0 and s.deflated != 0 and length == 0:
                _put(found, to, chunk, direction, 0, DEFLATED_END)
    return DONE


@kernel
def _chain(buffered, at, end, masked, ends_here):
    """Whether frames begin at `at`: CHAIN in a row, or fewer that end at `end`, where a chunk ends (`ends_here`)."""
    seen = 0
    while seen < CHAIN:
        if at == end:
            return ACCEPT if seen > 0 and ends_here else UNDECIDED
        if at + 1 >= end:
            return UNDECIDED
        opcode, length = byte_at(buffered, at) & 0x7F, byte_at(buffered, at + 1) & 0x7F
        if not (opcode <= BINARY or CLOSE <= opcode <= PONG) or masked != (byte_at(buffered, at + 1) >= 0x80):
            return REJECT
        wide = 2 if length == 126 else 8 if length == 127 else 0
        at += 2
        if at + wide > end:
            return UNDECIDED
        if wide:
            length = 0
            for j in range(wide):
                length = (length << 8) | byte_at(buffered, at + j)
        if not 0 <= length <= FRAME_BYTES:
            return REJECT
        at += wide + (4 if masked else 0) + length
        seen += 1
        if at > end and seen < CHAIN:
            return UNDECIDED
    return ACCEPT


@kernel
def _search(s, buffered, masked, ends_here):
    """The offset in `buffered` at which frames begin again; -1: not found so far. Candidates are looked at one
    after the other; one that needs more bytes than there is room for is none."""
    at, end = int(s.searched), int(s.buffered)
    while at < end:
        if buffered[at] == FINAL_BINARY:
            verdict = _chain(buffered, at, end, masked, ends_here)
            if verdict == ACCEPT:
                return at
            if verdict == UNDECIDED and (end < len(buffered) or at >= len(buffered) // 2):
                break
        at += 1
    if at == end or end == len(buffered):  # what was searched is dropped; of a full buffer at least half
        copy_bytes(buffered, 0, buffered, at, end)
        s.buffered = end - at
        at = 0
    s.searched = at
    return -1


@kernel
def _hole(s, size, found, to, chunk, direction):
    """`size` bytes of a direction that is read are missing: DONE, or MESSAGE_HOLE, which stops it."""
    inside = min(size, int(s.left))
    lost = s.stage == LOST or s.head > 0 or size > inside
    s.left -= inside
    s.turn = (s.turn + inside) & 3
    s.head = 0
    s.buffered = 0
    s.searched = 0
    stops = s.deflate != 0 and (lost or (s.inside != 0 and s.deflated != 0))
    if stops and s.deflated != 0:
        _put(found, to, chunk, direction, 0, DEFLATED_CUT)
    if s.inside != 0 or lost:
        _put(found, to, chunk, direction, -size, PLAIN)
    if stops:
        s.stage = STOPPED
        return MESSAGE_HOLE
    if lost:
        s.stage = LOST
        s.left = 0
    return DONE


@kernel
def read_chunks(direction, begin, size, data, i, at, client, sides, buffered, out, found, to):
    """Read chunks from byte `at` of chunk `i` on: (code, chunk, byte in it) where it stopped. `sides` SIDE (2,),
    `buffered` uint8 (2, BUFFER_BYTES), by direction. Bytes of messages, unmasked, go to `out`, and for each part
    of one a row of `found`: its chunk, direction, begin, size, kind. `to`: how many rows and bytes there are."""
    while i < len(direction):
        side = int(direction[i])
        s = sides[side]
        if size[i] < 0:
            missing = -int(size[i])
            if s.stage == STOPPED:
                s.owed += missing
            elif s.stage == HEAD:
                return HEAD_HOLE, i, 0
            elif _hole(s, missing, found, to, i, side) != DONE:
                return MESSAGE_HOLE, i, 0
            i += 1
            continue
        first, end = int(begin[i]), int(begin[i] + size[i])
        here = first + at
        while here < end and s.stage != STOPPED:
            if s.stage == FRAMES:
                code = _frames(s, side == client, data, here, end, out, found, to, i, side)
                if code != DONE:
                    return code, i, end - first
                here = end
            elif s.stage == HEAD:
                if s.buffered == UPGRADE_BYTES:
                    return HEAD_TOO_LONG, i, here - first
                buffered[side, s.buffered] = data[here]
                s.buffered += 1
                here += 1
                step = head_step(buffered[side], int(s.buffered), side == client)
                if step != MORE:
                    return HEAD_READ if step == COMPLETE else HEAD_WRONG, i, here - first
            else:
                amount = min(end - here, len(buffered[side]) - int(s.buffered))
                copy_bytes(buffered[side], int(s.buffered), data, here, here + amount)
                s.buffered += amount
                here += amount
                found_at = _search(s, buffered[side], side == client, here == end)
                if found_at >= 0:
                    s.stage = FRAMES
                    stop = int(s.buffered)
                    s.buffered = 0
                    s.searched = 0
                    code = _frames(s, side == client, buffered[side], found_at, stop, out, found, to, i, side)
                    if code != DONE:
                        return code, i, here - first
        i += 1
        at = 0
    return DONE, i, 0
