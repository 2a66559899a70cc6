"""One connection whose AMQP is in TLS or WebSocket: its TCP in order, through its layers, as segments for the decoder.

For each packet the output has a segment without payload, and before it a segment for each chunk that the packet
completed. Sequence numbers continue those of the segments before the first layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import HANDSHAKE, LIMITS
from codec.layers.chunks import Chunks, Layer, Output, joined
from codec.layers.ordered import NEW_CONNECTION, Tcp, end_order, new_tcp, order
from codec.layers.state import from_json, restore_layer, restore_tcp, save_layer, save_tcp, to_json
from codec.layers.tls.records import Tls
from codec.layers.websocket import WebSocket, is_upgrade
from codec.net.segments import ACK, FLOW_KEY_BYTES, IS_LATE, PEER_IS_LATE, SEGMENT, SYN, first_octet
from codec.tcp.direction import DONE, TLS, TOO_SMALL, enlarge_stream
from codec.tcp.reassembly import WRAP, anchor

NO_BASE = -1
HOLE_COST = 64  # octets that a hole counts in the bound of waiting octets
# Fields of a direction counted on the wire, to add to those of the decoder.
ADDED = ("retransmitted_bytes", "out_of_order", "conflicting_bytes", "outside_bytes", "zero_window_ns")
BASE, OUTPUT, CAPTURED, MISSING, SEGMENTS = 0, 1, 2, 3, 4  # rows of `totals`
_CARRIED = ("connection_id", "upgraded", "passthrough", "limits", "_waiting_bytes", "_any_content")


class Part(NamedTuple):
    """Segments for the decoder, as `Decoder.feed_flows` takes them; `layered`: their connection."""

    flows: np.ndarray
    ends: np.ndarray
    segments: np.ndarray
    payload: np.ndarray
    layered: LayeredConnection | None = None


@kernel
def merge(events, event, direction, begin, size, totals, out):
    """Write segments for chunks (columns of `Chunks`) and for the packets among `events`, in order, to `out`. `totals`
    int64 (5, 2), by direction: the sequence number of the first octet; octets of output, missing ones included;
    captured ones; missing ones; segments."""
    count = chunk = 0
    for i in range(len(events)):
        is_packet = events[i].wire_len == 0
        while is_packet or (chunk < len(event) and event[chunk] == i):
            out[count] = events[i]
            g = out[count]
            count += 1
            length = 0
            if not is_packet:
                g.direction = direction[chunk]
                length = abs(size[chunk])
                g.wire_len, g.cap_len, g.payload_at = length, max(size[chunk], 0), begin[chunk]
                g["flags"] = ACK | (g["flags"] & (PEER_IS_LATE | IS_LATE))
                totals[CAPTURED, direction[chunk]] += max(size[chunk], 0)
                totals[MISSING, direction[chunk]] += max(-size[chunk], 0)
                chunk += 1
            side = int(g.direction)
            if g["flags"] & SYN == 0:
                if totals[BASE, side] == NO_BASE:
                    totals[BASE, side] = g.seq
                g.seq = (totals[BASE, side] + totals[OUTPUT, side]) % WRAP
            if g["flags"] & ACK:
                if totals[BASE, 1 - side] == NO_BASE:
                    g["flags"] &= ~ACK & 0xFFFF
                else:
                    g.ack = (totals[BASE, 1 - side] + totals[OUTPUT, 1 - side] + g.ack) % WRAP
            totals[OUTPUT, side] += length
            totals[SEGMENTS, side] += 1
            if is_packet:
                break
    return count


class LayeredConnection:
    """The TCP and the layers of a connection, and the sequence numbers of their output."""

    def __init__(self, flow: bytes, segment: Any, layer: Layer) -> None:
        self.flow = flow
        self.connection_id = -1
        self.upgraded = False  # after protocol headers of AMQP
        self.tcp: Tcp = new_tcp()
        self.stack: list[Layer] = [layer]
        self.totals = np.zeros((5, 2), np.int64)
        self.totals[BASE] = NO_BASE
        direction = int(segment["direction"])
        self._begin(direction, first_octet(segment))
        if int(segment["flags"]) & ACK:
            self._begin(1 - direction, int(segment["ack"]))
        self.limits = 0
        self.passthrough = False  # no layer can be read: octets pass unchanged
        self._waiting: list[tuple[int, bytes | int]] | None = []  # until the first output of the layers
        self._waiting_bytes = 0
        self._any_content = False  # whether the first layer had output

    def state(self, files: Sequence[str]) -> dict[str, Any]:
        """The state as JSON values, secrets included; `files`: capture files by number."""
        waiting = None if self._waiting is None else [[side, to_json(content)] for side, content in self._waiting]
        return {
            "tcp": save_tcp(self.tcp, files),
            "stack": [save_layer(layer) for layer in self.stack],
            "totals": self.totals.tolist(),
            "waiting": waiting,
            **{name: getattr(self, name) for name in _CARRIED},
        }

    @classmethod
    def restore(cls, flow: bytes, state: Mapping[str, Any], number: Callable[[str], int]) -> LayeredConnection:
        """The inverse of `state`; `number` gives the number of a capture file."""
        found = cls.__new__(cls)
        found.flow, found.tcp = flow, restore_tcp(state["tcp"], number)
        found.stack = [restore_layer(layer) for layer in state["stack"]]
        found.totals = np.array(state["totals"], np.int64)
        waiting = state["waiting"]
        found._waiting = None if waiting is None else [(side, from_json(content)) for side, content in waiting]
        for name in _CARRIED:
            setattr(found, name, state[name])
        return found

    def _begin(self, direction: int, seq: int) -> None:
        anchor(self.tcp.directions[direction], seq)
        self.totals[BASE, direction] = seq

    def feed(self, segments: np.ndarray, payload: np.ndarray) -> tuple[list[Part], int]:
        """Add segments: parts for the decoder, and the number of segments consumed (up to the next connection)."""
        parts: list[Part] = []
        i = 0
        while True:
            code, i, direction = order(self.tcp, segments, payload, i)
            if code in TOO_SMALL:
                self._enlarge(code, direction)
                continue
            parts += self._ordered()
            if code in (DONE, NEW_CONNECTION):
                return parts, i

    def end(self) -> list[Part]:
        """No more segments."""
        parts: list[Part] = []
        while True:
            code, direction = end_order(self.tcp)
            if code in TOO_SMALL:
                self._enlarge(code, direction)
                continue
            parts += self._ordered()
            if code == DONE:
                return parts + self._unread()

    def _unread(self) -> list[Part]:
        """What waits at the end for output of TLS that never came, unchanged."""
        if not self._waiting or self.tls is None:
            return []
        c, events = self.tcp.connection[0], np.zeros(1, SEGMENT).view(np.recarray)
        events.order_ns, events.ts_ns, events.packet_no, events.file = c.now_ns, c.last_ns, c.last_packet, c.last_file
        events.window, events.wire_len = 1, 1
        found = _unchanged(self._waiting, 0)
        self._waiting, self.passthrough = None, True
        segments = np.empty(len(found.event), SEGMENT).view(np.recarray)
        merge(events, *found[:4], self.totals, segments)
        flows = np.frombuffer(self.flow, np.uint8).reshape(1, FLOW_KEY_BYTES)
        return [Part(flows, np.array([len(segments)]), segments, found.octets, self)]

    def _enlarge(self, code: int, direction: int) -> None:
        self.tcp = self.tcp._replace(streams=enlarge_stream(self.tcp.streams, code, direction))

    def _ordered(self) -> list[Part]:
        """The output of `order`, through the layers, as one part."""
        count = int(self.tcp.used[0])
        if not count:
            return []
        events = self.tcp.out[:count]
        data = np.flatnonzero(events["wire_len"])
        columns = [events[name][data].astype(np.int64) for name in ("direction", "payload_at", "cap_len", "wire_len")]
        sizes = np.where(columns[2] == 0, -columns[3], columns[2])
        found = self._read(Chunks(data, columns[0], columns[1], sizes, self.tcp.octets))
        segments = np.empty(len(found.event) + count - len(data), SEGMENT).view(np.recarray)
        merge(events, *found[:4], self.totals, segments)
        self.tcp.used[:] = 0
        payload = found.octets.copy() if found.octets is self.tcp.octets else found.octets
        flows = np.frombuffer(self.flow, np.uint8).reshape(1, FLOW_KEY_BYTES)
        return [Part(flows, np.array([len(segments)]), segments, payload, self)]

    def _read(self, chunks: Chunks) -> Chunks:
        """Chunks of TCP through all layers; unchanged if no layer can be read."""
        if self.passthrough:
            return chunks
        if self._waiting is None:
            return self._through(chunks)
        count = len(chunks.event)
        waiting = self._waiting_bytes + np.cumsum(np.where(chunks.size < 0, HOLE_COST, chunks.size))
        last = min(int(np.searchsorted(waiting, LIMITS.layer_bytes, "right")), count - 1)
        first = chunks.part(0, last + 1)
        found = self._through(first)
        if len(found.event):
            self._waiting = None
            return found if last == count - 1 else joined(found, self._through(chunks.part(last + 1, count)))
        if self.stack[0].stopped:
            last = int(np.flatnonzero(chunks.event == self.stack[0].stopped_at)[0])
        elif not count or waiting[last] <= LIMITS.layer_bytes:
            self._waiting += chunks.contents()
            self._waiting_bytes = int(waiting[-1]) if count else self._waiting_bytes
            return found
        else:
            self.limits |= HANDSHAKE
        before, self._waiting, self.passthrough = self._waiting, None, True
        first = chunks.part(0, last + 1)
        return joined(_unchanged(before + first.contents(), int(first.event[-1])), chunks.part(last + 1, count))

    def _through(self, chunks: Chunks) -> Chunks:
        """Chunks of TCP through all layers. The first output of TLS may begin a WebSocket layer."""
        found = self.stack[0].read(chunks)
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
    def output_bytes(self) -> list[int]:
        """Octets that the decoder was fed, by direction."""
        return [int(octets) for octets in self.totals[CAPTURED]]

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
            "unread_because": next((reason for layer in self.stack if (reason := layer.why_unread())), None),
        }

    def correct(self, directions: np.ndarray) -> None:
        """Correct the counters of both directions to those of the wire."""
        for direction in (0, 1):
            d, wire = directions[direction], self.tcp.directions[direction]
            d["packets"] += int(wire["packets"]) - self.totals[SEGMENTS, direction]
            d["payload_bytes"] += int(wire["payload_bytes"]) - self.totals[CAPTURED, direction]
            d["missing_bytes"] += int(wire["missing_bytes"]) - self.totals[MISSING, direction]
            for name in ADDED:
                d[name] += wire[name]
            d["limits"] |= int(wire["limits"]) | self.limits
            for layer in self.stack:
                d["limits"] |= layer.limits
            d["max_silence_ns"] = max(int(d["max_silence_ns"]), int(wire["max_silence_ns"]))
            if self.passthrough:
                continue
            decrypted = self.stack[0].output_bytes[direction] if self.tls else 0
            inside = decrypted if self.tls else int(wire["payload_bytes"])
            d["tls_bytes"] += int(wire["payload_bytes"]) - inside
            d["websocket_bytes"] += inside - self.totals[CAPTURED, direction]
            d["decrypted_bytes"] += decrypted
        if not any(self.output_bytes) and self.tls:
            directions["mode"] = TLS


def _unchanged(contents: list[tuple[int, bytes | int]], event: int) -> Chunks:
    """Chunks of these (direction, content), at one event."""
    out = Output(sum(len(content) for _, content in contents if isinstance(content, bytes)))
    for direction, content in contents:
        out.add(event, direction, content)
    return out.chunks()
