"""Parts of the state of a connection: arrays of a decoder's state, without unused memory (`save_*`), and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from codec import stalls
from codec.amqp import rows as R
from codec.amqp.classic.contents import NOTHING
from codec.amqp.v0_10.assemblies import BLOCK, GROWING, PARTIAL_FLAGS, append, segment_slot, session_slot
from codec.amqp.v1_0.delivery_slots import BLOCK as DELIVERY_BLOCK
from codec.amqp.v1_0.delivery_slots import BLOCKS, EPOCH, HEAD, OPEN, SLOTS, USED
from codec.hashes.digest import Digests
from codec.tcp.reassembly import HISTORY

if TYPE_CHECKING:
    from codec.amqp.stream import State
    from codec.layers.ordered import Tcp

Arrays = dict[str, np.ndarray]

DIGEST = np.dtype([("words", "u4", 8), ("block", "u1", 64), ("length", "i8")])
STREAM_ARRAYS = ("bytes", "marks", "pieces", "pool")
_OF_ROWS = {"cells": (len(R.COLUMNS), R.FILE), "stalls": (len(stalls.CELLS), stalls.FILE)}  # their width, the file
NO_PLACES, NO_OCTETS = np.zeros(0, np.int64), np.zeros(0, np.uint8)


def heap_ends(rows: R.Rows, row: int) -> tuple[int, int]:
    """Where the octets and the payload of the rows before `row` end."""
    last = rows.cells[row - 1]
    return (int(last[R.OCTETS_END]), int(last[R.PAYLOAD_END])) if row else (0, 0)


def save_rows(rows: R.Rows, first: int) -> Arrays:
    """Rows from `first` on, and their octets."""
    count, octets, payload = map(int, rows.used)
    octets_from, payload_from = heap_ends(rows, first)
    cells = rows.cells[first:count].copy()
    cells[:, R.OCTETS_END] -= octets_from
    cells[:, R.PAYLOAD_END] -= payload_from
    return {
        "cells": cells.reshape(-1),
        "row_digests": rows.digest[first:count].reshape(-1).copy(),
        "octets": rows.octets[octets_from:octets].copy(),
        "payload": rows.payload[payload_from:payload].copy(),
    }


def restore_rows(rows: R.Rows, arrays: Arrays) -> None:
    """Append the rows."""
    count = len(arrays["cells"]) // len(R.COLUMNS)
    if not count:
        return
    first, octets, payload = map(int, rows.used)
    end, octets_end, payload_end = first + count, octets + len(arrays["octets"]), payload + len(arrays["payload"])
    rows.cells[first:end] = arrays["cells"].reshape(count, -1)
    rows.cells[first:end, R.OCTETS_END] += octets
    rows.cells[first:end, R.PAYLOAD_END] += payload
    rows.digest[first:end] = arrays["row_digests"].reshape(count, 32)
    rows.octets[octets:octets_end] = arrays["octets"]
    rows.payload[payload:payload_end] = arrays["payload"]
    rows.used[:] = end, octets_end, payload_end


def stream_arrays(state: State | Tcp, side: int, directions: np.ndarray) -> Arrays:
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
        "pool": np.concatenate([NO_OCTETS, *stored]),
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


def _save_digests(digests: Digests, places: np.ndarray) -> np.ndarray:
    found = np.zeros(len(places), DIGEST)
    for name in DIGEST.names or ():
        found[name] = getattr(digests, name)[places]
    return found


def _restore_digests(digests: Digests, places: np.ndarray, saved: np.ndarray) -> None:
    for name in DIGEST.names or ():
        getattr(digests, name)[places] = saved[name]


def _slots(epochs: np.ndarray, slots: np.ndarray, used: int, live: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The slots among the first `used` of each direction that are of its epoch, and `live`."""
    half, slots = len(slots) // 2, slots.view(np.ndarray)  # fields of a record array take long to look up
    first = (slots[side * half : side * half + used] for side in (0, 1))
    return np.concatenate(
        [np.flatnonzero((own["epoch"] == epochs[side]) & live(own)) + side * half for side, own in enumerate(first)]
    )


