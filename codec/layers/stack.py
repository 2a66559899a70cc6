"""Connections whose AMQP lies in TLS or WebSocket, as segments of the same connections in clear.

    layers = Layers(secrets)
    for part in layers.feed(flows, ends, segments, payload):    # groups of flows, as the decoder is fed
        ...                                                     # part.segments go to the decoder
    layers.concluded(connections, directions)                   # what the decoder counted, put right

Segments pass untouched until one begins with a ClientHello whose secrets are known, or with an upgrade to WebSocket.
From there on the connection is read by its layers, and what they give goes on as segments: one without payload for each
packet, and those of the plain bytes, whose packet is the one with which they were readable. Their sequence numbers go
on where those of the untouched segments ended. TLS without secrets passes untouched: the decoder knows what to say.

The decoder counts what it is given. What is different on the wire (packets, bytes, copies, holes) is kept by connection
and put right when it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from codec.compiler.limits import HANDSHAKE, LIMITS
from codec.layers.candidates import first_candidate, head_at
from codec.layers.ordered import ANEW, Tcp, begin_at, end_order, new_tcp, order
from codec.layers.piece import Layer, Piece
from codec.layers.state import layer_of, layer_state, packed, tcp_of, tcp_state, unpacked
from codec.layers.tls.begun import HEAD, begun_before
from codec.layers.tls.hello import random_of
from codec.layers.tls.keylog import SecretSource
from codec.layers.tls.records import Opened, Tls
from codec.layers.websocket import WebSocket, is_upgrade
from codec.net.segments import ACK, FLOW_KEY_BYTES, IS_LATE, PEER_IS_LATE, SYN
from codec.tcp.direction import DONE, NEED_BYTES, NEED_MARKS, NEED_PIECES, NEED_POOL, TLS

TRIED = 2  # records of a connection that began before the capture on which secrets are tried
TRIED_SEGMENTS = 64  # among so many segments
WRAP = 1 << 32
_STREAM_ARRAY = {NEED_BYTES: "bytes", NEED_MARKS: "marks", NEED_PIECES: "pieces", NEED_POOL: "pool"}
# What of a direction's record is counted on the wire, and added to what the decoder counted.
ADDED = ("retransmitted_bytes", "out_of_order", "conflicting_bytes", "outside_bytes", "zero_window_ns")


_CARRIED = ("connection_id", "upgraded", "given", "plain", "missing", "segments", "untouched", "limits", "_held_bytes")


class Part(NamedTuple):
    """Segments for the decoder, as `Decoder.feed_flows` takes them; `layered`: the connection that they are of."""

    flows: np.ndarray
    ends: np.ndarray
    segments: np.ndarray
    payload: np.ndarray
    layered: Layered | None = None


class Found:
    """What layers gave, by the event with which it was readable: event, direction, size (negative: of a hole); and
    `octets`, the bytes end to end."""

    def __init__(self) -> None:
        self.octets: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []

    def add(self, events: list[int], pieces: list[Piece]) -> None:
        """Pieces of one run."""
        if pieces:
            sizes = [(way, len(part) if isinstance(part, bytes) else part) for _, way, part in pieces]
            self._rows.append(np.array([(event, *size) for event, size in zip(events, sizes, strict=True)], np.int64))
            octets = b"".join(part for _, _, part in pieces if isinstance(part, bytes))
            self.octets.append(np.frombuffer(octets, np.uint8))

    def add_opened(self, events: np.ndarray, opened: Opened) -> None:
        """Records of a stretch, of events `events`."""
        rows = opened.pieces.copy()
        rows[:, 0] = events[rows[:, 0]]
        self._rows.append(rows)
        self.octets.append(opened.octets)

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Event, direction, size."""
        rows = np.concatenate([np.zeros((0, 3), np.int64), *self._rows])
        return rows[:, 0], rows[:, 1], rows[:, 2]


