"""Finds the connections whose AMQP is in TLS or WebSocket, among the segments of all connections.

    layers = Layers(secrets)
    for part in layers.feed(flows, ends, segments, payload):    # groups of flows, as for the decoder
        ...                                                     # part.segments go to the decoder
    layers.correct_ended(connections, directions)               # corrects the counters of the decoder

Segments pass unchanged until one begins with a ClientHello whose secrets are known, or with an upgrade to WebSocket.
From there on `codec.layers.connection` reads the connection. TLS without secrets passes unchanged to the decoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codec.amqp.connections.facts import tls_prefixes
from codec.amqp.connections.lifecycle import EndedConnections
from codec.amqp.proxy_header import proxy_header
from codec.compiler.kernel import kernel
from codec.cursor import ANY, begins
from codec.layers.chunks import Layer
from codec.layers.connection import SEGMENTS, LayeredConnection, Part
from codec.layers.tls.handshake import BEGAN_BEFORE, NO_HANDSHAKE, NO_SECRETS
from codec.layers.tls.hello import RECORD_HANDSHAKE, hello_facts, random_of
from codec.layers.tls.keylog import SecretSource
from codec.layers.tls.records import Tls
from codec.layers.tls.trial import HEAD, match_secrets
from codec.layers.websocket import WebSocket, is_upgrade
from codec.memory import readonly
from codec.net.segments import FIN, SYN, first_octet
from codec.tcp.direction import TLS

# Trial of secrets on a connection that began before the capture: on so many records, in so many segments.
TRIED_RECORDS, TRIED_SEGMENTS = 2, 64
# Bound on such trials, some 0.3 CPU seconds a connection that fits none of the secrets: so many connections, and one
# more for so many octets of segments. One that fits costs the share of the secrets that were tried before. It applies
# per task, so beyond it, which connections are tried depends on the partitioning.
TRIED_CONNECTIONS, OCTETS_PER_CONNECTION = 8, 1 << 24


HELLO_HEAD = 43  # octets of a record with a ClientHello up to the end of its random; no upgrade of HTTP is shorter
HELLO = (0x16, 3, ANY, ANY, ANY, 1, ANY, ANY, ANY, 3)  # handshake record, version 3.x, ClientHello, version 3.x
REQUEST = (0x47, 0x45, 0x54, 0x20)  # "GET "
HANDSHAKE_RECORD = bytes([RECORD_HANDSHAKE])
TRANSPORTS = ("tcp", "tls", "websocket", "websocket+tls")


@kernel
def first_candidate(segments, payload, i):
    """(index of the first segment from `i` on that begins like a ClientHello or an HTTP request, size of a header of
    the PROXY protocol before that); -1: none."""
    for j in range(i, len(segments)):
        g = segments[j]
        size, at = int(g.cap_len), int(g.payload_at)
        if size > 0:
            end, header = at + size, max(0, proxy_header(payload, at, at + size))
            if begins(payload, at + header, end, HELLO) or begins(payload, at + header, end, REQUEST):
                return j, header
    return -1, 0


def head_at(segments: np.ndarray, payload: np.ndarray, i: int, header: int = 0) -> bytes:
    """The payload of segment `i` from offset `header` on, continued by later segments up to HELLO_HEAD octets."""
    found, g = b"", segments[i]
    direction, seq = int(g["direction"]), first_octet(g)
    for other in segments[i : i + HELLO_HEAD * 4]:
        if len(found) >= header + HELLO_HEAD:
            break
        if int(other["direction"]) == direction and first_octet(other) == (seq + len(found)) % (1 << 32):
            found += payload[int(other["payload_at"]) : int(other["payload_at"]) + int(other["cap_len"])].tobytes()
    return found[header:]


def parted(segments: np.ndarray, i: int, header: int) -> np.ndarray:
    """A copy in which segment `i` is two: its first `header` octets, and the rest."""
    found = np.concatenate([segments[: i + 1], segments[i:]]).view(np.recarray)
    first, rest = found[i], found[i + 1]
    rest.seq = (first_octet(rest) + header) % (1 << 32)
    rest.payload_at += header
    rest.cap_len -= header
    rest.wire_len -= header
    first.cap_len = first.wire_len = header
    first["flags"] &= ~FIN & 0xFFFF
    rest["flags"] &= ~SYN & 0xFFFF
    return readonly(found)


class Layers:
    """Finds the connections that have layers, one flow after the other. `carry`: states of TLS connections may be
    saved, with their secrets; those of WebSocket in clear always may. `suspending`: at the end of a flow its connection
    does not end, but waits for `take_suspended`. `resuming`: a flow may continue a connection of an earlier capture,
    which is passed to `resume` after the first part of that flow, which has no segments."""

    def __init__(self, secrets: SecretSource | None = None, carry: bool = False) -> None:
        self.carry, self._secrets = carry, secrets
        self.suspending = self.resuming = False
        self._recent = secrets.recent() if secrets is not None else []
        self._flow_key = b""
        self._current: LayeredConnection | None = None
        self._suspended: dict[bytes, LayeredConnection] = {}
        self._ended: dict[int, LayeredConnection] = {}
        self._octets = 0  # of segments
        self._trials = 0.0  # records on which all secrets were tried

    def feed(self, flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray) -> Iterator[Part]:
        """The same flows, with the contents of their layers."""
        starts = np.append(0, ends[:-1])
        self._octets += len(payload)
        tried = self._recent and bool((segments["flags"][starts[starts < ends]] & SYN == 0).any())
        if self._current is None and not (self.resuming or tried) and first_candidate(segments, payload, 0)[0] < 0:
            yield Part(flows, ends, segments, payload)
            return
        begin = 0
        for flow, end in zip(flows, ends.tolist(), strict=True):
            yield from self._flow(flow, segments[begin:end], payload)
            begin = end

    def finish(self) -> Iterator[Part]:
        """The current flow has no more segments."""
        if self._current is not None and self.suspending and (self.carry or self._current.tls is None):
            self._suspended[self._current.flow] = self._current
            self._current = None
        yield from self._end()

    def take_suspended(self, flow: bytes) -> LayeredConnection | None:
        """The connection of a flow that has no more segments, once."""
        return self._suspended.pop(flow, None)

    def resume(self, layered: LayeredConnection) -> None:
        """The current flow continues this connection."""
        tls = layered.tls
        if tls is not None and tls.hellos[0] is not None and self._secrets is not None:
            tls.more = partial(self._secrets.others, tls.hellos[0].random)
        self._current = layered

    def end(self, layered: LayeredConnection) -> Iterator[Part]:
        """End a connection."""
        yield from layered.end()
        self._ended[layered.connection_id] = layered

    def _end(self) -> Iterator[Part]:
        """End the current connection."""
        if self._current is not None:
            yield from self.end(self._current)
            self._current = None

    def _flow(self, flow: np.ndarray, segments: np.ndarray, payload: np.ndarray) -> Iterator[Part]:
        if self._current is not None and self._current.flow != flow.tobytes():
            yield from self.finish()
        if self.resuming or not len(segments):
            yield Part(flow[None], np.zeros(1, np.int64), segments[:0], payload)
        begins, self._flow_key = self._flow_key != flow.tobytes(), flow.tobytes()
        if begins and self._current is None and not self.resuming and len(segments):
            tls = self._tls_before_capture(segments, payload)
            self._current = LayeredConnection(flow.tobytes(), segments[0], tls) if tls is not None else None
        i = 0
        while i < len(segments):
            if self._current is not None:
                parts, taken = self._current.feed(segments[i:], payload)
                yield from parts
                i += taken
                if i < len(segments):
                    yield from self._end()
                continue
            stop, layer, header = self._next(segments, payload, i)
            if header:
                segments, stop = parted(segments, stop, header), stop + 1
            if stop > i:
                yield Part(flow[None], np.array([stop - i]), segments[i:stop], payload)
            if layer is not None:
                self._current = LayeredConnection(flow.tobytes(), segments[stop], layer)
                if header:  # its packet is counted with the header, which has its SYN
                    side = int(segments[stop]["direction"])
                    self._current.totals[SEGMENTS, side] += 1
                    self._current.tcp.directions["syn"][side] = bool(segments["flags"][stop - 1] & SYN)
            i = stop

    def _next(self, segments: np.ndarray, payload: np.ndarray, i: int) -> tuple[int, Layer | None, int]:
        """The first segment from `i` on that begins a layer, the layer, and the size of a header of the PROXY protocol
        before it."""
        while True:
            i, header = first_candidate(segments, payload, i)
            if i < 0:
                return len(segments), None, 0
            g, octets = segments[i], head_at(segments, payload, i, header)
            random = random_of(octets)
            if random is not None and self._secrets is not None:
                secrets = self._secrets.secrets(random)
                if secrets:
                    return i, Tls(int(g["direction"]), secrets, partial(self._secrets.others, random)), header
            elif random is None and is_upgrade(octets):
                return i, WebSocket(int(g["direction"])), header
            i += 1

    def _tls_before_capture(self, segments: np.ndarray, payload: np.ndarray) -> Tls | None:
        """The TLS of a connection that began before the capture, if its secrets are found by trial."""
        if not self._recent or int(segments["flags"][0]) & SYN:
            return None
        if self._trials >= TRIED_RECORDS * (TRIED_CONNECTIONS + self._octets // OCTETS_PER_CONNECTION):
            return None
        tried = 0
        for g in segments[:TRIED_SEGMENTS]:
            at = int(g["payload_at"])
            octets = payload[at : at + int(g["cap_len"])].tobytes()
            if octets.startswith(HEAD):
                found = match_secrets(octets, self._recent)
                self._trials += 1 if found is None else found.share
                if found is not None:
                    self._recent.remove(found.known)  # no other connection has these: they are tried last
                    self._recent.append(found.known)
                    return Tls.from_match(int(g["direction"]), found)
                tried += 1
                if tried == TRIED_RECORDS:
                    break
        return None

    def has_ended(self, connection: int) -> bool:
        """Whether this connection had layers and has ended."""
        return connection in self._ended

    def correct_ended(self, connections: np.ndarray, directions: np.ndarray) -> dict[int, dict[str, Any]]:
        """Correct the records of ended connections; the facts of those that had layers, by place."""
        found = {}
        if self._ended:
            for place, connection in enumerate(connections["connection_id"].tolist()):
                layered = self._ended.pop(connection, None)
                if layered is not None:
                    layered.correct(directions[place])
                    found[place] = layered.facts()
        return found


def layer_facts(ended: EndedConnections) -> dict[int, dict[str, Any]]:
    """Facts for `connections.tls`, by place of the encrypted connection."""
    found: dict[int, dict[str, Any]] = {}
    prefixes = tls_prefixes(ended)
    for place in np.flatnonzero((ended.directions["mode"] == TLS).any(1)).tolist():
        known: dict[str, Any] = hello_facts(*prefixes.get(place, (b"", b"")))
        found[place] = known | {"decrypted": False}
    for place in prefixes:
        if place not in found:
            found[place] = dict(hello_facts(*prefixes[place])) | {"decrypted": False}
    for place, facts in ended.layers.items():
        if facts["tls"] is not None:
            found[place] = facts["tls"]
    for place, known in found.items():
        header_first = bool(ended.connections["offers"][place]) and place not in ended.layers
        upgraded = ended.layers[place]["upgraded"] if place in ended.layers else header_first
        known["mode"] = "upgraded" if upgraded else "implicit"
    return found


def unread(ended: EndedConnections) -> list[str | None]:
    """Why TLS or WebSocket was not read, or not to the end; None: was read."""
    found: list[str | None] = [None] * len(ended.connections)
    began, prefixes = ended.connections["syn_ns"] >= 0, tls_prefixes(ended)
    for place in np.flatnonzero((ended.directions["mode"] == TLS).any(1)).tolist():
        has_hello = any(octets[:1] == HANDSHAKE_RECORD for octets in prefixes.get(place, ()))
        found[place] = NO_SECRETS if has_hello else NO_HANDSHAKE if began[place] else BEGAN_BEFORE
    for place, facts in ended.layers.items():
        found[place] = facts["unread_because"]
    return found


def transports(ended: EndedConnections) -> NDArray[np.int64]:
    """Values of `connections.transport`, as places in TRANSPORTS."""
    found = np.where((ended.directions["mode"] == TLS).any(1), 1, 0).astype(np.int64)
    for place, facts in ended.layers.items():
        found[place] = (1 if facts["tls"] is not None else 0) + (2 if facts["websocket"] else 0)
    return found
