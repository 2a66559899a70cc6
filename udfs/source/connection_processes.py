"""Processes at the ends of connections, from what packets of a pcapng say (`codec.capture.processes`).

    sightings = sightings_of(run_of, process_of, segments)      # where captures are read
    processes.add(batch)                                        # where runs are decoded
    columns = process_columns(processes, ended)

A *sighting* is a time during which packets of a run, of one direction and address space, were about one process. A
packet that was sent (epb_flags) is about the process of its sender, one that was received about that of its receiver.
Where the flags say neither, two directions with different processes have those of their senders; one process in both
directions is on a side that is not known.

A connection has the process of its first packet that has one. If connections in several address spaces share the flow,
a side whose packets are about several processes has none: which one it is is not known. Memory: the sightings of flows
that are decoded, one a run and change of the process.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.capture.processes import FLAG_BITS, INBOUND, OUTBOUND
from codec.capture.records import Process
from codec.framing.connection import EndedConnections
from codec.net.layers import FLOW_KEY_BYTES
from codec.tables import PROCESS
from udfs.arrow.types import arrow_type

# `end`: whose process it is, 0 the low end of the flow key, 1 the high one; AS_SENT more, of the sender, where flags do
# not say. `process`: index into the processes of the run.
SIGHTING = np.dtype(
    [("first_ns", "i8"), ("last_ns", "i8"), ("space", "u4"), ("end", "u4"), ("process", "i8")], align=True
)
AS_SENT = 2
RETAINED = 4096  # flows before the current one
_PROCESS = arrow_type(PROCESS)


class Sightings(NamedTuple):
    """Processes by run, and their sightings by run: int64 `runs`, and `numbers` of their processes; int64
    `sighting_runs`, and SIGHTING."""

    runs: NDArray[np.int64]
    numbers: NDArray[np.int64]
    sighting_runs: NDArray[np.int64]
    sightings: NDArray[np.void]


def sightings_of(run_of: NDArray[np.int64], process_of: NDArray[np.int64], segments: NDArray[np.void]) -> Sightings:
    """The sightings of packets (SEGMENT) in their order, with their runs and processes (see `codec.capture.Walker`)."""
    number, flags = process_of >> FLAG_BITS, process_of & (1 << FLAG_BITS) - 1
    direction = segments["direction"].astype(np.int64)
    end = np.where(flags == OUTBOUND, direction, np.where(flags == INBOUND, 1 - direction, AS_SENT + direction))
    order = np.lexsort([segments["space"], end, run_of])  # stable: packets stay in their order
    keys = [key[order] for key in (run_of, end, segments["space"].astype(np.int64), number)]
    begins = np.flatnonzero(np.append(True, np.any([key[1:] != key[:-1] for key in keys], axis=0)))
    run, end, space, number = (key[begins] for key in keys)
    pairs, process = np.unique(np.stack([run, number]), axis=1, return_inverse=True)
    times = segments["ts_ns"][order]
    found = np.zeros(len(begins), SIGHTING)
    found["first_ns"], found["last_ns"] = np.minimum.reduceat(times, begins), np.maximum.reduceat(times, begins)
    found["space"], found["end"] = space, end
    found["process"] = process.reshape(-1) - np.searchsorted(pairs[0], run)
    return Sightings(pairs[0], pairs[1], run, found)


class _Seen(NamedTuple):
    """One sighting of a process."""

    first_ns: int
    last_ns: int
    space: int
    end: int
    process: str  # JSON


class FlowProcesses:
    """Sightings by flow key, in the order of the flows."""

    def __init__(self) -> None:
        self._seen = OrderedDict[bytes, list[_Seen]]()

    def add(self, runs: pa.RecordBatch) -> None:
        """Take the processes of TCP_RUNS rows."""
        if runs["processes"].null_count == runs.num_rows:
            return
        rows = runs.filter(runs["processes"].is_valid())
        columns = (rows[name].to_pylist() for name in ("flow", "processes", "sightings"))
        for flow, processes, sightings in zip(*columns, strict=True):
            seen = self._seen.setdefault(flow, [])
            for first_ns, last_ns, space, end, process in np.frombuffer(sightings, SIGHTING).tolist():
                seen.append(_Seen(first_ns, last_ns, space, end, processes[process]))

    def restore(self, flow: bytes, data: NDArray[np.uint8]) -> None:
        """Add what `save` returned for a connection of this flow."""
        if len(data):
            known = [_Seen(*each) for each in json.loads(data.tobytes())]
            self._seen.setdefault(flow[:FLOW_KEY_BYTES], []).extend(known)

    def save(self, flow: bytes, first_ns: int, last_ns: int) -> NDArray[np.uint8]:
        """What is known of the processes of a connection between two times, in ns: uint8."""
        found = dict[tuple[int, int, str], _Seen]()
        for each in self._between(flow, first_ns, last_ns):
            found.setdefault((each.space, each.end, each.process), each)
        return np.frombuffer(json.dumps([*found.values()]).encode() if found else b"", np.uint8)

    def ends(self, flow: bytes, first_ns: int, last_ns: int) -> list[str | None]:
        """The processes (JSON) of a connection between two times: of the low end of its flow key, of the high end, and
        of one of the two."""
        found: list[list[str]] = [[], [], [], []]
        seen = self._between(flow, first_ns, last_ns)
        for each in seen:
            found[each.end].append(each.process)
        if len({each.space for each in seen}) > 1:
            found = [of_end if len({*of_end}) == 1 else [] for of_end in found]
        low, high, sent_low, sent_high = (of_end[0] if of_end else None for of_end in found)
        if low is not None or high is not None:
            return [low, high, None]
        if sent_low == sent_high:
            return [None, None, sent_low]
        return [sent_low, sent_high, None]

    def forget(self, flow: bytes) -> None:
        """The decoder has come to this flow: forget those before it, up to the last RETAINED."""
        key = flow[:FLOW_KEY_BYTES]
        if key in self._seen:
            while len(self._seen) > RETAINED and next(iter(self._seen)) != key:
                self._seen.popitem(last=False)

    def __bool__(self) -> bool:
        return bool(self._seen)

    def _between(self, flow: bytes, first_ns: int, last_ns: int) -> list[_Seen]:
        """Sightings between two times, in order."""
        seen = self._seen.get(flow[:FLOW_KEY_BYTES], ())
        return sorted(each for each in seen if each.last_ns >= first_ns and each.first_ns <= last_ns)


def process_columns(processes: FlowProcesses | None, ended: EndedConnections) -> dict[str, pa.Array]:
    """The columns of FACTS about processes."""
    count = len(ended.connections)
    if not processes:
        return {f"{whose}_process": pa.nulls(count, _PROCESS) for whose in ("client", "server", "local")}
    connections = ended.connections.view(np.ndarray)
    names = ("client", "first_ns", "last_ns")
    found: list[list[str | None]] = [[], [], []]
    for flow, client, first_ns, last_ns in zip(
        ended.flows, *(connections[name].tolist() for name in names), strict=True
    ):
        *ends, either = processes.ends(flow.tobytes(), first_ns, last_ns)
        for whose, process in zip(found, (ends[client], ends[1 - client], either), strict=True):
            whose.append(process)
    if count:
        processes.forget(ended.flows[-1].tobytes())
    return {
        f"{whose}_process": _structs(of_side)
        for whose, of_side in zip(("client", "server", "local"), found, strict=True)
    }


def _structs(processes: Iterable[str | None]) -> pa.Array:
    structs: list[dict[str, Any] | None] = [
        None if text is None else Process(*json.loads(text))._asdict() for text in processes
    ]
    return pa.array(structs, _PROCESS)
