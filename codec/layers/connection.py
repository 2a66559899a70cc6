"""One connection whose AMQP is in TLS or WebSocket: its TCP in order, through its layers, as segments for the decoder.

For each packet the output has a segment without payload, and before it a segment for each chunk that the packet
completed. Sequence numbers continue those of the segments before the first layer. At the end comes a summary of what
was counted on the wire (`codec.framing.layered`).

Until a layer has its first output it may turn out to be none: its input waits, with the events that completed it, and
then passes unchanged (`Attempt`). A connection that ends meanwhile passes as well.
"""

from __future__ import annotations

import dataclasses
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.framing.connection import CONNECTION_RECORD
from codec.framing.connection_state import (
    STREAM_ARRAYS,
    file_numbers,
    renumber_all,
    retain_used_files,
    stream_arrays,
)
from codec.framing.layered import SUMMARY, summary
from codec.layers import tls_handshake as handshake
from codec.layers.chunks import (
    NEW_CONNECTION,
    NO_CHUNKS,
    Attempt,
    Chunks,
    Layer,
    Tcp,
    begin_anew,
    concat_chunks,
    end_order,
    order,
)
from codec.layers.http import COMPLETE, MORE, asks_for_websocket
from codec.layers.short import BASE, CAPTURED, MISSING, NO_BASE, OUTPUT, SEGMENTS, TOTALS, WIRE
from codec.layers.tls_ciphers import SUITES, Cipher, cipher, keys_13
from codec.layers.tls_handshake import CLIENT_RANDOM, Hello, Opener
from codec.layers.tls_records import Tls
from codec.layers.websocket import SIDE, Inflater, WebSocket
from codec.memory import as_records
from codec.net.layers import (
    ACK,
    ENDS_LAYERS,
    FLOW_BYTES,
    IN_LAYERS,
    IS_LATE,
    IS_LOST,
    PEER_IS_LATE,
    SEGMENT,
    SYN,
    first_byte,
)
from codec.tcp.reassembly import (
    DIRECTION,
    DONE,
    MARK,
    PIECE,
    TOO_SMALL,
    WRAP,
    Stream,
    anchor,
    enlarge_stream,
    enlarged,
)

# The state of a connection's layers as JSON values: saved after one capture, restored with the next.
#
# It has the secrets of the connection and is part of `ConnectionState` only on request (`Layers(carry=True)`): keep
# such states as private as a key log.


Value = Any  # of JSON
_ARRAYS = {
    "connection": CONNECTION_RECORD,
    "directions": DIRECTION,
    **{f"{name}{side}": kind for side in (0, 1) for name, kind in (
        ("bytes", np.dtype("u1")), ("marks", MARK), ("pieces", PIECE), ("pool", np.dtype("u1")),
    )},
    "waiting": SEGMENT,
}  # fmt: skip
# Attributes with plain values. Ciphers are derived from secrets again.
_TLS = ("early_suite", "reason", "alpn", "budget", "output_bytes", "early_accepted", "limits", "waiting_bytes")
_TLS_SIDE = tuple(
    field.name for field in dataclasses.fields(handshake.Side) if field.name not in ("cipher", "trying", "stages")
)
_WEBSOCKET = ("reason", "subprotocol", "asked", "accepted", "output_bytes", "limits", "expanded")


def to_json(value: Value) -> Value:
    """Bytes as a JSON value; everything else unchanged."""
    return {"base64": b64encode(value).decode()} if isinstance(value, bytes | bytearray) else value


def from_json(value: Value) -> Value:
    """The inverse of `to_json`."""
    return b64decode(value["base64"]) if isinstance(value, dict) and set(value) == {"base64"} else value


def _set_all(layer: Layer, names: Sequence[str], state: Mapping[str, Value]) -> None:
    for name in names:
        value = state[name]
        setattr(layer, name, list(value) if isinstance(value, list) else value)


def save_tcp(tcp: Tcp, waiting: np.ndarray, files: Sequence[str]) -> dict[str, Value]:
    """The TCP of a connection, and `waiting` events of it; `files`: capture files by number."""
    directions = np.array(tcp.directions)
    arrays: dict[str, np.ndarray] = {"connection": np.array(tcp.connection), "directions": directions}
    arrays["waiting"] = np.array(waiting)
    for side in (0, 1):
        arrays |= {f"{name}{side}": array for name, array in stream_arrays(tcp, side, directions).items()}
    arrays, used = retain_used_files(arrays, files)
    return {"files": used} | {name: to_json(arrays[name].tobytes()) for name in _ARRAYS}


