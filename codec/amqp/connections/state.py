"""The state of one connection between two of its segments, as a value: saved after one capture, restored with the next.

    state = ConnectionState.of(decoder_state, ...)                   # the current connection of a decoder
    octets = state.to_bytes()
    ConnectionState.from_bytes(octets).restore_into(decoder_state)   # in another process

Decoding a capture in two pieces with the state carried over gives the same rows as decoding it whole, wherever it is
cut. So the state has everything that a later segment may need: both directions with the bytes that wait for the end of
a frame or for a missing segment, and the bytes for comparison with late copies; spans; incomplete contents, 0-10
assemblies and 1.0 deliveries with their running digests; rows without a known sender or version.

Octets are sealed as in `codec.packing`. A state has bytes of the capture, which may be credentials: keep it as private
as the captures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from codec import stalls
from codec.amqp import rows as R
from codec.amqp.classic.contents import CONTENT
from codec.amqp.connections import parts as P
from codec.amqp.connections.connection import CONNECTION, SPAN
from codec.amqp.connections.lifecycle import first_packets_of, record_opening
from codec.amqp.v0_10.assemblies import SEGMENT, SESSION
from codec.amqp.v1_0.delivery_slots import DELIVERY, HEAD
from codec.net.segments import FLOW_BYTES
from codec.net.spaces import GROUP
from codec.packing import Reader, Writer, sealed, unsealed
from codec.tcp.direction import DIRECTION, MARK, PIECE

if TYPE_CHECKING:
    from codec.amqp.stream import State

LAYOUT = 6  # raise it when the meaning of a field changes; a changed field changes the digest by itself

NO_STALLS = stalls.new_rows(0)
_PLACE = np.dtype("i8")
# Name -> type of the arrays of a state. A name that ends with `0` or `1` is of that direction.
_ARRAYS: dict[str, np.dtype] = {
    "connection": CONNECTION,
    "spaces": GROUP,  # one, if the caller knows it
    "processes": np.dtype("u1"),  # text, if the caller knows something
    "directions": DIRECTION,
    "tls_prefix": np.dtype("u1"),
    **{f"{name}{side}": kind for side in (0, 1) for name, kind in (
        ("bytes", np.dtype("u1")), ("partial", np.dtype("u1")), ("marks", MARK), ("pieces", PIECE),
        ("pool", np.dtype("u1")), ("spans", SPAN),
        ("delivery_places", _PLACE), ("deliveries", DELIVERY), ("delivery_heads", np.dtype("u1")),
        ("delivery_bytes", np.dtype("u1")), ("delivery_digests", P.DIGEST),
    )},
    "content_places": _PLACE,  # direction * CHANNELS + channel, of every slot with a content or an assembly
    "contents": CONTENT,
    "digests": P.DIGEST,
    "session_places": _PLACE,
    "sessions": SESSION,
    "segment_places": _PLACE,
    "segments": SEGMENT,
    "segment_bytes": np.dtype("u1"),
    "partial_flags": np.dtype("i8"),
    "cells": np.dtype("i8"),
    "row_digests": np.dtype("u1"),
    "octets": np.dtype("u1"),
    "payload": np.dtype("u1"),
    "stalls": np.dtype("i8"),  # rows of `codec.stalls` whose sides are not known yet
}  # fmt: skip
_FLOW, _NUMBER, _TEXT = np.dtype(f"V{FLOW_BYTES}"), np.dtype("i8"), np.dtype("u1")


@cache
def layout() -> bytes:
    """A digest of the names and types of all arrays and fields."""
    text = json.dumps([[name, repr(kind.descr)] for name, kind in _ARRAYS.items()] + [list(R.COLUMNS), HEAD])
    return hashlib.sha256(text.encode()).digest()[:8]


@dataclass(frozen=True)
class ConnectionState:
    """`flow`: its FLOW_BYTES. `openings`: the first packets of the flow's connections
    (`codec.amqp.connections.lifecycle.first_packets_of`). `limits`: those that values reached, a bitmask of
    `codec.compiler.limits.REACHED`. `files`: capture files by number, as in the records. `arrays`: see `_ARRAYS`.
    `layers`: of a connection inside TLS or WebSocket (`codec.layers.state`)."""

    flow: bytes
    openings: list[list[int]]
    limits: int
    files: tuple[str, ...]
    arrays: dict[str, np.ndarray] = field(repr=False)
    layers: dict[str, Any] | None = field(default=None, repr=False)

    def _fact(self, name: str) -> int:
        return int(self.arrays["connection"][name][0])

    @property
    def connection_id(self) -> int:
        """The connection's id."""
        return self._fact("connection_id")

    @property
    def first_ns(self) -> int:
        """When its first packet was captured, ns since 1970-01-01 UTC."""
        return self._fact("first_ns")

    @property
    def last_ns(self) -> int:
        """When its last packet was captured, ns since 1970-01-01 UTC."""
        return self._fact("last_ns")

    @property
    def tcp_ended(self) -> bool:
        """Whether TCP has ended the connection: only copies of earlier bytes may follow."""
        directions = self.arrays["directions"]
        return bool(directions["rst"].any() or directions["fin"].all())

    def to_bytes(self) -> bytes:
        """The state as octets."""
        writer = Writer(1)
        save_states([self], writer)
        return sealed(writer.octets()[0], LAYOUT, layout())

    @classmethod
    def from_bytes(cls, octets: bytes) -> ConnectionState:
        """The inverse of `to_bytes`; raises StateError for any other octets."""
        return restore_states(Reader([unsealed(octets, LAYOUT, layout())]))[0]

    @classmethod
    def of(
        cls, state: State, files: Sequence[str], limits: int, channels: int, first_row: int = 0,
        stall_rows: np.ndarray = NO_STALLS,
    ) -> ConnectionState:  # fmt: skip
        """The state of the current connection. The channels of its rows so far are below `channels`; its incomplete
        rows are those of `state.rows` from `first_row` on, and `stall_rows`."""
        directions = np.array(state.directions)
        arrays: dict[str, np.ndarray] = {"connection": np.array(state.connection), "directions": directions}
        arrays["spaces"] = np.zeros(0, GROUP)
        arrays["processes"] = np.zeros(0, np.uint8)
        arrays["tls_prefix"] = state.tls_prefix.reshape(-1).copy()
        for side in (0, 1):
            own = P.stream_arrays(state, side, directions) | P.save_deliveries(state, side)
            own["partial"] = state.partial[side][: int(state.directions[side].frame_stored)].copy()
            own["spans"] = np.array(state.spans.pending[side][: state.spans.used[side]])
            arrays |= {f"{name}{side}": array for name, array in own.items()}
        arrays |= P.save_contents(state, channels) | P.save_assemblies(state, channels)
        arrays |= P.save_rows(state.rows, first_row) | {"stalls": stall_rows.reshape(-1)}
        arrays, used = P.retain_used_files(arrays, files)
        openings = [list(opening) for opening in first_packets_of(state.openings)]
        return cls(state.openings.flow.tobytes(), openings, limits, used, arrays)

    def restore_into(self, state: State, number: Callable[[str], int]) -> None:
        """Make this connection the current one, and append its rows to those of `state`. Before, call
        `codec.amqp.framing.discard_incomplete` and `codec.amqp.connections.lifecycle.begin_flow`, and make room
        (`capacities`). `number` gives the number of a capture file in `state`."""
        arrays = P.renumber_all(self.arrays, P.file_numbers(self.files, number))
        for opening in self.openings:
            record_opening(state.openings, *opening)
        state.connection[:] = arrays["connection"]
        state.directions[:] = arrays["directions"]
        state.tls_prefix[:] = arrays["tls_prefix"].reshape(state.tls_prefix.shape)
        for side in (0, 1):
            for name in P.STREAM_ARRAYS:
                array = arrays[f"{name}{side}"]
                getattr(state.streams[side], name)[: len(array)] = array
            state.partial[side][: len(arrays[f"partial{side}"])] = arrays[f"partial{side}"]
            spans = arrays[f"spans{side}"]
            state.spans.pending[side][: len(spans)] = spans
            state.spans.used[side] = len(spans)
            P.restore_deliveries(state, side, arrays)
        P.restore_contents(state, arrays)
        P.restore_assemblies(state, arrays)
        P.restore_rows(state.rows, arrays)

    def stall_rows(self, number: Callable[[str], int]) -> np.ndarray:
        """Its stalls whose sides are not known yet; `number` as for `restore_into`."""
        rows = P.renumber_all({"stalls": self.arrays["stalls"]}, P.file_numbers(self.files, number))["stalls"]
        return rows.reshape(-1, len(stalls.CELLS))

    def capacities(self) -> dict[str, int]:
        """The room that `restore_into` needs: items of each array of a stream (the larger of both directions), octets
        of the heaps of rows."""
        streams = {name: max(len(self.arrays[f"{name}0"]), len(self.arrays[f"{name}1"])) for name in P.STREAM_ARRAYS}
        return streams | {name: len(self.arrays[name]) for name in ("octets", "payload")}

    @property
    def channels(self) -> int:
        """A number above all of its channels."""
        half = 1 << 16
        places = [self.arrays["content_places"], self.arrays["session_places"], self.arrays["segment_places"] >> 1]
        return max((int((each % half).max()) + 1 for each in places if len(each)), default=0)

    @property
    def rows(self) -> int:
        """The number of its incomplete rows."""
        return len(self.arrays["cells"]) // len(R.COLUMNS)


