"""The stream decoder for callers: flows of segments in, batches of rows and facts of connections out.

    decoder = Decoder()
    for flow_key, segments, payload in runs:            # flow by flow, each in capture order
        for batch in decoder.feed(flow_key, segments, payload, file):
            ...
    for batch in decoder.finish():
        ...

The kernels of `codec.amqp.stream` do the work; this class opens and closes connections, enlarges arrays when a kernel
asks for it, and hands out what is full. Memory is bounded by `Limits`: one connection is in hand at a time, and of it
the bytes that wait for the end of a frame or for a missing segment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from codec.amqp import rows as R
from codec.amqp.connection import CONNECTION
from codec.amqp.connection_state import ConnectionState
from codec.amqp.facts import (
    connection_facts,
    fewest_port_is_server,
    limit_names,
    limits_of_rows,
    plain_records,
)
from codec.amqp.framing import forget
from codec.amqp.stream import ENDING, PLACE, State, end_connection, new_state, run
from codec.amqp.tables import classic_tables
from codec.amqp.values import decode_values, definitions
from codec.amqp.versions import OFFERS, headers
from codec.limits import LIMITS
from codec.net.direction import (
    CONNECTION_ENDS,
    DIRECTION,
    DONE,
    NEED_BYTES,
    NEED_MARKS,
    NEED_PIECES,
    NEED_POOL,
    NEED_ROWS,
    Stream,
)
from codec.net.segments import SEGMENT
from codec.variant import FULL, METADATA, VALUE, Writer, enlarge, new_writer, trouble

BATCH_ROWS = 1 << 15
HEAP_BYTES = 1 << 22
# What is -1 where nothing is known yet.
UNKNOWN = {
    "connection": ("client", "syn_ns", "synack_ns", "rtt_ns", "tcp_end_by"),
    "direction": ("acked", "fin_at", "span_from", "last_data_ns", "doubt_at"),
}
_STREAM_ARRAY = {NEED_BYTES: "bytes", NEED_MARKS: "marks", NEED_PIECES: "pieces", NEED_POOL: "pool"}


class Batch(NamedTuple):
    """Rows that are complete. Arrays are views, valid until the decoder goes on.

    `cells` int64 (rows, columns of codec.amqp.rows); `digest` uint8 (rows, 32); the heaps are uint8, the ends of each
    row's parts stand in its cells.
    """

    cells: np.ndarray
    digest: np.ndarray
    arguments: np.ndarray
    arguments_metadata: np.ndarray
    properties: np.ndarray
    properties_metadata: np.ndarray
    payload: np.ndarray
    payload_from: int  # what PAYLOAD_END counts from


class Facts(NamedTuple):
    """What is known of a TCP connection when it has ended: the columns it shares with frames, and the rest as a
    dict."""

    connection_id: int
    first_ns: int
    version: int
    version_known: bool
    facts: dict[str, Any]


class Files(Protocol):
    """Capture files by number, as segments name them."""

    names: list[str]

    def number(self, name: str) -> int: ...


class Carried:
    """Connections that outlive what is decoded: `states` by flow are taken up when the flow's first segment comes; in
    the end those of all flows stand there, also of those that no segment came for."""

    def __init__(self, states: Iterable[ConnectionState], files: Files) -> None:
        self.states, self.files = {state.flow: state for state in states}, files


def enlarged(array: np.ndarray, factor: int = 2) -> np.ndarray:
    """A copy of `array` with `factor` times the room, the new part zero."""
    fresh = np.zeros((len(array) * factor, *array.shape[1:]), array.dtype)
    fresh[: len(array)] = array
    return fresh.view(np.recarray) if isinstance(array, np.recarray) else fresh


def _blank(dtype: np.dtype, unknown: tuple[str, ...]) -> np.ndarray:
    """A record of what has only begun."""
    record = np.zeros(1, dtype)
    for name in unknown:
        record[name] = -1
    return record


_CONNECTION, _DIRECTION = _blank(CONNECTION, UNKNOWN["connection"]), _blank(DIRECTION, UNKNOWN["direction"])


class Decoder:
    """Decodes connections one after the other; see the module's text. `keep_payload` also hands out body bytes;
    `carried`: where a flow has no more segments, its connection is not ended, but its state put down there."""

    def __init__(self, keep_payload: bool = False, carried: Carried | None = None) -> None:
        self.keep_payload, self.carried = keep_payload, carried
        rows = R.new_rows(BATCH_ROWS + R.SPARE_ROWS, HEAP_BYTES, HEAP_BYTES if keep_payload else 1)
        self.state: State = new_state(rows, headers(), classic_tables())
        self.arguments = new_writer(HEAP_BYTES, HEAP_BYTES)
        self.properties = new_writer(HEAP_BYTES, HEAP_BYTES)
        self.definitions = definitions()
        self.flow: bytes | None = None
        self.open = False
        self.facts: list[Facts] = []
        self.ended: list[Facts] = []  # connections whose last rows have not been handed out: values may reach limits
        self.limits: dict[int, int] = {}  # that the values of rows reached, by connection
        self.named: dict[bytes, int] = {}  # first packets of the flow's connections, and how often each was one

    def feed(self, flow: bytes, segments: np.ndarray, payload: np.ndarray) -> Iterator[Batch]:
        """Decode the next segments (SEGMENT records in capture order, `file` filled in) of `flow` (36-byte key)."""
        if flow != self.flow:
            yield from self._close()
            self.flow = flow
            self.named = {}
            if self.carried and flow in self.carried.states:
                yield from self._take_up(self.carried)
        segments, payload = _readonly(segments.view(np.recarray)), _readonly(payload)
        i = 0
        while i < len(segments):
            if not self.open:
                self._open(segments[i])
            code, i, direction = run(self.state, segments, payload, i)
            if code == CONNECTION_ENDS:
                self._collect()
            elif code != DONE:
                yield from self._make_room(code, direction)

    def finish(self) -> Iterator[Batch]:
        """End the connection in hand and hand out what is left."""
        yield from self._close()
        yield from self._take()

    def take_facts(self) -> list[Facts]:
        """Facts of the connections that have ended, and all of whose rows were handed out, since the last call."""
        facts, self.facts = self.facts, []
        return facts

    def _open(self, first: Any) -> None:
        """A connection begins with segment `first`: forget the last one, and name this one."""
        assert self.flow is not None
        state = self.state
        state.connection[:] = _CONNECTION
        state.directions[:] = _DIRECTION
        named = self.flow + int(first["ts_ns"]).to_bytes(8, "big", signed=True) + int(first["seq"]).to_bytes(4, "big")
        named += self._times_named(named)
        begun = {
            "connection_id": int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big") >> 1,
            "keep_payload": self.keep_payload,
            "port_client": fewest_port_is_server(self.flow),
            "row_from": state.rows.used[0],
            "first_ns": first["ts_ns"],
            "last_ns": first["ts_ns"],
            "phase": PLACE,
        }
        connection = state.connection.view(np.ndarray)  # an attribute of a record takes ten times as long
        for name, value in begun.items():
            connection[name] = value
        for direction in range(2):
            forget(state, direction)
        state.spans.number[:] = 0
        self.open = True

    def _times_named(self, name: bytes) -> bytes:
        """What tells a connection from earlier ones of the flow that begin with the very same packet (a capture holds
        it twice); nothing for the first of them."""
        times = self.named.pop(name, 0)
        self.named[name] = times + 1
        if len(self.named) > LIMITS.names_kept:
            del self.named[next(iter(self.named))]
        return times.to_bytes(4, "big") if times else b""

    def _close(self) -> Iterator[Batch]:
        """The flow in hand has no more segments."""
        if not self.open:
            return
        if self.carried:
            yield from self._put_down(self.carried)
            return
        self.state.connection[0].phase = ENDING
        while (code := end_connection(self.state)) != DONE:
            yield from self._make_room(code, -1)
        self._collect()

    def _put_down(self, carried: Carried) -> Iterator[Batch]:
        """The connection in hand may go on in another capture."""
        assert self.flow is not None
        yield from self._take()
        limits = self.limits.pop(int(self.state.connection[0].connection_id), 0)
        carried.states[self.flow] = ConnectionState.of(self.state, self.flow, carried.files.names, self.named, limits)
        self.state.rows.used[:] = 0
        self.open = False

    def _take_up(self, carried: Carried) -> Iterator[Batch]:
        """The connection of this flow goes on."""
        assert self.flow is not None
        yield from self._take()
        found = carried.states.pop(self.flow)
        for name, size in found.rooms().items():
            self._enlarge_to(name, size)
        for direction in range(2):
            forget(self.state, direction)
        found.into(self.state, carried.files.number)
        self.state.connection[0].keep_payload = self.keep_payload
        self.state.connection[0].row_from = 0
        self.named = {bytes.fromhex(name): times for name, times in found.named.items()}
        if found.limits:
            self.limits[found.connection_id] = found.limits
        self.open = True

    def _enlarge_to(self, name: str, size: int) -> None:
        """Room for `size` items in an array of both directions, or in a heap of the rows."""
        if name in ("octets", "payload"):
            while len(getattr(self.state.rows, name)) < size:
                self._enlarge_heaps()
            return
        code = next(code for code, array in _STREAM_ARRAY.items() if array == name)
        while len(getattr(self.state.streams[0], name)) < size or len(getattr(self.state.streams[1], name)) < size:
            self._enlarge_stream(code, -1)

    def _collect(self) -> None:
        assert self.flow is not None
        (c,), directions = plain_records(self.state.connection), plain_records(self.state.directions)
        facts = connection_facts(self.flow, c, directions, self.state.hello)
        ended = Facts(int(c.connection_id), int(c.first_ns), int(c.version), bool(c.version_known), facts)
        self.open = False
        if c.frame_no:
            self.ended.append(ended)
        else:
            self._conclude([ended])

    def _conclude(self, ended: list[Facts]) -> None:
        """All rows of these connections are decoded: their facts are complete."""
        for of in ended:
            of.facts["limits"] = limit_names(of.facts["limits"] | self.limits.pop(of.connection_id, 0))
        self.facts += ended

    def _make_room(self, code: int, direction: int) -> Iterator[Batch]:
        """A kernel said NEED_*: enlarge that array of the direction (both when -1), or hand out rows."""
        if code == NEED_ROWS:
            handed = False
            for batch in self._take():
                handed = True
                yield batch
            if not handed:
                self._enlarge_heaps()
            return
        self._enlarge_stream(code, direction)

    def _enlarge_stream(self, code: int, direction: int) -> None:
        """Double an array of the direction, of both when -1."""
        name = _STREAM_ARRAY[code]
        streams: list[Stream] = list(self.state.streams)
        for side in (0, 1) if direction < 0 else (direction,):
            streams[side] = streams[side]._replace(**{name: enlarged(getattr(streams[side], name))})
        self.state = self.state._replace(streams=(streams[0], streams[1]))

    def _enlarge_heaps(self) -> None:
        """One frame does not fit into empty heaps: double them."""
        rows = self.state.rows
        rows = rows._replace(octets=enlarged(rows.octets), payload=enlarged(rows.payload))
        self.state = self.state._replace(rows=rows)

    def _take(self) -> Iterator[Batch]:
        """Hand out the rows that are complete. Rows that do not know their sender or version yet stay, moved to the
        front."""
        rows = self.state.rows
        count = int(rows.used[0])
        c = self.state.connection[0]
        done = int(c.row_from) if self.open and (c.client < 0 or c.weighing) else count
        if done:
            yield from self._decoded(rows.cells[:done], rows)
            self._move_up(done, count)
        self._conclude(self.ended)
        self.ended = []

    def _move_up(self, done: int, count: int) -> None:
        """`done` of `count` rows were handed out: the others move to the front."""
        rows = self.state.rows
        last = rows.cells[done - 1]
        octets_end, payload_end = int(last[R.OCTETS_END]), int(last[R.PAYLOAD_END])
        rest = count - done
        rows.cells[:rest] = rows.cells[done:count].copy()
        rows.digest[:rest] = rows.digest[done:count].copy()
        rows.cells[:rest, R.OCTETS_END] -= octets_end
        rows.cells[:rest, R.PAYLOAD_END] -= payload_end
        rows.used[:] = (
            rest,
            _shift(rows.octets, octets_end, int(rows.used[1])),
            _shift(rows.payload, payload_end, int(rows.used[2])),
        )
        self.state.connection[0].row_from = 0

    def _decoded(self, cells: np.ndarray, rows: R.Rows) -> Iterator[Batch]:
        """Decode the values of `cells` and hand them out, in as many batches as the writers have room for."""
        first = 0
        while first < len(cells):
            _empty(self.arguments)
            _empty(self.properties)
            stop = decode_values(cells, rows.octets, first, self.definitions, self.arguments, self.properties)
            if stop == first:
                self.arguments = _roomier(self.arguments)
                self.properties = _roomier(self.properties)
                continue
            part = cells[first:stop]
            for connection, limits in limits_of_rows(part).items():
                self.limits[connection] = self.limits.get(connection, 0) | limits
            payload_from = int(cells[first - 1, R.PAYLOAD_END]) if first else 0
            yield Batch(
                part,
                rows.digest[first:stop],
                self.arguments.value[: part[-1, R.ARGUMENTS_END]],
                self.arguments.metadata[: part[-1, R.ARGUMENTS_META_END]],
                self.properties.value[: part[-1, R.PROPERTIES_END]],
                self.properties.metadata[: part[-1, R.PROPERTIES_META_END]],
                rows.payload[payload_from : part[-1, R.PAYLOAD_END]],
                payload_from,
            )
            first = stop


def _empty(writer: Writer) -> None:
    writer.positions[VALUE] = writer.positions[METADATA] = 0


def _roomier(writer: Writer) -> Writer:
    return enlarge(writer) if trouble(writer) == FULL else writer


def _readonly(array: np.ndarray) -> np.ndarray:
    """A view nobody can write through: kernels are compiled for one kind of array."""
    view = array.view()
    view.flags.writeable = False
    return view


def _shift(heap: np.ndarray, start: int, end: int) -> int:
    """Move `heap[start:end]` to the front; its new end."""
    heap[: end - start] = heap[start:end].copy()
    return end - start


__all__ = ["OFFERS", "SEGMENT", "Batch", "Decoder", "Facts"]