def restore_tcp(state: Mapping[str, Value], number: Callable[[str], int], tcp: Tcp) -> tuple[Tcp, np.ndarray]:
    """The inverse of `save_tcp`, in the arrays of `tcp`; `number` gives the number of a capture file."""
    arrays = {name: np.frombuffer(from_json(state[name]), kind) for name, kind in _ARRAYS.items()}
    arrays = renumber_all(arrays, file_numbers(state["files"], number))
    begin_anew(tcp)
    tcp.connection[:] = arrays["connection"]
    tcp.directions[:] = arrays["directions"]
    streams = []
    for side in (0, 1):
        room = {}
        for name in STREAM_ARRAYS:
            array, room[name] = arrays[f"{name}{side}"], getattr(tcp.streams[side], name)
            while len(array) > len(room[name]):
                room[name] = enlarged(room[name])
            room[name][: len(array)] = array
        streams.append(Stream(**room))
    return tcp._replace(streams=(streams[0], streams[1])), as_records(arrays["waiting"])


def _save_hello(hello: Hello | None) -> Value:
    if hello is None:
        return None
    extensions = {str(kind): data.hex() for kind, data in hello.extensions.items()}
    return [hello.version, hello.random.hex(), hello.session.hex(), hello.suites, extensions]


def _restore_hello(state: Value) -> Hello | None:
    if state is None:
        return None
    version, random, session, suites, extensions = state
    found = {int(kind): bytes.fromhex(data) for kind, data in extensions.items()}
    return Hello(version, bytes.fromhex(random), bytes.fromhex(session), tuple(suites), found)


def save_tls(tls: Tls) -> dict[str, Value]:
    """A TLS layer, with its secrets."""
    sides = [
        {name: to_json(getattr(side, name)) for name in _TLS_SIDE}
        | {
            "open": side.cipher is not None,
            "trying": _save_stage(side.trying),
            "stages": [_save_stage(stage) for stage in side.stages],
        }
        for side in tls.sides
    ]
    return {
        "client": tls.client,
        "secrets": {label.decode(): [secret.hex() for secret in secrets] for label, secrets in tls.secrets.items()},
        "sides": sides,
        "hellos": [_save_hello(hello) for hello in tls.hellos],
        "suite": next((code for code, suite in SUITES.items() if suite is tls.suite), None),
        "early": [to_json(part) for part in tls.waiting_early],
        **{name: getattr(tls, name) for name in _TLS},
    }


def _save_stage(stage: Sequence[Opener]) -> Value:
    return [[opener.label.decode(), opener.secret.hex()] for opener in stage]


def restore_tls(state: Mapping[str, Value]) -> Tls:
    """The inverse of `save_tls`."""
    secrets = {
        label.encode(): tuple(bytes.fromhex(secret) for secret in candidates)
        for label, candidates in state["secrets"].items()
    }
    tls = Tls(state["client"], secrets)
    _set_all(tls, _TLS, state)
    tls.hellos = [_restore_hello(hello) for hello in state["hellos"]]
    tls.suite = None if state["suite"] is None else SUITES[state["suite"]]
    waiting = [from_json(part) for part in state["early"]]
    tls.waiting_early = [part if isinstance(part, int) else bytearray(part) for part in waiting]
    for direction, (side, known) in enumerate(zip(tls.sides, state["sides"], strict=True)):
        for name in _TLS_SIDE:
            value = from_json(known[name])
            if isinstance(value, list):
                value = [tuple(each) for each in value]
            setattr(side, name, bytearray(value) if isinstance(getattr(side, name), bytearray) else value)
        side.trying = _restore_stage(tls, direction, known["trying"])
        side.stages = [_restore_stage(tls, direction, stage) for stage in known["stages"]]
        if known["open"]:
            side.cipher = _restore_cipher(tls, direction, side)
    return tls


def _restore_stage(tls: Tls, direction: int, stage: Value) -> list[Opener]:
    return [
        opener for label, secret in stage for opener in tls.openers(direction, label.encode(), [bytes.fromhex(secret)])
    ]


def _restore_cipher(tls: Tls, direction: int, side: handshake.Side) -> Cipher:
    """The cipher that has authenticated records of a direction."""
    if side.early and tls.early_suite is not None:
        suite = SUITES[tls.early_suite]
        return cipher(suite, keys_13(suite, side.secret))
    (opener,) = tls.openers(direction, CLIENT_RANDOM, [side.secret])
    return opener.cipher


def save_websocket(layer: WebSocket) -> dict[str, Value]:
    """A WebSocket layer."""
    buffered = [layer.buffered[side, : layer.state["buffered"][side]].tobytes() for side in (0, 1)]
    inflaters = [_all_to_json(each.state()) if each is not None else None for each in layer.inflaters]
    return {
        "client": layer.client,
        "state": to_json(layer.state.tobytes()),
        "buffered": [to_json(data) for data in buffered],
        "inflaters": inflaters,
        **{name: getattr(layer, name) for name in _WEBSOCKET},
    }