def _chain(heap: np.ndarray, following: np.ndarray, block: int, size: int, block_bytes: int) -> list[np.ndarray]:
    """The `size` octets in a chain of blocks of `heap`; `following[block]` is the block after `block`."""
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
    places = np.union1d(content, session)
    contents = np.array(slots[places])
    contents["state"][~np.isin(places, content)] = NOTHING
    digests = _save_digests(state.contents.digests, places)
    return {"content_places": places, "contents": contents, "digests": digests}


def restore_contents(state: State, arrays: Arrays) -> None:
    """The inverse of `save_contents`."""
    slots, places = state.contents.slots.view(np.ndarray), arrays["content_places"]
    contents = arrays["contents"].copy()
    contents["epoch"] = state.contents.epochs[places // (len(slots) // 2)]
    slots[places] = contents
    _restore_digests(state.contents.digests, places, arrays["digests"])


def save_assemblies(state: State, channels: int) -> Arrays:
    """Sessions of 0-10 with numbered commands, and incomplete segments."""
    a, epochs = state.assemblies, state.contents.epochs
    sessions = _slots(epochs, a.sessions, channels, lambda own: np.ones(len(own), bool))
    places = _slots(epochs, a.segments, 2 * channels, lambda own: own["state"] != NOTHING)
    segments = np.array(a.segments[places])
    segments["length"][segments["state"] != GROWING] = 0
    stored = [
        part
        for segment in segments
        for part in _chain(a.pool, a.blocks[:, 0], int(segment["head"]), int(segment["length"]), BLOCK)
    ]
    return {
        "session_places": sessions,
        "sessions": np.array(a.sessions[sessions]),
        "segment_places": places,
        "segments": segments,
        "segment_bytes": np.concatenate([NO_OCTETS, *stored]),
        "partial_flags": a.numbers[PARTIAL_FLAGS:].copy(),
    }


def restore_assemblies(state: State, arrays: Arrays) -> None:
    """The inverse of `save_assemblies`."""
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
    a.numbers[PARTIAL_FLAGS:] = arrays["partial_flags"]


def save_deliveries(state: State, side: int) -> Arrays:
    """Incomplete deliveries of 1.0, and the stored octets of each."""
    dl = state.deliveries
    slots = dl.slots[side].view(np.ndarray)
    places = np.flatnonzero(slots["epoch"] == dl.pool[side, EPOCH]) if dl.pool[side, OPEN] else NO_PLACES
    deliveries = np.array(slots[places])
    stored = [
        part
        for each in deliveries
        for part in _chain(dl.blocks, dl.next_block, int(each["first_block"]), int(each["stored"]), DELIVERY_BLOCK)
    ]
    return {
        "delivery_places": places,
        "deliveries": deliveries,
        "delivery_heads": dl.heads.reshape(2, SLOTS, HEAD)[side][places].reshape(-1).copy(),
        "delivery_bytes": np.concatenate([NO_OCTETS, *stored]),
        "delivery_digests": _save_digests(dl.digests, side * SLOTS + places),
    }


def restore_deliveries(state: State, side: int, arrays: Arrays) -> None:
    """The inverse of `save_deliveries`."""
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
        size = int(delivery["stored"])
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
    """The fields of records with the number of a capture file."""
    return [name for name in kind.names or () if name == "file" or name.endswith("_file")]


def file_numbers(files: Sequence[str], number: Callable[[str], int]) -> np.ndarray:
    """The `number` of each capture file, int64."""
    return np.array([number(name) for name in files] or [0], np.int64)


def _renumber(numbers: np.ndarray, places: np.ndarray) -> np.ndarray:
    known = (numbers >= 0) & (numbers < len(places))
    if not known.any():
        return numbers
    return np.where(known, places[np.where(known, numbers, 0)], numbers)


def renumber_all(arrays: Arrays, places: np.ndarray) -> Arrays:
    """The arrays with each number of a capture file replaced by `places[number]`."""
    changed = {}
    for name, array in arrays.items():
        fields = _file_fields(array.dtype)
        if name in _OF_ROWS or (fields and len(array)):
            changed[name] = array = array.copy()
        for of_file in fields if len(array) else ():
            array[of_file] = _renumber(array[of_file], places)
        if name in _OF_ROWS:
            width, file = _OF_ROWS[name]
            cells = array.reshape(-1, width)
            cells[:, file] = _renumber(cells[:, file], places)
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
    places = np.zeros(len(files) or 1, np.int64)
    places[used] = np.arange(len(used))
    return renumber_all(arrays, places), tuple(files[number] for number in used)
