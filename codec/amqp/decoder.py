"""The stream decoder: segments of flows in, batches of rows and records of ended connections out.

    decoder = Decoder()
    for flow_key, segments, payload in runs:            # flow by flow, each in capture order
        for batch in decoder.feed(flow_key, segments, payload):
            ...
    for batch in decoder.finish():
        ...
    decoder.take_ended()                                # codec.layers.connection_facts makes columns of them
    decoder.take_stalls()                               # rows of codec.stalls, of TCP

The kernels of `codec.framing.stream` do the work. This class enlarges arrays when a kernel asks for it, and
returns full batches. Memory is bounded by `Limits`: there is one connection at a time, with the bytes that wait for the
end of a frame or for a missing segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from codec import stalls
from codec.amqp.batches import BATCH_ROWS, Batch, RowBuffer
from codec.framing.connection import (
    NO_CONNECTION,
    EndedConnections,
    begin_flow,
    same_flow,
)
from codec.framing.connection_state import NO_STALLS, ConnectionState, heap_ends
from codec.framing.detection import discard_incomplete
from codec.framing.stream import ENDING, run
from codec.layers.connection import LayeredConnection, Part
from codec.layers.connection_facts import limits_of_rows
from codec.layers.stack import Layers
from codec.memory import as_records, readonly
from codec.net.layers import FLOW_BYTES, SEGMENT
from codec.protocol import rows as R
from codec.tcp.reassembly import DONE, NEED_ROWS, TOO_SMALL

MOST_SAVED = 1 << 10  # connections whose states wait for the rows that are still in the buffer
NO_FLOW = np.zeros(FLOW_BYTES, np.uint8)
_NOT_YET = np.iinfo(np.int64).max  # end of the rows of a connection that is being ended


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


class Decoder(RowBuffer):
    """Decodes connections one after the other; see the module's docstring. `keep_payload`: batches have body bytes.
    `carried`: where a flow has no more segments, its connection does not end; its state is saved there. `layers`
    removes TLS and WebSocket; None: no layers."""

    def __init__(
        self, keep_payload: bool = False, carried: CarriedStates | None = None, layers: Layers | None = None
    ) -> None:
        super().__init__(keep_payload)
        self.carried, self.layers = carried, layers
        self.ended: list[EndedConnections] = []
        self.limits: dict[int, int] = {}  # limits that the values of rows reached, by connection
        self._saved: dict[int, ConnectionState] = {}  # by connection, until all its rows were returned
        # Rows are counted from the first row of the decoder.
        self._open_rows: list[tuple[int, int]] = []  # (first, end): these change if their connection continues
        self._returned = 0
        self._first_row = 0  # of the current connection
        # Stalls: some whose connections may still have rows in the buffer, and those before.
        self._later_stalls, self._stalls = list[np.ndarray](), list[np.ndarray]()
        self._ends_for_now = False  # the current connection, which goes on in another capture
        self._channels = 0  # above the channels of its rows that were returned

    def feed(self, flow: bytes, segments: np.ndarray, payload: np.ndarray) -> Iterator[Batch]:
        """Decode the next segments (SEGMENT records in capture order, `file` filled in) of `flow` (its key, or
        FLOW_BYTES bytes)."""
        yield from self.feed_flows(np.frombuffer(flow, np.uint8)[None], np.array([len(segments)]), segments, payload)

    def feed_flows(
        self, flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray
    ) -> Iterator[Batch]:
        """The same for several flows: `flows` uint8 (n, FLOW_BYTES), or keys; the segments of flow i end at `ends[i]`
        (int64). The first flow may be the last flow of the call before."""
        if flows.shape[1] < FLOW_BYTES:
            flows = np.pad(flows, ((0, 0), (0, FLOW_BYTES - flows.shape[1])))
        flows, segments, payload = readonly(flows), readonly(as_records(segments)), readonly(payload)
        if self.layers is None:
            yield from self._feed_part(Part(flows, ends, segments, payload))
            return
        self.layers.suspending = self.carried is not None and self.carried.keep
        self.layers.resuming = self.carried is not None
        for part in self.layers.feed(flows, ends, segments, payload):
            yield from self._feed_part(part)

    def _feed_part(self, part: Part) -> Iterator[Batch]:
        flows, ends = readonly(part.flows), part.ends
        segments, payload = _for_kernels(part)
        if self.carried is None:
            yield from self._run(flows, ends, segments, payload)
        else:
            yield from self._run_carried(flows, ends, segments, payload, self.carried)

    def _run_carried(
        self, flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray, carried: CarriedStates
    ) -> Iterator[Batch]:
        begin = 0
        for i in range(len(flows)):  # states are saved and restored flow by flow
            yield from self._switch_to(flows[i], carried)
            end = int(ends[i])
            if end > begin:
                yield from self._run(flows[i : i + 1], np.array([end - begin]), segments[begin:end], payload)
            begin = end

    def finish(self) -> Iterator[Batch]:
        """End the current connection and return the remaining rows; afterwards the decoder is as new."""
        if self.layers is not None:
            self.layers.suspending = self.carried is not None and self.carried.keep
            for part in self.layers.finish():
                yield from self._feed_part(part)
        for flow in self.carried.remaining_flows() if self.carried else ():
            yield from self._switch_to(readonly(np.frombuffer(flow, np.uint8)), self.carried)  # type: ignore[arg-type]
            for part in self.layers.finish() if self.layers else ():
                yield from self._feed_part(part)
        yield from self._close()
        begin_flow(self.state.openings, readonly(NO_FLOW))
        yield from self._flush()

    def _run(self, flows: np.ndarray, ends: np.ndarray, segments: np.ndarray, payload: np.ndarray) -> Iterator[Batch]:
        code, flow, i, direction = run(self.state, flows, ends, segments, payload, 0, 0)
        while code != DONE:
            yield from self._make_room(code, direction)
            code, flow, i, direction = run(self.state, flows, ends, segments, payload, flow, i)

    def _switch_to(self, flow: np.ndarray, carried: CarriedStates) -> Iterator[Batch]:
        """Make this flow the current one, unless it is already."""
        if same_flow(self.state.openings, flow):
            return
        yield from self._close()
        begin_flow(self.state.openings, flow)
        self._first_row, self._channels = self._rows_so_far, 0
        found = carried.restore(flow.tobytes())
        if found is not None:
            yield from self._resume(found, carried)

    def _close(self) -> Iterator[Batch]:
        """The current flow has no more segments."""
        if not self._open:
            return
        if self.carried and self.carried.keep and not self.state.connection[0].layers:
            yield from self._save(self.carried)
            return
        if self.layers is not None:
            yield from self._end_layers(self.layers.take_suspended(self.state.openings.flow.tobytes()))
        yield from self._end()

    def _end_layers(self, layered: LayeredConnection | None) -> Iterator[Batch]:
        """The current connection, which had these layers, ends."""
        if layered is not None and self.layers is not None:
            for part in self.layers.end(layered):
                yield from self._run(readonly(part.flows), part.ends, *_for_kernels(part))

    def _end(self) -> Iterator[Batch]:
        """End the current connection."""
        self.state.connection[0].phase = ENDING
        nothing = as_records(np.zeros(0, SEGMENT)), np.zeros(0, np.uint8)
        yield from self._run(readonly(NO_FLOW[None]), np.zeros(1, np.int64), *map(readonly, nothing))

    def _save(self, carried: CarriedStates) -> Iterator[Batch]:
        """Save the current connection, which may continue in another capture."""
        state, rows = self.state, self.state.rows
        connection, complete = int(state.connection[0].connection_id), self._complete
        channels = rows.cells[max(0, self._first_row - self._returned) : int(rows.used[0]), R.CHANNEL].max(initial=-1)
        limits, channels = self.limits.get(connection, 0), max(self._channels, int(channels) + 1)
        flow = state.openings.flow.tobytes()
        layered = self.layers.take_suspended(flow) if self.layers is not None else None
        if layered is not None:  # no late copies follow
            state.directions["retained_from"] = state.directions["pos"]
        found = ConnectionState.of(state, carried.files.names, limits, channels, complete, self._open_stalls())
        if layered is not None:
            found = replace(found, layers=layered.state(carried.files.names))
            if not carried.open_rows and self.layers is not None:
                self.layers.release(layered)
        self._saved[connection] = found
        if not carried.open_rows:
            self._later_stalls = [each[each[:, stalls.STILL_OPEN] == 0] for each in self._later_stalls]
            rows.used[:] = complete, *heap_ends(rows, complete)
            state.connection[0].phase = NO_CONNECTION
            if len(self._saved) >= MOST_SAVED:
                yield from self._flush()
            return
        begins = self._returned + complete
        self._open_rows.append((begins, _NOT_YET))
        self._ends_for_now = True
        yield from self._end_layers(layered)
        yield from self._end()
        self._collect_stalls()
        self._ends_for_now = False
        self._open_rows.remove((begins, _NOT_YET))
        if self._rows_so_far > begins:
            self._open_rows.append((begins, self._rows_so_far))
        if len(self._saved) >= MOST_SAVED:
            yield from self._flush()

    def _resume(self, found: ConnectionState, carried: CarriedStates) -> Iterator[Batch]:
        """Restore the connection of this flow, which continues."""
        capacities, rows = found.capacities(), self.state.rows
        new = [found.rows, capacities["data"], capacities["payload"]]
        if found.rows and (rows.used + new > [BATCH_ROWS, len(rows.data), len(rows.payload)]).any():
            yield from self._flush()
        for name, size in capacities.items():
            self._enlarge_to(name, size)
        for direction in range(2):
            discard_incomplete(self.state, direction)
        self._first_row = self._rows_so_far
        row_from = int(self.state.rows.used[0])
        found.restore_into(self.state, carried.files.number)
        self._channels = found.channels
        self._later_stalls.append(found.stall_rows(carried.files.number))
        self.state.connection[0].keep_payload = self.keep_payload
        self.state.connection[0].row_from = row_from
        if found.limits:
            self.limits[found.connection_id] = found.limits
        if found.layers is not None and self.layers is not None:
            self.layers.resume(found.flow, found.layers, carried.files.number)
        elif self.layers is not None:
            self.layers.resume_without(found.flow, self.state.directions.view(np.ndarray), self.state.streams)

    @property
    def _rows_so_far(self) -> int:
        """The number of rows so far, returned or not."""
        return self._returned + int(self.state.rows.used[0])

    @property
    def _complete(self) -> int:
        """The number of complete rows in the buffer: the others have no known sender or version yet."""
        c = self.state.connection[0]
        undecided = self._open and (c.client < 0 or c.scoring)
        return int(c.row_from) if undecided else int(self.state.rows.used[0])

    def _enlarge_to(self, name: str, size: int) -> None:
        """Make room for `size` items in an array of both directions, or in a heap of the rows."""
        if name in ("data", "payload"):
            while len(getattr(self.state.rows, name)) < size:
                self._enlarge_heaps()
            return
        code = next(code for code, array in TOO_SMALL.items() if array == name)
        while len(getattr(self.state.streams[0], name)) < size or len(getattr(self.state.streams[1], name)) < size:
            self._enlarge_stream(code, -1)

    def take_ended(self) -> list[EndedConnections]:
        """Connections that have ended since the last call, all of whose rows were returned."""
        ended, self.ended = self.ended, []
        return ended

    def take_stalls(self) -> np.ndarray:
        """Stalls (rows of `codec.stalls`) since the last call, all of whose rows before were returned."""
        found, self._stalls = self._stalls, []
        return np.concatenate([NO_STALLS, *found])

    def _add_stalls(self, rows: np.ndarray) -> None:
        """Add stalls of the current connection, or, from the kernels, of any."""
        if len(rows):
            if self._ends_for_now:
                rows[rows[:, stalls.CONNECTION] == self.state.connection[0].connection_id, stalls.STILL_OPEN] = 1
            self._later_stalls.append(rows)

    def _collect_stalls(self) -> bool:
        """Take the stalls out of the arrays of the kernels; whether there were any."""
        rows = self.state.rows
        count = int(rows.stall_count[0])
        self._add_stalls(rows.stalls[:count].copy())
        rows.stall_count[0] = 0
        return count > 0

    def _open_stalls(self) -> np.ndarray:
        """The stalls of the current connection whose sides are not known yet; they are marked as still open."""
        self._collect_stalls()
        connection, found = self.state.connection[0], [NO_STALLS]
        for rows in self._later_stalls:
            own = rows[:, stalls.CONNECTION] == connection.connection_id
            if connection.client >= 0:
                set_sides(rows, own, int(connection.client))
            unknown = own & (rows[:, stalls.SIDE] >= stalls.UNKNOWN_SIDE)
            found.append(rows[unknown])
            rows[unknown, stalls.STILL_OPEN] = 1
        return np.concatenate(found)

    def _release_stalls(self) -> None:
        """All complete rows are returned: so may be the stalls whose sides are known."""
        self._collect_stalls()
        if not self._later_stalls:
            return
        rows = np.concatenate(self._later_stalls)
        ended = self.state.ended.connections[: int(self.state.ended.used[0])]
        clients = dict(zip(ended["connection_id"].tolist(), ended["client"].tolist(), strict=True))
        c = self.state.connection[0]
        if self._open and c.client >= 0:
            clients[int(c.connection_id)] = int(c.client)
        for connection in np.unique(rows[rows[:, stalls.SIDE] >= stalls.UNKNOWN_SIDE, stalls.CONNECTION]).tolist():
            if connection in clients:
                set_sides(rows, rows[:, stalls.CONNECTION] == connection, clients[connection])
        later = rows[:, stalls.SIDE] >= stalls.UNKNOWN_SIDE
        if self._open and (c.client < 0 or c.scoring):
            later |= rows[:, stalls.CONNECTION] == c.connection_id
        self._stalls.append(rows[~later])
        self._later_stalls = [rows[later]] if later.any() else []

    @property
    def _open(self) -> bool:
        return int(self.state.connection[0].phase) != NO_CONNECTION

    def _release_ended(self) -> None:
        """All rows of the connections that have ended or were saved are returned: release their records and states."""
        current = int(self.state.connection[0].connection_id) if self._open else None
        saved = {connection: state for connection, state in self._saved.items() if connection != current}
        if saved and self.carried:
            self.carried.save(list(saved.values()))
            for connection in saved:
                del self._saved[connection]
                if not self.carried.open_rows:
                    self.limits.pop(connection, None)
        ended = self.state.ended
        count, tls_prefixes = (int(used) for used in ended.used)
        if not count:
            self._release_stalls()
            return
        connections = ended.connections[:count].copy()
        if self.limits:
            for at, connection in enumerate(connections["connection_id"].tolist()):
                connections["limits"][at] |= self.limits.pop(connection, 0)
        directions = ended.directions[:count].copy()
        flows = ended.flows[:count].copy()
        layers = self.layers.facts(flows, connections, directions) if self.layers else {}
        prefixes = ended.tls_prefixes[:tls_prefixes].copy()
        self.ended.append(EndedConnections(flows, connections, directions, prefixes, layers))
        self._release_stalls()
        ended.used[:] = 0

    def _make_room(self, code: int, direction: int) -> Iterator[Batch]:
        """A kernel returned NEED_*: enlarge that array of the direction (of both when -1), or return rows."""
        if code != NEED_ROWS:
            self._enlarge_stream(code, direction)
            return
        used = int(self.state.ended.used[0])
        returned = self._collect_stalls()
        for batch in self._flush():
            returned = True
            yield batch
        if not returned and not used:  # one frame does not fit into empty heaps
            self._enlarge_heaps()

    def _flush(self) -> Iterator[Batch]:
        """Return the complete rows. Rows without a known sender or version remain, moved to the front."""
        rows, count, done = self.state.rows, int(self.state.rows.used[0]), self._complete
        if done:
            yield from self._decoded(rows, done)
            own = rows.cells[max(0, self._first_row - self._returned) : done, R.CHANNEL]
            self._channels = max(self._channels, int(own.max(initial=-1)) + 1)
            self._compact(done, count)
            self._returned += done
            self._open_rows = [(begin, end) for begin, end in self._open_rows if end > self._returned]
        self._release_ended()

    def _still_open(self, part: np.ndarray, first: int) -> np.ndarray | None:
        still_open = self._rows_still_open(first, first + len(part))
        for connection, limits in limits_of_rows(part).items():
            self.limits[connection] = self.limits.get(connection, 0) | limits
        for connection, limits in limits_of_rows(part if still_open is None else part[~still_open]).items():
            if connection in self._saved:
                saved = self._saved[connection]
                self._saved[connection] = replace(saved, limits=saved.limits | limits)
        return still_open

    def _rows_still_open(self, first: int, stop: int) -> np.ndarray | None:
        """Which of these rows of the buffer change if their connection continues."""
        found = None
        for begin, end in self._open_rows:
            begin, end = max(begin - self._returned, first), min(end - self._returned, stop)
            if begin < end:
                found = np.zeros(stop - first, bool) if found is None else found
                found[begin - first : end - first] = True
        return found


def set_sides(rows: np.ndarray, own: np.ndarray, client: int) -> None:
    """Set the sides of the stalls in `own` rows, of which only directions are known; `client`: that of the client."""
    own = own & (rows[:, stalls.SIDE] >= stalls.UNKNOWN_SIDE)
    rows[own, stalls.SIDE] = rows[own, stalls.SIDE] - stalls.UNKNOWN_SIDE != client


def _for_kernels(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The segments and the payload of a part."""
    return readonly(as_records(part.segments)), readonly(part.payload)
