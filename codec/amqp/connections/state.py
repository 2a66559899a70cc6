"""What is known of one connection between two of its segments, as a value: saved after one capture, restored with the
next.

    state = ConnectionState.of(decoder_state, ...)           # what the arrays of a decoder hold of its connection
    octets = state.to_bytes()
    ConnectionState.from_bytes(octets).into(decoder_state)   # in another process, another day

The law: decoding a capture in two pieces with the state carried over gives the rows of decoding it whole, wherever it
is cut. So everything that a later segment can ask for is here: both directions with the bytes that wait for the end of
a frame or for a missing segment, and those kept to compare late copies with; spans; contents, 0-10 assemblies and 1.0
deliveries that go on, with their running digests; rows that do not know their sender or version yet.

Octets are as `codec.packing` seals them. A state holds bytes of the capture, credentials among them where a login is
cut in two: keep it as private as the captures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from codec.amqp import rows as R
from codec.amqp.classic.contents import CONTENT, NOTHING
from codec.amqp.connections.begun import names_of, remember
from codec.amqp.connections.connection import CONNECTION, SPAN
from codec.amqp.v0_10.assemblies import BLOCK, GROWING, SEGMENT, SESSION, append, segment_slot, session_slot
from codec.amqp.v1_0.delivery_slots import BLOCK as DELIVERY_BLOCK
from codec.amqp.v1_0.delivery_slots import BLOCKS, DELIVERY, EPOCH, HEAD, OPEN, SLOTS, USED
from codec.packing import Reader, Writer, sealed, unsealed
from codec.tcp.direction import DIRECTION, MARK, PIECE
from codec.tcp.reassembly import HISTORY

if TYPE_CHECKING:
    from codec.amqp.stream import State
    from codec.layers.ordered import Tcp

LAYOUT = 3  # raise it when the meaning of a field changes; a changed field changes the digest by itself

_DIGEST = np.dtype([("words", "u4", 8), ("block", "u1", 64), ("length", "i8")])
_PLACE = np.dtype("i8")
# Name -> type of the arrays of a state. Of both directions one after the other where `0` and `1` end the name.
_ARRAYS: dict[str, np.dtype] = {
    "connection": CONNECTION,
    "directions": DIRECTION,
    "hello": np.dtype("u1"),
    **{f"{name}{side}": kind for side in (0, 1) for name, kind in (
        ("bytes", np.dtype("u1")), ("torn", np.dtype("u1")), ("marks", MARK), ("pieces", PIECE),
        ("pool", np.dtype("u1")), ("spans", SPAN),
        ("delivery_places", _PLACE), ("deliveries", DELIVERY), ("delivery_heads", np.dtype("u1")),
        ("delivery_bytes", np.dtype("u1")), ("delivery_digests", _DIGEST),
    )},
    "content_places": _PLACE,  # direction * CHANNELS + channel, of every slot with a content or an assembly
    "contents": CONTENT,
    "digests": _DIGEST,
    "session_places": _PLACE,
    "sessions": SESSION,
    "segment_places": _PLACE,
    "segments": SEGMENT,
    "segment_bytes": np.dtype("u1"),
    "torn_flags": np.dtype("i8"),
    "cells": np.dtype("i8"),
    "row_digests": np.dtype("u1"),
    "octets": np.dtype("u1"),
    "payload": np.dtype("u1"),
}  # fmt: skip
NO_PLACES = np.zeros(0, np.int64)
_FLOW, _NUMBER, _TEXT = np.dtype("V36"), np.dtype("i8"), np.dtype("u1")


@cache
def layout() -> bytes:
    """A digest of what the meaning of octets depends on."""
    text = json.dumps([[name, repr(kind.descr)] for name, kind in _ARRAYS.items()] + [list(R.COLUMNS), HEAD])
    return hashlib.sha256(text.encode()).digest()[:8]


@dataclass(frozen=True)
class ConnectionState:
    """`flow`: its 36-byte key. `named`: first packets of the flow's connections
    (`codec.amqp.connections.begun.names_of`).
    `limits`: that values reached, a bitmask of `codec.compiler.limits.REACHED`. `files`: capture files by number, as
    records name them. `arrays`: see `_ARRAYS`. `layers`: of a connection inside TLS or WebSocket
    (`codec.layers.state`)."""

    flow: bytes
    named: list[list[int]]
    limits: int
    files: tuple[str, ...]
    arrays: dict[str, np.ndarray] = field(repr=False)
    layers: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def connection_id(self) -> int:
        """The connection's id."""
        return int(self.arrays["connection"]["connection_id"][0])

    @property
    def first_ns(self) -> int:
        """When its first packet was captured, ns since 1970-01-01 UTC."""
        return int(self.arrays["connection"]["first_ns"][0])

    @property
    def last_ns(self) -> int:
        """When its last packet was captured, ns since 1970-01-01 UTC."""
        return int(self.arrays["connection"]["last_ns"][0])

    @property
    def over(self) -> bool:
        """Whether TCP has ended it: only copies of what was seen may still come."""
        directions = self.arrays["directions"]
        return bool(directions["rst"].any() or directions["fin"].all())

    def to_bytes(self) -> bytes:
        """The state as octets."""
        writer = Writer(1)
        save_states([self], writer)
        return sealed(writer.octets()[0], LAYOUT, layout())

    @classmethod
    def from_bytes(cls, octets: bytes) -> ConnectionState:
        """What `to_bytes` gave; `StateError` for anything else."""
        return restore_states(Reader([unsealed(octets, LAYOUT, layout())]))[0]

    @classmethod
    def of(cls, state: State, files: Sequence[str], limits: int, channels: int, first_row: int = 0) -> ConnectionState:
        """The state of the connection at hand, whose rows so far have channels below `channels`; its rows that are not
        complete are those of `state.rows` from `first_row` on."""
        arrays: dict[str, np.ndarray] = {
            "connection": np.array(state.connection),
            "directions": np.array(state.directions),
            "hello": state.hello.reshape(-1).copy(),
        }
        for side in (0, 1):
            arrays |= {
                f"{name}{side}": array for name, array in stream_arrays(state, side, arrays["directions"]).items()
            }
            arrays[f"torn{side}"] = state.torn[side][: int(state.directions[side].torn)].copy()
            arrays[f"spans{side}"] = np.array(state.spans.waiting[side][: state.spans.number[side]])
            arrays |= {f"{name}{side}": array for name, array in _deliveries(state, side).items()}
        arrays |= _contents(state, channels) | _assemblies(state, channels)
        rows, count, octets, payload = state.rows, *map(int, state.rows.used)
        cells = rows.cells[first_row:count].copy()
        octets_from, payload_from = row_ends(rows, first_row)
        cells[:, R.OCTETS_END] -= octets_from
        cells[:, R.PAYLOAD_END] -= payload_from
        arrays |= {
            "cells": cells.reshape(-1),
            "row_digests": rows.digest[first_row:count].reshape(-1).copy(),
            "octets": rows.octets[octets_from:octets].copy(),
            "payload": rows.payload[payload_from:payload].copy(),
        }
        arrays, used = renumbered(arrays, files)
        named = [list(name) for name in names_of(state.begun)]
        return cls(state.begun.flow.tobytes(), named, limits, used, arrays)

    def into(self, state: State, number: Callable[[str], int]) -> None:
        """Make this connection the one at hand. `state` has forgotten its last connection (`codec.amqp.framing.forget`)
        and turned to this flow (`codec.amqp.connections.begun.begin_flow`); its arrays have room (`rooms`); the rows of
        this connection go behind those that it holds. `number` of a capture file there."""
        places = file_names(self.files, number)
        files = {name: with_files(array, places) for name, array in self.arrays.items() if _file_fields(array.dtype)}
        arrays = self.arrays | files
        for begun in self.named:
            remember(state.begun, *begun)
        state.connection[:] = arrays["connection"]
        state.directions[:] = arrays["directions"]
        state.hello[:] = arrays["hello"].reshape(state.hello.shape)
        for side in (0, 1):
            stream = state.streams[side]
            for name in ("bytes", "marks", "pieces", "pool"):
                array = arrays[f"{name}{side}"]
                getattr(stream, name)[: len(array)] = array
            state.torn[side][: len(arrays[f"torn{side}"])] = arrays[f"torn{side}"]
            spans = arrays[f"spans{side}"]
            state.spans.waiting[side][: len(spans)] = spans
            state.spans.number[side] = len(spans)
            _restore_deliveries(state, side, arrays)
        _restore_contents(state, arrays)
        _restore_assemblies(state, arrays)
        rows, count = state.rows, len(arrays["cells"]) // len(R.COLUMNS)
        first, octets, payload = map(int, rows.used)
        if count:
            cells = arrays["cells"].reshape(count, len(R.COLUMNS)).copy()
            cells[:, R.FILE] = np.where(cells[:, R.FILE] >= 0, places[np.maximum(cells[:, R.FILE], 0)], -1)
            cells[:, R.OCTETS_END] += octets
            cells[:, R.PAYLOAD_END] += payload
            rows.cells[first : first + count] = cells
            rows.digest[first : first + count] = arrays["row_digests"].reshape(count, 32)
            rows.octets[octets : octets + len(arrays["octets"])] = arrays["octets"]
            rows.payload[payload : payload + len(arrays["payload"])] = arrays["payload"]
            rows.used[:] = first + count, octets + len(arrays["octets"]), payload + len(arrays["payload"])

    def rooms(self) -> dict[str, int]:
        """How much room `into` needs: of each array of a direction's stream the larger of both, of `rows` the number
        of rows, of their heaps the octets."""
        streams = {
            name: max(len(self.arrays[f"{name}0"]), len(self.arrays[f"{name}1"]))
            for name in ("bytes", "marks", "pieces", "pool")
        }
        return streams | {name: len(self.arrays[name]) for name in ("octets", "payload")}

    @property
    def channels(self) -> int:
        """A number above those of all channels that are in it."""
        half = 1 << 16
        places = [self.arrays["content_places"], self.arrays["session_places"], self.arrays["segment_places"] >> 1]
        return max((int((each % half).max()) + 1 for each in places if len(each)), default=0)

    @property
    def rows(self) -> int:
        """Rows that are not complete."""
        return len(self.arrays["cells"]) // len(R.COLUMNS)


