"""The state of one connection between two of its segments, as a value: saved after one capture, restored with the next.

    state = ConnectionState.of(decoder_state, ...)                   # the current connection of a decoder
    bytes = state.to_bytes()
    ConnectionState.from_bytes(bytes).restore_into(decoder_state)   # in another process

Decoding a capture in two pieces with the state carried over gives the same rows as decoding it whole, wherever it is
cut. So the state has everything that a later segment may need: both directions with the bytes that wait for the end of
a frame or for a missing segment, and the bytes for comparison with late copies; spans; incomplete contents, 0-10
assemblies and 1.0 deliveries with their running digests; rows without a known sender or version.

Bytes are sealed as in `codec.packing`. A state has bytes of the capture, which may be credentials: keep it as private
as the captures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from codec import stalls
from codec.framing.classic_frames import CONTENT, NOTHING
from codec.framing.connection import CONNECTION_RECORD, SPAN, first_packets_of, record_opening
from codec.framing.v0_10_frames import (
    BLOCK,
    GROWING,
    PARTIAL_FLAGS,
    SEGMENT,
    SESSION,
    append,
    segment_slot,
    session_slot,
)
from codec.framing.v1_0_deliveries import BLOCK as DELIVERY_BLOCK
from codec.framing.v1_0_deliveries import (
    BLOCKS,
    DELIVERY,
    EPOCH,
    HEAD,
    OPEN,
    SLOTS,
    USED,
)
from codec.hashes.sha256 import Digests
from codec.net.identity import GROUP
from codec.net.layers import FLOW_BYTES
from codec.packing import (
    Reader,
    Writer,
    seal,
    unseal,
)
from codec.protocol import rows as R
from codec.tcp.reassembly import DIRECTION, HISTORY, MARK, PIECE

if TYPE_CHECKING:
    from codec.framing.stream import State
    from codec.tcp.reassembly import Stream


class HasStreams(Protocol):
    """What has the streams of both directions: the state of a decoder, or of a layered connection."""

    @property
    def streams(self) -> tuple[Stream, Stream]: ...


# Parts of the state of a connection: arrays of a decoder's state, without unused memory (`save_*`), and back.


Arrays = dict[str, np.ndarray]

DIGEST_STATE = np.dtype([("words", "u4", 8), ("block", "u1", 64), ("length", "i8")])
STREAM_ARRAYS = ("bytes", "marks", "pieces", "pool")
_OF_ROWS = {"cells": (len(R.COLUMNS), R.FILE), "stalls": (len(stalls.CELLS), stalls.FILE)}  # their width, the file
NO_SLOTS, NO_BYTES = np.zeros(0, np.int64), np.zeros(0, np.uint8)


def heap_ends(rows: R.Rows, row: int) -> tuple[int, int]:
    """Where the bytes and the payload of the rows before `row` end."""
    last = rows.cells[row - 1]
    return (int(last[R.BYTES_END]), int(last[R.PAYLOAD_END])) if row else (0, 0)


def save_rows(rows: R.Rows, first: int) -> Arrays:
    """Rows from `first` on, and their bytes."""
    count, data, payload = map(int, rows.used)
    bytes_from, payload_from = heap_ends(rows, first)
    cells = rows.cells[first:count].copy()
    cells[:, R.BYTES_END] -= bytes_from
    cells[:, R.PAYLOAD_END] -= payload_from
    return {
        "cells": cells.reshape(-1),
        "row_digests": rows.digest[first:count].reshape(-1).copy(),
        "data": rows.data[bytes_from:data].copy(),
        "payload": rows.payload[payload_from:payload].copy(),
    }


def restore_rows(rows: R.Rows, arrays: Arrays) -> None:
    """Append the rows."""
    count = len(arrays["cells"]) // len(R.COLUMNS)
    if not count:
        return
    first, data, payload = map(int, rows.used)
    end, bytes_end, payload_end = first + count, data + len(arrays["data"]), payload + len(arrays["payload"])
    rows.cells[first:end] = arrays["cells"].reshape(count, -1)
    rows.cells[first:end, R.BYTES_END] += data
    rows.cells[first:end, R.PAYLOAD_END] += payload
    rows.digest[first:end] = arrays["row_digests"].reshape(count, 32)
    rows.data[data:bytes_end] = arrays["data"]
    rows.payload[payload:payload_end] = arrays["payload"]
    rows.used[:] = end, bytes_end, payload_end


def stream_arrays(state: HasStreams, side: int, directions: np.ndarray) -> Arrays:
    """The items of the arrays of a direction that are still needed. The record in `directions` is changed to match
    (compare `codec.tcp.reassembly.make_room`)."""
    directions = directions.view(np.ndarray)
    d, s = directions[side], state.streams[side]
    keep = max(int(d["retained_from"]), int(d["pos"]) - HISTORY)
    at = int(d["next"]) - (int(d["end"]) - int(d["pos"]))  # stream offset of `pos`
    first, last = int(d["mark_from"]), int(d["mark_end"])
    while first + 1 < last and s.marks[first].end <= at:
        first += 1
    pieces = np.array(s.pieces[int(d["piece_from"]) : int(d["piece_end"])])
    stored = [s.pool[int(p["pool_at"]) : int(p["pool_at"]) + int(p["length"])] for p in pieces]
    found = {
        "bytes": s.bytes[keep : int(d["end"])].copy(),
        "marks": np.array(s.marks[first:last]),
        "pieces": pieces,
        "pool": np.concatenate([NO_BYTES, *stored]),
    }
    pieces["pool_at"] = np.cumsum(pieces["length"]) - pieces["length"]
    moved = {
        "retained_from": 0, "pos": int(d["pos"]) - keep, "end": int(d["end"]) - keep,
        "mark_from": 0, "mark_end": last - first, "wait_from": int(d["wait_from"]) - first,
        "piece_from": 0, "piece_end": len(pieces), "pool_end": len(found["pool"]), "pool_live": len(found["pool"]),
    }  # fmt: skip
    for name, value in moved.items():
        directions[name][side] = value
    return found


def _save_digests(digests: Digests, indices: np.ndarray) -> np.ndarray:
    found = np.zeros(len(indices), DIGEST_STATE)
    for name in DIGEST_STATE.names or ():
        found[name] = getattr(digests, name)[indices]
    return found


def _restore_digests(digests: Digests, indices: np.ndarray, saved: np.ndarray) -> None:
    for name in DIGEST_STATE.names or ():
        getattr(digests, name)[indices] = saved[name]


def _slots(epochs: np.ndarray, slots: np.ndarray, used: int, live: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The slots among the first `used` of each direction that are of its epoch, and `live`."""
    half, slots = len(slots) // 2, slots.view(np.ndarray)  # fields of a record array take long to look up
    first = (slots[side * half : side * half + used] for side in (0, 1))
    return np.concatenate(
        [np.flatnonzero((own["epoch"] == epochs[side]) & live(own)) + side * half for side, own in enumerate(first)]
    )


