"""Pairing for a lake: writes flows, and the messages that later batches may still pair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet as pq

from udfs.arrow.arrays import (
    Index,
    from_spark,
    is_valid,
    to_int64,
)
from udfs.pairing.flows import PairMessages
from udfs.pairing.pairable import messages_in
from udfs.pairing.schemas import MESSAGE_COLUMNS
from udfs.sink.writers import LakeFolders, Parts

MESSAGE_IDS = pa.schema({"connection_id": pa.int64(), "frame_no": pa.int64()})
SIDES = ("publish", "deliver")
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class WriteFlows:
    """The function for `mapInArrow`: partitioned messages, sorted by bucket -> WRITTEN (`udfs.sink.writers`): flows.
    A flow may still change if one of its messages may (`open_messages`: path of a file of MESSAGE_IDS), or if its later
    message came at or after `cutoff_ns`."""

    folders: LakeFolders
    pairing: PairMessages
    open_messages: str
    cutoff_ns: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.folders.write(self._parts(batches))

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Parts:
        changing = _index(self.folders, self.open_messages)
        for flows in self.pairing(batches):
            last_ns = pc.max_element_wise(*(flows[f"{side}_ts_ns"] for side in SIDES))
            is_open = to_int64(last_ns, NEVER) >= self.cutoff_ns
            for side in SIDES:
                is_open |= _is_in(changing, flows[f"{side}_connection_id"], flows[f"{side}_frame_no"])
            day_of = pc.divide(last_ns, 1000).cast(pa.timestamp("us")).cast(pa.date32())
            yield from self.folders.split("message_flows", flows, pa.array(is_open), day_of)


@dataclass(frozen=True)
class KeepMessages:
    """The function for `mapInArrow`: row groups of messages (file, row_group) -> WRITTEN: table pairing. Writes
    messages that came at or after `cutoff_ns`, or belong to flows that may change (`open_flows`: path of a file of
    MESSAGE_IDS)."""

    folders: LakeFolders
    open_flows: str
    cutoff_ns: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.folders.write(self._parts(batches))

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Parts:
        open_flows = _index(self.folders, self.open_flows)
        for rows in messages_in(self.folders.filesystem, batches, MESSAGE_COLUMNS):
            retained = to_int64(rows["ts_ns"], NEVER) >= self.cutoff_ns
            retained |= _is_in(open_flows, rows["connection_id"], rows["first_frame_no"])
            if retained.any():
                yield self.folders.whole("pairing"), from_spark(rows.filter(pa.array(retained)))


def _index(folders: LakeFolders, path: str) -> Index:
    return Index.of(pq.read_table(path, filesystem=folders.filesystem))


def _is_in(index: Index, connections: pa.Array, frames: pa.Array) -> NDArray[np.bool_]:
    """Which messages are in the index; one without a connection is not."""
    found: NDArray[np.bool_] = index.find(to_int64(connections), to_int64(frames)) >= 0
    return found & is_valid(connections)
