"""What is known of one connection between two of its segments, as a value: put down after one capture, taken up with
the next.

    state = ConnectionState.of(decoder_state, flow, ...)     # what the arrays of a decoder hold of its connection
    octets = state.to_bytes()
    ConnectionState.from_bytes(octets).into(decoder_state)   # in another process, another day

The law: decoding a capture in two pieces with the state carried over gives the rows of decoding it whole, wherever it
is cut. So everything that a later segment can ask for is here: both directions with the bytes that wait for the end of
a frame or for a missing segment, and those kept to compare late copies with; spans; contents, 0-10 assemblies and 1.0
deliveries that go on, with their running digests; rows that do not know their sender or version yet.

The octets begin with MAGIC, a layout version, a digest of the layout and a checksum of the rest, which is compressed.
Octets of another layout, or damaged ones, raise `StateError`; they are never misread. A state holds bytes of the
capture, credentials among them where a login is cut in two: keep it as private as the captures.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from codec.amqp import rows as R
from codec.amqp.classic.contents import CONTENT, NOTHING
from codec.amqp.connections.begun import names_of, remember
from codec.amqp.connections.connection import CONNECTION, SPAN
from codec.amqp.v0_10.assemblies import BLOCK, GROWING, SEGMENT, SESSION, append, segment_slot, session_slot
from codec.amqp.v1_0.delivery_slots import BLOCK as DELIVERY_BLOCK
from codec.amqp.v1_0.delivery_slots import BLOCKS, DELIVERY, EPOCH, HEAD, OPEN, SLOTS, USED
from codec.errors import WirehareError
from codec.tcp.direction import DIRECTION, MARK, PIECE
from codec.tcp.reassembly import HISTORY

if TYPE_CHECKING:
    from codec.amqp.stream import State
    from codec.layers.ordered import Tcp

MAGIC = b"WHCS"
LAYOUT = 2  # raise it when the meaning of a field changes; a changed field changes the digest by itself
_HEAD = struct.Struct(">4sH8sI")  # magic, layout version, digest of the layout, CRC-32 of what follows

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


def _layout() -> bytes:
    text = json.dumps([[name, repr(kind.descr)] for name, kind in _ARRAYS.items()] + [list(R.COLUMNS), HEAD])
    return hashlib.sha256(text.encode()).digest()[:8]


class StateError(WirehareError, ValueError):
    """Octets that are not the state of a connection, or not of this layout."""


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
        facts = {
            "flow": self.flow.hex(),
            "named": self.named,
            "limits": self.limits,
            "files": self.files,
            "layers": self.layers,
            "sizes": [len(self.arrays[name]) for name in _ARRAYS],
        }
        head = json.dumps(facts, separators=(",", ":")).encode()
        parts = [len(head).to_bytes(4, "big"), head, *(self.arrays[name].tobytes() for name in _ARRAYS)]
        body = zlib.compress(b"".join(parts), 1)
        return _HEAD.pack(MAGIC, LAYOUT, _layout(), zlib.crc32(body)) + body

    @classmethod
    def from_bytes(cls, octets: bytes) -> ConnectionState:
        """What `to_bytes` gave; `StateError` for anything else."""
        if len(octets) < _HEAD.size or octets[:4] != MAGIC:
            raise StateError("not the state of a connection")
        _, version, digest, checksum = _HEAD.unpack_from(octets)
        if (version, digest) != (LAYOUT, _layout()):
            theirs, ours = f"{version}-{digest.hex()}", f"{LAYOUT}-{_layout().hex()}"
            raise StateError(f"the state of a connection has layout {theirs}, this release reads {ours} only")
        body = octets[_HEAD.size :]
        if zlib.crc32(body) != checksum:
            raise StateError("the state of a connection is damaged: its checksum differs")
        body = zlib.decompress(body)
        at = 4 + int.from_bytes(body[:4], "big")
        facts = json.loads(body[4:at])
        arrays = {}
        for (name, kind), size in zip(_ARRAYS.items(), facts["sizes"], strict=True):
            arrays[name] = np.frombuffer(body, kind, size, at)
            at += size * kind.itemsize
        return cls(
            bytes.fromhex(facts["flow"]),
            facts["named"],
            facts["limits"],
            tuple(facts["files"]),
            arrays,
            facts["layers"],
        )

    @classmethod
    def of(cls, state: State, files: Sequence[str], limits: int) -> ConnectionState:
        """The state of the connection at hand; all rows that are complete have been taken out of `state.rows`."""
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
        arrays |= _contents(state) | _assemblies(state)
        rows, count, octets, payload = state.rows, *map(int, state.rows.used)
        arrays |= {
            "cells": rows.cells[:count].reshape(-1).copy(),
            "row_digests": rows.digest[:count].reshape(-1).copy(),
            "octets": rows.octets[:octets].copy(),
            "payload": rows.payload[:payload].copy(),
        }
        arrays, used = renumbered(arrays, files)
        named = [list(name) for name in names_of(state.begun)]
        return cls(state.begun.flow.tobytes(), named, limits, used, arrays)

    def into(self, state: State, number: Callable[[str], int]) -> None:
        """Make this connection the one at hand. `state` holds no rows, has forgotten its last connection
        (`codec.amqp.framing.forget`) and turned to this flow (`codec.amqp.connections.begun.begin_flow`); its arrays
        have room (`rooms`). `number` of a capture file there."""
        places = file_names(self.files, number)
        arrays = {name: with_files(array, places) for name, array in self.arrays.items()}
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
        cells = arrays["cells"].reshape(count, len(R.COLUMNS)).copy()
        cells[:, R.FILE] = np.where(cells[:, R.FILE] >= 0, places[np.maximum(cells[:, R.FILE], 0)], -1)
        rows.cells[:count] = cells
        rows.digest[:count] = arrays["row_digests"].reshape(count, 32)
        rows.octets[: len(arrays["octets"])] = arrays["octets"]
        rows.payload[: len(arrays["payload"])] = arrays["payload"]
        rows.used[:] = count, len(arrays["octets"]), len(arrays["payload"])

    def rooms(self) -> dict[str, int]:
        """How much room `into` needs: of each array of a direction's stream the larger of both, of `rows` the number
        of rows, of their heaps the octets."""
        streams = {
            name: max(len(self.arrays[f"{name}0"]), len(self.arrays[f"{name}1"]))
            for name in ("bytes", "marks", "pieces", "pool")
        }
        return streams | {name: len(self.arrays[name]) for name in ("octets", "payload")}


def stream_arrays(state: State | Tcp, side: int, directions: np.ndarray) -> dict[str, np.ndarray]:
    """What the arrays of a direction hold that is still needed, moved to the front; its record in `directions` follows
    (compare `codec.tcp.reassembly.make_room`)."""
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


def _contents(state: State) -> dict[str, np.ndarray]:
    """Contents that are open, and the digests of these and of 0-10 assemblies."""
    slots, epochs = state.contents.slots, state.contents.epochs
    half = len(slots) // 2
    epoch_of = np.repeat(epochs, half)
    content = (slots["epoch"] == epoch_of) & (slots["state"] != NOTHING)
    session = (state.assemblies.sessions["epoch"] == epoch_of) & (state.assemblies.sessions["open"] != 0)
    places = np.flatnonzero(content | session)
    contents = np.array(slots[places])
    contents["state"][~content[places]] = NOTHING
    return {"content_places": places, "contents": contents, "digests": _digests(state, places)}


def _restore_contents(state: State, arrays: dict[str, np.ndarray]) -> None:
    slots, places = state.contents.slots, arrays["content_places"]
    contents = arrays["contents"].copy()
    contents["epoch"] = state.contents.epochs[places // (len(slots) // 2)]
    slots[places] = contents
    _restore_digests(state.contents.digests, places, arrays["digests"])


def _assemblies(state: State) -> dict[str, np.ndarray]:
    """Sessions of 0-10 as far as commands are numbered, and segments that go on."""
    a, epochs = state.assemblies, state.contents.epochs
    sessions = np.flatnonzero(a.sessions["epoch"] == np.repeat(epochs, len(a.sessions) // 2))
    alive = (a.segments["epoch"] == np.repeat(epochs, len(a.segments) // 2)) & (a.segments["state"] != NOTHING)
    places = np.flatnonzero(alive)
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
    slots = dl.slots[side]
    open_now = slots["epoch"] == dl.pool[side, EPOCH] if dl.pool[side, OPEN] else np.zeros(SLOTS, bool)
    places = np.flatnonzero(open_now)
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


def _file_fields(array: np.ndarray) -> list[str]:
    """Fields of records that hold the number of a capture file."""
    return [name for name in array.dtype.names or () if name == "file" or name.endswith("_file")]


def file_names(files: Sequence[str], number: Callable[[str], int]) -> np.ndarray:
    """The numbers of capture files here, int64."""
    return np.array([number(name) for name in files] or [0], np.int64)


def with_files(array: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Records with the numbers of capture files replaced: `places[number]`."""
    fields = _file_fields(array)
    if not fields:
        return array
    array = array.copy()
    for name in fields:
        known = (array[name] >= 0) & (array[name] < len(places))
        array[name] = np.where(known, places[np.where(known, array[name], 0)], array[name])
    return array


def renumbered(arrays: dict[str, np.ndarray], files: Sequence[str]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The arrays with files numbered anew, and those that occur."""
    found = [arrays["cells"].reshape(-1, len(R.COLUMNS))[:, R.FILE]]
    found += [array[name] for array in arrays.values() for name in _file_fields(array)]
    used = [int(number) for number in np.unique(np.concatenate(found)) if 0 <= number < len(files)]
    places = np.zeros(len(files) or 1, np.int64)
    places[used] = np.arange(len(used))
    arrays = {name: with_files(array, places) for name, array in arrays.items()}
    cells = arrays["cells"].reshape(-1, len(R.COLUMNS))
    cells[:, R.FILE] = np.where(cells[:, R.FILE] >= 0, places[np.maximum(cells[:, R.FILE], 0)], -1)
    return arrays, tuple(files[number] for number in used)