def _chain(heap: np.ndarray, following: np.ndarray, block: int, size: int, block_bytes: int) -> list[np.ndarray]:
    """The `size` bytes in a chain of blocks of `heap`; `following[block]` is the block after `block`."""
    found = []
    while size > 0:
        found.append(heap[block * block_bytes : block * block_bytes + min(block_bytes, size)])
        size -= block_bytes
        block = int(following[block])
    return found


def save_contents(state: State, channels: int) -> Arrays:
    """Incomplete contents, and the running digests of these and of 0-10 assemblies."""
    slots, epochs = state.contents.slots, state.contents.epochs
    content = _slots(epochs, slots, channels, lambda own: own["state"] != NOTHING)
    session = _slots(epochs, state.assemblies.sessions, channels, lambda own: own["open"] != 0)
    indices = np.union1d(content, session)
    contents = np.array(slots[indices])
    contents["state"][~np.isin(indices, content)] = NOTHING
    digests = _save_digests(state.contents.digests, indices)
    return {"content_slots": indices, "contents": contents, "digests": digests}


def restore_contents(state: State, arrays: Arrays) -> None:
    """The inverse of `save_contents`."""
    slots, indices = state.contents.slots.view(np.ndarray), arrays["content_slots"]
    contents = arrays["contents"].copy()
    contents["epoch"] = state.contents.epochs[indices // (len(slots) // 2)]
    slots[indices] = contents
    _restore_digests(state.contents.digests, indices, arrays["digests"])


def save_assemblies(state: State, channels: int) -> Arrays:
    """Sessions of 0-10 with numbered commands, and incomplete segments."""
    a, epochs = state.assemblies, state.contents.epochs
    sessions = _slots(epochs, a.sessions, channels, lambda own: np.ones(len(own), bool))
    indices = _slots(epochs, a.segments, 2 * channels, lambda own: own["state"] != NOTHING)
    segments = np.array(a.segments[indices])
    segments["length"][segments["state"] != GROWING] = 0
    stored = [
        part
        for segment in segments
        for part in _chain(a.pool, a.blocks[:, 0], int(segment["head"]), int(segment["length"]), BLOCK)
    ]
    return {
        "session_slots": sessions,
        "sessions": np.array(a.sessions[sessions]),
        "segment_slots": indices,
        "segments": segments,
        "segment_bytes": np.concatenate([NO_BYTES, *stored]),
        "partial_flags": a.numbers[PARTIAL_FLAGS:].copy(),
    }


def restore_assemblies(state: State, arrays: Arrays) -> None:
    """The inverse of `save_assemblies`."""
    a, epochs = state.assemblies, state.contents.epochs
    for index, session in zip(arrays["session_slots"].tolist(), arrays["sessions"], strict=True):
        slot = session_slot(a, epochs, *divmod(index, len(a.sessions) // 2))
        a.sessions[slot] = session
        a.sessions[slot].epoch = epochs[index // (len(a.sessions) // 2)]
    at = 0
    for index, segment in zip(arrays["segment_slots"].tolist(), arrays["segments"], strict=True):
        direction, rest = divmod(index, len(a.segments) // 2)
        slot = segment_slot(a, epochs, direction, *divmod(rest, 2))
        size = int(segment["length"])
        a.segments[slot] = segment
        a.segments[slot].epoch = epochs[direction]
        a.segments[slot].length = 0
        append(a, epochs, slot, arrays["segment_bytes"], at, at + size)
        at += size
    a.numbers[PARTIAL_FLAGS:] = arrays["partial_flags"]


def save_deliveries(state: State, side: int) -> Arrays:
    """Incomplete deliveries of 1.0, and the stored bytes of each."""
    dl = state.deliveries
    slots = dl.slots[side].view(np.ndarray)
    indices = np.flatnonzero(slots["epoch"] == dl.pool[side, EPOCH]) if dl.pool[side, OPEN] else NO_SLOTS
    deliveries = np.array(slots[indices])
    stored = [
        part
        for each in deliveries
        for part in _chain(dl.blocks, dl.next_block, int(each["first_block"]), int(each["stored"]), DELIVERY_BLOCK)
    ]
    return {
        "delivery_slots": indices,
        "deliveries": deliveries,
        "delivery_heads": dl.heads.reshape(2, SLOTS, HEAD)[side][indices].reshape(-1).copy(),
        "delivery_bytes": np.concatenate([NO_BYTES, *stored]),
        "delivery_digests": _save_digests(dl.digests, side * SLOTS + indices),
    }


def restore_deliveries(state: State, side: int, arrays: Arrays) -> None:
    """The inverse of `save_deliveries`."""
    dl, indices = state.deliveries, arrays[f"delivery_slots{side}"]
    dl.pool[side, OPEN] = dl.pool[side, USED] = 0
    if not len(indices):
        return
    heads = arrays[f"delivery_heads{side}"].reshape(len(indices), HEAD)
    dl.heads.reshape(2, SLOTS, HEAD)[side][indices] = heads
    _restore_digests(dl.digests, side * SLOTS + indices, arrays[f"delivery_digests{side}"])
    data, at, block = arrays[f"delivery_bytes{side}"], 0, side * BLOCKS
    for index, delivery in zip(indices.tolist(), arrays[f"deliveries{side}"], strict=True):
        record = dl.slots[side, index]
        dl.slots[side][index] = delivery
        record.epoch = dl.pool[side, EPOCH]
        size = int(delivery["stored"])
        blocks = -(-size // DELIVERY_BLOCK)
        dl.blocks[block * DELIVERY_BLOCK : block * DELIVERY_BLOCK + size] = data[at : at + size]
        dl.next_block[block : block + blocks] = np.arange(block + 1, block + blocks + 1)
        if blocks:
            dl.next_block[block + blocks - 1] = -1
            record.first_block, record.last_block = block, block + blocks - 1
        at += size
        block += blocks
    dl.pool[side, OPEN] = len(indices)
    dl.pool[side, USED] = block - side * BLOCKS


@cache
def _file_fields(kind: np.dtype) -> list[str]:
    """The fields of records with the number of a capture file."""
    return [name for name in kind.names or () if name == "file" or name.endswith("_file")]


def file_numbers(files: Sequence[str], number: Callable[[str], int]) -> np.ndarray:
    """The `number` of each capture file, int64."""
    return np.array([number(name) for name in files] or [0], np.int64)


def _renumber(numbers: np.ndarray, indices: np.ndarray) -> np.ndarray:
    known = (numbers >= 0) & (numbers < len(indices))
    if not known.any():
        return numbers
    return np.where(known, indices[np.where(known, numbers, 0)], numbers)


def renumber_all(arrays: Arrays, indices: np.ndarray) -> Arrays:
    """The arrays with each number of a capture file replaced by `indices[number]`."""
    changed = {}
    for name, array in arrays.items():
        fields = _file_fields(array.dtype)
        if name in _OF_ROWS or (fields and len(array)):
            changed[name] = array = array.copy()
        for of_file in fields if len(array) else ():
            array[of_file] = _renumber(array[of_file], indices)
        if name in _OF_ROWS:
            width, file = _OF_ROWS[name]
            cells = array.reshape(-1, width)
            cells[:, file] = _renumber(cells[:, file], indices)
    return arrays | changed


def retain_used_files(arrays: Arrays, files: Sequence[str]) -> tuple[Arrays, tuple[str, ...]]:
    """The arrays with only those capture files numbered that occur in them, and the names of these."""
    found = [array[name].reshape(-1) for array in arrays.values() for name in _file_fields(array.dtype)]
    for name, (width, file) in _OF_ROWS.items():
        if name in arrays:
            found.append(arrays[name].reshape(-1, width)[:, file])
    used = sorted(number for number in set(np.concatenate(found).tolist()) if 0 <= number < len(files))
    if used == list(range(len(used))):
        return arrays, tuple(files[: len(used)])
    indices = np.zeros(len(files) or 1, np.int64)
    indices[used] = np.arange(len(used))
    return renumber_all(arrays, indices), tuple(files[number] for number in used)


LAYOUT = 6  # raise it when the meaning of a field changes; a changed field changes the digest by itself

NO_STALLS = stalls.new_rows(0)
_SLOT = np.dtype("i8")
# Name -> type of the arrays of a state. A name that ends with `0` or `1` is of that direction.
_ARRAYS: dict[str, np.dtype] = {
    "connection": CONNECTION_RECORD,
    "spaces": GROUP,  # one, if the caller knows it
    "processes": np.dtype("u1"),  # text, if the caller knows something
    "directions": DIRECTION,
    "tls_prefix": np.dtype("u1"),
    **{f"{name}{side}": kind for side in (0, 1) for name, kind in (
        ("bytes", np.dtype("u1")), ("partial", np.dtype("u1")), ("marks", MARK), ("pieces", PIECE),
        ("pool", np.dtype("u1")), ("spans", SPAN),
        ("delivery_slots", _SLOT), ("deliveries", DELIVERY), ("delivery_heads", np.dtype("u1")),
        ("delivery_bytes", np.dtype("u1")), ("delivery_digests", DIGEST_STATE),
    )},
    "content_slots": _SLOT,  # direction * CHANNELS + channel, of every slot with a content or an assembly
    "contents": CONTENT,
    "digests": DIGEST_STATE,
    "session_slots": _SLOT,
    "sessions": SESSION,
    "segment_slots": _SLOT,
    "segments": SEGMENT,
    "segment_bytes": np.dtype("u1"),
    "partial_flags": np.dtype("i8"),
    "cells": np.dtype("i8"),
    "row_digests": np.dtype("u1"),
    "data": np.dtype("u1"),
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
    (`codec.framing.connection.first_packets_of`). `limits`: those that values reached, a bitmask of
    `codec.compiler.limits.REACHED`. `files`: capture files by number, as in the records. `arrays`: see `_ARRAYS`.
    `layers`: of a connection inside TLS or WebSocket (`codec.layers.connection`)."""

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
        """The state as bytes."""
        writer = Writer(1)
        save_states([self], writer)
        return seal(writer.data()[0], LAYOUT, layout())

    @classmethod
    def from_bytes(cls, data: bytes) -> ConnectionState:
        """The inverse of `to_bytes`; raises StateError for any other bytes."""
        return restore_states(Reader([unseal(data, LAYOUT, layout())]))[0]

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
            own = stream_arrays(state, side, directions) | save_deliveries(state, side)
            own["partial"] = state.partial[side][: int(state.directions[side].frame_stored)].copy()
            own["spans"] = np.array(state.spans.pending[side][: state.spans.used[side]])
            arrays |= {f"{name}{side}": array for name, array in own.items()}
        arrays |= save_contents(state, channels) | save_assemblies(state, channels)
        arrays |= save_rows(state.rows, first_row) | {"stalls": stall_rows.reshape(-1)}
        arrays, used = retain_used_files(arrays, files)
        openings = [list(opening) for opening in first_packets_of(state.openings)]
        return cls(state.openings.flow.tobytes(), openings, limits, used, arrays)

    def restore_into(self, state: State, number: Callable[[str], int]) -> None:
        """Make this connection the current one, and append its rows to those of `state`. Before, call
        `codec.framing.detection.discard_incomplete` and `codec.framing.connection.begin_flow`, and make room
        (`capacities`). `number` gives the number of a capture file in `state`."""
        arrays = renumber_all(self.arrays, file_numbers(self.files, number))
        for opening in self.openings:
            record_opening(state.openings, *opening)
        state.connection[:] = arrays["connection"]
        state.directions[:] = arrays["directions"]
        state.tls_prefix[:] = arrays["tls_prefix"].reshape(state.tls_prefix.shape)
        for side in (0, 1):
            for name in STREAM_ARRAYS:
                array = arrays[f"{name}{side}"]
                getattr(state.streams[side], name)[: len(array)] = array
            state.partial[side][: len(arrays[f"partial{side}"])] = arrays[f"partial{side}"]
            spans = arrays[f"spans{side}"]
            state.spans.pending[side][: len(spans)] = spans
            state.spans.used[side] = len(spans)
            restore_deliveries(state, side, arrays)
        restore_contents(state, arrays)
        restore_assemblies(state, arrays)
        restore_rows(state.rows, arrays)

    def stall_rows(self, number: Callable[[str], int]) -> np.ndarray:
        """Its stalls whose sides are not known yet; `number` as for `restore_into`."""
        rows = renumber_all({"stalls": self.arrays["stalls"]}, file_numbers(self.files, number))["stalls"]
        return rows.reshape(-1, len(stalls.CELLS))

    def capacities(self) -> dict[str, int]:
        """The room that `restore_into` needs: items of each array of a stream (the larger of both directions), bytes
        of the heaps of rows."""
        streams = {name: max(len(self.arrays[f"{name}0"]), len(self.arrays[f"{name}1"])) for name in STREAM_ARRAYS}
        return streams | {name: len(self.arrays[name]) for name in ("data", "payload")}

    @property
    def channels(self) -> int:
        """A number above all of its channels."""
        half = 1 << 16
        indices = [self.arrays["content_slots"], self.arrays["session_slots"], self.arrays["segment_slots"] >> 1]
        return max((int((each % half).max()) + 1 for each in indices if len(each)), default=0)

    @property
    def rows(self) -> int:
        """The number of its incomplete rows."""
        return len(self.arrays["cells"]) // len(R.COLUMNS)


def save_states(states: Sequence[ConnectionState], writer: Writer) -> None:
    """Write the states of connections."""
    one = np.ones(len(states), np.int64)
    for name, kind in _ARRAYS.items():
        arrays = [state.arrays[name] for state in states]
        data = np.frombuffer(b"".join(array.tobytes() for array in arrays), kind)
        writer.put_counted(data, np.array([len(array) for array in arrays], np.int64))
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