def row_ends(rows: R.Rows, row: int) -> tuple[int, int]:
    """Where the octets and the payload of rows before `row` end."""
    last = rows.cells[row - 1]
    return (int(last[R.OCTETS_END]), int(last[R.PAYLOAD_END])) if row else (0, 0)


def save_states(states: Sequence[ConnectionState], writer: Writer) -> None:
    """Write the states of connections."""
    one = np.ones(len(states), np.int64)
    for name, kind in _ARRAYS.items():
        arrays = [state.arrays[name] for state in states]
        octets = np.frombuffer(b"".join(array.tobytes() for array in arrays), kind)
        writer.put_counted(octets, np.array([len(array) for array in arrays], np.int64))
    writer.put(np.frombuffer(b"".join(state.flow for state in states), _FLOW), one)
    writer.put(np.array([state.limits for state in states], _NUMBER), one)
    named = [number for state in states for begun in state.named for number in begun]
    writer.put_counted(np.array(named, _NUMBER), np.array([3 * len(state.named) for state in states], np.int64))
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
    parts = {name: _apart(*reader.take_counted(kind)) for name, kind in _ARRAYS.items()}
    flows, limits = reader.take(_FLOW, one), reader.take(_NUMBER, one)
    named = _apart(*reader.take_counted(_NUMBER))
    files, layers = (_apart(*reader.take_counted(_TEXT)) for _ in range(2))
    return [
        ConnectionState(
            flows[i].tobytes(),
            named[i].reshape(-1, 3).tolist(),
            int(limits[i]),
            tuple(json.loads(files[i].tobytes())),
            {name: arrays[i] for name, arrays in parts.items()},
            json.loads(layers[i].tobytes()) if len(layers[i]) else None,
        )
        for i in range(reader.connections)
    ]


