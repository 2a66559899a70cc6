"""Runs in, rows of all tables out: the only producer of rows.

    for table, still_open, rows in tables_of(runs, config): ...

`runs`: batches of TCP_RUNS (`udfs.schemas`), flow by flow and in order (`udfs.decode.runs`); `config`:
`pipeline.tables.config.config(payload=...)`. Rows are batches with the columns of `pipeline.schemas.TABLES[table]`:
`frames`, `methods`, `messages`, `channels`, `links`, `connections`, `streams`. Two more are not tables: ACCOUNTS, what
each split of a capture held (DECODED rows of kind 'capture', of which Spark makes `captures`), and STATES.

Connections that outlive their captures:

    for table, still_open, rows in tables_of(runs, config, states={flow: octets}): ...

`states` are those that earlier captures left open, by the flow of their connection (36 octets); each is looked up and
unpacked when the first run of its flow comes, and none to begin with is `{}`. Then rows with `still_open` false are
final: they never come again. Of each connection that is still open where the runs end there is a row in STATES, the
octets to go on with, and there are rows with `still_open` true: as they are if nothing more comes. Whoever goes on
replaces these. A state whose flow has no run in `runs` is left alone: nothing is given out for it. With `keep_open`
false all connections end, those of `states` without a run, too: all rows are final.

The law: however captures are cut into pieces, the final rows of all pieces and the open rows of the last one are the
rows of one decode. Octets of another release's layout, or damaged ones, are skipped and reported in a row of STATES
with the flow, an `error` and no octets; their connection is then decoded from its middle.

Nothing is held but the connection at hand, and of it what is outstanding.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa

from codec.amqp.connections.state import ConnectionState, StateError
from codec.amqp.decoder import Batch, CarriedStates, Decoder
from codec.layers.stack import Layers
from udfs.arrow.fields import fields
from udfs.arrow.types import arrow_schema
from udfs.decode.connection_rows import connection_rows
from udfs.decode.decoder import account_row
from udfs.decode.frame_rows import frame_rows
from udfs.decode.hand_over import ACCOUNTS, STATES
from udfs.decode.key_logs import SecretFiles
from udfs.decode.payloads import Payloads
from udfs.decode.runs import Files, FlowOrder, Group, groups
from udfs.tables.config import Config
from udfs.tables.connections import Connections
from udfs.tables.conversation import Conversation
from udfs.tables.states import StateRows, from_octets, layout_of, to_octets

# What is made together.
OF_CONVERSATION = {"methods", "messages", "channels", "links"}
OF_CONNECTIONS = {"connections", "streams"}

__all__ = ["ACCOUNTS", "STATES", "Part", "Tables", "tables_of"]


class Part(NamedTuple):
    """Some rows of a table; `still_open`: they may come again, changed."""

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
    are; `carry_secrets`: states of connections that are decrypted hold what goes on decrypting them."""
    layers = Layers(secrets.open() if secrets else None, carry_secrets)
    source = _Decoding(config, states, keep_open, layers)
    files, payloads = source.files, Payloads()
    order = FlowOrder(files)
    try:
        for batch in runs:
            for account in batch["account"].drop_null().to_pylist():
                yield Part(ACCOUNTS, False, account_row(json.loads(account)))
            for group, last_run in groups(batch, files, payloads):
                yield from source.feed(order.add(group, last_run))
        yield from source.feed(order.rest())
        yield from source.finish()
    finally:
        payloads.close()
        source.release()
        del source, order, layers
        give_memory_back()


def give_memory_back() -> None:
    """Give what is free back to the system. glibc keeps it, and uses little of it again for arrays of other sizes: a
    worker that goes on with connections, batch after batch, would grow by some 40 MB each time."""
    with suppress(OSError, AttributeError):  # systems with another library
        ctypes.CDLL(None).malloc_trim(0)


