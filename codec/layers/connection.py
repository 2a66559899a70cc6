"""One connection whose AMQP is in TLS or WebSocket: TCP in order, through its layers, as segments for the decoder.

The output has one segment without payload per packet, and before it one per stretch of output of the layers that the
packet completed. Sequence numbers continue those of the segments before the first layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import HANDSHAKE, LIMITS
from codec.layers.ordered import ANEW, Tcp, begin_at, end_order, new_tcp, order
from codec.layers.state import layer_of, layer_state, packed, tcp_of, tcp_state, unpacked
from codec.layers.stretches import Layer, Output, Stretches, joined
from codec.layers.tls.records import Tls
from codec.layers.websocket import WebSocket, is_upgrade
from codec.net.segments import ACK, FLOW_KEY_BYTES, IS_LATE, PEER_IS_LATE, SEGMENT, SYN
from codec.tcp.direction import DONE, NEED_BYTES, NEED_MARKS, NEED_PIECES, NEED_POOL, TLS
from codec.tcp.reassembly import WRAP

NO_BASE = -1
HOLE_COST = 64  # octets per hole in the bound of waiting octets
_STREAM_ARRAY = {NEED_BYTES: "bytes", NEED_MARKS: "marks", NEED_PIECES: "pieces", NEED_POOL: "pool"}
# Fields of a direction counted on the wire, to add to those of the decoder.
ADDED = ("retransmitted_bytes", "out_of_order", "conflicting_bytes", "outside_bytes", "zero_window_ns")
BASE, GIVEN, PLAIN, MISSING, SEGMENTS = 0, 1, 2, 3, 4  # rows of `totals`
_CARRIED = ("connection_id", "upgraded", "untouched", "limits", "_waiting_bytes", "_any_content")


class Part(NamedTuple):
    """Segments for the decoder, as `Decoder.feed_flows` takes them; `layered`: their connection."""

    flows: np.ndarray
    ends: np.ndarray
    segments: np.ndarray
    payload: np.ndarray
    layered: LayeredConnection | None = None


@kernel
def merge(events, event, direction, begin, size, totals, out):
    """Segments of stretches (columns of `Stretches`) and of the packets among `events`, in order, into `out`; `totals`
    int64 (5, 2): by direction the sequence number of the first octet, octets given with those missing, octets,
    missing ones, segments."""
    count = stretch = 0
    for i in range(len(events)):
        is_packet = events[i].wire_len == 0
        while is_packet or (stretch < len(event) and event[stretch] == i):
            out[count] = events[i]
            g = out[count]
            count += 1
            length = 0
            if not is_packet:
                g.direction = direction[stretch]
                length = abs(size[stretch])
                g.wire_len, g.cap_len, g.payload_at = length, max(size[stretch], 0), begin[stretch]
                g["flags"] = ACK | (g["flags"] & (PEER_IS_LATE | IS_LATE))
                totals[PLAIN, direction[stretch]] += max(size[stretch], 0)
                totals[MISSING, direction[stretch]] += max(-size[stretch], 0)
                stretch += 1
            side = int(g.direction)
            if g["flags"] & SYN == 0:
                if totals[BASE, side] == NO_BASE:
                    totals[BASE, side] = g.seq
                g.seq = (totals[BASE, side] + totals[GIVEN, side]) % WRAP
            if g["flags"] & ACK:
                if totals[BASE, 1 - side] == NO_BASE:
                    g["flags"] &= ~ACK & 0xFFFF
                else:
                    g.ack = (totals[BASE, 1 - side] + totals[GIVEN, 1 - side] + g.ack) % WRAP
            totals[GIVEN, side] += length
            totals[SEGMENTS, side] += 1
            if is_packet:
                break
    return count


class LayeredConnection:
    """Its TCP, its layers, and the sequence numbers of the plain streams."""

    def __init__(self, flow: bytes, segment: Any, layer: Layer) -> None:
        self.flow = flow
        self.connection_id = -1
        self.upgraded = False  # protocol headers of AMQP came before
        self.tcp: Tcp = new_tcp()
        self.stack: list[Layer] = [layer]
        self.totals = np.zeros((5, 2), np.int64)
        self.totals[BASE] = NO_BASE
        direction = int(segment["direction"])
        self._begin(direction, int(segment["seq"]))
        if int(segment["flags"]) & ACK:
            self._begin(1 - direction, int(segment["ack"]))
        self.limits = 0
        self.untouched = False  # nothing can be read: octets pass unchanged
        self._waiting: list[tuple[int, bytes | int]] | None = []  # until the first output of the layers
        self._waiting_bytes = 0
        self._any_content = False  # of the first layer

    def state(self, files: Sequence[str]) -> dict[str, Any]:
        """The state as JSON values, with secrets; `files`: capture files by number."""
        waiting = None if self._waiting is None else [[way, packed(content)] for way, content in self._waiting]
        return {
            "tcp": tcp_state(self.tcp, files),
            "stack": [layer_state(layer) for layer in self.stack],
            "totals": self.totals.tolist(),
            "waiting": waiting,
            **{name: getattr(self, name) for name in _CARRIED},
        }

    @classmethod
    def of(cls, flow: bytes, state: Mapping[str, Any], number: Callable[[str], int]) -> LayeredConnection:
        """The connection that has this `state`; `number` of a capture file here."""
        found = cls.__new__(cls)
        found.flow, found.tcp = flow, tcp_of(state["tcp"], number)
        found.stack = [layer_of(layer) for layer in state["stack"]]
        found.totals = np.array(state["totals"], np.int64)
        waiting = state["waiting"]
        found._waiting = None if waiting is None else [(way, unpacked(content)) for way, content in waiting]
        for name in _CARRIED:
            setattr(found, name, state[name])
        return found

    def _begin(self, direction: int, seq: int) -> None:
        begin_at(self.tcp, direction, seq)
        self.totals[BASE, direction] = seq

    def take(self, segments: np.ndarray, payload: np.ndarray) -> tuple[list[Part], int]:
        """The next segments: parts for the decoder, and how many were consumed (up to the next connection)."""
        parts: list[Part] = []
        i = 0
        while True:
            code, i, direction = order(self.tcp, segments, payload, i)
            if code in _STREAM_ARRAY:
                self._enlarge(code, direction)
                continue
            parts += self._ordered()
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
            parts += self._ordered()
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

    def _ordered(self) -> list[Part]:
        """The output of `order`, through the layers, as one part."""
        count = int(self.tcp.used[0])
        if not count:
            return []
        events = self.tcp.out[:count]
        data = np.flatnonzero(events["wire_len"])
        columns = [events[name][data].astype(np.int64) for name in ("direction", "payload_at", "cap_len", "wire_len")]
        sizes = np.where(columns[2] == 0, -columns[3], columns[2])
        found = self._read(Stretches(data, columns[0], columns[1], sizes, self.tcp.octets))
        segments = np.empty(len(found.event) + count - len(data), SEGMENT).view(np.recarray)
        merge(events, *found[:4], self.totals, segments)
        self.tcp.used[:] = 0
        payload = found.octets.copy() if found.octets is self.tcp.octets else found.octets
        flows = np.frombuffer(self.flow, np.uint8).reshape(1, FLOW_KEY_BYTES)
        return [Part(flows, np.array([len(segments)]), segments, payload, self)]

    def _read(self, given: Stretches) -> Stretches:
        """Stretches of TCP through all layers; unchanged if nothing can be read."""
        if self.untouched:
            return given
        if self._waiting is None:
            return self._through(given)
        count = len(given.event)
        waiting = self._waiting_bytes + np.cumsum(np.where(given.size < 0, HOLE_COST, given.size))
        last = min(int(np.searchsorted(waiting, LIMITS.layer_bytes, "right")), count - 1)
        first = given.part(0, last + 1)
        found = self._through(first)
        if len(found.event):
            self._waiting = None
            return found if last == count - 1 else joined(found, self._through(given.part(last + 1, count)))
        if self.stack[0].dead:
            last = int(np.flatnonzero(given.event == self.stack[0].died_at)[0])
        elif not count or waiting[last] <= LIMITS.layer_bytes:
            self._waiting += given.contents()
            self._waiting_bytes = int(waiting[-1]) if count else self._waiting_bytes
            return found
        else:
            self.limits |= HANDSHAKE
        before, self._waiting, self.untouched = self._waiting, None, True
        return joined(_passed(before, given.part(0, last + 1)), given.part(last + 1, count))

    def _through(self, given: Stretches) -> Stretches:
        """Stretches of TCP through all layers. The first output of TLS may begin a WebSocket layer."""
        found = self.stack[0].read(given)
        contents = np.flatnonzero(found.size > 0)
        if len(contents) and not self._any_content:
            self._any_content, first = True, int(contents[0])
            begin, size = int(found.begin[first]), int(found.size[first])
            if isinstance(self.stack[0], Tls) and is_upgrade(found.octets[begin : begin + size].tobytes()):
                websocket = WebSocket(int(found.direction[first]))
                self.stack.append(websocket)
                return joined(found.part(0, first), websocket.read(found.part(first, len(found.size))))
        return self.stack[1].read(found) if len(self.stack) > 1 else found

    @property
    def plain(self) -> list[int]:
        """Octets given to the decoder, by direction."""
        return [int(octets) for octets in self.totals[PLAIN]]

    @property
    def tls(self) -> Tls | None:
        """The TLS layer, if there is one."""
        return next((layer for layer in self.stack if isinstance(layer, Tls)), None)

    @property
    def websocket(self) -> WebSocket | None:
        """The WebSocket layer, if there is one."""
        return next((layer for layer in self.stack if isinstance(layer, WebSocket)), None)

    def facts(self) -> dict[str, Any]:
        """Facts for the columns of `codec.layers.stack`."""
        websocket = self.websocket
        return {
            "tls": dict(self.tls.facts()) if self.tls else None,
            "upgraded": self.upgraded,
            "websocket": websocket is not None and websocket.accepted,
            "unread_because": next((layer.reason for layer in self.stack if layer.reason), None),
        }

    def correct(self, directions: np.ndarray) -> None:
        """Correct the records of both directions to what was on the wire."""
        for way in (0, 1):
            d, wire = directions[way], self.tcp.directions[way]
            d["packets"] += int(wire["packets"]) - self.totals[SEGMENTS, way]
            d["payload_bytes"] += int(wire["payload_bytes"]) - self.totals[PLAIN, way]
            d["missing_bytes"] += int(wire["missing_bytes"]) - self.totals[MISSING, way]
            for name in ADDED:
                d[name] += wire[name]
            d["limits"] |= int(wire["limits"]) | self.limits
            for layer in self.stack:
                d["limits"] |= layer.limits
            d["max_silence_ns"] = max(int(d["max_silence_ns"]), int(wire["max_silence_ns"]))
            if self.untouched:
                continue
            decrypted = self.stack[0].plain_bytes[way] if self.tls else 0
            inside = decrypted if self.tls else int(wire["payload_bytes"])
            d["tls_bytes"] += int(wire["payload_bytes"]) - inside
            d["websocket_bytes"] += inside - self.totals[PLAIN, way]
            d["decrypted_bytes"] += decrypted
        if not any(self.plain) and self.tls:
            directions["mode"] = TLS


def _passed(before: list[tuple[int, bytes | int]], given: Stretches) -> Stretches:
    """The waiting stretches and `given`, unchanged, at the last event."""
    contents, event = before + given.contents(), int(given.event[-1])
    out = Output(sum(len(content) for _, content in contents if isinstance(content, bytes)))
    for direction, content in contents:
        out.add(event, direction, content)
    return out.stretches()