def _apart(values: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """The items of each connection."""
    ends = np.cumsum(counts).tolist()
    return [values[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]


def stream_arrays(state: State | Tcp, side: int, directions: np.ndarray) -> dict[str, np.ndarray]:
    """What the arrays of a direction hold that is still needed, moved to the front; its record in `directions` follows
    (compare `codec.tcp.reassembly.make_room`)."""
    directions = directions.view(np.ndarray)
    d, s = directions[side], state.streams[side]
    keep = max(int(d["kept"]), int(d["pos"]) - HISTORY)
    at = int(d["next"]) - (int(d["end"]) - int(d["pos"]))  # stream offset of `pos`
    first, last = int(d["mark_from"]), int(d["mark_end"])
    while first + 1 < last and s.marks[first].end <= at:
        first += 1
    pieces = np.array(s.pieces[int(d["piece_from"]) : int(d["piece_end"])])
    held = [s.pool[int(p["pool_at"]) : int(p["pool_at"]) + int(p["length"])] for p in pieces]
    found = {
        "bytes": s.bytes[keep : int(d["end"])].copy(),
        "marks": np.array(s.marks[first:last]),
        "pieces": pieces,
        "pool": np.concatenate([np.zeros(0, np.uint8), *held]),
    }
    pieces["pool_at"] = np.cumsum(pieces["length"]) - pieces["length"]
    moved = {
        "kept": 0, "pos": int(d["pos"]) - keep, "end": int(d["end"]) - keep, "mark_from": 0, "mark_end": last - first,
        "gate": int(d["gate"]) - first,
        "piece_from": 0, "piece_end": len(pieces), "pool_end": len(found["pool"]), "pool_live": len(found["pool"]),
    }  # fmt: skip
    for name, value in moved.items():
        directions[name][side] = value
    return found


def _digests(state: State, places: np.ndarray, *, deliveries: bool = False) -> np.ndarray:
    """Running digests of slots."""
    known = state.deliveries.digests if deliveries else state.contents.digests
    found = np.zeros(len(places), _DIGEST)
    for name in ("words", "block", "length"):
        found[name] = getattr(known, name)[places]
    return found


def _restore_digests(known: Any, places: np.ndarray, digests: np.ndarray) -> None:
    for name in ("words", "block", "length"):
        getattr(known, name)[places] = digests[name]


def _slots(epochs: np.ndarray, slots: np.ndarray, used: int, live: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Which of the first `used` slots of each direction are of its epoch, and `live`."""
    half, slots = len(slots) // 2, slots.view(np.ndarray)  # fields of a record array take long to look up
    first = (slots[side * half : side * half + used] for side in (0, 1))
    return np.concatenate(
        [np.flatnonzero((own["epoch"] == epochs[side]) & live(own)) + side * half for side, own in enumerate(first)]
    )


def _contents(state: State, channels: int) -> dict[str, np.ndarray]:
    """Contents that are open, and the digests of these and of 0-10 assemblies."""
    slots, epochs = state.contents.slots, state.contents.epochs
    content = _slots(epochs, slots, channels, lambda own: own["state"] != NOTHING)
    session = _slots(epochs, state.assemblies.sessions, channels, lambda own: own["open"] != 0)
    places = np.union1d(content, session)
    contents = np.array(slots[places])
    contents["state"][~np.isin(places, content)] = NOTHING
    return {"content_places": places, "contents": contents, "digests": _digests(state, places)}


def _restore_contents(state: State, arrays: dict[str, np.ndarray]) -> None:
    slots, places = state.contents.slots.view(np.ndarray), arrays["content_places"]
    contents = arrays["contents"].copy()
    contents["epoch"] = state.contents.epochs[places // (len(slots) // 2)]
    slots[places] = contents
    _restore_digests(state.contents.digests, places, arrays["digests"])


def _assemblies(state: State, channels: int) -> dict[str, np.ndarray]:
    """Sessions of 0-10 as far as commands are numbered, and segments that go on."""
    a, epochs = state.assemblies, state.contents.epochs
    sessions = _slots(epochs, a.sessions, channels, lambda own: np.ones(len(own), bool))
    places = _slots(epochs, a.segments, 2 * channels, lambda own: own["state"] != NOTHING)
    segments = np.array(a.segments[places])
    held = [np.zeros(0, np.uint8)]
    for segment in segments:
        block, left = int(segment["head"]), int(segment["length"]) if segment["state"] == GROWING else 0
        while left > 0:
            held.append(a.pool[block * BLOCK : block * BLOCK + min(BLOCK, left)])
            left -= BLOCK
            block = int(a.blocks[block, 0])
    segments["length"][segments["state"] != GROWING] = 0
    return {
        "session_places": sessions,
        "sessions": np.array(a.sessions[sessions]),
        "segment_places": places,
        "segments": segments,
        "segment_bytes": np.concatenate(held),
        "torn_flags": a.numbers[2:4].copy(),
    }


def _restore_assemblies(state: State, arrays: dict[str, np.ndarray]) -> None:
    a, epochs = state.assemblies, state.contents.epochs
    for place, session in zip(arrays["session_places"].tolist(), arrays["sessions"], strict=True):
        slot = session_slot(a, epochs, *divmod(place, len(a.sessions) // 2))
        a.sessions[slot] = session
        a.sessions[slot].epoch = epochs[place // (len(a.sessions) // 2)]
    at = 0
    for place, segment in zip(arrays["segment_places"].tolist(), arrays["segments"], strict=True):
        direction, rest = divmod(place, len(a.segments) // 2)
        slot = segment_slot(a, epochs, direction, *divmod(rest, 2))
        size = int(segment["length"])
        a.segments[slot] = segment
        a.segments[slot].epoch = epochs[direction]
        a.segments[slot].length = 0
        append(a, epochs, slot, arrays["segment_bytes"], at, at + size)
        at += size
    a.numbers[2:4] = arrays["torn_flags"]


def _deliveries(state: State, side: int) -> dict[str, np.ndarray]:
    """Deliveries of 1.0 that go on, and the octets kept of each."""
    dl = state.deliveries
    slots = dl.slots[side].view(np.ndarray)
    places = np.flatnonzero(slots["epoch"] == dl.pool[side, EPOCH]) if dl.pool[side, OPEN] else NO_PLACES
    held = [np.zeros(0, np.uint8)]
    for delivery in slots[places]:
        block, left = int(delivery["first_block"]), int(delivery["kept"])
        while left > 0:
            held.append(dl.blocks[block * DELIVERY_BLOCK : block * DELIVERY_BLOCK + min(DELIVERY_BLOCK, left)])
            left -= DELIVERY_BLOCK
            block = int(dl.next_block[block])
    return {
        "delivery_places": places,
        "deliveries": np.array(slots[places]),
        "delivery_heads": dl.heads.reshape(2, SLOTS, HEAD)[side][places].reshape(-1).copy(),
        "delivery_bytes": np.concatenate(held),
        "delivery_digests": _digests(state, side * SLOTS + places, deliveries=True),
    }


def _restore_deliveries(state: State, side: int, arrays: dict[str, np.ndarray]) -> None:
    dl, places = state.deliveries, arrays[f"delivery_places{side}"]
    dl.pool[side, OPEN] = dl.pool[side, USED] = 0
    if not len(places):
        return
    heads = arrays[f"delivery_heads{side}"].reshape(len(places), HEAD)
    dl.heads.reshape(2, SLOTS, HEAD)[side][places] = heads
    _restore_digests(dl.digests, side * SLOTS + places, arrays[f"delivery_digests{side}"])
    octets, at, block = arrays[f"delivery_bytes{side}"], 0, side * BLOCKS
    for place, delivery in zip(places.tolist(), arrays[f"deliveries{side}"], strict=True):
        record = dl.slots[side, place]
        dl.slots[side][place] = delivery
        record.epoch = dl.pool[side, EPOCH]
        size = int(delivery["kept"])
        blocks = -(-size // DELIVERY_BLOCK)
        dl.blocks[block * DELIVERY_BLOCK : block * DELIVERY_BLOCK + size] = octets[at : at + size]
        dl.next_block[block : block + blocks] = np.arange(block + 1, block + blocks + 1)
        if blocks:
            dl.next_block[block + blocks - 1] = -1
            record.first_block, record.last_block = block, block + blocks - 1
        at += size
        block += blocks
    dl.pool[side, OPEN] = len(places)
    dl.pool[side, USED] = block - side * BLOCKS


@cache
def _file_fields(kind: np.dtype) -> list[str]:
    """Fields of records that hold the number of a capture file."""
    return [name for name in kind.names or () if name == "file" or name.endswith("_file")]


def file_names(files: Sequence[str], number: Callable[[str], int]) -> np.ndarray:
    """The numbers of capture files here, int64."""
    return np.array([number(name) for name in files] or [0], np.int64)


def with_files(array: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Records with the numbers of capture files replaced: `places[number]`."""
    fields = _file_fields(array.dtype)
    if not fields or not len(array):
        return array
    array = array.copy()
    for name in fields:
        known = (array[name] >= 0) & (array[name] < len(places))
        array[name] = np.where(known, places[np.where(known, array[name], 0)], array[name])
    return array


def renumbered(arrays: dict[str, np.ndarray], files: Sequence[str]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The arrays with files numbered anew, and those that occur."""
    found = [arrays["cells"].reshape(-1, len(R.COLUMNS))[:, R.FILE]]
    found += [array[name] for array in arrays.values() for name in _file_fields(array.dtype)]
    used = [int(number) for number in np.unique(np.concatenate(found)) if 0 <= number < len(files)]
    places = np.zeros(len(files) or 1, np.int64)
    places[used] = np.arange(len(used))
    arrays = arrays | {name: with_files(array, places) for name, array in arrays.items() if _file_fields(array.dtype)}
    cells = arrays["cells"].reshape(-1, len(R.COLUMNS))
    cells[:, R.FILE] = np.where(cells[:, R.FILE] >= 0, places[np.maximum(cells[:, R.FILE], 0)], -1)
    return arrays, tuple(files[number] for number in used)
