"""How many frames of each kind a connection has, by batch: what table connections adds up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import LongType, StructField, StructType

from udfs.rows import numbers_of, one_of, truth_of

SIDES = ("client", "server")
OF_FRAMES = ("connection_id", "frame_no", "content_frame_no", "sender", "frame_type", "name")
KINDS = ("frames", "methods", "heartbeats")
MEASURES = (*(f"{side}_{kind}" for kind in KINDS for side in SIDES), "published", "delivered", "headers")
COUNTED = StructType([StructField(name, LongType()) for name in ("connection_id", *MEASURES)])


@dataclass(frozen=True)
class Counts:
    """`spans`: types of rows that are no frames; `methods`: those of methods. Messages are `published` and `delivered`
    by methods of these names, and moved by `transfers`, by the client a publish, by the server a delivery."""

    spans: tuple[str, ...]
    methods: tuple[str, ...]
    published: tuple[str, ...]
    delivered: tuple[str, ...]
    transfers: tuple[str, ...]

    def of(self, frames: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of OF_FRAMES, those of a connection together -> COUNTED, one row a connection."""
        connections = numbers_of(frames["connection_id"])
        starts = np.flatnonzero(np.diff(connections, prepend=connections[:1] - 1))
        columns = {"connection_id": connections[starts]}
        for name, holds in self._measured(frames).items():
            columns[name] = np.add.reduceat(holds.astype(np.int64), starts)
        return pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in COUNTED.names], names=COUNTED.names)

    def _measured(self, frames: pa.RecordBatch) -> Mapping[str, NDArray[np.bool_]]:
        """By measure, which frames count."""
        kind, name = frames["frame_type"], frames["name"]
        kinds = {
            "frames": truth_of(pc.invert(one_of(kind, self.spans))) & truth_of(kind.is_valid()),
            "methods": truth_of(one_of(kind, self.methods)),
            "heartbeats": truth_of(pc.equal(kind, "heartbeat")),
        }
        sides = {side: truth_of(pc.equal(frames["sender"], side)) for side in SIDES}
        # A message of 1.0 may take several transfers; the first of them counts.
        first = truth_of(pc.equal(pc.coalesce(frames["content_frame_no"], frames["frame_no"]), frames["frame_no"]))
        moves = truth_of(one_of(name, self.transfers)) & first
        return {
            **{f"{side}_{of}": kinds[of] & sides[side] for of in KINDS for side in SIDES},
            "published": truth_of(one_of(name, self.published)) | (moves & sides["client"]),
            "delivered": truth_of(one_of(name, self.delivered)) | (moves & sides["server"]),
            "headers": truth_of(pc.equal(kind, "protocol-header")),
        }


@dataclass(frozen=True)
class CountRows:
    """The function for `mapInArrow` over frames (OF_FRAMES) -> COUNTED, several rows a connection."""

    counts: Counts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (self.counts.of(batch) for batch in batches if batch.num_rows)
