"""One connection whose AMQP is in TLS or WebSocket: its TCP in order, through its layers, as segments for the decoder.

For each packet the output has a segment without payload, and before it a segment for each chunk that the packet
completed. Sequence numbers continue those of the segments before the first layer. At the end comes a summary of what
was counted on the wire (`codec.amqp.connections.layered`).

Until a layer has its first output it may turn out to be none: its input waits, with the events that completed it, and
then passes unchanged (`Attempt`). A connection that ends meanwhile passes as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from codec.amqp.connections.layered import SUMMARY, summary
from codec.compiler.kernel import kernel
from codec.layers.chunks import NO_CHUNKS, Attempt, Chunks, Layer, joined
from codec.layers.http import COMPLETE, MORE, asks_for_websocket
from codec.layers.ordered import NEW_CONNECTION, Tcp, end_order, order
from codec.layers.short import BASE, CAPTURED, MISSING, NO_BASE, OUTPUT, SEGMENTS, TOTALS, WIRE
from codec.layers.state import restore_attempt, restore_tcp, save_attempt, save_tcp
from codec.layers.tls.records import Tls
from codec.layers.websocket import WebSocket
from codec.memory import as_records
from codec.net.segments import (
    ACK,
    ENDS_LAYERS,
    FLOW_BYTES,
    IN_LAYERS,
    IS_LATE,
    IS_LOST,
    PEER_IS_LATE,
    SEGMENT,
    SYN,
    first_octet,
)
from codec.tcp.direction import DONE, TOO_SMALL, enlarge_stream
from codec.tcp.reassembly import WRAP, anchor

NO_EVENTS = as_records(np.zeros(0, SEGMENT))


class Part(NamedTuple):
    """Segments for the decoder, as `Decoder.feed_flows` takes them; `layered`: the connection that they are of, unless
    it was read together with others (`codec.layers.stack.Layers`)."""

    flows: np.ndarray
    ends: np.ndarray
    segments: np.ndarray
    payload: np.ndarray
    layered: LayeredConnection | None = None


@dataclass
class EndedLayers:
    """What remains of a connection that has ended. `facts`: for the columns of `codec.layers.stack`; `counted` int64
    (2, SUMMARY): by direction, for its summary; `is_tls`: nothing was decrypted."""

    facts: dict[str, Any]
    counted: np.ndarray
    is_tls: bool


@kernel
def merge(events, packets_from, event, direction, begin, size, totals, out):
    """Write segments for chunks (columns of `Chunks`) and for the packets among `events[packets_from:]`, in order, to
    `out`: how many. `totals` int64 (5, 2), by direction: the sequence number of the first octet; octets of output,
    missing ones included; captured ones; missing ones; segments."""
    count = chunk = 0
    for i in range(len(events)):
        is_packet = i >= packets_from and events[i].wire_len == 0
        while is_packet or (chunk < len(event) and event[chunk] == i):
            out[count] = events[i]
            g = out[count]
            count += 1
            length = 0
            if not is_packet:
                g.direction = direction[chunk]
                length = abs(size[chunk])
                g.wire_len, g.cap_len, g.payload_at = length, max(size[chunk], 0), begin[chunk]
                # A hole of the output at bytes of the input is what a layer lost.
                lost = IS_LOST if size[chunk] < 0 and events[i].cap_len > 0 else 0
                g["flags"] = ACK | lost | (g["flags"] & (PEER_IS_LATE | IS_LATE | IS_LOST))
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
            g["flags"] |= IN_LAYERS
            totals[SEGMENTS, side] += 1
            if is_packet:
                break
    return count


class LayerStack:
    """The layers of a connection, one inside the other."""

    def __init__(self, layer: Layer) -> None:
        self.stack = [Attempt(layer)]
        self.any_content = False  # whether the first layer had output

    def through(self, chunks: Chunks) -> Chunks:
        """Chunks of TCP through all layers. The first output of TLS may begin a WebSocket layer."""
        found = self.stack[0].read(chunks)
        if not self.any_content:
            contents = np.flatnonzero(found.size > 0)
            if len(contents):
                self.any_content, first = True, int(contents[0])
                begin, size = int(found.begin[first]), int(found.size[first])
                if self.tls is not None and asks_for_websocket(found.octets, begin, begin + size) in (MORE, COMPLETE):
                    self.stack.append(Attempt(WebSocket(int(found.direction[first]))))
                    return joined(found.part(0, first), self.stack[1].read(found.part(first, len(found.size))))
        return self.stack[1].read(found) if len(self.stack) > 1 else found

    def rest(self, event: int, packets: Sequence[int]) -> Chunks:
        """The connection has ended: what still waits passes unchanged, and missing bytes for which no layer had a hole
        are one hole at the end of their direction, of `event`. `packets`: how many each side sent."""
        found = NO_CHUNKS
        for attempt in self.stack:
            layer = attempt.layer
            if attempt.waiting is not None and not layer.accepted:
                layer.give_up(bool(packets[1 - layer.client]))
                found = attempt.passed(found)
            elif len(found.event):
                found = attempt.read(found)
            if not attempt.passes:
                holes = [Chunks.hole(event, side, owed) for side in (0, 1) if (owed := layer.owed(side))]
                found = joined(found, *holes) if holes else found
            attempt.waiting = None
        return found

    @property
    def passthrough(self) -> bool:
        """Whether the first layer is none."""
        return self.stack[0].passes

    @property
    def tls(self) -> Tls | None:
        """The TLS layer, if there is one."""
        layer = self.stack[0].layer
        return layer if isinstance(layer, Tls) else None

    @property
    def websocket(self) -> WebSocket | None:
        """The WebSocket layer, if there is one."""
        layer = self.stack[-1].layer
        return layer if isinstance(layer, WebSocket) else None

    def facts(self) -> dict[str, Any]:
        """Facts for the columns of `codec.layers.stack`."""
        websocket = self.websocket
        return {
            "tls": dict(self.tls.facts()) if self.tls else None,
            "websocket": websocket is not None and websocket.accepted,
            "unread_because": next((reason for attempt in self.stack if (reason := attempt.layer.why_unread())), None),
        }

    def ended(self, wire: Mapping[str, np.ndarray], totals: np.ndarray) -> EndedLayers:
        """What remains of the connection, which has ended. `wire`: int64 (2,) each, fields of both directions of its
        TCP."""
        decrypted, captured = np.zeros(2, np.int64), totals[CAPTURED]
        payload = inside = wire["payload_bytes"]
        is_encrypted = self.tls is not None and not self.passthrough
        if self.tls is not None and is_encrypted:
            inside = decrypted = np.array(self.tls.output_bytes, np.int64)
        layers = [attempt.layer for attempt in self.stack]
        expansion = np.array([sum(layer.expansion(side) for layer in layers) for side in (0, 1)])
        limits = np.array(wire["limits"])
        for layer in layers:
            limits |= layer.limits
        counted = {
            **wire,
            "packets": wire["packets"] - totals[SEGMENTS],
            "payload_bytes": payload + expansion - captured,
            "tls_bytes": payload - inside,
            "websocket_bytes": inside + expansion - captured,
            "decrypted_bytes": decrypted,
            "limits": limits,
        }
        columns = np.array([counted[name] for name in SUMMARY])
        return EndedLayers(self.facts(), columns.T, is_encrypted and not captured.any())


class LayeredConnection:
    """The TCP and the layers of a connection, and the sequence numbers of their output. `tcp`: of a new connection."""

    def __init__(self, flow: bytes, segment: Any, layer: Layer, tcp: Tcp) -> None:
        self.flow, self.tcp = flow, tcp
        self.layers = LayerStack(layer)
        self.totals = np.zeros((len(TOTALS), 2), np.int64)
        self.totals[BASE] = NO_BASE
        direction = int(segment["direction"])
        self._begin(direction, first_octet(segment))
        if int(segment["flags"]) & ACK:
            self._begin(1 - direction, int(segment["ack"]))
        self.held: np.ndarray = NO_EVENTS  # events of chunks that wait

    def state(self, files: Sequence[str]) -> dict[str, Any]:
        """The state as JSON values, secrets included; `files`: capture files by number."""
        return {
            "tcp": save_tcp(self.tcp, self.held, files),
            "stack": [save_attempt(attempt) for attempt in self.layers.stack],
            "totals": self.totals.tolist(),
            "any_content": self.layers.any_content,
        }

    @classmethod
    def restore(
        cls, flow: bytes, state: Mapping[str, Any], number: Callable[[str], int], tcp: Tcp
    ) -> LayeredConnection:
        """The inverse of `state`; `number` gives the number of a capture file; `tcp`: of a new connection."""
        found = cls.__new__(cls)
        found.flow = flow
        found.tcp, found.held = restore_tcp(state["tcp"], number, tcp)
        found.layers = LayerStack.__new__(LayerStack)
        found.layers.stack = [restore_attempt(attempt) for attempt in state["stack"]]
        found.layers.any_content = state["any_content"]
        found.totals = np.array(state["totals"], np.int64)
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
                return parts + self._rest()

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
        octets = self.tcp.octets[: self.tcp.used[1]]
        found = self.layers.through(Chunks(data + len(self.held), columns[0], columns[1], sizes, octets))
        payload = octets.copy() if found.octets is octets else found.octets
        part = self._part(events, found, payload)
        self.tcp.used[:] = 0
        return [part]

    def _part(self, events: np.ndarray, found: Chunks, payload: np.ndarray) -> Part:
        """Segments of the output of the layers. What waits for these events and those before is held."""
        if len(self.held):
            events = as_records(np.concatenate([self.held, events]))
        packets = len(events) - int(np.count_nonzero(events["wire_len"]))
        segments = as_records(np.empty(len(found.event) + packets, SEGMENT))
        merge(events, 0, *found[:4], self.totals, segments)
        waiting = [chunks for attempt in self.layers.stack for chunks in attempt.waiting or ()]
        if waiting:
            used = np.unique(np.concatenate([chunks.event for chunks in waiting]))
            self.held = as_records(events[used].copy())
            for chunks in waiting:
                chunks.event[:] = np.searchsorted(used, chunks.event)
        else:
            self.held = NO_EVENTS
        return self._of(segments, payload)

    def _of(self, segments: np.ndarray, payload: np.ndarray) -> Part:
        flows = np.frombuffer(self.flow, np.uint8).reshape(1, FLOW_BYTES)
        return Part(flows, np.array([len(segments)]), segments, payload, self)

    def _rest(self) -> list[Part]:
        """The connection has ended: what still waits, and what is missing."""
        connection = self.tcp.connection[0]
        last = as_records(np.zeros(1, SEGMENT))
        last[0].order_ns, last[0].ts_ns = connection.now_ns, connection.last_ns
        last[0].packet_no, last[0].file = connection.last_packet, connection.last_file
        last["flags"], last["window"], last["wire_len"] = ACK | IS_LOST, 1, 1
        found = self.layers.rest(len(self.held), self.tcp.directions["packets"].tolist())
        return [self._part(last, found, found.octets)] if len(found.event) else []

    @property
    def output_bytes(self) -> list[int]:
        """Octets that the decoder was fed, by direction."""
        return [int(octets) for octets in self.totals[CAPTURED]]

    @property
    def passthrough(self) -> bool:
        """Whether the first layer is none."""
        return self.layers.passthrough

    @property
    def tls(self) -> Tls | None:
        """The TLS layer, if there is one."""
        return self.layers.tls

    def facts(self) -> dict[str, Any]:
        """See `LayerStack.facts`."""
        return self.layers.facts()

    def ended(self) -> EndedLayers:
        """See `LayerStack.ended`."""
        wire = self.tcp.directions.view(np.ndarray)
        return self.layers.ended({name: wire[name] for name in WIRE}, self.totals)

    def summary(self, number: int, ended: EndedLayers) -> Part:
        """The summary of the connection, whose facts have this number."""
        segment = as_records(np.zeros(1, SEGMENT))
        segment[0].order_ns, segment["flags"] = self.tcp.connection[0].now_ns, ENDS_LAYERS
        return self._of(segment, summary(np.array([number]), ended.counted[None]))