class Layered:
    """One connection: its TCP in order, its layers, and where the plain streams stand."""

    def __init__(self, flow: bytes, segment: Any, layer: Layer) -> None:
        self.flow = flow
        self.connection_id = -1
        self.upgraded = False  # protocol headers of AMQP came before
        self.tcp: Tcp = new_tcp()
        self.stack: list[Layer] = [layer]
        way = int(segment["direction"])
        self._base: list[int | None] = [None, None]  # sequence number of plain offset 0
        self._begin(way, int(segment["seq"]))
        if int(segment["flags"]) & ACK:
            self._begin(1 - way, int(segment["ack"]))
        self.given = [0, 0]  # plain bytes and holes given to the decoder
        self.plain = [0, 0]
        self.missing = [0, 0]
        self.segments = [0, 0]
        self.limits = 0
        self.untouched = False  # nothing can be read: bytes pass as they are
        self._held: list[tuple[int, bytes | int]] | None = []
        self._held_bytes = 0

    def state(self, files: Sequence[str]) -> dict[str, Any]:
        """All of it as JSON takes it, secrets too; `files`: capture files by number."""
        held = None if self._held is None else [[way, packed(content)] for way, content in self._held]
        return {
            "tcp": tcp_state(self.tcp, files),
            "stack": [layer_state(layer) for layer in self.stack],
            "base": self._base,
            "held": held,
            **{name: getattr(self, name) for name in _CARRIED},
        }

    @classmethod
    def of(cls, flow: bytes, state: Mapping[str, Any], number: Callable[[str], int]) -> Layered:
        """What `state` gave; `number` of a capture file here."""
        found = cls.__new__(cls)
        found.flow, found.tcp = flow, tcp_of(state["tcp"], number)
        found.stack = [layer_of(layer) for layer in state["stack"]]
        found._base = state["base"]
        held = state["held"]
        found._held = None if held is None else [(way, unpacked(content)) for way, content in held]
        for name in _CARRIED:
            setattr(found, name, state[name])
        return found

    def _begin(self, way: int, seq: int) -> None:
        begin_at(self.tcp, way, seq)
        self._base[way] = seq

    # ---- segments in, segments out

    def take(self, segments: np.ndarray, payload: np.ndarray) -> tuple[list[Part], int]:
        """The next segments: parts for the decoder, and how many were taken (fewer where another connection begins)."""
        parts: list[Part] = []
        i = 0
        while True:
            code, i, direction = order(self.tcp, segments, payload, i)
            if code in _STREAM_ARRAY:
                self._enlarge(code, direction)
                continue
            parts += self._through()
            if code in (DONE, ANEW):
                return parts, i

    def end(self) -> list[Part]:
        """No more segments."""
        parts: list[Part] = []
        while True:
            code, direction = end_order(self.tcp)
            if code in _STREAM_ARRAY:
                self._enlarge(code, direction)
                continue
            parts += self._through()
            if code == DONE:
                return parts

    def _enlarge(self, code: int, direction: int) -> None:
        """Double an array of one direction."""
        name = _STREAM_ARRAY[code]
        streams = list(self.tcp.streams)
        old = getattr(streams[direction], name)
        fresh = np.zeros(2 * len(old), old.dtype)
        fresh[: len(old)] = old
        fresh = fresh.view(np.recarray) if isinstance(old, np.recarray) else fresh
        streams[direction] = streams[direction]._replace(**{name: fresh})
        self.tcp = self.tcp._replace(streams=(streams[0], streams[1]))

    def _through(self) -> list[Part]:
        """What `order` gave, through the layers, as one part."""
        count, size = (int(used) for used in self.tcp.used)
        if not count:
            return []
        events, octets = np.array(self.tcp.out[:count]), self.tcp.octets[:size]
        self.tcp.used[:] = 0
        found = Found()
        data = np.flatnonzero(events["wire_len"])
        if len(data):
            hole = events["cap_len"][data] == 0
            way = events["direction"][data].astype(np.int64)
            # Records are opened as wholes, so that those of several segments are taken together; else each has its own.
            apart = self.untouched or not isinstance(self.stack[0], Tls)
            begins = np.flatnonzero(np.append(True, (way[1:] != way[:-1]) | hole[1:] | hole[:-1] | apart))
            holes = np.append(np.flatnonzero(hole), len(data))
            starts = events["payload_at"][data].astype(np.int64)
            stops = starts + events["cap_len"][data]
            run = 0
            while run < len(begins):
                begin = int(begins[run])
                run += 1
                end = int(begins[run]) if run < len(begins) else len(data)
                first = int(data[begin])
                if hole[begin]:
                    pieces = self._read(int(way[begin]), -int(events["wire_len"][first]))
                elif (tls := self._steady) is not None:
                    end = int(holes[np.searchsorted(holes, begin)])
                    opened = tls.take_all(way[begin:end], starts[begin:end], stops[begin:end], octets)
                    found.add_opened(data[begin:end], opened)
                    run = int(np.searchsorted(begins, end))
                    continue
                else:
                    pieces = self._read(int(way[begin]), octets[starts[begin] : stops[end - 1]].tobytes())
                if end == begin + 1:
                    found.add([first] * len(pieces), pieces)
                elif pieces:
                    offsets = [max(at, 1) for at, _, _ in pieces]
                    places = np.searchsorted(stops[begin:end] - starts[begin], offsets)
                    found.add(data[begin + places].tolist(), pieces)
        return [self._part(events, found)]

    @property
    def _steady(self) -> Tls | None:
        """The only layer, where all records of a stretch without holes may be opened at once."""
        first = self.stack[0]
        if not isinstance(first, Tls) or len(self.stack) > 1 or self._held is not None or self.untouched:
            return None
        return first if first.steady and any(first.plain_bytes) else None

    def _part(self, events: np.ndarray, found: Found) -> Part:
        """Segments of what was read, each behind the event with which it was readable, and one for each packet."""
        packets = np.flatnonzero(events["wire_len"] == 0)
        of_event, ways, amounts = found.columns()
        where = np.concatenate([of_event, packets])
        turn = np.argsort(where, kind="stable")
        segments = events[where[turn]]
        plain = np.concatenate([np.ones(len(of_event), bool), np.zeros(len(packets), bool)])[turn]
        sizes, holes = np.maximum(amounts, 0), np.maximum(-amounts, 0)
        segments["cap_len"][plain] = sizes
        segments["wire_len"][plain] = sizes + holes
        segments["direction"][plain] = ways
        segments["flags"][plain] = ACK | (segments["flags"][plain] & (PEER_IS_LATE | IS_LATE))
        wire = segments["wire_len"].astype(np.int64)
        segments["payload_at"] = np.cumsum(segments["cap_len"].astype(np.int64)) - segments["cap_len"]
        begun = [np.where(segments["direction"] == way, wire, 0) for way in (0, 1)]
        before = [np.cumsum(part) - part + self.given[way] for way, part in enumerate(begun)]
        for way in (0, 1):
            mine = (segments["direction"] == way) & ((segments["flags"] & SYN) == 0)
            if not mine.any():
                continue
            if self._base[way] is None:
                self._base[way] = int(segments["seq"][np.flatnonzero(mine)[0]])
            segments["seq"][mine] = (self._base[way] + before[way][mine]) % WRAP
        for way in (0, 1):
            mine = (segments["direction"] == way) & ((segments["flags"] & ACK) != 0)
            base = self._base[1 - way]
            if base is None:
                segments["flags"][mine] &= ~ACK & 0xFFFF
            else:
                segments["ack"][mine] = (base + before[1 - way][mine] + segments["ack"][mine]) % WRAP
        for way in (0, 1):
            self.given[way] += int(begun[way].sum())
            self.plain[way] += int(sizes[ways == way].sum())
            self.missing[way] += int(holes[ways == way].sum())
            self.segments[way] += int((segments["direction"] == way).sum())
        payload = np.concatenate(found.octets) if found.octets else np.zeros(0, np.uint8)
        flows = np.frombuffer(self.flow, np.uint8).reshape(1, FLOW_KEY_BYTES)
        return Part(flows, np.array([len(segments)]), segments, payload, self)

    # ---- layers

    def _read(self, way: int, content: bytes | int) -> list[Piece]:
        """Bytes of one direction, or a hole, through all layers."""
        if self.untouched:
            return [(len(content) if isinstance(content, bytes) else 0, way, content)]
        pieces = _given(self.stack[0], way, content)
        for level in range(1, 3):
            if len(self.stack) == level and pieces and not self._another(pieces):
                break
            if len(self.stack) > level:
                pieces = [
                    (end, side, inner)
                    for end, side, part in pieces
                    for _, side, inner in _given(self.stack[level], side, part)
                ]
        if self._held is not None:
            self._hold(way, content)
            if pieces:
                self._held = None
            elif self.stack[0].dead or self._held_bytes > LIMITS.layer_bytes:
                self.limits |= 0 if self.stack[0].dead else HANDSHAKE
                pieces = [(1, side, part) for side, part in self._held or ()]
                self._held, self.untouched = None, True
        return pieces

    def _hold(self, way: int, content: bytes | int) -> None:
        """Keep how the connection begins: it passes as it is, should nothing of it be readable."""
        assert self._held is not None
        self._held.append((way, content))
        self._held_bytes += len(content) if isinstance(content, bytes) else 64

    def _another(self, pieces: list[Piece]) -> bool:
        """Whether what the last layer gives first begins another one."""
        if any(self.plain) or len(self.stack) > 1 or not isinstance(self.stack[0], Tls):
            return False
        _, way, content = pieces[0]
        if isinstance(content, bytes) and is_upgrade(content):
            self.stack.append(WebSocket(way))
            return True
        return False

    # ---- what is known

    @property
    def tls(self) -> Tls | None:
        """The TLS layer, if there is one."""
        return next((layer for layer in self.stack if isinstance(layer, Tls)), None)

    @property
    def websocket(self) -> WebSocket | None:
        """The WebSocket layer, if there is one."""
        return next((layer for layer in self.stack if isinstance(layer, WebSocket)), None)

    def facts(self) -> dict[str, Any]:
        """What `codec.layers.facts` makes columns of."""
        websocket = self.websocket
        return {
            "tls": dict(self.tls.facts()) if self.tls else None,
            "upgraded": self.upgraded,
            "websocket": websocket is not None and websocket.accepted,
            "unread_because": next((layer.reason for layer in self.stack if layer.reason), None),
        }

    def correct(self, directions: np.ndarray) -> None:
        """Put the records of both directions right: what was on the wire instead of what the decoder was given."""
        for way in (0, 1):
            d, wire = directions[way], self.tcp.directions[way]
            d["packets"] += int(wire["packets"]) - self.segments[way]
            d["payload_bytes"] += int(wire["payload_bytes"]) - self.plain[way]
            d["missing_bytes"] += int(wire["missing_bytes"]) - self.missing[way]
            for name in ADDED:
                d[name] += wire[name]
            d["limits"] |= int(wire["limits"]) | self.limits
            for layer in self.stack:
                d["limits"] |= layer.limits
            d["max_silence_ns"] = max(int(d["max_silence_ns"]), int(wire["max_silence_ns"]))
            if self.untouched:
                continue
            opened = self.stack[0].plain_bytes[way] if self.tls else 0
            inside = opened if self.tls else int(wire["payload_bytes"])
            d["tls_bytes"] += int(wire["payload_bytes"]) - inside
            d["websocket_bytes"] += inside - self.plain[way]
            d["decrypted_bytes"] += opened
        if not any(self.plain) and self.tls:
            directions["mode"] = TLS