def save_states(states: Sequence[ConnectionState], writer: Writer) -> None:
    """Write the states of connections."""
    one = np.ones(len(states), np.int64)
    for name, kind in _ARRAYS.items():
        arrays = [state.arrays[name] for state in states]
        octets = np.frombuffer(b"".join(array.tobytes() for array in arrays), kind)
        writer.put_counted(octets, np.array([len(array) for array in arrays], np.int64))
    writer.put(np.frombuffer(b"".join(state.flow for state in states), _FLOW), one)
    writer.put(np.array([state.limits for state in states], _NUMBER), one)
    openings = [number for state in states for openings in state.openings for number in openings]
    writer.put_counted(np.array(openings, _NUMBER), np.array([3 * len(state.openings) for state in states], np.int64))
    for texts in (
        [json.dumps(state.files) for state in states],
        [json.dumps(state.layers) if state.layers is not None else "" for state in states],
    ):
        encoded = [text.encode() for text in texts]
        sizes = np.array([len(each) for each in encoded], np.int64)
        writer.put_counted(np.frombuffer(b"".join(encoded), _TEXT), sizes)


def restore_states(reader: Reader) -> list[ConnectionState]:
    """Read what `save_states` wrote."""
    one = np.ones(reader.connections, np.int64)
    parts = {name: _split(*reader.take_counted(kind)) for name, kind in _ARRAYS.items()}
    flows, limits = reader.take(_FLOW, one), reader.take(_NUMBER, one)
    openings = _split(*reader.take_counted(_NUMBER))
    files, layers = (_split(*reader.take_counted(_TEXT)) for _ in range(2))
    return [
        ConnectionState(
            flows[i].tobytes(),
            openings[i].reshape(-1, 3).tolist(),
            int(limits[i]),
            tuple(json.loads(files[i].tobytes())),
            {name: arrays[i] for name, arrays in parts.items()},
            json.loads(layers[i].tobytes()) if len(layers[i]) else None,
        )
        for i in range(reader.connections)
    ]


def _split(values: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """The items of each connection."""
    ends = np.cumsum(counts).tolist()
    return [values[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]
