"""Finds connections whose AMQP is in TLS or WebSocket, among segments of others.

    layers = Layers(secrets)
    for part in layers.feed(flows, ends, segments, payload):    # groups of flows, as the decoder is fed
        ...                                                     # part.segments go to the decoder
    layers.concluded(connections, directions)                   # correct what the decoder counted

Segments pass untouched until one begins with a ClientHello whose secrets are known, or with an upgrade to WebSocket.
From there on `codec.layers.connection` reads the connection. TLS without secrets passes untouched: the decoder knows
what to report of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from codec.layers.candidates import first_candidate, head_at
from codec.layers.connection import LayeredConnection, Part
from codec.layers.stretches import Layer
from codec.layers.tls.hello import random_of
from codec.layers.tls.keylog import SecretSource
from codec.layers.tls.records import Tls
from codec.layers.tls.trial import HEAD, match_secrets
from codec.layers.websocket import WebSocket, is_upgrade
from codec.net.segments import SYN

TRIED = 2  # records of a connection that began before the capture on which secrets are tried
TRIED_SEGMENTS = 64  # among so many segments
# Connections in vain, each some 0.3 processor seconds: so many, and one more for so many octets of segments.
TRIED_CONNECTIONS, OCTETS_PER_CONNECTION = 32, 1 << 24


class Layers:
    """Finds the connections that have layers, one flow after the other. `carry`: states of TLS connections may be
    exported, with their secrets; those of WebSocket in clear always are. `parking`: where a flow has no more segments,
    its connection does not end, but waits for `parked`. `resuming`: a flow may continue a connection of an earlier
    capture, which is passed to `resume` after the first part of that flow, which has no segments."""

    def __init__(self, secrets: SecretSource | None = None, carry: bool = False) -> None:
        self.carry, self._secrets = carry, secrets
        self.parking = self.resuming = False
        self._recent = secrets.recent() if secrets is not None else []
        self._flow_key = b""
        self._current: LayeredConnection | None = None
        self._parked: dict[bytes, LayeredConnection] = {}
        self._ended: dict[int, LayeredConnection] = {}
        self._octets = self._in_vain = 0  # seen; connections on which secrets were tried

    def feed(self, flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray) -> Iterator[Part]:
        """The same flows, with the contents of their layers."""
        starts = np.append(0, ends[:-1])
        self._octets += len(payload)
        tried = self._recent and bool((segments["flags"][starts[starts < ends]] & SYN == 0).any())
        if self._current is None and not (self.resuming or tried) and first_candidate(segments, payload, 0) < 0:
            yield Part(flows, ends, segments, payload)
            return
        begin = 0
        for flow, end in zip(flows, ends.tolist(), strict=True):
            yield from self._flow(flow, segments[begin:end], payload)
            begin = end

    def finish(self) -> Iterator[Part]:
        """The current flow has no more segments."""
        if self._current is not None and self.parking and (self.carry or self._current.tls is None):
            self._parked[self._current.flow] = self._current
            self._current = None
        yield from self._end()

    def parked(self, flow: bytes) -> LayeredConnection | None:
        """The connection of a flow that has no more segments, once."""
        return self._parked.pop(flow, None)

    def resume(self, layered: LayeredConnection) -> None:
        """The current flow continues this connection."""
        self._current = layered

    def end(self, layered: LayeredConnection) -> Iterator[Part]:
        """A connection has ended, or is treated so."""
        yield from layered.end()
        self._ended[layered.connection_id] = layered

    def _end(self) -> Iterator[Part]:
        """The current connection has ended."""
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
            tls = self._begun_before(segments, payload)
            self._current = LayeredConnection(flow.tobytes(), segments[0], tls) if tls is not None else None
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
                self._current = LayeredConnection(flow.tobytes(), segments[stop], layer)
            i = stop

    def _next(self, segments: np.ndarray, payload: np.ndarray, i: int) -> tuple[int, Layer | None]:
        """The first segment from `i` on with which a layer begins, and the layer."""
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
        if self._in_vain >= TRIED_CONNECTIONS + self._octets // OCTETS_PER_CONNECTION:
            return None
        tried = 0
        for g in segments[:TRIED_SEGMENTS]:
            at = int(g["payload_at"])
            octets = payload[at : at + int(g["cap_len"])].tobytes()
            if octets.startswith(HEAD):
                found = match_secrets(octets, self._recent)
                if found is not None:
                    return Tls.from_match(int(g["direction"]), found)
                tried += 1
                if tried == TRIED:
                    break
        self._in_vain += tried > 0
        return None

    def has_ended(self, connection: int) -> bool:
        """Whether this connection had layers and has ended."""
        return connection in self._ended

    def concluded(self, connections: np.ndarray, directions: np.ndarray) -> dict[int, dict[str, Any]]:
        """Correct the records of ended connections; the facts of those that had layers, by place."""
        found = {}
        if self._ended:
            for place, connection in enumerate(connections["connection_id"].tolist()):
                layered = self._ended.pop(connection, None)
                if layered is not None:
                    layered.correct(directions[place])
                    found[place] = layered.facts()
        return found