def _given(layer: Layer, way: int, content: bytes | int) -> list[Piece]:
    return layer.take(way, content) if isinstance(content, bytes) else layer.hole(way, -content)


class Layers:
    """Finds the connections that lie in layers, one flow after the other. `carry`: states of TLS connections may be put
    down, with their secrets; those of WebSocket in clear always are. `parking`: where a flow has no more segments, its
    connection does not end, but waits for `parked`. `resuming`: a flow may go on with a connection of an earlier
    capture, which `resume` is told of as soon as a first part of that flow, without segments, was taken."""

    def __init__(self, secrets: SecretSource | None = None, carry: bool = False) -> None:
        self.carry, self._secrets = carry, secrets
        self.parking = self.resuming = False
        self._recent = secrets.recent() if secrets is not None else []
        self._flow_at_hand = b""
        self._current: Layered | None = None
        self._parked: dict[bytes, Layered] = {}
        self._ended: dict[int, Layered] = {}

    def feed(self, flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray) -> Iterator[Part]:
        """The same flows, layers taken off."""
        starts = np.append(0, ends[:-1])
        tried = self._recent and bool((segments["flags"][starts[starts < ends]] & SYN == 0).any())
        if self._current is None and not (self.resuming or tried) and first_candidate(segments, payload, 0) < 0:
            yield Part(flows, ends, segments, payload)
            return
        begin = 0
        for flow, end in zip(flows, ends.tolist(), strict=True):
            yield from self._flow(flow, segments[begin:end], payload)
            begin = end

    def finish(self) -> Iterator[Part]:
        """No more segments of the flow at hand."""
        if self._current is not None and self.parking and (self.carry or self._current.tls is None):
            self._parked[self._current.flow] = self._current
            self._current = None
        yield from self._end()

    def parked(self, flow: bytes) -> Layered | None:
        """The connection of a flow that has no more segments, once."""
        return self._parked.pop(flow, None)

    def resume(self, layered: Layered) -> None:
        """The flow at hand goes on with this connection."""
        self._current = layered

    def end(self, layered: Layered) -> Iterator[Part]:
        """A connection is over, or is taken to be."""
        yield from layered.end()
        self._ended[layered.connection_id] = layered

    def _end(self) -> Iterator[Part]:
        """The connection at hand is over."""
        if self._current is not None:
            yield from self.end(self._current)
            self._current = None

    def _flow(self, flow: np.ndarray, segments: np.ndarray, payload: np.ndarray) -> Iterator[Part]:
        if self._current is not None and self._current.flow != flow.tobytes():
            yield from self.finish()
        if self.resuming or not len(segments):
            yield Part(flow[None], np.zeros(1, np.int64), segments[:0], payload)
        begins, self._flow_at_hand = self._flow_at_hand != flow.tobytes(), flow.tobytes()
        if begins and self._current is None and not self.resuming and len(segments):
            tls = self._begun_before(segments, payload)
            self._current = Layered(flow.tobytes(), segments[0], tls) if tls is not None else None
        i = 0
        while i < len(segments):
            if self._current is not None:
                parts, taken = self._current.take(segments[i:], payload)
                yield from parts
                i += taken
                if i < len(segments):
                    yield from self._end()
                continue
            stop, layer = self._next(segments, payload, i)
            if stop > i:
                yield Part(flow[None], np.array([stop - i]), segments[i:stop], payload)
            if layer is not None:
                self._current = Layered(flow.tobytes(), segments[stop], layer)
            i = stop

    def _next(self, segments: np.ndarray, payload: np.ndarray, i: int) -> tuple[int, Layer | None]:
        """Where from `i` on the next layer begins, and which."""
        while True:
            i = first_candidate(segments, payload, i)
            if i < 0:
                return len(segments), None
            g, octets = segments[i], head_at(segments, payload, i)
            random = random_of(octets)
            if random is not None and self._secrets is not None:
                secrets = self._secrets.secrets(random)
                if secrets:
                    return i, Tls(int(g["direction"]), secrets)
            elif random is None and is_upgrade(octets):
                return i, WebSocket(int(g["direction"]))
            i += 1

    def _begun_before(self, segments: np.ndarray, payload: np.ndarray) -> Tls | None:
        """The TLS of a connection that began before the capture, if its secrets are found by trial."""
        if not self._recent or int(segments["flags"][0]) & SYN:
            return None
        tried = 0
        for g in segments[:TRIED_SEGMENTS]:
            at = int(g["payload_at"])
            octets = payload[at : at + int(g["cap_len"])].tobytes()
            if octets.startswith(HEAD):
                found = begun_before(octets, self._recent)
                if found is not None:
                    return Tls.begun(int(g["direction"]), found)
                tried += 1
                if tried == TRIED:
                    break
        return None

    def has_ended(self, connection: int) -> bool:
        """Whether this connection, which lay in layers, has no more segments."""
        return connection in self._ended

    def concluded(self, connections: np.ndarray, directions: np.ndarray) -> dict[int, dict[str, Any]]:
        """Put the records of ended connections right; the facts of those that lay in layers, by place."""
        found = {}
        if self._ended:
            for place, connection in enumerate(connections["connection_id"].tolist()):
                layered = self._ended.pop(connection, None)
                if layered is not None:
                    layered.correct(directions[place])
                    found[place] = layered.facts()
        return found