def restore_websocket(state: Mapping[str, Value]) -> WebSocket:
    """The inverse of `save_websocket`."""
    layer = WebSocket(state["client"])
    _set_all(layer, _WEBSOCKET, state)
    layer.state[:] = np.frombuffer(from_json(state["state"]), SIDE)
    for side, data in enumerate(map(from_json, state["buffered"])):
        layer.buffered[side, : len(data)] = np.frombuffer(data, np.uint8)
    layer.inflaters = [
        Inflater.restore({name: from_json(value) for name, value in each.items()}) if each is not None else None
        for each in state["inflaters"]
    ]
    return layer


def _all_to_json(values: Mapping[str, Value]) -> dict[str, Value]:
    return {name: to_json(value) for name, value in values.items()}


def save_layer(layer: Layer) -> dict[str, Value]:
    """A layer, by its kind."""
    if isinstance(layer, Tls):
        return {"tls": save_tls(layer)}
    assert isinstance(layer, WebSocket)
    return {"websocket": save_websocket(layer)}


def holds_secrets(state: Mapping[str, Value]) -> bool:
    """Whether the state of a connection has TLS secrets."""
    return any("tls" in attempt["layer"] for attempt in state["stack"])


def restore_layer(state: Mapping[str, Value]) -> Layer:
    """The inverse of `save_layer`."""
    return restore_tls(state["tls"]) if "tls" in state else restore_websocket(state["websocket"])


def save_attempt(attempt: Attempt) -> dict[str, Value]:
    """A layer and its input that waits (`codec.layers.connection.Attempt`)."""
    waiting = None
    if attempt.waiting is not None:
        chunks = concat_chunks(NO_CHUNKS, *attempt.waiting)
        waiting = [column.tolist() for column in chunks[:4]] + [to_json(chunks.data.tobytes())]
    return {"layer": save_layer(attempt.layer), "waiting": waiting, "cost": attempt.cost, "passes": attempt.passes}


def restore_attempt(state: Mapping[str, Value]) -> Attempt:
    """The inverse of `save_attempt`."""
    waiting = None
    if state["waiting"] is not None:
        *columns, data = state["waiting"]
        waiting = [Chunks._make([*np.array(columns, np.int64), np.frombuffer(from_json(data), np.uint8)])]
    return Attempt(restore_layer(state["layer"]), waiting, state["cost"], state["passes"])


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
    `out`: how many. `totals` int64 (5, 2), by direction: the sequence number of the first byte; bytes of output,
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
                if self.tls is not None and asks_for_websocket(found.data, begin, begin + size) in (MORE, COMPLETE):
                    self.stack.append(Attempt(WebSocket(int(found.direction[first]))))
                    return concat_chunks(found.part(0, first), self.stack[1].read(found.part(first, len(found.size))))
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
                found = concat_chunks(found, *holes) if holes else found
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
            "undecoded_reason": next(
                (reason for attempt in self.stack if (reason := attempt.layer.why_unread())), None
            ),
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
        self._begin(direction, first_byte(segment))
        if int(segment["flags"]) & ACK:
            self._begin(1 - direction, int(segment["ack"]))
        self.waiting: np.ndarray = NO_EVENTS  # events of chunks that wait

    def state(self, files: Sequence[str]) -> dict[str, Any]:
        """The state as JSON values, secrets included; `files`: capture files by number."""
        return {
            "tcp": save_tcp(self.tcp, self.waiting, files),
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
        found.tcp, found.waiting = restore_tcp(state["tcp"], number, tcp)
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
        wire_bytes = self.tcp.data[: self.tcp.used[1]]
        found = self.layers.through(Chunks(data + len(self.waiting), columns[0], columns[1], sizes, wire_bytes))
        payload = wire_bytes.copy() if found.data is wire_bytes else found.data
        part = self._part(events, found, payload)
        self.tcp.used[:] = 0
        return [part]

    def _part(self, events: np.ndarray, found: Chunks, payload: np.ndarray) -> Part:
        """Segments of the output of the layers. What waits for these events and those before is held."""
        if len(self.waiting):
            events = as_records(np.concatenate([self.waiting, events]))
        packets = len(events) - int(np.count_nonzero(events["wire_len"]))
        segments = as_records(np.empty(len(found.event) + packets, SEGMENT))
        merge(events, 0, *found[:4], self.totals, segments)
        waiting = [chunks for attempt in self.layers.stack for chunks in attempt.waiting or ()]
        if waiting:
            used = np.unique(np.concatenate([chunks.event for chunks in waiting]))
            self.waiting = as_records(events[used].copy())
            for chunks in waiting:
                chunks.event[:] = np.searchsorted(used, chunks.event)
        else:
            self.waiting = NO_EVENTS
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
        found = self.layers.rest(len(self.waiting), self.tcp.directions["packets"].tolist())
        return [self._part(last, found, found.data)] if len(found.event) else []

    @property
    def output_bytes(self) -> list[int]:
        """Bytes that the decoder was fed, by direction."""
        return [int(data) for data in self.totals[CAPTURED]]

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
