"""Pairing for a lake: flows into its files, and the messages that the next batch may still pair.

Both are told of messages by a file with their `connection_id` and `frame_no`, which each task reads once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet as pq

from udfs.arrow.rows import Index, integers, is_there, numbers_of, with_parts
from udfs.pairing.columns import OF_MESSAGES
from udfs.pairing.flows import PairMessages
from udfs.pairing.pairable import messages_in
from udfs.sink.lake import Filing, Parts

NAMED = pa.schema({"connection_id": pa.int64(), "frame_no": pa.int64()})
SIDES = ("publish", "deliver")
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class FileFlows:
    """The function for `mapInArrow`: partitioned messages, sorted by bucket -> FILED (`udfs.sink.lake`), their flows. A
    flow may still change if a message of it does (`open_messages`: path of a file of NAMED), or if its later message
    came at `cutoff_ns` or after it."""

    filing: Filing
    pairing: PairMessages
    open_messages: str
    cutoff_ns: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.filing.write(self._parts(batches))

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Parts:
        changing = _index(self.filing, self.open_messages)
        for flows in self.pairing(batches):
            last_ns = pc.max_element_wise(*(flows[f"{side}_ts_ns"] for side in SIDES))
            is_open = integers(last_ns, NEVER) >= self.cutoff_ns
            for side in SIDES:
                is_open |= _is_in(changing, flows[f"{side}_connection_id"], flows[f"{side}_frame_no"])
            day_of = pc.divide(last_ns, 1000).cast(pa.timestamp("us")).cast(pa.date32())
            yield from self.filing.split("message_flows", flows, pa.array(is_open), day_of)


@dataclass(frozen=True)
class KeepMessages:
    """The function for `mapInArrow`: row groups of messages (file, row_group) -> FILED, in table pairing: the messages
    of these that came at `cutoff_ns` or after it, or are `held` (path of a file of NAMED) by flows that may change."""

    filing: Filing
    held: str
    cutoff_ns: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.filing.write(self._parts(batches))

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Parts:
        held = _index(self.filing, self.held)
        for rows in messages_in(self.filing.filesystem, batches, OF_MESSAGES):
            kept = integers(rows["ts_ns"], NEVER) >= self.cutoff_ns
            kept |= _is_in(held, rows["connection_id"], rows["first_frame_no"])
            if kept.any():
                yield self.filing.whole("pairing"), with_parts(rows.filter(pa.array(kept)))


def _index(filing: Filing, path: str) -> Index:
    rows = pq.read_table(path, filesystem=filing.filesystem)
    return Index(*(numbers_of(rows[name]) for name in NAMED.names))


def _is_in(index: Index, connections: pa.Array, frames: pa.Array) -> NDArray[np.bool_]:
    """Which messages are in the index; one without a connection is not."""
    found: NDArray[np.bool_] = index.find(integers(connections), integers(frames)) >= 0
    return found & is_there(connections)
