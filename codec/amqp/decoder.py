"""The stream decoder: segments of flows in, batches of rows and records of ended connections out.

    decoder = Decoder()
    for flow_key, segments, payload in runs:            # flow by flow, each in capture order
        for batch in decoder.feed(flow_key, segments, payload):
            ...
    for batch in decoder.finish():
        ...
    decoder.take_ended()                                # codec.amqp.connections.facts makes columns of them

The kernels of `codec.amqp.connections.flows` do the work. This class enlarges arrays when a kernel asks for it, and
returns full batches. Memory is bounded by `Limits`: it holds one connection at a time, with the bytes that wait for the
end of a frame or for a missing segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from codec.amqp import rows as R
from codec.amqp.classic.tables import classic_tables
from codec.amqp.connections.begun import NO_CONNECTION, begin_flow, same_flow
from codec.amqp.connections.ended import Concluded
from codec.amqp.connections.facts import limits_of_rows
from codec.amqp.connections.flows import ENDING, run
from codec.amqp.connections.state import ConnectionState, row_ends
from codec.amqp.framing import forget
from codec.amqp.stream import State, new_state
from codec.amqp.values import decode_values, definitions
from codec.amqp.versions import headers
from codec.layers.connection import LayeredConnection, Part
from codec.layers.stack import Layers
from codec.net.segments import FLOW_KEY_BYTES, SEGMENT
from codec.tcp.direction import DONE, NEED_BYTES, NEED_MARKS, NEED_PIECES, NEED_POOL, NEED_ROWS, Stream
from codec.variant import FULL, METADATA, VALUE, Writer, enlarge, new_writer, trouble

BATCH_ROWS = 1 << 15
HEAP_BYTES = 1 << 22
MOST_SAVED = 1 << 10  # connections whose states wait for the rows that are still in the buffer
NO_FLOW = np.zeros(FLOW_KEY_BYTES, np.uint8)
_STREAM_ARRAY = {NEED_BYTES: "bytes", NEED_MARKS: "marks", NEED_PIECES: "pieces", NEED_POOL: "pool"}


class Batch(NamedTuple):
    """Complete rows. Arrays are views, valid until the decoder continues.

    `cells` int64 (rows, columns of codec.amqp.rows); `digest` uint8 (rows, 32); the heaps are uint8, and the cells have
    the ends of each row's octets in them.
    """

    cells: np.ndarray
    digest: np.ndarray
    arguments: np.ndarray
    arguments_metadata: np.ndarray
    properties: np.ndarray
    properties_metadata: np.ndarray
    payload: np.ndarray
    payload_from: int  # PAYLOAD_END of the row before the first
    still_open: np.ndarray | None = None  # rows that change if their connection continues; None: no row


class Files(Protocol):
    """Capture files by number, as segments name them."""

    names: list[str]

    def number(self, name: str) -> int: ...


class CarriedStates:
    """States of connections that continue in another capture. The state of a flow is restored when its first segment
    comes. After `Decoder.finish`, `states` has those of all flows, including flows without segments."""

    keep = True  # save the state of a connection when its flow has no more segments; else end the connection
    open_rows = False  # also return the rows and facts of a saved connection, as if it ended

    def __init__(self, states: Iterable[ConnectionState], files: Files) -> None:
        self.states, self.files = {state.flow: state for state in states}, files

    def restore(self, flow: bytes) -> ConnectionState | None:
        """Remove and return the state of a flow; None when it has none."""
        return self.states.pop(flow, None)

    def save(self, states: list[ConnectionState]) -> None:
        """Save the states of connections whose rows were all returned."""
        self.states |= {state.flow: state for state in states}

    def remaining_flows(self) -> list[bytes]:
        """Flows without segments whose connections end here."""
        return []


def enlarged(array: np.ndarray, factor: int = 2) -> np.ndarray:
    """A copy of `array` with `factor` times the room, the new part zero."""
    fresh = np.zeros((len(array) * factor, *array.shape[1:]), array.dtype)
    fresh[: len(array)] = array
    return fresh.view(np.recarray) if isinstance(array, np.recarray) else fresh


class Decoder:
    """Decodes connections one after the other; see the module's docstring. `keep_payload`: batches have body bytes.
    `carried`: where a flow has no more segments, its connection does not end; its state is saved there. `layers`
    removes TLS and WebSocket; None: no layers."""

    def __init__(
        self, keep_payload: bool = False, carried: CarriedStates | None = None, layers: Layers | None = None
    ) -> None:
        self.keep_payload, self.carried, self.layers = keep_payload, carried, layers
        rows = R.new_rows(BATCH_ROWS + R.SPARE_ROWS, HEAP_BYTES, HEAP_BYTES if keep_payload else 1)
        self.state: State = new_state(rows, headers(), classic_tables(), keep_payload)
        self.arguments = new_writer(HEAP_BYTES, HEAP_BYTES)
        self.properties = new_writer(HEAP_BYTES, HEAP_BYTES)
        self.definitions = definitions()
        self.ended: list[Concluded] = []
        self.limits: dict[int, int] = {}  # limits that the values of rows reached, by connection
        self._saved: dict[int, ConnectionState] = {}  # by connection, until all rows were handed out
        # Rows are counted from the first one of the decoder. Which of those in the buffer are so only if nothing more
        # comes of their connection.
        self._open_rows: list[tuple[int, int]] = []
        self._handed_out = 0
        self._first_row = 0  # of the connection in hand
        self._channels = 0  # above those of its rows that were handed out

    def feed(self, flow: bytes, segments: np.ndarray, payload: np.ndarray) -> Iterator[Batch]:
        """Decode the next segments (SEGMENT records in capture order, `file` filled in) of `flow` (36-byte key)."""
        yield from self.feed_flows(np.frombuffer(flow, np.uint8)[None], np.array([len(segments)]), segments, payload)

    def feed_flows(
        self, flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray
    ) -> Iterator[Batch]:
        """The same for several flows: `flows` uint8 (n, 36); the segments of flow i end at `ends[i]` (int64). The first
        flow may be the last flow of the call before."""
        flows, segments, payload = readonly(flows), readonly(segments.view(np.recarray)), readonly(payload)
        if self.layers is None:
            yield from self._feed_part(Part(flows, ends, segments, payload))
            return
        self.layers.parking = self.carried is not None and self.carried.keep
        self.layers.resuming = self.carried is not None
        for part in self.layers.feed(flows, ends, segments, payload):
            yield from self._feed_part(part)

    def _feed_part(self, part: Part) -> Iterator[Batch]:
        flows, ends, c = readonly(part.flows), part.ends, self.state.connection[0]
        segments, payload = _for_kernels(part)
        if part.layered is not None and part.layered.connection_id < 0:
            part.layered.upgraded = bool(self._open and same_flow(self.state.begun, flows[0]) and c.offers > 0)
        if self.carried is None:
            yield from self._run(flows, ends, segments, payload)
        else:
            yield from self._run_carried(flows, ends, segments, payload, self.carried)
        if part.layered is not None:
            part.layered.connection_id = int(c.connection_id)

    def _run_carried(
        self, flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray, carried: CarriedStates
    ) -> Iterator[Batch]:
        begin = 0
        for i in range(len(flows)):  # states are saved and restored flow by flow
            yield from self._switch_to(flows[i], carried)
            end = int(ends[i])
            yield from self._run(flows[i : i + 1], np.array([end - begin]), segments[begin:end], payload)
            begin = end

    def finish(self) -> Iterator[Batch]:
        """End the current connection and return the remaining rows; afterwards the decoder is as new."""
        if self.layers is not None:
            self.layers.parking = self.carried is not None and self.carried.keep
            for part in self.layers.finish():
                yield from self._feed_part(part)
        for flow in self.carried.remaining_flows() if self.carried else ():
            yield from self._switch_to(readonly(np.frombuffer(flow, np.uint8)), self.carried)  # type: ignore[arg-type]
            for part in self.layers.finish() if self.layers else ():
                yield from self._feed_part(part)
        yield from self._close()
        begin_flow(self.state.begun, readonly(NO_FLOW))
        yield from self._flush()

    def _run(self, flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray) -> Iterator[Batch]:
        code, flow, i, direction = run(self.state, flows, ends, segments, payload, 0, 0)
        while code != DONE:
            yield from self._make_room(code, direction)
            code, flow, i, direction = run(self.state, flows, ends, segments, payload, flow, i)

    def _switch_to(self, flow: np.ndarray, carried: CarriedStates) -> Iterator[Batch]:
        """Make this flow the current one, unless it is already."""
        if same_flow(self.state.begun, flow):
            return
        yield from self._close()
        begin_flow(self.state.begun, flow)
        self._first_row, self._channels = self._rows_so_far, 0
        found = carried.restore(flow.tobytes())
        if found is not None:
            yield from self._resume(found, carried)

    def _close(self) -> Iterator[Batch]:
        """The current flow has no more segments."""
        if not self._open:
            return
        in_layers = self.layers is not None and self.layers.has_ended(int(self.state.connection[0].connection_id))
        if self.carried and self.carried.keep and not in_layers:
            yield from self._save(self.carried)
        else:
            yield from self._end()

    def _end(self) -> Iterator[Batch]:
        """End the current connection."""
        self.state.connection[0].phase = ENDING
        nothing = np.zeros(0, SEGMENT).view(np.recarray), np.zeros(0, np.uint8)
        yield from self._run(readonly(NO_FLOW[None]), np.zeros(1, np.int64), *map(readonly, nothing))

    def _save(self, carried: CarriedStates) -> Iterator[Batch]:
        """The connection in hand may go on in another capture."""
        state, rows = self.state, self.state.rows
        connection, complete = int(state.connection[0].connection_id), self._complete
        channels = rows.cells[max(0, self._first_row - self._handed_out) : int(rows.used[0]), R.CHANNEL].max(initial=-1)
        found = ConnectionState.of(
            state, carried.files.names, self.limits.get(connection, 0), max(self._channels, int(channels) + 1), complete
        )
        layered = self.layers.parked(found.flow) if self.layers is not None else None
        if layered is not None:
            found = replace(found, layers=layered.state(carried.files.names))
        self._saved[connection] = found
        if not carried.open_rows:
            rows.used[:] = complete, *row_ends(rows, complete)
            state.connection[0].phase = NO_CONNECTION
            if len(self._saved) >= MOST_SAVED:
                yield from self._flush()
            return
        begins = self._handed_out + complete
        self._open_rows.append((begins, np.iinfo(np.int64).max))
        if layered is not None and self.layers is not None:
            for part in self.layers.end(layered):
                yield from self._run(readonly(part.flows), part.ends, *_for_kernels(part))
        yield from self._end()
        self._open_rows.remove((begins, np.iinfo(np.int64).max))
        if self._rows_so_far > begins:
            self._open_rows.append((begins, self._rows_so_far))
        if len(self._saved) >= MOST_SAVED:
            yield from self._flush()

    def _resume(self, found: ConnectionState, carried: CarriedStates) -> Iterator[Batch]:
        """The connection of this flow goes on."""
        rooms, rows = found.rooms(), self.state.rows
        new = [found.rows, rooms["octets"], rooms["payload"]]
        if found.rows and (rows.used + new > [BATCH_ROWS, len(rows.octets), len(rows.payload)]).any():
            yield from self._flush()
        for name, size in rooms.items():
            self._enlarge_to(name, size)
        for direction in range(2):
            forget(self.state, direction)
        self._first_row = self._rows_so_far
        row_from = int(self.state.rows.used[0])
        found.into(self.state, carried.files.number)
        self._channels = found.channels
        self.state.connection[0].keep_payload = self.keep_payload
        self.state.connection[0].row_from = row_from
        if found.limits:
            self.limits[found.connection_id] = found.limits
        if found.layers is not None and self.layers is not None:
            self.layers.resume(LayeredConnection.of(found.flow, found.layers, carried.files.number))

    @property
    def _rows_so_far(self) -> int:
        """How many rows there were, handed out or not."""
        return self._handed_out + int(self.state.rows.used[0])

    @property
    def _complete(self) -> int:
        """How many rows of the buffer are complete: others do not know their sender or version yet."""
        c = self.state.connection[0]
        undecided = self._open and (c.client < 0 or c.weighing)
        return int(c.row_from) if undecided else int(self.state.rows.used[0])

    def _enlarge_to(self, name: str, size: int) -> None:
        """Make room for `size` items in an array of both directions, or in a heap of the rows."""
        if name in ("octets", "payload"):
            while len(getattr(self.state.rows, name)) < size:
                self._enlarge_heaps()
            return
        code = next(code for code, array in _STREAM_ARRAY.items() if array == name)
        while len(getattr(self.state.streams[0], name)) < size or len(getattr(self.state.streams[1], name)) < size:
            self._enlarge_stream(code, -1)

    def take_ended(self) -> list[Concluded]:
        """Connections that have ended since the last call, all of whose rows were returned."""
        ended, self.ended = self.ended, []
        return ended

    @property
    def _open(self) -> bool:
        return int(self.state.connection[0].phase) != NO_CONNECTION

    def _conclude(self) -> None:
        """All rows of the connections that have ended or were saved are handed out: what is known of these is
        complete."""
        in_hand = int(self.state.connection[0].connection_id) if self._open else None
        saved = {connection: state for connection, state in self._saved.items() if connection != in_hand}
        if saved and self.carried:
            self.carried.save(list(saved.values()))
            for connection in saved:
                del self._saved[connection]
                if not self.carried.open_rows:
                    self.limits.pop(connection, None)
        ended = self.state.ended
        count, hellos = (int(used) for used in ended.used)
        if not count:
            return
        connections = ended.connections[:count].copy()
        if self.limits:
            for at, connection in enumerate(connections["connection_id"].tolist()):
                connections["limits"][at] |= self.limits.pop(connection, 0)
        directions = ended.directions[:count].copy()
        layers = self.layers.concluded(connections, directions) if self.layers else {}
        self.ended.append(
            Concluded(ended.flows[:count].copy(), connections, directions, ended.hellos[:hellos].copy(), layers)
        )
        ended.used[:] = 0

    def _make_room(self, code: int, direction: int) -> Iterator[Batch]:
        """A kernel returned NEED_*: enlarge that array of the direction (of both when -1), or return rows."""
        if code == NEED_ROWS:
            used = int(self.state.ended.used[0])
            returned = False
            for batch in self._flush():
                returned = True
                yield batch
            if not returned and not used:
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

    def _flush(self) -> Iterator[Batch]:
        """Return the complete rows. Rows without a known sender or version remain, moved to the front."""
        rows, count, done = self.state.rows, int(self.state.rows.used[0]), self._complete
        if done:
            yield from self._decoded(rows.cells[:done], rows)
            own = rows.cells[max(0, self._first_row - self._handed_out) : done, R.CHANNEL]
            self._channels = max(self._channels, int(own.max(initial=-1)) + 1)
            self._compact(done, count)
            self._handed_out += done
            self._open_rows = [(begin, end) for begin, end in self._open_rows if end > self._handed_out]
        self._conclude()

    def _compact(self, done: int, count: int) -> None:
        """Move the rows after the first `done` of `count` to the front."""
        rows = self.state.rows
        octets_end, payload_end = row_ends(rows, done)
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
        """Decode the values of `cells`, in as many batches as the writers need."""
        first = 0
        while first < len(cells):
            _empty(self.arguments)
            _empty(self.properties)
            stop = decode_values(cells, rows.octets, first, self.definitions, self.arguments, self.properties)
            if stop == first:
                self.arguments = _enlarged_if_full(self.arguments)
                self.properties = _enlarged_if_full(self.properties)
                continue
            part, still_open = cells[first:stop], self._still_open(first, stop)
            for connection, limits in limits_of_rows(part).items():
                self.limits[connection] = self.limits.get(connection, 0) | limits
            for connection, limits in limits_of_rows(part if still_open is None else part[~still_open]).items():
                if connection in self._saved:
                    saved = self._saved[connection]
                    self._saved[connection] = replace(saved, limits=saved.limits | limits)
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
                still_open,
            )
            first = stop

    def _still_open(self, first: int, stop: int) -> np.ndarray | None:
        """Which of these rows of the buffer are so only if nothing more comes of their connection."""
        found = None
        for begin, end in self._open_rows:
            begin, end = max(begin - self._handed_out, first), min(end - self._handed_out, stop)
            if begin < end:
                found = np.zeros(stop - first, bool) if found is None else found
                found[begin - first : end - first] = True
        return found


def _empty(writer: Writer) -> None:
    writer.positions[VALUE] = writer.positions[METADATA] = 0


def _enlarged_if_full(writer: Writer) -> Writer:
    return enlarge(writer) if trouble(writer) == FULL else writer


def readonly(array: np.ndarray) -> np.ndarray:
    """A read-only view: kernels are compiled for one kind of array."""
    view = array.view()
    view.flags.writeable = False
    return view


def _for_kernels(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The segments and the payload of a part."""
    return readonly(part.segments.view(np.recarray)), readonly(part.payload)


def _shift(heap: np.ndarray, start: int, end: int) -> int:
    """Move `heap[start:end]` to the front; returns its new end."""
    heap[: end - start] = heap[start:end].copy()
    return end - start
