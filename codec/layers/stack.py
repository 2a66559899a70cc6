"""Finds the connections whose AMQP is in TLS or WebSocket, among the segments of all connections.

    layers = Layers(secrets)
    for part in layers.feed(flows, ends, segments, payload):    # groups of flows, as for the decoder
        ...                                                     # part.segments go to the decoder
    layers.facts(flows, connections, directions)                # of connections that the decoder has ended

Segments pass unchanged until a direction begins with a ClientHello whose secrets are known, or with a request of HTTP
that asks for WebSocket, or may do so. From there on `codec.layers.connection` reads the connection. TLS without secrets
passes unchanged to the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.compiler.kernel import kernel
from codec.framing.connection import EndedConnections
from codec.framing.layered import SUMMARY_BYTES, summary
from codec.layers import short as S
from codec.layers.chunks import NO_CHUNKS, Chunks, Layer, Tcp, begin_anew, new_tcp
from codec.layers.connection import EndedLayers, LayeredConnection, LayerStack, Part, merge
from codec.layers.connection_facts import tls_prefixes
from codec.layers.openings import (
    FULL,
    HEADER_BYTES,
    HEADERS,
    HELLO_HEAD,
    IS_MIDSTREAM,
    IS_REQUEST,
    KIND,
    NO_CANDIDATE,
    NOTHING,
    OPENINGS,
    OTHER,
    PROXY,
    PROXY_BEGINS,
    REASONS,
    REQUEST,
    REQUESTS,
    SEEN,
    TRIED_SEGMENTS,
    copy_openings,
    head_at,
    new_requests,
    next_candidate,
)
from codec.layers.short import AFTER, AT, DECIDED, FLOW, HEADER, SEGMENTS, WHAT, Short, clear, new_short
from codec.layers.tls_handshake import (
    BEGAN_BEFORE,
    NO_HANDSHAKE,
    NO_SECRETS,
    RECORD_HANDSHAKE,
    SecretSource,
    hello_facts,
    random_of,
)
from codec.layers.tls_records import Tls
from codec.layers.tls_recovery import HEAD, match_secrets
from codec.layers.websocket import WebSocket
from codec.memory import as_records, readonly
from codec.net.layers import (
    ENDS_LAYERS,
    FIN,
    SEGMENT,
    SYN,
    first_byte,
)
from codec.tcp.reassembly import (
    FOREIGN,
    START,
    TLS,
    WRAP,
    Stream,
)

# The layers of many short connections, whose TCP `codec.layers.short` has put in order: as
# `codec.layers.connection.LayeredConnection` reads one, but one call of each kernel for all.


FROM, TO, PACKETS_FROM, OF, CHUNKS, STEP_COLUMNS = 0, 1, 2, 3, 4, 5  # columns of `steps`


class Read(NamedTuple):
    """`segments`: of all connections, those of one up to its `ends` (int64), with its summary; `payload`: their bytes;
    `ended`: what remains of each."""

    segments: np.ndarray
    ends: np.ndarray
    payload: np.ndarray
    ended: list[EndedLayers]


@kernel
def merge_all(events, steps, event, direction, begin, size, totals, payload_at, out, ends):
    """`merge` for each row of `steps` int64 (n, STEP_COLUMNS): events, the first whose packets are written, the index
    of its connection in `totals` int64 (m, TOTALS, 2), the end of its chunks. Then its summary: that of the first
    connection has its payload at `payload_at`. `ends` int64 (m,): of its segments."""
    count = first = 0
    for k in range(len(steps)):
        step = steps[k]
        of, end = int(step[OF]), int(step[CHUNKS])
        count += merge(
            events[step[FROM] : step[TO]], int(step[PACKETS_FROM]), event[first:end], direction[first:end],
            begin[first:end], size[first:end], totals[of], out[count:],
        )  # fmt: skip
        if k + 1 == len(steps) or steps[k + 1, OF] != of:
            out[count] = events[step[TO] - 1]
            g = out[count]
            g.wire_len, g.cap_len, g.payload_at = 0, 0, payload_at + SUMMARY_BYTES * of
            g["flags"] = ENDS_LAYERS
            count += 1
        ends[of] = count
        first = end


class _Output:
    """Collects the chunks of connections, and the steps in which they become segments."""

    def __init__(self) -> None:
        self.columns: list[tuple[np.ndarray, ...]] = [NO_CHUNKS[:4]]
        self.data: list[np.ndarray] = []
        self.steps: list[tuple[int, int, int, int, int]] = []
        self.used = self.chunks = 0

    def add(self, found: Chunks, begin: int, end: int, packets_from: int, of: int) -> None:
        """Add chunks of events `begin` to `end` of connection `of`."""
        if len(found.event):
            self.columns.append((found.event, found.direction, found.begin + self.used, found.size))
            self.data.append(found.data)
            self.used += len(found.data)
            self.chunks += len(found.event)
        self.steps.append((begin, end, packets_from, of, self.chunks))


def read_all(short: Short, layers: Sequence[Layer], number: int) -> Read:
    """Read the first connections of `short`, which begin with these layers; their facts are numbered from `number`."""
    out, stacks, count = _Output(), list[LayerStack](), len(layers)
    rows, packets = short.rows[:count].tolist(), short.wire[:count, :, 0].tolist()
    for k, (row, layer) in enumerate(zip(rows, layers, strict=True)):
        stack, first, end = LayerStack(layer), row[S.EVENTS_FROM], row[S.EVENTS_TO]
        stacks.append(stack)
        before = first
        for to, chunks in _steps(short, row):
            out.add(stack.through(chunks), first, to, before - first, k)
            before = to
        rest = stack.rest(end - first, packets[k])
        if len(rest.event):
            out.add(rest, first, end + 1, end + 1 - first, k)
    event, direction, begin, size = (np.concatenate(column) for column in zip(*out.columns, strict=True))
    segments = np.empty(out.chunks + int(short.tcp.used[0]) + count, SEGMENT)
    ends, totals = np.zeros(count, np.int64), short.totals[:count]
    merge_all(
        short.tcp.out, np.array(out.steps), event, direction, begin, size, totals, out.used, as_records(segments), ends
    )
    ended = [
        stack.ended(dict(zip(S.WIRE, wire, strict=True)), of)
        for stack, wire, of in zip(stacks, short.wire[:count].transpose(0, 2, 1), totals, strict=True)
    ]
    summaries = summary(np.arange(number, number + count), np.array([each.counted for each in ended]))
    return Read(segments[: ends[-1]], ends, np.concatenate([*out.data, summaries]), ended)


def _steps(short: Short, row: list[int]) -> Iterator[tuple[int, Chunks]]:
    """(end of the events, their chunks) of a connection, as `LayeredConnection` reads them: those of the segment with a
    header of the PROXY protocol, of the other segments, and of the end."""
    first, begin, end = row[S.EVENTS_FROM], row[S.CHUNKS_FROM], row[S.CHUNKS_TO]
    data = short.tcp.data[row[S.BYTES_FROM] : row[S.BYTES_TO]]
    cuts = [row[S.FED_TO]] if row[S.FED_TO] == row[S.EVENTS_TO] else [row[S.FED_TO], row[S.EVENTS_TO]]
    if row[S.HEADER]:
        cuts.insert(0, row[S.FIRST_TO])
    chunks = Chunks._make([*(column[begin:end] for column in short.chunks), data])
    if len(cuts) == 1:
        yield cuts[0], chunks
        return
    stops = np.searchsorted(chunks.event, np.array(cuts) - first).tolist()
    for cut, start, stop in zip(cuts, [0, *stops], stops, strict=False):
        yield cut, chunks.part(start, stop)


# Trial of secrets on a connection that began before the capture: on so many records, in TRIED_SEGMENTS segments.
TRIED_RECORDS = 2
# Bound on such trials, some 0.3 CPU seconds a connection that fits none of the secrets: so many connections, and one
# more for so many bytes of segments. One that fits costs the share of the secrets that were tried before. It applies
# per task, so beyond it, which connections are tried depends on the partitioning.
TRIED_CONNECTIONS, BYTES_PER_CONNECTION = 8, 1 << 24

HANDSHAKE_RECORD = bytes([RECORD_HANDSHAKE])
SEGMENT_BYTES = np.dtype((np.void, SEGMENT.itemsize))  # the same without fields, which NumPy compares for each array
TRANSPORTS = ("tcp", "tls", "websocket", "websocket+tls")

FOREIGN_REQUEST = int.from_bytes(bytes(REQUEST), "big") + 1  # `foreign_head` of a direction


def split_segment(segment: np.ndarray, header: int) -> tuple[np.ndarray, np.ndarray]:
    """A segment (SEGMENT (1,)) as two: its first `header` bytes, and the rest."""
    both = as_records(np.concatenate([segment, segment]))
    first, rest = both[0], both[1]
    rest.seq = (first_byte(rest) + header) % (1 << 32)
    rest.payload_at += header
    rest.cap_len -= header
    rest.wire_len -= header
    first.cap_len = first.wire_len = header
    first["flags"] &= ~FIN & 0xFFFF
    rest["flags"] &= ~SYN & 0xFFFF
    return readonly(both[:1]), readonly(both[1:])


def part_of(
    flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray, begin: int, end: int,
) -> Part:  # fmt: skip
    """Segments `begin` to `end` of several flows, as a part."""
    some = slice(int(np.searchsorted(ends, begin, "right")), int(np.searchsorted(ends, end - 1, "right")) + 1)
    return Part(flows[some], np.minimum(ends[some], end) - begin, segments[begin:end], payload)


class Layers:
    """Finds the connections that have layers, one flow after the other. `carry`: states of TLS connections may be
    saved, with their secrets; those of WebSocket in clear always may. `together`: short connections are read many at
    once, and parts do not name them. `suspending`: at the end of a flow its connection
    does not end, but waits for `take_suspended`. `resuming`: a flow may continue a connection of an earlier capture,
    which is passed to `resume` after the first part of that flow, which has no segments."""

    def __init__(self, secrets: SecretSource | None = None, carry: bool = False, together: bool = True) -> None:
        self.carry, self._secrets, self._together = carry, secrets, together
        self.suspending = self.resuming = False
        self._recent = secrets.recent() if secrets is not None else []
        self._flow_key = b""
        self._openings, self._before = np.zeros((2, *OPENINGS), np.int64)  # of the current flow; scratch
        self._current: LayeredConnection | None = None
        self._suspended: dict[bytes, LayeredConnection] = {}
        self._ended: dict[int, EndedLayers] = {}  # by number
        self._count = 0  # of those that have ended
        self._unused: list[Tcp] = []  # arrays of connections that have ended
        self._short, self._requests = new_short(self._openings), new_requests()
        self._head = np.zeros(HELLO_HEAD, np.uint8)
        # Why connections with requests passed unchanged, by flow, file and number of their last packet.
        self._reasons: dict[tuple[bytes, int, int], str] = {}
        self._randoms, self._all_randoms = np.zeros(0, np.int64), secrets is None
        self._bytes = 0  # of segments
        self._trials = 0.0  # records on which all secrets were tried

    def feed(self, flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray) -> Iterator[Part]:
        """The same flows, with the contents of their layers."""
        self._bytes += len(payload)
        self._all_randoms = self._secrets is None  # key logs grow
        if not self.resuming:
            if len(flows):
                yield from self._flows(flows, ends, segments, payload)
            return
        begin = 0
        for flow, end in zip(flows, ends.tolist(), strict=True):
            if self._current is not None and self._current.flow != flow.tobytes():
                yield from self._leave()
            yield Part(flow[None], np.zeros(1, np.int64), segments[:0], payload)
            yield from self._flows(flow[None], np.array([end - begin]), segments[begin:end], payload)
            begin = end

    def finish(self) -> Iterator[Part]:
        """The current flow has no more segments."""
        yield from self._leave()
        self._flow_key = b""

    def _leave(self) -> Iterator[Part]:
        if self._current is not None and self.suspending and (self.carry or self._current.tls is None):
            self._suspended[self._current.flow] = self._current
            self._current = None
        yield from self._end()

    def take_suspended(self, flow: bytes) -> LayeredConnection | None:
        """The connection of a flow that has no more segments, once."""
        return self._suspended.pop(flow, None)

    def resume(self, flow: bytes, state: Mapping[str, Any], number: Callable[[str], int]) -> None:
        """The current flow continues the connection with this state (`LayeredConnection.state`); `number` gives the
        number of a capture file."""
        self._flow_key = flow
        self._current = LayeredConnection.restore(flow, state, number, self._arrays())
        tls = self._current.tls
        if tls is not None and tls.hellos[0] is not None and self._secrets is not None:
            tls.more = partial(self._secrets.others, tls.hellos[0].random)

    def resume_without(self, flow: bytes, directions: np.ndarray, streams: Sequence[Stream]) -> None:
        """The current flow continues a connection that had no layers: `directions` (DIRECTION) and `streams` of the
        decoder."""
        self._flow_key = flow
        for opening, d, s in zip(self._openings, directions, streams, strict=True):
            rest = int(d["payload_bytes"] - d["proxy_bytes"])
            first = int(s.bytes[int(d["pos"])]) if d["pos"] < d["end"] else 0
            begin = int(d["seq"] - d["next"]) % WRAP if d["syn"] else 0
            opening[:] = OTHER, 0, begin, int(d["seq"]) + 1 if d["payload_bytes"] else 0
            if rest == 0:
                opening[KIND] = NOTHING
            elif rest == HEADER_BYTES == d["frame_bytes"]:
                opening[KIND] = HEADERS
            elif d["mode"] == FOREIGN and d["foreign_head"] == FOREIGN_REQUEST:
                opening[KIND] = REQUESTS
            elif d["mode"] == START and first in PROXY_BEGINS:
                opening[: SEEN + 1] = PROXY, rest

    def end(self, layered: LayeredConnection) -> Iterator[Part]:
        """End a connection."""
        yield from layered.end()
        (number,) = self._retain_ended([layered.ended()])
        yield layered.summary(number, self._ended[number])
        self.release(layered)

    def _retain_ended(self, ended: list[EndedLayers]) -> range:
        """Retain what remains of connections until the decoder has ended them, too: their numbers."""
        first = self._count + 1
        self._count += len(ended)
        self._ended |= zip(range(first, self._count + 1), ended, strict=True)
        return range(first, self._count + 1)

    def release(self, layered: LayeredConnection) -> None:
        """This connection needs its arrays no longer."""
        self._unused = [layered.tcp]

    def _arrays(self) -> Tcp:
        return begin_anew(self._unused.pop()) if self._unused else new_tcp()

    def _end(self) -> Iterator[Part]:
        """End the current connection."""
        if self._current is not None:
            yield from self.end(self._current)
            self._current = None

    def _flows(self, flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray) -> Iterator[Part]:
        """Flows one after the other; those without layers as one part, as far as they follow one another."""
        flow = int(np.searchsorted(ends, 0, "right"))
        another = self._flow_key != flows[0].tobytes()
        begins = another or 0 < flow < len(flows)
        if begins:
            yield from self._leave()
            self._openings[:] = 0
        self._flow_key = flows[-1].tobytes()
        reasons, decided = np.empty((len(flows), 3), np.int64), np.zeros(1, np.int64)
        begin = i = 0  # segments before `begin` were passed on; those before `i`, of this flow, begin no layer
        while i < len(segments):
            if self._current is not None:
                parts, used = self._current.feed(segments[i : ends[flow]], payload)
                yield from parts
                begin = i = i + used
                if i < ends[flow]:
                    yield from self._end()
                elif i < len(segments):
                    yield from self._leave()
                    flow, begins = int(np.searchsorted(ends, i, "right")), True
                    self._openings[:] = 0
                continue
            kind, header, tried = IS_MIDSTREAM, 0, not self.resuming and self._may_try()
            if not (begins and tried) or segments["flags"][i] & SYN:
                decided[0], begun = 0, (0 if another else 1) if self._together and not self.resuming else -1
                clear(self._short)
                kind, flow, i, header = next_candidate(
                    ends, segments, payload, flow, i, self._openings, begun, tried, self._randoms, self._all_randoms,
                    self._short, self._requests, self._head, self._before, reasons, decided,
                )  # fmt: skip
                layers, again = self._layers_together(segments, payload, ends)
                if again is not None:
                    kind, flow, i, decided[0] = FULL, again[FLOW], again[AT] + 1, again[DECIDED]
                for index, reason, last in reasons[: decided[0]].tolist():
                    key = flows[index].tobytes(), int(segments["file"][last]), int(segments["packet_no"][last])
                    self._reasons[key] = REASONS[reason]
                if layers:
                    end = i if again is None else again[AT]
                    yield from self._pass_together(flows, ends, segments, payload, begin, end, layers)
                    begin = end
                if kind == FULL and i < len(segments):
                    continue
            begins = False
            is_alone = kind not in (NO_CANDIDATE, FULL)
            layer = self._layer(kind, segments[i : ends[flow]], payload, header) if is_alone else None
            if layer is None and is_alone:
                i += kind != IS_MIDSTREAM
                if i < len(segments):
                    continue
            if i > begin:
                yield part_of(flows, ends, segments, payload, begin, i)
            if layer is not None:
                begin = i = yield from self._begin(flows[flow], layer, segments, payload, i, header)

    def _layers_together(
        self, segments: np.ndarray, payload: np.ndarray, ends: np.ndarray
    ) -> tuple[list[Layer], list[int] | None]:
        """The layers of the connections in `self._short`, and the row of the first that has none."""
        layers: list[Layer] = []
        for k, row in enumerate(self._short.rows[: self._short.used[0]].tolist()):
            layer = self._layer(row[WHAT], segments[row[AT] : ends[row[FLOW]]], payload, row[HEADER])
            if layer is None:
                copy_openings(self._openings, self._short.openings[k])
                return layers, row
            layers.append(layer)
        return layers, None

    def _pass_together(
        self, flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray, begin: int, end: int,
        layers: list[Layer],
    ) -> Iterator[Part]:  # fmt: skip
        """Segments `begin` to `end`; those of the first connections in `self._short` with the contents of their
        layers."""
        rows, read = self._short.rows[: len(layers)].tolist(), read_all(self._short, layers, self._count + 1)
        self._retain_ended(read.ended)
        read.segments["payload_at"] += len(payload)
        sizes = np.diff(np.clip(ends, begin, end), prepend=begin)
        plain = segments.view(SEGMENT_BYTES, np.ndarray)
        own, pieces, at, first = read.segments.view(SEGMENT_BYTES, np.ndarray), list[np.ndarray](), begin, 0
        for row, last in zip(rows, read.ends.tolist(), strict=True):
            pieces.append(plain[at : row[AT]])
            if row[HEADER]:
                header_part, _ = split_segment(segments[row[AT] : row[AT] + 1], row[HEADER])
                pieces.append(header_part.view(SEGMENT_BYTES, np.ndarray))
            pieces.append(own[first:last])
            sizes[row[FLOW]] += last - first + bool(row[HEADER]) - (row[AFTER] - row[AT])
            at, first = row[AFTER], last
        merged = as_records(np.concatenate([*pieces, plain[at:end]]).view(SEGMENT))
        data = np.concatenate([payload, read.payload])
        if len(merged):
            yield part_of(flows, np.cumsum(sizes), merged, data, 0, len(merged))

    def _begin(
        self, flow: np.ndarray, layer: Layer, segments: np.ndarray, payload: np.ndarray, i: int, header: int
    ) -> Generator[Part, None, int]:
        """Begin a connection with layers at segment `i`, after a header of the PROXY protocol; returns the index of the
        next segment."""
        if not header:
            self._current = LayeredConnection(flow.tobytes(), segments[i], layer, self._arrays())
            return i
        first, rest = split_segment(segments[i : i + 1], header)
        yield Part(flow[None], np.ones(1, np.int64), first, payload)
        self._current = LayeredConnection(flow.tobytes(), rest[0], layer, self._arrays())
        side = int(rest[0]["direction"])  # its packet is counted with the header, which has its SYN
        self._current.totals[SEGMENTS, side] += 1
        self._current.tcp.directions["syn"][side] = bool(first["flags"][0] & SYN)
        yield from self._current.feed(rest, payload)[0]
        return i + 1

    def _layer(self, kind: int, segments: np.ndarray, payload: np.ndarray, header: int) -> Layer | None:
        """The layer that begins with these segments of a connection, if it can be read."""
        direction = int(segments[0]["direction"])
        if kind == IS_MIDSTREAM:
            return self._tls_before_capture(segments, payload)
        if kind == IS_REQUEST:
            return WebSocket(direction)
        if self._secrets is None:
            return None
        size = head_at(segments, payload, 0, len(segments), header, self._head)
        random = random_of(self._head[:size].tobytes())
        if random is None:
            return None
        secrets = self._secrets.secrets(random)
        self._randoms, self._all_randoms = self._secrets.known()
        return Tls(direction, secrets, partial(self._secrets.others, random)) if secrets else None

    def _may_try(self) -> bool:
        """Whether there are secrets to try on one more connection that began before the capture."""
        bound = TRIED_RECORDS * (TRIED_CONNECTIONS + self._bytes // BYTES_PER_CONNECTION)
        return bool(self._recent) and self._trials < bound

    def _tls_before_capture(self, segments: np.ndarray, payload: np.ndarray) -> Tls | None:
        """The TLS of a connection that began before the capture, if its secrets are found by trial."""
        if not self._may_try() or int(segments["flags"][0]) & SYN:
            return None
        tried = 0
        for g in segments[:TRIED_SEGMENTS]:
            at = int(g["payload_at"])
            data = payload[at : at + int(g["cap_len"])].tobytes()
            if data.startswith(HEAD):
                found = match_secrets(data, self._recent)
                self._trials += 1 if found is None else found.share
                if found is not None:
                    self._recent.remove(found.known)  # no other connection has these: they are tried last
                    self._recent.append(found.known)
                    return Tls.from_match(int(g["direction"]), found)
                tried += 1
                if tried == TRIED_RECORDS:
                    break
        return None

    def facts(self, flows: np.ndarray, connections: np.ndarray, directions: np.ndarray) -> dict[int, Mapping[str, Any]]:
        """The facts of ended connections that had layers, by index, once; where nothing was decrypted, `directions` are
        of TLS."""
        found: dict[int, Mapping[str, Any]] = {}
        if self._reasons:
            packets = zip(connections["last_file"].tolist(), connections["last_packet"].tolist(), strict=True)
            for index, (flow, packet) in enumerate(zip(flows, packets, strict=True)):
                reason = self._reasons.pop((flow.tobytes(), *packet), None)
                if reason is not None:
                    found[index] = {"tls": None, "websocket": False, "undecoded_reason": reason or None}
        numbers = connections["layers"]
        for index in np.flatnonzero(numbers).tolist():
            ended = self._ended.pop(int(numbers[index]))
            found[index] = ended.facts
            if ended.is_tls:
                directions["mode"][index] = TLS
        last = int(numbers.max(initial=0))
        for number in [number for number in self._ended if number < last]:
            del self._ended[number]  # of connections that had layers once more
        return found


def layer_facts(ended: EndedConnections) -> dict[int, dict[str, Any]]:
    """Facts for `connections.tls`, by index of the encrypted connection."""
    found: dict[int, dict[str, Any]] = {}
    prefixes = tls_prefixes(ended)
    for index in np.flatnonzero((ended.directions["mode"] == TLS).any(1)).tolist():
        known: dict[str, Any] = hello_facts(*prefixes.get(index, (b"", b"")))
        found[index] = known | {"decrypted": False}
    for index in prefixes:
        if index not in found:
            found[index] = dict(hello_facts(*prefixes[index])) | {"decrypted": False}
    for index, facts in ended.layers.items():
        if facts["tls"] is not None:
            found[index] = facts["tls"]
    for index, known in found.items():
        upgraded = ended.connections["upgraded" if index in ended.layers else "offers"][index]
        known["mode"] = "upgraded" if upgraded else "implicit"
    return found


def unread(ended: EndedConnections) -> list[str | None]:
    """Why TLS or WebSocket was not read, or not to the end; None: was read."""
    found: list[str | None] = [None] * len(ended.connections)
    began, prefixes = ended.connections["syn_ns"] >= 0, tls_prefixes(ended)
    for index in np.flatnonzero((ended.directions["mode"] == TLS).any(1)).tolist():
        has_hello = any(data[:1] == HANDSHAKE_RECORD for data in prefixes.get(index, ()))
        found[index] = NO_SECRETS if has_hello else NO_HANDSHAKE if began[index] else BEGAN_BEFORE
    for index, facts in ended.layers.items():
        found[index] = facts["undecoded_reason"]
    return found


def transports(ended: EndedConnections) -> NDArray[np.int64]:
    """Values of `connections.transport`, as indices in TRANSPORTS."""
    found = np.where((ended.directions["mode"] == TLS).any(1), 1, 0).astype(np.int64)
    for index, facts in ended.layers.items():
        found[index] = (1 if facts["tls"] is not None else 0) + (2 if facts["websocket"] else 0)
    return found
