"""Makes the rows of all tables from runs: the only producer of rows.

    for table, still_open, rows in tables_of(runs, config): ...

`runs`: batches of TCP_RUNS (`codec.tables`), flow by flow and in order (`udfs.decode.flow_order`); `config`:
`pipeline.tables.decoding.config(payload=...)`. Rows are batches with the columns of `codec.tables.TABLES[table]`:
`frames`, `methods`, `messages`, `channels`, `links`, `connections`, `streams`, `stalls`, `oddities`. Two more are not
tables:
ACCOUNTS, what each split of a capture held, of which `captures` is made, and STATES.

Connections that outlive their captures:

    for table, still_open, rows in tables_of(runs, config, states={flow: bytes}): ...

`states` has the connections that earlier captures left open, by their flow (FLOW_BYTES bytes); at first it is `{}`.
Rows with `still_open` false are final. A connection that is still open at the end of the runs has a row in STATES,
with which the next call continues, and rows with `still_open` true: as they are if nothing more is captured. The next
call replaces these. A state without a run of its flow in `runs` is ignored. With `keep_open` false all connections
end, also those of `states` without a run, and all rows are final.

The law: however captures are cut into pieces, the final rows of all pieces and the open rows of the last one are the
rows of one decode. Bytes of another release's layout, or damaged ones, are skipped and reported in a row of STATES
with the flow, an `error` and no bytes; their connection is then decoded from its middle.

Memory holds what is outstanding of the current connection; with `states`, of the connections that are decoded together,
whose rows and states are made at once.

Read this file, `conversation` (methods, messages, channels, links), `settled` and `handled` (outcomes of messages),
`connections`, `stalls_table`; `saved_states` has the bytes of STATES, `packed` all tables in one pass of Spark.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.amqp.batches import Batch
from codec.amqp.decoder import CarriedStates, Decoder
from codec.framing.connection import EndedConnections
from codec.framing.connection_state import (
    NO_STALLS,
    ConnectionState,
    restore_states,
    save_states,
)
from codec.layers.stack import Layers
from codec.net.layers import FLOW_KEY_BYTES
from codec.packing import (
    Reader,
    StateError,
    Writer,
    seal,
    unseal,
)
from codec.stalls import CONNECTION, STILL_OPEN
from udfs.arrow.arrays import to_int64
from udfs.arrow.types import arrow_schema
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.messages import INSIDE
from udfs.decode.connection_rows import CONNECTION_FACTS, concat_ended, connection_rows
from udfs.decode.flow_order import AddressSpaces, Files, Group, Groups, flow_of, flows_in_order
from udfs.decode.frame_rows import frame_rows
from udfs.decode.key_logs import SecretFiles
from udfs.decode.stall_rows import stall_rows
from udfs.source.connection_processes import FlowProcesses
from udfs.tables.connections import Connections
from udfs.tables.conversation import Conversation
from udfs.tables.saved_states import LAYOUT, layout_digest, state_rows, unread_rows
from udfs.tables.stalls_table import Oddities, Stalls
from udfs.workers.worker_config import ACCOUNTS, STATES, Config

# What is made together.
OF_CONVERSATION = {"methods", "messages", "channels", "links", "stalls", "oddities"}
OF_CONNECTIONS = {"connections", "streams", "stalls"}
NEED_CONVERSATION = OF_CONVERSATION | {"connections"}  # whose `limits` say whether too much was outstanding
READ_TOGETHER, READ_BYTES = 1 << 10, 1 << 24  # states
ENDED_TOGETHER = 1 << 10  # connections that have ended whose rows are made at once
Rows = Iterator[tuple[str, pa.RecordBatch]]

__all__ = ["ACCOUNTS", "STATES", "Part", "Tables", "tables_of"]


class Part(NamedTuple):
    """Some rows of a table; `still_open`: a later call may replace them."""

    table: str
    still_open: bool
    rows: pa.RecordBatch


def tables_of(
    runs: Iterable[pa.RecordBatch],
    config: Config,
    states: Mapping[bytes, bytes] | None = None,
    keep_open: bool = True,
    secrets: SecretFiles | None = None,
    carry_secrets: bool = False,
) -> Iterator[Part]:
    """See the module's text. Without `states` all connections end where their runs do. `secrets`: where those of TLS
    are; `carry_secrets`: states of decrypted connections contain the secrets that decrypt the rest."""
    layers = Layers(secrets.open() if secrets else None, carry_secrets)
    source = _Decoding(config, states, keep_open, layers)
    flows = flows_in_order(runs, source.files, source.processes)
    try:
        for part in flows:
            if isinstance(part, str):
                yield Part(ACCOUNTS, False, pa.record_batch({"account": [part]}))
            else:
                yield from source.feed(part)
        yield from source.finish()
    finally:
        flows.close()
        source.release()
        del source, flows, layers
        trim_heap()


def trim_heap() -> None:
    """Return free memory to the system. glibc retains it and reuses little of it for arrays of other sizes: a worker
    that continues connections, batch after batch, would grow by some 40 MB each time."""
    with suppress(OSError, AttributeError):  # systems with another library
        ctypes.CDLL(None).malloc_trim(0)


class Tables:
    """The tables of frames, connection after connection. With `keep` connections stay
    open until their facts come, as for `Conversation`."""

    def __init__(self, config: Config, keep: bool = False) -> None:
        self._frame_columns = config.schemas["frames"].names
        self._stalls = Stalls(arrow_schema(config.schemas["stalls"]))
        self._oddities = Oddities(arrow_schema(config.schemas["oddities"]))
        self._with_conversation = bool(config.tables & NEED_CONVERSATION)
        self._with_connections = bool(config.tables & OF_CONNECTIONS)
        self._conversation = Conversation(config, keep, self._stalls, self._oddities)
        self._keep = keep
        schemas = {name: arrow_schema(config.schemas[name]) for name in ("connections", "streams")}
        self._connections = Connections(schemas, self._stalls)

    def feed(self, frames: FrameBatch) -> Rows:
        """Frames, with the column INSIDE -> table, rows."""
        if not len(frames):
            return
        yield "frames", frames.rows.select(self._frame_columns)
        if self._with_connections:
            self._connections.add(frames)
        if self._with_conversation:
            yield from self._conversation.feed(frames)
            yield from (("oddities", rows) for rows in self._oddities.release())

    def add_stalls(self, rows: pa.RecordBatch) -> None:
        """Stalls of TCP (STALL), behind the frames before them."""
        self._stalls.add(self._connections.without_usual_silence(rows))

    def end(self, facts: pa.RecordBatch) -> Rows:
        """CONNECTION_FACTS, behind the frames of these connections."""
        if self._keep and facts.num_rows:
            yield from self._conversation.end(to_int64(facts["connection_id"]))
        # As long as it is known what the sides of connections have promised.
        self._stalls.close(facts, self._conversation.open_ids, self._connections.without_usual_silence)
        if facts.num_rows and self._with_connections:
            yield from self._connections.rows(facts, self._conversation.over_limit)
        self._stalls.close(facts, self._conversation.open_ids)
        self._oddities.close(facts, self._conversation.open_ids)
        yield from self._released()

    def settle(self) -> Rows:
        """Final rows of open connections."""
        yield from self._conversation.settle()
        yield from self._released()

    def finish(self) -> Rows:
        """There are no more frames."""
        yield from self._conversation.finish()
        yield from self._released()

    def _released(self) -> Rows:
        """Stalls and oddities that are over."""
        yield from (("stalls", rows) for rows in self._stalls.release())
        yield from (("oddities", rows) for rows in self._oddities.release())

    @cached_property
    def schemas(self) -> list[pa.Schema]:
        return [*self._conversation.schemas, *self._connections.schemas]

    def save(self, ids: NDArray[np.int64], writer: Writer) -> None:
        """Write the states of connections, which stay; call `settle` before."""
        self._conversation.save(ids, writer)
        self._connections.save(ids, writer)

    def restore(self, ids: NDArray[np.int64], reader: Reader) -> None:
        """Add connections that `save` wrote."""
        self._conversation.restore(ids, reader)
        self._connections.restore(reader)


class _Decoding:
    """Makes parts from flows."""

    def __init__(self, config: Config, states: Mapping[bytes, bytes] | None, keep_open: bool, layers: Layers) -> None:
        self.files, self.processes = Files(), FlowProcesses()
        self._config, self._columns = config, [*config.schemas["frames"].names, INSIDE]
        self._tables = Tables(config, keep=states is not None)
        self._carried: _Carried | None = None
        if states is not None:
            self._carried = _Carried(self._tables, states, keep_open, self.files, self.processes)
        self._open_frames: list[FrameBatch] = []
        self._open_stalls = NO_STALLS  # that change if their connections continue
        self._ended_connections: list[EndedConnections] = []  # whose rows are not made yet
        self._decoder = Decoder(config.payload, self._carried, layers)
        self._spaces = AddressSpaces(self._carried.groups if self._carried else None)
        if self._carried is not None:
            self._carried.ended_groups = self._spaces.ended

    def feed(self, group: Group) -> Iterator[Part]:
        if self._carried is not None:
            self._carried.coming = [flow_of(key.tobytes()) for key in group.flows]
        for flows in self._spaces.feed(group):
            yield from self._rows(self._decoder.feed_flows(*flows))

    def finish(self) -> Iterator[Part]:
        """End: there are no more flows."""
        for flows in self._spaces.finish():
            yield from self._rows(self._decoder.feed_flows(*flows))
        yield from self._rows(self._decoder.finish())
        yield from self._ended(fewest=1)
        yield from _parts(self._tables.finish(), False)

    def release(self) -> None:
        """Drop the decoder, which refers to this object, so that its memory is free at once."""
        del self._decoder, self._tables, self._carried, self._spaces

    def _rows(self, batches: Iterator[Batch]) -> Iterator[Part]:
        for batch in batches:
            yield from self._ended()
            rows = frame_rows(batch, self.files.names, self._config.payload, self._columns, encoded=True)
            frames = FrameBatch(rows, batch.cells)
            if batch.still_open is not None:
                self._open_frames.append(frames.where(batch.still_open))
                frames = frames.where(~batch.still_open)
            yield from _parts(self._tables.feed(frames), False)
        yield from self._ended()

    def _ended(self, fewest: int = ENDED_TOGETHER) -> Iterator[Part]:
        """Rows of connections that have ended, if they are at least `fewest`, and of those whose states were saved."""
        if self._carried is not None:
            yield from self._carried.errors()
        stalls = self._decoder.take_stalls()
        if len(stalls):
            still_open = stalls[:, STILL_OPEN] == 1
            self._open_stalls = np.concatenate([self._open_stalls, stalls[still_open]])
            self._tables.add_stalls(stall_rows(stalls[~still_open], self.files.names))
        saved = self._carried.take_saved() if self._carried is not None else []
        self._ended_connections += self._decoder.take_ended()
        count = sum(len(ended.flows) for ended in self._ended_connections)
        if not saved and count < (fewest if self._carried is None else 1):
            return
        found, self._ended_connections = self._ended_connections, []
        facts = pa.RecordBatch.from_pylist([], CONNECTION_FACTS)
        if found:
            facts = connection_rows(concat_ended(found), self.files.names, self.processes)
        if not saved:
            yield from _parts(self._tables.end(facts), False)
            return
        assert self._carried is not None
        ids = np.array([state.connection_id for state in saved], np.int64)
        open_still = np.isin(to_int64(facts["connection_id"]), ids)
        yield from _parts(self._tables.end(facts.filter(pa.array(~open_still))), False)
        yield from _parts(self._tables.settle(), False)
        yield Part(STATES, False, self._carried.rows(saved, ids))
        frames, self._open_frames = self._open_frames, []
        for each in frames:
            yield from _parts(self._tables.feed(each), True)
        of_saved = np.isin(self._open_stalls[:, CONNECTION], ids)
        self._tables.add_stalls(stall_rows(self._open_stalls[of_saved], self.files.names))
        self._open_stalls = self._open_stalls[~of_saved]
        yield from _parts(self._tables.end(facts.filter(pa.array(open_still))), True)


class _Carried(CarriedStates):
    """States as bytes: those of flows that come together are read together."""

    open_rows = True

    def __init__(
        self,
        tables: Tables,
        states: Mapping[bytes, bytes],
        keep_open: bool,
        files: Files,
        processes: FlowProcesses,
    ) -> None:
        super().__init__((), files)
        self._tables, self._bytes, self.keep, self._processes = tables, states, keep_open, processes
        self._digest = layout_digest(tables.schemas)
        self._restored = set[bytes]()
        self._saved: list[ConnectionState] = []
        self._unread: list[tuple[bytes, str]] = []
        self.coming: list[bytes] = []  # flows whose states will be asked for
        self.ended_groups: dict[bytes, NDArray[np.void]] = {}  # by flow, until its state is saved

    def restore(self, flow: bytes) -> ConnectionState | None:
        if flow not in self._restored:
            self._read([flow, *self.coming])
        found = self.states.pop(flow, None)
        if found is not None:
            self._processes.restore(flow, found.arrays["processes"])
        return found

    def groups(self, key: bytes) -> Groups:
        """The groups of address spaces of a flow key, as far as their connections are open; their states will be asked
        for."""
        found = {}
        for flow in (flow_of(key), *self._later_flows.get(key, ())):
            if flow not in self._restored:
                self._read([flow, *self.coming])
            if flow in self.states and len(self.states[flow].arrays["spaces"]):
                found[int.from_bytes(flow[len(key) :], "big")] = self.states[flow].arrays["spaces"]
        return found

    @cached_property
    def _later_flows(self) -> dict[bytes, list[bytes]]:
        """By flow key, the flows of its later groups of address spaces in `bytes`."""
        found: dict[bytes, list[bytes]] = {}
        for flow in self._bytes:
            key = flow[:FLOW_KEY_BYTES]
            if flow != flow_of(key):
                found.setdefault(key, []).append(flow)
        return {key: sorted(flows) for key, flows in found.items()}

    def save(self, states: list[ConnectionState]) -> None:
        for state in states:
            spaces = self.ended_groups.pop(state.flow, state.arrays["spaces"])
            processes = self._processes.save(state.flow, state.first_ns, state.last_ns)
            self._saved.append(replace(state, arrays=state.arrays | {"spaces": spaces, "processes": processes}))

    def remaining_flows(self) -> list[bytes]:
        rest = [] if self.keep else [flow for flow in self._bytes if flow not in self._restored]
        self.coming = rest
        return rest

    def take_saved(self) -> list[ConnectionState]:
        """Remove and return the states that were saved."""
        saved, self._saved = self._saved, []
        return saved

    def rows(self, saved: list[ConnectionState], ids: NDArray[np.int64]) -> pa.RecordBatch:
        writer = Writer(len(saved))
        save_states(saved, writer)
        self._tables.save(ids, writer)
        return state_rows(saved, [seal(each, LAYOUT, self._digest) for each in writer.data()])

    def errors(self) -> Iterator[Part]:
        """Rows of bytes that could not be read."""
        if self._unread:
            unread, self._unread = self._unread, []
            yield Part(STATES, False, unread_rows(unread))

    def _read(self, flows: Iterable[bytes]) -> None:
        """Read the states of the first of these flows."""
        data, size = list[bytes](), 0
        for flow in flows:
            if flow in self._restored or len(data) == READ_TOGETHER or size >= READ_BYTES:
                continue
            self._restored.add(flow)
            found = self._bytes.get(flow)
            if found is None:
                continue
            try:
                data.append(unseal(found, LAYOUT, self._digest))
            except StateError as error:
                self._unread.append((flow, str(error)))
            else:
                size += len(data[-1])
        if data:
            reader = Reader(data)
            states = restore_states(reader)
            self.states |= {state.flow: state for state in states}
            self._tables.restore(np.array([state.connection_id for state in states], np.int64), reader)


def _parts(rows: Rows, still_open: bool) -> Iterator[Part]:
    return (Part(table, still_open, batch) for table, batch in rows if batch.num_rows)