class Tables:
    """The tables of decoded rows, connection after connection (`udfs.decode.decoder`)."""

    def __init__(self, config: Config, waiting_bytes: int | None = None) -> None:
        self._config = config
        self._frames = arrow_schema(config.schemas["frames"])
        self._with_conversation = bool(config.tables & OF_CONVERSATION)
        self._with_connections = bool(config.tables & OF_CONNECTIONS)
        self._conversation = Conversation(config, waiting_bytes)
        schemas = {name: arrow_schema(config.schemas[name]) for name in ("connections", "streams")}
        self._connections = Connections(config.handshake, config.counts, schemas)

    def feed(self, frames: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Decoded rows of kind 'frame' -> table, rows."""
        if not frames.num_rows:
            return
        frames = frames.select(self._frames.names)
        yield "frames", frames
        if self._with_connections:
            self._connections.add(frames)
        if self._with_conversation:
            yield from self._conversation.feed(frames, fields(frames["arguments"], self._config.arguments))

    def end(self, facts: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Decoded rows of kind 'connection', behind the frames of these connections."""
        if facts.num_rows and self._with_connections:
            yield from self._connections.rows(facts, self._conversation.gave_up)

    def settle(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Rows of the connection at hand that nothing changes any more."""
        yield from self._conversation.settle()

    def finish(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The connection at hand has no more frames."""
        yield from self._conversation.finish()

    def put_down(self) -> dict[str, Any]:
        """What is known of the connection at hand, which stays."""
        parts = {f"conversation.{name}": part for name, part in self._conversation.put_down().items()}
        return parts | {f"connection.{name}": part for name, part in self._connections.put_down().items()}

    def take_up(self, parts: Mapping[str, Any]) -> None:
        """What was put down; nothing is known of any connection."""
        for each, prefix in ((self._conversation, "conversation."), (self._connections, "connection.")):
            each.take_up({name.removeprefix(prefix): parts[name] for name in parts if name.startswith(prefix)})


class _Decoding:
    """Flows in, parts out."""

    def __init__(self, config: Config, states: Mapping[bytes, bytes] | None, keep_open: bool, layers: Layers) -> None:
        self.files = Files()
        self._config, self._layout = config, layout_of(config)
        self._tables = Tables(config)
        self._still_open = False
        self._states = StateRows()
        self._ready: list[Part] = []
        carried = None if states is None else _Carried(self, states, keep_open)
        self._decoder = Decoder(config.payload, carried, layers)

    def feed(self, ready: Iterable[Group]) -> Iterator[Part]:
        """Decode groups of flows."""
        for group in ready:
            yield from self._rows(self._decoder.feed_flows(*group))

    def finish(self) -> Iterator[Part]:
        """There are no more flows."""
        yield from self._rows(self._decoder.finish())
        yield from self._told(self._tables.finish())
        yield from self._states_taken()

    def release(self) -> None:
        """Nothing follows: let go of the decoder, which knows this, so that its memory is free at once."""
        del self._decoder, self._tables

    def take_up(self, octets: bytes, flow: bytes) -> ConnectionState | None:
        """A connection goes on: what was known of it is known again."""
        try:
            state, parts = from_octets(octets, self._layout)
        except StateError as error:
            self._states.unread(flow, str(error))
            return None
        self._tables.take_up(parts)
        return state

    def put_down(self, state: ConnectionState) -> None:
        """The flow has no more runs: what is final goes out, what is known goes into a state."""
        self._end_connections()
        self._ready += self._told(self._tables.settle())
        octets = to_octets(state, self._tables.put_down(), self._layout)
        self._states.add(state, octets)
        self._still_open = True

    def closed(self) -> None:
        """All rows of the connection at hand were handed out."""
        self._ready += self._told(self._tables.finish())
        self._end_connections()
        self._still_open = False

    def _rows(self, batches: Iterator[Batch]) -> Iterator[Part]:
        for batch in batches:
            yield from self._taken()
            rows = frame_rows(batch, self.files.names, self._config.payload, coded=True)
            yield from self._told(self._tables.feed(rows))
            self._end_connections()
        self._end_connections()
        yield from self._taken()

    def _told(self, rows: Iterator[tuple[str, pa.RecordBatch]]) -> Iterator[Part]:
        still_open = self._still_open
        return (Part(table, still_open, batch) for table, batch in rows if batch.num_rows)

    def _end_connections(self) -> None:
        for ended in self._decoder.take_ended():
            self._ready += self._told(self._tables.end(connection_rows(ended, self.files.names)))

    def _taken(self) -> Iterator[Part]:
        ready, self._ready = self._ready, []
        yield from ready
        if self._states.enough:
            yield from self._states_taken()

    def _states_taken(self) -> Iterator[Part]:
        rows = self._states.take()
        if rows.num_rows:
            yield Part(STATES, False, rows)


class _Carried(CarriedStates):
    """States as octets, unpacked one by one."""

    def __init__(self, decoding: _Decoding, states: Mapping[bytes, bytes], keep_open: bool) -> None:
        super().__init__((), decoding.files)
        self._decoding, self._octets, self.keep = decoding, states, keep_open
        self._taken = set[bytes]()

    def restore(self, flow: bytes) -> ConnectionState | None:
        octets = None if flow in self._taken else self._octets.get(flow)
        self._taken.add(flow)
        return None if octets is None else self._decoding.take_up(octets, flow)

    def save(self, state: ConnectionState) -> bool:
        self._decoding.put_down(state)
        return True

    def on_closed(self) -> None:
        self._decoding.closed()

    def remaining_flows(self) -> list[bytes]:
        return [] if self.keep else [flow for flow in self._octets if flow not in self._taken]
